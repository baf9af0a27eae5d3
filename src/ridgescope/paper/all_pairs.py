"""All pairs: the mass of EstWeight from every pair of a slice's samples instead of disjoint pairs.

Algorithm 1 averages f(x₋)f(x₊) over m disjoint pairs. The same mass is an average over slices. For
A = Σ_{j≤k} K_j b_j b_jᵀ fix the coordinates w of x across b_1 … b_k, and let V_w be EstVal on the slice,
V_w(y) = E f(x, w)e^{−iy·x} with x ~ N(0, ℓ²I_k). By Parseval in the other d − k coordinates,

    I*(v, A)/(πℓ²)^{d/2} = ℓ^k/√det K · E_w E_y |V_w(y)|²,    w ~ N(0, ℓ²/2·I),  y ~ N(v, (2K)⁻¹).

From N samples of one slice, |Σ_j f_j e^{−iy·x_j}|² less its diagonal Σ_j f_j², divided by N(N − 1), is an unbiased
estimate of |V_w(y)|² (a U-statistic) in which all N(N − 1)/2 pairs serve, and one NUFFT gives it on a grid of y. Where
f has no mass its standard error over S slices is

    τ₀ = ℓ^k/√det K · E|f|² · Π_j (1 + 2ℓ²/K_j)^{−¼} / √(S·N(N − 1)),

which falls like 1/(number of values) and not like its root. Where f has mass, slices differ by more than that. So τ is
local: the standard error over the slices at the very v, and at least τ₀.

The average over y is a sum over the grid itself for the coordinate that is searched, which is exact since |V_w|² varies
on the scale 1/ℓ, several steps; for coordinates that are already fixed, y is drawn at random.

Letters: S number of slices, N samples of each, κ multiples of the grid's step; the others as in `mass`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import finufft
import numpy as np
from scipy.ndimage import convolve1d

from ..errors import InvalidInput
from ..geometry import Floats, frozen
from .mass import (
    NUFFT_TOLERANCE,
    ComplexArray,
    Field,
    Grid,
    GridMass,
    MassEstimate,
    PairField,
    PlainPairs,
    fold,
    line_sums,
)

SLICES = 64
"""Slices S of one batch. Their spread gives τ, which 64 show to a tenth, and a mass that varies from slice to slice by
as much as itself is eight of its τ; more slices have fewer pairs each, and take longer."""
_LEAST_SAMPLES = 4
"""Least m: two slices of four values each, so that there are pairs, and a spread."""
_DRAWS = 8
"""Draws of the fixed coordinates of y for each slice and candidate. Each costs one NUFFT and no query."""
_UPSAMPLING = 1.25
"""Ratio of the NUFFT's inner grid to that of y. The grids are large and the samples of a slice few, so a small inner
grid, whose spreading takes longer, costs half the time of the usual ratio of 2."""
_WIDTHS = 4.0
"""Reach of the average over y in standard deviations; what lies beyond weighs 6e-5."""


@dataclass(frozen=True)
class Slice:
    """Samples of one slice: x (N, k) their coordinates along b_1 … b_k, and c (q, N) the values of f, component by
    component."""

    x: Floats
    c: Floats

    @property
    def power(self) -> float:
        """Σ_j |f_j|², the diagonal."""
        return float(np.sum(self.c**2))

    @property
    def pairs(self) -> int:
        """Number of ordered pairs, N(N − 1)."""
        return len(self.x) * (len(self.x) - 1)

    def less_diagonal(self, sums: ComplexArray) -> Floats:
        """Return the U-statistic of |V_w|² from the sums Σ_j f_j e^{−iy·x_j}, whose first axis is q."""
        return np.asarray((np.sum(np.abs(sums) ** 2, axis=0) - self.power) / self.pairs)


class Spread:
    """Mean and standard error over slices of an array of any shape, and the noise floor τ₀."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Floats | float = 0.0
        self.squares: Floats | float = 0.0
        self.noise = 0.0

    def add(self, values: Floats, noise: float) -> None:
        """Add the estimates of one slice, and the variance that they have where f has no mass."""
        self.count += 1
        self.total = self.total + values
        self.squares = self.squares + values**2
        self.noise += noise

    def mass(self, scale: float) -> tuple[Floats, Floats]:
        """Return the scaled masses and their standard errors."""
        mean = np.asarray(self.total / self.count)
        variance = np.maximum(self.squares / self.count - mean**2, 0.0) / (self.count - 1)
        floor = self.noise / self.count**2
        return frozen(scale * mean), frozen(scale * np.sqrt(np.maximum(variance, floor)))


