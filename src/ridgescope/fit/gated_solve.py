"""Gauss–Newton steps of gated units, by variable projection.

With A_i(x) = φ_i(g_i·x + b_i)(w_i·x + c_i) the output vectors, bias and slope are linear: C = argmin ‖Y − [A 1 X] C‖².
A change of a unit's gate (δb, δg) and carrier (δc, δw) moves f̂ by

    J δ = Σ_i [ φ_i'·(w_i·x + c_i)·(δb_i + δg_i·x) + φ_i·(δc_i + δw_i·x) ] o_i,

and with P the projection onto the complement of the linear columns a step solves (JᵀPJ + λD) δ = Jᵀ r, r = P Y
(Kaufman's approximation, as in `closed_steps`). Few unknowns are solved for directly; many by conjugate gradients with
one block per unit (`gated_blocks`). One product costs four of points × units × (d + 1), two of points × units × p and
two for the projection, all in single precision: the right-hand side is computed in double precision, so that steps lead
to the same minimum.

The length of (w, c) is a gauge, as o scales inversely; it is one. So is the length of g where φ is a ReLU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky

from ..deadline import check_time, spend
from ..geometry import Floats
from . import threads
from .gated_blocks import GatedBlocks
from .gated_form import GATE_INDEX, GatedForms
from .linear import ConjugateGradient
from .model import TINY

Numbers = NDArray[Any]
_RIDGE = 1e-15  # of a unit diagonal: the rounding error of a sum
_RIDGE_GROWTH, _RIDGE_TRIES = 30.0, 10
_FALL, _RISE, _MIN_DAMPING, _MAX_DAMPING, _FIRST_DAMPING = 0.2, 6.0, 1e-12, 1e6, 1e-4
_TRIES = 6  # dampings per step
_MAX_DENSE = 1600  # unknowns up to which a step is solved for directly: a few tenths of a second
_CG_STEPS, _CG_TOLERANCE = 80, 0.02  # a step needs one or two digits, since others follow
_BLOCK = 1024  # points whose products are computed together: BLAS is at full speed, and a block has some megabytes
_STEP_RIDGE = 1e-13  # of the largest diagonal entry
_BELOW_SINGLE, _STALLED = 1e-8, 0.9
"""RMS error over the answers' deviation, a tenth of the rounding error of single precision, and the least gain there: a
step that converges lowers the cost by the square of the tolerance of conjugate gradients."""
_SOUND = 1e12  # outputs, gates and slopes whose products are numbers in single precision
_LARGEST = 1e100  # values whose squares are no numbers


def is_iterative(count: int, dim: int) -> bool:
    """Return whether steps of so many units are solved for by conjugate gradients."""
    return 2 * count * (dim + 1) > _MAX_DENSE


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of J and P at the points, in one precision."""

    flat: Numbers
    gate: Numbers
    slopes: Numbers
    columns: Numbers


