"""Blocks of coupled features, and the last steps of closed forms that they precondition."""

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.fit import closed_blocks, closed_steps
from ridgescope.fit.activations import INDEX
from ridgescope.fit.closed_blocks import coupled_groups, couplings, single_blocks
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_steps import NormalProduct, minimise_to_rounding
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
    image = closed_steps.Free(solved, last=True)._normal(closed_steps.Turn(w), np.zeros(1)).w
    assert np.allclose(group.solve(image[group.which]), w[group.which], rtol=1e-4, atol=1e-4)


def rare_bends(seed):
    """Return ReLUs of which each is active at one to five points in a hundred, with data."""
    rng = np.random.default_rng(seed)
    X = in_ball(4000, DIM, 4.0, rng)
    V, c = random_directions(COUNT, DIM, rng), random_directions(COUNT, OUTPUTS, rng)
    bends = np.quantile(X @ V.T, 1.0 - rng.uniform(0.01, 0.05, COUNT), axis=0).diagonal()
    forms = replace(
        ClosedForms.blank(V, 4.0, 8, OUTPUTS),
        family=np.full(COUNT, INDEX["relu"], np.intp),
        b=-bends / 4.0,
        coefficients=np.concatenate([c, np.zeros((DIM + 1, OUTPUTS))]),
    )
    return Solved.of(forms, Data(X, forms.predict(X))), rng


@pytest.mark.parametrize("seed", range(3))
def test_own_blocks_are_right_to_a_small_factor_where_few_points_lie_beyond_a_bend(seed):
    solved, _ = rare_bends(seed)
    blocks, flat, v = single_blocks(solved), solved.data.flat, solved.forms.directions
    for i in range(0, COUNT, 5):
        D = solved.data.bend(flat * solved.slopes[:, i, None])
        own = np.sum(solved.forms.outputs[i] ** 2) * (D.T @ D)
        root = np.linalg.inv(np.linalg.cholesky(blocks[i]))
        across = np.linalg.eigvalsh(root @ own @ root.T)
        assert across.min() > 0.2
        assert across.max() < 3.0
        axes = np.stack([np.eye(DIM + 1)[0], np.concatenate([[0.0], v[i]])])
        assert np.allclose(axes @ blocks[i] @ axes.T, axes @ own @ axes.T, rtol=1e-6)


def test_products_in_single_precision_are_those_in_double_but_for_rounding():
    solved, rng = rare_bends(3)
    w = rng.standard_normal((COUNT, DIM + 1))
    double, single = (NormalProduct.of(solved, kind)(w) for kind in (np.float64, np.float32))
    D = solved.project((solved.slopes[:, :, None] * solved.data.flat[:, None, :]).reshape(len(solved.data.X), -1))
    c = np.repeat(solved.forms.outputs, DIM + 1, axis=0)
    assert np.allclose(double.ravel(), ((D.T @ D) * (c @ c.T)) @ w.ravel(), rtol=1e-8, atol=1e-8 * np.abs(double).max())
    error = np.linalg.norm(single - double) / np.linalg.norm(double)
    assert 1e-9 < error < 1e-5
