"""Runs contestants, each in a process and an environment of its own, and keeps their time.

Limits are in processor time, so that a busy machine is fair to all.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from peers.judge import RADIUS, Score, drawn, judged, places
from ridgescope.geometry import in_ball, random_directions

HERE = Path(__file__).parent
GRACE = 15
"""Seconds of processor time that a process may take beyond its limit, to start and to write its answer."""


@dataclass(frozen=True)
class Contestant:
    name: str
    script: str
    settings: Sequence[Mapping[str, Any]]
    """All that are tried; the best one by the truth is shown."""
    told: bool = True
    """Was it told n?"""
    gradients: bool = False
    """Are its queries spent on gradients?"""


OURS = (
    Contestant("ridgescope, `auto`", "ours.py", ({},), told=False),
    Contestant('Hessian span alone (`method="curvature"`)', "ours.py", ({"method": "curvature"},), told=False),
    Contestant('kink search alone (`method="kinks"`)', "ours.py", ({"method": "kinks"},), told=False),
)
_RATES = (3e-2, 1e-2, 3e-3)
PEERS = (
    Contestant(
        "R `ppr`",
        "ppr.R",
        tuple({"smoother": s, "level": k} for s, k in (("supsmu", 2), ("supsmu", 3), ("spline", 3), ("gcv", 3))),
    ),
    Contestant(
        "`projection-pursuit`",
        "pursuit.py",
        (
            {"rows": 2000, "fit_type": "polyfit", "degree": 9},
            {"rows": 2000, "fit_type": "spline", "degree": 3},
            {"rows": 2000, "fit_type": "polyfit", "degree": 9, "opt_level": "medium"},
        ),
    ),
    *(
        Contestant(
            f"distillation, width {times or ''}n".replace("1n", "n"),
            "distil.py",
            tuple({"response": r, "times": times, "lr": lr} for r in ("tanh", "relu", "gelu") for lr in _RATES[1:2]),
        )
        for times in (1, 4)
    ),
    Contestant(
        "spline distillation, width n",
        "distil.py",
        tuple({"response": "spline", "times": 1, "intervals": 24, "lr": lr} for lr in _RATES),
    ),
    Contestant(
        "ICA on gradients",
        "gradients.py",
        tuple(
            {"method": "ica", "fun": fun, "differences": differences}
            for fun in ("logcosh", "cube")
            for differences in (False, True)
        ),
        gradients=True,
    ),
    Contestant(
        "dictionary of gradients",
        "gradients.py",
        tuple(
            {"method": "dictionary", "alpha": alpha, "differences": differences}
            for alpha in (0.3, 1.0)
            for differences in (False, True)
        ),
        gradients=True,
    ),
    Contestant(
        "sparse autoencoder on gradients, 2n codes",
        "autoencoder.py",
        tuple(
            {"times": 2, "lr": 3e-3, "l1": l1, "differences": differences}
            for l1 in (0.1, 0.5)
            for differences in (False, True)
        ),
        gradients=True,
    ),
)


@dataclass(frozen=True)
class Entry:
    """The best of one contestant's settings on one target."""

    contestant: str
    case: str
    seed: int
    told: bool
    tried: int
    queries: int = 0
    seconds: float = 0.0
    """Processor time of the work itself."""
    wall: float = 0.0
    """Of the whole process, start and imports included."""
    note: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    score: Score | None = None

    def kept(self) -> dict[str, Any]:
        return asdict(self)


def contest(
    who: Contestant,
    case: str,
    target: Mapping[str, Any],
    *,
    seconds: float,
    queries: int,
    python: str,
    tries: int | None = None,
) -> tuple[Entry, list[Entry]]:
    """(the best setting, all settings) of a contestant on `drawn(target)`; `tries`: only the first few."""
    who = replace(who, settings=who.settings[:tries])
    entries = [_once(who, case, target, s, seconds, queries, python) for s in who.settings]
    done = [e for e in entries if e.score is not None]
    return (max(done, key=lambda e: e.score.rank) if done else entries[-1]), entries  # type: ignore[union-attr]


