"""The points a fit stands on: append-only, part of them held out, every answer of the run welcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..geometry import Floats, along, in_ball
from .model import Model

HELD = 8
"""One point in `HELD` is held out: never fitted, only used to judge."""


@dataclass
class Samples:
    """Points (m, d) of the ball with their answers (m, p), in two growing lists."""

    dim: int
    radius: float
    _X: list[Floats] = field(default_factory=list)
    _Y: list[Floats] = field(default_factory=list)
    _held: list[Floats] = field(default_factory=list)
    count: int = 0
    worth: float = 0.0
    """Points, each weighed by how much it tells a fit; see `add`."""

    def add(self, X: Floats, Y: Floats, *, thin: int = 1, worth: float = 1.0) -> None:
        """Take in every `thin`-th answer; rows outside the ball and dropped answers are left aside.

        The points of a stencil or a line crowd together and tell a fit less than as many points spread along the
        features: their `worth` is below one, and the fit asks for more of its own.
        """
        X, Y = X[::thin], Y[::thin]
        good = np.isfinite(Y).all(axis=1) & (np.einsum("md,md->m", X, X) <= self.radius**2 * (1 + 1e-12))
        if good.any():
            self._X.append(X[good])
            self._Y.append(Y[good])
            self._held.append((self.count + np.arange(good.sum())) % HELD == HELD - 1)
            self.count += int(good.sum())
            self.worth += worth * int(good.sum())

    def _gather(self) -> tuple[Floats, Floats, Floats]:
        if len(self._X) > 1:
            self._X, self._Y, self._held = ([np.concatenate(a)] for a in (self._X, self._Y, self._held))
        if not self._X:
            return np.empty((0, self.dim)), np.empty((0, 1)), np.empty(0, dtype=bool)
        return self._X[0], self._Y[0], self._held[0]

    @property
    def train(self) -> tuple[Floats, Floats]:
        X, Y, held = self._gather()
        return X[held == 0], Y[held == 0]

    @property
    def held_out(self) -> tuple[Floats, Floats]:
        X, Y, held = self._gather()
        return X[held == 1], Y[held == 1]


def ask_along(
    ask: Callable[[Floats], Floats],
    samples: Samples,
    directions: Floats,
    count: int,
    rng: np.random.Generator,
) -> None:
    """`count` new answers: three in four along the directions in turn, the rest uniform in the ball."""
    if count <= 0:
        return
    own = (3 * count) // 4 if len(directions) else 0
    which = rng.permutation(np.arange(own) % max(len(directions), 1))
    u = rng.uniform(-1.0, 1.0, own)
    u[::2] = np.sin(0.5 * np.pi * u[::2])  # every other one by Chebyshev's density: a spline is least sure at its ends
    z = samples.radius * u
    points = [in_ball(count - own, samples.dim, samples.radius, rng)]
    if own:
        points.append(along(directions, which, z, samples.radius, rng))
    X = rng.permutation(np.concatenate(points))
    samples.add(X, ask(X))


def held_out_error(model: Model, samples: Samples) -> tuple[float, float]:
    """(RMS over points and outputs, largest error) on held-out points."""
    X, Y = samples.held_out
    if not len(X):
        return float("inf"), float("inf")
    error = np.concatenate([Y[c : c + 8192] - model.predict(X[c : c + 8192]) for c in range(0, len(X), 8192)])
    return float(np.sqrt(np.mean(error**2))), float(np.abs(error).max())
