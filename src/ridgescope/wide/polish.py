"""Directions, responses and output vectors of a wide layer refined together, if all responses are of one family.

    f̂(x) = a₀ + a·x + Σ_i φ(w_i·x + b_i) c_i,        n(d + p + 1) unknowns, a million for a block of a transformer

The c_i and the affine part are linear and are eliminated (`linear_half`). A change δ = (δb_i, δw_i) moves f̂ by
J δ = Σ_i φ'(y_i)(δb_i + x·δw_i) c_i, and with P the projection onto the complement of all linear columns a damped
Gauss–Newton step solves

    (JᵀPJ + λD) δ = Jᵀ r,        r = P Y,

by conjugate gradients. One product is

    T = S ∘ (X δᵀ),   I = P (T C),   ((I Cᵀ) ∘ S)ᵀ X,        S = φ'(y), C = (c_1 … c_n)ᵀ,

four products of points × features × (d or p) and two for the projection, all in single precision: the residual, hence
the right-hand side, is computed in double precision, so that steps lead to the same minimum.

*Preconditioner.* Points look the same in all directions across w_i, so that a feature's own block of JᵀPJ is nearly a
2 × 2 matrix for b_i and |w_i|, from which the linear columns 1, z and φ of the same feature are eliminated, and one
number for everything across.

Sums run over blocks of points whose size does not depend on the number of threads, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np

from ..deadline import check_time, spend
from ..fit import threads
from ..fit.activations import MAX_KAPPA, MIN_KAPPA
from ..fit.closed_form import ClosedForms
from ..fit.closed_steps import Turn, moves_of
from ..fit.linear import ConjugateGradient
from ..fit.model import TINY
from ..geometry import Floats
from .linear_half import LinearHalf, Singles

_FALL, _RISE, _MIN_DAMPING, _MAX_DAMPING = 0.2, 6.0, 1e-8, 1e6
_FIRST_DAMPING = 1e-3
_TRIES = 4  # dampings per step
_CG_STEPS, _CG_TOLERANCE = 40, 0.03  # a step needs one or two digits, since others follow,
_LOOSE = 0.2  # and fewer while costs fall slowly, since models of them are not good then
_FORCING = 0.5  # tolerance over the ratio of the last costs (Eisenstat & Walker, 1996)
_GOOD, _POOR = (
    0.75,
    0.25,
)  # shares of the predicted fall of the cost above which damping falls, and below which it rises
_MAX_CHANGE = 0.5  # of |w_i| in one step, and of b_i in widths of a bend
_PAIR_RIDGE = 1e-3  # of the 2 × 2 blocks' diagonal: b_i and |w_i| of nearly parabolic responses are hardly told apart


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The approximate own blocks of JᵀPJ: (n, 2, 2) for b_i and |w_i|, and (n,) for directions across w_i."""

    along: Floats
    across: Floats

    @classmethod
    def of(cls, half: LinearHalf) -> Preconditioner:
        """Sum the blocks over the points."""
        forms, points = half.forms, half.equations
        v = forms.directions
        square = np.einsum("md,md->m", points.X, points.X)

        def sums(at: slice) -> tuple[Floats, Floats]:
            z = points.X[at] @ v.T
            s, phi = half.slopes[at].astype(np.float64), half.values[at]
            columns = [np.ones_like(z), z, phi, s, s * z]
            gram = np.empty((z.shape[1], 5, 5))
            for a, b in combinations_with_replacement(range(5), 2):  # sums of products of columns: faster than a stack
                gram[:, a, b] = gram[:, b, a] = np.einsum("mn,mn->n", columns[a], columns[b])
            rest = np.maximum(square[at, None] - z * z, 0.0)
            across = rest * s
            return gram, np.stack([rest.sum(axis=0), across.sum(axis=0), np.einsum("mn,mn->n", across, s)])

        parts = threads.parallel_map(sums, points.blocks)
        gram = np.sum([part[0] for part in parts], axis=0)
        moments = np.sum([part[1] for part in parts], axis=0)
        size = np.sum(forms.outputs**2, axis=1)
        linear, cross, own = gram[:, :3, :3], gram[:, :3, 3:], gram[:, 3:, 3:]
        scale = 1.0 / np.sqrt(np.maximum(np.einsum("naa->na", linear), TINY))
        linear = linear * scale[:, :, None] * scale[:, None, :] + _PAIR_RIDGE * np.eye(3)
        cross = cross * scale[:, :, None]
        left = own - cross.swapaxes(1, 2) @ np.linalg.solve(linear, cross)
        diagonal = np.einsum("naa->na", own)
        left = left + _PAIR_RIDGE * diagonal[:, :, None] * np.eye(2)
        spread = moments[2] - moments[1] ** 2 / np.maximum(moments[0], TINY)
        across = size * (spread / max(forms.dim - 1, 1) + _PAIR_RIDGE * diagonal[:, 0])
        return cls(size[:, None, None] * left, across)


