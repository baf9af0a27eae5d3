"""Separable Levenberg–Marquardt on the product of spheres, by normal equations.

For fixed directions v and kink places t the coefficients solve a linear least-squares problem (variable projection):

    C(v,t) = argmin ‖Y − Φ C‖² + μ‖C‖²,          r = Y − Φ C

A step δ of the nonlinear parameters changes f̂ by J δ, where the columns of feature i are s_i'(z_i)(x − z_i v_i)
(tangent to the sphere) and the column of a kink is −u sign(z − t). Projecting the coefficients out leaves

    (JᵀJ − JᵀΦ(ΦᵀΦ + μ)⁻¹ΦᵀJ + λD) δ = Jᵀ r

For p outputs, s_i is nearly always a fixed p-vector w_i times one function, so J factors into a scalar part and w:
entry ((i,a),(j,b)) of the projected matrix is (w_i·w_j) times the scalar one, and p outputs cost what one does.
Where a response is not of that form the step is that of its best such approximation, while the residual stays exact.
Sums over points are streamed in chunks, so memory does not grow with the number of points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve

from ..geometry import Floats, unit
from . import threads
from .linear import SMOOTH, WIDE, Linear, chunks, solve_linear, solve_nearby
from .model import ROWS, Model
from .products import Products, Unknowns, conjugate_gradient, step_model

NOTHING = 1e-14  # of the cost: a step that promises less changes nothing but the last digits
_FAR_MOVED = 0.02  # share of the features that may have left the neighbourhood of a factor still in use
_SINGLE = 1500  # unknowns above which the matrix of a step is summed in single precision


def output_vectors(model: Model) -> Floats:
    """(n, p) unit rows: the output direction that carries most of each response's slope."""
    if model.outputs == 1:
        return np.ones((model.count, 1))
    z = np.linspace(-model.radius, model.radius, 65)
    w = np.empty((model.count, model.outputs))
    for i in range(model.count):
        w[i] = np.linalg.svd(model.term_slope(i, z), full_matrices=False)[2][0]
    return w


def tangent_columns(model: Model, X: Floats, w: Floats) -> Floats:
    """Scalar part of J: (m, n·d + kinks); the columns of a feature are tangent to the sphere at v_i."""
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


def _vectors(model: Model, w: Floats) -> Floats:
    """(q, p): the p-vector of each nonlinear column."""
    n, d = model.directions.shape
    jumps = [model.block(i)[model.intervals[i] + 3 :] for i in range(n)]
    return np.concatenate([np.repeat(w, d, axis=0), *jumps])


@threads.one_blas_thread()
def normal_matrix(linear: Linear, X: Floats) -> Floats:
    """(q, q) JᵀJ − JᵀΦ(ΦᵀΦ+μ)⁻¹ΦᵀJ with the output vectors worked in."""
    model, w = linear.model, output_vectors(linear.model)
    vectors = _vectors(model, w)
    q, N = len(vectors), model.columns
    # A step needs no more than a few digits of its matrix; the residual and the gradient keep all of theirs.
    single = N + q > _SINGLE
    kind: type[Any] = np.float32 if single else np.float64
    JJ: NDArray[Any] = np.zeros((q, q), dtype=kind)
    PJ = np.zeros((N, q))
    assert linear.factor is not None
    for c in chunks(len(X), N + q):
        phi, J = model.design(X[c]).astype(kind, copy=False), tangent_columns(model, X[c], w).astype(kind, copy=False)
        threads.add_gram(JJ, J)
        threads.add_product(PJ, phi, J)
    half = threads.solve_lower(linear.factor, PJ)
    by_coefficients = np.zeros((q, q))
    threads.add_gram(by_coefficients, half)
    JJ = np.tril(JJ - by_coefficients)
    JJ += np.tril(JJ, -1).T
    JJ[np.diag_indices_from(JJ)] += (1e-6 if single else 1e-15) * np.abs(JJ).max()
    return np.asarray(JJ * (vectors @ vectors.T))


def pull(linear: Linear, X: Floats, Y: Floats) -> Floats:
    """(q,) Jᵀ r, of the responses as they are: where it vanishes, no step helps."""
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

    parts = threads.every(portion, threads.portions(len(X), ROWS))
    return np.asarray(np.sum(parts, axis=0))


@dataclass(frozen=True, eq=False)
class Fitted:
    """Where Levenberg–Marquardt ended."""

    linear: Linear
    damping: float
    steps: int
    converged: bool

    @property
    def model(self) -> Model:
        return self.linear.model


