"""Products with the design matrix and the Jacobian, without forming either: two GEMMs and a sparse product.

At one (v, t, c) the change of f̂ under a change (Δc, δ, τ) of coefficients, directions and kink positions is

    Φ Δc + (G ∘ X δᵀ) W − Σ_j τ_j sign(z − t_j) u_j

with G_mi = w_i·s_i'(z_mi). Φ has four entries for each feature and row, so it is kept sparse; G, X and W are dense.
Constants and straight lines inside a spline are the same functions as the affine columns; they are projected out of
every spline's coefficients, which removes d + 1 large eigenvalues from the conjugate-gradient iteration.

The preconditioner is one block for each feature, solved exactly, coefficients and direction together: with
A = Φ_iᵀΦ_i, E = Φ_iᵀJ_i, B = J_iᵀJ_i + λD

    [ A   E ] [c]   [a]         S = B − EᵀA⁻¹E,   δ = S⁻¹(b − EᵀA⁻¹a),   c = A⁻¹(a − Eδ)
    [ Eᵀ  B ] [δ] = [b]   =>
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from ..bspline import basis, greville
from ..geometry import Floats, unit
from . import threads
from .model import ROWS, TINY, Model

RIDGE = 1e-11
"""μ for each point, relative to the mean square of a column: selects the smallest coefficients if the data leave a
choice, and is far below the effect of noise or rounding on the others.
"""
ROUGHNESS_INTERVALS = 16
"""Intervals at which `roughness_scale` is 1."""
MAX_TURN = 0.5
"""Largest angle in radians by which a direction turns in one step: beyond it the linearisation is useless."""
_BLOCK_POINTS = 6000  # points that the preconditioner's blocks are averaged over; errors of a few percent do no harm
_BLOCK_RIDGE = 1e-10  # relative: keeps a block regular in the directions projected out of it
_STRIPS = 8  # most strips of rows, each with partial sums of its own in memory
_LANES = 4  # columns that a processor multiplies at once: a sparse product with a multiple of them is faster
_SLOPE_GRID = 65  # points at which a response's slope is evaluated for its output direction


@dataclass(frozen=True, eq=False)
class Unknowns:
    """A point or a vector in the space of all unknowns; parts that are absent are empty."""

    c: Floats
    """(N, p) coefficients."""
    v: Floats = field(default_factory=lambda: np.empty(0))
    """(n, d) directions, tangent to the spheres."""
    t: Floats = field(default_factory=lambda: np.empty(0))
    """(kinks,) kink positions."""

    def plus(self, a: float, other: Unknowns) -> Unknowns:
        """Return self + a·other."""
        return Unknowns(self.c + a * other.c, self.v + a * other.v, self.t + a * other.t)

    def dot(self, other: Unknowns) -> float:
        """Return the inner product."""
        return float(np.vdot(self.c, other.c) + np.vdot(self.v, other.v) + np.vdot(self.t, other.t))

    @classmethod
    def of_nonlinear(cls, model: Model, vector: Floats) -> Unknowns:
        """Return the unknowns of a vector (n·d + kinks,) of direction and kink entries, with zero coefficients."""
        n, d = model.directions.shape
        return cls(np.zeros_like(model.coefficients), vector[: n * d].reshape(n, d), vector[n * d :])


class Damping(NamedTuple):
    """Levenberg–Marquardt damping of directions and kinks."""

    v: Floats
    """(n, 1) damping of each direction."""
    t: Floats
    """(kinks,) damping of each kink."""


class Design:
    """Φ at one model as an operator on the given points, with the penalty of its coefficients.

    Small per-feature matrices are padded to one width W and kept as (n, W, ·) stacks, so that a loop over features is
    one batched product. Rows are processed in strips, each by one thread. With `single`, Φ is kept in single precision:
    half the memory traffic, and exact enough for the matrix of an iteration that ends at two digits.
    """

    def __init__(self, model: Model, X: Floats, smoothing: float, *, single: bool = False) -> None:
        self.model, self.X = model, X
        self.kind: type[np.floating[Any]] = np.float32 if single else np.float64
        self.strips = threads.portions(len(X), max(ROWS, -(-len(X) // _STRIPS)))
        self.Z = X @ model.directions.T
        self.phi: list[csr_array] = threads.parallel_map(
            lambda rows: _sparse_design(model, self.Z[rows], self.kind), self.strips
        )
        self.affine = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        self.ridge = RIDGE * len(X)
        widths, W = model.widths, int(model.widths.max(initial=0))
        self.index = np.minimum(model.offsets[:-1, None] + np.arange(W), model.offsets[-1])  # padding reads a later row
        self.inside = np.arange(W) < widths[:, None]
        self.lines = np.zeros((model.count, W, 2))
        self.rough = np.zeros((model.count, W, W))
        for i, K in enumerate(model.intervals):
            self.lines[i, : K + 3] = affine_coefficients(model.radius, int(K))
            self.rough[i, : K + 3, : K + 3] = (smoothing * len(X) * roughness_scale(int(K))) * _roughness(int(K))

    def stacked(self, c: Floats) -> Floats:
        """Return the features' coefficients as (n, W, p), padded with zeros."""
        return np.where(self.inside[..., None], c[self.index], 0.0)

    def unstacked(self, stack: Floats, affine: Floats) -> Floats:
        """Return the coefficients (N, p) of a stack with the affine rows appended, the inverse of `stacked`."""
        return np.concatenate([stack[self.inside], affine])

    def project(self, c: Floats) -> Floats:
        """Remove constants and straight lines from every spline's coefficients c (N, p)."""
        stack = self.stacked(c)
        stack -= self.lines @ (self.lines.transpose(0, 2, 1) @ stack)
        return self.unstacked(stack, c[self.model.offsets[-1] :])

    def values(self, c: Floats) -> Floats:
        """Return Φ c (m, p)."""
        split, p = int(self.model.offsets[-1]), c.shape[1]
        splines = self._padded(c[:split])
        out = np.empty((len(self.X), p))

        def strip(at: tuple[slice, csr_array]) -> None:
            rows, phi = at
            np.matmul(self.affine[rows], c[split:], out=out[rows])
            out[rows] += (phi @ splines)[:, :p]

        threads.parallel_map(strip, zip(self.strips, self.phi, strict=True))
        return out

    def adjoint(self, r: Floats) -> Floats:
        """Return Φᵀ r (N, p)."""
        padded = self._padded(r)
        parts = threads.parallel_map(lambda at: at[1].T @ padded[at[0]], zip(self.strips, self.phi, strict=True))
        splines = np.asarray(np.sum(parts, axis=0, dtype=np.float64))[:, : r.shape[1]]
        return np.concatenate([splines, self.affine.T @ r])

    def _padded(self, c: Floats) -> NDArray[Any]:
        """Return c in the precision of Φ, with columns of zeros up to a multiple of `_LANES`."""
        p = c.shape[1]
        wide = p if p < _LANES else -(-p // _LANES) * _LANES
        out = np.zeros((len(c), wide), dtype=self.kind)
        out[:, :p] = c
        return out

    def penalty(self, c: Floats) -> Floats:
        """Return the gradient (N, p) at c of half the roughness and ridge penalty."""
        split = self.model.offsets[-1]
        return self.ridge * c + self.unstacked(self.rough @ self.stacked(c), np.zeros_like(c[split:]))


class Jacobian(Design):
    """Φ and the derivatives of f̂ by directions and kink positions, as operators on the given points."""

    def __init__(self, model: Model, X: Floats, smoothing: float, *, single: bool = False) -> None:
        super().__init__(model, X, smoothing, single=single)
        self.w = output_vectors(model)
        self.G: NDArray[Any] = np.empty(self.Z.shape, dtype=self.kind)
        scalar = model.along(self.w)

        def slopes(rows: slice) -> None:
            for i in range(model.count):
                self.G[rows, i] = scalar.term_slope(i, self.Z[rows, i])[:, 0]

        threads.parallel_map(slopes, self.strips)
        owners = [i for i, t in enumerate(model.kinks) for _ in t]
        places = np.concatenate(model.kinks) if model.count else np.empty(0)
        self.signs = -np.sign(self.Z[:, owners] - places) if owners else np.empty((len(X), 0))
        jumps = [model.block(i)[model.intervals[i] + 3 :] for i in range(model.count)]
        self.u = np.concatenate(jumps) if model.count else np.empty((0, model.outputs))
        self._X, self._w = X.astype(self.kind, copy=False), self.w.astype(self.kind, copy=False)

    def turn(self, v: Floats) -> Floats:
        """Return the change (m, p) of f̂ for changes v (n, d) of the directions."""
        out = np.empty((len(self.X), self.w.shape[1]))
        v = v.astype(self.kind, copy=False)

        def strip(rows: slice) -> None:
            for near in threads.cached(rows, self.model.count):
                block = self._X[near] @ v.T
                block *= self.G[near]
                out[near] = block @ self._w

        threads.parallel_map(strip, self.strips)
        return out

    def move(self, q: Unknowns) -> Floats:
        """Return the change (m, p) of f̂ for changes of directions and kinks."""
        out = self.turn(q.v)
        return out + (self.signs * q.t) @ self.u if len(q.t) else out

    def pull(self, r: Floats) -> tuple[Floats, Floats]:
        """Apply the transpose of `move` to r (m, p): return the parts for directions (n, d) and for kinks."""
        single = r.astype(self.kind, copy=False)

        def strip(rows: slice) -> Floats:
            v = np.zeros(self.model.directions.shape)
            for near in threads.cached(rows, self.model.count):
                block = single[near] @ self._w.T
                block *= self.G[near]
                v += block.T @ self._X[near]
            return v

        v = np.sum(threads.parallel_map(strip, self.strips), axis=0)
        t = np.einsum("mj,mj->j", self.signs, r @ self.u.T) if len(self.u) else np.empty(0)
        return self.tangent(v), t

    def forward(self, q: Unknowns) -> Floats:
        """Return Φ Δc + J δ (m, p)."""
        return self.values(q.c) + self.move(q)

    def backward(self, r: Floats) -> Unknowns:
        """Apply the transpose of `forward` to r (m, p)."""
        return Unknowns(self.project(self.adjoint(r)), *self.pull(r))

    def tangent(self, v: Floats) -> Floats:
        """Return the rows of v (n, d) without their components along the directions."""
        V = self.model.directions
        return np.asarray(v - np.einsum("nd,nd->n", v, V)[:, None] * V)

    def normal(self, q: Unknowns, damping: Damping) -> Unknowns:
        """Return (JᵀJ + penalties + damping) q."""
        out = self.backward(self.forward(q))
        return Unknowns(out.c + self.project(self.penalty(q.c)), out.v + damping.v * q.v, out.t + damping.t * q.t)

    def reduced(self, q: Unknowns, damping: Damping, factor: Floats) -> Unknowns:
        """Return (Jᵀ(1 − Φ A⁻¹ Φᵀ)J + damping) q, A = LLᵀ given by its factor: coefficients are eliminated."""
        moved = self.move(q)
        v, t = self.pull(moved - self.values(cho_solve((factor, True), self.adjoint(moved))))
        return Unknowns(q.c, v + damping.v * q.v, t + damping.t * q.t)

    def diagonal(self) -> Damping:
        """Return the mean diagonal of JᵀJ for each direction (n, 1) and for each kink, the scale of a damping."""
        sizes = np.einsum("md,md->m", self.X, self.X)
        scale = np.einsum("mn,mn,m->n", self.G, self.G, sizes, dtype=np.float64) / self.model.dim
        return Damping(scale[:, None], float(len(self.X)) * np.sum(self.u**2, axis=1))

    def preconditioner(self, damping: Damping) -> Callable[[Unknowns], Unknowns]:
        """Return an exact solver for each feature on its own, by the formulas at the top."""
        model = self.model
        A_inverse, E, S_inverse = self._blocks(damping)
        kinks = np.maximum(self.diagonal().t + damping.t, TINY)
        affine = np.linalg.inv(self.affine.T @ self.affine + self.ridge * np.eye(1 + model.dim))

        def solve(q: Unknowns) -> Unknowns:
            c = A_inverse @ self.stacked(q.c)
            inner = np.einsum("nkp,np->nk", c, self.w)
            v = np.einsum("nde,ne->nd", S_inverse, q.v - np.einsum("nkd,nk->nd", E, inner))
            back = np.einsum("nkl,nld,nd->nk", A_inverse, E, v, optimize=True)
            c = c - back[:, :, None] * self.w[:, None, :]
            rows = self.unstacked(c, affine @ q.c[model.offsets[-1] :])
            return Unknowns(rows, self.tangent(v), q.t / kinks if len(q.t) else q.t)

        return solve

    def _blocks(self, damping: Damping) -> tuple[Floats, Floats, Floats]:
        """Return A⁻¹ (n, W, W), E (n, W, d) and S⁻¹ (n, d, d) of every feature, averaged over some of the points."""
        model, m = self.model, len(self.X)
        rows = slice(0, m, max(1, m // _BLOCK_POINTS))
        X, Z = self.X[rows], self.Z[rows]
        lift = m / len(X)
        n, W = self.inside.shape
        d = model.dim
        A_inverse, E, S_inverse = np.zeros((n, W, W)), np.zeros((n, W, d)), np.zeros((n, d, d))
        for i, width in enumerate(model.widths):
            phi = model.columns_of(i, Z[:, i])
            line = self.lines[i, :width]
            A = lift * (phi.T @ phi) + self.rough[i, :width, :width]
            typical = np.trace(A) / width
            A = _without(A, line) + typical * (line @ line.T)
            A[np.diag_indices_from(A)] += self.ridge + _BLOCK_RIDGE * typical
            A_inverse[i, :width, :width] = _without(np.linalg.inv(A), line)
            v = model.directions[i]
            tangent = self.G[rows, i][:, None] * (X - Z[:, i, None] * v)
            E[i, :width] = lift * (phi.T @ tangent)
            B = lift * (tangent.T @ tangent)
            typical = np.trace(B) / d + TINY
            S = B + np.diag(np.full(d, damping.v[i])) - E[i, :width].T @ A_inverse[i, :width, :width] @ E[i, :width]
            S += typical * np.multiply.outer(v, v)
            S[np.diag_indices_from(S)] += _BLOCK_RIDGE * typical
            S_inverse[i] = np.linalg.inv(S)
        return A_inverse, E, S_inverse


def output_vectors(model: Model) -> Floats:
    """Return (n, p) unit rows: the output direction that carries most of each response's slope."""
    if model.outputs == 1:
        return np.ones((model.count, 1))
    z = np.linspace(-model.radius, model.radius, _SLOPE_GRID)
    w = np.empty((model.count, model.outputs))
    for i in range(model.count):
        w[i] = np.linalg.svd(model.term_slope(i, z), full_matrices=False)[2][0]
    return w


def step_model(model: Model, q: Unknowns) -> Model:
    """Return the model moved by q; a direction turns by at most `MAX_TURN`, a kink stays in [−R, R]."""
    length = np.linalg.norm(q.v, axis=1, keepdims=True)
    turn = q.v * np.minimum(1.0, MAX_TURN / np.maximum(length, TINY))
    kinks, at = [], 0
    for t in model.kinks:
        kinks.append(np.clip(t + q.t[at : at + len(t)], -model.radius, model.radius))
        at += len(t)
    coefficients = model.coefficients + q.c
    return replace(model, directions=unit(model.directions + turn), kinks=tuple(kinks), coefficients=coefficients)


def _sparse_design(model: Model, Z: Floats, kind: type[np.floating[Any]]) -> csr_array:
    """Return the spline and kink columns of Φ at Z (m, n), without the affine ones."""
    m, n = Z.shape
    extra = np.array([len(t) for t in model.kinks], dtype=np.intp)
    width = 4 * n + int(extra.sum())
    columns = np.empty((m, width), dtype=np.int32)
    data = np.empty((m, width), dtype=kind)
    at = 0
    for i in range(n):
        k, weights = basis(Z[:, i], model.radius, int(model.intervals[i]))
        start = model.offsets[i]
        columns[:, at : at + 4] = (start + k)[:, None] + np.arange(4)
        data[:, at : at + 4] = weights.T
        at += 4
        if extra[i]:
            columns[:, at : at + extra[i]] = start + model.intervals[i] + 3 + np.arange(extra[i])
            data[:, at : at + extra[i]] = np.abs(Z[:, i, None] - model.kinks[i])
            at += extra[i]
    pointers = np.arange(m + 1, dtype=np.int32 if m * width < 2**31 else np.int64) * width
    return csr_array((data.ravel(), columns.ravel(), pointers), shape=(m, int(model.offsets[-1])))


def roughness_scale(intervals: int) -> float:
    """Return the factor that keeps the penalty the same on finer knots, as ∫s''² is Σ(second difference)²/h³."""
    return (intervals / ROUGHNESS_INTERVALS) ** 3


def affine_coefficients(radius: float, K: int) -> Floats:
    """Return (K+3, 2) orthonormal columns that span the coefficients of 1 and z."""
    return np.asarray(np.linalg.qr(np.stack([np.ones(K + 3), greville(radius, K)], axis=1))[0])


def _roughness(K: int) -> Floats:
    """Return D₂ᵀD₂ (K+3, K+3), D₂ the second difference."""
    second = np.diff(np.eye(K + 3), n=2, axis=0)
    return np.asarray(second.T @ second)


def _without(A: Floats, line: Floats) -> Floats:
    """Return P A P with P = 1 − line lineᵀ."""
    A = A - line @ (line.T @ A)
    return np.asarray(A - (A @ line) @ line.T)
