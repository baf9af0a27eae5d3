"""Second derivatives of f from values, gradients or Gaussian averages; samples of derivatives and their span.

All three sources work along the first `width` rows q_1, q_2, … of an orthonormal `basis`: the Hessian of
f restricted to a random subspace costs width²/2 queries instead of d²/2.

**Differences.** With the axis nodes f(x ± h q_i), odd part o_i and even part e_i of f(x ± h q_i) − f(x),
one more node for every pair gives

    h² ∂_i∂_j f ≈ f(x + h q_i + h q_j) − f(x) − o_i − o_j − e_i − e_j,  error (h/2)(∂_i²∂_j + ∂_i∂_j²) f,
    h² ∂_i²  f ≈ 2 e_i,                                                error (h²/12) ∂_i⁴ f,

1 + w + w(w+1)/2 queries in all, as few as a quadratic has coefficients. Averaging over ±(q_i + q_j)
(`centred`) cancels the first-order error for twice the queries. An error σ in every answer adds about
2σ/h²; `stencil_bias` balances the two. Centred stencils of a higher `order` m use the even parts at h, 2h, …, (m/2)h,
with the weights of the classical central differences, so that the error is of order h^m: where noise is the limit,
steps may then be nearly as long as the scale on which f bends.

**Gradients.** (∇f(x + h q_i) − ∇f(x))/h ≈ ∇²f(x) q_i is a row of the Hessian in the basis, for one query.

**Smoothed.** f_η(x) = E f(x + ηξ) with Gaussian ξ is again b + a·x + Σ s_{i,η}(v_i·x), with the same
directions and smooth responses even if the s_i have kinks. The even part of f(x + ηξ) is regressed on 1
and the products ξ_jξ_k; under the Gaussian these are orthogonal to all higher even polynomials, so the
regression is consistent for

    η²/2 · ∇²f_η(x) = ½ E[(ξξᵀ − I) f(x + ηξ)],

and noise averages out over the samples. The same design is used at every point, rotated at random each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..deadline import check_time, spend
from ..geometry import Floats, random_basis, unit
from .base import Meter, Setting
from .central import weights
from .numerical_span import Span, span_of
from .rank_one import pack, packed_side, squares, unpack
from .stencil_bias import DerivativeSizes

Indices = NDArray[np.intp]
Solver = Callable[[Floats, Floats], Floats]
"""Maps a design (m, k) and right-hand sides (m, c) to least-squares solutions (k, c)."""
_BLOCK = 20_000  # rows asked at once, so that a stencil at many points does not fill the memory
_SPIKE = 30.0  # multiple of the median over points above which a stencil counts as crossing a kink. Empirical
_MISSED_SHARE, _MISSED = 0.1, 2  # members that a search may have missed: this share of those found, plus 2. Empirical
_OVERSAMPLE, _SPARE = 4.0, 4  # pairs per unknown of the regression, and spare pairs. Empirical: fewer increase errors
_LEAST_SAMPLED = 1.1  # answered pairs per unknown below which a Hessian is given up
_MISFIT = 0.3  # relative error of a quadratic fitted to sin kz smoothed over η, in units of (kη)²
_NOISE = 1.4  # √2 = (1/√2)/½: the mean of a pair has noise σ/√2, and the curvature enters as η²/2
_WIDEST, _NARROWEST = 0.5, 0.4  # largest share of the ball for smoothing, and its least width in 1/k. Empirical


@dataclass(frozen=True, eq=False)
class Differences:
    """Hessians from second differences of values."""

    ask: Meter
    basis: Floats
    step: float
    centred: bool
    error: float
    finer: Differences | None = None
    """Centred differences with their own step, if these are one-sided."""
    order: int = 2
    """Power of the step that the error of centred ones grows with."""

    @property
    def name(self) -> str:
        """The name of these Hessians in a note."""
        if self.order > 2:
            return f"Hessians of order {self.order}"
        return "centred Hessians" if self.centred else "Hessians"

    @property
    def pad(self) -> float:
        """Distance of the farthest node from its point."""
        return float(np.sqrt(2.0) * self.step) * self._weights.size

    @property
    def _weights(self) -> Floats:
        """(order/2,) weights of the even parts at 1, 2, … steps."""
        return weights(self.order // 2)

    @property
    def _nodes_each(self) -> int:
        """Queries for each pair of directions."""
        return self.order if self.centred else 1

    def cost(self, width: int, known: int = 0) -> int:
        """Return the queries for one Hessian of that width if its leading known × known block is given."""
        pairs = (width * (width - 1) - known * (known - 1)) // 2
        return 1 + self.order * width + pairs * self._nodes_each

    def hessians(self, points: Floats, width: int, known: Floats | None = None) -> tuple[Floats, float]:
        """Return packed Hessians (N, p, D) and the error of an entry; NaN if answers were dropped.

        `known` holds packed Hessians of a smaller width at the same points, which are not measured again.
        """
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
        """Return the queries that `mixed` needs for one point."""
        return 1 + self.order * (rows + columns) + rows * columns * self._nodes_each

    def mixed(self, points: Floats, rows: Indices, columns: Indices) -> Floats:
        """Return (N, p, rows, columns) derivatives along pairs of distinct basis rows."""
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
        """Return f(x) (N, 1, p), and the odd and even parts of f(x ± h q_i) − f(x), each (N, k, p)."""
        u = self.step * self.basis[which]
        if self.order > 2:
            centre = self._at(points, np.zeros((1, points.shape[1])))
            even = self._even(points, u, centre)
            return centre, np.zeros_like(even), even
        values = self._at(points, np.concatenate([np.zeros((1, points.shape[1])), u, -u]))
        centre = values[:, :1]
        plus, minus = np.split(values[:, 1:] - centre, 2, axis=1)
        return centre, (plus - minus) / 2.0, (plus + minus) / 2.0

    def _even(self, points: Floats, offsets: Floats, centre: Floats) -> Floats:
        """Return (N, m, p) half the second derivatives along m offsets, times their squared lengths."""
        total = np.zeros(())
        for k, weight in enumerate(self._weights, start=1):
            plus, minus = self._at(points, k * offsets), self._at(points, -k * offsets)
            total = total + 0.5 * weight * ((plus - centre) + (minus - centre))
        return np.asarray(total)

    def _pairs(
        self, points: Floats, i: Indices, j: Indices, parts: tuple[Floats, Floats, Floats], along: Floats
    ) -> Floats:
        """Return (N, pairs, p) derivatives along rows i and j of `along`, given the result of `_axes` for them."""
        axes, (centre, odd, even) = self.step * along, parts
        if self.order > 2:
            cross = self._even(points, axes[i] + axes[j], centre) - even[:, i] - even[:, j]
            return np.asarray(cross / self.step**2)
        base = centre + even[:, i] + even[:, j]
        cross = self._at(points, axes[i] + axes[j]) - base - odd[:, i] - odd[:, j]
        if self.centred:
            cross = (cross + self._at(points, -axes[i] - axes[j]) - base + odd[:, i] + odd[:, j]) / 2.0
        n, k = np.nonzero(np.isnan(cross).any(axis=2) & np.isfinite(base).all(axis=2))
        if 0 < len(n) * (1 + self.centred) <= self.ask.left:
            # for dropped answers use the pair q_i, −q_j, whose derivative has the opposite sign
            u, slope = axes[i[k]] - axes[j[k]], odd[n, i[k]] - odd[n, j[k]]
            other = self.ask(points[n] + u) - base[n, k] - slope
            if self.centred:
                other = (other + self.ask(points[n] - u) - base[n, k] + slope) / 2.0
            cross[n, k] = -other
        return np.asarray(cross / self.step**2)

    def _at(self, points: Floats, offsets: Floats) -> Floats:
        """Return the (N, m, p) answers at N points plus each of m offsets."""
        nodes = points[:, None, :] + offsets
        answers = self.ask(nodes.reshape(-1, points.shape[1]))
        return answers.reshape(len(points), len(offsets), answers.shape[1])  # in one dimension there may be no offsets


@dataclass(frozen=True, eq=False)
class Gradients:
    """Hessians from first differences of gradients, with the methods of `Differences`."""

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
        """Return (N, p, rows, columns) second derivatives along the basis rows `rows` and `columns`."""
        offsets = np.concatenate([np.zeros((1, points.shape[1])), self.step * self.basis[rows]])
        nodes = (points[:, None, :] + offsets).reshape(-1, points.shape[1])
        gradients = self.ask(nodes) @ self.basis[columns].T
        gradients = gradients.reshape(len(points), len(offsets), -1, len(columns))
        return np.asarray((gradients[:, 1:] - gradients[:, :1]).swapaxes(1, 2) / self.step)


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Hessians of f smoothed by a Gaussian, by regression on antithetic pairs, with the methods of `Differences`."""

    differences: Differences
    """The source of mixed derivatives, of which a lift averages many."""
    eta: float
    longest: float
    """Upper limit of |ξ|, which bounds the distance of the nodes."""
    rng: np.random.Generator
    noise: float = 0.0
    """Noise of one answer, a lower limit for the misfit of the regression."""
    oversample: float = _OVERSAMPLE

    @classmethod
    def of(
        cls, differences: Differences, sizes: DerivativeSizes, setting: Setting, rng: np.random.Generator
    ) -> Smoothed:
        """Choose the width η at which the misfit of a quadratic, about 0.3(kη)² for sin kz, equals the noise."""
        d, wave = setting.dim, setting.wave
        longest = float(np.sqrt(d) + 2.0)  # |ξ| is √d with deviation 0.7, so that very few are cut
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
        """Return the number of pairs x ± ηξ for one Hessian of that width."""
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
    """Return the coefficients for values (m, p) by the design's pseudoinverse `solve`; NaN if answers are too few."""
    good = np.isfinite(values).all(axis=1)
    if good.all():
        return solve @ values
    if good.sum() < _LEAST_SAMPLED * design.shape[1]:
        return np.full((design.shape[1], values.shape[1]), np.nan)
    return np.asarray(np.linalg.lstsq(design[good], values[good], rcond=None)[0])


