"""How large is the error of one answer, and how large the largest of many?

Along a very short line f is its first Taylor terms, which fourth differences remove; what is left is the error of the
answers, with variance C(8,4) = 70 times that of one (the difference table of Hamming; Moré and Wild's ECnoise). A
median over lines ignores the one that meets a kink. Noise that may limit a fit is asked for more exactly: to one part
in twenty-five, from what straight lines leave of 64 short ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from .geometry import Floats, in_ball, random_directions

_LINES, _MANY = 8, 64
_CHANCE = 0.01


def max_noise_quantile(count: int) -> float:
    """Standard deviations that the largest of so many Gaussian errors exceeds once in a hundred times."""
    return float(-ndtri(0.5 * _CHANCE / max(count, 1)))


def noise_level(ask: Callable[[Floats], Floats], dim: int, radius: float, rng: np.random.Generator) -> float:
    """Standard deviation of one answer's error, from fourth differences on very short lines."""
    fourth = np.diff(_short_lines(ask, _LINES, dim, radius, rng), n=4, axis=1)
    variance = np.mean(fourth**2, axis=(1, 2)) / 70.0
    variance = variance[np.isfinite(variance)]
    return float(np.sqrt(np.median(variance))) if len(variance) else 0.0


def exact_noise(ask: Callable[[Floats], Floats], dim: int, radius: float, rng: np.random.Generator) -> float | None:
    """The same for noise far above rounding, with five degrees of freedom from each line; None without answers.

    A line that meets a step of f stands out and is left aside.
    """
    Y = _short_lines(ask, _MANY, dim, radius, rng)
    t = np.linspace(-1.0, 1.0, Y.shape[1])
    straight = np.linalg.qr(np.stack([np.ones_like(t), t], axis=1))[0]
    left = Y - np.einsum("ta,sa,lsp->ltp", straight, straight, Y)
    variance = np.sum(left**2, axis=1).mean(axis=1) / (len(t) - 2)
    variance = variance[np.isfinite(variance)]
    variance = variance[variance <= 20.0 * np.median(variance)] if len(variance) else variance
    return float(np.sqrt(variance.mean())) if len(variance) else None


def _short_lines(
    ask: Callable[[Floats], Floats], count: int, dim: int, radius: float, rng: np.random.Generator
) -> Floats:
    """(count, 7, p) answers at seven points close together."""
    start = in_ball(count, dim, 0.9 * radius, rng)
    step = 1e-6 * radius * random_directions(count, dim, rng)
    X = start[:, None, :] + np.arange(7)[None, :, None] * step[:, None, :]
    return ask(X.reshape(-1, dim)).reshape(count, 7, -1)
