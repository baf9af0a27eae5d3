"""Theorem weaker and Theorem main-learning as functions.

`learn_bounded` is Theorem weaker: Lemma find-directions at window ℓ₁, repeated and put to a vote, then Lemma
recover-function at window ℓ₂ along every direction found, and the sum. `learn` is Theorem main-learning: the same on
the smoothed directional derivatives for u = e_1 … e_d, whose responses are integrated. With `additions=False` both are
the proofs as they stand (`pure`); what follows is what the additions do.

- The d searches are one: the masses of the d derivatives are added, Σ_u I*(v, A) of ⟨u, ∇g⟩. As Σ_k ⟨e_k, v_i⟩² = 1
  every feature enters with full weight, whatever its direction.
- The d responses ρ_i^u found along one direction are combined to Σ_k ⟨e_k, u_i⟩ ρ_i^{e_k} before integration. Only a
  combination of this form integrates to a function of u_i·x alone (docs/theory.md, corrections).
- The search is repeated on the residual, directions are sharpened, and the low band is fitted (`peel`).

Letters: u_i found directions, σ̃_i their responses, R radius of the ball, ℓ₁ and ℓ₂ widths of the windows of the search
and of the responses, m number of samples, g = f ∗ N(0, η²I).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..geometry import Floats, frozen
from . import arguments, pure
from .directions import sines
from .learned import Learned, learned_from
from .majority import search
from .mass import CountedField, Field
from .peel import (
    TREND_POINTS,
    Model,
    Sharpened,
    backfit,
    complete_on_ball,
    detrend,
    empty_model,
    merge,
    sharpen,
    tabulated,
)
from .response import Derivative, nonlinearity, recover_response
from .survey import Settings, in_ball, survey

COMPLETION = 100_000
"""Queries kept back for the last fits on the ball: two of at most 2·`peel.BALL_POINTS`, and some to spare."""
_MORE_SAMPLES = 4
"""Factor by which m grows after a round that found nothing: halves the standard error."""
_REFINEMENTS = 2
"""Refinements after a round that found something: the second one works on the first one's residual."""
_NONLINEARITY_POINTS = 2000
"""Points in the ball at which the standard deviation of the model is measured."""


def learn_bounded(
    f: Field,
    *,
    dim: int,
    radius: float = 3.0,
    settings: Settings | None = None,
    rng: np.random.Generator | None = None,
    additions: bool = True,
) -> Learned:
    """Learn a sum of features with bounded responses: Theorem weaker.

    Parameters
    ----------
    f
        Maps points (m, d) to values (m,).
    dim, radius
        Dimension d of the points and radius R of the ball.
    settings
        ℓ₁ = settings.ell, ℓ₂ = settings.ell2, m = settings.samples for both oracles, and the rest;
        those of `survey` unless given.
    rng
        Source of all random numbers.
    additions
        False runs the proof as it stands (`pure.bounded`): its sum lacks all frequencies |t| < t_low. True takes a
        higher t_low, where tubes no longer overlap, and adds what lies below by least squares on the ball
        (`peel.fit_low_band`), an addition to the paper.

    Returns
    -------
    Learned
        The sum of features.

    Examples
    --------
    >>> settings = rs.paper.Settings(ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.1, eta=0.01)
    >>> got = rs.paper.learn_bounded(
    ...     lambda X: np.sin(2 * X[:, 0]), dim=2, radius=3.0, settings=settings, rng=np.random.default_rng(0))
    >>> np.abs(got.directions).round(1)
    array([[1., 0.]])
    """
    dim, radius, rng = arguments.count("dim", dim), arguments.positive("radius", radius), arguments.generator(rng)
    if settings is None:
        settings = survey(f, dim=dim, radius=radius, rng=rng)
        learned = learn_bounded(f, dim=dim, radius=radius, settings=settings, rng=rng, additions=additions)
        return replace(learned, queries=learned.queries + settings.queries)
    if not additions:
        return pure.bounded(f, dim=dim, radius=radius, settings=settings, rng=rng)
    counted = CountedField(f)
    m = settings.samples
    start = replace(empty_model(dim), bias=float(counted(np.zeros((1, dim)))[0]))
    field = start.residual(counted)
    U = search(field, dim=dim, settings=settings, m=m, rng=rng)
    responses = [
        recover_response(field, settings.ell2, u, m=m, rng=rng, t_low=settings.lowest, t_high=settings.top) for u in U
    ]
    model = replace(tabulated(U, responses, radius=radius, settings=settings), bias=start.bias)
    model = complete_on_ball(counted, model, radius=radius, band=settings.lowest, rng=rng)
    return learned_from(model, np.full(len(U), np.inf), radius=radius, queries=counted.queries, rounds=1)


def _improve(
    f: Field,
    model: Model,
    *,
    settings: Settings,
    m: int,
    rng: np.random.Generator,
    response_samples: int | None = None,
) -> tuple[Model, Sharpened]:
    """Sharpen all directions, merge close ones, recover all responses, and refit the low band."""
    found = sharpen(f, model, settings=settings, m=m, rng=rng)
    model, found = merge(model, found, separation=settings.separation / 2, sigmas=settings.sigmas)
    model = backfit(f, model, settings=settings, m=response_samples or m, rng=rng)
    return detrend(f, model, settings=settings, rng=rng), found


