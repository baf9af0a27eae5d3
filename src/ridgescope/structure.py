"""Is f a sum of features, and if not, what is it?

Any smooth function on a ball is *approximately* a sum of features, so agreement at a tolerance says nothing about
structure. Second derivatives do. With 𝒜 the span of the Hessians of f at many points (`search.rank_one`):

    sum of n features      𝒜 = span{v_i v_iᵀ}: rank n, as many rank-one members, all isolated
    gated units            𝒜 also holds a partner v uᵀ + u vᵀ of a member v vᵀ, but not u uᵀ
    k directions interact  𝒜 holds all of Sym(U), dim U = k: members in continuous families; or a rest without any
    depth, norms           𝒜 is everything; so it is for more than d(d+1)/2 features

The *tangents* of a member v, {u : v uᵀ + u vᵀ ∈ 𝒜}, tell the first three apart: they are the line of v, a plane, or U.
Where 𝒜 is everything, rays from the centre tell functions of |x|, which vary along rays only, and of x/|x|, which
vary across rays only. Jumps and kinks, which Hessians do not see, are looked for on lines (`search.breaks`).

Hessians are centred differences of step h. Second differences along the axes with 2h besides show, at every point, how
far off they are, and a kink anywhere inside a stencil.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum, auto
from typing import Literal

import numpy as np

from .search.anatomy import anatomy, equal_eigenvalues, polynomial_degree
from .search.base import Ask, Meter, Setting
from .search.breaks import breaks, follow
from .search.rays import ray_power
from .search.spans import Sample, hessian_samples, sample_tensors, wider_space

# what a verdict rests on
SHARP_DROP = 30.0
"""Drop of singular values from which on missing members are evidence against a sum; errors drop by less than 2.5."""
MISSED = 0.6
"""Members over the rank below which the rest is no feature that the search for members missed: it misses one in ten."""
NOISY = 0.1
"""Error over size of Hessians above which their rank says nothing: there is no drop of 30 even after averaging."""
RAY_POWER = 1e-3
"""Share of power across or along rays that counts as none: a norm's ε of 1e-5 makes 1e-4 at a tenth of the radius."""
EQUAL = 0.02
"""Spread of all but one eigenvalues of a Hessian, over the largest, up to which f is a function of a distance."""
MANY, MANY_PER_DIM = 50, 8
"""Features, and features a dimension, that a sum must have at least before depth is the simpler explanation: as many as
searches have been seen to tell apart in six dimensions, and twice the width of a transformer's layer."""
CHANCE = 1e-8
"""Chance of partners or blocks up to which they are taken for real: so small because the constant before a power of the
tolerance is not known."""
TWINS_RESOLVED = 1e5
"""Drop from which on the midpoint of twins 0.03 rad apart, 2e-4 outside the span, is not taken for a gated unit."""
CONTINUED, LEAST_FOLLOWED = 0.8, 24
"""Share of places at which a kink must go on along its hyperplane: for sums all but one in fifty, with other kinks in a
window, were measured to. And the fewest places that say so, for a chance of 1e-4 that five of them are such."""


class Kind(StrEnum):
    """What the tests say that f is."""

    SUM = auto()
    GATED = auto()
    """Features whose response is multiplied by a second linear form."""
    BLOCK = auto()
    """Several directions interact, as in products and attention."""
    NORMALISED = auto()
    """A function of x/|x|, up to an affine part: a norm before a layer."""
    DEPTH = auto()
    """Derivatives span everything: depth, or a layer wider than `MANY` features."""
    RADIAL = auto()
    """A function of the distance from a point."""
    JUMPS = auto()
    """f is not continuous."""
    KINKS = auto()
    """Kinks end or turn, as those of max, of trees and of deep networks do."""
    NOISE = auto()
    """Noise, or oscillation finer than the stencils, hides derivatives."""
    UNDETERMINED = auto()
    """More features than these derivatives can tell, or too few queries."""

    @property
    def excludes_sum(self) -> bool:
        """Whether there is positive evidence that f is no sum of features; not for depth, which a wide layer may be."""
        return self in (Kind.GATED, Kind.BLOCK, Kind.NORMALISED, Kind.RADIAL, Kind.KINKS)


