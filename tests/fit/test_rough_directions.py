"""Closed forms along rough directions: free steps and choices in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.fit.activations import ACTIVATIONS
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_starts import Trial
from ridgescope.fit.closed_steps import _MAX_DENSE, minimise
from ridgescope.fit.context import FitContext, FitGoal
from ridgescope.fit.rough_directions import turn_and_choose
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.geometry import in_ball, unit

RADIUS = 3.0
TANH, RELU = (next(k for k, form in enumerate(ACTIVATIONS) if form.name == name) for name in ("tanh", "relu"))


def turned(V, angle, rng):
    w = rng.standard_normal(V.shape)
    return np.cos(angle) * V + np.sin(angle) * unit(w - np.einsum("nd,nd->n", w, V)[:, None] * V)


def angles(forms, V):
    return np.arccos(np.clip(np.abs(np.einsum("nd,nd->n", forms.directions, V)), 0.0, 1.0))


def test_a_kink_beyond_nearly_all_points_does_not_stop_free_steps():
    """The block of such a feature, from some of the points, vanishes but for rounding errors."""
    rng, d, n = np.random.default_rng(0), 16, 60
    assert n * (d + 1) > _MAX_DENSE
    V = unit(rng.standard_normal((n, d)))
    blank = ClosedForms.blank(V, RADIUS, 8, 4)
    family = np.full(n, TANH)
    family[0] = RELU
    true = replace(
        blank, family=family, kappa=np.where(family == TANH, 3.0, 1.0), b=np.where(family == TANH, 0.0, -0.3)
    )
    c = rng.standard_normal(blank.coefficients.shape)
    true = replace(true, coefficients=c)
    X = in_ball(4000, d, RADIUS, rng)
    start = replace(true, directions=turned(V, 0.1, rng))
    X[(X @ start.directions[0] > 0.3 * RADIUS) & (np.arange(len(X)) % 13 == 0)] *= -1.0  # none of every 39th is beyond
    solved = Solved.of(start, Data(X, true.predict(X)))
    done = minimise(solved, steps=6, free=True)
    assert done.cost < 1e-3 * solved.cost
    assert np.median(angles(done.forms, V)) < 3e-3


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
def test_turning_and_choosing_finds_directions_and_families_from_a_tenth_of_a_radian(seed):
    rng = np.random.default_rng(seed + 100)
    target = rs.targets.planted(16, 40, ("tanh", "relu", "gelu"), outputs=8, rng=seed)

    def ask(X):
        return np.asarray(target(X))

    samples, start = Samples(16, RADIUS), turned(target.directions, 0.1, rng)
    ask_along(ask, samples, start, 1200, rng)
    context = FitContext(ask, samples, FitGoal(1e-2, 1e-13), rng, lambda: float("inf"))
    trial = Trial.of(context)
    alike = replace(ClosedForms.blank(start, RADIUS, 8, 8), family=np.full(40, TANH), kappa=np.full(40, 3.0))
    trial, best = turn_and_choose(trial, minimise(Solved.of(alike, trial.data), steps=10))
    assert angles(best.forms, target.directions).max() < 1e-3
