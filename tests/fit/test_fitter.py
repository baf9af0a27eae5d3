"""From directions that are a little off, among as many that are wrong, to the true ones and no others."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from fit_cases import RADIUS, candidates, fit_context
from ridgescope.fit import fitter
from ridgescope.fit.context import FitContext, FitGoal
from ridgescope.fit.fitter import Fitter, restart_weakest, retry_dropped
from ridgescope.fit.knots import extensions
from ridgescope.fit.levenberg_marquardt import LMOptions, levenberg_marquardt
from ridgescope.fit.model import Model
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.geometry import in_ball, random_directions, unit


def fitter_of(target, seed=0, allowance=np.inf, say=None, **goal):
    """(a fitter for a planted target, the list of points it asks, f's standard deviation)."""
    rng, asked = np.random.default_rng(seed), []

    def ask(X):
        asked.append(X)
        return np.asarray(target(X)).reshape(len(X), -1)

    scale = float(np.std(target.clean(in_ball(1000, target.dim, RADIUS, rng)), axis=0).mean())
    noise = max(target.noise / np.sqrt(3), 1e-13)
    wanted = FitGoal(**{"error": 2e-3 * scale, "noise": noise, "restarts": 3, **goal})
    rest = {} if say is None else {"say": say}
    fitter = Fitter(ask, Samples(target.dim, RADIUS), wanted, rng, lambda: allowance - sum(map(len, asked)), **rest)
    return fitter, asked, scale


def fit(target, directions, kinks=None, **options):
    """(outcome, points asked, f's standard deviation) of a fit from these directions."""
    fitter, asked, scale = fitter_of(target, **options)
    model = Model.start(directions, RADIUS, 16, target.outputs or 1)
    if kinks is not None:
        model = model.reshaped(model.intervals, kinks)
    return fitter.fit(model, new=len(directions)), np.concatenate(asked), scale


def recovery(case, seed):
    target = rs.targets.CASES[case].make(seed)
    rng = np.random.default_rng(seed + 100)
    goal = {"error": 1e-5} if case == "relu" else {}  # fine knots will not do: kinks are what is asked for
    result, _, scale = fit(target, candidates(target.directions, 0.3, rng), seed=seed, **goal)
    return rs.match(result.model.directions, target.directions), result, scale


@pytest.mark.parametrize("seed", [0])
def test_small_is_recovered_from_rough_directions_among_false_ones(seed):
    match, result, scale = recovery("small", seed)
    assert len(match.missed) == 0
    assert len(match.false) == 0
    assert match.angles.max() < 1e-2
    assert result.rms < 1e-2 * scale


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", ["small", "mixed", "superposed", "relu", "vector"])
def test_cases_are_recovered_from_rough_directions_among_false_ones(case, seed):
    match, result, scale = recovery(case, seed)
    assert len(match.false) == 0, str(match)
    assert match.angles.max() < (1e-6 if case == "relu" else 1e-3), str(match)
    assert result.sup < 1e-2 * scale


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "seed"),
    [*(("mixed", seed) for seed in (4, 20, 21, 22, 23)), *(("dense", seed) for seed in (40, 41, 42, 43, 44))],
)
def test_smooth_features_are_recovered_from_random_starts(name, seed):
    """Nothing but 1.5 n random directions, at most 20 queries for each of n(d+16) parameters."""
    case = rs.targets.CASES[name]
    target = rs.targets.planted(case.dim, case.features, rs.targets.SMOOTH, rng=seed)
    starts = random_directions(int(1.5 * case.features), case.dim, np.random.default_rng(seed + 7))
    result, asked, _ = fit(target, starts, seed=seed, allowance=20 * target.parameters, per_unknown=8, restarts=4)
    match = rs.match(result.model.directions, target.directions)
    assert match.angles.max() < 1e-2, str(match)
    assert len(match.false) == 0
    assert len(asked) <= 20 * target.parameters


def four_of_five():
    """A context, the fit of four of five features, and the target."""
    target = rs.targets.planted(4, 5, ("tanh", "sine", "bump"), rng=3)
    context, _, _ = fit_context(target, 4, 800, target.directions, FitGoal(1e-3, 1e-13, restarts=3))
    four = Model.start(target.directions[:4], RADIUS, 16, 1)
    return context, context.evaluate(levenberg_marquardt(four, *context.samples.train, LMOptions(steps=0))), target


def test_a_pruned_direction_is_retried_once_little_else_is_left():
    context, kept, target = four_of_five()
    context.memory.pruned.append(target.directions[4:])
    again = retry_dropped(context, kept)
    assert again.model.count == 5
    assert again.rms < 0.1 * kept.rms
    assert rs.match(again.model.directions, target.directions).angles.max() < 1e-2


