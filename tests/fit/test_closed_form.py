"""Closed forms: the families are what they say, the joint fit finds them, and what has none keeps its spline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

import ridgescope as rs
from ridgescope.fit import closed_bars
from ridgescope.fit.activations import ACTIVATIONS, INDEX, MAX_KAPPA, ONE_SIDED, SPLINE, as_spline
from ridgescope.fit.closed_bars import closed_error_bars
from ridgescope.fit.closed_fit import refine_splines
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_starts import Trial
from ridgescope.fit.closed_steps import Along, minimise
from ridgescope.fit.context import FitContext, FitGoal
from ridgescope.fit.errorbars import GRID
from ridgescope.fit.fitter import Fitter
from ridgescope.fit.model import Model
from ridgescope.fit.placing import CoarseResponses
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.geometry import along, angle, in_ball, random_directions, unit
from ridgescope.shapes.families import point_count, sample_points

RADIUS = 3.0
FORMS = {
    "gelu": lambda y: y * ndtr(y),
    "tanh": np.tanh,
    "relu": lambda y: np.maximum(y, 0.0),
    "chirp": lambda y: np.sin(2.0 * y + 1.5 * y * y),
    "wavelet": lambda y: np.cos(2.0 * y) * np.exp(-0.5 * y * y),
}


class Layer:
    """f(x) = Σ φ_i(w_i·x + b_i) c_i with rows like those of a network."""

    def __init__(self, names, dim, outputs, seed=0, steepness=1.0):
        rng = np.random.default_rng(seed)
        n = len(names)
        self.names, self.dim = names, dim
        self.directions = random_directions(n, dim, rng)
        self.kappa = RADIUS * steepness * rng.uniform(0.7, 1.4, n)
        self.b = rng.uniform(-0.5, 0.5, n)
        self.c = rng.standard_normal((n, outputs)) / np.sqrt(n)

    def __call__(self, X):
        y = (X @ self.directions.T) * (self.kappa / RADIUS) + self.b
        return np.stack([FORMS[name](y[:, i]) for i, name in enumerate(self.names)], axis=1) @ self.c

    def data(self, points, seed=1, noise=0.0):
        """(X, Y) along the features."""
        rng = np.random.default_rng(seed)
        n = len(self.names)
        X = along(self.directions, np.arange(points) % n, RADIUS * rng.uniform(-1, 1, points), RADIUS, rng)
        Y = self(X)
        return X, Y + noise * rng.standard_normal(Y.shape)

    def forms(self, directions, kappa, b=0.0, family=None):
        n, p = self.c.shape
        index = np.full(n, INDEX[family or self.names[0]], np.intp)
        empty = np.zeros((n + 1 + self.dim, p))
        return ClosedForms(RADIUS, directions, index, np.full(n, 1.0) * kappa, np.full(n, 1.0) * b, 8, empty)


def fitted(layer, directions, tolerance=1e-3, kinks=None, noise=1e-15):
    """(the fit of these candidate directions, the points asked); tolerance and noise are relative."""
    asked, rng = [], np.random.default_rng(5)
    std = float(np.std(layer(in_ball(1000, layer.dim, RADIUS, rng))))

    def ask(X):
        asked.append(X)
        return layer(X) + noise * std * np.random.default_rng(len(X)).standard_normal((len(X), layer.c.shape[1]))

    goal = FitGoal(error=tolerance * std, noise=noise * std)
    model = Model.start(directions, RADIUS, 16, layer.c.shape[1])
    if kinks is not None:
        model = model.reshaped(model.intervals, kinks)
    return Fitter(ask, Samples(layer.dim, RADIUS), goal, rng).fit(model, new=len(directions)), np.concatenate(asked)


# -- one response -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ACTIVATIONS, ids=lambda f: f.name)
def test_slope_is_the_derivative(family):
    y, h = np.linspace(-3.03, 2.98, 41), 1e-5
    value, slope = family.atom(y)
    quotient = (family.atom(y + h)[0] - family.atom(y - h)[0]) / (2.0 * h)
    np.testing.assert_allclose(slope, quotient, atol=1e-8)
    assert value.shape == y.shape


@pytest.mark.parametrize("family", ACTIVATIONS, ids=lambda f: f.name)
def test_sign_is_a_gauge_except_for_one_sided_families(family):
    y = np.linspace(-3.0, 3.0, 61)
    value, mirrored = family.atom(y)[0], family.atom(-y)[0]
    line = np.stack([np.ones_like(y), y], axis=1)

    def bend(values):
        return np.abs(values - line @ np.linalg.lstsq(line, values, rcond=None)[0]).max()

    assert (min(bend(mirrored - value), bend(mirrored + value)) > 1e-2) == (family.name in ONE_SIDED)


@pytest.mark.parametrize(("name", "kappa", "b"), [("relu", 1.0, 0.3), ("clip", -3.0, 0.4), ("triangle", 9.0, 1.0)])
def test_kinked_forms_become_exact(name, kappa, b):
    coefficients, t, weight = as_spline(INDEX[name], kappa, b, 1e-12)
    assert len(coefficients) == 8 + 3
    assert len(t) == {"relu": 1, "clip": 2, "triangle": 6}[name]
    model = Model(1.0, np.ones((1, 1)), np.array([8]), (t,), np.concatenate([coefficients, weight, [0, 0]])[:, None])
    u = np.linspace(-1.0, 1.0, 333)
    np.testing.assert_allclose(
        model.predict(u[:, None])[:, 0], ACTIVATIONS[INDEX[name]].atom(kappa * u + b)[0], atol=1e-12
    )


def test_splines_that_stand_for_closed_forms_are_as_exact_as_asked():
    layer = Layer(["gelu"] * 6, 4, 3)
    X, Y = layer.data(200)
    forms = Solved.of(layer.forms(layer.directions, layer.kappa, layer.b), Data(X, Y)).forms
    for error in (1e-4, 1e-7):
        wrong = np.abs(forms.model(error).predict(X) - Y).max()
        assert 1e-3 * error < wrong < 3.0 * error


@pytest.mark.parametrize("name", ["gelu", "tanh", "bump", "softplus"])
def test_coarse_responses_show_where_a_family_starts(name):
    family, u = INDEX[name], sample_points(point_count(16)).u
    kappa, b = np.array([3.0, 5.0, -4.0]), np.array([0.5, -1.0, 0.2])
    values = ACTIVATIONS[family].atom(kappa[:, None] * u + b[:, None])[0][:, :, None] * [1.0, -2.0]
    start = CoarseResponses.of(values, 16).start([family])
    sign = np.sign(kappa)
    np.testing.assert_allclose(np.abs(start.kappa[0]), np.abs(kappa), rtol=0.05)
    np.testing.assert_allclose(np.sign(start.kappa[0]) * start.b[0], sign * b, atol=0.1)


# -- the joint fit ----------------------------------------------------------------------------------------------


def test_gradient_is_that_of_the_projected_cost():
    layer = Layer(["gelu"] * 5, 4, 3)
    data = Data(*layer.data(150))
    forms = layer.forms(layer.directions, 1.2 * layer.kappa, 0.1)
    gradient, h = Along(Solved.of(forms, data)).gradient, 1e-5
    for i in range(5):
        for at, name in ((i, "kappa"), (5 + i, "b")):
            cost = []
            for sign in (1.0, -1.0):
                moved = {"kappa": forms.kappa.copy(), "b": forms.b.copy()}
                moved[name][i] += sign * h
                changed = ClosedForms(
                    RADIUS, forms.directions, forms.family, **moved, intervals=8, coefficients=forms.coefficients
                )
                cost.append(Solved.of(changed, data).cost)
            assert -0.5 * (cost[0] - cost[1]) / (2 * h) == pytest.approx(gradient[at], rel=1e-5, abs=1e-9)


def test_no_step_is_tried_that_would_gain_next_to_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    W, X = rng.standard_normal((8, 5)), in_ball(900, 5, 3.0, rng)
    Y = np.tanh(X @ W.T) @ rng.standard_normal((8, 2)) + 1e-3 * rng.standard_normal((900, 2))
    forms = replace(ClosedForms.blank(unit(W), 3.0, 8, 2), family=np.full(8, INDEX["tanh"]), kappa=np.full(8, 3.0))
    gains, matrices = [], []
    make, gain = Along.__init__, Along.next_gain
    monkeypatch.setattr(Along, "__init__", lambda *a: matrices.append(make(*a)))
    monkeypatch.setattr(Along, "next_gain", lambda *a: gains.append(gain(*a)) or gains[-1])
    ended = minimise(Solved.of(forms, Data(X, Y)), steps=25, min_gain=1e-2)
    assert len(matrices) == len(gains)  # the last prediction was of too little
    assert min(gains[:-1]) > 1e-2 > 1e-3 > gains[-1]
    further = minimise(ended, steps=25, min_gain=0.0)
    assert 1.0 - further.cost / ended.cost < 1e-3


def test_one_start_for_all_features_finds_every_norm_and_bias():
    layer = Layer(["gelu"] * 24, 8, 10)
    X, Y = layer.data(8 * 24)
    signs = np.random.default_rng(3).choice([-1.0, 1.0], 24)
    start = Solved.of(layer.forms(signs[:, None] * layer.directions, RADIUS), Data(X, Y))
    found = minimise(start, steps=30).forms
    np.testing.assert_allclose(found.kappa, layer.kappa, rtol=1e-8)
    np.testing.assert_allclose(signs * found.b, layer.b, atol=1e-8)
    fresh = in_ball(200, 8, RADIUS, np.random.default_rng(4))
    np.testing.assert_allclose(found.predict(fresh), layer(fresh), atol=1e-8)


@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_free_directions_converge_to_the_last_digits(name):
    layer = Layer([name] * 12, 6, 4)
    rough = unit(layer.directions + 1e-3 * np.random.default_rng(2).standard_normal((12, 6)))
    kappa = 1.0 if name == "relu" else layer.kappa
    start = Solved.of(layer.forms(rough, kappa, layer.b * kappa / layer.kappa), Data(*layer.data(600)))
    found = minimise(start, steps=15, free=True)
    assert angle(rough, layer.directions).max() > 1e-3
    assert angle(found.forms.directions, layer.directions).max() < 1e-9


def test_a_runaway_steepness_is_bounded():
    """A kink is the limit of a SiLU of infinite steepness."""
    layer = Layer(["relu"] * 6, 4, 2)
    start = Solved.of(
        layer.forms(layer.directions, 100.0, 100.0 * layer.b / layer.kappa, "silu"), Data(*layer.data(600))
    )
    found = minimise(start, steps=40, min_gain=0.0)
    assert found.cost < start.cost
    assert np.abs(found.forms.kappa).max() == MAX_KAPPA


def test_error_bars_have_the_size_of_the_errors():
    layer, noise = Layer(["gelu"] * 6, 4, 3, steepness=2.0), 1e-3
    true = layer.forms(layer.directions, layer.kappa, layer.b)
    angles, bars, wrong = [], [], []
    z = np.linspace(-1.0, 1.0, GRID)
    line = np.stack([np.ones(GRID), z], axis=1)

    def responses(forms, c):
        values = ACTIVATIONS[INDEX["gelu"]].atom(np.multiply.outer(z, forms.kappa) + forms.b)[0][:, :, None] * c
        flat = values.reshape(GRID, -1)
        return (flat - line @ np.linalg.lstsq(line, flat, rcond=None)[0]).reshape(values.shape)

    for seed in range(12):
        X, Y = layer.data(400, seed=seed, noise=noise)
        found = minimise(Solved.of(true, Data(X, Y)), steps=6, free=True).forms
        angles.append(angle(found.directions, layer.directions))
        bars.append(closed_error_bars(found, X, Y, noise**2))
        wrong.append(responses(found, found.outputs) - responses(true, layer.c))
    expected = np.sqrt(np.mean([b.mean_square_angle for b in bars]))
    assert np.sqrt(np.mean(np.square(angles))) == pytest.approx(expected, rel=0.25)
    band = np.sqrt(np.mean(np.square([b.band for b in bars])))
    assert np.sqrt(np.mean(np.square(wrong))) == pytest.approx(band, rel=0.25)
    assert 0.8 < np.mean(np.array(angles) < 2.0 * np.array([b.angle for b in bars])) <= 1.0


def test_bands_of_single_features_do_not_depend_on_the_points_that_are_left_out(monkeypatch):
    """Little is left of a change of κ or b beside all other columns, and few points show it badly."""
    rng, n = np.random.default_rng(3), 16
    V, X, kappa, b = (
        unit(rng.standard_normal((n, 6))),
        in_ball(4000, 6, 3.0, rng),
        np.linspace(1.0, 4.0, n),
        rng.random(n),
    )
    Y = np.tanh(X @ (V * (kappa / 3.0)[:, None]).T + b) @ rng.standard_normal((n, 2)) + 1e-3 * rng.standard_normal(
        (4000, 2)
    )
    forms = ClosedForms(3.0, V, np.full(n, INDEX["tanh"]), kappa, b, 10, np.zeros((1, 2)))
    forms = Solved.of(forms, Data(X, Y)).forms
    monkeypatch.setattr(closed_bars, "MAX_JOINT_UNKNOWNS", 0)
    bands = []
    for points in (np.inf, 4.0):
        monkeypatch.setattr(closed_bars, "_POINTS_PER_COLUMN", points)
        bands.append(np.sqrt(np.mean(np.square(closed_error_bars(forms, X, Y, 1e-6).band), axis=(1, 2))))
    np.testing.assert_allclose(bands[1], bands[0], rtol=0.25)


# -- in a fit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gelu", "tanh", "relu"])
def test_fit_finds_the_family_and_drops_a_false_candidate(name):
    layer = Layer([name] * 16, 8, 8)
    false = random_directions(1, 8, np.random.default_rng(9))
    kinks = (*(np.array([-RADIUS * b / k]) for b, k in zip(layer.b, layer.kappa, strict=True)), np.empty(0))
    done, asked = fitted(layer, np.concatenate([layer.directions, false]), kinks=kinks if name == "relu" else None)
    assert done.meets_goal
    assert done.forms is not None
    assert set(done.forms.family) == {INDEX[name]}
    assert done.model.count == 16
    assert len(asked) == 8 * 17  # a third of what splines of so many features ask for first
    assert angle(done.model.directions, layer.directions).max() < 1e-7


def test_a_false_candidate_is_dropped_under_noise():
    layer = Layer(["gelu"] * 16, 8, 8)
    false = random_directions(1, 8, np.random.default_rng(9))
    done, _ = fitted(layer, np.concatenate([layer.directions, false]), tolerance=0.2, noise=0.02)
    assert done.forms is not None
    assert done.model.count == 16
    assert angle(done.model.directions, layer.directions).max() < 0.1


def test_families_may_differ_from_feature_to_feature():
    layer = Layer(["gelu", "tanh"] * 8, 8, 8, steepness=2.0)
    done, _ = fitted(layer, layer.directions)
    assert done.forms is not None
    assert [ACTIVATIONS[k].name for k in done.forms.family] == layer.names


@pytest.mark.parametrize("tolerance", [1e-3, 0.3])
def test_a_feature_of_another_family_is_mended(tolerance):
    layer = Layer(["tanh"] + ["gelu"] * 15, 8, 8, steepness=1.5)
    done, asked = fitted(layer, layer.directions, tolerance)
    assert len(asked) == 8 * 16  # the first attempt, in which all features start as one family
    assert done.forms is not None
    assert [ACTIVATIONS[k].name for k in done.forms.family] == layer.names


def test_a_duplicate_is_dropped():
    layer = Layer(["gelu"] * 12, 8, 8)
    twice = unit(layer.directions[:1] + 1e-9 * np.random.default_rng(1).standard_normal((1, 8)))
    done, _ = fitted(layer, np.concatenate([layer.directions, -twice]))
    assert done.forms is not None
    assert done.model.count == 12


def test_a_feature_without_a_closed_form_keeps_a_spline():
    layer = Layer(["wavelet"] + ["gelu"] * 11, 8, 10, steepness=1.5)
    done, _ = fitted(layer, layer.directions, tolerance=1e-2)
    assert done.meets_goal
    assert done.forms is not None
    assert done.forms.family[0] == SPLINE
    assert np.mean(done.forms.family[1:] == INDEX["gelu"]) > 0.9


def test_without_closed_forms_splines_meet_the_goal():
    layer = Layer(["chirp"] * 6, 6, 8)
    done, _ = fitted(layer, layer.directions, tolerance=1e-2)
    assert done.forms is None
    assert done.meets_goal
    assert done.model.count == 6


@pytest.mark.parametrize("points", [np.inf, 120])
def test_splines_that_go_first_give_way_to_closed_forms(points):
    """Splines of three features with one output meet the goal at once, unless points are too few for finer knots."""
    layer, samples = Layer(["gelu"] * 3, 3, 1, steepness=4.0), Samples(3, RADIUS)
    goal, rng = FitGoal(error=1e-4, noise=1e-15), np.random.default_rng(0)
    fitter = Fitter(layer, samples, goal, rng, lambda: points - samples.count)
    done = fitter.fit(Model.start(layer.directions, RADIUS, 16, 1), new=3)
    assert done.meets_goal
    assert done.forms is not None
    assert done.rms < 1e-8


def test_more_points_refit_the_closed_forms():
    layer = Layer(["gelu"] * 10, 6, 8)
    rng = np.random.default_rng(0)
    samples = Samples(6, RADIUS)
    fitter = Fitter(layer, samples, FitGoal(error=1e-3, noise=1e-15), rng)
    first = fitter.fit(Model.start(layer.directions, RADIUS, 16, 8), new=10)
    again = fitter.refit_with_more_points(first.model, True, first.forms)
    assert again.forms is not None
    assert again.rms < 1e-5
    assert again.directions_as_proposed


def test_splines_among_closed_forms_get_points_of_their_own():
    """80 points are enough for closed forms of eleven features, and too few for a spline of 35 columns beside them."""
    layer, samples = Layer(["wavelet"] + ["gelu"] * 11, 8, 1, steepness=1.5), Samples(8, RADIUS)
    rng = np.random.default_rng(3)
    ask_along(layer, samples, layer.directions, 80, rng)
    context = FitContext(layer, samples, FitGoal(error=1e-3, noise=1e-15), rng, lambda: 1000 - samples.count)
    forms = replace(layer.forms(layer.directions, layer.kappa, layer.b, "gelu"), intervals=32)
    forms.family[0], forms.kappa[0], forms.b[0] = SPLINE, 1.0, 0.0
    trial = Trial.of(context)
    first = Solved.of(forms, trial.data)
    assert not trial.is_met(first)
    trial, best = refine_splines(trial, first)
    assert trial.is_met(best)
    assert best.forms.intervals == 32
    assert samples.count == 80 + 3 * 35


def test_in_a_crowded_space_false_candidates_go_and_families_are_found():
    """30 features in 4 dimensions, the cubes of which are dependent, and three false candidates."""
    target, rng, samples = rs.targets.CASES["extreme"].make(0), np.random.default_rng(0), Samples(4, RADIUS)
    off = unit(target.directions + 1e-4 * rng.standard_normal(target.directions.shape))
    model = Model.start(np.concatenate([off, random_directions(3, 4, rng)]), RADIUS, 16, 1)
    goal = FitGoal(error=2e-3 * float(np.std(target(in_ball(1000, 4, RADIUS, rng)))), noise=1e-15)
    done = Fitter(lambda X: target(X)[:, None], samples, goal, rng).fit(model, new=33)
    assert done.meets_goal
    assert done.forms is not None
    match = rs.match(done.model.directions, target.directions)
    assert len(match.false) == len(match.missed) == 0
    assert np.sum(done.forms.family == SPLINE) == target.kinds.count("fourier")


def test_closed_forms_of_a_wide_layer_wait_for_the_missing_features():
    """Six weak features of sixty are missing: the others keep their family, as those may follow."""
    layer, samples = Layer(["gelu"] * 60, 40, 40), Samples(40, RADIUS)
    layer.c[54:] *= 0.02
    goal, rng = FitGoal(error=1e-4, noise=1e-15), np.random.default_rng(0)
    fitter = Fitter(layer, samples, goal, rng, lambda: 3000 - samples.count)
    done = fitter.fit(Model.start(layer.directions[:54], RADIUS, 16, 40), new=54, others_may_follow=True)
    assert not done.meets_goal
    assert done.forms is not None
    assert done.model.count == 54
