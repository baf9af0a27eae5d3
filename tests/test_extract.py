"""The whole way: from questions to features and a certificate that is true, and honest ends where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

import ridgescope as rs
from ridgescope.geometry import in_ball

RADIUS = 3.0
TINY = rs.targets.planted(3, 2, ("tanh", "sine"), rng=1)


def agrees(found, clean, dim, factor=1.5, seed=77):
    """Fresh points of the ball, no noise: does the certificate's figure hold there?"""
    U = in_ball(3000, dim, found.radius, np.random.default_rng(seed))
    X = found.center + found.scale * U
    error = np.abs(found.predict(X) - clean(X))
    c = found.certificate
    assert np.mean(error.reshape(len(X), -1).max(axis=1) <= c.bound * factor + 1e-12) >= c.coverage - 0.01
    return float(error.max())


def recovered(found, truth, within=1e-3):
    match = rs.match(found.directions, truth.directions)
    assert match.angles.max() < within, str(match)
    assert len(match.false) == 0, str(match)


class Recorder:
    """A function that keeps what it was asked."""

    def __init__(self, function, dim):
        self.function, self.dim, self.calls = function, dim, []

    def __call__(self, X):
        self.calls.append(X.copy())
        return self.function(X)

    @property
    def asked(self):
        return np.concatenate(self.calls) if self.calls else np.empty((0, self.dim))


def same_bits(a, b):
    assert a.queries == b.queries
    assert dict(a.queries_by_stage) == dict(b.queries_by_stage)
    assert a.certificate == b.certificate
    for name in ("directions", "bias", "slope"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
    for f, g in zip(a.features, b.features, strict=True):
        assert f.response.coefficients.tobytes() == g.response.coefficients.tobytes()
        assert f.response.kinks.tobytes() == g.response.kinks.tobytes()
        assert f.angle_error == g.angle_error


# -- recovery -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", ["first", "small"])
def test_standard_cases_are_recovered_and_certified(case, seed):
    target = rs.targets.CASES[case].make(seed)
    found = rs.extract(target, rng=seed)
    recovered(found, target)
    c = found.certificate
    assert c.met
    assert c.sup_seen <= c.tolerance * c.std + c.noise
    assert agrees(found, target.clean, target.dim) <= 3.0 * c.tolerance * c.std
    assert found.stop is rs.StopReason.CERTIFIED
    assert found.queries == sum(found.queries_by_stage.values())


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", ["mixed", "lowrank", "noisy"])
def test_harder_cases_are_recovered(case, seed):
    target = rs.targets.CASES[case].make(seed)
    found = rs.extract(target, rng=seed, noise=target.noise or None)
    recovered(found, target, 0.03 if target.noise else 1e-3)
    assert found.certificate.met


def test_one_feature_in_one_dimension():
    found = rs.extract(lambda X: np.tanh(2.0 * X[:, 0] + 0.3), dim=1)
    assert found.certificate.met
    assert found.directions.tolist() == [[1.0]]
    assert agrees(found, lambda X: np.tanh(2.0 * X[:, 0] + 0.3), 1) < 0.01


def test_one_feature_among_many_dimensions():
    target = rs.targets.planted(8, 1, ("tanh",), rng=4)
    found = rs.extract(target)
    recovered(found, target)
    assert found.certificate.met


def test_more_features_than_dimensions_in_the_plane():
    target = rs.targets.planted(2, 3, ("tanh", "sine", "bump"), rng=1)
    found = rs.extract(target)
    recovered(found, target)
    assert found.certificate.met


def smooth_with_kinks(dim, features, seed):
    """(f, directions): responses that bend smoothly and have kinks, too."""
    rng = np.random.default_rng([seed, 11])
    V = rng.standard_normal((features, dim))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    a, b, t = rng.uniform(1, 3, features), rng.uniform(-1, 1, features), rng.uniform(-1.5, 1.5, features)
    w = rng.uniform(0.5, 1.5, (2, features)) * rng.choice([-1, 1], (2, features))

    def f(X):
        z = X @ V.T
        smooth = np.where(np.arange(features) % 2, np.tanh(a * z + b), np.sin(a * z + b))
        return smooth @ w[0] + np.abs(z - t) @ w[1]

    return f, V


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (1, 2, 3))])
def test_a_response_that_bends_smoothly_and_has_a_kink_is_one_feature(seed):
    f, V = smooth_with_kinks(6, 9, seed)
    found = rs.extract(f, 6, radius=RADIUS, rng=seed)
    match = rs.match(found.directions, V)
    assert found.certificate.met
    assert match.angles.max() < 1e-3, str(match)
    assert len(match.false) == 0, str(match)


