"""The linear half of closed forms: a bordered factor is the factor, and removal costs are what solving again shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.fit import closed_tangents, threads
from ridgescope.fit.activations import INDEX, SPLINE
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_tangents import Tangents
from ridgescope.geometry import in_ball, random_directions

RADIUS, DIM, FAMILIES = 3.0, 4, (INDEX["tanh"], SPLINE, INDEX["gelu"], SPLINE, INDEX["sine"])


@pytest.fixture
def data():
    """Answers that no combination of the columns explains exactly."""
    rng = np.random.default_rng(1)
    X = in_ball(600, DIM, RADIUS, rng)
    return Data(X, np.stack([np.sin(2.0 * X).sum(axis=1), np.cos(X @ rng.standard_normal(DIM))], axis=1))


@pytest.fixture
def forms():
    n = len(FAMILIES)
    directions = random_directions(n, DIM, np.random.default_rng(0))
    family, kappa, b = np.array(FAMILIES, np.intp), np.linspace(2.0, 5.0, n), np.linspace(-0.5, 0.5, n)
    return ClosedForms(RADIUS, directions, family, kappa, b, 8, np.zeros((1, 2)))


def test_a_bordered_factor_is_that_of_the_whole(data, forms):
    here = Solved.of(forms, data)
    moved = replace(forms, kappa=1.3 * forms.kappa, b=forms.b + 0.1)
    bordered, fresh = Solved.of(moved, data, near=here), Solved.of(moved, data)
    assert bordered.splines is here.splines
    np.testing.assert_allclose(bordered.factor, fresh.factor, atol=1e-13)
    np.testing.assert_allclose(bordered.forms.coefficients, fresh.forms.coefficients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("change", ["directions", "intervals", "data"])
def test_other_splines_or_points_have_another_factor(data, forms, change):
    here, points = Solved.of(forms, data), data
    if change == "directions":
        forms = replace(forms, directions=forms.directions[::-1])
    elif change == "intervals":
        forms = replace(forms, intervals=9)
    else:
        points = Data(data.X[::2], data.Y[::2])
    other = Solved.of(forms, points, near=here)
    assert other.cost == Solved.of(forms, points).cost


def test_splines_that_were_there_before_are_not_summed_again(data, forms, monkeypatch):
    four = np.array([SPLINE, SPLINE, INDEX["gelu"], SPLINE, SPLINE], np.intp)
    here = Solved.of(replace(forms, family=four), data)
    three = replace(forms, family=np.array([INDEX["tanh"], SPLINE, SPLINE, SPLINE, INDEX["sine"]], np.intp))
    fresh, sums = Solved.of(three, data), threads.gram
    seen = []
    monkeypatch.setattr(threads, "gram", lambda A: seen.append(A.shape[1]) or sums(A))
    after = Solved.of(three, data, near=here)
    assert seen == [2]  # of the closed forms only: two of the three splines were there
    np.testing.assert_allclose(after.splines.gram, fresh.splines.gram, atol=1e-12)
    np.testing.assert_allclose(after.residual, fresh.residual, atol=1e-9)


def test_residual_and_prediction_agree(data, forms):
    solved, straight = Solved.of(forms, data), data.Q @ data.straight
    np.testing.assert_allclose(solved.forms.predict(data.X), data.Y + straight - solved.residual, atol=1e-10)


def test_projected_products_are_those_of_projected_columns(data, forms):
    solved, D = Solved.of(forms, data), np.random.default_rng(2).standard_normal((len(data.X), 7))
    onto, P = solved.onto(D), solved.project(D)
    np.testing.assert_allclose(solved.projected_products(D, onto, solved.follow(onto)), P.T @ P, rtol=1e-9, atol=1e-9)


@pytest.fixture
def tangents(data, forms, monkeypatch):
    """The columns of three features in blocks of 64 points, and all of them at once without what is followed."""
    monkeypatch.setattr(closed_tangents, "_BLOCK", 1)
    solved, which = Solved.of(forms, data), np.array([0, 3, 4])
    D = np.concatenate([solved.slopes[:, [i]] * data.flat for i in which], axis=1)
    return Tangents(solved, which), solved.project(D)


def test_products_made_in_blocks_are_those_of_the_whole_columns(tangents):
    blocks, P = tangents
    scale = float(np.trace(P.T @ P))
    np.testing.assert_allclose(blocks.exact_products(), P.T @ P, atol=1e-13 * scale)
    np.testing.assert_allclose(blocks.products(), P.T @ P, atol=1e-10 * scale)


def test_cluster_products_are_those_of_sums_over_clusters(tangents):
    blocks, P = tangents
    clusters = np.random.default_rng(4).integers(0, 300, len(P))
    expected = np.zeros((P.shape[1], P.shape[1]))
    for c in range(300):
        g, k = P[clusters == c].sum(axis=0), int(np.sum(clusters == c))
        expected += (1.0 - 1.0 / max(k, 1)) * np.multiply.outer(g, g)
    np.testing.assert_allclose(blocks.cluster_products(clusters), expected, atol=1e-12 * float(np.trace(expected)))
    assert blocks.cluster_products(np.arange(len(P))) is None


@pytest.mark.parametrize("feature", range(len(FAMILIES)))
def test_a_removal_costs_what_solving_again_shows(data, forms, feature):
    """The cost is that of all columns of the feature; the penalty of a spline is too weak to matter."""
    solved = Solved.of(forms, data)
    fewer = Solved.of(solved.forms.keep(np.delete(np.arange(len(FAMILIES)), feature)), data)
    predicted = solved.removal_costs()[feature] * np.diff(forms.offsets)[feature]
    assert predicted == pytest.approx(fewer.cost - solved.cost, rel=1e-3)
