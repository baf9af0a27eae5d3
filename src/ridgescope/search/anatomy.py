"""What the span of the derivatives of f is made of: isolated rank-one members, partners of gated units, blocks.

With 𝒜 the span of Hessians and v vᵀ a member of it, the *tangents* of v are {u : v uᵀ + u vᵀ ∈ 𝒜}, v among them:

    a feature        the line of v
    a gated unit     a plane of v and u, while u uᵀ ∉ 𝒜
    a block Sym(U)   U; every unit vector of U is a member

For derivatives of order k the same holds of p(v) = v^{⊗k} and its derivatives p'(v)u. Tangents are the right singular
vectors of u ↦ (I − P) p'(v)u/√k, of length one in 𝒜's complement at most, with singular values at the level of errors.
The maximum of F is flat along the partner u of a gated member, so that v is found only up to a multiple ε of u; as then

    (I − P) p'(v)u = ε (I − P) p''(v)[u, u],

ε follows by least squares, and some such steps finish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..geometry import Floats
from .rank_one import MatrixSpace, Space, distinct, members, unpack
from .spans import Sample
from .tensors import filled_block

_IN_SPAN = 10.0  # distance of a tensor in the span over 1/drop, the error of its basis,
_IN_SPAN_LIMITS = (1e-6, 0.02)  # between rounding and what twins 0.06 rad apart leave
_MAY_BE_GATED = 0.3  # singular value of a tangent from which steps towards a gated member start
_STEPS_TO_GATED = 40  # each of which leaves at most about 0.6 of the error; measured
_NUDGE = 1e-2  # for p'' by differences, exact up to order 3
_REST = 1e-3  # singular values, over the largest, of the directions that the rest of a span lives in
_POLYNOMIAL = 3.0  # misfit of a polynomial over the errors up to which Hessians are constant or affine in x,
_PER_UNKNOWN = 1.5  # points for each of its coefficients, below which it would fit anything


@dataclass(frozen=True)
class Anatomy:
    """The parts of a span."""

    members: int
    """Isolated rank-one members, gated ones included."""
    partners: int
    """Gated ones."""
    block_dim: int
    """Dimension of the subspace in which the rest lives; 0 without a rest."""
    degree: int
    """2 or 3 where the rest is that of a polynomial of this degree, which is a sum of features in many ways; or 0."""
    chance: float = 0.0
    """Order of magnitude of the probability that random members have tangents like these."""


def anatomy(sample: Sample, rng: np.random.Generator) -> Anatomy:
    """Members, partners and the rest of a span with a clear drop and room for members."""
    span, space = sample.span, sample.space
    if span.rank == 0:
        return Anatomy(0, 0, 0, 0)
    tolerance = float(np.clip(_IN_SPAN / span.drop, *_IN_SPAN_LIMITS))
    # a random linear map of r − 1 into c dimensions has a singular value below τ with a chance of about τ^(c−r+2), and
    # a random tensor is so close to the span with one of τ^c
    codimension = sample.dimensions - span.rank
    slack = codimension - sample.width + 2
    if not sample.tells_members:
        return Anatomy(0, 0, 0, polynomial_degree(sample))
    ones = members(space, rng, accept=span.acceptance)
    found, sure = ones.vectors, ones.vectors[ones.inside >= span.acceptance]  # the search also lists less likely ones
    tangents = [_tangents(space, v, tolerance) for v in found]
    in_block = np.array([len(u) > 1 and _outside(space, space.packed(u)).max() <= tolerance for u in tangents], bool)
    isolated = found[~in_block]
    if len(isolated) >= span.rank:
        units, plain = _gated_units(space, sure, tolerance)
        plain = max(0, min(plain, span.rank - 2 * units))
        if 2 * units + plain >= span.rank and units >= plain:  # in a rough span v ± εu pass for members
            return Anatomy(units + plain, units, 0, 0, chance=tolerance ** (slack * units))
        block = filled_block(isolated, sample.order, span.drop)
        return Anatomy(0, 0, block, 0) if block else Anatomy(span.rank, 0, 0, 0)
    degree = polynomial_degree(sample, space.complement(isolated).basis)
    if degree or in_block.any():
        block = max((len(u) for u, inside in zip(tangents, in_block, strict=True) if inside), default=0)
        return Anatomy(len(isolated), 0, block, degree, chance=tolerance ** (slack + codimension) if block else 0.0)
    units, plain = _gated_units(space, sure, tolerance)
    count = units + plain if units else len(found)
    rest = _rest_dim(space, found) if count + units < span.rank else 0
    return Anatomy(count, units, rest, 0, chance=tolerance ** (slack * units) if units else 0.0)


def polynomial_degree(sample: Sample, basis: Floats | None = None) -> int:
    """2 or 3 where Hessians, or their part in the span of `basis`, are constant or affine in x; 0 otherwise."""
    points, rows = sample.points, sample.tensors
    if sample.order > 2:
        return 0
    rows = rows if basis is None else rows @ basis.T
    rows = rows.reshape(len(rows), -1)
    limit = _POLYNOMIAL * sample.error * np.sqrt(rows.shape[1])
    for degree, design in ((2, np.ones((len(points), 1))), (3, np.column_stack([np.ones(len(points)), points]))):
        if len(points) < _PER_UNKNOWN * design.shape[1]:
            break
        left = rows - design @ np.linalg.lstsq(design, rows, rcond=None)[0]
        if np.sqrt(np.sum(left**2) / (len(points) - design.shape[1])) <= limit:
            return degree
    return 0


def equal_eigenvalues(sample: Sample) -> float:
    """Spread of all but one eigenvalues over the largest of them, median over Hessians; 1 below three dimensions.

    A function of the distance from any point has Hessians αI + β y yᵀ.
    """
    if sample.width < 3:
        return 1.0
    values = np.linalg.eigvalsh(unpack(sample.rows))
    spreads = [
        (part[:, -1] - part[:, 0]) / np.maximum(np.abs(part).max(axis=1), 1e-300)
        for part in (values[:, 1:], values[:, :-1])
    ]
    return float(np.median(np.minimum(*spreads)))


def _rejected(space: Space, rows: Floats) -> Floats:
    """(I − P) of packed tensors."""
    return np.asarray(rows - (rows @ space.basis.T) @ space.basis)


def _outside(space: Space, rows: Floats) -> Floats:
    """(k,) distances of packed tensors from the span."""
    return np.asarray(np.linalg.norm(_rejected(space, rows), axis=1))


def _slants(space: Space, v: Floats) -> tuple[Floats, Floats]:
    """Unit vectors across v (r−1, r) and how far p'(v)u, scaled to length one, is from the span, least first."""
    across = np.linalg.svd(v[None, :])[2][1:]
    rows = (space.packed(v + _NUDGE * across) - space.packed(v - _NUDGE * across)) / (2.0 * _NUDGE)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    left, size, _ = np.linalg.svd(_rejected(space, rows))
    size = np.concatenate([size, np.zeros(len(across) - len(size))])
    return (left.T @ across)[::-1], size[::-1]


