"""The rank-one matrices of a linear space of symmetric matrices.

Hessians of f at many points all lie in 𝒜 = span{v_i v_iᵀ}. The right singular vectors of the stacked
Hessians are an orthonormal basis of 𝒜, its dimension n is where the singular values drop to the error of
the Hessians, and generically, for n up to about r²/3 in R^r, the v_i v_iᵀ are the only rank-one matrices
in it. They are the maxima, of value one, over unit vectors v of

    F(v) = ‖P_𝒜(v vᵀ)‖²,                     ∇F(v) = 4 P_𝒜(v vᵀ) v,

and the subspace power method (Kileel & Pereira) climbs there by

    v ← normalise( P_𝒜(v vᵀ) v ).

Near a solution the error shrinks by about n/D per step, D = r(r+1)/2; most of the work is getting near
one.

*Deflation.* Strong basins would be entered again and again. Once some v_j v_jᵀ are known, the climb
starts in what is left of 𝒜 orthogonal to them, 𝒜' = 𝒜 ⊖ span{v_j v_jᵀ}, where F vanishes on what is
known, and only then goes on in 𝒜. The last missing one is a multiple of the only matrix in 𝒜' plus known
ones, so none stays hidden.

Matrices are handled *packed*: the upper triangle as a row of D numbers, off-diagonal entries times √2, so
that the inner product of rows is the trace inner product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, svd

from ..geometry import Floats, random_directions, unit


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
    """The space that the rows of a stack of packed Hessians span, up to their error."""

    basis: Floats
    """(rank, D) orthonormal rows."""
    singular: Floats
    """All singular values, falling."""
    clear: bool
    """The singular values drop to the floor at `rank`, with enough of them beyond to tell."""

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def drop(self) -> float:
        """The singular value that ends the span over the one after it."""
        k = self.rank
        if k == 0 or k >= len(self.singular):
            return 1.0
        return float(self.singular[k - 1] / max(self.singular[k], 1e-16 * self.singular[0]))


def span_of(rows: Floats, floor: float) -> Span:
    """The span of packed Hessians (m, D) whose entries carry errors of about `floor`."""
    size = rows.shape[1]
    if len(rows) == 0:
        return Span(np.empty((0, size)), np.empty(0), False)
    if len(rows) > 1.5 * size or size > 1500:
        # the Gram matrix costs a fraction of an SVD; errors of 1e-8 of the largest do not matter at this size
        gram = rows.T @ rows if len(rows) >= size else rows @ rows.T
        power, left = eigh(gram, overwrite_a=True, check_finite=False)
        singular, left = np.sqrt(np.maximum(power[::-1], 0.0)), left[:, ::-1]
        rank, clear = read_rank(singular, floor * (np.sqrt(len(rows)) + np.sqrt(size)), len(rows))
        basis = left[:, :rank].T
        if len(rows) < size:
            basis = (basis @ rows) / singular[:rank, None]
        return Span(np.ascontiguousarray(basis), singular, clear)
    _, singular, right = svd(rows, full_matrices=False, check_finite=False)
    rank, clear = read_rank(singular, floor * (np.sqrt(len(rows)) + np.sqrt(size)), len(rows))
    return Span(np.ascontiguousarray(right[:rank]), singular, clear)


def read_rank(singular: Floats, floor: float, rows: int) -> tuple[int, bool]:
    """Where the singular values drop, and whether they plainly do.

    `floor` is the largest singular value that errors alone would show. A drop counts where it crosses the
    floor or ends not far above it, and where there are a few rows more than it needs: the last singular value
    of a square matrix is small by itself.
    """
    count = len(singular)
    if count == 0 or singular[0] <= floor:
        return 0, True
    most = min(rows - max(4, rows // 20), count - 1)
    ratio = singular[:-1] / np.maximum(singular[1:], 1e-14 * singular[0])
    ratio[singular[:-1] < floor] = 0.0
    ratio[max(most, 0) :] = 0.0
    # errors that many outputs share stand out from the floor, but features stand out from them by more
    after = singular[1:] / floor
    drops = np.flatnonzero(((ratio >= 2.5) & (after <= 1.0)) | ((ratio >= 6.0) & (after <= 30.0)))
    if len(drops):  # the last one: a direction too many does no harm, one too few loses a feature
        return int(drops[-1]) + 1, True
    return int(np.sum(singular > floor)), False


@dataclass(frozen=True, eq=False)
class RankOnes:
    """Vectors whose squares lie in a span, best first."""

    vectors: Floats
    """(k, r) unit rows, no two the same up to sign."""
    inside: Floats
    """(k,) ‖P_𝒜(v vᵀ)‖², one for a perfect member."""
    rounds: int

    def first(self, count: int) -> RankOnes:
        return RankOnes(self.vectors[:count], self.inside[:count], self.rounds)


class Space(Protocol):
    """A linear space of symmetric tensors, and how to climb towards those of rank one in it."""

    @property
    def rank(self) -> int:
        """Its dimension."""

    @property
    def width(self) -> int:
        """r, that of the vectors."""

    def starts(self, known: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Where climbs begin, (count, r), given the members known."""

    def climb(self, starts: Floats, *, steps: int, tolerance: float) -> tuple[Floats, Floats]:
        """Where climbs end that are stopped once they move by less than `tolerance`, and F there."""

    def polish(self, vectors: Floats) -> tuple[Floats, Floats]:
        """Members near vectors that are near to members, and F there."""

    def beside(self, vectors: Floats) -> Floats:
        """Where twins of members may be."""