@dataclass(frozen=True)
class Evidence:
    """What the tests measured: numbers only."""

    dim: int
    """Dimension of the subspace in which f was looked at."""
    width: int = 0
    """Dimension of the subspace of it that derivatives were restricted to; 0 where there are none."""
    full_rank: int = 0
    """Dimension of the space of symmetric tensors, width·(width+1)/2 for Hessians: the most that a rank can be."""
    points: int = 0
    """Points whose derivatives were used."""
    order: int = 2
    """Of these derivatives: 2, or more where Hessians do not tell the features apart."""
    rank: int | None = None
    """Where the singular values of the stacked derivatives drop; None without a clear drop."""
    room: bool = False
    """The rank is so small that a sum of as many features has no other rank-one members."""
    filled: bool = False
    """Derivatives fill the whole space of symmetric tensors: a sum would need at least full_rank features."""
    drop: float = 1.0
    """The singular value that ends the span over the next."""
    members: int = 0
    """Isolated rank-one members of the span, partners or not."""
    partners: int = 0
    """Members with a partner in the span."""
    block_dim: int = 0
    """Dimension of the subspace in which the rest of the span lives; 0 without a rest."""
    degree: int = 0
    """2 or 3 where f, less its isolated members, is a polynomial of this degree; 0 where it is none."""
    chance: float = 0.0
    """Order of magnitude of the probability that a sum shows such partners or such a block."""
    equal: float = 1.0
    """Spread of all but one eigenvalues of a Hessian over the largest of them, median over points."""
    ray_power: float = 0.5
    """Share of f's power, less its slope, along rays rather than across them: 0 for x/|x|, 1 for |x|."""
    jumps: float = 0.0
    """Largest jump, in standard deviations of f."""
    jump_count: int = 0
    bend: float = 0.0
    """Largest second difference over a 32nd of a chord, in standard deviations of f; 0 where noise explains it."""
    kinks: int = 0
    """Kinks on random chords."""
    continued: float = 1.0
    """Share of places at which a kink goes on along its hyperplane."""
    followed: int = 0
    """Places that were looked at for that."""
    noise_ratio: float = 0.0
    """Error of Hessians over their size, or over std/radius² where they vanish."""
    queries: int = 0

    @property
    def least_features(self) -> int:
        """A sum of fewer features is excluded: it would have a smaller rank."""
        return self.full_rank if self.filled else self.rank or 0

    @property
    def says_something(self) -> bool:
        """Whether derivatives or jumps were seen, rather than too few queries left for them."""
        return self.width > 0 or self.jump_count > 0 or self.dim == 1

    @property
    def too_many(self) -> bool:
        """More features, if it is a sum, than derivatives of this order can tell apart."""
        return self.filled or (self.rank is not None and not self.room)