def _tangents(space: Space, v: Floats, tolerance: float) -> Floats:
    """(k, r) orthonormal tangents of a member, v first."""
    across, size = _slants(space, v)
    return np.concatenate([v[None, :], across[size <= tolerance]])


def _gated_member(space: Space, v: Floats, tolerance: float) -> Floats | None:
    """The member near v that has a partner; None if there is none."""
    for _ in range(_STEPS_TO_GATED):
        across, size = _slants(space, v)
        if size[0] <= tolerance:
            return v if _outside(space, space.packed(v[None, :]))[0] <= tolerance else None
        if size[0] > _MAY_BE_GATED:
            return None
        u = _NUDGE * across[0]
        behind, here, ahead = _rejected(space, space.packed(np.stack([v - u, v, v + u])))
        first, second = (ahead - behind) / 2.0, ahead - 2.0 * here + behind
        v = v - (first @ second) / (second @ second) * u
        v = v / np.linalg.norm(v)
    return None


def _gated_units(space: Space, found: Floats, tolerance: float) -> tuple[int, int]:
    """The numbers of members with and without a partner, where vectors on either side of one, v ± εu, count once.

    The square of v + εu is outside the span by ε² only, so that both sides pass for members up to ε² of the tolerance.
    """
    near = [_gated_member(space, v, tolerance) for v in found]
    gated = np.array([v for v in near if v is not None]).reshape(-1, space.width)
    units, _ = distinct(gated, np.ones(len(gated)), same=2.0 * np.sqrt(tolerance), known=gated[:0])
    return len(units), len(near) - len(gated)


def _rest_dim(space: Space, found: Floats) -> int:
    """Dimension of the subspace across all members in which the rest lives; r where members leave none."""
    r = space.width
    if len(found) >= r or not isinstance(space, MatrixSpace):
        return r
    across = np.linalg.svd(found)[2][len(found) :] if len(found) else np.eye(r)
    rest = across @ space.matrices @ across.T
    size = np.linalg.svd(rest.reshape(-1, len(across)), compute_uv=False)
    return int(np.sum(size > _REST * size[0]))
