"""The named standard cases, all on the ball of radius 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from .planted import KINDS, SMOOTH, Planted, planted


@dataclass(frozen=True)
class Case:
    """A recipe for a target; `make(seed)` draws one."""

    name: str
    dim: int
    features: int
    kinds: tuple[str, ...]
    responses: str
    """The responses in words."""
    options: Mapping[str, Any] = field(default_factory=dict)
    radius: float = 3.0

    def make(self, rng: int | np.random.Generator = 0, **changes: Any) -> Planted:
        """A fresh target; `changes` override the options of `planted`."""
        return planted(self.dim, self.features, self.kinds, rng=rng, **{**self.options, **changes})


CASES: Mapping[str, Case] = MappingProxyType(
    {
        case.name: case
        for case in (
            Case("first", 3, 4, ("sine", "tanh", "bump"), "sine, tanh, bump"),
            Case("small", 5, 8, KINDS, "all kinds"),
            Case("mixed", 10, 20, KINDS, "all kinds"),
            Case("superposed", 20, 40, KINDS, "all kinds"),
            Case("dense", 20, 100, SMOOTH, "smooth kinds"),
            Case("extreme", 4, 30, SMOOTH, "smooth kinds, n > d²"),
            Case("waves", 10, 20, ("sine",), "sines with frequencies 6 to 18", {"frequencies": (6.0, 18.0)}),
            Case("noisy", 10, 20, KINDS, "all kinds, noise 0.02", {"noise": 0.02}),
            Case("twins", 10, 16, SMOOTH, "smooth, four pairs 0.06 rad apart", {"twins": 4, "twin_angle": 0.06}),
            Case("lowrank", 100, 8, KINDS, "all kinds"),
            Case("vector", 16, 40, KINDS, "all kinds, 6 outputs", {"outputs": 6}),
            Case("relu", 20, 60, ("relu",), "relu, random biases"),
            Case("large", 50, 200, SMOOTH, "smooth kinds"),
        )
    }
)
