"""The interface of a proposer: its inputs, its output and the rules that it must obey.

A proposer examines f, or the model's residual, and returns candidate directions. It may return too many: the
joint fit decides, and a false candidate costs time, never correctness. Any object with a `name` and the methods `cost`
and `propose` is one and can be passed to `rs.extract(…, method=…)`. `RandomStarts` below is the shortest example.

Rules for `propose`:

1. It asks at most `queries` rows in all, gradients included. If those are too few it returns no directions and says
   so in the note.
2. It asks no point farther than `setting.reach` from the origin; the reach may be the radius itself.
3. It accepts rows of NaN, which are dropped answers.
4. It takes all randomness from `rng`: the same generator gives the same proposal.
5. It ignores differences below `setting.noise`.
6. Where its queries or its time end before its search does, it catches `SPENT` and returns what it has found so far;
   the rest of the time is for the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..deadline import OutOfTime
from ..errors import InvalidInput, RidgescopeError
from ..feature import Plane
from ..geometry import Floats, random_directions

Ask = Callable[[Floats], Floats]
"""Maps (m, d) points to (m, p) values of f or of the model's residual; a NaN row is a dropped answer."""

INSIDE = 1.0 - 1e-9  # factor on a radius: leaves room for the rounding of points on its sphere, far below any step


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that a proposer knows about f before its first query, in the coordinates of the ball."""

    dim: int
    outputs: int
    radius: float
    """Radius of the ball on which f is to be reproduced."""
    reach: float
    """Largest distance from the origin at which a point may be asked; infinite if there is no limit."""
    std: float
    """Standard deviation over the ball of the function that `ask` evaluates."""
    noise: float
    """Standard deviation of the error of one answer, rounding included; never 0."""
    bandwidth: float
    """Frequency (radians per unit length) below which nearly all of f's power along random lines lies."""
    gradient: Ask | None = None
    """Maps (m, d) points to (m, p, d) gradients, if the oracle offers them; one row counts as one query."""
    directions: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """(n, d) unit rows: the directions that the model already has."""
    proposed: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """(k, d) unit rows: the directions that other proposers of this round have found."""
    worst: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """(w, d) points asked before at which the model is most wrong, the worst first."""
    rounds: int = 0
    """Number of rounds completed so far."""
    turns: int = 0
    """Number of those rounds in which this proposer was called."""

    def __post_init__(self) -> None:
        for name in ("directions", "proposed", "worst"):
            object.__setattr__(self, name, np.reshape(getattr(self, name), (-1, self.dim)))

    @property
    def edge(self) -> float:
        """The radius of the part of the ball that may be asked."""
        return min(self.radius, self.reach)

    @property
    def wave(self) -> float:
        """1/bandwidth, the length on which f varies; finite even if f is affine."""
        return 1.0 / max(self.bandwidth, 1e-9)


@dataclass(frozen=True, eq=False)
class GatedCandidates:
    """What a search proposes where features are gated: directions, carriers, and derivatives of the gates."""

    directions: Floats
    """(k, d) unit rows v."""
    carriers: Floats
    """(k, d) unit rows u ⟂ v; zero rows of plain features."""
    points: Floats
    """(N, d) points at which derivatives were measured."""
    amounts: Floats
    """(N, p, k) derivatives at these points up to a factor for each unit: t'(v·x) of gated ones, s''(v·x) of others."""
    kinks: Floats | None = None
    """(k,) t, where all gates are relu(v·x − t); None where the derivatives are to show what they are."""

    @property
    def gated(self) -> NDArray[np.bool_]:
        """(k,) whether a candidate has a carrier."""
        return np.asarray(self.carriers.any(axis=1))

    def with_plain(self, directions: Floats) -> GatedCandidates:
        """Return these candidates after plain ones along `directions` (j, d), of which no derivative is known."""
        zeros = np.zeros((*self.amounts.shape[:2], len(directions)))
        return replace(
            self,
            directions=np.concatenate([directions, self.directions]),
            carriers=np.concatenate([np.zeros_like(directions), self.carriers]),
            amounts=np.concatenate([zeros, self.amounts], axis=2),
            kinks=None if len(directions) else self.kinks,
        )


