"""The report is one file, opens offline, tells the result, and escapes what came from outside."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from made import CERTIFICATE, extraction
from ridgescope.feature import Checks, Gate, Plane
from ridgescope.report import geometry, page, responses, star
from ridgescope.report.queries import finite_checks, largest_error_by_bin
from ridgescope.response import interpolate
from ridgescope.star_planes import response_spectra

NAMES = ("star", "cosines", "angles", "counts", "radius", "along", "agreement", "stages", "rounds")
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def found():
    return rs.extract(rs.targets.CASES["first"].make(5), rng=5)


def data(text, name):
    return json.loads(re.search(f"<script type='application/json' id='{name}'>(.*?)</script>", text, re.S)[1])


def outside_scripts(text):
    """The markup without plotly, the page's script and the data."""
    return re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.S)


def test_a_report_tells_the_result_and_needs_no_network(found, tmp_path):
    path = found.report(tmp_path / "new" / "report.html")
    text = path.read_text(encoding="utf-8")
    markup = outside_scripts(text)
    assert "4 features in 3 dimensions" in markup
    assert "tolerance 0.01 met" in markup
    assert all(f"<section id='{name}'>" in markup for name in ("star", "responses", "geometry", "errors", "queries"))
    assert not re.search(r"<(script|img|link|iframe)[^>]*(src|href)\s*=\s*['\"]?(https?:)?//", markup)
    assert len(text) < 10_000_000
    assert [len(data(text, f"figure-{name}")["data"]) > 0 for name in NAMES] == [True] * len(NAMES)
    cards = data(text, "features")["features"]
    assert [c["i"] for c in cards] == [0, 1, 2, 3]
    assert np.allclose(cards[0]["direction"], found.directions[0][cards[0]["where"]], atol=1e-3)
    assert "rs.extract(f, dim=3, radius=3, tolerance=0.01, confidence=0.99, rng=5)" in markup


def test_a_command_is_what_runs_it_again():
    markup = outside_scripts(page(extraction(command="ridgescope extract case:first --seed 5")))
    assert "<pre>ridgescope extract case:first --seed 5</pre>" in markup


def test_words_from_outside_are_escaped(found):
    shape = rs.Shape(HOSTILE, {}, HOSTILE, 1.0)
    hostile = replace(
        found,
        features=tuple(replace(f, shape=shape) for f in found.features),
        history=tuple(replace(r, proposer=HOSTILE, note=HOSTILE) for r in found.history),
        queries_by_stage={HOSTILE: 1},
        **dict.fromkeys(("stopped", "diagnosis", "seed", "version", "command"), HOSTILE),
    )
    text = page(hostile)
    assert "<img" not in outside_scripts(text)
    assert "&lt;img" in outside_scripts(text)
    assert data(text, "features")["features"][0]["formula"] == HOSTILE  # put into the page as text by the script
    figures = [json.dumps(data(text, f"figure-{name}")) for name in NAMES]
    assert not any("<img" in figure for figure in figures)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"features": 0},
        {"features": 1, "dim": 1},
        {"features": 1},
        {"outputs": 1},
        {"certificate": replace(CERTIFICATE, verdict="not met", std=0.0, bound=np.inf, sup_seen=np.inf, rms=np.inf)},
        {"history": (), "queries_by_stage": {}},
    ],
)
def test_odd_results_have_a_report_too(changed):
    text = page(extraction(**changed))
    assert "NOT met" in text or "tolerance 0.01 met" in text
    for name in re.findall("id='figure-([a-z]+)'", text):
        assert data(text, f"figure-{name}")["data"]


@pytest.mark.parametrize("outputs", [None, 20])
def test_500_features_stay_below_ten_megabytes(outputs):
    many = extraction(outputs, features=500, dim=60)
    directions = rs.targets.planted(60, 500, ("sine",), rng=0).directions
    many = replace(
        many, features=tuple(replace(f, direction=v) for f, v in zip(many.features, directions, strict=True))
    )
    text = page(many)
    assert len(text.encode()) < 10_000_000
    assert len(data(text, "features")["features"]) == 500


# -- figures -------------------------------------------------------------------------------------------------


def test_plots_are_plotly_figures(found):
    assert len(found.plot.star().data) == 4 * len(star.shown_planes(found))
    assert found.plot.responses().data
    assert {t.type for t in found.plot.geometry().data} == {"heatmap", "bar", "scatter"}
    assert {t.type for t in found.plot.errors().data} == {"heatmap", "scatter"}


def test_plots_say_what_they_lack():
    with pytest.raises(rs.InvalidInput, match="a star needs a feature and a plane"):
        extraction(features=0).plot.star()
    with pytest.raises(rs.InvalidInput, match="without its certificate's queries"):
        extraction().plot.errors()


