"""A slice of f and its windowed Fourier transform, in which each feature is a line through the origin.

    x = z + Σ_{j≤r} s_j b_j                    an r-dimensional slice, b_1 … b_d orthonormal, z ⊥ b_1 … b_r
    w(s) = exp(−|s|²/2ℓ²)                      the window, cut at |s| = T
    C(y) = N^(−r) Σ_s w(s) f°(s) e^(−iy·s)     f° = f less its windowed affine fit, s on a grid of step h

so that w f° = Σ_y C(y) e^(iy·s) on the grid. The part of C that belongs to a feature s_i(v_i·x) lies on the line
through the origin along u_i = (v_i·b_1, …, v_i·b_r)/ρ_i, blurred to a width of 1/ℓ; ρ_i is the length of that
projection. Two rays an angle θ apart separate at frequency t if ℓtθ ≳ 3, so with N points per axis the
resolution is about 11/N radians for any step. r = 2 is the plane of the paper's second level; more axes
make room for more rays.

The strong cells are local maxima of |C(y)||y| (the factor favours curvature over size), each with its
*catchment*: the cells from which steepest ascent leads to it. A ray decays steadily outwards and would have one
maximum, at its inner end, where rays are hardest to separate; so a catchment is cut into rings, and a ray
has a maximum in every ring it crosses. The outer ones give the better directions.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from ..feature import Plane
from ..geometry import Floats
from .base import Ask

Complex = NDArray[np.complex128]
Indices = NDArray[np.intp]

_BLUR = 3.2  # radius, in 1/ℓ, within which a wave blurred by the window is above e^(−3.2²/2) = 0.006 of its peak
_BLOCK = 1 << 15  # rows asked at once, so that the points of a slice are never all in memory
_LOG_FALSE_CELLS = 3.0  # noise alone makes e⁻³ = 0.05 cells of a whole slice exceed the floor
_LEAK = 3.0  # floor over the median of the outermost cells; a Rayleigh variable exceeds it with chance 2⁻⁹
_CUT_OVER_LOBE = 3.0  # height of the window where it is cut off, over the side lobes that the cut makes, roughly
_CORE_CELLS = 3.5  # half width in cells of a catchment's innermost ring, enough for the whole of a blurred wave
_CORE_SHARE = 0.3  # and over its frequency. Empirical: wider rings show a ray less often, narrower ones cut it
_RINGS = 64  # more than the rings log2(1 + |Δ|) that a catchment can have on both sides of its maximum
_PICTURE = 256  # most cells along a side of a picture


def ball_volume(rank: int) -> float:
    """Return the volume of the unit ball in R^rank."""
    return float(np.pi ** (rank / 2) / math.gamma(rank / 2 + 1))


@dataclass(frozen=True, eq=False)
class Frame:
    """The position of a slice and the grid on it."""

    basis: Floats
    """(d, d) orthonormal rows; the first `rank` span the slice."""
    offset: Floats
    """(d,) the point z of the slice at the centre of the window."""
    rank: int
    step: float
    half: int
    """Half the number of grid points along each axis."""
    window: float
    """The width ℓ of the window."""
    extent: float
    """The largest distance T of a point of the slice from its centre."""

    @property
    def side(self) -> int:
        return 2 * self.half

    @property
    def cell(self) -> float:
        """Distance between neighbouring frequencies."""
        return 2.0 * np.pi / (self.side * self.step)

    def grid(self) -> tuple[Indices, Floats]:
        """Return flat indices (M,) of the grid points within the extent, and their coordinates (M, r)."""
        return _grid(self.step, self.half, self.rank, self.extent)

    def weight(self, s: Floats) -> Floats:
        """Return the window w at coordinates (…, r)."""
        return np.asarray(np.exp(np.sum(s**2, axis=-1) / (-2.0 * self.window**2)))

    def points(self, s: Floats, shifts: Floats) -> Floats:
        """Return the (m, d) points at coordinates s (m, r), moved by `shifts`: (m, d), or (d,) for all of them.

        Products are added one at a time, as a matrix product rounds differently for different numbers of rows.
        """
        x = self.offset + shifts + s[:, :1] * self.basis[0]
        for j in range(1, self.rank):
            x += s[:, j : j + 1] * self.basis[j]
        return np.asarray(x)


def _grid(step: float, half: int, rank: int, extent: float) -> tuple[Indices, Floats]:
    """Return flat indices and coordinates of the grid points within `extent`, as `Frame.grid` does."""
    axis = step * (np.arange(2 * half) - half)
    squares = sum(np.meshgrid(*[axis**2] * rank, indexing="ij", sparse=True))
    flat = np.flatnonzero(np.asarray(squares).ravel() <= extent**2)
    where = np.unravel_index(flat, (2 * half,) * rank)
    return flat, np.stack([axis[i] for i in where], axis=1)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The answers on one slice and their transform."""

    frame: Frame
    s: Floats
    """(M, r) coordinates of the points asked."""
    values: Floats
    """(M, p) answers; a NaN row was dropped."""
    coefficients: Complex
    """(p, N, …, N) coefficients C in the order of the FFT."""
    floor: float
    """|C| below which a cell is ignored: the error of the answers, or the leakage of the window."""

    @property
    def queries(self) -> int:
        return len(self.s)

    def frequencies(self) -> Floats:
        """Return the frequencies y of all cells, (N, …, N, r)."""
        axis = 2.0 * np.pi * scipy.fft.fftfreq(self.frame.side, self.frame.step)
        return np.stack(np.meshgrid(*[axis] * self.frame.rank, indexing="ij"), axis=-1)

    def modulus(self) -> Floats:
        """Return |C|, (N, …, N), as a norm over outputs."""
        c = self.coefficients
        return np.asarray(np.sqrt(np.sum(c.real**2 + c.imag**2, axis=0)))


