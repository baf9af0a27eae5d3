"""The linear part is least squares, whichever way it is solved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fit_cases import problem, tilted
from ridgescope.deadline import OutOfTime, time_limit
from ridgescope.fit import linear
from ridgescope.fit.linear import ConjugateGradient, chunks, keep_features, solve_linear, solve_nearby


@pytest.mark.parametrize("outputs", [1, 3])
def test_coefficients_are_those_of_least_squares(outputs):
    model, X, Y = problem(outputs=outputs, noise=0.1)
    solved = solve_linear(model, X, Y, smoothing=0.0)
    phi = model.design(X)
    best = phi @ np.linalg.lstsq(phi, Y, rcond=None)[0]
    assert solved.cost == pytest.approx(np.sum((Y - best) ** 2), rel=1e-8)
    np.testing.assert_allclose(solved.model.predict(X), best, atol=1e-6)


def test_every_solve_is_a_step_that_the_time_limit_ends():
    """Knots are chosen by many solves of seconds each."""
    model, X, Y = problem(noise=0.1)
    with time_limit(0.0), pytest.raises(OutOfTime):
        solve_linear(model, X, Y, smoothing=0.0)


def test_a_factor_from_nearby_gives_the_same_coefficients():
    model, X, Y = problem(outputs=2, noise=0.1)
    here = solve_linear(model, X, Y, 1e-8)
    moved = tilted(here.model, 1e-2)
    near, exact = solve_nearby(moved, X, Y, 1e-8, here.factor), solve_linear(moved, X, Y, 1e-8)
    assert near is not None
    assert near.cost == pytest.approx(exact.cost, rel=1e-6)
    assert near.cost == pytest.approx(np.sum((Y - near.model.predict(X)) ** 2), rel=1e-9)
    assert near.objective == pytest.approx(exact.objective, rel=1e-6)
    np.testing.assert_allclose(near.model.predict(X), exact.model.predict(X), atol=1e-3)


def test_a_factor_from_far_away_is_refused():
    model, X, Y = problem(noise=0.1)
    here = solve_linear(model, X, Y, 1e-8)
    far = np.diag(np.logspace(-3.0, 3.0, len(here.factor)))  # of no matrix in sight
    assert solve_nearby(model, X, Y, 1e-8, far) is None


def test_a_matrix_from_some_of_the_points_gives_the_solution_of_all(monkeypatch):
    model, X, Y = problem(count=2000, noise=0.1)
    exact = solve_linear(model, X, Y, 1e-8)
    monkeypatch.setattr(linear, "MAX_GRAM_COLUMNS", 10)
    subsampled = solve_linear(model, X, Y, 1e-8)
    assert not subsampled.exact
    assert subsampled.cost == pytest.approx(exact.cost, rel=1e-6)


def test_features_kept_are_solved_for_without_new_sums():
    model, X, Y = problem(noise=0.1)
    keep = np.array([0, 2])
    smaller = keep_features(solve_linear(model, X, Y, 1e-8), keep, X, Y, 1e-8)
    exact = solve_linear(model.keep(keep), X, Y, 1e-8)
    assert smaller.cost == pytest.approx(exact.cost, rel=1e-6)
    np.testing.assert_array_equal(smaller.model.directions, model.directions[keep])


def test_an_affine_function_is_fitted_whatever_the_directions():
    model, X, _ = problem()
    Y = 2.0 - X @ np.array([[1.0], [0.5], [-3.0]])
    assert solve_linear(model, X, Y, 1e-3).cost <= 1e-8 * np.sum(Y**2)


def test_chunks_cover_every_row_once():
    for count, columns in ((0, 5), (1, 5), (100_000, 10), (3000, 100_000)):
        rows = [r for c in chunks(count, columns) for r in range(c.start, c.stop)]
        assert rows == list(range(count))


def test_two_copies_of_a_direction_do_no_harm():
    """A singular problem: the ridge divides the response between the two."""
    model, X, Y = problem()
    double = model.join(model.directions[:1], 12)
    assert solve_linear(double, X, Y).cost <= solve_linear(model, X, Y).cost * (1 + 1e-6)


@dataclass(frozen=True)
class Row:
    x: np.ndarray

    def plus(self, a, other):
        return Row(self.x + a * other.x)

    def dot(self, other):
        return float(self.x @ other.x)


def conjugate_gradient(A, b, start, precondition=lambda r: r):
    return ConjugateGradient(lambda q: Row(A @ q.x), precondition, Row(start), Row(b - A @ start))


def test_conjugate_gradients_end_after_as_many_steps_as_there_are_unknowns():
    rng = np.random.default_rng(0)
    J = rng.standard_normal((9, 6))
    A, b = J.T @ J + np.eye(6), rng.standard_normal(6)
    iteration = conjugate_gradient(A, b, rng.standard_normal(6))
    for _ in range(6):
        assert iteration.step() > 0
    np.testing.assert_allclose(iteration.x.x, np.linalg.solve(A, b), atol=1e-9)
    exact = conjugate_gradient(A, b, np.zeros(6), lambda r: Row(np.linalg.solve(A, r.x)))
    assert exact.rho == pytest.approx(b @ np.linalg.solve(A, b))
    assert exact.step() == pytest.approx(1.0)
    np.testing.assert_allclose(exact.x.x, np.linalg.solve(A, b), atol=1e-9)


def test_conjugate_gradients_stop_where_the_matrix_is_not_positive():
    iteration = conjugate_gradient(np.diag([1.0, -3.0]), np.array([1.0, 1.0]), np.zeros(2))
    assert iteration.step() == 0.0
    np.testing.assert_array_equal(iteration.x.x, 0.0)