@threads.one_blas_thread()
def levenberg_marquardt(
    model: Model,
    X: Floats,
    Y: Floats,
    *,
    steps: int = 30,
    damping: float = 1e-2,
    enough: float = 0.0,
    progress: float = 1e-3,
    smooth: float = SMOOTH,
    solved: Linear | None = None,
    roughly: bool = False,
) -> Fitted:
    """Minimise ‖Y − f̂(X)‖² from `model`, whose coefficients are solved for first unless `solved` has them.

    Stops when the cost is at most `enough`, when a step lowers it by less than the fraction `progress`, or after
    `steps`. Steps taken `roughly` need no matrix, and one of them may fail to lower it by as much, unless there are so
    many unknowns that a step takes a minute.
    """
    small = is_small(model)
    solver: Solver = Dense(X, Y, smooth) if small and not roughly else MatrixFree(X, Y, smooth, wary=small)
    linear = solver.solve(model) if solved is None else solved
    if model.count == 0:
        return Fitted(linear, damping, 0, True)
    poor, patience = 0, 1 if roughly and small else 0
    for step in range(steps):
        if linear.cost <= enough:
            return Fitted(linear, damping, step, True)
        better, damping = solver.step(linear, damping)
        if better is None:
            return Fitted(linear, damping, step, True)
        gain = 1.0 - better.objective / linear.objective
        linear, poor = better, poor + 1 if gain < progress else 0
        if poor > patience:
            return Fitted(linear, damping, step + 1, True)
    return Fitted(linear, damping, steps, False)


class Solver(Protocol):
    """Solves for coefficients, and takes one damped step of everything."""

    def solve(self, model: Model) -> Linear: ...

    def step(self, linear: Linear, damping: float) -> tuple[Linear | None, float]:
        """The first step along the damping path that lowers the cost, and the damping to try next."""


def is_small(model: Model) -> bool:
    """Are dense normal equations affordable? They are more exact than an iteration that stops early."""
    return model.columns + model.count * model.dim <= 9000


class Dense:
    """Normal equations and Cholesky.

    While directions move by less than half a knot, the factor of an earlier model preconditions the solve for the
    coefficients, and the matrix of an earlier step serves as long as it foretells what a step will gain.
    """

    def __init__(self, X: Floats, Y: Floats, smooth: float) -> None:
        self.X, self.Y, self.smooth = X, Y, smooth
        self._matrix: Floats | None = None

    def solve(self, model: Model) -> Linear:
        return solve_linear(model, self.X, self.Y, self.smooth)

    def step(self, linear: Linear, damping: float) -> tuple[Linear | None, float]:
        for reused in (True, False) if self._matrix is not None else (False,):
            if not reused:
                linear = linear if linear.exact else self.solve(linear.model)
                self._matrix = normal_matrix(linear, self.X)
            assert self._matrix is not None
            gradient = pull(linear, self.X, self.Y)
            better, damping, foretold = self._damped(linear, self._matrix, gradient, damping, 2 if reused else 8)
            self._matrix = self._matrix if foretold else None
            if better is not None or foretold:
                return better, damping
        return None, damping

    def _damped(
        self, linear: Linear, matrix: Floats, gradient: Floats, damping: float, tries: int
    ) -> tuple[Linear | None, float, bool]:
        """The first step along the damping path that lowers the cost, the damping to try next, and whether the cost
        fell by at least half of what the matrix foretold. No step where that is nothing.
        """
        diagonal = np.diag(matrix)
        floor = np.maximum(diagonal, 1e-8 * diagonal.max() + 1e-300)
        for _ in range(tries):
            damped = matrix + np.diag(damping * floor + 1e-9 * diagonal.max())
            try:
                delta = cho_solve((threads.cholesky(damped), True), gradient)
            except LinAlgError:
                damping *= 10.0
                continue
            promise = float(2.0 * gradient @ delta - delta @ (matrix @ delta))
            if promise <= NOTHING * linear.objective:
                return None, damping, True
            trial = solve_after(linear, moved(linear.model, delta), self.X, self.Y, self.smooth)
            if trial.objective < linear.objective:
                foretold = linear.objective - trial.objective >= 0.5 * promise and not trial.exact
                return trial, max(damping * 0.2, 1e-9), foretold
            damping = max(damping * 5.0, 1e-6)
        return None, damping, False


