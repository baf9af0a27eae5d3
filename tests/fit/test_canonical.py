"""One way to write what can be written in many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.bspline import greville
from ridgescope.fit.activations import ACTIVATIONS, INDEX, SPLINE
from ridgescope.fit.canonical import canonical_features, known_form
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.errorbars import GRID, ErrorBars
from ridgescope.fit.model import Model
from ridgescope.geometry import in_ball, random_basis, random_directions

RADIUS = 3.0


def made(outputs, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    model = Model.start(random_directions(3, dim, rng), RADIUS, 8, outputs)
    model = model.reshaped(model.intervals, (np.array([0.5, -1.0]), np.empty(0), np.empty(0)))
    model = replace(model, coefficients=rng.standard_normal(model.coefficients.shape))
    bars = ErrorBars(
        np.array([0.1, 0.2, 0.3]),
        np.zeros(3),
        tuple((i + 1) * 1e-6 * np.arange(1.0, GRID + 1)[:, None] * np.ones(outputs) for i in range(3)),
    )
    return model, bars, rng


def predict(features, bias, slope, X):
    return bias + X @ slope + sum(f.response(X @ f.direction) for f in features)


@pytest.mark.parametrize("outputs", [None, 2])
def test_canonical_features_say_the_same_as_the_model(outputs):
    model, bars, rng = made(outputs or 1)
    X = in_ball(200, 4, RADIUS, rng)
    parts = canonical_features(model, bars, np.eye(4), scalar=outputs is None)
    values = model.predict(X)
    np.testing.assert_allclose(predict(*parts, X), values[:, 0] if outputs is None else values, atol=1e-11)


@pytest.mark.parametrize("outputs", [None, 2])
def test_canonical_responses_vanish_at_zero_and_have_no_slope(outputs):
    model, bars, _ = made(outputs or 1)
    features, _, _ = canonical_features(model, bars, np.eye(4), scalar=outputs is None)
    z = (np.arange(20_000) + 0.5) * (2 * RADIUS / 20_000) - RADIUS
    for f in features:
        np.testing.assert_allclose(f.response(0.0), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.tensordot(z, f.response(z), axes=(0, 0)) / len(z), 0.0, atol=1e-6)


def test_the_largest_coordinate_is_positive_and_the_strongest_comes_first():
    model, bars, _ = made(1)
    features, _, _ = canonical_features(model, bars, np.eye(4), scalar=True)
    for f in features:
        assert f.direction[np.argmax(np.abs(f.direction))] > 0
        assert np.linalg.norm(f.direction) == pytest.approx(1.0, abs=1e-14)
        assert f.strength == f.response.rms()
    assert [f.strength for f in features] == sorted((f.strength for f in features), reverse=True)


def test_order_sign_and_affine_parts_of_the_model_do_not_matter():
    model, bars, rng = made(1)
    other = model.keep(np.array([2, 0, 1]))
    c, V, kinks = other.coefficients.copy(), -other.directions, tuple(-t[::-1] for t in other.kinks)
    for i in range(3):
        at, K = other.offsets[i], 8
        c[at : at + K + 3] = c[at : at + K + 3][::-1]
        c[at + K + 3 : other.offsets[i + 1]] = c[at + K + 3 : other.offsets[i + 1]][::-1]
        c[at : at + K + 3, 0] += rng.standard_normal() + rng.standard_normal() * greville(RADIUS, K)
    other = replace(other, directions=V, kinks=kinks, coefficients=c)
    turned = ErrorBars(bars.angle[[2, 0, 1]], bars.mean_square_angle, tuple(bars.band[i][::-1] for i in (2, 0, 1)))
    one = canonical_features(model, bars, np.eye(4), scalar=True)[0]
    two = canonical_features(other, turned, np.eye(4), scalar=True)[0]
    z = np.linspace(-RADIUS, RADIUS, 50)
    for f, g in zip(one, two, strict=True):
        np.testing.assert_allclose(f.direction, g.direction, atol=1e-14)
        np.testing.assert_allclose(f.response(z), g.response(z), atol=1e-11)
        np.testing.assert_array_equal(f.band, g.band)
        assert f.angle_error == g.angle_error


def test_a_subspace_is_written_in_the_full_space():
    model, bars, rng = made(1)
    basis = random_basis(4, 7, rng)
    features, bias, slope = canonical_features(model, bars, basis, scalar=True)
    X = in_ball(100, 7, RADIUS, rng)
    np.testing.assert_allclose(predict(features, bias, slope, X), model.predict(X @ basis.T)[:, 0], atol=1e-11)
    assert slope.shape == (7,)


def test_no_features_leave_the_affine_part():
    model = replace(Model.start(np.empty((0, 2)), RADIUS, 4, 1), coefficients=np.array([[1.0], [2.0], [3.0]]))
    features, bias, slope = canonical_features(model, ErrorBars(np.empty(0), np.empty(0), ()), np.eye(2), scalar=True)
    assert features == ()
    assert bias == 1.0
    assert slope.tolist() == [2.0, 3.0]


def closed(names, kappa, b):
    """Closed forms of these families along the first axes, each with output 1 and no affine part."""
    n = len(names)
    family = np.array([INDEX.get(name, SPLINE) for name in names], dtype=np.intp)
    return ClosedForms(RADIUS, np.eye(n), family, np.array(kappa), np.array(b), 8, np.eye(2 * n + 1)[:, :n])


@pytest.mark.parametrize("flipped", [False, True])
def test_a_known_form_is_the_same_function_of_either_direction(flipped):
    """Up to its factor, whose sign may change, and a line; and only one-sided families have a sign of their own."""
    forms = closed(["tanh", "exponential", "gelu", "bump"], [-2.0, 1.5, 3.0, -4.0], [0.3, 0.0, -0.7, 0.5])
    u = np.linspace(-1.0, 1.0, 33)
    for i in range(forms.count):
        known = known_form(forms, i, flipped)
        assert known is not None
        family, place = known
        assert place.kappa > 0
        y = forms.kappa[i] * (-u if flipped else u) + forms.b[i]
        same = np.stack([np.ones_like(u), u, family.atom(place.y(u))[0]], axis=1)
        left = np.linalg.lstsq(same, ACTIVATIONS[forms.family[i]].atom(y)[0], rcond=None)
        np.testing.assert_allclose(np.abs(left[0][2]), 1.0, rtol=1e-10)
        np.testing.assert_allclose(left[1], 0.0, atol=1e-20)
        assert place.sign == 1.0 or family.name == "exponential"


def test_splines_and_families_without_a_name_are_not_known():
    forms = closed(["a spline", "mish"], [1.0, 2.0], [0.0, 0.0])
    assert known_form(forms, 0, flipped=False) is None
    assert known_form(forms, 1, flipped=False) is None
