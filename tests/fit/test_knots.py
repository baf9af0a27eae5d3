"""A kink for a kink, finer knots for what is merely steep, nothing for what is explained."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from ridgescope.fit import knots
from ridgescope.fit.linear import solve_linear
from ridgescope.fit.model import Model
from ridgescope.geometry import along, in_ball

RADIUS = 3.0


def residual_of(response, intervals=16, count=2000, noise=1e-6, seed=0, outputs=1):
    """(fitted model of one feature in three dimensions, X, what it leaves)."""
    rng = np.random.default_rng(seed)
    V = np.eye(3)[:1]
    z = rng.uniform(-RADIUS, RADIUS, count)
    X = np.concatenate([along(V, np.zeros(count, dtype=int), z, RADIUS, rng), in_ball(count // 4, 3, RADIUS, rng)])
    Y = np.multiply.outer(response(X[:, 0]), np.arange(1.0, outputs + 1.0))
    Y += noise * rng.standard_normal(Y.shape)
    model = solve_linear(Model.start(V, RADIUS, intervals, outputs), X, Y, 1e-10).model
    return model, X, Y - model.predict(X)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("at", [-1.3, 0.0, 0.77])
def test_a_kink_is_seen_as_one(at, outputs):
    model, X, left = residual_of(lambda z: np.abs(z - at) + np.sin(z), outputs=outputs)
    (best,) = knots.extensions(model, X, left)
    assert best.intervals == 16
    assert np.abs(best.kinks - at).min() < RADIUS / 16
    assert best.gain > 0.9


def test_two_kinks_are_both_placed():
    model, X, left = residual_of(lambda z: np.maximum(z + 1.0, 0.0) - 0.8 * np.maximum(z - 1.2, 0.0))
    (best,) = knots.extensions(model, X, left)
    assert np.abs(best.kinks + 1.0).min() < RADIUS / 16
    assert np.abs(best.kinks - 1.2).min() < RADIUS / 16


def test_a_steep_sigmoid_gets_finer_knots():
    model, X, left = residual_of(lambda z: expit(12.0 * (z - 0.3)))
    (best,) = knots.extensions(model, X, left)
    assert best.intervals in (32, 64, 128)
    assert len(best.kinks) == 0
    assert best.gain > 0.5


@pytest.mark.parametrize("response", [np.sin, np.zeros_like, lambda z: z**3])
def test_what_is_explained_is_left_alone(response):
    model, X, left = residual_of(response, intervals=64, noise=1e-3)
    assert knots.extensions(model, X, left) == []


def test_the_feature_with_structure_comes_first():
    rng = np.random.default_rng(0)
    X = in_ball(4000, 2, RADIUS, rng)
    Y = (np.sin(4.0 * X[:, 0]) * 0.01 + np.abs(X[:, 1] - 0.5))[:, None]
    model = solve_linear(Model.start(np.eye(2), RADIUS, 8, 1), X, Y, 1e-10).model
    found = knots.extensions(model, X, Y - model.predict(X))
    assert found[0].feature == 1
    assert [e.gain for e in found] == sorted((e.gain for e in found), reverse=True)


def test_applied_extensions_explain_the_rest():
    model, X, left = residual_of(lambda z: np.abs(z - 0.77))
    Y = left + model.predict(X)
    better = knots.apply(model, knots.extensions(model, X, left))
    assert len(better.kinks[0]) >= 1
    assert better.coefficients.shape == (better.columns, 1)
    assert solve_linear(better, X, Y, 1e-10).cost < 0.1 * np.sum(left**2)


def test_knots_stop_at_the_most_there_may_be(monkeypatch):
    monkeypatch.setattr(knots, "MAX_INTERVALS", 16)
    model, X, left = residual_of(lambda z: np.sign(np.sin(400.0 * z)))
    assert all(e.intervals <= 16 for e in knots.extensions(model, X, left))


def test_where_knots_have_stopped_a_smooth_response_still_gets_no_kinks(monkeypatch):
    """Six kinks on a fast sine fit its points and miss it in between."""
    monkeypatch.setattr(knots, "MAX_INTERVALS", 16)
    model, X, left = residual_of(lambda z: np.sin(6.0 * z))
    assert knots.extensions(model, X, left) == []


@pytest.mark.parametrize("seed", range(5))
def test_fine_knots_that_hide_a_kink_give_way_to_it(seed):
    model, X, left = residual_of(lambda z: np.maximum(z - 0.4, 0.0), intervals=64, noise=1e-2, seed=seed)
    (best,) = knots.other_shapes(model, X, left, 16)
    assert best.intervals == 16
    assert len(best.kinks) == 1
    assert best.kinks[0] == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_smooth_response_gets_as_many_knots_as_the_noise_warrants_and_no_kink(seed):
    model, X, left = residual_of(lambda z: expit(8.0 * (z - 0.3)), intervals=16, noise=1e-3, seed=seed)
    (best,) = knots.other_shapes(model, X, left, 16)
    assert best.intervals in (32, 64)
    assert len(best.kinks) == 0
