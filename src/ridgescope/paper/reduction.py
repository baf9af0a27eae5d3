"""Both sides of the bounds of Section remove-bounded, by quadrature: smoothing, and differences for derivatives.

With g = f ∗ N(0, η²I), ⟨u, ∇g(x)⟩ = Σ_i ρ_i(v_i·x) and ρ_i(t) = ⟨u, v_i⟩·E σ_i′(t + ηz), z ~ N(0, 1), the proof of
Theorem main-learning uses

    |ρ_i| ≤ L,    |ρ_i′| ≤ L/η,    |g − f| ≤ 2√d·nLη,    |(g(x + αu) − g(x))/α − ⟨u, ∇g(x)⟩| ≤ nLα/η.

Letters: σ′ slope of a response, c = ⟨u, v_i⟩, L Lipschitz constant, n number of features, α and η length and smoothing
of a difference. `Sides` as in `lemmas`.
"""

from __future__ import annotations

import math

import numpy as np

from ..geometry import Floats
from .lemmas import Scalar, Sides

_NODES = np.linspace(-6.0, 6.0, 4001)
"""Nodes of averages over a normal variable, which beyond six standard deviations weigh 2e-9."""
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


def smoothed(function: Scalar, z: Floats, eta: float) -> Floats:
    """Return E function(z + ηN), N ~ N(0, 1), at z (k,)."""
    return np.asarray(function(z[:, None] + eta * _NODES) @ _WEIGHTS)


def rho_size(sigma_slope: Scalar, L: float, eta: float, z: Floats, c: float = 1.0) -> Sides:
    """Return the largest |ρ_i| at z (k,) against L."""
    return Sides(float(np.abs(c * smoothed(sigma_slope, z, eta)).max()), L)


def rho_slope(sigma_slope: Scalar, L: float, eta: float, z: Floats, c: float = 1.0) -> Sides:
    """Return the largest |ρ_i′| at z (k,), by the formula of the proof, against L/η."""
    slope = sigma_slope(z[:, None] + eta * _NODES) @ (_WEIGHTS * _NODES) / eta
    return Sides(float(np.abs(c * slope).max()), L / eta)


def smoothing_error(sigma: Scalar, L: float, eta: float, z: Floats, d: int, n: int = 1) -> Sides:
    """Return the largest |g − f| of n equal features along one line at z (k,) against 2√d·nLη."""
    return Sides(n * float(np.abs(smoothed(sigma, z, eta) - sigma(z)).max()), 2 * math.sqrt(d) * n * L * eta)


def difference_error(sigma_slope: Scalar, L: float, alpha: float, eta: float, n: int = 1) -> Sides:
    """Return the largest |(g(x + α) − g(x))/α − g′(x)| of n equal features along u, from σ′ alone, against nLα/η."""
    z = np.linspace(-4.0, 4.0, 201)
    inner, w = np.polynomial.legendre.leggauss(20)
    shifted = (smoothed(sigma_slope, z + alpha * (1 + t) / 2, eta) for t in inner)
    mean = sum(weight / 2 * values for weight, values in zip(w, shifted, strict=True))
    left = n * float(np.abs(mean - smoothed(sigma_slope, z, eta)).max())
    return Sides(left, n * L * alpha / eta)
