"""Polishing a layer of one activation: its derivatives, where it ends, what it needs."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, ndtr

import ridgescope as rs
from ridgescope.fit.activations import INDEX
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_steps import Turn
from ridgescope.fit.context import FitContext, FitGoal
from ridgescope.fit.samples import Samples
from ridgescope.geometry import in_ball, unit
from ridgescope.wide.closed_layer import ClosedLayer, _without_stopgaps
from ridgescope.wide.linear_half import Equations, LinearHalf
from ridgescope.wide.missing_features import missing_directions
from ridgescope.wide.polish import PolishStep, polish
from ridgescope.wide.polished_bars import bars_of

D, N, P = 24, 60, 24
RADIUS = float(np.sqrt(D))


class Layer:
    """A layer with weights of one over √(inputs), in either precision."""

    def __init__(self, seed: int = 0, kind: str = "float64", activation: str = "gelu") -> None:
        rng = np.random.default_rng(seed)
        self.W, self.b = rng.standard_normal((N, D)) / np.sqrt(D), 0.3 * rng.standard_normal(N)
        self.C, self.kind, self.activation = rng.standard_normal((N, P)) / np.sqrt(N), np.dtype(kind), activation

    def __call__(self, X):
        W, b, C = (a.astype(self.kind) for a in (self.W, self.b, self.C))
        y = X.astype(self.kind) @ W.T + b
        y = y * (ndtr(y) if self.activation == "gelu" else expit(y)).astype(self.kind)
        return (y @ C).astype(np.float64)

    def near(self, error: float, seed: int = 1):
        """Directions that are off by `error` radians or so."""
        noise = np.random.default_rng(seed).standard_normal(self.W.shape) / np.sqrt(D)
        return unit(unit(self.W) + error * noise)


def start(layer: Layer, directions, family: str = "gelu", points: int = 600) -> LinearHalf:
    X = in_ball(points, D, RADIUS, np.random.default_rng(2))
    blank = ClosedForms.blank(directions, RADIUS, 1, P)
    n = len(directions)
    forms = replace(blank, family=np.full(n, INDEX[family]), kappa=np.full(n, RADIUS))
    return LinearHalf.of(forms, Equations(X, layer(X)))


def shifted(forms: ClosedForms, change) -> ClosedForms:
    w = forms.directions * (forms.kappa / forms.radius)[:, None] + change[:, 1:]
    size = np.linalg.norm(w, axis=1)
    return replace(forms, directions=w / size[:, None], kappa=size * forms.radius, b=forms.b + change[:, 0])


def test_linear_half_is_least_squares() -> None:
    half = start(Layer(), Layer().near(1e-2))
    values = half.forms.atoms(half.equations.X)[0]
    design = np.concatenate([values, np.ones((len(values), 1)), half.equations.X], axis=1)
    answers = Layer()(half.equations.X)
    best = np.linalg.lstsq(design, answers, rcond=None)[0]
    assert np.linalg.norm(half.residual - (answers - design @ best)) <= 1e-6 * np.linalg.norm(half.residual)
    assert half.cost == pytest.approx(float(np.sum((answers - half.forms.predict(half.equations.X)) ** 2)), rel=1e-6)


def test_jacobian_by_differences() -> None:
    half = start(Layer(), Layer().near(1e-2))
    step, rng = PolishStep(half, free=True), np.random.default_rng(3)
    change = rng.standard_normal((N, D + 1))
    X = half.equations.X

    def at(t: float):
        moved = shifted(half.forms, t * change)
        return moved.predict(X)

    errors = []
    for t in (1e-3, 1e-4):
        slope = (at(t) - at(-t)) / (2.0 * t)
        errors.append(np.linalg.norm(step.image(Turn(change)) - slope) / np.linalg.norm(slope))
    assert errors[0] < 1e-4  # of second order in t, down to single precision
    assert errors[1] < 2e-6


def test_adjoint_and_gradient() -> None:
    half = start(Layer(), Layer().near(1e-2))
    step, rng = PolishStep(half, free=True), np.random.default_rng(4)
    change, image = rng.standard_normal((N, D + 1)), rng.standard_normal(half.residual.shape).astype(np.float32)
    left = float(np.vdot(step.image(Turn(change)), image))
    right = float(np.vdot(change, step._adjoint(image)))
    assert left == pytest.approx(right, rel=1e-4)
    # the gradient of the least cost over the linear unknowns is −2 Jᵀr
    t = 1e-5
    costs = [LinearHalf.of(shifted(half.forms, s * t * change), half.equations).cost for s in (1.0, -1.0)]
    assert (costs[0] - costs[1]) / (2.0 * t) == pytest.approx(-2.0 * float(np.vdot(change, step.right.w)), rel=1e-3)


def test_projection_removes_all_linear_columns() -> None:
    half = start(Layer(), Layer().near(1e-2))
    rng = np.random.default_rng(5)
    values = half.forms.atoms(half.equations.X)[0]
    columns = np.concatenate([values, np.ones((len(values), 1)), half.equations.X], axis=1)
    image = (columns @ rng.standard_normal((columns.shape[1], P))).astype(np.float32)
    assert np.linalg.norm(half.project(image)) < 1e-4 * np.linalg.norm(image)


@pytest.mark.parametrize(("kind", "angle"), [("float64", 1e-7), ("float32", 3e-6)])
def test_polish_ends_at_the_noise(kind: str, angle: float) -> None:
    layer = Layer(6, kind)
    half = polish(start(layer, layer.near(2e-2)), steps=5, free=False, min_gain=0.05)
    assert rs.match(half.forms.directions, layer.W).angles.max() > 5e-3  # directions have stayed
    half = polish(half, steps=20, min_gain=0.05)
    assert rs.match(half.forms.directions, layer.W).angles.max() < angle
    steep = half.forms.kappa / RADIUS
    order = rs.match(half.forms.directions, layer.W).partner
    assert np.allclose(steep[order], np.linalg.norm(layer.W, axis=1), rtol=10 * angle)


def test_memory_of_a_step_is_bounded() -> None:
    layer = Layer()
    points = 6000
    X = in_ball(points, D, RADIUS, np.random.default_rng(7))
    equations = Equations(X, layer(X))
    forms = start(layer, layer.near(1e-2)).forms
    tracemalloc.start()
    half = LinearHalf.of(forms, equations)
    PolishStep(half, free=True).change(1e-3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = 16 * points * N + 8 * points * P
    working = 8 * 1024 * N * 16 + 6 * 8 * points * P  # some arrays of a block of points, and images
    assert peak < held + working


def fitted(layer: Layer, directions, noise: float, kinks=()):
    rng, samples = np.random.default_rng(8), Samples(D, RADIUS)
    X = in_ball(60, D, RADIUS, rng)
    samples.add(X, layer(X))
    context = FitContext(layer, samples, FitGoal(1e-3, noise), rng, lambda: float("inf"))
    return ClosedLayer(context).fit(directions, kinks), samples


@pytest.mark.parametrize(("activation", "kind"), [("gelu", "float32"), ("silu", "float64")])
def test_layer_finds_its_family_and_drops_false_directions(activation: str, kind: str) -> None:
    layer = Layer(9, kind, activation)
    false = unit(np.random.default_rng(10).standard_normal((3, D)))
    found, _ = fitted(layer, np.concatenate([layer.near(1e-2), false]), 1e-7 if kind == "float32" else 1e-15)
    assert found is not None
    assert found.meets_goal
    assert found.forms is not None
    assert set(found.forms.family) == {INDEX[activation]}
    match = rs.match(found.forms.directions, layer.W)
    assert found.forms.count == N
    assert len(match.false) == 0
    assert match.angles.max() < (1e-5 if kind == "float32" else 1e-7)


def test_layer_without_a_family_is_left_to_splines() -> None:
    class Mixed(Layer):
        def __call__(self, X):
            y = X @ self.W.T + self.b
            return np.where(np.arange(N) % 2 == 0, np.sin(3.0 * y), np.tanh(4.0 * y) ** 3) @ self.C

    layer = Mixed(11)
    found, _ = fitted(layer, layer.near(0.0), 1e-15)
    assert found is None or not found.meets_goal


def test_bars_are_those_of_noise() -> None:
    layer, rng = Layer(12), np.random.default_rng(13)
    X = in_ball(700, D, RADIUS, rng)
    Y = layer(X) + 1e-4 * rng.standard_normal((len(X), P))
    half = start(layer, layer.near(1e-3))
    half = polish(LinearHalf.of(half.forms, Equations(X, Y)), steps=5, free=False)
    half = polish(half, steps=15)
    bars = bars_of(half.forms, X, Y)
    match = rs.match(half.forms.directions, layer.W)
    within = match.angles <= 2.0 * bars.angle[match.partner]
    assert within.mean() > 0.8
    expected = np.sqrt(np.mean(bars.mean_square_angle))
    assert np.sqrt(np.mean(match.angles**2)) == pytest.approx(expected, rel=0.15)


def test_a_family_that_is_only_near_gives_way() -> None:
    """Polished forms of GELU's approximation by tanh leave 1e-4, and GELU in their places leaves noise."""
    layer = Layer(14)
    samples, rng = Samples(D, RADIUS), np.random.default_rng(15)
    X = in_ball(600, D, RADIUS, rng)
    samples.add(X, layer(X))
    fit = ClosedLayer(FitContext(layer, samples, FitGoal(1e-3, 1e-15), rng, lambda: float("inf")))
    near = polish(start(layer, layer.near(1e-2), "gelu_tanh"), steps=5, free=False)
    near = polish(near, steps=10)
    assert not fit._is_exact(near)
    right = fit._reconsidered(near)
    assert set(right.forms.family) == {INDEX["gelu"]}
    assert fit._is_exact(right)


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_the_residual_shows_what_is_missing(seed: int) -> None:
    layer = Layer(seed)
    half = polish(start(layer, layer.near(1e-2)[2:], points=1500), steps=4)
    new = missing_directions(half)
    assert 1 <= len(new) <= 4
    assert np.abs(new[0] @ unit(layer.W[:2]).T).max() > np.cos(0.6)  # a fit does the rest; others show after that


