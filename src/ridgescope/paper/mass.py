"""Fourier mass near a point: Definition fourier-weight, Claim gaussian-reweight and Algorithm 1 (EstWeight).

For f windowed as f⁽ˡ⁾(x) = f(x) exp(−|x|²/2ℓ²) and A ⪰ 0 the paper weighs the spectrum around v,

    I*(v, A) = ∫ |f̂⁽ˡ⁾(y)|² exp(−(y−v)ᵀA(y−v)) dy,

and turns it into a two-point correlation of f itself (Claim gaussian-reweight and Corollary concentration):

    I*(v, A) = (πℓ²)^{d/2} · E[ exp(−|Δ|²/4ℓ² − i v·Δ) · f(Z − Δ/2) · f(Z + Δ/2) ],
    Δ ~ N(0, 2A),  Z ~ N(0, ℓ²/2 · I).

Lines of Algorithm 1 are counted from the first one inside the function, C ← (πℓ²)^{d/2}.

Letters: ℓ width of the window, v the point in Fourier space, A its metric, m number of samples, Δ and Z as above, x∓ =
Z ∓ Δ/2 the two ends of a sample, b_1 … b_d an orthonormal basis (the rows of `basis`), K the diagonal of A in that
basis, α the coordinates of a candidate in it, η the standard deviation of a random shift of every point (see
`response.Derivative`).

A field may be vector-valued, (m, d) → (m, q). Its mass is the sum of the masses of its q components, which is the same
formula with the product f·f replaced by an inner product; the search on all directional derivatives at once uses this.
Masses here are *scaled*, that is divided by (πℓ²)^{d/2}, the unit in which a function of size one has mass one.

Only the phase exp(−i v·Δ) depends on v. One batch of samples therefore serves every v that shares A, and where the v
lie on a grid in one or two coordinates the sum over samples is a type-1 non-uniform FFT (NUFFT). Of the values at the
two ends only the product enters, so a worker process that evaluates f returns one number for each sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import finufft
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..geometry import Floats, frozen
from . import arguments

ComplexArray = NDArray[np.complex128]
Field = Callable[[Floats], Floats]
"""A function of points (m, d) with values (m,) or (m, q)."""

CHUNK = 1 << 16
"""Samples drawn and held in memory at a time."""
NUFFT_TOLERANCE = 1e-4
"""Relative accuracy of the NUFFTs over samples: below the Monte Carlo error of any affordable m. They run on one
thread, so that the same samples give the same bits."""
DEFAULT_SAMPLES = 20_000
"""Samples where a caller says nothing: a mass is then known to 1 % of the square of the largest |f|."""
_TERMS = 4096
"""Samples whose terms for all v are held in memory at a time."""
_CANDIDATES = 16
"""Candidates transformed in one NUFFT call; bounds its memory to 16·CHUNK complex numbers."""
_NEGATIVE, _ZERO = 1e-9, 1e-14
"""Eigenvalues of A, relative to the largest one: below −_NEGATIVE it is not rounding but an indefinite A; up to _ZERO
it is rounding of zero."""


@dataclass(frozen=True)
class MassEstimate:
    """Fourier masses at k points, as EstWeight (Algorithm 1) estimates them.

    scaled: (k,) estimates of I*(v, A) / (πℓ²)^{d/2}; stderr: (k,) their standard errors, from the same samples;
    log_scale: log (πℓ²)^{d/2}; queries: number of values of f used.
    """

    scaled: Floats
    stderr: Floats
    log_scale: float
    queries: int

    @property
    def value(self) -> Floats:
        """(k,) estimates of I*(v, A) itself."""
        return frozen(self.scaled * math.exp(self.log_scale))


def concentration_bound(m: int, delta: float, eps: float = 0.0) -> float:
    """Return the right side of Corollary concentration, scaled: 8 (ε + √(2 log(8/δ)/m))."""
    return 8 * (eps + math.sqrt(2 * math.log(8 / delta) / m))


@dataclass(frozen=True)
class CheckedField:
    """A field whose answers are checked: real, finite, one row a point."""

    f: Field

    def __call__(self, X: Floats) -> Floats:
        """Return f at the rows of X (m, d)."""
        return arguments.answers(self.f(X), len(X))


class CountedField:
    """A scalar field that checks its answers and counts the points at which it is evaluated, in `queries`."""

    def __init__(self, f: Field) -> None:
        self.f = f
        self.queries = 0

    def __call__(self, X: Floats) -> Floats:
        """Return f at the rows of X (m, d)."""
        self.queries += len(X)
        return arguments.scalar_answers(self.f(X), len(X))


def pair_products(values: Floats) -> Floats:
    """Return the (k,) products f(x₋)·f(x₊) of `values`, (2k,) or (2k, q), at x₋ and x₊ in turn.

    This is Algorithm 1, line 8 without the phase.
    """
    pairs = values.reshape(len(values) // 2, 2, -1)
    return np.asarray(np.einsum("mq,mq->m", pairs[:, 0], pairs[:, 1]))


@runtime_checkable
class PairField(Protocol):
    """A field that multiplies the values at the two ends of a sample in its own way."""

    @property
    def eta(self) -> float:
        """Standard deviation η of the random shift that each end of a sample gets."""

    def products(self, ends: Floats) -> Floats:
        """Return the (k,) products of the values at the rows of `ends` (2k, d), x₋ and x₊ in turn."""

    def values(self, X: Floats) -> Floats:
        """Return the values (m,) or (m, q) at the rows of X (m, d)."""


@dataclass(frozen=True)
class PlainPairs:
    """A plain field as a `PairField`: no shift, and the inner product of the two values."""

    f: Field
    eta: float = 0.0

    def products(self, ends: Floats) -> Floats:
        """Return the (k,) products of the values at the rows of `ends` (2k, d), x₋ and x₊ in turn."""
        return pair_products(self.f(ends))

    def values(self, X: Floats) -> Floats:
        """Return the values (m,) or (m, q) at the rows of X (m, d)."""
        return self.f(X)


def sample_pairs(
    field: Field | PairField, ell: float, root: Floats, m: int, rng: np.random.Generator
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the samples of Algorithm 1, lines 2-8, for A = root·rootᵀ in chunks (g, c).

    g (k, r) is standard normal with Δ = √2·root·g for root (d, r), so that v·Δ = √2·(vᵀ root)·g. c (k,) is the real
    factor of each term, the phase left out.
    """
    pairs = field if isinstance(field, PairField) else PlainPairs(field)
    for start in range(0, m, CHUNK):
        g, delta, ends = draw_pairs(min(CHUNK, m - start), ell, root, pairs.eta, rng)
        yield g, np.asarray(pairs.products(ends) * window_factor(delta, ell))  # lines 6 and 8


