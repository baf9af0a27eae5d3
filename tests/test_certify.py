"""The certificate says what is true, as often as it says so."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from scipy.stats import binom

from ridgescope.certify import Requirement, certify, coverage_of, uniform_queries
from ridgescope.errors import InvalidInput
from ridgescope.geometry import Floats, in_ball, random_directions
from ridgescope.oracle import Oracle
from ridgescope.result import Certificate

RADIUS = 3.0
DIM = 3
AXES = np.eye(DIM)[:2]
LOCAL = 160  # of the default queries, asked last


def truth(X: Floats) -> Floats:
    return np.sin(2.0 * X[:, 0]) + np.tanh(X[:, 1])


def zero(X: Floats) -> Floats:
    return np.zeros(len(X))


def oracle_of(function=truth, dim: int = DIM, **options) -> Oracle:
    return Oracle(function, dim=dim, **options)


def run(oracle: Oracle, predict, seed: int = 0, directions=AXES, tolerance: float = 0.01, **options) -> Certificate:
    rng, queries = np.random.default_rng(seed), options.pop("queries", None)
    requirement = Requirement(RADIUS, tolerance, **options)
    return certify(oracle, predict, directions, requirement, rng=rng, queries=queries).certificate


class Recorder:
    """A function that keeps what it was asked, call by call."""

    def __init__(self, function=truth) -> None:
        self.function, self.calls = function, []

    def __call__(self, X: Floats) -> Floats:
        self.calls.append(X.copy())
        return self.function(X)

    @property
    def asked(self) -> Floats:
        return np.concatenate(self.calls)


# -- the statement about volume -----------------------------------------------------------------------------


def test_459_uniform_queries_speak_for_99_percent_at_confidence_99():
    assert uniform_queries(0.99, 0.99) == 459
    assert coverage_of(459, 0.99) >= 0.99 > coverage_of(458, 0.99)
    assert coverage_of(0, 0.99) == 0.0


@pytest.mark.parametrize("confidence", [0.6, 0.9])
@pytest.mark.parametrize("dim", [2, 5])
def test_the_stated_confidence_holds_in_that_share_of_runs(dim: int, confidence: float):
    """e(x) = |x|/R has P(e ≤ q) = q^d exactly, so each statement is true or false, nothing is estimated."""
    runs, queries = 400, 60
    oracle = oracle_of(lambda X: np.linalg.norm(X, axis=1) / RADIUS, dim)
    certificates = [
        run(oracle, zero, seed, np.eye(dim)[:1], confidence=confidence, queries=queries) for seed in range(runs)
    ]
    held = sum(c.bound**dim >= c.coverage for c in certificates)
    # The error is continuous, so the confidence is exact: both tails are binomial. The seeds are fixed.
    assert binom.ppf(1e-3, runs, confidence) <= held <= binom.ppf(1 - 1e-3, runs, confidence)


def test_default_confidence_holds_in_300_runs():
    oracle = oracle_of(lambda X: np.linalg.norm(X, axis=1) / RADIUS)
    certificates = [run(oracle, zero, seed) for seed in range(300)]
    held = sum(c.bound**DIM >= c.coverage for c in certificates)
    assert all(c.coverage >= 0.99 and c.confidence == 0.99 for c in certificates)
    assert held >= binom.ppf(1e-3, 300, 0.99)


def test_an_error_with_atoms_is_covered_at_least_as_often():
    """f̂ is right on 97 % of the ball: a bound of 0 at coverage > 0.97 is a false statement."""
    share, runs, confidence = 0.97, 300, 0.8
    oracle = oracle_of(lambda X: (np.linalg.norm(X, axis=1) > RADIUS * share ** (1 / DIM)).astype(float))
    false = 0
    for seed in range(runs):
        c = run(oracle, zero, seed, confidence=confidence, queries=200)
        false += c.bound == 0.0 and c.coverage > share
    assert false <= binom.ppf(1 - 1e-3, runs, 1 - confidence)


def test_noise_is_added_to_the_bound():
    """Answers lie `noise` too close to the model; the bound is still one for |f − f̂|."""
    clean = run(oracle_of(lambda X: 1.0 + X[:, 0]), zero)
    noisy = run(oracle_of(lambda X: 0.8 + X[:, 0]), lambda X: X[:, 0], noise=0.2)
    assert clean.bound > clean.noise == 0.0
    assert noisy.bound == pytest.approx(1.0)


def test_rms_interval_covers_about_as_often_as_it_says():
    """e² = |x|²/R² has mean d/(d+2) over the ball."""
    oracle = oracle_of(lambda X: np.linalg.norm(X, axis=1) / RADIUS)
    certificates = [run(oracle, zero, seed, confidence=0.9, queries=150) for seed in range(300)]
    exact = np.sqrt(DIM / (DIM + 2))
    held = sum(c.rms_low <= exact <= c.rms_high for c in certificates)
    assert binom.ppf(1e-3, 300, 0.9) <= held
    assert all(c.rms_low < c.rms < c.rms_high for c in certificates)


# -- met ----------------------------------------------------------------------------------------------------


def test_an_exact_model_meets_tolerance_zero():
    c = run(oracle_of(), truth, tolerance=0.0)
    assert c.met
    assert c.sup_seen == c.rms == c.bound == 0.0
    assert 0.7 < c.std < 1.1


def test_rounding_alone_is_no_failure():
    c = run(oracle_of(lambda X: truth(X) + 0.1), lambda X: (truth(X) - 0.2) + 0.3, tolerance=0.0)
    assert 0.0 < c.sup_seen < 1e-12
    assert c.met


def test_a_constant_needs_no_scale():
    assert run(oracle_of(lambda X: np.full(len(X), 5.0)), lambda X: np.full(len(X), 5.0), directions=[]).met
    assert not run(oracle_of(lambda X: np.full(len(X), 5.0)), lambda X: np.full(len(X), 5.01), directions=[]).met


@pytest.mark.parametrize(("error", "met"), [(0.0099, True), (0.0101, False)])
def test_tolerance_is_relative_to_the_scale(error: float, met: bool):
    c = run(oracle_of(), lambda X: truth(X) + 5.0 * error, std=5.0)
    assert c.met is met
    assert c.sup_seen == pytest.approx(5.0 * error)


def test_stated_noise_is_allowed_for():
    off = lambda X: truth(X) + 0.1 * np.sign(np.sin(50.0 * X[:, 2]))  # noqa: E731
    assert run(oracle_of(off), truth, std=1.0, tolerance=0.05).verdict == "not met"
    assert run(oracle_of(off), truth, std=1.0, tolerance=0.15, noise=0.1).verdict == "met"
    assert run(oracle_of(off), truth, std=1.0, tolerance=0.05, noise=0.1).verdict == "undecided", "the noise hides it"
    assert run(oracle_of(off), truth, std=1.0, tolerance=0.05, noise=0.04).verdict == "not met"


# -- random noise ---------------------------------------------------------------------------------------------


def noisy(sigma, seed=1):
    rng = np.random.default_rng(seed)
    return oracle_of(lambda X: truth(X) + sigma * rng.standard_normal(len(X)))


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.3])
def test_under_noise_the_error_beyond_it_decides(sigma):
    """A model that is right, and one whose RMS error is twice the tolerance, are told apart in noise above both."""
    allowance = {"std": 1.0, "sigma": sigma, "noise": 4.5 * sigma, "tolerance": 0.1}
    right = run(noisy(sigma), truth, **allowance)
    assert right.verdict == "met"
    assert right.rms_bound <= 0.1
    wrong = run(noisy(sigma), lambda X: truth(X) + 0.2 * np.sqrt(2.0) * np.sin(5.0 * X[:, 2]), **allowance)
    assert wrong.verdict == "not met"


def test_noise_that_hides_the_tolerance_leaves_it_undecided():
    oracle = noisy(1.0)
    oracle.max_queries = 3000
    hidden = run(oracle, truth, std=1.0, sigma=1.0, noise=4.5, tolerance=0.01)
    assert hidden.verdict == "undecided"
    assert not hidden.met
    assert oracle.remaining > 1000, "what cannot decide it is not asked"
    # the mean of N products of two normal errors has a standard error of 1/√N: z/√N = tolerance²
    assert 1e8 < hidden.queries_to_decide < 1e10


def test_noise_statements_are_true_as_often_as_stated():
    """The RMS error is exactly the tolerance, so every "met" is wrong: at most 1 - confidence of the runs."""
    wrong = sum(
        run(
            noisy(0.3, seed),
            lambda X: truth(X) + 0.1001 * np.sign(np.sin(40.0 * X[:, 2])),
            seed=seed,
            std=1.0,
            sigma=0.3,
            noise=1.5,
            tolerance=0.1,
            confidence=0.9,
        ).met
        for seed in range(60)
    )
    assert wrong <= binom.ppf(0.999, 60, 0.1)


def test_attempts_share_the_confidence():
    shares = [1.0 - Requirement(RADIUS, 0.01, confidence=0.9, attempt=k).attempt_confidence for k in range(1, 200)]
    assert sum(shares) < 0.1
    assert sum(shares) > 0.099
    assert Requirement(RADIUS, 0.01, confidence=0.9).attempt_confidence == 0.9


def test_a_narrow_error_where_the_model_bends_is_seen():
    """The model has a cusp at 0.7 along the first axis, and is wrong within 0.02 of it only."""

    def cusp(X: Floats) -> Floats:
        return np.abs(X[:, 0] - 0.7) ** 0.5

    def rounded(X: Floats) -> Floats:
        return np.maximum(np.abs(X[:, 0] - 0.7), 0.02) ** 0.5

    seen = [run(oracle_of(cusp), rounded, seed=seed).sup_seen for seed in range(20)]
    assert np.mean(np.array(seen) > 0.05) > 0.9


def test_an_error_far_out_along_a_feature_is_seen():
    """In 60 dimensions uniform points have |x_1| < 2; an error at |x_1| > 2.5 is seen along the feature."""
    directions = np.eye(60)[:1]
    recorder = Recorder(lambda X: np.tanh(X[:, 0]))
    c = run(oracle_of(recorder, 60), lambda X: np.tanh(np.clip(X[:, 0], -2.5, 2.5)), 0, directions, 1e-5)
    assert c.bound == 0.0
    assert c.sup_seen > 1e-3
    assert not c.met
    assert np.abs(recorder.asked[:, 0]).max() > 0.95 * RADIUS


def test_a_model_without_an_answer_is_wrong():
    c = run(oracle_of(), lambda X: np.where(X[:, 0] > 2.0, np.nan, truth(X)))
    assert not c.met
    assert c.sup_seen == c.bound == c.rms == inf


# -- local search -------------------------------------------------------------------------------------------


def spot(dim: int, seed: int, width: float):
    """A model error of size one at a random place of the ball, a Gaussian of the given width."""
    at = in_ball(1, dim, 0.8 * RADIUS, np.random.default_rng([seed, 1]))[0]
    return lambda X: np.exp(-0.5 * np.sum((X - at) ** 2, axis=1) / width**2)


def test_local_search_finds_a_bad_spot_more_often_than_as_many_uniform_queries():
    runs, dim, found, by_chance = 40, 4, 0, 0
    directions = random_directions(6, dim, np.random.default_rng(3))
    for seed in range(runs):
        recorder = Recorder(spot(dim, seed, width=0.6))
        found += run(oracle_of(recorder, dim), zero, seed, directions).sup_seen > 0.95
        uniform = in_ball(len(recorder.asked), dim, RADIUS, np.random.default_rng([seed, 2]))
        by_chance += recorder.function(uniform).max() > 0.95
    assert found >= 0.8 * runs
    assert by_chance <= 0.3 * runs


def test_local_search_only_ever_raises_what_was_seen():
    for seed in range(5):
        recorder = Recorder(spot(DIM, seed, width=1.0))
        c = run(oracle_of(recorder), zero, seed)
        first, later = recorder.asked[:-LOCAL], recorder.asked[-LOCAL:]
        assert c.sup_seen == recorder.function(recorder.asked).max()
        assert recorder.function(later).max() > recorder.function(first).max()


# -- queries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 10])
def test_no_point_is_asked_twice_and_none_outside_the_ball(dim: int):
    recorder = Recorder(lambda X: X[:, 0] ** 2)
    c = run(oracle_of(recorder, dim, reach=RADIUS), zero, 0, np.eye(dim)[:1])
    assert len(np.unique(recorder.asked, axis=0)) == len(recorder.asked) == c.samples
    assert np.linalg.norm(recorder.asked, axis=1).max() <= RADIUS * (1 + 1e-15)


def test_two_streams_share_no_point():
    a, b = Recorder(), Recorder()
    run(oracle_of(a), zero, 0)
    run(oracle_of(b), zero, 1)
    assert len(np.unique(np.concatenate([a.asked, b.asked]), axis=0)) == len(a.asked) + len(b.asked)


def test_same_stream_same_bits():
    assert run(oracle_of(), zero, 7) == run(oracle_of(), zero, 7)


@pytest.mark.parametrize(("features", "total"), [(0, 459 + 160), (2, 459 + 300 + 160), (100, 459 + 1200 + 160)])
def test_default_number_of_queries(features: int, total: int):
    oracle = oracle_of()
    directions = random_directions(features, DIM, np.random.default_rng(0)) if features else []
    c = run(oracle, zero, 0, directions)
    assert oracle.queries_by_stage == {"certify": total}
    assert c.samples == total


def test_every_feature_is_looked_at_over_its_whole_range():
    """In 200 dimensions no other question comes near |v·x| > 0.75·R: the outermost strata must have."""
    n, dim = 50, 200
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, n)))[0].T
    recorder = Recorder(lambda X: X[:, 0])
    run(oracle_of(recorder, dim), zero, 0, directions)
    z = recorder.asked[:-LOCAL] @ directions.T
    assert (z > 0.75 * RADIUS).any(axis=0).all()
    assert (z < -0.75 * RADIUS).any(axis=0).all()


@pytest.mark.parametrize("left", [1, 2, 3, 17, 100, 500])
def test_a_short_budget_is_spent_and_admitted(left: int):
    oracle = oracle_of(max_queries=left)
    c = run(oracle, truth)
    assert oracle.remaining == 0
    assert c.samples == left
    assert 0.0 < c.coverage < 0.99
    assert c.coverage >= coverage_of(max(1, left // 2), 0.99)


def test_more_queries_speak_for_more_of_the_ball():
    assert run(oracle_of(), truth, queries=9190).coverage > 0.999 - 1e-5


def test_nothing_left_certifies_nothing():
    oracle = oracle_of(max_queries=10)
    oracle(np.zeros((10, DIM)))
    c = run(oracle, truth)
    assert (c.met, c.samples, c.coverage, c.sup_seen, c.bound) == (False, 0, 0.0, inf, inf)
    assert "NOT met" in c.sentence


def test_dropped_answers_are_left_out():
    def partial(X: Floats) -> Floats:
        return np.where(X[:, 2] > 0, truth(X), np.nan)

    oracle = oracle_of(partial, on_bad="drop")
    c = run(oracle, truth)
    assert c.met
    assert c.samples == oracle.queries - oracle.dropped
    assert coverage_of(150, 0.99) < c.coverage < coverage_of(300, 0.99)
    assert np.isfinite([c.std, c.rms, c.rms_high, c.bound]).all()


def test_no_answer_at_all_certifies_nothing():
    c = run(oracle_of(lambda X: np.full(len(X), np.nan), on_bad="drop"), truth)
    assert (c.met, c.samples, c.coverage) == (False, 0, 0.0)


# -- vector outputs -----------------------------------------------------------------------------------------


def test_vector_outputs_take_the_worst_output_and_the_mean_scale():
    def vector(X: Floats) -> Floats:
        return np.stack([3.0 * X[:, 0], X[:, 1], np.zeros(len(X))], axis=1)

    c = run(oracle_of(vector), lambda X: vector(X) + np.array([0.0, 0.02, -0.04]))
    per_axis = RADIUS / np.sqrt(DIM + 2)
    assert c.sup_seen == pytest.approx(0.04)
    assert c.rms == pytest.approx(np.sqrt((0.02**2 + 0.04**2) / 3))
    assert c.std == pytest.approx(per_axis * np.sqrt(10.0 / 3.0), rel=0.15)
    assert not c.met


def test_center_and_scale_of_the_oracle_do_not_matter():
    """`predict` is asked in the ball's coordinates, as the oracle is."""
    oracle = oracle_of(truth, center=[1.0, 2.0, 3.0], scale=2.0)
    assert run(oracle, lambda U: truth(np.array([1.0, 2.0, 3.0]) + 2.0 * U)).met


