"""A one-dimensional response: a uniform cubic B-spline on [−R, R], plus kinks.

    s(z) = Σ_k c_k B((z+R)/h − k) + Σ_j w_j |z − t_j|,      h = 2R/K,  k = 0 … K+2

B is the cardinal cubic B-spline. c_k and w_j are scalars or, for a vector-valued f, rows of p numbers.
Outside [−R, R] the spline part continues along its tangent. The spline reproduces every cubic, so the
affine part of a response can be removed exactly (`without_affine`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bspline import basis, basis_slope, combine, design_matrix, greville
from .errors import InvalidInput
from .geometry import Floats

RADIUS_LIMITS = (1e-150, 1e150)
"""Between these, squares of the radius and quotients by them are finite numbers."""
_RMS_POINTS = 16  # per interval: the trapezoidal rule then has an error far below the spline's own
_Basis = Callable[[Floats, float, int], tuple[NDArray[np.intp], Floats]]


@dataclass(frozen=True, eq=False)
class Response:
    """The function s of one feature: R → R, or R → R^p if `coefficients` has p columns.

    Raises
    ------
    InvalidInput
        If the shapes do not fit together or the radius is not a positive number.

    Examples
    --------
    >>> s = Response(1.0, [0.0] * 7, [0.5], [2.0])
    >>> s([0.0, 0.5, 1.0]).tolist()
    [1.0, 0.0, 1.0]
    """

    radius: float
    """R; the knots divide [−R, R] into K equal intervals."""
    coefficients: Floats
    """(K+3,) or (K+3, p) coefficients of the B-splines."""
    kinks: Floats
    """(J,) positions t_j at which the slope jumps."""
    kink_weights: Floats
    """(J,) or (J, p) half the jump of the slope at each kink."""

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
        if not RADIUS_LIMITS[0] < self.radius < RADIUS_LIMITS[1]:
            raise InvalidInput(f"radius must be a positive number, not {self.radius!r} (and between 1e-150 and 1e150)")

    @property
    def intervals(self) -> int:
        """K, the number of spline intervals."""
        return len(self.coefficients) - 3

    @property
    def outputs(self) -> int | None:
        """p, or None for a scalar response."""
        return self.coefficients.shape[1] if self.coefficients.ndim == 2 else None

    def __call__(self, z: ArrayLike) -> Floats:
        """Evaluate s.

        Parameters
        ----------
        z
            Numbers v·x, an array of any shape.

        Returns
        -------
        Floats
            Values of the shape of z; a vector-valued response adds a last axis of length p.

        Examples
        --------
        >>> Response(1.0, [0.0] * 7, [0.5], [2.0])([0.5, 3.0]).tolist()
        [0.0, 5.0]
        """
        z = np.asarray(z, dtype=np.float64)
        flat = z.ravel()
        values = self._spline(flat, basis)
        outside = np.abs(flat) > self.radius
        if outside.any():
            beyond = flat[outside] - np.clip(flat[outside], -self.radius, self.radius)
            values[outside] += (beyond * self._spline(flat[outside], basis_slope).T).T
        for t, w in zip(self.kinks, self.kink_weights, strict=True):
            values += np.multiply.outer(np.abs(flat - t), w)
        return values.reshape(z.shape + self.coefficients.shape[1:])

    def slope(self, z: ArrayLike) -> Floats:
        """Evaluate the derivative s'.

        Parameters
        ----------
        z
            Numbers v·x, an array of any shape.

        Returns
        -------
        Floats
            s'(z), of the same shape as the values; at a kink, the mean of its two sides.

        Examples
        --------
        >>> Response(1.0, [0.0] * 7, [0.5], [2.0]).slope([0.0, 0.5, 1.0]).tolist()
        [-2.0, 0.0, 2.0]
        """
        z = np.asarray(z, dtype=np.float64)
        flat = z.ravel()
        values = self._spline(flat, basis_slope)
        for t, w in zip(self.kinks, self.kink_weights, strict=True):
            values += np.multiply.outer(np.sign(flat - t), w)
        return values.reshape(z.shape + self.coefficients.shape[1:])

    def _spline(self, z: Floats, basis_of: _Basis) -> Floats:
        """Return the spline part, or with `basis_slope` its derivative, at z (m,)."""
        return combine(*basis_of(z, self.radius, self.intervals), self.coefficients)

    def flipped(self) -> Response:
        """Return the response z ↦ s(−z), which belongs to the opposite direction −v.

        Returns
        -------
        Response
            The mirror image.

        Examples
        --------
        >>> float(Response(1.0, [0.0] * 7, [0.5], [2.0]).flipped()(-0.5))
        0.0
        """
        return Response(self.radius, self.coefficients[::-1], -self.kinks[::-1], self.kink_weights[::-1])

    def without_affine(self) -> tuple[Response, Floats, Floats]:
        """Split s into a response that is 0 at 0 and has no slope on average, and an affine part.

        Returns
        -------
        (Response, Floats, Floats)
            s − c0 − c1·z, c0 and c1; c1 is the least-squares slope of s over [−R, R].

        Examples
        --------
        >>> rest, c0, c1 = Response(1.0, greville(1.0, 4), [], []).without_affine()
        >>> round(float(c1), 12), round(rest.rms(), 12)
        (1.0, 0.0)
        """
        c1 = self._first_moment() * (1.5 / self.radius**3)
        c0 = self(0.0)
        ones = np.ones(self.intervals + 3)
        line = np.multiply.outer(ones, c0) + np.multiply.outer(greville(self.radius, self.intervals), c1)
        return Response(self.radius, self.coefficients - line, self.kinks, self.kink_weights), c0, c1

    def _first_moment(self) -> Floats:
        """Return ∫ z s(z) dz over [−R, R], exactly.

        The spline takes three Gauss points per interval; a kink has ∫ z |z − t| dz = t³/3 − R²t, t clipped to [−R, R].
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
        """Return the root mean square of |s| over [−R, R].

        Returns
        -------
        float
            The value by the trapezoidal rule.

        Examples
        --------
        >>> Response(1.0, [2.0] * 7, [], []).rms()
        2.0
        """
        z = np.linspace(-self.radius, self.radius, _RMS_POINTS * self.intervals + 1)
        values = self(z).reshape(len(z), -1)
        square = np.einsum("zp,zp->z", values, values)
        return float(np.sqrt((square.sum() - 0.5 * (square[0] + square[-1])) / (len(z) - 1)))


def interpolate(values_at: Callable[[Floats], ArrayLike], radius: float, intervals: int) -> Response:
    """Return the spline closest to a callable's values, by least squares on a grid three times as fine as its knots."""
    z = np.linspace(-radius, radius, 3 * intervals + 7)
    y = np.asarray(values_at(z), dtype=np.float64)
    design = design_matrix(z, radius, intervals)
    coefficients = np.asarray(np.linalg.lstsq(design, y, rcond=None)[0], dtype=np.float64)
    return Response(radius, coefficients, np.empty(0), np.empty((0, *y.shape[1:])))
