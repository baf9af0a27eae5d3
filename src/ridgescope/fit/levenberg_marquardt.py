"""Separable Levenberg–Marquardt on the product of spheres, by normal equations.

For fixed directions v and kink positions t the coefficients solve a linear least-squares problem (variable projection):

    C(v,t) = argmin ‖Y − Φ C‖² + μ‖C‖²,          r = Y − Φ C

A step δ of the nonlinear parameters changes f̂ by J δ, where the columns of feature i are s_i'(z_i)(x − z_i v_i)
(tangent to the sphere) and the column of a kink is −u sign(z − t). Projecting the coefficients out leaves

    (JᵀJ − JᵀΦ(ΦᵀΦ + μ)⁻¹ΦᵀJ + λD) δ = Jᵀ r

For p outputs, s_i is nearly always a fixed p-vector w_i times one function, so J factors into a scalar part and w:
entry ((i,a),(j,b)) of the projected matrix is (w_i·w_j) times the scalar one, and p outputs cost as much as one.
If a response is not of that form the step uses its best such approximation, while the residual stays exact.
Sums over points are streamed in chunks, so memory does not grow with the number of points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve

from ..deadline import check_time, spend
from ..geometry import Floats
from . import threads
from .jacobian import Damping, Jacobian, Unknowns, affine_coefficients, output_vectors, step_model
from .linear import DEFAULT_SMOOTHING, MAX_GRAM_COLUMNS, ConjugateGradient, Linear, chunks, solve_linear, solve_nearby
from .model import TINY, Model, portions_of_points

MAX_DENSE_UNKNOWNS = 9000
"""Columns and direction entries up to which a step may form and factor dense normal equations: 650 MB and ten seconds.
They are more exact than an iteration that stops early.
"""
_SINGLE_UNKNOWNS = 1500  # above which the matrix of a step is summed in single precision: half the time
_SINGLE_SHIFT, _DOUBLE_SHIFT = 1e-6, 1e-15  # of a column's sum of squares: its rounding error, in either precision
_NO_GAIN = 1e-14  # of the objective: a step predicted to gain less changes only the last digits
_FAR_MOVED = 0.02  # share of features that may have left the neighbourhood of a factor still in use; empirical: time
_FALL, _RISE = 0.2, 5.0  # factors of the damping after a step that lowers the objective, and after one that fails
_RISE_SINGULAR = 10.0  # where the damped matrix is not positive
_MIN_DAMPING = 1e-9  # a smaller one makes no difference next to `_STEP_RIDGE`
_MIN_RAISED = 1e-6  # damping after a failed step at the least: else as many tries would be needed to come up from zero
_TRIES, _TRIES_REUSED, _TRIES_MATRIX_FREE = 8, 2, 6  # dampings per step; empirical: time against giving up
_MIN_DIAGONAL = 1e-8  # of the largest diagonal entry: a parameter that f̂ hardly depends on is damped as if by this
_STEP_RIDGE = 1e-9  # of the largest diagonal entry: directions have no curvature along themselves
_AS_PREDICTED = 0.5  # share of its predicted gain at which a step's matrix may be used again
_GOOD_STEP, _FAIR_STEP = 0.75, 0.25  # shares of the predicted gain above which damping falls, or stays (Fletcher, 1971)
_CAUTIOUS_RISE = 3.0  # factor of the damping where a step gains less than that
_CG_TYPICAL = 30  # iterations of a step, four products over all points each, as its arithmetic is counted
_CG_TOLERANCE, _CG_STEPS = 0.01, 100  # two digits of a step are enough, since its coefficients are solved for again


@dataclass(frozen=True)
class LMOptions:
    """Options of the iteration."""

    steps: int = 30
    """Most steps; 0 solves for the coefficients only."""
    damping: float = 1e-2
    """Initial damping, relative to the diagonal of the normal matrix."""
    target_cost: float = 0.0
    """Sum of squares at which to stop."""
    min_gain: float = 1e-3
    """Stop when a step lowers the objective by less than this share of it."""
    smoothing: float = DEFAULT_SMOOTHING
    """Roughness weight."""
    matrix_free: bool = False
    """Take steps by conjugate gradients, without a matrix: cheaper, less exact."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of Levenberg–Marquardt."""

    linear: Linear
    damping: float
    steps: int
    converged: bool

    @classmethod
    def without_fit(cls, model: Model, cost: float) -> Fitted:
        """Return a model as it is, with a sum of squares that is known or NaN."""
        return cls(Linear(model, None, cost), 0.0, 0, True)

    @property
    def model(self) -> Model:
        return self.linear.model


