"""Jacobian products without the Jacobian: two GEMMs and a spline gather.

At one (v, t, c) the change of f̂ under a change (Δc, δ, τ) of coefficients, directions and kink places is

    Φ Δc + (G ∘ X δᵀ) W − Σ_j τ_j sign(z − t_j) u_j

with G_mi = w_i·s_i'(z_mi). Φ has four entries a feature and row, so it is kept sparse; G, X and W are dense.
Constants and straight lines inside a spline are the same functions as the affine columns; they are projected out of
every spline's coefficients, which takes d + 1 useless large eigenvalues out of the conjugate-gradient iteration.

The preconditioner is one block for each feature, solved exactly, coefficients and direction together: with
A = Φ_iᵀΦ_i, E = Φ_iᵀJ_i, B = J_iᵀJ_i + λD

    [ A   E ] [c]   [a]         S = B − EᵀA⁻¹E,   δ = S⁻¹(b − EᵀA⁻¹a),   c = A⁻¹(a − Eδ)
    [ Eᵀ  B ] [δ] = [b]   =>
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from ..geometry import Floats, unit
from ..response import basis, greville
from . import threads
from .model import ROWS, Model

_SUBSET = 6000  # points that the preconditioner's blocks are averaged over
_CACHED = 2**18  # numbers of an (m, n) block that stay close to the processor
_STRIPS = 8  # of rows at the most, each with sums of its own in the memory
_LANES = 4  # columns that a processor multiplies at once: a sparse product with a multiple of them is faster


@dataclass(frozen=True, eq=False)
class Unknowns:
    """A point or a direction in the space of all unknowns."""

    c: Floats
    """(N, p)"""
    v: Floats
    """(n, d), tangent to the spheres"""
    t: Floats
    """(kinks,)"""

    def plus(self, a: float, other: Unknowns) -> Unknowns:
        return Unknowns(self.c + a * other.c, self.v + a * other.v, self.t + a * other.t)

    def dot(self, other: Unknowns) -> float:
        return float(np.vdot(self.c, other.c) + np.vdot(self.v, other.v) + np.vdot(self.t, other.t))


class Products:
    """Φ and J at one model, as operators on the given points.

    Small per-feature matrices are padded to one width W and kept as (n, W, ·) stacks, so that a loop over features is
    one batched product. Rows are taken in portions, each by one thread. With `single`, Φ and J are kept in single
    precision: half the memory to move, and exact enough for the matrix of an iteration that ends at two digits.
    """

    def __init__(self, model: Model, X: Floats, smooth: float, w: Floats, *, single: bool = False) -> None:
        self.model, self.X, self.w = model, X, w
        self.kind: type[np.floating[Any]] = np.float32 if single else np.float64
        self.strips = threads.portions(len(X), max(ROWS, -(-len(X) // _STRIPS)))
        self.Z = X @ model.directions.T
        self.phi: list[csr_array] = threads.every(
            lambda rows: _sparse_design(model, self.Z[rows], self.kind), self.strips
        )
        self.affine = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        self.ridge = 1e-11 * len(X)
        widths, W = model.widths, int(model.widths.max(initial=0))
        self.index = np.minimum(model.offsets[:-1, None] + np.arange(W), model.offsets[-1])  # the last row is padding
        self.inside = np.arange(W) < widths[:, None]
        self.lines = np.zeros((model.count, W, 2))
        self.rough = np.zeros((model.count, W, W))
        for i, K in enumerate(model.intervals):
            self.lines[i, : K + 3] = _affine_coefficients(model.radius, int(K))
            self.rough[i, : K + 3, : K + 3] = (smooth * len(X) * roughness_scale(int(K))) * _roughness(int(K))

    # -- the linear part -------------------------------------------------------------------------------------

    def stacked(self, c: Floats) -> Floats:
        """Feature coefficients (n, W, p), zero where a feature is narrower."""
        return np.where(self.inside[..., None], c[self.index], 0.0)

    def scatter(self, stack: Floats, affine: Floats) -> Floats:
        return np.concatenate([stack[self.inside], affine])

    def project(self, c: Floats) -> Floats:
        """Constants and straight lines taken out of every spline's coefficients."""
        stack = self.stacked(c)
        stack -= self.lines @ (self.lines.transpose(0, 2, 1) @ stack)
        return self.scatter(stack, c[self.model.offsets[-1] :])

    def values(self, c: Floats) -> Floats:
        """Φ c (m, p)."""
        split, p = int(self.model.offsets[-1]), c.shape[1]
        splines = self._padded(c[:split])
        out = np.empty((len(self.X), p))

        def strip(at: tuple[slice, csr_array]) -> None:
            rows, phi = at
            np.matmul(self.affine[rows], c[split:], out=out[rows])
            out[rows] += (phi @ splines)[:, :p]

        threads.each(strip, zip(self.strips, self.phi, strict=True))
        return out

    def adjoint(self, r: Floats) -> Floats:
        """Φᵀ r (N, p)."""
        padded = self._padded(r)
        parts = threads.every(lambda at: at[1].T @ padded[at[0]], zip(self.strips, self.phi, strict=True))
        splines = np.asarray(np.sum(parts, axis=0, dtype=np.float64))[:, : r.shape[1]]
        return np.concatenate([splines, self.affine.T @ r])

    def _padded(self, c: Floats) -> NDArray[Any]:
        """In the precision of Φ, with columns of zeros up to a multiple of what is multiplied at once."""
        p = c.shape[1]
        wide = p if p < _LANES else -(-p // _LANES) * _LANES
        out = np.zeros((len(c), wide), dtype=self.kind)
        out[:, :p] = c
        return out

    def penalty(self, c: Floats) -> Floats:
        """Gradient of half the roughness and ridge penalty at c."""
        split = self.model.offsets[-1]
        return self.ridge * c + self.scatter(self.rough @ self.stacked(c), np.zeros_like(c[split:]))

    def gram(self, c: Floats) -> Floats:
        """(ΦᵀΦ + penalty) c, within the projected space."""
        return self.project(self.adjoint(self.values(c)) + self.penalty(c))

    # -- the nonlinear part ----------------------------------------------------------------------------------

    def prepare_slopes(self) -> None:
        """G and the kinks' sign columns, needed by the products with J."""
        model = self.model
        self.G: NDArray[Any] = np.empty(self.Z.shape, dtype=self.kind)
        scalar = model.along(self.w)

        def slopes(rows: slice) -> None:
            for i in range(model.count):
                self.G[rows, i] = scalar.term_slope(i, self.Z[rows, i])[:, 0]

        threads.each(slopes, self.strips)
        owners = [i for i, t in enumerate(model.kinks) for _ in t]
        places = np.concatenate(model.kinks) if model.count else np.empty(0)
        self.signs = -np.sign(self.Z[:, owners] - places) if owners else np.empty((len(self.X), 0))
        jumps = [model.block(i)[model.intervals[i] + 3 :] for i in range(model.count)]
        self.u = np.concatenate(jumps) if model.count else np.empty((0, model.outputs))
        self._X, self._w = self.X.astype(self.kind, copy=False), self.w.astype(self.kind, copy=False)

    def turn(self, v: Floats) -> Floats:
        """J δ for the directions: (m, p)."""
        out = np.empty((len(self.X), self.w.shape[1]))
        v = v.astype(self.kind, copy=False)

        def strip(rows: slice) -> None:
            for near in self._nearby(rows):
                block = self._X[near] @ v.T
                block *= self.G[near]
                out[near] = block @ self._w

        threads.each(strip, self.strips)
        return out

    def move(self, q: Unknowns) -> Floats:
        """J δ for directions and kinks: (m, p)."""
        out = self.turn(q.v)
        return out + (self.signs * q.t) @ self.u if len(q.t) else out

    def pull(self, r: Floats) -> tuple[Floats, Floats]:
        """The transpose of `move`: for directions (n, d), for kinks."""
        single = r.astype(self.kind, copy=False)

        def strip(rows: slice) -> Floats:
            v = np.zeros(self.model.directions.shape)
            for near in self._nearby(rows):
                block = single[near] @ self._w.T
                block *= self.G[near]
                v += block.T @ self._X[near]
            return v

        v = np.sum(threads.every(strip, self.strips), axis=0)
        t = np.einsum("mj,mj->j", self.signs, r @ self.u.T) if len(self.u) else np.empty(0)
        return self.tangent(v), t

    def _nearby(self, rows: slice) -> list[slice]:
        """Rows in portions whose (rows, n) numbers stay close to the processor."""
        size = max(64, _CACHED // max(self.model.count, 1))
        return [
            slice(rows.start + c.start, rows.start + c.stop) for c in threads.portions(rows.stop - rows.start, size)
        ]

    def forward(self, q: Unknowns) -> Floats:
        """Φ Δc + J δ: (m, p)."""
        return self.values(q.c) + self.move(q)

    def backward(self, r: Floats) -> Unknowns:
        """The transpose of `forward`."""
        return Unknowns(self.project(self.adjoint(r)), *self.pull(r))

    def tangent(self, v: Floats) -> Floats:
        V = self.model.directions
        return np.asarray(v - np.einsum("nd,nd->n", v, V)[:, None] * V)

    def normal(self, q: Unknowns, damping: Unknowns) -> Unknowns:
        """(JᵀJ + penalties + damping) q."""
        out = self.backward(self.forward(q))
        return Unknowns(out.c + self.project(self.penalty(q.c)), out.v + damping.v * q.v, out.t + damping.t * q.t)

    def reduced(self, q: Unknowns, damping: Unknowns, factor: Floats) -> Unknowns:
        """(Jᵀ(1 − Φ A⁻¹ Φᵀ)J + damping) q with A = LLᵀ from its factor: coefficients follow every move at once."""
        moved = self.move(q)
        v, t = self.pull(moved - self.values(cho_solve((factor, True), self.adjoint(moved))))
        return Unknowns(q.c, v + damping.v * q.v, t + damping.t * q.t)

    def diagonal(self) -> tuple[Floats, Floats]:
        """Mean diagonal of JᵀJ for each direction (n, 1), and of each kink."""
        sizes = np.einsum("md,md->m", self.X, self.X)
        scale = np.einsum("mn,mn,m->n", self.G, self.G, sizes, dtype=np.float64) / self.model.dim
        kinks = float(len(self.X)) * np.sum(self.u**2, axis=1)
        return scale[:, None], kinks

    # -- the preconditioner ----------------------------------------------------------------------------------

    def blocks(self, damping: Unknowns | None) -> Callable[[Unknowns], Unknowns]:
        """An exact solve for each feature on its own (for coefficients alone without damping)."""
        model, m = self.model, len(self.X)
        rows = slice(0, m, max(1, m // _SUBSET))
        X, Z = self.X[rows], self.Z[rows]
        lift = m / len(X)
        n, W = self.inside.shape
        A_inverse, E, S_inverse = (
            np.zeros((n, W, W)),
            np.zeros((n, W, model.dim)),
            np.zeros((n, model.dim, model.dim)),
        )
        for i, width in enumerate(model.widths):
            phi = model.columns_of(i, Z[:, i])
            line = self.lines[i, :width]
            A = lift * (phi.T @ phi) + self.rough[i, :width, :width]
            typical = np.trace(A) / width
            A = _without(A, line) + typical * (line @ line.T)
            A[np.diag_indices_from(A)] += self.ridge + 1e-10 * typical
            A_inverse[i, :width, :width] = _without(np.linalg.inv(A), line)
            if damping is None:
                continue
            v = model.directions[i]
            tangent = self.G[rows, i][:, None] * (X - Z[:, i, None] * v)
            E[i, :width] = lift * (phi.T @ tangent)
            B = lift * (tangent.T @ tangent)
            typical = np.trace(B) / model.dim + 1e-300
            S = B + np.diag(damping.v[i]) - E[i, :width].T @ A_inverse[i, :width, :width] @ E[i, :width]
            S += typical * np.multiply.outer(v, v)
            S[np.diag_indices_from(S)] += 1e-10 * typical
            S_inverse[i] = np.linalg.inv(S)
        kinks = np.ones(0) if damping is None else np.maximum(self.diagonal()[1] + damping.t, 1e-300)
        affine = np.linalg.inv(self.affine.T @ self.affine + self.ridge * np.eye(1 + model.dim))

        def solve(q: Unknowns) -> Unknowns:
            c = A_inverse @ self.stacked(q.c)
            v = q.v
            if damping is not None:
                inner = np.einsum("nkp,np->nk", c, self.w)
                v = np.einsum("nde,ne->nd", S_inverse, q.v - np.einsum("nkd,nk->nd", E, inner))
                back = np.einsum("nkl,nld,nd->nk", A_inverse, E, v, optimize=True)
                c = c - back[:, :, None] * self.w[:, None, :]
                v = self.tangent(v)
            return Unknowns(self.scatter(c, affine @ q.c[model.offsets[-1] :]), v, q.t / kinks if len(q.t) else q.t)

        return solve


def conjugate_gradient(
    apply: Callable[[Unknowns], Unknowns],
    precondition: Callable[[Unknowns], Unknowns],
    right: Unknowns,
    *,
    tolerance: float,
    most: int,
) -> Unknowns:
    """Preconditioned CG from zero; the residual is measured in the preconditioner's norm."""
    zero = Unknowns(np.zeros_like(right.c), np.zeros_like(right.v), np.zeros_like(right.t))
    x, r = zero, right
    y = precondition(r)
    p, rho = y, r.dot(y)
    first = rho
    for _ in range(most):
        if rho <= tolerance**2 * first or rho <= 0:
            break
        Ap = apply(p)
        curvature = p.dot(Ap)
        if curvature <= 0:
            break
        alpha = rho / curvature
        x, r = x.plus(alpha, p), r.plus(-alpha, Ap)
        y = precondition(r)
        rho, old = r.dot(y), rho
        p = y.plus(rho / old, p)
    return x


def step_model(model: Model, q: Unknowns) -> Model:
    """The model moved by q; a direction turns by at most half a radian, a kink stays in [−R, R]."""
    length = np.linalg.norm(q.v, axis=1, keepdims=True)
    turn = q.v * np.minimum(1.0, 0.5 / np.maximum(length, 1e-300))
    kinks, at = [], 0
    for t in model.kinks:
        kinks.append(np.clip(t + q.t[at : at + len(t)], -model.radius, model.radius))
        at += len(t)
    coefficients = model.coefficients + q.c
    return replace(model, directions=unit(model.directions + turn), kinks=tuple(kinks), coefficients=coefficients)


def _sparse_design(model: Model, Z: Floats, kind: type[np.floating[Any]]) -> csr_array:
    """The spline and kink columns of Φ, without the affine ones."""
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
    """∫s''² is Σ(second difference)²/h³: the factor that keeps the penalty the same on finer knots."""
    return (intervals / 16.0) ** 3


def _affine_coefficients(radius: float, K: int) -> Floats:
    """(K+3, 2) orthonormal columns spanning the coefficients of 1 and z."""
    return np.asarray(np.linalg.qr(np.stack([np.ones(K + 3), greville(radius, K)], axis=1))[0])


def _rough(c: Floats) -> Floats:
    """D₂ᵀD₂ c, D₂ the second difference."""
    second = c[:-2] - 2.0 * c[1:-1] + c[2:]
    out = np.zeros_like(c)
    out[:-2] += second
    out[1:-1] -= 2.0 * second
    out[2:] += second
    return out


def _roughness(K: int) -> Floats:
    return _rough(np.eye(K + 3))


def _without(A: Floats, line: Floats) -> Floats:
    """P A P with P = 1 − line lineᵀ."""
    A = A - line @ (line.T @ A)
    return np.asarray(A - (A @ line) @ line.T)
