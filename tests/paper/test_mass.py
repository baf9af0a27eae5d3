"""EstWeight: unbiased, with a true standard error, and the same number by every way of summation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgescope.errors import InvalidInput
from ridgescope.paper.lemmas import gaussian_reweight, mass_of_waves
from ridgescope.paper.mass import (
    Grid,
    est_weight,
    line_sums,
    mass_lines,
    mass_plane,
    plane_sum,
    psd_root,
)

WAVES = np.array([0.7, -0.4j, 0.5 + 0.2j])
OMEGA = np.array([[2.0, 0.3, -0.4], [-0.5, 1.1, 0.8], [0.2, 0.9, 0.9]])


def waves(X: np.ndarray) -> np.ndarray:
    return np.real(np.exp(1j * X @ OMEGA.T) @ WAVES)


def test_unbiased_on_sines() -> None:
    """Closed form within four of its standard errors, at points on, near and off the star, A of any rank."""
    rng = np.random.default_rng(1)
    for A in (
        np.diag([3.0, 3.0, 2.0]),
        np.diag([4.0, 4.0, 0.0]),
        np.array([[2, 1, 0], [1, 2, 0], [0, 0, 1.0]]),
    ):
        v = np.concatenate([OMEGA, OMEGA + 0.2, [[0.0, 0.0, 0.0]], [[1.5, -1.5, 0.5]]])
        got = est_weight(waves, 4.0, v, A, 40_000, rng)
        exact = np.array([mass_of_waves(WAVES, OMEGA, 4.0, p, A) for p in v])
        assert np.all(np.abs(got.scaled - exact) <= 4 * got.stderr + 1e-12)
        assert got.queries == 80_000


def test_unbiased_on_a_gaussian_bump() -> None:
    """For σ(z) = exp(−(z−c)²/2s²) along u and A = αI the mass is a one-dimensional Gaussian integral."""
    rng = np.random.default_rng(2)
    d, ell, alpha, s, c = 3, 3.0, 2.0, 0.6, 0.5
    u = np.array([1.0, 2.0, -2.0]) / 3
    p = 1 / s**2 + 1 / ell**2  # σ⁽ˡ⁾ = exp(−(pz² − 2cz/s² + c²/s²)/2), so |σ̂⁽ˡ⁾(t)|² = H e^{−t²/p}
    H = math.exp((c / s**2) ** 2 / p - c**2 / s**2) / p
    beta = np.array([0.0, 0.5, 1.0, 2.0])
    along = H * math.sqrt(math.pi / (1 / p + alpha)) * np.exp(-(beta**2) * alpha / p / (1 / p + alpha))
    across = math.pi ** ((d - 1) / 2) * ell ** (2 * d - 2) / (ell**2 + alpha) ** ((d - 1) / 2)
    exact = along * across / (math.pi * ell**2) ** (d / 2)
    got = est_weight(
        lambda X: np.exp(-((X @ u - c) ** 2) / (2 * s**2)),
        ell,
        beta[:, None] * u,
        alpha * np.eye(d),
        60_000,
        rng,
    )
    assert np.all(np.abs(got.scaled - exact) <= 4 * got.stderr)
    np.testing.assert_allclose(got.value, got.scaled * (math.pi * ell**2) ** (d / 2))


def test_standard_error_is_the_standard_deviation() -> None:
    rng = np.random.default_rng(3)
    runs = [est_weight(waves, 4.0, OMEGA[0], np.eye(3), 500, rng) for _ in range(400)]
    deviation = np.std([r.scaled[0] for r in runs])
    assert np.mean([r.stderr[0] for r in runs]) == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize(("v", "a"), [(0.0, 1.0), (1.5, 0.3), (3.0, 4.0)])
def test_two_point_formula(v: float, a: float) -> None:
    """Claim gaussian-reweight: both sides, by quadrature."""
    sides = gaussian_reweight(lambda x: np.exp(-(x**2) / 2) * np.cos(2 * x), v, a, reach=9.0)
    assert sides.left == pytest.approx(sides.right, rel=1e-6, abs=1e-10)


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_transforms_are_the_direct_sums(seed: int, modes: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0, 5, (2, 40))
    c = rng.standard_normal(40)
    k = np.arange(-modes, modes + 1)
    direct = np.einsum("j,aj,bj->ab", c, np.exp(-1j * np.outer(k, x)), np.exp(-1j * np.outer(k, y)))
    size = np.abs(c).sum()
    assert np.abs(plane_sum(x, y, c, modes) - direct).max() <= 1e-3 * size
    rows = (rng.standard_normal((3, 40)) + 1j * rng.standard_normal((3, 40))).astype(np.complex64)
    direct = rows @ np.exp(-1j * np.outer(x, k))
    assert np.abs(line_sums(x, rows, modes) - direct).max() <= 1e-3 * np.abs(rows).sum()


def test_grids_agree_with_the_closed_form() -> None:
    """One batch for all grid values: level 2 and level 3 against mass_of_waves."""
    rng = np.random.default_rng(5)
    basis, K, ell, step = np.eye(3), np.array([5.0, 5.0, 5.0]), 4.0, 0.25
    plane = mass_plane(waves, ell, basis, K[:2], Grid(step, 10), m=60_000, rng=rng)
    A = np.diag([5.0, 5.0, 0.0])
    for i, j in [(18, 11), (8, 14), (11, 14), (2, 9), (10, 10)]:
        exact = mass_of_waves(WAVES, OMEGA, ell, np.array([step * (i - 10), step * (j - 10), 0.0]), A)
        assert abs(plane.scaled[i, j] - exact) <= 6 * plane.stderr[i, j]
    alpha = np.array([[2.0, 0.25], [-0.5, 1.0]])
    lines = mass_lines(waves, ell, basis, K, alpha, Grid(step, 10), m=60_000, rng=rng)
    for i in range(2):
        for j in (2, 8, 10, 13, 18):
            exact = mass_of_waves(WAVES, OMEGA, ell, np.array([*alpha[i], step * (j - 10)]), np.diag(K))
            assert abs(lines.scaled[i, j] - exact) <= 5 * lines.stderr[i, j]


def test_mass_is_even() -> None:
    """f real: I*(v) = I*(−v), sample by sample."""
    got = est_weight(waves, 4.0, np.concatenate([OMEGA, -OMEGA]), np.eye(3), 500, np.random.default_rng(6))
    np.testing.assert_allclose(got.scaled[:3], got.scaled[3:], atol=1e-12)


def test_indefinite_metric_is_refused() -> None:
    with pytest.raises(InvalidInput, match="positive semidefinite"):
        psd_root(np.diag([1.0, -1.0]))