def test_the_star_of_the_model_has_its_power_on_the_rays():
    directions = np.array([[1.0, 0.0], [0.6, 0.8]])
    wave = interpolate(lambda z: np.sin(4 * z), 3.0, 64)
    features = tuple(rs.Feature(v, wave, 0.0, wave.rms()) for v in directions)
    (plane,) = star.shown_planes(replace(extraction(dim=2), features=features))
    i, j = np.unravel_index(np.argsort(plane.power, axis=None)[-8:], plane.power.shape)
    at = plane.step * (np.stack([i, j], axis=1) - len(plane.power) // 2) @ plane.basis
    along = np.abs(at @ directions.T).max(axis=1)
    assert np.abs(along - 4.0).max() < 2 * plane.step + 0.3
    assert np.abs(np.linalg.norm(at, axis=1) - along).max() < plane.step


def test_the_searchs_own_planes_come_first():
    power = np.random.default_rng(0).random((9, 9))
    later, first = (Plane(np.eye(2, 3), power, 0.5, r) for r in (2, 1))
    found = extraction(planes=(later, first))
    assert star.shown_planes(found) == (first, later)
    assert "search measured in 2 of 2 planes" in star.caption(found, (first, later))
    assert "no query was spent" in star.caption(extraction(), star.shown_planes(extraction()))
    steps = found.plot.star().layout.sliders[0].steps
    assert [list(s.args[0]["visible"]) for s in steps] == [[True] * 4 + [False] * 4, [False] * 4 + [True] * 4]


def test_planes_that_the_search_kept_are_in_f_s_own_coordinates():
    V = rs.targets.planted(3, 3, ("sine",), rng=1).directions
    wide = np.linalg.qr(np.random.default_rng(0).standard_normal((9, 3)))[0]
    found = rs.extract(lambda X: np.sin(4 * (X @ wide @ V.T)).sum(axis=1), dim=9, method="slices", rng=0)
    assert found.planes
    for plane in found.planes:
        np.testing.assert_allclose(plane.basis @ plane.basis.T, np.eye(2), atol=1e-9)
        assert plane.round > 0


def test_vector_outputs_draw_each_component():
    found = rs.extract(rs.targets.planted(3, 2, ("tanh",), rng=1, outputs=2), rng=0)
    lines = [t for t in found.plot.responses().data if t.mode == "lines"]
    assert len(lines) == 2 * len(found.features)
    assert all(np.isfinite(t.y).all() for t in lines)
    card = responses.cards(found)[0]
    assert card["out_share"] > 0.999  # a planted feature moves along one output direction
    assert np.isclose(np.linalg.norm(card["out"]), 1.0, atol=1e-3)


def test_of_many_outputs_those_that_move_most_are_drawn():
    response = interpolate(lambda z: np.multiply.outer(np.sin(z), np.arange(9.0)), 3.0, 12)
    found = replace(extraction(9), features=(rs.Feature(np.eye(3)[0], response, 0.0, 1.0),))
    assert list(responses.curves(found, found.features[0]).outputs) == [3, 4, 5, 6, 7, 8]


def test_kinks_are_points_of_the_curve():
    response = rs.Response(3.0, np.zeros(11), np.array([0.123, 7.0]), np.array([1.0, 1.0]))
    found = replace(extraction(), features=(rs.Feature(np.eye(3)[0], response, 0.0, 1.0),))
    drawn = responses.curves(found, found.features[0])
    assert 0.123 in drawn.z
    assert list(drawn.kinks) == [0.123]


def test_alike_directions_stand_side_by_side():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(4), 3, axis=0) + 0.05 * rng.standard_normal((12, 4))
    shuffled = rng.permutation(12)
    order = geometry.cluster_order(groups[shuffled] / np.linalg.norm(groups[shuffled], axis=1)[:, None])
    names = shuffled[order] // 3
    assert np.count_nonzero(np.diff(names)) == 3


def test_the_geometry_in_words():
    triangle = np.array([[1.0, 0.0], [0.5, np.sqrt(0.75)], [-0.5, np.sqrt(0.75)]])
    base = extraction(dim=2, features=3)
    found = replace(base, features=tuple(replace(f, direction=v) for f, v in zip(base.features, triangle, strict=True)))
    sentence = geometry.sentence(found)
    assert "3 features share 2 dimensions" in sentence
    assert "is 60.0° apart" in sentence
    assert "more than 60.0° apart (Welch's bound)" in sentence  # three lines at 60° are as far apart as they can be
    np.testing.assert_allclose(geometry.pair_angles(triangle), 60.0)


def test_the_worst_error_of_each_stretch_of_a_ray():
    errors = np.array([0.1, 0.3, 0.2, 9.0])
    checks = Checks(
        np.ones(4), np.zeros(4), errors, np.array([-2.9, -2.8, 2.9, np.nan]), np.array([0, 0, 1, Checks.UNIFORM])
    )
    found = extraction(checks=checks)  # one tolerance is 0.01·2
    edges, worst = largest_error_by_bin(found)
    assert edges[0] == -3
    assert worst.shape == (2, 8)
    assert worst[0, 0] == pytest.approx(0.3 / 0.02)
    assert worst[1, -1] == pytest.approx(0.2 / 0.02)
    assert np.isfinite(worst).sum() == 2