def ask_shifted(ask: Ask, frame: Frame, s: Floats, shifts: Floats) -> Floats:
    """Return (k, m, …) answers at the grid's coordinates s (m, r) moved by each of the shifts (k, d)."""
    values = _ask_in_blocks(ask, frame, s, shifts)
    return values.reshape(len(shifts), len(s), *values.shape[1:])


def _ask_in_blocks(ask: Ask, frame: Frame, s: Floats, shifts: Floats) -> Floats:
    """Return (k·m, …) answers at coordinates s (m, r) for one shift (d,) after the other, `_BLOCK` rows at a time."""
    total, parts = len(shifts) * len(s), []
    for start in range(0, total, _BLOCK):
        shift, row = np.divmod(np.arange(start, min(start + _BLOCK, total)), len(s))
        parts.append(np.asarray(ask(frame.points(s[row], shifts[shift])), dtype=np.float64))
    return np.concatenate(parts)


def transform(ask: Ask, frame: Frame, noise: float) -> Spectrum:
    """Ask for the values on a slice and return their transform."""
    flat, s = frame.grid()
    values = _ask_in_blocks(ask, frame, s, np.zeros((1, len(frame.offset))))
    w = frame.weight(s)
    windowed = np.zeros((values.shape[1], frame.side**frame.rank))
    windowed[:, flat] = (w[:, None] * without_affine(s, values, w)).T
    box = windowed.reshape(-1, *[frame.side] * frame.rank)
    axes = tuple(range(1, frame.rank + 1))
    c = np.asarray(scipy.fft.fftn(scipy.fft.ifftshift(box, axes=axes), axes=axes), dtype=np.complex128)
    c /= frame.side**frame.rank
    own = noise * np.sqrt(values.shape[1] * np.sum(w**2)) / frame.side**frame.rank
    rim = float(np.exp(-0.5 * (frame.extent / frame.window) ** 2))
    return Spectrum(frame, s, values, c, _floor(c, float(own), rim))


def without_affine(s: Floats, values: Floats, w: Floats) -> Floats:
    """Return the values less their affine fit in the weights w; dropped rows become 0."""
    good = np.isfinite(values).all(axis=1)
    design = np.column_stack([np.ones(len(s)), s])
    normal = (design[good].T * w[good]) @ design[good]
    right = (design[good].T * w[good]) @ values[good]
    left = values - design @ np.linalg.lstsq(normal, right, rcond=None)[0]
    left[~good] = 0.0
    return np.asarray(left)