def test_a_pruned_direction_that_the_model_has_already_is_not_retried():
    context, kept, target = four_of_five()
    assert retry_dropped(context, kept) is kept
    context.memory.pruned.append(target.directions[:1])
    assert retry_dropped(context, kept) is kept


def test_pruned_directions_are_retried_although_the_others_are_nearly_right(monkeypatch):
    context, kept, target = four_of_five()
    whole = Model.start(target.directions, RADIUS, 16, 1)
    five = context.evaluate(levenberg_marquardt(whole, *context.samples.train, LMOptions(steps=0)))
    monkeypatch.setattr(FitContext, "are_directions_nearly_right", lambda self, rms: True)
    monkeypatch.setattr(fitter, "retry_dropped", lambda context, best: five)
    monkeypatch.setattr(fitter, "split_features", lambda context, best: best)
    assert fitter._moved(context, kept, 0).model.count == 5


@pytest.mark.heavy
def test_a_feature_that_the_search_missed_is_found_by_the_fit():
    case = rs.targets.CASES["extreme"]
    target = case.make(3106)
    found = rs.extract(target, dim=target.dim, radius=case.radius, rng=3106)
    assert found.certificate.met
    assert rs.match(found.directions, target.directions).angles.max() < 2e-3


def test_random_restarts_help_where_two_features_share_one_direction():
    context, _, target = four_of_five()
    double = unit(target.directions[3:4] + 0.3 * target.directions[:1])
    model = Model.start(np.concatenate([target.directions[:4], double]), RADIUS, 16, 1)
    stalled = context.evaluate(levenberg_marquardt(model, *context.samples.train, LMOptions(steps=0)))
    assert restart_weakest(context, stalled).rms < 0.5 * stalled.rms


def test_directions_that_suffice_as_proposed_are_said_to():
    target = rs.targets.planted(3, 2, ("tanh", "sine"), rng=0)
    fitter, _, _ = fitter_of(target)
    exact = fitter.fit(Model.start(target.directions, RADIUS, 16, 1), new=2)
    assert exact.meets_goal
    assert exact.directions_as_proposed
    again = fitter.refit_with_more_points(exact.model, keep_directions=True)
    assert again.directions_as_proposed
    assert not fitter.refit_with_more_points(exact.model).directions_as_proposed
    rough = unit(target.directions + 0.1 * random_directions(2, 3, np.random.default_rng(1)))
    assert not fitter_of(target)[0].fit(Model.start(rough, RADIUS, 16, 1), new=2).directions_as_proposed


def test_directions_with_coarse_knots_are_not_taken_for_guesses():
    places = np.random.default_rng(0).uniform(-1.0, 1.0, 20)
    bells = [lambda z, at=at: 1.0 / (1.0 + (3.0 * (z - at)) ** 2) for at in places]  # of no family that fits know
    target = rs.targets.planted(10, 20, bells, rng=0)
    fitter, _, scale = fitter_of(target)
    result = fitter.fit(Model.start(target.directions, RADIUS, 16, 1), new=20)
    assert result.meets_goal, f"sup {result.sup / scale:.1e}"
    assert result.directions_as_proposed


def test_a_refit_adds_points_and_keeps_the_set_of_features():
    target = rs.targets.planted(3, 3, ("tanh", "sine", "bump"), rng=2)
    fitter, asked, _ = fitter_of(target)
    start = Model.start(unit(target.directions + 1e-2), RADIUS, 16, 1)
    ask_along(fitter.ask, fitter.samples, target.directions, 400, fitter.rng)
    again = fitter.refit_with_more_points(start)
    assert [len(X) for X in asked[:2]] == [400, 40]
    assert again.model.count == 3
    assert rs.match(again.model.directions, target.directions).angles.max() < 2e-3


def test_a_fit_says_in_a_few_plain_lines_what_it_does_and_the_rest_as_detail():
    said = []
    target = rs.targets.planted(3, 2, ("tanh", "sine"), rng=0)
    fitter, _, _ = fitter_of(target, say=lambda text, detail=False: said.append((text, detail)))
    result = fitter.fit(Model.start(candidates(target.directions, 0.1, fitter.rng), RADIUS, 16, 1), new=4)
    plain = [text for text, detail in said if not detail]
    assert len(plain) == 2
    assert f"{result.rms:.1e}" in plain[1]
    assert len(said) > len(plain)