def window_factor(delta: Floats, ell: float) -> Floats:
    """Return the (k,) factors |φ| = exp(−|Δ|²/4ℓ²) of Algorithm 1, line 7, for Δ (k, d)."""
    return np.asarray(np.exp(-np.einsum("md,md->m", delta, delta) / (4 * ell**2)))


def draw_normal(m: int, dim: int, scale: float, rng: np.random.Generator) -> Floats:
    """Draw m points x ~ N(0, scale²·I) in `dim` dimensions."""
    return np.asarray(scale * rng.standard_normal((m, dim)))


def draw_pairs(k: int, ell: float, root: Floats, eta: float, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Draw k samples of Algorithm 1, lines 3-5, for A = root·rootᵀ with root (d, r).

    Returns g (k, r) and Δ = √2·root·g (k, d), and the ends x₋ and x₊ in turn (2k, d), each shifted by its own η times a
    normal vector.
    """
    d, r = root.shape
    g = rng.standard_normal((k, r))
    delta = math.sqrt(2) * g @ root.T  # line 3: Δ ~ N(0, 2A)
    z = (ell / math.sqrt(2)) * rng.standard_normal((k, d))  # line 4: Z ~ N(0, ℓ²/2 · I)
    ends = np.stack([z - delta / 2, z + delta / 2], axis=1)  # line 5
    if eta > 0:
        ends += eta * rng.standard_normal((2, k, d)).transpose(1, 0, 2)
    return g, delta, ends.reshape(2 * k, d)


def psd_root(A: Floats) -> Floats:
    """Return root (d, r) with root·rootᵀ = A, one column for each non-zero eigenvalue of A (d, d)."""
    values, vectors = np.linalg.eigh((A + A.T) / 2)
    if values[0] < -_NEGATIVE * max(1.0, abs(values[-1])):
        raise InvalidInput(f"A must be positive semidefinite; its smallest eigenvalue is {values[0]:.3g}")
    keep = values > _ZERO * max(values[-1], 0.0)
    return np.asarray(vectors[:, keep] * np.sqrt(values[keep]))


def _metric(A: ArrayLike | None, d: int, ell: float) -> Floats:
    """Return A (d, d), C₂I unless given."""
    metric = ell**2 / d * np.eye(d) if A is None else np.asarray(A, dtype=np.float64)
    if metric.shape != (d, d) or not np.isfinite(metric).all():
        raise InvalidInput(f"v has {d} coordinates, so A must be finite and {d}×{d}; its shape is {metric.shape}")
    return metric


def est_weight(
    f: Field | PairField,
    ell: float,
    v: ArrayLike,
    A: ArrayLike | None = None,
    m: int = DEFAULT_SAMPLES,
    rng: np.random.Generator | None = None,
    estimator: str = "disjoint_pairs",
) -> MassEstimate:
    """Estimate the Fourier mass of f near given points: EstWeight_{f, ℓ, m}(v, A), Algorithm 1.

    A real f makes I* real, so the real part of the paper's average is returned; the imaginary part has mean zero.

    Parameters
    ----------
    f
        Maps points (m, d) to values (m,), or (m, q) for a vector-valued field.
    ell
        Width ℓ of the Gaussian window.
    v
        One point (d,) of Fourier space, or several (k, d) that share A and the samples.
    A
        (d, d) positive semidefinite metric of the neighbourhood; C₂I, C₂ = ℓ²/d, unless given.
    m
        Number of samples; each takes two values of f.
    rng
        Source of the samples.
    estimator
        "disjoint_pairs" as in the paper, or "all_pairs": the same mass from as many values of f, with less noise
        (`all_pairs`).

    Returns
    -------
    MassEstimate
        Scaled masses at the k points with their standard errors.

    Raises
    ------
    InvalidInput
        If A is not positive semidefinite or does not fit v, or another argument cannot be used.

    Examples
    --------
    A sine along the first axis has Fourier mass at (2, 0) and none at (0, 2).

    >>> rng = np.random.default_rng(0)
    >>> near = rs.paper.est_weight(lambda X: np.sin(2 * X[:, 0]), 5.0, [[2, 0], [0, 2]], np.eye(2), 20_000, rng)
    >>> near.scaled.round(1) + 0
    array([0.2, 0. ])
    """
    ell, m, rng = arguments.positive("ell", ell), arguments.count("m", m), arguments.generator(rng)
    points = arguments.points("v", v)
    d = points.shape[1]
    root = psd_root(_metric(A, d, ell))
    f = f if isinstance(f, PairField) else CheckedField(f)
    if arguments.estimator(estimator) == "all_pairs":
        from .all_pairs import weight_of_all_pairs  # here, since that module builds on this one

        return weight_of_all_pairs(f, ell, points, root, m, rng)
    total = np.zeros(len(points))
    squares = np.zeros(len(points))
    omega = math.sqrt(2) * points @ root
    for g, c in sample_pairs(f, ell, root, m, rng):
        for lo in range(0, len(g), _TERMS):
            terms = c[lo : lo + _TERMS, None] * np.cos(g[lo : lo + _TERMS] @ omega.T)  # line 7, arg φ = −v·Δ
            total += terms.sum(axis=0)
            squares += (terms**2).sum(axis=0)
    mean = total / m  # line 9; the factor C of line 1 is kept apart as log_scale
    variance = np.maximum(squares / m - mean**2, 0.0)
    log_scale = 0.5 * d * math.log(math.pi * ell**2)
    return MassEstimate(frozen(mean), frozen(np.sqrt(variance / m)), log_scale, queries=2 * m)


@dataclass(frozen=True)
class Grid:
    """The multiples κ·step of one coordinate with |κ| ≤ modes: the grid 𝒯 of Algorithm 2."""

    step: float
    modes: int

    @property
    def multiples(self) -> NDArray[np.intp]:
        """(2·modes + 1,) the κ in order."""
        return np.arange(-self.modes, self.modes + 1)


@dataclass(frozen=True)
class GridMass:
    """Scaled masses on a grid.

    scaled: (2N+1, 2N+1) over a plane or (candidates, 2N+1) along lines, N = Grid.modes. stderr: their standard errors,
    of the same shape. Those of disjoint pairs are one number, as if phases were uniform: then a term c·cos has variance
    E c²/2.
    """

    scaled: Floats
    stderr: Floats


def fold(x: Floats) -> NDArray[np.float32]:
    """Return angles moved into [−π, π), in single precision; the sums over them are 2π-periodic."""
    return (np.remainder(x + np.pi, 2 * np.pi) - np.pi).astype(np.float32)


def plane_sum(x: Floats, y: Floats, c: Floats, modes: int) -> ComplexArray:
    """Return the (2N+1, 2N+1) sums Σ_j c_j exp(−i(k₁x_j + k₂y_j)) over |k₁|, |k₂| ≤ N = modes."""
    n = 2 * modes + 1
    c64 = c.astype(np.complex64)
    out = finufft.nufft2d1(fold(x), fold(y), c64, (n, n), eps=NUFFT_TOLERANCE, isign=-1, nthreads=1)
    return np.asarray(out, dtype=np.complex128)


def line_sums(x: Floats, c: NDArray[np.complex64], modes: int) -> ComplexArray:
    """Return the (a, 2N+1) sums Σ_j c_{aj} exp(−i k x_j) over |k| ≤ N = modes, for x (m,) and c (a, m)."""
    n = 2 * modes + 1
    out = finufft.nufft1d1(fold(x), np.ascontiguousarray(c), (n,), eps=NUFFT_TOLERANCE, isign=-1, nthreads=1)
    return np.asarray(out, dtype=np.complex128).reshape(len(c), n)


def mass_plane(
    field: Field | PairField,
    ell: float,
    basis: Floats,
    K: Floats,
    grid: Grid,
    *,
    m: int,
    rng: np.random.Generator,
) -> GridMass:
    """Return the masses at v = step·(κ₁b₁ + κ₂b₂) for all κ of the grid, with A = K₁b₁b₁ᵀ + K₂b₂b₂ᵀ."""
    scale = np.sqrt(2 * K[:2])
    total = np.zeros((2 * grid.modes + 1, 2 * grid.modes + 1))
    squares = 0.0
    for g, c in sample_pairs(field, ell, basis[:2].T * np.sqrt(K[:2]), m, rng):
        angles = grid.step * g * scale
        total += plane_sum(angles[:, 0], angles[:, 1], c, grid.modes).real
        squares += float(c @ c)
    return GridMass(frozen(total / m), frozen(np.full(total.shape, math.sqrt(squares / 2) / m)))


def mass_lines(
    field: Field | PairField,
    ell: float,
    basis: Floats,
    K: Floats,
    alpha: Floats,
    grid: Grid,
    *,
    m: int,
    rng: np.random.Generator,
) -> GridMass:
    """Return the masses of Algorithm 2, lines 4-8, for every candidate and every c of the grid at once.

    The candidates have coordinates alpha (a, k); K (k+1,) is the diagonal of A, and v = Σ_{j≤k} α_j b_j + c b_{k+1}.
    """
    a, k = alpha.shape
    scale = np.sqrt(2 * K[: k + 1])
    total = np.zeros((a, 2 * grid.modes + 1))
    squares = 0.0
    weights = (alpha * scale[:k]).T
    for g, c in sample_pairs(field, ell, basis[: k + 1].T * np.sqrt(K[: k + 1]), m, rng):
        x = grid.step * scale[k] * g[:, k]
        c32 = c.astype(np.float32)
        for lo in range(0, a, _CANDIDATES):
            phase = np.ascontiguousarray((g[:, :k] @ weights[:, lo : lo + _CANDIDATES]).T.astype(np.float32))
            terms = np.empty(phase.shape, dtype=np.complex64)
            np.multiply(np.cos(phase), c32, out=terms.real)
            np.multiply(-np.sin(phase), c32, out=terms.imag)
            total[lo : lo + _CANDIDATES] += line_sums(x, terms, grid.modes).real
        squares += float(c @ c)
    return GridMass(frozen(total / m), frozen(np.full(total.shape, math.sqrt(squares / 2) / m)))
