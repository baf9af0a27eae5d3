"""The points a fit stands on: append-only, part of them held out, every answer of the run welcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, along, in_ball
from .model import Model

HELD = 8
"""One point in `HELD` is held out: never fitted, only used to judge."""
_SPREAD, _HELD_OUT, _CROWDED = 0, 1, 2
_CROWD = 6000


@dataclass
class Samples:
    """Points (m, d) of the ball with their answers (m, p), in two growing lists."""

    dim: int
    radius: float
    _X: list[Floats] = field(default_factory=list)
    _Y: list[Floats] = field(default_factory=list)
    _role: list[NDArray[np.int8]] = field(default_factory=list)
    count: int = 0
    worth: float = 0.0
    """Points, each weighed by how much it tells a fit; see `add`."""
    _crowd: int = 0
    _stride: int = 1

    def add(self, X: Floats, Y: Floats, *, thin: int = 1, worth: float = 1.0, lone: bool = False) -> None:
        """Take in every `thin`-th answer; rows outside the ball and dropped answers are left aside.

        The points of a stencil or a line crowd together and tell a fit less than as many points spread along the
        features: their `worth` is below one, and the fit asks for more of its own. None of them is held out, as its
        neighbours would be fitted. `lone` points stand where no others do: none is held out, and none thinned out.
        """
        crowded = worth < 1.0 and not lone
        thin = thin * self._stride if crowded else thin
        X, Y = X[::thin], Y[::thin]
        good = np.isfinite(Y).all(axis=1) & (np.einsum("md,md->m", X, X) <= self.radius**2 * (1 + 1e-12))
        if good.any():
            self._X.append(X[good])
            self._Y.append(Y[good])
            turn = (self.count + np.arange(good.sum())) % HELD
            role = np.where((turn == HELD - 1) & (not lone), _HELD_OUT, _SPREAD)
            role = np.full(len(turn), _CROWDED) if crowded else role
            self._role.append(role.astype(np.int8))
            self.count += int(good.sum())
            self.worth += worth * int(good.sum())
            if crowded:
                self._crowd += int(good.sum())
                self._thin_out()

    def _thin_out(self) -> None:
        """A search of millions must not swamp the fit: beyond `_CROWD` every other crowded point goes."""
        while self._crowd > _CROWD:
            X, Y, role = self._gather()
            crowded = np.flatnonzero(role == _CROWDED)
            keep = np.setdiff1d(np.arange(len(role)), crowded[1::2])
            self._X, self._Y, self._role = [X[keep]], [Y[keep]], [role[keep]]
            self.count, self._crowd, self._stride = len(keep), len(crowded[::2]), 2 * self._stride

    def _gather(self) -> tuple[Floats, Floats, NDArray[np.int8]]:
        if not self._X:
            return np.empty((0, self.dim)), np.empty((0, 1)), np.empty(0, dtype=np.int8)
        if len(self._X) > 1:
            self._X, self._Y, self._role = (
                [np.concatenate(self._X)],
                [np.concatenate(self._Y)],
                [np.concatenate(self._role)],
            )
        return self._X[0], self._Y[0], self._role[0]

    @property
    def train(self) -> tuple[Floats, Floats]:
        X, Y, role = self._gather()
        return X[role != _HELD_OUT], Y[role != _HELD_OUT]

    @property
    def spread(self) -> tuple[Floats, Floats]:
        """The points of `train` that do not crowd together."""
        X, Y, role = self._gather()
        return X[role == _SPREAD], Y[role == _SPREAD]

    @property
    def held_out(self) -> tuple[Floats, Floats]:
        X, Y, role = self._gather()
        return X[role == _HELD_OUT], Y[role == _HELD_OUT]


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


def ask_strata(
    ask: Callable[[Floats], Floats],
    samples: Samples,
    directions: Floats,
    each: int,
    rng: np.random.Generator,
) -> None:
    """`each` new answers along every direction, one in each stratum of [−radius, radius], the outer ones at its ends.

    With few points a feature, those drawn at random leave some response without a point in its last quarter, and the
    largest error of the whole sits there.
    """
    n = len(directions)
    u = np.clip(np.linspace(-1.0, 1.0, each) + rng.uniform(-1.0, 1.0, (n, each)) / (each - 1), -1.0, 1.0)
    z = samples.radius * (1.0 - 1e-9) * 0.5 * (u + np.sin(0.5 * np.pi * u))
    X = rng.permutation(along(directions, np.repeat(np.arange(n), each), z.ravel(), samples.radius, rng))
    samples.add(X, ask(X))


def ask_ends(ask: Callable[[Floats], Floats], samples: Samples, directions: Floats) -> None:
    """Where a direction leaves the ball, and shortly before: no point of the ball lies beyond, and few lie near."""
    z = samples.radius * (1.0 - 1e-9) * np.array([-1.0, -0.97, 0.97, 1.0])
    X = np.multiply.outer(z, directions).reshape(-1, samples.dim)
    samples.add(X, ask(X), worth=0.5, lone=True)


def held_out_squares(model: Model, samples: Samples) -> tuple[Floats, float]:
    """((k,) squared error of each held-out point, mean over outputs; largest error).

    Of all points where none is held out yet.
    """
    X, Y = samples.held_out
    X, Y = (X, Y) if len(X) else samples.train
    if not len(X):
        return np.empty(0), float("inf")
    error = np.concatenate([Y[c : c + 8192] - model.predict(X[c : c + 8192]) for c in range(0, len(X), 8192)])
    return np.mean(error**2, axis=1), float(np.abs(error).max())


def held_out_error(model: Model, samples: Samples) -> tuple[float, float]:
    """(RMS over points and outputs, largest error) on held-out points; on all where none is held out yet."""
    squares, largest = held_out_squares(model, samples)
    return (float(np.sqrt(squares.mean())) if len(squares) else float("inf")), largest
