"""The bias of difference stencils: its size, the step that balances it against noise, and its correction.

**Steps.** The error of a stencil of step h has two parts: neglected higher derivatives, which grow with h, and noise,
which falls with h. `derivative_sizes` measures the former at a few points; `DerivativeSizes` balances the two.

**Correction.** The mixed difference of a one-sided stencil along q_i, q_j is, for f = Σ_k s_k(v_k·x) and w_k = Q v_k,

    Σ_k [ s_k''(z_k) w_ki w_kj + (h/2) s_k'''(z_k) (w_ki² w_kj + w_ki w_kj²) ] + O(h²),        z_k = v_k·x

The second term limits the accuracy of the directions. Once they are known roughly, the curvatures s_k''(z_k) at all
points follow by least squares, and as functions of z_k alone they are smooth curves with slopes s_k'''. Subtracting
the second term leaves an error of second order, without further queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from ..bspline import basis_slope, combine, design_matrix
from ..geometry import Floats, random_directions
from .base import Ask, Setting
from .rank_one import pack, squares

_ONE_SIDED_NOISE = 2.5  # noise of a mixed difference over σ/h²: √4 for independent errors, plus a margin
_CENTRED_NOISE, _GRADIENT_NOISE = 2.0, 1.4  # the same for centred ones, √2.5, and for gradients over σ/h, √2
_LONGER = 2.0  # one-sided step over that of least error: most of its bias is corrected later, none of its noise
_SIZE_NOISE = (2.0, 4.0, 8.0)  # noise of measured derivatives of order 2, 3, 4 over σ/h², σ/h³, σ/h⁴, with a margin
_BENDS_AT = 5.0  # bandwidth over the frequency of f's curvature. Empirical: used if noise hides higher derivatives
_MEDIAN_TO_RMS = 1.5  # for a Gaussian: 1/0.6745
_FEWEST = 24  # points of a curve. Empirical: a smoothing spline through fewer follows their errors
_INTERVALS = 24  # of such a curve, between the outermost points
_EMPTY = 1e-9  # of the mean squared norm of the spline's columns: ridge for intervals without points
_ROUGHNESS_WEIGHTS = np.geomspace(1e-8, 1e8, 65)  # among which GCV chooses, for points of weight one


@dataclass(frozen=True)
class DerivativeSizes:
    """Sizes of second, third and fourth derivatives of f along random pairs of directions."""

    second: float = 0.0
    third: float = 0.0
    fourth: float = 0.0
    largest: float = 0.0
    """Size of second derivatives as a root mean square, which a few kinks increase."""

    def one_sided_step(self, noise: float, most: float) -> tuple[float, float]:
        """Return step and error of one-sided stencils; the error h·third/2 + 2.5σ/h² is least at h³ = 10σ/third."""
        h = min(most, _LONGER * (4.0 * _ONE_SIDED_NOISE * noise / max(self.third, 1e-300)) ** (1.0 / 3.0))
        return h, h * self.third / 2.0 + _ONE_SIDED_NOISE * noise / h**2

    def centred_step(self, noise: float, most: float) -> tuple[float, float]:
        """Return step and error of centred stencils; the error h²·fourth + 2σ/h² is least at h⁴ = 2σ/fourth."""
        h = min(most, (_CENTRED_NOISE * noise / max(self.fourth, 1e-300)) ** 0.25)
        return h, self.centred_error(noise, h)

    def centred_error(self, noise: float, h: float) -> float:
        """Return the error of centred stencils of step h."""
        return h**2 * self.fourth + _CENTRED_NOISE * noise / h**2

    def gradient_step(self, noise: float, most: float) -> tuple[float, float]:
        """Return step and error for gradient differences; the error h·third/2 + 1.4σ/h is least at h² = 2.8σ/third."""
        h = min(most, (2.0 * _GRADIENT_NOISE * noise / max(self.third, 1e-300)) ** 0.5)
        return h, h * self.third / 2.0 + _GRADIENT_NOISE * noise / h


def derivative_sizes(
    ask: Ask, setting: Setting, points: Floats, step: float, rng: np.random.Generator
) -> DerivativeSizes:
    """Measure derivatives along one random pair of directions per point, by centred stencils of `step` and half of it.

    This takes 13 queries a point.
    """
    d = setting.dim
    p = random_directions(len(points), d, rng)
    q = random_directions(len(points), d, rng)
    q = q - np.einsum("nd,nd->n", p, q)[:, None] * p if d > 1 else q
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    signs = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)], dtype=np.float64)
    signs = np.concatenate([[[0.0, 0.0]], signs, signs / 2.0]) * step
    nodes = points[:, None, :] + signs[:, :1] * p[:, None, :] + signs[:, 1:] * q[:, None, :]
    values = ask(nodes.reshape(-1, d)).reshape(len(points), 13, -1)
    values = values - values[:, :1]
    coarse, odd = _cross(values[:, 1:7])
    fine, _ = _cross(values[:, 7:])
    noise = setting.noise / step**2
    noises = _SIZE_NOISE[0] * noise, _SIZE_NOISE[1] * noise / step, _SIZE_NOISE[2] * noise / step**2
    second = _typical(coarse / step**2, noises[0])
    third = _typical(2.0 * odd / step**3, noises[1])
    # halving the step divides the second difference by 4 and its h⁴ term by 16: 1 − 4/16 of that term remains
    fourth = _typical((coarse - 4.0 * fine) / (0.75 * step**4), noises[2])
    wave = setting.bandwidth / _BENDS_AT
    third = max(third, noises[1]) if noises[1] < second * wave else second * wave  # noise may hide as much as it is
    fourth = max(fourth, noises[2]) if noises[2] < second * wave**2 else second * wave**2
    return DerivativeSizes(second, third, fourth, _root_mean_square(coarse / step**2, noises[0]))


def _cross(v: Floats) -> tuple[Floats, Floats]:
    """Return h²∂_p∂_q f from values at ±p, ±q, ±(p+q) less the centre's: its centred difference, and the odd part."""
    even = (v[:, 0] + v[:, 1] + v[:, 2] + v[:, 3]) / 2.0
    odd = (v[:, 0] - v[:, 1] + v[:, 2] - v[:, 3]) / 2.0
    return (v[:, 4] + v[:, 5]) / 2.0 - even, (v[:, 4] - v[:, 5]) / 2.0 - odd


