"""Steps on far lines: responses that saturate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

import ridgescope as rs
from ridgescope.geometry import random_directions
from ridgescope.search import PROPOSERS, Setting, run_proposer
from ridgescope.search.plateau_places import Responses

RADIUS = 3.0


def sigmoids(rng, dim, count, outputs, dtype):
    W = (rng.uniform(2.0, 30.0, count)[:, None] * random_directions(count, dim, rng)).astype(dtype)
    b, C = rng.standard_normal(count).astype(dtype), rng.standard_normal((count, outputs)).astype(dtype)

    def f(X):
        return np.asarray(expit(X.astype(dtype) @ W.T + b) @ C, dtype=np.float64)

    return f, np.asarray(W, np.float64)


def proposed(f, dim, outputs, *, reach=np.inf, noise=1e-7, queries=100_000):
    setting = Setting(dim=dim, outputs=outputs, radius=RADIUS, reach=reach, std=1.0, noise=noise, bandwidth=2.0)
    return run_proposer(PROPOSERS["plateaus"], f, setting, queries=queries, rng=np.random.default_rng(0))


@pytest.mark.parametrize(("dtype", "outputs"), [("float64", 4), ("float32", 4), ("float64", 1)])
def test_it_finds_every_sigmoid(dtype, outputs):
    f, W = sigmoids(np.random.default_rng(1), 30, 40, outputs, dtype)
    found = proposed(f, 30, outputs)
    match = rs.match(found.directions, W)
    assert match.share(0.1) >= (1.0 if outputs > 1 else 0.9)
    assert np.median(match.angles) < 5e-3
    assert len(match.false) == 0
    assert found.complete
    assert found.only
    assert found.queries < 40 * (10 * 30 + 300)  # a few gradients and three short lines a feature, and the long lines


def test_what_does_not_saturate_costs_a_few_pairs_of_points():
    found = proposed(lambda X: np.abs(X[:, :1]) + np.tanh(X[:, 1:2]), 20, 1)
    assert not found.applies
    assert len(found.directions) == 0
    assert found.queries <= 48


def test_no_point_is_beyond_the_reach_and_queries_are_kept():
    f, _ = sigmoids(np.random.default_rng(1), 20, 10, 3, "float64")
    distances = []

    def measured(X):
        distances.append(float(np.linalg.norm(X, axis=1).max()))
        return f(X)

    assert proposed(measured, 20, 3, reach=10 * RADIUS).queries == 0
    found = proposed(measured, 20, 3, reach=300 * RADIUS, queries=1000)
    assert max(distances) <= 300 * RADIUS
    assert found.queries <= 1000
    assert not found.complete


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-6), ("float32", 1e-4)])
def test_directions_are_measured_again_where_no_other_response_is_near(dtype, error):
    f, W = sigmoids(np.random.default_rng(2), 40, 30, 3, dtype)
    found = proposed(f, 40, 3)
    match = rs.match(found.directions, W)
    assert match.angles.max() < error  # as lines show them, the worst are 1e-2 to 0.2 rad off
    assert len(found.directions) == 30
    assert found.spanning


def test_two_responses_that_rise_at_once_explain_a_third():
    v, changes = np.eye(3), np.array([[1.0, 2.0], [3.0, -1.0], [4.0, 1.0]])
    between = np.array([v[0], v[1], (v[0] + v[1]) / np.sqrt(2.0)])
    known = Responses(between, changes, np.zeros((3, 3)), np.ones(3), np.array([1e-5, 1e-5, 0.2]))
    assert known.is_explained(2)
    elsewhere = Responses(between, changes, np.diag([0.0, 50.0, 0.0]), np.ones(3), known.errors)
    assert not elsewhere.is_explained(2)