def test_figures_leave_out_what_is_not_finite():
    bad = np.array([np.inf, 1.0])
    checks = Checks(np.ones(2), np.ones(2), bad, np.full(2, np.nan), np.full(2, Checks.UNIFORM))
    assert len(finite_checks(extraction(checks=checks))) == 1
    assert "figure-radius" in page(extraction(checks=checks))


def test_the_page_tells_the_errors_on_data(tmp_path):
    check = rs.DataCheck(40, 39, 0.1, 0.5, 0.4, 2.0, 0.2, 0.975)
    page = extraction(data_check=check).report(tmp_path / "page.html").read_text()
    assert check.sentence in html.unescape(page)
    assert "rows of data" not in extraction().report(tmp_path / "other.html").read_text()


# -- gated features --------------------------------------------------------------------------------------------


def gated(outputs=None):
    """A plain feature, and one that is 0.5·silu(z)·(z + u·x), written to (1, −2)/√5 where there are two outputs."""
    base = extraction(outputs)
    o = np.ones(()) if outputs is None else np.array([1.0, -2.0]) / np.sqrt(5)
    s = interpolate(lambda z: np.multiply.outer(0.5 * z * z / (1 + np.exp(-z)), o), 3.0, 24).without_affine()[0]
    t = interpolate(lambda z: np.multiply.outer(0.5 * z / (1 + np.exp(-z)), o), 3.0, 24)
    band = np.full((5, *o.shape), 0.01)
    gate = Gate(np.array([0.0, 0.6, -0.8]), t, 2e-5, band, None, 0.5 * o)
    unit = replace(
        base.features[0], response=s, gate=gate, shape=rs.Shape("silu gate", {}, "0.5·silu(z)·(z + u·x)", 1.0)
    )
    return replace(base, features=(unit, base.features[1]))


@pytest.mark.parametrize("outputs", [None, 2])
def test_the_card_of_a_gated_feature_has_its_gain_and_its_carrier(outputs):
    found = gated(outputs)
    card, plain = responses.cards(found)
    unit = found.features[0]
    along = unit.gain(np.array(card["tz"])).reshape(len(card["tz"]), -1) @ unit.output
    assert card["t"] == pytest.approx(along, abs=2e-3)
    assert np.abs(along).max() > 1.0
    sign = 1.0 if outputs is None else -1.0  # the largest coordinate of the output direction is positive
    assert np.sign(card["t"][-1]) == sign
    assert card["s"][0] == pytest.approx(
        unit.response(np.array(card["z"])).reshape(len(card["z"]), -1) @ unit.output, abs=2e-3
    )
    assert len(card["s"]) == 1
    wide = 0.02 * np.abs(unit.output).sum()
    assert card["t_band"] == pytest.approx(np.full(len(card["tz"]), wide), rel=0.01)
    assert dict(zip(card["u_where"], card["u"], strict=True)) == {0: 0.0, 1: 0.6, 2: -0.8}
    assert card["u_text"] == "−0.8 x2 + 0.6 x1"
    assert card["u_error"] == 2e-5
    assert card.get("o_text") == (None if outputs is None else "0.89 y1 − 0.45 y0")
    assert not {"t", "tz", "u", "o_text"} & set(plain)
    ours = found.features[1].response(np.array(plain["z"])).reshape(-1, outputs or 1)
    assert plain["s"][0] == pytest.approx(ours[:, 0], abs=1e-3)


def test_gains_are_drawn_for_gated_features_alone():
    figure = gated(2).plot.gains()
    curve = [trace for trace in figure.data if trace.mode == "lines"]
    assert len(curve) == 1
    unit = gated(2).features[0]
    assert curve[0].y == pytest.approx(unit.gain(np.array(curve[0].x)) @ unit.output, abs=1e-6)
    assert len(figure.data) == 2  # with its band
    with pytest.raises(rs.InvalidInput, match="gated"):
        extraction().plot.gains()


def test_the_page_says_what_a_gate_is_only_where_there_is_one():
    text = page(gated(2))
    assert "2 features, 1 of them gated, in 3 dimensions" in outside_scripts(text)
    assert "lets through t(v·x)" in outside_scripts(text)
    assert "lets through t(v·x)" not in outside_scripts(page(extraction(2)))
    assert data(text, "features")["features"][0]["t"]


def test_the_star_of_the_model_shows_a_gate_without_a_response_of_its_own():
    found = gated()
    silent = replace(found.features[0], response=interpolate(lambda z: 0.0 * z, 3.0, 24))
    _, spectra = response_spectra(replace(found, features=(silent,)))
    _, louder = response_spectra(replace(found, features=found.features[:1]))
    assert spectra.max() > 0.1 * louder.max()
