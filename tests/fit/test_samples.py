"""What is held out is never fitted, and every point asked for lies in the ball."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgescope.fit.model import Model
from ridgescope.fit.samples import HELD_OUT_EVERY, Samples, ask_along, ask_ends, ask_strata, held_out_error
from ridgescope.geometry import in_ball, random_directions

RADIUS = 2.0


def numbered(count, dim=2, start=0):
    X = in_ball(count, dim, RADIUS, np.random.default_rng(start))
    return X, (start + np.arange(count, dtype=float))[:, None]


@given(st.lists(st.integers(0, 30), max_size=6))
def test_train_and_held_out_share_no_point_and_miss_none(sizes):
    samples, start = Samples(2, RADIUS), 0
    for size in sizes:
        samples.add(*numbered(size, start=start))
        start += size
    train, held = samples.train[1][:, 0], samples.held_out[1][:, 0]
    assert sorted([*train, *held]) == list(range(start))
    assert len(held) == start // HELD_OUT_EVERY
    assert samples.count == start


def test_a_point_once_held_out_stays_so():
    samples = Samples(2, RADIUS)
    samples.add(*numbered(100))
    before = set(samples.held_out[1][:, 0])
    samples.add(*numbered(77, start=100))
    assert before <= set(samples.held_out[1][:, 0])


def test_points_outside_the_ball_and_dropped_answers_are_ignored():
    samples = Samples(2, RADIUS)
    X = np.array([[0.0, 0.0], [3.0, 0.0], [0.5, 0.5], [0.0, 2.0]])
    samples.add(X, np.array([[1.0], [2.0], [np.nan], [4.0]]))
    assert samples.train[1].ravel().tolist() == [1.0, 4.0]


def test_thinning_keeps_every_kth_and_weights_add_up():
    samples = Samples(2, RADIUS)
    samples.add(*numbered(40), thin=4, weight=0.1)
    assert samples.count == 10
    assert samples.weight == pytest.approx(1.0)


def test_nothing_added_is_nothing_held():
    samples = Samples(3, RADIUS)
    assert samples.train[0].shape == (0, 3)
    assert held_out_error(Model.start(np.empty((0, 3)), RADIUS, 4, 1), samples) == (np.inf, np.inf)


@given(dim=st.integers(1, 6), count=st.integers(0, 200), features=st.integers(0, 4), seed=st.integers(0, 99))
def test_points_along_the_features_stay_in_the_ball(dim, count, features, seed):
    rng = np.random.default_rng(seed)
    asked = []

    def ask(X):
        asked.append(X)
        return np.zeros((len(X), 1))

    samples = Samples(dim, RADIUS)
    ask_along(ask, samples, random_directions(features, dim, rng), count, rng)
    assert sum(map(len, asked)) == count == samples.count
    for X in asked:
        assert (np.linalg.norm(X, axis=1) <= RADIUS * (1 + 1e-12)).all()


def test_points_along_a_feature_see_its_whole_interval():
    """In twenty dimensions uniform points hardly see |v·x| > R/2."""
    rng = np.random.default_rng(0)
    v = random_directions(1, 20, rng)
    samples = Samples(20, RADIUS)
    ask_along(lambda X: np.zeros((len(X), 1)), samples, v, 2000, rng)
    z = samples.train[0] @ v[0]
    assert np.histogram(z, bins=10, range=(-RADIUS, RADIUS))[0].min() > 40


def test_held_out_error_is_that_of_the_held_out_points():
    rng = np.random.default_rng(1)
    samples = Samples(2, RADIUS)
    X = in_ball(80, 2, RADIUS, rng)
    Y = rng.standard_normal((80, 2))
    samples.add(X, Y)
    zero = Model.start(np.empty((0, 2)), RADIUS, 4, 2)
    rms, sup = held_out_error(zero, samples)
    held = Y[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    assert rms == pytest.approx(np.sqrt(np.mean(held**2)))
    assert sup == np.abs(held).max()


def test_strata_leave_no_response_without_points_at_its_ends():
    rng = np.random.default_rng(0)
    V, samples = random_directions(30, 6, rng), Samples(6, 2.0)
    asked = []

    def ask(X):
        asked.append(X)
        return np.zeros((len(X), 1))

    ask_strata(ask, samples, V, 12, rng)
    (X,) = asked
    assert len(X) == 30 * 12
    assert (np.linalg.norm(X, axis=1) <= 2.0).all()
    reached = (X @ V.T).max(axis=0), (X @ V.T).min(axis=0)
    assert reached[0].min() > 2.0 * 0.9
    assert reached[1].max() < -2.0 * 0.9


def test_the_ends_of_features_stay_however_much_a_search_asks():
    rng = np.random.default_rng(0)
    samples = Samples(3, 2.0)
    search = in_ball(40_000, 3, 1.0, rng)
    samples.add(search, search[:, :1], weight=0.1)
    V = np.eye(3)
    ask_ends(lambda X: X[:, :1], samples, V)
    samples.add(search, search[:, :1], weight=0.1)
    far = np.linalg.norm(samples.train[0], axis=1) > 1.9
    assert far.sum() == 4 * len(V)
    assert not (np.linalg.norm(samples.held_out[0], axis=1) > 1.9).any()
