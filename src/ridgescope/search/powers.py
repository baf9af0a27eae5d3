"""Symmetric tensors of any order, and those of rank one in a linear space of them.

A symmetric tensor of order k in R^r is handled *packed*, as a row of D = C(r+k−1, k) numbers. That of v^{⊗k} has one
for each monomial of degree k, √(k!/α!) v^α, so that rows multiply as tensors do: p(v)·p(w) = (v·w)^k, and

    |p(v)| = |v|^k,      p'(v)ᵀ p'(v) = k|v|^(2k−2) I + k(k−1)|v|^(2k−4) v vᵀ,      p'(v)ᵀ p(v) = k|v|^(2k−2) v.

`rankone` is this for k = 2, written for spaces of thousands of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import comb, factorial

import numpy as np

from ..geometry import Floats, random_directions, unit
from .rank_one import climbed


def packed_size(width: int, order: int) -> int:
    """Numbers that a symmetric tensor has."""
    return comb(width + order - 1, order)


def most_apart(width: int, order: int) -> int:
    """Up to how many powers v^{⊗k} are, generically, the only ones in their span.

    The powers are a cone of dimension r, of which a space of D − r dimensions holds no more than it must. One of D − r
    + 1 dimensions meets it in k^(r−1) lines: that is no more than it must where they are that few.
    """
    room = packed_size(width, order) - width
    return room + int(order ** (width - 1) <= room + 1)


@dataclass(frozen=True, eq=False)
class Powers:
    """The map v → v^{⊗k}, packed; `powers(width, order)` makes it."""

    width: int
    order: int
    axes: tuple[Floats, ...]
    """k matrices (D, r): the s-th has a one at the s-th factor of each monomial."""
    weight: Floats
    """(D,) √(k!/α!)"""

    def of(self, v: Floats) -> Floats:
        """(m, r) to (m, D)."""
        return np.asarray(self.weight * np.prod(self._factors(v), axis=0))

    def slope(self, v: Floats) -> Floats:
        """(m, D, r), the derivative of `of`."""
        return np.asarray(sum(part[:, :, None] * e for part, e in zip(self._parts(v), self.axes, strict=True)))

    def applied(self, tensors: Floats, v: Floats) -> Floats:
        """T v^{k−1}, (m, r), of packed tensors (m, D)."""
        parts = zip(self._parts(v), self.axes, strict=True)
        return np.asarray(sum((tensors * part) @ e for part, e in parts) / self.order)

    def _factors(self, v: Floats) -> list[Floats]:
        return [v @ e.T for e in self.axes]

    def _parts(self, v: Floats) -> list[Floats]:
        """Each monomial without its s-th factor, weighted."""
        factors = self._factors(v)
        others = (factors[:s] + factors[s + 1 :] for s in range(self.order))
        return [
            self.weight * np.prod(rest, axis=0) if rest else np.broadcast_to(self.weight, factors[0].shape)
            for rest in others
        ]


@cache
def powers(width: int, order: int) -> Powers:
    """For tensors of that order in R^width."""
    monomials = np.array(list(combinations_with_replacement(range(width), order)), dtype=np.intp).reshape(-1, order)
    exponents = (monomials[:, :, None] == np.arange(width)).sum(axis=1)
    orders = np.array([factorial(a) for a in range(order + 1)], dtype=np.float64)
    weight = np.sqrt(orders[order] / np.prod(orders[exponents], axis=1))
    return Powers(width, order, tuple(np.eye(width)[column] for column in monomials.T), weight)


@dataclass(frozen=True, eq=False)
class PowerSpace:
    """A space of tensors, by an orthonormal basis, and climbs on F(v) = ‖P(v^{⊗k})‖² over unit vectors."""

    powers: Powers
    basis: Floats
    """(n, D)"""

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def width(self) -> int:
        return self.powers.width

    def without(self, known: Floats) -> PowerSpace:
        """Less the powers of the known vectors."""
        if len(known) == 0:
            return self
        q, _ = np.linalg.qr((self.powers.of(known) @ self.basis.T).T, mode="complete")
        return PowerSpace(self.powers, np.asarray(q[:, len(known) :].T @ self.basis))

    def starts(self, known: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Random vectors; half of them have climbed in what is left of the space."""
        starts = random_directions(count, self.width, rng)
        starts[count // 2 :], _ = self.without(known).climb(starts[count // 2 :], steps=40, tolerance=1e-2)
        return starts

    def climb(self, starts: Floats, *, steps: int, tolerance: float) -> tuple[Floats, Floats]:
        """Power iterations v ← normalise(P(v^{⊗k}) v^{k−1}), and F where they end."""
        return climbed(self._step, starts, steps=steps, tolerance=tolerance)

    def _step(self, v: Floats) -> tuple[Floats, Floats]:
        inside = self.powers.of(v) @ self.basis.T
        moved = self.powers.applied(inside @ self.basis, v)
        length = np.linalg.norm(moved, axis=1, keepdims=True)
        return np.where(length > 0, moved / np.maximum(length, 1e-300), v), np.sum(inside**2, axis=1)

    def polish(self, vectors: Floats, steps: int = 12) -> tuple[Floats, Floats]:
        """Gauss–Newton steps on ‖v^{⊗k} − P(v^{⊗k})‖² over the sphere, and F where they end."""
        best, value = vectors.copy(), np.full(len(vectors), -1.0)
        rows, trial = np.arange(len(vectors)), vectors
        for _ in range(steps):
            inside = self.powers.of(trial) @ self.basis.T
            level = np.sum(inside**2, axis=1)
            better = level > value[rows] + 1e-14
            rows, trial, inside = rows[better], trial[better], inside[better]
            if len(rows) == 0:
                break
            best[rows], value[rows] = trial, level[better]
            gradient = self.powers.order * (trial - self.powers.applied(inside @ self.basis, trial))
            gradient -= np.sum(gradient * trial, axis=1, keepdims=True) * trial
            delta = -np.linalg.solve(self._stiffness(trial, 1e4), gradient[:, :, None])[:, :, 0]
            length = np.linalg.norm(delta, axis=1, keepdims=True)
            trial = unit(trial + delta * np.minimum(1.0, 0.3 / np.maximum(length, 1e-300)))
        return best, value

    def beside(self, vectors: Floats, weak: float = 0.05) -> Floats:
        """Starts to either side of members that hardly stand out along some tangent: a twin may lie that way."""
        stiffness, tangents = np.linalg.eigh(self._stiffness(vectors, 1e4))
        soft = stiffness[:, 0] < weak * self.powers.order
        turns = np.array([-0.2, -0.1, -0.05, 0.05, 0.1, 0.2])[:, None, None]
        return unit((vectors[soft] + turns * tangents[soft, :, 0]).reshape(-1, self.width))

    def _stiffness(self, v: Floats, radial: float) -> Floats:
        """(m, r, r) p'ᵀ(1 − P)p', with `radial` added along v, which keeps steps tangent."""
        slope = np.tensordot(self.basis, self.powers.slope(v), axes=(1, 1)).transpose(1, 0, 2)
        outward = v[:, :, None] * v[:, None, :]
        return np.asarray(
            (self.powers.order + 1e-9) * np.eye(self.width) + radial * outward - slope.swapaxes(1, 2) @ slope
        )
