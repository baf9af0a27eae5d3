"""The span of gradients, by long steps across it: as exact as noise permits."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.geometry import unit
from ridgescope.gradient_span import GradientSpan
from ridgescope.span_refinement import LONG, SpanRefinement, most_informative
from ridgescope.survey import Recorder, run_survey

RADIUS = 3.0


def few_relus(d, n, seed, outputs=1):
    """Return a ReLU network in single precision and its input weights, as they are used."""
    rng = np.random.default_rng(seed)
    W, b, A = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, d), (n,), (n, outputs)))
    return lambda X: np.maximum(X.astype(np.float32) @ W.T + b, 0) @ A, W.astype(float)


def surveyed(f, d, seed=0):
    return run_survey(Recorder(rs.oracle.Oracle(f, dim=d)), RADIUS, None, np.random.default_rng(seed))


def sines(W, span):
    """Of the angles between the rows of W and the span."""
    u = unit(W)
    return np.linalg.norm(u - (u @ span.T) @ span, axis=1)


@pytest.mark.parametrize(
    ("d", "n", "outputs", "seed"), [(300, 3, 1, 1), (500, 2, 1, 5), (400, 6, 2, 3), (1000, 4, 1, 4)]
)
def test_few_relus_among_many_inputs_in_single_precision(d, n, outputs, seed):
    """σ√(2d)/(h|∇f|) with σ = 6e-8 |f| and h near the radius is 1e-6 or so; short steps leave 1e-3."""
    f, W = few_relus(d, n, seed, outputs)
    basis = surveyed(f, d).basis
    assert len(basis) == n
    assert sines(W, basis).max() < 2e-5


def test_they_are_recovered_and_nothing_else():
    f, W = few_relus(300, 4, 2)
    found = rs.extract(f, dim=300, radius=RADIUS)
    match = rs.match(found.directions, W)
    assert found.certificate.met
    assert not len(match.false)
    assert match.angles.max() < 2e-5


def test_a_span_that_lacks_a_direction_does_not_capture_f():
    f, W = few_relus(200, 3, 0)
    known = surveyed(f, 200)
    refinement = SpanRefinement(f, RADIUS, known.std, known.noise, np.random.default_rng(1))
    rows = np.linalg.qr(W.T)[0].T
    assert refinement.captures(rows)
    assert not refinement.captures(rows[:1])


def test_steps_stay_in_the_ball():
    f, W = few_relus(200, 3, 0)
    asked = []

    def ask(X):
        asked.append(np.linalg.norm(X, axis=1).max())
        return f(X)

    refinement = SpanRefinement(ask, RADIUS, 10.0, 1e-6, np.random.default_rng(1))
    span = refinement.refined(W + 1e-3 * np.random.default_rng(0).standard_normal(W.shape), 1e-3, np.inf, 64)
    assert span is not None
    assert sines(W, span).max() < 1e-5
    assert LONG * RADIUS < max(asked) < RADIUS


def test_points_are_asked_a_batch_at_a_time():
    f, W = few_relus(200, 3, 0)
    asked = []

    def ask(X):
        asked.append(len(X))
        return f(X)

    refinement = SpanRefinement(ask, RADIUS, 10.0, 1e-6, np.random.default_rng(1))
    refinement.refined(W + 1e-3 * np.random.default_rng(0).standard_normal(W.shape), 1e-3, np.inf, 40)
    assert 20 < max(asked) <= 40


def test_exact_answers_need_no_refinement():
    W = np.random.default_rng(0).standard_normal((2, 100))
    oracle = rs.oracle.Oracle(lambda X: np.tanh(X @ W.T) @ np.ones((2, 1)), dim=100)
    span = GradientSpan(oracle, oracle.counted("survey"), RADIUS, 1.0, 1e-15, np.random.default_rng(0))
    assert span._refined(W) is None
    assert oracle.queries == 0


def test_noise_inside_the_subspace_is_that_of_its_larger_answers():
    """f is √d times as large there as at a random point of the ball, and so is its rounding."""
    f, _ = few_relus(1000, 2, 0)
    known = surveyed(f, 1000)
    inside = np.random.default_rng(0).uniform(-1.0, 1.0, (500, 2)) @ known.basis * RADIUS / np.sqrt(2.0)
    assert known.inner_std > 4.0 * known.std
    assert known.noise > 1e-8 * np.abs(f(inside)).max()


@pytest.mark.parametrize(("d", "n", "net"), [(400, 2, 11), (600, 3, 1)])
def test_two_gradients_beyond_the_rank_suffice_at_points_that_are_chosen(d, n, net):
    """At random points of the subspace a ReLU may be inactive at all of them: then the rank drops, pass after pass."""
    f, W = few_relus(d, n, net)
    for seed in range(6):
        oracle = rs.oracle.Oracle(f, dim=d)
        basis = run_survey(Recorder(oracle), RADIUS, None, np.random.default_rng(seed)).basis
        assert len(basis) == n
        assert sines(W, basis).max() < 1.5e-6
        assert oracle.queries < 24.2 * d  # 8 gradients, 8 more across them, n + 2 across what these show


def test_chosen_gradients_determine_all_directions():
    """Of many gradients along a strong direction and few along weak ones, some of each."""
    gradients = np.zeros((30, 1, 3))
    gradients[:, 0, 0] = 100.0
    gradients[[7, 21], 0, 1] = 1.0
    gradients[13, 0, 2] = 0.01
    chosen = most_informative(gradients, 4)
    assert len(set(chosen)) == 4
    assert {13} < set(chosen)
    assert set(chosen) & {7, 21}


def test_points_at_which_terms_are_large_are_not_preferred_though_they_cancel():
    """Where f = 2x + y is 0 far from the centre, its rounding is larger than near it."""
    f = lambda X: 2.0 * X[:, :1] + X[:, 1:2]  # noqa: E731
    refinement = SpanRefinement(f, RADIUS, 0.05, 1e-7, np.random.default_rng(0))
    points = np.array([[1.0, -2.0, 0.0], [0.1, 0.1, 0.0]])
    chosen, here, slopes = refinement._informative(points, 1, np.eye(2, 3), 1e-3, 64)
    np.testing.assert_array_equal(chosen, points[1:])
    np.testing.assert_allclose(here, [[0.3]])
    np.testing.assert_allclose(slopes, [[[2.0, 1.0]]])


def test_the_answer_at_a_point_is_the_mean_of_those_around_it_where_f_is_straight():
    """Of five errors, 1/√5 is left; where f bends, the answer stays as it is."""
    rng = np.random.default_rng(0)
    span = np.eye(2, 6)

    def off(f):
        noisy = lambda X: f(X)[:, None] + 1e-4 * rng.standard_normal((len(X), 1))  # noqa: E731
        refinement = SpanRefinement(noisy, RADIUS, 1.0, 1e-4, rng)
        at = rng.uniform(-1.0, 1.0, (4000, 2)) @ span
        here, slopes = refinement._inside(at, span, 0.1, 64)
        assert slopes.shape == (4000, 1, 2)
        return np.std(here[:, 0] - f(at)) / 1e-4, np.mean(here[:, 0] - f(at))

    assert off(lambda X: X[:, 0] + 2.0 * X[:, 1])[0] == pytest.approx(5.0**-0.5, rel=0.05)
    spread, bias = off(lambda X: X[:, 0] ** 2)
    assert spread == pytest.approx(1.0, rel=0.05)
    assert abs(bias) < 1e-5
