"""The best output vectors and affine part of a wide layer for given directions, κ and b.

Affine functions are projected out of everything by their orthonormal basis Q; what is left of the columns φ(y_i) is
normalised and kept in single precision. Its Gram matrix is summed in single precision, too, and factored in double:
with it, a few steps of iterative refinement on residuals in double precision give the solution of least squares as if
all had been in double precision, as the columns that bend are well conditioned.

Memory: 16 bytes for each point and feature, and the blocks that the threads are working on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve

from ..deadline import check_time, spend
from ..fit import threads
from ..fit.activations import ACTIVATIONS
from ..fit.closed_form import ClosedForms
from ..fit.model import TINY
from ..geometry import Floats

Singles = NDArray[np.float32]
_BLOCK = 1024  # points whose products are computed together: BLAS is at full speed, and a block has some megabytes
_RIDGE = 1e-7  # of a normalised column: rounding errors of single precision
_RIDGE_GROWTH, _RIDGE_TRIES = 30.0, 5  # factor by which it grows if Cholesky fails, and how often
_REFINEMENTS = 8  # most steps of iterative refinement
_REFINED = 1e-4  # change of the residual, relative to it, below which refinement ends: the cost is off by its square
_ROUNDING = 1e-13  # of the answers: a residual so small is rounding
_STRAIGHT = 1e-6  # of a column's norm: what rounding leaves of a column that does not bend


class Equations:
    """Points (m, d) and answers (m, p) with the affine functions projected out."""

    def __init__(self, X: Floats, Y: Floats) -> None:
        self.X = X
        flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        self.flat = flat.astype(np.float32)
        self.Q, self.R = np.linalg.qr(flat)
        self.straight = self.Q.T @ Y
        self.Y = Y - self.Q @ self.straight
        self.blocks = threads.portions(len(X), _BLOCK)

    @cached_property
    def Q_single(self) -> Singles:
        """Q in single precision."""
        return self.Q.astype(np.float32)

    @property
    def size(self) -> int:
        """The number of equations."""
        return int(self.Y.size)


@dataclass(frozen=True, eq=False)
class LinearHalf:
    """Closed forms with the best linear part for some points, and what a step from there needs."""

    forms: ClosedForms
    equations: Equations
    values: Floats
    """(m, n) φ(y), in double precision."""
    slopes: Singles
    """(m, n) φ'(y), in single precision."""
    bent: Singles
    """(m, n) normalised columns without their affine parts, in single precision."""
    scale: Floats
    """(n,) norms that these were divided by; infinite for a column that does not bend."""
    factor: Floats
    """Lower Cholesky factor of the Gram matrix of `bent`."""
    residual: Floats
    cost: float

    @classmethod
    @threads.one_blas_thread()
    def of(cls, forms: ClosedForms, points: Equations, *, refined: bool = True) -> LinearHalf:
        """Solve for output vectors and affine part; unless `refined`, to a few digits and without residual and cost."""
        check_time()
        m, n = len(points.X), forms.count
        spend(m * n * (n / 2.0 + 4.0 * points.Y.shape[1] + 3.0 * (forms.dim + 1)))
        values, slopes = np.empty((m, n)), np.empty((m, n), dtype=np.float32)
        bent = np.empty((m, n), dtype=np.float32)
        w = forms.directions * (forms.kappa / forms.radius)[:, None]

        def evaluate(at: slice) -> Floats:
            values[at], slopes[at] = _atoms(forms, points.X[at] @ w.T + forms.b)
            return np.asarray(points.Q[at].T @ values[at])

        straight = np.asarray(sum(threads.parallel_map(evaluate, points.blocks)))

        def bend(at: slice) -> Floats:
            left = values[at] - points.Q[at] @ straight
            bent[at] = left
            return np.asarray(np.einsum("mn,mn->n", left, left))

        size = np.sqrt(sum(threads.parallel_map(bend, points.blocks)))
        whole = np.sqrt(size**2 + np.einsum("qn,qn->n", straight, straight))
        scale = np.where(size <= _STRAIGHT * whole + TINY, np.inf, size)
        bent /= scale.astype(np.float32)
        gram = np.zeros((n, n), dtype=np.float32)
        threads.add_gram(gram, bent)
        factor = _factor(gram.astype(np.float64))
        half = cls(forms, points, values, slopes, bent, scale, factor, points.Y, np.inf)
        return half._solved(straight) if refined else half._roughly_solved(straight)

    def _roughly_solved(self, straight: Floats) -> LinearHalf:
        """Return this with linear unknowns by the normal equations alone."""
        c = self.follow(self.onto(self.residual.astype(np.float32))) / self.scale[:, None]
        return replace(self, forms=self._with(c, straight))

    def _with(self, c: Floats, straight: Floats) -> ClosedForms:
        """Return the forms with output vectors c and the affine part that belongs to them."""
        points = self.equations
        affine = np.linalg.solve(points.R, points.straight - straight @ c)
        return replace(self.forms, coefficients=np.concatenate([c, affine]))

    def _solved(self, straight: Floats) -> LinearHalf:
        """Return this with the linear unknowns of least squares; `straight` are the columns' affine parts."""
        points, Y = self.equations, self.equations.Y
        c, residual = np.zeros((self.forms.count, Y.shape[1])), Y
        rounding = _ROUNDING * float(np.linalg.norm(points.straight))
        for _ in range(_REFINEMENTS):
            c = c + self.follow(self.onto(residual.astype(np.float32))) / self.scale[:, None]
            before, residual = residual, Y - self._bending(c, straight)
            if float(np.linalg.norm(residual - before)) <= _REFINED * float(np.linalg.norm(residual)) + rounding:
                break
        cost = float(np.vdot(residual, residual))
        return replace(self, forms=self._with(c, straight), residual=residual, cost=cost)

    def _bending(self, c: Floats, straight: Floats) -> Floats:
        """Return (m, p) what the columns with factors c add up to, without its affine part, in double precision."""
        line = straight @ c

        def part(at: slice) -> Floats:
            return np.asarray(self.values[at] @ c - self.equations.Q[at] @ line)

        return np.concatenate(threads.parallel_map(part, self.equations.blocks))

    def onto(self, image: Singles) -> Floats:
        """Return (n, p) the inner products of the normalised columns with an image (m, p) in single precision."""
        parts = threads.parallel_map(lambda at: self.bent[at].T @ image[at], self.equations.blocks)
        return np.asarray(sum(p.astype(np.float64) for p in parts))

    def follow(self, onto: Floats) -> Floats:
        """Return (n, p) the combinations of columns that are closest to what has these inner products."""
        return np.asarray(cho_solve((self.factor, True), onto, check_finite=False))

    def project(self, image: Singles) -> Singles:
        """Return an image (m, p) in single precision without what the linear unknowns follow."""
        points, Q = self.equations, self.equations.Q_single
        parts = threads.parallel_map(lambda at: Q[at].T @ image[at], points.blocks)
        line = np.asarray(sum(p.astype(np.float64) for p in parts)).astype(np.float32)
        # the columns have no affine part, so that both projections may be taken at once
        columns = self.follow(self.onto(image)).astype(np.float32)

        def part(at: slice) -> Singles:
            return np.asarray(image[at] - Q[at] @ line - self.bent[at] @ columns)

        return np.concatenate(threads.parallel_map(part, points.blocks))

    def removal_costs(self) -> Floats:
        """Return (n,) the rise of the cost without each feature, its shape and those of others held fixed."""
        inverse = cho_solve((self.factor, True), np.eye(len(self.factor)), check_finite=False)
        scale = np.where(np.isinf(self.scale), 0.0, self.scale)
        return np.asarray(np.sum(self.forms.outputs**2, axis=1) * scale**2 / np.diagonal(inverse))


def _atoms(forms: ClosedForms, y: Floats) -> tuple[Floats, Floats]:
    """Return φ(y) and φ'(y) for y (m, n)."""
    kinds = np.unique(forms.family)
    if len(kinds) == 1:
        values, slopes = ACTIVATIONS[kinds[0]].atom(y)
        return values, slopes
    values, slopes = np.empty_like(y), np.empty_like(y)
    for kind in kinds:
        which = np.flatnonzero(forms.family == kind)
        values[:, which], slopes[:, which] = ACTIVATIONS[kind].atom(y[:, which])
    return values, slopes


def _factor(gram: Floats) -> Floats:
    """Return the Cholesky factor of a normalised Gram matrix, given by its lower triangle, with the least ridge."""
    ridge, diagonal = _RIDGE, np.arange(len(gram))
    for _ in range(_RIDGE_TRIES):
        trial = gram.copy(order="F")
        trial[diagonal, diagonal] += ridge + (trial[diagonal, diagonal] == 0.0)
        try:
            return threads.cholesky(trial)
        except LinAlgError:
            ridge *= _RIDGE_GROWTH
    raise LinAlgError("the columns of a wide layer are not finite")