class PolishStep:
    """Damped Gauss–Newton steps from one point."""

    def __init__(self, half: LinearHalf, *, free: bool) -> None:
        self.half, self.forms, self.free = half, half.forms, free
        moves = np.array([moves_of(int(k)) for k in self.forms.family])
        self.scales, self.shifts = moves[:, 0], moves[:, 1]
        self.v = self.forms.directions
        self.c = self.forms.outputs.astype(np.float32)
        self.own = Preconditioner.of(half)
        self.right = self._tangent(Turn(self._adjoint(half.residual.astype(np.float32))))

    def _tangent(self, turn: Turn) -> Turn:
        """Return the change without what must not move: across w_i unless `free`, |w_i| and b_i as the family says."""
        w = turn.w.copy()
        w[:, 0] *= self.shifts
        along = np.einsum("nd,nd->n", w[:, 1:], self.v)
        if not self.free:
            w[:, 1:] = (along * self.scales)[:, None] * self.v
        else:
            w[:, 1:] -= (along * ~self.scales)[:, None] * self.v
        return Turn(w)

    def _adjoint(self, image: Singles) -> Floats:
        """Return Jᵀ of an image (m, p), as (n, d + 1)."""
        half, points = self.half, self.half.equations

        def part(at: slice) -> Singles:
            pull = image[at] @ self.c.T
            pull *= half.slopes[at]
            return np.asarray(pull.T @ points.flat[at])

        return np.asarray(sum(p.astype(np.float64) for p in threads.parallel_map(part, points.blocks)))

    def image(self, turn: Turn) -> Singles:
        """Return J δ (m, p)."""
        half, points, w = self.half, self.half.equations, turn.w.astype(np.float32)

        def part(at: slice) -> Singles:
            moved = points.flat[at] @ w.T
            moved *= half.slopes[at]
            return np.asarray(moved @ self.c)

        return np.concatenate(threads.parallel_map(part, points.blocks))

    def normal(self, turn: Turn, damping: float) -> Turn:
        """Return (JᵀPJ + λD) δ."""
        check_time()
        m, n, q, p = len(self.half.residual), len(self.c), self.forms.dim + 1, self.c.shape[1]
        spend(2.0 * m * n * (q + 2 * p))
        turn = self._tangent(turn)
        back = self._adjoint(self.half.project(self.image(turn)))
        return self._tangent(Turn(back + self._weighted(turn, damping)))

    def _weighted(self, turn: Turn, factor: float) -> Floats:
        """Return λD δ, D being the diagonal of the own blocks in b_i, along w_i and across."""
        w = turn.w[:, 1:]
        along = np.einsum("nd,nd->n", w, self.v)[:, None] * self.v
        own = self.own.along
        parts = [own[:, 0, :1] * turn.w[:, :1], own[:, 1, 1:] * along + self.own.across[:, None] * (w - along)]
        return np.asarray(factor * np.concatenate(parts, axis=1))

    def _preconditioned(self, turn: Turn, damping: float) -> Turn:
        w = turn.w[:, 1:]
        amount = np.einsum("nd,nd->n", w, self.v)
        blocks = self.own.along * (1.0 + damping * np.eye(2))
        fixed = ~np.stack([self.shifts, self.scales], axis=1)
        blocks = np.where(fixed[:, :, None] | fixed[:, None, :], 0.0, blocks) + fixed[:, :, None] * np.eye(2)
        blocks += TINY * np.eye(2)
        two = np.linalg.solve(blocks, np.stack([turn.w[:, 0], amount], axis=1)[:, :, None])[:, :, 0]
        across = (w - amount[:, None] * self.v) / ((1.0 + damping) * self.own.across + TINY)[:, None]
        return self._tangent(Turn(np.concatenate([two[:, :1], across + two[:, 1:] * self.v], axis=1)))

    def response_to(self, errors: Singles) -> Floats:
        """Return the change (n, d + 1) of all unknowns by which the fit follows errors (m, p) of the answers."""
        return self.change(0.0, self._tangent(Turn(self._adjoint(self.half.project(errors)))))

    def change(self, damping: float, right: Turn | None = None, *, tolerance: float = _CG_TOLERANCE) -> Floats:
        """Return the damped step (n, d + 1), or the solution for another right-hand side."""
        right = self.right if right is None else right
        iteration = ConjugateGradient(
            lambda turn: self.normal(turn, damping),
            lambda turn: self._preconditioned(turn, damping),
            Turn(np.zeros_like(right.w)),
            right,
        )
        first = iteration.rho
        for _ in range(_CG_STEPS):
            if iteration.rho <= tolerance**2 * first or not iteration.step():
                break
        return iteration.x.w

    def moved(self, damping: float, tolerance: float) -> tuple[ClosedForms, float]:
        """Return the forms after the damped step, which is bounded for each feature, and the fall of the cost.

        With δ by conjugate gradients from zero, ‖r − Jδ‖² is less than ‖r‖² by δᵀJᵀr + λ δᵀDδ: that without its last
        term is the predicted fall.
        """
        forms, change = self.forms, self.change(damping, tolerance=tolerance)
        expected = float(np.vdot(self.right.w, change))
        steep = np.abs(forms.kappa) / forms.radius
        most = _MAX_CHANGE * np.maximum(steep, MIN_KAPPA / forms.radius)
        length = np.maximum(np.linalg.norm(change[:, 1:], axis=1), TINY)
        shorter = np.minimum(1.0, most / length)
        w = forms.directions * (forms.kappa / forms.radius)[:, None] + shorter[:, None] * change[:, 1:]
        size = np.linalg.norm(w, axis=1)
        sign = np.where(forms.kappa < 0.0, -1.0, 1.0)
        kappa = np.where(self.scales, np.clip(size * forms.radius, MIN_KAPPA, MAX_KAPPA), np.abs(forms.kappa))
        b = forms.b + np.clip(change[:, 0], -_MAX_CHANGE, _MAX_CHANGE)
        b = np.where(self.scales, b, b * kappa / np.maximum(size * forms.radius, TINY))
        directions = w * (sign / np.maximum(size, TINY))[:, None]
        return replace(forms, directions=directions, kappa=sign * kappa, b=b), expected


