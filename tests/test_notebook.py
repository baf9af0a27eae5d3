"""Notebooks run from top to bottom, and what they store is what they show now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import run_notebook

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs").glob("*.ipynb"))
NUMBER = re.compile(r"(?<!\w)-?\d[\d,]*(?:\.\d+)?")
LARGEST = 300_000
"""Bytes of a notebook with its outputs."""


def printed(outputs: list[dict]) -> str:
    """The text that a cell prints."""
    return "".join("".join(output["text"]) for output in outputs if "text" in output)


def words(text: str) -> list[str]:
    """The text without its numbers and signs, which may differ a little from one processor to another."""
    return NUMBER.sub(" ", text).replace("+", " ").replace("-", " ").split()


def numbers(text: str) -> np.ndarray:
    """The numbers of the text, without their signs."""
    return np.abs([float(number.replace(",", "")) for number in NUMBER.findall(text)])


def shown(outputs: list[dict]) -> list[tuple[list[str], list[str]]]:
    """The kinds of what a cell shows, and of the traces where that is a figure."""
    data = [output["data"] for output in outputs if "data" in output]
    figures = [kinds.get("application/vnd.plotly.v1+json", {"data": []}) for kinds in data]
    return [(sorted(a), [trace["type"] for trace in b["data"]]) for a, b in zip(data, figures, strict=True)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_shows_what_is_stored(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    stored = [cell["outputs"] for cell in run_notebook.code_cells(notebook)]
    for before, now in zip(stored, run_notebook.run(notebook), strict=True):
        assert shown(now) == shown(before)
        assert words(printed(now)) == words(printed(before))
        np.testing.assert_allclose(numbers(printed(now)), numbers(printed(before)), rtol=0.1, atol=0.05)
    assert sum(len(outputs) for outputs in stored) > len(stored) // 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_a_notebook_that_is_small(path: Path) -> None:
    """It has the fields of format 4.5, code cells numbered in order, unique ids, and links that lead somewhere."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells, code = notebook["cells"], run_notebook.code_cells(notebook)
    assert all({"id", "cell_type", "metadata", "source"} <= set(cell) for cell in cells)
    assert {cell["cell_type"] for cell in cells} == {"markdown", "code"}
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)\s#]+)\)", text)
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []
    assert path.stat().st_size < LARGEST


def test_a_cell_that_raises_stops_the_run() -> None:
    cells = [{"cell_type": "code", "source": [line]} for line in ("x = 0", "1 / x")]
    with pytest.raises(ZeroDivisionError):
        run_notebook.run({"cells": cells})


def test_what_a_cell_prints_and_its_last_value_are_its_outputs() -> None:
    cell = {"cell_type": "code", "source": ["print('a')\n", "2 + 3"]}
    (outputs,) = run_notebook.run({"cells": [{"cell_type": "markdown", "source": ["text"]}, cell]})
    assert outputs[0]["text"] == ["a\n"]
    assert outputs[1]["data"] == {"text/plain": ["5"]}
    assert run_notebook.run({"cells": [{"cell_type": "code", "source": ["y = 1"]}]}) == [[]]
