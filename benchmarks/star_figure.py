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
from numpy.typing import NDArray

from ridgescope.geometry import Floats, random_basis, random_directions
from ridgescope.paper.directions import Widths
from ridgescope.paper.mass import Field, PairField, mass_plane
from ridgescope.paper.response import Derivative

SIZE = 480
"""Width and height of the picture of the star, in pixels."""
_CELLS, _DIRECTIONS, _FRAME = "#1f4e79", "#c0392b", "#999"
"""Colours of the heavy cells, of the planted directions, and of the frame and the disc left out."""


def star_svg(
    f: Field | PairField,
    directions: Floats,
    *,
    ell: float,
    frequency: float,
    m: int,
    rng: np.random.Generator,
    sigmas: float = 5.0,
) -> str:
    """Return an SVG picture of the star of f: its Fourier mass over the plane of b₁, b₂ as EstWeight measures it.

    Each cell is one grid value (α₁, α₂), shaded by log(mass × radius²). Cells below `sigmas` standard errors are white,
    and so is the disc around the origin that the search leaves out. The planted directions (n, d), projected on the
    plane, are drawn over it as thin lines.
    """
    d = directions.shape[1]
    widths = Widths(d, ell)
    basis = random_basis(d, d, rng)
    grid = widths.grid(frequency)
    mass = mass_plane(f, ell, basis, widths.diagonal(2), grid, m=m, rng=rng)
    radius2 = widths.radius2(grid)
    heavy = (mass.scaled >= sigmas * mass.stderr) & (radius2 >= widths.cut**2)
    score = np.log(np.where(heavy, mass.scaled * radius2, 1.0))
    low, high = (float(score[heavy].min()), float(score[heavy].max())) if heavy.any() else (0.0, 1.0)
    shade = np.clip((score - low) / max(high - low, 1e-9), 0.0, 1.0)
    scale = SIZE / (2 * grid.modes + 1)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}">',
            f'<rect width="{SIZE}" height="{SIZE}" fill="white" stroke="{_FRAME}"/>',
            *_svg_lines(directions @ basis[:2].T),
            f'<g fill="{_CELLS}" transform="scale({scale:.5f})" shape-rendering="crispEdges">',
            *_svg_cells(heavy, shade),
            "</g>",
            f'<circle cx="{SIZE / 2}" cy="{SIZE / 2}" r="{widths.cut / widths.step * scale:.1f}" '
            f'fill="white" stroke="{_FRAME}" stroke-dasharray="4 3"/>',
            "</svg>",
            "",
        ]
    )


def _svg_cells(heavy: NDArray[np.bool_], shade: Floats) -> list[str]:
    """Return one SVG path for each tone, with a unit square for each heavy cell; the palest tone is 0.15 opaque."""
    top = len(heavy) - 1
    tone = np.where(heavy, np.round(0.15 + 0.85 * shade, 1), 0.0)
    squares = {t: "".join(f"M{i} {top - j}h1v1h-1z" for i, j in np.argwhere(tone == t)) for t in np.unique(tone[heavy])}
    return [f'<path opacity="{t:.1f}" d="{d}"/>' for t, d in squares.items()]


def _svg_lines(projected: Floats) -> list[str]:
    """Return one SVG line through the centre for each projected direction (n, 2)."""
    out = []
    for x, y in projected / np.abs(projected).max(axis=1, keepdims=True):
        x1, x2 = (f"{SIZE / 2 * (1 + s * x):.1f}" for s in (-1, 1))
        y1, y2 = (f"{SIZE / 2 * (1 - s * y):.1f}" for s in (-1, 1))
        out.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{_DIRECTIONS}" stroke-width="0.7"/>')
    return out


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
