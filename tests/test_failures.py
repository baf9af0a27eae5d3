"""A step that fails is a line of the history, and the run goes on; what the user must know passes through."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import ridgescope as rs
from loop import two_features
from ridgescope import deadline
from ridgescope.deadline import OutOfTime
from ridgescope.failures import PASSED_ON, Failure, attempt, is_strict
from ridgescope.fit.fitter import Fitter


@pytest.fixture
def lenient(monkeypatch):
    monkeypatch.setenv("RIDGESCOPE_STRICT", "0")


def test_tests_are_strict_unless_they_say_otherwise(monkeypatch):
    assert is_strict()
    monkeypatch.setenv("RIDGESCOPE_STRICT", "0")
    assert not is_strict()
    monkeypatch.delenv("RIDGESCOPE_STRICT")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert not is_strict()
    monkeypatch.setenv("RIDGESCOPE_STRICT", "1")
    assert is_strict()


def test_a_failure_says_what_and_where(lenient):
    outcome = attempt(lambda: np.linalg.inv(np.zeros((2, 2))))
    assert isinstance(outcome, Failure)
    assert "LinAlgError" in outcome.reason
    assert attempt(lambda: 3) == 3


def test_strict_means_raised():
    with pytest.raises(ZeroDivisionError):
        attempt(lambda: 1 // 0)


@pytest.mark.parametrize("error", PASSED_ON)
def test_what_the_user_must_know_passes_through(lenient, error):
    count = len(inspect.signature(error.__init__).parameters) - 1
    problem = error(1, 2, 3, "fit") if error is rs.BudgetExhausted else error("text"[:count] or "text")

    def fails():
        raise problem

    with pytest.raises(error):
        attempt(fails)


@dataclass(frozen=True)
class Broken:
    """A proposer that asks a little and then fails."""

    name: str = "broken"

    def cost(self, setting):
        return 100

    def propose(self, ask, setting, *, queries, rng):
        ask(np.zeros((5, setting.dim)))
        raise FloatingPointError("no luck")


def test_a_proposer_that_fails_leaves_the_others_their_turn(lenient):
    found = rs.extract(two_features, dim=2, method=[Broken(), "kinks", "curvature"], rng=0)
    assert found.certificate.met
    failures = [line for line in found.history if line.failure]
    assert [line.proposer for line in failures] == ["broken"]
    assert "FloatingPointError: no luck" in failures[0].failure
    assert found.queries_by_stage["broken"] == 5


def test_strict_runs_raise():
    with pytest.raises(FloatingPointError):
        rs.extract(two_features, dim=2, method=[Broken(), "kinks"], rng=0)


def test_a_fit_that_fails_keeps_the_model_from_before(lenient, monkeypatch):
    monkeypatch.setattr(Fitter, "fit", lambda *args, **options: 1 // 0)
    found = rs.extract(two_features, dim=2, rng=0, max_queries=20_000)
    assert not found.certificate.met
    assert not found.features
    assert {line.proposer for line in found.history if line.failure} == {"fit"}
    assert np.isfinite(found.predict(np.zeros((1, 2)))).all()


@pytest.mark.parametrize("name", ["error_bars_of", "canonical_features"])
def test_a_result_without_error_bars_or_names_is_a_result(lenient, monkeypatch, name):
    loop = sys.modules["ridgescope.extract"]
    original = getattr(loop, name, None)

    def fails(*args, named=True, **options):
        if name == "canonical_features" and not named:
            return original(*args, named=False, **options)
        raise ValueError("not today")

    monkeypatch.setattr(sys.modules["ridgescope.state"] if name == "error_bars_of" else loop, name, fails)
    found = rs.extract(two_features, dim=2, rng=0)
    assert found.certificate.met
    assert len(found.features) == 2
    assert len([line for line in found.history if line.failure]) >= 1
    if name == "error_bars_of":
        assert np.isinf([f.angle_error for f in found.features]).all()
    else:
        assert [f.shape for f in found.features] == [None, None]


def test_a_function_that_fails_in_the_middle_leaves_what_was_known():
    calls = 0

    def function(X):
        nonlocal calls
        calls += len(X)
        if calls > 1500:
            raise ConnectionError("gone")
        return two_features(X)

    with pytest.raises(rs.OracleFailed) as caught:
        rs.extract(function, dim=2, rng=0)
    found = caught.value.found
    assert found.stop is rs.StopReason.FAILED
    assert not found.certificate.met
    assert found.certificate.samples == 0
    assert found.queries >= 1300
    assert len(found.features) == 2


@pytest.mark.parametrize("budget", [10, 100, 200])
def test_a_budget_that_ends_in_the_survey_still_fits_its_answers(budget):
    """An affine function is known after the first batch that could be paid for."""
    found = rs.extract(lambda X: 2.0 + X @ np.array([1.0, -3.0]), dim=2, max_queries=600 + budget, rng=0)
    assert found.stop is rs.StopReason.BUDGET
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 2))
    np.testing.assert_allclose(found.predict(X), 2.0 + X @ np.array([1.0, -3.0]), atol=1e-9)


def test_time_is_kept_to_within_a_step(monkeypatch):
    found = rs.extract(lambda X: np.exp(-np.sum(X**2, axis=1)), dim=3, max_seconds=0.5, approximate=True, rng=0)
    assert found.stop is rs.StopReason.TIME
    assert found.certificate.samples == 0
    assert found.queries > 0


@pytest.mark.parametrize("bad", [-1.0, "soon", float("nan")])
def test_a_time_limit_is_a_number(bad):
    with pytest.raises(rs.InvalidInput):
        rs.extract(two_features, dim=2, max_seconds=bad)


def test_no_time_at_all_still_returns():
    found = rs.extract(two_features, dim=2, max_seconds=0.0)
    assert found.stop is rs.StopReason.TIME
    assert found.predict(np.zeros((1, 2))).shape == (1,)
    assert found.queries == 0


def test_an_interrupted_fit_leaves_its_best_model():
    """Ctrl-C right after the first fit has all features in place: they are in the result, not lost with the round."""
    target = rs.targets.CASES["small"].make(3)
    seen = []

    def interrupt(step):
        seen.append(step)
        if step.detail and not step.round and len([s for s in seen if s.detail]) > 3:
            raise KeyboardInterrupt

    with pytest.raises(rs.Interrupted) as caught:
        rs.extract(target, rng=3, progress=interrupt)
    found = caught.value.found
    assert not found.history, "no round was complete"
    assert len(found.features) >= 8
    assert rs.match(found.directions, target.directions).share(1e-2) == 1.0


def test_a_limit_of_an_outer_run_holds_inside():
    with deadline.time_limit(0.0), pytest.raises(OutOfTime), deadline.time_limit(1e9):
        deadline.check_time()
    deadline.check_time()


def test_work_is_counted_inside_a_run_only():
    deadline.spend(1e300)
    deadline.limit_work(1.0)  # there is no run: nothing happens
    deadline.spend(2.0)
    with deadline.counted_work():
        deadline.spend(1e300)
        deadline.limit_work(10.0)
        deadline.spend(9.0)
        with pytest.raises(deadline.OutOfWork):
            deadline.spend(2.0)
    deadline.spend(1e300)


def test_a_search_in_doubt_ends_when_its_work_is_done(monkeypatch):
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((3, 16)), rng.standard_normal((16, 16)) / 4.0

    def deep(X):
        return np.tanh(2.0 * np.tanh(X @ first) @ second) @ np.ones(16)

    monkeypatch.setattr(sys.modules["ridgescope.schedule"], "WORK", 1e8)
    found = rs.extract(deep, dim=3, rng=0)
    assert found.stop is rs.StopReason.TOLERANCE_NOT_MET
    again = rs.extract(deep, dim=3, rng=0)
    assert np.array_equal(found.directions, again.directions), "a limit on work keeps the bits"
