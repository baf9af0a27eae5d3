"""Repetition on the residual ("peeling"), an addition to the paper.

The error of EstWeight and EstVal is proportional to the size of f, so a strong feature hides weak ones: a feature of a
tenth of the strength needs ten thousand times the samples. Once a feature is known, the same estimators applied to the
residual no longer see it. `Model` holds what is known; three steps, each an estimator of the paper on a residual,
improve it:

- `sharpen` moves every direction u_i to where the mass of its own residual r_i (all *other* features subtracted) is
  largest. Near the ray the mass falls off as W(tu + δ) = W(tu)·exp(−κ|δ|²) with κ = C₂ℓ²/(ℓ² + C₂) (the exponent of
  Lemma where-nonzero with α = C₂), so the gradient of W across the ray shows the error of the direction:

      ε = P_⊥ Σ_t q_t t ∇W(tu) / (2κ Σ_t q_t W(tu) t²),      u ← u + ε,

  with weights q_t = W(tu) where that exceeds its noise. The sums over samples are one-dimensional NUFFTs in s = u·Δ.
- `backfit` is Lemma recover-function on r_i: EstVal along the ray, divided by the factor of the difference, inverted,
  integrated. One sweep follows another, as in Gauss–Seidel.
- `fit_low_band` supplies what the lemma leaves out, |t| < t_low, where at affordable ℓ the tubes overlap: least squares
  for a few cosines per direction. While features are still missing it also fits a quadratic polynomial to f: times the
  window a polynomial lives within a few 1/ℓ of the origin of Fourier space, inside the disc the search leaves out, so
  subtracting it lowers the variance of every estimate and does not change what is estimated.

Letters: d dimension, n number of features of the model, m number of samples, R radius of the ball, ℓ width of a window,
t frequency along a ray, C₂ = ℓ²/d, τ standard error of a mass, α length of a difference, η smoothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ..geometry import Floats, frozen
from .directions import separate
from .mass import Field, draw_normal, draw_pairs, line_sums, window_factor
from .response import (
    STEP,
    Response,
    derivative_factor,
    difference,
    differences_at_ends,
    map_stencils,
    own_difference,
    ray_values,
    waves_on_grid,
)
from .survey import Settings, along, in_ball

TREND_POINTS = 60_000
"""Points of the fit of the low band and the quadratic between rounds. Empirical: many times its unknowns, and few
beside the samples of a round."""
BALL_POINTS = 20_000
"""Points of the last fit of the low band: so many uniform in the ball, and as many again along the directions."""
BEYOND_BALL = 1.3
"""Responses on the ball are tabulated, and fitted, up to this multiple of R, so that no end effect is inside."""
_TREND_WIDTH, _TREND_BAND = 0.8, 1.3
"""Standard deviation of the points of the fit between rounds, in units of ℓ (about that of the ends of EstWeight's
samples), and its band in units of `Settings.lowest`. Empirical: a slight overlap with `backfit` leaves no hole."""
_RIDGE = 1e-7
"""Tikhonov parameter of the low-band fit per sample; columns have unit size, and cosines of close directions are nearly
collinear."""
_BLOCK = 4096
"""Rows of a model evaluated at a time, so that intermediate arrays fit in the cache."""
_SHARPEN_STEP = 0.7
"""Spacing of t in `sharpen` in units of 1/√C₂, the width of the mass along the ray."""
_SHARPEN_TURNS, _LARGEST_TURN = 4, 0.1
"""Steps of `sharpen` and the largest one, in radians: the quadratic model of the mass holds only near its top, and four
such steps cross a grid cell."""
_MASS_SIGMAS, _VALUE_SIGMAS = 2.0, 2.0
"""Masses in `sharpen` and values in `backfit` below this many standard errors are left out. Empirical: less lets noise
in, more loses weak frequencies."""
_SWEEPS = 2
"""Sweeps of `backfit`. Empirical: directions that share little of their tubes need no more."""
_LARGEST_EXPONENT = 3.0
"""Largest z²/2ℓ² in e^{z²/2ℓ²}, which undoes the window: beyond z = 2.4ℓ there are few samples, and it would amplify
noise."""


@dataclass(frozen=True)
class Table:
    """A response σ on [−reach, reach] as values (k,) at equal steps, linear between them and beyond the ends."""

    reach: float
    values: Floats

    @property
    def step(self) -> float:
        """Spacing of the grid."""
        return 2 * self.reach / (len(self.values) - 1)

    @property
    def grid(self) -> Floats:
        """(k,) the arguments of `values`."""
        return np.linspace(-self.reach, self.reach, len(self.values))

    def __call__(self, z: ArrayLike) -> Floats:
        """Return σ(z) in the shape of z."""
        at = (np.asarray(z, dtype=np.float64) + self.reach) / self.step
        low = np.minimum(np.maximum(at.astype(np.intp), 0), len(self.values) - 2)
        start = self.values[low]
        return np.asarray(start + (at - low) * (self.values[low + 1] - start))

    def plus(self, values: Floats) -> Table:
        """Return the table with `values` (k,) added."""
        return Table(self.reach, frozen(self.values + values))


def zero_table(reach: float, step: float) -> Table:
    """Return the zero response on [−reach, reach] with at most the given spacing."""
    return Table(reach, frozen(np.zeros(2 * int(np.ceil(reach / step)) + 1)))


@dataclass(frozen=True)
class Model:
    """The function b + a·x + xᵀQx + Σ_i σ_i(u_i·x).

    directions: (n, d) rows u_i; tables: the σ_i; upper: the part |t| ≥ t_low of each, which `backfit` found, without
    what `fit_low_band` added; bias: b; slope: a (d,); quadratic: Q (d, d).
    """

    directions: Floats
    tables: tuple[Table, ...]
    upper: tuple[Table, ...]
    bias: float
    slope: Floats
    quadratic: Floats

    def __call__(self, X: Floats) -> Floats:
        """Return the (m,) values at the rows of X (m, d)."""
        out = np.empty(len(X))
        curved = bool(self.quadratic.any())
        for lo in range(0, len(X), _BLOCK):
            x = np.ascontiguousarray(X[lo : lo + _BLOCK].T)
            # einsum, not BLAS, whose rounding depends on the number of threads: a worker process may have another one
            value = self.bias + np.einsum("d,dm->m", self.slope, x)
            if curved:
                value += (np.einsum("de,em->dm", self.quadratic, x) * x).sum(axis=0)
            for table, s in zip(self.tables, np.einsum("nd,dm->nm", self.directions, x), strict=True):
                value += table(s)
            out[lo : lo + _BLOCK] = value
        return out

    def residual(self, f: Field) -> Residual:
        """Return the field x ↦ f(x) − model(x)."""
        return Residual(f, self)

    def with_directions(self, new: Floats, reach: float, step: float) -> Model:
        """Return the model with directions `new` (k, d) appended, their responses zero on [−reach, reach]."""
        blank = tuple(zero_table(reach, step) for _ in new)
        directions = np.concatenate([self.directions, new])
        return replace(self, directions=directions, tables=self.tables + blank, upper=self.upper + blank)

    def keep(self, index: list[int]) -> Model:
        """Return the model with only the features of these indices."""
        tables, upper = (tuple(t[i] for i in index) for t in (self.tables, self.upper))
        return replace(self, directions=self.directions[index], tables=tables, upper=upper)


@dataclass(frozen=True)
class Residual:
    """The field x ↦ f(x) − model(x)."""

    f: Field
    model: Model

    def __call__(self, X: Floats) -> Floats:
        """Return the (m,) residuals at the rows of X (m, d)."""
        return self.f(X) - self.model(X)


def empty_model(dim: int) -> Model:
    """Return the model that is zero everywhere."""
    return Model(np.zeros((0, dim)), (), (), 0.0, np.zeros(dim), np.zeros((dim, dim)))


def tabulated(U: Floats, responses: Sequence[Response], *, radius: float, settings: Settings) -> Model:
    """Return Σ_i σ̃_i(u_i·x) for directions U (n, d) as a model, every response on a grid beyond the ball."""
    model = empty_model(U.shape[1]).with_directions(U, BEYOND_BALL * radius, settings.table_step)
    return replace(model, tables=tuple(t.plus(r(t.grid)) for t, r in zip(model.tables, responses, strict=True)))


def _cosines(z: Floats, reach: float, count: int) -> Floats:
    """Return the (m, count) values cos(kπ(z + reach)/(2·reach)), k = 1 … count, which have no jump at the ends."""
    angle = (np.clip(z, -reach, reach) + reach) * (math.pi / (2 * reach))
    return np.asarray(np.cos(angle[:, None] * np.arange(1, count + 1)))


def fit_low_band(f: Field, model: Model, X: Floats, *, reach: float, band: float, quadratic: bool) -> Model:
    """Refit by least squares on X (m, d) the affine part, Q if `quadratic`, and the frequencies |t| ≤ band of every
    response on [−reach, reach]."""
    m, d = X.shape
    i, j = np.triu_indices(d)
    features = replace(model, bias=0.0, slope=np.zeros(d), quadratic=np.zeros((d, d)))
    y = features.residual(f)(X)
    scale = math.sqrt(float(np.mean(X**2)))
    columns = [np.ones((m, 1)), X / scale]
    if quadratic:
        columns.append(X[:, i] * X[:, j] / scale**2)
    head = sum(c.shape[1] for c in columns)
    count = max(2, math.ceil(2 * reach * band / math.pi))
    S = X @ model.directions.T
    columns += [_cosines(s, reach, count) for s in S.T]
    M = np.concatenate(columns, axis=1)
    G = M.T @ M
    G[np.diag_indices_from(G)] += _RIDGE * m
    c = np.linalg.solve(G, M.T @ y)
    Q = np.zeros((d, d))
    if quadratic:
        Q[i, j] = c[d + 1 : head] / scale**2
    tables = tuple(
        t.plus(_cosines(t.grid, reach, count) @ c[head + k * count : head + (k + 1) * count])
        for k, t in enumerate(model.tables)
    )
    return replace(model, tables=tables, bias=float(c[0]), slope=c[1 : d + 1] / scale, quadratic=Q)


def detrend(f: Field, model: Model, *, settings: Settings, rng: np.random.Generator) -> Model:
    """Fit the low band and the quadratic where EstWeight will sample."""
    X = draw_normal(TREND_POINTS, model.directions.shape[1], _TREND_WIDTH * settings.ell, rng)
    return fit_low_band(f, model, X, reach=settings.reach, band=_TREND_BAND * settings.lowest, quadratic=True)


def complete_on_ball(f: Field, model: Model, *, radius: float, band: float, rng: np.random.Generator) -> Model:
    """Fit the low band on the ball itself: half the points uniform, half along the directions."""
    n, d = model.directions.shape
    X = in_ball(BALL_POINTS, d, radius, rng)
    if n:
        X = np.concatenate([X] + [along(u, BALL_POINTS // n, radius, rng) for u in model.directions])
    return fit_low_band(f, model, X, reach=BEYOND_BALL * radius, band=band, quadratic=False)


@dataclass(frozen=True)
class Sharpened:
    """Directions after `sharpen`.

    directions: (n, d) unit rows; errors: (n,) standard error of each in radians: of its whole angle to the truth, not
    of one component; heights: (n,) largest mass along the ray in standard errors, on the residual of the others.
    """

    directions: Floats
    errors: Floats
    heights: Floats


def _own_products(model: Model, alpha: float, rows: Floats, values: Floats) -> Floats:
    """Return the (m, n) products at the two ends of a sample for every feature's own residual r_i: the residual of the
    model, with the feature itself added back. `values` (2m(d+1),) are f at the stencils `rows` (2m(d+1), d)."""
    U = model.directions
    left = differences_at_ends(values - model(rows), rows.shape[1], alpha)
    points = rows[:: rows.shape[1] + 1]
    out = np.empty((len(points) // 2, len(U)))
    for i, (u, sigma) in enumerate(zip(U, model.upper, strict=True)):
        s = np.einsum("md,d->m", points, u)
        minus, plus = (r + own_difference(sigma, u, s[k::2], alpha) for k, r in enumerate(left))
        out[:, i] = np.einsum("mq,mq->m", minus, plus)
    return out


def sharpen(f: Field, model: Model, *, settings: Settings, m: int, rng: np.random.Generator) -> Sharpened:
    """Move every direction of the model to the maximum of its own mass, with one batch of m samples and A = C₂I."""
    n, d = model.directions.shape
    ell, alpha, C2 = settings.ell, settings.alpha, settings.ell**2 / d
    kappa = C2 * ell**2 / (ell**2 + C2)
    _, delta, ends = draw_pairs(m, ell, math.sqrt(C2) * np.eye(d), settings.eta, rng)
    factor = window_factor(delta, ell)
    own = map_stencils(f, ends, alpha, partial(_own_products, model, alpha))
    step = _SHARPEN_STEP / math.sqrt(C2)
    modes = max(1, math.floor(settings.frequency / step))
    t = step * np.arange(1, modes + 1)
    used = t >= settings.lowest
    U, errors, heights = np.array(model.directions), np.full(n, np.inf), np.zeros(n)
    for i in range(n):
        c = factor * own[:, i]
        tau = math.sqrt(float(np.mean(c**2)) / (2 * m))
        weights = np.concatenate([c[None], (c[:, None] * delta).T]).astype(np.complex64)
        for turn in range(_SHARPEN_TURNS):
            sums = line_sums(step * (delta @ U[i]), weights, modes)[:, modes + 1 :] / m
            W, across = sums[0].real, sums[1:].imag
            q = np.where(used, np.maximum(W - _MASS_SIGMAS * tau, 0.0), 0.0)
            curvature = 2 * kappa * float((q * W * t**2).sum())
            if turn == 0:
                heights[i] = float(W[used].max()) / tau
            if curvature <= 0:
                break
            e = (across * q * t).sum(axis=1) / curvature
            e -= (e @ U[i]) * U[i]
            if turn == _SHARPEN_TURNS - 1:  # what is left to turn is an error, too
                errors[i] = math.hypot(
                    _angle_error(c, delta, U[i], q * t, 2 * kappa * q * W * t**2, step), np.linalg.norm(e)
                )
            u = U[i] + e * min(1.0, _LARGEST_TURN / max(float(np.linalg.norm(e)), 1e-300))
            U[i] = u / np.linalg.norm(u)
    return Sharpened(frozen(U), frozen(errors), frozen(heights))


def _angle_error(c: Floats, delta: Floats, u: Floats, pull: Floats, curvature: Floats, step: float) -> float:
    """Return the standard error in radians of the direction u that `sharpen` found, from its samples c (m,) and Δ
    (m, d).

    The turn ε is the mean over samples of −c·P_⊥Δ·Σ_t q_t t sin(t u·Δ), divided by the total of `curvature`, where
    `pull` holds the q_t t and both are given at t = step, 2·step, …. The spread of these terms, all d − 1 components
    together, is the error that sampling makes. Where another feature is near the ray, low frequencies, at which tubes
    overlap, pull u elsewhere than high ones: half the difference of the turns that the two halves of the curvature ask
    for is added in quadrature.
    """
    s = delta @ u
    across = delta - s[:, None] * u
    below = np.cumsum(curvature) <= 0.5 * curvature.sum()
    turns, terms = [], np.zeros_like(across)
    for part in (below, ~below):
        part_terms = -(c * waves_on_grid(s, np.where(part, -1j * pull, 0.0), step))[:, None] * across
        terms += part_terms
        turns.append(part_terms.mean(axis=0) / max(float(curvature[part].sum()), 1e-300) if part.any() else None)
    sampling = float(np.sum(np.var(terms, axis=0))) / len(c) / float(curvature.sum()) ** 2
    low, high = turns
    apart = 0.0 if low is None or high is None else float(np.linalg.norm(low - high)) / 2
    return math.sqrt(sampling + apart**2)


def merge(model: Model, found: Sharpened, *, separation: float, sigmas: float) -> tuple[Model, Sharpened]:
    """Drop directions whose own mass is below `sigmas` standard errors, and of directions closer than `separation` all
    but the one with the smallest error."""
    alive = np.flatnonzero((found.heights >= sigmas) & np.isfinite(found.errors))
    if len(alive):
        kept = separate(found.directions[alive], -found.errors[alive], separation)
        alive = alive[sorted(kept)]
    index = [int(i) for i in alive]
    sharper = Sharpened(found.directions[index], found.errors[index], found.heights[index])
    return replace(model.keep(index), directions=sharper.directions), sharper


def _shifted_normal(m: int, dim: int, ell: float, eta: float, rng: np.random.Generator) -> Floats:
    """Return m points (m, d) of EstVal, each shifted by its own ηz."""
    return np.asarray(ell * rng.standard_normal((m, dim)) + eta * rng.standard_normal((m, dim)))


def backfit(f: Field, model: Model, *, settings: Settings, m: int, rng: np.random.Generator) -> Model:
    """Apply Lemma recover-function to every direction, on the residual of all others, with one batch of m samples."""
    n, d = model.directions.shape
    if n == 0:
        return model
    ell, alpha, eta = settings.ell2, settings.alpha, settings.eta
    X = _shifted_normal(m, d, ell, eta, rng)
    S = X @ model.directions.T
    left = difference(model.residual(f), X, alpha)
    step = STEP / ell
    modes = max(1, math.floor(settings.top / step))
    t: Floats = step * np.arange(1.0, modes + 1)
    grid = model.tables[0].grid
    undo = np.exp(np.minimum(grid**2 / (2 * ell**2), _LARGEST_EXPONENT)) * 2 * step * ell / math.sqrt(2 * math.pi)
    upper = list(model.upper)
    for _ in range(_SWEEPS):
        for i, u in enumerate(model.directions):
            old = own_difference(upper[i], u, S[:, i], alpha)
            h = (left + old) @ u
            V = ray_values(S[:, i], h, step, modes)  # EstVal along u
            clear = (t >= settings.lowest) & (np.abs(V) >= _VALUE_SIGMAS * math.sqrt(float(np.mean(h**2)) / m))
            transform = np.where(clear, V * 1j * t / derivative_factor(t, u, alpha), 0.0)
            slope = undo * waves_on_grid(grid, transform, step)  # ρ̃ of Lemma recover-function, then ∫ρ̃
            rise = np.concatenate([[0.0], np.cumsum((slope[1:] + slope[:-1]) / 2)]) * upper[i].step
            upper[i] = Table(upper[i].reach, frozen(rise - rise[len(rise) // 2]))
            left = left + old - own_difference(upper[i], u, S[:, i], alpha)
    tables = tuple(
        t.plus(new.values - old.values) for t, new, old in zip(model.tables, upper, model.upper, strict=True)
    )
    return replace(model, tables=tables, upper=tuple(upper))
