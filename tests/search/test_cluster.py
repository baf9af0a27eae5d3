"""Sightings into directions: blind to sign and to order, exact where all agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgescope.geometry import angle, random_directions, unit
from ridgescope.search.slices import cluster


def sightings(seed: int, groups: int, each: int, dim: int, error: float):
    rng = np.random.default_rng(seed)
    truth = random_directions(groups, dim, rng)
    rows = np.repeat(truth, each, axis=0)
    rows = unit(rows + error * rng.standard_normal(rows.shape) / np.sqrt(dim))
    return truth, rows * rng.choice([-1.0, 1.0], (len(rows), 1)), rng


def test_groups_up_to_sign_and_averages_within_them():
    truth, rows, _ = sightings(0, 6, 9, 12, 0.02)
    found = cluster(rows, np.ones(len(rows)), np.full(len(rows), 0.02))
    assert len(found.scores) == 6
    assert sorted(found.counts) == [9] * 6
    nearest = np.abs(found.directions @ truth.T).argmax(axis=1)
    assert sorted(nearest) == list(range(6))
    each = angle(rows, truth[nearest[found.labels]])
    assert angle(found.directions, truth[nearest]).max() < np.median(each)


def test_exact_sightings_stay_apart_where_vague_ones_merge():
    v = np.array([[1.0, 0.0, 0.0], [np.cos(0.06), np.sin(0.06), 0.0]])
    assert len(cluster(v, np.ones(2), np.full(2, 1e-3)).scores) == 2
    assert len(cluster(v, np.ones(2), np.full(2, 0.05)).scores) == 1


def test_an_exact_sighting_outweighs_a_vague_one():
    v = np.array([[1.0, 0.0], [np.cos(0.1), np.sin(0.1)]])
    found = cluster(v, np.ones(2), np.array([1e-3, 0.1]))
    assert len(found.scores) == 1
    assert angle(found.directions[0], v[0]) < 0.01
    assert found.angle_error[0] == 1e-3


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), groups=st.integers(1, 5), each=st.integers(1, 4))
def test_order_and_signs_of_the_sightings_do_not_matter(seed: int, groups: int, each: int):
    _, rows, rng = sightings(seed, groups, each, 8, 0.01)
    weights, errors = rng.uniform(1.0, 2.0, len(rows)), np.full(len(rows), 0.01)
    shuffle = rng.permutation(len(rows))
    a = cluster(rows, weights, errors)
    b = cluster(-rows[shuffle], weights[shuffle], errors[shuffle])
    assert np.allclose(np.abs(np.sum(a.directions * b.directions, axis=1)), 1.0)
    assert np.allclose(a.scores, b.scores)
    assert np.array_equal(a.labels[shuffle], b.labels)
    assert np.all(np.diff(a.scores) <= 0)


def test_nothing_gives_nothing():
    found = cluster(np.empty((0, 4)), np.empty(0), np.empty(0))
    assert found.directions.shape == (0, 4)
    assert len(found.scores) == len(found.counts) == len(found.labels) == 0
