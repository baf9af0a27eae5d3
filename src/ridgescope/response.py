"""A one-dimensional response: a uniform cubic B-spline on [−R, R], plus kinks.

    s(z) = Σ_k c_k B((z+R)/h − k) + Σ_j w_j |z − t_j|,      h = 2R/K,  k = 0 … K+2

B is the cardinal cubic B-spline. c_k and w_j are scalars or, for a vector-valued f, rows of p numbers.
Outside [−R, R] the spline part goes on along its tangent. The spline reproduces every cubic, so the
affine part of a response can be taken out exactly (`without_affine`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidInput
from .geometry import Floats


def basis(z: Floats, radius: float, intervals: int) -> tuple[NDArray[np.intp], Floats]:
    """First active coefficient (m,) and the 4 weights (4, m) of each z; z is clipped to [−radius, radius]."""
    u = (np.clip(z, -radius, radius) + radius) * (intervals / (2.0 * radius))
    k = np.minimum(u.astype(np.intp), intervals - 1)
    t = np.minimum(u - k, 1.0)
    s = 1.0 - t
    t2, s2 = t * t, s * s
    weights = np.empty((4, *z.shape))
    weights[0] = s2 * s
    weights[1] = 4.0 - 6.0 * t2 + 3.0 * t2 * t
    weights[2] = 4.0 - 6.0 * s2 + 3.0 * s2 * s
    weights[3] = t2 * t
    weights /= 6.0
    return k, weights


def basis_slope(z: Floats, radius: float, intervals: int) -> tuple[NDArray[np.intp], Floats]:
    """As `basis`, for the derivative with respect to z."""
    scale = intervals / (2.0 * radius)
    u = (np.clip(z, -radius, radius) + radius) * scale
    k = np.minimum(u.astype(np.intp), intervals - 1)
    t = u - k
    s = 1.0 - t
    weights = np.empty((4, *z.shape))
    weights[0] = -s * s
    weights[1] = t * (3.0 * t - 4.0)
    weights[2] = s * (4.0 - 3.0 * s)
    weights[3] = t * t
    weights *= 0.5 * scale
    return k, weights


def greville(radius: float, intervals: int) -> Floats:
    """Coefficients of the function z itself."""
    h = 2.0 * radius / intervals
    return np.asarray(-radius + h * (np.arange(intervals + 3) - 1.0), dtype=np.float64)


Basis = Callable[[Floats, float, int], tuple[NDArray[np.intp], Floats]]


@dataclass(frozen=True, eq=False)
class Response:
    """s: R → R, or R → R^p where `coefficients` has p columns."""

    radius: float
    coefficients: Floats
    """(K+3,) or (K+3, p)."""
    kinks: Floats
    """(J,) places t_j."""
    kink_weights: Floats
    """(J,) or (J, p)."""

    def __post_init__(self) -> None:
        for name in ("coefficients", "kinks", "kink_weights"):
            array = np.array(getattr(self, name), dtype=np.float64)
            if name == "kink_weights" and not array.size:
                array = array.reshape(0, *self.coefficients.shape[1:])
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        outputs = self.coefficients.shape[1:]
        if len(self.coefficients) < 4 or len(outputs) > 1:
            raise InvalidInput(f"coefficients must be (K+3,) or (K+3, p), not {self.coefficients.shape}")
        if self.kinks.ndim != 1 or self.kink_weights.shape != (len(self.kinks), *outputs):
            raise InvalidInput(
                f"kinks {self.kinks.shape} and weights {self.kink_weights.shape} do not fit outputs {outputs}"
            )
        if not 1e-150 < self.radius < 1e150:  # so that squares and what divides by them are numbers
            raise InvalidInput(f"radius must be a positive number, not {self.radius!r} (and between 1e-150 and 1e150)")

    @property
    def intervals(self) -> int:
        return len(self.coefficients) - 3

    @property
    def outputs(self) -> int | None:
        """p, or None for a scalar response."""
        return self.coefficients.shape[1] if self.coefficients.ndim == 2 else None

    def __call__(self, z: ArrayLike) -> Floats:
        """Values at z of any shape; a vector-valued response adds a last axis of length p."""
        z = np.asarray(z, dtype=np.float64)
        flat = z.ravel()
        values = self._spline(flat, basis)
        outside = np.abs(flat) > self.radius
        if outside.any():
            beyond = flat[outside] - np.clip(flat[outside], -self.radius, self.radius)
            values[outside] += _times(beyond, self._spline(flat[outside], basis_slope))
        for t, w in zip(self.kinks, self.kink_weights, strict=True):
            values += np.multiply.outer(np.abs(flat - t), w)
        return values.reshape(z.shape + self.coefficients.shape[1:])

    def slope(self, z: ArrayLike) -> Floats:
        """Derivative at z; at a kink, the mean of its two sides."""
        z = np.asarray(z, dtype=np.float64)
        flat = z.ravel()
        values = self._spline(flat, basis_slope)
        for t, w in zip(self.kinks, self.kink_weights, strict=True):
            values += np.multiply.outer(np.sign(flat - t), w)
        return values.reshape(z.shape + self.coefficients.shape[1:])

    def _spline(self, z: Floats, basis_of: Basis) -> Floats:
        k, weights = basis_of(z, self.radius, self.intervals)
        values = _times(weights[0], self.coefficients[k])
        for j in (1, 2, 3):
            values += _times(weights[j], self.coefficients[k + j])
        return values

    def flipped(self) -> Response:
        """z ↦ s(−z)."""
        return Response(self.radius, self.coefficients[::-1], -self.kinks[::-1], self.kink_weights[::-1])

    def without_affine(self) -> tuple[Response, Floats, Floats]:
        """(s − c0 − c1·z, c0, c1): c1 is the least-squares slope over [−R, R], and the rest is 0 at 0."""
        c1 = self._first_moment() * (1.5 / self.radius**3)
        c0 = self(0.0)
        ones = np.ones(self.intervals + 3)
        line = np.multiply.outer(ones, c0) + np.multiply.outer(greville(self.radius, self.intervals), c1)
        return Response(self.radius, self.coefficients - line, self.kinks, self.kink_weights), c0, c1

    def _first_moment(self) -> Floats:
        """∫ z s(z) dz over [−R, R], exact: three Gauss points per interval, and for a kink
        ∫ z |z − t| dz = t³/3 − R²t, where a t outside [−R, R] counts as the nearer end.
        """
        t, w = np.polynomial.legendre.leggauss(3)
        h = self.radius / self.intervals
        middles = -self.radius + h * (2.0 * np.arange(self.intervals) + 1.0)
        z = np.add.outer(middles, h * t).ravel()
        moment = np.tensordot(np.tile(h * w, self.intervals) * z, self._spline(z, basis), axes=(0, 0))
        kinks = np.clip(self.kinks, -self.radius, self.radius)
        of_kinks = np.tensordot(kinks**3 / 3.0 - self.radius**2 * kinks, self.kink_weights, axes=(0, 0))
        return np.asarray(moment + of_kinks, dtype=np.float64)

    def rms(self) -> float:
        """Root mean square of |s| over [−R, R]."""
        z = np.linspace(-self.radius, self.radius, 16 * self.intervals + 1)
        values = self(z).reshape(len(z), -1)
        square = np.einsum("zp,zp->z", values, values)
        return float(np.sqrt((square.sum() - 0.5 * (square[0] + square[-1])) / (len(z) - 1)))


def interpolate(values_at: Callable[[Floats], ArrayLike], radius: float, intervals: int) -> Response:
    """The smooth response through a callable's values: least squares on a grid finer than the knots."""
    z = np.linspace(-radius, radius, 3 * intervals + 7)
    y = np.asarray(values_at(z), dtype=np.float64)
    k, weights = basis(z, radius, intervals)
    design = np.zeros((len(z), intervals + 3))
    for j in range(4):
        design[np.arange(len(z)), k + j] += weights[j]
    coefficients = np.asarray(np.linalg.lstsq(design, y, rcond=None)[0], dtype=np.float64)
    return Response(radius, coefficients, np.empty(0), np.empty((0, *y.shape[1:])))


def _times(weights: Floats, rows: Floats) -> Floats:
    return weights * rows if rows.ndim == 1 else weights[:, None] * rows
