"""Uniform cubic B-splines on [−R, R]: values, derivatives, and their matrices.

    s(z) = Σ_k c_k B((z+R)/h − k),      h = 2R/K,   k = 0 … K+2

B is the cardinal cubic B-spline. Four terms are nonzero at any z, so a row of a design matrix is described by the index
of its first nonzero column and four weights. All other modules take these weights from here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .geometry import Floats


def basis(z: Floats, radius: float, intervals: int) -> tuple[NDArray[np.intp], Floats]:
    """Return the index (m,) of each z's first active coefficient and its weights (4, m); z is clipped to [−R, R]."""
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
    """Return the same as `basis` for the derivative with respect to z."""
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


def combine(first: NDArray[np.intp], weights: Floats, coefficients: Floats) -> Floats:
    """Σ_j weights[j]·coefficients[first + j]: (m,), or (m, p) where coefficients have p columns."""
    weights = weights if coefficients.ndim == 1 else weights[:, :, None]
    values = weights[0] * coefficients[first]
    for j in (1, 2, 3):
        values += weights[j] * coefficients[first + j]
    return np.asarray(values)


def greville(radius: float, intervals: int) -> Floats:
    """Return the (K+3,) coefficients of the function z itself."""
    h = 2.0 * radius / intervals
    return np.asarray(-radius + h * (np.arange(intervals + 3) - 1.0), dtype=np.float64)


def interpolation_nodes(radius: float, intervals: int) -> Floats:
    """Return (K+3,) points whose values determine a spline: the knots and the middles of the first and last cell."""
    knots = np.linspace(-radius, radius, intervals + 1)
    h = knots[1] - knots[0]
    return np.asarray(np.sort(np.concatenate([knots, [-radius + 0.5 * h, radius - 0.5 * h]])))


def scatter(out: Floats, first: NDArray[np.intp], weights: Floats) -> Floats:
    """Write `weights` (4, m) into the rows of `out` (m, ≥K+3), from column `first` (m,) on; return `out`."""
    rows = np.arange(len(first))
    for j, w in enumerate(weights):
        out[rows, first + j] = w
    return out


def design_matrix(z: Floats, radius: float, intervals: int) -> Floats:
    """Return the (m, K+3) values of the B-splines at z."""
    return scatter(np.zeros((len(z), intervals + 3)), *basis(z, radius, intervals))


def slope_matrix(z: Floats, radius: float, intervals: int) -> Floats:
    """Return the (m, K+3) first derivatives of the B-splines at z."""
    return scatter(np.zeros((len(z), intervals + 3)), *basis_slope(z, radius, intervals))


def curvature_matrix(z: Floats, radius: float, intervals: int) -> Floats:
    """Return the (m, K+3) second derivatives at z: second differences of the coefficients, linear between knots."""
    u = (z + radius) * (intervals / (2.0 * radius))
    k = np.minimum(u.astype(np.intp), intervals - 1)
    linear = scatter(np.zeros((len(z), intervals + 1)), k, np.stack([1.0 - (u - k), u - k]))
    differences = np.diff(np.eye(intervals + 3), 2, axis=0)
    return np.asarray(linear @ differences * (intervals / (2.0 * radius)) ** 2)


def sparse_rows(first: NDArray[np.intp], weights: Floats, width: int) -> csr_array:
    """Return the (m, width) sparse matrix whose row i holds weights[:, i] from column first[i] on."""
    index: Any = np.int64 if max(4 * len(first), width) >= 2**31 else np.int32
    columns = (first.astype(index)[:, None] + np.arange(4, dtype=index)).ravel()
    ends = np.arange(len(first) + 1, dtype=index) * 4
    return csr_array((weights.T.ravel(), columns, ends), shape=(len(first), width))