@pytest.mark.parametrize(
    "wrong", [{"radius": 0.0}, {"confidence": 1.0}, {"confidence": 0.0}, {"tolerance": -1.0}, {"noise": -1.0}]
)
def test_nonsense_is_refused(wrong: dict[str, float]):
    options = {"radius": 1.0, "tolerance": 0.1, "noise": 0.0, "confidence": 0.9, **wrong}
    with pytest.raises(InvalidInput):
        certify(oracle_of(), truth, AXES, Requirement(**options), rng=np.random.default_rng(0))


def test_single_precision_answers_from_far_away_excuse_nothing_in_the_ball():
    """A search may have asked a billion radii away, where the last digit of an answer is larger than all of f here."""

    def steep(X: Floats) -> np.ndarray:
        return (X[:, 0] + np.maximum(X[:, 1], 0.0)).astype(np.float32)

    oracle = oracle_of(steep)
    oracle(np.full((2, DIM), 3e9))
    told = run(oracle, lambda X: X[:, 0])
    assert not told.met
    assert told.sup_seen > 0.5 * told.std


def test_single_precision_answers_do_not_spoil_a_right_model():
    told = run(oracle_of(lambda X: truth(X).astype(np.float32)), truth, tolerance=0.0)
    assert told.met, told.sentence
