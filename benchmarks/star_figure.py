"""Draw docs/star.svg: the star of five planted features, as EstWeight measures it.

Five zigzags, piecewise linear with slopes ±1 and a kink about every two units, along five directions of
three-dimensional space. Their gradient is a sum of bounded features in the same directions with power at all
frequencies; its Fourier mass over a random plane (b₁, b₂) is what level 2 of FindDirections weighs. Run:
python benchmarks/star_figure.py docs/star.svg"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ridgescope.geometry import random_directions
from ridgescope.paper.derivative import Derivative
from ridgescope.paper.star import star_svg


def zigzag(rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """A piecewise linear response on about [−160, 160] whose slope changes sign at every knot."""
    gaps = rng.exponential(2.0, 160)
    knots = np.cumsum(gaps) - gaps.sum() / 2
    heights = np.cumsum(gaps * (-1.0) ** np.arange(len(gaps)))
    return lambda z: np.interp(z, knots, heights)


def draw(m: int, seed: int) -> str:
    """The picture from m samples."""
    rng = np.random.default_rng(seed)
    V = random_directions(5, 3, rng)
    responses = [zigzag(rng) for _ in V]

    def f(X: np.ndarray) -> np.ndarray:
        return np.sum([r(s) for r, s in zip(responses, V @ X.T, strict=True)], axis=0)

    return star_svg(Derivative(f, 0.2, 0.02), V, ell=15.0, frequency=2.4, m=m, rng=rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="where to write the picture")
    parser.add_argument("--samples", type=int, default=4_000_000)
    parser.add_argument("--seed", type=int, default=6)
    args = parser.parse_args()
    args.path.write_text(draw(args.samples, args.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
