"""What a proposer is, what it is given and what it gives back.

A proposer looks at f, or at what the model so far leaves of it, and names candidate directions. It may be generous: the
joint fit decides, and a false candidate costs time, never correctness. Any object with a `name` and the methods `cost`
and `propose` is one; `rs.extract(…, method=…)` takes it as it is. `RandomStarts` below is the shortest example.

What must hold of `propose`:

1. It asks at most `queries` rows in all, gradients included. Where those are too few it returns no directions and says
   so in the note.
2. It asks nothing farther than `setting.reach` from the origin; the reach may be the radius itself.
3. Rows of NaN are answers that were dropped, and are to be expected.
4. All randomness comes from `rng`: the same generator gives the same proposal.
5. Differences below `setting.noise` mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, RidgescopeError
from ..feature import Plane
from ..geometry import Floats, random_directions

Ask = Callable[[Floats], Floats]
"""(m, d) points to (m, p) values of f, or of what the model leaves of it; a NaN row is a dropped answer."""

INSIDE = 1.0 - 1e-9  # times a radius: room for the rounding of points on its sphere, far below any step


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known before a proposer is called, in the coordinates of the ball."""

    dim: int
    outputs: int
    radius: float
    """The ball on which f is to be reproduced."""
    reach: float
    """Never ask farther than this from the origin; infinite where anything may be asked."""
    std: float
    """Standard deviation over the ball of what is asked."""
    noise: float
    """Standard deviation of the error of one answer, rounding included; never 0."""
    bandwidth: float
    """Frequency (radians per unit length) below which nearly all of f's power along random lines lies."""
    gradient: Ask | None = None
    """(m, d) → (m, p, d), where the oracle offers derivatives; a row of them counts as one query."""
    directions: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """(n, d) unit rows: the directions that the model has already."""
    rounds: int = 0
    """Rounds completed so far."""
    turns: int = 0
    """How many of them were this proposer's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "directions", np.reshape(self.directions, (-1, self.dim)))

    @property
    def edge(self) -> float:
        """The radius within which the ball may be asked."""
        return min(self.radius, self.reach)

    @property
    def wave(self) -> float:
        """1/bandwidth, the length on which f turns; finite where it does not turn at all."""
        return 1.0 / max(self.bandwidth, 1e-9)


@dataclass(frozen=True, eq=False)
class Proposal:
    """Candidate directions, best first, and what is known about them."""

    directions: Floats
    """(k, d) unit rows."""
    scores: Floats
    """(k,) larger is better; comparable within one proposal only."""
    note: str = ""
    """What the proposer saw, in a few words with numbers, for the history."""
    planes: tuple[Plane, ...] = ()
    """Planar spectra for the report."""
    kinks: tuple[Floats, ...] = ()
    """For each direction v the places t where its response has a kink at v·x = t; empty: nothing is known."""
    jumps: tuple[Floats, ...] = ()
    """For each direction, and each of its kinks, the (p,) jump of the slope; empty: nothing is known."""
    explains: Ask | None = None
    """The part of f that the proposal accounts for already; the next proposer of the round need not look at it."""
    resolved: bool = True
    """False where there are more features than this proposer can tell apart."""
    angle_error: float = 0.0
    """Expected error of the worst direction, radians, where it is not far below what a fit would leave."""
    rank: int | None = None
    """The numerical rank that was seen, where the proposer looks at one and it is clear."""
    queries: int = 0
    """Rows that were asked; `run_proposer` counts them."""
    complete: bool = False
    """True only where there is evidence that no feature of the kind that this proposer looks for was missed in the
    ball, those that it cannot tell apart counted as one."""

    @classmethod
    def empty(cls, setting: Setting, note: str, *, resolved: bool = True) -> Proposal:
        """No candidates, and why."""
        return cls(np.empty((0, setting.dim)), np.empty(0), note, resolved=resolved)


@runtime_checkable
class Proposer(Protocol):
    """A way to guess directions; see the top of this module for what must hold."""

    @property
    def name(self) -> str:
        """What it is called in histories and stages; its random stream depends on it."""

    def cost(self, setting: Setting) -> int:
        """The most queries that one call may spend; the run allows that much or what its own budget leaves."""

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Candidate directions, from at most `queries` rows."""


class OutOfQueries(RidgescopeError):
    """The next batch would go beyond what is allowed; it was not asked."""


