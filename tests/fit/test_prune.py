"""The price of a removal is what removing costs."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.fit import prune
from ridgescope.fit.levenberg_marquardt import MatrixFree
from ridgescope.fit.linear import solve_linear
from ridgescope.fit.model import Model
from ridgescope.geometry import in_ball, random_directions

RADIUS = 3.0


def problem(outputs=1, noise=0.05):
    rng = np.random.default_rng(4)
    V = random_directions(4, 3, rng)
    X = in_ball(1500, 3, RADIUS, rng)
    Z = X @ V.T
    parts = np.stack([np.tanh(2 * Z[:, 0]), np.sin(2 * Z[:, 1]), np.abs(Z[:, 2] - 0.5)], axis=1)
    Y = parts @ rng.standard_normal((3, outputs)) + noise * rng.standard_normal((1500, outputs))
    model = Model.start(V, RADIUS, 8, outputs)
    kinks = (np.empty(0), np.empty(0), np.array([0.5, -1.5]), np.empty(0))
    return model.reshaped(model.intervals, kinks), X, Y


@pytest.mark.parametrize("outputs", [1, 3])
def test_removal_costs_are_what_removing_costs(outputs):
    model, X, Y = problem(outputs)
    full = solve_linear(model, X, Y, smooth=0.0)
    costs = prune.removal_costs(full, X, Y, 0.0)
    for i in range(model.count):
        rest = solve_linear(model.keep(np.arange(model.count) != i), X, Y, smooth=0.0)
        assert costs[i] == pytest.approx(rest.cost - full.cost, rel=1e-3)


def test_an_idle_feature_is_the_cheapest():
    model, X, Y = problem()
    costs = prune.removal_costs(solve_linear(model, X, Y), X, Y, 1e-9)
    assert np.argmin(costs) == 3
    assert costs[3] < 0.01 * np.delete(costs, 3).min()


def test_costs_do_not_depend_on_which_solver_came_before():
    model, X, Y = problem()
    smooth = 1e-6
    dense = prune.removal_costs(solve_linear(model, X, Y, smooth), X, Y, smooth)
    free = prune.removal_costs(MatrixFree(X, Y, smooth, tolerance=1e-6).solve(model), X, Y, smooth)
    np.testing.assert_allclose(free[:3], dense[:3], rtol=0.05)


@pytest.mark.parametrize("outputs", [1, 2])
def test_kink_costs_are_what_dropping_a_kink_costs(outputs):
    model, X, Y = problem(outputs)
    full = solve_linear(model, X, Y, smooth=0.0)
    costs = prune.kink_costs(full)
    assert [len(c) for c in costs] == [0, 0, 2, 0]
    for j in (0, 1):
        kinks = (*model.kinks[:2], np.delete(model.kinks[2], j), model.kinks[3])
        rest = solve_linear(model.reshaped(model.intervals, kinks), X, Y, smooth=0.0)
        assert costs[2][j] == pytest.approx(rest.cost - full.cost, rel=1e-3)


def test_twins_are_pairs_within_the_angle_whatever_their_sign():
    a = np.array([1.0, 0.0, 0.0])
    b = -np.array([np.cos(0.1), np.sin(0.1), 0.0])
    c = np.array([np.cos(0.02), 0.0, np.sin(0.02)])
    d = np.array([0.0, 1.0, 0.0])
    assert prune.twins(np.stack([a, b, c, d]), 0.2) == [(0, 2), (0, 1), (1, 2)]
    assert prune.twins(np.stack([a, b, c, d]), 0.05) == [(0, 2)]
    assert prune.twins(np.empty((0, 3)), 0.2) == []


def test_cheap_takes_what_is_affordable_together():
    costs = np.array([5.0, 0.2, 0.1, 0.4])
    assert prune.cheap(costs, 1.0, 0.5).tolist() == [2, 1]
    assert prune.cheap(costs, 0.0, 0.5).tolist() == []
    assert prune.cheap(np.empty(0), 1.0, 0.5).tolist() == []
