"""Lemma recover-function and what it is built from."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.errors import InvalidInput
from ridgescope.paper.lemmas import recover_function, truncated_inversion, windowed_transform
from ridgescope.paper.peel import Table, zero_table
from ridgescope.paper.response import recover_response

U = np.array([0.6, 0.8, 0.0])
V = np.array([0.0, 0.6, 0.8])


def test_response_of_one_feature_among_two() -> None:
    """sin(2z) beside tanh in another direction, on [−R, R], with the σ(0) = 0 shift."""
    rng = np.random.default_rng(1)
    got = recover_response(
        lambda X: np.sin(2 * X @ U) + 0.3 * np.tanh(X @ V),
        8.0,
        U,
        m=150_000,
        rng=rng,
        t_low=0.8,
        t_high=4.0,
    )
    z = np.linspace(-3, 3, 61)
    assert float(got(0.0)) == 0.0
    assert np.abs(got(z) - np.sin(2 * z)).max() <= 0.06
    assert got.queries == 150_000


def test_error_is_what_the_lemma_adds_up() -> None:
    """Without sampling error: the missing low band, the truncation and the grid are all that is left."""
    ell, t_low, t_high, step = 10.0, 0.3, 12.0, 0.04

    def sigma(z: np.ndarray) -> np.ndarray:
        return np.tanh(z)

    t = np.arange(np.ceil(t_low / step), t_high / step) * step
    transform = windowed_transform(sigma, ell, t)
    z = np.linspace(-2, 2, 41)
    waves = 2 * (np.exp(1j * np.outer(z, t)) @ transform).real * step / np.sqrt(2 * np.pi)
    got = np.exp(z**2 / (2 * ell**2)) * waves
    got -= got[20]
    low = np.linspace(-t_low, t_low, 2001)
    missing = (
        np.exp(z**2 / (2 * ell**2))
        * np.real(np.exp(1j * np.outer(z, low)) @ windowed_transform(sigma, ell, low))
        * (low[1] - low[0])
        / np.sqrt(2 * np.pi)
    )
    assert np.abs(got - sigma(z) + missing - missing[20]).max() <= 0.02
    assert np.abs(missing - missing[20]).max() <= 2 * t_low * ell * t_low * 2  # 2t_low · max|σ̂| · |t z|


@pytest.mark.parametrize("ell", [30.0, 300.0])
@pytest.mark.parametrize("off", [0.0, 1e-4])
@pytest.mark.parametrize("i", range(4))
def test_response_is_within_the_error_of_the_lemma(i: int, off: float, ell: float) -> None:
    """Lemma recover-function: 5/ℓ^0.7 on the ball of R = 2, at its own t_low, for four features in the plane."""
    angles = np.array([0.0, 0.8, 1.6, 2.4])
    sigmas = [
        lambda z: np.sin(1.3 * z),
        lambda z: np.tanh(2 * z),
        lambda z: np.exp(-2 * (z - 0.3) ** 2) - np.exp(-0.18),
        lambda z: np.clip(z, -1, 1),
    ]
    V = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    u = np.array([np.cos(angles[i] + off), np.sin(angles[i] + off)])
    sides = recover_function(sigmas, V, i, u, ell, R=2.0, t_high=20.0, points=1 << 17)
    assert sides.holds
    assert sides.right < 0.5  # a bound that says something: every response here moves by one or more


def test_inversion_without_truncation_is_exact() -> None:
    z = np.linspace(-2, 2, 21)
    bump = np.exp(-(z**2))
    np.testing.assert_allclose(truncated_inversion(lambda x: np.exp(-(x**2)), 5.0, 12.0, z), bump, atol=1e-8)


def test_empty_band_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no multiple"):
        recover_response(lambda X: X[:, 0], 5.0, U, m=10, rng=np.random.default_rng(0), t_low=1.0, t_high=0.5)


def test_table_is_linear_between_and_beyond() -> None:
    table = Table(2.0, np.array([4.0, 1.0, 0.0, 1.0, 4.0]))
    np.testing.assert_allclose(table([-3.0, -2.0, 0.5, 1.5, 3.0]), [7.0, 4.0, 0.5, 2.5, 7.0])
    assert zero_table(1.0, 0.3)(0.2) == 0.0
