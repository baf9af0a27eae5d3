"""Which proposers, in which order: cheap ones first, the expensive ones only for what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Run

METHODS = ("auto", "paper", "slices", "curvature", "kinks", "random")
MOST_ROUNDS = 12


def schedule(methods: tuple[str, ...], run: Run) -> Iterator[tuple[str, ...]]:
    """Proposers of each round.

    Kinks and then curvature, on what the kinks leave, cover smooth and piecewise smooth responses for a few queries a
    parameter. What they leave goes to random starts while the fit makes progress, and to the planar spectra where it
    does not, or at once where f oscillates too fast for a random start to find its basin.
    """
    if methods == ("auto",):
        yield ("kinks", "curvature")
        fast = run.known.bandwidth * run.radius > 30.0
        for _ in range(MOST_ROUNDS // 3):
            yield ("slices",) if fast else ("random",)
            yield ("random",)
            yield ("slices",)
    else:
        for _ in range(MOST_ROUNDS):
            yield methods
