"""The figure of the theory page: what is shaded lies on the planted lines, and the script that draws it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from ridgescope.paper.directions import Widths
from star_figure import SIZE, star_svg

ROOT = Path(__file__).parents[2]
CELL = re.compile(r"M(\d+) (\d+)h1v1h-1z")
SCALE = re.compile(r'transform="scale\(([\d.]+)\)"')
LINE = re.compile(r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"')


def test_what_is_shaded_lies_on_the_lines() -> None:
    """Two sines: every cell above 5τ is within three tube widths 1/√C₂ of one of the two projected lines."""
    V = np.array([[1.0, 0.2, 0.1], [-0.3, 1.0, 0.4]])
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    svg = star_svg(
        lambda X: np.sin(3 * X @ V.T).sum(axis=1),
        V,
        ell=15.0,
        frequency=4.0,
        m=40_000,
        rng=np.random.default_rng(1),
    )
    side = float(SCALE.findall(svg)[0])
    cells = side * (np.array(CELL.findall(svg), dtype=float) + 0.5) - SIZE / 2
    lines = np.array(LINE.findall(svg), dtype=float)
    assert lines.shape == (2, 4)
    assert len(cells) > 10
    along = lines[:, 2:] - lines[:, :2]
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    off = np.abs(cells[:, :1] * along[:, 1] - cells[:, 1:] * along[:, 0]).min(axis=1)
    assert off.max() <= 3 / np.sqrt(Widths(3, 15.0).C2) * SIZE / 2 / 4.0 + side


def test_the_script_draws_the_figure(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "star_figure.py"
    for name in ("a.svg", "b.svg"):
        subprocess.run([sys.executable, script, tmp_path / name, "--samples", "30000"], check=True)
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert svg == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert len(LINE.findall(svg)) == len(LINE.findall((ROOT / "docs" / "star.svg").read_text(encoding="utf-8"))) == 5
    assert LINE.findall(svg)[0] == LINE.findall((ROOT / "docs" / "star.svg").read_text(encoding="utf-8"))[0]
    assert CELL.search(svg)
