"""Queries against recovered share: the paper's pure form, and the same with our additions.

For each budget m Theorem main-learning runs on planted targets, and the share of true directions within 0.05 rad is
averaged over seeds. Run: python benchmarks/paper_curve.py"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from ridgescope.paper import learn, solve
from ridgescope.paper.directions import sines
from ridgescope.paper.mass import CountedField
from ridgescope.paper.survey import survey
from ridgescope.targets.planted import Planted, planted

KINDS = ("sine", "tanh", "bump", "relu", "abs")
CASES = ((3, 4), (4, 6), (5, 8))


def target(dim: int, features: int, seed: int) -> Planted:
    return planted(dim=dim, features=features, kinds=KINDS, separation=0.1, noise=1e-3, rng=seed)


def share(found: np.ndarray, truth: np.ndarray) -> tuple[float, int]:
    """Share of true directions within 0.05 rad, and the number of found ones near none."""
    if not len(found):
        return 0.0, 0
    near = np.arcsin(sines(truth, found))
    return float((near.min(axis=1) <= 0.05).mean()), int((near.min(axis=0) > 0.05).sum())


def pure(dim: int, features: int, m: int, seed: int) -> tuple[float, int, int]:
    f = target(dim, features, seed)
    asked = CountedField(f)
    rng = np.random.default_rng(1000 + seed)
    settings = replace(survey(asked, dim=dim, radius=3.0, noise=1e-3, rng=rng), samples=m)
    got = learn(asked, dim=dim, radius=3.0, settings=settings, rng=rng, additions=False)
    return (*share(got.directions, f.directions), asked.queries)


def with_rounds(dim: int, features: int, most: int, seed: int) -> tuple[float, int, int]:
    f = target(dim, features, seed)
    rng = np.random.default_rng(1000 + seed)
    settings = replace(
        survey(f, dim=dim, radius=3.0, noise=1e-3, rng=rng),
        samples=min(60_000, most),
        most=most,
        refine=min(100_000, most),
    )
    got = solve(f, dim, 3.0, 1e-3, rng, settings=settings)
    return (*share(got.directions, f.directions), got.queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=1_000_000, help="largest m of the pure form")
    args = parser.parse_args()
    print("| d | n | route | m | queries | recovered | false |")
    print("|---|---|---|---|---|---|---|")
    for dim, features in CASES:
        for name, route, sizes in (
            (
                "pure",
                pure,
                [m for m in (10_000, 100_000, 1_000_000, 10_000_000) if m <= args.most],
            ),
            ("rounds", with_rounds, [20_000, 60_000, 600_000]),
        ):
            for m in sizes:
                runs = np.array([route(dim, features, m, seed) for seed in range(args.seeds)])
                recovered, false, queries = runs.mean(axis=0)
                row = [
                    dim,
                    features,
                    name,
                    f"{m:.0e}",
                    f"{queries:.1e}",
                    f"{100 * recovered:.0f} %",
                    f"{false:.1f}",
                ]
                print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
