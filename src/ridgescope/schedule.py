"""Which proposers, in which order: cheap ones first, the expensive ones only for what they leave."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .search import PROPOSERS, Proposer

if TYPE_CHECKING:
    from .state import State

METHODS = ("auto", "paper", *PROPOSERS)


def schedule(methods: tuple[str | Proposer, ...], state: State) -> Iterator[tuple[Proposer, ...]]:
    """Proposers of each round, without end: the run knows when to stop.

    A wide layer, many inputs and many outputs, is looked at from far away first, all its features at once, or, where
    one cannot go far, by its curvature. Else kinks
    and then curvature, on what the kinks leave, cover smooth and piecewise smooth responses for a few queries a
    parameter. What they leave goes to random starts while the fit makes progress, and to the planar spectra where it
    does not, or at once where f oscillates too fast for a random start to find its basin, or where there are more
    features than derivatives could tell apart.
    """
    if methods != ("auto",):
        yield from itertools.repeat(tuple(PROPOSERS[m] if isinstance(m, str) else m for m in methods))
    slices, curvature, kinks, far_field, random = (
        (PROPOSERS[name],) for name in ("slices", "curvature", "kinks", "far_field", "random")
    )
    fast = state.known.bandwidth * state.radius > 30.0
    later = None
    while True:
        if state.new_ground and state.is_wide and not state.history:
            yield far_field if state.reach == float("inf") else curvature
            if state.model.count:
                continue
        if state.new_ground or (state.is_wide and len(state.history) == 1):
            yield kinks + curvature
            continue
        if later is None:
            first = fast or state.crowded
            later = itertools.cycle([slices, random] if first else [random, random, slices])
        yield next(later)