def examine(ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Evidence:
    """Look at f with at most `queries` rows: lines, Hessians and, where those leave it open, rays and higher orders."""
    meter, rays_asked = Meter(ask, queries), False
    broken = breaks(meter, setting, rng)
    found = Evidence(
        setting.dim,
        jumps=broken.largest_jump,
        jump_count=broken.jumps,
        bend=broken.bend,
        kinks=len(broken.kinks.half),
    )
    if broken.jumps == 0 and setting.dim > 1:
        for sample in hessian_samples(meter, setting, rng):
            found = replace(_with_span(found, sample, rng), equal=equal_eigenvalues(sample))
            ordinary = max(sample.size, setting.std / setting.edge**2)
            found = replace(found, noise_ratio=sample.error / ordinary)
            if found.filled and not rays_asked:
                found, rays_asked = replace(found, ray_power=ray_power(meter, setting, rng)), True
            if classify(found) is not Kind.UNDETERMINED:  # wider ones would take many times the queries
                break
        followed, continued = follow(meter, setting, broken.kinks, rng, straight=found.rank == 0)
        found = replace(found, followed=followed, continued=continued)
    if classify(found) is not Kind.SUM and not rays_asked:
        found = replace(found, ray_power=ray_power(meter, setting, rng))
    while classify(found) is Kind.UNDETERMINED and found.too_many and not found.kinks:
        wider = wider_space(setting.dim, found.order, found.least_features)
        higher = sample_tensors(meter, setting, *wider, rng) if wider else None
        if higher is None:
            break
        found = _with_span(found, higher, rng)
    return replace(found, queries=meter.spent)


def _with_span(found: Evidence, sample: Sample, rng: np.random.Generator) -> Evidence:
    found = replace(
        found,
        order=sample.order,
        width=sample.width,
        full_rank=sample.dimensions,
        points=len(sample.points),
        filled=sample.is_full,
        drop=sample.span.drop,
        rank=sample.span.rank if sample.is_steady else None,
        room=sample.is_steady and sample.has_room,
    )
    if not found.room:
        return replace(found, degree=polynomial_degree(sample))
    return replace(found, **asdict(anatomy(sample, rng)))


def classify(evidence: Evidence) -> Kind:
    """The kind that the evidence shows; no verdict against a sum rests on the absence of evidence."""
    e = evidence
    if e.jump_count:
        return Kind.JUMPS
    if e.dim == 1:
        return Kind.SUM
    ending = e.followed >= LEAST_FOLLOWED and e.continued < CONTINUED
    if e.noise_ratio > NOISY:  # kinks are followed only where they stand above the noise
        return Kind.KINKS if ending else Kind.NOISE
    if e.degree:
        return Kind.KINKS if ending else Kind.SUM
    if e.rank is None:
        return _of_everything(e)
    if e.room and e.block_dim == 0 and e.members == e.rank:
        if ending:
            return Kind.KINKS
        # f bends, but neither Hessians nor kinks have shown how
        return Kind.UNDETERMINED if e.rank == 0 and e.bend > 0.0 and e.followed < LEAST_FOLLOWED else Kind.SUM
    if e.drop < SHARP_DROP or e.chance > CHANCE or not e.room:
        return Kind.UNDETERMINED
    if e.partners and e.members + e.partners == e.rank and (2 * e.partners >= e.members or e.drop > TWINS_RESOLVED):
        return Kind.GATED
    named = _of_everything(e)
    if named is Kind.UNDETERMINED and e.block_dim and e.members < MISSED * e.rank:
        return Kind.BLOCK
    return named


def _of_everything(e: Evidence) -> Kind:
    """What f may be where derivatives fill the whole space, or a block."""
    if not (e.filled or e.block_dim):  # rays say little of their own: steep responses do not vary along them, either
        return Kind.UNDETERMINED
    if e.ray_power > 1.0 - RAY_POWER or e.equal < EQUAL:
        return Kind.RADIAL
    if e.ray_power < RAY_POWER:
        return Kind.NORMALISED
    return Kind.DEPTH if e.filled and e.full_rank >= max(MANY, MANY_PER_DIM * e.dim) else Kind.UNDETERMINED


Verdict = Literal["exact", "approximate", "unknown"]


@dataclass(frozen=True)
class Structure:
    """Whether f is a sum of the features that were found, or only close to one."""

    verdict: Verdict
    """ "exact": f is that sum as far as derivatives and kinks show. "approximate": f has another structure or more
    features, and the model is a surrogate. "unknown": the tests say nothing."""
    kind: Kind
    """What the tests say that f is."""
    evidence: Mapping[str, float]
    """The numbers behind it, by the names of `Evidence`; NaN for what is not known."""
    sentence: str
    """The same in words, with what to try."""


def assess(evidence: Evidence, *, features: int, certified: bool) -> Structure:
    """What the evidence says about a fit of so many features, certified or not."""
    kind = classify(evidence)
    numbers = {name: float("nan") if value is None else float(value) for name, value in asdict(evidence).items()}
    verdict = _verdict(evidence, kind, features, certified)
    return Structure(verdict, kind, numbers, _sentence(evidence, kind))


def assess_proposals(
    proposed: int | None, *, features: int, certified: bool, gated: int = 0, by_kinks: bool = False
) -> Structure:
    """Return what is known without tests of structure: the searches found `proposed` features, and evidence that these
    are all; None where they had no such evidence. `gated` of them are gated, as kinks show, or derivatives.
    """
    if proposed is None or not certified:
        return Structure("unknown", Kind.UNDETERMINED, {}, "The structure of f was not tested.")
    verdict: Verdict = "exact" if features == proposed else "unknown"
    numbers = {"proposed": float(proposed), "features": float(features)}
    if gated:
        numbers["gated"] = float(gated)
        sentence = (
            f"f is quadratic between {proposed} hyperplanes, the only places where lines bend; {gated} of them are "
            "gates of ReGLU units, and with their carriers they leave nothing of f but rounding."
            if by_kinks
            else f"The span of Hessians has the rank of {proposed} features, {gated} of them gated, and holds the "
            "members and partners of all of them, so that there are no others."
        )
        return Structure(verdict, Kind.GATED, numbers, sentence)
    sentence = f"The searches found {proposed} features, and evidence that there are no others of their kinds."
    return Structure(verdict, Kind.SUM, numbers, sentence)


def _verdict(e: Evidence, kind: Kind, features: int, certified: bool) -> Verdict:
    """Which verdict the numbers bear.

    Kinks count where Hessians vanish: one that goes on along its hyperplane is a feature's. Features beyond the rank
    are no evidence against a sum, as a response may bend in kinks only, or where no Hessian was taken.
    """
    if kind.excludes_sum:
        return "approximate"
    if not certified or kind in (Kind.JUMPS, Kind.NOISE):
        return "unknown"
    if e.degree:
        return "exact"
    if features < e.least_features:
        return "approximate"
    if e.filled or e.rank is None:
        return "unknown"
    by_kinks = kind is Kind.SUM and e.followed >= LEAST_FOLLOWED
    return "exact" if features == e.rank or by_kinks else "unknown"


def _sentence(e: Evidence, kind: Kind) -> str:
    """The kind in words, with its numbers and a remedy."""
    spanning = "Hessians" if e.order == 2 else f"derivatives of order {e.order}"
    match kind:
        case Kind.SUM:
            return _of_a_sum(e, spanning)
        case Kind.GATED:
            return (
                f"f looks like a sum of {e.partners} gated units"
                + f" and {e.members - e.partners} features" * (e.members > e.partners)
                + f": its {spanning} span {e.rank} dimensions and hold {e.members} members of rank one, {e.partners} "
                "of them with a partner. Query what the gate or the value path alone computes, or accept a surrogate."
            )
        case Kind.BLOCK:
            return (
                f"{e.block_dim} directions interact: the {spanning} of f span {e.rank} dimensions, more than they hold "
                "isolated members of rank one, as those of products and attention do. Query what goes into the "
                "product or the softmax."
            )
        case Kind.NORMALISED:
            return (
                f"f depends on x/|x|: along rays it varies by {e.ray_power:.1e} of its power only, as behind a "
                "LayerNorm or RMSNorm. Query the block behind its norm."
            )
        case Kind.RADIAL:
            seen = (
                f"all but one eigenvalue of its Hessians agree to {e.equal:.1e}"
                if e.equal < EQUAL
                else f"{e.ray_power:.2%} of its power lies along rays"
            )
            return f"f looks like a function of the distance from a point: {seen}. Give it that distance as its input."
        case Kind.JUMPS:
            return (
                f"f jumps: a step of {e.jumps:.2g} standard deviations is left however close the points are, as in "
                "trees, steps and rounding. Query what is compared or rounded."
            )
        case Kind.KINKS:
            return (
                f"f has kinks that end or turn: at {1 - e.continued:.0%} of {e.followed} places on their hyperplanes "
                "they are gone, as those of max, of trees and of deep networks are. Query an inner layer."
            )
        case Kind.DEPTH:
            return (
                f"The {spanning} of f fill all {e.full_rank} dimensions, so that it is no sum of fewer features: a "
                "deep network, or a very wide layer. Query an inner layer, or a smaller ball."
            )
        case Kind.NOISE:
            return (
                f"Noise, or oscillation finer than the stencils, makes {e.noise_ratio:.0%} of the second "
                "derivatives. Average repeated queries, or ask in a smaller ball."
            )
    return _undetermined(e, spanning)


def _of_a_sum(e: Evidence, spanning: str) -> str:
    if e.degree:
        rest = f"a polynomial of degree {e.degree}"
        both = f"a sum of {e.members} features and {rest}" if e.members else rest
        return f"f looks like {both}, which is a sum of features in many ways: its directions are one choice of many."
    if e.rank:
        return (
            f"f looks like a sum of {e.rank} smoothly bending features: its {spanning} span {e.rank} dimensions of "
            f"{e.full_rank} and hold as many members of rank one" + (", besides kinks." * (e.kinks > 0) or ".")
        )
    if e.kinks:
        return (
            f"f looks like a sum of features with kinks: it is straight between them, and at {e.continued:.0%} of "
            f"{e.followed} places they go on along their hyperplanes."
        )
    return "f is a function of one variable." if e.dim == 1 else "f looks affine."


def _undetermined(e: Evidence, spanning: str) -> str:
    if not e.width:
        return "There were too few queries for tests of structure."
    if e.filled:
        return (
            f"The {spanning} of f fill all {e.full_rank} dimensions: a sum of at least that many features, or none at "
            "all, as depth and products of everything are."
        )
    if e.rank is not None:
        return (
            f"The {spanning} of f span {e.rank} of {e.full_rank} dimensions, of which members of rank one account for "
            f"{e.members}: too little to tell a sum of features from something else."
        )
    return f"The singular values of the {spanning} do not drop clearly: the number of features is not known."
