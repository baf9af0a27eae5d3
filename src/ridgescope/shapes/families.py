"""The closed forms that a response may have, and the grids of atoms from which their fits start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log, log2, pi, sqrt

import numpy as np
from scipy.special import erf, expit, ndtr

from ..bspline import design_matrix
from ..geometry import Floats

Atom = Callable[[Floats], tuple[Floats, Floats]]
"""Maps y to (φ(y), φ'(y))."""
POINTS_PER_CELL, POINT_LIMITS = 4, (256, 1024)
"""Points of [−1, 1] at which forms and responses are compared: this many for each spline cell, within these limits."""
_KAPPA_STEP, _KAPPA_MAX = 1.4, 64  # factor between neighbouring κ of a grid, and the largest κ
_POINTS_PER_BEND = 8  # points that the narrowest bend of a grid extends over
_T_STEP = 0.5  # distance of neighbouring t in units of 1/κ: less than the width of a bend
_RATES, _RATE_STEP = (0.5, 16.0), 1.5  # of exponentials: below, it is a parabola; above, a bend at the end
_FREQUENCY_STEP = 0.5  # between neighbouring sines: a sixth of a period over [−1, 1]
TINY = 1e-300
"""Keeps a quotient of zeros finite."""
_RANK = 1e-10  # of the largest singular value: rounding errors
_ROWS = 64  # of a grid that are made at a time: a quarter of a megabyte an array
_STARTS, _MANY_STARTS = 3, 12  # placements that a search starts from, and one that must not miss the best


def _softplus(y: Floats) -> tuple[Floats, Floats]:
    # Six times as fast as `logaddexp`, and as exact.
    return np.maximum(y, 0.0) + np.log1p(np.exp(-np.abs(y))), expit(y)


def _triangle(y: Floats) -> tuple[Floats, Floats]:
    """Return (2/π)·arcsin(sin y) by its definition on [−π/2, π/2], which costs a tenth of the two functions."""
    turns = np.rint(y / pi)
    sign = 1.0 - 2.0 * (turns - 2.0 * np.floor(0.5 * turns))
    return sign * (2.0 / pi) * (y - pi * turns), sign * (2.0 / pi)


@dataclass(frozen=True)
class Family:
    """A closed form c·φ(κ(u − t)) with its free parameters."""

    name: str
    atom: Atom
    group: str
    """Name of the group whose grid its search starts from."""
    stretch: float = 1.0
    """The κ at which the family is closest to the group's own atom with κ = 1."""
    moves: tuple[bool, bool] = (True, True)
    """Whether κ and t are parameters."""

    @property
    def parameters(self) -> int:
        """Number of parameters, c included."""
        return 1 + sum(self.moves)


FAMILIES = (  # from common to rare
    Family("relu", lambda y: (0.5 * np.abs(y), 0.5 * np.sign(y)), "hinge", moves=(False, True)),
    Family("softplus", _softplus, "hinge"),
    Family("gelu", lambda y: (y * (p := ndtr(y)), p + y * np.exp(-0.5 * y * y) / sqrt(2 * pi)), "dip"),
    Family("silu", lambda y: (y * (p := expit(y)), p * (1.0 + y * (1.0 - p))), "dip", 1.7),
    Family("tanh", lambda y: ((value := np.tanh(y)), 1.0 - value * value), "sigmoid"),
    Family("erf", lambda y: (erf(y), np.exp(-y * y) * (2.0 / sqrt(pi))), "sigmoid", 0.85),
    Family("arctan", lambda y: (np.arctan(y), 1.0 / (1.0 + y * y)), "sigmoid", 1.7),
    Family("clip", lambda y: (np.clip(y, -1.0, 1.0), (np.abs(y) < 1.0).astype(np.float64)), "sigmoid", 0.75),
    Family("bump", lambda y: ((value := np.exp(-0.5 * y * y)), -y * value), "bump"),
    Family("sine", lambda y: (np.sin(y), np.cos(y)), "sine"),
    Family("triangle", _triangle, "sine"),
    Family("exponential", lambda y: ((value := np.exp(y)), value), "exponential", moves=(True, False)),
)
RISE = {"erf": 2.0, "clip": 2.0, "arctan": pi}
"""φ(∞) − φ(−∞) of the sigmoids that are called a step if they are too steep for their form to be visible."""
GROUP_ATOM: dict[str, Atom] = {
    family.group: family.atom
    for family in FAMILIES
    if family.name in ("softplus", "gelu", "tanh", "bump", "sine", "exponential")
}
"""The atom of each group's grid. GELU has its own, as the best softplus says little about the κ of its dip."""


@dataclass(frozen=True)
class Placement:
    """The map y = sign·κ·(u − t). Only the exponential needs the sign: up to affine parts, others are even or odd."""

    kappa: float
    t: float
    sign: float = 1.0

    def y(self, u: Floats) -> Floats:
        return (self.sign * self.kappa) * (u - self.t)


@dataclass(frozen=True, eq=False)
class Points:
    """Midpoints u (M,) of [−1, 1], and an orthonormal basis of the affine functions there."""

    u: Floats
    weight: float
    """1/√M: turns a sum of squares into a mean."""
    affine: Floats
    """(M, 2) orthonormal columns spanning 1 and u."""

    def project(self, rows: Floats) -> Floats:
        """Return functions at u, (…, M), times the weight and without their affine part."""
        rows = rows * self.weight
        return np.asarray(rows - (rows @ self.affine) @ self.affine.T)


def point_count(intervals: int) -> int:
    """Return the number of points for a spline, a power of two, so that few different grids are ever computed."""
    return int(np.clip(1 << ceil(log2(POINTS_PER_CELL * intervals)), *POINT_LIMITS))


@lru_cache(maxsize=16)
def sample_points(count: int) -> Points:
    """Return `count` midpoints with their basis."""
    u = (2.0 * np.arange(count) + 1.0) / count - 1.0
    weight = 1.0 / float(np.linalg.norm(np.ones(count)))
    columns = np.linalg.qr(np.polynomial.legendre.legvander(u, 1) * weight)[0]
    return Points(u, weight, columns)


@dataclass(frozen=True, eq=False)
class Grid:
    """Projected atoms of unit norm, (A, M), or pairs of them for sines, (A, 2, M); equal κ are adjacent."""

    atoms: Floats
    kappa: Floats
    t: Floats
    sign: Floats

    def _energies(self, target: Floats) -> Floats:
        """Return the square of the part of a projected function (M,) that each atom explains, (A,)."""
        inner = self.atoms @ target
        return np.asarray(inner * inner if inner.ndim == 1 else np.einsum("ab,ab->a", inner, inner))

    def unexplained(self, target: Floats) -> float:
        """Return the share of |target|² that the best atom does not explain."""
        return 1.0 - float(self._energies(target).max()) / max(float(target @ target), TINY)

    def best(self, target: Floats) -> tuple[float, list[Placement]]:
        """Return the share of |target|² that the best atom does not explain, and up to three starting placements.

        These are the local maxima over κ of the best over t, best first: one for each local minimum of the misfit in κ.
        """
        energy = self._energies(target)
        edges = np.flatnonzero(np.diff(self.kappa, prepend=-1.0))
        best = np.maximum.reduceat(energy, edges)
        around = np.concatenate([[0.0], best, [0.0]])
        tops = np.flatnonzero((best >= around[:-2]) & (best >= around[2:]))
        tops = tops[np.argsort(-best[tops], kind="stable")][:_STARTS]
        where = [int(np.flatnonzero(energy == value)[0]) for value in best[tops]]
        starts = [Placement(float(self.kappa[i]), float(self.t[i]), float(self.sign[i])) for i in where]
        return 1.0 - float(best.max()) / float(target @ target), starts

    def many(self, target: Floats) -> list[Placement]:
        """Return a dozen placements, best first: local maxima over t at each κ, as there are false minima in both."""
        energy = self._energies(target)
        same = np.diff(self.kappa) == 0.0
        before = np.where(np.append(False, same), np.append(0.0, energy[:-1]), 0.0)
        after = np.where(np.append(same, False), np.append(energy[1:], 0.0), 0.0)
        tops = np.flatnonzero((energy >= before) & (energy >= after))
        tops = tops[np.argsort(-energy[tops], kind="stable")][:_MANY_STARTS]
        return [Placement(float(self.kappa[i]), float(self.t[i]), float(self.sign[i])) for i in tops]


@lru_cache(maxsize=64)
def places_of(group: str, count: int) -> tuple[Floats, Floats, Floats]:
    """Return κ, t and signs (A,) of the atoms of a group's grid for `count` points; equal κ are adjacent."""
    if group == "sine":
        # From half a period over [−1, 1] on, below which a sine is a polynomial, to a period of three cells.
        kappa = np.arange(pi / 2, count * pi / (3 * POINTS_PER_CELL), _FREQUENCY_STEP)
        return kappa, np.zeros(len(kappa)), np.ones(len(kappa))
    if group == "exponential":
        kappa = np.tile(_scales(*_RATES, _RATE_STEP), 2)
        sign = np.repeat([1.0, -1.0], len(kappa) // 2)
        return kappa, sign, sign
    scales = _scales(1.0, min(count / _POINTS_PER_BEND, _KAPPA_MAX), _KAPPA_STEP)
    kappa, t = np.array([(k, t) for k in scales for t in _shifts(1.0 + 1.0 / k, _T_STEP / k)]).T
    return kappa, t, np.ones(len(t))


@lru_cache(maxsize=16)
def grid_of(group: str, count: int) -> Grid:
    """Return a group's atoms at `count` points; usually one leaves a tenth of a random member's RMS."""
    points, (kappa, t, sign) = sample_points(count), places_of(group, count)
    pairs = (2,) if group == "sine" else ()
    atoms = np.empty((len(kappa), *pairs, count))
    for start in range(0, len(kappa), _ROWS):
        part = slice(start, start + _ROWS)
        y = (sign * kappa)[part, None] * (points.u - t[part, None])
        if group == "sine":
            atoms[part] = _sine_pairs(points, y)
        else:
            rows = points.project(GROUP_ATOM[group](y)[0])
            atoms[part] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return Grid(atoms, kappa, t, sign)


def _scales(low: float, high: float, factor: float) -> Floats:
    """Return scales from `low` to at least `high`, each `factor` times the last."""
    return np.asarray(low * np.power(factor, np.arange(ceil(log(high / low) / log(factor)) + 1)))


def _shifts(reach: float, step: float) -> Floats:
    """Return equidistant positions from −reach to reach, at most `step` apart."""
    return np.linspace(-reach, reach, ceil(2.0 * reach / step) + 1)


def _sine_pairs(points: Points, y: Floats) -> Floats:
    """Return orthonormal pairs (k, 2, M) that span sine and cosine of y (k, M)."""
    pair = points.project(np.stack([np.sin(y), np.cos(y)], axis=1))
    pair[:, 0] /= np.linalg.norm(pair[:, 0], axis=1, keepdims=True)
    pair[:, 1] -= np.einsum("am,am->a", pair[:, 0], pair[:, 1])[:, None] * pair[:, 0]
    pair[:, 1] /= np.linalg.norm(pair[:, 1], axis=1, keepdims=True)
    return pair


@lru_cache(maxsize=16)
def spline_space(intervals: int, count: int) -> Floats:
    """Return (M, D) orthonormal columns that span the splines of that many intervals, without their affine parts."""
    points = sample_points(count)
    # Affine functions are combinations of all columns, independent on any two of them: without two the rest is a basis.
    rows = points.project(np.ascontiguousarray(design_matrix(points.u, 1.0, intervals).T[1:-1]))
    return np.linalg.qr(rows.T)[0]


def orthonormal_columns(rows: Floats) -> Floats:
    """Return (M, rank) orthonormal columns that span the rows (n, M)."""
    vectors, sizes, _ = np.linalg.svd(rows.T, full_matrices=False)
    return np.asarray(vectors[:, sizes > _RANK * max(1.0, float(sizes.max(initial=0.0)))])
