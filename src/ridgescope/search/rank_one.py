"""The rank-one matrices of a linear space of symmetric matrices.

Hessians of f at many points all lie in 𝒜 = span{v_i v_iᵀ}, whose basis `numerical_span` finds. Generically, for n up to
about r²/3 in R^r, the v_i v_iᵀ are the only rank-one matrices in it. They are the maxima, of value one, over unit
vectors v of

    F(v) = ‖P_𝒜(v vᵀ)‖²,                     ∇F(v) = 4 P_𝒜(v vᵀ) v,

and the subspace power method (Kileel & Pereira) finds them by iterating

    v ← normalise( P_𝒜(v vᵀ) v ).

Near a solution the error shrinks by about n/D per step, D = r(r+1)/2; most of the work is getting near one.
Gauss–Newton steps then finish.

*Deflation.* Otherwise the iteration would enter strong basins again and again. Once some v_j v_jᵀ are known, it starts
in the orthogonal complement 𝒜' = 𝒜 ⊖ span{v_j v_jᵀ}, where F vanishes on the known ones, and then continues in 𝒜. The
last missing one is a multiple of the only matrix in 𝒜' plus known ones, so that all can be found.

Matrices are *packed*: the upper triangle as a row of D numbers, off-diagonal entries times √2, so that the inner
product of rows is the trace inner product of matrices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions, unit

_LARGE_BASIS = 300_000  # entries of a basis from which on the power method takes single precision


@dataclass(frozen=True)
class MemberSettings:
    """The search for rank-one members of a space of tensors of any order; empirical where no reason is given."""

    batch: int = 256  # most starts of a round; fewer if little is missing:
    spare: int = 32  # twice as many as are missing, plus this many
    patience: int = 4  # consecutive rounds without a new member that end the search
    most_rounds: int = 80  # largest number of rounds
    same: float = 0.03  # radians within which two vectors are one member; closer pairs need a more exact span
    steps: tuple[int, int] = (40, 100)  # power iterations in the complement of known members, then in the whole space
    moved: tuple[float, float] = (1e-2, 1e-3)  # length of a step that ends them
    promising: float = 0.9  # F from which on the end of an iteration is polished
    least_accepted: float = 0.8  # least F accepted after rounds without a new member; the fit prunes
    outlier: float = 300.0  # multiple of the median of 1 − F beyond which a member may be only a local maximum
    polish_steps: int = 12  # most Gauss–Newton steps
    gained: float = 1e-14  # gain of F, due to rounding, that ends them
    longest: float = 0.3  # their largest length, radians
    tangent: float = 1e4  # stiffness added along v, which keeps steps tangent
    regular: float = 1e-9  # stiffness added everywhere, for flat maxima
    weak: tuple[float, float] = (0.05, 0.1)  # stiffness, of tensors per order and of matrices, of nearly parallel pairs
    radial: float = 1e3  # stiffness added along v when the weakest tangent is computed
    twins: tuple[float, ...] = (-0.2, -0.1, -0.05, 0.05, 0.1, 0.2)  # angles at which to search for a second


MEMBERS = MemberSettings()
_ENTRIES = 4_000_000  # numbers in memory at once while vectors are polished, 32 MB


def pack(matrices: Floats) -> Floats:
    """Pack symmetric matrices (…, r, r) into rows (…, D); this is an isometry."""
    i, j = np.triu_indices(matrices.shape[-1])
    return np.asarray(matrices[..., i, j] * np.where(i == j, 1.0, np.sqrt(2.0)))


def unpack(rows: Floats) -> Floats:
    """Return the matrices (…, r, r) of packed rows (…, D), the inverse of `pack`."""
    r = packed_side(rows.shape[-1])
    i, j = np.triu_indices(r)
    out = np.empty((*rows.shape[:-1], r, r), dtype=rows.dtype)
    out[..., i, j] = rows * np.where(i == j, 1.0, np.sqrt(0.5)).astype(rows.dtype)
    out[..., j, i] = out[..., i, j]
    return out


def packed_side(size: int) -> int:
    """Return r with r(r+1)/2 = size."""
    return int((np.sqrt(8 * size + 1) - 1) / 2 + 0.5)


def squares(vectors: Floats) -> Floats:
    """Return the packed matrices v vᵀ (k, D) of vectors (k, r)."""
    i, j = np.triu_indices(vectors.shape[1])
    factor = np.where(i == j, 1.0, np.sqrt(2.0)).astype(vectors.dtype)
    return np.asarray(vectors[:, i] * vectors[:, j] * factor)


@dataclass(frozen=True, eq=False)
class RankOnes:
    """Vectors whose powers lie in a span, best first."""

    vectors: Floats
    """(k, r) unit rows, no two equal up to sign."""
    inside: Floats
    """(k,) values F(v), one for a perfect member."""
    rounds: int


@dataclass(frozen=True, eq=False)
class Space(ABC):
    """A linear space of symmetric tensors with orthonormal basis (n, D), and a search for its rank-one members."""

    basis: Floats

    @property
    def rank(self) -> int:
        """The dimension of the space."""
        return len(self.basis)

    @property
    @abstractmethod
    def width(self) -> int:
        """The dimension r of the vectors."""

    @abstractmethod
    def packed(self, vectors: Floats) -> Floats:
        """Return the packed powers (k, D) of vectors (k, r)."""

    @abstractmethod
    def step(self, v: Floats) -> tuple[Floats, Floats]:
        """Make one power iteration from each row v (k, r); return the new rows and F at the old ones."""

    @abstractmethod
    def starts(self, known: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Return (count, r) starting vectors for the iteration, given the known members."""

    @abstractmethod
    def polish(self, vectors: Floats) -> tuple[Floats, Floats]:
        """Move vectors near members onto them by Gauss–Newton steps on 1 − F; return them and their F."""

    @abstractmethod
    def twin_starts(self, vectors: Floats) -> Floats:
        """Return starts on either side of members with low stiffness along a tangent: a second member may be near."""

    def complement(self, known: Floats) -> Self:
        """Return the subspace orthogonal to the powers of the known vectors."""
        if len(known) == 0:
            return self
        q, _ = np.linalg.qr((self.packed(known) @ self.basis.T).T, mode="complete")
        return replace(self, basis=np.asarray(q[:, len(known) :].T @ self.basis))

    def power_method(self, starts: Floats, steps: int, moved: float) -> tuple[Floats, Floats]:
        """Iterate from starts (k, r) until steps are shorter than `moved`; return ends and F before the last step."""
        kind: Any = np.float32 if self.basis.size >= _LARGE_BASIS else np.float64
        space = self if kind is np.float64 else replace(self, basis=self.basis.astype(kind))
        v, value, active = np.asarray(starts.astype(kind)), np.zeros(len(starts)), np.arange(len(starts))
        for _ in range(steps):
            after, value[active] = space.step(v[active])
            change = np.linalg.norm(after - v[active], axis=1)
            v[active] = after
            active = active[change > moved]
            if len(active) == 0:
                break
        return v.astype(np.float64), value


