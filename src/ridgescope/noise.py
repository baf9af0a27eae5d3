"""Estimates of the error of one answer, and of the largest error of many.

Fourth differences along a very short line remove the first Taylor terms of f and leave the error of the answers, with
variance C(8,4) = 70 times that of one (the difference table of Hamming; Moré and Wild's ECnoise). A line whose variance
is far above the median, since it meets a kink, is ignored. Noise that may limit a fit is measured more exactly: to one
part in twenty-five, from the residuals of straight lines fitted to 64 short ones.

Where neighbours on such lines have the same answer, rounding inside the function hides its error; see `rounding`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from .geometry import Floats, in_ball, random_directions

LINES, MANY_LINES = 8, 64
"""Lines for a factor of two, and for one part in twenty-five."""
LINE_POINTS = 7
"""Points on each line: three fourth differences, five degrees of freedom beyond a straight line."""
_FOURTH = 70.0  # variance of a fourth difference, C(8, 4), in units of that of one answer
_OUTLIER = 20.0  # times the median variance: a line that meets a step of f
_INSIDE, _STEP = 0.9, 1e-6  # radii: where lines start, and the distance between their points, on which f is straight
_CHANCE = 0.01  # that the largest of many Gaussian errors exceeds the quantile


def max_noise_quantile(count: int) -> float:
    """Return the standard deviations that the largest of `count` Gaussian errors exceeds with probability 1 %."""
    return float(-ndtri(0.5 * _CHANCE / max(count, 1)))


def noise_level(lines: Floats) -> float:
    """Return the standard deviation of one answer's error, from the answers (l, 7, p) on very short lines."""
    variance = _without_outliers(line_variances(lines))
    return float(np.sqrt(variance.mean())) if len(variance) else 0.0


def line_variances(lines: Floats) -> Floats:
    """Return the variance of one answer's error on each line (l, 7, p), from fourth differences.

    Lines with a dropped answer are left out.
    """
    variance: Floats = np.mean(np.diff(lines, n=4, axis=1) ** 2, axis=(1, 2)) / _FOURTH
    return variance[np.isfinite(variance)]


def identical_share(lines: Floats) -> float:
    """Return the share of neighbours on the lines (l, 7, p) whose answers are the same number."""
    return float(np.mean(lines[:, 1:] == lines[:, :-1])) if lines.size else 0.0


def exact_noise(ask: Callable[[Floats], Floats], dim: int, radius: float, rng: np.random.Generator) -> float | None:
    """Return the same for noise far above rounding, to one part in twenty-five; None without answers.

    A line that meets a step of f has a large variance and is ignored.
    """
    Y = short_lines(ask, dim, radius, rng, MANY_LINES)
    t = np.linspace(-1.0, 1.0, Y.shape[1])
    straight = np.linalg.qr(np.stack([np.ones_like(t), t], axis=1))[0]
    left = Y - np.einsum("ta,sa,lsp->ltp", straight, straight, Y)
    variance = np.sum(left**2, axis=1).mean(axis=1) / (len(t) - 2)
    variance = _without_outliers(variance[np.isfinite(variance)])
    return float(np.sqrt(variance.mean())) if len(variance) else None


def _without_outliers(variance: Floats) -> Floats:
    """Return the variances without those of lines that meet a kink or a step of f."""
    return variance[variance <= _OUTLIER * np.median(variance)] if len(variance) else variance


def short_lines(
    ask: Callable[[Floats], Floats], dim: int, radius: float, rng: np.random.Generator, count: int = LINES
) -> Floats:
    """Return (count, 7, p) answers at seven points close together on each of `count` random lines."""
    start = in_ball(count, dim, _INSIDE * radius, rng)
    step = _STEP * radius * random_directions(count, dim, rng)
    X = start[:, None, :] + np.arange(LINE_POINTS)[None, :, None] * step[:, None, :]
    return ask(X.reshape(-1, dim)).reshape(count, LINE_POINTS, -1)