@dataclass(frozen=True, eq=False)
class Proposal:
    """Candidate directions, best first, and further facts about them."""

    directions: Floats
    """(k, d) unit rows."""
    scores: Floats
    """(k,) scores, larger is better; comparable within one proposal only."""
    note: str = ""
    """A short summary with numbers for the history."""
    planes: tuple[Plane, ...] = ()
    """Planar spectra for the report."""
    kinks: tuple[Floats, ...] = ()
    """For each direction v, the positions t at which its response has a kink at v·x = t; empty if unknown."""
    jumps: tuple[Floats, ...] = ()
    """For each direction, the (kinks, p) jumps of the slope at its kinks; empty if unknown."""
    explains: Ask | None = None
    """The part of f that the proposal already accounts for; the next proposer of the round sees f without it."""
    resolved: bool = True
    """False if there are more features than this proposer can separate."""
    angle_error: float = 0.0
    """Expected error of the worst direction in radians; 0 if it is far below the error that a fit would leave."""
    angle_errors: Floats = field(default_factory=lambda: np.empty(0))
    """(k,) radians that the errors of single directions stay below, infinite where unknown; empty if all are."""
    rank: int | None = None
    """The numerical rank of the derivatives, if the proposer computes one and the singular values drop clearly."""
    queries: int = 0
    """Number of rows asked, set by `run_proposer`."""
    complete: bool = False
    """True only if there is evidence that no feature of this proposer's kind was missed in the ball.

    Features that it cannot separate count as one.
    """
    only: bool = False
    """True if f is straight but for what is proposed, so that other proposers have nothing to find."""
    spanning: bool = False
    """True only if there is evidence that f is constant along all that is orthogonal to the directions."""
    drop: float = float("inf")
    """Factor by which singular values drop after the rank that says so; infinite for evidence of another kind."""
    gated: GatedCandidates | None = None
    """The carriers of the directions, where some of these are gated; see `search.gated`."""
    applies: bool = True
    """False if a few queries have shown that f is not of the kind that the proposer is for."""

    @classmethod
    def empty(cls, setting: Setting, note: str, *, resolved: bool = True, applies: bool = True) -> Proposal:
        """Return a proposal without candidates whose note gives the reason."""
        return cls(np.empty((0, setting.dim)), np.empty(0), note, resolved=resolved, applies=applies)