def test_what_points_do_not_show_alike_in_all_directions_is_allowed_for() -> None:
    """Along some directions points lie four times as far out as along others."""
    layer, rng = Layer(1), np.random.default_rng(4)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    X = in_ball(1500, D, RADIUS, rng) @ (turn * np.where(np.arange(D) % 2, 0.4, 1.6)) @ turn.T
    exact = start(layer, layer.near(0.0)[1:]).forms
    points = Equations(X, layer(X))
    new = missing_directions(polish(LinearHalf.of(exact, points), steps=4))
    assert rs.match(new[:1], layer.W[:1]).angles[0] < 0.5


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_a_complete_layer_misses_nothing(kind: str) -> None:
    layer = Layer(2, kind)
    half = polish(start(layer, layer.near(1e-2)), steps=8)
    assert len(missing_directions(half)) == 0


def test_a_layer_with_missed_features_is_fitted_with_them() -> None:
    layer = Layer(5)
    layer.C[:2] *= 0.3  # of 60 features that are alike one leaves so much that no family is tried
    found, _ = fitted(layer, layer.near(1e-2)[2:], 1e-15)
    assert found is not None
    assert found.meets_goal
    match = rs.match(found.forms.directions, layer.W)
    assert match.angles.max() < 1e-6
    assert found.forms.count == len(layer.W)


