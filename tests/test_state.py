"""Where a run stands: budget, subspace, and how the model grows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ridgescope as rs
from loop import make_state, two_features
from ridgescope.feature import Plane
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.model import Model
from ridgescope.geometry import in_ball, random_directions
from ridgescope.search import Candidates
from ridgescope.state import CERTIFICATE_RESERVE, State


def started(function=two_features, dim=2, **options):
    state = make_state(function, dim, **options)
    state.run_survey()
    state.fit_without_search()
    return state


# -- what may be spent ---------------------------------------------------------------------------------------


def test_without_a_budget_everything_may_be_asked():
    assert make_state(two_features, 2).allowance() == float("inf")


@pytest.mark.parametrize(("limit", "kept"), [(100, 25), (6000, 1500), (100_000, CERTIFICATE_RESERVE)])
def test_a_part_of_the_budget_is_kept_for_the_certificate(limit, kept):
    state = make_state(two_features, 2, max_queries=limit)
    assert state.allowance() == limit - kept
    state.oracle(np.zeros((10, 2)))
    assert state.allowance() == limit - kept - 10


def test_the_goal_of_a_fit_is_a_part_of_the_tolerance():
    loose, tight = (started(tolerance=t).goal for t in (1e-1, 1e-3))
    assert loose.error / tight.error == pytest.approx(100.0, rel=1e-3)
    assert loose.noise == tight.noise


# -- the model -----------------------------------------------------------------------------------------------


def test_an_affine_function_needs_no_search():
    state = started(lambda X: 2.0 + X @ np.array([1.0, -3.0]))
    assert state.model.count == 0
    assert state.best.meets_goal
    assert not state.history


def test_in_one_dimension_the_only_direction_is_fitted_at_once():
    state = started(lambda X: np.tanh(2.0 * X[:, 0]), 1)
    assert state.model.count == 1
    assert state.best.meets_goal
    assert [line.candidates for line in state.history] == [1]


def test_right_candidates_meet_the_goal_and_false_ones_are_pruned():
    state = started()
    false = np.array([[0.6, 0.8]])
    state.fit(Candidates(np.concatenate([np.eye(2), false]), "test"))
    assert state.best.meets_goal
    assert rs.match(state.model.directions, np.eye(2)).angles.max() < 1e-3
    assert state.model.count == 2
    (line,) = state.history
    assert (line.candidates, line.features, line.proposer) == (3, 2, "test")


def test_a_round_remembers_where_it_searched_and_what_it_could_not_resolve():
    state = started()
    assert state.searched_dim == 0
    state.fit(Candidates(np.eye(2), "test", resolved=False))
    assert state.searched_dim == 2
    assert state.unresolved
    state.fit(Candidates(np.empty((0, 2)), "test"))
    assert state.unresolved, "a later round does not make the earlier ones resolved"


def test_a_round_without_candidates_keeps_the_model():
    state = started()
    state.fit(Candidates(np.eye(2), "test"))
    before = state.model
    state.fit(Candidates(np.empty((0, 2)), "test"))
    assert state.model is before
    assert len(state.history) == 2


def test_inaccurate_directions_do_not_count_as_good_as_proposed():
    exact, rough = started(), started()
    exact.fit(Candidates(np.eye(2), "test"))
    rough.fit(Candidates(np.eye(2), "test", angle_error=0.1))
    assert exact.best.directions_as_proposed
    assert not rough.best.directions_as_proposed


def test_max_features_keeps_the_strongest():
    state = started(lambda X: np.tanh(2.0 * X[:, 0]) + 0.2 * np.exp(-(X[:, 1] ** 2)), max_features=1)
    state.fit(Candidates(np.eye(2), "test"))
    assert state.model.count == 1
    assert abs(state.model.directions[0, 0]) > 0.99


def test_planes_are_kept_in_the_coordinates_of_the_input():
    v = np.eye(12)[[1, 4]]
    state = started(lambda X: two_features(X @ v.T), 12)
    plane = Plane(np.eye(2), np.ones((4, 4)), 1.0)
    state.fit(Candidates(np.eye(2), "test", planes=(plane,)))
    np.testing.assert_allclose(state.planes[0].basis, state.survey.basis)
    assert state.planes[0].round == 1


# -- the subspace --------------------------------------------------------------------------------------------


def test_the_oracle_inside_the_subspace_is_the_function_there():
    v = np.eye(12)[[1, 4]]
    state = started(lambda X: two_features(X @ v.T), 12)
    assert state.inner_dim == 2
    Y = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 2))
    np.testing.assert_allclose(state.ask("test")(Y)[:, 0], two_features(Y @ state.survey.basis @ v.T), atol=1e-12)


def test_a_larger_subspace_keeps_features_and_predictions():
    v = np.eye(12)[[1, 4]]
    state = started(lambda X: two_features(X @ v.T), 12)
    state.fit(Candidates(v @ state.survey.basis.T, "test"))
    before, basis = state.model, state.survey.basis
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 12))
    extra = np.eye(12)[[0]]
    state.enlarge_subspace(np.concatenate([basis, extra]))
    assert state.inner_dim == 3
    assert state.searched_dim != state.inner_dim, "the new subspace has not been searched"
    np.testing.assert_allclose(state.model.predict(X @ state.survey.basis.T), before.predict(X @ basis.T), atol=1e-3)


def test_a_subspace_enlarged_to_everything_has_its_own_coordinates():
    """Those of its basis, which is not the identity."""
    v = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0].T
    state = started(lambda X: two_features(X @ v[:2].T) + X @ v[2], 3)
    state._work_in(replace(state.survey, basis=v[:2]))
    state.fit_affine()
    state.enlarge_subspace(v)
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 3))
    np.testing.assert_allclose(state.survey.inside(X), X @ v.T)
    np.testing.assert_allclose(state.ask("test")(X @ v.T)[:, 0], two_features(X @ v[:2].T) + X @ v[2])


def test_with_fewer_points_than_columns_a_larger_subspace_leaves_responses_as_they_are():
    v = np.eye(12)[[1, 4]]
    state = started(lambda X: two_features(X @ v.T) + 0.5 * X[:, 0], 12)
    state._work_in(replace(state.survey, basis=v))  # as after a survey that has missed where f is straight
    fine = Model.start(np.eye(2), state.radius, 2000, 1)
    responses = replace(fine, coefficients=np.random.default_rng(0).standard_normal(fine.coefficients.shape))
    state.use_model(responses)
    state.enlarge_subspace(np.concatenate([v, np.eye(12)[[0]]]))
    columns = state.model.offsets[-1]
    assert len(state.samples.train[0]) < columns
    np.testing.assert_array_equal(state.model.coefficients[:columns], responses.coefficients[:columns])
    assert not np.array_equal(state.model.coefficients[columns:-1], responses.coefficients[columns:])


# -- a refit -------------------------------------------------------------------------------------------------


def test_a_refit_asks_more_points_and_does_not_spoil_the_fit():
    state = started()
    state.fit(Candidates(np.eye(2), "test"))
    rms, points = state.best.rms, state.samples.count
    assert state.refit_with_more_points([])
    assert state.samples.count > points
    assert state.best.rms <= 2.0 * rms


def test_a_refit_that_cannot_be_paid_for_is_not_made():
    state = started(max_queries=6000)
    state.fit(Candidates(np.eye(2), "test"))
    state.oracle(np.zeros((int(state.allowance()) - 10, 2)))
    before = state.best
    assert not state.refit_with_more_points([])
    assert state.best is before


def test_error_bars_are_computed_once_for_a_fit_and_its_points(monkeypatch):
    calls = []
    monkeypatch.setattr("ridgescope.state.error_bars_of", lambda *arguments: calls.append(arguments) or len(calls))
    state = started()
    assert (state.error_bars(), state.error_bars()) == (1, 1)
    state.samples.add(np.zeros((3, state.inner_dim)), np.zeros((3, 1)))
    assert state.error_bars() == 2, "more points, other bars"
    state.evaluation = replace(state.best)
    assert state.error_bars() == 3, "another fit"


@pytest.mark.parametrize(("missing", "noise", "alone"), [(0, 0.0, True), (1, 0.0, False), (1, 0.1, True)])
def test_closed_forms_without_a_feature_leave_more_than_noise(missing, noise, alone):
    rng = np.random.default_rng(0)
    true = ClosedForms.blank(random_directions(4, 3, rng), 2.0, 8, 1)
    true = replace(true, coefficients=np.array([[1.0], [1.0], [1.0], [0.01], [0.0], [0.0], [0.0], [0.0]]))
    X = in_ball(200, 3, 2.0, rng)
    found = SimpleNamespace(
        best=SimpleNamespace(forms=true.keep(np.arange(4 - missing))),
        samples=SimpleNamespace(held_out=(X, true.predict(X))),
        survey=SimpleNamespace(std=1.0),
        goal=SimpleNamespace(noise=noise),
    )
    assert State.leaves_only_noise.fget(found) is alone
