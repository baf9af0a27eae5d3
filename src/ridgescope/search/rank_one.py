"""The rank-one matrices of a linear space of symmetric matrices.

Hessians of f at many points all lie in 𝒜 = span{v_i v_iᵀ}. The right singular vectors of the stacked
Hessians are an orthonormal basis of 𝒜, its dimension n is where the singular values drop to the error of
the Hessians, and generically, for n up to about r²/3 in R^r, the v_i v_iᵀ are the only rank-one matrices
in it. They are the maxima, of value one, over unit vectors v of

    F(v) = ‖P_𝒜(v vᵀ)‖²,                     ∇F(v) = 4 P_𝒜(v vᵀ) v,

and the subspace power method (Kileel & Pereira) goes there by

    v ← normalise( P_𝒜(v vᵀ) v ).

Near a solution the error shrinks by about n/D per step, D = r(r+1)/2; most of the work is getting near
one. Gauss–Newton steps then finish.

*Deflation.* Strong basins would be entered again and again. Once some v_j v_jᵀ are known, the iteration
starts in what is left of 𝒜 orthogonal to them, 𝒜' = 𝒜 ⊖ span{v_j v_jᵀ}, where F vanishes on what is
known, and only then goes on in 𝒜. The last missing one is a multiple of the only matrix in 𝒜' plus known
ones, so none stays hidden.

Matrices are handled *packed*: the upper triangle as a row of D numbers, off-diagonal entries times √2, so
that the inner product of rows is the trace inner product of matrices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, svd

from ..geometry import Floats, random_directions, unit

# where singular values drop, by the ratio of one to the next
_DROP = 2.5  # counts where it crosses the floor. Empirical: those of errors alone fall by less
_DROP_ABOVE_FLOOR = 6.0  # counts where it ends at most
_NEAR_FLOOR = 30.0  # floors up. Empirical: errors that many outputs share reach that, features stand out from them
_SPARE_ROWS, _SPARE_SHARE = 4, 20  # rows beyond the rank, and one in twenty: a square matrix has a small last one
_ROUNDING = 1e-14  # singular values below this share of the largest are rounding
_LARGE, _TALL = 1500, 1.5  # size, or rows over it, above which a Gram matrix replaces an SVD: errors of 1e-8 do no harm


@dataclass(frozen=True)
class MemberSettings:
    """The search for rank-one members of a space of tensors of any order; empirical where no reason is given."""

    batch: int = 256  # most starts of a round;
    spare: int = 32  # twice as many as are missing, and so many, where that is less
    patience: int = 4  # rounds in a row that bring nothing,
    most_rounds: int = 80  # and rounds in all, that end the search
    same: float = 0.03  # radians within which two vectors are one member; closer twins take a sharper span
    steps: tuple[int, int] = (40, 100)  # power iterations in what is left of the space, then in all of it,
    moved: tuple[float, float] = (1e-2, 1e-3)  # and the length of a step that ends them
    promising: float = 0.9  # F from which on an end is polished
    least_accepted: float = (
        0.8  # F accepted when rounds bring nothing: the last may be the faintest, and the fit prunes
    )
    accept: float = 30.0  # 1 − F accepted over 1/drop², the square of the errors of a basis,
    accept_limits: tuple[float, float] = (1e-6, 0.2)
    outlier: float = 300.0  # times the median of 1 − F, beyond which a member may be a local maximum
    polish_steps: int = 12  # Gauss–Newton steps at most,
    gained: float = 1e-14  # the gain of F, rounding, that ends them,
    longest: float = 0.3  # and their length at most, radians
    tangent: float = 1e4  # stiffness along v, which keeps steps tangent,
    regular: float = 1e-9  # and everywhere, for flat maxima
    weak: tuple[float, float] = (0.05, 0.1)  # a tangent that may hide a twin has less stiffness: over the order, of F
    radial: float = 1e3  # stiffness along v where the weakest tangent is looked for
    twins: tuple[float, ...] = (-0.2, -0.1, -0.05, 0.05, 0.1, 0.2)  # radians from a member where to look for one


MEMBERS = MemberSettings()
_ENTRIES = 4_000_000  # numbers in memory at once while vectors are polished, 32 MB


def pack(matrices: Floats) -> Floats:
    """(…, r, r) symmetric to (…, D), an isometry."""
    i, j = np.triu_indices(matrices.shape[-1])
    return np.asarray(matrices[..., i, j] * np.where(i == j, 1.0, np.sqrt(2.0)))


def unpack(rows: Floats) -> Floats:
    """The inverse of `pack`."""
    r = packed_side(rows.shape[-1])
    i, j = np.triu_indices(r)
    out = np.empty((*rows.shape[:-1], r, r), dtype=rows.dtype)
    out[..., i, j] = rows * np.where(i == j, 1.0, np.sqrt(0.5)).astype(rows.dtype)
    out[..., j, i] = out[..., i, j]
    return out


def packed_side(size: int) -> int:
    """r with r(r+1)/2 = size."""
    return int((np.sqrt(8 * size + 1) - 1) / 2 + 0.5)


def squares(vectors: Floats) -> Floats:
    """(k, r) to the packed v vᵀ, (k, D)."""
    i, j = np.triu_indices(vectors.shape[1])
    factor = np.where(i == j, 1.0, np.sqrt(2.0)).astype(vectors.dtype)
    return np.asarray(vectors[:, i] * vectors[:, j] * factor)


@dataclass(frozen=True, eq=False)
class Span:
    """The space that the rows of a stack of packed tensors span, up to their error."""

    basis: Floats
    """(rank, D) orthonormal rows."""
    singular: Floats
    """All singular values, falling."""
    clear: bool
    """The singular values drop to the floor at `rank`, with enough of them beyond to say so."""

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def drop(self) -> float:
        """The singular value that ends the span over the one after it."""
        k = self.rank
        if k == 0 or k >= len(self.singular):
            return 1.0
        return float(self.singular[k - 1] / max(self.singular[k], 1e-16 * self.singular[0]))  # no infinite drop

    @property
    def acceptance(self) -> float:
        """The least F of a vector that counts as a member, given the errors of the basis."""
        return 1.0 - float(np.clip(MEMBERS.accept / self.drop**2, *MEMBERS.accept_limits))


def span_of(rows: Floats, floor: float) -> Span:
    """The span of packed tensors (m, D) whose entries carry errors of about `floor`."""
    m, size = rows.shape
    if m == 0:
        return Span(np.empty((0, size)), np.empty(0), False)
    # the largest singular value of an m × D matrix of independent errors
    largest_error = floor * (np.sqrt(m) + np.sqrt(size))
    if m > _TALL * size or size > _LARGE:
        gram = rows.T @ rows if m >= size else rows @ rows.T
        power, left = eigh(gram, overwrite_a=True, check_finite=False)
        singular, left = np.sqrt(np.maximum(power[::-1], 0.0)), left[:, ::-1]
        rank, clear = numerical_rank(singular, largest_error, m)
        basis = left[:, :rank].T
        if m < size:
            basis = (basis @ rows) / singular[:rank, None]
        return Span(np.ascontiguousarray(basis), singular, clear)
    _, singular, right = svd(rows, full_matrices=False, check_finite=False)
    rank, clear = numerical_rank(singular, largest_error, m)
    return Span(np.ascontiguousarray(right[:rank]), singular, clear)


def numerical_rank(singular: Floats, floor: float, rows: int) -> tuple[int, bool]:
    """Where the singular values drop, and whether they plainly do.

    `floor` is the largest singular value that errors alone would show. A drop counts where it crosses the
    floor or ends not far above it, and where there are a few rows more than it needs.
    """
    count = len(singular)
    if count == 0 or singular[0] <= floor:
        return 0, True
    most = min(rows - max(_SPARE_ROWS, rows // _SPARE_SHARE), count - 1)
    ratio = singular[:-1] / np.maximum(singular[1:], _ROUNDING * singular[0])
    ratio[singular[:-1] < floor] = 0.0
    ratio[max(most, 0) :] = 0.0
    after = singular[1:] / floor
    drops = np.flatnonzero(
        ((ratio >= _DROP) & (after <= 1.0)) | ((ratio >= _DROP_ABOVE_FLOOR) & (after <= _NEAR_FLOOR))
    )
    if len(drops):  # the last one: a direction too many does no harm, one too few loses a feature
        return int(drops[-1]) + 1, True
    return int(np.sum(singular > floor)), False


@dataclass(frozen=True, eq=False)
class RankOnes:
    """Vectors whose powers lie in a span, best first."""

    vectors: Floats
    """(k, r) unit rows, no two the same up to sign."""
    inside: Floats
    """(k,) F(v), one for a perfect member."""
    rounds: int


@dataclass(frozen=True, eq=False)
class Space(ABC):
    """A linear space of symmetric tensors by an orthonormal basis (n, D), and ways to those of rank one in it."""

    basis: Floats

    @property
    def rank(self) -> int:
        """Its dimension."""
        return len(self.basis)

    @property
    @abstractmethod
    def width(self) -> int:
        """r, that of the vectors."""

    @abstractmethod
    def packed(self, vectors: Floats) -> Floats:
        """(k, r) to the packed powers (k, D)."""

    @abstractmethod
    def step(self, v: Floats) -> tuple[Floats, Floats]:
        """One power iteration from each row, and F before it."""

    @abstractmethod
    def starts(self, known: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Where iterations begin, (count, r), given the members known."""

    @abstractmethod
    def polish(self, vectors: Floats) -> tuple[Floats, Floats]:
        """Members near vectors that are near to members, by Gauss–Newton steps on 1 − F, and F where they end."""

    @abstractmethod
    def twin_starts(self, vectors: Floats) -> Floats:
        """Starts to either side of members that hardly stand out along some tangent: a twin may lie that way."""

    def complement(self, known: Floats) -> Self:
        """The space less the powers of the known vectors."""
        if len(known) == 0:
            return self
        q, _ = np.linalg.qr((self.packed(known) @ self.basis.T).T, mode="complete")
        return replace(self, basis=np.asarray(q[:, len(known) :].T @ self.basis))

    def power_method(self, starts: Floats, steps: int, moved: float) -> tuple[Floats, Floats]:
        """Power iterations from each start, (k, r), until it moves by less than `moved`, and F there."""
        v = starts.copy()
        value = np.zeros(len(v))
        active = np.arange(len(v))
        for _ in range(steps):
            after, value[active] = self.step(v[active])
            change = np.linalg.norm(after - v[active], axis=1)
            v[active] = after
            active = active[change > moved]
            if len(active) == 0:
                break
        return v, value


