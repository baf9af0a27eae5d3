"""Gated kinks: hyperplanes of a piecewise quadratic function, then carriers and signs."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.geometry import in_ball, unit
from ridgescope.search import GatedKinks, Setting, run_proposer
from ridgescope.search.gated_layer import layer_points, points_for, solve_layer
from ridgescope.search.gated_planes import Hyperplane, fitted_plane, locate
from ridgescope.search.lines import Line, Scan, scan_line

RADIUS = 3.0


class Units:
    """Σ o relu(σ(v·x − t))(w·x + c), the first `plain` units with w = 0 and c = 1."""

    def __init__(self, d, n, p, seed, plain=0):
        rng = np.random.default_rng(seed)
        self.v, self.t = unit(rng.standard_normal((n, d))), rng.uniform(-1.0, 1.0, n)
        self.w, self.c = rng.standard_normal((n, d)), rng.standard_normal(n)
        self.w[:plain], self.c[:plain] = 0.0, 1.0
        self.o, self.asked, self.farthest = rng.standard_normal((n, p)), 0, 0.0

    def __call__(self, X):
        self.asked += len(X)
        self.farthest = max(self.farthest, float(np.linalg.norm(X, axis=1).max()))
        return (np.maximum(X @ self.v.T - self.t, 0.0) * (X @ self.w.T + self.c)) @ self.o


def hyperplanes(f, flips, rng):
    """The hyperplanes of units, in any orientation, with changes that are wrong by a multiple of y²."""
    planes = []
    for k, s in enumerate(flips):
        wrong = 1e-3 * rng.standard_normal(f.o.shape[1])
        change = np.multiply.outer(np.append(f.c[k], f.w[k]), f.o[k])
        change += np.multiply.outer(np.append(-f.t[k], f.v[k]), wrong)
        planes.append(Hyperplane(s * f.v[k], float(s * f.t[k]), change))
    return planes


def setting(f, d, *, reach=np.inf, noise=3e-16):
    Y = f(in_ball(1000, d, RADIUS, np.random.default_rng(0)))
    return Setting(d, Y.shape[1], RADIUS, reach, float(Y.std()), noise, 3.0)


def run(f, d, *, queries=100_000, seed=0, **options):
    where = setting(f, d, **options)
    return run_proposer(GatedKinks(), f, where, queries=queries, rng=np.random.default_rng(seed))


# ---- along a line


def test_a_scan_of_parabolas_is_exact_and_cheap():
    rng = np.random.default_rng(0)
    kinks = np.sort(rng.uniform(-2.5, 2.5, 20))
    amounts, asked = rng.standard_normal((20, 2)), []

    def f(x):
        asked.append(len(x))
        y = np.maximum(x - kinks, 0.0)
        return (y @ amounts[:, 0] + (y * x) @ amounts[:, 1])[:, None]

    seen = scan_line(Line(np.zeros(1), np.ones(1), -3.0, 3.0), f, Scan(33, 2, 1e-14, 0.0, 24, "sharp"))
    assert np.allclose([b.at for b in seen.bends], kinks, atol=1e-10)
    assert np.allclose([b.jump[0] for b in seen.bends], amounts[:, 0] + amounts[:, 1] * kinks, atol=1e-8)
    assert sum(asked) < 12 * 20


def test_two_kinks_of_opposite_sign_between_parabolas_are_not_taken_for_one():
    f = lambda x: x**2 + np.maximum(x - 0.101, 0.0) * (1.0 + x) - 0.4 * np.maximum(x - 0.102, 0.0)  # noqa: E731
    seen = scan_line(Line(np.zeros(1), np.ones(1), -3.0, 3.0), f, Scan(33, 2, 1e-15, 0.0, 24, "sharp"))
    assert np.allclose([b.at for b in seen.bends], [0.101, 0.102], atol=1e-11)


def test_a_weak_kink_on_a_steep_parabola_is_single():
    f = lambda x: 50.0 * x**2 + 1e-5 * np.maximum(x - 0.3, 0.0)  # noqa: E731
    (bend,) = scan_line(Line(np.zeros(1), np.ones(1), -3.0, 3.0), f, Scan(33, 2, 1e-13, 0.0, 24, "sharp")).bends
    assert bend.at == pytest.approx(0.3, abs=1e-5)


# ---- hyperplanes


def test_a_kink_is_located_exactly_whatever_its_jump():
    d, v = 5, np.eye(5)[0]
    f = lambda X: np.maximum(X[:, :1] - 0.2, 0.0) * (X[:, 1:2] + 0.3) + (X @ np.ones((d, 1))) ** 2  # noqa: E731
    y = in_ball(50, d, 1.0, np.random.default_rng(1))
    y[:, 0] = 0.2 + np.linspace(-4e-4, 4e-4, 50)
    found = locate(f, setting(f, d), y, v)
    assert len(found.x) == 50
    assert (np.abs(found.x[:, 0] - 0.2) <= 10.0 * found.error).all()
    assert found.error.max() < 1e-9
    assert found.jump[:, 0] == pytest.approx(y[:, 1] + 0.3, abs=1e-9)
    assert found.curve == pytest.approx(0.0, abs=1e-6)
    beside = y + np.array([0.02, 0.0, 0.0, 0.0, 0.0])
    assert len(locate(f, setting(f, d), beside, v).x) == 0


def test_two_kinks_in_one_gap_are_not_located():
    d, v = 3, np.eye(3)[0]
    f = lambda X: np.abs(X[:, :1]) + np.abs(X[:, :1] - 1e-4)  # noqa: E731
    assert len(locate(f, setting(f, d), np.zeros((1, d)) + 5e-5 * v, v).x) == 0
    assert len(locate(lambda X: np.abs(X[:, :1]), setting(f, d), np.zeros((1, d)), v).x) == 1


def test_a_hyperplane_is_fitted_to_rounding_and_a_curved_surface_is_none():
    d, rng = 6, np.random.default_rng(2)
    f = Units(d, 3, 1, 4)
    v, t = f.v[0], f.t[0]
    off = unit(v + 1e-5 * rng.standard_normal(d))
    plane = fitted_plane(f, setting(f, d), off, t * v, rng)
    assert np.linalg.norm(plane.v - v) + abs(plane.t - t) < 1e-11
    change = np.multiply.outer(np.append(f.c[0], f.w[0]), f.o[0])
    assert plane.change[:, 0] == pytest.approx(change[:, 0], abs=1e-4)  # w·v is known less well
    across = plane.change[1:, 0] - (plane.change[1:, 0] @ v) * v
    assert across == pytest.approx(change[1:, 0] - (change[1:, 0] @ v) * v, abs=1e-8)
    bowl = lambda X: np.maximum(X[:, :1] + 1e-5 * X[:, 2:3] ** 2, 0.0) * X[:, 1:2]  # noqa: E731
    assert fitted_plane(bowl, setting(bowl, d), np.eye(d)[0], np.zeros(d), rng) is None
    corner = lambda X: np.maximum(X[:, :1], 0.0) * (3.0 + np.abs(X[:, 1:2]))  # noqa: E731
    assert fitted_plane(corner, setting(corner, d), np.eye(d)[0], np.zeros(d), rng) is None


# ---- carriers and signs


@pytest.mark.parametrize("p", [1, 3])
def test_carriers_and_signs_follow_from_hyperplanes_of_any_orientation(p):
    f, rng = Units(6, 8, p, 5, plain=3), np.random.default_rng(6)
    planes = hyperplanes(f, rng.choice([-1.0, 1.0], 8), rng)
    X = layer_points(planes, RADIUS, 6, points_for(8, 6), rng)
    found = solve_layer(planes, RADIUS, X, f(X) + X @ rng.standard_normal((6, p)) + 1.0, 1.0).candidates
    assert list(found.gated) == [False] * 3 + [True] * 5
    assert found.directions[3:] == pytest.approx(f.v[3:], abs=1e-12)
    assert found.kinks[3:] == pytest.approx(f.t[3:], abs=1e-12)
    w = unit((f.w - np.einsum("nd,nd->n", f.w, f.v)[:, None] * f.v)[3:])
    assert np.abs(np.einsum("nd,nd->n", found.carriers[3:], w)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 31])
def test_points_of_a_layer_are_in_the_ball(count):
    f, rng = Units(5, 3, 1, 5), np.random.default_rng(6)
    X = layer_points(hyperplanes(f, np.ones(3), rng), RADIUS, 5, count, rng)
    assert X.shape == (count, 5)
    assert np.linalg.norm(X, axis=1).max() <= RADIUS


def test_a_quadratic_form_beside_the_units_is_no_layer():
    f, rng = Units(5, 3, 1, 5), np.random.default_rng(6)
    planes = hyperplanes(f, np.ones(3), rng)
    X = layer_points(planes, RADIUS, 5, points_for(3, 5), rng)
    assert solve_layer(planes, RADIUS, X, f(X), 1.0).candidates is not None
    more = solve_layer(planes, RADIUS, X, f(X) + 0.01 * X[:, :1] ** 2, 1.0)
    assert more.candidates is None
    assert more.explained
    wavy = solve_layer(planes, RADIUS, X, f(X) + 1e-4 * np.sin(2.0 * X[:, :1]), 1.0)
    assert wavy.candidates is None
    assert not wavy.explained


# ---- all together


@pytest.mark.parametrize(("d", "n", "p", "plain", "most"), [(4, 3, 1, 0, 1000), (8, 10, 3, 5, 4000)])
@pytest.mark.parametrize("reach", [np.inf, RADIUS])
def test_units_are_found(d, n, p, plain, most, reach):
    f = Units(d, n, p, 7, plain)
    found = run(f, d, reach=reach)
    assert f.farthest <= reach
    assert found.queries <= most
    assert found.only
    assert (found.drop > 1.0) == (reach == np.inf)  # within the ball no few chords cross every hyperplane
    cosines = found.directions @ f.v.T
    assert np.abs(cosines).max(axis=0) == pytest.approx(1.0, abs=1e-12)
    assert len(found.directions) == n
    assert found.gated.gated.sum() == n - plain


@pytest.mark.parametrize("seed", range(3))
def test_a_unit_a_thousand_times_weaker_than_the_others_is_found(seed):
    f = Units(6, 5, 1, 8)
    f.o[0] *= 1e-3
    found = run(f, 6, seed=seed)
    assert len(found.directions) == 5


def test_what_is_no_layer_yields_nothing():
    rng = np.random.default_rng(1)
    A, W = rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4))
    functions = (
        lambda X: np.maximum(np.sum(X @ A[0] * X, axis=1), np.sum(X @ A[1] * X, axis=1) + 1.0)[:, None],
        lambda X: (np.maximum(X @ W[0] + 0.2, 0.0) * np.maximum(X @ W[1], 0.0))[:, None],
        lambda X: np.sum(X @ A[0] * X, axis=1, keepdims=True),
        lambda X: np.tanh(X @ W.T) @ np.ones((2, 1)),
    )
    for f in functions:
        found = run(f, 4)
        assert len(found.directions) == 0
        assert found.gated is None
        assert not found.complete
    assert len(run(Units(4, 3, 1, 7), 4, queries=300).directions) == 0  # spent before it was done
    assert len(run(Units(4, 3, 1, 7), 4, noise=1e-3).directions) == 0
