"""Long central stencils: exact for polynomials, accurate in single precision, without shared errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from ridgescope.geometry import random_basis, unit
from ridgescope.search.base import Meter, Setting
from ridgescope.search.central import CentralDifferences, choose_stencil, noise_factor, weights
from ridgescope.search.numerical_span import span_of
from ridgescope.search.rank_one import pack


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_weights_are_exact_for_polynomials(m: int) -> None:
    k = np.arange(1, m + 1)
    assert np.sum(weights(m) * 2 * k**2) == pytest.approx(2.0)  # of z², whose second derivative is 2
    for power in range(4, 2 * m + 1, 2):
        assert np.sum(weights(m) * 2.0 * k**power) == pytest.approx(0.0, abs=1e-9)
    assert abs(np.sum(weights(m) * 2.0 * (1.0 * k) ** (2 * m + 2))) > 1.0  # and not beyond


def layer(d: int, n: int, p: int, seed: int, kind: str):
    rng = np.random.default_rng(seed)
    W, C = rng.standard_normal((n, d)) / np.sqrt(d), rng.standard_normal((n, p)) / np.sqrt(n)

    def f(X):
        y = X.astype(kind) @ W.T.astype(kind)
        return ((y * ndtr(y).astype(kind)) @ C.astype(kind)).astype(np.float64)

    def hessians(x):
        y = W @ x
        bend = (2.0 - y * y) * np.exp(-y * y / 2.0) / np.sqrt(2.0 * np.pi)
        return np.einsum("i,ip,ia,ib->pab", bend, C, W, W)

    return f, hessians


def test_hessian_of_a_layer() -> None:
    d, p = 30, 8
    f, hessians = layer(d, 60, p, 0, "float64")
    basis = random_basis(d, d, np.random.default_rng(1))
    source = CentralDifferences(Meter(f, 10**6), basis, 0.3, 4, 0.0)
    x = 2.0 * unit(np.random.default_rng(2).standard_normal((1, d)))
    narrow, _ = source.hessians(x, 6)
    wide, _ = source.hessians(x, 9, narrow)
    true = np.einsum("ra,pab,sb->prs", basis[:9], hessians(x[0]), basis[:9])
    assert np.allclose(wide[0], pack(true), atol=2e-6 * np.abs(true).max())
    mixed = source.mixed(x, np.arange(2), np.arange(5, 9))
    assert np.allclose(mixed[0], true[:, :2, 5:9], atol=2e-6 * np.abs(true).max())


def test_costs_are_what_is_asked() -> None:
    f, _ = layer(30, 60, 8, 0, "float64")
    ask = Meter(f, 10**6)
    source = CentralDifferences(ask, np.eye(30), 0.3, 3, 0.0)
    x = np.zeros((1, 30))
    narrow, _ = source.hessians(x, 6)
    assert ask.spent == source.cost(6)
    source.hessians(x, 9, narrow)
    assert ask.spent == source.cost(6) + source.cost(9, 6)
    source.mixed(x, np.arange(2), np.arange(5, 9))
    assert ask.spent == source.cost(6) + source.cost(9, 6) + source.mixed_cost(2, 4)


def test_choice_follows_the_noise() -> None:
    d = 64
    f, _ = layer(d, 128, d, 3, "float64")
    chosen = []
    for noise in (1e-13, 1e-7, 1e-3):
        setting = Setting(dim=d, outputs=d, radius=8.0, reach=8.0, std=0.5, noise=noise, bandwidth=0.5)
        chosen.append(choose_stencil(Meter(f, 10**6), setting, np.random.default_rng(4)))
    steps = [c.step for c in chosen]
    assert steps[0] < steps[1] < steps[2]
    errors = [c.error for c in chosen]
    assert errors[0] < 1e-7 < 1e-6 < errors[2]
    assert errors[2] >= noise_factor(chosen[2].half_width) * 1e-3 / steps[2] ** 2


def test_shared_errors_do_not_look_like_features() -> None:
    """In single precision the rank is the number of features, though one centre serves hundreds of differences."""
    d, n, p = 64, 128, 64
    f, _ = layer(d, n, p, 5, "float32")
    rng = np.random.default_rng(6)
    setting = Setting(dim=d, outputs=d, radius=8.0, reach=8.0, std=0.5, noise=1.2e-7, bandwidth=0.5)
    best = choose_stencil(Meter(f, 10**6), setting, rng)
    source = CentralDifferences(Meter(f, 10**7), random_basis(d, d, rng), best.step, best.half_width, best.error)
    hessians, error = source.hessians(4.0 * unit(rng.standard_normal((6, d))), 23)
    span = span_of(hessians.reshape(-1, hessians.shape[2]), error)
    assert span.clear
    assert span.rank == n
    assert span.drop > 10.0
