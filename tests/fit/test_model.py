"""The model is linear in its coefficients, and its derivatives are the ones that the solver uses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.fit.jacobian import Jacobian, Unknowns, output_vectors, step_model
from ridgescope.fit.levenberg_marquardt import tangent_columns
from ridgescope.fit.model import Model
from ridgescope.geometry import in_ball, random_directions

RADIUS = 3.0
INTERVALS = np.array([5, 8, 12], dtype=np.intp)
KINKS = (np.array([-0.7, 1.1]), np.empty(0), np.array([0.4]))


def any_model(rng, outputs=1, dim=4, intervals=INTERVALS, kinks=KINKS):
    """Random directions and coefficients, features of different widths."""
    bare = Model.start(random_directions(len(intervals), dim, rng), RADIUS, 4, outputs).reshaped(intervals, kinks)
    return replace(bare, coefficients=rng.standard_normal(bare.coefficients.shape))


def one_factor(model, rng):
    """Every response a fixed output vector times one function: the form in which the step's matrix is exact."""
    c = model.coefficients.copy()
    for i in range(model.count):
        rows = slice(model.offsets[i], model.offsets[i + 1])
        c[rows] = np.outer(c[rows, 0], random_directions(1, model.outputs, rng)[0])
    return replace(model, coefficients=c)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


# -- the linear part ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_design_times_coefficients_is_the_prediction(rng, outputs):
    model = any_model(rng, outputs)
    X = in_ball(200, model.dim, RADIUS, rng)
    assert model.design(X).shape == (200, model.columns)
    np.testing.assert_allclose(model.design(X) @ model.coefficients, model.predict(X), atol=1e-12)


def test_the_prediction_is_the_affine_part_and_one_term_for_each_feature(rng):
    model = any_model(rng, 2)
    X = in_ball(50, model.dim, RADIUS, rng)
    values = model.coefficients[-1 - model.dim] + X @ model.coefficients[-model.dim :]
    for i in range(model.count):
        values = values + model.columns_of(i, X @ model.directions[i]) @ model.block(i)
        np.testing.assert_allclose(
            model.columns_of(i, X @ model.directions[i]),
            model.design(X)[:, model.offsets[i] : model.offsets[i + 1]],
            atol=1e-15,
        )
    np.testing.assert_allclose(values, model.predict(X), atol=1e-12)


@pytest.mark.parametrize("scalar", [True, False])
def test_the_public_response_is_the_term(rng, scalar):
    model = any_model(rng, 1 if scalar else 2)
    z = np.linspace(-RADIUS, RADIUS, 101)
    for i in range(model.count):
        response = model.response(i, scalar)
        np.testing.assert_allclose(response(z).reshape(len(z), -1), model.term(i, z), atol=1e-13)
        np.testing.assert_allclose(response.slope(z).reshape(len(z), -1), model.term_slope(i, z), atol=1e-12)


def test_slope_along_an_output_vector_is_the_slope_times_it(rng):
    model, w = any_model(rng, 3), rng.standard_normal(3)
    z = np.linspace(-RADIUS, RADIUS, 40)
    np.testing.assert_allclose(model.term_slope(1, z, w), model.term_slope(1, z) @ w, atol=1e-12)


def test_columns_and_parameters_are_counted(rng):
    model = any_model(rng, 2)
    N = (5 + 3 + 2) + (8 + 3) + (12 + 3 + 1) + 1 + 4
    assert model.columns == N == len(model.coefficients)
    assert model.parameters == 3 * (4 - 1) + 3 + 2 * N


def test_a_model_without_features_is_affine(rng):
    model = Model.start(np.empty((0, 3)), RADIUS, 16, 1)
    model = replace(model, coefficients=rng.standard_normal((4, 1)))
    X = in_ball(20, 3, RADIUS, rng)
    np.testing.assert_allclose(model.predict(X), model.coefficients[0] + X @ model.coefficients[1:])


# -- keep, join, reshape ------------------------------------------------------------------------------------


def test_joined_features_have_zero_responses_and_keeping_the_old_ones_undoes_it(rng):
    model = any_model(rng, 2)
    X = in_ball(50, model.dim, RADIUS, rng)
    joined = model.join(random_directions(2, model.dim, rng), 7, (np.array([0.5]), np.empty(0)))
    assert joined.count == 5
    assert [len(t) for t in joined.kinks] == [2, 0, 1, 1, 0]
    np.testing.assert_array_equal(joined.predict(X), model.predict(X))
    back = joined.keep(np.arange(3))
    np.testing.assert_array_equal(back.coefficients, model.coefficients)
    np.testing.assert_array_equal(back.directions, model.directions)


