"""Second derivatives by long central stencils of high order, for answers in single precision.

With nodes x ± k h u, k = 1 … m, the second derivative along u is

    D_u = h⁻² Σ_k a_k [ f(x + k h u) + f(x − k h u) − 2 f(x) ],       a_k = 2 (−1)^(k+1) (m!)² / (k² (m − k)! (m + k)!),

exact up to an error of order h^(2m) (Fornberg, 1988), and ∂_i∂_j f = (D_u − D_{q_i} − D_{q_j})/2 for u = q_i + q_j. An
error σ in each answer becomes about σ/h² whatever the order, so that a high order pays by its long step: a response
may bend visibly between neighbouring nodes.

**Shared errors.** The error of D_{q_i} enters row and column i of the matrix, that of f(x) all entries. They span the
same w + 1 matrices at all points, one of them of rank one, and would look like as many more features. Rounding errors
differ between points a thousandth of a step apart, so that f(x) and D_{q_i} are averaged over a few such points.

**Choice of order and step.** Answers on a line of 2J + 1 equidistant points contain the stencils of all orders with
steps of 1, 2, 3, … spacings. The error left by the step is estimated by the difference from the next order with the
same step, that of noise is known. More points average noise out, so that error times √queries decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial, sqrt

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions
from .base import Ask, Meter, Setting
from .rank_one import pack, unpack

Indices = NDArray[np.intp]
_NODES = 24  # J: many divisors, for many steps
_HALF_WIDTHS = (1, 2, 3, 4)  # m, for orders 2, 4, 6, 8; the next one estimates the error of each
_LINES = 24  # lines: neglected orders are large where a steep feature bends, on one line in ten or so
_LONGEST, _WAVES = 0.5, 4.0  # distance of the farthest node: at most this share of the ball, and so many 1/bandwidth
_BIAS_WEIGHT = 8.0
"""Factor on neglected orders: most of them are those of the steepest features, in a few matrices. In m rows of D
entries an error b in k directions has singular values b √(m D/k), and independent errors σ have σ(√m + √D). The former
are 7 times as large for k = 16, m = 3500 and D = 3200, and seem to be features sooner."""
_REPEATS = 8
"""Stencils along each axis that are averaged. In a matrix of m rows and D = w(w + 1)/2 columns independent errors σ
have singular values up to σ(√m + √D), and errors σ_a of the axes up to σ_a √(w m/2): these are no larger from about
w m / (2 (√m + √D)²) ≈ 8 repeats on, for the widths of 40 to 90 that are used."""
_CENTRES = 64  # answers averaged for f(x), whose error enters w times as many entries as that of an axis
_NEAR = 1e-3  # steps between such points: far above a rounding unit of the inputs, and too little for f to bend
_BLOCK = 4096  # rows asked at once


def weights(m: int) -> Floats:
    """Return a_1 … a_m."""
    top = float(factorial(m)) ** 2
    return np.array(
        [2.0 * (-1.0) ** (k + 1) * top / (k * k * factorial(m - k) * factorial(m + k)) for k in range(1, m + 1)]
    )


def noise_factor(m: int) -> float:
    """Return the noise of a mixed derivative over σ/h², half that of one second difference and of two averaged ones."""
    return 0.5 * float(np.sqrt(2.0 * (1.0 + 2.0 / _REPEATS) * np.sum(weights(m) ** 2)))


@dataclass(frozen=True, eq=False)
class CentralDifferences:
    """Hessians from central stencils with m nodes on either side, with the methods of `hessians.Differences`."""

    ask: Meter
    basis: Floats
    step: float
    half_width: int
    error: float

    @property
    def name(self) -> str:
        """The name of these Hessians in a note."""
        return f"Hessians of order {2 * self.half_width} with step {self.step:.2g}"

    @property
    def pad(self) -> float:
        """Distance of the farthest node from its point."""
        return float(np.sqrt(2.0) * self.half_width * self.step)

    def cost(self, width: int, known: int = 0) -> int:
        """Return the queries for one Hessian of that width if its leading known × known block is given."""
        pairs = (width * (width - 1) - known * (known - 1)) // 2
        return _CENTRES + 2 * self.half_width * (_REPEATS * width + pairs)

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        """Return packed Hessians (N, p, D) and the error of an entry; NaN if answers were dropped.

        `known` holds packed Hessians of a smaller width at the same points, which are not measured again.
        """
        side = 0 if known is None else unpack(known[:1, :1]).shape[-1]
        i, j = np.triu_indices(width, 1)
        i, j = i[j >= side], j[j >= side]
        q, found = self.basis[:width], []
        for n, x in enumerate(points):
            centre = self._centre(x)
            axes = self._axes(x, centre, q)
            pairs = (self._second(x, centre, q[i] + q[j]) - axes[i] - axes[j]) / 2.0
            matrix = np.empty((pairs.shape[1], width, width))
            if known is not None and side:
                matrix[:, :side, :side] = unpack(known[n])
            matrix[:, i, j] = pairs.T
            matrix[:, np.arange(width), np.arange(width)] = axes.T
            found.append(pack(matrix))
        return np.stack(found), self.error

    def mixed_cost(self, rows: int, columns: int) -> int:
        """Return the queries that `mixed` needs for one point."""
        return _CENTRES + 2 * self.half_width * (_REPEATS * rows + columns + rows * columns)

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        """Return (N, p, rows, columns) derivatives along pairs of distinct basis rows."""
        k, found = len(rows), []
        q = self.basis[np.concatenate([rows, columns])]
        i, j = (a.ravel() for a in np.meshgrid(np.arange(k), np.arange(k, len(q)), indexing="ij"))
        for x in points:
            centre = self._centre(x)
            axes = np.concatenate([self._axes(x, centre, q[:k]), self._second(x, centre, q[k:])])
            pairs = (self._second(x, centre, q[i] + q[j]) - axes[i] - axes[j]) / 2.0
            found.append(pairs.T.reshape(-1, k, len(columns)))
        return np.stack(found)

    def _near(self, x: Floats, count: int) -> Floats:
        """Return `count` points in opposite pairs about x, so close that f differs by rounding and a slope only."""
        aside = (_NEAR * self.step) * self.basis[np.arange(count // 2) % len(self.basis)]
        return np.concatenate([x + aside, x - aside])

    def _centre(self, x: Floats) -> Floats:
        """Return f(x) (1, p), averaged."""
        return np.asarray(np.mean(self.ask(self._near(x, _CENTRES)), axis=0, keepdims=True))

    def _axes(self, x: Floats, centre: Floats, along: Floats) -> Floats:
        """Return second derivatives at x along the rows of `along`, averaged."""
        several = [self._second(y, centre, along) for y in self._near(x, _REPEATS)]
        return np.asarray(np.mean(several, axis=0))

    def _second(self, x: Floats, centre: Floats, along: Floats) -> Floats:
        """Return (k, p) second derivatives at x along the rows of `along` (k, d), given f(x) (1, p)."""
        h, parts = self.step, []
        for first in range(0, len(along), _BLOCK):
            u = h * along[first : first + _BLOCK]
            total = np.zeros((len(u), centre.shape[1]))
            for k, a in enumerate(weights(self.half_width), start=1):
                total += a * (self.ask(x + k * u) + self.ask(x - k * u) - 2.0 * centre)
            parts.append(total / h**2)
        return np.concatenate(parts) if parts else np.empty((0, centre.shape[1]))


@dataclass(frozen=True)
class CentralChoice:
    """The stencil of least error for its queries."""

    step: float
    half_width: int
    error: float
    """Of one mixed derivative, by noise and by neglected orders, which count several times."""

    @property
    def per_query(self) -> float:
        """The error times √queries."""
        return self.error * float(np.sqrt(2.0 * self.half_width))


def spacing(setting: Setting) -> float:
    """Return the distance of neighbouring points on the lines of `choose_stencil`, for directions of length √2."""
    return min(_LONGEST * setting.edge, _WAVES * setting.wave) / (sqrt(2.0) * _NODES)


def choose_stencil(
    ask: Ask, setting: Setting, rng: np.random.Generator, half_widths: tuple[int, ...] = _HALF_WIDTHS
) -> CentralChoice:
    """Choose order and step from answers on random lines, 1,176 in all."""
    d, g, count = setting.dim, spacing(setting), _LINES
    u = np.sqrt(2.0) * random_directions(count, d, rng)
    points = random_directions(count, d, rng) * ((1.0 - _LONGEST) * setting.edge)
    z = g * np.arange(-_NODES, _NODES + 1)
    values = ask((points[:, None, :] + z[:, None] * u[:, None, :]).reshape(-1, d)).reshape(count, len(z), -1)
    choices = []
    for m in half_widths:
        for s in range(1, _NODES // (m + 1) + 1):
            h, change = s * g, _along(values, s, m) - _along(values, s, m + 1)
            change = change[np.isfinite(change)] / (2.0 * h**2)
            bias = float(np.sqrt(np.mean(change**2))) if len(change) else np.inf
            own = setting.noise / h**2
            apart = 0.5 * own * float(np.sqrt(2.0 * np.sum((weights(m + 1) - np.append(weights(m), 0.0)) ** 2)))
            bias = float(np.sqrt(max(bias**2 - apart**2, 0.0)))
            choices.append(CentralChoice(float(h), m, float(np.hypot(_BIAS_WEIGHT * bias, noise_factor(m) * own))))
    return min(choices, key=lambda choice: choice.per_query)


def _along(values: Floats, s: int, m: int) -> Floats:
    """Return h² times the second derivatives (N, p) on lines (N, 2J + 1, p), with steps of s spacings."""
    total = np.zeros((len(values), values.shape[2]))
    for k, a in enumerate(weights(m), start=1):
        total += a * (values[:, _NODES + k * s] + values[:, _NODES - k * s] - 2.0 * values[:, _NODES])
    return total
