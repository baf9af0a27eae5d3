"""What an extraction returns: frozen, predicting, pleasant to read."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given

import ridgescope as rs
from made import CERTIFICATE, extraction, extractions
from ridgescope.feature import Checks


@pytest.mark.parametrize("outputs", [None, 2])
def test_predict_is_the_sum_of_the_parts_in_f_s_own_coordinates(outputs):
    center, scale = np.array([1.0, -2.0, 0.5]), np.array([2.0, 1.0, 0.5])
    found = extraction(outputs, center=center, scale=scale)
    X = center + scale * np.random.default_rng(0).uniform(-1, 1, (50, 3))
    u = (X - center) / scale
    expected = 0.5 + 0.25 * u.sum(axis=1) + np.sin(u[:, 0]) + np.sin(u[:, 1]) / 2
    if outputs:
        expected = np.stack([expected] * outputs, axis=1)
    assert found.predict(X).shape == expected.shape
    np.testing.assert_allclose(found.predict(X), expected, atol=1e-3)


@pytest.mark.parametrize("outputs", [None, 2])
def test_without_features_it_predicts_the_affine_part(outputs):
    found = extraction(outputs, features=0)
    assert found.directions.shape == (0, 3)
    np.testing.assert_allclose(found.predict(np.ones((4, 3))), 1.25)
    assert found.predict(np.empty((0, 3))).shape == ((0,) if outputs is None else (0, 2))


def test_predict_says_what_it_takes():
    with pytest.raises(rs.InvalidInput, match=r"predict takes an \(m, 3\) array; this one has shape \(3,\)"):
        extraction().predict(np.zeros(3))
    with pytest.raises(rs.InvalidInput, match="predict takes finite numbers"):
        extraction().predict([[0.0, np.nan, 0.0]])


def test_directions_are_the_features_in_order():
    found = extraction()
    assert np.array_equal(found.directions, [f.direction for f in found.features])
    assert (found.dim, found.outputs, extraction(2).outputs) == (3, None, 2)


@given(found=extractions())
def test_everything_is_frozen(found):
    for kind in (found, found.certificate, *found.history, *found.features, *found.planes):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kind, dataclasses.fields(kind)[0].name, None)
    parts = [found.bias, found.slope, found.center, found.scale, found.directions]
    parts += [a for f in found.features for a in (f.direction, f.band, f.response.coefficients)]
    parts += [a for plane in found.planes for a in (plane.basis, plane.power)]
    if found.checks is not None:
        parts += [getattr(found.checks, field.name) for field in dataclasses.fields(found.checks)]
    assert not any(a.flags.writeable for a in parts)


@given(found=extractions())
def test_anything_can_be_told(found):
    assert repr(found).startswith(f"<ridgescope.Extraction: {len(found.features)} feature")
    assert "<table>" in found._repr_html_()
    assert all(repr(f) for f in found.features)
    assert all(str(r) for r in found.history)


def test_the_summary_is_what_a_person_would_say():
    told = extraction().summary().splitlines()
    assert told[0] == "2 features in 3 dimensions (scalar), 12,345 queries"
    assert told[1] == CERTIFICATE.sentence
    assert told[2].split() == ["#", "strength", "angle", "error", "shape"]
    assert "sin" in told[3]
    assert told[4].endswith("-")
    assert told[5] == "The tolerance is met."
    assert extraction(2, features=1, dim=1).summary().startswith("1 feature in 1 dimension (2 outputs)")


def test_long_results_are_cut_short():
    found = extraction(features=40, dim=20)
    assert "… 28 more" in found.summary()
    assert "… 34 more" in repr(found)
    assert "… 20 more" in found._repr_html_()
    assert found._repr_html_().count("<tr>") == 21


def test_html_is_escaped():
    found = extraction(diagnosis="a < b & <script>")
    assert "a &lt; b &amp; &lt;script&gt;" in found._repr_html_()


def test_the_certificate_is_an_honest_sentence():
    assert CERTIFICATE.sentence == (
        "tolerance 0.01 met: largest error seen 0.0025 of f's standard deviation over 5,000 fresh queries; "
        "with confidence 0.99, |f − f̂| ≤ 0.004 on all but 0.1 % of the ball"
    )
    assert "tolerance 0.01 NOT met" in dataclasses.replace(CERTIFICATE, verdict="not met").sentence
    assert "seen 0.005 of" in dataclasses.replace(CERTIFICATE, std=0.0).sentence


def test_features_and_rounds_read_well():
    found = extraction()
    assert repr(found.features[0]) == "<Feature strength 0.723, angle error 1.0e-05 rad, 1.00·sin(1.00z)>"
    assert str(found.history[0]) == (
        "round 1: slices        9 proposed,    2 features, residual 1.0e-03, 12,000 queries  (two planes)"
    )


def test_results_survive_pickling():
    found = extraction(2)
    X = np.random.default_rng(0).standard_normal((5, 3))
    assert np.array_equal(pickle.loads(pickle.dumps(found)).predict(X), found.predict(X))


def test_the_public_names_are_all_there():
    assert dir(rs) == sorted(rs.__all__)
    for name in rs.__all__:
        assert getattr(rs, name) is not None
    with pytest.raises(AttributeError, match="module 'ridgescope' has no attribute 'extrakt'"):
        _ = rs.extrakt


def test_the_certificates_queries_are_told_by_the_features_of_the_result():
    found = rs.extract(rs.targets.CASES["first"].make(3), rng=3)
    checks = found.checks
    assert len(checks) == found.certificate.samples
    assert checks.error.max() == found.certificate.sup_seen
    assert checks.radius.max() <= found.radius
    assert set(checks.feature) == {checks.OTHER, checks.UNIFORM, 0, 1, 2, 3}
    for i in range(4):  # all of a feature's line is seen, in the sign of the result
        z = checks.position[checks.feature == i]
        assert z.min() < -0.8 * found.radius
        assert z.max() > 0.8 * found.radius
    assert np.isnan(checks.position[checks.feature < 0]).all()


def test_many_checks_are_thinned_and_the_worst_stay():
    rng = np.random.default_rng(0)
    asked, predicted = rng.standard_normal((2, 900))
    checks = Checks(rng.random(900), asked, predicted, np.full(900, np.nan), np.full(900, Checks.UNIFORM))
    few = checks.thinned(100)
    assert len(few) == 100
    assert set(np.sort(checks.error)[-10:]) <= set(few.error)
    assert checks.thinned(900) is checks


def test_outside_the_ball_predict_says_so_once():
    found = extraction()
    edge = found.radius * np.eye(3)
    X = np.concatenate([edge, 1.5 * edge[:1]])
    expected = found.predict(X, outside="extrapolate")
    found.predict(edge)
    with pytest.warns(UserWarning, match=r"1 rows lie outside the ball .*extrapolated"):
        np.testing.assert_array_equal(found.predict(X), expected)
    np.testing.assert_array_equal(found.predict(X), expected)  # a second warning would be an error here
    np.testing.assert_array_equal(found.predict(X, outside="nan"), [*expected[:3], np.nan])
    with pytest.raises(rs.InvalidInput, match="outside the ball"):
        found.predict(X, outside="raise")
    found.predict(edge, outside="raise")
    with pytest.raises(rs.InvalidInput, match='outside must be "warn"'):
        found.predict(X, outside="ignore")
