"""Draw docs/recursion.svg: which cells survive level by level in FindDirections (Algorithm 2), for d = 4.

Four features in four dimensions, each the mean of five waves. Level k fixes the coordinate α_k; its panel shows the
cells in the plane of α₁ and α_k, where each planted direction is a line through the origin. A strip is a cell kept
before, with all values of α_k tried for it; a disc is a value kept, hollow where it leads to no point of the last
level. Run: python benchmarks/recursion_figure.py docs/recursion.svg"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ridgescope.geometry import Floats, random_basis, random_directions
from ridgescope.paper import Directions, find_directions
from ridgescope.paper.directions import Widths

DIM, ELL, FREQUENCY = 4, 12.0, 5.0
"""Dimension d, width ℓ of the window, and largest coordinate searched."""
SEED = 96
"""Of a target and a basis with four lines well apart in every panel, and with what is rare: a cell that has two heirs,
one of which leads nowhere."""
_WAVES, _FREQUENCIES = 5, (1.0, 5.0)
"""Waves of each feature, and the range of their frequencies."""
_HALF, _GAP, _TOP = 230, 40, 52
"""Half the height of a panel, which is its width; the space between panels, and that above them, in pixels."""
_CELLS, _DIRECTIONS, _TRIED, _FRAME = "#1f4e79", "#c0392b", "#dce6f0", "#999"
"""Colours of the cells kept, of the planted directions, of what was weighed, and of frames."""


def target(seed: int = SEED) -> tuple[Callable[[Floats], Floats], Floats, Floats, np.random.Generator]:
    """Return f, its four directions (4, d), a random basis (d, d), and the generator that drew them."""
    rng = np.random.default_rng(seed)
    V = random_directions(4, DIM, rng)
    frequencies, phases = rng.uniform(*_FREQUENCIES, (4, _WAVES)), rng.uniform(0, 6, (4, _WAVES))

    def f(X: Floats) -> Floats:
        waves = np.sin((X @ V.T)[:, :, None] * frequencies + phases)
        return np.asarray(waves.mean(axis=2).sum(axis=1))

    return f, V, random_basis(DIM, DIM, rng), rng


def search(m: int, seed: int = SEED) -> tuple[Directions, Floats]:
    """Return what FindDirections finds in the target from m samples a level, and the planted directions."""
    f, V, basis, rng = target(seed)
    return find_directions(f, ELL, dim=DIM, m=m, rng=rng, frequency=FREQUENCY, separation=0.3, basis=basis), V


def survivors(found: Directions) -> list[np.ndarray]:
    """Return, for each level, which of its cells (r,) lead to a point of the last level."""
    last = found.levels[-1].cells
    return [(level.cells[:, None] == last[:, : level.coordinates]).all(axis=2).any(axis=1) for level in found.levels]


def _at(x: float, y: float) -> tuple[str, str]:
    """Return the pixel of the coordinates x ≥ 0 and y in a panel."""
    return f"{_HALF * x / FREQUENCY:.1f}", f"{_HALF * (1 - y / FREQUENCY):.1f}"


def panel(found: Directions, index: int, planted: Floats) -> list[str]:
    """Return one panel: what was weighed, the planted lines over α₁ and α_k, and the cells kept."""
    level, alive = found.levels[index], survivors(found)[index]
    k = level.coordinates
    out = [
        f'<g transform="translate({15 + index * (_HALF + _GAP)},{_TOP})">',
        f'<text y="-30" font-weight="bold">Level {k}: α{"₂₃₄"[k - 2]} over α₁</text>',
        f'<text y="-12">{_count(level.candidates, len(level.cells), k)}</text>',
    ]
    if index == 0:
        cut = _HALF * Widths(DIM, ELL).cut / FREQUENCY
        out.append(
            f'<path fill="{_TRIED}" d="M0 0A{_HALF} {_HALF} 0 0 1 0 {2 * _HALF}V{_HALF + cut:.1f}'
            f'A{cut:.1f} {cut:.1f} 0 0 0 0 {_HALF - cut:.1f}z"/>'
        )
    else:
        strips = sorted({_at(cell[0], 0.0)[0] for cell in found.levels[index - 1].cells})
        out += [f'<path stroke="{_TRIED}" stroke-width="5" d="M{x} 0V{2 * _HALF}"/>' for x in strips]
    for x, y in planted[:, [0, k - 1]] * np.where(planted[:, :1] < 0, -1.0, 1.0):
        end = FREQUENCY / max(abs(x), abs(y))
        px, py = _at(x * end, y * end)
        out.append(f'<line x1="0" y1="{_HALF}" x2="{px}" y2="{py}" stroke="{_DIRECTIONS}" stroke-width="0.8"/>')
    for cell, lives in zip(level.cells, alive, strict=True):
        px, py = _at(cell[0], cell[k - 1])
        fill = _CELLS if lives else "white"
        out.append(f'<circle cx="{px}" cy="{py}" r="4" fill="{fill}" stroke="{_CELLS}" stroke-width="1.5"/>')
    out += [f'<rect width="{_HALF}" height="{2 * _HALF}" fill="none" stroke="{_FRAME}"/>', "</g>"]
    return out


def _count(candidates: int, kept: int, k: int) -> str:
    """Return in words how many cells, or strips, were weighed and how many values kept."""
    return f"{candidates:,} {'cells' if k == 2 else 'strips'} weighed, {kept} cells kept"


def recursion_svg(found: Directions, directions: Floats) -> str:
    """Return an SVG picture of the levels of a search in four dimensions, over the planted directions (n, d)."""
    width, height = 3 * _HALF + 2 * _GAP + 30, 2 * _HALF + _TOP + 15
    planted = directions @ found.basis.T
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *(part for index in range(len(found.levels)) for part in panel(found, index, planted)),
            "</svg>",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="where to write the picture")
    parser.add_argument("--samples", type=int, default=100_000)
    args = parser.parse_args()
    args.path.write_text(recursion_svg(*search(args.samples)), encoding="utf-8")


if __name__ == "__main__":
    main()
