"""Run the code cells of a notebook in one namespace, without Jupyter, and store what they print and show in it.

Figures of plotly are stored as JSON, all else as text. Run: python benchmarks/run_notebook.py
docs/paper_in_twenty_minutes.ipynb"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

Cell = dict[str, Any]


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    """Return the code cells in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> list[Cell]:
    """Run one cell and return its outputs: what it prints, and the value of its last line if that is an expression."""
    tree = ast.parse(source, name)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        value = None if last is None else eval(compile(last, name, "eval"), namespace)
    outputs: list[Cell] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if isinstance(value, go.Figure):
        data = {"application/vnd.plotly.v1+json": json.loads(value.to_json()), "text/plain": ["Figure"]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    elif value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return outputs


def run(notebook: dict[str, Any]) -> list[list[Cell]]:
    """Run all code cells in one namespace and return the outputs of each; a cell that raises stops the run."""
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    return [
        run_cell("".join(cell["source"]), f"cell {number}", namespace)
        for number, cell in enumerate(code_cells(notebook), start=1)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the notebook, which is written anew")
    path: Path = parser.parse_args().path
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run(notebook), strict=True), start=1):
        cell.update(execution_count=number, outputs=outputs)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