def test_features_that_stand_in_for_others_are_dropped() -> None:
    layer = Layer(6)
    half = polish(start(layer, layer.near(1e-3)), steps=6)
    assert _without_stopgaps(half) is half
    false = unit(np.random.default_rng(10).standard_normal((2, D)))
    more = polish(start(layer, np.concatenate([false, half.forms.directions])), steps=8)
    fewer = _without_stopgaps(more)
    assert fewer.forms.count == N
    np.testing.assert_array_equal(fewer.forms.directions, more.forms.directions[2:])


def test_of_two_features_that_share_one_response_one_stays() -> None:
    layer = Layer(6)
    half = polish(start(layer, layer.near(1e-3)), steps=6)
    v, rng = half.forms.directions, np.random.default_rng(11)
    twin = unit(v[:1] + 1e-3 * rng.standard_normal((1, D)) / np.sqrt(D))
    fewer = _without_stopgaps(start(layer, np.concatenate([v, twin])))
    again = _without_stopgaps(polish(LinearHalf.of(half.forms.keep(np.r_[np.arange(N), 0]), half.equations), steps=1))
    assert again.forms.count == N
    assert fewer.forms.count == N


@pytest.mark.parametrize("factor", [12.0, 0.1])
def test_a_bend_whose_steepness_ran_away_is_started_again(factor) -> None:
    layer = Layer(16)
    samples, rng = Samples(D, RADIUS), np.random.default_rng(17)
    X = in_ball(900, D, RADIUS, rng)
    samples.add(X, layer(X))
    fit = ClosedLayer(FitContext(layer, samples, FitGoal(1e-3, 1e-15), rng, lambda: float("inf")))
    right = polish(LinearHalf.of(start(layer, layer.near(1e-3)).forms, fit._equations()), steps=12)
    assert fit._is_exact(right)
    proposed = layer.near(1e-3)
    assert fit._restarted(right, proposed, ()) is right
    third = np.arange(N) == 3
    aside = unit(right.forms.directions + np.where(third, 0.15, 0.0)[:, None] * rng.standard_normal((N, D)) / D**0.5)
    away = replace(right.forms, directions=aside, kappa=right.forms.kappa * np.where(third, factor, 1.0))
    stuck = LinearHalf.of(away, fit._equations())
    assert not fit._is_exact(polish(stuck, steps=12))
    again = fit._restarted(stuck, proposed, ())
    assert fit._is_exact(again)
    assert rs.match(again.forms.directions, layer.W).angles.max() < 1e-6


def test_bends_that_are_steeper_than_others_by_themselves_stay() -> None:
    layer = Layer(18)
    layer.W[3] *= 8.0
    layer.C[:, 0] += 1e-3  # whatever a restart leaves shows in the error
    found, _ = fitted(layer, layer.near(1e-3), 1e-15)
    assert found is not None
    assert found.forms is not None
    assert found.forms.count == N
    assert rs.match(found.forms.directions, layer.W).angles.max() < 1e-6
