"""Features that noise hides: found where they are, and not where they are not."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.fit.context import FitContext, FitGoal
from ridgescope.fit.levenberg_marquardt import LMOptions, levenberg_marquardt
from ridgescope.fit.model import Model
from ridgescope.fit.noise_limited import fit_below_noise, hidden_directions
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.geometry import in_ball, random_directions

RADIUS, NOISE = 3.0, 0.1
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (1, 2, 3, 4))]


def begun(target, directions, points=3000, error=1e-2, allowance=np.inf, seed=0):
    """A context for `target` under noise, the fit of these directions, and f's deviation, by which it is divided."""
    rng, asked = np.random.default_rng(seed), []
    scale = float(target.clean(in_ball(2000, target.dim, RADIUS, rng)).std())

    def ask(X):
        asked.append(X)
        return target.clean(X)[:, None] / scale + NOISE * rng.standard_normal((len(X), 1))

    samples = Samples(target.dim, RADIUS)
    context = FitContext(ask, samples, FitGoal(error, NOISE), rng, lambda: allowance - sum(map(len, asked)))
    ask_along(ask, samples, directions, points, rng)
    model = Model.start(directions, RADIUS, 16, 1)
    return context, levenberg_marquardt(model, *samples.train, LMOptions(smoothing=context.memory.smoothing)), scale


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_feature_is_seen_in_what_is_left(seed):
    target = rs.targets.planted(5, 5, ("tanh", "sine", "bump"), rng=seed)
    context, fitted, _ = begun(target, target.directions[:4], points=6000, seed=seed)
    found = hidden_directions(context, fitted.model)
    assert np.abs(found @ target.directions[4]).max() > np.cos(0.3)


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_alone_adds_no_feature(seed):
    target = rs.targets.planted(4, 3, ("tanh", "sine"), rng=seed)
    context, fitted, _ = begun(target, target.directions, seed=seed)
    assert fit_below_noise(context, fitted, False).model.count == 3


def test_what_only_fitted_the_noise_goes():
    target = rs.targets.planted(4, 3, ("tanh", "sine"), rng=6)
    false = random_directions(3, 4, np.random.default_rng(0))
    context, fitted, _ = begun(target, np.concatenate([target.directions, false]), points=1500)
    match = rs.match(fit_below_noise(context, fitted, False).model.directions, target.directions)
    assert len(match.false) == 0
    assert match.angles.max() < 0.02


def test_points_are_asked_until_noise_leaves_little():
    target = rs.targets.planted(4, 3, ("tanh", "sine"), rng=5)
    context, fitted, scale = begun(target, target.directions, error=2e-3)
    model = fit_below_noise(context, fitted, False).model
    X = in_ball(4000, 4, RADIUS, np.random.default_rng(9))
    error = model.predict(X)[:, 0] - target.clean(X) / scale
    assert context.samples.count > 300 * (model.columns + model.count * (model.dim - 1))
    assert np.sqrt(np.mean(error**2)) < 0.07 * NOISE


def test_an_allowance_that_is_spent_ends_it():
    target = rs.targets.planted(4, 3, ("tanh", "sine"), rng=5)
    context, fitted, _ = begun(target, target.directions, points=1000, allowance=3000)
    assert fit_below_noise(context, fitted, False).model.count == 3
    assert context.samples.count == 3000


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(5))
def test_all_features_come_back_under_noise_of_a_tenth(seed):
    bare = rs.targets.planted(6, 6, rng=seed)
    deviation = float(bare.clean(in_ball(4000, 6, RADIUS, np.random.default_rng(seed))).std())
    target = rs.targets.planted(6, 6, noise=np.sqrt(3.0) * 0.1 * deviation, rng=seed)
    found = rs.extract(target, radius=RADIUS, rng=seed)
    match = rs.match(found.directions, target.directions)
    assert match.angles.max() < 0.1, str(match)
    assert len(match.false) == 0
    assert found.certificate.met
