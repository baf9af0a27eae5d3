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
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, expm1, inf, log, log1p, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from .certificate import Certificate
from .certify_points import CHAINS, MOVES, ROUNDS, Errors, along_features, search_worst, size
from .errors import InvalidInput
from .feature import Checks
from .geometry import Floats, in_ball
from .oracle.base import Oracle

COVERAGE = 0.99
"""Share of the ball that the default number of uniform queries speaks for."""
LEAST_COVERAGE = 0.95
"""Share of the ball that uniform queries must speak for before a tolerance counts as met: some 90 of them."""
PER_FEATURE = 12
"""Queries along each feature: one for each of twelve strata of [−R, R]."""
ALONG_FEATURES = (300, 4000)
"""Least and largest number of queries along all features: few features are looked at more closely, and many must not
use up the budget."""
MAX_PAIRS = 20_000
"""Pairs of queries that a verdict under noise may take where no budget limits them."""
TINY = 1e-300
"""Divisors are at least this."""
SMALL_GAP = 0.1
"""The least distance of the mean square error from the square of the tolerance, as a share of it, that is resolved."""


@dataclass(frozen=True)
class Requirement:
    """What a model is tested against."""

    radius: float
    """Radius of the ball."""
    tolerance: float
    """Largest error allowed, as a fraction of `std`."""
    noise: float = 0.0
    """Bound on |f̃ − f| in f's units, allowed for in the verdict and added to `bound`, since only f̃ can be seen."""
    sigma: float = 0.0
    """Standard deviation of the random part of one answer; 0 for a deterministic function."""
    confidence: float = 0.99
    """Confidence of the statement, for all attempts of a run together."""
    attempt: int | None = None
    """Number of this attempt in its run, from 1; None for a test that stands alone."""
    std: float | None = None
    """Standard deviation of f over the ball, root mean square over outputs; None: from the uniform queries."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.radius) and self.radius > 0):
            raise InvalidInput(f"radius must be a positive number, not {self.radius!r}")
        if not self.tolerance >= 0 or not self.noise >= 0:
            raise InvalidInput(f"tolerance and noise must not be negative; got {self.tolerance!r} and {self.noise!r}")
        if not 0 < self.confidence < 1:
            raise InvalidInput(f"confidence must lie strictly between 0 and 1, e.g. 0.99; got {self.confidence!r}")

    @property
    def attempt_confidence(self) -> float:
        """The confidence of this attempt: attempt k may fail with probability 6δ/π²k², which add up to δ."""
        if self.attempt is None:
            return self.confidence
        return 1.0 - 6.0 * (1.0 - self.confidence) / (pi * self.attempt) ** 2


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
    radius, confidence = requirement.radius, requirement.attempt_confidence
    plan = _affordable(_default_plan(len(directions), confidence), oracle.remaining, queries)
    if plan.total == 0:
        return CertifyResult(_nothing_asked(requirement), None, ())

    oracle.announce(plan.total, stage="certify")
    errors = Errors(oracle, predict)
    uniform = in_ball(plan.uniform, oracle.dim, radius, rng)
    on_features, which = along_features(plan.along, directions, predict, radius, rng)
    answers, gaps = errors.ask(np.concatenate([uniform, on_features]))
    meant_for = np.concatenate([np.full(len(uniform), Checks.UNIFORM), which])[np.isfinite(answers).all(axis=1)]
    search_worst(errors, directions, radius, plan.local, rng)
    checks, batches = _checks(errors, meant_for, directions), tuple(errors.batches)
    if not len(errors.sizes):
        return CertifyResult(_nothing_asked(requirement), checks, batches)
    kept = np.flatnonzero(np.isfinite(answers[: plan.uniform]).all(axis=1))
    rounding = _rounding(oracle, len(directions), errors.largest)
    certificate = _certificate(requirement, errors, answers[kept], gaps[kept], rounding)
    if requirement.sigma > 0 and certificate.verdict != "not met":
        certificate = _decide_beyond_noise(certificate, requirement, errors, uniform[kept], gaps[kept], rng)
    return CertifyResult(certificate, checks, tuple(errors.batches))


def _certificate(
    requirement: Requirement, errors: Errors, answers: Floats, gaps: Floats, rounding: float
) -> Certificate:
    """Put the certificate together: `answers` and `gaps` are those of the uniform queries, `errors` has all."""
    std, noise, confidence = requirement.std, requirement.noise, requirement.attempt_confidence
    if std is None:
        std = _deviation(answers)
    rms, low, high = _rms_interval(gaps, confidence)
    sup_seen = float(errors.sizes.max())
    within = sup_seen <= requirement.tolerance * std + noise + rounding
    # a bound on the noise, and no more is known of it
    hidden = requirement.sigma == 0.0 and std > 0 and noise > requirement.tolerance * std
    few = len(gaps) < uniform_queries(LEAST_COVERAGE, confidence)
    return Certificate(
        verdict=("undecided" if hidden or few else "met") if within else "not met",
        tolerance=requirement.tolerance,
        std=std,
        noise=noise,
        rms=rms,
        rms_low=low,
        rms_high=high,
        sup_seen=sup_seen,
        bound=float(size(gaps).max()) + noise if len(gaps) else inf,
        coverage=coverage_of(len(gaps), confidence),
        confidence=requirement.confidence,
        samples=len(errors.sizes),
        sigma=requirement.sigma,
        rms_bound=high,
    )


def _decide_beyond_noise(
    certificate: Certificate,
    requirement: Requirement,
    errors: Errors,
    points: Floats,
    gaps: Floats,
    rng: np.random.Generator,
) -> Certificate:
    """Decide by the mean square of f − f̂ beyond the noise, asking uniform points twice until it is decided.

    Two answers at one point have independent noise, so the product of their errors e₁e₂ has the mean (f − f̂)², whatever
    the noise. With N pairs the mean of the products is normal about the mean square error with a standard error of
    σ²/√N or so. The verdict is "met" if the upper confidence limit is below the square of the tolerance, and "not met"
    if the lower one is above it.
    """
    allowed, risk = requirement.tolerance * certificate.std, 1.0 - requirement.attempt_confidence
    if certificate.rms_bound <= allowed:  # even with the noise in it
        return certificate
    oracle, products = errors.oracle, np.empty(0)
    points = points[: int(min(len(points), oracle.remaining))]
    first = gaps[: len(points)]
    for look in count(1):
        both = np.mean(first * errors.ask(points)[1], axis=1)
        products = np.concatenate([products, both[np.isfinite(both)]])
        if len(products) < 2:
            pairs = (float(ndtri(risk)) * (requirement.sigma / max(allowed, TINY)) ** 2) ** 2
            return replace(certificate, verdict="undecided", queries_to_decide=int(min(2.0 * pairs + 2.0, 1e18)))
        z = -float(ndtri(6.0 * risk / (pi * look) ** 2))  # looks share the confidence, as attempts do
        mean, error = float(products.mean()), float(products.std(ddof=1)) / sqrt(len(products))
        low, high = mean - z * error, mean + z * error
        verdict = "met" if high <= allowed**2 else "not met" if low > allowed**2 else "undecided"
        gap = max(abs(allowed**2 - max(low, 0.0)), SMALL_GAP * allowed**2, TINY)
        wanted = ceil(len(products) * (z * error / gap) ** 2)
        affordable = int(min(oracle.remaining / 2, MAX_PAIRS - len(products)))
        if verdict != "undecided" or wanted - len(products) > affordable or affordable < 1:
            break  # decided, or out of reach: the queries serve the fit better
        more = min(len(products), affordable)
        points = in_ball(more, oracle.dim, requirement.radius, rng)
        first = errors.ask(points)[1]
    return replace(
        certificate,
        verdict=verdict,
        rms_bound=sqrt(max(high, 0.0)),
        samples=len(errors.sizes),
        queries_to_decide=min(2 * wanted, 10**18) if verdict == "undecided" else 0,
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


def _checks(errors: Errors, meant_for: NDArray[np.intp], directions: Floats) -> Checks:
    """Return the queries one by one; those after the planned ones belong to the local search."""
    feature = np.full(len(errors.points), Checks.OTHER, dtype=np.intp)
    feature[: len(meant_for)] = meant_for
    position = np.full(len(feature), np.nan)
    on = feature >= 0
    position[on] = np.einsum("md,md->m", errors.points[on], directions[feature[on]])
    radius = np.linalg.norm(errors.points, axis=1)
    return Checks(radius, errors.pairs[:, 0], errors.pairs[:, 1], position, feature)


# -- what it says -------------------------------------------------------------------------------------------


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
    return Certificate.unknown(
        requirement.tolerance, std=requirement.std or 0.0, noise=requirement.noise, confidence=requirement.confidence
    )