@dataclass(frozen=True, eq=False)
class GatedSolved:
    """Gated units with the best linear coefficients for given points."""

    forms: GatedForms
    X: Floats
    Y: Floats
    flat: Floats
    """(m, d + 1) ones and X."""
    gate: Floats
    """(m, n) φ."""
    slopes: Floats
    """(m, n) φ'·(w·x + c)."""
    columns: Floats
    """(m, n + 1 + d) linear columns, each of length one."""
    factor: Floats
    """Lower Cholesky factor of their Gram matrix."""
    residual: Floats
    """(m, p)."""

    @classmethod
    def of(cls, forms: GatedForms, X: Floats, Y: Floats) -> GatedSolved:
        """Solve for the linear coefficients; raise `LinAlgError` if columns are not finite."""
        gate, slope = forms.gates(X)
        carried = forms.carried(X)
        flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        columns = np.concatenate([gate * carried, flat], axis=1)
        length = np.linalg.norm(columns, axis=0)
        if not (length < _LARGEST).all():
            raise LinAlgError("the columns of gated units are not finite")
        scale = np.where(length > 0, length, 1.0)
        columns /= scale
        factor = _factor(threads.gram(columns))
        inner = cho_solve((factor, True), columns.T @ Y)
        residual = Y - columns @ inner
        inner += (correction := cho_solve((factor, True), columns.T @ residual))  # one step of iterative refinement
        residual -= columns @ correction
        solved = replace(forms, coefficients=inner / scale[:, None])
        return cls(solved, X, Y, flat, gate, slope * carried, columns, factor, residual)

    def factors(self, kind: type[np.float32 | np.float64]) -> Factors:
        """Return what products of a step need, in this precision."""
        return Factors(*(a.astype(kind, copy=False) for a in (self.flat, self.gate, self.slopes, self.columns)))

    @property
    def cost(self) -> float:
        return float(np.vdot(self.residual, self.residual))

    @property
    def rms(self) -> float:
        return float(np.sqrt(self.cost / self.residual.size))

    @property
    def is_sound(self) -> bool:
        """Whether products of what a step needs are numbers in single precision."""
        return max(float(np.abs(a).max(initial=0.0)) for a in (self.forms.outputs, self.gate, self.slopes)) < _SOUND

    def project(self, values: Floats) -> Floats:
        """Return columns (m, q) without what the linear unknowns follow."""
        return np.asarray(values - self.columns @ cho_solve((self.factor, True), self.columns.T @ values))

    def removal_costs(self) -> Floats:
        """Return (n,) the rise of the cost without each unit, if the others stay as they are."""
        inverse = cho_solve((self.factor, True), np.eye(len(self.factor)))
        n = self.forms.count
        length = np.linalg.norm(self.gate * self.forms.carried(self.X), axis=0)
        scaled = self.forms.outputs * length[:, None]
        return np.asarray(np.sum(scaled**2, axis=1) / np.maximum(inverse.diagonal()[:n], TINY))


def _factor(gram: Floats) -> Floats:
    """Return the Cholesky factor with the least ridge that makes the matrix positive."""
    ridge, diagonal = _RIDGE * len(gram), np.arange(len(gram))
    for _ in range(_RIDGE_TRIES):
        trial = gram.copy()
        trial[diagonal, diagonal] += ridge
        try:
            return np.asarray(cholesky(trial, lower=True, check_finite=False))
        except LinAlgError:
            ridge *= _RIDGE_GROWTH
    raise LinAlgError("the columns of gated units are not finite")


@threads.one_blas_thread()
def minimise(
    solved: GatedSolved,
    *,
    steps: int,
    min_gain: float = 1e-3,
    target: float = 0.0,
    keep: Callable[[GatedSolved], object] | None = None,
) -> GatedSolved:
    """Lower the cost by at most `steps` Levenberg–Marquardt steps in gates and carriers.

    The iteration ends when a step lowers the cost by less than the share `min_gain`, or when the cost is `target`.
    Steps that are iterative, whose products are in single precision, also end once the error is far below that
    precision and falls slowly: each of them would take as long as the one that brought it there.
    `keep` is called with what each step brought, which is all that is left where a limit ends the run.
    """
    damping = _FIRST_DAMPING
    for _ in range(steps):
        check_time()
        if solved.cost <= target:
            break
        if not solved.is_sound:
            break
        stepper, better = GatedStep(solved), None
        for _ in range(_TRIES):
            try:
                trial = GatedSolved.of(stepper.moved(damping), solved.X, solved.Y)
            except LinAlgError:
                trial = None
            if trial is not None and trial.cost < solved.cost:
                better = trial
                break
            damping = min(damping * _RISE, _MAX_DAMPING)
        if better is None:
            break
        damping = max(damping * _FALL, _MIN_DAMPING)
        gain, solved = 1.0 - better.cost / solved.cost, better
        if keep is not None:
            keep(solved)
        slow = stepper.matrix is None and solved.rms <= _BELOW_SINGLE * float(np.std(solved.Y))
        if gain < (max(min_gain, _STALLED) if slow else min_gain):
            break
    return solved


