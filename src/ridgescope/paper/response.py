"""From a direction to its response: Claims truncated-inversion and fourier-point-closeness, Lemma
recover-function.

Along the line of v_i the transform of f⁽ˡ⁾ is that of one response, up to a factor (Claim fourier-formula):

    f̂⁽ˡ⁾(t u) ≈ ℓ^{d−1} σ̂_i⁽ˡ⁾(t)      for u ≈ v_i and |t| not too small,

so sampling it at t ∈ 𝒮 = {multiples of `step` with t_low ≤ |t| ≤ t_high} and inverting gives the response,

    σ̃(z) = C + e^{z²/2ℓ²} · step/√(2π) · Σ_{t∈𝒮} e^{itz} · V(tu)/ℓ^{d−1},     C such that σ̃(0) = 0.

In the paper t_low = ℓ^−0.9, t_high = Δ^−0.1 and step = Δ. f real makes V(−tu) the conjugate of V(tu), so
only t > 0 is asked. What lies below t_low is lost; the lemma shows that for huge ℓ it is a constant on [−R,
R] up to ℓ^−0.7."""

from __future__ import annotations

import math
from dataclasses import dataclass

import finufft
import numpy as np
from numpy.typing import ArrayLike

from ridgescope.errors import InvalidInput
from ridgescope.paper.mass import ComplexArray, Field, FloatArray, frozen
from ridgescope.paper.value import est_value


@dataclass(frozen=True)
class FourierResponse:
    """σ̃ as an explicit Fourier sum. frequencies: (k,) the positive half of 𝒮; transform: (k,) values of
    σ̂⁽ˡ⁾ there; stderr: (k,) their errors; queries: values asked for this response alone."""

    ell: float
    step: float
    frequencies: FloatArray
    transform: ComplexArray
    stderr: FloatArray
    queries: int

    def raw(self, z: ArrayLike) -> FloatArray:
        """The sum without the shift C."""
        z = np.asarray(z, dtype=np.float64)
        waves = np.exp(1j * np.multiply.outer(z, self.frequencies)) @ self.transform
        return np.asarray(np.exp(z**2 / (2 * self.ell**2)) * 2 * waves.real * self.step / math.sqrt(2 * math.pi))

    def __call__(self, z: ArrayLike) -> FloatArray:
        """σ̃(z), with σ̃(0) = 0."""
        return self.raw(z) - float(self.raw(0.0))


def recover_response(
    f: Field,
    ell: float,
    u: ArrayLike,
    *,
    m: int,
    rng: np.random.Generator,
    step: float | None = None,
    t_low: float | None = None,
    t_high: float,
    sigmas: float = 0.0,
) -> FourierResponse:
    """Lemma recover-function: the response along the unit vector u (d,).

    step: spacing of 𝒮 (default 0.4/ℓ: the transform of f⁽ˡ⁾ is a convolution with a Gaussian of width 1/ℓ,
    so a sum at this spacing equals the integral to many digits for |z| ≤ 4ℓ); t_low: ℓ^−0.9 unless given;
    sigmas: values below so many standard errors are set to zero (0: none, as in the paper)."""
    direction = np.asarray(u, dtype=np.float64)
    step = 0.4 / ell if step is None else step
    t_low = ell**-0.9 if t_low is None else t_low
    k = np.arange(math.ceil(t_low / step), math.floor(t_high / step) + 1)  # 𝒮, its positive half
    if not len(k):
        raise InvalidInput(f"no multiple of step={step:.3g} lies between t_low={t_low:.3g} and t_high={t_high:.3g}")
    t = k * step
    estimate = est_value(f, ell, t[:, None] * direction, m, rng)  # V(tu) for each t in 𝒮
    clear = np.abs(estimate.scaled) >= sigmas * estimate.stderr
    values: ComplexArray = estimate.scaled * clear
    return FourierResponse(ell, step, frozen(t), ell * values, frozen(ell * estimate.stderr), estimate.queries)


def truncated_inversion(sigma: Field, ell: float, B: float, x: FloatArray, panels: int = 200) -> FloatArray:
    """σ̃_B(x) of Claim truncated-inversion, by quadrature: invert σ̂⁽ˡ⁾ on [−B, B] only. x: (k,)."""
    node, weight = np.polynomial.legendre.leggauss(20)
    centre = B * ((2 * np.arange(panels) + 1) / panels - 1)
    y = (centre[:, None] + B / panels * node).ravel()
    w = np.tile(B / panels * weight, panels)
    transform = windowed_transform(sigma, ell, y)
    waves = np.exp(1j * np.outer(x, y)) @ (w * transform)
    return np.asarray(np.exp(x**2 / (2 * ell**2)) * waves.real / math.sqrt(2 * math.pi))


def windowed_transform(sigma: Field, ell: float, y: FloatArray, points: int = 1 << 14) -> ComplexArray:
    """(k,) values of σ̂⁽ˡ⁾(y) = (2π)^−½ ∫ e^{−iyz} σ(z) e^{−z²/2ℓ²} dz by the trapezoidal rule on |z| ≤
    9ℓ."""
    z = np.linspace(-9 * ell, 9 * ell, points + 1)
    weights = sigma(z) * np.exp(-(z**2) / (2 * ell**2)) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    out = finufft.nufft1d3(z, weights.astype(np.complex128), y.astype(np.float64), eps=1e-12, isign=-1, nthreads=1)
    return np.asarray(out)
