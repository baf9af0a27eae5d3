"""Directions that searches know better than a fit: stated errors hold, and features return to where they were seen."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from loop import make_state
from ridgescope.fit.context import evaluate
from ridgescope.fit.errorbars import ErrorBars
from ridgescope.fit.levenberg_marquardt import LMOptions, levenberg_marquardt
from ridgescope.fit.model import Model
from ridgescope.fit.samples import ask_along
from ridgescope.geometry import Floats, angle, unit
from ridgescope.known_directions import KnownDirections, restore_directions
from ridgescope.search import Candidates
from ridgescope.state import State
from ridgescope.targets import CASES

FIXED = LMOptions(steps=0)


def found_by_search(name: str, seed: int) -> tuple[Candidates, Floats]:
    """Return the candidates of the first round, and the angle of each to the closest true direction."""
    target, seen = CASES[name].make(seed), []

    def fit(state: State, candidates: Candidates) -> None:
        seen.append(candidates)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "fit", fit)
        with pytest.raises(rs.Interrupted):
            rs.extract(target, dim=target.dim, radius=CASES[name].radius, rng=seed)
    V = seen[0].directions
    own = np.abs(V @ target.directions.T).argmax(axis=1)
    return seen[0], angle(V, target.directions[own])


@pytest.mark.parametrize(("name", "seed"), [("twins", 9102), ("twins", 7412), ("mixed", 7401), ("superposed", 7402)])
def test_searches_state_errors_that_hold(name, seed):
    candidates, off = found_by_search(name, seed)
    assert len(candidates.angle_errors) == len(off)
    assert (off <= 2.0 * candidates.angle_errors).all()
    assert np.median(candidates.angle_errors) < 1e-4


@pytest.mark.parametrize("seed", [9102, 7406, 7412])
def test_close_pairs_are_known_as_well_as_their_second_derivatives_show_them(seed):
    target = CASES["twins"].make(seed)
    found = rs.extract(target, dim=target.dim, radius=CASES["twins"].radius, rng=seed)
    match = rs.match(found.directions, target.directions)
    bars = np.array([f.angle_error for f in found.features])[match.partner]
    assert found.certificate.met
    assert match.angles.max() < 5e-5
    assert (match.angles <= 3.0 * bars).all()
    assert bars.max() < 2e-4


def turned_fit(by: float) -> tuple[State, Floats]:
    """Return a state with coarse splines along directions that are off by so much, and the true directions."""
    target = CASES["twins"].make(1)
    state = make_state(target, target.dim, seed=1)
    state.run_survey()
    state.fit_affine()
    rng, V = np.random.default_rng(0), target.directions
    aside = rng.standard_normal(V.shape)
    aside = unit(aside - np.sum(aside * V, axis=1)[:, None] * V)
    ask_along(state.ask("fit"), state.samples, V, 3000, rng)
    model = Model.start(unit(V + by * aside), state.radius, 24, 1)
    state.evaluation = evaluate(levenberg_marquardt(model, *state.samples.train, FIXED), state.samples, state.goal)
    return state, V


def test_features_return_to_where_a_search_saw_them():
    state, V = turned_fit(1e-3)
    state.known = state.known.extended(V, np.full(len(V), 1e-6))
    restore_directions(state)
    np.testing.assert_allclose(angle(state.model.directions, V), 0.0, atol=1e-12)
    assert (state.error_bars().angle <= 1.0001e-6).all()


def test_a_search_that_is_wrong_about_its_errors_is_not_believed():
    state, V = turned_fit(0.0)
    wrong = turned_fit(2e-3)[0].model.directions
    state.known = state.known.extended(wrong, np.full(len(V), 1e-9))
    restore_directions(state)
    np.testing.assert_allclose(angle(state.model.directions, V), 0.0, atol=1e-12)


def test_an_error_bar_is_no_larger_than_what_a_search_knows():
    known = KnownDirections.none().extended(np.eye(3)[:2], np.array([1e-6, np.inf]))
    assert len(known.errors) == 1
    bars = ErrorBars(np.full(3, 1e-3), np.full(3, 1e-6), ())
    V = np.eye(3)
    V[0] = -np.array([np.cos(1e-4), np.sin(1e-4), 0.0])
    sharp = known.sharpened(bars, V)
    np.testing.assert_allclose(sharp.angle, [1.01e-4, 1e-3, 1e-3], rtol=1e-6)
    np.testing.assert_allclose(sharp.mean_square_angle[0], 1.01e-4**2, rtol=1e-6)


def test_one_known_direction_belongs_to_the_closest_feature_only():
    known = KnownDirections(np.eye(2)[:1], np.array([1e-6]))
    V = np.array([[1.0, 0.0], [np.cos(0.05), np.sin(0.05)]])
    assert list(np.isfinite(known.nearest(V)[1])) == [True, False]


def test_nothing_is_known_before_a_search():
    bars = ErrorBars(np.ones(2), np.ones(2), ())
    assert KnownDirections.none().sharpened(bars, np.eye(2)) is bars
    assert KnownDirections.none().extended(np.eye(2), np.empty(0)).errors.size == 0