def slices(
    field: Field | PairField, ell: float, basis: Floats, k: int, m: int, rng: np.random.Generator
) -> Iterator[Slice]:
    """Yield slices along the first k rows of `basis` (d, d), 2m values of f together."""
    if m < _LEAST_SAMPLES:
        raise InvalidInput(f'estimator="all_pairs" needs m of at least {_LEAST_SAMPLES}, several slices; got {m}')
    pairs = field if isinstance(field, PairField) else PlainPairs(field)
    count = min(SLICES, m // 2)
    d = basis.shape[1]
    for i in range(count):
        size = 2 * m // count + (i < 2 * m % count)
        x = ell * rng.standard_normal((size, k))
        w = ell / math.sqrt(2) * rng.standard_normal(d - k)
        points = x @ basis[:k] + w @ basis[k:]
        if pairs.eta > 0:
            points += pairs.eta * rng.standard_normal(points.shape)
        yield Slice(x, np.ascontiguousarray(pairs.values(points).reshape(size, -1).T))


def scale_of(ell: float, K: Floats) -> float:
    """Return ℓ^k/√det K."""
    return float(ell ** len(K) / math.sqrt(float(np.prod(K))))


def noise_of(piece: Slice, ell: float, averaged: Floats, drawn: Floats, draws: int) -> float:
    """Return the variance of a slice's estimate where f has no mass.

    The average over y damps a pair at distance Δ by exp(−Δ²/4K) in each coordinate, and E exp(−Δ²/2K) is
    (1 + 2ℓ²/K)^−½; `averaged` are the K of coordinates averaged exactly, `drawn` of those that have `draws` draws.
    """
    exact = float(np.prod((1 + 2 * ell**2 / averaged) ** -0.5))
    random = float(np.prod((1 + 2 * ell**2 / drawn) ** -0.5))
    return (piece.power / len(piece.x)) ** 2 / piece.pairs * exact * (1 / draws + (1 - 1 / draws) * random)


def _kernel(step: float, K: float) -> Floats:
    """Return the weights of y = v + κ·step under N(v, 1/2K), κ = −r … r."""
    reach = math.ceil(_WIDTHS / math.sqrt(2 * K) / step)
    weights = np.exp(-K * (step * np.arange(-reach, reach + 1)) ** 2)
    return np.asarray(weights / weights.sum())


def plane_of_all_pairs(
    field: Field | PairField, ell: float, basis: Floats, K: Floats, grid: Grid, *, m: int, rng: np.random.Generator
) -> GridMass:
    """Return the masses that `mass.mass_plane` estimates, from all pairs."""
    kernels = [_kernel(grid.step, float(k)) for k in K[:2]]
    margin = max(len(kernel) // 2 for kernel in kernels)
    n = 2 * (grid.modes + margin) + 1
    inner = slice(margin, n - margin)
    spread = Spread()
    for piece in slices(field, ell, basis, 2, m, rng):
        x, y = (fold(grid.step * piece.x[:, j]) for j in range(2))
        c = piece.c.astype(np.complex64)
        sums = finufft.nufft2d1(x, y, c, (n, n), eps=NUFFT_TOLERANCE, isign=-1, nthreads=1, upsampfac=_UPSAMPLING)
        power = piece.less_diagonal(np.asarray(sums).reshape(-1, n, n))
        power = convolve1d(power, kernels[0], axis=0, mode="constant")[inner]
        power = convolve1d(power, kernels[1], axis=1, mode="constant")[:, inner]
        spread.add(power, noise_of(piece, ell, K[:2], np.zeros(0), 1))
    return GridMass(*spread.mass(scale_of(ell, K[:2])))


def lines_of_all_pairs(
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
    """Return the masses that `mass.mass_lines` estimates, from all pairs."""
    k = alpha.shape[1]
    kernel = _kernel(grid.step, float(K[k]))
    margin = len(kernel) // 2
    modes = grid.modes + margin
    spread = Spread()
    for piece in slices(field, ell, basis, k + 1, m, rng):
        s = grid.step * piece.x[:, k]

        def power(fixed: Floats, piece: Slice = piece, s: Floats = s) -> Floats:
            """Return |V_w|² on the grid for each y whose first k coordinates are a row of `fixed` (draws, k)."""
            phase = np.exp(-1j * (fixed @ piece.x[:, :k].T))
            terms = (piece.c[:, None] * phase).astype(np.complex64).reshape(-1, len(s))
            return piece.less_diagonal(line_sums(s, terms, modes).reshape(len(piece.c), len(fixed), -1))

        rows = _average_over_draws(power, alpha, K[:k], rng)
        rows = convolve1d(rows, kernel, axis=1, mode="constant")[:, margin : len(rows[0]) - margin]
        spread.add(rows, noise_of(piece, ell, K[k : k + 1], K[:k], _DRAWS))
    return GridMass(*spread.mass(scale_of(ell, K[: k + 1])))


def _average_over_draws(
    power: Callable[[Floats], Floats], centres: Floats, K: Floats, rng: np.random.Generator
) -> Floats:
    """Return (a, …) means over y ~ N(centre, (2K)⁻¹) of `power`, which takes rows y (draws, k), for centres (a, k)."""
    y = centres + rng.standard_normal((_DRAWS, *centres.shape)) / np.sqrt(2 * K)
    return np.stack([power(y[:, i]).mean(axis=0) for i in range(len(centres))])


def weight_of_all_pairs(
    field: Field | PairField, ell: float, points: Floats, root: Floats, m: int, rng: np.random.Generator
) -> MassEstimate:
    """Return the masses that `mass.est_weight` estimates at points (k, d) with A = root·rootᵀ, from all pairs."""
    d, r = root.shape
    K = np.einsum("dr,dr->r", root, root)
    along = root.T / np.sqrt(K)[:, None]
    basis = np.concatenate([along, np.linalg.svd(along, full_matrices=True)[2][r:]]) if r else np.eye(d)
    spread = Spread()
    for piece in slices(field, ell, basis, r, m, rng):

        def power(y: Floats, piece: Slice = piece) -> Floats:
            """Return |V_w(y)|² at the rows of y (draws, r)."""
            return piece.less_diagonal(piece.c @ np.exp(-1j * (piece.x @ y.T)))

        values = _average_over_draws(power, points @ basis[:r].T, K, rng)
        spread.add(values, noise_of(piece, ell, np.zeros(0), K, _DRAWS))
    scaled, stderr = spread.mass(scale_of(ell, K))
    return MassEstimate(scaled, stderr, 0.5 * d * math.log(math.pi * ell**2), queries=2 * m)
