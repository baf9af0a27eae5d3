"""Directions that the survey's subspace has missed show in the gradient of the residual."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from loop import make_state
from ridgescope.geometry import in_ball
from ridgescope.missed_subspace import missed_directions
from ridgescope.survey import Survey

V = np.linalg.qr(np.random.default_rng(3).standard_normal((7, 3)))[0].T


def function(X):
    return np.tanh(2.0 * (X @ V[0])) + np.sin(X @ V[1]) + 0.5 * (X @ V[2]) ** 2


def looked_for(basis, f=function, noise=0.0, dim=7):
    rng = np.random.default_rng(1)
    state = make_state(lambda X: f(X) + noise * rng.standard_normal(len(X)), dim)
    state.run_survey()
    state._work_in(replace(state.survey, basis=basis))
    state.fit_affine()
    return missed_directions(state.oracle, state.model, state.survey, 3.0, np.random.default_rng(0)), state


@pytest.mark.parametrize("kept", [[0], [0, 1], [2], [1, 2]])
def test_what_is_missing_is_found_and_nothing_else(kept):
    found, state = looked_for(V[kept])
    missing = np.delete(V, kept, axis=0)
    assert len(found) == len(missing)
    np.testing.assert_allclose(found @ found.T, np.eye(len(found)), atol=1e-9)
    assert np.linalg.norm(missing - missing @ found.T @ found) < 1e-2
    assert np.abs(found @ V[kept].T).max() < 1e-9, "outside the known subspace"
    assert set(state.oracle.queries_by_stage) == {"survey", "subspace"}


def test_a_complete_subspace_misses_nothing():
    assert len(looked_for(V)[0]) == 0


def test_noise_is_not_taken_for_a_direction():
    assert len(looked_for(V, noise=1e-3)[0]) == 0


def test_noise_in_many_slopes_is_not_taken_for_a_direction():
    """The largest singular value of eight rows of d errors grows like √d."""
    rng, sigma, d = np.random.default_rng(2), 1e-6, 900
    state = make_state(lambda X: np.tanh(X[:, 0]) + sigma * rng.standard_normal(len(X)), d)
    unknown = Survey.unknown(d)
    points = in_ball(300, d, 3.0, rng)
    known = {"std": 0.1, "noise": sigma, "deterministic": False, "points": points, "values": state.oracle(points)}
    state._work_in(replace(unknown, basis=np.eye(1, d), **known))
    state.fit_affine()
    assert len(missed_directions(state.oracle, state.model, state.survey, 3.0, np.random.default_rng(0))) == 0


def test_others_are_found_with_the_one_that_shows():
    """Where the residual is looked at, only the first changes; the others bend where hardly any of the points is."""
    basis = np.linalg.qr(np.random.default_rng(4).standard_normal((80, 5)))[0].T
    offsets = np.array([0.0, 0.0, 2.3, 2.5, -2.5])

    def steps(X):
        return expit(30.0 * (X @ basis.T - offsets)) @ np.ones(5)

    found, state = looked_for(basis[:1], steps, dim=80)
    assert len(found) == 4
    assert np.linalg.norm(basis[1:] - basis[1:] @ found.T @ found) < 1e-2
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-9)
    assert state.oracle.queries_by_stage["subspace"] < 80 * 81
