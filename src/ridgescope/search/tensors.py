"""Directions from third and higher derivatives, where there are too many features for second ones.

    ∇^k f(x) = Σ_i s_i^(k)(v_i·x) v_i^{⊗k}

A span of n squares v_i v_iᵀ has other rank-one members once n > d(d+1)/2 − d: the rank can still be read, the
directions cannot. Powers of order k have D = C(d+k−1, k) dimensions, and theirs are the only ones up to about D − d:
third derivatives tell d³/6 features apart, fourth ones d⁴/24. The search is that of `curvature`, one order up: the
singular values of many tensors drop after the n-th, and the members of rank one of their span are the features.

*Stencil.* The part of f(x ± hu) that is odd in u, or even, is a sum of tensors of the orders k, k−2, … and of order
k+2, which is left out, an error in h². As many pairs ±u as there are unknowns are chosen from a pool by a pivoted QR.
An error σ of every answer becomes one of about amplified·σ/h^k; h weighs the two. How large the error is in fact shows
when some points are looked at with two steps.

*Restriction and lift.* In a random subspace of width r with orthonormal rows Q the same holds for w_i = Q v_i, and r
with D(r) − r > n is enough. Tensors then have about n entries, and cost n² queries in all. With ŵ_i = w_i/|w_i|,
c_i(x) = s_i^(k)(v_i·x)|w_i|^k follows from the restricted tensors by least squares. Differences of tensors of order k−1
along a direction e outside the subspace are

    ∂_e ∇_Q^{k−1} f(x) = Σ_i c_i(x) ŵ_i^{⊗(k−1)} (u_i·e),        u_i = v_i/|w_i|,

linear in the one unknown u_i·e of every feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial
from typing import ClassVar

import numpy as np
from scipy.linalg import qr

from ..geometry import Floats, random_basis, random_directions, unit
from .base import Ask, Meter, Proposal, Setting, informative_points, parameter_cost, points_in_shell
from .powers import Powers, PowerSpace, most_apart, packed_size, powers
from .rank_one import Span, members, span_of

_ORDERS = (3, 4, 5)
"""Sixth derivatives were tried: rounding leaves too little of them."""
_LONGEST = 0.3
"""Steps times bandwidth; beyond, the order left out is no small error."""
_ROOM = 1.25
"""Dimensions for each feature in a restricted space."""
_OVERSAMPLE = 3.0
"""Equations for each unknown of a lift."""


@dataclass(frozen=True, eq=False)
class Stencil:
    """Tensors of one order, from differences along the first rows of a basis."""

    powers: Powers
    offsets: Floats
    """(m, r) u, of length at most 1."""
    solve: Floats
    """(D, m) from the odd or even part of f(x ± u) to the tensor of order k."""

    @classmethod
    def of(cls, width: int, order: int, rng: np.random.Generator) -> Stencil:
        parts = [powers(width, k) for k in range(order, 0, -2)]
        unknowns = sum(len(part.weight) for part in parts)
        pool = random_directions(4 * unknowns, width, rng) * rng.uniform(0.3, 1.0, 4 * unknowns)[:, None]
        design = np.concatenate([part.of(pool) / factorial(part.order) for part in parts], axis=1)
        chosen = qr(design.T, mode="r", pivoting=True)[1][:unknowns]
        return cls(parts[0], pool[chosen], np.linalg.inv(design[chosen])[: len(parts[0].weight)])

    @property
    def cost(self) -> int:
        """Queries for one tensor."""
        return 2 * len(self.offsets) + self._even

    @property
    def _even(self) -> int:
        """Even orders need the centre, too."""
        return 1 - self.powers.order % 2

    def step(self, setting: Setting) -> float:
        """At which the order left out, about (hB)²/((k+1)(k+2)) for a bandwidth B, weighs as much as noise does."""
        k, amplified = self.powers.order, float(np.linalg.norm(self.solve, axis=1).mean())
        noise = amplified * setting.noise / max(setting.std, setting.noise)
        return float(2.0 * ((k + 1) * (k + 2) * noise) ** (1.0 / (k + 2)) / max(setting.bandwidth, 1e-9))

    def at(self, ask: Meter, points: Floats, basis: Floats, step: float) -> Floats:
        """(N, p, D) packed; NaN where answers were dropped."""
        u = step * self.offsets @ basis[: self.powers.width]
        nodes = np.concatenate([u, -u, np.zeros((self._even, u.shape[1]))])
        values = ask((points[:, None, :] + nodes).reshape(-1, u.shape[1])).reshape(len(points), len(nodes), -1)
        plus, minus = values[:, : len(u)], values[:, len(u) : 2 * len(u)]
        part = (plus + minus) / 2.0 - values[:, -1:] if self._even else (plus - minus) / 2.0
        return np.asarray(np.einsum("dm,nmp->npd", self.solve, part, optimize=True) / step**self.powers.order)


@dataclass(frozen=True, eq=False)
class Sheet:
    """Tensors at some points, and their span."""

    stencil: Stencil
    step: float
    points: Floats
    tensors: Floats
    """(N, p, D)"""
    span: Span

    @property
    def powers(self) -> Powers:
        return self.stencil.powers


@dataclass(frozen=True)
class Tensors:
    """Directions from third and higher derivatives."""

    name: ClassVar[str] = "tensors"

    def cost(self, setting: Setting) -> int:
        """As for three times as many features as second derivatives can tell apart, and for sixty where d is small."""
        d = setting.dim
        return parameter_cost(max(3 * d * (d + 1) // 2, 60), setting, setting.rounds)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Directions of more than d(d−1)/2 smooth features, by the lowest order that can tell them apart."""
        return _propose(ask, setting, queries, rng)


