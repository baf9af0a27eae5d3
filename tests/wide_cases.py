"""A wide layer for tests, and what a search sees of it."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from ridgescope.geometry import random_directions
from ridgescope.search import Proposal

RADIUS = 3.0


def gelu_layer(n=12, d=5, p=4, seed=0, V=None):
    """A GELU layer: f, its unit directions, slopes, offsets and output vectors."""
    rng = np.random.default_rng(seed)
    V = random_directions(n, d, rng) if V is None else V
    s, b, W = rng.uniform(0.6, 2.0, len(V)), 0.5 * rng.standard_normal(len(V)), rng.standard_normal((len(V), p))

    def f(X):
        y = s * (X @ V.T) + b
        return (y * ndtr(y)) @ W

    return f, V, s, b, W


def seen_from_afar(V, s, b, W):
    """What a search sees of such a layer from far away: the hinges, exactly."""
    jumps = tuple((s[i] * W[i])[None, :] for i in range(len(V)))
    return Proposal(V, np.ones(len(V)), kinks=tuple(np.array([-b[i] / s[i]]) for i in range(len(V))), jumps=jumps)
