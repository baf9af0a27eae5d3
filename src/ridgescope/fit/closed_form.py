"""Features of known form: f̂(x) = a₀ + a·x + Σ_i φ_i(w_i·x + b_i) c_i, fitted by variable projection.

For given (w, b) the p-vectors c and the affine part solve a linear least-squares problem with one column per feature.
A change δ of (w, b) moves f̂ by J δ = Σ_i φ_i'(y_i)(x·δw_i + δb_i) c_i. With P the projection onto the complement of the
linear columns (Kaufman's approximation of 1975) a step solves

    (JᵀPJ + λD) δ = Jᵀ r,        r = P Y

The p-vectors enter only by their inner products: entry ((i,a),(j,b)) is (c_i·c_j) times a scalar sum over the points.

    along       w_i keeps its direction: two unknowns κ_i = |w_i|R and b_i a feature, dense equations
    free        all of w_i and b_i: d + 1 unknowns a feature, conjugate gradients with one block per feature

A feature without a closed form keeps a spline, K + 3 linear columns with p-vectors of their own, along its direction.
The affine functions are projected out of everything once, so that the columns left are those that bend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from ..bspline import design_matrix
from ..deadline import check_time, spend
from ..geometry import Floats
from . import threads
from .activations import ACTIVATIONS, MAX_KAPPA, MIN_KAPPA, SPLINE, Indices, as_spline
from .linear import ConjugateGradient
from .model import TINY, Model

_RIDGE = 1e-14  # of a normalised column: rounding errors of the normal equations
_RIDGE_GROWTH, _RIDGE_TRIES = 100.0, 6  # factor by which it grows if Cholesky fails, and how often
_REFINEMENTS = 2  # of the linear solution, since normal equations lose half the digits
_STRAIGHT = 1e-10  # of a column's norm: what is left without its affine part, if it bends at all
_FALL, _RISE, _MIN_DAMPING, _MAX_DAMPING = 0.2, 6.0, 1e-10, 1e6
_FIRST_DAMPING = 1e-3
_MAX_CHANGE = 0.5  # of κ, and of b in widths of a bend, in one step
_OVERFLOWS = 1e150  # slopes or outputs whose squares are no numbers: such forms are not worth a step
_TRIES = 6  # dampings per step
_CG_STEPS, _CG_TOLERANCE = 60, 0.03  # a step needs one or two digits, since others follow
_BLOCK_POINTS = 6  # points per unknown of a feature's own block: enough for a preconditioner
_BLOCK_RIDGE = 1e-6  # of a block's diagonal: sums over some of the points are not exact
_UNSCALED = [k for k, form in enumerate(ACTIVATIONS) if not form.moves[0]]  # families whose κ is 1
_STEP_RIDGE = 1e-12  # of the largest diagonal entry


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

    @property
    def closed(self) -> Indices:
        """Indices of the features that have a closed form."""
        return np.flatnonzero(self.family != SPLINE)

    @property
    def outputs(self) -> Floats:
        """(n_c, p) output vectors of the closed forms."""
        return np.asarray(self.coefficients[self.offsets[self.closed]])

    def arguments(self, X: Floats) -> Floats:
        """Return y (m, n) = w·x + b."""
        return np.asarray(X @ (self.directions * (self.kappa / self.radius)[:, None]).T + self.b)

    def columns(self, X: Floats) -> tuple[Floats, Floats]:
        """Return the columns of all features (m, N − 1 − d), and φ' (m, n_c) of the closed forms."""
        values, slopes = np.empty((len(X), self.offsets[-1])), np.empty((len(X), len(self.closed)))
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
            slopes[:, np.searchsorted(self.closed, which)] = slope
        return values, slopes

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
    """(m, n_c) φ'."""
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
        factor = _factor(columns.T @ columns)
        c = cho_solve((factor, True), columns.T @ data.Y)
        residual = data.Y - columns @ c
        for _ in range(_REFINEMENTS):
            more = cho_solve((factor, True), columns.T @ residual)
            c += more
            residual -= columns @ more
        c /= scale[:, None]
        affine = np.linalg.solve(data.R, data.straight - data.Q.T @ (values @ c))
        forms = replace(forms, coefficients=np.concatenate([c, affine]))
        return cls(forms, data, columns, slopes, factor, scale, residual, float(np.vdot(residual, residual)))

    def project(self, columns: Floats) -> Floats:
        """Return columns (m, q) without what the linear unknowns follow."""
        return np.asarray(self.data.bend(columns) - self.columns @ self.follow(columns))

    def follow(self, columns: Floats) -> Floats:
        """Return (N, q) the combinations of the normalised columns that are closest to these (m, q)."""
        return np.asarray(cho_solve((self.factor, True), self.columns.T @ columns))

    @property
    def pull(self) -> Floats:
        """(m, n_c) r·c_i φ_i', the derivative of half the cost by −y_i at each point."""
        return np.asarray((self.residual @ self.forms.outputs.T) * self.slopes)

    def column_variances(self) -> Floats:
        """Return (n_c,) the variance of an output vector's entry, for answers of variance one."""
        rows = self.forms.offsets[self.forms.closed]
        half = solve_triangular(self.factor, np.eye(len(self.factor))[:, rows], lower=True)
        scale = np.where(np.isinf(self.scale[rows]), 0.0, self.scale[rows])
        return np.asarray(np.einsum("kj,kj->j", half, half) / np.maximum(scale**2, TINY))

    def removal_costs(self) -> Floats:
        """Return (n,) the rise of the cost without each feature; infinite for splines."""
        costs = np.full(self.forms.count, np.inf)
        costs[self.forms.closed] = np.sum(self.forms.outputs**2, axis=1) / self.column_variances()
        return costs


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


