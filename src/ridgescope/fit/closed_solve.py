"""The linear half of closed forms: the best output vectors, splines and affine part for given directions, κ and b.

The p-vectors c and the affine part solve a linear least-squares problem with one column per closed form and K + 3 per
spline. The affine functions are projected out of everything once, so that the columns left are those that bend; these
are normalised. With S the columns of splines, C those of closed forms, and M the roughness of the splines, the normal
matrix and its Cholesky factor are

    A = ( SᵀS + M   SᵀC )        L = ( L_S   0  )        L_Sᵀ-block:  X = L_S⁻¹ SᵀC,    L_C L_Cᵀ = CᵀC − XᵀX
        ( CᵀS       CᵀC )            ( Xᵀ   L_C )

Steps along fixed directions leave S as it is: its factor is kept (`SplineColumns`), and a step only borders it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, solve_triangular

from ..deadline import spend
from ..geometry import Floats
from . import threads
from .activations import SPLINE, Indices
from .closed_form import ClosedForms
from .jacobian import roughness_scale
from .linear import MEDIUM_SMOOTHING
from .model import TINY

_RIDGE = 1e-14  # of a normalised column: rounding errors of the normal equations
_RIDGE_GROWTH, _RIDGE_TRIES = 100.0, 6  # factor by which it grows if Cholesky fails, and how often
_REFINEMENTS = 2  # of the linear solution, since normal equations lose half the digits
_FEW_KEPT = 0.5  # share of splines that were there before, up to which all of SᵀS is summed at half of the arithmetic
_STRAIGHT = 1e-10  # of a column's norm: what is left without its affine part, if it bends at all


class Data:
    """Points and answers with the affine functions projected out."""

    @threads.one_blas_thread()
    def __init__(self, X: Floats, Y: Floats) -> None:
        self.X = X
        self.flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        self.Q, self.R = np.linalg.qr(self.flat)
        self.straight = self.Q.T @ Y
        self.Y = Y - self.Q @ self.straight

    def bend(self, columns: Floats) -> Floats:
        """Return columns (m, N) without their affine parts."""
        straight, bent = threads.inner(self.Q, columns), np.empty_like(columns)

        def strip(rows: slice) -> None:
            np.subtract(columns[rows], self.Q[rows] @ straight, out=bent[rows])

        threads.parallel_map(strip, threads.strips(*columns.shape))
        return bent


@dataclass(frozen=True, eq=False)
class Columns:
    """Normalised columns without their affine parts."""

    bent: Floats
    """(m, N)."""
    scale: Floats
    """(N,) norms that the columns were divided by; infinite for a column that does not bend."""
    straight: Floats
    """(d + 1, N) the affine parts of the columns before they were normalised, in the basis `Data.Q`."""

    @classmethod
    def of(cls, values: Floats, data: Data) -> Columns:
        straight, bent = threads.inner(data.Q, values), np.empty_like(values)
        rows = threads.strips(*values.shape)

        def bend(r: slice) -> Floats:
            np.subtract(values[r], data.Q[r] @ straight, out=bent[r])
            return np.asarray(np.einsum("mk,mk->k", bent[r], bent[r]))

        def divide(r: slice) -> None:
            bent[r] /= scale

        size = np.sqrt(threads.summed(bend, rows))
        whole = np.sqrt(size**2 + np.einsum("qk,qk->k", straight, straight))
        scale = np.where(size <= _STRAIGHT * whole + TINY, np.inf, size)
        threads.parallel_map(divide, rows)
        return cls(bent, scale, straight)


@dataclass(frozen=True, eq=False)
class SplineColumns:
    """The columns of splines along their directions, and the factor of their normal equations."""

    directions: Floats
    """(s, d)."""
    intervals: int
    data: Data
    columns: Columns
    gram: Floats
    """SᵀS."""
    rough: Floats
    """The penalty M, for normalised columns."""
    factor: Floats
    """L_S."""

    @classmethod
    def of(cls, forms: ClosedForms, data: Data, near: SplineColumns | None = None) -> SplineColumns:
        """Make the columns of the forms that are splines; what they share with those of `near` is not summed again."""
        directions = forms.directions[forms.family == SPLINE]
        columns = Columns.of(forms.spline_columns(data.X), data)
        rough = _roughness(len(directions), forms.intervals, len(data.X)) / columns.scale[:, None] / columns.scale
        usable = near if near is not None and near.data is data and near.intervals == forms.intervals else None
        gram = _gram(directions, columns.bent, usable)
        spend(len(rough) ** 3 / 3)
        return cls(directions, forms.intervals, data, columns, gram, rough, _factor(gram + rough))

    def are_those_of(self, forms: ClosedForms, data: Data) -> bool:
        """Return whether these are the columns of the splines among the forms."""
        same = self.data is data and self.intervals == forms.intervals
        return same and np.array_equal(self.directions, forms.directions[forms.family == SPLINE])


@dataclass(frozen=True, eq=False)
class Solved:
    """Closed forms with the best linear part for some data, and what a step from there needs.

    Columns are in the order of the equations: those of splines first, then those of closed forms.
    """

    forms: ClosedForms
    data: Data
    splines: SplineColumns
    atoms: Columns
    """Of the closed forms."""
    atom_slopes: Floats
    """(m, k) φ' of the closed forms."""
    factor: Floats
    """Lower Cholesky factor L of the normal equations."""
    residual: Floats
    cost: float

    @classmethod
    @threads.one_blas_thread()
    def of(cls, forms: ClosedForms, data: Data, near: Solved | None = None) -> Solved:
        """Solve for the output vectors and the affine part; the factor of splines that are those `near` is reused."""
        known = near is not None and near.splines.are_those_of(forms, data)
        before = near.splines if near is not None else None
        splines = before if known and before is not None else SplineColumns.of(forms, data, before)
        values, slopes = forms.atoms(data.X)
        atoms = Columns.of(values, data)
        S, C = splines.columns.bent, atoms.bent
        spend(C.size * (S.shape[1] + C.shape[1] / 2) + S.shape[1] ** 2 * C.shape[1])
        factor = _bordered(splines.factor, threads.inner(S, C), threads.gram(C))

        def solve(right: Floats) -> Floats:
            return np.asarray(cho_solve((factor, True), right, check_finite=False))

        k, p = S.shape[1], data.Y.shape[1]
        c = solve(np.concatenate([threads.inner(S, data.Y), threads.inner(C, data.Y)]))
        residual, more = data.Y.copy(), c

        def strip(rows: slice) -> Floats:
            """Subtract what the coefficients `more` give, and return the columns' inner products with the residual."""
            onto = np.zeros(c.shape)
            for r in threads.cached(rows, len(c)):
                residual[r] -= S[r] @ more[:k] + C[r] @ more[k:]
                onto[:k] += S[r].T @ residual[r]
                onto[k:] += C[r].T @ residual[r]
            return onto

        for _ in range(_REFINEMENTS):
            onto = threads.summed(strip, threads.strips(len(residual), len(c) + p))
            onto[:k] -= splines.rough @ c[:k]
            more = solve(onto)
            c = c + more
        residual -= threads.outer(S, more[:k]) + threads.outer(C, more[k:])
        c[:k] /= splines.columns.scale[:, None]
        c[k:] /= atoms.scale[:, None]
        straight = splines.columns.straight @ c[:k] + atoms.straight @ c[k:]
        coefficients = np.empty((len(c) + data.flat.shape[1], data.Y.shape[1]))
        coefficients[forms.spline_rows], coefficients[forms.offsets[forms.closed]] = c[:k], c[k:]
        coefficients[len(c) :] = np.linalg.solve(data.R, data.straight - straight)
        forms = replace(forms, coefficients=coefficients)
        cost = float(np.vdot(residual, residual))
        return cls(forms, data, splines, atoms, slopes, factor, residual, cost)

    @cached_property
    def scale(self) -> Floats:
        """(N,) norms that the columns were divided by."""
        return np.concatenate([self.splines.columns.scale, self.atoms.scale])

    @cached_property
    def place(self) -> Indices:
        """(N,) where in the equations each row of the forms' coefficients is."""
        rows = np.concatenate([self.forms.spline_rows, self.forms.offsets[self.forms.closed]])
        return np.argsort(rows)

    @cached_property
    def slopes(self) -> Floats:
        """(m, n) φ' of all features; of a spline, the slope of its leading component."""
        if len(self.forms.closed) == self.forms.count:
            return self.atom_slopes
        slopes = np.empty((len(self.data.X), self.forms.count))
        slopes[:, self.forms.closed] = self.atom_slopes
        for i in np.flatnonzero(self.forms.family == SPLINE):
            slopes[:, i] = self.forms.spline_slope(int(i), self.data.X)
        return slopes

    @property
    def parts(self) -> list[Floats]:
        """All columns: the orthonormal affine ones, those of splines if there are any, those of closed forms."""
        parts = (self.data.Q, self.splines.columns.bent, self.atoms.bent)
        return [part for part in parts if part.shape[1]]

    def onto(self, columns: Floats) -> Floats:
        """Return (N, q) the inner products of the equations' columns with these (m, q)."""
        return np.concatenate([threads.inner(B, columns) for B in (self.splines.columns.bent, self.atoms.bent)])

    def follow(self, onto: Floats) -> Floats:
        """Return (N, q) the combinations of columns that are closest to some whose inner products are `onto`."""
        return np.asarray(cho_solve((self.factor, True), onto, check_finite=False))

    def project(self, columns: Floats) -> Floats:
        """Return columns (m, q) without what the linear unknowns follow."""
        follow = self.follow(self.onto(columns))
        k, straight, out = len(self.splines.factor), threads.inner(self.data.Q, columns), np.empty_like(columns)
        S, C = self.splines.columns.bent, self.atoms.bent

        def strip(rows: slice) -> None:
            out[rows] = columns[rows] - self.data.Q[rows] @ straight - S[rows] @ follow[:k] - C[rows] @ follow[k:]

        threads.parallel_map(strip, threads.strips(*columns.shape))
        return out

    def projected_products(self, columns: Floats, onto: Floats, follow: Floats) -> Floats:
        """Return PᵀP (q, q) for P the projected columns, from their inner products, without forming P."""
        return self.less_followed(threads.gram(columns), threads.inner(self.data.Q, columns), onto, follow)

    def less_followed(self, own: Floats, straight: Floats, onto: Floats, follow: Floats) -> Floats:
        """Return the same from the columns' products with each other, with affine functions and with the equations'."""
        k = len(self.splines.factor)
        products = own - straight.T @ straight - threads.inner(follow, onto)
        return np.asarray(products - threads.inner(follow[:k], self.splines.rough @ follow[:k]))

    def gradient(self) -> Floats:
        """Return (n, d + 1) the derivative of half the cost by −b_i and −w_i."""
        flat, c = self.data.flat, self.forms.outputs

        def strip(rows: slice) -> Floats:
            w = np.zeros((len(c), flat.shape[1]))
            for r in threads.cached(rows, len(c)):
                w += ((self.residual[r] @ c.T) * self.slopes[r]).T @ flat[r]
            return w

        return np.asarray(threads.summed(strip, threads.strips(len(flat), len(c))))

    def half_inverse(self, rows: Indices) -> Floats:
        """Return H (N, k), HᵀH the block of the inverse normal matrix at these rows of the coefficients."""
        unit = np.zeros((len(self.factor), len(rows)))
        unit[self.place[rows], np.arange(len(rows))] = 1.0
        return np.asarray(solve_triangular(self.factor, unit, lower=True, check_finite=False))

    def column_variances(self) -> Floats:
        """Return (n_c,) the variance of an output vector's entry, for answers of variance one."""
        half = self.half_inverse(self.forms.offsets[self.forms.closed])
        scale = np.where(np.isinf(self.atoms.scale), 0.0, self.atoms.scale)
        return np.asarray(np.einsum("kj,kj->j", half, half) / np.maximum(scale**2, TINY))

    def removal_costs(self) -> Floats:
        """Return (n,) the rise of the cost without each feature, per column that it has."""
        costs, closed = np.empty(self.forms.count), self.forms.closed
        costs[closed] = np.sum(self.forms.outputs[closed] ** 2, axis=1) / self.column_variances()
        for i in np.flatnonzero(self.forms.family == SPLINE):
            rows = np.arange(self.forms.offsets[i], self.forms.offsets[i + 1])
            half, scale = self.half_inverse(rows), self.scale[self.place[rows]]
            c = self.forms.block(int(i)) * np.where(np.isinf(scale), 0.0, scale)[:, None]
            costs[i] = float(np.sum(c * np.linalg.lstsq(half.T @ half, c, rcond=None)[0])) / len(rows)
        return costs


