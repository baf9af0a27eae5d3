"""A result that is not certified says why, with numbers, and what to try."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from made import CERTIFICATE, extraction
from ridgescope.diagnose import (
    DOUBLE,
    Cause,
    Course,
    describe_stop,
    diagnose,
    explained_share,
    find_cause,
    is_low_precision,
    residual_share,
)
from ridgescope.fit.context import Evaluation
from ridgescope.forecast import Forecast
from ridgescope.randomness import Streams
from ridgescope.rounding import Rounding
from ridgescope.state import State
from ridgescope.stop import StopReason
from ridgescope.structure import Kind, Structure
from ridgescope.survey import Survey

FEATURES = extraction(features=3).features
NOT_ROUNDED = Rounding()
NOT_MET = replace(CERTIFICATE, verdict="not met")


def survey(std=2.0, noise=1e-9, probabilities=False, rounding=NOT_ROUNDED):
    points, values = np.empty((0, 3)), np.empty((0, 1))
    return Survey(std, noise, 1.0, True, np.eye(3), points, values, probabilities=probabilities, rounding=rounding)


def evaluation(rms):
    return Evaluation(None, rms, 3 * rms, False)


def text(rms, certificate=NOT_MET, features=FEATURES, stop=StopReason.NO_PROGRESS, course=None, **known):
    return diagnose(survey(**known), evaluation(rms), certificate, features, course or Course(stop, rounds=2))


def test_a_met_tolerance_needs_no_words():
    assert text(0.001, certificate=CERTIFICATE) == ""


def test_a_met_tolerance_is_not_called_noise():
    """A polynomial's directions are one choice of many; noise that looks like one is no reason for a warning."""
    met = Course(StopReason.CERTIFIED, 1)
    for kind, said in ((Kind.SUM, "a polynomial"), (Kind.NOISE, "")):
        structure = Structure("unknown", kind, {"degree": 2.0}, "a polynomial")
        assert diagnose(survey(), evaluation(0.001), CERTIFICATE, FEATURES, met, structure) == said


def test_an_interrupted_run_says_nothing_about_f():
    assert text(1.0, stop=StopReason.INTERRUPTED) == ""


def test_polynomial_responses_are_one_choice_among_many():
    cubic = rs.Shape("polynomial", {}, "z³", 1.0)
    features = (replace(FEATURES[0], shape=cubic), *FEATURES[1:])
    assert "1 of 3 responses" in text(0.001, certificate=CERTIFICATE, features=features)


@pytest.mark.parametrize(("rms", "share"), [(0.2, 0.99), (1.0, 0.75), (2.0, 0.0), (10.0, 0.0)])
def test_the_explained_share_is_that_of_the_variance(rms, share):
    left = residual_share(survey(), evaluation(rms), replace(NOT_MET, rms=rms))
    assert left == rms / 2.0
    assert explained_share(left) == pytest.approx(share)
    assert f"{100 * share:.1f} %" in text(rms, certificate=replace(NOT_MET, rms=rms)), "fresh queries"
    assert f"{100 * share:.1f} %" in text(rms, certificate=replace(NOT_MET, rms=9.9, samples=0)), "or none"


@pytest.mark.parametrize(
    ("rms", "known", "stop", "cause"),
    [
        (1.0, {"probabilities": True}, StopReason.NO_PROGRESS, Cause.PROBABILITIES),
        (1.0, {"probabilities": True}, StopReason.BUDGET, Cause.PROBABILITIES),
        (1.5, {}, StopReason.BUDGET, Cause.BUDGET_WITHOUT_PROGRESS),
        (0.1, {"noise": 0.1}, StopReason.BUDGET, Cause.NOISE),
        (1.5, {}, StopReason.TIME, Cause.TIME),
        (0.1, {"noise": 0.1}, StopReason.NO_PROGRESS, Cause.NOISE),
        (0.1, {"noise": 0.1, "rounding": Rounding(0.1, 0.2, True)}, StopReason.UNDECIDED, Cause.ROUNDED_ANSWERS),
        (0.1, {"noise": 0.1, "rounding": Rounding(0.1, 0.6)}, StopReason.UNDECIDED, Cause.ROUNDED_INPUTS),
        (0.1, {"noise": 0.1, "rounding": Rounding(0.01, 0.06)}, StopReason.NO_PROGRESS, Cause.NOISE),
        (1.5, {}, StopReason.NO_PROGRESS, Cause.NOT_A_SUM),
        (0.1, {}, StopReason.ROUND_LIMIT, Cause.NEARLY_A_SUM),
        (float("inf"), {"std": 0.0}, StopReason.BUDGET, Cause.NO_ANSWERS),
    ],
)
def test_each_cause_has_its_remedy(rms, known, stop, cause):
    assert find_cause(survey(**known), evaluation(rms), Course(stop, rounds=2), rms / 2.0) is cause
    assert text(rms, certificate=replace(NOT_MET, rms=rms), stop=stop, **known).endswith(cause.value)