def test_vector_valued_functions():
    target = rs.targets.planted(3, 3, ("tanh", "sine", "bump"), rng=1, outputs=2)
    found = rs.extract(target)
    recovered(found, target)
    assert found.outputs == 2
    assert found.predict(np.zeros((4, 3))).shape == (4, 2)
    assert agrees(found, target.clean, 3) < 0.05


def test_one_output_in_a_column_stays_a_column():
    found = rs.extract(lambda X: TINY(X)[:, None], dim=3)
    assert found.outputs == 1
    assert found.predict(np.zeros((4, 3))).shape == (4, 1)


def test_answers_in_single_precision():
    target = rs.targets.CASES["first"].make(0)
    found = rs.extract(lambda X: target(X).astype(np.float32), dim=3)
    recovered(found, target)
    assert found.certificate.met


def test_fresh_noise_is_noticed():
    target = rs.targets.planted(3, 2, ("tanh", "sine"), noise=0.02, noise_kind="fresh", rng=1)
    found = rs.extract(target, noise=0.02, tolerance=0.1)
    assert not found.deterministic
    recovered(found, target, 0.05)
    assert found.certificate.met


@pytest.mark.parametrize("value", [0.0, 2.5, -1e6])
def test_a_constant_has_no_features(value):
    found = rs.extract(lambda X: np.full(len(X), value), dim=3)
    assert found.features == ()
    assert found.certificate.met
    assert found.bias == pytest.approx(value)


def test_an_affine_function_has_no_features():
    a = np.array([1.0, -2.0, 3.0])
    found = rs.extract(lambda X: 1.0 + X @ a, dim=3)
    assert found.features == ()
    assert found.certificate.met
    np.testing.assert_allclose(found.slope, a, atol=1e-8)


# -- the same bits ------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits():
    one, two = rs.extract(TINY, rng=3), rs.extract(TINY, rng=3)
    same_bits(one, two)
    other = rs.extract(TINY, rng=4)
    assert one.directions.tobytes() != other.directions.tobytes()


@pytest.mark.parametrize("batch", [64, 1000])
def test_the_batch_size_changes_nothing(batch):
    same_bits(rs.extract(rs.oracle.Oracle(TINY, batch=batch)), rs.extract(TINY))


def test_an_oracle_is_left_as_it_was():
    oracle = rs.oracle.Oracle(TINY)
    same_bits(rs.extract(oracle), rs.extract(oracle))
    assert oracle.queries == 0


def test_a_saved_result_predicts_the_same_bits(tmp_path):
    found = rs.extract(TINY)
    found.save(tmp_path / "out")
    loaded = rs.load(tmp_path / "out")
    X = in_ball(200, 3, RADIUS, np.random.default_rng(0))
    assert loaded.predict(X).tobytes() == found.predict(X).tobytes()
    assert loaded.certificate == found.certificate
    assert loaded.summary() == found.summary()


# -- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 1, 50, 400, 700, 1000, 1500, 2000])
def test_the_budget_is_kept_and_the_end_says_so(budget):
    recorder = Recorder(TINY, 3)
    found = rs.extract(recorder, max_queries=budget)
    assert len(recorder.asked) == found.queries <= budget
    if found.queries_by_stage.get("certify"):  # fresh queries were paid for: the certificate speaks of them
        assert found.certificate.samples > 0
        assert np.isfinite(found.certificate.sup_seen)
    if not found.certificate.met:
        assert found.stop is rs.StopReason.BUDGET
        assert found.diagnosis
    values = found.predict(np.zeros((1, 3)))
    assert np.isfinite(values).all()
    if found.queries:  # before the first answer nobody knows whether f is scalar
        assert values.shape == (1,)


@pytest.mark.parametrize("target", [TINY, rs.targets.planted(3, 2, ("relu", "sine"), rng=2)])
def test_the_reach_is_kept(target):
    recorder = Recorder(target, 3)
    found = rs.extract(recorder, reach=RADIUS)
    assert np.linalg.norm(recorder.asked, axis=1).max() <= RADIUS * (1 + 1e-12)
    recovered(found, target)


def test_the_reach_is_kept_around_another_centre():
    center = np.array([5.0, -2.0, 1.0])
    recorder = Recorder(lambda X: TINY(X - center), 3)
    found = rs.extract(recorder, center=center, reach=RADIUS)
    assert np.linalg.norm(recorder.asked - center, axis=1).max() <= RADIUS * (1 + 1e-12)
    recovered(found, TINY)
    assert found.certificate.met


