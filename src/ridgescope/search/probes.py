"""What all searches by derivatives share: a budget, places to look at, and which of them tell most."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions
from .base import Ask, Setting


class Meter:
    """An `ask` that counts its rows against a budget."""

    def __init__(self, ask: Ask, queries: int) -> None:
        self._ask = ask
        self.left = int(queries)
        self.spent = 0

    def __call__(self, points: Floats) -> Floats:
        if len(points) > self.left:
            raise RuntimeError(f"{len(points)} rows asked with {self.left} left; the caller must plan for less")
        self.left -= len(points)
        self.spent += len(points)
        return self._ask(points)


def places(setting: Setting, pad: float, count: int, rng: np.random.Generator) -> Floats:
    """Points at radii from a third of the ball to all of it: responses bend at different distances."""
    outer = min(setting.radius, setting.reach) - 1.01 * pad
    return random_directions(count, setting.dim, rng) * rng.uniform(outer / 3.0, outer, count)[:, None]


def telling(curvature: Floats, count: int) -> NDArray[np.intp]:
    """Points, one after the other, at which the features least seen so far bend most."""
    power = np.sum(curvature**2, axis=1)
    power = power / np.maximum(power.sum(axis=0), 1e-300)
    seen = np.full(power.shape[1], 1e-3 / len(power))
    chosen: list[int] = []
    for _ in range(count):
        gain = np.sum(np.log1p(power / seen), axis=1)
        gain[chosen] = -np.inf
        chosen.append(int(np.argmax(gain)))
        seen = seen + power[chosen[-1]]
    return np.array(chosen, dtype=np.intp)
