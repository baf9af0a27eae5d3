"""Steps of closed forms in (w, b), by variable projection.

A change δ of (w, b) moves f̂ by J δ = Σ_i φ_i'(y_i)(x·δw_i + δb_i) c_i. With P the projection onto the complement of the
linear columns (Kaufman's approximation of 1975) a step solves

    (JᵀPJ + λD) δ = Jᵀ r,        r = P Y

The p-vectors enter only by their inner products: entry ((i,a),(j,b)) is (c_i·c_j) times a scalar sum over the points.

    along       w_i keeps its direction: two unknowns κ_i = |w_i|R and b_i a feature, dense equations; splines stay
    free        all of w_i and b_i: d + 1 unknowns a feature, conjugate gradients with one block per feature
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ..deadline import check_time
from ..geometry import Floats
from . import threads
from .activations import ACTIVATIONS, MAX_KAPPA, MIN_KAPPA, SPLINE, Indices
from .closed_blocks import Group, coupled_groups, single_blocks
from .closed_form import ClosedForms
from .closed_solve import Solved
from .closed_tangents import Tangents
from .linear import ConjugateGradient
from .model import TINY

_FALL, _RISE, _MIN_DAMPING, _MAX_DAMPING = 0.2, 6.0, 1e-10, 1e6
_FIRST_DAMPING = 1e-3
_MAX_CHANGE = 0.5  # of κ, and of b in widths of a bend, in one step
_OVERFLOWS = 1e150  # slopes or outputs whose squares are no numbers: such forms are not worth a step
_TRIES = 6  # dampings per step
_MEAGRE = 0.1  # of the least gain that calls for another step: what another is predicted to gain, and need not be tried
_CG_STEPS, _CG_TOLERANCE = 60, 0.03  # a step needs one or two digits, since others follow
_LAST_CG_STEPS, _LAST_CG_TOLERANCE = 200, 1e-4  # one of the last steps: four digits, as many as it can gain
_LAST_GAIN = 0.9  # share of the cost that one of these must gain for another one to follow: half a digit
_LAST_STEPS = 6  # at most; near the solution each squares the error
_MAX_DENSE = 800  # unknowns up to which a step with free directions is solved for directly: a tenth of a second
_TOGETHER = 16  # blocks that one thread inverts at a time
_BLOCK_RIDGE = 1e-6  # of a block's diagonal: sums over some of the points are not exact
_UNSCALED = [SPLINE, *(k for k, form in enumerate(ACTIVATIONS) if not form.moves[0])]  # families whose κ is 1
_STEP_RIDGE = 1e-12  # of the largest diagonal entry


@threads.one_blas_thread()
def minimise(
    solved: Solved,
    *,
    steps: int,
    min_gain: float = 1e-3,
    free: bool = False,
    target: float = 0.0,
    damping: float = _FIRST_DAMPING,
) -> Solved:
    """Lower the cost by at most `steps` Levenberg–Marquardt steps; with `free` directions move, too.

    The iteration ends when a step lowers the cost by less than the share `min_gain`, or when the cost is `target`.
    `damping` is that of the first step, relative to the diagonal of the normal matrix.
    """
    if not (free or len(solved.forms.closed)):
        return solved
    stepper: Along | Free | None = None
    for _ in range(steps):
        check_time()
        largest = max(np.abs(a).max(initial=0.0) for a in (solved.atom_slopes, solved.forms.outputs))
        if solved.cost <= target or not largest < _OVERFLOWS:
            break
        if isinstance(stepper, Along) and min_gain > 0.0 and stepper.next_gain(solved, damping) < _MEAGRE * min_gain:
            break
        stepper = Free(solved) if free else Along(solved)
        better = None
        for _ in range(_TRIES):
            trial = Solved.of(stepper.moved(damping), solved.data, near=solved)
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


@threads.one_blas_thread()
def minimise_to_rounding(solved: Solved, *, target: float) -> Solved:
    """Lower the cost with free directions as long as each step gains half a digit, or until it is `target`.

    For forms that are right up to their last digits: steps are hardly damped and solved for to several digits, since
    rough ones spread the error of a few features, that of the others included, over all. Features that are coupled
    strongly share a block of the preconditioner, which is made once.
    """
    damping, groups = _MIN_DAMPING, None
    for _ in range(_LAST_STEPS):
        check_time()
        if solved.cost <= target:
            break
        if groups is None:
            groups = coupled_groups(solved) if _is_large(solved.forms) else ()
        trial = Solved.of(Free(solved, groups, last=True).moved(damping), solved.data, near=solved)
        gain = 1.0 - trial.cost / solved.cost
        solved = trial if gain > 0 else solved
        if gain < _LAST_GAIN:
            break
    return solved


def _is_large(forms: ClosedForms) -> bool:
    """Return whether a step with free directions has too many unknowns to be solved for directly."""
    return forms.count * (forms.dim + 1) > _MAX_DENSE


class Along:
    """A step in κ_i and b_i."""

    def __init__(self, solved: Solved) -> None:
        self.forms, closed = solved.forms, solved.forms.closed
        forms = solved.forms
        self.moves = np.array([ACTIVATIONS[k].moves for k in forms.family[closed]], dtype=np.float64).T.ravel()
        u, self.gradient = self._pull(solved)
        slopes, outputs = solved.atom_slopes, forms.outputs[closed]
        D = np.concatenate([slopes * u, slopes], axis=1) * self.moves
        size = np.linalg.norm(outputs, axis=1) + TINY  # with D, since the two may be huge and tiny
        D = D * np.tile(size, 2)
        onto = solved.onto(D)
        c = np.tile(outputs / size[:, None], (2, 1))
        self.normal = solved.projected_products(D, onto, solved.follow(onto)) * (c @ c.T)

    def _pull(self, solved: Solved) -> tuple[Floats, Floats]:
        """Return u = z/R (m, k) of the closed forms, and the derivative (2k,) of half the cost by −κ and −b."""
        forms, closed = solved.forms, solved.forms.closed
        u = solved.data.X @ forms.directions[closed].T / forms.radius
        pull = (solved.residual @ forms.outputs[closed].T) * solved.atom_slopes
        return u, np.concatenate([np.einsum("mk,mk->k", pull, u), pull.sum(axis=0)]) * self.moves

    def next_gain(self, solved: Solved, damping: float) -> float:
        """Return the share of its cost that another step, from `solved`, would gain if the matrix were still this one.

        The gradient takes a tenth of the time of a matrix, and near the solution the matrix hardly changes.
        """
        gradient = self._pull(solved)[1]
        step = self._step(damping, gradient)
        return float(2.0 * gradient @ step - step @ self.normal @ step) / (solved.cost + TINY)

    def _step(self, damping: float, gradient: Floats) -> Floats:
        """Return the damped step for this gradient."""
        diagonal = self.normal.diagonal()
        shift = damping * diagonal + _STEP_RIDGE * diagonal.max() + TINY
        try:
            return np.asarray(cho_solve(cho_factor(self.normal + np.diag(shift), lower=True), gradient))
        except LinAlgError:
            return np.asarray(gradient / (shift + diagonal))

    def moved(self, damping: float) -> ClosedForms:
        """Return the forms after the damped step, which is bounded for each feature."""
        forms, closed = self.forms, self.forms.closed
        step = self._step(damping, self.gradient)
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
    """A change (n, d + 1) of b_i and w_i, as a vector for conjugate gradients."""

    w: Floats

    def plus(self, a: float, other: Self) -> Turn:
        return Turn(self.w + a * other.w)

    def dot(self, other: Self) -> float:
        return float(np.vdot(self.w, other.w))


@dataclass(frozen=True, eq=False)
class NormalProduct:
    """Products δ ↦ JᵀPJ δ, in single or double precision.

    Single precision suffices for a step that is solved for to two digits. Features are normalised, so that nothing
    overflows there.
    """

    solved: Solved
    flat: NDArray[Any]
    """(m, d + 1)."""
    slopes: NDArray[Any]
    """(m, n) φ' over its largest value."""
    c: NDArray[Any]
    """(n, p) unit output vectors."""
    parts: list[NDArray[Any]]
    """All linear columns."""
    size: Floats
    """(n, 1) what the features were divided by."""

    @classmethod
    def of(cls, solved: Solved, kind: type[np.floating[Any]]) -> NormalProduct:
        """Prepare products in this precision."""
        c, steep = solved.forms.outputs, np.abs(solved.slopes).max(axis=0, initial=0.0) + TINY
        size = np.linalg.norm(c, axis=1) + TINY
        slopes = np.empty(solved.slopes.shape, kind)

        def strip(rows: slice) -> None:
            slopes[rows] = solved.slopes[rows] / steep

        threads.parallel_map(strip, threads.strips(*slopes.shape))
        parts = [part.astype(kind, copy=False) for part in solved.parts]
        unit_c = (c / size[:, None]).astype(kind)
        return cls(solved, solved.data.flat.astype(kind, copy=False), slopes, unit_c, parts, (size * steep)[:, None])

    def __call__(self, w: Floats) -> Floats:
        """Return JᵀPJ δ for δ = w (n, d + 1)."""
        flat, slopes, c = self.flat, self.slopes, self.c
        turn = self.size * w
        largest = float(np.abs(turn).max(initial=0.0)) + TINY
        turn = (turn / largest).astype(flat.dtype)
        image = np.empty((len(flat), c.shape[1]), flat.dtype)
        strips = threads.strips(len(flat), len(c))

        def forward(rows: slice) -> Floats:
            onto = np.zeros((sum(part.shape[1] for part in self.parts), c.shape[1]))
            for r in threads.cached(rows, len(c)):
                image[r] = (slopes[r] * (flat[r] @ turn.T)) @ c
                onto += np.concatenate([part[r].T @ image[r] for part in self.parts])
            return onto

        onto, q = threads.summed(forward, strips), flat.shape[1]
        follow = np.concatenate([onto[:q], self.solved.follow(onto[q:])]).astype(flat.dtype)
        cuts = np.cumsum([0, *(part.shape[1] for part in self.parts)])

        def backward(rows: slice) -> Floats:
            back = np.zeros(w.shape)
            for r in threads.cached(rows, len(c)):
                left = image[r].copy()
                for part, a, b in zip(self.parts, cuts, cuts[1:], strict=False):
                    left -= part[r] @ follow[a:b]
                back += ((left @ c.T) * slopes[r]).T @ flat[r]
            return back

        return np.asarray(threads.summed(backward, strips) * (self.size * largest))