def test_a_jump_ends_within_the_budget():
    """No bandwidth would be enough; the survey must not spend everything on finding that out."""
    found = rs.extract(lambda X: np.sign(X[:, 0] - 0.3), dim=2, max_queries=2500)
    assert found.queries <= 2500
    assert not found.certificate.met
    assert found.stopped
    assert found.certificate.samples > 0


def test_max_features_bounds_the_features():
    target = rs.targets.CASES["first"].make(0)
    found = rs.extract(target, max_features=2, max_queries=6000)
    assert len(found.features) <= 2


def test_bad_answers_are_dropped_where_asked():
    def holed(X):
        values = TINY.clean(X).copy()
        values[np.linalg.norm(X - 1.0, axis=1) < 0.7] = np.nan
        return values

    found = rs.extract(rs.oracle.Oracle(holed, dim=3, on_bad="drop"))
    recovered(found, TINY)
    assert found.dropped > 0
    assert found.certificate.met
    with pytest.raises(rs.BadAnswer, match="on_bad"):
        rs.extract(holed, dim=3)


def test_no_answer_at_all_ends_with_words():
    found = rs.extract(rs.oracle.Oracle(lambda X: np.full(len(X), np.nan), dim=2, on_bad="drop"), max_queries=4000)
    assert not found.certificate.met
    assert found.certificate.samples == 0


# -- coordinates and gradients ------------------------------------------------------------------------------


def test_centre_and_scale_are_the_functions_own_coordinates():
    center, scale = np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, 0.5])
    oracle = rs.oracle.Oracle(lambda X: TINY((X - center) / scale), dim=3, center=center, scale=scale)
    found = rs.extract(oracle)
    recovered(found, TINY)
    U = in_ball(100, 3, RADIUS, np.random.default_rng(0))
    np.testing.assert_allclose(found.predict(center + scale * U), TINY(U), atol=0.01)


def test_another_radius():
    found = rs.extract(TINY, radius=1.5)
    assert found.certificate.met
    recovered(found, TINY, 1e-2)
    agrees(found, TINY.clean, 3)


def test_gradients_are_used_where_offered():
    a, b = TINY.directions
    asked = []

    def f(X):
        return np.tanh(2.0 * X @ a) + np.sin(2.0 * X @ b)

    def gradient(X):
        asked.append(len(X))
        return (2.0 / np.cosh(2.0 * X @ a) ** 2)[:, None] * a + (2.0 * np.cos(2.0 * X @ b))[:, None] * b

    found = rs.extract(rs.oracle.Oracle(f, dim=3, gradient=gradient))
    recovered(found, TINY)
    assert sum(asked) > 0
    assert found.certificate.met


# -- where it cannot be done --------------------------------------------------------------------------------


def test_noise_larger_than_the_signal_ends_honestly():
    target = rs.targets.planted(3, 2, ("tanh", "sine"), noise=5.0, rng=1)
    found = rs.extract(target, max_queries=5000)
    assert not found.certificate.met or found.certificate.noise > 1.0
    assert found.certificate.bound > 1.0
    assert found.queries <= 5000


def test_a_radial_bump_is_not_a_sum_of_few_features():
    found = rs.extract(lambda X: np.exp(-0.5 * np.sum(X**2, axis=1)), dim=6, max_queries=3000)
    assert not found.certificate.met
    assert found.stop is rs.StopReason.BUDGET
    assert found.structure.verdict == "unknown"
    assert any(c.isdigit() for c in found.diagnosis)


def test_probabilities_are_told_to_become_log_odds():
    W = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [1.0, -1.0, 1.0]])

    def softmax(X):
        e = np.exp(2.0 * np.tanh(X) @ W)
        return e / e.sum(axis=1, keepdims=True)

    found = rs.extract(softmax, dim=3, max_queries=2500)
    assert not found.certificate.met
    assert "log_odds" in found.diagnosis
    fixed = rs.extract(rs.oracle.Oracle(softmax, dim=3, output="log_odds"))
    assert fixed.certificate.met
    assert rs.match(fixed.directions, np.eye(3)).angles.max() < 1e-3


# -- methods, progress, arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["slices", "curvature", "random", ("kinks", "curvature"), ("random", "slices")])
def test_every_method_finds_two_smooth_features(method):
    found = rs.extract(TINY, method=method, max_queries=20_000)
    recovered(found, TINY)
    assert found.history[0].proposer == (method if isinstance(method, str) else "+".join(method))