def _typical(values: Floats, noise: float) -> float:
    """Return the median over points of the root mean square over outputs, less the contribution of noise."""
    rms = np.sqrt(np.mean(values**2, axis=1))
    rms = rms[np.isfinite(rms)]
    middle = _MEDIAN_TO_RMS * float(np.median(rms)) if len(rms) else 0.0
    return float(np.sqrt(max(middle**2 - noise**2, 0.0)))


def _root_mean_square(values: Floats, noise: float) -> float:
    """Return the root mean square of all values, less the contribution of noise."""
    values = values[np.isfinite(values)]
    power = float(np.mean(values**2)) if len(values) else 0.0
    return float(np.sqrt(max(power - noise**2, 0.0)))


@dataclass(frozen=True, eq=False)
class StencilBias:
    """The first-order bias of one-sided stencils, from the third derivatives of every feature."""

    directions: Floats
    basis: Floats
    """(w, d) rows q_i along which the Hessians were taken."""
    third: Floats
    """(N, p, n) values of s_k''' at the points."""

    @classmethod
    def estimate(cls, points: Floats, hessians: Floats, directions: Floats, basis: Floats) -> StencilBias | None:
        """Estimate third derivatives from packed Hessians (N, p, D); None if there are too few for a curve."""
        N, p, size = hessians.shape
        if N < _FEWEST or size < len(directions):
            return None
        w = directions @ basis.T
        second = np.asarray(np.linalg.lstsq(squares(w).T, hessians.reshape(N * p, size).T, rcond=None)[0].T, np.float64)
        second = second.reshape(N, p, -1)
        third = np.stack([_slopes(points @ v, second[:, :, k]) for k, v in enumerate(directions)], axis=2)
        return cls(directions, basis, third)

    def of_hessians(self, step: float) -> Floats:
        """Return the bias (N, p, D) of packed Hessians; it is zero on the diagonal, where differences are centred."""
        w = self.directions @ self.basis.T
        shapes = w[:, :, None] ** 2 * w[:, None, :]
        shapes = shapes + shapes.swapaxes(1, 2)
        shapes[:, np.arange(w.shape[1]), np.arange(w.shape[1])] = 0.0
        return np.asarray(0.5 * step * (self.third @ pack(shapes)))

    def of_pairs(self, at: NDArray[np.intp], step: float, rows: Floats, columns: Floats) -> Floats:
        """Return the bias (x, p, rows, columns) at points `at` of derivatives along a row and a column direction."""
        a, b = self.directions @ rows.T, self.directions @ columns.T
        shapes = a[:, :, None] ** 2 * b[:, None, :] + a[:, :, None] * b[:, None, :] ** 2
        return np.asarray(0.5 * step * np.einsum("xok,kij->xoij", self.third[at], shapes, optimize=True))


def _slopes(z: Floats, second: Floats) -> Floats:
    """Return (N, p) slopes at z of a smooth curve times a p-vector, fitted to `second` (N, p) at z."""
    left, size, w = np.linalg.svd(second, full_matrices=False)
    middle, half = (z.max() + z.min()) / 2.0, max(float(np.ptp(z)) / 2.0, 1e-300)
    curve = _smoothing_spline((z - middle) / half, left[:, 0] * size[0])
    first, weights = basis_slope((z - middle) / half, 1.0, _INTERVALS)
    return np.asarray(np.multiply.outer(combine(first, weights, curve) / half, w[0]))


def _smoothing_spline(u: Floats, y: Floats) -> Floats:
    """Return the coefficients of a penalised cubic spline on [−1, 1] through (u, y), smoothed as much as GCV asks.

    In the eigenvectors of the roughness relative to the data (Demmler and Reinsch, 1975) a weight λ of the roughness
    divides coefficient k by 1 + λρ_k, so that all weights are compared at the cost of one.
    """
    design = design_matrix(u, 1.0, _INTERVALS)
    bends = np.diff(np.eye(design.shape[1]), n=2, axis=0)
    normal = design.T @ design
    normal += np.eye(len(normal)) * (_EMPTY * np.trace(normal) / len(normal))
    roughness, vectors = eigh(bends.T @ bends, normal)
    roughness = np.maximum(roughness, 0.0)
    inner = vectors.T @ (design.T @ y)
    kept = 1.0 / (1.0 + np.multiply.outer(_ROUGHNESS_WEIGHTS, roughness))
    residual = y[:, None] - design @ vectors @ (kept * inner).T
    freedom = np.maximum(len(y) - kept.sum(axis=1), 1.0)
    best = int(np.argmin(np.sum(residual**2, axis=0) / freedom**2))
    return np.asarray(vectors @ (kept[best] * inner))
