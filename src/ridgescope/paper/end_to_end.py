"""From a black box to a sum of features without further choices: span, settings, `learn`, affine part.

Letters: n number of features, d dimension, Q an orthonormal basis of the span of the features, R radius of the ball.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..geometry import Floats, frozen
from . import arguments
from .learn import learn
from .learned import Learned, learned_from
from .mass import CountedField, Field
from .peel import complete_on_ball, empty_model, tabulated
from .survey import Settings, find_subspace, full_space, survey

_AFFINE_BAND = 1.0
"""Band of the low-band fit of a function without features, where it has no effect."""


def solve(
    f: Field,
    dim: int,
    radius: float = 3.0,
    noise: float | None = None,
    rng: np.random.Generator | None = None,
    *,
    separation: float = 0.1,
    max_queries: int | None = None,
    settings: Settings | None = None,
    features: int | None = None,
    additions: bool = True,
) -> Learned:
    """Learn f end to end: the span of its features (footnote on n < d), `survey`, `learn` inside the span, affine part.

    With `features` of at least `dim` no span is looked for, as the footnote is about n < d only.

    Parameters
    ----------
    f, dim, radius, rng
        As for `learn_bounded`.
    noise
        Largest error of a value; None means 0.
    separation
        γ, the least sine between two features, where `settings` is None.
    max_queries
        Limit on the number of values of f.
    settings
        Those of `survey`, inside the span, unless given.
    features
        n, the number of features, where it is known.
    additions
        As for `learn`; without them the affine part outside of the span is measured by differences.

    Returns
    -------
    Learned
        The sum of features on R^d.

    Examples
    --------
    >>> got = rs.paper.solve(lambda X: X @ [1.0, 2.0] + 3.0, 2, 3.0, None, np.random.default_rng(0))
    >>> len(got.directions), got.slope.round(3), round(got.bias, 3)
    (0, array([1., 2.]), 3.0)
    """
    dim, radius, rng = arguments.count("dim", dim), arguments.positive("radius", radius), arguments.generator(rng)
    noise, separation = arguments.not_negative("noise", noise or 0.0), arguments.share("separation", separation)
    counted = CountedField(f)
    whole = features is not None and features >= dim
    # the footnote on n < d
    space = full_space(dim) if whole else find_subspace(counted, dim=dim, radius=radius, rng=rng)
    r = len(space.span)
    if r == 0:
        model = complete_on_ball(counted, empty_model(dim), radius=radius, band=_AFFINE_BAND, rng=rng)
        return learned_from(model, frozen([]), radius=radius, queries=counted.queries, rounds=0)
    inner: Field = counted if r == dim else space.inside(counted)
    if settings is None:
        settings = survey(inner, dim=r, radius=radius, noise=noise, rng=rng)
        settings = replace(settings, separation=separation)
    left = None if max_queries is None else max_queries - counted.queries
    learned = learn(inner, dim=r, radius=radius, settings=settings, rng=rng, max_queries=left, additions=additions)
    if r == dim:
        return replace(learned, queries=counted.queries)
    # back to R^d: directions by Qu, the affine part refitted
    model = tabulated(learned.directions @ space.span, learned.responses, radius=radius, settings=settings)
    if additions:
        model = complete_on_ball(counted, model, radius=radius, band=settings.lowest, rng=rng)
    else:
        slope = learned.slope @ space.span + _slope_across(counted, space.span, radius)
        model = replace(model, bias=learned.bias, slope=slope)
    return learned_from(model, learned.angle_errors, radius=radius, queries=counted.queries, rounds=learned.rounds)


def _slope_across(f: Field, span: Floats, radius: float) -> Floats:
    """Return the part (d,) of the slope that is orthogonal to the span (r, d) of the features, from one central
    difference of length R along each orthogonal direction, on which f is affine."""
    across = np.linalg.svd(span, full_matrices=True)[2][len(span) :]
    values = f(np.concatenate([radius * across, -radius * across])).reshape(2, -1)
    return np.asarray((values[0] - values[1]) / (2 * radius) @ across)
