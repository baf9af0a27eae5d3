"""EstVal: unbiased on sines and bumps, within its bound, and the same number by NUFFT and by the direct sum."""

from __future__ import annotations

import math

import numpy as np

from ridgescope.paper.response import est_value, group_by_line, ray_sum, ray_values, waves_on_grid


def test_unbiased_on_a_sine() -> None:
    """sin(ω·x) has f̂⁽ˡ⁾(y)/ℓ^d = (e^{−ℓ²|y−ω|²/2} − e^{−ℓ²|y+ω|²/2})/2i."""
    rng = np.random.default_rng(1)
    ell, omega = 3.0, np.array([0.8, -0.6, 0.5])
    y = np.concatenate([np.linspace(-2, 2, 21)[:, None] * omega, rng.standard_normal((5, 3))])
    got = est_value(lambda X: np.sin(X @ omega), ell, y, 40_000, rng)
    peak = [np.exp(-(ell**2) * ((y - s * omega) ** 2).sum(axis=1) / 2) for s in (1, -1)]
    exact = (peak[0] - peak[1]) / 2j
    assert np.all(np.abs(got.scaled - exact) <= 4 * got.stderr)
    assert got.queries == 40_000


def test_unbiased_on_a_bump() -> None:
    """exp(−z²/2s²) along u has σ̂⁽ˡ⁾(t) = s′e^{−s′²t²/2}, 1/s′² = 1/s² + 1/ℓ² (Claim fourier-formula)."""
    rng = np.random.default_rng(2)
    ell, s, u = 3.0, 0.7, np.array([0.6, 0.0, 0.8])
    t = np.linspace(-3, 3, 25)
    width = 1 / math.sqrt(1 / s**2 + 1 / ell**2)
    got = est_value(lambda X: np.exp(-((X @ u) ** 2) / (2 * s**2)), ell, t[:, None] * u, 40_000, rng)
    exact = width * np.exp(-(width**2) * t**2 / 2) / ell
    assert np.all(np.abs(got.scaled - exact) <= 4 * got.stderr)
    np.testing.assert_allclose(got.value, got.scaled * ell**3)


def test_sums_are_the_direct_sums() -> None:
    rng = np.random.default_rng(4)
    s, c = rng.normal(0, 10, 300), rng.standard_normal(300)
    t = rng.uniform(-5, 5, 40)
    np.testing.assert_allclose(ray_sum(s, c, t), np.exp(-1j * np.outer(t, s)) @ c, atol=1e-6)
    step, modes = 0.1, 30
    grid = step * np.arange(1, modes + 1)
    direct = np.exp(-1j * np.outer(grid, s)) @ c / 300
    assert np.abs(ray_values(s, c, step, modes) - direct).max() <= 1e-3 * np.abs(c).mean()
    z = np.linspace(-20, 20, 50)
    coefficients = rng.standard_normal(modes) + 1j * rng.standard_normal(modes)
    np.testing.assert_allclose(
        waves_on_grid(z, coefficients, step), (np.exp(1j * np.outer(z, grid)) @ coefficients).real, atol=1e-6
    )


def test_lines_are_recognised() -> None:
    u = np.array([0.6, 0.8])
    y = np.array([2 * u, -u, [1.0, 0.0], [0.0, 0.0]])
    lines = group_by_line(y)
    assert sum(len(index) for _, index, _ in lines) == 4
    for direction, index, t in lines:
        np.testing.assert_allclose(t[:, None] * direction, y[index], atol=1e-12)
