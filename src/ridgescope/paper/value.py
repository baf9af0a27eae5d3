"""Algorithm 3 (EstVal): the windowed Fourier transform at given points, and Claim val-concentration.

    f̂⁽ˡ⁾(y) = (2π)^{−d/2} ∫ f(x) e^{−|x|²/2ℓ²} e^{−i y·x} dx = ℓ^d · E[ f(x) e^{−i y·x} ],   x ~ N(0, ℓ² I).

As with the mass, one batch of samples answers every y: only the phase differs. Points on one line, y = t u,
need the samples only through s = u·x, so the sum is a one-dimensional non-uniform FFT however large d is.
Values are *scaled*: divided by ℓ^d. Lines of Algorithm 3 are counted from its loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

import finufft
import numpy as np
from numpy.typing import ArrayLike

from ridgescope.paper.mass import CHUNK, ComplexArray, Field, FloatArray, draw_normal, frozen, line_sums


@dataclass(frozen=True)
class ValueEstimate:
    """scaled: (k,) complex estimates of f̂⁽ˡ⁾(y)/ℓ^d; stderr: (k,) root-mean-square error of each;
    log_scale: d log ℓ."""

    scaled: ComplexArray
    stderr: FloatArray
    log_scale: float
    queries: int

    @property
    def value(self) -> ComplexArray:
        """(k,) estimates of f̂⁽ˡ⁾(y) itself."""
        return np.asarray(self.scaled * math.exp(self.log_scale))


def value_bound(m: int, delta: float, eps: float = 0.0) -> float:
    """Right side of Claim val-concentration, scaled: 4 (ε + √(2 log(8/δ)/m))."""
    return 4 * (eps + math.sqrt(2 * math.log(8 / delta) / m))


def group_by_line(y: FloatArray) -> list[tuple[FloatArray, np.ndarray, FloatArray]]:
    """Split points (k, d) into lines through the origin: (unit direction, indices, signed distances t)."""
    t = np.linalg.norm(y, axis=1)
    units = y / np.where(t > 0, t, 1.0)[:, None]
    left = np.arange(len(y))
    lines = []
    while len(left):
        u = units[left[np.argmax(t[left])]]
        if not u.any():
            u = np.eye(y.shape[1])[0]
        along = units[left] @ u
        on = (np.abs(along) > 1 - 1e-12) | (t[left] == 0)
        lines.append((u, left[on], t[left[on]] * np.sign(along[on])))
        left = left[~on]
    return lines


def ray_sum(s: FloatArray, c: FloatArray, t: FloatArray) -> ComplexArray:
    """(k,) sums Σ_j c_j exp(−i t s_j): a type-3 transform in one dimension where it pays, else as written."""
    if len(t) < 8:
        return np.asarray(np.exp(-1j * np.outer(t, s)) @ c)
    out = finufft.nufft1d3(s, c.astype(np.complex128), t, eps=1e-9, isign=-1, nthreads=1)
    return np.asarray(out)


def est_value(f: Field, ell: float, y: ArrayLike, m: int, rng: np.random.Generator) -> ValueEstimate:
    """EstVal_{f, ℓ, m}(y), Algorithm 3, for one point y (d,) or many (k, d) from one batch of m samples."""
    points = np.atleast_2d(np.asarray(y, dtype=np.float64))
    k, d = points.shape
    lines = group_by_line(points)
    total = np.zeros(k, dtype=np.complex128)
    squares = 0.0
    for start in range(0, m, CHUNK):  # line 1
        x = draw_normal(min(CHUNK, m - start), d, ell, rng)  # line 2: x ~ N(0, ℓ²I)
        c = f(x)
        squares += float(c @ c)
        for u, index, t in lines:
            total[index] += ray_sum(x @ u, c, t)  # line 3: Σ_j c_j
    mean = total / m  # line 4, ℓ^d kept apart as log_scale
    variance = np.maximum(squares / m - np.abs(mean) ** 2, 0.0)
    return ValueEstimate(mean, frozen(np.sqrt(variance / m)), d * math.log(ell), queries=m)


def ray_values(s: FloatArray, h: FloatArray, step: float, modes: int) -> ComplexArray:
    """(modes,) scaled values mean(h e^{−i t s}) at t = step, 2·step, …: EstVal along one ray, on a grid of
    t."""
    return line_sums(step * s, h.astype(np.complex64)[None], modes)[0, modes + 1 :] / len(s)


def waves_on_grid(z: FloatArray, c: ComplexArray, step: float) -> FloatArray:
    """(k,) real part of Σ_j c_j exp(i·j·step·z), j = 1, 2, …: the way back from `ray_values`, a type-2
    transform."""
    modes = len(c)
    full = np.concatenate([np.zeros(modes + 1), c]).astype(np.complex128)
    angle = np.remainder(step * z + np.pi, 2 * np.pi) - np.pi
    return np.asarray(finufft.nufft1d2(angle, full, eps=1e-9, isign=1, nthreads=1).real)
