"""The paper's formulas at parameters where a wrong one would show; `test_mutants.py` holds them to that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import paper_checks


@pytest.mark.parametrize("check", paper_checks.CHECKS, ids=lambda check: check.__name__)
def test_formula(check: Callable[[], None]) -> None:
    check()
