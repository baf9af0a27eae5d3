"""Time and memory of whole runs as n, d, p and samples grow, and where the time goes.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--quick] [--seed 1000] [--out growth.md]

Every run is a process of its own, so that its peak of memory is its own. Features are of smooth kinds. Shares are those
of wall time: the survey, the search, the fits (first ones and those with more points), certificates, and the result:
error bars, canonical form, names of shapes. The rest is mostly Python's start. An extraction chooses how many
samples it takes; how time grows with them is shown by passive fits (`rs.RidgeSumRegressor`) of as many points as are
given. Slopes are those of processor time and of peak memory, beyond an empty process's, over the one size that changes,
on log-log axes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ridgescope as rs
from ridgescope.bench import keep_table
from ridgescope.geometry import Floats, in_ball, unit
from ridgescope.targets.planted import SMOOTH

CURVES = {
    "n": [(20, n, None) for n in (10, 20, 40, 80)],
    "d": [(d, 40, None) for d in (10, 20, 40, 80)],
    "p": [(16, 40, p) for p in (2, 6, 18)],
    "samples": [(6, 6, None, samples) for samples in (1000, 2000, 4000, 8000, 16_000, 32_000)],
}
QUICK = {
    "n": [(10, n, None) for n in (5, 10, 20)],
    "d": [(d, 10, None) for d in (5, 10, 20)],
    "samples": [(3, 3, None, samples) for samples in (500, 1000)],
}
STAGES: dict[str, set[str]] = {
    "survey": {"survey.py:run_survey"},
    "search": {"search/base.py:run_proposer"},
    "fit": {"fit/fitter.py:fit", "fit/fitter.py:fit_closed_forms", "fit/fitter.py:refit_with_more_points"},
    "certificate": {"certify.py:certify"},
    "result": {"fit/closed_bars.py:error_bars_of", "fit/canonical.py:canonical_features"},
}
"""The functions that each stage consists of, as file:name below src/ridgescope; none of them calls another."""
SAID = {True: "yes", False: "no", None: "—"}
RADIUS = 3.0
HEADER = (
    "| grows | d | n | p | queries or samples | ≤ 1e-2 rad | certified | CPU s | peak MB | survey | search | fit "
    "| certificate | result |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def run(d: int, n: int, p: int | None, samples: int | None, seed: int) -> dict[str, Any]:
    """One extraction, or one fit of samples, under a profiler, in this process."""
    target = rs.targets.planted(d, n, SMOOTH, outputs=p, rng=seed)
    work = partial(_extracted, target, seed) if samples is None else _fitting(target, samples, seed)
    empty = _peak()
    profile, begun, cpu = cProfile.Profile(), time.perf_counter(), time.process_time()
    directions, points, met = profile.runcall(work)
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    within = rs.match(directions, target.directions).share(1e-2)
    told = {"d": d, "n": n, "p": p or 1, "samples": samples, "queries": points, "within": within, "met": met}
    return told | {"cpu": cpu, "peak": _peak(), "empty": empty, "shares": shares(pstats.Stats(profile), wall)}


def _extracted(target: rs.targets.Planted, seed: int) -> tuple[Floats, int, bool]:
    found = rs.extract(target, dim=target.dim, radius=RADIUS, rng=seed)
    return found.directions, found.queries, found.certificate.met


def _fitting(target: rs.targets.Planted, samples: int, seed: int) -> Callable[[], tuple[Floats, int, None]]:
    """Points and imports are there before the clock starts."""
    X = in_ball(samples, target.dim, RADIUS, np.random.default_rng(seed))
    y, regressor = target(X), rs.RidgeSumRegressor(max_features=len(target.directions), random_state=seed)

    def fit() -> tuple[Floats, int, None]:
        regressor.fit(X, y)
        return unit(regressor.directions_ / regressor.scale_), samples, None

    return fit


def shares(stats: pstats.Stats, wall: float) -> dict[str, float]:
    """Of the wall time, by stage."""
    spent = dict.fromkeys(STAGES, 0.0)
    for (file, _, name), (_, _, _, cumulative, _) in stats.stats.items():  # type: ignore[attr-defined]
        place = f"{file.replace(chr(92), '/').rpartition('/ridgescope/')[2]}:{name}"
        for stage, places in STAGES.items():
            spent[stage] += cumulative if place in places else 0.0
    return {stage: seconds / wall for stage, seconds in spent.items()}


def _peak() -> float:
    """Of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def row(grows: str, told: dict[str, Any]) -> str:
    parts = " | ".join(f"{100 * share:.0f} %" for share in told["shares"].values())
    return (
        f"| {grows} | {told['d']} | {told['n']} | {told['p']} | {told['queries']:,} | {100 * told['within']:.0f} % "
        f"| {SAID[told['met']]} | {told['cpu']:.1f} | {told['peak']:.0f} | {parts} |"
    )


def slopes(grows: str, runs: list[dict[str, Any]]) -> str:
    size = np.log([told[grows] for told in runs])
    fitted = {
        "processor time": np.log([told["cpu"] for told in runs]),
        "memory": np.log([max(told["peak"] - told["empty"], 1.0) for told in runs]),
    }
    if grows != "samples":
        fitted["queries"] = np.log([told["queries"] for told in runs])
    return f"Over {grows}: " + ", ".join(f"{what} {np.polyfit(size, y, 1)[0]:.2f}" for what, y in fitted.items()) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one is not None:
        size = json.loads(a.one)
        return print(json.dumps(run(*size[:3], size[3] if len(size) > 3 else None, a.seed)))
    lines, kept, last = [HEADER], [], []
    print(HEADER, flush=True)
    for grows, sizes in (QUICK if a.quick else CURVES).items():
        runs = []
        for size in sizes:
            command = [sys.executable, __file__, "--one", json.dumps(size), "--seed", str(a.seed)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout))
            lines.append(row(grows, runs[-1]))
            print(lines[-1], flush=True)
        kept += [{"grows": grows, **told} for told in runs]
        last.append(slopes(grows, runs))
    lines += ["", "Slopes. " + " ".join(last)]
    print("\n" + lines[-1])
    if a.out is not None:
        keep_table(a.out, lines, kept)
    return None


if __name__ == "__main__":
    main()
