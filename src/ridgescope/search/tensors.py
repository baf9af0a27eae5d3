"""Directions from third and higher derivatives, if there are too many features for second ones.

    ∇^k f(x) = Σ_i s_i^(k)(v_i·x) v_i^{⊗k}

A span of n squares v_i v_iᵀ has other rank-one members once n > d(d+1)/2 − d: the rank is still visible, the
directions are not. Powers of order k have D = C(d+k−1, k) dimensions, and are the only rank-one members up to about
D − d: third derivatives separate d³/6 features, fourth ones d⁴/24. The search is that of `curvature` at a higher order:
the singular values of many tensors drop after the n-th, and the rank-one members of their span are the features.

*Packed tensors.* A symmetric tensor of order k in R^r is a row of D numbers. That of v^{⊗k} has one for each monomial
of degree k, √(k!/α!) v^α, so that inner products are those of tensors: p(v)·p(w) = (v·w)^k, and

    |p(v)| = |v|^k,      p'(v)ᵀ p'(v) = k|v|^(2k−2) I + k(k−1)|v|^(2k−4) v vᵀ,      p'(v)ᵀ p(v) = k|v|^(2k−2) v.

`rank_one` does this for k = 2, efficiently for spaces of thousands of matrices.

*Stencil.* The part of f(x ± hu) that is odd in u, or even, is a sum of tensors of the orders k, k−2, … and of order
k+2, which is neglected, an error in h². As many pairs ±u as there are unknowns are chosen from a pool by a pivoted QR.
An error σ of every answer becomes one of about amplified·σ/h^k; h balances the two. The actual error is measured by
comparing two steps at some points.

*Restriction and lift.* In a random subspace of width r with orthonormal rows Q the same holds for w_i = Q v_i, and r
with D(r) − r > n is enough. Tensors then have about n entries, and cost n² queries in all. With ŵ_i = w_i/|w_i|,
c_i(x) = s_i^(k)(v_i·x)|w_i|^k follows from the restricted tensors by least squares. Differences of tensors of order k−1
along a direction e outside the subspace are

    ∂_e ∇_Q^{k−1} f(x) = Σ_i c_i(x) ŵ_i^{⊗(k−1)} (u_i·e),        u_i = v_i/|w_i|,

linear in the one unknown u_i·e of every feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import comb, factorial
from typing import ClassVar

import numpy as np
from scipy.linalg import qr

from ..geometry import Floats, random_basis, random_directions, unit
from .base import Ask, Meter, Proposal, Setting, informative_points, parameter_cost, points_in_shell
from .hessians import DerivativeSample, lifted, unless_many
from .nearly_full import members_and_others
from .rank_one import MEMBERS, Space, members

_SAME_SPACE = 1e-3  # least error of a direction that is allowed for
_OUTSIDE = 0.1  # singular values of directions outside their subspace, in those of directions in general position
_POOL, _SHORTEST = 4, 0.3  # candidates per offset, and the shortest offset: different lengths separate the orders


@dataclass(frozen=True)
class TensorSettings:
    """The search by higher derivatives; empirical where no reason is given, checked by the recovery benchmark."""

    times: int = 3  # features that one call is to pay for, over the entries of a Hessian
    fewest: int = 60  # least number of features to pay for
    orders: tuple[int, ...] = (3, 4, 5)  # orders tried; rounding leaves too little of sixth derivatives
    largest: int = 2500  # entries of a tensor; singular values of more take minutes
    longest_step: float = 0.3  # step times bandwidth beyond which the neglected order is a large error
    longest_share: float = 0.1  # longest step as a share of the ball
    balance: float = 2.0  # step over that of equal bias and noise, as the bandwidth overestimates derivatives
    room: float = 1.25  # dimensions per feature in a restricted space
    next_room: float = 2.0  # the same after one was too small: the next costs as much as all before
    sample_share: float = 0.6  # share of the queries for a restricted sample; the others are for the lift
    spare_rows: int = 6  # rows beyond the rank when singular values are computed
    growth: int = 10  # one point in this many is added before they are computed again
    steady_drop: float = 100.0  # a clear drop of the singular values; for it
    steady: float = 1.1  # this many rows per rank average out the errors of the weakest member
    steadier: float = 1.25  # rows per rank if the drop is smaller
    oversample: float = 3.0  # equations per unknown of a lift


def packed_size(width: int, order: int) -> int:
    """Return the number of entries of a packed symmetric tensor."""
    return comb(width + order - 1, order)


def most_apart(width: int, order: int) -> int:
    """Return the largest n for which n generic powers v^{⊗k} are the only powers in their span.

    The powers are a cone of dimension r. A space of D − r dimensions meets it only in the powers that span it. One of
    D − r + 1 dimensions meets it in k^(r−1) lines, no others if that number is at most its dimension.
    """
    room = packed_size(width, order) - width
    return room + int(order ** (width - 1) <= room + 1)


def filled_block(directions: Floats, order: int, drop: float) -> int:
    """Return k if n directions (n, r), as many as the rank, lie in k < r dimensions whose tensors they fill; else 0.

    Any power of a vector of these k dimensions is a member then, and f no sum of n features. Members are off by 1/drop
    or so, the error of the span, which gives their matrix singular values of up to √n/drop outside the k dimensions.
    """
    n, width = directions.shape
    k = next(k for k in range(width + 1) if packed_size(k, order) >= n)
    if k == width or n <= most_apart(k, order):
        return 0
    outside = float(np.linalg.svd(directions, compute_uv=False)[k:].max(initial=0.0))
    return k if outside <= np.sqrt(n) * min(max(1.0 / drop, _SAME_SPACE), _OUTSIDE / np.sqrt(width)) else 0


@dataclass(frozen=True, eq=False)
class Powers:
    """The map v → v^{⊗k} to packed tensors, built by `powers(width, order)`."""

    width: int
    order: int
    axes: tuple[Floats, ...]
    """k matrices (D, r): row i of the s-th is the unit vector of the s-th factor of monomial i."""
    weight: Floats
    """(D,) weights √(k!/α!) of the monomials."""

    def of(self, v: Floats) -> Floats:
        """Return the packed powers (m, D) of vectors (m, r)."""
        return np.asarray(self.weight * np.prod([v @ e.T for e in self.axes], axis=0))

    def slope(self, v: Floats) -> Floats:
        """Return the derivative of `of`, (m, D, r)."""
        return np.asarray(sum(part[:, :, None] * e for part, e in zip(self._parts(v), self.axes, strict=True)))

    def applied(self, tensors: Floats, v: Floats) -> Floats:
        """Return T v^{k−1}, (m, r), for packed tensors T (m, D)."""
        parts = zip(self._parts(v), self.axes, strict=True)
        return np.asarray(sum((tensors * part) @ e for part, e in parts) / self.order)

    def _parts(self, v: Floats) -> list[Floats]:
        """Return the weighted monomials without their s-th factor, (m, D) for each s."""
        factors = [v @ e.T for e in self.axes]
        others = (factors[:s] + factors[s + 1 :] for s in range(self.order))
        return [
            self.weight * np.prod(rest, axis=0) if rest else np.broadcast_to(self.weight, factors[0].shape)
            for rest in others
        ]


@cache
def powers(width: int, order: int) -> Powers:
    """Return the map to packed powers of that order in R^width."""
    monomials = np.array(list(combinations_with_replacement(range(width), order)), dtype=np.intp).reshape(-1, order)
    exponents = (monomials[:, :, None] == np.arange(width)).sum(axis=1)
    orders = np.array([factorial(a) for a in range(order + 1)], dtype=np.float64)
    weight = np.sqrt(orders[order] / np.prod(orders[exponents], axis=1))
    return Powers(width, order, tuple(np.eye(width)[column] for column in monomials.T), weight)


@dataclass(frozen=True, eq=False)
class PowerSpace(Space):
    """A space of tensors of any order; F(v) = ‖P(v^{⊗k})‖²."""

    powers: Powers

    @property
    def width(self) -> int:
        return self.powers.width

    def packed(self, vectors: Floats) -> Floats:
        return self.powers.of(vectors)

    def starts(self, known: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Return random vectors, half of them after some iterations in the complement of the known members."""
        starts = random_directions(count, self.width, rng)
        starts[count // 2 :], _ = self.complement(known).power_method(
            starts[count // 2 :], MEMBERS.steps[0], MEMBERS.moved[0]
        )
        return starts

    def step(self, v: Floats) -> tuple[Floats, Floats]:
        """Iterate v ← normalise(P(v^{⊗k}) v^{k−1}) once; return the new rows and F at the old ones."""
        inside = self.powers.of(v) @ self.basis.T
        after = self.powers.applied(inside @ self.basis, v)
        length = np.linalg.norm(after, axis=1, keepdims=True)
        return np.where(length > 0, after / np.maximum(length, 1e-300), v), np.sum(inside**2, axis=1)

    def polish(self, vectors: Floats) -> tuple[Floats, Floats]:
        best, value = vectors.copy(), np.full(len(vectors), -1.0)
        rows, trial = np.arange(len(vectors)), vectors
        for _ in range(MEMBERS.polish_steps):
            inside = self.powers.of(trial) @ self.basis.T
            level = np.sum(inside**2, axis=1)
            better = level > value[rows] + MEMBERS.gained
            rows, trial, inside = rows[better], trial[better], inside[better]
            if len(rows) == 0:
                break
            best[rows], value[rows] = trial, level[better]
            gradient = self.powers.order * (trial - self.powers.applied(inside @ self.basis, trial))
            gradient -= np.sum(gradient * trial, axis=1, keepdims=True) * trial
            delta = -np.linalg.solve(self._stiffness(trial), gradient[:, :, None])[:, :, 0]
            length = np.linalg.norm(delta, axis=1, keepdims=True)
            trial = unit(trial + delta * np.minimum(1.0, MEMBERS.longest / np.maximum(length, 1e-300)))
        return best, value

    def twin_starts(self, vectors: Floats) -> Floats:
        stiffness, tangents = np.linalg.eigh(self._stiffness(vectors))
        soft = stiffness[:, 0] < MEMBERS.weak[0] * self.powers.order
        angles = np.array(MEMBERS.twins)[:, None, None]
        return unit((vectors[soft] + angles * tangents[soft, :, 0]).reshape(-1, self.width))

    def _stiffness(self, v: Floats) -> Floats:
        """Return the (m, r, r) Gauss–Newton matrices p'ᵀ(1 − P)p', made stiff along v to keep steps tangent."""
        slope = np.tensordot(self.basis, self.powers.slope(v), axes=(1, 1)).transpose(1, 0, 2)
        outward = v[:, :, None] * v[:, None, :]
        return np.asarray(
            (self.powers.order + MEMBERS.regular) * np.eye(self.width)
            + MEMBERS.tangent * outward
            - slope.swapaxes(1, 2) @ slope
        )


@dataclass(frozen=True, eq=False)
class Stencil:
    """Measures tensors of one order from differences along the first rows of a basis."""

    powers: Powers
    offsets: Floats
    """(m, r) offsets u, of length at most 1."""
    solve: Floats
    """(D, m) matrix from the odd or even part of f(x ± u) to the tensor of order k."""

    @classmethod
    def of(cls, width: int, order: int, rng: np.random.Generator) -> Stencil:
        """Return a stencil with random offsets that determine the tensor well."""
        parts = [powers(width, k) for k in range(order, 0, -2)]
        unknowns = sum(len(part.weight) for part in parts)
        pool = random_directions(_POOL * unknowns, width, rng)
        pool = pool * rng.uniform(_SHORTEST, 1.0, _POOL * unknowns)[:, None]
        design = np.concatenate([part.of(pool) / factorial(part.order) for part in parts], axis=1)
        chosen = qr(design.T, mode="r", pivoting=True)[1][:unknowns]
        return cls(parts[0], pool[chosen], np.linalg.inv(design[chosen])[: len(parts[0].weight)])

    @property
    def cost(self) -> int:
        """Queries for one tensor."""
        return 2 * len(self.offsets) + self._even

    @property
    def _even(self) -> int:
        """1 for even orders, which also need the value at the centre; else 0."""
        return 1 - self.powers.order % 2

    def step(self, setting: Setting, balance: float) -> float:
        """Return the step at which the neglected order, about (hB)²/((k+1)(k+2)) for a bandwidth B, balances noise."""
        k, amplified = self.powers.order, float(np.linalg.norm(self.solve, axis=1).mean())
        noise = amplified * setting.noise / max(setting.std, setting.noise)
        return float(balance * ((k + 1) * (k + 2) * noise) ** (1.0 / (k + 2)) / max(setting.bandwidth, 1e-9))

    def at(self, ask: Meter, points: Floats, basis: Floats, step: float) -> Floats:
        """Return the packed tensors (N, p, D) at `points`; NaN if answers were dropped."""
        u = step * self.offsets @ basis[: self.powers.width]
        nodes = np.concatenate([u, -u, np.zeros((self._even, u.shape[1]))])
        values = ask((points[:, None, :] + nodes).reshape(-1, u.shape[1])).reshape(len(points), len(nodes), -1)
        plus, minus = values[:, : len(u)], values[:, len(u) : 2 * len(u)]
        part = (plus + minus) / 2.0 - values[:, -1:] if self._even else (plus - minus) / 2.0
        return np.asarray(np.einsum("dm,nmp->npd", self.solve, part, optimize=True) / step**self.powers.order)


@dataclass(frozen=True)
class Tensors:
    """Directions from third and higher derivatives: for more smooth responses than `Curvature` can separate."""

    settings: TensorSettings = TensorSettings()
    name: ClassVar[str] = "tensors"

    def cost(self, setting: Setting) -> int:
        """Return the queries for three times as many features as a Hessian has entries, and for at least sixty."""
        entries = self.settings.times * setting.dim * (setting.dim + 1) // 2
        return parameter_cost(max(entries, self.settings.fewest), setting, setting.rounds)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return the directions of more than d(d−1)/2 smooth features, from the lowest order that can separate them."""
        meter, basis = Meter(ask, queries), random_basis(setting.dim, setting.dim, rng)
        return _TensorSearch(meter, setting, self.settings, basis, rng).run()


@dataclass(frozen=True, eq=False)
class _TensorSearch:
    """One call of `Tensors.propose`."""

    meter: Meter
    setting: Setting
    settings: TensorSettings
    basis: Floats
    """(d, d) orthonormal rows; derivatives are taken along the first of them."""
    rng: np.random.Generator

    def run(self) -> Proposal:
        """Measure tensors, find the rank-one members of their span, lift them to d dimensions and return them."""
        first = self._first_clear()
        if isinstance(first, str):
            return Proposal.empty(self.setting, first)
        stencil, step, sample = first
        power, d = stencil.powers, self.setting.dim
        s, n = sample.span.singular, sample.span.rank
        note = f"{len(sample.points)} derivatives of order {power.order} of width {power.width}, "
        note += f"singular values drop after {n} ({s[n - 1]:.1e} to {s[n]:.1e})"
        narrow = power.width == d and n > most_apart(d, power.order) / self.settings.room
        # if dimensions are scarce other vectors come close to being members; the fit removes them
        space = PowerSpace(sample.span.basis, power)
        found = (members_and_others if narrow else members)(space, self.rng, accept=sample.span.acceptance)
        vectors, inside = found.vectors, found.inside
        note += f"; {len(vectors)} rank-one members in {found.rounds} rounds"
        directions = self._lifted(stencil, step, sample, vectors)
        if directions is None:
            return Proposal.empty(self.setting, note + "; too few queries left to lift them")
        complete, drop = len(vectors) == n and not narrow, sample.span.drop
        found_in_ball = directions @ self.basis
        return Proposal(found_in_ball, inside, note, angle_error=1.0 / drop, rank=n, complete=complete, drop=drop)

    def _first_clear(self) -> tuple[Stencil, float, DerivativeSample] | str:
        """Return stencil, step and sample of the first tensors whose singular values drop, or why there are none.

        Wider subspaces are tried first, then higher orders.
        """
        s, setting, d = self.settings, self.setting, self.setting.dim
        n, wanted = most_apart(d, 2) + 1, s.room  # n: a lower bound for the number of features
        for order in s.orders:
            for width in range(2, d + 1):
                room = most_apart(width, order)
                if room < (n if width == d else wanted * n):
                    continue
                if packed_size(width, order) > s.largest:
                    return f"more than {n - 1:,} features, too many for derivatives of order {order}"
                pairs = sum(packed_size(width, k) for k in range(order, 0, -2))
                if 2 * pairs * (n / setting.outputs) > self.meter.left:
                    return f"{self.meter.left:,} queries are too few for derivatives of order {order} of width {width}"
                stencil = Stencil.of(width, order, self.rng)
                step = min(stencil.step(setting, s.balance), s.longest_share * setting.edge)
                if step * setting.bandwidth > s.longest_step:
                    return f"too much noise for derivatives of order {order}"
                sample = self._sample(stencil, step, n)
                if sample is not None:
                    return stencil, step, sample
                n, wanted = room + 1, s.next_room
        return f"the singular values of derivatives up to order {s.orders[-1]} do not drop"

    def _sample(self, stencil: Stencil, step: float, n: int) -> DerivativeSample | None:
        """Return tensors of n or more features at more and more points until their singular values drop; else None."""
        s, meter, p, width = self.settings, self.meter, self.setting.outputs, stencil.powers.width
        most = most_apart(width, stencil.powers.order)
        share = 1.0 if width == self.setting.dim else s.sample_share
        points, tensors = np.empty((0, self.setting.dim)), np.empty((0, p, len(stencil.solve)))
        error, wanted = np.inf, max(2, -(-(n + s.spare_rows) // p))
        while stencil.cost * (wanted + 2 - len(points)) <= share * meter.left:
            fresh = points_in_shell(self.setting, step, wanted - len(points), self.rng)
            new = stencil.at(meter, fresh, self.basis, step)
            if not len(points):
                error = _error(new[:2], stencil.at(meter, fresh[:2], self.basis, step / np.sqrt(2.0)))
            points, tensors = np.concatenate([points, fresh]), np.concatenate([tensors, new])
            sample = DerivativeSample.of(points, tensors, error, floor=-1.0)
            rows, span = p * len(sample.points), sample.span
            steady = (s.steady if span.drop > s.steady_drop else s.steadier) * span.rank
            if span.clear and span.rank <= most and rows >= steady:
                return sample if span.rank else None
            if rows > s.steadier * most + s.spare_rows or (span.rank > most and rows > most + s.spare_rows):
                return None
            wanted += max(1, wanted // s.growth)
        return None

    def _lifted(self, stencil: Stencil, step: float, sample: DerivativeSample, vectors: Floats) -> Floats | None:
        """Return (n, d) directions in the coordinates of the basis; None if the lift cannot be paid for."""
        power, (n, width), meter = stencil.powers, vectors.shape, self.meter
        outside = self.basis[width:]
        if not len(outside) or not n:
            return vectors
        lower = Stencil.of(width, power.order - 1, self.rng)
        N, p, size = sample.tensors.shape
        left = unless_many(PowerSpace(sample.span.basis, power).complement(vectors).basis, n)
        each, unknowns = p * len(lower.solve), n + len(left) * len(lower.solve)
        count = min(N, -(-int(self.settings.oversample * unknowns) // each) + 2)
        if 2 * count * len(outside) * lower.cost > meter.left or count * each < unknowns:
            return None
        known = np.concatenate([power.of(vectors), left])
        bends = _lstsq(known.T, sample.tensors.reshape(-1, size).T).T.reshape(N, p, -1)
        chosen = informative_points(bends[:, :, :n], count)
        x = sample.points[chosen]
        ahead, behind = (
            np.stack([lower.at(meter, x + t * e, self.basis, step) for e in outside], axis=-1) for t in (step, -step)
        )
        change = (ahead - behind) / (2.0 * step)
        whole = np.isfinite(change).all(axis=(1, 2, 3))
        if whole.sum() * each < unknowns:
            return None
        return lifted(vectors, bends[chosen][whole], lower.powers.of(vectors), change[whole], _lstsq)


def _error(coarse: Floats, fine: Floats) -> float:
    """Return the root mean square error of an entry, from tensors measured with two steps."""
    gap = (coarse - fine)[np.isfinite(coarse - fine)]
    return float(np.sqrt(np.mean(gap**2))) if len(gap) else np.inf


def _lstsq(design: Floats, target: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(design, target, rcond=None)[0], dtype=np.float64)
