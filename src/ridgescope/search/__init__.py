"""Proposers: each looks at the residual and names candidate directions."""

from __future__ import annotations

import numpy as np

from ..geometry import Floats, random_directions
from .base import Ask, Proposal, Setting

__all__ = ["Ask", "Proposal", "Setting", "propose_with"]


def propose_with(
    name: str, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator, known: Floats
) -> Proposal:
    """Run one proposer by name. `known` (n, d) are the directions the model has already."""
    if name == "random":
        count = max(8, len(known) // 2)
        return Proposal(random_directions(count, setting.dim, rng), np.zeros(count), f"{count} random starts")
    if name == "curvature":
        from . import curvature

        return curvature.propose(ask, setting, queries=queries, rng=rng)
    if name == "kinks":
        from . import kinks

        return kinks.propose(ask, setting, queries=queries, rng=rng)
    from . import slices

    return slices.propose(ask, setting, queries=queries, rng=rng)
