"""A few cheap questions first: scale, noise, bandwidth, and the subspace that f depends on.

Noise: what very short lines show; see `noise`.

Bandwidth: the frequency below which 99 % of the windowed power of f along random chords lies.

Subspace: gradients of f are Σ s_i'(v_i·x) v_i; where they span less than R^d, so do the v_i, and all the rest of
the work can be done there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .geometry import Floats, in_ball, random_basis, random_directions, unit
from .noise import exact_noise, noise_level
from .oracle.base import Oracle

_POINTS = 256
_LINES = 8


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known before the search."""

    scale: float
    """Standard deviation of f over the ball, root mean square over outputs."""
    noise: float
    """Standard deviation of one answer's error."""
    bandwidth: float
    deterministic: bool
    basis: Floats
    """(r, d) orthonormal rows spanning what f depends on."""
    points: Floats
    values: Floats
    """All survey questions inside the ball, for the fit to reuse."""
    probabilities: bool
    """Every answer was a row of probabilities."""
    largest: float = 0.0
    """|answer| in the ball, over all outputs."""


_FAR = 16.0
"""Radii to which the survey looks beyond the ball for directions that matter only there."""
_PROBES = 64
"""Lines on which f is looked at that far away, two questions each."""
_WORST = 8
"""Of them, where the gradient is taken."""


