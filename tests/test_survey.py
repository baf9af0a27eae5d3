"""What a few cheap questions can tell: scale, noise, bandwidth, and the subspace that matters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

import ridgescope as rs
from ridgescope.geometry import in_ball, random_directions
from ridgescope.gradient_span import GradientSpan
from ridgescope.survey import Recorder, bandwidth, run_survey

RADIUS = 3.0


def look(function, dim, noise=None, seed=0, **options):
    return run_survey(
        Recorder(rs.oracle.Oracle(function, dim=dim, **options)), RADIUS, noise, np.random.default_rng(seed)
    )


def plain(function):
    return lambda X: np.asarray(function(X)).reshape(len(X), -1)


# -- noise --------------------------------------------------------------------------------------------------


def test_single_precision_counts_as_noise():
    known = look(lambda X: np.sin(X[:, 0]).astype(np.float32), 2)
    assert 1e-9 < known.noise < 1e-6


def test_noise_that_may_limit_a_fit_is_known_well():
    fresh = np.random.default_rng(1)
    found = [look(lambda X: X[:, 0] + 0.1 * fresh.standard_normal(len(X)), 2, seed=seed).noise for seed in range(20)]
    assert np.std(np.divide(found, 0.1)) < 0.06
    assert np.mean(found) == pytest.approx(0.1, rel=0.03)


def test_stated_noise_is_a_floor():
    assert look(lambda X: np.sin(X[:, 0]), 2, noise=0.3).noise == pytest.approx(0.3 / np.sqrt(3.0))


def test_noise_is_never_zero():
    assert look(lambda X: np.zeros(len(X)), 2).noise > 0


def test_an_answer_that_changes_is_not_deterministic():
    noise = np.random.default_rng(1)
    assert not look(lambda X: X[:, 0] + 0.1 * noise.standard_normal(len(X)), 2).deterministic
    assert look(lambda X: X[:, 0], 2).deterministic


# -- scale and bandwidth ------------------------------------------------------------------------------------


def test_scale_is_the_standard_deviation_over_the_ball():
    """Of a coordinate over the ball in R^d: R/√(d+2)."""
    known = look(lambda X: 5.0 + X[:, 0], 4)
    assert known.std == pytest.approx(RADIUS / np.sqrt(6.0), rel=0.15)


def test_scale_of_vectors_is_the_root_mean_square_over_outputs():
    known = look(lambda X: X * np.array([1.0, 0.0, 2.0]), 3)
    assert known.std == pytest.approx(np.sqrt(5.0 / 3.0) * RADIUS / np.sqrt(5.0), rel=0.15)


@pytest.mark.parametrize("frequency", [4.0, 12.0, 40.0])
def test_bandwidth_follows_the_frequency(frequency):
    """In two dimensions some of the chords run nearly along the wave."""
    found = bandwidth(plain(lambda X: np.sin(frequency * X[:, 0])), 2, RADIUS, 1e-15, np.random.default_rng(0))
    assert 0.7 * frequency < found < 1.6 * frequency


def test_an_affine_function_has_the_least_bandwidth():
    found = bandwidth(plain(lambda X: 1.0 + X[:, 0]), 3, RADIUS, 1e-13, np.random.default_rng(0))
    slow = bandwidth(plain(lambda X: np.sin(4.0 * X[:, 0])), 2, RADIUS, 1e-15, np.random.default_rng(0))
    assert found < slow


@pytest.mark.parametrize(
    ("f", "share"),
    [
        (lambda X: np.maximum(X[:, 0] + 0.2, 0.0) * (X[:, 1] - 0.4) + np.maximum(X[:, 2], 0.0), (0.5, 1.0)),
        (lambda X: np.maximum(X[:, 0], 0.0) - np.abs(X[:, 1] - 0.5), (0.0, 0.0)),
        (lambda X: np.tanh(X[:, 0]) * X[:, 1] + np.exp(-(X[:, 2] ** 2)), (0.0, 0.0)),
        (lambda X: 1e-4 * np.sin(X[:, 0]) + X[:, 1] ** 2, (0.0, 0.0)),
    ],
)
def test_chords_of_piecewise_quadratic_functions_are_parabolas(f, share):
    assert share[0] <= look(f, 4).parabolas <= share[1]


# -- subspace -----------------------------------------------------------------------------------------------


def spans(basis, V):
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-12)
    return np.abs(V - (V @ basis.T) @ basis).max()


def test_the_span_of_few_features_is_found():
    target = rs.targets.planted(40, 5, ("tanh", "sine", "bump"), rng=0, affine=False)
    known = look(target, 40)
    assert len(known.basis) == 5
    assert spans(known.basis, target.directions) < 1e-3


def test_the_slope_counts_towards_the_span():
    target = rs.targets.planted(40, 3, ("tanh", "sine"), rng=0)
    basis = look(target, 40).basis
    assert len(basis) == 4
    assert spans(basis, np.concatenate([target.directions, target.slope.T])) < 1e-2


def test_a_response_that_bends_where_the_ball_hardly_is_counts_towards_the_span():
    """In 80 dimensions v·x has a standard deviation of 0.33 over the ball, and at 0.95 one response bends."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        V = np.linalg.qr(rng.standard_normal((80, 3)))[0].T

        def bends(X, V=V):
            return np.tanh(X @ V[0]) + np.maximum(X @ V[1] - 0.95, 0.0) + X @ V[2]

        basis = run_survey(Recorder(rs.oracle.Oracle(bends, dim=80)), 3.0, None, rng).basis
        assert len(basis) == 3
        assert np.linalg.norm(V - (V @ basis.T) @ basis) < 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_steep_sigmoids_count_towards_the_span_that_bend_where_the_ball_hardly_is(seed):
    """The span of the other 120 directions holds nearly all of theirs: far away, too, only its points meet the bend."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((250, 124)))[0].T
    edge = np.sqrt(1.0 - 0.25**2) * random_directions(4, 120, rng) @ basis[:120] + 0.25 * basis[120:]
    V = np.concatenate([basis[:120], edge])
    offsets = np.concatenate([rng.uniform(-0.3, 0.3, 120), [1.9, 2.1, 2.4, 2.6]])
    steepness, outputs = np.concatenate([np.full(120, 2.0), np.full(4, 30.0)]), rng.standard_normal((124, 4))
    found = look(lambda X: expit(steepness * (X @ V.T - offsets)) @ outputs, 250, seed=seed).basis
    assert len(found) == 124
    assert spans(found, V) < 1e-4


def test_more_features_than_dimensions_leave_everything():
    np.testing.assert_array_equal(look(rs.targets.planted(5, 8, rng=0), 5).basis, np.eye(5))


def test_gradients_offered_are_used_for_the_span():
    v = np.zeros(30)
    v[3] = 1.0
    oracle = rs.oracle.Oracle(
        lambda X: np.tanh(X @ v), dim=30, gradient=lambda X: (np.cosh(X @ v) ** -2.0)[:, None] * v
    )
    asked = []
    basis = GradientSpan(oracle, asked.append, RADIUS, 0.5, 1e-16, np.random.default_rng(0)).subspace()
    assert asked == []
    assert len(basis) == 1
    assert spans(basis, v[None]) < 1e-12


def test_gradients_that_were_dropped_do_no_harm():
    v = np.eye(6)[2]

    def gradient(X):
        rows = (np.cosh(X @ v) ** -2.0)[:, None] * v
        return np.where((X[:, 0] > 0)[:, None], np.nan, rows)

    oracle = rs.oracle.Oracle(lambda X: np.tanh(X @ v), dim=6, gradient=gradient, on_bad="drop")
    basis = GradientSpan(oracle, oracle.counted("survey"), RADIUS, 0.5, 1e-16, np.random.default_rng(0)).subspace()
    assert spans(basis, v[None]) < 1e-12


@pytest.mark.parametrize("function", [lambda X: np.zeros(len(X)), lambda X: np.full(len(X), 3.0)])
def test_a_constant_has_no_span_to_find(function):
    known = look(function, 6)
    assert known.std == 0.0
    assert known.basis.shape[1] == 6
    assert np.isfinite(known.bandwidth)


# -- the answers are kept -----------------------------------------------------------------------------------


def test_every_answer_is_kept_with_its_point_and_lies_in_the_ball():
    target = rs.targets.planted(4, 3, ("tanh",), rng=0)
    oracle = rs.oracle.Oracle(target, reach=RADIUS)
    known = run_survey(Recorder(oracle), RADIUS, None, np.random.default_rng(0))
    np.testing.assert_array_equal(known.values[:, 0], target(known.points))
    assert np.linalg.norm(known.points, axis=1).max() <= RADIUS * (1 + 1e-12)
    assert oracle.queries == len(known.points) + 8  # eight to see whether an answer repeats
    assert set(oracle.queries_by_stage) == {"survey"}


def test_the_survey_is_cheap():
    oracle = rs.oracle.Oracle(rs.targets.planted(20, 40, ("tanh",), rng=0))
    run_survey(Recorder(oracle), RADIUS, None, np.random.default_rng(0))
    assert oracle.queries <= 256 + 1000 + 28 * 21


def test_dropped_answers_do_no_harm():
    def holed(X):
        return np.where(X[:, 0] > 1.0, np.nan, np.sin(2.0 * X[:, 0]) + X[:, 1])

    known = look(holed, 3, on_bad="drop")
    assert np.isfinite([known.std, known.noise, known.bandwidth]).all()
    assert np.isfinite(known.basis).all()
    assert known.noise < 1e-12


# -- probabilities ------------------------------------------------------------------------------------------


def test_rows_of_probabilities_are_recognised():
    def softmax(X):
        e = np.exp(X)
        return e / e.sum(axis=1, keepdims=True)

    assert look(softmax, 3).probabilities
    assert not look(lambda X: 2.0 * softmax(X), 3).probabilities
    assert not look(lambda X: np.full(len(X), 0.5), 3).probabilities


def test_points_are_uniform_in_the_ball_for_the_scale():
    """The first 256 are; the mean radius of a uniform ball in R³ is 3R/4."""
    known = look(lambda X: X[:, 0], 3)
    assert np.linalg.norm(known.points[:256], axis=1).mean() == pytest.approx(0.75 * RADIUS, rel=0.05)
    assert in_ball(256, 3, RADIUS, np.random.default_rng(0)).tobytes() == known.points[:256].tobytes()


# -- budget and memory --------------------------------------------------------------------------------------


def test_gradients_take_a_share_of_the_budget():
    """A subspace of 300 dimensions is not worth all queries: the search needs some, too."""
    oracle = rs.oracle.Oracle(lambda X: np.abs(X).sum(axis=1), dim=300, max_queries=4000)
    known = run_survey(Recorder(oracle), RADIUS, None, np.random.default_rng(0))
    assert len(known.basis) == 300
    assert oracle.remaining > 300


def test_the_survey_asks_and_keeps_a_bounded_amount(monkeypatch):
    monkeypatch.setattr("ridgescope.survey.KEPT_BYTES", 2**20)
    largest = 0

    def f(X):
        nonlocal largest
        largest = max(largest, X.nbytes)
        return np.abs(X[:, :2]).sum(axis=1)

    recorder = Recorder(rs.oracle.Oracle(f, dim=600))
    known = run_survey(recorder, RADIUS, None, np.random.default_rng(0))
    assert known.basis.shape == (2, 600)
    assert len(known.values) == len(known.points)
    assert known.points.nbytes < 3 * 2**20  # the first batch is always kept whole
    assert largest <= 1024 * 600 * 8


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_gradient_is_that_of_the_function(outputs):
    """Whatever frame it is taken in, and in however many batches."""
    A = np.random.default_rng(3).standard_normal((700, outputs))
    oracle = rs.oracle.Oracle(lambda X: np.tanh(X @ A / 20.0), dim=700)
    span = GradientSpan(oracle, lambda X: oracle(X, stage="survey"), RADIUS, 1.0, 1e-15, np.random.default_rng(0))
    rows = span._at(np.zeros((2, 700)))
    np.testing.assert_allclose(rows, np.tile(A.T / 20.0, (2, 1)), atol=1e-4)
