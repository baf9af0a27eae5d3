"""One response at a time: what the residual says about it while all other features are held fixed.

With r the residual, r + s_i is the response of feature i plus errors of the others. These vary little with u = z_i/R
and average out over points with the same u. So points are sorted into bins of u, and a bin has the mean ū of its u and

    y = s_i(ū) + mean of r,

which is exact if s_i is, however wide the bins. Families of `activations` and splines are fitted to (ū, y) by weighted
least squares, for all features at once, up to polynomials of low degree in u: constants and lines because the affine
part of f has them, and squares if there are so many features that their squares are nearly dependent, so that the sum
hardly tells how much of a square each response has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..bspline import design_matrix
from ..geometry import Floats
from .activations import ACTIVATIONS, Indices, Starts, bounded
from .model import TINY

_BINS = 256  # of [−1, 1]: narrower than any response that the points of a fit resolve
_STEPS = 8  # Levenberg–Marquardt steps
_DAMPING, _FALL, _RISE = 1e-2, 0.2, 8.0
_MAX_STEP = 0.5  # of κ or of b, in one step
_RIDGE = 1e-12  # of the largest diagonal entry
_VANISHES = 1e-12  # of a squared norm: what is left of a form that is a polynomial
_EMPTY = 1e-8  # of the mean squared norm of a spline's columns: ridge for intervals without points


@dataclass(frozen=True, eq=False)
class PartialResponses:
    """Responses (ū, y) of n features in B bins each."""

    u: Floats
    """(n, B)."""
    y: Floats
    """(n, B)."""
    weight: Floats
    """(n, B) square roots of the numbers of points; 0 for an empty bin."""
    noise: Floats
    """(n,) mean squared residual of a single point."""
    degree: int
    """Of the polynomials that are taken off."""

    @classmethod
    def of(cls, U: Floats, residual: Floats, curves: Callable[[Floats], Floats], degree: int) -> PartialResponses:
        """Sort points with coordinates U (m, n) and residuals (m, n), one for each feature, into bins.

        `curves` maps coordinates (n, B) to the features' present responses there.
        """
        n = U.shape[1]
        bins = np.clip(((U + 1.0) * (0.5 * _BINS)).astype(np.intp), 0, _BINS - 1)
        flat = (bins + _BINS * np.arange(n)).ravel()

        def total(values: Floats | None) -> Floats:
            weights = None if values is None else values.ravel()
            return np.bincount(flat, weights=weights, minlength=n * _BINS).reshape(n, _BINS).astype(np.float64)

        count = total(None)
        some = np.maximum(count, 1.0)
        u = total(U) / some
        noise = np.asarray(np.mean(residual**2, axis=0))
        return cls(u, curves(u) + total(residual) / some, np.sqrt(count), noise, degree)

    def part(self, which: Indices) -> PartialResponses:
        """Return the responses of the features `which`."""
        return PartialResponses(self.u[which], self.y[which], self.weight[which], self.noise[which], self.degree)

    @cached_property
    def _polynomials(self) -> Floats:
        """(n, B, degree + 1) orthonormal columns."""
        powers = np.stack([self.u**k for k in range(self.degree + 1)], axis=2)
        return np.linalg.qr(powers * self.weight[:, :, None])[0]

    def _project(self, values: Floats) -> Floats:
        """Return values (n, B) times the weight, without their polynomial part."""
        values = values * self.weight
        inner = np.einsum("nbk,nb->nk", self._polynomials, values)
        return np.asarray(values - np.einsum("nbk,nk->nb", self._polynomials, inner))

    @cached_property
    def _target(self) -> Floats:
        return self._project(self.y)

    def freedom(self, parameters: int) -> Floats:
        """Return (n,) bins with points less so many parameters and the polynomials' coefficients."""
        return np.asarray(np.maximum(np.sum(self.weight > 0, axis=1) - parameters - self.degree - 1.0, 1.0))

    def fit(self, family: int, kappa: Floats, b: Floats) -> Starts:
        """Minimise the misfit of a family over (κ, b), from these on; its misfit is the mean square per freedom."""
        form = ACTIVATIONS[family]
        moves = np.array(form.moves, dtype=np.float64)
        damping = np.full(len(kappa), _DAMPING)
        left, J, rest = self._linearised(family, kappa, b)
        for _ in range(_STEPS if any(form.moves) else 0):
            J = J * moves[:, None]
            normal, g = np.einsum("nad,nbd->nab", J, J), np.einsum("nad,nd->na", J, rest)
            diagonal = np.einsum("naa->na", normal)
            shift = damping[:, None] * diagonal + _RIDGE * diagonal.max(initial=0.0) + TINY
            step = np.linalg.solve(normal + np.eye(2) * shift[:, :, None], g[:, :, None])[:, :, 0]
            most = _MAX_STEP * np.abs(kappa)
            new_kappa = bounded(kappa, kappa + np.clip(step[:, 0], -most, most))
            new_b = b + np.clip(step[:, 1], -_MAX_STEP, _MAX_STEP)
            trial = self._linearised(family, new_kappa, new_b)
            better = trial[0] < left
            damping = np.where(better, _FALL * damping, _RISE * damping)
            kappa, b = np.where(better, new_kappa, kappa), np.where(better, new_b, b)
            left = np.where(better, trial[0], left)
            J = np.where(better[:, None, None], trial[1], J)
            rest = np.where(better[:, None], trial[2], rest)
        return Starts(family, kappa, b, left / self.freedom(form.parameters))

    def _linearised(self, family: int, kappa: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the squared misfit (n,), its projected Jacobian (n, 2, B) and the residual (n, B)."""
        value, slope = ACTIVATIONS[family].atom(kappa[:, None] * self.u + b[:, None])
        row = self._project(value)
        size = np.sum(row * row, axis=1)
        bends = size > _VANISHES * np.sum((value * self.weight) ** 2, axis=1) + TINY
        size = np.where(bends, size, 1.0)
        row = np.where(bends[:, None], row, 0.0)
        c = np.sum(row * self._target, axis=1) / size
        rest = self._target - c[:, None] * row
        J = np.stack([self._project(slope * self.u), self._project(slope)], axis=1) * c[:, None, None]
        J -= (np.einsum("nad,nd->na", J, row) / size[:, None])[:, :, None] * row[:, None, :]
        return np.sum(rest * rest, axis=1), J, rest

    def spline_misfits(self, intervals: int) -> Floats:
        """Return (n,) the mean square per freedom that splines of so many intervals leave."""
        left = np.empty(len(self.u))
        for i, (u, y, w) in enumerate(zip(self.u, self.y, self.weight, strict=True)):
            design, target = design_matrix(u, 1.0, intervals) * w[:, None], y * w
            normal = design.T @ design
            normal += np.eye(len(normal)) * (_EMPTY * np.trace(normal) / len(normal) + TINY)
            left[i] = np.sum((target - design @ np.linalg.solve(normal, design.T @ target)) ** 2)
        return np.asarray(left / self.freedom(intervals + 3 - self.degree - 1))
