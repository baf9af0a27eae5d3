"""The normal matrix of a spline model, counted from the entries of each point."""

import numpy as np
import pytest

from ridgescope.fit import linear, spline_gram
from ridgescope.fit.model import Model
from ridgescope.geometry import in_ball, random_directions


def narrow(intervals, kinks, seed, dim=4, outputs=2):
    """Return a model with so many intervals and kinks for each feature, and points with answers."""
    rng = np.random.default_rng(seed)
    places = tuple(np.sort(rng.uniform(-1.5, 1.5, k)) for k in kinks)
    V = random_directions(len(intervals), dim, rng)
    model = Model.start(V, 2.0, 8, outputs).reshaped(np.array(intervals), places)
    X = in_ball(700, dim, 2.0, rng)
    return model, X, rng.standard_normal((len(X), outputs))


@pytest.mark.parametrize(("intervals", "kinks"), [((40, 64, 33), (0, 2, 1)), ((128,), (0,)), ((512, 8), (3, 0))])
def test_counted_sums_are_those_of_dense_columns(intervals, kinks):
    model, X, Y = narrow(intervals, kinks, 0)
    phi = model.design(X)
    gram, right = np.zeros((model.columns, model.columns)), np.zeros((model.columns, 2))
    spline_gram.add_spline_gram(gram, right, model, X[:300], Y[:300])
    spline_gram.add_spline_gram(gram, right, model, X[300:], Y[300:])
    assert np.allclose(np.tril(gram), np.tril(phi.T @ phi), rtol=1e-12, atol=1e-12 * len(X))
    assert np.allclose(right, phi.T @ Y, rtol=1e-12, atol=1e-12 * len(X))


def test_a_solve_is_the_same_either_way(monkeypatch):
    model, X, Y = narrow((48, 64, 40), (1, 0, 2), 1)
    assert spline_gram.pays(model)
    counted = linear.solve_linear(model, X, Y, 1e-6)
    monkeypatch.setattr(spline_gram, "pays", lambda model: False)
    dense = linear.solve_linear(model, X, Y, 1e-6)
    assert np.allclose(counted.model.predict(X), dense.model.predict(X), rtol=1e-8, atol=1e-8)
    assert counted.cost == pytest.approx(dense.cost, rel=1e-9)


def test_few_knots_are_summed_as_dense_columns():
    model, _, _ = narrow((16, 16), (0, 3), 2)
    assert not spline_gram.pays(model)