def members(space: Space, rng: np.random.Generator, *, accept: float = 0.95, extra: int = 0) -> RankOnes:
    """All vectors whose powers lie in the space, up to 1 − `accept`.

    Rounds of iterations end when as many plausible members as it has dimensions, and `extra` ones, are known, or
    some rounds in a row brought none.
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
    """The known members and those of `vectors` that are good and new, and how many these are."""
    good = value >= accept
    new, score = distinct(vectors[good], value[good], same=MEMBERS.same, known=known)
    return np.concatenate([known, new]), np.concatenate([inside, score]), len(new)


def _plausible(inside: Floats) -> NDArray[np.bool_]:
    """Members that are not much worse than most: a local maximum may come close to being one."""
    if len(inside) == 0:
        return np.zeros(0, dtype=bool)
    return np.asarray(1.0 - inside <= 1e-10 + MEMBERS.outlier * np.median(1.0 - inside))  # 1e-10: rounding


class MatrixSpace(Space):
    """A space of matrices, written for thousands of them."""

    @cached_property
    def matrices(self) -> Floats:
        """(n, r, r) the basis A_1, …, A_n."""
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
        """Eigenvectors of random members of what is left are nearer to a rank-one matrix than random vectors are.

        Half, those of the largest |eigenvalue|, iterate in what is left first. Where that is small it always leads to
        the same few places, so a quarter are one of the six largest and a quarter random.
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
        """With T the rows A_k v, one step solves

            (2I + 2v vᵀ − 4 TᵀT) δ = −2 (v − Tᵀ T v),        δ ⊥ v.

        Where two members are an angle θ apart the power method all but stops, at rate 1 − O(θ²); this does not.
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
    """One Gauss–Newton step from v, given T and Tv."""
    normal = 2.0 * np.eye(len(v)) + 2.0 * np.outer(v, v) - 4.0 * t.T @ t
    normal += MEMBERS.tangent * np.outer(v, v) + MEMBERS.regular * np.eye(len(v))
    gradient = 2.0 * (v - t.T @ weight)
    gradient -= (gradient @ v) * v
    delta = -np.linalg.solve(normal, gradient)
    delta *= min(1.0, MEMBERS.longest / max(float(np.linalg.norm(delta)), 1e-300))
    return np.asarray((v + delta) / np.linalg.norm(v + delta))


def distinct(vectors: Floats, scores: Floats, *, same: float, known: Floats) -> tuple[Floats, Floats]:
    """The best of every group closer than `same` radians up to sign, none of them close to a known one."""
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