class _Notebook:
    """Asks for the survey and keeps what was answered."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle, self.X, self.Y = oracle, list[Floats](), list[Floats]()

    def __call__(self, X: Floats) -> Floats:
        Y = self.oracle(X, stage="survey")
        self.X.append(X)
        self.Y.append(Y)
        return Y


def survey(
    oracle: Oracle, radius: float, noise: float | None, rng: np.random.Generator, *, tolerance: float = 1e-2
) -> Survey:
    """Ask about (256 + 1000 + d²) questions and say what they tell; of noise that may limit the tolerance, more."""
    ask = _Notebook(oracle)
    ball = in_ball(_POINTS, oracle.dim, radius, rng)
    values = ask(ball)
    good = values[np.isfinite(values).all(axis=1)]
    scale = float(np.sqrt(np.mean(np.var(good, axis=0)))) if len(good) else 0.0
    repeat = oracle.repeats(ball[:4], stage="survey")
    seen = max(noise_level(ask, oracle.dim, radius, rng), repeat.spread, 0.3 * oracle.resolution)
    if noise is None and seen > 0.05 * tolerance * scale > 0.0:
        seen = max(exact_noise(ask, oracle.dim, radius, rng) or seen, 0.3 * oracle.resolution)
    if noise is not None:
        seen = max(seen, noise / np.sqrt(3.0))
    seen = max(seen, 1e-300)
    frequency = bandwidth(ask, oracle.dim, radius, seen, rng)
    basis = subspace(oracle, ask, radius, scale, seen, rng)
    X, Y = np.concatenate(ask.X), np.concatenate(ask.Y)
    return Survey(
        scale=scale,
        noise=seen,
        bandwidth=frequency,
        deterministic=repeat.deterministic,
        basis=basis,
        points=X,
        values=Y,
        probabilities=_are_probabilities(good),
        largest=float(np.abs(good).max(initial=0.0)),
    )


def bandwidth(
    ask: Callable[[Floats], Floats], dim: int, radius: float, noise: float, rng: np.random.Generator
) -> float:
    """Frequency (radians per unit length) below which 99 % of the power along random chords lies."""
    through = random_directions(_LINES, dim, rng)
    for count in (64, 256, 1024):
        t = (np.arange(count) + 0.5) * (2.0 * radius / count) - radius
        X = (t[None, :, None] * through[:, None, :]).reshape(-1, dim)
        Y = ask(X).reshape(_LINES, count, -1)
        there = np.isfinite(Y)
        Y = np.where(there, Y, Y[there].mean() if there.any() else 0.0)
        design = np.stack([np.ones(count), t], axis=1)
        Y = Y - design @ np.linalg.lstsq(design, Y.transpose(1, 0, 2).reshape(count, -1), rcond=None)[0].reshape(
            2, _LINES, -1
        ).transpose(1, 0, 2)
        power = np.abs(np.fft.rfft(Y * np.hanning(count)[:, None], axis=1)) ** 2
        power = power.sum(axis=2)
        total = np.maximum(power.sum(axis=1, keepdims=True), 1e-300)
        above = total - np.cumsum(power, axis=1)
        floor = np.maximum(1e-2, noise**2 * count * count / total)
        edge = int(np.max(np.argmax(above <= floor * total, axis=1)))
        if edge < count // 4:
            break
    return float(max(edge, 2) * np.pi / radius)


def subspace(
    oracle: Oracle,
    ask: Callable[[Floats], Floats],
    radius: float,
    scale: float,
    noise: float,
    rng: np.random.Generator,
) -> Floats:
    """(r, d) orthonormal rows; the identity where gradients span everything or the span is not clear."""
    d = oracle.dim
    if d <= 2 or scale <= 0:
        return np.eye(d)
    step = radius * float(np.clip(np.sqrt(noise / scale), 1e-5, 0.1))
    per_row = 4.0 * noise / step + 30.0 * step * scale / radius**2
    gradients, points, span = np.empty((0, d)), 0, np.eye(d)
    while points < d + 8:
        # A ball in many dimensions hardly moves v·x. Inside the span found so far it does, and a response that
        # looked straight (its direction hidden in the constant part of the gradient) shows its bend there.
        inside = len(span) < d
        count = min(max(8, len(span) if inside else d // 8), d + 8)
        at = in_ball(count, len(span), radius - step, rng) @ span
        if inside:
            at[::2] *= ((radius - step) / np.linalg.norm(at[::2], axis=1))[:, None]
        gradients = np.concatenate([gradients, _gradients(oracle, ask, at, step, rng)])
        points += count
        rank = _rank(gradients, d, np.sqrt(max(len(gradients), d)) * per_row)
        if rank == d:
            break
        if rank is not None and len(gradients) >= 2 * rank + 8:
            if inside and rank == len(span):
                far = _far_gradients(oracle, ask, span, radius, step, scale, noise, rng)
                if not _shows_more(far, span, np.sqrt(max(len(far), 1)) * per_row):
                    return span
                gradients = np.concatenate([gradients, far])
                rank = _rank(gradients, d, np.sqrt(max(len(gradients), d)) * per_row) or rank
            span = np.linalg.svd(gradients, full_matrices=False)[2][:rank]
    return np.eye(d)


def _far_gradients(
    oracle: Oracle,
    ask: Callable[[Floats], Floats],
    span: Floats,
    radius: float,
    step: float,
    scale: float,
    noise: float,
    rng: np.random.Generator,
) -> Floats:
    """At a few points well outside the ball, where that may be asked and f is not affine across the span: there v·x
    takes values that no random point of a ball in many dimensions has, and a response that only bends far out shows.
    Rows are divided by the distance in radii, as answers and their rounding grow with it.
    """
    farthest = _FAR if oracle.reach is None else min(_FAR, 0.9 * oracle.reach / radius)
    if farthest < 2.0:
        return np.empty((0, oracle.dim))
    radii = np.geomspace(2.0, farthest, _PROBES)
    across = random_directions(_PROBES, oracle.dim, rng)
    across = unit(across - (across @ span.T) @ span)
    y = radius * radii[:, None] * across
    f = np.nan_to_num(oracle(np.concatenate([np.zeros((1, oracle.dim)), 0.5 * y, y]), stage="survey"))
    bend = np.abs(2.0 * f[1 : _PROBES + 1] - f[_PROBES + 1 :] - f[0]).max(axis=1)  # 0 where f is affine
    floor = 1e-3 * scale + 20.0 * noise + 64.0 * oracle.rounding * float(np.abs(f).max(initial=0.0))
    worst = np.argsort(-bend)[: min(_WORST, int(np.sum(bend > floor)))]
    rows = [_gradients(oracle, ask, y[None, k], step, rng) / radii[k] for k in worst]
    return np.concatenate([np.empty((0, oracle.dim)), *rows])


def _shows_more(gradients: Floats, span: Floats, floor: float) -> bool:
    """Is there anything outside the span?"""
    outside = gradients - (gradients @ span.T) @ span
    return bool(len(outside)) and float(np.linalg.norm(outside, 2)) > floor


def _gradients(
    oracle: Oracle, ask: Callable[[Floats], Floats], at: Floats, step: float, rng: np.random.Generator
) -> Floats:
    count, d = at.shape
    if oracle.has_gradient:
        rows = oracle.gradient(at, stage="survey").reshape(-1, d)
        return rows[np.isfinite(rows).all(axis=1)]
    E = random_basis(d, d, rng)  # a random frame: no coordinate axis is special
    X = at[:, None, :] + step * np.concatenate([np.zeros((1, d)), E])[None]
    Y = ask(X.reshape(-1, d)).reshape(count, d + 1, -1)
    slopes = (Y[:, 1:] - Y[:, :1]) / step
    rows = slopes.transpose(0, 2, 1).reshape(-1, d) @ E
    return rows[np.isfinite(rows).all(axis=1)]


def _rank(gradients: Floats, d: int, floor: float) -> int | None:
    """Numerical rank of the gradients above the floor; None where it is not below the number of rows."""
    if not len(gradients):
        return None
    sizes = np.linalg.svd(gradients, compute_uv=False)
    rank = int(np.sum(sizes > floor))
    if rank >= min(len(gradients), d):
        return d if rank == d else None
    clear = sizes[rank - 1] > 10.0 * sizes[rank] if rank else True
    return max(rank, 1) if clear else None


def _are_probabilities(values: Floats) -> bool:
    if values.size == 0 or values.min() < 0 or values.max() > 1:
        return False
    return values.shape[1] > 1 and bool(np.abs(values.sum(axis=1) - 1.0).max() < 1e-3)
