"""Second derivatives of f from values, from gradients, and through a Gaussian; samples of derivatives and their span.

All three sources work along the first `width` rows q_1, q_2, … of an orthonormal `basis`: the Hessian of
f restricted to a random subspace costs width²/2 queries instead of d²/2.

**Differences.** With the axis nodes f(x ± h q_i), odd part o_i and even part e_i of f(x ± h q_i) − f(x),
one more node for every pair gives

    h² ∂_i∂_j f ≈ f(x + h q_i + h q_j) − f(x) − o_i − o_j − e_i − e_j,  error (h/2)(∂_i²∂_j + ∂_i∂_j²) f,
    h² ∂_i²  f ≈ 2 e_i,                                                error (h²/12) ∂_i⁴ f,

1 + w + w(w+1)/2 queries in all, as few as a quadratic has coefficients. Averaging over ±(q_i + q_j)
(`centred`) cancels the first-order error for twice the queries. An error σ in every answer adds about
2σ/h²; `stencil_bias` weighs the two.

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

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_basis, unit
from .base import Meter, Setting
from .rank_one import Span, pack, packed_side, span_of, squares, unpack
from .stencil_bias import DerivativeSizes

Indices = NDArray[np.intp]
Solver = Callable[[Floats, Floats], Floats]
"""Design (m, k) and right-hand sides (m, c) to least-squares solutions (k, c)."""
_BLOCK = 20_000  # rows asked at once, so that a stencil at many points does not fill the memory
_SPIKE = 30.0  # times the median over points, above which a stencil lies across a kink. Empirical
_MISSED_SHARE, _MISSED = 0.1, 2  # members that a search may have missed, over those found, and besides. Empirical
_OVERSAMPLE, _SPARE = 4.0, 4  # pairs per unknown of the regression, and more. Empirical: fewer add to the errors
_LEAST_SAMPLED = 1.1  # the same where answers were dropped, below which a Hessian is given up
_MISFIT = 0.3  # of a quadratic to sin kz smoothed over η, in (kη)² of its curvature
_NOISE = 1.4  # √2: what pairs of answers make of the noise of one
_WIDEST, _NARROWEST = 0.5, 0.4  # most of the ball that smoothing takes up, and its least width in 1/k. Empirical


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
        """What to call the Hessians in a note."""
        return "centred Hessians" if self.centred else "Hessians"

    @property
    def pad(self) -> float:
        """How far from a point the nodes lie."""
        return float(np.sqrt(2.0) * self.step)

    def cost(self, width: int, known: int = 0) -> int:
        """Queries for one Hessian of that width when its leading known × known block is at hand."""
        pairs = (width * (width - 1) - known * (known - 1)) // 2
        return 1 + 2 * width + pairs * (1 + self.centred)

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        """Packed Hessians (N, p, D), NaN where answers were dropped, and the error of an entry."""
        side = 0 if known is None else unpack(known[:1, :1]).shape[-1]
        i, j = np.triu_indices(width, 1)
        i, j = i[j >= side], j[j >= side]
        blocks = []
        for part in _parts(len(points), self.cost(width, side)):
            axes = self._axes(points[part], np.arange(width))
            pairs = self._pairs(points[part], i, j, axes, self.basis[:width])
            matrix = np.empty((pairs.shape[0], pairs.shape[2], width, width))
            if known is not None and side:
                matrix[:, :, :side, :side] = unpack(known[part])
            matrix[:, :, i, j] = pairs.transpose(0, 2, 1)
            diagonal = np.arange(width)
            matrix[:, :, diagonal, diagonal] = 2.0 * axes[2].transpose(0, 2, 1) / self.step**2
            blocks.append(pack(matrix))
        return np.concatenate(blocks), self.error

    def mixed_cost(self, rows: int, columns: int) -> int:
        """Queries for one point of `mixed`."""
        return 1 + 2 * (rows + columns) + rows * columns * (1 + self.centred)

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        """(N, p, rows, columns) derivatives along pairs of distinct basis rows."""
        k, m = len(rows), len(columns)
        i, j = (a.ravel() for a in np.meshgrid(np.arange(k), np.arange(k, k + m), indexing="ij"))
        which = np.concatenate([rows, columns])
        blocks = []
        for part in _parts(len(points), self.mixed_cost(k, m)):
            axes = self._axes(points[part], which)
            pairs = self._pairs(points[part], i, j, axes, self.basis[which])
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
        self, points: Floats, i: Indices, j: Indices, parts: tuple[Floats, Floats, Floats], along: Floats
    ) -> Floats:
        """(N, pairs, p) derivatives along the i-th and j-th of the rows `along`, given what `_axes` says of them."""
        axes, (centre, odd, even) = self.step * along, parts
        base = centre + even[:, i] + even[:, j]
        cross = self._at(points, axes[i] + axes[j]) - base - odd[:, i] - odd[:, j]
        if self.centred:
            cross = (cross + self._at(points, -axes[i] - axes[j]) - base + odd[:, i] + odd[:, j]) / 2.0
        n, k = np.nonzero(np.isnan(cross).any(axis=2) & np.isfinite(base).all(axis=2))
        if 0 < len(n) * (1 + self.centred) <= self.ask.left:
            # dropped answers: the pair q_i, −q_j says the same with the other sign
            u, slope = axes[i[k]] - axes[j[k]], odd[n, i[k]] - odd[n, j[k]]
            other = self.ask(points[n] + u) - base[n, k] - slope
            if self.centred:
                other = (other + self.ask(points[n] - u) - base[n, k] + slope) / 2.0
            cross[n, k] = -other
        return np.asarray(cross / self.step**2)

    def _at(self, points: Floats, offsets: Floats) -> Floats:
        nodes = points[:, None, :] + offsets
        answers = self.ask(nodes.reshape(-1, points.shape[1]))
        return answers.reshape(len(points), len(offsets), answers.shape[1])  # in one dimension there may be no offsets


@dataclass(frozen=True, eq=False)
class Gradients:
    """First differences of gradients, with the methods of `Differences`."""

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
    """Hessians of f smoothed by a Gaussian, by regression on `oversample`·D antithetic pairs; methods as above."""

    differences: Differences
    """For mixed derivatives, of which a lift averages many."""
    eta: float
    longest: float
    """|ξ| is cut here, so that all nodes stay near."""
    rng: np.random.Generator
    noise: float = 0.0
    """Of an answer; the misfit of the regression is no less."""
    oversample: float = _OVERSAMPLE

    @classmethod
    def of(
        cls, differences: Differences, sizes: DerivativeSizes, setting: Setting, rng: np.random.Generator
    ) -> Smoothed:
        """With a width at which the misfit of a quadratic, about 0.3(kη)² for sin kz, equals the noise."""
        d, wave = setting.dim, setting.wave
        longest = float(np.sqrt(d) + 2.0)  # |ξ| is √d give or take 0.7: hardly one is cut
        k = np.sqrt(d * sizes.fourth / (3.0 * sizes.second)) if sizes.second > 0 else np.inf
        k = np.clip(k, 0.5 / wave, 1.0 / wave)
        noise = _NOISE * setting.noise / max(d * sizes.second, 1e-300)
        eta = np.clip((noise / (_MISFIT * k**2)) ** 0.25, _NARROWEST / k, wave) if sizes.second > 0 else wave
        return cls(differences, float(min(eta, _WIDEST * setting.edge / longest)), longest, rng, setting.noise)

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
        return int(self.oversample * (width * (width + 1) // 2 + 1)) + _SPARE

    def cost(self, width: int, known: int = 0) -> int:
        return 2 * self.pairs(width)

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        xi = self.rng.standard_normal((self.pairs(width), width))
        length = np.linalg.norm(xi, axis=1, keepdims=True)
        xi *= np.minimum(1.0, self.longest / length)
        mean = pack(np.eye(width))  # of squares(ξ)
        design = np.column_stack([np.ones(len(xi)), squares(xi) - mean]) * (self.eta**2 / 2.0)
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
        error = np.sqrt(worst / (2.0 * max(1, len(xi) - design.shape[1])))
        return np.stack(found), float(2.0 * error / self.eta**2)

    def mixed_cost(self, rows: int, columns: int) -> int:
        return self.differences.mixed_cost(rows, columns)

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        return self.differences.mixed(points, rows, columns)


Source = Differences | Gradients | Smoothed


def _regress(design: Floats, solve: Floats, values: Floats) -> Floats:
    """Coefficients of values (m, p), `solve` being the pseudoinverse of the design; NaN where too few were answered."""
    good = np.isfinite(values).all(axis=1)
    if good.all():
        return solve @ values
    if good.sum() < _LEAST_SAMPLED * design.shape[1]:
        return np.full((design.shape[1], values.shape[1]), np.nan)
    return np.asarray(np.linalg.lstsq(design[good], values[good], rcond=None)[0])


def _parts(count: int, rows: int) -> list[slice]:
    """Points to take at once where each takes so many rows."""
    size = max(1, _BLOCK // max(rows, 1))
    return [slice(start, start + size) for start in range(0, count, size)]


@dataclass(frozen=True, eq=False)
class DerivativeSample:
    """Derivatives of one order at some points, and the space that they span."""

    points: Floats
    tensors: Floats
    """(N, p, D) packed."""
    error: float
    """Of an entry."""
    span: Span
    full: bool = False
    """They fill the whole space of symmetric tensors as far as one can see."""

    @classmethod
    def of(cls, points: Floats, tensors: Floats, error: float, *, floor: float) -> DerivativeSample:
        """Without dropped answers, and without spikes among the points whose derivatives exceed `floor`.

        A stencil across a kink shows powers of 1/h where a derivative should be, and would hide all others.
        """
        norm = np.sqrt(np.mean(tensors**2, axis=(1, 2)))
        good = np.isfinite(norm)
        typical = norm[good & (norm > floor)]
        if len(typical):
            good &= norm <= _SPIKE * np.median(typical)
        points, tensors = points[good], tensors[good]
        return cls(points, tensors, error, span_of(tensors.reshape(-1, tensors.shape[2]), error))

    @property
    def size(self) -> int:
        """D"""
        return int(self.tensors.shape[2])

    @property
    def width(self) -> int:
        """r, for derivatives of order two."""
        return packed_side(self.size)

    @property
    def rows(self) -> Floats:
        """(N·p, D)"""
        return self.tensors.reshape(-1, self.size)


def unless_many(left: Floats, found: int) -> Floats:
    """Members of a span that those found do not account for: missed features if they are few, errors if many."""
    return left if len(left) <= _MISSED_SHARE * found + _MISSED else left[:0]


def lifted(vectors: Floats, bends: Floats, lower: Floats, values: Floats, solve: Solver) -> Floats:
    """(n, d) unit vectors whose first w coordinates are along the given ones (n, w).

    `bends` (x, p, n + k) are the curvatures of n features, and of k further members of the span that take up what
    unknown features do; `lower` (n, D') are powers of the vectors of one order less. The rows of `values`
    (x, p, D', d − w) are derivatives of that order along one of the w directions, and once along another:

        values_e = Σ_i bends_i lower_i (u_i·e) + Σ_k bends_k (an unknown tensor for every k and e).
    """
    n, each = lower.shape
    known = bends[:, :, None, :n] * lower.T
    other = bends[:, :, None, n:, None] * np.eye(each)[:, None, :]
    design = np.concatenate([known, other.reshape(*known.shape[:3], -1)], axis=3)
    rest = solve(design.reshape(-1, design.shape[3]), values.reshape(-1, values.shape[3]))[:n]
    return unit(np.concatenate([vectors, rest], axis=1))
