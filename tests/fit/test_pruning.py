"""The price of a removal is what removing costs, and held-out points decide what goes."""

from __future__ import annotations

import numpy as np
import pytest

from fit_cases import RADIUS, fit_context
from ridgescope.fit import context as context_module
from ridgescope.fit import pruning
from ridgescope.fit.context import FitGoal
from ridgescope.fit.levenberg_marquardt import LMOptions, levenberg_marquardt
from ridgescope.fit.linear import solve_linear
from ridgescope.fit.model import Model
from ridgescope.fit.samples import held_out_error
from ridgescope.geometry import angle, in_ball, random_directions, unit


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
    full = solve_linear(model, X, Y, smoothing=0.0)
    costs = pruning.feature_costs(full, X, Y, 0.0)
    for i in range(model.count):
        rest = solve_linear(model.keep(np.arange(model.count) != i), X, Y, smoothing=0.0)
        assert costs[i] == pytest.approx(rest.cost - full.cost, rel=1e-3)


def test_a_false_feature_is_the_cheapest():
    model, X, Y = problem()
    costs = pruning.feature_costs(solve_linear(model, X, Y), X, Y, 1e-9)
    assert np.argmin(costs) == 3
    assert costs[3] < 0.01 * np.delete(costs, 3).min()


@pytest.mark.parametrize("outputs", [1, 2])
def test_kink_costs_are_what_dropping_a_kink_costs(outputs):
    model, X, Y = problem(outputs)
    full = solve_linear(model, X, Y, smoothing=0.0)
    costs = pruning.kink_costs(full)
    assert [len(c) for c in costs] == [0, 0, 2, 0]
    for j in (0, 1):
        kinks = (*model.kinks[:2], np.delete(model.kinks[2], j), model.kinks[3])
        rest = solve_linear(model.reshaped(model.intervals, kinks), X, Y, smoothing=0.0)
        assert costs[2][j] == pytest.approx(rest.cost - full.cost, rel=1e-3)


def test_close_pairs_are_those_within_the_angle_whatever_their_sign():
    a = np.array([1.0, 0.0, 0.0])
    b = -np.array([np.cos(0.1), np.sin(0.1), 0.0])
    c = np.array([np.cos(0.02), 0.0, np.sin(0.02)])
    d = np.array([0.0, 1.0, 0.0])
    assert pruning.close_pairs(np.stack([a, b, c, d]), 0.2) == [(0, 2), (0, 1), (1, 2)]
    assert pruning.close_pairs(np.stack([a, b, c, d]), 0.05) == [(0, 2)]
    assert pruning.close_pairs(np.empty((0, 3)), 0.2) == []


def test_cheapest_takes_what_is_affordable_together():
    costs = np.array([5.0, 0.2, 0.1, 0.4])
    assert pruning.cheapest(costs, 1.0, 0.5).tolist() == [2, 1]
    assert pruning.cheapest(costs, 0.0, 0.5).tolist() == []
    assert pruning.cheapest(np.empty(0), 1.0, 0.5).tolist() == []


# -- what goes and what stays -------------------------------------------------------------------------------

V = unit([[1.0, 0.1, 0.0], [0.0, 1.0, 0.2], [0.3, 0.0, 1.0]])


def three(X, weak=1.0, noise=0.0, rng=None):
    Z = X @ V.T
    values = np.tanh(2.0 * Z[:, 0]) + np.sin(2.0 * Z[:, 1]) + weak * np.exp(-(Z[:, 2] ** 2))
    return values + (noise * rng.standard_normal(len(X)) if noise else 0.0)


def fitted(directions, f=three, goal=None, kinks=None, points=1500, steps=10):
    """(context, fit) of these directions to f."""
    context, _, _ = fit_context(f, 3, points, V, goal or FitGoal(1e-6, 1e-13))
    model = Model.start(directions, RADIUS, 32, 1)
    if kinks is not None:
        model = model.reshaped(model.intervals, kinks)
    options = LMOptions(steps=steps, smoothing=context.memory.smoothing)
    return context, levenberg_marquardt(model, *context.samples.train, options)


def test_false_candidates_go_true_features_stay_and_what_went_is_remembered():
    false = random_directions(3, 3, np.random.default_rng(8))
    context, fit = fitted(np.concatenate([false, V]))
    kept = pruning.prune(context, fit).model
    assert kept.count == 3
    assert angle(kept.directions, V).max() < 1e-2
    assert sum(map(len, context.memory.pruned)) == 3


