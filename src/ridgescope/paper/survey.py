"""Practical settings from a few cheap questions, where the paper says "a sufficiently large polynomial".

Along random lines the slope of f is sampled, windowed and transformed. The frequency below which nearly all
of its power lies bounds the search; its size against the stated noise sets the length α of the differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgescope.paper.mass import Field


@dataclass(frozen=True)
class Settings:
    """What `learn` needs beside f.

    ell, ell2: windows of the search and of the responses (the paper's ℓ₁, ℓ₂); frequency: largest |y|
    looked at; lowest: smallest |t| at which tubes are told apart; alpha, eta: difference length and
    smoothing of "Removing boundedness"; samples, most: m of the first and of the last rounds; refine: least
    m of a refinement; separation: γ; rounds: how often to look again at the residual (0: the paper's single
    pass); sigmas: the 5 of "5τ"; repeats: independent searches put to a vote; candidates: heaviest
    candidates followed per level; negligible: features whose bend on the ball is below this share of f's
    standard deviation count as affine."""

    ell: float
    ell2: float
    frequency: float
    lowest: float
    alpha: float
    eta: float
    samples: int = 60_000
    most: int = 600_000
    refine: int = 100_000
    separation: float = 0.1
    rounds: int = 24
    sigmas: float = 5.0
    repeats: int = 1
    candidates: int | None = 40
    negligible: float = 0.003
    queries: int = 0

    @property
    def top(self) -> float:
        """Largest |t| at which responses are read off. Along a known ray values that do not stand out are
        left out, so looking beyond the search's own limit costs nothing and keeps edges sharp."""
        return 2.5 * self.frequency

    @property
    def table_step(self) -> float:
        """Spacing of tabulated responses: forty points to the shortest wave."""
        return 0.15 / self.top

    @property
    def reach(self) -> float:
        """How far out responses are kept: about four standard deviations of v·x among the samples of
        EstWeight."""
        return 3.2 * self.ell


def survey(
    f: Field,
    *,
    dim: int,
    radius: float,
    noise: float = 0.0,
    rng: np.random.Generator,
    lines: int = 32,
    points: int = 2048,
    share: float = 0.97,
) -> Settings:
    """Settings for a ball of the given radius, from lines·points queries."""
    ell = 5.0 * radius
    z = np.linspace(-2.5 * ell, 2.5 * ell, points)
    gap = float(z[1] - z[0])
    u = rng.standard_normal((lines, dim))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    offset = 0.5 * ell * rng.standard_normal((lines, dim))
    values = np.stack([f(offset[i] + z[:, None] * u[i]) for i in range(lines)])
    slope = np.diff(values, axis=1) / gap
    window = np.exp(-((z[1:] - gap / 2) ** 2) / (2 * (0.8 * ell) ** 2))
    slope = slope - (slope @ window / window.sum())[:, None]
    rough = math.sqrt(float(np.mean(slope**2)))
    slope *= window
    power = np.abs(np.fft.rfft(slope, axis=1)) ** 2
    t = 2 * math.pi * np.fft.rfftfreq(points - 1, gap)
    power -= np.median(power[:, -points // 8 :], axis=1, keepdims=True)
    power[:, t < 5 / ell] = 0.0
    power = np.maximum(power, 0.0)
    cumulative = np.cumsum(power, axis=1) / np.maximum(power.sum(axis=1, keepdims=True), 1e-300)
    edge = t[np.argmax(cumulative >= share, axis=1)]
    frequency = float(np.clip(1.3 * edge.max(), 60 / ell, 0.5 * math.pi / gap))
    # Short against the shortest wave; longer, within limits, where noise would be a tenth of the slope.
    alpha = float(np.clip(14 * noise / max(rough, 1e-300), 0.5 / frequency, 2.0 / frequency))
    return Settings(
        ell=ell,
        ell2=1.3 * ell,
        frequency=frequency,
        lowest=5.0 / ell,
        alpha=alpha,
        eta=0.2 * alpha,
        queries=lines * points,
    )
