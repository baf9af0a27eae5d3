"""How f varies along rays from the centre, and across them.

A function of x/|x|, as behind a norm, does not vary along rays; one of |x| varies along them only. An affine part would
hide that, so the slope that fits the rays best is taken off first.
"""

from __future__ import annotations

import numpy as np

from ..geometry import random_directions
from .base import INSIDE, Meter, Setting

_RAYS_PER_DIM, _FEWEST_RAYS = 2, 16  # pairs of opposite rays: enough to take off the slope, d unknowns
_ON_RAY = np.array([0.1, 0.25, 0.4, 0.6, 0.8, 1.0])  # radii


def ray_power(ask: Meter, setting: Setting, rng: np.random.Generator) -> float:
    """The share of power along rays, once the slope that fits the rays best is taken off; 1/2 where it is not asked."""
    d, pairs = setting.dim, max(_FEWEST_RAYS, _RAYS_PER_DIM * setting.dim)
    if d == 1 or 2 * pairs * len(_ON_RAY) > ask.left:
        return 0.5
    u = random_directions(pairs, d, rng)
    u = np.concatenate([u, -u])  # so that even functions have no slope at all
    x = INSIDE * setting.edge * _ON_RAY[:, None] * u[:, None, :]
    f = ask(x.reshape(-1, d)).reshape(*x.shape[:2], -1)
    good = np.isfinite(f).all(axis=(1, 2))
    f, x = f[good], x[good]
    if len(f) < pairs:
        return 0.5
    middle = x - x.mean(axis=1, keepdims=True)
    change = f - f.mean(axis=1, keepdims=True)
    slope = np.linalg.lstsq(middle.reshape(-1, d), change.reshape(-1, f.shape[2]), rcond=None)[0]
    rest = f - x @ slope
    across = float(np.sum(np.var(rest.mean(axis=1), axis=0)))
    along = float(np.sum(np.mean(np.var(rest, axis=1), axis=0)))
    return along / (along + across) if along + across > 0 else 0.5
