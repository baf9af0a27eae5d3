"""From a direction to its response: Algorithm 3 (EstVal), Lemma recover-function, and the derivatives of Theorem
main-learning.

Algorithm 3 estimates the windowed Fourier transform at given points; its lines are counted from its loop:

    f̂⁽ˡ⁾(y) = (2π)^{−d/2} ∫ f(x) e^{−|x|²/2ℓ²} e^{−i y·x} dx = ℓ^d · E[ f(x) e^{−i y·x} ],   x ~ N(0, ℓ² I).

One batch of samples serves every y, as only the phase differs. Points on one line, y = t u, need the samples only
through s = u·x, so the sum is a one-dimensional non-uniform FFT (NUFFT) however large d is.

Along the line of v_i the transform is that of one response, up to a factor (Claims fourier-formula and
fourier-point-closeness):

    f̂⁽ˡ⁾(t u) ≈ ℓ^{d−1} σ̂_i⁽ˡ⁾(t)      for u ≈ v_i and |t| not too small,

so sampling it at t ∈ 𝒮 = {multiples of `step` with t_low ≤ |t| ≤ t_high} and inverting gives the response,

    σ̃(z) = C + e^{z²/2ℓ²} · step/√(2π) · Σ_{t∈𝒮} e^{itz} · V(tu)/ℓ^{d−1},     C such that σ̃(0) = 0.

In the paper t_low = ℓ^−0.9, t_high = Δ^−0.1 and step = Δ. A real f makes V(−tu) the conjugate of V(tu), so only t > 0
is evaluated. What lies below t_low is lost; the lemma shows that for huge ℓ it is a constant on [−R, R] up to ℓ^−0.7.

Removing boundedness. A Lipschitz response may grow without bound; its derivative may not. With g = f ∗ N(0, η²I),

    ⟨u, ∇g(x)⟩ = Σ_i ρ_i(v_i·x),   ρ_i(t) = ⟨u, v_i⟩ · E σ_i′(t + ηz),   |ρ_i| ≤ L,  |ρ_i′| ≤ L/η,

is a sum of bounded features in the same directions, and a difference over a length α gives it from values of f:

    | (g(x + αu) − g(x))/α − ⟨u, ∇g(x)⟩ | ≤ nLα/η.

Two facts make this cheap. The difference itself, at any α, is a sum of features in the same directions, with responses
(σ_i(t + α⟨u, v_i⟩) − σ_i(t))/α, so directions found from it carry no bias. And EstWeight multiplies two evaluations,
EstVal uses one, so a single fresh z for each evaluation gives unbiased estimates for g without an inner average. The
same z and the same base point serve u = e_1 … e_d, which costs d+1 values for each point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import finufft
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..geometry import Floats, frozen
from . import arguments
from .mass import CHUNK, DEFAULT_SAMPLES, ComplexArray, Field, draw_normal, line_sums

Response = Callable[[ArrayLike], Floats]

STEP = 0.4
"""Spacing of 𝒮 in units of 1/ℓ. The transform of f⁽ˡ⁾ is a convolution with a Gaussian of width 1/ℓ, so a sum at this
spacing equals the integral to many digits for |z| ≤ 4ℓ."""
BLOCK = 8192
"""Points differenced at a time: f is evaluated at d+1 times as many in one call."""
_TOP = 60.0
"""Default of t_high in units of 1/ℓ, as the survey has at least. Empirical: smooth responses need that much."""
_NUFFT_TOLERANCE = 1e-9
"""Relative accuracy of the double-precision NUFFTs, far below the Monte Carlo error."""
_DIRECT = 8
"""Fewer frequencies than this are summed directly, which is then faster than a NUFFT."""
_PARALLEL = 1e-12
"""1 − |cos| below which two points count as lying on one line through the origin: rounding of unit vectors."""


@dataclass(frozen=True)
class ValueEstimate:
    """The windowed transform at k points, as EstVal (Algorithm 3) estimates it.

    scaled: (k,) complex estimates of f̂⁽ˡ⁾(y)/ℓ^d; stderr: (k,) root mean square error of each; log_scale: d log ℓ;
    queries: number of values of f used.
    """

    scaled: ComplexArray
    stderr: Floats
    log_scale: float
    queries: int

    @property
    def value(self) -> ComplexArray:
        """(k,) estimates of f̂⁽ˡ⁾(y) itself."""
        return np.asarray(self.scaled * math.exp(self.log_scale))


def value_bound(m: int, delta: float, eps: float = 0.0) -> float:
    """Return the right side of Claim val-concentration, scaled: 4 (ε + √(2 log(8/δ)/m))."""
    return 4 * (eps + math.sqrt(2 * math.log(8 / delta) / m))


def group_by_line(y: Floats) -> list[tuple[Floats, NDArray[np.intp], Floats]]:
    """Split points (k, d) into lines through the origin: (unit direction, indices, signed distances t) of each."""
    t = np.linalg.norm(y, axis=1)
    units = y / np.where(t > 0, t, 1.0)[:, None]
    left = np.arange(len(y))
    lines = []
    while len(left):
        u = units[left[np.argmax(t[left])]]
        if not u.any():
            u = np.eye(y.shape[1])[0]
        cosine = units[left] @ u
        on = (np.abs(cosine) > 1 - _PARALLEL) | (t[left] == 0)
        lines.append((u, left[on], t[left[on]] * np.sign(cosine[on])))
        left = left[~on]
    return lines


def ray_sum(s: Floats, c: Floats, t: Floats) -> ComplexArray:
    """Return the (k,) sums Σ_j c_j exp(−i t s_j) for s (m,), c (m,) and t (k,): a type-3 NUFFT, or directly if k is
    small."""
    if len(t) < _DIRECT:
        return np.asarray(np.exp(-1j * np.outer(t, s)) @ c)
    out = finufft.nufft1d3(s, c.astype(np.complex128), t, eps=_NUFFT_TOLERANCE, isign=-1, nthreads=1)
    return np.asarray(out)


def est_value(
    f: Field, ell: float, y: ArrayLike, m: int = DEFAULT_SAMPLES, rng: np.random.Generator | None = None
) -> ValueEstimate:
    """Estimate the windowed Fourier transform of f: EstVal_{f, ℓ, m}(y), Algorithm 3.

    Parameters
    ----------
    f
        Maps points (m, d) to values (m,).
    ell
        Width ℓ of the Gaussian window.
    y
        One point (d,) of Fourier space, or several (k, d) that share the samples.
    m
        Number of samples, each one value of f.
    rng
        Source of the samples.

    Returns
    -------
    ValueEstimate
        Scaled values at the k points with their errors.

    Examples
    --------
    >>> wave = rs.paper.est_value(lambda X: np.sin(X @ [2.0, 0.0]), 4.0, [2.0, 0.0], 20_000, np.random.default_rng(0))
    >>> wave.scaled.imag.round(1)  # 1/2i at the frequency of the sine
    array([-0.5])
    """
    ell, m, rng = arguments.positive("ell", ell), arguments.count("m", m), arguments.generator(rng)
    points = arguments.points("y", y)
    k, d = points.shape
    lines = group_by_line(points)
    total = np.zeros(k, dtype=np.complex128)
    squares = 0.0
    for start in range(0, m, CHUNK):  # line 1
        x = draw_normal(min(CHUNK, m - start), d, ell, rng)  # line 2: x ~ N(0, ℓ²I)
        c = arguments.scalar_answers(f(x), len(x))
        squares += float(c @ c)
        for u, index, t in lines:
            total[index] += ray_sum(x @ u, c, t)  # line 3: Σ_j c_j
    mean = total / m  # line 4; the factor ℓ^d is kept apart as log_scale
    variance = np.maximum(squares / m - np.abs(mean) ** 2, 0.0)
    return ValueEstimate(mean, frozen(np.sqrt(variance / m)), d * math.log(ell), queries=m)


def ray_values(s: Floats, h: Floats, step: float, modes: int) -> ComplexArray:
    """Return the (modes,) scaled values mean(h e^{−i t s}) at t = step, 2·step, …: EstVal along a ray, for s, h
    (m,)."""
    return line_sums(step * s, h.astype(np.complex64)[None], modes)[0, modes + 1 :] / len(s)


def waves_on_grid(z: Floats, c: ComplexArray, step: float) -> Floats:
    """Return the (k,) real parts of Σ_j c_j exp(i·j·step·z), j = 1, 2, …: the inverse of `ray_values`, a type-2
    NUFFT."""
    modes = len(c)
    full = np.concatenate([np.zeros(modes + 1), c]).astype(np.complex128)
    angle = np.remainder(step * z + np.pi, 2 * np.pi) - np.pi
    return np.asarray(finufft.nufft1d2(angle, full, eps=_NUFFT_TOLERANCE, isign=1, nthreads=1).real)


@dataclass(frozen=True)
class FourierResponse:
    """A response σ̃ as an explicit Fourier sum; call it with any array of z.

    ell: width of the window; step: spacing of 𝒮; frequencies: (k,) its positive half; transform: (k,) values of σ̂⁽ˡ⁾
    there; stderr: (k,) their errors; queries: number of values of f used for this response.
    """

    ell: float
    step: float
    frequencies: Floats
    transform: ComplexArray
    stderr: Floats
    queries: int

    def raw(self, z: ArrayLike) -> Floats:
        """Return the sum at z without the shift C, in the shape of z."""
        z = np.asarray(z, dtype=np.float64)
        waves = np.exp(1j * np.multiply.outer(z, self.frequencies)) @ self.transform
        return np.asarray(np.exp(z**2 / (2 * self.ell**2)) * 2 * waves.real * self.step / math.sqrt(2 * math.pi))

    def __call__(self, z: ArrayLike) -> Floats:
        """Return σ̃(z) in the shape of z, with σ̃(0) = 0."""
        return self.raw(z) - float(self.raw(0.0))


def recover_response(
    f: Field,
    ell: float,
    u: ArrayLike,
    *,
    m: int = DEFAULT_SAMPLES,
    rng: np.random.Generator | None = None,
    step: float | None = None,
    t_low: float | None = None,
    t_high: float | None = None,
    sigmas: float = 0.0,
) -> FourierResponse:
    """Recover the response along one direction: Lemma recover-function.

    Parameters
    ----------
    f
        Maps points (m, d) to values (m,).
    ell
        Width ℓ of the window.
    u
        (d,) unit vector, close to one of the feature directions.
    m
        Number of samples, each one value of f.
    rng
        Source of the samples.
    step
        Spacing of 𝒮; 0.4/ℓ unless given.
    t_low, t_high
        Ends of 𝒮; t_low is ℓ^−0.9 and t_high 60/ℓ unless given.
    sigmas
        Values below this many standard errors are set to zero (0: none, as in the paper).

    Returns
    -------
    FourierResponse
        σ̃ with σ̃(0) = 0.

    Raises
    ------
    InvalidInput
        If 𝒮 is empty, u is not of length one, or another argument cannot be used.

    Examples
    --------
    >>> s = rs.paper.recover_response(
    ...     lambda X: np.sin(2 * X[:, 0]), 8.0, [1.0, 0.0], m=50_000, rng=np.random.default_rng(0), t_high=4.0)
    >>> s([-1.0, 0.0, 1.0]).round(1) + 0, np.sin([-2.0, 0.0, 2.0]).round(1)
    (array([-0.9,  0. ,  0.9]), array([-0.9,  0. ,  0.9]))
    """
    ell, (direction, *more) = arguments.positive("ell", ell), arguments.unit_rows("u", u)
    if more:
        raise InvalidInput(f"u must be one unit vector of shape (d,); got {1 + len(more)} rows")
    step = STEP / ell if step is None else arguments.positive("step", step)
    t_low = ell**-0.9 if t_low is None else arguments.not_negative("t_low", t_low)
    t_high = _TOP / ell if t_high is None else arguments.positive("t_high", t_high)
    k = np.arange(max(1, math.ceil(t_low / step)), math.floor(t_high / step) + 1)  # 𝒮, its positive half
    if not len(k):
        raise InvalidInput(f"no multiple of step={step:.3g} lies between t_low={t_low:.3g} and t_high={t_high:.3g}")
    t = k * step
    estimate = est_value(f, ell, t[:, None] * direction, m, rng)  # V(tu) for each t in 𝒮
    values: ComplexArray = estimate.scaled * (np.abs(estimate.scaled) >= sigmas * estimate.stderr)
    return FourierResponse(ell, step, frozen(t), ell * values, frozen(ell * estimate.stderr), estimate.queries)


def stencil(dim: int, alpha: float) -> Floats:
    """Return the (d+1, d) shifts of one difference: none, and αe_1 … αe_d."""
    return alpha * np.eye(dim + 1, dim, -1)


def difference(f: Field, X: Floats, alpha: float) -> Floats:
    """Return the (m, d) differences (f(x + αe_k) − f(x))/α at the rows of X (m, d), all d+1 values of a row in one
    call."""
    m, d = X.shape
    out = np.empty((m, d))
    for lo in range(0, m, BLOCK):
        rows = around(X[lo : lo + BLOCK], stencil(d, alpha))
        values = arguments.scalar_answers(f(rows), len(rows)).reshape(-1, d + 1)
        out[lo : lo + BLOCK] = (values[:, 1:] - values[:, :1]) / alpha
    return out


def around(X: Floats, shifts: Floats) -> Floats:
    """Return (m·k, d): each row of X (m, d) moved by the shifts (k, d) in turn, and then the next row."""
    return np.asarray((X[:, None, :] + shifts).reshape(-1, X.shape[1]))


def map_stencils(f: Field, X: Floats, alpha: float, use: Callable[[Floats, Floats], Floats]) -> Floats:
    """Return `use(rows, f(rows))` for the stencils around the rows of X (m, d), block by block, one below the other."""
    shifts = stencil(X.shape[1], alpha)
    blocks = (around(X[lo : lo + BLOCK], shifts) for lo in range(0, len(X), BLOCK))
    return np.concatenate([use(rows, arguments.scalar_answers(f(rows), len(rows))) for rows in blocks])


def differences_at_ends(values: Floats, dim: int, alpha: float) -> tuple[Floats, Floats]:
    """Return the (m, d) differences at x₋ and x₊ from `values` (2m(d+1),) on the stencils around them in turn."""
    both = values.reshape(-1, 2, dim + 1)
    slopes = (both[:, :, 1:] - both[:, :, :1]) / alpha
    return slopes[:, 0], slopes[:, 1]


@dataclass(frozen=True)
class Derivative:
    """The field x ↦ (⟨e_k, ∇g(x)⟩)_k by differences of length α, at points that the sampler shifts by a fresh ηz."""

    f: Field
    alpha: float
    eta: float

    def products(self, ends: Floats) -> Floats:
        """Return the (k,) inner products of the differences at the rows of `ends` (2k, d), x₋ and x₊ in turn."""

        def products(rows: Floats, values: Floats) -> Floats:
            return np.asarray(np.einsum("mq,mq->m", *differences_at_ends(values, ends.shape[1], self.alpha)))

        return map_stencils(self.f, ends, self.alpha, products)

    def values(self, X: Floats) -> Floats:
        """Return the (m, d) differences at the rows of X (m, d)."""
        return difference(self.f, X, self.alpha)


def derivative_factor(t: Floats, u: Floats, alpha: float) -> ComplexArray:
    """Return the (k,) factors by which Σ_k u_k·(difference along e_k) multiplies a wave e^{itz} of a response along u;
    they tend to it as α → 0."""
    return np.asarray(((np.exp(1j * alpha * np.outer(t, u)) - 1) / alpha) @ u)


def own_difference(sigma: Field, u: Floats, s: Floats, alpha: float) -> Floats:
    """Return the (m, d) contribution of the feature σ(u·x) to `difference`, from s = u·x (m,)."""
    out = np.empty((len(s), len(u)))
    for lo in range(0, len(s), BLOCK):
        z = s[lo : lo + BLOCK]
        out[lo : lo + BLOCK] = (sigma(np.add.outer(z, alpha * u)) - sigma(z)[:, None]) / alpha
    return out


def nonlinearity(response: Response, radius: float) -> float:
    """Return the root mean square distance of a response from its best affine fit on [−R, R]."""
    z = np.linspace(-radius, radius, 401)
    M = np.stack([np.ones_like(z), z], axis=1)
    s = response(z)
    return float(np.sqrt(np.mean((s - M @ np.linalg.lstsq(M, s, rcond=None)[0]) ** 2)))


def bend_of(s: Floats, z: Floats) -> float:
    """Return min over a, b of max |s − (az + b)| for values s (k,) at equally spaced z (k,): half the width of the
    narrowest strip that holds the curve, over 201 slopes between those of its steepest chords."""
    slopes = np.linspace(np.diff(s).min(), np.diff(s).max(), 201) / (z[1] - z[0])
    rest = s - np.multiply.outer(slopes, z)
    return float((rest.max(axis=1) - rest.min(axis=1)).min() / 2)
