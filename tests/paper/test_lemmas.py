"""Every lemma with a formula or a bound, both sides by quadrature, on a grid of planted functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgescope.paper import lemmas, weights

RESPONSES = {
    "sine": (lambda z: np.sin(1.3 * z), 1.3),
    "tanh": (lambda z: np.tanh(2 * z), 2.0),
    "bump": (lambda z: np.exp(-2 * (z - 0.3) ** 2) - math.exp(-0.18), 2 * math.exp(-0.5)),
    "clipped": (lambda z: np.clip(z, -1, 1), 1.0),
    "step": (lambda z: np.clip(3 * z, 0, 1), 3.0),
}
NAMES = list(RESPONSES)
STAR = np.array([[1.0, 0.0], [math.cos(1.0), math.sin(1.0)], [math.cos(2.2), math.sin(2.2)]])
PLANTED = [RESPONSES[k][0] for k in ("sine", "tanh", "bump")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ell", [1.0, 4.0])
def test_transform_is_bounded_and_lipschitz(name: str, ell: float) -> None:
    """Fact fourier-linfty and Claim lipschitz-fourier."""
    y = np.linspace(-6, 6, 801)
    assert lemmas.fourier_linfty(RESPONSES[name][0], ell, y).holds
    assert lemmas.lipschitz_fourier(RESPONSES[name][0], ell, y).holds


def test_constant_attains_the_bound() -> None:
    """|σ̂⁽ˡ⁾(0)| = ℓ for σ = 1: the fact is sharp."""
    assert lemmas.fourier_linfty(np.ones_like, 3.0, np.zeros(1)).left == pytest.approx(3.0)


def test_truncated_inversion_constant_needs_lipschitz_times_window() -> None:
    """‖(σ⁽ˡ⁾)′‖ ≤ 2L√ℓ is false when Lℓ is small: for a constant (L = 0) the left side is positive."""
    ell = 1.0
    x = np.linspace(-9, 9, 20001)
    slope = -x / ell**2 * np.exp(-(x**2) / (2 * ell**2))
    norm = math.sqrt(float((slope**2).sum() * (x[1] - x[0])))
    assert norm > 2 * 0.1 * math.sqrt(ell)  # L = 0.1
    assert norm <= math.sqrt(math.sqrt(math.pi) / (2 * ell)) + 1e-9


@pytest.mark.parametrize("L", [0.01, 1.0, 50.0])
def test_truncated_inversion_constant_needs_nothing_where_responses_start_at_zero(L: float) -> None:
    """Under σ(0) = 0 the norm is at most 1.40·L√ℓ for every L; the response that grows up to ℓ and returns nears it."""
    ell = 2.0
    x = np.linspace(-20, 20, 40_001)
    sigma = L * np.clip(np.minimum(np.abs(x), 2 * ell - np.abs(x)), 0, None)
    slope = np.gradient(sigma * np.exp(-(x**2) / (2 * ell**2)), x)
    norm = math.sqrt(float((slope**2).sum() * (x[1] - x[0])))
    assert 1.2 * L * math.sqrt(ell) <= norm <= 1.40 * L * math.sqrt(ell)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("R", [1.0, 3.0])
def test_nondegenerate_responses_have_power_in_the_band(name: str, R: float) -> None:
    """Lemma nondegen-fourier and Corollary nonzero-weight-region at the smallest ℓ they allow."""
    sigma, L = RESPONSES[name]
    z = np.linspace(-R, R, 2001)
    eps = min(0.99, float(np.ptp(sigma(z))))
    ell = 20 * (R + L) / eps
    assert lemmas.nondegen_fourier(sigma, R, eps, ell).holds
    assert lemmas.nonzero_weight_region(sigma, R, eps, ell).holds


def test_transform_of_a_ridge_function() -> None:
    """Claim fourier-formula against the definition, on a tensor grid."""
    y = np.random.default_rng(1).uniform(-1.5, 1.5, (40, 2))
    ell = 2.0

    def f(X: np.ndarray) -> np.ndarray:
        return sum(s(X @ v) for s, v in zip(PLANTED, STAR, strict=True))

    direct = lemmas.transform_by_grid(f, 2, ell, y)
    assert np.abs(lemmas.ridge_transform(PLANTED, STAR, ell, y) - direct).max() <= 1e-3 * np.abs(direct).max()


def test_transform_of_a_sum_is_lipschitz() -> None:
    """Claim fourier-lipchitz-2 along random straight paths."""
    rng = np.random.default_rng(2)
    for _ in range(5):
        a, b = rng.uniform(-2, 2, (2, 2))
        path = a + np.linspace(0, 1, 200)[:, None] * (b - a)
        assert lemmas.lipschitz_fourier_many(PLANTED, STAR, 2.0, path).holds


def test_where_weight_is_negligible() -> None:
    """Lemma where-zero on a grid of v and A, singular A among them."""
    ell = 3.0
    metrics = [2 * np.eye(2), np.diag([4.0, 0.0]), np.array([[3.0, 1.0], [1.0, 1.0]])]
    for A in metrics:
        for v in np.array([[0.0, 0.0], [1.3, 0.0], [1.0, 2.0], [-2.0, 1.0], [0.5, -3.0]]):
            assert weights.where_zero(PLANTED, STAR, ell, v, A, reach=7.0).holds


def test_one_line_at_a_time() -> None:
    """Claim fourier-point-closeness for directions off by 0, 0.001 and 0.01."""
    t = np.concatenate([-np.geomspace(0.05, 3, 40), np.geomspace(0.05, 3, 40)])
    for off in (0.0, 0.001, 0.01):
        u = np.array([math.cos(1.0 + off), math.sin(1.0 + off)])
        sides = lemmas.fourier_point_closeness(PLANTED, STAR, 1, u, 6.0, t)
        assert sides.left <= sides.right + 1e-7  # the rounding of the quadrature, where both vanish
