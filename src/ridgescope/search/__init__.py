"""Proposers: each looks at what the model leaves of f and names candidate directions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .base import Ask, Proposal, Proposer, RandomStarts, Setting, run_proposer
from .curvature import Curvature
from .far_field import FarField
from .kinks import Kinks
from .slices import Slices
from .tensors import Tensors

__all__ = [
    "PROPOSERS",
    "Ask",
    "Curvature",
    "FarField",
    "Kinks",
    "Proposal",
    "Proposer",
    "RandomStarts",
    "Setting",
    "Slices",
    "Tensors",
    "run_proposer",
]

_ALL: tuple[Proposer, ...] = (Slices(), Curvature(), Tensors(), Kinks(), FarField(), RandomStarts())
PROPOSERS: Mapping[str, Proposer] = MappingProxyType({proposer.name: proposer for proposer in _ALL})
"""The proposers that have a name, with their default settings."""
