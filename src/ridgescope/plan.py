"""Which proposers, in which order: cheap ones first, the expensive ones only for what they leave."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Run

METHODS = ("auto", "paper", "slices", "curvature", "kinks", "random")


def schedule(methods: tuple[str, ...], run: Run) -> Iterator[tuple[str, ...]]:
    """Proposers of each round, without end: the run knows when to stop.

    A wide layer, many inputs and many outputs, is looked at from far away first, all its features at once, or, where
    one cannot go far, by its curvature. Else kinks
    and then curvature, on what the kinks leave, cover smooth and piecewise smooth responses for a few queries a
    parameter. What they leave goes to random starts while the fit makes progress, and to the planar spectra where it
    does not, or at once where f oscillates too fast for a random start to find its basin, or where there are more
    features than curvature could tell apart.
    """
    if methods != ("auto",):
        yield from itertools.repeat(methods)
    fast = run.known.bandwidth * run.radius > 30.0
    later = None
    while True:
        if run.new_ground and run.is_wide and not run.history:
            yield ("zoom",) if run.reach == float("inf") else ("curvature",)
            if run.model.count:
                continue
        if run.new_ground or (run.is_wide and len(run.history) == 1):
            yield ("kinks", "curvature")
            continue
        if later is None:
            first = fast or run.crowded
            later = itertools.cycle([("slices",), ("random",)] if first else [("random",), ("random",), ("slices",)])
        yield next(later)
