"""Repetition on the residual, our addition to the paper ("peeling").

The error of EstWeight and EstVal comes from the size of f, so a strong feature hides weak ones: a feature
of a tenth of the strength needs ten thousand times the samples. Once a feature is known, the same
estimators applied to what is left do not see it. `Model` holds what is known; three steps, each an
estimator of the paper on a residual, improve it:

- `sharpen` moves every direction u_i to where the mass of its own residual r_i (all *other* features taken
  away) is largest. Near the ray the mass falls off as W(tu + δ) = W(tu)·exp(−κ|δ|²) with κ = C₂ℓ²/(ℓ² + C₂)
  (the exponent of Lemma where-nonzero with α = C₂), so the gradient of W across the ray says how far off
  the direction is:

      ε = P_⊥ Σ_t q_t t ∇W(tu) / (2κ Σ_t q_t W(tu) t²),      u ← u + ε,

  with weights q_t = W(tu) where that stands out. The sums over samples are one-dimensional NUFFTs in s = u·Δ.
- `backfit` is Lemma recover-function on r_i: EstVal along the ray, divided by the factor of the difference,
  inverted, integrated. One sweep after another, as in Gauss–Seidel.
- `low_band` supplies what the lemma leaves out, |t| < t_low, where at affordable ℓ the tubes overlap: least
  squares for a few cosines per direction. While features are still missing it also takes a quadratic
  polynomial out of f: times the window a polynomial lives within a few 1/ℓ of the origin of Fourier space,
  inside the disc the search leaves out, so this lowers the variance of every estimate and does not change
  what is estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ridgescope.paper.derivative import (
    DifferenceProduct,
    derivative_factor,
    difference,
    own_difference,
    reduced_around,
)
from ridgescope.paper.directions import separate
from ridgescope.paper.mass import Field, FloatArray, Reduction, draw_pairs, frozen, line_sums, reduced
from ridgescope.paper.table import Table, zero_table
from ridgescope.paper.value import ray_values, waves_on_grid

BLOCK = 4096
"""Rows evaluated at a time, so that what lies between fits in the cache."""


@dataclass(frozen=True)
class Model:
    """b + a·x + xᵀQx + Σ_i σ_i(u_i·x).

    directions: (s, d); tables: the σ_i; upper: the part of each that `backfit` found, |t| ≥ t_low, without
    what `low_band` added; bias, slope (d,), quadratic (d, d)."""

    directions: FloatArray
    tables: tuple[Table, ...]
    upper: tuple[Table, ...]
    bias: float
    slope: FloatArray
    quadratic: FloatArray

    def __call__(self, X: FloatArray) -> FloatArray:
        out = np.empty(len(X))
        curved = bool(self.quadratic.any())
        for lo in range(0, len(X), BLOCK):
            x = np.ascontiguousarray(X[lo : lo + BLOCK].T)
            # not by BLAS, whose rounding depends on its threads: a worker may have others
            value = self.bias + np.einsum("d,dm->m", self.slope, x)
            if curved:
                value += (np.einsum("de,em->dm", self.quadratic, x) * x).sum(axis=0)
            for table, s in zip(self.tables, np.einsum("nd,dm->nm", self.directions, x), strict=True):
                value += table(s)
            out[lo : lo + BLOCK] = value
        return out

    def without(self, f: Field) -> Residual:
        """The residual x ↦ f(x) − model(x)."""
        return Residual(f, self)

    def with_directions(self, new: FloatArray, reach: float, step: float) -> Model:
        """New directions (k, d) with zero responses appended."""
        blank = tuple(zero_table(reach, step) for _ in new)
        directions = np.concatenate([self.directions, new])
        return replace(self, directions=directions, tables=self.tables + blank, upper=self.upper + blank)

    def keep(self, index: list[int]) -> Model:
        pick = [tuple(t[i] for i in index) for t in (self.tables, self.upper)]
        return replace(self, directions=self.directions[index], tables=pick[0], upper=pick[1])


@dataclass(frozen=True)
class Residual:
    """x ↦ f(x) − model(x)."""

    f: Field
    model: Model

    def __call__(self, X: FloatArray) -> FloatArray:
        return self.f(X) - self.model(X)

    def reduced(self, rows: FloatArray, reduction: Reduction) -> FloatArray:
        return reduced(self.f, rows, Less(replace(self.model, upper=()), reduction))


@dataclass(frozen=True)
class Less:
    """A reduction of what the model leaves of f: the model goes where f is asked."""

    model: Model
    reduction: Reduction

    @property
    def group(self) -> int:
        return self.reduction.group

    def __call__(self, rows: FloatArray, values: FloatArray) -> FloatArray:
        return self.reduction(rows, values - self.model(rows))


def empty_model(dim: int) -> Model:
    return Model(np.zeros((0, dim)), (), (), 0.0, np.zeros(dim), np.zeros((dim, dim)))


def cosines(z: FloatArray, reach: float, count: int) -> FloatArray:
    """(m, count) cos(kπ(z + reach)/(2·reach)), k = 1 … count: no jump at the ends, whatever the response
    does there."""
    angle = (np.clip(z, -reach, reach) + reach) * (math.pi / (2 * reach))
    return np.asarray(np.cos(angle[:, None] * np.arange(1, count + 1)))


def low_band(
    f: Field, model: Model, X: FloatArray, *, reach: float, band: float, quadratic: bool
) -> tuple[Model, float]:
    """Refit the affine part, Q if asked, and all |t| ≤ band of every response on [−reach, reach], by least
    squares on X.

    Returns the model and the root-mean-square of what is left at X.
    """
    m, d = X.shape
    i, j = np.triu_indices(d)
    blank = replace(model, bias=0.0, slope=np.zeros(d), quadratic=np.zeros((d, d)))
    y = blank.without(f)(X)
    scale = math.sqrt(float(np.mean(X**2)))
    columns = [np.ones((m, 1)), X / scale]
    if quadratic:
        columns.append(X[:, i] * X[:, j] / scale**2)
    head = sum(c.shape[1] for c in columns)
    count = max(2, math.ceil(2 * reach * band / math.pi))
    S = X @ model.directions.T
    columns += [cosines(s, reach, count) for s in S.T]
    M = np.concatenate(columns, axis=1)
    G = M.T @ M
    G[np.diag_indices_from(G)] += 1e-7 * m
    c = np.linalg.solve(G, M.T @ y)
    Q = np.zeros((d, d))
    if quadratic:
        Q[i, j] = c[d + 1 : head] / scale**2
    tables = tuple(
        t.plus(cosines(t.grid, reach, count) @ c[head + k * count : head + (k + 1) * count])
        for k, t in enumerate(model.tables)
    )
    left = float(np.sqrt(np.mean((y - M @ c) ** 2)))
    return replace(model, tables=tables, bias=float(c[0]), slope=c[1 : d + 1] / scale, quadratic=Q), left


@dataclass(frozen=True)
class Sharpened:
    """directions: (s, d); errors: (s,) standard error of each in radians; heights: (s,) largest mass along
    the ray in standard errors, on the residual that lacks all other features."""

    directions: FloatArray
    errors: FloatArray
    heights: FloatArray


@dataclass(frozen=True)
class OwnProducts:
    """(m, n) products at the two ends for every feature's own residual r_i: what the model leaves of f, with the
    feature itself put back."""

    model: Model
    product: DifferenceProduct

    @property
    def group(self) -> int:
        return self.product.group

    def __call__(self, rows: FloatArray, values: FloatArray) -> FloatArray:
        U, alpha = self.model.directions, self.product.alpha
        left = self.product.differences(values - self.model(rows))
        points = rows[:: len(U[0]) + 1]
        out = np.empty((len(points) // 2, len(U)))
        for i, (u, sigma) in enumerate(zip(U, self.model.upper, strict=True)):
            s = np.einsum("md,d->m", points, u)
            minus, plus = (r + own_difference(sigma, u, s[k::2], alpha) for k, r in enumerate(left))
            out[:, i] = np.einsum("mq,mq->m", minus, plus)
        return out


def sharpen(
    f: Field,
    model: Model,
    *,
    ell: float,
    C2: float,
    alpha: float,
    eta: float,
    frequency: float,
    lowest: float,
    m: int,
    rng: np.random.Generator,
    iterations: int = 4,
) -> Sharpened:
    """One batch of m samples with A = C₂I moves every direction to the top of its own mass."""
    n, d = model.directions.shape
    _, delta, ends = draw_pairs(m, ell, math.sqrt(C2) * np.eye(d), eta, rng)
    fade = np.exp(-np.einsum("md,md->m", delta, delta) / (4 * ell**2))
    own = reduced_around(f, ends, alpha, OwnProducts(model, DifferenceProduct(d, alpha)))
    step = 0.7 / math.sqrt(C2)
    modes = max(1, math.floor(frequency / step))
    t = step * np.arange(1, modes + 1)
    U, errors, heights = np.array(model.directions), np.full(n, np.inf), np.zeros(n)
    for i in range(n):
        c = fade * own[:, i]
        tau = math.sqrt(float(np.mean(c**2)) / (2 * m))
        weights = np.concatenate([c[None], (c[:, None] * delta).T]).astype(np.complex64)
        for turn in range(iterations):
            sums = line_sums(step * (delta @ U[i]), weights, modes)[:, modes + 1 :] / m
            W, across = sums[0].real, sums[1:].imag
            q = np.where(t >= lowest, np.maximum(W - 2 * tau, 0.0), 0.0)
            curvature = 2 * C2 * ell**2 / (ell**2 + C2) * float((q * W * t**2).sum())
            if turn == 0:
                heights[i] = float(W[t >= lowest].max()) / tau
            if curvature <= 0:
                break
            e = (across * q * t).sum(axis=1) / curvature
            e -= (e @ U[i]) * U[i]
            errors[i] = math.sqrt(2 * C2 * float((q**2 * t**2).sum())) * tau / curvature
            u = U[i] + e * min(1.0, 0.1 / max(float(np.linalg.norm(e)), 1e-300))
            U[i] = u / np.linalg.norm(u)
    return Sharpened(frozen(U), frozen(errors), frozen(heights))


def draw_points(m: int, dim: int, ell: float, eta: float, rng: np.random.Generator) -> FloatArray:
    """(m, d) points of EstVal, each moved by its own ηz."""
    return np.asarray(ell * rng.standard_normal((m, dim)) + eta * rng.standard_normal((m, dim)))


def merge(model: Model, found: Sharpened, *, separation: float, sigmas: float) -> tuple[Model, Sharpened]:
    """Drop directions whose own mass does not stand out, and of those closer than `separation` all but the
    surest."""
    alive = np.flatnonzero((found.heights >= sigmas) & np.isfinite(found.errors))
    if len(alive):
        kept = separate(found.directions[alive], -found.errors[alive], separation)
        alive = alive[sorted(kept)]
    index = [int(i) for i in alive]
    sharper = Sharpened(found.directions[index], found.errors[index], found.heights[index])
    return replace(model.keep(index), directions=sharper.directions), sharper


def backfit(
    f: Field,
    model: Model,
    *,
    ell: float,
    alpha: float,
    eta: float,
    frequency: float,
    lowest: float,
    m: int,
    rng: np.random.Generator,
    sweeps: int = 2,
    sigmas: float = 2.0,
) -> Model:
    """Lemma recover-function for every direction, on the residual without all others, from one batch of m
    samples."""
    n, d = model.directions.shape
    if n == 0:
        return model
    X = draw_points(m, d, ell, eta, rng)
    S = X @ model.directions.T
    left = difference(model.without(f), X, alpha)
    step = 0.4 / ell
    modes = max(1, math.floor(frequency / step))
    t: FloatArray = step * np.arange(1.0, modes + 1)
    grid = model.tables[0].grid
    # e^{z²/2ℓ²} undoes the window; beyond 2.4ℓ, where hardly a sample lies, it would only blow up noise.
    undo = np.exp(np.minimum(grid**2 / (2 * ell**2), 3.0)) * 2 * step * ell / math.sqrt(2 * math.pi)
    upper = list(model.upper)
    for _ in range(sweeps):
        for i, u in enumerate(model.directions):
            old = own_difference(upper[i], u, S[:, i], alpha)
            h = (left + old) @ u
            V = ray_values(S[:, i], h, step, modes)  # EstVal along u
            clear = (t >= lowest) & (np.abs(V) >= sigmas * math.sqrt(float(np.mean(h**2)) / m))
            transform = np.where(clear, V * 1j * t / derivative_factor(t, u, alpha), 0.0)
            slope = undo * waves_on_grid(grid, transform, step)  # ρ̃ of Lemma recover-function, then ∫ρ̃
            rise = np.concatenate([[0.0], np.cumsum((slope[1:] + slope[:-1]) / 2)]) * upper[i].step
            upper[i] = Table(upper[i].reach, frozen(rise - rise[len(rise) // 2]))
            left = left + old - own_difference(upper[i], u, S[:, i], alpha)
    tables = tuple(
        t.plus(new.values - old.values) for t, new, old in zip(model.tables, upper, model.upper, strict=True)
    )
    return replace(model, tables=tables, upper=tuple(upper))
