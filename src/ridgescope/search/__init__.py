"""Proposers: each examines the residual of the current model and returns candidate directions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .base import Ask, Candidates, Proposal, Proposer, RandomSettings, RandomStarts, Setting, run_proposer
from .curvature import Curvature, CurvatureSettings
from .far_field import FarField, FarFieldSettings
from .gated_kinks import GatedKinks
from .kink_scans import KinkSettings
from .kinks import Kinks
from .outliers import Outliers, OutlierSettings
from .plateaus import Plateaus, PlateauSettings
from .slices import Slices, SliceSettings
from .tensors import Tensors, TensorSettings

__all__ = [
    "PROPOSERS",
    "Ask",
    "Candidates",
    "Curvature",
    "CurvatureSettings",
    "FarField",
    "FarFieldSettings",
    "GatedKinks",
    "KinkSettings",
    "Kinks",
    "OutlierSettings",
    "Outliers",
    "PlateauSettings",
    "Plateaus",
    "Proposal",
    "Proposer",
    "RandomSettings",
    "RandomStarts",
    "Setting",
    "SliceSettings",
    "Slices",
    "TensorSettings",
    "Tensors",
    "run_proposer",
]

_ALL: tuple[Proposer, ...] = (
    Slices(),
    Curvature(),
    Tensors(),
    Kinks(),
    GatedKinks(),
    FarField(),
    Plateaus(),
    Outliers(),
    RandomStarts(),
)
PROPOSERS: Mapping[str, Proposer] = MappingProxyType({proposer.name: proposer for proposer in _ALL})
"""The built-in proposers by name, with their default settings."""
