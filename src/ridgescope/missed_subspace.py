"""Directions that the survey's subspace has missed.

A response that is straight wherever the survey looked hides its direction in the constant part of the gradient. Where
the model is wrong, the gradient of the residual points along the missing direction. Where one was missed, others may
have been whose responses change at none of the points at which the residual was looked at: the span is grown to where f
changes across it, which finds them all before the next search and fit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .fit.model import Model
from .geometry import Floats, along, in_ball
from .gradient_span import batch_rows
from .oracle.base import Oracle
from .span_growth import SpanGrowth, farthest_asked
from .survey import Survey

POINTS = 512
"""Points at which the residual is looked at: a quarter in the ball, the rest along the features."""
WORST = 8
"""Of them, the points with the largest residual, at which its gradient is taken."""
STEPS = (1e-5, 1e-2)
"""Least and largest step of the difference quotients, in radii: large against the rounding of the inputs, small against
any response; √(noise/std) between them balances noise against curvature."""
LEAST_SLOPE = 1e-3
"""Slopes below this, in standard deviations of f per radius, are not worth a dimension of their own."""
NOISE_DEVIATIONS = 8.0
"""Deviations of the noise of a difference quotient that a slope must exceed, too."""
GROWTH_SHARE = 0.1
"""Share of the remaining queries that the search for others may take."""
INSIDE = 1e-4
"""Points are pulled in by so many radii and a step, so that the stencil around them stays in the ball."""


def missed_directions(oracle: Oracle, model: Model, survey: Survey, radius: float, rng: np.random.Generator) -> Floats:
    """Return (k, d) orthonormal rows outside the survey's subspace along which f changes and the model does not."""
    d, basis = oracle.dim, survey.basis
    everywhere = in_ball(POINTS // 4, d, radius, rng)
    on_features = _along_features(model.directions @ basis, POINTS - POINTS // 4, radius, rng)
    share = float(np.clip(np.sqrt(survey.noise / max(survey.inner_std, survey.std)), *STEPS))
    U = np.concatenate([everywhere, on_features]) * (1.0 - INSIDE - share)
    residual = np.abs(oracle(U, stage="subspace") - model.predict(U @ basis.T)).max(axis=1)
    worst = U[np.argsort(-np.nan_to_num(residual))[:WORST]]
    step = share * radius

    def left(X: Floats) -> Floats:
        return np.asarray(oracle(X, stage="subspace") - model.predict(X @ basis.T))

    here = left(worst)
    slopes = np.concatenate([(_steps(left, x, step) - y).T / step for x, y in zip(worst, here, strict=True)])
    outside = slopes - (slopes @ basis.T) @ basis
    sizes, rows = np.linalg.svd(outside, full_matrices=False)[1:]
    error = np.sqrt(2.0 * max(len(outside), d)) * survey.noise / step  # the norm of a matrix of independent errors
    floor = max(np.sqrt(len(outside)) * LEAST_SLOPE * survey.std / radius, NOISE_DEVIATIONS * error)
    found = np.asarray(rows[sizes > floor])
    if not len(found):
        return found
    return np.concatenate([found, _others(oracle, np.concatenate([basis, found]), survey, radius, rng)])


def _others(oracle: Oracle, span: Floats, survey: Survey, radius: float, rng: np.random.Generator) -> Floats:
    """Return (k, d) orthonormal rows outside the `span` along which f changes, too; none where that is too dear."""
    d = oracle.dim
    growth = SpanGrowth(
        lambda X: oracle(X, stage="subspace"), radius, farthest_asked(oracle, radius), survey.std, survey.noise, rng
    )
    grown = growth.grown(span, d, min(GROWTH_SHARE * oracle.remaining, d * (d + 1)), batch_rows(d))
    return np.empty((0, d)) if grown is None else grown[len(span) :]


def _steps(left: Callable[[Floats], Floats], x: Floats, step: float) -> Floats:
    """Return the residual (d, p) one step along each axis from the point x, asked for a batch at a time."""
    d, parts, each = len(x), [], batch_rows(len(x))
    for k in range(0, d, each):
        rows = np.repeat(x[None], min(each, d - k), axis=0)
        rows[np.arange(len(rows)), k + np.arange(len(rows))] += step
        parts.append(left(rows))
    return np.concatenate(parts)


def _along_features(V: Floats, count: int, radius: float, rng: np.random.Generator) -> Floats:
    """Return (count, d) points along the directions V (n, d), their positions uniform in [−radius, radius]."""
    if not len(V):
        return np.empty((0, V.shape[1]))
    z = rng.uniform(-radius, radius, count)
    return along(V, rng.integers(0, len(V), count), z, radius, rng)
