"""The examples in the docstrings of rs.oracle do what they say."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("module", ["base", "specs", "prenorm", "process", "sklearn", "http"])
def test_examples_run(module):
    for needed in {"http": ("httpx", "stamina"), "sklearn": ("sklearn",)}.get(module, ()):
        pytest.importorskip(needed)
    ran = doctest.testmod(import_module(f"ridgescope.oracle.{module}"))
    assert ran.attempted > 0
    assert ran.failed == 0