def test_no_feature_that_is_needed_goes():
    context, fit = fitted(V)
    assert pruning.prune(context, fit) is fit
    assert context.memory.pruned == []


def test_a_feature_below_the_error_asked_for_goes_unless_directions_are_as_proposed():
    """As proposed it stays: it is weak, but plain to see above the error of the others."""

    def weak(X):
        return three(X, weak=0.02)

    goal = FitGoal(0.2, 1e-13)
    context, fit = fitted(V, weak, goal)
    assert context.training_rms(fit) < 1e-3
    assert pruning.prune(context, fit).model.count == 2
    context, fit = fitted(V, weak, goal)
    assert pruning.prune(context, fit, as_proposed=True).model.count == 3


def test_duplicates_are_merged_with_the_knots_and_kinks_of_both():
    def f(X):
        return 5.0 * np.tanh(2.0 * X @ V[0]) + 0.3 * np.abs(X @ V[0] - 0.5) + np.sin(2.0 * X @ V[1])

    twice = np.concatenate([V[:2], unit(V[:1] + 1e-3 * V[2:])])
    context, fit = fitted(twice, f, kinks=(np.empty(0), np.empty(0), np.array([0.5])), steps=0)
    assert fit.model.count == 3
    merged = pruning.merge_duplicates(context, fit, np.inf).model
    assert merged.count == 2
    assert np.abs(merged.directions @ V[:2].T).max(axis=0).min() > np.cos(1e-2)
    assert np.concatenate(merged.kinks) == pytest.approx([0.5], abs=1e-2)
    assert held_out_error(merged, context.samples)[0] < 1e-2


def test_a_close_pair_that_is_two_is_not_merged():
    pair = unit([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0]])

    def f(X):
        return np.tanh(3.0 * X @ pair[0]) - np.sin(2.0 * X @ pair[1])

    context, fit = fitted(pair, f)
    limit = 1.05 * context.evaluate(fit).rms
    assert pruning.merge_duplicates(context, fit, limit).model.count == 2


def test_with_fixed_directions_not_one_moves():
    false = random_directions(2, 3, np.random.default_rng(8))
    context, fit = fitted(np.concatenate([V, false]), steps=0)
    kept = pruning.prune(context.with_fixed_directions(), fit).model
    assert kept.count == 3
    np.testing.assert_array_equal(kept.directions, V)


def test_under_noise_a_feature_far_below_it_stays_where_points_show_it():
    """A tenth of the noise, which the RMS hardly feels."""
    rng = np.random.default_rng(3)

    def noisy(X):
        return three(X, weak=0.1, noise=0.3, rng=rng)

    false = random_directions(1, 3, np.random.default_rng(5))
    context, fit = fitted(np.concatenate([V, false]), noisy, FitGoal(1e-2, 0.3), points=30_000)
    kept = pruning.prune(context, fit).model
    assert kept.count == 3
    assert np.abs(kept.directions @ V.T).max(axis=0).min() > 0.9


def test_kinks_that_explain_nothing_go_and_true_ones_stay():
    rng = np.random.default_rng(3)

    def f(X):
        return np.abs(X @ V[0] - 0.5) + np.sin(2.0 * X @ V[1]) + 1e-3 * rng.standard_normal(len(X))

    kinks = (np.array([-1.0, 0.5]), np.array([0.3]))
    context, fit = fitted(V[:2], f, kinks=kinks, steps=0)
    fewer = pruning.drop_unneeded_kinks(context, fit).model
    assert [len(t) for t in fewer.kinks] == [1, 0]
    assert fewer.kinks[0][0] == 0.5
    context, fit = fitted(V[:2], f, kinks=(np.array([0.5]), np.empty(0)), steps=0)
    assert pruning.drop_unneeded_kinks(context, fit) is fit


def test_only_an_expensive_model_is_pruned_while_it_is_refined(monkeypatch):
    rng = np.random.default_rng(3)
    false = random_directions(2, 3, np.random.default_rng(8))
    context, fit = fitted(np.concatenate([V, false]), lambda X: three(X, noise=1e-3, rng=rng))
    now = context.evaluate(fit)
    assert pruning.prune_if_expensive(context, now) is now
    monkeypatch.setattr(context_module, "EXPENSIVE_UNKNOWNS", 100)
    assert pruning.prune_if_expensive(context.with_fixed_directions(), now) is now
    assert pruning.prune_if_expensive(context, now).model.count == 3
