"""Planes refined together from second differences on lines, and planes that these differences show."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.deadline import time_limit
from ridgescope.geometry import random_directions, unit
from ridgescope.search import Setting
from ridgescope.search.kink_tracks import Found, Tracks
from ridgescope.search.left_planes import planes_left
from ridgescope.search.unmixing import unmix

DIM, OUTPUTS, COUNT, NOISE = 12, 8, 20, 1e-7


@pytest.fixture
def layer():
    rng = np.random.default_rng(0)
    v, t = random_directions(COUNT, DIM, rng), rng.uniform(-0.5, 0.5, COUNT)
    return Found(v, t, rng.standard_normal((COUNT, OUTPUTS)), np.full(COUNT, 1e-9))


@pytest.fixture
def tracks(layer):
    rng = np.random.default_rng(1)

    def f(x):
        values = np.maximum(x @ layer.v.T - layer.t, 0.0) @ layer.a
        return values + NOISE * rng.standard_normal(values.shape)

    setting = Setting(DIM, OUTPUTS, 3.0, np.inf, 1.0, NOISE, 1.0)
    return Tracks.ask(f, setting, 3 * COUNT, NOISE * OUTPUTS**0.5, rng)


def off(found, truth):
    """The angles of planes from the true ones, in the same order."""
    return np.arccos(np.clip(np.abs(np.einsum("kd,kd->k", found.v, truth.v)), 0.0, 1.0))


def test_planes_known_roughly_are_refined_to_the_noise(layer, tracks):
    rng = np.random.default_rng(2)
    v = unit(layer.v + 3e-3 * random_directions(COUNT, DIM, rng))
    rough = Found(v, layer.t + 1e-3 * rng.standard_normal(COUNT), 1.02 * layer.a, np.full(COUNT, 6e-3))
    assert off(rough, layer).min() > 1e-3
    fine = tracks.refine(rough)
    assert np.median(off(fine, layer)) < 1e-6
    assert off(fine, layer).max() < 1e-4
    assert np.abs(fine.t - layer.t).max() < 1e-4
    assert np.linalg.norm(fine.a - layer.a, axis=1).max() < 1e-3
    assert tracks.is_sharp(fine).all()


def test_errors_of_refined_planes_are_not_much_too_small(layer, tracks):
    rng = np.random.default_rng(3)
    v = unit(layer.v + 3e-3 * random_directions(COUNT, DIM, rng))
    fine = tracks.refine(Found(v, layer.t, layer.a, np.full(COUNT, 6e-3)))
    assert np.median(off(fine, layer) * tracks.arm / fine.error) < 3.0


def test_planes_that_no_one_knows_show_in_what_the_others_leave(layer, tracks):
    threshold = 30.0 * NOISE * OUTPUTS**0.5
    known = layer.only(np.arange(COUNT) >= 2)
    left, misfits = tracks.left(known, threshold)
    assert not misfits.any()
    seen = planes_left(tracks, left, threshold, 10)
    cosines = np.abs(seen.v @ layer.v[:2].T)
    assert cosines.shape == (2, 2)
    assert np.arccos(np.clip(cosines.max(axis=0), 0.0, 1.0)).max() < 1e-3
    assert not np.any(np.linalg.norm(tracks.left(layer, threshold)[0], axis=2) > threshold)
    assert len(planes_left(tracks, tracks.left(layer, threshold)[0], threshold, 10).t) == 0


def test_a_wrong_plane_does_not_account_for_its_differences(layer, tracks):
    wrong = Found(layer.v.copy(), layer.t.copy(), layer.a, layer.error)
    wrong.t[0] += 0.3
    assert tracks.left(wrong, 30.0 * NOISE * OUTPUTS**0.5)[1].tolist() == [True] + [False] * (COUNT - 1)


def test_lines_are_asked_across_planes_that_too_few_lines_cross(layer, tracks):
    setting = Setting(DIM, OUTPUTS, 3.0, np.inf, 1.0, NOISE, 1.0)
    far = Found(layer.v[:1], np.array([2.95]), layer.a[:1], layer.error[:1])
    zeros = lambda x: np.zeros((len(x), OUTPUTS))  # noqa: E731
    more = tracks.with_lines_across(zeros, setting, far, np.random.default_rng(4))
    assert tracks.missing(far)[0] > 0
    assert more.missing(far)[0] == 0
    assert (
        tracks.with_lines_across(zeros, setting, layer.only(tracks.missing(layer) == 0), np.random.default_rng(4))
        is tracks
    )


def test_where_time_is_up_the_planes_known_so_far_are_returned(layer, tracks):
    threshold = 30.0 * NOISE * OUTPUTS**0.5
    rough = Found(layer.v, layer.t, layer.a, np.full(COUNT, 6e-3))
    left, _ = tracks.left(layer.only(np.arange(COUNT) >= 2), threshold)
    with time_limit(0.0):
        np.testing.assert_array_equal(tracks.refine(rough).v, rough.v)
        assert len(planes_left(tracks, left, threshold, 10).t) == 0


CROWD, WIDE = 60, 24


@pytest.fixture(scope="module")
def crowd():
    """More planes than a line has points, all of them near the centre, and differences on lines."""
    rng = np.random.default_rng(4)
    v, t = random_directions(CROWD, DIM, rng), rng.uniform(-0.1, 0.1, CROWD)
    layer = Found(v, t, rng.standard_normal((CROWD, WIDE)), np.full(CROWD, 1e-9))

    def f(x):
        values = np.maximum(x @ layer.v.T - layer.t, 0.0) @ layer.a
        return values + NOISE * rng.standard_normal(values.shape)

    return layer, Tracks.ask(f, Setting(DIM, WIDE, 3.0, np.inf, 1.0, NOISE, 1.0), CROWD, NOISE * WIDE**0.5, rng)


def roughly(layer, rng, error=0.02):
    v = unit(layer.v + error * random_directions(CROWD, DIM, rng))
    a = layer.a + 0.02 * rng.standard_normal(layer.a.shape)
    return Found(v, layer.t + 0.2 * error * rng.standard_normal(CROWD), a, np.full(CROWD, error))


def test_crossings_closer_than_points_are_told_apart_by_jumps(crowd):
    layer, tracks = crowd
    rough = roughly(layer, np.random.default_rng(5))
    assert np.sum(tracks.refine(rough).error <= tracks.resolved) < 0.5 * CROWD  # one plane after the other fails
    better = unmix(tracks, rough, 0.9)
    assert np.mean(better.error <= tracks.resolved) >= 0.9
    fine = tracks.refine(better)
    assert np.mean(off(fine, layer) < 1e-5) >= 0.9
    assert np.array_equal(rough.v, roughly(layer, np.random.default_rng(5)).v)  # the planes that it is given stay


def test_some_planes_that_no_one_knows_do_not_keep_others_from_being_told_apart(crowd):
    layer, tracks = crowd
    known = np.arange(CROWD) >= 6
    fine = tracks.refine(unmix(tracks, roughly(layer, np.random.default_rng(6)).only(known), 0.9))
    assert np.mean(off(fine, layer.only(known)) < 1e-3) >= 0.8


def test_jumps_are_those_of_least_squares(crowd):
    layer, tracks = crowd
    known = Found(layer.v, layer.t, 1.1 * layer.a, layer.error)
    assert np.abs(unmix(tracks, known, 1.1).a - layer.a).max() < 0.02
