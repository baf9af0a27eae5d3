"""The paper's own route against the practical one, on the same targets: queries for the same recovery.

    OMP_NUM_THREADS=1 python benchmarks/paper_route.py [--quick] [--out paper_route.md]

Targets are those of docs/theory.md: sine, tanh, bump, relu and abs responses, noise 1e-3, separation 0.1. Both are
called as `rs.extract(f, dim=d, noise=1e-3)`, one of them with method="paper". The last column is what the theorem's own
settings would need, from `ridgescope.paper.plan`, for an accuracy of 0.05.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ridgescope as rs
from ridgescope.bench import keep_table
from ridgescope.match import match
from ridgescope.paper import plan
from ridgescope.targets import planted

CASES = ((3, 4), (4, 6), (5, 8), (6, 10))
KINDS = ("sine", "tanh", "bump", "relu", "abs")
HEADER = (
    "| d | n | seed | route | queries | ≤ 5e-2 rad | ≤ 1e-2 rad | worst angle (rad) | false | CPU s "
    "| queries that the theorem asks for |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def run(d: int, n: int, seed: int, method: str) -> dict[str, object]:
    f = planted(dim=d, features=n, kinds=KINDS, separation=0.1, noise=1e-3, rng=seed)
    start = time.process_time()
    found = rs.extract(f, dim=d, method=method, noise=1e-3, rng=seed)
    told = match(found.directions, f.directions)
    return {
        "d": d,
        "n": n,
        "seed": seed,
        "method": method,
        "queries": found.queries,
        "within_5e-2": told.share(5e-2),
        "within_1e-2": told.share(1e-2),
        "worst": float(told.angles.max()),
        "false": len(told.false),
        "seconds": time.process_time() - start,
    }


def theorem(d: int, n: int) -> str:
    """Ten to a power that itself has many digits."""
    p = plan(dim=d, features=n, radius=3.0, lipschitz=1.5, separation=0.1, accuracy=0.05, failure=0.01)
    return f"10^{p.lg_queries:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="d = 3 only")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    arguments = parser.parse_args()
    lines, kept = [HEADER], []
    print(HEADER, flush=True)
    for d, n in CASES[:1] if arguments.quick else CASES:
        needed = theorem(d, n)
        for seed in range(arguments.seeds):
            for method in ("auto", "paper"):
                t = run(d, n, seed, method)
                kept.append(t)
                shares = f"{100 * t['within_5e-2']:.0f} % | {100 * t['within_1e-2']:.0f} %"  # type: ignore[operator]
                lines.append(
                    f"| {d} | {n} | {seed} | {method} | {t['queries']:,} | {shares} | {t['worst']:.1e} "
                    f"| {t['false']} | {t['seconds']:.0f} | {needed} |"
                )
                print(lines[-1], flush=True)
    if arguments.out is not None:
        keep_table(arguments.out, lines, kept)


if __name__ == "__main__":
    main()
