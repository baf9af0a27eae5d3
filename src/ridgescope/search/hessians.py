"""Second derivatives of f from values, from gradients, and through a Gaussian.

All three sources work along the first `width` rows q_1, q_2, … of an orthonormal `basis`: the Hessian of
f restricted to a random subspace costs width²/2 queries instead of d²/2.

**Differences.** With the axis nodes f(x ± h q_i), odd part o_i and even part e_i of f(x ± h q_i) − f(x),
one more node for every pair gives

    h² ∂_i∂_j f ≈ f(x + h q_i + h q_j) − f(x) − o_i − o_j − e_i − e_j,  error (h/2)(∂_i²∂_j + ∂_i∂_j²) f,
    h² ∂_i²  f ≈ 2 e_i,                                                error (h²/12) ∂_i⁴ f,

1 + w + w(w+1)/2 queries in all, as few as a quadratic has coefficients. Averaging over ±(q_i + q_j)
(`centred`) cancels the first-order error for twice the queries. An error σ in every answer adds about
2σ/h²; `Sizes` weighs the two.

**Gradients.** (∇f(x + h q_i) − ∇f(x))/h is a row of the Hessian against the whole space for one query.

**Smoothed.** f_η(x) = E f(x + ηξ) with Gaussian ξ is again b + a·x + Σ s_{i,η}(v_i·x), with the same
directions and smooth responses whatever the kinks of s_i. The even part of f(x + ηξ) is regressed on 1
and the products ξ_jξ_k; under the Gaussian these are orthogonal to all higher even polynomials, so the
regression is consistent for

    η²/2 · ∇²f_η(x) = ½ E[(ξξᵀ − I) f(x + ηξ)],

and noise averages out over the samples. One design serves every point, turned by a fresh rotation each
time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_basis, random_directions
from .base import Meter, Setting
from .rank_one import pack, squares, unpack

Indices = NDArray[np.intp]
_ROWS = 20_000  # rows asked at once, so that a stencil at many points does not fill the memory


class Source(Protocol):
    """Second derivatives along the rows of a basis."""

    @property
    def name(self) -> str:
        """What to call its Hessians."""

    @property
    def ask(self) -> Meter:
        """What it spends."""

    @property
    def pad(self) -> float:
        """How far from a point its nodes lie."""

    def cost(self, width: int, known: int = 0) -> int:
        """Queries for one Hessian of that width when its leading known × known block is at hand."""

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        """Packed Hessians (N, p, D), NaN where answers were dropped, and the error of an entry."""

    def mixed_cost(self, rows: int, columns: int) -> int:
        """Queries for one point of `mixed`."""

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        """(N, p, rows, columns) derivatives along pairs of distinct basis rows."""


@dataclass(frozen=True, eq=False)
class Differences:
    """Second differences of values."""

    ask: Meter
    basis: Floats
    step: float
    centred: bool
    error: float
    finer: Differences | None = None
    """Centred ones with their own step, where these are one-sided."""

    @property
    def name(self) -> str:
        return "centred Hessians" if self.centred else "Hessians"

    @property
    def pad(self) -> float:
        return float(np.sqrt(2.0) * self.step)

    def cost(self, width: int, known: int = 0) -> int:
        pairs = (width * (width - 1) - known * (known - 1)) // 2
        return 1 + 2 * width + pairs * (1 + self.centred)

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        side = 0 if known is None else unpack(known[:1, :1]).shape[-1]
        i, j = np.triu_indices(width, 1)
        i, j = i[j >= side], j[j >= side]
        blocks = []
        for part in _parts(len(points), self.cost(width, side)):
            centre, odd, even = self._axes(points[part], np.arange(width))
            pairs = self._pairs(points[part], i, j, centre, odd, even)
            matrix = np.empty((pairs.shape[0], pairs.shape[2], width, width))
            if known is not None and side:
                matrix[:, :, :side, :side] = unpack(known[part])
            matrix[:, :, i, j] = pairs.transpose(0, 2, 1)
            diagonal = np.arange(width)
            matrix[:, :, diagonal, diagonal] = 2.0 * even.transpose(0, 2, 1) / self.step**2
            blocks.append(pack(matrix))
        return np.concatenate(blocks), self.error

    def mixed_cost(self, rows: int, columns: int) -> int:
        return 1 + 2 * (rows + columns) + rows * columns * (1 + self.centred)

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        k, m = len(rows), len(columns)
        i, j = (a.ravel() for a in np.meshgrid(np.arange(k), np.arange(k, k + m), indexing="ij"))
        which = np.concatenate([rows, columns])
        blocks = []
        for part in _parts(len(points), self.mixed_cost(k, m)):
            centre, odd, even = self._axes(points[part], which)
            pairs = self._pairs(points[part], i, j, centre, odd, even, which)
            blocks.append(pairs.transpose(0, 2, 1).reshape(len(pairs), -1, k, m))
        return np.concatenate(blocks)

    def _axes(self, points: Floats, which: Indices) -> tuple[Floats, Floats, Floats]:
        """f(x) (N, 1, p), and the odd and even parts of f(x ± h q_i) − f(x), each (N, k, p)."""
        u = self.step * self.basis[which]
        values = self._at(points, np.concatenate([np.zeros((1, points.shape[1])), u, -u]))
        centre = values[:, :1]
        plus, minus = np.split(values[:, 1:] - centre, 2, axis=1)
        return centre, (plus - minus) / 2.0, (plus + minus) / 2.0

    def _pairs(
        self,
        points: Floats,
        i: Indices,
        j: Indices,
        centre: Floats,
        odd: Floats,
        even: Floats,
        which: Indices | None = None,
    ) -> Floats:
        """(N, pairs, p) mixed derivatives; i and j count along `which`."""
        axes = self.step * (self.basis[: odd.shape[1]] if which is None else self.basis[which])
        base = centre + even[:, i] + even[:, j]
        cross = self._at(points, axes[i] + axes[j]) - base - odd[:, i] - odd[:, j]
        if self.centred:
            cross = (cross + self._at(points, -axes[i] - axes[j]) - base + odd[:, i] + odd[:, j]) / 2.0
        n, k = np.nonzero(np.isnan(cross).any(axis=2) & np.isfinite(base).all(axis=2))
        if 0 < len(n) * (1 + self.centred) <= self.ask.left:
            # dropped answers: the pair q_i, −q_j says the same with the other sign
            u, tilt = axes[i[k]] - axes[j[k]], odd[n, i[k]] - odd[n, j[k]]
            other = self.ask(points[n] + u) - base[n, k] - tilt
            if self.centred:
                other = (other + self.ask(points[n] - u) - base[n, k] + tilt) / 2.0
            cross[n, k] = -other
        return np.asarray(cross / self.step**2)

    def _at(self, points: Floats, offsets: Floats) -> Floats:
        nodes = points[:, None, :] + offsets
        return self.ask(nodes.reshape(-1, points.shape[1])).reshape(len(points), len(offsets), -1)


@dataclass(frozen=True, eq=False)
class Gradients:
    """First differences of gradients."""

    ask: Meter
    basis: Floats
    step: float
    error: float
    name: str = "Hessians from gradients"

    @property
    def pad(self) -> float:
        return self.step

    def cost(self, width: int, known: int = 0) -> int:
        return 1 + width - known

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        side = 0 if known is None else unpack(known[:1, :1]).shape[-1]
        blocks = []
        for part in _parts(len(points), self.cost(width, side) * self.basis.shape[1]):
            rows = self._rows(points[part], np.arange(side, width), np.arange(width))
            matrix = np.empty((*rows.shape[:2], width, width))
            if known is not None and side:
                matrix[:, :, :side, :side] = unpack(known[part])
            matrix[:, :, side:, :] = rows
            matrix[:, :, :, side:] = rows.swapaxes(2, 3)
            corner = rows[:, :, :, side:]
            matrix[:, :, side:, side:] = (corner + corner.swapaxes(2, 3)) / 2.0
            blocks.append(pack(matrix))
        return np.concatenate(blocks), self.error

    def mixed_cost(self, rows: int, columns: int) -> int:
        return 1 + rows

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        return self._rows(points, rows, columns)

    def _rows(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        offsets = np.concatenate([np.zeros((1, points.shape[1])), self.step * self.basis[rows]])
        nodes = (points[:, None, :] + offsets).reshape(-1, points.shape[1])
        gradients = self.ask(nodes) @ self.basis[columns].T
        gradients = gradients.reshape(len(points), len(offsets), -1, len(columns))
        return np.asarray((gradients[:, 1:] - gradients[:, :1]).swapaxes(1, 2) / self.step)


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Hessians of f smoothed by a Gaussian, by regression on `oversample`·D antithetic pairs."""

    differences: Differences
    """For mixed derivatives, of which a lift averages many."""
    eta: float
    longest: float
    """|ξ| is cut here, so that no node goes astray."""
    rng: np.random.Generator
    noise: float = 0.0
    """Of an answer; the misfit of the regression is no less."""
    oversample: float = 4.0

    @property
    def name(self) -> str:
        return f"Hessians smoothed over {self.eta:.2g}"

    @property
    def ask(self) -> Meter:
        return self.differences.ask

    @property
    def pad(self) -> float:
        return max(self.eta * self.longest, self.differences.pad)

    def pairs(self, width: int) -> int:
        return int(self.oversample * (width * (width + 1) // 2 + 1)) + 4

    def cost(self, width: int, known: int = 0) -> int:
        return 2 * self.pairs(width)

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        xi = self.rng.standard_normal((self.pairs(width), width))
        length = np.linalg.norm(xi, axis=1, keepdims=True)
        xi *= np.minimum(1.0, self.longest / length)
        design = np.column_stack([np.ones(len(xi)), squares(xi) - _trace_mean(width)]) * (self.eta**2 / 2.0)
        solve = np.asarray(np.linalg.pinv(design), dtype=np.float64)
        found, misfit = [], []
        for x in points:
            turn = random_basis(width, width, self.rng)
            u = self.eta * xi @ turn @ self.differences.basis[:width]
            plus, minus = np.split(self.ask(np.concatenate([x + u, x - u])), 2)
            even = (plus + minus) / 2.0
            coefficients = _regress(design, solve, even)
            left = even - design @ coefficients
            misfit.append(np.nansum(left**2) / max(1, np.isfinite(left).sum() * (1.0 - 1.0 / self.oversample)))
            matrix = unpack(coefficients[1:].T)
            found.append(pack(turn.T @ matrix @ turn))
        worst = max(float(np.median(misfit)), self.noise**2 / 2.0)
        spread = np.sqrt(worst / (2.0 * max(1, len(xi) - design.shape[1])))
        return np.stack(found), float(2.0 * spread / self.eta**2)

    def mixed_cost(self, rows: int, columns: int) -> int:
        return self.differences.mixed_cost(rows, columns)

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        return self.differences.mixed(points, rows, columns)


def _trace_mean(width: int) -> Floats:
    """E squares(ξ): the packed identity."""
    return pack(np.eye(width))


def _regress(design: Floats, solve: Floats, values: Floats) -> Floats:
    good = np.isfinite(values).all(axis=1)
    if good.all():
        return solve @ values
    if good.sum() < 1.1 * design.shape[1]:
        return np.full((design.shape[1], values.shape[1]), np.nan)
    return np.asarray(np.linalg.lstsq(design[good], values[good], rcond=None)[0])


def _parts(count: int, rows: int) -> list[slice]:
    size = max(1, _ROWS // max(rows, 1))
    return [slice(start, start + size) for start in range(0, count, size)]


@dataclass(frozen=True)
class Sizes:
    """How large second, third and fourth derivatives of f along random pairs of directions are."""

    second: float
    third: float
    fourth: float
    largest: float
    """Second derivatives again, but as a root mean square."""

    @classmethod
    def none(cls) -> Sizes:
        return cls(0.0, 0.0, 0.0, 0.0)

    def forward(self, noise: float, most: float) -> tuple[float, float]:
        """Step and error of one-sided pair nodes, h·third/2 + 2.5σ/h²: twice the step at which that is least, as
        most of the first term is taken off later (`lean`) and nothing of the second.
        """
        h = min(most, 2.0 * (10.0 * noise / max(self.third, 1e-300)) ** (1.0 / 3.0))
        return h, h * self.third / 2.0 + 2.5 * noise / h**2

    def centred(self, noise: float, most: float) -> tuple[float, float]:
        """Step and error of two-sided pair nodes: h²·fourth + 2σ/h² at its least."""
        h = min(most, (2.0 * noise / max(self.fourth, 1e-300)) ** 0.25)
        return h, h**2 * self.fourth + 2.0 * noise / h**2

    def gradient(self, noise: float, most: float) -> tuple[float, float]:
        """Step and error of one-sided differences of gradients: h·third/2 + 1.4σ/h."""
        h = min(most, (2.8 * noise / max(self.third, 1e-300)) ** 0.5)
        return h, h * self.third / 2.0 + 1.4 * noise / h


def derivative_sizes(
    ask: Callable[[Floats], Floats], setting: Setting, points: Floats, step: float, rng: np.random.Generator
) -> Sizes:
    """Sizes from 13 queries at a point: centred stencils of `step` and half of it for one random pair."""
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
    coarse, tilt = _cross(values[:, 1:7])
    fine, _ = _cross(values[:, 7:])
    noise = setting.noise / step**2
    second = _typical(coarse / step**2, 2.0 * noise)
    third = _typical(2.0 * tilt / step**3, 4.0 * noise / step)
    fourth = _typical((coarse - 4.0 * fine) / (0.75 * step**4), 8.0 * noise / step**2)
    # what noise drowns is guessed: along a line f bends at a fifth of its bandwidth or so
    wave = setting.bandwidth / 5.0
    third = third if 4.0 * noise / step < second * wave else second * wave
    fourth = fourth if 8.0 * noise / step**2 < second * wave**2 else second * wave**2
    return Sizes(second, third, fourth, _overall(coarse / step**2, 2.0 * noise))


def _cross(v: Floats) -> tuple[Floats, Floats]:
    """h²∂_p∂_q f from values at ±p, ±q, ±(p+q) less the centre's, and half the gap of its one-sided kin."""
    even = (v[:, 0] + v[:, 1] + v[:, 2] + v[:, 3]) / 2.0
    odd = (v[:, 0] - v[:, 1] + v[:, 2] - v[:, 3]) / 2.0
    return (v[:, 4] + v[:, 5]) / 2.0 - even, (v[:, 4] - v[:, 5]) / 2.0 - odd


def _typical(values: Floats, noise: float) -> float:
    """Over points the middle, over outputs the root mean square, less what noise alone would show."""
    rms = np.sqrt(np.mean(values**2, axis=1))
    rms = rms[np.isfinite(rms)]
    middle = 1.5 * float(np.median(rms)) if len(rms) else 0.0
    return float(np.sqrt(max(middle**2 - noise**2, 0.0)))


def _overall(values: Floats, noise: float) -> float:
    """The root mean square over all, which a few kinks can raise, less what noise alone would show."""
    values = values[np.isfinite(values)]
    power = float(np.mean(values**2)) if len(values) else 0.0
    return float(np.sqrt(max(power - noise**2, 0.0)))
