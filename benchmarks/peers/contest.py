"""Runs contestants, each in a process and an environment of its own, and keeps their time.

Limits are in processor time, so that a busy machine is fair to all.
"""

from __future__ import annotations

import json
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
    short: str
    """Its name in a picture."""
    script: str
    settings: Sequence[Mapping[str, Any]]
    """All that are tried; the best one by the truth is shown."""
    told: bool = True
    """Was it told n?"""
    gradients: bool = False
    """Are its queries spent on gradients?"""
    anytime: bool = False
    """Does it go on improving until its time is up?"""
    light: bool = False
    """Does it take seconds, so that no pilot is needed to try all its settings?"""


@dataclass(frozen=True)
class Terms:
    """What a contestant may spend. Times are processor time."""

    seconds: float
    """For each setting tried."""
    queries: int = 0
    """Peers only; ours asks for itself."""
    python: str = sys.executable
    """The peers' interpreter."""
    tries: int | None = None
    """Only the first few settings."""
    pilot: float | None = None
    """Choose the setting, by its error, in runs of so many seconds with a tenth of the queries; all in full if None."""
    longest: float = 0.0
    """For a peer that is near half of the directions after `seconds`; and to end at all, for one that does not stop by
    itself.
    """

    def ends(self, who: Contestant) -> float:
        """When a process is stopped, answer or none."""
        return self.seconds if who.anytime else max(self.seconds, self.longest)


OURS = (
    Contestant("ridgescope, `auto`", "ours", "ours.py", ({},), told=False, anytime=True),
    Contestant(
        'Hessian span alone (`method="curvature"`)',
        "Hessian span",
        "ours.py",
        ({"method": "curvature"},),
        told=False,
        anytime=True,
    ),
    Contestant(
        'kink search alone (`method="kinks"`)',
        "kink search",
        "ours.py",
        ({"method": "kinks"},),
        told=False,
        anytime=True,
    ),
)
_RATES = (3e-2, 1e-2, 3e-3)
PEERS = (
    Contestant(
        "R `ppr`",
        "R ppr",
        "ppr.R",
        tuple({"smoother": s, "level": k} for s, k in (("supsmu", 2), ("supsmu", 3), ("spline", 3), ("gcv", 3))),
    ),
    Contestant(
        "`projection-pursuit`",
        "proj.-pursuit",
        "pursuit.py",
        (
            {"rows": 2000, "fit_type": "polyfit", "degree": 9},
            {"rows": 2000, "fit_type": "spline", "degree": 3},
            {"rows": 2000, "fit_type": "polyfit", "degree": 9, "opt_level": "medium"},
        ),
    ),
    *(
        Contestant(
            f"distillation, width {wide}",
            f"distilled, {wide}",
            "distil.py",
            tuple({"response": r, "times": times, "lr": lr} for r in ("tanh", "relu", "gelu") for lr in _RATES[1:2]),
            anytime=True,
        )
        for times, wide in ((1, "n"), (4, "4n"))
    ),
    Contestant(
        "spline distillation, width n",
        "splines, n",
        "distil.py",
        tuple({"response": "spline", "times": 1, "intervals": 24, "lr": lr} for lr in _RATES),
        anytime=True,
    ),
    Contestant(
        "ICA on gradients",
        "ICA",
        "gradients.py",
        tuple(
            {"method": "ica", "fun": fun, "differences": differences}
            for fun in ("logcosh", "cube")
            for differences in (False, True)
        ),
        gradients=True,
        light=True,
    ),
    Contestant(
        "dictionary of gradients",
        "dictionary",
        "gradients.py",
        tuple(
            {"method": "dictionary", "alpha": alpha, "differences": differences}
            for alpha in (0.3, 1.0)
            for differences in (False, True)
        ),
        gradients=True,
        light=True,
    ),
    Contestant(
        "sparse autoencoder on gradients, 2n codes",
        "autoencoder",
        "autoencoder.py",
        tuple(
            {"times": 2, "lr": 3e-3, "l1": l1, "differences": differences}
            for l1 in (0.1, 0.5)
            for differences in (False, True)
        ),
        gradients=True,
        anytime=True,
    ),
)


@dataclass(frozen=True)
class Entry:
    """One run of a contestant on one target."""

    contestant: str
    case: str
    seed: int
    told: bool
    tried: int
    """Settings that were tried on this target."""
    shown: bool = False
    """Is this the run that the table shows, the best of its contestant on this target?"""
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

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Entry:
        """What `kept` wrote."""
        return cls(**{**told, "score": told["score"] and Score(**told["score"])})


