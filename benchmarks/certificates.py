"""Are certificates true? Random functions whose truth is known, each certificate compared with it.

    OMP_NUM_THREADS=1 python benchmarks/certificates.py --out certificates.md     300 functions; run again to resume
    python benchmarks/certificates.py --first 17 --seeds 1                        one of them
    python benchmarks/certificates.py --only jumps                                those whose description has the word

A certificate is *wrong* if it is met, and

    without noise    the largest true error |f − f̂| at many points, those next to kinks and jumps included,
                     is above tolerance·std,
    with noise       the root mean square of f − f̂ over the ball, f without its noise, is above tolerance·std.

Beside it: whether the statement about volume holds (it may fail with probability 1 − confidence), how many of the true
directions were found, and whether a feature that can be seen is missing although the certificate is met. The functions
are those of `drawn_targets`. Runs that are in the JSON file beside `--out` already are not repeated: delete it to begin
anew, as one should after a change of the code.
"""

from __future__ import annotations

import argparse
import inspect
import json
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ridgescope as rs
from drawn_targets import KINDS, NOISES, RADIUS, TOLERANCE, Target, draw
from ridgescope.bench import keep_table
from ridgescope.geometry import Floats, along, in_ball, shrink_to

TARGETS = 300
SECONDS = 30.0
"""Time for one run, after twice of which it is interrupted."""
BALL_POINTS = 40_000
"""Uniform points of the true root mean square and of the true share of the ball."""
RAY_POINTS = 1501
"""Points on each true and each found ray, and as many with the same v·x beside it."""
NEAREST, FARTHEST, AROUND = 1e-4, 0.1, 24
"""Nearest and farthest points beside a sharp place, in radii, and how many of them on each side."""
CLIMBERS, CLIMBS = 40, 12
"""The local search for the largest error: from so many of the worst points, so many rounds."""
VISIBLE = 5.0
"""A feature can be seen if what is not straight in it has a root mean square of so many tolerances."""
CLOSE = 0.1
"""Radians within which a true direction counts as found."""
SAMPLING = 3.0
"""Standard errors that the true share of the ball, measured at random points, may lie below the coverage."""
LAST_LINES = 6
"""Lines of a traceback that are kept."""