def rank_ones(basis: Floats, rng: np.random.Generator, *, accept: float = 0.95) -> RankOnes:
    """All rank-one members of the span with orthonormal packed rows `basis` (n, D)."""
    return members(_Matrices(basis, unpack(basis)), rng, accept=accept)


def members(
    space: Space,
    rng: np.random.Generator,
    *,
    accept: float = 0.95,
    batch: int = 256,
    patience: int = 4,
    most_rounds: int = 80,
    same: float = 0.03,
    extra: int = 0,
) -> RankOnes:
    """All vectors whose powers lie in the space.

    Rounds of climbs end when as many plausible members as it has dimensions, and `extra` ones, are known, or
    `patience` rounds in a row brought none.
    """
    n = space.rank + extra
    known, inside = np.empty((0, space.width)), np.empty(0)
    barren = rounds = 0
    while barren < patience and rounds < most_rounds:
        sound = known[_plausible(inside)]
        if len(sound) >= n:
            break
        rounds += 1
        starts = space.starts(sound, min(batch, 2 * (n - len(sound)) + 32), rng)
        ends, value = space.climb(starts, steps=100, tolerance=1e-3)
        near = value >= min(0.9, 2.0 * accept - 1.0)
        ends, _ = distinct(ends[near], value[near], same=same / 4.0, known=known)
        known, inside, fresh = _joined(known, inside, *space.polish(ends), accept, same)
        if fresh:
            known, inside, _ = _joined(known, inside, *space.polish(space.beside(known[-fresh:])), accept, same)
        barren = 0 if fresh else barren + 1
        accept = accept if fresh else max(0.8, 2.0 * accept - 1.0)  # the last ones may be the faintest
    order = np.argsort(-inside, kind="stable")[:n]
    return RankOnes(known[order], inside[order], rounds)


@dataclass(frozen=True, eq=False)
class _Matrices:
    """The space of matrices with an orthonormal basis, packed (n, D) and as matrices (n, r, r)."""

    basis: Floats
    matrices: Floats

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def width(self) -> int:
        return int(self.matrices.shape[-1])

    def starts(self, known: Floats, count: int, rng: np.random.Generator) -> Floats:
        return _starts(without(self.basis, known), count, rng)

    def climb(self, starts: Floats, *, steps: int, tolerance: float) -> tuple[Floats, Floats]:
        return climb(self.basis, starts, steps=steps, tolerance=tolerance)

    def polish(self, vectors: Floats) -> tuple[Floats, Floats]:
        return polish(self.matrices, vectors)

    def beside(self, vectors: Floats) -> Floats:
        return _beside(self.matrices, vectors)


def _joined(
    known: Floats, inside: Floats, vectors: Floats, value: Floats, accept: float, same: float
) -> tuple[Floats, Floats, int]:
    """The known members and those of `vectors` that are good and new, and how many these are."""
    good = value >= accept
    fresh, score = distinct(vectors[good], value[good], same=same, known=known)
    return np.concatenate([known, fresh]), np.concatenate([inside, score]), len(fresh)


def _plausible(inside: Floats) -> NDArray[np.bool_]:
    """Members that are not much worse than most: a local maximum may come close to being one."""
    if len(inside) == 0:
        return np.zeros(0, dtype=bool)
    return np.asarray(1.0 - inside <= 1e-10 + 300.0 * np.median(1.0 - inside))


def _beside(matrices: Floats, vectors: Floats, weak: float = 0.1) -> Floats:
    """Starts to either side of members that hardly stand out along some tangent: a twin may lie that way."""
    starts = []
    for v in vectors:
        t = matrices @ v
        stiffness, tangents = np.linalg.eigh(2.0 * np.eye(len(v)) + 1e3 * np.outer(v, v) - 4.0 * t.T @ t)
        if stiffness[0] < weak:
            starts += [v + turn * tangents[:, 0] for turn in (-0.2, -0.1, -0.05, 0.05, 0.1, 0.2)]
    return unit(np.array(starts).reshape(-1, matrices.shape[1]))