@threads.one_blas_thread()
def levenberg_marquardt(
    model: Model, X: Floats, Y: Floats, options: LMOptions | None = None, *, solved: Linear | None = None
) -> Fitted:
    """Minimise ‖Y − f̂(X)‖² over directions, kinks and coefficients, starting from `model`.

    Its coefficients are solved for first unless `solved` has them. One matrix-free step may gain less than `min_gain`
    without ending the iteration, unless there are so many unknowns that a step takes a minute.
    """
    options = options or LMOptions()
    small, smoothing = fits_dense_step(model), options.smoothing
    dense = small and not options.matrix_free
    stepper = Dense(X, Y, smoothing) if dense else MatrixFree(X, Y, smoothing, cautious=small)
    linear = solve_linear(model, X, Y, smoothing) if solved is None else solved
    damping = options.damping
    if model.count == 0:
        return Fitted(linear, damping, 0, True)
    poor, allowed = 0, 1 if options.matrix_free and small else 0
    for step in range(options.steps):
        if linear.cost <= options.target_cost:
            return Fitted(linear, damping, step, True)
        check_time()
        better, damping = stepper.step(linear, damping)
        if better is None:
            return Fitted(linear, damping, step, True)
        gain = 1.0 - better.objective / linear.objective
        linear, poor = better, poor + 1 if gain < options.min_gain else 0
        if poor > allowed:
            return Fitted(linear, damping, step + 1, True)
    return Fitted(linear, damping, options.steps, False)


def fits_dense_step(model: Model) -> bool:
    """Return whether a step may form dense normal equations of all its unknowns."""
    return model.columns + model.count * model.dim <= MAX_DENSE_UNKNOWNS


class Dense:
    """Steps by dense normal equations and Cholesky.

    While directions move by less than half a knot, the factor of an earlier model preconditions the solve for the
    coefficients, and the matrix of an earlier step is reused as long as it predicts the gain of a step.
    """

    def __init__(self, X: Floats, Y: Floats, smoothing: float) -> None:
        self.X, self.Y, self.smoothing = X, Y, smoothing
        self._matrix: Floats | None = None

    def step(self, linear: Linear, damping: float) -> tuple[Linear | None, float]:
        """Return the first step that lowers the objective, with ever larger damping, and the damping to try next."""
        for reused in (True, False) if self._matrix is not None else (False,):
            if not reused:
                linear = linear if linear.exact else solve_linear(linear.model, self.X, self.Y, self.smoothing)
                self._matrix = normal_matrix(linear, self.X)
            assert self._matrix is not None
            right = gradient(linear, self.X, self.Y)
            tries = _TRIES_REUSED if reused else _TRIES
            better, damping, as_predicted = self._damped(linear, self._matrix, right, damping, tries)
            self._matrix = self._matrix if as_predicted else None
            if better is not None or as_predicted:
                return better, damping
        return None, damping

    def _damped(
        self, linear: Linear, matrix: Floats, right: Floats, damping: float, tries: int
    ) -> tuple[Linear | None, float, bool]:
        """Return the first step that lowers the objective, the damping to try next, and whether to trust the matrix.

        The matrix is trusted if the objective fell by at least half of the predicted gain, or if no gain is predicted.
        """
        diagonal = np.diag(matrix)
        floor = np.maximum(diagonal, _MIN_DIAGONAL * diagonal.max() + TINY)
        for _ in range(tries):
            damped = matrix.copy().T  # in the order of columns that LAPACK needs
            damped[np.diag_indices_from(damped)] += damping * floor + _STEP_RIDGE * diagonal.max()
            try:
                delta = cho_solve((threads.cholesky(damped), True), right, check_finite=False)
            except LinAlgError:
                damping *= _RISE_SINGULAR
                continue
            predicted = float(2.0 * right @ delta - delta @ threads.outer(matrix, delta[:, None])[:, 0])
            if predicted <= _NO_GAIN * linear.objective:
                return None, damping, True
            moved = step_model(linear.model, Unknowns.of_nonlinear(linear.model, delta))
            trial = solve_after(linear, moved, self.X, self.Y, self.smoothing)
            if trial.objective < linear.objective:
                gain = linear.objective - trial.objective
                return trial, max(damping * _FALL, _MIN_DAMPING), gain >= _AS_PREDICTED * predicted and not trial.exact
            damping = max(damping * _RISE, _MIN_RAISED)
        return None, damping, False