def _parts(count: int, rows: int) -> list[slice]:
    """Split `count` points into slices whose stencils, of `rows` queries each, fit into one block."""
    size = max(1, _BLOCK // max(rows, 1))
    return [slice(start, start + size) for start in range(0, count, size)]


@dataclass(frozen=True, eq=False)
class DerivativeSample:
    """Derivatives of one order at some points, and the space that they span."""

    points: Floats
    tensors: Floats
    """(N, p, D) packed derivatives."""
    error: float
    """Error of one entry."""
    span: Span
    full: bool = False
    """True if the derivatives appear to fill the whole space of symmetric tensors."""

    @classmethod
    def of(cls, points: Floats, tensors: Floats, error: float, *, floor: float) -> DerivativeSample:
        """Return the sample without dropped answers and without spikes caused by kinks.

        A stencil across a kink gives a power of 1/h instead of a derivative and hides all others. A point is dropped if
        its norm exceeds 30 times the median of the norms above `floor`.
        """
        norm = np.sqrt(np.mean(tensors**2, axis=(1, 2)))
        good = np.isfinite(norm)
        typical = norm[good & (norm > floor)]
        if len(typical):
            good &= norm <= _SPIKE * np.median(typical)
        points, tensors = points[good], tensors[good]
        check_time()
        spend(tensors.size * tensors.shape[2] / 2 + tensors.shape[2] ** 3)
        return cls(points, tensors, error, span_of(tensors.reshape(-1, tensors.shape[2]), error))

    @property
    def size(self) -> int:
        """D, the numbers in a packed tensor."""
        return int(self.tensors.shape[2])

    @property
    def width(self) -> int:
        """The width r of the subspace, for derivatives of order two."""
        return packed_side(self.size)

    @property
    def rows(self) -> Floats:
        """The (N·p, D) packed derivatives of all points and outputs."""
        return self.tensors.reshape(-1, self.size)


def unless_many(left: Floats, found: int) -> Floats:
    """Return the unexplained members `left` of a span if they are few (missed features), or none if many (errors)."""
    return left if len(left) <= _MISSED_SHARE * found + _MISSED else left[:0]


def lifted(vectors: Floats, bends: Floats, lower: Floats, values: Floats, solve: Solver) -> Floats:
    """Return (n, d) unit vectors whose first w coordinates are parallel to `vectors` (n, w).

    `bends` (x, p, n + k) are the curvatures of n features and of k further members of the span, which absorb unknown
    features; `lower` (n, D') are powers of `vectors` of one order less. `values` (x, p, D', d − w) are derivatives of
    that order inside the subspace and once more along a direction e outside of it:

        values_e = Σ_i bends_i lower_i (u_i·e) + Σ_k bends_k (an unknown tensor for every k and e).
    """
    n, each = lower.shape
    known = bends[:, :, None, :n] * lower.T
    other = bends[:, :, None, n:, None] * np.eye(each)[:, None, :]
    design = np.concatenate([known, other.reshape(*known.shape[:3], -1)], axis=3)
    rest = solve(design.reshape(-1, design.shape[3]), values.reshape(-1, values.shape[3]))[:n]
    return unit(np.concatenate([vectors, rest], axis=1))
