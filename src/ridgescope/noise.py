"""Estimates of the error of one answer, and of the largest error of many.

Fourth differences along a very short line remove the first Taylor terms of f and leave the error of the answers, with
variance C(8,4) = 70 times that of one (the difference table of Hamming; Moré and Wild's ECnoise). A median over lines
ignores the one that meets a kink. Noise that may limit a fit is measured more exactly: to one part in twenty-five,
from the residuals of straight lines fitted to 64 short ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from .geometry import Floats, in_ball, random_directions

_LINES, _MANY_LINES = 8, 64  # for a factor of two, and for one part in twenty-five
_POINTS = 7  # on each line: three fourth differences, five degrees of freedom beyond a straight line
_FOURTH = 70.0  # variance of a fourth difference, C(8, 4), in units of that of one answer
_OUTLIER = 20.0  # times the median variance: a line that meets a step of f
_INSIDE, _STEP = 0.9, 1e-6  # radii: where lines start, and the distance between their points, on which f is straight
_CHANCE = 0.01  # that the largest of many Gaussian errors exceeds the quantile


def max_noise_quantile(count: int) -> float:
    """Return the standard deviations that the largest of `count` Gaussian errors exceeds with probability 1 %."""
    return float(-ndtri(0.5 * _CHANCE / max(count, 1)))


def noise_level(ask: Callable[[Floats], Floats], dim: int, radius: float, rng: np.random.Generator) -> float:
    """Return the standard deviation of one answer's error, from fourth differences on very short lines."""
    fourth = np.diff(_short_lines(ask, _LINES, dim, radius, rng), n=4, axis=1)
    variance = np.mean(fourth**2, axis=(1, 2)) / _FOURTH
    variance = variance[np.isfinite(variance)]
    return float(np.sqrt(np.median(variance))) if len(variance) else 0.0


def exact_noise(ask: Callable[[Floats], Floats], dim: int, radius: float, rng: np.random.Generator) -> float | None:
    """Return the same for noise far above rounding, to one part in twenty-five; None without answers.

    A line that meets a step of f has a large variance and is ignored.
    """
    Y = _short_lines(ask, _MANY_LINES, dim, radius, rng)
    t = np.linspace(-1.0, 1.0, Y.shape[1])
    straight = np.linalg.qr(np.stack([np.ones_like(t), t], axis=1))[0]
    left = Y - np.einsum("ta,sa,lsp->ltp", straight, straight, Y)
    variance = np.sum(left**2, axis=1).mean(axis=1) / (len(t) - 2)
    variance = variance[np.isfinite(variance)]
    variance = variance[variance <= _OUTLIER * np.median(variance)] if len(variance) else variance
    return float(np.sqrt(variance.mean())) if len(variance) else None


def _short_lines(
    ask: Callable[[Floats], Floats], count: int, dim: int, radius: float, rng: np.random.Generator
) -> Floats:
    """Return (count, 7, p) answers at seven points close together on each of `count` random lines."""
    start = in_ball(count, dim, _INSIDE * radius, rng)
    step = _STEP * radius * random_directions(count, dim, rng)
    X = start[:, None, :] + np.arange(_POINTS)[None, :, None] * step[:, None, :]
    return ask(X.reshape(-1, dim)).reshape(count, _POINTS, -1)
