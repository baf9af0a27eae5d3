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

_COVERAGE = 0.99  # the share of the ball that the default number of uniform queries speaks for
_PER_FEATURE = 12  # one query for each of twelve strata of a feature's [−R, R]
_ALONG = (300, 4000)  # few features are looked at more closely; many must not eat the budget
_CHAINS, _MOVES, _ROUNDS = (
    4,
    4,
    10,
)  # local search: 160 queries in ten batches, since each batch may be a round trip


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
        """The same shares of another total; the uniform ones, which carry the statement, are rounded up."""
        uniform = min(total, ceil(total * self.uniform / self.total))
        along = min(total - uniform, round(total * self.along / self.total))
        return _Plan(uniform, along, total - uniform - along)


class _Errors:
    """Asks the oracle and the model, keeps every point with its error; a dropped answer leaves no trace."""

    def __init__(
        self, oracle: Oracle, predict: Callable[[Floats], ArrayLike], record: Callable[[Floats, Floats], None] | None
    ) -> None:
        self.oracle, self.predict, self.record = oracle, predict, record
        self.points: Floats = np.empty((0, oracle.dim))
        self.sizes: Floats = np.empty(0)
        self.pairs: Floats = np.empty((0, 2))
        """Answer and model, for the output with the largest error."""
        self.largest = 0.0
        """Largest |answer|: those from far outside the ball, which a search may have seen, say nothing here."""

    def ask(self, U: Floats) -> tuple[Floats, Floats]:
        """Answers (m, p) and f̃ − f̂ (m, p): NaN rows where no answer came, inf where the model has none."""
        answers = self.oracle(U, stage="certify")
        if self.record is not None:
            self.record(U, answers)
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
    *,
    radius: float,
    tolerance: float,
    noise: float = 0.0,
    confidence: float = 0.99,
    scale: float | None = None,
    rng: np.random.Generator,
    queries: int | None = None,
    keep: Callable[[Checks], None] | None = None,
    record: Callable[[Floats, Floats], None] | None = None,
) -> Certificate:
    """Test `predict` against the oracle, on the ball of the given radius, with queries nothing else has seen.

    `predict` maps (m, d) points, in the coordinates u that the oracle takes, to (m,) or (m, p). `directions`
    (n, d) are the unit directions of the model's features; n = 0 is allowed. The error of a point is the
    largest over outputs. `noise` bounds |f̃ − f| in f's units; `bound` includes it, since only f̃ can be seen.
    `scale` is the standard deviation of f over the ball (root mean square over outputs), estimated from the
    uniform queries where None.

    `queries` replaces the default total, which lets the uniform ones speak for 99 % of the ball, puts about 8
    on every feature and leaves 160 for local search. A budget that cannot pay for that lowers `coverage`;
    where nothing is left the certificate says so: no samples, coverage 0, not met. Dropped answers are left
    out: the statement is then about the part of the ball where f answers. `keep` gets the queries one by one, their
    `feature` counted in the rows of `directions`; `record` gets points and answers as they come.

    `rms` is that of f̃ − f̂ over ball and outputs. Its interval, at `confidence`, is the normal one for the
    logarithm of the mean square: longer to the right, as skewed squares need, yet approximate, and too
    short where a few rare points carry the mean square.
    """
    directions = np.asarray(directions, dtype=np.float64).reshape(-1, oracle.dim)
    _check(radius, tolerance, noise, confidence)
    plan = _affordable(_default_plan(len(directions), confidence), oracle.remaining, queries)
    if plan.total == 0:
        return _nothing_asked(tolerance, scale, noise, confidence)

    oracle.announce(plan.total, stage="certify")
    errors = _Errors(oracle, predict, record)
    uniform = in_ball(plan.uniform, oracle.dim, radius, rng)
    on_features, which = _along_features(plan.along, directions, radius, rng)
    answers, gaps = errors.ask(np.concatenate([uniform, on_features]))
    meant_for = np.concatenate([np.full(len(uniform), Checks.UNIFORM), which])[np.isfinite(answers).all(axis=1)]
    _search_worst(errors, directions, radius, plan.local, rng)
    if keep is not None:
        keep(_checks(errors, meant_for, directions))

    kept = np.flatnonzero(np.isfinite(answers[: plan.uniform]).all(axis=1))
    if not len(errors.sizes):
        return _nothing_asked(tolerance, scale, noise, confidence)
    if scale is None:
        scale = _deviation(answers[kept])
    rms, low, high = _rms_interval(gaps[kept], confidence)
    sup_seen = float(errors.sizes.max())
    rounding = _rounding(oracle, len(directions), errors.largest)
    return Certificate(
        met=sup_seen <= tolerance * scale + noise + rounding,
        tolerance=tolerance,
        std=scale,
        noise=noise,
        rms=rms,
        rms_low=low,
        rms_high=high,
        sup_seen=sup_seen,
        bound=float(_size(gaps[kept]).max()) + noise if len(kept) else inf,
        coverage=coverage_of(len(kept), confidence),
        confidence=confidence,
        samples=len(errors.sizes),
    )


