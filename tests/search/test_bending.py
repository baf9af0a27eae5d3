"""The ball on which responses bend, and stencils of higher order: what single precision needs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

import ridgescope as rs
from ridgescope.geometry import random_basis
from ridgescope.search.base import Meter, Setting
from ridgescope.search.bending import FARTHEST, bending_ball
from ridgescope.search.hessians import Differences
from ridgescope.search.rank_one import unpack


def layer(d, n, seed, kind=np.float32):
    """Return a GELU layer of the usual initialisation and its input weights."""
    rng = np.random.default_rng(seed)
    W, b = (rng.uniform(-(d**-0.5), d**-0.5, shape).astype(kind) for shape in ((n, d), (n,)))
    A = rng.uniform(-(n**-0.5), n**-0.5, (d, n)).astype(kind)

    def f(X):
        y = X.astype(kind) @ W.T + b
        return (y * ndtr(y)) @ A.T

    return f, W.astype(float)


def setting_of(f, dim, radius, reach=np.inf, noise=1e-8):
    rng = np.random.default_rng(5)
    Y = f(radius * rng.standard_normal((100, dim)) / np.sqrt(dim))
    std = float(np.sqrt(np.mean(np.var(Y, axis=0))))
    return Setting(dim, Y.shape[1], radius, reach, std, noise * std, 2.0 * np.pi / radius)


def test_a_small_ball_is_left_for_one_on_which_responses_bend():
    f, W = layer(16, 32, 0)
    small = setting_of(f, 16, 0.5)
    wide = bending_ball(f, small, np.random.default_rng(0))
    assert 1.0 < np.linalg.norm(W, axis=1).mean() * wide.radius < 16.0
    assert wide.noise / wide.std == pytest.approx(small.noise / small.std)
    assert wide.bandwidth * wide.radius == pytest.approx(small.bandwidth * small.radius)


def test_reach_is_respected():
    f, _ = layer(16, 32, 0)
    asked = []

    def ask(X):
        asked.append(float(np.linalg.norm(X, axis=1).max()))
        return f(X)

    limited = bending_ball(ask, setting_of(f, 16, 0.5, reach=1.0), np.random.default_rng(0))
    assert limited.radius == 0.5
    assert max(asked) < 1.0


def test_a_ball_on_which_responses_bend_is_kept():
    f, _ = layer(16, 32, 0)
    large = setting_of(f, 16, 12.0)
    assert bending_ball(f, large, np.random.default_rng(0)) is large


def test_a_quadratic_function_bends_alike_everywhere():
    setting = setting_of(lambda X: (X**2).sum(axis=1)[:, None], 6, 1.0)
    asked = []

    def ask(X):
        asked.append(float(np.linalg.norm(X, axis=1).max()))
        return (X**2).sum(axis=1)[:, None]

    assert bending_ball(ask, setting, np.random.default_rng(0)) is setting
    assert max(asked) < 1.2 * FARTHEST


@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_the_error_of_a_stencil_falls_with_its_order(order):
    """The slope of a log-log plot of the error over the step."""
    rng = np.random.default_rng(1)
    V, Q, x = rng.standard_normal((5, 4)), random_basis(4, 4, rng), 0.3 * rng.standard_normal((3, 4))
    truth = np.einsum("mi,id,ie->mde", -np.sin(x @ V.T), V @ Q.T, V @ Q.T)
    steps, errors = np.array([0.1, 0.2]), []
    for h in steps:
        meter = Meter(lambda X: np.sin(X @ V.T).sum(axis=1)[:, None], 10**6)
        source = Differences(meter, Q, float(h), True, 0.0, order=order)
        found = unpack(source.hessians(x, 4)[0][:, 0])
        errors.append(np.abs(found - truth).max())
        mixed = source.mixed(x, np.array([0, 1]), np.array([2, 3]))[:, 0]
        assert np.abs(mixed - truth[:, :2, 2:]).max() <= errors[-1] + 1e-12
        assert 10**6 - meter.left == 3 * (source.cost(4) + source.mixed_cost(2, 2))
    assert np.log2(errors[1] / errors[0]) == pytest.approx(order, abs=0.35)


@pytest.mark.parametrize("radius", [0.5, 1.0])
def test_a_layer_on_a_small_ball_in_single_precision(radius):
    f, W = layer(16, 24, 3)
    found = rs.extract(f, dim=16, radius=radius)
    match = rs.match(found.directions, W)
    assert found.certificate.met
    assert not len(match.false)
    assert match.angles.max() < 1e-3
