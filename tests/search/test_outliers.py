"""Gradients of the residual at its largest values, on residuals that are known exactly."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.geometry import Floats, angle, in_ball, random_directions
from ridgescope.search import Outliers, Setting, run_proposer

RADIUS, DIM = 3.0, 12


def setting_for(residual, points, **options):
    order = np.argsort(-np.linalg.norm(residual(points), axis=1))[:100]
    std = float(np.std(residual(points)))
    return Setting(points.shape[1], 1, RADIUS, RADIUS, std, 1e-12, 3.0, worst=points[order], **options)


def proposed(residual, points, rng, **options):
    proposer, setting = Outliers(), setting_for(residual, points, **options)
    return run_proposer(proposer, residual, setting, queries=proposer.cost(setting), rng=rng)


def far_bends(directions, bends):
    """Return Σ expm1(−(v·x + t)) where v·x < −t, and its 1e-3 of waves that a model may leave of other features."""

    def residual(X: Floats) -> Floats:
        z = X @ directions.T + bends
        rest = 1e-3 * np.sin(4.0 * X).sum(axis=1)
        return np.asarray((np.expm1(np.maximum(-z, 0.0)).sum(axis=1) + rest)[:, None])

    return residual


@pytest.mark.parametrize("seed", range(3))
def test_features_that_bend_far_out_are_found(seed):
    rng = np.random.default_rng(seed)
    directions = random_directions(3, DIM, rng)
    found = proposed(far_bends(directions, 1.5), in_ball(4000, DIM, RADIUS, rng), rng)
    assert len(found.directions) == 3
    assert angle(found.directions[:, None], directions).min(axis=1).max() < 0.1
    assert found.only
    assert found.queries <= 2 * DIM * 40


def test_a_direction_that_the_model_has_is_not_proposed():
    rng = np.random.default_rng(0)
    directions = random_directions(2, DIM, rng)
    found = proposed(far_bends(directions, 1.5), in_ball(4000, DIM, RADIUS, rng), rng, directions=directions[:1])
    assert len(found.directions) == 1
    assert angle(found.directions[0], directions[1]) < 0.1


def test_gradients_that_do_not_agree_propose_nothing():
    rng = np.random.default_rng(0)
    dense = random_directions(60, DIM, rng)
    found = proposed(lambda X: np.sin(3.0 * X @ dense.T).sum(axis=1)[:, None], in_ball(4000, DIM, RADIUS, rng), rng)
    assert len(found.directions) == 0
    assert not found.applies
    assert not found.only


def test_lost_answers_are_left_out():
    rng = np.random.default_rng(0)
    directions = random_directions(1, DIM, rng)
    residual = far_bends(directions, 1.5)
    points = in_ball(4000, DIM, RADIUS, rng)
    setting = setting_for(residual, points)

    def lossy(X: Floats) -> Floats:
        values = residual(X)
        values[:: 2 * DIM * 3] = np.nan
        return values

    found = run_proposer(Outliers(), lossy, setting, queries=5000, rng=rng)
    assert angle(found.directions[0], directions[0]) < 0.1


@pytest.mark.parametrize("dim", [1, 5])
def test_a_few_dimensions_are_left_to_other_proposers(dim):
    rng = np.random.default_rng(0)
    found = proposed(far_bends(random_directions(1, dim, rng), 1.5), in_ball(400, dim, RADIUS, rng), rng)
    assert found.queries == 0
    assert not found.applies
