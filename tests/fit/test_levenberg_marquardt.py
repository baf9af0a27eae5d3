"""Steps go downhill, and both ways of taking them end in the same place."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fit_cases import RADIUS, problem, tilted
from ridgescope.fit import levenberg_marquardt as solver
from ridgescope.fit.jacobian import Damping, Jacobian, output_vectors, step_model
from ridgescope.fit.levenberg_marquardt import (
    Dense,
    LMOptions,
    MatrixFree,
    gradient,
    levenberg_marquardt,
    normal_matrix,
)
from ridgescope.fit.linear import solve_linear
from ridgescope.fit.model import Model
from ridgescope.geometry import angle, unit


def test_an_affine_part_added_to_f_changes_no_step():
    model, X, Y = problem()
    start = tilted(model, 0.1)
    one = levenberg_marquardt(start, X, Y, LMOptions(steps=3))
    two = levenberg_marquardt(start, X, Y + 5.0 - 2.0 * X[:, :1], LMOptions(steps=3))
    np.testing.assert_allclose(one.model.directions, two.model.directions, atol=1e-6)
    assert one.linear.cost == pytest.approx(two.linear.cost, rel=1e-4)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_gradient_is_that_of_the_cost(outputs):
    """Central differences of half the cost, coefficients solved anew at every trial (variable projection)."""
    model, X, Y = problem(outputs=outputs, noise=0.05)
    linear = solve_linear(tilted(model, 0.2), X, Y, smoothing=0.0)
    if outputs > 1:  # responses of one output vector each, for which the factored Jacobian is exact
        c, w = linear.model.coefficients.copy(), output_vectors(linear.model)
        for i in range(model.count):
            at = slice(model.offsets[i], model.offsets[i + 1])
            c[at] = (c[at] @ w[i])[:, None] * w[i]
        kept = replace(linear.model, coefficients=c)
        linear = replace(linear, model=kept)
        Y = kept.predict(X) + _outside(kept.design(X), Y)  # c is then the best for this Y
    slope = gradient(linear, X, Y)
    rng = np.random.default_rng(3)
    delta = rng.standard_normal(len(slope))
    V = linear.model.directions
    turn = delta[: V.size].reshape(V.shape)
    delta[: V.size] = (turn - np.einsum("nd,nd->n", turn, V)[:, None] * V).ravel()
    h = 1e-4 / np.abs(delta).max()
    costs = []
    for sign in (1.0, -1.0):
        step = sign * h * delta
        kinks = (np.empty(0), np.empty(0), linear.model.kinks[2] + step[-1:])
        trial = replace(linear.model, directions=unit(V + step[:-1].reshape(V.shape)), kinks=kinks)
        costs.append(solve_linear(trial, X, Y, smoothing=0.0).cost)
    assert -0.5 * (costs[0] - costs[1]) / (2 * h) == pytest.approx(float(slope @ delta), rel=1e-2)


def _outside(phi, Y):
    return Y - phi @ np.linalg.lstsq(phi, Y, rcond=None)[0]


def test_the_projected_matrix_is_symmetric_and_knows_no_radial_direction():
    model, X, Y = problem()
    linear = solve_linear(tilted(model, 0.1), X, Y)
    M = normal_matrix(linear, X)
    np.testing.assert_allclose(M, M.T, atol=1e-9 * np.abs(M).max())
    assert np.linalg.eigvalsh(M).min() >= -1e-8 * np.abs(M).max()
    for i, v in enumerate(linear.model.directions):
        assert np.linalg.norm(M[:, 3 * i : 3 * i + 3] @ v) <= 1e-9 * np.abs(M).max()


@pytest.mark.parametrize("outputs", [1, 2])
def test_in_single_precision_the_matrix_is_the_same_and_positive(outputs, monkeypatch):
    """Some of the columns follow each other up to rounding errors, which single precision must not turn into steps."""
    model, X, Y = problem(outputs=outputs)
    linear = solve_linear(tilted(model, 0.1), X, 1e3 * Y, smoothing=1e-9)
    exact = normal_matrix(linear, X)
    monkeypatch.setattr(solver, "_SINGLE_UNKNOWNS", 0)
    single = normal_matrix(linear, X)
    assert not np.array_equal(single, exact)
    own = np.sqrt(np.diag(exact) + 1e-3 * np.diag(exact).max())  # a direction has no entry along itself
    np.testing.assert_allclose(single / own / own[:, None], exact / own / own[:, None], rtol=0, atol=2e-4)
    assert np.linalg.eigvalsh(single).min() >= 0.0


@pytest.mark.parametrize("outputs", [1, 2])
def test_directions_come_back_from_far(outputs):
    """The basin is wide. What is left is the error of twelve cubic pieces."""
    model, X, Y = problem(outputs=outputs)
    fitted = levenberg_marquardt(tilted(model, 0.5), X, Y, LMOptions(steps=40, min_gain=1e-6))
    assert angle(fitted.model.directions, model.directions).max() < 3e-3


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_kink_comes_back_from_near(outputs):
    model, X, Y = problem(outputs=outputs)
    start = tilted(replace(model, kinks=(np.empty(0), np.empty(0), np.array([0.3]))), 0.05)
    fitted = levenberg_marquardt(start, X, Y, LMOptions(steps=40, min_gain=1e-6))
    assert fitted.model.kinks[2][0] == pytest.approx(0.4, abs=3e-3)


def test_cost_never_rises():
    model, X, Y = problem(noise=0.1)
    start = tilted(model, 0.5)
    costs = [levenberg_marquardt(start, X, Y, LMOptions(steps=k, min_gain=0.0)).linear.cost for k in range(6)]
    assert all(b <= a for a, b in pairwise(costs))


def run(stepper, model, steps):
    linear, damping = solve_linear(model, stepper.X, stepper.Y, stepper.smoothing), 1e-2
    for _ in range(steps):
        better, damping = stepper.step(linear, damping)
        if better is None:
            break
        linear = better
    return linear


@pytest.mark.parametrize("outputs", [1, 3])
def test_dense_and_matrix_free_steps_reach_the_same_cost(outputs):
    model, X, Y = problem(outputs=outputs, noise=0.02)
    start = tilted(model, 0.1)
    dense = run(Dense(X, Y, 1e-9), start, 25)
    free = run(MatrixFree(X, Y, 1e-9), start, 25)
    assert free.cost == pytest.approx(dense.cost, rel=1e-4)
    assert angle(free.model.directions, dense.model.directions).max() < 1e-3


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_short_step_gains_what_was_predicted(outputs):
    """Two thousandths of a radian away f̂ is nearly linear in the step, so the cost falls as predicted."""
    model, X, Y = problem(outputs=outputs)
    linear = solve_linear(tilted(model, 2e-3), X, Y, 1e-9)
    jacobian = Jacobian(linear.model, X, 1e-9, single=True)
    scale = jacobian.diagonal()
    change, predicted = MatrixFree(X, Y, 1e-9).change(jacobian, linear, Damping(1e-3 * scale.v, 1e-3 * scale.t))
    gained = linear.objective - solve_linear(step_model(linear.model, change), X, Y, 1e-9).objective
    assert gained == pytest.approx(predicted, rel=0.1)


def test_the_fit_reaches_the_same_cost_with_and_without_matrices():
    model, X, Y = problem(noise=0.02)
    start = tilted(model, 0.1)
    options = (LMOptions(min_gain=1e-6, matrix_free=free) for free in (False, True))
    dense, free = (levenberg_marquardt(start, X, Y, option) for option in options)
    assert free.linear.cost == pytest.approx(dense.linear.cost, rel=1e-4)


def test_no_step_is_taken_once_the_target_cost_is_reached():
    model, X, Y = problem(noise=0.1)
    assert levenberg_marquardt(tilted(model, 0.3), X, Y, LMOptions(target_cost=np.inf)).steps == 0


def test_no_features_is_the_affine_fit():
    _, X, Y = problem()
    fitted = levenberg_marquardt(Model.start(np.empty((0, 3)), RADIUS, 16, 1), X, Y)
    flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
    left = Y - flat @ np.linalg.lstsq(flat, Y, rcond=None)[0]
    assert fitted.converged
    assert fitted.linear.cost == pytest.approx(np.sum(left**2), rel=1e-9)