# -- steps ----------------------------------------------------------------------------------------------------


@threads.one_blas_thread()
def minimise(solved: Solved, *, steps: int, min_gain: float = 1e-3, free: bool = False, target: float = 0.0) -> Solved:
    """Lower the cost by at most `steps` Levenberg–Marquardt steps; with `free` directions move, too.

    The iteration ends when a step lowers the cost by less than the share `min_gain`, or when the cost is `target`.
    """
    damping = _FIRST_DAMPING
    if not len(solved.forms.closed):
        return solved
    for _ in range(steps):
        check_time()
        largest = max(np.abs(a).max(initial=0.0) for a in (solved.slopes, solved.forms.outputs))
        if solved.cost <= target or not largest < _OVERFLOWS:
            break
        stepper: Along | Free = Free(solved) if free else Along(solved)
        better = None
        for _ in range(_TRIES):
            trial = Solved.of(stepper.moved(damping), solved.data)
            if trial.cost < solved.cost:
                better = trial
                break
            damping = min(damping * _RISE, _MAX_DAMPING)
        if better is None:
            break
        damping = max(damping * _FALL, _MIN_DAMPING)
        gain, solved = 1.0 - better.cost / solved.cost, better
        if gain < min_gain:
            break
    return solved


class Along:
    """A step in κ_i and b_i."""

    def __init__(self, solved: Solved) -> None:
        self.forms, closed = solved.forms, solved.forms.closed
        forms = solved.forms
        u = solved.data.X @ forms.directions[closed].T / forms.radius
        self.moves = np.array([ACTIVATIONS[k].moves for k in forms.family[closed]], dtype=np.float64).T.ravel()
        D = np.concatenate([solved.slopes * u, solved.slopes], axis=1) * self.moves
        size = np.linalg.norm(forms.outputs, axis=1) + TINY  # with D, since the two may be huge and tiny
        D = solved.project(D * np.tile(size, 2))
        c = np.tile(forms.outputs / size[:, None], (2, 1))
        self.normal = (D.T @ D) * (c @ c.T)
        pull = solved.pull
        self.gradient = np.concatenate([np.sum(pull * u, axis=0), pull.sum(axis=0)]) * self.moves

    def moved(self, damping: float) -> ClosedForms:
        """Return the forms after the damped step, which is bounded for each feature."""
        forms, closed = self.forms, self.forms.closed
        diagonal = self.normal.diagonal()
        shift = damping * diagonal + _STEP_RIDGE * diagonal.max() + TINY
        try:
            step = cho_solve(cho_factor(self.normal + np.diag(shift), lower=True), self.gradient)
        except LinAlgError:
            step = self.gradient / (shift + diagonal)
        kappa, b = forms.kappa.copy(), forms.b.copy()
        along, slide = step[: len(closed)], step[len(closed) :]
        most = _MAX_CHANGE * np.maximum(np.abs(kappa[closed]), _MAX_CHANGE)
        kappa[closed] = _limited(kappa[closed] + np.clip(along, -most, most), forms.family[closed])
        b[closed] += np.clip(slide, -_MAX_CHANGE - most, _MAX_CHANGE + most)
        return replace(forms, kappa=kappa, b=b)


