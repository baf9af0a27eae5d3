"""What a Jacobian product costs next to its two GEMMs, and how its time grows with n, d, p and m.

    OMP_NUM_THREADS=1 python benchmarks/products.py [--quick] [--only profile] [--out products.md]

`forward` is Φ Δc + (G ∘ X δᵀ) W. Its two GEMMs are X δᵀ and the product with W; the rest is the multiplication by G,
and Φ Δc, a sparse product with four entries a feature and row, in single precision as in the fit's steps. `backward`
is the transpose. Every time is the smallest of several, processor time, the parts taking turns; only ratios within one
run mean something. Use one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ridgescope.bench import keep_table
from ridgescope.fit.jacobian import Jacobian, Unknowns
from ridgescope.fit.model import Model
from ridgescope.geometry import in_ball, unit

LARGE = {"m": 20_000, "d": 64, "n": 256, "p": 10}
QUICK = {"m": 5_000, "d": 32, "n": 64, "p": 10}
INTERVALS = 16
SPAN = (0.25, 0.5, 1.0)
"""Of each size, what the slopes are fitted over."""


def products(m: int, d: int, n: int, p: int) -> tuple[Jacobian, Unknowns, np.ndarray]:
    """The operators at a random model, a point to multiply, and a residual to pull back."""
    rng = np.random.default_rng(0)
    bare = Model.start(unit(rng.standard_normal((n, d))), 3.0, INTERVALS, p)
    model = Model(3.0, bare.directions, bare.intervals, bare.kinks, rng.standard_normal(bare.coefficients.shape))
    at = Jacobian(model, in_ball(m, d, 3.0, rng), 1e-10, single=True)
    q = Unknowns(rng.standard_normal(model.coefficients.shape), rng.standard_normal((n, d)), np.empty(0))
    return at, q, rng.standard_normal((m, p))


def parts(at: Jacobian, q: Unknowns, r: np.ndarray) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    X, v, w = (a.astype(np.float32) for a in (at.X, q.v, at.w))
    return {
        "two GEMMs, forward": lambda: (at.X @ q.v.T) @ at.w,
        "two GEMMs, backward": lambda: (r @ at.w.T).T @ at.X,
        "two GEMMs, single precision": lambda: (X @ v.T) @ w,
        "forward": lambda: at.forward(q),
        "forward: (G ∘ X δᵀ) W": lambda: at.turn(q.v),
        "forward: Φ Δc": lambda: at.values(q.c),
        "backward": lambda: at.backward(r),
        "backward: Xᵀ(G ∘ r Wᵀ)": lambda: at.pull(r),
        "backward: Φᵀ r": lambda: at.adjoint(r),
        "backward: projection": lambda: at.project(q.c),
    }


def least_seconds(timed: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Smallest time of each, taking turns so that a busy moment hits all alike."""
    best = dict.fromkeys(timed, np.inf)
    for _ in range(repeats):
        for name, call in timed.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def profile(size: Mapping[str, int], repeats: int) -> tuple[list[str], dict[str, float]]:
    seconds = least_seconds(parts(*products(**size)), repeats)
    lines = [f"m = {size['m']:,}, d = {size['d']}, n = {size['n']}, p = {size['p']}, {INTERVALS} intervals", ""]
    lines += ["| part | over the two GEMMs |", "|---|---|"]
    for name, taken in seconds.items():
        base = seconds["two GEMMs, backward" if name.startswith("backward") else "two GEMMs, forward"]
        if not name.startswith("two"):
            lines.append(f"| {name} | {taken / base:.2f} |")
    return lines, seconds


def slopes(size: Mapping[str, int], repeats: int) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Exponents of time in each size, the others held at `size`."""
    names = ("forward", "backward", "two GEMMs, forward")
    lines = ["| grows with | over | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    told: dict[str, dict[str, float]] = {}
    for letter, full in size.items():
        values = sorted({max(1, round(share * full)) for share in SPAN})
        rows = []
        for value in values:
            timed = parts(*products(**{**size, letter: value}))
            rows.append(least_seconds({name: timed[name] for name in names}, repeats))
        told[letter] = {
            name: float(np.polyfit(np.log(values), np.log([row[name] for row in rows]), 1)[0]) for name in names
        }
        cells = " | ".join(f"{told[letter][name]:.2f}" for name in names)
        lines.append(f"| {letter} | {', '.join(f'{v:,}' for v in values)} | {cells} |")
    return lines, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller problem, fewer repeats")
    parser.add_argument("--only", choices=("profile", "slopes"), default=None)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    arguments = parser.parse_args()
    size, repeats = (QUICK, 3) if arguments.quick else (LARGE, 7)
    repeats = arguments.repeats or repeats
    lines: list[str] = []
    kept: dict[str, object] = {"size": size}
    if arguments.only != "slopes":
        lines, kept["seconds"] = profile(size, repeats)
        print("\n".join(lines), flush=True)
    if arguments.only != "profile":
        growth, kept["slopes"] = slopes(size, repeats)
        print("\n" + "\n".join(growth))
        lines += ["", *growth]
    if arguments.out is not None:
        keep_table(arguments.out, lines, kept)


if __name__ == "__main__":
    main()
