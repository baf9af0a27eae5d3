"""Responses read where the other features are straight."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from ridgescope.bspline import design_matrix
from ridgescope.geometry import random_directions, unit
from ridgescope.wide.isolated import isolate, rank_one, read
from wide_cases import RADIUS, gelu_layer


def straightened(values, z):
    line = np.stack([np.ones_like(z), z], axis=1)
    return values - line @ np.linalg.lstsq(line, values, rcond=None)[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("off", [0.0, 1e-6, 1e-4])
def test_a_response_is_read_to_the_error_of_its_spline(seed, off):
    f, V, s, b, W = gelu_layer(seed=seed)
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
        error = straightened(design_matrix(z, RADIUS, 64) @ blocks[i] - truth, z)
        assert np.abs(error).max() < 1e-5 * np.abs(truth).max() + 1e13 * off**4


def test_offsets_lie_across_their_features_and_far_from_the_others():
    _, V, *_ = gelu_layer(n=20)
    where = isolate(V, 9.0, 1e6, np.random.default_rng(0))
    seen = np.abs(where.offsets @ V.T)
    assert np.diagonal(seen).max() < 1e-9 * np.abs(where.offsets).max()
    np.fill_diagonal(seen, np.inf)
    assert seen.min() >= 9.0


def test_what_cannot_be_isolated_within_reach_is_not_read():
    V = random_directions(6, 4, np.random.default_rng(1))
    V[1] = unit(V[0] + 1e-6 * V[2])
    where = isolate(V, 9.0, 1e5, np.random.default_rng(0))
    assert where.possible.tolist() == [False, False, True, True, True, True]
    which, _ = read(lambda X: X[:, :1], V, where, RADIUS, 8)
    assert which.tolist() == [2, 3, 4, 5]


def test_in_two_dimensions_and_alone():
    f, V, *_ = gelu_layer(n=1, d=2, p=1)
    where = isolate(V, 9.0, 1e6, np.random.default_rng(0))
    assert where.possible.all()
    _, blocks = read(f, V, where, RADIUS, 32)
    assert np.isfinite(blocks).all()


def test_rank_one_keeps_what_is_not():
    rng = np.random.default_rng(0)
    one = np.multiply.outer(rng.standard_normal(9), rng.standard_normal(3))
    two = one + np.multiply.outer(rng.standard_normal(9), rng.standard_normal(3))
    out = rank_one(np.stack([one + 1e-9 * rng.standard_normal((9, 3)), two, np.zeros((9, 3))]), 1e-6)
    assert np.linalg.matrix_rank(out[0], tol=1e-13) == 1
    assert np.array_equal(out[1], two)
    assert np.array_equal(out[2], np.zeros((9, 3)))