def learn(
    f: Field,
    *,
    dim: int,
    radius: float = 3.0,
    settings: Settings | None = None,
    rng: np.random.Generator | None = None,
    max_queries: int | None = None,
    additions: bool = True,
) -> Learned:
    """Learn a sum of features with Lipschitz responses, bounded or not: Theorem main-learning.

    With additions the search is repeated on the residual until it finds nothing at settings.most samples.

    Parameters
    ----------
    f, dim, radius, settings, rng
        As for `learn_bounded`.
    max_queries
        Limit on the number of values of f.
    additions
        False runs the proof as it stands (`pure.unbounded`): one search with settings.samples, one response for each
        direction, no detrending, rounds, sharpening, merging, backfitting or low band.

    Returns
    -------
    Learned
        The sum of features.

    Examples
    --------
    >>> def f(X):
    ...     return np.abs(X[:, 0] - 0.5) + X[:, 1]
    >>> settings = rs.paper.Settings(
    ...     ell=15.0, ell2=20.0, frequency=5.0, lowest=0.3, alpha=0.1, eta=0.02,
    ...     samples=20_000, most=20_000, refine=20_000)
    >>> got = rs.paper.learn(f, dim=2, radius=3.0, settings=settings, rng=np.random.default_rng(0))
    >>> np.abs(got.directions).round(1), got.predict([[2.0, 1.0]]).round(1)
    (array([[1., 0.]]), array([2.5]))
    """
    dim, radius, rng = arguments.count("dim", dim), arguments.positive("radius", radius), arguments.generator(rng)
    if settings is None:
        settings = survey(f, dim=dim, radius=radius, rng=rng)
        left = None if max_queries is None else max_queries - settings.queries
        learned = learn(f, dim=dim, radius=radius, settings=settings, rng=rng, max_queries=left, additions=additions)
        return replace(learned, queries=learned.queries + settings.queries)
    if not additions:
        return pure.unbounded(f, dim=dim, radius=radius, settings=settings, rng=rng, max_queries=max_queries)
    counted = CountedField(f)
    limit = math.inf if max_queries is None else max_queries
    model = detrend(counted, empty_model(dim), settings=settings, rng=rng)
    errors = frozen([])
    m, rounds = settings.samples, 0
    while rounds <= settings.rounds and counted.queries + _round_cost(dim, settings, m) <= limit:
        rounds += 1
        # Section remove-bounded: ⟨u, ∇g⟩ for u = e_1 … e_d at once, and Lemma find-directions on it.
        field = Derivative(model.residual(counted), settings.alpha, settings.eta)
        new = search(field, dim=dim, settings=settings, m=m, rng=rng, max_candidates=settings.candidates)
        if len(model.directions) and len(new):
            new = new[sines(new, model.directions).min(axis=1) >= settings.separation / 2]
        if len(new):
            model = model.with_directions(new, settings.reach, settings.table_step)
            for _ in range(_REFINEMENTS):  # Lemma recover-function on the derivatives, and integration (`backfit`)
                model, found = _improve(counted, model, settings=settings, m=max(settings.refine, m // 2), rng=rng)
                errors = found.errors
        elif m >= settings.most:
            break
        else:
            m = min(_MORE_SAMPLES * m, settings.most)
    m = 2 * max(settings.refine, m // 6)  # the last refinements get more samples than those between rounds
    for responses in (m, settings.most) if len(model.directions) else ():
        if counted.queries + _improvement_cost(dim, m, responses) + COMPLETION <= limit:
            model, found = _improve(counted, model, settings=settings, m=m, rng=rng, response_samples=responses)
            errors = found.errors
    model, errors = _drop_affine(counted, model, errors, radius=radius, settings=settings, rng=rng)
    return learned_from(model, errors, radius=radius, queries=counted.queries, rounds=rounds)


def _improvement_cost(dim: int, m: int, responses: int) -> int:
    """Return the queries of one `_improve`: two ends of each sample to sharpen, one for responses, d+1 values each, and
    the points of `detrend`."""
    return (2 * m + responses) * (dim + 1) + TREND_POINTS


def _round_cost(dim: int, settings: Settings, m: int) -> int:
    """Return the queries of one round of `learn` and of what must follow it."""
    levels = 2 * m * max(dim - 1, 1) * (dim + 1) * settings.repeats
    refine = max(settings.refine, m // 2)
    return levels + _REFINEMENTS * _improvement_cost(dim, refine, refine) + COMPLETION


def _drop_affine(
    f: Field, model: Model, errors: Floats, *, radius: float, settings: Settings, rng: np.random.Generator
) -> tuple[Model, Floats]:
    """Complete the model on the ball and drop features that are affine there (Corollary identifiability, second item);
    return it with the errors of the directions that stay."""
    model = complete_on_ball(f, model, radius=radius, band=settings.lowest, rng=rng)
    X = in_ball(_NONLINEARITY_POINTS, model.directions.shape[1], radius, rng)
    least = settings.negligible * float(np.std(model(X)))
    kept = [i for i, t in enumerate(model.tables) if nonlinearity(t, radius) > least]
    if len(kept) < len(model.tables):
        model, errors = model.keep(kept), errors[kept]
        model = complete_on_ball(f, model, radius=radius, band=settings.lowest, rng=rng)
    return model, errors
