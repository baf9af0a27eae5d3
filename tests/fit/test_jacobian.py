"""The operators without a matrix agree with the matrix, and each with its own transpose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.bspline import greville
from ridgescope.fit.jacobian import Damping, Jacobian, Unknowns, output_vectors, roughness_scale, step_model
from ridgescope.fit.levenberg_marquardt import tangent_columns
from ridgescope.fit.linear import ConjugateGradient, solve_linear
from ridgescope.fit.model import Model
from ridgescope.geometry import angle, in_ball, random_directions

RADIUS = 3.0


def made(outputs=1, seed=3, count=150, smoothing=1e-3):
    rng = np.random.default_rng(seed)
    model = Model.start(random_directions(3, 4, rng), RADIUS, 4, outputs)
    kinks = (np.array([0.2]), np.empty(0), np.array([-1.0, 0.9]))
    model = model.reshaped(np.array([4, 9, 6]), kinks)
    model = replace(model, coefficients=rng.standard_normal(model.coefficients.shape))
    X = in_ball(count, 4, RADIUS, rng)
    return model, X, Jacobian(model, X, smoothing), rng


def somewhere(products, rng):
    """Unknowns in the space that the operators work in."""
    model = products.model
    return Unknowns(
        products.project(rng.standard_normal(model.coefficients.shape)),
        products.tangent(rng.standard_normal(model.directions.shape)),
        rng.standard_normal(sum(map(len, model.kinks))),
    )


def times(factor, scale):
    return Damping(factor * scale.v, factor * scale.t)


def solved(products, damping, right, most):
    """Up to `most` conjugate-gradient steps for the damped normal equations."""
    zero = Unknowns(0.0 * right.c, 0.0 * right.v, 0.0 * right.t)
    apply = ConjugateGradient(lambda q: products.normal(q, damping), products.preconditioner(damping), zero, right)
    first = apply.rho
    for _ in range(most):
        if apply.rho <= 1e-18 * first or not apply.step():
            break
    return apply.x


@pytest.mark.parametrize("outputs", [1, 3])
def test_values_and_adjoint_are_the_dense_design(outputs):
    model, X, products, rng = made(outputs)
    phi = model.design(X)
    c, r = rng.standard_normal(model.coefficients.shape), rng.standard_normal((len(X), outputs))
    np.testing.assert_allclose(products.values(c), phi @ c, atol=1e-12)
    np.testing.assert_allclose(products.adjoint(r), phi.T @ r, atol=1e-11)


@pytest.mark.parametrize("outputs", [1, 3])
def test_backward_is_the_transpose_of_forward(outputs):
    _, X, products, rng = made(outputs)
    q, r = somewhere(products, rng), rng.standard_normal((len(X), outputs))
    assert np.vdot(products.forward(q), r) == pytest.approx(q.dot(products.backward(r)), rel=1e-12)


def test_forward_is_the_dense_tangent_matrix():
    model, X, products, rng = made()
    q = somewhere(products, rng)
    J = tangent_columns(model, X, output_vectors(model))
    n, d = model.directions.shape
    dense = model.design(X) @ q.c[:, 0] + J[:, : n * d] @ q.v.ravel() + J[:, n * d :] @ (q.t * products.u[:, 0])
    np.testing.assert_allclose(products.forward(q)[:, 0], dense, atol=1e-11)


def test_design_and_penalty_make_the_dense_normal_matrix():
    model, X, products, rng = made()
    c = rng.standard_normal(model.coefficients.shape)
    phi = model.design(X)
    penalty = 1e-11 * len(X) * np.eye(model.columns)
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        second = np.diff(np.eye(K + 3), n=2, axis=0)
        at = slice(start, start + K + 3)
        penalty[at, at] += 1e-3 * len(X) * roughness_scale(int(K)) * second.T @ second
    normal = products.adjoint(products.values(c)) + products.penalty(c)
    np.testing.assert_allclose(normal, (phi.T @ phi + penalty) @ c, atol=1e-9)


def test_normal_is_symmetric_and_positive():
    _, _, products, rng = made(2)
    damping = times(0.1, products.diagonal())
    a, b = somewhere(products, rng), somewhere(products, rng)
    assert a.dot(products.normal(b, damping)) == pytest.approx(b.dot(products.normal(a, damping)), rel=1e-10)
    assert a.dot(products.normal(a, damping)) > 0


def test_projection_takes_out_constants_and_lines_and_nothing_else():
    model, _, products, rng = made(2)
    c = rng.standard_normal(model.coefficients.shape)
    once = products.project(c)
    np.testing.assert_allclose(products.project(once), once, atol=1e-13)
    straight = np.zeros_like(c)
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        straight[start : start + K + 3, 0] = 2.0
        straight[start : start + K + 3, 1] = greville(RADIUS, int(K))
    np.testing.assert_allclose(products.project(straight), 0.0, atol=1e-13)
    kink_rows = [model.offsets[i + 1] - j - 1 for i, t in enumerate(model.kinks) for j in range(len(t))]
    np.testing.assert_array_equal(once[kink_rows], c[kink_rows])
    np.testing.assert_array_equal(once[model.offsets[-1] :], c[model.offsets[-1] :])


def test_straight_lines_are_not_rough():
    model, _, products, _ = made()
    straight = np.zeros_like(model.coefficients)
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        straight[start : start + K + 3, 0] = 2.0 - 0.7 * greville(RADIUS, int(K))
    np.testing.assert_allclose(products.penalty(straight), products.ridge * straight, atol=1e-13)


def test_roughness_is_the_same_on_finer_knots():
    """z² has the same ∫s''² on any knots."""
    sizes = []
    for K in (8, 16, 64):
        h = 2.0 * RADIUS / K
        second = np.diff(greville(RADIUS, K) ** 2 - h * h / 3.0, n=2)  # coefficients of z²
        sizes.append(roughness_scale(K) * np.sum(second**2) * K / (K + 1))
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-12)


def test_conjugate_gradient_solves_the_damped_system():
    _, X, products, rng = made(2, count=400)
    right = products.backward(rng.standard_normal((len(X), 2)))
    damping = times(0.3, products.diagonal())
    x = solved(products, damping, right, 200)
    rest = right.plus(-1.0, products.normal(x, damping))
    assert rest.dot(rest) <= 1e-12 * right.dot(right)


@pytest.mark.parametrize("single", [False, True])
def test_reduced_is_what_is_left_of_the_matrix_when_coefficients_follow(single):
    model, X, _, rng = made(2)
    products = Jacobian(model, X, 1e-3, single=single)
    linear = solve_linear(model, X, rng.standard_normal((len(X), 2)), 1e-3)
    assert linear.factor is not None
    damping = times(0.1, products.diagonal())
    q = somewhere(products, rng)
    A = np.tril(linear.factor) @ np.tril(linear.factor).T
    phi, moved = model.design(X), products.move(q)
    v, t = products.pull(moved - phi @ np.linalg.solve(A, phi.T @ moved))
    out = products.reduced(q, damping, linear.factor)
    accuracy = 1e-4 if single else 1e-9
    np.testing.assert_allclose(out.v, v + damping.v * q.v, rtol=accuracy, atol=accuracy * np.abs(v).max())
    np.testing.assert_allclose(out.t, t + damping.t * q.t, rtol=accuracy, atol=accuracy * np.abs(t).max())


def test_the_preconditioner_is_exact_for_one_feature():
    """One feature, few affine couplings: a handful of steps reach what many reach."""
    rng = np.random.default_rng(0)
    model = Model.start(random_directions(1, 3, rng), RADIUS, 8, 1)
    model = replace(model, coefficients=rng.standard_normal(model.coefficients.shape))
    X = in_ball(500, 3, RADIUS, rng)
    products = Jacobian(model, X, 1e-6)
    right = products.backward(rng.standard_normal((len(X), 1)))
    damping = Damping(np.zeros((1, 1)), np.empty(0))
    x = solved(products, damping, right, 40)
    rest = right.plus(-1.0, products.normal(x, damping))
    assert rest.dot(rest) <= 1e-10 * right.dot(right)


def test_a_step_turns_by_at_most_half_a_radian_and_kinks_stay_inside():
    model, _, products, rng = made()
    far = Unknowns(np.zeros_like(model.coefficients), 100.0 * somewhere(products, rng).v, np.array([9.0, -9.0, 0.1]))
    after = step_model(model, far)
    angles = np.arccos(np.clip(np.einsum("nd,nd->n", after.directions, model.directions), -1, 1))
    assert (angles <= 0.5 + 1e-12).all()
    np.testing.assert_allclose(np.linalg.norm(after.directions, axis=1), 1.0)
    assert after.kinks[0][0] == RADIUS
    assert after.kinks[2][0] == -RADIUS
    assert after.kinks[2][1] == pytest.approx(1.0)


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