@dataclass(frozen=True, eq=False)
class MatrixFree:
    """Preconditioned conjugate gradients on everything together, then the coefficients anew."""

    X: Floats
    Y: Floats
    smooth: float
    wary: bool = True
    """Is the damping to fall only where a step kept its promise? Where a step takes a minute that takes too many."""
    tolerance: float = 0.01
    most: int = 100

    def solve(self, model: Model) -> Linear:
        return solve_linear(model, self.X, self.Y, self.smooth)

    def step(self, linear: Linear, damping: float) -> tuple[Linear | None, float]:
        if not linear.exact and linear.model.columns <= WIDE:  # one factor saves a hundred products
            linear = self.solve(linear.model)
        products = Products(linear.model, self.X, self.smooth, output_vectors(linear.model), single=True)
        products.prepare_slopes()
        turn, slide = products.diagonal()
        for _ in range(6):
            change, promise = self._change(products, linear, damping * turn, damping * slide)
            trial = solve_after(linear, step_model(linear.model, change), self.X, self.Y, self.smooth)
            if trial.objective < linear.objective:
                factor = _next(linear.objective - trial.objective, promise) if self.wary else 0.2
                return trial, max(damping * factor, 1e-9)
            damping = max(damping * 5.0, 1e-6)
        return None, damping

    def _change(self, products: Products, linear: Linear, turn: Floats, slide: Floats) -> tuple[Unknowns, float]:
        """Of everything at once, and what the cost would fall by were f̂ linear in it.

        With an exact factor at hand coefficients are eliminated, and few steps do.
        """
        c, residual = linear.model.coefficients, self.Y - linear.model.predict(self.X)
        factor = linear.factor if linear.exact else None
        turns = linear.model.directions.size
        gradient = pull(linear, self.X, self.Y)
        right = Unknowns(
            products.project(products.adjoint(residual)),
            gradient[:turns].reshape(linear.model.directions.shape),
            gradient[turns:],
        )
        damping = Unknowns(right.c, np.broadcast_to(turn, right.v.shape), slide)
        blocks = products.blocks(damping)
        if factor is None:
            right = Unknowns(right.c - products.project(products.penalty(c)), right.v, right.t)
            moved = conjugate_gradient(
                lambda q: products.normal(q, damping), blocks, right, tolerance=self.tolerance, most=self.most
            )
            return moved, _promise(right, moved, damping)
        right = Unknowns(np.zeros_like(c), right.v, right.t)
        moved = conjugate_gradient(
            lambda q: products.reduced(q, damping, factor),
            lambda q: replace(blocks(q), c=q.c),
            right,
            tolerance=self.tolerance,
            most=self.most,
        )
        follow = -cho_solve((factor, True), products.adjoint(products.move(moved)))
        return replace(moved, c=follow), _promise(right, moved, damping)


def _next(gain: float, promise: float) -> float:
    """Factor for the damping of the next step, bolder where this one kept its promise."""
    if gain > 0.75 * promise:
        return 0.2
    return 1.0 if gain > 0.25 * promise else 3.0


def _promise(g: Unknowns, q: Unknowns, damping: Unknowns) -> float:
    """2g·q − q·Hq, where conjugate gradients left q·(H + D)q = g·q."""
    return g.dot(q) + float(np.vdot(q.v, damping.v * q.v) + np.vdot(q.t, damping.t * q.t))


def solve_after(linear: Linear, model: Model, X: Floats, Y: Floats, smooth: float) -> Linear:
    """Coefficients of a model that has moved, with the old factor while hardly a response moved by more than half a
    knot of its own; the few that did cost some iterations.
    """
    turned = model.radius * np.abs(model.directions - linear.model.directions).max(axis=1, initial=0.0)
    slid = np.array([np.abs(t - o).max(initial=0.0) for t, o in zip(model.kinks, linear.model.kinks, strict=True)])
    far = np.maximum(turned, slid) >= model.radius / model.intervals
    if linear.factor is not None and far.sum() <= _FAR_MOVED * len(far):
        near = solve_nearby(model, X, Y, smooth, linear.factor)
        if near is not None:
            return near
    return solve_linear(model, X, Y, smooth)


def moved(model: Model, delta: Floats) -> Model:
    """Directions and kinks moved by δ; a direction turns by at most half a radian, a kink stays in [−R, R]."""
    n, d = model.directions.shape
    turn = delta[: n * d].reshape(n, d)
    length = np.linalg.norm(turn, axis=1, keepdims=True)
    turn = turn * np.minimum(1.0, 0.5 / np.maximum(length, 1e-300))
    kinks, at = [], n * d
    for t in model.kinks:
        kinks.append(np.clip(t + delta[at : at + len(t)], -model.radius, model.radius))
        at += len(t)
    return replace(model, directions=unit(model.directions + turn), kinks=tuple(kinks))
