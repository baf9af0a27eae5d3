"""A wide layer is put together from responses read one at a time, or fitted together where they cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.bspline import greville
from ridgescope.fit.samples import Samples
from ridgescope.geometry import in_ball, random_directions, unit
from ridgescope.wide.layer import WideLayer
from wide_cases import RADIUS, gelu_layer, seen_from_afar


@pytest.mark.parametrize("twins", [False, True])
def test_a_layer_is_put_together_from_what_is_read(twins):
    V = random_directions(12, 5, np.random.default_rng(7))
    if twins:
        V[1] = unit(V[0] + 1e-3 * V[2])
    f, V, s, b, W = gelu_layer(V=V)
    rng = np.random.default_rng(0)
    wide = WideLayer.from_far_field(seen_from_afar(V, s, b, W), RADIUS, 1e3 if twins else np.inf, 1e-3, rng)
    assert wide.where.possible.sum() == (10 if twins else 12)
    intervals = wide.enough_intervals(f, rng)
    samples = Samples(5, RADIUS)
    model = wide.fit(f, samples, intervals, np.inf, rng)
    X = in_ball(500, 5, RADIUS, rng)
    assert rs.match(model.directions, V).angles.max() < 1e-12
    assert np.abs(model.predict(X) - f(X)).max() < (0.1 if twins else 1e-3)


def test_a_layer_within_an_allowance():
    f, V, s, b, W = gelu_layer()
    rng = np.random.default_rng(0)
    wide = WideLayer.from_far_field(seen_from_afar(V, s, b, W), RADIUS, np.inf, 1e-3, rng)
    asked = []

    def counted(X):
        asked.append(len(X))
        return f(X)

    for allowance, intervals in ((100, 64), (1300, 8), (1600, 16)):  # 100: fitted together, none is read
        asked.clear()
        model = wide.fit(counted, Samples(5, RADIUS), 64, allowance, rng)
        assert sum(asked) <= allowance
        assert (model.intervals == intervals).all()


def test_directions_alone_give_the_layer_where_one_cannot_ask_far_away():
    f, V, *_ = gelu_layer(n=10, d=6, p=5, seed=3)
    rng = np.random.default_rng(0)
    wide = WideLayer.from_directions(f, V, RADIUS, 1e-3, 0.05, 1e-12, rng)
    assert wide.count == 10
    assert not wide.where.possible.any()
    model = wide.fit(f, Samples(6, RADIUS), 32, np.inf, rng)
    X = in_ball(500, 6, RADIUS, rng)
    assert np.abs(model.predict(X) - f(X)).max() < 0.05 * f(X).std()


def test_a_direction_along_which_nothing_bends_is_no_feature():
    f, V, *_ = gelu_layer(n=8, d=6, p=5, seed=3)
    false = random_directions(1, 6, np.random.default_rng(5))
    wide = WideLayer.from_directions(f, np.concatenate([V, false]), RADIUS, 1e-3, 0.05, 1e-6, np.random.default_rng(0))
    np.testing.assert_array_equal(wide.seen.directions, V)


def test_responses_that_are_straight_become_part_of_the_affine_function():
    f, V, *_ = gelu_layer(n=6, d=5, p=3, seed=1)
    rng = np.random.default_rng(0)
    wide = WideLayer.from_directions(f, V, RADIUS, 1e-3, 0.05, 1e-12, rng)
    model = wide.fit(f, Samples(5, RADIUS), 16, np.inf, rng)
    assert wide._without_straight(model) is model
    straight = model.coefficients.copy()
    straight[: 2 * 19] = np.tile(2.0 - 0.5 * greville(RADIUS, 16), 2)[:, None]
    model = replace(model, coefficients=straight)
    fewer = wide._without_straight(model)
    X = in_ball(300, 5, RADIUS, rng)
    assert fewer.count == 4
    np.testing.assert_allclose(fewer.predict(X), model.predict(X), atol=1e-12)


def test_the_fewest_intervals_within_the_error_are_taken():
    f, V, s, b, W = gelu_layer()
    counts = []
    for error in (1.0, 1e-3, 1e-9):
        rng = np.random.default_rng(0)
        wide = WideLayer.from_far_field(seen_from_afar(V, s, b, W), RADIUS, np.inf, error, rng)
        counts.append(wide.enough_intervals(f, rng))
    assert counts[0] < counts[1] < counts[2] == 256