class Free:
    """A step in all of w_i and b_i.

    It is solved for directly if the unknowns are few, which is more exact, and otherwise by conjugate gradients that
    one block per feature preconditions.
    """

    def __init__(self, solved: Solved, groups: tuple[Group, ...] = (), *, last: bool = False) -> None:
        """Prepare a step; features of `groups` share blocks, and one of the `last` steps is solved for more exactly."""
        self.solved, self.forms, self.groups = solved, solved.forms, groups
        self.most, self.tolerance = (_LAST_CG_STEPS, _LAST_CG_TOLERANCE) if last else (_CG_STEPS, _CG_TOLERANCE)
        self.c = self.forms.outputs
        moves = np.array([moves_of(int(k)) for k in self.forms.family])
        self.fixed, self.shifts, self.unlimited = ~moves[:, 0], moves[:, 1], bool(moves.all())
        self.right = self._tangent(Turn(solved.gradient()))
        self.kind: type[np.floating[Any]] = np.float64 if last else np.float32
        self.matrix = None if _is_large(self.forms) else self._matrix()

    def _tangent(self, turn: Turn) -> Turn:
        """Return the change without its part along w_i where the family has no scale of its own, or b_i, no shift."""
        if self.unlimited:
            return turn
        v = self.forms.directions * self.fixed[:, None]
        w = turn.w.copy()
        w[:, 0] *= self.shifts
        w[:, 1:] -= np.einsum("nd,nd->n", w[:, 1:], v)[:, None] * v
        return Turn(w)

    def _matrix(self) -> Floats:
        """Return JᵀPJ (n(d+1), n(d+1)) as a whole, with ones for what must not move."""
        n, q = self.right.w.shape
        vectors = np.repeat(self.c, q, axis=0)
        matrix = Tangents(self.solved, np.arange(n)).exact_products() * (vectors @ vectors.T)
        keep = np.zeros((n * q, n * q))
        for i, v in enumerate(self.forms.directions):
            at = slice(i * q, (i + 1) * q)
            keep[at, at][0, 0] = self.shifts[i]
            keep[at, at][1:, 1:] = np.eye(q - 1) - self.fixed[i] * np.multiply.outer(v, v)
        return np.asarray(keep @ matrix @ keep + (np.eye(n * q) - keep) * (np.trace(matrix) / (n * q) + TINY))

    @cached_property
    def product(self) -> NormalProduct:
        return NormalProduct.of(self.solved, self.kind)

    @cached_property
    def blocks(self) -> Floats:
        """(n, d+1, d+1) own blocks of the features."""
        return single_blocks(self.solved)

    def _normal(self, turn: Turn, shift: Floats) -> Turn:
        turn = self._tangent(turn)
        return self._tangent(Turn(self.product(turn.w) + shift * turn.w))

    def moved(self, damping: float) -> ClosedForms:
        """Return the forms after the damped step, which is bounded for each feature as in `Along`."""
        forms, change = self.forms, self._change(damping)
        w = forms.directions * (forms.kappa / forms.radius)[:, None]
        most = _MAX_CHANGE * np.maximum(np.linalg.norm(w, axis=1), _MAX_CHANGE / forms.radius)
        change *= np.minimum(1.0, most / (np.linalg.norm(change[:, 1:], axis=1) + TINY))[:, None]
        w += change[:, 1:]
        size = np.linalg.norm(w, axis=1) * np.sign(forms.kappa)
        kappa = _limited(size * forms.radius, forms.family)
        b = (forms.b + change[:, 0]) * np.where(self.fixed, kappa / (size * forms.radius), 1.0)
        return replace(forms, directions=w / size[:, None], kappa=kappa, b=b)

    def _change(self, damping: float) -> Floats:
        """Return the damped step (n, d + 1)."""
        if self.matrix is not None:
            own = self.matrix.diagonal()
            try:
                factor = cho_factor(self.matrix + np.diag(damping * own + _STEP_RIDGE * own.max()), lower=True)
                return self._tangent(Turn(cho_solve(factor, self.right.w.ravel()).reshape(self.right.w.shape))).w
            except LinAlgError:
                pass
        diagonal = np.einsum("naa->na", self.blocks)
        shift = damping * diagonal + _STEP_RIDGE * diagonal.max() + TINY
        lifted = self.blocks + np.eye(diagonal.shape[1]) * (shift + _BLOCK_RIDGE * diagonal)[:, :, None]
        portions = threads.portions(len(lifted), _TOGETHER)
        inverse = np.concatenate(threads.parallel_map(lambda some: np.linalg.inv(lifted[some]), portions))
        step = ConjugateGradient(
            lambda turn: self._normal(turn, shift),
            lambda turn: self._preconditioned(turn, inverse),
            Turn(np.zeros_like(self.right.w)),
            self.right,
        )
        first = step.rho
        for _ in range(self.most):
            check_time()
            if step.rho <= self.tolerance**2 * first or not step.step():
                break
        return step.x.w

    def _preconditioned(self, turn: Turn, inverse: Floats) -> Turn:
        """Return the solution by the blocks of single features (n, d+1, d+1) and, where there are such, of groups."""
        w = (inverse @ turn.w[:, :, None])[:, :, 0]
        for group in self.groups:
            w[group.which] = group.solve(turn.w[group.which])
        return self._tangent(Turn(w))


def moves_of(family: int) -> tuple[bool, bool]:
    """Return whether κ and b are parameters of a family; neither is one of a spline."""
    return (False, False) if family == SPLINE else ACTIVATIONS[family].moves
