"""Small problems for the tests of the fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgescope.fit.context import FitContext, FitGoal
from ridgescope.fit.model import Model
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.geometry import in_ball, random_directions, unit

RADIUS = 3.0


def problem(count=800, dim=3, outputs=1, seed=0, noise=0.0):
    """Two smooth features and one kink: (true model without coefficients, X, Y)."""
    rng = np.random.default_rng(seed)
    V = unit(np.eye(3, dim) + 0.2 * rng.standard_normal((3, dim)))
    X = in_ball(count, dim, RADIUS, rng)
    Z = X @ V.T
    parts = np.stack([np.tanh(1.5 * Z[:, 0]), np.sin(2.0 * Z[:, 1]), np.abs(Z[:, 2] - 0.4)], axis=1)
    Y = 0.3 + X[:, :1] + parts @ unit(rng.standard_normal((3, outputs))) + noise * rng.standard_normal((count, outputs))
    model = Model.start(V, RADIUS, 12, outputs)
    return model.reshaped(model.intervals, (np.empty(0), np.empty(0), np.array([0.4]))), X, Y


def across(V, seed):
    """Unit rows, each tangent to the sphere at a row of V."""
    rng = np.random.default_rng(seed) if isinstance(seed, int) else seed
    w = rng.standard_normal(V.shape)
    return unit(w - np.einsum("nd,nd->n", w, V)[:, None] * V)


def tilted(model, by, seed=1):
    """The model with every direction turned by `by` radians."""
    V = model.directions
    return replace(model, directions=np.cos(by) * V + np.sin(by) * across(V, seed))


def candidates(V, by, rng):
    """True directions turned by `by` radians, and as many random ones, shuffled."""
    near = np.cos(by) * V + np.sin(by) * across(V, rng)
    return rng.permutation(np.concatenate([near, random_directions(len(V), V.shape[1], rng)]))


def fit_context(function, dim, points=0, along=None, goal=None, seed=0, allowance=np.inf):
    """(a context that asks `function`, its messages as (text, detail) pairs, the list of points asked)."""
    rng, asked, said = np.random.default_rng(seed), [], []

    def ask(X):
        asked.append(X)
        return np.asarray(function(X)).reshape(len(X), -1)

    def say(text, detail=False):
        said.append((text, detail))

    samples = Samples(dim, RADIUS)
    if points:
        ask_along(ask, samples, np.empty((0, dim)) if along is None else along, points, rng)
    goal = goal or FitGoal(error=1e-3, noise=1e-13)
    context = FitContext(ask, samples, goal, rng, lambda: allowance - sum(map(len, asked)), say)
    return context, said, asked