def _floor(c: Complex, own: float, rim: float) -> float:
    """Return the largest of three limits: the error of the answers, the leakage, and the strongest cell's side lobes.

    A cell of pure noise is complex Gaussian: it exceeds own·√(log cells + 3) with probability e⁻³/cells. Leakage is
    measured by the median of the outermost cells, beyond the Nyquist frequency (half a cycle per step), where rays are
    few. `rim` is the height of the window where it is cut.
    """
    shape = c.shape[1:]
    squares = [scipy.fft.fftfreq(n) ** 2 for n in shape]
    outer = np.asarray(sum(np.meshgrid(*squares, indexing="ij", sparse=True))) > 0.5**2
    modulus = np.sqrt(np.sum(np.abs(c) ** 2, axis=0))
    noise = own * np.sqrt(np.log(modulus.size) + _LOG_FALSE_CELLS)
    return float(max(noise, _LEAK * np.median(modulus[outer]), rim / _CUT_OVER_LOBE * modulus.max()))


@dataclass(frozen=True, eq=False)
class Cells:
    """The strong cells of a spectrum, ideally one ray each: a peak and its catchment."""

    peaks: Floats
    """(K, r) frequencies of the peaks, interpolated between cells, strongest first."""
    strengths: Floats
    """(K,) |C||y| at the peaks."""
    frequencies: Floats
    """(c, r) frequencies of all cells of all catchments, sorted by catchment."""
    coefficients: Complex
    """(p, c) coefficients C of these cells."""
    starts: Indices
    """(K,) the index of each catchment's first cell."""
    owner: Indices
    """(c,) the catchment of each cell."""
    disc: Floats
    """(q, r) low frequencies, one of each pair ±y, the origin first: rays cannot be separated there."""

    @property
    def rays(self) -> Floats:
        """(K, r) unit vectors u along the rays."""
        return np.asarray(self.peaks / np.linalg.norm(self.peaks, axis=1, keepdims=True))


def strong_cells(spectrum: Spectrum, most: int, inner: float) -> Cells:
    """Return the `most` strongest local maxima of |C||y| outside the disc |y| < inner.

    A catchment keeps its highest cells, as many as the window blurs a pure wave over.
    """
    frame = spectrum.frame
    depth = 1 + int(ball_volume(frame.rank) * (_BLUR / (frame.window * frame.cell)) ** frame.rank)
    y = spectrum.frequencies()
    radius = np.linalg.norm(y, axis=-1)
    modulus = spectrum.modulus()
    clear = modulus.ravel() > spectrum.floor
    low = radius < inner
    height = np.where(low, 0.0, modulus * radius)
    uphill = _uphill(height, _rings(height, radius, spectrum.frame.cell))
    y = y.reshape(-1, y.shape[-1])
    top = np.flatnonzero((uphill == np.arange(height.size)) & clear & ~low.ravel())
    top = top[_upper(y[top])]
    top = top[np.argsort(-height.ravel()[top], kind="stable")][:most]
    number = np.full(height.size, -1)
    number[top] = np.arange(len(top))
    owner = np.where(clear, number[_summits(uphill)], -1)
    cells = _highest(owner, height.ravel(), len(top), depth)
    disc = y[low.ravel()]
    disc = disc[_upper(disc) | ~disc.any(axis=1)]
    starts = np.searchsorted(owner[cells], np.arange(len(top)))
    aside = _between(y[top], top, modulus, spectrum.frame.cell)
    return Cells(
        peaks=_centred(aside, y[cells], modulus.ravel()[cells] ** 2, owner[cells], starts),
        strengths=height.ravel()[top],
        frequencies=y[cells],
        coefficients=spectrum.coefficients.reshape(len(spectrum.coefficients), -1)[:, cells],
        starts=starts,
        owner=owner[cells],
        disc=disc[np.argsort(np.linalg.norm(disc, axis=1), kind="stable")],
    )


def _upper(y: Floats) -> NDArray[np.bool_]:
    """Return which y have a positive first non-zero coordinate: one of each pair ±y, as f is real."""
    sign = np.zeros(len(y))
    for column in y.T:
        sign = np.where(sign == 0, np.sign(column), sign)
    return sign > 0


