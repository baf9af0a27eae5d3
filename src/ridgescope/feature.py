"""The parts of a result that search and fit produce: features with their shapes, and planes of the star."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .geometry import Floats, frozen
from .response import Response


@dataclass(frozen=True)
class Shape:
    """A closed form that explains a response."""

    name: str
    """relu, leaky relu, abs, tanh, sine, bump, …"""
    parameters: Mapping[str, float]
    formula: str
    """The closed form with its numbers, as a person would write it."""
    r2: float
    """Share of the response's variance that it explains."""

    def __str__(self) -> str:
        return self.formula


@dataclass(frozen=True, eq=False)
class Feature:
    """One term s(v·x) of the sum."""

    direction: Floats
    response: Response
    angle_error: float
    """Standard error of the direction, radians."""
    strength: float
    """RMS of the response over [−R, R]."""
    shape: Shape | None = None
    band: Floats = field(default_factory=lambda: np.zeros(0))
    """Standard error of the response on a uniform grid of [−R, R]: (G,) or (G, p)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", frozen(self.direction))
        object.__setattr__(self, "band", frozen(self.band))

    def __repr__(self) -> str:
        shape = f", {self.shape}" if self.shape else ""
        return f"<Feature strength {self.strength:.3g}, angle error {self.angle_error:.1e} rad{shape}>"


@dataclass(frozen=True, eq=False)
class Plane:
    """The planar Fourier power of f: the star of lines, as the search saw it."""

    basis: Floats
    """(2, d) orthonormal rows."""
    power: NDArray[np.float32]
    """(N, N) |F|, frequency zero in the middle, summed over outputs."""
    step: float
    """Frequency step between cells, radians per unit length."""
    round: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", frozen(self.basis))
        power = np.array(self.power, dtype=np.float32)
        power.flags.writeable = False
        object.__setattr__(self, "power", power)
