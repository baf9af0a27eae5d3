"""Cubic B-splines: partition of unity, derivatives, interpolation, and the same rows in every form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.interpolate import BSpline

from ridgescope.bspline import (
    basis,
    basis_slope,
    curvature_matrix,
    design_matrix,
    interpolation_nodes,
    slope_matrix,
    sparse_rows,
)

RADIUS = 3.0


@given(radius=st.floats(0.1, 10), intervals=st.integers(1, 40), z=arrays(np.float64, 9, elements=st.floats(-20, 20)))
def test_the_basis_is_a_partition_of_unity(radius, intervals, z):
    k, weights = basis(z, radius, intervals)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=0), 1.0, atol=1e-14)
    assert k.min() >= 0
    assert k.max() <= intervals - 1
    slopes = basis_slope(z, radius, intervals)[1]
    np.testing.assert_allclose(slopes.sum(axis=0), 0.0, atol=1e-12 * intervals / radius)


@pytest.mark.parametrize("intervals", [1, 7, 32])
def test_the_rows_are_those_of_scipy(intervals):
    z = np.linspace(-RADIUS, RADIUS, 101)[:-1]
    h = 2.0 * RADIUS / intervals
    knots = -RADIUS + h * np.arange(-3, intervals + 4)
    ours = design_matrix(z, RADIUS, intervals)
    np.testing.assert_allclose(ours, BSpline.design_matrix(z, knots, 3).toarray(), atol=1e-13)
    np.testing.assert_array_equal(sparse_rows(*basis(z, RADIUS, intervals), intervals + 3).toarray(), ours)


@pytest.mark.parametrize("intervals", [8, 32])
def test_values_at_the_nodes_determine_a_spline(intervals):
    matrix = design_matrix(interpolation_nodes(RADIUS, intervals), RADIUS, intervals)
    assert matrix.shape == (intervals + 3, intervals + 3)
    assert np.linalg.cond(matrix) < 50


def test_derivatives_of_the_splines():
    z, h = np.linspace(-2.9, 2.9, 41), 1e-5
    c = np.random.default_rng(0).standard_normal(19)
    up, here, down = (design_matrix(z + e, RADIUS, 16) @ c for e in (h, 0.0, -h))
    assert np.allclose(slope_matrix(z, RADIUS, 16) @ c, (up - down) / (2 * h), atol=1e-6)
    assert np.allclose(curvature_matrix(z, RADIUS, 16) @ c, (up - 2 * here + down) / h**2, atol=1e-3)
