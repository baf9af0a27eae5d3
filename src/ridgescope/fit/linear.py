"""The linear half of the fit: the best coefficients for given directions and kinks.

    C = argmin ‖Y − Φ C‖² + μ‖C‖² + roughness

by normal equations and Cholesky. The factor costs most, and it is reused: another roughness needs no new sums, a model
nearby needs only a few conjugate-gradient steps with it, and so does a model too wide to be summed over all points.
Sums are streamed in chunks, so memory does not grow with the number of points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve

from ..deadline import check_time, spend
from ..geometry import Floats
from . import threads
from .jacobian import RIDGE, Design, Unknowns, roughness_scale
from .model import TINY, Model

MAX_GRAM_COLUMNS = 6000
"""Columns above which ΦᵀΦ is summed over some of the points only: 290 MB, and a few seconds for the factor."""
STRONG_SMOOTHING, MEDIUM_SMOOTHING, WEAK_SMOOTHING = 1e-6, 1e-8, 1e-10
"""Roughness weights, relative to one point's: for directions that are guesses, for directions that are nearly right,
and for a finished fit. Held-out points choose among them.
"""
DEFAULT_SMOOTHING = 1e-9
"""Roughness weight if nothing is known about the directions."""
_CHUNK = 2**26  # bytes of one streamed block of the design matrix
_MIN_CHUNK = 256  # least rows of a block, however wide
_MAX_STEPS = 30  # conjugate-gradient steps after which a new factor is cheaper
_MAX_STEPS_SUBSAMPLED = 4 * _MAX_STEPS  # if the factor comes from some of the points and no better one is affordable
_PACE_STEPS = 6  # steps after which their rate of convergence is extrapolated
_SOLVED = 1e-9  # of the cost: coefficients count as solved if more steps could gain no more than this
_POINTS_PER_COLUMN = 3  # of a subsampled ΦᵀΦ: enough for a preconditioner
_PIVOT = 1e-13  # relative shift of each diagonal entry: the rounding error of summing it
_EMPTY_COLUMN = 1e-3  # of the mean square of a column: a column with less has hardly a point
_RIDGE_GROWTH, _RIDGE_TRIES = 30.0, 8  # factor by which the ridge grows if Cholesky fails, and how often


class Vector(Protocol):
    """The operations that conjugate gradients need of their vectors."""

    def plus(self, a: float, other: Self, /) -> Self: ...

    def dot(self, other: Self, /) -> float: ...


V = TypeVar("V", bound=Vector)


class ConjugateGradient(Generic[V]):
    """Preconditioned conjugate gradients for A x = b, one step at a time; the caller decides when to stop.

    `x` is the solution so far. `rho` = rᵀM⁻¹r, r = b − A x, is the squared residual in the preconditioner's norm; if M
    were A it would be the squared A-norm of the error of x.
    """

    def __init__(self, apply: Callable[[V], V], precondition: Callable[[V], V], start: V, residual: V) -> None:
        """Start at `start`, where the residual b − A·start is `residual`."""
        self._apply, self._precondition = apply, precondition
        self.x, self._r = start, residual
        self._p = precondition(residual)
        self.rho = residual.dot(self._p)

    def step(self) -> float:
        """Take one step and return its length; return 0.0 without a step if A is not positive along it."""
        Ap = self._apply(self._p)
        curvature = self._p.dot(Ap)
        if curvature <= 0:
            return 0.0
        alpha = self.rho / curvature
        self.x, self._r = self.x.plus(alpha, self._p), self._r.plus(-alpha, Ap)
        y = self._precondition(self._r)
        self.rho, before = self._r.dot(y), self.rho
        self._p = y.plus(self.rho / before, self._p)
        return alpha


@dataclass(frozen=True, eq=False)
class Linear:
    """The solved linear problem at one (v, t)."""

    model: Model
    factor: Floats | None
    """Lower Cholesky factor of ΦᵀΦ + μ, if it was formed: of this model or, unless `exact`, of one nearby."""
    cost: float
    """‖Y − ΦC‖², summed over points and outputs."""
    exact: bool = True
    penalty: float = 0.0
    """μ‖C‖² + roughness."""

    @property
    def objective(self) -> float:
        """The minimum over C; its gradient in v and t is therefore that of ‖Y − ΦC‖² with C held fixed."""
        return self.cost + self.penalty


def chunks(count: int, columns: int) -> Iterator[slice]:
    """Yield slices of 0 … count rows whose (rows, columns) blocks take at most `_CHUNK` bytes each.

    The time limit of the run is looked at before each of them.
    """
    for c in threads.portions(count, max(_MIN_CHUNK, _CHUNK // (8 * max(columns, 1)))):
        check_time()
        yield c


class Gram:
    """ΦᵀΦ and ΦᵀY of one model, from which coefficients for any roughness weight are solved.

    A wide model's ΦᵀΦ is summed over some of the points; its factor then preconditions the solve over all.
    """

    @threads.one_blas_thread()
    def __init__(self, model: Model, X: Floats, Y: Floats) -> None:
        self.model, self.X, self.Y = model, X, Y
        N = model.columns
        self.stride = max(1, len(X) // (_POINTS_PER_COLUMN * N)) if N > MAX_GRAM_COLUMNS else 1
        X, Y = X[:: self.stride], Y[:: self.stride]
        spend(len(X) * N**2 / 2 + N**3 / 3)
        self.mean = self.Y.mean(axis=0)  # subtracted first, so that regularisation does not act on it
        self.gram, self.right = np.zeros((N, N), order="F"), np.zeros((N, Y.shape[1]))
        for c in chunks(len(X), N):
            phi = model.design(X[c])
            threads.add_gram(self.gram, phi)
            self.right += threads.inner(phi, Y[c] - self.mean)

    @threads.one_blas_thread()
    def solve(self, smoothing: float) -> Linear:
        """Solve for the best coefficients with this roughness weight."""
        model, X, Y = self.model, self.X, self.Y
        gram = self.gram * float(self.stride)
        _add_roughness(gram, model, smoothing * len(X))
        factor = _regularised_factor(gram, len(X))
        coefficients = cho_solve((factor, True), self.right * float(self.stride))
        penalty = _penalty(model, coefficients, smoothing, len(X))
        coefficients[-1 - model.dim] += self.mean
        solved = replace(model, coefficients=coefficients)
        if self.stride > 1:
            return _iterated(solved, X, Y, smoothing, factor, _MAX_STEPS_SUBSAMPLED)[0]
        return Linear(solved, factor, cost_of(solved, X, Y), penalty=penalty)


def cost_of(model: Model, X: Floats, Y: Floats) -> float:
    """Return ‖Y − f̂(X)‖², summed over points and outputs."""
    return sum(float(np.sum((Y[c] - model.predict(X[c])) ** 2)) for c in chunks(len(X), 4 * model.count))


def solve_linear(model: Model, X: Floats, Y: Floats, smoothing: float = DEFAULT_SMOOTHING) -> Linear:
    """Solve for the best coefficients of the model's directions and kinks."""
    return Gram(model, X, Y).solve(smoothing)


