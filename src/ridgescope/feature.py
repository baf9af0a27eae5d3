"""The parts of a result that search and fit produce: features, their shapes, and planar Fourier spectra."""

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
    """Name of the form: relu, leaky relu, abs, tanh, sine, bump, …"""
    parameters: Mapping[str, float]
    """Numbers of the closed form by name."""
    formula: str
    """The closed form with its numbers, as a person would write it."""
    r2: float
    """Share of the response's variance that the closed form explains."""

    def __str__(self) -> str:
        return self.formula


@dataclass(frozen=True, eq=False)
class Feature:
    """One term s(v·u) of the sum, with u = (x − center)/scale."""

    direction: Floats
    """(d,) unit vector v, in the coordinates u = (x − center)/scale; its largest coordinate is positive."""
    response: Response
    """The function s, without its affine part, which belongs to `bias` and `slope` of the result."""
    angle_error: float
    """Standard error of the direction in radians."""
    strength: float
    """Root mean square of the response over [−R, R]."""
    shape: Shape | None = None
    """Closed form of the response; None if none explains it."""
    band: Floats = field(default_factory=lambda: np.zeros(0))
    """(G,) or (G, p) standard error of the response on a uniform grid of [−R, R]; empty if not computed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", frozen(self.direction))
        object.__setattr__(self, "band", frozen(self.band))

    def __repr__(self) -> str:
        shape = f", {self.shape}" if self.shape else ""
        return f"<Feature strength {self.strength:.3g}, angle error {self.angle_error:.1e} rad{shape}>"


@dataclass(frozen=True, eq=False)
class Plane:
    """The Fourier power of a planar slice of f, in which every feature appears as a line through zero."""

    basis: Floats
    """(2, d) orthonormal rows that span the plane."""
    power: NDArray[np.float32]
    """(N, N) modulus |F| with frequency zero in the middle, combined over outputs."""
    step: float
    """Frequency step between cells, in radians per unit length."""
    round: int = 0
    """Number of the search round that measured it; 0 for a plane made only for the report."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", frozen(self.basis))
        power = np.array(self.power, dtype=np.float32)
        power.flags.writeable = False
        object.__setattr__(self, "power", power)