def _propose(ask: Ask, setting: Setting, queries: int, rng: np.random.Generator) -> Proposal:
    meter, basis = Meter(ask, queries), random_basis(setting.dim, setting.dim, rng)
    sheet = _first_clear(meter, setting, basis, rng)
    if isinstance(sheet, str):
        return Proposal.empty(setting, sheet)
    s, n = sheet.span.singular, sheet.span.rank
    note = f"{len(sheet.points)} derivatives of order {sheet.powers.order} of width {sheet.powers.width}, "
    note += f"singular values drop after {n} ({s[n - 1]:.1e} to {s[n]:.1e})"
    accept = 1.0 - float(np.clip(30.0 / sheet.span.drop**2, 1e-6, 0.2))
    narrow = sheet.powers.width == setting.dim and n > most_apart(setting.dim, sheet.powers.order) / _ROOM
    # with hardly a dimension to spare others come close to being members; the fit tells them from features
    found = members(PowerSpace(sheet.powers, sheet.span.basis), rng, accept=accept, extra=n if narrow else 0)
    found = found.first(n + n // 8 if narrow else n)
    note += f"; {len(found.vectors)} rank-one members in {found.rounds} rounds"
    directions = _lifted(meter, sheet, found.vectors, basis, rng)
    if directions is None:
        return Proposal.empty(setting, note + "; too few queries left to lift them")
    return Proposal(
        directions @ basis,
        found.inside,
        note,
        angle_error=1.0 / sheet.span.drop,
        rank=n,
        complete=len(found.vectors) == n and not narrow,
    )


def _first_clear(meter: Meter, setting: Setting, basis: Floats, rng: np.random.Generator) -> Sheet | str:
    """Tensors whose singular values drop where they may: wider ones, then higher orders, until some do. Or why not."""
    d = setting.dim
    n, wanted = most_apart(d, 2) + 1, _ROOM  # at least n features
    for order in _ORDERS:
        for width in range(2, d + 1):
            room = most_apart(width, order)
            if room < (n if width == d else wanted * n):
                continue
            pairs = sum(packed_size(width, k) for k in range(order, 0, -2))
            if 2 * pairs * (n / setting.outputs) > meter.left:
                return f"{meter.left:,} queries are too few for derivatives of order {order} of width {width}"
            stencil = Stencil.of(width, order, rng)
            step = min(stencil.step(setting), 0.1 * min(setting.radius, setting.reach))
            if step * setting.bandwidth > _LONGEST:
                return f"too much noise for derivatives of order {order}"
            sheet = _sample(meter, setting, basis, stencil, step, n, rng)
            if sheet is not None:
                return sheet
            n, wanted = room + 1, 2.0  # a step as large as what was spent in vain
    return f"the singular values of derivatives up to order {_ORDERS[-1]} do not drop"


def _sample(
    meter: Meter, setting: Setting, basis: Floats, stencil: Stencil, step: float, n: int, rng: np.random.Generator
) -> Sheet | None:
    """Tensors at more and more points until their singular values drop; there are n features or more."""
    p, most = setting.outputs, most_apart(stencil.powers.width, stencil.powers.order)
    share = 1.0 if stencil.powers.width == setting.dim else 0.6  # the rest is for the lift
    points, tensors = np.empty((0, setting.dim)), np.empty((0, p, len(stencil.solve)))
    error, wanted = np.inf, max(2, -(-(n + 6) // p))
    while stencil.cost * (wanted + 2 - len(points)) <= share * meter.left:
        fresh = points_in_shell(setting, step, wanted - len(points), rng)
        new = stencil.at(meter, fresh, basis, step)
        if not len(points):
            error = _error(new[:2], stencil.at(meter, fresh[:2], basis, step / np.sqrt(2.0)))
        points, tensors = np.concatenate([points, fresh]), np.concatenate([tensors, new])
        sheet = _sheet(stencil, step, points, tensors, error)
        rows = p * len(sheet.points)
        steady = (1.1 if sheet.span.drop > 100.0 else 1.25) * sheet.span.rank
        if sheet.span.clear and sheet.span.rank <= most and rows >= steady:
            return sheet if sheet.span.rank else None
        if rows > 1.25 * most + 6 or (sheet.span.rank > most and rows > most + 6):
            return None
        wanted += max(1, wanted // 10)
    return None


def _sheet(stencil: Stencil, step: float, points: Floats, tensors: Floats, error: float) -> Sheet:
    """Without dropped answers, and without the spikes of kinks."""
    norm = np.sqrt(np.mean(tensors**2, axis=(1, 2)))
    good = np.isfinite(norm)
    good &= norm <= 30.0 * np.median(norm[good]) if good.any() else good
    rows = tensors[good].reshape(-1, tensors.shape[2])
    return Sheet(stencil, step, points[good], tensors[good], span_of(rows, error))


def _error(coarse: Floats, fine: Floats) -> float:
    """Root mean square of an entry's error, from two steps."""
    gap = (coarse - fine)[np.isfinite(coarse - fine)]
    return float(np.sqrt(np.mean(gap**2))) if len(gap) else np.inf


def _lifted(meter: Meter, sheet: Sheet, vectors: Floats, basis: Floats, rng: np.random.Generator) -> Floats | None:
    """(n, d) directions in the coordinates of the basis; None where they cannot be paid for.

    What is left of the span, B_1, B_2, …, takes up what features that are not among the vectors do to the tensors, and
    an unknown tensor of order k−1 for each of them what they do to the differences.
    """
    n, width = vectors.shape
    outside = basis[width:]
    if not len(outside) or not n:
        return vectors
    lower = Stencil.of(width, sheet.powers.order - 1, rng)
    N, p, size = sheet.tensors.shape
    left = PowerSpace(sheet.powers, sheet.span.basis).without(vectors).basis
    left = left if len(left) <= 0.1 * n + 2 else left[:0]
    each, unknowns = p * len(lower.solve), n + len(left) * len(lower.solve)
    count = min(N, -(-int(_OVERSAMPLE * unknowns) // each) + 2)
    if 2 * count * len(outside) * lower.cost > meter.left or count * each < unknowns:
        return None
    known = np.concatenate([sheet.powers.of(vectors), left])
    bends = np.asarray(np.linalg.lstsq(known.T, sheet.tensors.reshape(-1, size).T, rcond=None)[0].T, dtype=np.float64)
    bends = bends.reshape(N, p, 1, -1)
    chosen = informative_points(bends[:, :, 0, :n], count)
    x, h = sheet.points[chosen], sheet.step
    ahead, behind = (np.stack([lower.at(meter, x + t * e, basis, h) for e in outside], axis=-1) for t in (h, -h))
    change = (ahead - behind) / (2.0 * h)
    whole = np.isfinite(change).all(axis=(1, 2, 3))
    if whole.sum() * each < unknowns:
        return None
    design = bends[chosen][whole, :, :, :n] * lower.powers.of(vectors).T
    other = bends[chosen][whole, :, :, n:, None] * np.eye(len(lower.solve))[:, None, :]
    design = np.concatenate([design, other.reshape(*design.shape[:3], -1)], axis=3).reshape(-1, unknowns)
    rest = np.linalg.lstsq(design, change[whole].reshape(-1, len(outside)), rcond=None)[0][:n]
    return unit(np.concatenate([vectors, rest], axis=1))