@dataclass(frozen=True, eq=False)
class MatrixFree:
    """Steps by preconditioned conjugate gradients on all unknowns, after which coefficients are solved for again."""

    X: Floats
    Y: Floats
    smoothing: float
    cautious: bool = True
    """Lower the damping only after a step that gained what was predicted; too slow if a step takes a minute."""

    def step(self, linear: Linear, damping: float) -> tuple[Linear | None, float]:
        """Return the first step that lowers the objective, with ever larger damping, and the damping to try next."""
        if not linear.exact and linear.model.columns <= MAX_GRAM_COLUMNS:  # one factor saves a hundred products
            linear = solve_linear(linear.model, self.X, self.Y, self.smoothing)
        spend(_CG_TYPICAL * 4.0 * len(self.X) * linear.model.count * (linear.model.dim + linear.model.outputs))
        jacobian = Jacobian(linear.model, self.X, self.smoothing, single=True)
        scale = jacobian.diagonal()
        for _ in range(_TRIES_MATRIX_FREE):
            change, predicted = self.change(jacobian, linear, Damping(damping * scale.v, damping * scale.t))
            trial = solve_after(linear, step_model(linear.model, change), self.X, self.Y, self.smoothing)
            if trial.objective < linear.objective:
                factor = _next_factor(linear.objective - trial.objective, predicted) if self.cautious else _FALL
                return trial, max(damping * factor, _MIN_DAMPING)
            damping = max(damping * _RISE, _MIN_RAISED)
        return None, damping

    def change(self, jacobian: Jacobian, linear: Linear, damping: Damping) -> tuple[Unknowns, float]:
        """Return the step of all unknowns, and the fall of the cost that a linear f̂ would give.

        With an exact factor given, coefficients are eliminated, which takes fewer iterations.
        """
        c = linear.model.coefficients
        factor = linear.factor if linear.exact else None
        right = Unknowns.of_nonlinear(linear.model, gradient(linear, self.X, self.Y))
        precondition = jacobian.preconditioner(damping)
        if factor is None:
            residual = jacobian.project(jacobian.adjoint(self.Y - linear.model.predict(self.X)))
            right = replace(right, c=residual - jacobian.project(jacobian.penalty(c)))
            step = ConjugateGradient(lambda q: jacobian.normal(q, damping), precondition, _zero(right), right)
            return _solved(step), _predicted_gain(right, step.x, damping)
        step = ConjugateGradient(
            lambda q: jacobian.reduced(q, damping, factor),
            lambda q: replace(precondition(q), c=q.c),
            _zero(right),
            right,
        )
        moved = _solved(step)
        follow = -cho_solve((factor, True), jacobian.adjoint(jacobian.move(moved)))
        return replace(moved, c=follow), _predicted_gain(right, moved, damping)


def _solved(iteration: ConjugateGradient[Unknowns]) -> Unknowns:
    """Iterate to the accuracy that a step needs and return the solution."""
    first = iteration.rho
    for _ in range(_CG_STEPS):
        if iteration.rho <= _CG_TOLERANCE**2 * first or iteration.rho <= 0 or not iteration.step():
            break
    return iteration.x


