"""The last digits of the subspace, from answers across it."""

from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.fit.activations import INDEX
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.geometry import random_directions
from ridgescope.oracle.base import Oracle
from ridgescope.subspace_refinement import points_needed, refined_subspace
from ridgescope.survey import Survey


def sigmoids(dim, count, outputs, seed):
    """Return steep responses of which some are weak, their true directions, and their function."""
    rng = np.random.default_rng(seed)
    V, c = random_directions(count, dim, rng), rng.standard_normal((count, outputs))
    c[-1] *= 1e-2
    steep, b = rng.uniform(2.0, 15.0, count), rng.uniform(-2.0, 2.0, count)
    return V, lambda X: np.tanh(steep * (X @ V.T) + b) @ c, (steep, b, c)


def inside(V, steep, b, c, off, rng):
    """Return the forms in a subspace that is `off` by so much, and its basis."""
    basis = np.linalg.qr(V.T)[0].T
    across = rng.standard_normal(basis.shape)
    basis = np.linalg.qr((basis + off * across / np.linalg.norm(across)).T)[0].T
    w = V @ basis.T * steep[:, None]
    size = np.linalg.norm(w, axis=1)
    forms = replace(
        ClosedForms.blank(w / size[:, None], 3.0, 8, c.shape[1]),
        family=np.full(len(V), INDEX["tanh"], np.intp),
        kappa=3.0 * size,
        b=b,
        coefficients=np.concatenate([c, np.zeros((len(basis) + 1, c.shape[1]))]),
    )
    return forms, basis


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("off", [1e-5, 3e-3])
def test_the_subspace_is_turned_to_rounding(outputs, off):
    V, f, (steep, b, c) = sigmoids(30, 6, outputs, 1)
    forms, basis = inside(V, steep, b, c, off, np.random.default_rng(2))
    survey = replace(Survey.unknown(30), basis=basis)
    rows = refined_subspace(Oracle(f, dim=30), forms, survey, 1e6, np.random.default_rng(3))
    found = np.linalg.qr(rows.T)[0].T
    assert np.linalg.norm(V - V @ basis.T @ basis, axis=1).max() > 0.1 * off
    assert np.linalg.norm(V - V @ found.T @ found, axis=1).max() < 1e-9


@pytest.mark.parametrize("allowance", [0, 1e6])
def test_nothing_changes_where_it_is_right_or_cannot_be_paid_for(allowance):
    V, f, (steep, b, c) = sigmoids(30, 6, 2, 1)
    forms, basis = inside(V, steep, b, c, 0.0 if allowance else 1e-3, np.random.default_rng(2))
    oracle = Oracle(f, dim=30)
    survey = replace(Survey.unknown(30), basis=basis)
    assert refined_subspace(oracle, forms, survey, allowance, np.random.default_rng(3)) is None
    assert oracle.queries == (points_needed(6, 2) if allowance else 0)


def test_directions_of_few_among_many_dimensions_are_exact():
    V, f, _ = sigmoids(24, 4, 8, 4)
    found = rs.extract(f, dim=24, radius=3.0, rng=0)
    assert found.certificate.met
    assert rs.match(found.directions, V).angles.max() < 1e-9


def test_error_bars_follow_the_refined_subspace():
    V, f, _ = sigmoids(30, 4, 2, 1)
    found = rs.extract(f, dim=30, radius=3.0, rng=0)
    angles = rs.match(found.directions, V)
    bars = np.array([found.features[int(j)].angle_error for j in angles.partner])
    assert (bars < 1e-6).all()
    assert (angles.angles < 2.0 * bars + 1e-10).all()


def test_noise_does_not_turn_the_subspace():
    """What noise hides, answers across the subspace do not show either: refined rows would be worse."""
    V, f, (steep, b, c) = sigmoids(30, 6, 2, 1)
    forms, basis = inside(V, steep, b, c, 0.0, np.random.default_rng(2))
    noise = np.random.default_rng(4)
    oracle = Oracle(lambda X: f(X) + 1e-5 * noise.standard_normal((len(X), 2)), dim=30)
    survey = replace(Survey.unknown(30), basis=basis, noise=1e-5)
    assert refined_subspace(oracle, forms, survey, 1e6, np.random.default_rng(3)) is None
    assert oracle.queries == points_needed(6, 2)
    assert refined_subspace(oracle, forms, replace(survey, noise=1e-6), 1e6, np.random.default_rng(3)) is not None


@pytest.mark.parametrize("seed", range(6))
def test_a_subspace_that_is_off_along_steep_responses_is_refined_under_noise(seed):
    """Steep responses are saturated nearly everywhere: what is off along them shows at their bends only."""
    rng = np.random.default_rng(seed)
    V, c = random_directions(6, 30, rng), rng.standard_normal((6, 2))
    steep, b = np.full(6, 300.0), 300.0 * rng.uniform(-1.0, 1.0, 6)
    forms, basis = inside(V, steep, b, c, 3e-4, rng)
    survey = replace(Survey.unknown(30), basis=basis, noise=1e-6)
    oracle = Oracle(lambda X: np.tanh(steep * (X @ V.T) + b) @ c, dim=30)
    rows = refined_subspace(oracle, forms, survey, 1e6, rng)
    assert rows is not None
    found = np.linalg.qr(rows.T)[0].T
    assert np.linalg.norm(V - V @ found.T @ found, axis=1).max() < 1e-6
