"""Proposers: each looks at the residual and names candidate directions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidInput
from ..geometry import Floats, random_directions
from .base import Ask, Proposal, Setting

if TYPE_CHECKING:
    from .kinks import KinkProposal

__all__ = ["Ask", "Proposal", "Setting", "propose_with"]


def propose_with(
    name: str, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator, known: Floats
) -> Proposal:
    """Run one proposer by name. `known` (n, d) are the directions the model has already."""
    if name == "random":
        few = min(2 * setting.dim, 48) - len(known)  # as if there were two features for every dimension
        count = max(8, few, len(known) // 2)
        return Proposal(random_directions(count, setting.dim, rng), np.zeros(count), f"{count} random starts")
    if name == "curvature":
        from . import curvature

        return curvature.propose(ask, setting, queries=queries, rng=rng)
    if name == "tensors":
        from . import tensors

        return tensors.propose(ask, setting, queries=queries, rng=rng)
    if name == "kinks":
        from . import kinks

        found = kinks.propose(ask, setting, queries=queries, rng=rng)
        return replace(found, explains=_broken_part(found)) if len(found.directions) else found
    if name == "zoom":
        from . import far_field

        return far_field.propose_zoomed(ask, setting, queries=queries, rng=rng)
    if name != "slices":
        raise InvalidInput(f"unknown proposer {name!r}; choose from curvature, kinks, random, slices")
    from . import slices

    return slices.propose(ask, setting, queries=queries, rng=rng)


def _broken_part(found: KinkProposal) -> Ask:
    """Σ (jump/2)·|v·x − t| over all kinks found: what is left of f is smooth where they were."""
    places = np.concatenate(found.at)
    halves = 0.5 * np.concatenate(found.jumps)
    owners = np.repeat(found.directions, [len(t) for t in found.at], axis=0)
    return lambda X: np.abs(X @ owners.T - places) @ halves
