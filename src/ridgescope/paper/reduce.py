"""The footnote on n < d: find the span of the features first, then work inside it.

∇f(x) = a + Σ_i σ_i′(v_i·x) v_i. Taking the mean over points away removes a, and what is left lies in
span{v_i : σ_i not affine}. Its singular vectors give an orthonormal Q (d, r); y ↦ f(Qy) is a sum of
features in R^r with directions Qᵀv_i, plus an affine part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgescope.paper.mass import Field, FloatArray, Reduction, frozen, reduced


@dataclass(frozen=True)
class Subspace:
    """span: (r, d) orthonormal rows; spectrum: (min(k, d),) singular values of the centred gradients;
    queries."""

    span: FloatArray
    spectrum: FloatArray
    queries: int

    def inside(self, f: Field) -> Field:
        """The field y ↦ f(Qy) on R^r."""
        return Inside(f, self.span)


@dataclass(frozen=True)
class Inside:
    """y ↦ f(Qy), Qᵀ = `span` (r, d)."""

    f: Field
    span: FloatArray

    def __call__(self, Y: FloatArray) -> FloatArray:
        return self.f(Y @ self.span)

    def reduced(self, rows: FloatArray, reduction: Reduction) -> FloatArray:
        return reduced(self.f, rows @ self.span, Back(self.span, reduction))


@dataclass(frozen=True)
class Back:
    """A reduction that is about the y of the rows Qy."""

    span: FloatArray
    reduction: Reduction

    @property
    def group(self) -> int:
        return self.reduction.group

    def __call__(self, rows: FloatArray, values: FloatArray) -> FloatArray:
        return self.reduction(np.einsum("md,rd->mr", rows, self.span), values)


def find_subspace(
    f: Field, *, dim: int, radius: float, rng: np.random.Generator, points: int | None = None
) -> Subspace:
    """The span of all nonlinear features, from central differences at `points` places in the ball (4d
    unless given).

    Differences of two lengths tell how wrong they are: noise and curvature both show in their disagreement,
    and a singular value counts when it exceeds the norm of that by half. Without a clear gap below the last
    one that counts nothing is left out.
    """
    k = max(200, 4 * dim) if points is None else points
    X = in_ball(k, dim, radius, rng)
    coarse, fine = (central(f, X, alpha) for alpha in (0.02 * radius, 0.01 * radius))
    fine -= fine.mean(axis=0)
    coarse -= coarse.mean(axis=0)
    spectrum, rows = np.linalg.svd(fine, full_matrices=False)[1:]
    floor = 1.5 * float(np.linalg.norm(coarse - fine, 2))
    rank = int(np.sum(spectrum > max(floor, 1e-9 * radius, 1e-7 * spectrum[0])))
    if 0 < rank < len(spectrum) and spectrum[rank - 1] < 4 * spectrum[rank]:
        rank = dim
    return Subspace(frozen(rows[:rank]), frozen(spectrum), 4 * k * dim)


def central(f: Field, X: FloatArray, alpha: float) -> FloatArray:
    """(m, d) slopes (f(x + αe_k) − f(x − αe_k))/2α."""
    m, d = X.shape
    shifts = alpha * np.eye(d)[:, None, :]
    values = f(np.concatenate([X + shifts, X - shifts]).reshape(-1, d)).reshape(2, d, m)
    return np.asarray(((values[0] - values[1]) / (2 * alpha)).T)


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
