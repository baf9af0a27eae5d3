"""Nearly parallel neurons that one feature has stood for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.clusters import split_clusters
from ridgescope.fit.activations import INDEX
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_starts import spline_fit
from ridgescope.fit.closed_steps import minimise
from ridgescope.fit.context import FitGoal, evaluate
from ridgescope.fit.crowded import Tangents, crowded_feature
from ridgescope.fit.members import Members
from ridgescope.fit.samples import Samples
from ridgescope.geometry import in_ball, random_directions, unit

DIM, OUTPUTS, RADIUS, APART, NEAR = 16, 12, 4.0, 8, 4
NOISE = 1e-7


class Run(SimpleNamespace):
    @property
    def best(self):
        return self.evaluation


def silu(forms_of, kappa, b):
    n = len(forms_of)
    blank = ClosedForms.blank(forms_of, RADIUS, 8, OUTPUTS)
    return replace(blank, family=np.full(n, INDEX["silu"], np.intp), kappa=kappa, b=b)


def layer(seed, near=NEAR):
    """Some neurons far apart and some within a tenth of a radian, and a run that has one feature for these."""
    rng = np.random.default_rng(seed)
    middle = random_directions(1, DIM, rng)
    close = unit(middle + 0.1 * random_directions(near, DIM, rng))
    V = np.concatenate([random_directions(APART, DIM, rng), close])
    kappa = np.concatenate([rng.uniform(4.0, 6.0, APART), rng.uniform(5.0, 5.5, near)])
    b, c = 0.1 * rng.standard_normal(len(V)), rng.standard_normal((len(V), OUTPUTS))
    b[APART:] = 0.05
    true = replace(silu(V, kappa, b), coefficients=np.concatenate([c, np.zeros((DIM + 1, OUTPUTS))]))
    samples = Samples(DIM, RADIUS)
    X = in_ball(1500, DIM, RADIUS, rng)
    samples.add(X, true.predict(X) + NOISE * rng.standard_normal((len(X), OUTPUTS)))
    ends = slice(0, APART + 1)
    start = silu(np.concatenate([V[:APART], middle]), kappa[ends], b[ends])
    merged = minimise(Solved.of(start, Data(*samples.unclustered)), steps=10, free=True)
    goal = FitGoal(error=1e-1, noise=NOISE)
    state = Run(
        oracle=SimpleNamespace(outputs=OUTPUTS),
        survey=SimpleNamespace(deterministic=True, noise=NOISE),
        samples=samples,
        goal=goal,
        rounding_error=0.0,
        said=[],
        streams=lambda name, number: np.random.default_rng([seed, number]),
        allowance=lambda: 0.0,
        ask=lambda stage: None,
        attempt=lambda step, action: action(),
    )
    state.say = state.said.append
    state.evaluation = replace(evaluate(spline_fit(merged, goal), samples, goal), forms=merged.forms)
    return V, state


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_feature_that_stands_for_four_neurons_is_told_apart(seed):
    V, state = layer(seed)
    assert rs.match(state.best.forms.directions, V).angles.max() > 0.02
    split_clusters(state)
    found = state.evaluation.forms
    assert found.count == APART + NEAR
    assert rs.match(found.directions, V).angles.max() < 1e-4


def test_the_rank_of_what_the_others_leave_is_the_number_of_members():
    V, state = layer(0)
    data = Data(*state.samples.unclustered)
    solved = Solved.of(state.best.forms, data)
    assert crowded_feature(solved.forms, data, solved.residual) == APART
    true = minimise(Solved.of(silu(V, np.full(len(V), 5.0), np.zeros(len(V))), data), steps=30, free=True).forms
    left = data.Y - data.bend(true.atoms(data.X)[0][:, :APART]) @ true.outputs[:APART]
    assert Tangents.of(state.best.forms, APART, data, left).members == NEAR


def test_steps_of_members_end_at_noise():
    rng = np.random.default_rng(0)
    omega, c = (
        np.array([[1.0, 0.1, 0.0, 0.1], [1.1, -0.2, 0.1, 0.0], [0.9, 0.0, -0.2, 0.1]]),
        rng.standard_normal((3, 6)),
    )
    Z = np.column_stack([in_ball(400, 3, RADIUS, rng), np.ones(400)])
    y = Z @ omega.T
    target = (y / (1.0 + np.exp(-y))) @ c + 1e-9 * rng.standard_normal((400, 6))
    start = Members(INDEX["silu"], Z, np.empty((400, 0)), target, omega + 0.03 * rng.standard_normal(omega.shape))
    assert start.cost > 1e-3
    assert start.minimised(30).cost < 4e-18 * target.size
    assert np.abs(start.minimised(30).omega - omega).max() < 1e-6


def test_nothing_is_told_apart_where_rounding_is_all_that_is_left():
    _, state = layer(0, near=1)
    before = state.evaluation
    split_clusters(state)
    assert state.evaluation is before
