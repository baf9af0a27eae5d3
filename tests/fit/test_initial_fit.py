"""Guesses move into place while points are added."""

from __future__ import annotations

import numpy as np

from fit_cases import RADIUS, fit_context, tilted
from ridgescope.fit import initial_fit as first_fit
from ridgescope.fit.context import FitGoal
from ridgescope.fit.initial_fit import choose_knots, initial_fit
from ridgescope.fit.linear import MEDIUM_SMOOTHING
from ridgescope.fit.model import Model
from ridgescope.geometry import angle, unit

V = unit([[1.0, 0.2, 0.0], [0.0, 1.0, 0.3], [0.2, 0.0, 1.0]])


def three(X):
    return np.tanh(2.0 * X @ V[0]) + np.sin(2.0 * X @ V[1]) + np.exp(-((X @ V[2]) ** 2))


def start(by=0.0):
    return tilted(Model.start(V, RADIUS, 16, 1), by)


def test_guesses_far_off_come_into_place_with_enough_points():
    context, said, asked = fit_context(three, 3)
    fit = initial_fit(context, start(0.4), new=3)
    assert angle(fit.model.directions, V).max() < 1e-3
    assert context.missing_points(fit.model, 1.0) <= 0
    assert len(asked) >= 2
    assert all(detail for _, detail in said)


def test_every_phase_goes_on_from_where_the_last_one_ended(monkeypatch):
    monkeypatch.setattr(first_fit, "_PHASE_STEPS", 1)
    context, _, _ = fit_context(three, 3)
    assert angle(initial_fit(context, start(0.4), new=3).model.directions, V).max() < 1e-3


def test_the_allowance_is_kept():
    context, _, asked = fit_context(three, 3, allowance=150)
    initial_fit(context, start(0.4), new=3)
    assert sum(map(len, asked)) <= 150


def test_where_the_error_stalls_half_as_many_points_are_added_once():
    """One feature cannot explain three: no phase brings more."""
    context, said, asked = fit_context(three, 3)
    model = Model.start(V[:1], RADIUS, 16, 1)
    fit = initial_fit(context, model, new=1)
    assert context.training_rms(fit) > 0.1
    wanted = int(1.4 * 5.0 * (19 + 4 + 2) * 8 / 7)
    assert sum(map(len, asked)) == wanted + wanted // 2
    assert len(said) < 20


def test_new_features_that_oscillate_get_finer_knots_at_once():
    context, _, _ = fit_context(lambda X: np.sin(12.0 * X @ V[0]), 3, 1500, V[:1], FitGoal(1e-3, 1e-13, intervals=8))
    model = Model.start(V[:1], RADIUS, 8, 1)
    assert choose_knots(context, model, 1).model.intervals[0] >= 32
    assert choose_knots(context, model, 0).model.intervals[0] == 8
    smooth, _, _ = fit_context(lambda X: np.sin(X @ V[0]), 3, 1500, V[:1])
    gram = choose_knots(smooth, model, 1)
    assert gram.model.intervals[0] == 8
    assert gram.solve(MEDIUM_SMOOTHING).cost < 1e-2
