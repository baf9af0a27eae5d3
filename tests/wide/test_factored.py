"""Responses of one factor each, from what a search saw from far away."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from ridgescope.geometry import along, in_ball, unit
from ridgescope.wide.factored import Hinges, fit_factored


def block(seed, d=12, n=30, p=8):
    """A GELU layer: f, its directions, and its hinges."""
    rng = np.random.default_rng(seed)
    W, b = rng.standard_normal((n, d)) / np.sqrt(d), 0.5 * rng.standard_normal(n)
    out = 0.3 * rng.standard_normal((n, p))
    size = np.linalg.norm(W, axis=1)

    def f(X):
        y = X @ W.T + b
        return (y * ndtr(y)) @ out

    return f, Hinges(unit(W), -b / size, out * size[:, None])


@pytest.mark.parametrize("seed", range(3))
def test_a_layer_of_gelus_is_reproduced(seed):
    f, seen = block(seed)
    rng, R, n = np.random.default_rng(seed), 8.0, len(seen.places)

    def points(count):
        on = along(seen.directions, rng.integers(0, n, count), rng.uniform(-R, R, count), R, rng)
        return np.concatenate([in_ball(count, seen.directions.shape[1], R, rng), on])

    X, T = points(600), points(300)
    model = fit_factored(seen, X, f(X), R, 64)
    error = model.predict(T) - f(T)
    assert np.sqrt(np.mean(error**2)) < 5e-3 * f(T).std()
    assert np.abs(error).max() < 3e-2 * f(T).std()


def test_without_points_near_a_feature_follows_its_hinge():
    f, seen = block(0)
    X = in_ball(400, seen.directions.shape[1], 1.0, np.random.default_rng(0))
    model = fit_factored(seen, X, f(X), 8.0, 32)
    far = 7.0 * seen.directions[:1] * np.sign(seen.places[0] + 1e-9)
    assert np.abs(model.predict(far) - f(far)).max() < 0.2 * f(X).std() * 8.0