def members(space: Space, rng: np.random.Generator, *, accept: float = 0.95, extra: int = 0) -> RankOnes:
    """Return all vectors whose powers lie in the space, with F at least `accept`.

    The search ends when as many plausible members as the space has dimensions, plus `extra`, are known, or after some
    rounds without a new one, each of which lowers `accept`.
    """
    n = space.rank + extra
    known, inside = np.empty((0, space.width)), np.empty(0)
    without_new = rounds = 0
    while without_new < MEMBERS.patience and rounds < MEMBERS.most_rounds:
        plausible = known[_plausible(inside)]
        if len(plausible) >= n:
            break
        rounds += 1
        starts = space.starts(plausible, min(MEMBERS.batch, 2 * (n - len(plausible)) + MEMBERS.spare), rng)
        ends, value = space.power_method(starts, MEMBERS.steps[1], MEMBERS.moved[1])
        near = value >= min(MEMBERS.promising, 2.0 * accept - 1.0)
        ends, _ = distinct(ends[near], value[near], same=MEMBERS.same / 4.0, known=known)
        known, inside, new = _joined(known, inside, *space.polish(ends), accept)
        if new:
            known, inside, _ = _joined(known, inside, *space.polish(space.twin_starts(known[-new:])), accept)
        without_new = 0 if new else without_new + 1
        accept = accept if new else max(MEMBERS.least_accepted, 2.0 * accept - 1.0)
    order = np.argsort(-inside, kind="stable")[:n]
    return RankOnes(known[order], inside[order], rounds)


def _joined(known: Floats, inside: Floats, vectors: Floats, value: Floats, accept: float) -> tuple[Floats, Floats, int]:
    """Return the known members and their F, the good and new ones of `vectors` appended, and the number of these."""
    good = value >= accept
    new, score = distinct(vectors[good], value[good], same=MEMBERS.same, known=known)
    return np.concatenate([known, new]), np.concatenate([inside, score]), len(new)


def _plausible(inside: Floats) -> NDArray[np.bool_]:
    """Return which members are not much worse than most; the others may be mere local maxima of F."""
    if len(inside) == 0:
        return np.zeros(0, dtype=bool)
    return np.asarray(1.0 - inside <= 1e-10 + MEMBERS.outlier * np.median(1.0 - inside))  # 1e-10: rounding


