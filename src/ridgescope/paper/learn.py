"""Theorem weaker, Theorem main-learning and Corollary identifiability as functions.

`learn_bounded` is the proof of Theorem weaker: Lemma find-directions at window ℓ₁, repeated and put to a
vote, then Lemma recover-function at window ℓ₂ along every direction found, and the sum.

`learn` is the proof of Theorem main-learning: the same on the smoothed directional derivatives for u = e_1
… e_d, whose responses are integrated. Two remarks on how it does so:

- The d searches are one: the masses of the d derivatives are added, Σ_u I*(v, A) of ⟨u, ∇g⟩. As Σ_k ⟨e_k,
  v_i⟩² = 1 every feature enters with full weight, whichever way it points.
- The d responses ρ_i^u found along one direction are combined to Σ_k ⟨e_k, u_i⟩ ρ_i^{e_k} before
  integration. Only a combination of this form integrates to a function of u_i·x alone (docs: proof slips).

Rounds on the residual (`peel`) are our addition; `Settings(rounds=0)` leaves them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ridgescope.paper.derivative import Derivative
from ridgescope.paper.directions import find_directions, sines, vote
from ridgescope.paper.mass import Field, FloatArray, PairField, Reduction, draw_normal, frozen, reduced
from ridgescope.paper.peel import Model, Sharpened, backfit, empty_model, low_band, merge, sharpen
from ridgescope.paper.reduce import along, find_subspace, in_ball
from ridgescope.paper.response import recover_response
from ridgescope.paper.survey import Settings, survey

Response = Callable[[ArrayLike], FloatArray]

TREND = 60_000
"""Points of the least-squares fit of the low band between rounds."""


@dataclass(frozen=True)
class Learned:
    """f̃(x) = bias + slope·x + Σ_i σ̃_i(u_i·x), good for |x| ≤ radius.

    directions: (n, d) unit rows; responses: the σ̃_i, vectorised, σ̃_i(0) = 0; angle_errors: (n,) standard
    errors in radians (inf where not measured); queries: values of f asked; rounds: searches made."""

    directions: FloatArray
    responses: tuple[Response, ...]
    bias: float
    slope: FloatArray
    radius: float
    angle_errors: FloatArray
    queries: int
    rounds: int

    def predict(self, X: ArrayLike) -> FloatArray:
        """(m,) values at X (m, d)."""
        x = np.atleast_2d(np.asarray(X, dtype=np.float64))
        out = self.bias + x @ self.slope
        for u, response in zip(self.directions, self.responses, strict=True):
            out += response(x @ u)
        return np.asarray(out)


class Counted:
    """f with a count of the values asked."""

    def __init__(self, f: Field) -> None:
        self.f = f
        self.queries = 0

    def __call__(self, X: FloatArray) -> FloatArray:
        self.queries += len(X)
        return self.f(X)

    def reduced(self, rows: FloatArray, reduction: Reduction) -> FloatArray:
        self.queries += len(rows)
        return reduced(self.f, rows, reduction)


def search(
    field: Field | PairField,
    *,
    dim: int,
    settings: Settings,
    m: int,
    rng: np.random.Generator,
    max_candidates: int | None = None,
) -> FloatArray:
    """(s, d) directions: Lemma find-directions, `settings.repeats` times with fresh bases, by majority."""
    runs = [
        find_directions(
            field,
            settings.ell,
            dim=dim,
            m=m,
            rng=rng,
            frequency=settings.frequency,
            separation=settings.separation,
            sigmas=settings.sigmas,
            max_candidates=max_candidates,
        ).directions
        for _ in range(settings.repeats)
    ]
    return runs[0] if len(runs) == 1 else vote(runs, angle=settings.separation / 2).directions


def learn_bounded(
    f: Field,
    *,
    dim: int,
    radius: float,
    settings: Settings,
    rng: np.random.Generator,
    complete: bool = True,
) -> Learned:
    """Theorem weaker for bounded responses: directions at window ℓ₁ = settings.ell, responses at ℓ₂ =
    settings.ell2.

    complete=False returns the paper's sum, which lacks all frequencies |t| < t_low; True adds them by least
    squares on the ball (`low_band`, ours). settings.samples is m for both oracles."""
    counted = Counted(f)
    # Section weaker-proof: Lemma find-directions with ℓ ← ℓ₁, O(log 1/δ) times, by majority …
    U = search(counted, dim=dim, settings=settings, m=settings.samples, rng=rng)
    # … then Lemma recover-function with ℓ ← ℓ₂ on each of u_1 … u_s …
    responses = [
        recover_response(
            counted,
            settings.ell2,
            u,
            m=settings.samples,
            rng=rng,
            t_low=settings.lowest,
            t_high=settings.top,
        )
        for u in U
    ]
    # … and the sum; f(0) settles the shift that Assumption nondegen takes for granted.
    model = replace(
        tabulated(U, responses, radius=radius, settings=settings), bias=float(counted(np.zeros((1, dim)))[0])
    )
    if complete:
        model = complete_on_ball(counted, model, radius=radius, band=settings.lowest, rng=rng)
    return conclude(model, np.full(len(U), np.inf), radius=radius, queries=counted.queries, rounds=1)


def tabulated(U: FloatArray, responses: Sequence[Response], *, radius: float, settings: Settings) -> Model:
    """Σ_i σ̃_i(u_i·x) as a model, every response on a grid that reaches a little beyond the ball."""
    model = empty_model(U.shape[1]).with_directions(U, 1.3 * radius, settings.table_step)
    return replace(model, tables=tuple(t.plus(r(t.grid)) for t, r in zip(model.tables, responses, strict=True)))


def improve(
    f: Field,
    model: Model,
    *,
    settings: Settings,
    m: int,
    rng: np.random.Generator,
    response_samples: int | None = None,
) -> tuple[Model, Sharpened]:
    """Sharpen all directions, merge those that meet, recover all responses, refit the low band."""
    d = model.directions.shape[1]
    found = sharpen(
        f,
        model,
        ell=settings.ell,
        C2=settings.ell**2 / d,
        alpha=settings.alpha,
        eta=settings.eta,
        frequency=settings.frequency,
        lowest=settings.lowest,
        m=m,
        rng=rng,
    )
    model, found = merge(model, found, separation=settings.separation / 2, sigmas=settings.sigmas)
    model = backfit(
        f,
        model,
        ell=settings.ell2,
        alpha=settings.alpha,
        eta=settings.eta,
        frequency=settings.top,
        lowest=settings.lowest,
        m=response_samples or m,
        rng=rng,
    )
    return detrend(f, model, settings=settings, rng=rng), found


def detrend(f: Field, model: Model, *, settings: Settings, rng: np.random.Generator) -> Model:
    """The low band and the quadratic, fitted where EstWeight will sample."""
    X = draw_normal(TREND, model.directions.shape[1], 0.8 * settings.ell, rng)
    return low_band(f, model, X, reach=settings.reach, band=1.3 * settings.lowest, quadratic=True)[0]


def complete_on_ball(
    f: Field, model: Model, *, radius: float, band: float, rng: np.random.Generator, m: int = 20_000
) -> Model:
    """The low band once more, on the ball itself: half the points uniform, half along the directions."""
    n, d = model.directions.shape
    X = in_ball(m, d, radius, rng)
    if n:
        X = np.concatenate([X] + [along(u, m // n, radius, rng) for u in model.directions])
    return low_band(f, model, X, reach=1.3 * radius, band=band, quadratic=False)[0]


def learn(
    f: Field,
    *,
    dim: int,
    radius: float,
    settings: Settings,
    rng: np.random.Generator,
    max_queries: int | None = None,
) -> Learned:
    """Theorem main-learning: bounded or not, Lipschitz responses are enough.

    With settings.rounds > 0 the search is repeated on the residual until it finds nothing at settings.most
    samples, or until max_queries are spent."""
    counted = Counted(f)
    limit = math.inf if max_queries is None else max_queries
    model = detrend(counted, empty_model(dim), settings=settings, rng=rng)
    errors = frozen([])
    m, rounds = settings.samples, 0
    while rounds <= settings.rounds and counted.queries + round_cost(dim, settings, m) <= limit:
        rounds += 1
        # Section remove-bounded: ⟨u, ∇g⟩ for u = e_1 … e_d at once, and Lemma find-directions on it.
        field = Derivative(model.without(counted), settings.alpha, settings.eta)
        new = search(field, dim=dim, settings=settings, m=m, rng=rng, max_candidates=settings.candidates)
        if len(model.directions) and len(new):
            new = new[sines(new, model.directions).min(axis=1) >= settings.separation / 2]
        if len(new):
            model = model.with_directions(new, settings.reach, settings.table_step)
            for _ in range(2):  # Lemma recover-function on the derivatives, and integration (`backfit`)
                model, found = improve(counted, model, settings=settings, m=max(settings.refine, m // 2), rng=rng)
                errors = found.errors
        elif m >= settings.most:
            break
        else:
            m = min(4 * m, settings.most)
    m = 2 * max(settings.refine, m // 6)
    for responses in (m, settings.most) if len(model.directions) else ():
        if counted.queries + improvement_cost(dim, m, responses) + COMPLETION <= limit:
            model, found = improve(counted, model, settings=settings, m=m, rng=rng, response_samples=responses)
            errors = found.errors
    model, errors = finish(counted, model, errors, radius=radius, settings=settings, rng=rng)
    return conclude(model, errors, radius=radius, queries=counted.queries, rounds=rounds)


COMPLETION = 100_000
"""Queries kept back for the last fits on the ball."""


def improvement_cost(dim: int, m: int, responses: int) -> int:
    """Queries of one `improve`: two ends per sample to sharpen, one for responses, d+1 values each, and the
    trend."""
    return (2 * m + responses) * (dim + 1) + TREND


def round_cost(dim: int, settings: Settings, m: int) -> int:
    """Queries of one round of `learn` and of what must follow it."""
    levels = 2 * m * max(dim - 1, 1) * (dim + 1) * settings.repeats
    refine = max(settings.refine, m // 2)
    return levels + 2 * improvement_cost(dim, refine, refine) + COMPLETION


def finish(
    f: Field, model: Model, errors: FloatArray, *, radius: float, settings: Settings, rng: np.random.Generator
) -> tuple[Model, FloatArray]:
    """Complete on the ball, and leave out features that are affine there (Corollary identifiability, second
    item)."""
    model = complete_on_ball(f, model, radius=radius, band=settings.lowest, rng=rng)
    X = in_ball(2000, model.directions.shape[1], radius, rng)
    least = settings.negligible * float(np.std(model(X)))
    bent = [i for i, t in enumerate(model.tables) if nonlinearity(t, radius) > least]
    if len(bent) < len(model.tables):
        model, errors = model.keep(bent), errors[bent]
        model = complete_on_ball(f, model, radius=radius, band=settings.lowest, rng=rng)
    return model, errors


def nonlinearity(response: Response, radius: float) -> float:
    """Root-mean-square distance of a response from its best affine fit on [−R, R]."""
    z = np.linspace(-radius, radius, 401)
    M = np.stack([np.ones_like(z), z], axis=1)
    s = response(z)
    return float(np.sqrt(np.mean((s - M @ np.linalg.lstsq(M, s, rcond=None)[0]) ** 2)))


def conclude(model: Model, errors: FloatArray, *, radius: float, queries: int, rounds: int) -> Learned:
    """Shift every response to σ̃(0) = 0 (Assumption nondegen), its constant going to the bias."""
    starts = [float(t(0.0)) for t in model.tables]
    return Learned(
        directions=frozen(model.directions),
        responses=tuple(t.plus(np.full(len(t.values), -c)) for t, c in zip(model.tables, starts, strict=True)),
        bias=model.bias + sum(starts),
        slope=frozen(model.slope),
        radius=radius,
        angle_errors=frozen(errors),
        queries=queries,
        rounds=rounds,
    )


@dataclass(frozen=True)
class Identified:
    """directions: (s, d) of the features that bend by more than the accuracy; bend: (s,) max |σ̃_i −
    affine| on [−R, R]; slope: (d,) the affine part, to which every affine feature belongs; queries."""

    directions: FloatArray
    bend: FloatArray
    slope: FloatArray
    queries: int


def identify(
    f: Field,
    *,
    dim: int,
    radius: float,
    accuracy: float,
    settings: Settings,
    rng: np.random.Generator,
) -> Identified:
    """Corollary identifiability: the nonlinear directions, each to `accuracy`; features that are affine to
    within `accuracy` on [−R, R] are reported only through the slope."""
    learned = learn(f, dim=dim, radius=radius, settings=settings, rng=rng)
    z = np.linspace(-radius, radius, 801)
    bend = np.array([bend_of(r(z), z) for r in learned.responses])
    keep = [i for i, b in enumerate(bend) if b >= accuracy]  # Corollary identifiability, second item
    slope = learned.slope + sum(
        (np.polyfit(z, learned.responses[i](z), 1)[0] * learned.directions[i] for i in range(len(bend))),
        np.zeros(dim),
    )
    return Identified(frozen(learned.directions[keep]), frozen(bend[keep]), frozen(slope), learned.queries)


def bend_of(s: FloatArray, z: FloatArray) -> float:
    """min over a, b of max |s − (az + b)|: half the width of the narrowest strip that holds the curve, over
    the slopes between the curve's own chords."""
    slopes = np.linspace(np.diff(s).min(), np.diff(s).max(), 201) / (z[1] - z[0])
    rest = s - np.multiply.outer(slopes, z)
    return float((rest.max(axis=1) - rest.min(axis=1)).min() / 2)


