"""Accuracy against the Cramér–Rao bound, as the noise goes from 1e-6 to 0.1 of f's standard deviation.

    OMP_NUM_THREADS=1 python benchmarks/cramer_rao.py [--quick] [--out cramer_rao.md]

The case is `small`, its answers with fresh Gaussian noise. Every point that a run asks inside the ball is noted, and
the bound is the least mean square angle that any unbiased method can have from these points: the trace of σ²S⁻¹ at the
true directions, responses unknown (splines of 24 intervals, a free kink where the response has one), S the Fisher
matrix of directions and kinks with the responses projected out. All points count, those of the search and of the
certificate too. Both angles are root mean squares over directions and seeds; directions that were missed by more than
0.1 rad are left out of them.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import ridgescope as rs
from ridgescope.bench import keep_table
from ridgescope.fit.errorbars import error_bars
from ridgescope.fit.linear import WEAK_SMOOTHING, solve_linear
from ridgescope.fit.model import Model
from ridgescope.geometry import in_ball
from ridgescope.match import match
from ridgescope.targets import CASES, Planted

RADIUS, INTERVALS = 3.0, 24
LEVELS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
QUICK = (1e-6, 1e-4, 1e-2, 1e-1)
HEADER = (
    "| noise / std | found within 0.1 rad | false | certified | queries | in the ball | angle found | bound | ratio |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


class Noisy:
    """The target with Gaussian noise; remembers where it was asked inside the ball."""

    def __init__(self, target: Planted, sigma: float, seed: int) -> None:
        self.target, self.sigma, self.dim = target, sigma, target.dim
        self.rng, self.inside = np.random.default_rng([seed, 77]), list[np.ndarray]()

    def __call__(self, X: np.ndarray) -> np.ndarray:
        self.inside.append(X[np.linalg.norm(X, axis=1) <= RADIUS].copy())
        return self.target.clean(X) + self.sigma * self.rng.standard_normal(len(X))


def bound(target: Planted, X: np.ndarray, sigma: float) -> np.ndarray:
    """(n,) least expected squared angles."""
    kinks = tuple(np.array([] if d.smooth else [d.parameters["at"]]) for d in target.drawn)
    bare = replace(Model.start(target.directions, RADIUS, INTERVALS, 1), kinks=kinks)
    bare = replace(bare, coefficients=np.zeros((bare.columns, 1)))
    Y = target.clean(X)[:, None]
    return error_bars(solve_linear(bare, X, Y, WEAK_SMOOTHING).model, X, Y, sigma**2).mean_square_angle


def run(level: float, seed: int) -> dict[str, object]:
    target = CASES["small"].make(seed)
    sigma = level * float(target.clean(in_ball(4000, target.dim, RADIUS, np.random.default_rng(seed))).std())
    noisy = Noisy(target, sigma, seed)
    found = rs.extract(noisy, dim=target.dim, radius=RADIUS, rng=seed)
    told = match(found.directions, target.directions)
    X = np.concatenate(noisy.inside)
    return {
        "noise": level,
        "seed": seed,
        "angles": told.angles.tolist(),
        "bounds": bound(target, X, sigma).tolist(),
        "false": len(told.false),
        "met": found.certificate.met,
        "queries": found.queries,
        "inside": len(X),
    }


def row(level: float, runs: list[dict[str, object]]) -> str:
    angles, bounds = (np.concatenate([r[name] for r in runs]) for name in ("angles", "bounds"))  # type: ignore[misc]
    good = angles <= 0.1
    mean = [np.mean([float(r[name]) for r in runs]) for name in ("queries", "inside")]  # type: ignore[arg-type]
    cells = [f"{level:.0e}", f"{good.sum()} of {len(good)}", str(sum(int(r["false"]) for r in runs))]  # type: ignore[call-overload]
    cells += [f"{sum(bool(r['met']) for r in runs)} of {len(runs)}", *(f"{q:,.0f}" for q in mean)]
    if good.any():
        seen, least = (float(np.sqrt(np.mean(x[good]))) for x in (angles**2, bounds))
        cells += [f"{seen:.1e}", f"{least:.1e}", f"{seen / least:.2g}"]
    else:
        cells += ["—", f"{np.sqrt(bounds.mean()):.1e}", "—"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four levels, two seeds")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    arguments = parser.parse_args()
    seeds = arguments.seeds or (2 if arguments.quick else 10)
    lines, kept = [HEADER], []
    print(HEADER, flush=True)
    for level in QUICK if arguments.quick else LEVELS:
        runs = [run(level, seed) for seed in range(1000, 1000 + seeds)]
        kept += runs
        lines.append(row(level, runs))
        print(lines[-1], flush=True)
        if arguments.out is not None:
            keep_table(arguments.out, lines, kept)


if __name__ == "__main__":
    main()
