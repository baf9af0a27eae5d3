"""Queries against the floor: what a certified run asks, divided by the number of parameters n(d + 16).

    OMP_NUM_THREADS=1 python benchmarks/floor.py [--quick] [--out floor.md]

Two curves on smooth kinds: n = 5 … 200 at d = 20, and d = 4 … 64 at n = 2d. No method can do with fewer queries than
parameters. The slope is that of log queries over log parameters; 1 means that queries grow as the problem does.
A run that takes longer than `--seconds` of processor time is interrupted, shown, and left out of the slope.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from peers.contest import OURS, Entry, Terms, contest
from ridgescope.bench import keep_table
from ridgescope.targets.planted import SMOOTH

CURVES = {
    "n at d = 20": [(20, n) for n in (5, 10, 20, 50, 100, 200)],
    "d at n = 2d": [(d, 2 * d) for d in (4, 8, 16, 32, 64)],
}
QUICK = {"n at d = 20": [(20, n) for n in (5, 10, 20)], "d at n = 2d": [(d, 2 * d) for d in (4, 6, 8, 12)]}
HEADER = (
    "| curve | d | n | parameters | queries | queries per parameter | ≤ 1e-2 rad | false | CPU s | remark |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def run(d: int, n: int, seed: int, seconds: float) -> Entry:
    target = {"dim": d, "features": n, "kinds": SMOOTH, "rng": seed}
    (told,) = contest(OURS[0], f"{d}/{n}", target, Terms(seconds))
    return told


def row(curve: str, d: int, n: int, entry: Entry) -> str:
    score, parameters = entry.score, n * (d + 16)
    told = (
        f"{entry.queries:,} | {entry.queries / parameters:.1f} | {100 * score.within_2:.0f} % | {score.false}"
        if score is not None
        else "— | — | — | —"
    )
    return f"| {curve} | {d} | {n} | {parameters:,} | {told} | {entry.seconds:.0f} | {entry.note} |"


def slope(points: list[tuple[int, int]]) -> float | None:
    if len(points) < 2:
        return None
    parameters, queries = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(parameters, queries, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small ends of both curves")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=None, help="processor time for each run")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    arguments = parser.parse_args()
    limit = arguments.seconds or (60.0 if arguments.quick else 1800.0)
    lines, kept = [HEADER], []
    print(HEADER, flush=True)
    last = []
    for curve, sizes in (QUICK if arguments.quick else CURVES).items():
        points = []
        for d, n in sizes:
            for seed in range(1000, 1000 + arguments.seeds):
                entry = run(d, n, seed, limit)
                kept.append({"curve": curve, "d": d, "n": n, **entry.kept()})
                if entry.note == "certified":
                    points.append((n * (d + 16), entry.queries))
                lines.append(row(curve, d, n, entry))
                print(lines[-1], flush=True)
        fitted = slope(points)
        told = "not enough certified runs" if fitted is None else f"{fitted:.2f}"
        last.append(f"Slope of queries over parameters, {curve}: {told} ({len(points)} certified runs).")
    lines += ["", *last]
    print("\n" + "\n".join(last))
    if arguments.out is not None:
        keep_table(arguments.out, lines, kept)


if __name__ == "__main__":
    main()
