"""The star of lines, drawn: Fourier mass over the plane of b₁, b₂ as EstWeight measures it.

Each cell of the picture is one grid value (α₁, α₂) of level 2, shaded by mass × radius² in units of its
standard error; cells below the threshold 5τ are left white, and so is the disc around the origin that the
search leaves out. The planted directions, projected on the plane, are thin lines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgescope.paper.directions import Widths, random_basis
from ridgescope.paper.mass import Field, FloatArray, PairField, mass_plane

SIZE = 480
INK = "#1f4e79"


def star_svg(
    f: Field | PairField,
    directions: FloatArray,
    *,
    ell: float,
    frequency: float,
    m: int,
    rng: np.random.Generator,
    sigmas: float = 5.0,
) -> str:
    """An SVG picture of the star of f, whose planted directions (n, d) are drawn over it."""
    d = directions.shape[1]
    widths = Widths(d, ell)
    basis = random_basis(d, rng)
    modes = widths.modes(frequency)
    grid = mass_plane(f, ell, basis, widths.diagonal(2), step=widths.step, modes=modes, m=m, rng=rng)
    radius2 = widths.radius2(modes)
    seen = (grid.scaled >= sigmas * grid.stderr) & (radius2 >= widths.cut**2)
    score = np.log(np.where(seen, grid.scaled * radius2, 1.0))
    low, high = (float(score[seen].min()), float(score[seen].max())) if seen.any() else (0.0, 1.0)
    shade = np.clip((score - low) / max(high - low, 1e-9), 0.0, 1.0)
    scale = SIZE / (2 * modes + 1)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}">',
            f'<rect width="{SIZE}" height="{SIZE}" fill="white" stroke="#999"/>',
            *_lines(directions @ basis[:2].T),
            f'<g fill="{INK}" transform="scale({scale:.5f})" shape-rendering="crispEdges">',
            *_cells(seen, shade),
            "</g>",
            f'<circle cx="{SIZE / 2}" cy="{SIZE / 2}" r="{widths.cut / widths.step * scale:.1f}" '
            'fill="white" stroke="#999" stroke-dasharray="4 3"/>',
            "</svg>",
            "",
        ]
    )


def _cells(seen: NDArray[np.bool_], shade: FloatArray) -> list[str]:
    """One path for each of the shades, a unit square for each cell that is seen."""
    top = len(seen) - 1
    tone = np.where(seen, np.round(0.15 + 0.85 * shade, 1), 0.0)
    squares = {t: "".join(f"M{i} {top - j}h1v1h-1z" for i, j in np.argwhere(tone == t)) for t in np.unique(tone[seen])}
    return [f'<path opacity="{t:.1f}" d="{d}"/>' for t, d in squares.items()]


def _lines(projected: FloatArray) -> list[str]:
    """One thin line through the centre for each projected direction (n, 2)."""
    out = []
    for x, y in projected / np.abs(projected).max(axis=1, keepdims=True):
        ends = (
            [f"{SIZE / 2 * (1 + s * x):.1f}" for s in (-1, 1)],
            [f"{SIZE / 2 * (1 - s * y):.1f}" for s in (-1, 1)],
        )
        out.append(
            f'<line x1="{ends[0][0]}" y1="{ends[1][0]}" x2="{ends[0][1]}" y2="{ends[1][1]}" '
            'stroke="#c0392b" stroke-width="0.7"/>'
        )
    return out
