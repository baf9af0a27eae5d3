"""The code keeps its shape: layers, sizes, and a page that describes it as it is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import architecture_figure
import code_counts

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ENTRY_POINTS = {
    "extract.py: extract",
    "cli/extracting.py: extract",
    "oracle/base.py: Oracle.__init__",
    "oracle/http.py: http",
    "oracle/torch.py: torch",
    "paper/directions.py: find_directions",
    "paper/end_to_end.py: solve",
    "paper/response.py: recover_response",
    "targets/planted.py: planted",
}
"""Public functions that take by keyword what a user may want to say."""


def test_a_layer_imports_only_what_stands_below_it():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_and_no_function_is_too_long():
    assert {m: n for m, n in code_counts.modules().items() if n > code_counts.MAX_MODULE_LINES} == {}
    assert [str(f) for f in code_counts.functions() if f.lines > code_counts.MAX_FUNCTION_LINES] == []


def test_only_entry_points_have_many_parameters():
    many = {f"{f.module}: {f.name}" for f in code_counts.functions() if f.parameters > code_counts.MAX_PARAMETERS}
    assert many == ENTRY_POINTS


def test_lengths_are_counted_without_docstrings():
    source = 'def f(self, a, *, b):\n    """One\n\n    two.\n    """\n    return a\n'
    (found,) = code_counts._functions(ast.parse(source), "m.py", "")
    assert (found.name, found.lines, found.parameters, found.is_public) == ("f", 2, 2, True)


def test_the_picture_is_that_of_the_code():
    assert (ROOT / "docs" / "architecture.svg").read_text() == architecture_figure.figure()


def test_a_name_that_does_not_exist_stops_the_picture():
    with pytest.raises(AttributeError):
        architecture_figure.resolve("extract.no_such_function")
    with pytest.raises(AttributeError):
        architecture_figure.resolve("no_such_module.extract")


def test_every_name_on_the_page_exists():
    names = re.findall(r"`((?:[a-z_]+\.)*[A-Za-z_]+\.[A-Za-z_]+)`", PAGE)
    assert len(names) > 20
    package = ROOT / "src" / "ridgescope"
    for name in names:
        if name.endswith(".py"):
            assert (package / name).exists(), name
        elif not name.startswith(("rs.", "benchmarks")):
            architecture_figure.resolve(name)


def test_every_room_has_its_paragraph():
    package = ROOT / "src" / "ridgescope"
    rooms = [p.name + "/" for p in package.iterdir() if (p / "__init__.py").exists()]
    rooms += [p.name for p in package.glob("*.py") if not p.name.startswith("__") and p.name != "lazy.py"]
    assert [room for room in rooms if f"`{room}`" not in PAGE] == []