HEADER = (
    "| noise | kind | runs | raised | met | met and true | WRONG | volume statements true | "
    "directions found | met, visible feature missing | queries: median | seconds: median, max |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


# -- one run -------------------------------------------------------------------------------------------------


def tried(seed: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Run the target of this seed, and compare what comes back with the truth."""
    target = draw(seed)
    options = {"tolerance": TOLERANCE, "max_queries": target.budget, "rng": seed}
    if "max_seconds" in inspect.signature(rs.extract).parameters:
        options["max_seconds"] = seconds
    run: dict[str, Any] = {"seed": seed, "label": target.label, "kind": target.kind, "noise": target.noise_level}
    run |= {"std": target.std, "version": rs.__version__}
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as seen, _at_most(2.0 * seconds):
            warnings.simplefilter("always")
            found = rs.extract(target, dim=target.dim, radius=RADIUS, **options)
    except (Exception, rs.Interrupted) as problem:
        interrupted = isinstance(problem, rs.Interrupted)
        last = [] if interrupted else traceback.format_exc().splitlines()[-LAST_LINES:]
        error = "interrupted after the time allowed" if interrupted else f"{type(problem).__name__}: {problem}"
        return run | {"seconds": time.perf_counter() - start, "error": error, "traceback": last}
    run["seconds"] = time.perf_counter() - start
    run["warnings"] = sorted({f"{w.category.__name__} {Path(w.filename).name}:{w.lineno} {w.message}" for w in seen})
    return run | _told(found) | _truth(found, target)


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, as Ctrl-C does."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _told(found: rs.Extraction) -> dict[str, Any]:
    """What the run says of itself."""
    certificate = found.certificate
    fields = ("met", "sup_seen", "rms", "rms_high", "bound", "coverage", "noise", "std", "samples")
    told = {f"told_{name}": getattr(certificate, name) for name in fields if hasattr(certificate, name)}
    told["verdict"] = str(getattr(certificate, "verdict", ""))
    return told | {
        "met": bool(certificate.met),
        "stop": str(found.stop),
        "queries": found.queries,
        "features": len(found.features),
        "deterministic": found.deterministic,
        "history": [str(line)[:200] for line in found.history],
    }


def _truth(found: rs.Extraction, target: Target) -> dict[str, Any]:
    """The same from outside, against the function without noise; errors in standard deviations of f."""
    rng = np.random.default_rng([target.seed, 3])
    ball = in_ball(BALL_POINTS, target.dim, RADIUS, rng)
    gaps = _columns(target.clean(ball)) - _columns(found.predict(ball))
    errors = np.abs(gaps).max(axis=1)
    worst, where = _largest_error(found, target, ball, errors, rng)
    share, coverage = float(np.mean(errors <= found.certificate.bound)), found.certificate.coverage
    slack = SAMPLING * np.sqrt(coverage * (1.0 - coverage) / len(ball))
    rms = float(np.sqrt(np.mean(gaps**2))) / target.std
    wrong = found.certificate.met and (rms if target.noise_level else worst / target.std) > TOLERANCE
    matched = rs.match(found.directions, target.directions, within=CLOSE)
    visible = _visible(target, ball)
    return {
        "true_sup": worst / target.std,
        "true_sup_at": where,
        "true_rms": rms,
        "beyond_tolerance": float(np.mean(errors > TOLERANCE * target.std)),
        "share_within_bound": share,
        "volume_true": bool(share >= coverage - slack),
        "wrong": bool(wrong),
        "true_directions": len(target.directions),
        "found_directions": len(target.directions) - len(matched.missed),
        "false_directions": len(matched.false),
        "missing_visible": [target.families[i] for i in matched.missed if visible[i]],
    }


def _largest_error(
    found: rs.Extraction, target: Target, ball: Floats, errors: Floats, rng: np.random.Generator
) -> tuple[float, str]:
    """The largest error at points that look everywhere it may hide, and the kind of point that shows it."""
    looked = {"ball": (ball, errors)}
    planted = zip(target.families, target.directions, target.responses, strict=False)
    rays = [(f"true ray {i} ({name})", v, s.sharp) for i, (name, v, s) in enumerate(planted)]
    rays += [(f"found ray {i}", v, ()) for i, v in enumerate(found.directions)]
    for name, v, sharp in rays:
        beside = RADIUS * np.geomspace(NEAREST, FARTHEST, AROUND)
        closely = [t + side * beside for t in sharp for side in (-1.0, 1.0)]
        z = np.clip(np.concatenate([np.linspace(-RADIUS, RADIUS, RAY_POINTS), *closely]), -RADIUS, RADIUS)
        X = np.concatenate([z[:, None] * v, along(v[None], np.zeros(len(z), dtype=np.intp), z, RADIUS, rng)])
        looked[name] = (X, _errors(found, target, X))
    points = np.concatenate([X for X, _ in looked.values()])
    sizes = np.concatenate([size for _, size in looked.values()])
    climbed = _climb(found, target, points, sizes, rng)
    where = max(looked, key=lambda name: looked[name][1].max())
    return max(float(sizes.max()), climbed), where if climbed <= sizes.max() else f"near {where}"


def _climb(found: rs.Extraction, target: Target, points: Floats, sizes: Floats, rng: np.random.Generator) -> float:
    """The largest error found by random moves, shorter and shorter, from the worst points."""
    worst = np.argsort(-sizes)[:CLIMBERS]
    places, best = points[worst], sizes[worst]
    for length in RADIUS * np.geomspace(0.2, NEAREST, CLIMBS):
        moved = shrink_to(places + length * rng.standard_normal(places.shape) / np.sqrt(target.dim), RADIUS)
        now = _errors(found, target, moved)
        better = now > best
        places[better], best[better] = moved[better], now[better]
    return float(best.max())


def _errors(found: rs.Extraction, target: Target, X: Floats) -> Floats:
    return np.asarray(np.abs(_columns(target.clean(X)) - _columns(found.predict(X))).max(axis=1))


def _visible(target: Target, ball: Floats) -> list[bool]:
    """For each feature, whether what is not straight in it is well above the tolerance, over the ball."""
    shown = []
    for v, response in zip(target.directions, target.responses, strict=True):
        z = ball @ v
        straight, bent = np.stack([np.ones_like(z), z], axis=1), _columns(response.curve(z))
        bent = bent - straight @ np.linalg.lstsq(straight, bent, rcond=None)[0]
        shown.append(bool(np.sqrt(np.mean(bent**2)) > VISIBLE * TOLERANCE * target.std))
    return shown


def _columns(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


# -- the table -----------------------------------------------------------------------------------------------


def summary(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The table by noise and kind, and every wrong certificate and every run that raised, with its command."""
    lines = ["# Are certificates true?", "", f"{len(runs)} random functions, tolerance {TOLERANCE:g}.", "", HEADER]
    for noise in (*NOISES, None):
        for kind in (*KINDS, None) if noise is None else KINDS:
            some = [r for r in runs if noise in (r["noise"], None) and kind in (r["kind"], None)]
            if some:
                lines.append(_row("all" if noise is None else f"{noise:g}", kind or "all", some))
    lines += ["", "## Wrong certificates", ""]
    lines += [_wrong(r) for r in runs if r.get("wrong")] or ["None."]
    lines += ["", "## Runs that raised", ""]
    lines += [f"- {r['label']}: `{r['error']}`; `{_command(r)}`" for r in runs if "error" in r] or ["None."]
    false = [r for r in runs if "error" not in r and not r["volume_true"]]
    lines += ["", "## False statements about volume", ""]
    lines += [
        f"- {r['label']}: |f − f̂| ≤ {r['told_bound']:.3g} on {r['share_within_bound']:.2%} of the ball, "
        f"not {r['told_coverage']:.2%}; `{_command(r)}`"
        for r in false
    ] or ["None."]
    return lines


def _row(noise: str, kind: str, runs: list[dict[str, Any]]) -> str:
    good = [r for r in runs if "error" not in r]
    met = [r for r in good if r["met"]]
    asked = [r for r in good if r["told_samples"]]
    planted, seconds = sum(r["true_directions"] for r in good), [r["seconds"] for r in runs]
    cells = [
        noise,
        kind,
        str(len(runs)),
        str(len(runs) - len(good)),
        str(len(met)),
        str(sum(not r["wrong"] for r in met)),
        str(sum(r["wrong"] for r in met)),
        f"{sum(r['volume_true'] for r in asked)} of {len(asked)}",
        f"{sum(r['found_directions'] for r in good)} of {planted}" if planted else "—",
        str(sum(bool(r["missing_visible"]) for r in met)) if planted else "—",
        f"{np.median([r['queries'] for r in good]):,.0f}" if good else "—",
        f"{np.median(seconds):.1f}, {max(seconds):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _wrong(run: dict[str, Any]) -> str:
    missing = f", missing {', '.join(run['missing_visible'])}" if run["missing_visible"] else ""
    return (
        f"- {run['label']}: true sup {run['true_sup']:.2g} std ({run['true_sup_at']}), true RMS {run['true_rms']:.2g} "
        f"std, beyond the tolerance on {run['beyond_tolerance']:.2%} of the ball, {run['found_directions']} of "
        f"{run['true_directions']} directions{missing}; `{_command(run)}`"
    )


def _command(run: dict[str, Any]) -> str:
    return f"python benchmarks/certificates.py --first {run['seed']} --seeds 1"


def _line(run: dict[str, Any]) -> str:
    """What is shown of a run as soon as it is finished."""
    if "error" in run:
        return f"{run['seed']:>4} RAISED  {run['seconds']:>4.0f} s  {run['label']}: {run['error']}"
    verdict = "WRONG" if run["wrong"] else "met" if run["met"] else "not met"
    return (
        f"{run['seed']:>4} {verdict:<7} {run['seconds']:>4.0f} s  {run['label']}: true sup {run['true_sup']:.1e}, "
        f"RMS {run['true_rms']:.1e}, {run['found_directions']} of {run['true_directions']} directions, {run['stop']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=TARGETS, help="number of functions")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="those described by all such words")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one run; twice that and it is interrupted")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    stored = arguments.out.with_suffix(".json") if arguments.out is not None else None
    runs = {r["seed"]: r for r in json.loads(stored.read_text("utf-8"))} if stored and stored.exists() else {}
    missing = [s for s in seeds if s not in runs and all(word in draw(s).label for word in arguments.only)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for run in pool.map(partial(tried, seconds=arguments.seconds), missing):
            print(_line(run), flush=True)
            runs[run["seed"]] = run
            if arguments.out is not None:
                every = [runs[seed] for seed in sorted(runs)]
                keep_table(arguments.out, summary(every), every)
    print("\n".join(summary([runs[seed] for seed in sorted(runs)])))


if __name__ == "__main__":
    main()
