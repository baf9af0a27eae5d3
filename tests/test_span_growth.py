"""A span that grows where f is seen to change across it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from ridgescope.geometry import random_directions
from ridgescope.span_growth import SpanGrowth, edge_distances
from ridgescope.span_refinement import SpanRefinement

RADIUS, NOISE = 3.0, 1e-6


def layer(rng, *, dim, offsets, steepness):
    """Sigmoids of the given steepness, that bend at these distances from the centre; their directions and std."""
    v = random_directions(len(offsets), dim, rng)
    outputs = rng.standard_normal((len(offsets), 3))

    def f(X):
        return expit((X @ v.T - offsets) * steepness) @ outputs + NOISE * rng.standard_normal((len(X), 3))

    return f, v


def grown(f, dim, *, span=None, farthest=16 * RADIUS, most=40, affordable=1e5, noise=NOISE):
    growth = SpanGrowth(f, RADIUS, farthest, 1.0, noise, np.random.default_rng(1))
    return growth.grown(np.empty((0, dim)) if span is None else span, most, affordable, 512)


def missed(span, v):
    return np.linalg.norm(v - (v @ span.T) @ span, axis=1)


@pytest.mark.parametrize("seed", range(3))
def test_it_holds_responses_that_are_saturated_at_every_random_point_of_the_ball(seed):
    """In 100 dimensions v·x is 0.3 at random points of the ball: a bend at 2.5 is eight deviations out."""
    offsets, steepness = np.array([0.0, 0.2, -0.5, 1.5, -2.5, 2.5]), np.array([1.0, 4.0, 10.0, 20.0, 40.0, 40.0])
    f, v = layer(np.random.default_rng(seed), dim=100, offsets=offsets, steepness=steepness)
    span = grown(f, 100)
    assert len(span) <= 10
    assert np.allclose(span @ span.T, np.eye(len(span)))
    assert missed(span, v).max() < 0.05
    better = SpanRefinement(f, RADIUS, 1.0, NOISE, np.random.default_rng(2)).corrected(span, 1e-2, 512)
    assert missed(better, v).max() < 0.05
    assert missed(better, v[:3]).max() < 1e-4 < missed(span, v[:3]).max()


def test_it_gives_up_beyond_the_dimensions_and_queries_allowed():
    f, _ = layer(np.random.default_rng(0), dim=40, offsets=np.zeros(20), steepness=np.full(20, 5.0))
    asked = []

    def counted(X):
        asked.append(len(X))
        return f(X)

    assert grown(counted, 40, most=10) is None
    asked.clear()
    assert grown(counted, 40, affordable=2000) is None
    assert sum(asked) <= 2000


def test_no_point_is_farther_than_allowed():
    f, _ = layer(np.random.default_rng(0), dim=30, offsets=np.zeros(4), steepness=np.full(4, 5.0))
    distances = []

    def measured(X):
        distances.extend(np.linalg.norm(X, axis=1))
        return f(X)

    grown(measured, 30, farthest=2.0 * RADIUS)
    assert max(distances) <= 2.0 * RADIUS


@pytest.mark.parametrize("seed", range(3))
def test_it_holds_responses_whose_directions_it_nearly_held_and_that_bend_at_the_edge_of_the_ball(seed):
    """At points near the centre, steps across the span move their arguments by far less than 2.6.

    Exact answers allow steps so short that the directions added are exact.
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((250, 122)))[0].T
    span, new = basis[:120], basis[120:]
    v = np.sqrt(1.0 - 0.15**2) * random_directions(2, 120, rng) @ span + 0.15 * new
    better = grown(lambda X: expit(30.0 * (X @ v.T - 2.6)), 250, span=span, most=250, noise=1e-15)
    assert len(better) == 122
    assert missed(better, v).max() < 1e-6


def test_the_whole_space_is_not_asked_for_more():
    asked = list[int]()

    def counted(X):
        asked.append(len(X))
        return expit(5.0 * X)

    assert len(grown(counted, 6, span=np.eye(6))) == 6
    assert not asked


def test_points_are_at_the_edge_of_the_ball_at_most_as_each_direction_sees_it():
    """√k radii from the centre of k dimensions; 0.7 of what is allowed where that is less."""
    np.testing.assert_allclose(edge_distances(np.array([0.5, 1.0]), 16, 100.0), [2.0, 4.0])
    np.testing.assert_allclose(edge_distances(np.ones(2), 16, np.array([2.0, 3.0])), [1.4, 2.1])
