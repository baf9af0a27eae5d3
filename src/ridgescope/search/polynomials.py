"""Polynomials through a few answers along a line, and where two of them meet."""

from __future__ import annotations

import numpy as np

from ..geometry import Floats

MIDPOINT_WEIGHTS = np.vander([0.5, 1.5, 2.5], 3) @ np.linalg.pinv(np.vander(np.arange(4.0), 3))
"""Weights of four equidistant answers in the parabola closest to them, in the middle of each cell."""


def through(tau: Floats, values: Floats) -> Floats:
    """Return (q+1, p) coefficients, lowest first, of the polynomials through values (q+1, p) at tau (q+1,)."""
    return np.asarray(np.linalg.solve(np.vander(tau, increasing=True), values), dtype=np.float64)


def derivative(coefficients: Floats, tau: float) -> Floats:
    """Return the (p,) slopes at tau of polynomials with coefficients (q+1, p)."""
    k = np.arange(1, len(coefficients))
    return np.asarray((k * tau ** (k - 1)) @ coefficients[1:])


def meeting_point(gap: Floats, within: float) -> float | None:
    """Return the root nearest zero of a vector polynomial (q+1, p); None if there is none in [−within, within].

    The two sides of a kink differ along one vector of R^p, that of the slope jump.
    """
    if not np.isfinite(gap).all() or not gap[1].any():
        return None
    scalar = gap @ (gap[1] / np.linalg.norm(gap[1]))
    roots = np.roots(np.trim_zeros(scalar[::-1], "f"))
    real = roots[np.abs(roots.imag) < 1e-9 * (1.0 + np.abs(roots.real))].real  # up to rounding
    real = real[np.abs(real) <= within]
    return float(real[np.argmin(np.abs(real))]) if len(real) else None
