"""Atoms have the derivatives they claim, and grids and spaces are free of affine functions."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.response import interpolate
from ridgescope.shapes.families import FAMILIES, GROUP_ATOM, RISE, grid_of, point_count, sample_points, spline_space


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_second_value_of_an_atom_is_its_derivative(family):
    y, h = np.linspace(-2.87, 3.11, 60), 1e-6  # between the kinks at 0, ±1 and ±π/2
    numeric = (family.atom(y + h)[0] - family.atom(y - h)[0]) / (2.0 * h)
    np.testing.assert_allclose(family.atom(y)[1], numeric, atol=1e-7 * max(1.0, np.abs(numeric).max()))


@pytest.mark.parametrize("name", sorted(RISE))
def test_the_rise_of_a_sigmoid_is_the_difference_of_its_limits(name):
    (atom,) = [family.atom for family in FAMILIES if family.name == name]
    low, high = atom(np.array([-1e9, 1e9]))[0]
    assert high - low == pytest.approx(RISE[name], abs=1e-8)


@pytest.mark.parametrize("group", sorted(GROUP_ATOM))
def test_grid_atoms_have_unit_norm_and_no_affine_part(group):
    points, grid = sample_points(256), grid_of(group, 256)
    np.testing.assert_allclose(np.linalg.norm(grid.atoms, axis=-1), 1.0, atol=1e-12)
    assert np.abs(grid.atoms @ points.affine).max() < 1e-10
    assert np.all(np.diff(np.flatnonzero(np.diff(grid.kappa, prepend=-1.0))) > 0)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.name != "clip"], ids=lambda family: family.name)
def test_the_grid_comes_near_every_member_of_its_families(family):
    """A tenth of the response's RMS is left as a rule; half of it would end the search."""
    points, rng, left = sample_points(256), np.random.default_rng(0), []
    for _ in range(50):
        kappa, t = rng.uniform(1.0, 8.0), rng.uniform(-0.6, 0.6)
        kappa = max(kappa, 3.0) if family.group in ("sine", "dip", "hinge") else kappa
        target = points.project(family.atom(kappa * (points.u - t))[0])
        left.append(np.sqrt(grid_of(family.group, 256).best(target)[0]))
    assert np.median(left) < 0.15
    assert max(left) < 0.5


def test_the_best_grid_atom_of_one_of_its_own_is_itself():
    grid = grid_of("bump", 256)
    left, starts = grid.best(2.0 * grid.atoms[100])
    assert left == pytest.approx(0.0, abs=1e-12)
    assert (starts[0].kappa, starts[0].t) == (grid.kappa[100], grid.t[100])
    assert len(starts) <= 3


@pytest.mark.parametrize("intervals", [2, 16])
def test_the_space_of_splines_is_all_of_them_but_for_the_affine(intervals):
    points, space = sample_points(256), spline_space(intervals, 256)
    assert space.shape == (256, intervals + 1)
    np.testing.assert_allclose(space.T @ space, np.eye(intervals + 1), atol=1e-10)
    spline = points.project(interpolate(lambda z: np.sin(3.0 * z), 1.0, intervals)(points.u))
    np.testing.assert_allclose(space @ (spline @ space), spline, atol=1e-12)


def test_points_are_a_power_of_two_within_limits():
    assert [point_count(intervals) for intervals in (1, 64, 65, 200, 1000)] == [256, 256, 512, 1024, 1024]
