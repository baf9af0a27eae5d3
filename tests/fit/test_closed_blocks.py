"""Blocks of coupled features, and the last steps of closed forms that they precondition."""

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.fit import closed_blocks, closed_steps
from ridgescope.fit.activations import INDEX
from ridgescope.fit.closed_blocks import coupled_groups, couplings
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_steps import minimise_to_rounding
from ridgescope.geometry import in_ball, random_directions, unit

DIM, COUNT, TWINS, OUTPUTS = 20, 48, 14, 12


def layer(seed):
    """Return the true forms of a layer in which some features listen and write to nearly the same, and its data."""
    rng = np.random.default_rng(seed)
    V, c = random_directions(COUNT, DIM, rng), random_directions(COUNT, OUTPUTS, rng)
    V[:TWINS] = unit(V[0] + 0.1 * random_directions(TWINS, DIM, rng))
    c[:TWINS] = 0.15 * unit(c[0] + 0.6 * random_directions(TWINS, OUTPUTS, rng))
    forms = replace(
        ClosedForms.blank(V, 4.0, 8, OUTPUTS),
        family=np.full(COUNT, INDEX["silu"], np.intp),
        kappa=rng.uniform(5.0, 12.0, COUNT),
        b=rng.uniform(-1.0, 1.0, COUNT),
        coefficients=np.concatenate([c, np.zeros((DIM + 1, OUTPUTS))]),
    )
    X = in_ball(1000, DIM, 4.0, rng)
    return forms, Data(X, forms.predict(X)), rng


def angles(found, true):
    return np.arcsin(np.linalg.norm(found - np.einsum("nd,nd->n", found, true)[:, None] * true, axis=1))


@pytest.mark.parametrize("seed", range(3))
def test_coupled_features_converge_to_rounding_in_three_steps(seed, monkeypatch):
    true, data, rng = layer(seed)
    start = replace(true, directions=unit(true.directions + 1e-6 * random_directions(COUNT, DIM, rng)))
    monkeypatch.setattr(closed_steps, "_LAST_STEPS", 3)
    monkeypatch.setattr(closed_steps, "_LAST_CG_STEPS", 60)
    found = minimise_to_rounding(Solved.of(start, data), target=0.0)
    assert angles(found.forms.directions, true.directions).max() < 1e-9
    monkeypatch.setattr(closed_steps, "coupled_groups", lambda solved: ())
    alone = minimise_to_rounding(Solved.of(start, data), target=0.0)
    assert angles(alone.forms.directions, true.directions).max() > 1e-9


def test_groups_hold_the_coupled_features_and_are_bounded(monkeypatch):
    true, data, _ = layer(1)
    solved = Solved.of(true, data)
    (group,) = coupled_groups(solved)
    assert set(range(TWINS)) <= set(group.which)
    monkeypatch.setattr(closed_blocks, "_MAX_UNKNOWNS", 5 * (DIM + 1))
    assert all(len(group.which) <= 5 for group in coupled_groups(solved))
    assert couplings(solved)[:TWINS, :TWINS].max() > 0.5


def test_a_group_is_its_part_of_the_whole_matrix():
    true, data, rng = layer(2)
    solved = Solved.of(true, data)
    (group,) = coupled_groups(solved)
    w = np.zeros((COUNT, DIM + 1))
    w[group.which] = rng.standard_normal((len(group.which), DIM + 1))
    image = closed_steps.Free(solved)._normal(closed_steps.Turn(w), np.zeros(1)).w
    assert np.allclose(group.solve(image[group.which]), w[group.which], rtol=1e-4, atol=1e-4)