def _gram(directions: Floats, bent: Floats, near: SplineColumns | None) -> Floats:
    """Return SᵀS of the columns (m, N) along these directions; what two splines have in `near` is taken from there."""
    places = {v.tobytes(): k for k, v in enumerate(near.directions)} if near is not None else {}
    before = np.array([places.get(v.tobytes(), -1) for v in directions], dtype=np.intp)
    kept, N = before >= 0, bent.shape[1]
    if near is None or kept.sum() <= _FEW_KEPT * len(kept):
        spend(bent.size * N / 2)
        return threads.gram(bent)
    width = N // len(kept)
    new, old = (np.flatnonzero(np.repeat(which, width)) for which in (~kept, kept))
    same = (before[kept][:, None] * width + np.arange(width)).ravel()
    spend(bent.size * len(new))
    gram = np.empty((N, N))
    gram[np.ix_(old, old)] = near.gram[np.ix_(same, same)]
    gram[:, new] = threads.inner(bent, bent[:, new])
    gram[new] = gram[:, new].T
    return gram


def _roughness(splines: int, intervals: int, count: int) -> Floats:
    """Return the penalty for bends of splines, far below the weight of `count` points where there are any."""
    second = np.diff(np.eye(intervals + 3), n=2, axis=0)
    block = (MEDIUM_SMOOTHING * count * roughness_scale(intervals)) * (second.T @ second)
    return np.asarray(np.kron(np.eye(splines), block), dtype=np.float64)


def _bordered(factor: Floats, cross: Floats, gram: Floats) -> Floats:
    """Return the Cholesky factor of a matrix, given that of its first block and its other blocks."""
    k, N = len(factor), len(factor) + len(gram)
    whole = np.zeros((N, N), order="F")
    whole[:k, :k] = factor
    border = solve_triangular(factor, cross, lower=True, check_finite=False) if k else cross
    whole[k:, :k] = border.T
    whole[k:, k:] = _factor(gram - border.T @ border)
    return whole


def _factor(gram: Floats) -> Floats:
    """Return the Cholesky factor of a normalised Gram matrix with the least ridge that makes it positive."""
    ridge, diagonal = _RIDGE * len(gram), np.arange(len(gram))
    for _ in range(_RIDGE_TRIES):
        trial = gram.copy(order="F")
        trial[diagonal, diagonal] += ridge + (trial[diagonal, diagonal] == 0.0)
        try:
            return threads.cholesky(trial)
        except LinAlgError:
            ridge *= _RIDGE_GROWTH
    raise LinAlgError("the columns of closed forms are not finite")