def _rings(height: Floats, radius: Floats, cell: float) -> Indices:
    """Return a number for each cell that identifies its catchment and its ring about the maximum.

    Rings double in width outwards; the innermost is wide enough for a wave blurred by the window.
    """
    summit = _summits(_uphill(height, np.zeros(height.shape, dtype=np.intp)))
    here, base = radius.ravel(), radius.ravel()[summit]
    away = np.abs(here - base) / np.maximum(_CORE_CELLS * cell, _CORE_SHARE * np.minimum(base, here))
    ring = (np.sign(here - base) * np.floor(np.log2(1.0 + away))).astype(np.intp)
    return np.asarray(summit * _RINGS + ring + _RINGS // 2).reshape(height.shape)


def _uphill(height: Floats, ring: Indices) -> Indices:
    """Return (cells,) flat indices of the highest among each cell and its 3^r − 1 neighbours in the same ring."""
    index = np.arange(height.size).reshape(height.shape)
    best, where = height.copy(), index.copy()
    axes = tuple(range(height.ndim))
    for move in itertools.product((-1, 0, 1), repeat=height.ndim):
        if any(move):
            other = np.roll(height, move, axes)
            higher = (other > best) & (np.roll(ring, move, axes) == ring)
            best[higher] = other[higher]
            where[higher] = np.roll(index, move, axes)[higher]
    return where.ravel()


def _summits(uphill: Indices) -> Indices:
    """Return the cell at which steepest ascent from each cell ends, by pointer doubling."""
    while True:
        further = uphill[uphill]
        if np.array_equal(further, uphill):
            return uphill
        uphill = further


def _highest(owner: Indices, height: Floats, count: int, depth: int) -> Indices:
    """Return flat indices of each owner's `depth` highest cells, sorted by owner."""
    cells = np.flatnonzero(owner >= 0)
    cells = cells[np.lexsort((-height[cells], owner[cells]))]
    starts = np.searchsorted(owner[cells], np.arange(count + 1))
    rank = np.arange(len(cells)) - np.repeat(starts[:-1], np.diff(starts))
    return np.asarray(cells[rank < depth])


def _between(y: Floats, top: Indices, modulus: Floats, cell: float) -> Floats:
    """Interpolate peaks across their ray, where a Gaussian window makes log|C| exactly a parabola."""
    if not len(top):
        return y
    where = np.stack(np.unravel_index(top, modulus.shape), axis=1)
    log = np.log(np.maximum(modulus, np.finfo(float).tiny))
    e = np.eye(y.shape[1], dtype=np.intp)

    def at(*moves: Indices) -> Floats:
        return np.asarray(log[tuple(((where + sum(moves)) % modulus.shape[0]).T)])

    def second(a: Indices, b: Indices) -> Floats:
        if (a == b).all():
            return at(a) - 2 * at(0 * a) + at(-a)
        return (at(a, b) - at(a, -b) - at(-a, b) + at(-a, -b)) / 4

    slope = np.stack([(at(a) - at(-a)) / 2 for a in e], axis=1)
    bend = np.stack([np.stack([second(a, b) for b in e], axis=1) for a in e], axis=1)
    u = y / np.linalg.norm(y, axis=1, keepdims=True)
    along = u[:, :, None] * u[:, None, :]
    side = np.eye(y.shape[1]) - along
    # side·bend·side is negative definite across a true ray; otherwise the move leaves the cell and is dropped
    move = np.linalg.solve(along - side @ bend @ side, side @ slope[:, :, None])[:, :, 0]
    move[~(np.linalg.norm(move, axis=1) < 1.0)] = 0.0
    return np.asarray(y + cell * move)


def _centred(peaks: Floats, y: Floats, power: Floats, owner: Indices, starts: Indices) -> Floats:
    """Move peaks along their ray to the mean frequency of their catchment, which is exact for a pure wave."""
    if not len(peaks):
        return peaks
    u = peaks / np.linalg.norm(peaks, axis=1, keepdims=True)
    speed = np.abs(np.sum(y * u[owner], axis=1))
    mean = np.add.reduceat(speed * power, starts) / np.add.reduceat(power, starts)
    return np.asarray(u * mean[:, None])


def picture(spectrum: Spectrum) -> Plane:
    """Return the power for the report: the strongest cell of each block and, beyond two axes, along the others."""
    power = scipy.fft.fftshift(spectrum.modulus())
    power = power.max(axis=tuple(range(2, power.ndim))) if power.ndim > 2 else power
    block = -(-len(power) // _PICTURE)
    pad = -len(power) % block
    padded = np.pad(power, ((0, pad), (0, pad)))
    n = len(padded) // block
    small = padded.reshape(n, block, n, block).max(axis=(1, 3)).astype(np.float32)
    return Plane(spectrum.frame.basis[:2].copy(), small, spectrum.frame.cell * block)
