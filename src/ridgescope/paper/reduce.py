"""The footnote on n < d: find the span of the features first, then work inside it.

∇f(x) = a + Σ_i σ_i′(v_i·x) v_i. Taking the mean over points away removes a, and what is left lies in
span{v_i : σ_i not affine}. Its singular vectors give an orthonormal Q (d, r); y ↦ f(Qy) is a sum of
features in R^r with directions Qᵀv_i, plus an affine part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgescope.paper.derivative import difference
from ridgescope.paper.mass import Field, FloatArray, frozen


@dataclass(frozen=True)
class Subspace:
    """span: (r, d) orthonormal rows; spectrum: (min(k, d),) singular values of the centred gradients;
    queries."""

    span: FloatArray
    spectrum: FloatArray
    queries: int

    def inside(self, f: Field) -> Field:
        """The field y ↦ f(Qy) on R^r."""
        return lambda Y: f(Y @ self.span)


def find_subspace(
    f: Field,
    *,
    dim: int,
    radius: float,
    rng: np.random.Generator,
    noise: float = 0.0,
    points: int | None = None,
) -> Subspace:
    """The span of all nonlinear features, from differences at `points` places in the ball (4d unless
    given)."""
    k = 4 * dim if points is None else points
    X = in_ball(k, dim, radius, rng)
    alpha = 0.05 * radius
    slopes = difference(f, X, alpha)
    slopes = slopes - slopes.mean(axis=0)
    spectrum, rows = np.linalg.svd(slopes, full_matrices=False)[1:]
    # Independent errors of size s in k×d slopes have largest singular value about s(√k + √d).
    floor = 1.5 * (math.sqrt(2) * noise / alpha) * (math.sqrt(k) + math.sqrt(dim))
    rank = int(np.sum(spectrum > max(floor, 1e-6 * spectrum[0], 1e-12)))
    return Subspace(frozen(rows[:rank]), frozen(spectrum), k * (dim + 1))


def in_ball(m: int, dim: int, radius: float, rng: np.random.Generator) -> FloatArray:
    """(m, d) points uniform in the ball."""
    x = rng.standard_normal((m, dim))
    x *= radius * rng.uniform(size=(m, 1)) ** (1 / dim) / np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x)


def along(u: FloatArray, m: int, radius: float, rng: np.random.Generator) -> FloatArray:
    """(m, d) points of the ball with u·x uniform on [−R, R] and the rest uniform in the orthogonal ball."""
    z = rng.uniform(-radius, radius, (m, 1))
    if len(u) == 1:
        return np.asarray(z * u)
    rest = in_ball(m, len(u) - 1, 1.0, rng) * np.sqrt(radius**2 - z**2)
    perpendicular = np.linalg.svd(u[None], full_matrices=True)[2][1:]
    return np.asarray(z * u + rest @ perpendicular)