def test_keeping_a_feature_takes_away_exactly_the_others_terms(rng):
    model = any_model(rng)
    X = in_ball(50, model.dim, RADIUS, rng)
    without = model.keep(np.array([True, False, True]))
    term = model.term(1, X @ model.directions[1])
    np.testing.assert_allclose(without.predict(X) + term, model.predict(X), atol=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_two_features_along_one_line_are_one_with_the_knots_and_kinks_of_both(rng, sign):
    v, w = random_directions(2, 4, rng)
    model = Model.start(np.array([v, w, sign * v]), RADIUS, 6, 1)
    kinks = (np.array([0.5]), np.array([1.0]), sign * np.array([-1.0, 0.5 + 1e-9]))
    model = model.reshaped(np.array([6, 5, 9]), kinks)
    one = model.merged(0, 2)
    np.testing.assert_array_equal(one.directions, [v, w])
    np.testing.assert_array_equal(one.intervals, [9, 5])
    np.testing.assert_allclose(one.kinks[0], [-1.0, 0.5])
    np.testing.assert_array_equal(one.kinks[1], [1.0])
    assert one.coefficients.shape == (one.columns, 1)


# -- derivatives, by the slope of a log-log plot ------------------------------------------------------------


def slope_of_error(change, tangent, steps):
    """Exponent k of |change(h) − h·tangent| ~ h^k."""
    errors = [np.linalg.norm(change(h) - h * tangent) for h in steps]
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


STEPS = np.logspace(-4.0, -2.0, 9)


def away_from_kinks(model, rng, count=300):
    """Points whose sides of all kinks stay the same while a parameter moves by no more than the largest step."""
    X = in_ball(4 * count, model.dim, 0.9 * RADIUS, rng)
    Z = X @ model.directions.T
    near = np.zeros(len(X), dtype=bool)
    for i, t in enumerate(model.kinks):
        near |= (np.abs(Z[:, i, None] - t) < 0.05).any(axis=1)
    return X[~near][:count]


@pytest.mark.parametrize("outputs", [1, 3])
def test_dense_jacobian_of_directions_and_kinks_has_an_error_of_second_order(rng, outputs):
    model = one_factor(any_model(rng, outputs), rng)
    X = away_from_kinks(model, rng)
    n, d = model.directions.shape
    w = output_vectors(model)
    u = np.concatenate([model.block(i)[model.intervals[i] + 3 :] for i in range(n)])
    vectors = np.concatenate([np.repeat(w, d, axis=0), u])
    turn = rng.standard_normal((n, d))
    turn -= np.einsum("nd,nd->n", turn, model.directions)[:, None] * model.directions
    delta = np.concatenate([turn.ravel(), rng.uniform(-1, 1, len(u))])
    delta /= np.abs(delta).max()
    J = tangent_columns(model, X, w)
    tangent = (J * delta) @ vectors
    before = model.predict(X)

    def change(h):
        return step_model(model, Unknowns.of_nonlinear(model, h * delta)).predict(X) - before

    assert slope_of_error(change, tangent, STEPS) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_operator_s_forward_product_has_an_error_of_second_order(rng, outputs):
    model = one_factor(any_model(rng, outputs), rng)
    X = away_from_kinks(model, rng)
    products = Jacobian(model, X, 0.0)
    v = products.tangent(rng.standard_normal(model.directions.shape))
    v /= 2.0 * np.abs(v).max()
    q = Unknowns(rng.standard_normal(model.coefficients.shape), v, rng.uniform(-1, 1, 3))
    tangent, before = products.forward(q), model.predict(X)
    zero = Unknowns(np.zeros_like(q.c), np.zeros_like(v), np.zeros(3))

    def change(h):
        return step_model(model, zero.plus(h, q)).predict(X) - before

    assert slope_of_error(change, tangent, STEPS) == pytest.approx(2.0, abs=0.1)
    alone = products.turn(v)

    def turned(h):
        return step_model(model, zero.plus(h, Unknowns(zero.c, v, zero.t))).predict(X) - before

    assert slope_of_error(turned, alone, STEPS) == pytest.approx(2.0, abs=0.1)


def test_the_columns_of_a_direction_are_tangent_to_its_sphere(rng):
    model = any_model(rng)
    J = tangent_columns(model, in_ball(50, model.dim, RADIUS, rng), output_vectors(model))
    for i, v in enumerate(model.directions):
        np.testing.assert_allclose(J[:, 4 * i : 4 * i + 4] @ v, 0.0, atol=1e-12)
