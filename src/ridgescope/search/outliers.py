"""Directions from gradients of the residual at the points where it is largest.

Features that the first round missed often bend far out only, where random points seldom lie: an ELU with its bend at
t = −1.4 is straight at 99 of 100 points of a ball in 20 dimensions. Their part of f is then straight nearly everywhere,
joins the affine part of the model, and what is left is large at a few points only. There a single such feature makes
most of the residual r, and

    ∇r(x) ≈ s'(v·x) v

shows its direction for 2d queries. Gradients of one feature at different points are parallel, those of anything else
are not, unless the dimension is small: what several of them agree on is proposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..geometry import Floats, shrink_to
from .base import Ask, Meter, Proposal, Setting


@dataclass(frozen=True)
class OutlierSettings:
    """How many points are looked at and which gradients count as parallel; empirical where no reason is given."""

    points: int = 40  # most points, those of the largest residual
    least: int = 6  # with fewer nothing is proposed
    step: float = 0.2  # of the differences, in units of 1/bandwidth, where f begins to vary
    longest: float = 0.05  # and in units of the radius
    parallel: float = 0.3  # radians; the joint fit finds a direction from twice as far
    agreeing: int = 3  # gradients that make a direction; in 10 dimensions chance makes three in one of 10⁵ sets
    known: float = 0.1  # radians from a direction of the model within which its response is wrong, not its direction
    fewest_dims: int = 6  # below, gradients agree by chance


@dataclass(frozen=True)
class Outliers:
    """Directions of features that bend at few points, from the points where the model is most wrong."""

    settings: OutlierSettings = OutlierSettings()
    name: ClassVar[str] = "outliers"

    def cost(self, setting: Setting) -> int:
        """Return the queries of all gradients."""
        return 2 * setting.dim * min(self.settings.points, len(setting.worst))

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return the directions that gradients at several of the points agree on; others are then not needed."""
        s, d = self.settings, setting.dim
        count = min(s.points, len(setting.worst), queries // (2 * d))
        if count < s.least or d < s.fewest_dims:
            return Proposal.empty(setting, "too few points or dimensions", applies=False)
        step = min(s.step * setting.wave, s.longest * setting.edge)
        points = shrink_to(setting.worst[:count].copy(), setting.edge - step)
        gradients = _gradients(Meter(ask, queries), points, step)
        directions, sizes = _agreed(gradients, s)
        near = np.abs(directions @ setting.directions.T).max(axis=1, initial=0.0) > np.cos(s.known)
        directions, sizes = directions[~near], sizes[~near]
        note = f"gradients at {len(gradients)} of the worst points agree on {len(directions)} directions"
        found = len(directions) > 0
        return Proposal(directions, sizes, note, applies=found, only=found)


def _gradients(ask: Ask, points: Floats, step: float) -> Floats:
    """Return the largest slope (k, d) over all outputs at each point, by central differences."""
    count, d = points.shape
    shifts = step * np.concatenate([np.eye(d), -np.eye(d)])
    values = ask((points[:, None, :] + shifts).reshape(-1, d)).reshape(count, 2, d, -1)
    jacobians = (values[:, 0] - values[:, 1]) / (2.0 * step)
    jacobians = jacobians[np.isfinite(jacobians).all(axis=(1, 2))]
    _, size, right = np.linalg.svd(jacobians.transpose(0, 2, 1), full_matrices=False)
    return np.asarray(size[:, 0, None] * right[:, 0])


def _agreed(gradients: Floats, s: OutlierSettings) -> tuple[Floats, Floats]:
    """Return the directions (k, d) that several gradients share, up to sign, and their sizes, the largest first."""
    size = np.linalg.norm(gradients, axis=1)
    gradients, size = gradients[size > 0], size[size > 0]
    directions: list[Floats] = []
    sizes: list[float] = []
    while len(gradients):
        cosines = np.abs(gradients @ gradients.T) / np.outer(size, size)
        near = cosines > np.cos(s.parallel)
        leader = int(np.argmax(near @ size))
        if near[leader].sum() < s.agreeing:
            break
        _, length, right = np.linalg.svd(gradients[near[leader]], full_matrices=False)
        directions.append(right[0])
        sizes.append(float(length[0]))
        gradients, size = gradients[~near[leader]], size[~near[leader]]
    return np.reshape(directions, (-1, gradients.shape[1])), np.array(sizes)
