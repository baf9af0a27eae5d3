"""Features of known form: f̂(x) = a₀ + a·x + Σ_i φ_i(w_i·x + b_i) c_i, with the best linear part for given (w, b).

For given (w, b) the p-vectors c and the affine part solve a linear least-squares problem with one column per feature.
The affine functions are projected out of everything once, so that the columns left are those that bend.

A feature without a closed form keeps a spline, K + 3 linear columns with p-vectors of their own, along its direction.
In a step of its direction it counts as a form of κ = 1 and b = 0 whose φ is its leading component over the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, solve_triangular

from ..bspline import basis_slope, combine, design_matrix
from ..deadline import spend
from ..geometry import Floats
from . import threads
from .activations import ACTIVATIONS, SPLINE, Indices, as_spline
from .jacobian import roughness_scale
from .linear import MEDIUM_SMOOTHING
from .model import TINY, Model

_RIDGE = 1e-14  # of a normalised column: rounding errors of the normal equations
_RIDGE_GROWTH, _RIDGE_TRIES = 100.0, 6  # factor by which it grows if Cholesky fails, and how often
_REFINEMENTS = 2  # of the linear solution, since normal equations lose half the digits
_STRAIGHT = 1e-10  # of a column's norm: what is left without its affine part, if it bends at all


@dataclass(frozen=True, eq=False)
class ClosedForms:
    """n features in d dimensions with p outputs, each of a known family or a spline."""

    radius: float
    directions: Floats
    """(n, d) unit rows; w_i = κ_i v_i / R."""
    family: Indices
    """(n,) index into `ACTIVATIONS`, or `SPLINE`."""
    kappa: Floats
    """(n,) steepness per radius; its sign matters for families of no symmetry only."""
    b: Floats
    """(n,)."""
    intervals: int
    """Of the features that are splines."""
    coefficients: Floats
    """(N, p): one row per closed form, K + 3 per spline, in the order of the features, then 1 and x."""

    @classmethod
    def blank(cls, directions: Floats, radius: float, intervals: int, outputs: int) -> ClosedForms:
        """Return features along these directions, all of the first family, without coefficients yet."""
        n, d = directions.shape
        family, empty = np.zeros(n, dtype=np.intp), np.zeros((n + 1 + d, outputs))
        return cls(radius, directions, family, np.ones(n), np.zeros(n), intervals, empty)

    @property
    def count(self) -> int:
        return len(self.directions)

    @property
    def dim(self) -> int:
        return int(self.directions.shape[1])

    @cached_property
    def offsets(self) -> Indices:
        """(n+1,) first row of each feature in `coefficients`."""
        widths = np.where(self.family == SPLINE, self.intervals + 3, 1)
        return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(widths)])

    def block(self, i: int) -> Floats:
        """Return the coefficients of feature i: (1, p) or, for a spline, (K + 3, p)."""
        return self.coefficients[self.offsets[i] : self.offsets[i + 1]]

    @property
    def closed(self) -> Indices:
        """Indices of the features that have a closed form."""
        return np.flatnonzero(self.family != SPLINE)

    @cached_property
    def outputs(self) -> Floats:
        """(n, p) output vectors; of a spline, the unit vector of its leading component."""
        vectors = self.coefficients[self.offsets[:-1]].copy()
        for i in np.flatnonzero(self.family == SPLINE):
            vectors[i] = leading_output(self.block(int(i)))
        return vectors

    def arguments(self, X: Floats) -> Floats:
        """Return y (m, n) = w·x + b."""
        return np.asarray(X @ (self.directions * (self.kappa / self.radius)[:, None]).T + self.b)

    def columns(self, X: Floats) -> tuple[Floats, Floats]:
        """Return the columns of all features (m, N − 1 − d), and φ' (m, n) of the closed forms; 0 for splines."""
        values, slopes = np.empty((len(X), self.offsets[-1])), np.zeros((len(X), self.count))
        y = self.arguments(X)
        for index in np.unique(self.family):
            which = np.flatnonzero(self.family == index)
            if index == SPLINE:
                for i in which:
                    z = X @ self.directions[i]
                    at = slice(self.offsets[i], self.offsets[i + 1])
                    values[:, at] = design_matrix(z, self.radius, self.intervals)
                continue
            value, slope = ACTIVATIONS[index].atom(y[:, which])
            values[:, self.offsets[which]] = value
            slopes[:, which] = slope
        return values, slopes

    def spline_slope(self, i: int, X: Floats) -> Floats:
        """Return (m,) the derivative by u = z/R of the leading component of spline i."""
        first, weights = basis_slope(X @ self.directions[i], self.radius, self.intervals)
        return self.radius * combine(first, weights, self.block(i) @ self.outputs[i])

    def predict(self, X: Floats) -> Floats:
        """Return f̂ (m, p) at the rows of X (m, d)."""
        own = self.offsets[-1]
        linear = self.coefficients[own] + X @ self.coefficients[own + 1 :]
        return np.asarray(linear + self.columns(X)[0] @ self.coefficients[:own])

    def keep(self, which: Indices) -> ClosedForms:
        """Return the features at these indices; the coefficients are those of all of them."""
        rows = [np.arange(self.offsets[i], self.offsets[i + 1]) for i in which]
        rows.append(np.arange(self.offsets[-1], len(self.coefficients)))
        return replace(
            self,
            directions=self.directions[which],
            family=self.family[which],
            kappa=self.kappa[which],
            b=self.b[which],
            coefficients=self.coefficients[np.concatenate(rows)],
        )

    def model(self, error: float) -> Model:
        """Return the same function as splines and kinks, with an error of about `error` in all.

        Errors of single responses add up like random signs do.
        """
        R, p = self.radius, self.coefficients.shape[1]
        blocks, intervals, kinks = [], [], []
        for i in range(self.count):
            own = self.coefficients[self.offsets[i] : self.offsets[i + 1]]
            if self.family[i] == SPLINE:
                blocks.append(own)
                intervals.append(self.intervals)
                kinks.append(np.empty(0))
                continue
            size = float(np.abs(own).max()) * np.sqrt(self.count)
            index, kappa, b = int(self.family[i]), float(self.kappa[i]), float(self.b[i])
            spline, t, weight = as_spline(index, kappa, b, error / max(size, TINY))
            blocks.append(np.concatenate([spline, weight / R])[:, None] * own)
            intervals.append(len(spline) - 3)
            kinks.append(R * t)
        affine = self.coefficients[self.offsets[-1] :].reshape(-1, p)
        return Model(R, self.directions, np.array(intervals, np.intp), tuple(kinks), np.concatenate([*blocks, affine]))


