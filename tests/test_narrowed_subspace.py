"""The span of all directions, where these are known before a fit, and points where steep features bend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import expit

import ridgescope as rs
from ridgescope.fit.activations import INDEX
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.fit.steep_forms import POINTS_PER_UNKNOWN, ask_steep
from ridgescope.geometry import random_directions


def test_neurons_that_are_constant_in_nearly_all_of_the_ball_come_back():
    """At random points of the ball the steepest ones have slopes of e^−60: no gradient shows them."""
    rng = np.random.default_rng(3)
    V, norms = random_directions(24, 40, rng), np.exp(rng.uniform(np.log(4.0), np.log(40.0), 24))
    b = norms * np.where(np.arange(24) < 4, -2.2, rng.uniform(-0.5, 0.5, 24))
    C = rng.standard_normal((24, 3))
    found = rs.extract(lambda X: expit(X @ (V * norms[:, None]).T + b) @ C, dim=40, rng=0)
    assert found.certificate.met
    assert len(found.features) == 24
    assert rs.match(found.directions, V).angles.max() < 1e-6
    assert found.structure.verdict == "exact"


def test_points_are_asked_where_steep_features_bend():
    rng, dim, n = np.random.default_rng(0), 20, 3
    forms = ClosedForms.blank(random_directions(n, dim, rng), 3.0, 8, 1)
    kappa, b = (
        np.array([2.0, 100.0, 100.0]),
        np.array([0.0, -80.0, -120.0]),
    )  # gentle, steep, and steep outside the ball
    forms = replace(forms, family=np.full(n, INDEX["tanh"]), kappa=kappa, b=b)
    samples, asked = Samples(dim, 3.0), []

    def ask(X):
        asked.append(X)
        return X[:, :1]

    ask_along(ask, samples, forms.directions, 400, rng)
    asked.clear()
    ask_steep(ask, samples, forms, np.inf, rng)
    y = np.concatenate(asked) @ forms.directions.T * (kappa / 3.0) + b
    assert (np.abs(y[:, 1]) < 3.01).all()
    assert 0.9 * POINTS_PER_UNKNOWN * (dim + 1) < len(y) <= POINTS_PER_UNKNOWN * (dim + 1)