@runtime_checkable
class Proposer(Protocol):
    """A search for directions; the top of this module lists the rules."""

    @property
    def name(self) -> str:
        """The name used in histories and stages; the proposer's random stream depends on it."""

    def cost(self, setting: Setting) -> int:
        """Return the most queries that one call may spend; the run allows fewer if its own budget is smaller."""

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return candidate directions, found with at most `queries` rows."""


class OutOfQueries(RidgescopeError):
    """Raised before a batch is asked that would exceed the allowed queries."""


SPENT = (OutOfQueries, OutOfTime)
"""What ends a search before it is done: its queries are spent, or its share of the time limit is."""


class Meter:
    """An `ask` that counts its rows and raises `OutOfQueries` before it would exceed its limit.

    With `retry` each dropped answer is asked for once more, as failures may be temporary; if it fails again it is NaN.
    """

    def __init__(self, ask: Ask, queries: int, *, retry: bool = False) -> None:
        self._ask, self._retry = ask, retry
        self.left, self.spent = int(queries), 0

    def allow(self, rows: int) -> None:
        """Raise the limit by so many rows."""
        self.left += rows

    def charge(self, rows: int) -> None:
        """Count `rows` rows that are about to be asked; raise `OutOfQueries` if they exceed the limit."""
        if rows > self.left:
            raise OutOfQueries(f"{rows:,} rows were requested and {self.left:,} are left; ask at most `queries` rows")
        self.left -= rows
        self.spent += rows

    def __call__(self, points: Floats) -> Floats:
        """Return the (m, p) answers at (m, d) points, after counting them."""
        self.charge(len(points))
        values = self._ask(points)
        if not self._retry:
            return values
        values = np.array(values, dtype=np.float64)
        lost = ~np.isfinite(values).all(axis=1)
        if lost.any() and lost.sum() <= self.left:
            self.charge(int(lost.sum()))
            values[lost] = self._ask(points[lost])
            values[~np.isfinite(values).all(axis=1)] = np.nan
        return values


def run_proposer(proposer: Proposer, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
    """Call a proposer, limited to `queries` rows, and return its proposal with the rows counted.

    A proposer that does not catch the end of its time proposes nothing.
    """
    meter = Meter(ask, queries)
    gradient = setting.gradient
    if gradient is not None:

        def counted(X: Floats) -> Floats:
            meter.charge(len(X))
            return gradient(X)

        setting = replace(setting, gradient=counted)
    try:
        found = proposer.propose(meter, setting, queries=queries, rng=rng)
    except OutOfTime:
        found = Proposal.empty(setting, "its share of the time limit was too short")
    k = len(found.scores)
    lengths = np.linalg.norm(found.directions, axis=1) if found.directions.shape == (k, setting.dim) else np.zeros(1)
    if not np.allclose(lengths, 1.0):
        raise InvalidInput(
            f"proposer {proposer.name!r} returned directions of shape {found.directions.shape} for {k} scores; "
            f"a proposal has a unit row of {setting.dim} numbers for each score"
        )
    return replace(found, queries=meter.spent)


QUERIES_PER_PARAMETER = 30  # empirical: whole runs of the recovery benchmark take 8 to 40
RESPONSE_PARAMETERS = 16  # parameters of one response as that benchmark counts them; a direction has d more
FEATURES_PER_DIM = 2  # number of features per dimension that the first call is to pay for


def parameter_cost(features: int, setting: Setting, doublings: int) -> int:
    """Return the queries for that many features at thirty queries a parameter, times 2 to the power of `doublings`."""
    return QUERIES_PER_PARAMETER * features * (setting.dim + RESPONSE_PARAMETERS) << doublings


class CostPerRound:
    """A proposer that may spend the queries for two features per dimension, twice as many after each round."""

    def cost(self, setting: Setting) -> int:
        return parameter_cost(FEATURES_PER_DIM * setting.dim, setting, setting.rounds)


@dataclass(frozen=True)
class RandomSettings:
    """The number of random directions to start from."""

    per_dim: int = 2  # features per dimension to assume, those of the model included
    most: int = 48  # upper limit of that assumption (empirical)
    fewest: int = 8  # least number of starts; there are also at least half as many as the model has directions


@dataclass(frozen=True)
class RandomStarts:
    """Random directions: the basin of the joint fit is wide, so that some of them lead to missing features."""

    settings: RandomSettings = RandomSettings()
    name: ClassVar[str] = "random"

    def cost(self, setting: Setting) -> int:
        """Return 0: nothing is asked."""
        return 0

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return directions uniform on the sphere; their number depends on how many directions the model has."""
        s, known = self.settings, len(setting.directions)
        count = max(s.fewest, min(s.per_dim * setting.dim, s.most) - known, known // 2)
        return Proposal(random_directions(count, setting.dim, rng), np.zeros(count), f"{count} random starts")


def points_in_shell(setting: Setting, pad: float, count: int, rng: np.random.Generator) -> Floats:
    """Return (count, d) random points that leave room inside the ball for stencils of size `pad`.

    Radii are uniform from a third of the largest possible one to all of it, as responses bend at different distances.
    """
    outer = setting.edge - 1.01 * pad  # 1.01: a hundredth more, for rounding
    return random_directions(count, setting.dim, rng) * rng.uniform(outer / 3.0, outer, count)[:, None]


def informative_points(curvature: Floats, count: int) -> NDArray[np.intp]:
    """Return the indices of `count` points at which, taken together, every feature has strong curvature.

    `curvature` (N, p, n) holds the curvature of every feature at every point. The choice is greedy: each point adds
    most to Σ_i log(seen_i), where seen_i is the share of feature i's power at the points chosen so far.
    """
    power = np.sum(curvature**2, axis=1)
    power = power / np.maximum(power.sum(axis=0), 1e-300)
    seen = np.full(power.shape[1], 1e-3 / len(power))  # far below one point's share: the first gains most
    chosen: list[int] = []
    for _ in range(count):
        gain = np.sum(np.log1p(power / seen), axis=1)
        gain[chosen] = -np.inf
        chosen.append(int(np.argmax(gain)))
        seen = seen + power[chosen[-1]]
    return np.array(chosen, dtype=np.intp)


@dataclass(frozen=True, eq=False)
class Candidates:
    """What the proposers of one round have found, in the coordinates of the subspace."""

    directions: Floats
    """(k, r) unit rows, those of each proposer best first."""
    proposer: str
    """The names of the proposers."""
    note: str = ""
    """What they saw, in words with numbers, for the history."""
    kinks: tuple[Floats, ...] = ()
    """For each direction the places where its response has a kink, as far as they are known."""
    planes: tuple[Plane, ...] = ()
    """Planar spectra that the proposers took on the way."""
    far_field: Proposal | None = None
    """The proposal with its kinks and jumps, where f was looked at from far away."""
    resolved: bool = True
    """False if there are more features than the proposers can tell apart."""
    angle_error: float = 0.0
    """Expected error of the worst direction, radians, where it is not far below what a fit would leave."""
    angle_errors: Floats = field(default_factory=lambda: np.empty(0))
    """(k,) the same for each direction, infinite where a proposer does not say; empty if none does."""
    complete: bool = False
    """Whether the last proposer has evidence that it missed no feature of its kind, or the proposals explain f."""
    drop: float = float("inf")
    """Factor by which singular values drop after the rank that says so; infinite for evidence of another kind."""
    spanning: bool = False
    """Whether f is constant along all that is orthogonal to the directions, as far as one proposer has seen."""
    by_tensors: bool = False
    """Whether higher derivatives told features apart that second ones could not."""
    gated: GatedCandidates | None = None
    """The carriers of all directions, where some of these are gated."""
    cut_short: bool = False
    """Whether the time for the search ended before the search did."""

    @property
    def excludes_far_field(self) -> bool:
        """Whether a few queries have shown that f is not affine far from the ball, and nothing else was done."""
        return self.far_field is not None and not self.far_field.applies

    def first(self, count: int) -> Candidates:
        """Return the first `count` candidates."""
        errors = self.angle_errors[:count]
        return replace(self, directions=self.directions[:count], kinks=self.kinks[:count], angle_errors=errors)
