"""One response at a time: what the residual says about it while all other features are held fixed.

With r the residual, r + s_i is the response of feature i plus errors of the others. These vary little with u = z_i/R
and average out over points with the same u. So points are sorted into bins of u, and a bin has the mean ū of its u and

    y = s_i(ū) + mean of r,

which is exact if s_i is, however wide the bins. Families of `activations` and splines are fitted to (ū, y) by weighted
least squares, for all features at once, up to polynomials of low degree in u: constants and lines because the affine
part of f has them, and squares and cubes if there are so many features that these are nearly dependent, so that the sum
hardly tells how much of a square each response has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..bspline import design_matrix
from ..geometry import Floats
from .activations import ACTIVATIONS, Indices, atoms
from .model import TINY
from .placing import PAIRS, Placed, closest, single_precision_values, starting_places

_BINS = 256  # of [−1, 1]: narrower than any response that the points of a fit resolve
_STEPS, _LONG_STEPS = 8, 30  # Levenberg–Marquardt steps; of a fit whose starts are far off
_CANDIDATES = 12  # members of a grid from which the closest one is looked for, as there are false minima
_PARAMETERS = np.array([form.parameters for form in ACTIVATIONS])
_VANISHES = 1e-12  # of a squared norm: what is left of a form that is a polynomial
_SINGLE_VANISHES = 1e-10  # the same where forms have six digits
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

    @cached_property
    def _polynomials(self) -> Floats:
        """(n, degree + 1, B) orthonormal rows."""
        powers = np.stack([self.u**k for k in range(self.degree + 1)], axis=2)
        columns = np.linalg.qr(powers * self.weight[:, :, None])[0]
        return np.ascontiguousarray(columns.transpose(0, 2, 1))

    @cached_property
    def _target(self) -> Floats:
        """(n, B) y times the weight, without its polynomial part."""
        values = (self.y * self.weight)[:, None, :]
        return np.asarray(_without(values, self._polynomials)[:, 0])

    def freedom(self, parameters: Floats | int) -> Floats:
        """Return (n,) bins with points less so many parameters and the polynomials' coefficients."""
        return np.asarray(np.maximum(np.sum(self.weight > 0, axis=1) - parameters - self.degree - 1.0, 1.0))

    @cached_property
    def size(self) -> Floats:
        """(n,) mean square of the responses without their polynomial parts, as misfits are counted."""
        return np.asarray(np.sum(self._target**2, axis=1) / self.freedom(0))

    def fit(self, family: Indices, feature: Indices, kappa: Floats, b: Floats, steps: int = _STEPS) -> Placed:
        """Minimise the misfits of pairs (k,) of a family and a feature over (κ, b), from these on.

        Equal families must be adjacent. A misfit is the mean square per degree of freedom.
        """
        found = Placed(kappa.copy(), b.copy(), np.empty(len(kappa)))
        freedom = self.freedom(0)
        for start in range(0, len(kappa), PAIRS):
            part = slice(start, start + PAIRS)
            own, forms = feature[part], family[part]

            def linearised(
                which: Indices, kappa: Floats, b: Floats, own: Indices = own, forms: Indices = forms
            ) -> tuple[Floats, Floats, Floats]:
                return self._linearised(forms[which], own[which], kappa, b)

            done = closest(linearised, forms, kappa[part], b[part], steps)
            found.kappa[part], found.b[part] = done.kappa, done.b
            found.misfit[part] = done.misfit / np.maximum(freedom[own] - _PARAMETERS[forms], 1.0)
        return found

    def least_misfit(self, family: int, feature: int) -> float:
        """Return the least misfit of a family to a response, in squares per freedom, wherever its member is."""
        kappa, b = starting_places(family, _BINS)
        some = self.weight[feature] > 0
        u, weight, target = self.u[feature, some], self.weight[feature, some], self._target[feature, some]
        rows = single_precision_values(family, kappa, b, u) * weight
        sizes = np.einsum("ab,ab->a", rows, rows)
        rows = _without(rows[None], self._polynomials[feature][None, :, some])[0]
        bent = np.einsum("ab,ab->a", rows, rows)
        explained = np.where(bent > _SINGLE_VANISHES * sizes, (rows @ target) ** 2 / np.maximum(bent, TINY), 0.0)
        best = np.argsort(-explained)[:_CANDIDATES]
        own = np.full(len(best), feature)
        return float(self.fit(np.full(len(best), family), own, kappa[best], b[best], _LONG_STEPS).misfit.min())

    def _linearised(self, family: Indices, feature: Indices, kappa: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
        u, weight, target = self.u[feature], self.weight[feature], self._target[feature]
        value, slope = atoms(family, kappa[:, None] * u + b[:, None])
        value, slope = value * weight, slope * weight
        rows = _without(np.stack([value, slope * u, slope], axis=1), self._polynomials[feature])
        row = rows[:, 0]
        size = np.sum(row * row, axis=1)
        bends = size > _VANISHES * np.sum(value * value, axis=1) + TINY
        size = np.where(bends, size, 1.0)
        row = np.where(bends[:, None], row, 0.0)
        c = np.sum(row * target, axis=1) / size
        rest = target - c[:, None] * row
        J = rows[:, 1:] * c[:, None, None]
        J -= (J @ row[:, :, None]) * (row / size[:, None])[:, None, :]
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


def _without(values: Floats, rows: Floats) -> Floats:
    """Return values (n, k, B) without their components along orthonormal rows (n, q, B)."""
    return np.asarray(values - (values @ rows.transpose(0, 2, 1)) @ rows)
