"""Removing boundedness: smoothed directional derivatives (proof of Theorem main-learning).

A Lipschitz response may grow without bound; its derivative may not. With g = f ∗ N(0, η²I),

    ⟨u, ∇g(x)⟩ = Σ_i ρ_i(v_i·x),   ρ_i(t) = ⟨u, v_i⟩ · E σ_i′(t + ηz),   |ρ_i| ≤ L,  |ρ_i′| ≤ L/η,

is a sum of bounded features in the same directions, and a difference over a length α gives it from values
of f:

    | (g(x + αu) − g(x))/α − ⟨u, ∇g(x)⟩ | ≤ nLα/η.

Two facts make this cheap. The difference itself, at any α, is a sum of features in the same directions,
with responses (σ_i(t + α⟨u, v_i⟩) − σ_i(t))/α: directions found from it carry no bias. And EstWeight
multiplies two evaluations, EstVal uses one, so a single fresh z per evaluation gives unbiased estimates for
g: no inner average is needed. The same z and the same base point serve u = e_1 … e_d, which costs d+1
values per point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgescope.paper.mass import ComplexArray, Field, FloatArray, Reduction, reduced

BLOCK = 8192
"""Rows differenced at a time: d+1 times as many are asked in one call."""


def stencil(dim: int, alpha: float) -> FloatArray:
    """(d+1, d) where a difference is asked: at the point itself, and αe_k beside it."""
    return alpha * np.eye(dim + 1, dim, -1)


def around(X: FloatArray, shifts: FloatArray) -> FloatArray:
    """(m·k, d): each row of X (m, d) moved by the shifts (k, d) in turn, and then the next row."""
    return np.asarray((X[:, None, :] + shifts).reshape(-1, X.shape[1]))


def difference(f: Field, X: FloatArray, alpha: float) -> FloatArray:
    """(m, d) differences (f(x + αe_k) − f(x))/α, all d+1 values of a row asked in one call."""
    m, d = X.shape
    out = np.empty((m, d))
    for lo in range(0, m, BLOCK):
        values = f(around(X[lo : lo + BLOCK], stencil(d, alpha))).reshape(-1, d + 1)
        out[lo : lo + BLOCK] = (values[:, 1:] - values[:, :1]) / alpha
    return out


def reduced_around(f: Field, X: FloatArray, alpha: float, reduction: Reduction) -> FloatArray:
    """The reduction of f on the stencils around the rows of X, one after the other."""
    shifts = stencil(X.shape[1], alpha)
    parts = [reduced(f, around(X[lo : lo + BLOCK], shifts), reduction) for lo in range(0, len(X), BLOCK)]
    return np.concatenate(parts)


@dataclass(frozen=True)
class DifferenceProduct:
    """Σ_k of the products of the differences at x₋ and x₊, from their 2(d+1) values."""

    dim: int
    alpha: float

    @property
    def group(self) -> int:
        return 2 * (self.dim + 1)

    def __call__(self, rows: FloatArray, values: FloatArray) -> FloatArray:
        minus, plus = self.differences(values)
        return np.asarray(np.einsum("mq,mq->m", minus, plus))

    def differences(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(m, d) at x₋ and at x₊."""
        both = values.reshape(-1, 2, self.dim + 1)
        slopes = (both[:, :, 1:] - both[:, :, :1]) / self.alpha
        return slopes[:, 0], slopes[:, 1]


@dataclass(frozen=True)
class Derivative:
    """The field x ↦ (⟨e_k, ∇g(x)⟩)_k by differences of length α at points that the sampler moves by ηz, z
    fresh for each."""

    f: Field
    alpha: float
    eta: float

    def products(self, ends: FloatArray) -> FloatArray:
        """(k,) inner products of the differences at the rows of `ends` (2k, d), x₋ and x₊ in turn."""
        return reduced_around(self.f, ends, self.alpha, DifferenceProduct(ends.shape[1], self.alpha))


def derivative_factor(t: FloatArray, u: FloatArray, alpha: float) -> ComplexArray:
    """(k,) factor by which Σ_k u_k·(difference along e_k) multiplies a wave e^{itz} of a response along u;
    → it as α → 0."""
    return np.asarray(((np.exp(1j * alpha * np.outer(t, u)) - 1) / alpha) @ u)


def own_difference(sigma: Field, u: FloatArray, s: FloatArray, alpha: float) -> FloatArray:
    """(m, d) what the feature σ(u·x) contributes to `difference`, from s = u·x (m,)."""
    out = np.empty((len(s), len(u)))
    for lo in range(0, len(s), BLOCK):
        z = s[lo : lo + BLOCK]
        out[lo : lo + BLOCK] = (sigma(np.add.outer(z, alpha * u)) - sigma(z)[:, None]) / alpha
    return out
