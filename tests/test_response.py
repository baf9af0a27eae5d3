"""Responses: cubics, tangents, affine parts, slopes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import ridgescope as rs
from ridgescope.bspline import greville
from ridgescope.response import interpolate

numbers = st.floats(-10, 10)
radii = st.floats(0.1, 10)


@st.composite
def responses(draw, kinks=True):
    radius, intervals = draw(radii), draw(st.integers(1, 12))
    p = draw(st.sampled_from([(), (1,), (3,)]))
    count = draw(st.integers(0, 3)) if kinks else 0
    return rs.Response(
        radius,
        draw(arrays(np.float64, (intervals + 3, *p), elements=numbers)),
        draw(arrays(np.float64, count, elements=st.floats(-1.5 * radius, 1.5 * radius))),
        draw(arrays(np.float64, (count, *p), elements=numbers)),
    )


@given(radius=radii, intervals=st.integers(1, 20), c=arrays(np.float64, 4, elements=st.floats(-2, 2)))
def test_cubics_are_reproduced(radius, intervals, c):
    def cubic(z):
        return np.polynomial.polynomial.polyval(z / radius, c)

    s = interpolate(cubic, radius, intervals)
    z = np.linspace(-radius, radius, 101)
    np.testing.assert_allclose(s(z), cubic(z), atol=1e-11)
    slope = np.polynomial.polynomial.polyval(z / radius, np.polynomial.polynomial.polyder(c)) / radius
    np.testing.assert_allclose(s.slope(z), slope, atol=1e-10 * intervals / radius)


def test_smooth_functions_converge_with_the_fourth_power_of_the_knots():
    z = np.linspace(-3, 3, 1001)
    errors = [np.abs(interpolate(np.sin, 3.0, K)(z) - np.sin(z)).max() for K in (8, 16, 32, 64)]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (orders > 3.7).all()


@given(radius=radii, intervals=st.integers(1, 20))
def test_greville_coefficients_are_the_identity(radius, intervals):
    s = rs.Response(radius, greville(radius, intervals), np.empty(0), np.empty(0))
    z = np.linspace(-2 * radius, 2 * radius, 41)
    np.testing.assert_allclose(s(z), z, atol=1e-13 * radius)


@given(s=responses())
def test_the_slope_is_the_derivative(s):
    h = 1e-6 * s.radius
    z = np.linspace(-1.4, 1.4, 57) * s.radius
    z = z[(np.abs(np.subtract.outer(z, s.kinks)) > 2 * h).all(axis=1)]
    numeric = (s(z + h) - s(z - h)) / (2 * h)
    size = 1 + np.abs(s.coefficients).max(initial=0) + np.abs(s.kink_weights).max(initial=0)
    np.testing.assert_allclose(s.slope(z), numeric, atol=1e-4 * size * s.intervals**2 / min(s.radius, 1))


def test_at_a_kink_the_slope_is_the_mean_of_its_sides():
    s = rs.Response(1.0, np.zeros(7), np.array([0.3]), np.array([2.0]))
    assert s.slope(0.3) == 0.0
    assert s.slope([0.2, 0.4]).tolist() == [-2.0, 2.0]
    assert s(0.8) == pytest.approx(1.0)


@given(s=responses(kinks=False), beyond=st.floats(0.01, 3))
def test_beyond_the_radius_it_goes_on_along_its_tangent(s, beyond):
    for end in (-s.radius, s.radius):
        z = end + np.sign(end) * beyond
        np.testing.assert_allclose(s(z), s(end) + (z - end) * s.slope(end), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(s.slope(z), s.slope(end))


@given(s=responses())
def test_flipped_is_the_mirror_image(s):
    z = np.linspace(-2, 2, 33) * s.radius
    np.testing.assert_allclose(s.flipped()(z), s(-z), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(s.flipped().flipped()(z), s(z), rtol=1e-9, atol=1e-9)


@given(s=responses())
def test_the_affine_part_comes_out_and_goes_back(s):
    rest, c0, c1 = s.without_affine()
    z = np.linspace(-1.5, 1.5, 41) * s.radius
    np.testing.assert_allclose(rest(z) + c0 + np.multiply.outer(z, c1), s(z), rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(rest(0.0), 0.0, atol=1e-10 * (1 + np.abs(s(0.0)).max()))
    again, b0, b1 = rest.without_affine()
    np.testing.assert_allclose(b0, 0.0, atol=1e-9)
    np.testing.assert_allclose(b1, 0.0, atol=1e-9 * (1 + 1 / s.radius))
    np.testing.assert_allclose(again(z), rest(z), atol=1e-8)


@pytest.mark.parametrize("t", [-5.0, -3.0, -1.2, 0.0, 0.7, 3.0, 4.0])
def test_the_affine_part_of_a_kink_is_its_least_squares_slope(t):
    s = rs.Response(3.0, np.zeros(9), np.array([t]), np.array([1.0]))
    z = np.linspace(-3, 3, 2_000_001)
    slope = np.sum(z * np.abs(z - t)) / np.sum(z * z)
    assert s.without_affine()[2] == pytest.approx(slope, abs=1e-5)


def test_an_affine_response_has_nothing_else():
    s = interpolate(lambda z: 2.0 - 0.5 * z, 3.0, 10)
    rest, c0, c1 = s.without_affine()
    assert (c0, c1) == (pytest.approx(2.0), pytest.approx(-0.5))
    assert rest.rms() == pytest.approx(0.0, abs=1e-13)


def test_rms_of_a_sine_and_of_a_vector():
    s = interpolate(lambda z: np.sin(2 * np.pi * z), 1.0, 64)
    assert s.rms() == pytest.approx(np.sqrt(0.5), rel=1e-5)
    both = interpolate(lambda z: np.stack([3 * z, 4 * z], axis=1), 1.0, 8)
    assert both.rms() == pytest.approx(5 / np.sqrt(3), rel=1e-3)


@given(s=responses(), shape=st.sampled_from([(), (4,), (2, 3), (0,)]))
def test_values_have_the_shape_of_z_and_then_of_the_outputs(s, shape):
    expected = shape + (() if s.outputs is None else (s.outputs,))
    assert s(np.zeros(shape)).shape == s.slope(np.zeros(shape)).shape == expected


def test_a_response_is_frozen_and_copies_what_it_is_given():
    given_ = np.ones(7)
    s = rs.Response(1.0, given_, np.empty(0), np.empty(0))
    given_[:] = 5.0
    assert s(0.0) == pytest.approx(1.0)
    for name in ("coefficients", "kinks", "kink_weights"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(s, name)[...] = 0
    with pytest.raises(AttributeError):
        s.radius = 2.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, np.zeros(3), [], []), r"coefficients must be \(K\+3,\) or \(K\+3, p\), not \(3,\)"),
        ((1.0, np.zeros((5, 2, 2)), [], []), r"not \(5, 2, 2\)"),
        ((1.0, np.zeros(5), [0.0], []), r"kinks \(1,\) and weights \(0,\) do not fit"),
        ((1.0, np.zeros((5, 2)), [0.0], [1.0]), r"weights \(1,\) do not fit outputs \(2,\)"),
        ((0.0, np.zeros(5), [], []), r"radius must be a positive number, not 0\.0"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(arguments, message):
    with pytest.raises(rs.InvalidInput, match=message):
        rs.Response(*arguments)