def _once(
    who: Contestant,
    case: str,
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any],
    seconds: float,
    queries: int,
    python: str,
) -> Entry:
    truth, seed = drawn(arguments), int(arguments.get("rng", 0))
    rng = np.random.default_rng([seed, queries])
    told = Entry(who.name, case, seed, who.told, len(who.settings), settings=settings)
    T = places(truth, seed)
    X, G = np.empty((0, truth.dim)), np.empty((0, truth.dim))
    if who.script != "ours.py" and who.gradients:
        G = gradient_pairs(truth, queries, rng)
        asked = 2 * truth.dim * len(G)
    elif who.script != "ours.py":
        X = in_ball(min(queries, settings.get("rows", queries)), truth.dim, RADIUS, rng)
        asked = len(X)
    Y = truth(X) if len(X) else np.empty(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = {"dim": truth.dim, "features": len(truth.directions), "radius": RADIUS, "seconds": seconds}
        task |= {"seed": seed, "target": arguments, "settings": settings}
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        np.savez(folder / "task.npz", X=X, Y=Y, G=G, T=T)
        if who.script.endswith(".R"):
            _for_r(folder, task, X, Y, T)
        start, limit = time.perf_counter(), int(seconds) + GRACE
        try:
            done = subprocess.run(
                [*_runner(who.script, python), name],
                cwd=HERE.parent,
                capture_output=True,
                text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
                check=False,
            )
        except FileNotFoundError:
            return _replace(told, note="not installed")
        wall = time.perf_counter() - start
        if done.returncode < 0:
            return _replace(told, seconds=limit, wall=wall, note="no answer within the time limit")
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            return _replace(told, wall=wall, note=f"failed: {last[:100]}")
        directions, values, answer = _answer(folder, truth.dim)
    return _replace(
        told,
        queries=answer.get("queries") or asked,
        seconds=answer["seconds"],
        wall=wall,
        note=answer.get("note", ""),
        score=judged(truth, T, directions, values),
    )


def gradient_pairs(truth, queries: int, rng: np.random.Generator) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Central differences at pairs of points R/10 apart; a gradient costs 2d queries."""
    d = truth.dim
    count = max(1, queries // (4 * d))
    X = in_ball(count, d, 0.9 * RADIUS, rng)
    near = X + 0.1 * RADIUS * random_directions(count, d, rng)
    at = np.stack([X, near], axis=1).reshape(-1, d)
    h = 1e-3 if truth.noise == 0 else 0.2
    steps = h * np.eye(d)
    difference = [truth(at + e) - truth(at - e) for e in steps]
    return np.stack(difference, axis=1) / (2.0 * h)


def _replace(entry: Entry, **changes: Any) -> Entry:
    return Entry(**{**{f: getattr(entry, f) for f in entry.__dataclass_fields__}, **changes})


def _runner(script: str, python: str) -> list[str]:
    if script.endswith(".R"):
        return [shutil.which("Rscript") or "Rscript", str(HERE / script)]
    if script == "ours.py":  # needs more of this package than `job`
        return [sys.executable, "-m", "peers.ours"]
    return [python, str(HERE / script)]


def _for_r(folder: Path, task: Mapping[str, Any], X: np.ndarray, Y: np.ndarray, T: np.ndarray) -> None:
    for name, array in (("X", X), ("Y", Y), ("T", T)):
        (folder / f"{name}.bin").write_bytes(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    settings = task["settings"]
    line = f"{task['dim']} {task['features']} {settings['smoother']} {settings['level']}\n"
    (folder / "task.txt").write_text(line, encoding="utf-8")


def _answer(folder: Path, dim: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    if (folder / "directions.bin").exists():  # R's
        told = {"seconds": float(np.fromfile(folder / "seconds.bin")[0])}
        return np.fromfile(folder / "directions.bin").reshape(-1, dim), np.fromfile(folder / "values.bin"), told
    with np.load(folder / "answer.npz") as arrays:
        directions, values = arrays["directions"], arrays["values"]
    return directions, values, json.loads((folder / "answer.json").read_text(encoding="utf-8"))
