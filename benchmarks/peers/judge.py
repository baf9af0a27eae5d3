"""A contestant's answer held against the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgescope.geometry import in_ball
from ridgescope.match import match
from ridgescope.targets import Planted, planted

from .networks import Network, Scaled

RADIUS = 3.0
INSIDE, ALONG = 4000, 121


@dataclass(frozen=True)
class Score:
    """Errors are fractions of f's standard deviation over the ball; None where a method has no model of f."""

    within_1: float
    within_2: float
    within_3: float
    """Shares of the planted directions found within 1e-1, 1e-2, 1e-3 rad."""
    false: int
    """Directions found that are nobody's partner within 0.1 rad."""
    worst: float
    """Largest angle of a planted direction to its partner, radians; π/2 where it has none."""
    sup: float | None
    rms: float | None
    rays: float | None
    """Largest error along the true rays t·v_i, |t| ≤ R."""

    @property
    def rank(self) -> tuple[float, ...]:
        """For choosing a peer's best setting, truth in hand: larger is better."""
        return (self.within_2, self.within_1, -self.false, -(self.rms or 0.0))


def drawn(target: Mapping[str, Any]) -> Planted | Scaled:
    """`planted(**target)`, or the network of that name: {"network": "cancer:tanh"}."""
    if "network" not in target:
        return planted(**target)
    name, _, activation = target["network"].partition(":")
    return Scaled(Network.trained(name, activation), RADIUS)


def places(target: Planted | Scaled, seed: int) -> np.ndarray:
    """Where every contestant is asked for f: uniform in the ball, then along each true ray."""
    rng = np.random.default_rng([seed, INSIDE])
    t = np.linspace(-RADIUS, RADIUS, ALONG)
    rays = (t[:, None, None] * target.directions).reshape(-1, target.dim)
    return np.concatenate([in_ball(INSIDE, target.dim, RADIUS, rng), rays])


def judged(target: Planted | Scaled, T: np.ndarray, directions: np.ndarray, values: np.ndarray) -> Score:
    directions = directions.reshape(-1, target.dim)
    directions = directions[np.isfinite(directions).all(axis=1) & directions.any(axis=1)]  # a unit may have died
    told = match(directions, target.directions)
    sup = rms = rays = None
    if len(values):
        truth = target.clean(T).reshape(len(T), -1)
        scale = np.sqrt(np.mean(np.var(truth[:INSIDE], axis=0)))
        error = np.abs(values.reshape(truth.shape) - truth).max(axis=1) / scale
        sup, rays = float(error[:INSIDE].max()), float(error[INSIDE:].max())
        rms = float(np.sqrt(np.mean(error[:INSIDE] ** 2)))
    shares = [told.share(angle) for angle in (1e-1, 1e-2, 1e-3)]
    false = match(directions, getattr(target, "units", target.directions)).false
    return Score(*shares, false=len(false), worst=float(told.angles.max()), sup=sup, rms=rms, rays=rays)