class Data:
    """Points and answers with the affine functions projected out."""

    def __init__(self, X: Floats, Y: Floats) -> None:
        self.X = X
        self.flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        self.Q, self.R = np.linalg.qr(self.flat)
        self.straight = self.Q.T @ Y
        self.Y = Y - self.Q @ self.straight

    def bend(self, columns: Floats) -> Floats:
        """Return columns (m, N) without their affine parts."""
        return np.asarray(columns - self.Q @ (self.Q.T @ columns))


@dataclass(frozen=True, eq=False)
class Solved:
    """Closed forms with the best linear part for some data, and what a step from there needs."""

    forms: ClosedForms
    data: Data
    columns: Floats
    """(m, N) normalised columns without their affine parts."""
    slopes: Floats
    """(m, n) φ'."""
    factor: Floats
    """Lower Cholesky factor of the normal equations of `columns`."""
    scale: Floats
    """(N,) norms that `columns` were divided by."""
    residual: Floats
    cost: float

    @classmethod
    def of(cls, forms: ClosedForms, data: Data) -> Solved:
        """Solve for the output vectors and the affine part."""
        values, slopes = forms.columns(data.X)
        spend(values.size * values.shape[1] / 2 + values.shape[1] ** 3 / 3)
        columns = data.bend(values)
        size = np.linalg.norm(columns, axis=0)
        straight = size <= _STRAIGHT * np.linalg.norm(values, axis=0) + TINY
        scale = np.where(straight, np.inf, size)
        columns /= scale
        rough = _roughness(forms, len(data.X)) / scale[:, None] / scale
        factor = _factor(columns.T @ columns + rough)
        c = cho_solve((factor, True), columns.T @ data.Y)
        residual = data.Y - columns @ c
        for _ in range(_REFINEMENTS):
            more = cho_solve((factor, True), columns.T @ residual - rough @ c)
            c += more
            residual -= columns @ more
        c /= scale[:, None]
        affine = np.linalg.solve(data.R, data.straight - data.Q.T @ (values @ c))
        forms = replace(forms, coefficients=np.concatenate([c, affine]))
        for i in np.flatnonzero(forms.family == SPLINE):
            slopes[:, i] = forms.spline_slope(int(i), data.X)
        return cls(forms, data, columns, slopes, factor, scale, residual, float(np.vdot(residual, residual)))

    def project(self, columns: Floats) -> Floats:
        """Return columns (m, q) without what the linear unknowns follow."""
        return np.asarray(self.data.bend(columns) - self.columns @ self.follow(columns))

    def follow(self, columns: Floats) -> Floats:
        """Return (N, q) the combinations of the normalised columns that are closest to these (m, q)."""
        return np.asarray(cho_solve((self.factor, True), self.columns.T @ columns))

    @property
    def pull(self) -> Floats:
        """(m, n) r·c_i φ_i', the derivative of half the cost by −y_i at each point."""
        return np.asarray((self.residual @ self.forms.outputs.T) * self.slopes)

    def column_variances(self) -> Floats:
        """Return (n_c,) the variance of an output vector's entry, for answers of variance one."""
        rows = self.forms.offsets[self.forms.closed]
        half = solve_triangular(self.factor, np.eye(len(self.factor))[:, rows], lower=True)
        scale = np.where(np.isinf(self.scale[rows]), 0.0, self.scale[rows])
        return np.asarray(np.einsum("kj,kj->j", half, half) / np.maximum(scale**2, TINY))

    def removal_costs(self) -> Floats:
        """Return (n,) the rise of the cost without each feature, per column that it has."""
        costs, closed = np.empty(self.forms.count), self.forms.closed
        costs[closed] = np.sum(self.forms.outputs[closed] ** 2, axis=1) / self.column_variances()
        for i in np.flatnonzero(self.forms.family == SPLINE):
            at = np.arange(self.forms.offsets[i], self.forms.offsets[i + 1])
            half = solve_triangular(self.factor, np.eye(len(self.factor))[:, at], lower=True)
            c = self.forms.block(int(i)) * np.where(np.isinf(self.scale[at]), 0.0, self.scale[at])[:, None]
            costs[i] = float(np.sum(c * np.linalg.lstsq(half.T @ half, c, rcond=None)[0])) / len(at)
        return costs


def _roughness(forms: ClosedForms, count: int) -> Floats:
    """Return the penalty (N, N) for bends of splines, far below the weight of `count` points where there are any."""
    penalty = np.zeros((forms.offsets[-1],) * 2)
    second = np.diff(np.eye(forms.intervals + 3), n=2, axis=0)
    block = (MEDIUM_SMOOTHING * count * roughness_scale(forms.intervals)) * (second.T @ second)
    for i in np.flatnonzero(forms.family == SPLINE):
        at = slice(forms.offsets[i], forms.offsets[i + 1])
        penalty[at, at] = block
    return penalty


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


def leading_output(block: Floats) -> Floats:
    """Return the unit p-vector of which the rows of a block (k, p) have most."""
    if block.shape[1] == 1:
        return np.ones(1)
    return np.asarray(np.linalg.svd(block, full_matrices=False)[2][0])