def climbed(
    step: Callable[[Floats], tuple[Floats, Floats]], starts: Floats, *, steps: int, tolerance: float
) -> tuple[Floats, Floats]:
    """Steps from each start, (k, r), until it moves by less than `tolerance`; with the value that `step` tells."""
    v = starts.copy()
    value = np.zeros(len(v))
    active = np.arange(len(v))
    for _ in range(steps):
        moved, value[active] = step(v[active])
        change = np.linalg.norm(moved - v[active], axis=1)
        v[active] = moved
        active = active[change > tolerance]
        if len(active) == 0:
            break
    return v, value


def climb(basis: Floats, starts: Floats, *, steps: int, tolerance: float) -> tuple[Floats, Floats]:
    """Power iterations from each start, (k, r), until it moves by less than `tolerance`; with F there."""
    return climbed(partial(_step, basis), starts, steps=steps, tolerance=tolerance)


def _step(basis: Floats, v: Floats) -> tuple[Floats, Floats]:
    coordinates = squares(v) @ basis.T
    projected = unpack(coordinates @ basis)
    value = np.einsum("kn,kn->k", coordinates, coordinates)
    moved = np.matmul(projected, v[:, :, None])[:, :, 0]
    length = np.linalg.norm(moved, axis=1, keepdims=True)
    return np.where(length > 0, moved / np.maximum(length, 1e-300), v), value


def polish(matrices: Floats, vectors: Floats, steps: int = 12) -> tuple[Floats, Floats]:
    """Gauss–Newton steps on ‖v vᵀ − P_𝒜(v vᵀ)‖² over the sphere, and F where they end.

    `matrices` (n, r, r) is an orthonormal basis A_1, …, A_n of 𝒜. With T the rows A_k v, one step solves

        (2I + 2v vᵀ − 4 TᵀT) δ = −2 (v − Tᵀ T v),        δ ⊥ v.

    Where two members are an angle θ apart the power method all but stops, at rate 1 − O(θ²); this does not.
    """
    best, value = vectors.copy(), np.full(len(vectors), -1.0)
    flat = matrices.reshape(-1, matrices.shape[2])
    size = max(1, 4_000_000 // len(flat))
    for start in range(0, len(vectors), size):
        rows = np.arange(start, min(start + size, len(vectors)))
        trial = vectors[rows]
        for _ in range(steps):
            t = (flat @ trial.T).reshape(*matrices.shape[:2], -1).transpose(2, 0, 1)
            weight = np.einsum("vkr,vr->vk", t, trial)
            level = np.einsum("vk,vk->v", weight, weight)
            better = level > value[rows] + 1e-14
            rows, trial, t, weight = rows[better], trial[better], t[better], weight[better]
            if len(rows) == 0:
                break
            best[rows], value[rows] = trial, level[better]
            trial = np.stack([_newton(*each) for each in zip(trial, t, weight, strict=True)])
    return best, value


def _newton(v: Floats, t: Floats, weight: Floats) -> Floats:
    normal = 2.0 * np.eye(len(v)) + 2.0 * np.outer(v, v) - 4.0 * t.T @ t
    normal += 1e4 * np.outer(v, v) + 1e-9 * np.eye(len(v))  # keeps the step tangent
    gradient = 2.0 * (v - t.T @ weight)
    gradient -= (gradient @ v) * v
    delta = -np.linalg.solve(normal, gradient)
    delta *= min(1.0, 0.3 / max(float(np.linalg.norm(delta)), 1e-300))
    return np.asarray((v + delta) / np.linalg.norm(v + delta))


def without(basis: Floats, known: Floats) -> Floats:
    """An orthonormal basis of the span less the squares of the known vectors."""
    if len(known) == 0:
        return basis
    coordinates = squares(known) @ basis.T
    q, _ = np.linalg.qr(coordinates.T, mode="complete")
    return np.asarray(q[:, len(known) :].T @ basis)


def _starts(left: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Where climbs begin, given a basis of what is left of the span.

    Eigenvectors of random members of it are nearer to a rank-one matrix than random vectors are. Half, those of the
    largest |eigenvalue|, climb in what is left first. Where that is small it always leads to the same few places, so
    a quarter are other eigenvectors and a quarter random.
    """
    members = unpack(rng.standard_normal((count, len(left))) @ left)
    values, vectors = np.linalg.eigh(members)
    order = np.argsort(-np.abs(values), axis=1)
    place = np.zeros(count, dtype=np.intp)
    half, few = count // 2, count // 4
    place[:half] = rng.integers(0, min(6, values.shape[1]), half)
    starts = np.ascontiguousarray(vectors[np.arange(count), :, order[np.arange(count), place]])
    starts[:few] = random_directions(few, starts.shape[1], rng)
    starts[half:], _ = climb(left, starts[half:], steps=40, tolerance=1e-2)
    return starts


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