@threads.one_blas_thread()
def polish(
    half: LinearHalf,
    *,
    steps: int,
    free: bool = True,
    min_gain: float = 1e-2,
    target: float = 0.0,
    say: Callable[[LinearHalf], None] | None = None,
) -> LinearHalf:
    """Lower the cost by at most `steps` Levenberg–Marquardt steps; without `free` directions stay.

    The iteration ends when a step lowers the cost by less than the share `min_gain`, or when the cost is `target`.
    """
    damping, tolerance = _FIRST_DAMPING, _LOOSE
    for _ in range(steps):
        if half.cost <= target:
            break
        step, better, share = PolishStep(half, free=free), None, 0.0
        for _ in range(_TRIES):
            forms, expected = step.moved(damping, tolerance)
            trial = LinearHalf.of(forms, half.equations)
            if trial.cost < half.cost:
                better, share = trial, (half.cost - trial.cost) / max(expected, TINY)
                break
            damping = min(damping * _RISE, _MAX_DAMPING)
        if better is None:
            break
        if share > _GOOD:
            damping = max(damping * _FALL, _MIN_DAMPING)
        elif share < _POOR:
            damping = min(damping * _RISE, _MAX_DAMPING)
        ratio, half = better.cost / half.cost, better
        tolerance = float(np.clip(_FORCING * ratio, _CG_TOLERANCE, _LOOSE))
        if say is not None:
            say(half)
        if 1.0 - ratio < min_gain:
            break
    return half
