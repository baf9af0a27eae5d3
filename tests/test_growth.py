"""The benchmark of growth: its stages are functions that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import growth

SOURCE = Path(__file__).parents[1] / "src" / "ridgescope"


@pytest.mark.parametrize("place", sorted(place for places in growth.STAGES.values() for place in places))
def test_the_functions_of_each_stage_exist(place: str) -> None:
    """A share of a function that was renamed would be zero, and nobody would notice."""
    file, _, name = place.partition(":")
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