@pytest.mark.parametrize(
    ("rounds", "ahead", "cause"),
    [
        (0, None, Cause.BUDGET_BEFORE_FIT),
        (2, None, Cause.BUDGET_WITHOUT_PROGRESS),
        (2, Forecast(10**9, 0, 1000.0), Cause.BUDGET_WITHOUT_PROGRESS),
        (2, Forecast(54_321, 0, 5.0), Cause.BUDGET),
    ],
)
def test_more_queries_are_advised_only_where_the_error_was_falling_fast_enough(rounds, ahead, cause):
    course = Course(StopReason.BUDGET, rounds, ahead)
    assert find_cause(survey(), evaluation(1.5), course, 0.75) is cause
    assert ("54,321" in text(1.5, course=course)) == (cause is Cause.BUDGET)


def test_a_budget_too_small_for_tests_is_named_with_the_one_that_pays_for_them():
    course = Course(StopReason.BUDGET, rounds=2, tests=8400)
    assert find_cause(survey(), evaluation(1.5), course, 0.75) is Cause.BUDGET_BEFORE_TESTS
    assert "8,400" in text(1.5, course=course)
    falling = replace(course, ahead=Forecast(4000, 12, 2.0))
    assert find_cause(survey(), evaluation(1.5), falling, 0.75) is Cause.BUDGET


def test_eighteen_features_for_1500_queries_are_not_called_anything_else():
    found = rs.extract(rs.targets.planted(6, 18, ("tanh", "sine"), rng=3), max_queries=1500, rng=0)
    assert found.stop is StopReason.BUDGET
    assert Cause.BUDGET_WITHOUT_PROGRESS.value not in found.diagnosis


def test_a_surrogate_says_what_the_tolerance_would_take():
    ahead = Forecast(10**9, 77, 1000.0)
    assert ahead.sentence in text(1.5, course=Course(StopReason.BUDGET, 2, ahead, approximate=True))
    assert ahead.sentence not in text(1.5, course=Course(StopReason.BUDGET, 2, ahead))


def test_rounding_that_is_known_is_named_rather_than_what_it_looks_like():
    jumps = Structure("unknown", Kind.JUMPS, {}, "f jumps.")
    for rounding, last in ((Rounding(0.1, 0.6), Cause.ROUNDED_INPUTS.value), (NOT_ROUNDED, "f jumps.")):
        known = survey(noise=0.1, rounding=rounding)
        said = diagnose(known, evaluation(0.1), NOT_MET, FEATURES, Course(StopReason.UNDECIDED, 2), jumps)
        assert said.endswith(last)


@pytest.mark.parametrize("std", [0.0, 2.0])
def test_a_run_without_answers_has_a_sentence_without_nan(std):
    assert "nan" not in text(float("inf"), std=std, features=())


def test_every_reason_has_a_sentence():
    oracle = rs.oracle.Oracle(lambda X: X[:, 0], dim=2, max_queries=100)
    state = State(
        oracle=oracle,
        radius=1.0,
        tolerance=0.1,
        stated_noise=None,
        max_features=None,
        streams=Streams.of(0),
        report=lambda step: None,
    )
    state.fit_affine()
    sentences = {reason: describe_stop(reason, state, CERTIFICATE) for reason in StopReason}
    assert len(set(sentences.values())) == len(StopReason)
    assert all(s.endswith(".") and s[0].isupper() for s in sentences.values())
    short = rs.BudgetExhausted(90, 20, 100, "fit")
    assert "20" in describe_stop(StopReason.BUDGET, state, CERTIFICATE, short), "what could not be paid for"


def test_low_precision_calls_for_a_double_copy():
    single, double, noisy = survey(noise=2e-7), survey(noise=1e-15), replace(survey(noise=2e-7), deterministic=False)
    half = survey(noise=1e-15, rounding=Rounding(1e-3, 6e-3))
    assert [is_low_precision(s) for s in (single, half, double, noisy)] == [True, True, False, False]
    assert DOUBLE in text(0.5, noise=2e-7)
    assert DOUBLE not in text(0.5, noise=1e-15)


def test_a_double_copy_is_not_advised_for_what_is_no_sum():
    kinks = Structure("approximate", Kind.KINKS, {}, "kinks that end")
    course = Course(StopReason.NOT_A_SUM, 1)
    assert DOUBLE not in diagnose(survey(noise=2e-7), evaluation(0.5), NOT_MET, FEATURES, course, kinks)