def _limited(kappa: Floats, family: Indices) -> Floats:
    """Return κ within its limits; it keeps the sign that a step gave it."""
    kappa = np.where(np.isin(family, _UNSCALED), 1.0, kappa)
    sign = np.where(kappa < 0, -1.0, 1.0)
    return np.asarray(sign * np.clip(np.abs(kappa), MIN_KAPPA, MAX_KAPPA))


@dataclass(frozen=True, eq=False)
class Turn:
    """A change (n_c, d + 1) of b_i and w_i, as a vector for conjugate gradients."""

    w: Floats

    def plus(self, a: float, other: Self) -> Turn:
        return Turn(self.w + a * other.w)

    def dot(self, other: Self) -> float:
        return float(np.vdot(self.w, other.w))


class Free:
    """A step in all of w_i and b_i, by conjugate gradients preconditioned with one block per feature."""

    def __init__(self, solved: Solved) -> None:
        self.solved, self.forms = solved, solved.forms
        self.c = self.forms.outputs
        moves = np.array([ACTIVATIONS[k].moves for k in self.forms.family[self.forms.closed]])
        self.fixed, self.shifts = ~moves[:, 0], moves[:, 1]
        self.right = self._tangent(Turn(solved.pull.T @ solved.data.flat))
        self.blocks = self._blocks()

    def _tangent(self, turn: Turn) -> Turn:
        """Return the change without its part along w_i where the family has no scale of its own, or b_i, no shift."""
        v = self.forms.directions[self.forms.closed] * self.fixed[:, None]
        w = turn.w.copy()
        w[:, 0] *= self.shifts
        w[:, 1:] -= np.einsum("nd,nd->n", w[:, 1:], v)[:, None] * v
        return Turn(w)

    def _blocks(self) -> Floats:
        """Return (n_c, d+1, d+1) JᵀJ of each feature alone, from some of the points, without affine parts."""
        solved, flat = self.solved, self.solved.data.flat
        q = flat.shape[1]
        stride = max(1, len(flat) // (_BLOCK_POINTS * q))
        few = flat[::stride]
        basis = np.linalg.qr(few)[0]
        blocks = np.empty((len(self.c), q, q))
        for i, size in enumerate(np.sum(self.c**2, axis=1)):
            D = few * solved.slopes[::stride, i, None]
            D -= basis @ (basis.T @ D)
            blocks[i] = (size * stride) * (D.T @ D)
        return blocks

    def _normal(self, turn: Turn, shift: Floats) -> Turn:
        solved = self.solved
        turn = self._tangent(turn)
        image = solved.project((solved.slopes * (solved.data.flat @ turn.w.T)) @ self.c)
        back = ((image @ self.c.T) * solved.slopes).T @ solved.data.flat
        return self._tangent(Turn(back + shift * turn.w))

    def moved(self, damping: float) -> ClosedForms:
        """Return the forms after the damped step."""
        forms, closed = self.forms, self.forms.closed
        diagonal = np.einsum("naa->na", self.blocks)
        shift = damping * diagonal + _STEP_RIDGE * diagonal.max() + TINY
        inverse = np.linalg.inv(self.blocks + np.eye(diagonal.shape[1]) * (shift + _BLOCK_RIDGE * diagonal)[:, :, None])
        step = ConjugateGradient(
            lambda turn: self._normal(turn, shift),
            lambda turn: self._tangent(Turn(np.einsum("nab,nb->na", inverse, turn.w))),
            Turn(np.zeros_like(self.right.w)),
            self.right,
        )
        first = step.rho
        for _ in range(_CG_STEPS):
            if step.rho <= _CG_TOLERANCE**2 * first or not step.step():
                break
        change = step.x.w
        w = forms.directions[closed] * (forms.kappa[closed] / forms.radius)[:, None] + change[:, 1:]
        size = np.linalg.norm(w, axis=1) * np.sign(forms.kappa[closed])
        kappa, b, V = forms.kappa.copy(), forms.b.copy(), forms.directions.copy()
        V[closed] = w / size[:, None]
        kappa[closed] = _limited(size * forms.radius, forms.family[closed])
        b[closed] = (b[closed] + change[:, 0]) * np.where(self.fixed, kappa[closed] / (size * forms.radius), 1.0)
        return replace(forms, directions=V, kappa=kappa, b=b)
