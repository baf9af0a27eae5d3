"""One feature that is two is split; one that is one stays."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.fit.context import FitGoal
from ridgescope.fit.fitter import Fitter
from ridgescope.fit.levenberg_marquardt import LMOptions, levenberg_marquardt
from ridgescope.fit.model import Model
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.fit.split import splits
from ridgescope.geometry import random_directions, unit

RADIUS = 3.0
KINDS = (np.tanh, np.sin, lambda z: np.exp(-z * z), lambda z: np.cos(0.7 * z + 0.5))


def close_pair(gamma, seed, noise=0.0):
    """Four directions in five dimensions, the first and the last `gamma` radians apart, and their function."""
    rng = np.random.default_rng(seed)
    V = random_directions(3, 5, rng)
    w = rng.standard_normal(5)
    V = np.concatenate([V, [np.cos(gamma) * V[0] + np.sin(gamma) * unit(w - (w @ V[0]) * V[0])]])

    def f(X):
        values = sum(KINDS[(i + seed) % 4](1.5 * (X @ v)) for i, v in enumerate(V))
        return (values + noise * rng.standard_normal(len(X)))[:, None]

    return V, f, rng


def fitted(directions, f, rng, count=2000):
    samples = Samples(5, RADIUS)
    ask_along(f, samples, directions, count, rng)
    start, options = Model.start(directions, RADIUS, 16, 1), LMOptions(steps=15, smoothing=1e-8)
    model = levenberg_marquardt(start, *samples.train, options).model
    X, Y = samples.unclustered
    return model, X, Y - model.predict(X), samples


@pytest.mark.parametrize("gamma", [0.05, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_the_one_that_is_two_stands_out_and_the_plane_is_theirs(gamma, seed):
    V, f, rng = close_pair(gamma, seed)
    one = np.concatenate([[unit(V[0] + V[3])], V[1:3]])
    model, X, left, _ = fitted(one, f, rng)
    first = splits(model, X, left)[0]
    assert first.feature == 0
    plane = np.linalg.qr(V[[0, 3]].T)[0]
    assert np.linalg.norm(plane.T @ first.across) > 0.9


@pytest.mark.parametrize("noise", [1e-3, 0.1])
def test_nothing_is_split_where_noise_is_all_that_is_left(noise):
    for seed in range(5):
        V, f, rng = close_pair(0.5, seed, noise)
        model, X, left, _ = fitted(V, f, rng)
        assert splits(model, X, left) == []


@pytest.mark.parametrize("seed", range(3))
def test_the_fit_finds_both_from_one(seed):
    V, f, rng = close_pair(0.1, seed)
    fitter = Fitter(f, Samples(5, RADIUS), FitGoal(1e-2, 1e-13), rng)
    one = np.concatenate([[unit(V[0] + V[3])], V[1:3]])
    result = fitter.fit(Model.start(one, RADIUS, 16, 1), new=3)
    match = rs.match(result.model.directions, V)
    assert match.angles.max() < 1e-2, str(match)
    assert len(match.false) == 0


def test_one_dimension_has_nothing_to_split():
    assert splits(Model.start(np.ones((1, 1)), RADIUS, 4, 1), np.zeros((3, 1)), np.zeros((3, 1))) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("at", [2.5, 2.85])
def test_a_kink_that_the_spline_lacks_does_not_split_it(at, seed):
    """It leaves a few points far off, close to the end of a feature."""
    V, f, rng = close_pair(0.5, seed)
    model, X, left, _ = fitted(V, f, rng)
    left = 1e-6 * rng.standard_normal(left.shape)
    left[:, 0] += np.maximum(0.05 - np.abs(X @ V[0] - at), 0.0)
    assert all(s.feature != 0 for s in splits(model, X, left))
