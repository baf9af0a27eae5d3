"""The figure of the recursion: it is of the code as it stands, and what survives lies on the planted lines."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import recursion_figure
from ridgescope.paper import Directions
from ridgescope.paper.directions import Widths

ROOT = Path(__file__).parents[2]
DISC = re.compile(r'<circle cx="[\d.]+" cy="[\d.]+" r="4" fill="[#\w]+"')


@pytest.fixture(scope="module")
def searched() -> tuple[Directions, np.ndarray]:
    return recursion_figure.search(100_000)


def test_every_cell_kept_continues_one_of_the_level_before(searched: tuple[Directions, np.ndarray]) -> None:
    """`cells` and `branches` tell the same tree: the i-th candidate's children come in its place, its prefix first."""
    levels = searched[0].levels
    assert [level.coordinates for level in levels] == [2, 3, 4]
    for before, level in pairwise(levels):
        assert level.candidates == len(before.cells)
        parents = np.repeat(before.cells, level.branches.astype(int), axis=0)
        np.testing.assert_array_equal(level.cells[:, : before.coordinates], parents)
        assert len(level.masses) == len(level.cells)
    np.testing.assert_allclose(searched[0].points, levels[-1].cells @ searched[0].basis)


def test_what_survives_lies_on_the_lines(searched: tuple[Directions, np.ndarray]) -> None:
    """At each level a surviving cell is within half a tube's width, 1/2√C₂, of a line, and at the last level every
    line has one; the one dead end is farther off."""
    found, V = searched
    tube = 0.5 / np.sqrt(Widths(recursion_figure.DIM, recursion_figure.ELL).C2)
    for level, alive in zip(found.levels, recursion_figure.survivors(found), strict=True):
        lines = V @ found.basis[: level.coordinates].T
        lines /= np.linalg.norm(lines, axis=1, keepdims=True)
        along = level.cells @ lines.T
        off = np.sqrt(np.sum(level.cells**2, axis=1)[:, None] - along**2)
        assert off[alive].min(axis=1).max() <= tube
        if not alive.all():
            assert off[~alive].min() > tube
    assert set(off.argmin(axis=1)) == {0, 1, 2, 3}


def test_the_picture_is_that_of_the_code(tmp_path: Path, searched: tuple[Directions, np.ndarray]) -> None:
    """Every cell kept is a disc; the committed picture has the same ones, up to one that rounding may decide."""
    subprocess.run([sys.executable, ROOT / "benchmarks" / "recursion_figure.py", tmp_path / "a.svg"], check=True)
    drawn = DISC.findall((tmp_path / "a.svg").read_text(encoding="utf-8"))
    kept = [len(level.cells) for level in searched[0].levels]
    alive = [int(a.sum()) for a in recursion_figure.survivors(searched[0])]
    assert len(drawn) == sum(kept)
    assert sum('"white"' not in disc for disc in drawn) == sum(alive) < sum(kept)
    committed = (ROOT / "docs" / "recursion.svg").read_text(encoding="utf-8")
    assert len(set(drawn) ^ set(DISC.findall(committed))) <= 1
    assert committed.count("<line") == 3 * len(searched[1])
