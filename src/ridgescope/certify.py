"""The certificate: what fresh queries say about a finished model.

Let e(x) = max over outputs of |f̃(x) − f̂(x)|, with f̃ the answers and f̂ the model. Three kinds of question:

- *uniform* in the ball. With N of them and q the largest e among them, the share F(q) of the ball where
  e ≤ q satisfies P(F(q) < c) ≤ c^N whatever the distribution of e (equality where it is continuous: F(q) is
  the largest of N uniform numbers). Setting c^N = 1 − confidence gives the statement

      with probability `confidence`,  e ≤ q on all but a share 1 − c of the ball,  c = (1−confidence)^(1/N).

- *along the features*. Uniform points of a ball in R^d seldom see |v·x| > 3R/√d; these see all of [−R, R].
- *local search* from the worst points so far, towards a worse one.

Only the first kind carries the statement about volume; all three count for the largest error seen, hence
for `met`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, expm1, inf, log, log1p, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from .errors import InvalidInput
from .geometry import Floats, along, in_ball, random_directions
from .oracle.base import Oracle
from .result import Certificate, Checks

COVERAGE = 0.99
"""Share of the ball that the default number of uniform queries speaks for."""
PER_FEATURE = 12
"""Queries along each feature: one for each of twelve strata of [−R, R]."""
ALONG_FEATURES = (300, 4000)
"""Least and largest number of queries along all features: few features are looked at more closely, and many must not
use up the budget."""
CHAINS, MOVES, ROUNDS = 4, 4, 10
"""Local search: 160 queries in ten batches, since each batch may be a round trip to a server."""
FIRST_MOVE = 0.5
"""Length of the first moves of the local search, in radii."""
SURFACE = 0.01
"""A move that leaves the ball ends within this share of the radius below its surface."""


@dataclass(frozen=True)
class Requirement:
    """What a model is tested against."""

    radius: float
    """Radius of the ball."""
    tolerance: float
    """Largest error allowed, as a fraction of `std`."""
    noise: float = 0.0
    """Bound on |f̃ − f| in f's units. It is allowed for in `met` and added to `bound`, since only f̃ can be seen."""
    confidence: float = 0.99
    std: float | None = None
    """Standard deviation of f over the ball, root mean square over outputs; None: from the uniform queries."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.radius) and self.radius > 0):
            raise InvalidInput(f"radius must be a positive number, not {self.radius!r}")
        if not self.tolerance >= 0 or not self.noise >= 0:
            raise InvalidInput(f"tolerance and noise must not be negative; got {self.tolerance!r} and {self.noise!r}")
        if not 0 < self.confidence < 1:
            raise InvalidInput(f"confidence must lie strictly between 0 and 1, e.g. 0.99; got {self.confidence!r}")


@dataclass(frozen=True, eq=False)
class CertifyResult:
    """A certificate with the queries behind it."""

    certificate: Certificate
    checks: Checks | None
    """The queries one by one, their `feature` counted in the rows of `directions`; None if none was answered."""
    batches: tuple[tuple[Floats, Floats], ...]
    """Points (m, d) and answers (m, p) as they were asked, batch by batch; a dropped answer is a row of NaN."""


@dataclass(frozen=True)
class _Plan:
    """How many queries of each kind."""

    uniform: int
    along: int
    local: int

    @property
    def total(self) -> int:
        return self.uniform + self.along + self.local

    def scaled_to(self, total: int) -> _Plan:
        """Return the same shares of another total; the uniform queries, which carry the statement, are rounded up."""
        uniform = min(total, ceil(total * self.uniform / self.total))
        along = min(total - uniform, round(total * self.along / self.total))
        return _Plan(uniform, along, total - uniform - along)


class _Errors:
    """Asks the oracle and the model, and keeps every point with its error; dropped answers are left out."""

    def __init__(self, oracle: Oracle, predict: Callable[[Floats], ArrayLike]) -> None:
        self.oracle, self.predict = oracle, predict
        self.batches: list[tuple[Floats, Floats]] = []
        """Points and answers as they were asked."""
        self.points: Floats = np.empty((0, oracle.dim))
        self.sizes: Floats = np.empty(0)
        self.pairs: Floats = np.empty((0, 2))
        """Answer and model, for the output with the largest error."""
        self.largest = 0.0
        """Largest |answer|: those from far outside the ball, which a search may have seen, say nothing here."""

    def ask(self, U: Floats) -> tuple[Floats, Floats]:
        """Return answers (m, p) and f̃ − f̂ (m, p): NaN rows where no answer came, inf where the model has none."""
        answers = self.oracle(U, stage="certify")
        self.batches.append((U, answers))
        model = np.asarray(self.predict(U), dtype=np.float64).reshape(answers.shape)
        gap = answers - model
        gap[~np.isfinite(gap) & np.isfinite(answers)] = inf
        answered = np.isfinite(answers).all(axis=1)
        self.largest = max(self.largest, float(np.abs(answers[answered]).max(initial=0.0)))
        self.points = np.concatenate([self.points, U[answered]])
        self.sizes = np.concatenate([self.sizes, _size(gap[answered])])
        worst = (np.flatnonzero(answered), np.argmax(np.abs(gap[answered]), axis=1))
        self.pairs = np.concatenate([self.pairs, np.stack([answers[worst], model[worst]], axis=1)])
        return answers, gap


def certify(
    oracle: Oracle,
    predict: Callable[[Floats], ArrayLike],
    directions: ArrayLike,
    requirement: Requirement,
    *,
    rng: np.random.Generator,
    queries: int | None = None,
) -> CertifyResult:
    """Test `predict` against the oracle on the ball, with queries that nothing else has seen.

    Parameters
    ----------
    oracle, predict
        The function, and the model from (m, d) points, in the coordinates u that the oracle takes, to (m,) or (m, p).
        The error of a point is the largest over outputs.
    directions
        (n, d) unit directions of the model's features; n = 0 is allowed.
    requirement
        The ball, the tolerance, the noise and the confidence.
    queries
        Replaces the default total, which lets the uniform queries speak for 99 % of the ball, puts about 12 on every
        feature and leaves 160 for local search. A budget that cannot pay for that lowers `coverage`.

    Returns
    -------
    CertifyResult
        The certificate and its queries. Where nothing could be asked it says so: no samples, coverage 0, not met.
        Dropped answers are left out: the statement is then about the part of the ball where f answers. `rms` is that
        of f̃ − f̂ over ball and outputs. Its interval is the normal one for the logarithm of the mean square: longer to
        the right, as skewed squares need, yet approximate, and too short where a few rare points carry the mean square.
    """
    directions = np.asarray(directions, dtype=np.float64).reshape(-1, oracle.dim)
    radius, confidence = requirement.radius, requirement.confidence
    plan = _affordable(_default_plan(len(directions), confidence), oracle.remaining, queries)
    if plan.total == 0:
        return CertifyResult(_nothing_asked(requirement), None, ())

    oracle.announce(plan.total, stage="certify")
    errors = _Errors(oracle, predict)
    uniform = in_ball(plan.uniform, oracle.dim, radius, rng)
    on_features, which = _along_features(plan.along, directions, radius, rng)
    answers, gaps = errors.ask(np.concatenate([uniform, on_features]))
    meant_for = np.concatenate([np.full(len(uniform), Checks.UNIFORM), which])[np.isfinite(answers).all(axis=1)]
    _search_worst(errors, directions, radius, plan.local, rng)
    checks, batches = _checks(errors, meant_for, directions), tuple(errors.batches)
    if not len(errors.sizes):
        return CertifyResult(_nothing_asked(requirement), checks, batches)
    kept = np.flatnonzero(np.isfinite(answers[: plan.uniform]).all(axis=1))
    rounding = _rounding(oracle, len(directions), errors.largest)
    certificate = _certificate(requirement, errors, answers[kept], gaps[kept], rounding)
    return CertifyResult(certificate, checks, batches)


def _certificate(
    requirement: Requirement, errors: _Errors, answers: Floats, gaps: Floats, rounding: float
) -> Certificate:
    """Put the certificate together: `answers` and `gaps` are those of the uniform queries, `errors` has all."""
    std, noise, confidence = requirement.std, requirement.noise, requirement.confidence
    if std is None:
        std = _deviation(answers)
    rms, low, high = _rms_interval(gaps, confidence)
    sup_seen = float(errors.sizes.max())
    return Certificate(
        met=sup_seen <= requirement.tolerance * std + noise + rounding,
        tolerance=requirement.tolerance,
        std=std,
        noise=noise,
        rms=rms,
        rms_low=low,
        rms_high=high,
        sup_seen=sup_seen,
        bound=float(_size(gaps).max()) + noise if len(gaps) else inf,
        coverage=coverage_of(len(gaps), confidence),
        confidence=confidence,
        samples=len(errors.sizes),
    )


def coverage_of(uniform: int, confidence: float) -> float:
    """Return the share of the ball that so many uniform queries speak for: (1 − confidence)^(1/uniform)."""
    return float((1.0 - confidence) ** (1.0 / uniform)) if uniform else 0.0


def uniform_queries(coverage: float, confidence: float) -> int:
    """Return the fewest uniform queries that speak for `coverage`: 459 for 0.99 at confidence 0.99."""
    return ceil(log1p(-confidence) / log(coverage))


# -- how many -----------------------------------------------------------------------------------------------


def _default_plan(features: int, confidence: float) -> _Plan:
    on_features = int(np.clip(PER_FEATURE * features, *ALONG_FEATURES)) if features else 0
    return _Plan(uniform_queries(COVERAGE, confidence), on_features, CHAINS * MOVES * ROUNDS)


def _affordable(plan: _Plan, remaining: float, queries: int | None) -> _Plan:
    wanted = plan.total if queries is None else queries
    total = int(max(0, min(wanted, remaining)))
    return plan if total == plan.total else plan.scaled_to(total)


# -- where --------------------------------------------------------------------------------------------------


def _along_features(
    count: int, directions: Floats, radius: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.intp]]:
    """Return (count, d) points and their features: shared evenly, each feature's z stratified over [−R, R]."""
    n, d = directions.shape
    if not count or not n:
        return np.empty((0, d)), np.empty(0, dtype=np.intp)
    strata = ceil(count / n)
    turn = np.arange(count)
    which = rng.permutation(n)[turn % n]
    # Each feature starts at a random stratum: those that a short last turn leaves out are not all at one end.
    stratum = (turn // n + rng.integers(strata, size=n)[which]) % strata
    z = radius * np.sin(np.pi * ((stratum + rng.random(count)) / strata - 0.5))
    return along(directions, which, z, radius, rng), which


def _search_worst(errors: _Errors, directions: Floats, radius: float, queries: int, rng: np.random.Generator) -> None:
    """Search from the worst points for worse ones: each round tries a few moves and goes on from the worst found.

    The width of a region of large error is not known, so a chain's moves start at half the radius and halve when all
    of them fail.
    """
    chains = min(CHAINS, len(errors.sizes), queries)
    if not chains:
        return
    worst = np.argsort(-errors.sizes, kind="stable")[:chains]
    places, sizes, lengths = errors.points[worst], errors.sizes[worst], np.full(chains, FIRST_MOVE * radius)
    while queries > 0:
        moves = max(1, min(MOVES, queries // chains))
        chain = np.repeat(np.arange(chains), moves)[:queries]
        tried = _moved(places[chain], lengths[chain], directions, radius, rng)
        queries -= len(tried)
        found = np.nan_to_num(_size(errors.ask(tried)[1]), nan=-inf, posinf=inf)
        for j in np.unique(chain):
            best = int(np.argmax(np.where(chain == j, found, -inf)))
            if found[best] > sizes[j]:
                places[j], sizes[j] = tried[best], found[best]
            else:
                lengths[j] *= 0.5


def _moved(places: Floats, lengths: Floats, directions: Floats, radius: float, rng: np.random.Generator) -> Floats:
    """Return the points `places` (m, d), each moved by its length of `lengths` (m,) within a factor of two.

    Every other one moves along a feature, where a wrong response shows, the rest in any direction. A move that leaves
    the ball ends within 1 % of its surface, not on it: in one dimension all would end in the same point.
    """
    m, d = places.shape
    ways = random_directions(m, d, rng)
    if len(directions):
        on_feature = np.arange(m) % 2 == 0
        ways[on_feature] = directions[rng.integers(len(directions), size=int(on_feature.sum()))]
    steps = lengths * np.exp2(rng.uniform(-1.0, 1.0, m)) * rng.choice([-1.0, 1.0], m)
    moved: Floats = places + steps[:, None] * ways
    norm = np.linalg.norm(moved, axis=1)
    outside = norm > radius
    inside = radius * (1.0 - SURFACE * rng.random(int(outside.sum())))
    moved[outside] *= (inside / norm[outside])[:, None]
    return moved


def _checks(errors: _Errors, meant_for: NDArray[np.intp], directions: Floats) -> Checks:
    """Return the queries one by one; those after the planned ones belong to the local search."""
    feature = np.full(len(errors.points), Checks.OTHER, dtype=np.intp)
    feature[: len(meant_for)] = meant_for
    position = np.full(len(feature), np.nan)
    on = feature >= 0
    position[on] = np.einsum("md,md->m", errors.points[on], directions[feature[on]])
    radius = np.linalg.norm(errors.points, axis=1)
    return Checks(radius, errors.pairs[:, 0], errors.pairs[:, 1], position, feature)


# -- what it says -------------------------------------------------------------------------------------------


def _size(gaps: Floats) -> Floats:
    """Return (m,): the largest |error| over the outputs of each row."""
    return np.asarray(np.abs(gaps).max(axis=1)) if len(gaps) else np.empty(0)


def _deviation(answers: Floats) -> float:
    """Return the standard deviation of the answers (m, p), root mean square over outputs."""
    return float(np.sqrt(np.mean(np.var(answers, axis=0)))) if len(answers) else 0.0


def _rms_interval(gaps: Floats, confidence: float) -> tuple[float, float, float]:
    """Return the root mean square of gaps (N, p) with its interval: log(mean square) ± z·standard error/mean square."""
    if not len(gaps):
        return inf, 0.0, inf
    if not np.isfinite(gaps).all():
        return inf, inf, inf
    squares = np.mean(gaps**2, axis=1)
    mean = float(squares.mean())
    if mean == 0.0:
        return 0.0, 0.0, 0.0
    if len(squares) < 2:
        return sqrt(mean), 0.0, inf
    relative = float(np.std(squares, ddof=1)) / (sqrt(len(squares)) * mean)
    half = expm1(0.5 * float(ndtri(0.5 + 0.5 * confidence)) * relative)
    return sqrt(mean), sqrt(mean) / (1.0 + half), sqrt(mean) * (1.0 + half)


def _rounding(oracle: Oracle, features: int, largest: float) -> float:
    """Return what rounding alone can do: the answer's last digit, and the model's sum of 1 + d + n terms."""
    terms = features + oracle.dim + 1
    return (oracle.rounding + terms * float(np.finfo(np.float64).eps)) * largest


def _nothing_asked(requirement: Requirement) -> Certificate:
    """Return the certificate that says that nothing is known."""
    return Certificate(
        met=False,
        tolerance=requirement.tolerance,
        std=requirement.std or 0.0,
        noise=requirement.noise,
        rms=inf,
        rms_low=0.0,
        rms_high=inf,
        sup_seen=inf,
        bound=inf,
        coverage=0.0,
        confidence=requirement.confidence,
        samples=0,
    )