def coverage_of(uniform: int, confidence: float) -> float:
    """The share of the ball that so many uniform queries speak for: (1 − confidence)^(1/uniform)."""
    return float((1.0 - confidence) ** (1.0 / uniform)) if uniform else 0.0


def uniform_queries(coverage: float, confidence: float) -> int:
    """The fewest uniform queries that speak for `coverage`: 459 for 0.99 at confidence 0.99."""
    return ceil(log1p(-confidence) / log(coverage))


# -- how many -----------------------------------------------------------------------------------------------


def _default_plan(features: int, confidence: float) -> _Plan:
    on_features = int(np.clip(_PER_FEATURE * features, *_ALONG)) if features else 0
    return _Plan(uniform_queries(_COVERAGE, confidence), on_features, _CHAINS * _MOVES * _ROUNDS)


def _affordable(plan: _Plan, remaining: float, queries: int | None) -> _Plan:
    wanted = plan.total if queries is None else queries
    total = int(max(0, min(wanted, remaining)))
    return plan if total == plan.total else plan.scaled_to(total)


# -- where --------------------------------------------------------------------------------------------------


def _along_features(
    count: int, directions: Floats, radius: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.intp]]:
    """(count, d) points and their features: shared evenly, each feature's z spread over strata of [−R, R]."""
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
    """Climb from the worst points. Every round tries a few moves from each and goes on from the worst found.

    Nobody knows how wide a bad spot is: a chain's moves start at half the radius and halve when all fail.
    """
    chains = min(_CHAINS, len(errors.sizes), queries)
    if not chains:
        return
    worst = np.argsort(-errors.sizes, kind="stable")[:chains]
    places, sizes, lengths = errors.points[worst], errors.sizes[worst], np.full(chains, 0.5 * radius)
    while queries > 0:
        moves = max(1, min(_MOVES, queries // chains))
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
    """Places (m, d) moved by about `lengths` (m,), within a factor of two.

    Every other one moves along a feature, where a wrong response shows, the rest anywhere. A move that leaves
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
    inside = radius * (1.0 - 0.01 * rng.random(int(outside.sum())))
    moved[outside] *= (inside / norm[outside])[:, None]
    return moved


def _checks(errors: _Errors, meant_for: NDArray[np.intp], directions: Floats) -> Checks:
    """The queries as asked; those after the planned ones are the local search's."""
    feature = np.full(len(errors.points), Checks.ASIDE, dtype=np.intp)
    feature[: len(meant_for)] = meant_for
    position = np.full(len(feature), np.nan)
    on = feature >= 0
    position[on] = np.einsum("md,md->m", errors.points[on], directions[feature[on]])
    radius = np.linalg.norm(errors.points, axis=1)
    return Checks(radius, errors.pairs[:, 0], errors.pairs[:, 1], position, feature)


# -- what it says -------------------------------------------------------------------------------------------


def _size(gaps: Floats) -> Floats:
    """(m,) largest |error| over the outputs of each row."""
    return np.asarray(np.abs(gaps).max(axis=1)) if len(gaps) else np.empty(0)


def _deviation(answers: Floats) -> float:
    return float(np.sqrt(np.mean(np.var(answers, axis=0)))) if len(answers) else 0.0


def _rms_interval(gaps: Floats, confidence: float) -> tuple[float, float, float]:
    """Root mean square of gaps (N, p) and its interval: log(mean square) ± z·standard error/mean square."""
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
    """What rounding alone can do: the answer's last digit, and the model's sum of 1 + d + n terms."""
    terms = features + oracle.dim + 1
    return (oracle.rounding + terms * float(np.finfo(np.float64).eps)) * largest


def _nothing_asked(tolerance: float, scale: float | None, noise: float, confidence: float) -> Certificate:
    return Certificate(
        met=False,
        tolerance=tolerance,
        std=scale or 0.0,
        noise=noise,
        rms=inf,
        rms_low=0.0,
        rms_high=inf,
        sup_seen=inf,
        bound=inf,
        coverage=0.0,
        confidence=confidence,
        samples=0,
    )


def _check(radius: float, tolerance: float, noise: float, confidence: float) -> None:
    if not (np.isfinite(radius) and radius > 0):
        raise InvalidInput(f"radius must be a positive number, not {radius!r}")
    if not tolerance >= 0 or not noise >= 0:
        raise InvalidInput(f"tolerance and noise must not be negative; got {tolerance!r} and {noise!r}")
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence must lie strictly between 0 and 1, e.g. 0.99; got {confidence!r}")
