"""Gated units in a span of Hessians: directions v, carriers u, and how they are lifted from a subspace.

The Hessian of s(v·x) + t(v·x)(u·x) with u ⟂ v is

    (s'' + t''·(u·x)) v vᵀ + t' (v uᵀ + u vᵀ),

so that the span 𝒜 of the Hessians of n_g gated units and n_p plain features has rank 2n_g + n_p. It holds v vᵀ of every
unit and the partner v uᵀ + u vᵀ of every gated one. The subspace power method (`rank_one`) creeps towards a gated
member, as F(v) = ‖P_𝒜(v vᵀ)‖² is flat along u, and stalls near v + εu. Least squares on both conditions at once,

    r₁ = (1 − P)(v vᵀ) = 0,      r₂ = (1 − P)(v uᵀ + u vᵀ)/√2 = 0,      |v| = |u| = 1,  u ⟂ v,

converges quadratically. With A_k the basis matrices of 𝒜 a step needs the vectors A_k v and A_k u only:

    ‖r₁‖² = 1 − Σ (vᵀA_k v)²,    ‖r₂‖² = 1 − 2 Σ (vᵀA_k u)²,    and inner products of derivatives in closed form.

*Lift.* In a subspace with orthonormal rows q_j the amounts α = s'' + t''·(u·x) and β = t' of every unit follow from the
restricted Hessians by least squares. A derivative along q_j and along a direction e outside of the subspace is

    ∂_j ∂_e f = Σ (α v_j + β u_j) v_e + β v_j u_e,

linear in the two unknowns v_e and u_e of every unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions, unit
from .hessians import DerivativeSample
from .numerical_span import Span
from .rank_one import MEMBERS, MatrixSpace, distinct, pack, squares

_IN_SPAN, _IN_SPAN_LIMITS = 10.0, (1e-6, 0.02)
"""Distance of a tensor from the span that counts as none: 1/drop is the error of the basis; between rounding and what
twins 0.06 rad apart leave."""
_SHARP = 30.0  # drop of the singular values below which members with partners may be errors
_ROUGHEST = 0.2  # that distance where the drop is small: members of sums of plain features are as close by chance
_LOOKS, _SHOWN = 24, 0.06  # such ends, and their median distance; empirical: 0.1 to 0.4 for plain sums, whose rank is
# half the dimension of the space, 0.002 to 0.04 for gated ones
_MOST_FILLED = 0.55  # rank over the dimension of the space from which on chance puts ends of plain sums as close
_NOISE_FILLED = 0.7  # the same up to which noise may be what fills it: stencils of less noise, asked anew, decide
_UNSURE, _UNSURE_SHARE = 2, 0.05  # dimensions that may be errors where the drop is small: two, or so many of all
_TWINS_RESOLVED = 1e5  # drop from which on the midpoint of twins 0.03 rad apart does not pass for a gated unit
_CHANCE = 1e-8  # probability of chance partners up to which units are believed
_NO_PARTNER = 0.3  # distance of the best partner above which a member is plain: that of v + εu is about 1.4ε
_MAY_BE_GATED = 0.5  # distance of the best partner from the span from which on joint steps are tried
_STEPS, _LONGEST = 30, 0.3  # of joint least squares: most, and their largest length
_FINISHED = 1e-7  # length of the last one: its error is quadratically small, or far below that of a rough span
_CONSTRAINT = 10.0  # weight of the constraints, linearised, against the residuals, whose derivatives are of size one
_RIDGE = 1e-12  # of the unit diagonal, which keeps flat directions finite
_PROBES = 6  # ends of the power method that are looked at for a first gated unit
_SPARE, _PATIENCE, _MOST_ROUNDS = 16, 4, 40  # starts beyond twice the missing units; rounds without a new unit; rounds
_SAME = 0.01  # radians within which two gated units are one: joint steps end far closer to it
_AT_ONCE = 2**23  # numbers A_k v in memory at once, 64 MB


@dataclass(frozen=True, eq=False)
class Units:
    """Gated and plain members of a span."""

    directions: Floats
    """(k, r) unit rows v."""
    carriers: Floats
    """(k, r) unit rows u ⟂ v of gated units; zero rows of plain ones."""

    @property
    def gated(self) -> NDArray[np.bool_]:
        """(k,) whether a unit has a carrier."""
        return np.asarray(self.carriers.any(axis=1))

    @property
    def rank(self) -> int:
        """Dimension of the span of so many units."""
        return len(self.directions) + int(self.gated.sum())

    def tensors(self) -> Floats:
        """Return the packed (k + gated, D) members v vᵀ of all units, then partners (v uᵀ + u vᵀ)/√2 of gated ones."""
        v, u = self.directions[self.gated], self.carriers[self.gated]
        return np.concatenate([squares(self.directions), _partners(v, u)])


def shows_gates(span: Span, rng: np.random.Generator) -> bool:
    """Return whether most ends of the power method are so close to gated units as those of plain sums are not."""
    if not 2 <= span.rank <= _MOST_FILLED * span.basis.shape[1]:
        return False
    space = MatrixSpace(span.basis)
    ends = _ends(space, Units(span.basis[:0, : space.width], span.basis[:0, : space.width]), _LOOKS, rng)
    outside = joint_steps(space, ends, best_partners(space, ends)[0])[2]
    return bool(np.median(outside) < _SHOWN)


def may_show_gates(span: Span, rng: np.random.Generator) -> bool:
    """Return whether less noise may show gates: `shows_gates`, or noise may be what fills so much of the space."""
    return _MOST_FILLED < span.rank / span.basis.shape[1] <= _NOISE_FILLED or shows_gates(span, rng)


def find_units(
    span: Span, rng: np.random.Generator, guess: Units | None = None, *, single_precision: bool = False
) -> Units | None:
    """Return the units whose members and partners make up the span; None if they do not, or all of them are plain.

    `guess` are those of a less exact span of the same width. In single precision the drop may be small, or unclear, and
    members are nevertheless close to the span: what chance alone would put there decides.
    """
    rough = is_rough(span)
    if span.rank < 2 or (rough and not (single_precision and shows_gates(span, rng))):
        return None
    space, tolerance = MatrixSpace(span.basis), tolerance_of(span)
    known = Units(np.empty((0, space.width)), np.empty((0, space.width)))
    if guess is not None:
        known = _settled(space, guess, tolerance, span.acceptance)
    without_new = 0
    for turn in range(_MOST_ROUNDS):
        missing = span.rank - known.rank
        if missing <= 0 or without_new >= _PATIENCE:
            break
        count = _PROBES if turn == 0 and not len(known.directions) else min(MEMBERS.batch, missing + _SPARE)
        ends = _ends(space, known, count, rng)
        new = _new_units(space, known, ends, tolerance, span.acceptance)
        if not known.gated.any() and not new.gated.any():
            return None  # a sum of plain features has no partners anywhere
        without_new = 0 if len(new.directions) else without_new + 1
        known = Units(
            np.concatenate([known.directions, new.directions]), np.concatenate([known.carriers, new.carriers])
        )
    least = span.rank - (max(_UNSURE, int(_UNSURE_SHARE * span.rank)) if rough else 0)
    if known.rank < least or not _is_believable(known, span, space):
        return None
    return _all_gated(space, known) if rough else known


def is_rough(span: Span) -> bool:
    """Return whether errors of the span hide its weakest members."""
    return not span.clear or span.drop < _SHARP


def _all_gated(space: MatrixSpace, units: Units) -> Units:
    """Return the units with the best partners of those without any: errors hide weak partners, which a fit finds."""
    carriers, plain = units.carriers.copy(), ~units.gated
    carriers[plain] = best_partners(space, units.directions[plain])[0]
    return Units(units.directions, carriers)


def tolerance_of(span: Span) -> float:
    """Return the distance from the span up to which a tensor of length one counts as a member of it."""
    if is_rough(span):
        return float(np.clip(1.0 / span.drop, _IN_SPAN_LIMITS[1], _ROUGHEST))
    return float(np.clip(_IN_SPAN / span.drop, *_IN_SPAN_LIMITS))


def _is_believable(units: Units, span: Span, space: MatrixSpace) -> bool:
    """Return whether partners are neither chance nor the midpoints of twins.

    A random linear map of r − 1 into c dimensions has a singular value below τ with a chance of about τ^(c − r + 2).
    """
    gated = int(units.gated.sum())
    slack = space.basis.shape[1] - span.rank - space.width + 2
    chance = tolerance_of(span) ** (slack * gated) if slack > 0 else 1.0
    return chance <= _CHANCE and (2 * gated >= len(units.directions) or span.drop > _TWINS_RESOLVED)


def _ends(space: MatrixSpace, known: Units, count: int, rng: np.random.Generator) -> Floats:
    """Return (count, r) ends of the power method, which starts where the known units are not."""
    starts = random_directions(count, space.width, rng)
    if len(known.directions):
        q, _ = np.linalg.qr((known.tensors() @ space.basis.T).T, mode="complete")
        rest = MatrixSpace(np.ascontiguousarray(q[:, known.rank :].T @ space.basis))
        starts, _ = rest.power_method(starts, MEMBERS.steps[0], MEMBERS.moved[0])
    ends, _ = space.power_method(starts, MEMBERS.steps[1], MEMBERS.moved[1])
    return ends


def _settled(space: MatrixSpace, guess: Units, tolerance: float, accept: float) -> Units:
    """Return the units of a guess that are in the span, moved to where they are in it."""
    gated = guess.gated
    v, u, outside = joint_steps(space, guess.directions[gated], guess.carriers[gated])
    v, u = _distinct(v[outside <= tolerance], u[outside <= tolerance], outside[outside <= tolerance], _SAME, v[:0])
    plain, inside = space.polish(guess.directions[~gated])
    plain, _ = distinct(plain[inside >= accept], inside[inside >= accept], same=MEMBERS.same, known=v)
    return Units(np.concatenate([v, plain]), np.concatenate([u, np.zeros_like(plain)]))


def _new_units(space: MatrixSpace, known: Units, ends: Floats, tolerance: float, accept: float) -> Units:
    """Return the units at the ends of the power method (k, r) that are not known yet."""
    carriers, distance = best_partners(space, ends)
    near = distance <= _MAY_BE_GATED
    v, u, outside = joint_steps(space, ends[near], carriers[near])
    good = outside <= tolerance
    gated, carried = _distinct(v[good], u[good], outside[good], _SAME, known.directions)
    left = np.concatenate([ends[~near], ends[near][~good]])
    plain, inside = space.polish(left) if len(left) else (left, np.empty(0))
    alone = (inside >= accept) & (best_partners(space, plain)[1] > _NO_PARTNER)
    plain, inside = plain[alone], inside[alone]
    plain, _ = distinct(plain, inside, same=MEMBERS.same, known=np.concatenate([known.directions, gated]))
    return Units(np.concatenate([gated, plain]), np.concatenate([carried, np.zeros_like(plain)]))


def _distinct(v: Floats, u: Floats, outside: Floats, same: float, known: Floats) -> tuple[Floats, Floats]:
    """Return pairs, best first, whose v are at least `same` radians from each other and from the known ones."""
    keep: list[int] = []
    for i in np.argsort(outside, kind="stable"):
        others = np.concatenate([known, v[keep]])
        if np.abs(others @ v[i]).max(initial=0.0) < np.cos(same):
            keep.append(int(i))
    return v[keep], u[keep]


def _partners(v: Floats, u: Floats) -> Floats:
    """Return the packed (v uᵀ + u vᵀ)/√2 (k, D), of length one if u ⟂ v."""
    return pack((v[:, :, None] * u[:, None, :] + u[:, :, None] * v[:, None, :]) * np.sqrt(0.5))


def best_partners(space: MatrixSpace, v: Floats) -> tuple[Floats, Floats]:
    """Return (k, r) unit u ⟂ v whose v uᵀ + u vᵀ is closest to the span, and the distances of these from it."""
    u, distance = np.empty_like(v), np.empty(len(v))
    for i, row in enumerate(v):
        Av = space.matrices @ row
        Av -= np.multiply.outer(Av @ row, row)
        value, vectors = np.linalg.eigh(2.0 * (Av.T @ Av))
        u[i], distance[i] = vectors[:, -1], np.sqrt(max(0.0, 1.0 - value[-1]))
        u[i] -= (u[i] @ row) * row
        u[i] /= np.linalg.norm(u[i])
    return u, distance


def joint_steps(space: MatrixSpace, v: Floats, u: Floats) -> tuple[Floats, Floats, Floats]:
    """Move pairs (k, r) onto units by Gauss–Newton steps on r₁ and r₂; return v, u and √(‖r₁‖² + ‖r₂‖²)."""
    v, u = v.copy(), u.copy()
    outside = np.zeros(len(v))
    batch = max(1, _AT_ONCE // (space.rank * space.width))
    for c in range(0, len(v), batch):
        at = slice(c, c + batch)
        active = np.arange(len(v))[at]
        for _ in range(_STEPS):
            if not len(active):
                break
            step, outside[active] = _joint_step(space, v[active], u[active])
            length = np.linalg.norm(step, axis=1, keepdims=True)
            step = step * np.minimum(1.0, _LONGEST / np.maximum(length, 1e-300))
            moved, turned = v[active] + step[:, : space.width], u[active] + step[:, space.width :]
            v[active] = unit(moved)
            u[active] = unit(turned - np.einsum("kd,kd->k", turned, v[active])[:, None] * v[active])
            active = active[length[:, 0] > _FINISHED]
    return v, u, outside


def _joint_step(space: MatrixSpace, v: Floats, u: Floats) -> tuple[Floats, Floats]:
    """Return the Gauss–Newton steps (k, 2r) in (v, u), and √(‖r₁‖² + ‖r₂‖²) before them."""
    k, r = v.shape
    stacked = space.matrices.transpose(1, 0, 2).reshape(r, -1)  # A_1 … A_n side by side, each of them symmetric
    Av, Au = ((rows @ stacked).reshape(k, -1, r) for rows in (v, u))
    a, b = (Av @ v[:, :, None])[:, :, 0], np.sqrt(2.0) * (Av @ u[:, :, None])[:, :, 0]
    outside = np.sqrt(np.maximum(0.0, 2.0 - np.sum(a**2, axis=1) - np.sum(b**2, axis=1)))
    # R₁v, R₂v and R₂u for the residual matrices R₁ = v vᵀ − Σ a A and R₂ = (v uᵀ + u vᵀ)/√2 − Σ b A
    R1v = v - (a[:, None, :] @ Av)[:, 0]
    R2v = u * np.sqrt(0.5) - (b[:, None, :] @ Av)[:, 0]
    R2u = v * np.sqrt(0.5) - (b[:, None, :] @ Au)[:, 0]
    gradient = np.concatenate([2.0 * R1v + np.sqrt(2.0) * R2u, np.sqrt(2.0) * R2v], axis=1)
    one, vv = np.eye(r), v[:, :, None] * v[:, None, :]
    uu, vu = u[:, :, None] * u[:, None, :], v[:, :, None] * u[:, None, :]
    AvAv, AuAu, AuAv = (np.matmul(x.transpose(0, 2, 1), y) for x, y in ((Av, Av), (Au, Au), (Au, Av)))  # each (k, r, r)
    normal = np.empty((k, 2 * r, 2 * r))
    weight = _CONSTRAINT**2
    normal[:, :r, :r] = 2.0 * (one + vv) - 4.0 * AvAv + one + uu - 2.0 * AuAu + weight * (vv + uu)
    normal[:, r:, r:] = one + vv - 2.0 * AvAv + weight * (uu + vv)
    # d(r₂)/dv against d(r₂)/du, and the constraint v·δu + u·δv = 0
    normal[:, :r, r:] = vu - 2.0 * AuAv + weight * vu.transpose(0, 2, 1)
    normal[:, r:, :r] = normal[:, :r, r:].transpose(0, 2, 1)
    normal += _RIDGE * np.eye(2 * r)
    return -np.linalg.solve(normal, gradient[:, :, None])[:, :, 0], outside


# -- lift ------------------------------------------------------------------------------------------------------


def amounts_of(sample: DerivativeSample, units: Units) -> Floats:
    """Return the (N, p, k + gated) amounts of all members and partners in the Hessians of a sample."""
    tensors = units.tensors()
    return np.asarray(np.linalg.lstsq(tensors.T, sample.rows.T, rcond=None)[0].T).reshape(
        *sample.tensors.shape[:2], len(tensors)
    )


def lift_units(units: Units, amounts: Floats, rows: int, values: Floats) -> Units:
    """Return the units in d dimensions, given their first coordinates.

    `amounts` (x, p, k + gated) are those at the points of the derivatives `values` (x, p, rows, columns), along the
    first `rows` directions of the subspace and along those outside of it.
    """
    gated, k = units.gated, len(units.directions)
    v, u = units.directions[:, :rows], units.carriers[gated][:, :rows]
    alpha, beta = amounts[:, :, None, :k], amounts[:, :, None, k:] * np.sqrt(0.5)
    of_v = alpha * v.T
    of_v[..., gated] += beta * u.T
    of_u = beta * v[gated].T
    design = np.concatenate([of_v, of_u], axis=3).reshape(-1, k + int(gated.sum()))
    scale = np.maximum(np.linalg.norm(design, axis=0), 1e-300)
    rest = np.linalg.lstsq(design / scale, values.reshape(len(design), -1), rcond=None)[0] / scale[:, None]
    directions = np.concatenate([units.directions, rest[:k]], axis=1)
    carriers = np.zeros_like(directions)
    carriers[gated] = np.concatenate([units.carriers[gated], rest[k:]], axis=1)
    return in_gauge(directions, carriers)


def in_gauge(directions: Floats, carriers: Floats) -> Units:
    """Return unit directions, and carriers made orthogonal to them and of length one; zero rows stay zero."""
    v = unit(directions)
    u = carriers - np.einsum("kd,kd->k", carriers, v)[:, None] * v
    length = np.linalg.norm(u, axis=1, keepdims=True)
    u = u / np.maximum(length, 1e-300)
    u[~np.asarray(carriers.any(axis=1))] = 0.0
    return Units(v, u)
