"""What the subspace of the survey may have missed.

A response that is straight wherever the survey looked hides its direction in the constant part of the gradient. Where
the model is wrong, the gradient of what it leaves points along what is missing.
"""

from __future__ import annotations

import numpy as np

from .fit.model import Model
from .geometry import Floats, along, in_ball
from .oracle.base import Oracle
from .survey import Survey

_LOOKS, _WORST = 512, 8


def missed_directions(oracle: Oracle, model: Model, known: Survey, radius: float, rng: np.random.Generator) -> Floats:
    """(k, d) orthonormal rows outside the known subspace along which f changes and the model does not."""
    d, basis = oracle.dim, known.basis
    U = np.concatenate(
        [in_ball(_LOOKS // 4, d, radius, rng), _spread(model.directions @ basis, _LOOKS - _LOOKS // 4, radius, rng)]
    ) * (1.0 - 1e-4)
    wrong = np.abs(oracle(U, stage="widen") - model.predict(U @ basis.T)).max(axis=1)
    worst = U[np.argsort(-np.nan_to_num(wrong))[:_WORST]]
    step = 1e-5 * radius
    stencil = (worst[:, None, :] + step * np.concatenate([np.zeros((1, d)), np.eye(d)])).reshape(-1, d)
    left = (oracle(stencil, stage="widen") - model.predict(stencil @ basis.T)).reshape(len(worst), d + 1, -1)
    slopes = ((left[:, 1:] - left[:, :1]) / step).transpose(0, 2, 1).reshape(-1, d)
    outside = slopes - (slopes @ basis.T) @ basis
    sizes, rows = np.linalg.svd(outside, full_matrices=False)[1:]
    floor = np.sqrt(len(outside)) * max(1e-3 * known.scale / radius, 8.0 * known.noise / step)
    return np.asarray(rows[sizes > floor])


def _spread(V: Floats, count: int, radius: float, rng: np.random.Generator) -> Floats:
    """Points along the given directions of the full space, all of [−R, R]."""
    if not len(V):
        return np.empty((0, V.shape[1]))
    z = rng.uniform(-radius, radius, count)
    return along(V, rng.integers(0, len(V), count), z, radius, rng)