def contest(who: Contestant, case: str, target: Mapping[str, Any], terms: Terms) -> list[Entry]:
    """All runs of a contestant on `drawn(target)`; `shown` is the best of them, by the truth."""
    settings, runs = who.settings[: terms.tries], list[Entry]()
    tried = len(settings)
    if terms.pilot and tried > 1 and not who.light:
        short = replace(terms, seconds=terms.pilot, longest=0.0, queries=terms.queries // 10)
        runs += [_once(who, case, target, s, short) for s in settings]
        settings = (_closest(runs).settings,)
    full = [_once(who, case, target, s, terms) for s in settings]
    if who.anytime and terms.longest > terms.seconds and _promising(_best(full)):
        full.append(_once(who, case, target, _best(full).settings, replace(terms, seconds=terms.longest)))
    best = _best([*full, *runs])
    return [replace(run, tried=tried, shown=run is best) for run in (*runs, *full)]


def _best(entries: Sequence[Entry]) -> Entry:
    """By the truth; the first where none has an answer."""
    return max(entries, key=lambda e: (e.score is not None, e.score.rank if e.score else ()))


def _closest(entries: Sequence[Entry]) -> Entry:
    """Smallest RMS error, a better sign of what a setting comes to than how many directions a short run has; `_best`
    where there is no model of f.
    """
    models = [e for e in entries if e.score is not None and e.score.rms is not None]
    return min(models, key=lambda e: e.score.rms) if models else _best(entries)  # type: ignore[union-attr, return-value]


def _promising(entry: Entry) -> bool:
    """Is it near half of the directions at least, and is there something left to improve?"""
    score = entry.score
    return score is not None and score.within_1 >= 0.5 and (score.within_3 < 1.0 or score.false > 0)


def _once(who: Contestant, case: str, arguments: Mapping[str, Any], settings: Mapping[str, Any], terms: Terms) -> Entry:
    truth, seed = drawn(arguments), int(arguments.get("rng", 0))
    rng, queries = np.random.default_rng([seed, terms.queries]), terms.queries
    told = Entry(who.name, case, seed, who.told, 1, settings=settings)
    T = places(truth, seed)
    X, G = np.empty((0, truth.dim)), np.empty((0, truth.dim))
    if who.script != "ours.py" and who.gradients:
        G = gradient_pairs(truth, queries, rng)
        asked = 4 * truth.dim * (queries // (4 * truth.dim))
    elif who.script != "ours.py":
        X = in_ball(min(queries, settings.get("rows", queries)), truth.dim, RADIUS, rng)
        asked = len(X)
    Y = truth(X) if len(X) else np.empty(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = {"dim": truth.dim, "features": len(truth.directions), "radius": RADIUS, "seed": seed}
        task |= {"seconds": terms.seconds, "apart": _apart(truth.directions)}
        task |= {"target": arguments, "settings": settings}
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        np.savez(folder / "task.npz", X=X, Y=Y, G=G, T=T)
        if who.script.endswith(".R"):
            _for_r(folder, task, X, Y, T)
        start, limit = time.perf_counter(), int(terms.ends(who)) + GRACE
        command = [*_runner(who.script, terms.python), name]
        if shutil.which(command[0]) is None:
            return replace(told, note="not installed")
        done = subprocess.run(limited(command, limit), cwd=HERE.parent, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - start
        if done.returncode < 0:
            return replace(told, seconds=limit, wall=wall, note="no answer within the time limit")
        if done.returncode:
            words = [line for line in done.stderr.strip().splitlines() if line != "Execution halted"]  # R's last ones
            last = (words or ["no word"])[-1].strip()
            return replace(told, wall=wall, note=f"failed: {last[:100]}")
        directions, values, answer = _answer(folder, truth.dim)
    return replace(
        told,
        queries=answer.get("queries") or asked,
        seconds=answer["seconds"],
        wall=wall,
        note=answer.get("note", ""),
        score=judged(truth, T, directions, values),
    )


def limited(command: Sequence[str], seconds: int) -> list[str]:
    """The command, killed by the system after so much processor time."""
    return ["sh", "-c", f'ulimit -t {seconds}; exec "$@"', "sh", *command]


def _apart(directions: np.ndarray) -> float:
    """How close two units of a peer are taken for one: 0.1 rad, or half of what the two closest features are apart."""
    cosines = np.abs(directions @ directions.T) - 2.0 * np.eye(len(directions))
    return float(min(0.1, 0.5 * np.arccos(np.clip(cosines.max(), 0.0, 1.0))))


def gradient_pairs(truth, queries: int, rng: np.random.Generator) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Central differences at pairs of points R/10 apart, one after the other; 2d queries serve all outputs."""
    d = truth.dim
    count = max(1, queries // (4 * d))
    X = in_ball(count, d, 0.9 * RADIUS, rng)
    near = X + 0.1 * RADIUS * random_directions(count, d, rng)
    at = np.stack([X, near], axis=1).reshape(-1, d)
    h = 1e-3 if truth.noise == 0 else 0.2
    steps = h * np.eye(d)
    difference = np.stack([truth(at + e) - truth(at - e) for e in steps], axis=1) / (2.0 * h)
    return np.moveaxis(difference.reshape(count, 2, d, -1), 3, 0).reshape(-1, d)


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
    line = f"{task['dim']} {task['features']} {settings['smoother']} {settings['level']} {Y[:1].size}\n"
    (folder / "task.txt").write_text(line, encoding="utf-8")


def _answer(folder: Path, dim: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    if (folder / "directions.bin").exists():  # R's
        told = {"seconds": float(np.fromfile(folder / "seconds.bin")[0])}
        return np.fromfile(folder / "directions.bin").reshape(-1, dim), np.fromfile(folder / "values.bin"), told
    with np.load(folder / "answer.npz") as arrays:
        directions, values = arrays["directions"], arrays["values"]
    return directions, values, json.loads((folder / "answer.json").read_text(encoding="utf-8"))
