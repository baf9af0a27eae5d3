"""Naming a response: which closed form, if any, explains it?

A response is known only modulo an affine part (the gauge), so every family φ is fitted as

    s(z) ≈ c·φ(y) + polynomial of degree `modulo`,      y = κ(u − t),  u = z/R in [−1, 1],

by separable least squares: c and the polynomial are eliminated, log κ and t are found by Levenberg–Marquardt
from the best atom of a grid. The response is a spline with K cells, which shows a narrow bend only blurred.
So a form is compared as such a spline would show it, projected onto the spline space without its
polynomials (`Task.space`), and what the projection hides of it is known.

Modulo an affine part some families are one: relu, leaky relu and abs are all c|z − t| ("relu"); sigmoid is
tanh of half the argument ("tanh"); log cosh is softplus. Only one name of each is used.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidInput
from ..feature import Shape
from ..geometry import Floats
from ..response import Response
from .families import FAMILIES, GROUP_ATOM, Place, Points, columns_of, count_for, grid_of, sample_points, spline_space
from .fitting import Fit, Task, fitted, polynomial_fits
from .wording import written

_EXACTNESS = 1 / 300
"""Of a response's RMS: how well it is known at best. Thrice this is the 1 % of the default tolerance."""
_GRID_MISFIT = 0.5
"""Of a response's RMS: what a group's best grid atom may leave for its families to be worth a fit. The grid
is so dense that random members of a family leave 0.1 as a rule, and less than this in 99 cases of 100."""


def name_shape(
    response: Response, noise: float = 0.0, weight: ArrayLike | None = None, *, modulo: int = 1
) -> Shape | None:
    """The closed form that explains a response, or None.

    `noise` is the standard error of the response's values. `weight`, on a uniform grid of [−R, R] of any
    length, says where it matters (uniform where None). Polynomials of degree `modulo` do not count: 1 for the
    gauge, more where so many features leave low-degree parts undetermined. A vector-valued response is named
    by its leading singular vector over z, of either sign, where that explains it.

    A form is acceptable when it leaves an RMS of at most 3σ, σ = max(noise, RMS/300): the response is not
    known better than its standard error, and a fit to the default tolerance of 1 % supports no claim beyond
    that. What the response's cells cannot show of the form (a kink between two knots) is allowed for on top.
    Acceptable forms are compared by

        N·(residual/σ)² + (number of parameters)·log N,      N = K + 3 coefficients of the spline.

    Of those within log N of the smallest, which the data do not tell apart, the simplest is named. A response
    that is itself within 3·noise of affine has no name.
    """
    count = count_for(response.intervals)
    key = None if weight is None else _weight_key(weight)
    points = sample_points(count, modulo, key)
    values, total = _leading(points, response)
    outside = max(total - float(values @ values), 0.0)
    rms = sqrt(total)
    sigma = max(noise, _EXACTNESS * rms)
    rounding = 1e-10 * float(np.abs(response.coefficients).max(initial=0.0))
    if rms <= max(3.0 * noise, rounding) or outside > (3.0 * sigma) ** 2:
        return None
    task = _task(points, response, values, spline_space(response.intervals, count, modulo, key), sigma)
    starts = {group: grid_of(group, count, modulo, key).best(values) for group in GROUP_ATOM}
    fits = [fit for fit in _all_fits(task, modulo, starts) if fit.acceptable(sigma)]
    if not fits:
        return None
    best = _simplest(fits, sigma, response.intervals + 3)
    return written(best, response.radius, modulo, r2=1.0 - (best.seen**2 + outside) / total)


def _weight_key(weight: ArrayLike) -> bytes:
    """The weights as something that a cache can hold."""
    array = np.ascontiguousarray(weight, dtype=np.float64)
    if array.ndim != 1 or not (array >= 0).all() or not 0 < array.sum() < np.inf:
        raise InvalidInput(f"weight must be a row of numbers ≥ 0, not all of them 0; got {array}")
    return array.tobytes()


def _simplest(fits: list[Fit], sigma: float, numbers: int) -> Fit:
    """Fewest parameters, then the order of `FAMILIES`, among the fits that σ cannot tell from the best."""
    scores = [fit.score(sigma, numbers) for fit in fits]
    rivals = [fit for fit, score in zip(fits, scores, strict=True) if score <= min(scores) + log(numbers)]
    order = ["polynomial", *(family.name for family in FAMILIES)]
    return min(rivals, key=lambda fit: (fit.parameters, order.index(fit.family)))


def _all_fits(task: Task, modulo: int, starts: dict[str, tuple[float, list[Place]]]) -> list[Fit]:
    """Likeliest group first: once a fit leaves a mere tenth of σ, none with as many parameters can matter."""
    fits = polynomial_fits(task, modulo)
    for group in sorted(starts, key=lambda g: starts[g][0]):
        left, places = starts[group]
        for family in FAMILIES:
            settled = any(f.seen <= 0.1 * task.sigma and f.parameters <= family.parameters for f in fits)
            few = family.parameters < len(task.target)  # else it would explain anything
            if family.group == group and left < _GRID_MISFIT**2 and few and not settled:
                fits.append(fitted(task, family, places))
    return fits


def _leading(points: Points, response: Response) -> tuple[Floats, float]:
    """The projected response (M,), of several outputs the leading combination, and its mean square in all."""
    values = response(response.radius * points.u)
    if values.ndim == 1:
        row = points.project(values)
        return row, float(row @ row)
    rows = points.project(values.T)
    _, vectors = np.linalg.eigh(rows @ rows.T)
    return np.asarray(vectors[:, -1] @ rows), float(np.sum(rows * rows))


def _task(points: Points, response: Response, values: Floats, space: Floats, sigma: float) -> Task:
    """The response's kinks, those inside (−R, R), add their own atoms to what it can show."""
    t = response.kinks / response.radius
    size = np.linalg.norm(np.atleast_2d(response.kink_weights.T), axis=0)
    t = t[np.argsort(-size, kind="stable")]
    t = t[np.abs(t) < 1.0]
    if len(t):
        atoms = points.project(np.abs(points.u - t[:, None]))
        space = np.concatenate([space, columns_of(atoms - (atoms @ space) @ space.T)], axis=1)
    return Task(points, space, values @ space, response.intervals, t, sigma)