@pytest.mark.parametrize("outputs", [None, pytest.param(6, marks=pytest.mark.heavy)])
def test_many_alike_get_as_fine_knots_as_they_need(outputs):
    target = rs.targets.planted(6, 32, ("gelu",), outputs=outputs, rng=2)
    result, _, scale = fit(target, target.directions, error=1e-3, noise=1e-13)
    assert result.meets_goal, f"sup {result.sup / scale:.1e}"
    assert (result.model.intervals > 16).mean() > 0.3


def test_of_many_alike_all_get_finer_knots_where_none_stands_out(monkeypatch):
    monkeypatch.setattr("ridgescope.fit.knots.extensions", lambda *a, **k: [])
    target = rs.targets.planted(10, 36, ("gelu",), outputs=6, rng=2)
    result, _, scale = fit(target, target.directions, error=1e-3, noise=1e-13)
    assert result.meets_goal, f"sup {result.sup / scale:.1e}"
    assert (result.model.intervals > 16).mean() > 0.9


def test_every_question_lies_in_the_ball():
    target = rs.targets.planted(3, 2, ("tanh", "sine"), rng=0)
    _, asked, _ = fit(target, target.directions)
    assert np.linalg.norm(asked, axis=1).max() <= RADIUS * (1 + 1e-12)


@pytest.mark.parametrize("allowance", [40, 100, 400])
def test_the_allowance_is_kept(allowance):
    target = rs.targets.planted(3, 2, ("tanh", "sine"), rng=0)
    _, asked, _ = fit(target, candidates(target.directions, 0.1, np.random.default_rng(50)), allowance=allowance)
    assert len(asked) <= allowance


def test_the_figures_are_those_of_the_model():
    """Fresh points agree with what the held-out ones said."""
    target = rs.targets.planted(3, 3, ("tanh", "bump"), rng=2)
    result, _, _ = fit(target, target.directions)
    X = in_ball(4000, 3, RADIUS, np.random.default_rng(9))
    rms = np.sqrt(np.mean((target.clean(X) - result.model.predict(X)[:, 0]) ** 2))
    assert result.meets_goal
    assert rms < 3.0 * result.rms


def test_relus_with_their_kinks_known_roughly_are_fitted_to_nearly_machine_precision():
    target = rs.targets.planted(4, 3, ("relu",), rng=0)
    V = unit(target.directions + 0.02 * np.random.default_rng(51).standard_normal(target.directions.shape))
    kinks = tuple(np.array([drawn.parameters["at"] + 0.03]) for drawn in target.drawn)
    result, _, scale = fit(target, V, kinks=kinks)
    assert [len(t) for t in result.model.kinks] == [1, 1, 1]
    assert result.sup < 1e-6 * scale
    for drawn, t in zip(target.drawn, result.model.kinks, strict=True):
        assert t[0] == pytest.approx(drawn.parameters["at"], abs=1e-6)


def test_structure_that_some_of_the_points_do_not_show_is_found_in_all_of_them(monkeypatch):
    """A scan of fifty points shows no structure; finer knots or kinks come from a scan of all."""
    seen = []

    def only_among_many(model, X, residual):
        seen.append(len(X))
        return extensions(model, X, residual) if len(X) > 200 else []

    monkeypatch.setattr("ridgescope.fit.context.SCAN_POINTS", 50)
    monkeypatch.setattr("ridgescope.fit.knots.extensions", only_among_many)
    target = rs.targets.planted(3, 2, ("relu",), rng=0)
    result, _, scale = fit(target, candidates(target.directions, 0.1, np.random.default_rng(51)))
    assert min(seen) < 200 < max(seen)
    assert result.model.intervals.max() > 16 or any(len(t) for t in result.model.kinks)
    assert result.sup < 1e-2 * scale


@pytest.mark.heavy
def test_relus_get_kinks_of_their_own():
    """Finer knots alone would need thousands of them."""
    target = rs.targets.planted(4, 3, ("relu",), rng=0)
    result, _, scale = fit(target, candidates(target.directions, 0.1, np.random.default_rng(51)))
    assert all(len(t) for t in result.model.kinks)
    assert result.sup < 1e-5 * scale


def test_one_direction_given_twice_is_found_once():
    target = rs.targets.planted(3, 2, ("tanh", "sine"), rng=1)
    twice = np.concatenate([target.directions, unit(target.directions + 0.05)])
    result, _, _ = fit(target, twice)
    assert result.model.count == 2


def test_false_directions_alone_leave_nothing_false_under_noise():
    """An affine function in noise: no candidate helps."""
    target = rs.targets.planted(3, 0, noise=0.3, rng=0)
    result, _, _ = fit(target, random_directions(4, 3, np.random.default_rng(0)), error=0.0)
    assert result.model.count == 0