def solve_nearby(model: Model, X: Floats, Y: Floats, smoothing: float, factor: Floats) -> Linear | None:
    """Solve as `solve_linear` does, by conjugate gradients from the model's coefficients with a nearby model's factor.

    None if that model is too far away for a few steps to suffice.
    """
    linear, converged = _iterated(model, X, Y, smoothing, factor, _MAX_STEPS, give_up=True)
    return linear if converged else None


@threads.one_blas_thread()
def _iterated(
    model: Model, X: Floats, Y: Floats, smoothing: float, factor: Floats, most: int, give_up: bool = False
) -> tuple[Linear, bool]:
    """Iterate conjugate gradients preconditioned by `factor`; return the solution and whether they converged.

    They converge when ρ = gᵀ(LLᵀ)⁻¹g, which estimates how much the cost could still fall, is a billionth of it. With
    `give_up` they end if `most` steps would not suffice at the rate of the first few.
    """
    design = Design(model, X, smoothing)
    mean = Y.mean(axis=0)
    c = model.coefficients.copy()
    c[-1 - model.dim] -= mean
    residual = Y - mean - design.values(c)
    image = residual

    def normal(p: Unknowns) -> Unknowns:
        nonlocal image
        image = design.values(p.c)
        return Unknowns(design.adjoint(image) + design.penalty(p.c))

    def precondition(g: Unknowns) -> Unknowns:
        return Unknowns(cho_solve((factor, True), g.c))

    gradient = Unknowns(design.adjoint(residual) - design.penalty(c))
    iteration = ConjugateGradient(normal, precondition, Unknowns(c), gradient)
    first, converged = max(iteration.rho, TINY), False
    for step in range(most):
        enough = _SOLVED * float(np.vdot(residual, residual))
        if iteration.rho <= enough:
            converged = True
            break
        if give_up and step >= _PACE_STEPS and step * np.log(first / enough) > most * np.log(first / iteration.rho):
            break
        alpha = iteration.step()
        if not alpha:
            break
        residual = residual - alpha * image
    c = iteration.x.c
    penalty = float(np.vdot(c, design.penalty(c)))
    c[-1 - model.dim] += mean
    cost = float(np.vdot(residual, residual))
    return Linear(replace(model, coefficients=c), factor, cost, exact=False, penalty=penalty), converged