def _zero(like: Unknowns) -> Unknowns:
    return Unknowns(np.zeros_like(like.c), np.zeros_like(like.v), np.zeros_like(like.t))


def _next_factor(gain: float, predicted: float) -> float:
    """Return the factor for the damping of the next step, smaller if this one gained what was predicted."""
    if gain > _GOOD_STEP * predicted:
        return _FALL
    return 1.0 if gain > _FAIR_STEP * predicted else _CAUTIOUS_RISE


def _predicted_gain(g: Unknowns, q: Unknowns, damping: Damping) -> float:
    """Return 2g·q − q·Hq, given that conjugate gradients reached q·(H + D)q = g·q."""
    return g.dot(q) + float(np.vdot(q.v, damping.v * q.v) + np.vdot(q.t, damping.t * q.t))


def solve_after(linear: Linear, model: Model, X: Floats, Y: Floats, smoothing: float) -> Linear:
    """Solve for the coefficients of a moved model, by the old factor if few responses moved more than half a knot."""
    turned = model.radius * np.abs(model.directions - linear.model.directions).max(axis=1, initial=0.0)
    slid = np.array([np.abs(t - o).max(initial=0.0) for t, o in zip(model.kinks, linear.model.kinks, strict=True)])
    far = np.maximum(turned, slid) >= model.radius / model.intervals
    if linear.factor is not None and far.sum() <= _FAR_MOVED * len(far):
        near = solve_nearby(model, X, Y, smoothing, linear.factor)
        if near is not None:
            return near
    return solve_linear(model, X, Y, smoothing)


def tangent_columns(model: Model, X: Floats, w: Floats) -> Floats:
    """Return the scalar part of J, (m, n·d + kinks); the columns of feature i are tangent to the sphere at v_i."""
    n, d = model.directions.shape
    kinks = sum(map(len, model.kinks))
    J = np.empty((len(X), n * d + kinks))
    Z = X @ model.directions.T
    at = n * d
    for i in range(n):
        z, v = Z[:, i], model.directions[i]
        slope = model.term_slope(i, z, w[i])
        J[:, i * d : (i + 1) * d] = slope[:, None] * (X - z[:, None] * v)
        for t in model.kinks[i]:
            J[:, at] = -np.sign(z - t)
            at += 1
    return J


def column_vectors(model: Model, w: Floats) -> Floats:
    """Return (q, p): the p-vector that each nonlinear column, a direction's entry or a kink, is a multiple of."""
    jumps = [model.block(i)[model.intervals[i] + 3 :] for i in range(model.count)]
    return np.concatenate([np.repeat(w, model.dim, axis=0), *jumps])


@threads.one_blas_thread()
def normal_matrix(linear: Linear, X: Floats) -> Floats:
    """Return JᵀJ − JᵀΦ(ΦᵀΦ+μ)⁻¹ΦᵀJ (q, q) for the q direction and kink entries, all outputs together."""
    model, w = linear.model, output_vectors(linear.model)
    vectors = column_vectors(model, w)
    q, N = len(vectors), model.columns
    # A step needs only a few digits of its matrix; the residual and the gradient keep full precision.
    single = N + q > _SINGLE_UNKNOWNS
    spend(len(X) * (q**2 / 2 + N * q) + (N + q) ** 3 / 3)
    kind: type[Any] = np.float32 if single else np.float64
    straight = _affine_parts(model, X, w) if single else None
    JJ: NDArray[Any] = np.zeros((q, q), dtype=kind)
    PJ = np.zeros((N, q))
    assert linear.factor is not None
    for c in chunks(len(X), N + q):
        rows = X[c]
        phi, J = np.empty((len(rows), N), dtype=kind), np.empty((len(rows), q), dtype=kind)

        def fill(r: slice, rows: Floats = rows, phi: NDArray[Any] = phi, J: NDArray[Any] = J) -> None:
            phi[r], tangents = model.design(rows[r]), tangent_columns(model, rows[r], w)
            J[r] = tangents if straight is None else tangents - straight[0] - rows[r] @ straight[1:]

        threads.parallel_map(fill, portions_of_points(len(rows)))
        threads.add_gram(JJ, J)
        threads.add_product(PJ, phi, J)
    PJ = PJ if straight is None else _without_lines(model, PJ)
    shift = _SINGLE_SHIFT if single else _DOUBLE_SHIFT
    return _eliminated(JJ, threads.solve_lower(linear.factor, PJ), vectors, shift)