def solve(
    f: Field,
    dim: int,
    radius: float,
    noise: float | None,
    rng: np.random.Generator,
    *,
    separation: float = 0.1,
    max_queries: int | None = None,
    settings: Settings | None = None,
) -> Learned:
    """End to end: span of the features (n < d), survey, `learn` inside the span, affine part in all of
    R^d."""
    counted = Counted(f)
    space = find_subspace(counted, dim=dim, radius=radius, rng=rng)  # the footnote on n < d
    r = len(space.span)
    if r == 0:
        model = complete_on_ball(counted, empty_model(dim), radius=radius, band=1.0, rng=rng)
        return conclude(model, frozen([]), radius=radius, queries=counted.queries, rounds=0)
    inner: Field = counted if r == dim else space.inside(counted)
    if settings is None:
        settings = survey(inner, dim=r, radius=radius, noise=noise or 0.0, rng=rng)
        settings = replace(settings, separation=separation)
    left = None if max_queries is None else max_queries - counted.queries
    learned = learn(inner, dim=r, radius=radius, settings=settings, rng=rng, max_queries=left)
    if r == dim:
        return replace(learned, queries=counted.queries)
    return lift(counted, learned, space.span, settings=settings, rng=rng)


def lift(f: Counted, learned: Learned, span: FloatArray, *, settings: Settings, rng: np.random.Generator) -> Learned:
    """Bring a result inside a subspace back to R^d: directions by Qu, the affine part refitted."""
    radius = learned.radius
    model = tabulated(learned.directions @ span, learned.responses, radius=radius, settings=settings)
    model = complete_on_ball(f, model, radius=radius, band=settings.lowest, rng=rng)
    return conclude(model, learned.angle_errors, radius=radius, queries=f.queries, rounds=learned.rounds)
