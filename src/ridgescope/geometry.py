"""Points on spheres and in balls, angles, and read-only copies."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
"""A float64 array."""
_EQUAL = 1e-9  # relative difference of entries that rounding explains


def frozen(array: ArrayLike) -> Floats:
    """Return a read-only float64 copy of `array`."""
    out = np.array(array, dtype=np.float64)
    out.flags.writeable = False
    return out


def unit(rows: ArrayLike) -> Floats:
    """Return the rows scaled to length one."""
    rows = np.asarray(rows, dtype=np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def random_directions(count: int, dim: int, rng: np.random.Generator) -> Floats:
    """Return (count, dim) unit rows, uniform on the sphere."""
    return unit(rng.standard_normal((count, dim)))


def random_basis(count: int, dim: int, rng: np.random.Generator) -> Floats:
    """Return (count, dim) orthonormal rows that span a uniformly random subspace."""
    q, r = np.linalg.qr(rng.standard_normal((dim, count)))
    return np.ascontiguousarray((q * np.sign(np.diag(r))).T)


def in_ball(count: int, dim: int, radius: float, rng: np.random.Generator) -> Floats:
    """Return (count, dim) points, uniform in the ball of the given radius."""
    r = radius * rng.random(count) ** (1.0 / dim)
    return random_directions(count, dim, rng) * r[:, None]


def along(directions: Floats, which: NDArray[np.intp], z: Floats, radius: float, rng: np.random.Generator) -> Floats:
    """Return points x (m, d) with directions[which]·x = z, uniform in that cross-section of the ball of this radius.

    `which` and z are (m,). Uniform points of a ball in R^d seldom have |v·x| > 3·radius/√d; these cover all of
    [−radius, radius].
    """
    v = directions[which]
    count, dim = v.shape
    if dim == 1:
        return z[:, None] * v
    w = rng.standard_normal((count, dim))
    w -= np.einsum("md,md->m", w, v)[:, None] * v
    rest = np.sqrt(np.maximum(radius**2 - z**2, 0.0)) * rng.random(count) ** (1.0 / (dim - 1))
    x = z[:, None] * v + unit(w) * rest[:, None]
    return shrink_to(x, radius)


def shrink_to(x: Floats, radius: float) -> Floats:
    """Return the rows with those that rounding put slightly outside the ball moved into it; x is changed in place."""
    norm = np.linalg.norm(x, axis=1)
    over = norm > radius
    if over.any():
        x[over] *= (radius / norm[over] * (1.0 - 1e-15))[:, None]
    return x


def angle(u: Floats, v: Floats) -> Floats:
    """Return the angles in radians between paired unit rows, ignoring sign, exact to rounding for small angles.

    2·atan2(|u−v|, |u+v|) keeps full relative accuracy, where arccos(1−ε) keeps half the digits.
    """
    minus = np.linalg.norm(u - v, axis=-1)
    plus = np.linalg.norm(u + v, axis=-1)
    return np.asarray(2.0 * np.arctan2(np.minimum(minus, plus), np.maximum(minus, plus)))


def leading_sign(row: Floats) -> float:
    """Return the sign, 1 or −1, of the largest entry of a row (p,); of several equally large ones, of the first.

    Entries count as equal up to rounding, so that copies of a row that differ by rounding have the same sign.
    """
    size = np.abs(row)
    return -1.0 if row[np.argmax(size >= (1.0 - _EQUAL) * size.max())] < 0 else 1.0
