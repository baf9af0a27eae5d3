"""What a fit may ask, when it is good enough, and what it keeps fixed."""

from __future__ import annotations

import numpy as np
import pytest

from fit_cases import RADIUS, fit_context, tilted
from ridgescope.fit.context import FitGoal, evaluate, improves, is_expensive, is_no_worse
from ridgescope.fit.levenberg_marquardt import Fitted, LMOptions, levenberg_marquardt
from ridgescope.fit.linear import MEDIUM_SMOOTHING, STRONG_SMOOTHING, WEAK_SMOOTHING, Gram
from ridgescope.fit.model import Model
from ridgescope.fit.samples import held_out_error
from ridgescope.geometry import angle, unit

V = unit([[1.0, 0.2, 0.0], [0.0, 1.0, 0.3]])


def two(X):
    return np.tanh(2.0 * X @ V[0]) + np.sin(2.0 * X @ V[1])


def start(outputs=1, intervals=16):
    return Model.start(V, RADIUS, intervals, outputs)


@pytest.mark.parametrize(
    ("after", "improved", "no_worse"), [(0.79, True, True), (0.81, False, True), (1.3, False, False)]
)
def test_a_share_of_the_error_decides(after, improved, no_worse):
    assert improves(after, 1.0, 0.2) is improved
    assert is_no_worse(after, 1.0, 0.2) is no_worse
    assert not improves(0.0, 0.0, 0.2)
    assert is_no_worse(0.0, 0.0, 0.2)


def test_a_goal_is_met_by_the_error_asked_for_or_by_the_noise():
    exact = FitGoal(error=0.1, noise=0.0)
    assert exact.is_met(rms=0.05, sup=0.1, count=100)
    assert not exact.is_met(rms=0.05, sup=0.11, count=100)
    noisy = FitGoal(error=0.1, noise=1.0)
    assert noisy.is_below_noise
    assert noisy.is_met(rms=1.1, sup=3.9, count=100)
    assert not noisy.is_met(rms=1.3, sup=3.9, count=100)
    assert not noisy.is_met(rms=1.1, sup=4.5, count=100)
    assert noisy.is_met(rms=1.1, sup=4.5, count=10_000)  # the largest of so many is seldom smaller


def test_points_are_added_until_there_are_enough_for_the_unknowns_and_never_beyond_the_allowance():
    context, _, asked = fit_context(two, 3)
    model = start()
    unknowns = 2 * 19 + 4 + 2 * 2  # coefficients, and two angles a direction
    context.top_up(model, 1.0)
    assert context.samples.count == int(5.0 * unknowns * 8 / 7)
    context.top_up(model, 1.0)
    assert len(asked) == 1
    assert context.with_fixed_directions().missing_points(model, 1.0) < 0
    context.top_up(model, 1.0, np.array([1]))
    assert len(asked[1]) == 3 * 19
    context.add_samples(model, 0.5)
    assert len(asked[2]) == int(0.5 * sum(map(len, asked[:2])))
    frugal, _, asked = fit_context(two, 3, allowance=50)
    frugal.top_up(model, 1.0)
    frugal.top_up(model, 1.0)
    assert sum(map(len, asked)) == 50


def test_several_outputs_need_fewer_points_for_directions():
    context, _, _ = fit_context(two, 3)
    assert context.missing_points(start(outputs=4), 1.0) == int(5.0 * (2 * 19 + 4 + 1) * 8 / 7)


def test_fixed_directions_stay_and_the_two_contexts_share_their_memory():
    context, _, _ = fit_context(two, 3, 600, V)
    fixed = context.with_fixed_directions()
    model = tilted(start(), 0.05)
    held = fixed.polish(model)
    np.testing.assert_array_equal(held.model.directions, model.directions)
    assert not context.fixed
    assert fixed.memory is context.memory
    moved = context.polish(model)
    assert angle(moved.model.directions, V).max() < 0.2 * angle(model.directions, V).max()
    assert held_out_error(moved.model, context.samples)[0] < 0.2 * held_out_error(held.model, context.samples)[0]


@pytest.mark.parametrize(("response", "rough"), [(lambda z: np.sin(9.0 * z), False), (lambda z: 0.0 * z, True)])
def test_held_out_points_choose_the_roughness_weight(response, rough):
    rng = np.random.default_rng(0)
    context, _, _ = fit_context(lambda X: response(X @ V[0]) + 0.3 * rough * rng.standard_normal(len(X)), 3, 300, V[:1])
    gram = Gram(Model.start(V[:1], RADIUS, 64, 1), *context.samples.train)
    chosen = context.choose_smoothing(gram)
    weights = (STRONG_SMOOTHING, MEDIUM_SMOOTHING, WEAK_SMOOTHING)
    errors = [held_out_error(gram.solve(weight).model, context.samples)[0] for weight in weights]
    assert held_out_error(chosen.model, context.samples)[0] == min(errors)
    assert context.memory.smoothing == weights[int(np.argmin(errors))]
    assert (context.memory.smoothing == STRONG_SMOOTHING) is rough


def test_an_evaluation_is_that_of_held_out_points():
    context, said, _ = fit_context(two, 3, 800, V, FitGoal(error=1e-2, noise=1e-13))
    fit = levenberg_marquardt(start(), *context.samples.train, LMOptions(steps=0))
    now = context.evaluate(fit)
    X, Y = context.samples.held_out
    error = Y - fit.model.predict(X)
    assert now.rms == pytest.approx(np.sqrt(np.mean(error**2)))
    assert now.sup == np.abs(error).max()
    assert now.meets_goal
    assert not now.directions_as_proposed
    assert [detail for _, detail in said] == [True]
    strict = evaluate(fit, context.samples, FitGoal(error=1e-9, noise=0.0))
    assert (strict.rms, strict.sup, strict.meets_goal) == (now.rms, now.sup, False)


def test_errors_say_what_limits_a_fit():
    context, _, _ = fit_context(two, 3, 400, V, FitGoal(error=1e-2, noise=0.1))
    scale = float(np.std(context.samples.train[1]))
    assert context.are_directions_nearly_right(0.04 * scale)
    assert not context.are_directions_nearly_right(0.06 * scale)
    assert context.is_noise_limited(0.19)
    assert not context.is_noise_limited(0.21)
    fit = Fitted(levenberg_marquardt(start(), *context.samples.train).linear, 0.0, 0, True)
    X, Y = context.samples.train
    assert context.training_rms(fit) == pytest.approx(np.sqrt(np.mean((Y - fit.model.predict(X)) ** 2)))


def test_a_model_with_thousands_of_unknowns_is_expensive():
    assert not is_expensive(start())
    assert is_expensive(start(intervals=1300))