def test_kinks_find_relus():
    target = rs.targets.planted(3, 2, ("relu",), rng=0)
    found = rs.extract(target, method="kinks", max_queries=20_000)
    recovered(found, target)
    assert found.certificate.met


def test_progress_gets_lines():
    lines = []
    found = rs.extract(TINY, progress=lines.append)
    assert any("survey" in line for line in lines)
    assert any(str(r) in line for r in found.history for line in lines)
    assert all("queries" in line for line in lines)


def test_progress_goes_to_standard_error(capsys):
    rs.extract(lambda X: X[:, 0], dim=2, progress=True)
    captured = capsys.readouterr()
    assert "survey" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"radius": 0.0}, "radius must be a positive number, not 0.0"),
        ({"radius": float("nan")}, "radius"),
        ({"radius": float("inf")}, "radius"),
        ({"reach": 2.0}, "reach=2.0 is smaller than radius=3.0"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"noise": -0.1}, "noise"),
        ({"noise": float("inf")}, "noise"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"max_features": -1}, "max_features"),
        ({"max_features": 1.5}, "max_features"),
        ({"max_queries": -1}, "max_queries"),
        ({"max_queries": 1.5}, "max_queries"),
        ({"method": "fourier"}, "unknown method .*fourier.*slices"),
        ({"method": ()}, "unknown method"),
        ({"method": ("paper", "slices")}, "paper"),
        ({"method": ("auto", "slices")}, "auto"),
        ({"center": [1.0, 2.0]}, "center must be 3 finite numbers"),
        ({"center": [1.0, 2.0, np.nan]}, "center"),
        ({"ledger": "nowhere/run.ledger"}, "nowhere"),
        ({"dim": 4}, "dim=4"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_asked(changes, words):
    recorder = Recorder(TINY, 3)
    with pytest.raises(rs.InvalidInput, match=words):
        rs.extract(recorder, **changes)
    assert not recorder.calls


def test_a_missing_dimension_is_asked_for():
    with pytest.raises(rs.InvalidInput, match="dim is missing"):
        rs.extract(lambda X: X[:, 0])


def test_what_is_not_callable_is_refused():
    with pytest.raises(rs.InvalidInput, match="callable"):
        rs.extract(np.eye(3), dim=3)


def test_a_function_that_raises_is_named():
    def broken(X):
        raise KeyError("weights")

    with pytest.raises(rs.OracleFailed, match=r"KeyError.*weights"):
        rs.extract(broken, dim=2)


@pytest.mark.heavy
@pytest.mark.parametrize("reach", [None, 10.0])
def test_a_wide_layer_is_read_far_away_or_within_reach(reach):
    """More features than a joint fit could turn: 420 GELUs of 48 inputs, 210 outputs."""
    rng = np.random.default_rng(0)
    W, b = 1.3 * rng.standard_normal((420, 48)) / np.sqrt(48), 0.5 * rng.standard_normal(420)
    out = 0.3 * rng.standard_normal((420, 210))

    def layer(X):
        y = X @ W.T + b
        return (y * ndtr(y)) @ out

    found = rs.extract(layer, dim=48, radius=8.0, reach=reach, rng=0)
    match = rs.match(found.directions, W / np.linalg.norm(W, axis=1)[:, None])
    assert match.angles.max() < 1e-4
    assert len(match.false) == 0
    assert found.certificate.met, found.certificate.sentence


@pytest.mark.parametrize("seed", [1, 2, 4, 9])
@pytest.mark.parametrize("response", ["tanh", "no closed form"])
def test_weak_features_are_kept_although_the_tolerance_bears_their_loss(seed, response):
    """A network of twelve neurons has twelve features: singular values show that many, whatever the tolerance."""
    rng = np.random.default_rng([77, seed])
    d, n = int(rng.integers(5, 11)), 12
    W, b = rng.uniform(-1.7, 1.7, (n, d)) / np.sqrt(d), rng.uniform(-1, 1, n) / np.sqrt(d)
    out = rng.uniform(0.5, 1.0, n) / np.sqrt(n) * 10.0 ** rng.uniform(-2.0, 0, n)

    def network(X):
        y = np.tanh(X @ W.T + b)
        return (y if response == "tanh" else y**3 + 0.5 * y / (1.0 + y * y)) @ out

    found = rs.extract(network, dim=d, rng=seed, tolerance=0.1)
    match = rs.match(found.directions, W / np.linalg.norm(W, axis=1)[:, None], within=0.05)
    assert len(match.missed) == 0
    assert len(match.false) == 0
    assert found.certificate.met
    assert found.structure.verdict == "exact"