class Meter:
    """An `ask` that counts its rows and refuses, before asking, what it is not allowed.

    With `retry` a dropped answer is asked for once more, as failures may pass; NaN is left where they persist.
    """

    def __init__(self, ask: Ask, queries: int, *, retry: bool = False) -> None:
        self._ask, self._retry = ask, retry
        self.left, self.spent = int(queries), 0

    def charge(self, rows: int) -> None:
        """Count rows that are about to be asked."""
        if rows > self.left:
            raise OutOfQueries(f"{rows:,} rows are wanted and {self.left:,} are left; plan for no more than `queries`")
        self.left -= rows
        self.spent += rows

    def __call__(self, points: Floats) -> Floats:
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
    """One call of a proposer, held to its `queries`; the proposal says how many of them it used."""
    meter = Meter(ask, queries)
    gradient = setting.gradient
    if gradient is not None:

        def counted(X: Floats) -> Floats:
            meter.charge(len(X))
            return gradient(X)

        setting = replace(setting, gradient=counted)
    found = proposer.propose(meter, setting, queries=queries, rng=rng)
    k = len(found.scores)
    lengths = np.linalg.norm(found.directions, axis=1) if found.directions.shape == (k, setting.dim) else np.zeros(1)
    if not np.allclose(lengths, 1.0):
        raise InvalidInput(
            f"proposer {proposer.name!r} returned directions of shape {found.directions.shape} for {k} scores; "
            f"a proposal has a unit row of {setting.dim} numbers for each score"
        )
    return replace(found, queries=meter.spent)


QUERIES_PER_PARAMETER = 30  # empirical: whole runs of the recovery benchmark take 8 to 40
RESPONSE_PARAMETERS = 16  # of a response as that benchmark counts them; a direction has d more
FEATURES_PER_DIM = 2  # features that one call is to pay for at first


def parameter_cost(features: int, setting: Setting, doublings: int) -> int:
    """Queries for so many features, some thirty for each parameter, doubled so often."""
    return QUERIES_PER_PARAMETER * features * (setting.dim + RESPONSE_PARAMETERS) << doublings


class CostPerRound:
    """A proposer that may spend what two features a dimension cost, doubling with the rounds."""

    def cost(self, setting: Setting) -> int:
        return parameter_cost(FEATURES_PER_DIM * setting.dim, setting, setting.rounds)


@dataclass(frozen=True)
class RandomSettings:
    """How many random directions to start from."""

    per_dim: int = 2  # as if there were two features for every dimension, those of the model included,
    most: int = 48  # but no more than so many (empirical),
    fewest: int = 8  # and a handful at any rate, or half as many as the model has


@dataclass(frozen=True)
class RandomStarts:
    """Random directions: the basin of the joint fit is wide, so that some of them lead to what is left."""

    settings: RandomSettings = RandomSettings()
    name: ClassVar[str] = "random"

    def cost(self, setting: Setting) -> int:
        """Nothing is asked."""
        return 0

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Uniform on the sphere, a number that depends on how many directions the model has."""
        s, known = self.settings, len(setting.directions)
        count = max(s.fewest, min(s.per_dim * setting.dim, s.most) - known, known // 2)
        return Proposal(random_directions(count, setting.dim, rng), np.zeros(count), f"{count} random starts")


def points_in_shell(setting: Setting, pad: float, count: int, rng: np.random.Generator) -> Floats:
    """(count, d) points with room for stencils of size `pad` around them.

    Radii are uniform from a third of the ball to all of it, as responses bend at different distances.
    """
    outer = setting.edge - 1.01 * pad  # and a hundredth for rounding
    return random_directions(count, setting.dim, rng) * rng.uniform(outer / 3.0, outer, count)[:, None]


def informative_points(curvature: Floats, count: int) -> NDArray[np.intp]:
    """Indices of points, chosen one after the other, at which the features least seen so far bend most.

    `curvature` (N, p, n) holds the curvature of every feature at every point. Each choice adds most to
    Σ_i log(seen_i), where seen_i is the share of feature i's power at the points chosen.
    """
    power = np.sum(curvature**2, axis=1)
    power = power / np.maximum(power.sum(axis=0), 1e-300)
    seen = np.full(power.shape[1], 1e-3 / len(power))  # far below one point's share: the first look counts most
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

    def first(self, count: int) -> Candidates:
        """Return the first `count` candidates."""
        return replace(self, directions=self.directions[:count], kinks=self.kinks[:count])