@threads.one_blas_thread()
def keep_features(linear: Linear, keep: NDArray[np.intp], X: Floats, Y: Floats, smoothing: float) -> Linear:
    """Solve for the coefficients of the features `keep` with unchanged directions, without new sums over the points.

    With A = LLᵀ the columns that stay have A' = L'L'ᵀ, where L' are their rows of L.
    """
    model, factor = linear.model, linear.factor
    smaller = model.keep(keep)
    if factor is None:
        return solve_linear(smaller, X, Y, smoothing)
    blocks = [np.arange(model.offsets[i], model.offsets[i + 1]) for i in keep]
    rows = np.concatenate([*blocks, np.arange(model.offsets[-1], model.columns)])
    gram = np.zeros((len(rows), len(rows)), order="F")
    threads.add_gram(gram, factor[rows].T)
    own = _regularised_factor(gram, len(X))
    return replace(_iterated(smaller, X, Y, smoothing, own, _MAX_STEPS)[0], exact=linear.exact)


def _penalty(model: Model, c: Floats, smoothing: float, count: int) -> float:
    """Return μ‖C‖² + roughness."""
    total = RIDGE * count * float(np.vdot(c, c))
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        second = np.diff(c[start : start + K + 3], n=2, axis=0)
        total += smoothing * count * roughness_scale(int(K)) * float(np.vdot(second, second))
    return total


def _add_roughness(gram: Floats, model: Model, weight: float) -> None:
    """Add weight·∫s''² of every spline, up to a constant, to the lower triangle in place.

    Near data this is far below their weight; without data it extends the response along a straight line.
    """
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        k = start + np.arange(K + 1)
        per_interval = weight * roughness_scale(int(K))
        for a, wa in enumerate((1.0, -2.0, 1.0)):
            for b, wb in enumerate((1.0, -2.0, 1.0)):
                if a >= b:
                    gram[k + a, k + b] += per_interval * wa * wb


def _regularised_factor(gram: Floats, count: int) -> Floats:
    """Return the Cholesky factor of `gram`, a sum over `count` points, with the least ridge that makes it positive."""
    ridge = RIDGE * count
    diagonal = np.arange(len(gram))
    scale = np.maximum(gram[diagonal, diagonal], _EMPTY_COLUMN * count / len(gram))
    for _ in range(_RIDGE_TRIES):
        trial = gram.copy(order="F")
        trial[diagonal, diagonal] += ridge + _PIVOT * scale
        try:
            return threads.cholesky(trial)
        except LinAlgError:
            ridge *= _RIDGE_GROWTH
    raise LinAlgError("the normal equations stay singular; the fit points must be degenerate")
