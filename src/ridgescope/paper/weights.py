"""Both sides of the lemmas about where Fourier weight is: where-zero, where-nonzero, and Claim find-good-point.

Lemma where-nonzero as a whole says little at sizes that can be computed: its bound averages over the band up to
B = 4ℓ log(ℓR/ε), of which an affordable response fills a part in 10¹⁰. So the steps of its proof are evaluated one by
one, each at its own size: the mass of one feature is an integral along its line (an identity), some β in the band has
at least the average weight, the mass that other features leak is bounded, and the three are put together.

`Sides(left, right)` are those of `lemmas`; letters too. Here E₊ = [a, B] is the band, w_j the part of v across v_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..geometry import Floats
from .lemmas import Scalar, Sides, band, mass_by_grid, windowed_transform


def where_zero(
    sigmas: Sequence[Scalar],
    directions: Floats,
    ell: float,
    v: Floats,
    A: Floats,
    *,
    reach: float,
) -> Sides:
    """Lemma where-zero: I*(v, A) against n² π^{d/2} ℓ^d exp(−ℓ²D²/(ℓ² + ‖A‖)), D the distance of v to the star in the
    metric A."""
    n, d = directions.shape
    D2 = math.inf
    for u in directions:
        scale = float(u @ A @ u)
        t = float(v @ A @ u) / scale if scale > 0 else 0.0
        D2 = min(D2, float((v - t * u) @ A @ (v - t * u)))
    norm = float(np.linalg.norm(A, 2))
    right = n**2 * math.pi ** (d / 2) * ell**d * math.exp(-(ell**2) * D2 / (ell**2 + norm))
    return Sides(mass_by_grid(sigmas, directions, ell, v, A, reach=reach), right)


def _outside(d: int, ell: float, alpha: float) -> float:
    """Return π^{(d−1)/2} ℓ^{2d−2} / (ℓ² + α)^{(d−1)/2}, what integrating over v_i^⊥ leaves."""
    return float(math.pi ** ((d - 1) / 2) * ell ** (2 * d - 2) / (ell**2 + alpha) ** ((d - 1) / 2))


def mass_along_line(sigma: Scalar, d: int, ell: float, alpha: float, beta: float, *, reach: float) -> float:
    """Return I*_i of one feature at v = βv_i, A = αI: the identity in the proof of Lemma where-nonzero, `_outside`
    times ∫ |σ̂_i⁽ˡ⁾(t)|² exp(−α(t − β)²) dt."""
    t = np.linspace(-reach, reach, 2 * math.ceil(16 * ell * reach) + 1)
    power = np.abs(windowed_transform(sigma, ell, t)) ** 2
    return _outside(d, ell, alpha) * float((power * np.exp(-alpha * (t - beta) ** 2)).sum() * (t[1] - t[0]))


def best_in_band(power: Scalar, alpha: float, a: float, B: float, points: int = 2001) -> Sides:
    """Return the averaging step of Lemma where-nonzero for |σ̂|² = `power`: ∫_{E₊} |σ̂|² / (4(1 + B√α)) against the
    largest ∫ |σ̂(t)|² exp(−α(t − β)²) dt over β in E₊."""
    t = np.linspace(a, B, points)
    weights = power(t) * (t[1] - t[0])
    best = float((np.exp(-alpha * (t[:, None] - t) ** 2) @ weights).max())
    return Sides(float(weights.sum()) / (4 * (1 + B * math.sqrt(alpha))), best)


def leakage(sigma: Scalar, v: Floats, v_j: Floats, ell: float, alpha: float, *, reach: float) -> Sides:
    """Return the step for j ≠ i of Lemma where-nonzero, corrected as in docs/theory.md.

    It bounds the mass I*_j of a feature along v_j at v, A = αI, by
    π^{d/2} ℓ^{2d−1}/(ℓ² + α)^{(d−1)/2} · exp(−αℓ²|w_j|²/(ℓ² + α)).
    """
    d = len(v)
    across = v - (v @ v_j) * v_j
    right = _outside(d, ell, alpha) * math.sqrt(math.pi) * ell
    right *= math.exp(-alpha * ell**2 / (ell**2 + alpha) * float(across @ across))
    return Sides(mass_by_grid([sigma], v_j[None], ell, v, alpha * np.eye(d), reach=reach), right)


def where_nonzero_bound(n: int, d: int, ell: float, alpha: float, gamma: float, R: float, eps: float) -> float:
    """Return the lower bound of Lemma where-nonzero, with the steps above put together."""
    a, B = band(R, eps, ell)
    kept = eps**2 / (64 * n * (1 + B * math.sqrt(alpha)) * R * ell**2)
    leaked = 4 * n * ell * math.exp(-alpha * ell**2 * gamma**2 * a**2 / (ell**2 + alpha))
    return _outside(d, ell, alpha) * (kept - leaked)


def good_point_weight(v: Floats, v0: Floats, K: Floats, C2: float, y: Floats) -> Sides:
    """The pointwise step in Claim find-good-point, in basis coordinates: for every y (k, d) and v close to v₀,

        0.3 exp(−4C₂|v − y|²) ≤ exp(−(v₀ − y)ᵀA₀(v₀ − y));

    the two sides are those where they are closest. K (d,) is the diagonal of A₀.
    """
    left = 0.3 * np.exp(-4 * C2 * ((v - y) ** 2).sum(axis=1))
    right = np.exp(-(K * (v0 - y) ** 2).sum(axis=1))
    worst = int(np.argmax(left - right))
    return Sides(float(left[worst]), float(right[worst]))


def good_point_direction(alpha: Floats, v: Floats, C1: float) -> Sides:
    """Return the conclusion of Claim find-good-point for coordinates α (d,) of the point found and v (d,) of the heavy
    point: |u − v/|v|| for u = α/|α| against C₁^−0.2."""
    off = alpha / np.linalg.norm(alpha) - v / np.linalg.norm(v)
    return Sides(float(np.linalg.norm(off)), float(C1**-0.2))
