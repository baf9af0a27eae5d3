"""Functions on which a run once died."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.search import Curvature, Setting, run_proposer


@pytest.mark.parametrize("k", [80.0, pytest.param(100.0, marks=pytest.mark.heavy)])
def test_a_fast_sine_in_one_dimension(k):
    found = rs.extract(lambda X: np.sin(k * X[:, 0]), dim=1, max_queries=20_000)
    assert found.queries <= 20_000
    assert found.stop is not rs.StopReason.FAILED


def test_curvature_that_finds_no_member_in_a_subspace_proposes_nothing(monkeypatch):
    """Rank without rank-one members, in a subspace of the input: there is nothing to lift."""
    import ridgescope.search.curvature as curvature

    found = curvature.members

    def none(space, rng, **options):
        seen = found(space, rng, **options)
        width = seen.vectors.shape[1]
        return type(seen)(**{**vars(seen), "vectors": np.empty((0, width)), "inside": np.empty(0)})

    monkeypatch.setattr(curvature, "members", none)
    rng = np.random.default_rng(0)
    W, out = rng.uniform(-0.15, 0.15, (60, 48)), rng.standard_normal((60, 48))
    setting = Setting(dim=48, outputs=48, radius=3.0, reach=3.0, std=1.0, noise=1e-12, bandwidth=2.0)
    proposal = run_proposer(Curvature(), lambda X: np.tanh(3.0 * X @ W.T) @ out, setting, queries=60_000, rng=rng)
    assert proposal.directions.shape == (0, 48)


@pytest.mark.parametrize("size", [1e153, 1e200, 1e-200, 1e-300])
def test_answers_whose_squares_are_no_numbers_are_refused(size):
    with pytest.raises(rs.BadAnswer):
        rs.extract(lambda X: size * np.tanh(X[:, 0]), dim=2)


@pytest.mark.parametrize("size", [1e-12, 1e12, 1e-60, 1e60])
def test_answers_of_other_sizes_are_as_good_as_any(size):
    found = rs.extract(lambda X: size * (np.tanh(X[:, 0]) + np.sin(X[:, 1])), dim=2)
    assert found.certificate.met
    assert len(found.features) == 2


def test_a_vector_valued_function_whose_survey_is_cut_short():
    found = rs.extract(lambda X: np.tile(np.sign(X[:, :1]), (1, 3)) + X[:, :3], dim=6, max_queries=300)
    assert found.predict(np.zeros((2, 6))).shape == (2, 3)


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 0.0])
def test_slopes_through_places_that_nearly_coincide(gap):
    """scipy's smoothing spline calls places a millionth of their mean gap apart an ill-posed problem."""
    from ridgescope.search.stencil_bias import _slopes

    z = np.sort(np.random.default_rng(0).uniform(-1.0, 1.0, 200))
    z[1::7] = z[0:-1:7][: len(z[1::7])] + gap * 0.01
    slopes = _slopes(z, np.sin(3.0 * z)[:, None])
    np.testing.assert_allclose(slopes[20:-20, 0], 3.0 * np.cos(3.0 * z[20:-20]), atol=0.05)


def test_directions_are_exact_where_knots_of_splines_among_closed_forms_were_coarse():
    """Families and directions were right to the tolerance, and the splines of four features kept 16 intervals."""
    case = rs.targets.CASES["superposed"]
    target = case.make(9107)
    found = rs.extract(target, target.dim, radius=case.radius, rng=9107)
    assert found.certificate.met
    assert rs.match(found.directions, target.directions).share(1e-3) == 1.0