class MatrixSpace(Space):
    """A space of symmetric matrices, efficient for thousands of dimensions."""

    @cached_property
    def matrices(self) -> Floats:
        """The basis matrices A_1, …, A_n, (n, r, r)."""
        return unpack(self.basis)

    @property
    def width(self) -> int:
        return packed_side(self.basis.shape[1])

    def packed(self, vectors: Floats) -> Floats:
        return squares(vectors)

    def step(self, v: Floats) -> tuple[Floats, Floats]:
        coordinates = squares(v) @ self.basis.T
        projected = unpack(coordinates @ self.basis)
        value = np.einsum("kn,kn->k", coordinates, coordinates)
        after = np.matmul(projected, v[:, :, None])[:, :, 0]
        length = np.linalg.norm(after, axis=1, keepdims=True)
        return np.where(length > 0, after / np.maximum(length, 1e-300), v), value

    def starts(self, known: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Return starts, mostly eigenvectors of random matrices in the complement, as these are closer to members.

        Half, with the largest |eigenvalue|, first iterate in the complement. If that is small they always reach the
        same few members, so a quarter take one of the six largest eigenvalues and a quarter are random.
        """
        left = self.complement(known)
        values, vectors = np.linalg.eigh(unpack(rng.standard_normal((count, left.rank)) @ left.basis))
        order = np.argsort(-np.abs(values), axis=1)
        which = np.zeros(count, dtype=np.intp)
        half, quarter = count // 2, count // 4
        which[:half] = rng.integers(0, min(6, values.shape[1]), half)
        starts = np.ascontiguousarray(vectors[np.arange(count), :, order[np.arange(count), which]])
        starts[:quarter] = random_directions(quarter, starts.shape[1], rng)
        starts[half:], _ = left.power_method(starts[half:], MEMBERS.steps[0], MEMBERS.moved[0])
        return starts

    def polish(self, vectors: Floats) -> tuple[Floats, Floats]:
        """Apply Gauss–Newton steps on 1 − F; with T the rows A_k v, one step solves

            (2I + 2v vᵀ − 4 TᵀT) δ = −2 (v − Tᵀ T v),        δ ⊥ v.

        For two members at a small angle θ the power method converges at rate 1 − O(θ²) only; this does not slow down.
        """
        best, value = vectors.copy(), np.full(len(vectors), -1.0)
        flat = self.matrices.reshape(-1, self.width)
        size = max(1, _ENTRIES // len(flat))
        for start in range(0, len(vectors), size):
            rows = np.arange(start, min(start + size, len(vectors)))
            trial = vectors[rows]
            for _ in range(MEMBERS.polish_steps):
                t = (flat @ trial.T).reshape(self.rank, self.width, -1).transpose(2, 0, 1)
                weight = np.einsum("vkr,vr->vk", t, trial)
                level = np.einsum("vk,vk->v", weight, weight)
                better = level > value[rows] + MEMBERS.gained
                rows, trial, t, weight = rows[better], trial[better], t[better], weight[better]
                if len(rows) == 0:
                    break
                best[rows], value[rows] = trial, level[better]
                trial = np.stack([_newton(*each) for each in zip(trial, t, weight, strict=True)])
        return best, value

    def twin_starts(self, vectors: Floats) -> Floats:
        starts = []
        for v in vectors:
            t = self.matrices @ v
            stiff = 2.0 * np.eye(len(v)) + MEMBERS.radial * np.outer(v, v) - 4.0 * t.T @ t
            stiffness, tangents = np.linalg.eigh(stiff)
            if stiffness[0] < MEMBERS.weak[1]:
                starts += [v + angle * tangents[:, 0] for angle in MEMBERS.twins]
        return unit(np.array(starts).reshape(-1, self.width))


def _newton(v: Floats, t: Floats, weight: Floats) -> Floats:
    """Return v after one Gauss–Newton step, given T and Tv."""
    normal = 2.0 * np.eye(len(v)) + 2.0 * np.outer(v, v) - 4.0 * t.T @ t
    normal += MEMBERS.tangent * np.outer(v, v) + MEMBERS.regular * np.eye(len(v))
    gradient = 2.0 * (v - t.T @ weight)
    gradient -= (gradient @ v) * v
    delta = -np.linalg.solve(normal, gradient)
    delta *= min(1.0, MEMBERS.longest / max(float(np.linalg.norm(delta)), 1e-300))
    return np.asarray((v + delta) / np.linalg.norm(v + delta))


def distinct(vectors: Floats, scores: Floats, *, same: float, known: Floats) -> tuple[Floats, Floats]:
    """Return the best of every group closer than `same` radians up to sign, without those close to a known one."""
    order = np.argsort(-scores, kind="stable")
    limit = np.cos(same)
    vectors, scores = vectors[order], scores[order]
    if len(known):
        new = np.max(np.abs(vectors @ known.T), axis=1, initial=0.0) < limit
        vectors, scores = vectors[new], scores[new]
    near = np.abs(vectors @ vectors.T) >= limit
    keep: list[int] = []
    free: NDArray[np.bool_] = np.ones(len(vectors), dtype=bool)
    for i in range(len(vectors)):
        if free[i]:
            keep.append(i)
            free &= ~near[i]
    return vectors[keep], scores[keep]
