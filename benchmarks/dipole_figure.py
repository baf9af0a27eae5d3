"""Draw docs/dipole.svg: the rays of a plain and of a gated feature in the plane of gate and carrier.

The transform of exp(−|x|²/2ℓ²)·silu(3 g·x) is even across the ray of g, that of the same times u·x is odd: a dipole
across the ray, dark on it. Both are times |ω|², as power falls with frequency, and without the phase that the plain
feature has along the ray. Run: python benchmarks/dipole_figure.py docs/dipole.svg"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ridgescope.geometry import Floats

ELL, STEEPNESS = 2.0, 3.0
"""ℓ, the width of the window, and the length of the gate's weights."""
_CELLS, _CELL, _CUT, _LEVELS = 61, 4, 5.0, 6
"""Cells along each axis of a panel, their pixels, the highest frequency, and shades of each sign."""
_GATE = np.array([0.8, 0.6])


def spectra() -> tuple[Floats, Floats]:
    """Return the two transforms (N, N) over frequencies along the axes, real by their common phase."""
    axis = np.linspace(-6 * ELL, 6 * ELL, 161)
    X = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    carrier = np.array([-_GATE[1], _GATE[0]])
    z = STEEPNESS * X @ _GATE
    plain = np.exp(-0.5 * np.sum(X**2, axis=1) / ELL**2) * z / (1.0 + np.exp(-z))
    frequency = np.linspace(-_CUT, _CUT, _CELLS)
    omega = np.stack(np.meshgrid(frequency, frequency[::-1]), axis=-1).reshape(-1, 2)
    waves = np.exp(-1j * omega @ X.T)
    even, odd = waves @ plain, waves @ (plain * (X @ carrier))
    on_ray = np.exp(-1j * np.multiply.outer(omega @ _GATE, _GATE) @ X.T) @ plain
    phase = on_ray / np.abs(on_ray)
    weight = np.sum(omega**2, axis=1)
    shape = (_CELLS, _CELLS)
    return ((even / phase).real * weight).reshape(shape), ((1j * odd / phase).real * weight).reshape(shape)


def panel(values: Floats, title: str, x: int) -> str:
    """Return one panel: red where positive, blue where negative, and the line of the gate."""
    side = _CELLS * _CELL
    levels = np.rint(_LEVELS * np.sign(values) * np.sqrt(np.abs(values) / np.abs(values).max())).astype(int)
    paths = []
    for level in range(-_LEVELS, _LEVELS + 1):
        at = np.argwhere(levels == level)
        if level and len(at):
            cells = "".join(f"M{_CELL * j} {_CELL * i}h{_CELL}v{_CELL}h-{_CELL}z" for i, j in at)
            fade = round(255 * (1 - abs(level) / _LEVELS))
            colour = f"rgb(255,{fade},{fade})" if level > 0 else f"rgb({fade},{fade},255)"
            paths.append(f'<path fill="{colour}" d="{cells}"/>')
    end = 0.5 * side * _GATE / np.abs(_GATE).max()
    middle = side / 2
    line = f'x1="{middle - end[0]}" y1="{middle + end[1]}" x2="{middle + end[0]}" y2="{middle - end[1]}"'
    return (
        f'<g transform="translate({x},30)"><text y="-10">{title}</text>{"".join(paths)}'
        f'<line {line} stroke="#555" stroke-dasharray="3 5"/>'
        f'<rect width="{side}" height="{side}" fill="none" stroke="#999"/></g>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    path: Path = parser.parse_args().path
    side = _CELLS * _CELL
    even, odd = spectra()
    width, height = 2 * side + 60, side + 45
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        panel(even, "silu(3 g·x)", 15),
        panel(odd, "silu(3 g·x)(u·x)", side + 45),
        "</svg>\n",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
