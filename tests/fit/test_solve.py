"""The linear part is least squares, the steps go downhill, and both ways of taking them end in the same place."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ridgescope.fit.levenberg_marquardt import (
    Dense,
    MatrixFree,
    levenberg_marquardt,
    normal_matrix,
    output_vectors,
    pull,
)
from ridgescope.fit.linear import chunks, solve_linear
from ridgescope.fit.model import Model
from ridgescope.fit.products import Products, step_model
from ridgescope.geometry import angle, in_ball, random_directions, unit

RADIUS = 3.0


def problem(count=800, dim=3, outputs=1, seed=0, noise=0.0):
    """Two smooth features and one kink: (true model without coefficients, X, Y)."""
    rng = np.random.default_rng(seed)
    V = unit(np.eye(3, dim) + 0.2 * rng.standard_normal((3, dim)))
    X = in_ball(count, dim, RADIUS, rng)
    Z = X @ V.T
    parts = np.stack([np.tanh(1.5 * Z[:, 0]), np.sin(2.0 * Z[:, 1]), np.abs(Z[:, 2] - 0.4)], axis=1)
    Y = 0.3 + X[:, :1] + parts @ unit(rng.standard_normal((3, outputs))) + noise * rng.standard_normal((count, outputs))
    model = Model.start(V, RADIUS, 12, outputs)
    return model.reshaped(model.intervals, (np.empty(0), np.empty(0), np.array([0.4]))), X, Y


def tilted(model, by, seed=1):
    w = np.random.default_rng(seed).standard_normal(model.directions.shape)
    w -= np.einsum("nd,nd->n", w, model.directions)[:, None] * model.directions
    return replace(model, directions=np.cos(by) * model.directions + np.sin(by) * unit(w))


@pytest.mark.parametrize("outputs", [1, 3])
def test_coefficients_are_those_of_least_squares(outputs):
    model, X, Y = problem(outputs=outputs, noise=0.1)
    solved = solve_linear(model, X, Y, smooth=0.0)
    phi = model.design(X)
    best = phi @ np.linalg.lstsq(phi, Y, rcond=None)[0]
    assert solved.cost == pytest.approx(np.sum((Y - best) ** 2), rel=1e-8)
    np.testing.assert_allclose(solved.model.predict(X), best, atol=1e-6)


def test_the_cost_is_that_of_the_model_it_comes_with():
    model, X, Y = problem(outputs=2, noise=0.1)
    for solver in (Dense(X, Y, 1e-8), MatrixFree(X, Y, 1e-8)):
        solved = solver.solve(model)
        assert solved.cost == pytest.approx(np.sum((Y - solved.model.predict(X)) ** 2), rel=1e-9)


def test_an_affine_function_is_fitted_whatever_the_directions():
    model, X, _ = problem()
    Y = 2.0 - X @ np.array([[1.0], [0.5], [-3.0]])
    for solver in (Dense(X, Y, 1e-3), MatrixFree(X, Y, 1e-3)):
        assert solver.solve(model).cost <= 1e-8 * np.sum(Y**2)


def test_an_affine_part_added_to_f_changes_no_step():
    model, X, Y = problem()
    start = tilted(model, 0.1)
    one = levenberg_marquardt(start, X, Y, steps=3)
    two = levenberg_marquardt(start, X, Y + 5.0 - 2.0 * X[:, :1], steps=3)
    np.testing.assert_allclose(one.model.directions, two.model.directions, atol=1e-6)
    assert one.linear.cost == pytest.approx(two.linear.cost, rel=1e-4)


def test_chunks_cover_every_row_once():
    for count, columns in ((0, 5), (1, 5), (100_000, 10), (3000, 100_000)):
        rows = [r for c in chunks(count, columns) for r in range(c.start, c.stop)]
        assert rows == list(range(count))


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_gradient_is_that_of_the_cost(outputs):
    """Central differences of half the cost, coefficients solved anew at every trial (variable projection)."""
    model, X, Y = problem(outputs=outputs, noise=0.05)
    linear = solve_linear(tilted(model, 0.2), X, Y, smooth=0.0)
    if outputs > 1:  # responses of one output vector each, for which the factored Jacobian is exact
        c, w = linear.model.coefficients.copy(), output_vectors(linear.model)
        for i in range(model.count):
            at = slice(model.offsets[i], model.offsets[i + 1])
            c[at] = (c[at] @ w[i])[:, None] * w[i]
        kept = replace(linear.model, coefficients=c)
        linear = replace(linear, model=kept)
        Y = kept.predict(X) + _outside(kept.design(X), Y)  # c is then the best for this Y
    gradient = pull(linear, X, Y)
    rng = np.random.default_rng(3)
    delta = rng.standard_normal(len(gradient))
    V = linear.model.directions
    turn = delta[: V.size].reshape(V.shape)
    delta[: V.size] = (turn - np.einsum("nd,nd->n", turn, V)[:, None] * V).ravel()
    h = 1e-4 / np.abs(delta).max()
    costs = []
    for sign in (1.0, -1.0):
        step = sign * h * delta
        kinks = (np.empty(0), np.empty(0), linear.model.kinks[2] + step[-1:])
        trial = replace(linear.model, directions=unit(V + step[:-1].reshape(V.shape)), kinks=kinks)
        costs.append(solve_linear(trial, X, Y, smooth=0.0).cost)
    assert -0.5 * (costs[0] - costs[1]) / (2 * h) == pytest.approx(float(gradient @ delta), rel=1e-2)


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
def test_directions_come_back_from_far(outputs):
    """The basin is wide. What is left is the error of twelve cubic pieces."""
    model, X, Y = problem(outputs=outputs)
    fitted = levenberg_marquardt(tilted(model, 0.5), X, Y, steps=40, progress=1e-6)
    assert angle(fitted.model.directions, model.directions).max() < 3e-3


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_kink_comes_back_from_near(outputs):
    model, X, Y = problem(outputs=outputs)
    start = tilted(replace(model, kinks=(np.empty(0), np.empty(0), np.array([0.3]))), 0.05)
    fitted = levenberg_marquardt(start, X, Y, steps=40, progress=1e-6)
    assert fitted.model.kinks[2][0] == pytest.approx(0.4, abs=3e-3)


def test_cost_never_rises():
    model, X, Y = problem(noise=0.1)
    start = tilted(model, 0.5)
    costs = [levenberg_marquardt(start, X, Y, steps=k, progress=0.0).linear.cost for k in range(6)]
    assert all(b <= a for a, b in pairwise(costs))


def run(solver, model, steps):
    linear, damping = solver.solve(model), 1e-2
    for _ in range(steps):
        better, damping = solver.step(linear, damping)
        if better is None:
            break
        linear = better
    return linear


@pytest.mark.parametrize("outputs", [1, 3])
def test_both_solvers_reach_the_same_cost(outputs):
    model, X, Y = problem(outputs=outputs, noise=0.02)
    start = tilted(model, 0.1)
    dense = run(Dense(X, Y, 1e-9), start, 25)
    free = run(MatrixFree(X, Y, 1e-9), start, 25)
    assert free.cost == pytest.approx(dense.cost, rel=1e-4)
    assert angle(free.model.directions, dense.model.directions).max() < 1e-3


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_short_step_keeps_its_promise(outputs):
    """Two thousandths of a radian away f̂ is nearly linear in the step, so the cost falls by what was foretold."""
    model, X, Y = problem(outputs=outputs)
    solver = MatrixFree(X, Y, 1e-9)
    linear = solver.solve(tilted(model, 2e-3))
    products = Products(linear.model, X, 1e-9, output_vectors(linear.model), single=True)
    products.prepare_slopes()
    turn, slide = products.diagonal()
    change, promise = solver._change(products, linear, 1e-3 * turn, 1e-3 * slide)
    gained = linear.objective - solver.solve(step_model(linear.model, change)).objective
    assert gained == pytest.approx(promise, rel=0.1)


def test_steps_taken_roughly_reach_the_same_cost():
    model, X, Y = problem(noise=0.02)
    start = tilted(model, 0.1)
    dense, rough = (levenberg_marquardt(start, X, Y, progress=1e-6, roughly=rough) for rough in (False, True))
    assert rough.linear.cost == pytest.approx(dense.linear.cost, rel=1e-4)


def test_both_solvers_solve_for_the_same_coefficients():
    model, X, Y = problem(outputs=2, noise=0.02)
    dense, free = Dense(X, Y, 1e-6).solve(model), MatrixFree(X, Y, 1e-6).solve(model)
    assert free.cost == pytest.approx(dense.cost, rel=1e-5)
    np.testing.assert_allclose(free.model.predict(X), dense.model.predict(X), atol=1e-3)


def test_enough_is_enough():
    model, X, Y = problem(noise=0.1)
    assert levenberg_marquardt(tilted(model, 0.3), X, Y, enough=np.inf).steps == 0


def test_no_features_is_the_affine_fit():
    _, X, Y = problem()
    fitted = levenberg_marquardt(Model.start(np.empty((0, 3)), RADIUS, 16, 1), X, Y)
    flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
    left = Y - flat @ np.linalg.lstsq(flat, Y, rcond=None)[0]
    assert fitted.converged
    assert fitted.linear.cost == pytest.approx(np.sum(left**2), rel=1e-9)


def test_two_copies_of_a_direction_do_no_harm():
    """A singular problem: the ridge splits the response between the twins."""
    model, X, Y = problem()
    double = model.join(model.directions[:1], 12)
    assert solve_linear(double, X, Y).cost <= solve_linear(model, X, Y).cost * (1 + 1e-6)


@pytest.mark.parametrize("outputs", [2, 4])
def test_output_vectors_carry_responses_of_one_factor(outputs):
    rng = np.random.default_rng(2)
    model = Model.start(random_directions(3, 3, rng), RADIUS, 6, outputs)
    w = random_directions(3, outputs, rng)
    c = np.zeros_like(model.coefficients)
    for i in range(3):
        c[model.offsets[i] : model.offsets[i + 1]] = np.outer(rng.standard_normal(9), w[i])
    found = output_vectors(replace(model, coefficients=c))
    np.testing.assert_allclose(angle(found, w), 0.0, atol=1e-7)
