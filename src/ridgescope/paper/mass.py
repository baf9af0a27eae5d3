"""Fourier mass near a point: Definition fourier-weight, Claim gaussian-reweight and Algorithm 1 (EstWeight).

For f windowed as f⁽ˡ⁾(x) = f(x) exp(−|x|²/2ℓ²) and A ⪰ 0 the paper weighs the spectrum around v,

    I*(v, A) = ∫ |f̂⁽ˡ⁾(y)|² exp(−(y−v)ᵀA(y−v)) dy,

and turns it into a two-point correlation of f itself (Claim gaussian-reweight and Corollary concentration):

    I*(v, A) = (πℓ²)^{d/2} · E[ exp(−|Δ|²/4ℓ² − i v·Δ) · f(Z − Δ/2) · f(Z + Δ/2) ],
    Δ ~ N(0, 2A),  Z ~ N(0, ℓ²/2 · I).

Lines of Algorithm 1 are counted from the first one inside the function, C ← (πℓ²)^{d/2}.

Letters: ℓ window width, v the point asked about, A its metric, m the number of samples, Δ and Z as above,
b_1 … b_d an orthonormal basis (rows of `basis`), K the diagonal of A in that basis.

A field may be vector-valued, (m, d) → (m, q); its mass is the sum of the masses of its q components, which
is the same formula with the product f·f replaced by an inner product. The search on all directional
derivatives at once uses this. Everything here is *scaled*: divided by (πℓ²)^{d/2}, the unit in which a
function of size one has mass one. `MassEstimate.value` puts the factor back.

What depends on v is only the phase exp(−i v·Δ). One batch of samples therefore answers every v that shares
A, and where the v lie on a grid in one or two coordinates the sum over samples is a type-1 non-uniform FFT.

Of the values at both ends only the product is used. A field that can is asked for `products`, and they are
taken where f is asked: one number for each sample is what a worker sends back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import finufft
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgescope.errors import InvalidInput

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]
Field = Callable[[FloatArray], FloatArray]

CHUNK = 1 << 16
"""Samples held in memory at a time."""

TOLERANCE = 1e-4
"""Relative accuracy asked of every non-uniform FFT: below the Monte Carlo error of any affordable m. One
thread, so that the same samples give the same bits."""


def frozen(a: ArrayLike) -> FloatArray:
    """A read-only float64 copy."""
    out = np.array(a, dtype=np.float64)
    out.setflags(write=False)
    return out


@dataclass(frozen=True)
class MassEstimate:
    """What EstWeight returns for k points at once.

    scaled: (k,) estimates of I*(v, A) / (πℓ²)^{d/2}; stderr: (k,) their standard errors, from the same
    samples; log_scale: log (πℓ²)^{d/2}; queries: how many values of f were asked."""

    scaled: FloatArray
    stderr: FloatArray
    log_scale: float
    queries: int

    @property
    def value(self) -> FloatArray:
        """(k,) estimates of I*(v, A) itself."""
        return frozen(self.scaled * math.exp(self.log_scale))


def log_scale(ell: float, dim: int) -> float:
    """log (πℓ²)^{d/2}: the C of Algorithm 1, line 1."""
    return 0.5 * dim * math.log(math.pi * ell**2)


def concentration_bound(m: int, delta: float, eps: float = 0.0) -> float:
    """Right side of Corollary concentration, scaled: 8 (ε + √(2 log(8/δ)/m))."""
    return 8 * (eps + math.sqrt(2 * math.log(8 / delta) / m))


class Reduction(Protocol):
    """What becomes of the values of f at rows (m, d): fewer numbers, one or some for each `group` of rows."""

    @property
    def group(self) -> int: ...

    def __call__(self, rows: FloatArray, values: FloatArray) -> FloatArray: ...


def reduced(f: Field, rows: FloatArray, reduction: Reduction) -> FloatArray:
    """The reduction of f at the rows, left to f where f knows how."""
    ask = getattr(f, "reduced", None)
    return reduction(rows, f(rows)) if ask is None else np.asarray(ask(rows, reduction))


@dataclass(frozen=True)
class Product:
    """f(x₋)·f(x₊) for rows x₋ and x₊ in turn: Algorithm 1, line 8 without the phase."""

    group: int = 2

    def __call__(self, rows: FloatArray, values: FloatArray) -> FloatArray:
        pairs = values.reshape(len(rows) // 2, 2, -1)
        return np.asarray(np.einsum("mq,mq->m", pairs[:, 0], pairs[:, 1]))


@runtime_checkable
class PairField(Protocol):
    """A field that has its own way to the products."""

    @property
    def eta(self) -> float:
        """By how much both ends are moved at random, each on its own."""

    def products(self, ends: FloatArray) -> FloatArray:
        """(k,) products of the values at the rows of `ends` (2k, d), x₋ and x₊ in turn."""


@dataclass(frozen=True)
class Values:
    """A field taken as it is."""

    f: Field
    eta: float = 0.0

    def products(self, ends: FloatArray) -> FloatArray:
        return reduced(self.f, ends, Product())


def sample_pairs(
    field: Field | PairField, ell: float, root: FloatArray, m: int, rng: np.random.Generator
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield (Δ, c) in chunks: Algorithm 1, lines 2-8, for A = root·rootᵀ.

    root: (d, r). Δ is given in the r coordinates of `root`'s own Gaussian, scaled: Δ = √2 · root · g with g
    (m, r) standard normal; the yielded first array is g, so that v·Δ = √2 · (vᵀ root) · g. c is (m,), real,
    phase left out."""
    pairs = field if isinstance(field, PairField) else Values(field)
    for start in range(0, m, CHUNK):
        k = min(CHUNK, m - start)
        g, delta, ends = draw_pairs(k, ell, root, pairs.eta, rng)
        fade = np.exp(-np.einsum("md,md->m", delta, delta) / (4 * ell**2))  # line 7, |φ|
        yield g, np.asarray(pairs.products(ends) * fade)  # lines 6 and 8