@dataclass(frozen=True, eq=False)
class Change:
    """A change (n, 2(d + 1)) of b, g, c and w of all units, as a vector for conjugate gradients."""

    rows: Floats

    def plus(self, a: float, other: Self) -> Change:
        return Change(self.rows + a * other.rows)

    def dot(self, other: Self) -> float:
        return float(np.vdot(self.rows, other.rows))


class GatedStep:
    """A step in gates and carriers of all units."""

    def __init__(self, solved: GatedSolved) -> None:
        self.solved, self.forms = solved, solved.forms
        self.o, self.q = self.forms.outputs, solved.flat.shape[1]
        self.fixed = self._fixed()
        pull = solved.residual @ self.o.T
        right = np.concatenate([(pull * solved.slopes).T @ solved.flat, (pull * solved.gate).T @ solved.flat], axis=1)
        self.right = self.tangent(Change(right))
        iterative = is_iterative(self.forms.count, self.forms.dim)
        self.factors = solved.factors(np.float32 if iterative else np.float64)
        self.matrix = None if iterative else self.normal_matrix()
        self.blocks = self._blocks() if iterative else None

    def _fixed(self) -> Floats:
        """Return (n, 2, 2(d+1)) unit vectors along which nothing moves; zero rows where there are fewer.

        These are the carrier itself, and the gate if it is a ReLU, whose lengths are gauges.
        """
        forms, q = self.forms, self.q
        fixed = np.zeros((forms.count, 2, 2 * q))
        carrier = np.concatenate([forms.c[:, None], forms.w], axis=1)
        fixed[:, 0, q:] = carrier / np.linalg.norm(carrier, axis=1, keepdims=True)
        homogeneous = forms.family == GATE_INDEX["relu"]
        gate = np.concatenate([forms.b[:, None], forms.g], axis=1)
        fixed[homogeneous, 1, :q] = gate[homogeneous] / np.linalg.norm(gate[homogeneous], axis=1, keepdims=True)
        return fixed

    def tangent(self, change: Change) -> Change:
        """Return the change without what is fixed: gauges, and the carriers of plain units."""
        rows = change.rows.copy()
        rows[~self.forms.gated, self.q :] = 0.0
        for k in (0, 1):
            along = self.fixed[:, k]
            rows -= np.einsum("nq,nq->n", rows, along)[:, None] * along
        return Change(rows)

    def image(self, change: Change) -> Numbers:
        """Return J δ (m, p)."""
        a, q = self.factors, self.q
        rows, o = change.rows.astype(a.flat.dtype), self.o.astype(a.flat.dtype)

        def part(at: slice) -> Numbers:
            moved = a.flat[at] @ rows[:, :q].T
            moved *= a.slopes[at]
            carried = a.flat[at] @ rows[:, q:].T
            carried *= a.gate[at]
            moved += carried
            return np.asarray(moved @ o)

        return np.concatenate(threads.parallel_map(part, self._parts))

    def adjoint(self, values: Numbers) -> Change:
        """Return Jᵀ of values (m, p)."""
        a, o = self.factors, self.o.astype(self.factors.flat.dtype)

        def part(at: slice) -> Numbers:
            pull = values[at] @ o.T
            rows = (pull * a.slopes[at]).T @ a.flat[at], (pull * a.gate[at]).T @ a.flat[at]
            return np.concatenate(rows, axis=1)

        return self.tangent(Change(np.sum(threads.parallel_map(part, self._parts), axis=0, dtype=np.float64)))

    def project(self, values: Numbers) -> Numbers:
        """Return P of values (m, p)."""
        columns = self.factors.columns
        onto = threads.parallel_map(lambda at: columns[at].T @ values[at], self._parts)
        factor = self.solved.factor
        follow = cho_solve((factor, True), np.sum(onto, axis=0, dtype=np.float64), check_finite=False)
        follow = follow.astype(columns.dtype)
        return np.concatenate(threads.parallel_map(lambda at: values[at] - columns[at] @ follow, self._parts))

    def normal(self, change: Change) -> Change:
        """Return JᵀPJ δ."""
        check_time()
        (n, p), m = self.o.shape, len(self.factors.flat)
        spend(4.0 * m * (n * (2 * self.q + p) + len(self.solved.factor) * p))
        change = self.tangent(change)
        size = max(float(np.sqrt(change.dot(change))), TINY)  # squares of single precision must not overflow
        return Change(size * self.adjoint(self.project(self.image(Change(change.rows / size)))).rows)

    @property
    def _parts(self) -> list[slice]:
        return threads.portions(len(self.factors.flat), _BLOCK)

    def normal_matrix(self) -> Floats:
        """Return JᵀPJ (2n(d+1), 2n(d+1)) as a whole, in which what is fixed has a row of its own."""
        solved, (n, width) = self.solved, self.right.rows.shape
        m = len(solved.X)
        D = np.concatenate(
            [solved.slopes[:, :, None] * solved.flat[:, None, :], solved.gate[:, :, None] * solved.flat[:, None, :]],
            axis=2,
        ).reshape(m, n * width)
        onto = solved.columns.T @ D
        matrix = D.T @ D - onto.T @ cho_solve((solved.factor, True), onto)
        vectors = np.repeat(self.o, width, axis=0)
        matrix *= vectors @ vectors.T
        typical = float(np.trace(matrix)) / len(matrix) + TINY
        keep = np.zeros((n * width, n * width))
        for i in range(n):
            at = slice(i * width, (i + 1) * width)
            keep[at, at] = self._movable(i)
        return np.asarray(keep @ matrix @ keep + (np.eye(n * width) - keep) * typical)

    def project_unit(self, i: int, matrix: Floats) -> Floats:
        """Return a matrix of unit i's unknowns without its rows and columns along what is fixed."""
        keep = self._movable(i)
        return np.asarray(keep @ matrix @ keep)

    def _movable(self, i: int) -> Floats:
        """Return the projection (2(d+1), 2(d+1)) of unit i's unknowns onto those that may move."""
        own = np.eye(2 * self.q)
        if not self.forms.gated[i]:
            own[self.q :, self.q :] = 0.0
        for along in self.fixed[i]:
            own -= np.multiply.outer(own @ along, own @ along)
        return own

    def _blocks(self) -> GatedBlocks:
        solved = self.solved
        return GatedBlocks.of(self.forms, solved.X, solved.gate, solved.slopes, self.fixed)

    def moved(self, damping: float) -> GatedForms:
        """Return the forms after the damped step, with carriers (w, c) of length one."""
        forms, q, rows = self.forms, self.q, self._step(damping)
        b, g = forms.b + rows[:, 0], forms.g + rows[:, 1:q]
        c, w = forms.c + rows[:, q], forms.w + rows[:, q + 1 :]
        length = np.sqrt(np.einsum("nd,nd->n", w, w) + c * c)
        return replace(forms, b=b, g=g, c=c / length, w=w / length[:, None])

    def _step(self, damping: float) -> Floats:
        """Return the damped step (n, 2(d + 1))."""
        if self.matrix is not None:
            own = self.matrix.diagonal()
            try:
                factor = cho_factor(self.matrix + np.diag(damping * own + _STEP_RIDGE * own.max()), lower=True)
                rows = cho_solve(factor, self.right.rows.ravel()).reshape(self.right.rows.shape)
                return self.tangent(Change(rows)).rows
            except LinAlgError:
                pass
        return self.solution(self.right, damping).rows

    def solution(self, right: Change, damping: float) -> Change:
        """Return (JᵀPJ + λD)⁻¹ of a change to one or two digits, by conjugate gradients."""
        blocks = self.blocks if self.blocks is not None else self._blocks()
        inverses = blocks.inverses(damping)

        def normal(change: Change) -> Change:
            return self.tangent(self.normal(change).plus(1.0, Change(blocks.weighted(change.rows, damping))))

        step = ConjugateGradient(
            normal,
            lambda change: self.tangent(Change(blocks.solved(self.tangent(change).rows, inverses))),
            Change(np.zeros_like(right.rows)),
            right,
        )
        first = step.rho
        for _ in range(_CG_STEPS):
            if step.rho <= _CG_TOLERANCE**2 * first or not step.step():
                break
        return step.x
