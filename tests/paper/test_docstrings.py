"""Every function that rs.paper and rs.targets export documents its parameters and its result, and its example runs."""

from __future__ import annotations

import doctest
import inspect
import re

import numpy as np
import pytest

import ridgescope as rs
from ridgescope import paper, targets
from ridgescope.bench import recovery

NAMES = {"np": np, "rs": rs}
FUNCTIONS = [getattr(home, name) for home in (paper, targets) for name in home.__all__]
FUNCTIONS = [f for f in FUNCTIONS if inspect.isfunction(f)] + [targets.Case.make, targets.Planted.clean, recovery]


def section(text: str, title: str) -> str:
    """The lines below a numpydoc heading, up to the next one; empty if there is none."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^[A-Z][a-z]+\n-+$|\Z)", text, re.M | re.S)
    return found[1] if found else ""


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_parameters_and_result_are_documented(function: object) -> None:
    text = inspect.getdoc(function) or ""
    named = re.findall(r"^(\S[^\n]*)$", section(text, "Parameters"), re.M)
    names = {name.strip("* ") for line in named for name in line.split(",")}
    assert names == set(inspect.signature(function).parameters) - {"self"}  # type: ignore[arg-type]
    assert section(text, "Returns").strip()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_the_example_runs(function: object) -> None:
    tests = doctest.DocTestFinder().find(function, globs=NAMES)
    assert sum(len(t.examples) for t in tests) > 0
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in tests:
        assert runner.run(test).failed == 0