def draw_normal(m: int, dim: int, scale: float, rng: np.random.Generator) -> FloatArray:
    """(m, d) points x ~ N(0, scale² I)."""
    return np.asarray(scale * rng.standard_normal((m, dim)))


def draw_pairs(
    k: int, ell: float, root: FloatArray, eta: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """g (k, r), Δ (k, d), and x∓ = Z ∓ Δ/2, each moved by its own η times a normal vector, in turn (2k, d)."""
    d, r = root.shape
    g = rng.standard_normal((k, r))
    delta = math.sqrt(2) * g @ root.T  # line 3: Δ ~ N(0, 2A)
    z = (ell / math.sqrt(2)) * rng.standard_normal((k, d))  # line 4: Z ~ N(0, ℓ²/2 · I)
    ends = np.stack([z - delta / 2, z + delta / 2], axis=1)  # line 5
    if eta > 0:
        ends += eta * rng.standard_normal((2, k, d)).transpose(1, 0, 2)
    return g, delta, ends.reshape(2 * k, d)


def psd_root(A: FloatArray) -> FloatArray:
    """(d, r) matrix with root·rootᵀ = A, one column per non-zero eigenvalue."""
    values, vectors = np.linalg.eigh((A + A.T) / 2)
    if values[0] < -1e-9 * max(1.0, abs(values[-1])):
        raise InvalidInput(f"A must be positive semidefinite; its smallest eigenvalue is {values[0]:.3g}")
    keep = values > 1e-14 * max(values[-1], 0.0)
    return np.asarray(vectors[:, keep] * np.sqrt(values[keep]))


def est_weight(
    f: Field | PairField, ell: float, v: ArrayLike, A: ArrayLike, m: int, rng: np.random.Generator
) -> MassEstimate:
    """EstWeight_{f, ℓ, m}(v, A), Algorithm 1, for one point v (d,) or many (k, d) that share A (d, d).

    f real makes I* real, so the real part of the paper's average is returned: the imaginary part has mean
    zero."""
    points = np.atleast_2d(np.asarray(v, dtype=np.float64))
    root = psd_root(np.asarray(A, dtype=np.float64))
    if points.shape[1] != root.shape[0]:
        raise InvalidInput(f"v has {points.shape[1]} coordinates but A is {root.shape[0]}×{root.shape[0]}")
    total = np.zeros(len(points))
    squares = np.zeros(len(points))
    omega = math.sqrt(2) * points @ root
    for g, c in sample_pairs(f, ell, root, m, rng):
        for lo in range(0, len(g), 4096):
            terms = c[lo : lo + 4096, None] * np.cos(g[lo : lo + 4096] @ omega.T)  # line 7, arg φ = −v·Δ
            total += terms.sum(axis=0)
            squares += (terms**2).sum(axis=0)
    mean = total / m  # line 9, C kept apart as log_scale
    variance = np.maximum(squares / m - mean**2, 0.0)
    return MassEstimate(frozen(mean), frozen(np.sqrt(variance / m)), log_scale(ell, points.shape[1]), queries=2 * m)


@dataclass(frozen=True)
class GridMass:
    """Scaled masses on a grid. scaled: (2N+1, 2N+1) or (candidates, 2N+1); stderr: one number for all of
    it."""

    scaled: FloatArray
    stderr: float
    samples: int


def fold(x: FloatArray) -> NDArray[np.float32]:
    """Angles brought into [−π, π), in single precision: the sums that follow are 2π-periodic."""
    return (np.remainder(x + np.pi, 2 * np.pi) - np.pi).astype(np.float32)


def plane_sum(x: FloatArray, y: FloatArray, c: FloatArray, modes: int) -> ComplexArray:
    """(2N+1, 2N+1) array of Σ_j c_j exp(−i(k₁x_j + k₂y_j)) for |k₁|, |k₂| ≤ N = modes."""
    n = 2 * modes + 1
    out = finufft.nufft2d1(fold(x), fold(y), c.astype(np.complex64), (n, n), eps=TOLERANCE, isign=-1, nthreads=1)
    return np.asarray(out, dtype=np.complex128)


def line_sums(x: FloatArray, c: NDArray[np.complex64], modes: int) -> ComplexArray:
    """(n_trans, 2N+1) array of Σ_j c_{a,j} exp(−i k x_j) for |k| ≤ N = modes; c is (n_trans, m), one
    batch."""
    n = 2 * modes + 1
    out = finufft.nufft1d1(fold(x), np.ascontiguousarray(c), (n,), eps=TOLERANCE, isign=-1, nthreads=1)
    return np.asarray(out, dtype=np.complex128).reshape(len(c), n)


def mass_plane(
    field: Field | PairField,
    ell: float,
    basis: FloatArray,
    K: FloatArray,
    *,
    step: float,
    modes: int,
    m: int,
    rng: np.random.Generator,
) -> GridMass:
    """Level 2 for every grid value at once: v = step·(k₁b₁ + k₂b₂), A = K₁b₁b₁ᵀ + K₂b₂b₂ᵀ."""
    scale = np.sqrt(2 * K[:2])
    total = np.zeros((2 * modes + 1, 2 * modes + 1))
    squares = 0.0
    for g, c in sample_pairs(field, ell, basis[:2].T * np.sqrt(K[:2]), m, rng):
        angles = step * g * scale
        total += plane_sum(angles[:, 0], angles[:, 1], c, modes).real
        squares += float(c @ c)
    return GridMass(frozen(total / m), math.sqrt(squares / 2) / m, m)


def mass_lines(
    field: Field | PairField,
    ell: float,
    basis: FloatArray,
    K: FloatArray,
    alpha: FloatArray,
    *,
    step: float,
    modes: int,
    m: int,
    rng: np.random.Generator,
    batch: int = 16,
) -> GridMass:
    """Level k+1 for every candidate and every c at once (Algorithm 2, lines 4-8).

    alpha: (a, k) coordinates of the candidates; K: (k+1,) widths; v = Σ_{j≤k} α_j b_j + step·κ·b_{k+1}, |κ|
    ≤ modes."""
    a, k = alpha.shape
    scale = np.sqrt(2 * K[: k + 1])
    total = np.zeros((a, 2 * modes + 1))
    squares = 0.0
    weights = (alpha * scale[:k]).T
    for g, c in sample_pairs(field, ell, basis[: k + 1].T * np.sqrt(K[: k + 1]), m, rng):
        x = step * scale[k] * g[:, k]
        c32 = c.astype(np.float32)
        for lo in range(0, a, batch):
            phase = np.ascontiguousarray((g[:, :k] @ weights[:, lo : lo + batch]).T.astype(np.float32))
            terms = np.empty(phase.shape, dtype=np.complex64)
            np.multiply(np.cos(phase), c32, out=terms.real)
            np.multiply(-np.sin(phase), c32, out=terms.imag)
            total[lo : lo + batch] += line_sums(x, terms, modes).real
        squares += float(c @ c)
    return GridMass(frozen(total / m), math.sqrt(squares / 2) / m, m)