def _affine_parts(model: Model, X: Floats, w: Floats) -> Floats:
    """Return (d + 1, q) the affine functions of x closest to the tangent columns.

    A coefficient follows every affine change exactly, so that it counts for nothing in the projected matrix. But it is
    by far the largest part of a column, and in single precision its rounding errors would be larger than what is left.
    """

    def portion(rows: slice) -> Floats:
        flat = np.concatenate([np.ones((rows.stop - rows.start, 1)), X[rows]], axis=1)
        return np.asarray(flat.T @ np.concatenate([flat, tangent_columns(model, X[rows], w)], axis=1))

    sums = threads.summed(portion, portions_of_points(len(X)))
    own = 1 + model.dim
    return np.asarray(np.linalg.lstsq(sums[:, :own], sums[:, own:], rcond=None)[0])


def _without_lines(model: Model, PJ: Floats) -> Floats:
    """Remove from the inner products of Φ with columns that have no affine part what only their rounding errors put in.

    Constants and straight lines inside a spline are affine functions of x, whose inner products vanish. Coefficients
    that change the same function have almost no weight against each other, and would make much of these errors.
    """
    out = PJ.copy()
    out[model.offsets[-1] :] = 0.0
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        line, own = affine_coefficients(model.radius, int(K)), out[start : start + K + 3]
        own -= line @ (line.T @ own)
    return out


def _eliminated(JJ: NDArray[Any], half: Floats, vectors: Floats, shift: float) -> Floats:
    """Return JᵀJ − halfᵀhalf, of which JᵀJ is given below the diagonal, times the inner products of the vectors.

    The diagonal of JᵀJ is raised by the share `shift`: columns of directions and of kinks have different units.
    """
    out = np.empty(JJ.shape)

    def tile(at: tuple[slice, slice]) -> None:
        i, j = at
        block = JJ[i, j] - half[:, i].T @ half[:, j]
        block = np.tril(block) + np.tril(block, -1).T if i == j else block
        block *= vectors[i] @ vectors[j].T
        out[i, j], out[j, i] = block, block.T

    threads.parallel_map(tile, threads.lower_tiles(len(JJ)))
    out[np.diag_indices_from(out)] += shift * np.diag(JJ) * np.einsum("qp,qp->q", vectors, vectors)
    return out


def gradient(linear: Linear, X: Floats, Y: Floats) -> Floats:
    """Return Jᵀ r (q,) for the direction and kink entries with fixed responses; it vanishes at a minimum."""
    model = linear.model

    def portion(rows: slice) -> Floats:
        x, r = X[rows], Y[rows] - model.predict(X[rows])
        Z, slide = x @ model.directions.T, []
        for i, t in enumerate(model.kinks):
            if len(t):
                u = model.block(i)[model.intervals[i] + 3 :]
                slide.append(-np.einsum("mj,mj->j", np.sign(Z[:, i, None] - t), r @ u.T))
        G = np.empty_like(Z)
        for i in range(model.count):
            G[:, i] = np.einsum("mp,mp->m", model.term_slope(i, Z[:, i]), r)
        turn = G.T @ x
        turn -= np.einsum("nd,nd->n", turn, model.directions)[:, None] * model.directions
        return np.concatenate([turn.ravel(), *slide])

    return np.asarray(np.sum(threads.parallel_map(portion, portions_of_points(len(X))), axis=0))
