"""Responses read where the other features are straight."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

import ridgescope as rs
from ridgescope.fit.samples import Samples
from ridgescope.geometry import in_ball, random_directions, unit
from ridgescope.search import Proposal
from ridgescope.wide.isolated import collocation, curvatures, isolate, nodes, rank_one, read, slopes
from ridgescope.wide.layer import WideLayer

RADIUS = 3.0


def layer(n=12, d=5, p=4, seed=0, V=None):
    """A GELU layer: f, its unit directions, slopes, offsets and output vectors."""
    rng = np.random.default_rng(seed)
    V = random_directions(n, d, rng) if V is None else V
    s, b, W = rng.uniform(0.6, 2.0, len(V)), 0.5 * rng.standard_normal(len(V)), rng.standard_normal((len(V), p))

    def f(X):
        y = s * (X @ V.T) + b
        return (y * ndtr(y)) @ W

    return f, V, s, b, W


def straightened(values, z):
    line = np.stack([np.ones_like(z), z], axis=1)
    return values - line @ np.linalg.lstsq(line, values, rcond=None)[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("off", [0.0, 1e-6, 1e-4])
def test_a_response_is_read_to_the_error_of_its_spline(seed, off):
    f, V, s, b, W = layer(seed=seed)
    rng = np.random.default_rng(seed + 50)
    seen = unit(V + off * rng.standard_normal(V.shape))
    where = isolate(seen, 3 * RADIUS, 1e6, rng)
    assert where.possible.all()
    which, blocks = read(f, seen, where, RADIUS, 64)
    assert np.array_equal(which, np.arange(len(V)))
    z = np.linspace(-RADIUS, RADIUS, 501)
    for i in range(len(V)):
        y = s[i] * z + b[i]
        truth = np.multiply.outer(y * ndtr(y), W[i])
        error = straightened(collocation(z, RADIUS, 64) @ blocks[i] - truth, z)
        assert np.abs(error).max() < 1e-5 * np.abs(truth).max() + 1e13 * off**4


def test_offsets_lie_across_their_features_and_far_from_the_others():
    _, V, *_ = layer(n=20)
    where = isolate(V, 9.0, 1e6, np.random.default_rng(0))
    seen = np.abs(where.offsets @ V.T)
    assert np.diagonal(seen).max() < 1e-9 * np.abs(where.offsets).max()
    np.fill_diagonal(seen, np.inf)
    assert seen.min() >= 9.0


def test_what_cannot_be_isolated_within_reach_is_said():
    V = random_directions(6, 4, np.random.default_rng(1))
    V[1] = unit(V[0] + 1e-6 * V[2])
    where = isolate(V, 9.0, 1e5, np.random.default_rng(0))
    assert where.possible.tolist() == [False, False, True, True, True, True]
    which, _ = read(lambda X: X[:, :1], V, where, RADIUS, 8)
    assert which.tolist() == [2, 3, 4, 5]


def test_in_two_dimensions_and_alone():
    f, V, *_ = layer(n=1, d=2, p=1)
    where = isolate(V, 9.0, 1e6, np.random.default_rng(0))
    assert where.possible.all()
    _, blocks = read(f, V, where, RADIUS, 32)
    assert np.isfinite(blocks).all()


@pytest.mark.parametrize("intervals", [8, 32])
def test_nodes_fix_a_spline(intervals):
    matrix = collocation(nodes(RADIUS, intervals), RADIUS, intervals)
    assert matrix.shape == (intervals + 3, intervals + 3)
    assert np.linalg.cond(matrix) < 50


def test_derivatives_of_the_splines():
    z, h = np.linspace(-2.9, 2.9, 41), 1e-5
    c = np.random.default_rng(0).standard_normal(19)
    up, here, down = (collocation(z + e, RADIUS, 16) @ c for e in (h, 0.0, -h))
    assert np.allclose(slopes(z, RADIUS, 16) @ c, (up - down) / (2 * h), atol=1e-6)
    assert np.allclose(curvatures(z, RADIUS, 16) @ c, (up - 2 * here + down) / h**2, atol=1e-3)


def test_rank_one_keeps_what_is_not():
    rng = np.random.default_rng(0)
    one = np.multiply.outer(rng.standard_normal(9), rng.standard_normal(3))
    two = one + np.multiply.outer(rng.standard_normal(9), rng.standard_normal(3))
    out = rank_one(np.stack([one + 1e-9 * rng.standard_normal((9, 3)), two, np.zeros((9, 3))]), 1e-6)
    assert np.linalg.matrix_rank(out[0], tol=1e-13) == 1
    assert np.array_equal(out[1], two)
    assert np.array_equal(out[2], np.zeros((9, 3)))


@pytest.mark.parametrize("twins", [False, True])
def test_a_layer_is_put_together_from_what_is_read(twins):
    V = random_directions(12, 5, np.random.default_rng(7))
    if twins:
        V[1] = unit(V[0] + 1e-3 * V[2])
    f, V, s, b, W = layer(V=V)
    jumps = tuple((s[i] * W[i])[None, :] for i in range(len(V)))
    seen = Proposal(V, np.ones(len(V)), kinks=tuple(np.array([-b[i] / s[i]]) for i in range(len(V))), jumps=jumps)
    rng = np.random.default_rng(0)
    wide = WideLayer.of(seen, RADIUS, 1e3 if twins else np.inf, 1e-3, rng)
    assert wide.where.possible.sum() == (10 if twins else 12)
    intervals = wide.enough_intervals(f, rng)
    samples = Samples(5, RADIUS)
    model = wide.fit(f, samples, intervals, np.inf, rng)
    X = in_ball(500, 5, RADIUS, rng)
    assert rs.match(model.directions, V).angles.max() < 1e-12
    assert np.abs(model.predict(X) - f(X)).max() < (0.1 if twins else 1e-3)


def test_a_layer_within_an_allowance():
    f, V, s, b, W = layer()
    jumps = tuple((s[i] * W[i])[None, :] for i in range(len(V)))
    seen = Proposal(V, np.ones(len(V)), kinks=tuple(np.array([-b[i] / s[i]]) for i in range(len(V))), jumps=jumps)
    rng = np.random.default_rng(0)
    wide = WideLayer.of(seen, RADIUS, np.inf, 1e-3, rng)
    asked = []

    def counted(X):
        asked.append(len(X))
        return f(X)

    for allowance in (100, 1300, 1600):
        asked.clear()
        wide.fit(counted, Samples(5, RADIUS), 64, allowance, rng)
        assert sum(asked) <= allowance
