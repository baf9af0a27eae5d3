"""Theorem weaker, Theorem main-learning, Corollary identifiability and the n < d footnote, end to end."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.errors import InvalidInput
from ridgescope.paper import Settings, find_subspace, identify, learn, learn_bounded, repetitions, solve, survey
from ridgescope.paper.directions import sines
from ridgescope.paper.peel import empty_model, sharpen
from ridgescope.paper.response import bend_of
from ridgescope.paper.survey import along, in_ball
from ridgescope.targets.planted import Planted, planted

PAPER_KINDS = ("sine", "tanh", "bump", "relu", "abs")
QUICK = {"samples": 40_000, "most": 80_000, "refine": 40_000}
QUICKER = {"samples": 30_000, "most": 30_000, "refine": 30_000}
QUICKEST = {"samples": 20_000, "most": 20_000, "refine": 20_000}
"""Settings with fewer samples than the default: as many as a test's features need."""


def relative_rms(f: Planted, predict: object, radius: float, rng: np.random.Generator) -> float:
    X = in_ball(4000, f.dim, radius, rng)
    y = f.clean(X)
    return float(np.sqrt(np.mean((predict(X) - y) ** 2)) / y.std())  # type: ignore[operator]


def test_bounded_responses() -> None:
    """Theorem weaker: directions, responses, and error on the ball, in a single pass with a vote of three."""
    f = planted(dim=3, features=4, kinds=("sine",), separation=0.4, noise=1e-3, rng=3, affine=False)
    settings = Settings(
        ell=12.0,
        ell2=10.0,
        frequency=5.0,
        lowest=0.5,
        alpha=0.1,
        eta=0.01,
        samples=120_000,
        separation=0.3,
        repeats=3,
    )
    rng = np.random.default_rng(1)
    got = learn_bounded(f, dim=3, radius=3.0, settings=settings, rng=rng)
    near = sines(f.directions, got.directions)
    assert got.directions.shape == (4, 3)
    assert near.min(axis=1).max() <= 0.03
    assert relative_rms(f, got.predict, 3.0, rng) <= 0.12
    X = in_ball(4000, 3, 3.0, rng)
    assert np.abs(got.predict(X) - f.clean(X)).max() <= 0.1 * np.abs(f.clean(X)).max()
    assert all(abs(float(r(0.0))) < 1e-12 for r in got.responses)
    assert got.queries >= 3 * 2 * 2 * 120_000


def test_without_completion_the_low_band_is_missing() -> None:
    """What the lemma's formula leaves out at affordable ℓ: additions=False is worse on a wide tanh."""
    u = np.array([0.6, 0.8])

    def f(X: np.ndarray) -> np.ndarray:
        return np.tanh(X @ u)

    settings = Settings(ell=20.0, ell2=10.0, frequency=4.0, lowest=0.5, alpha=0.1, eta=0.0, samples=60_000)
    errors = []
    for complete in (False, True):
        rng = np.random.default_rng(2)
        got = learn_bounded(f, dim=2, radius=3.0, settings=settings, rng=rng, additions=complete)
        assert len(got.directions) == 1
        z = np.linspace(-3, 3, 101)
        errors.append(np.abs(got.predict(z[:, None] * u) - np.tanh(z)).max())
    assert errors[1] <= 0.15
    assert errors[0] >= 2 * errors[1]


@pytest.mark.parametrize("kinds", [("relu", "abs"), pytest.param(("leaky_relu", "softplus"), marks=pytest.mark.heavy)])
def test_unbounded_responses(kinds: tuple[str, ...]) -> None:
    """Theorem main-learning: responses that grow without bound, n > d, with noise."""
    f = planted(dim=2, features=3, kinds=kinds, separation=0.5, noise=1e-3, rng=5)
    rng = np.random.default_rng(3)
    settings = replace(survey(f, dim=2, radius=3.0, noise=1e-3, rng=rng), **QUICKER)
    got = learn(f, dim=2, radius=3.0, settings=settings, rng=rng)
    assert sines(f.directions, got.directions).min(axis=1).max() <= 0.05
    assert sines(f.directions, got.directions).min(axis=0).max() <= 0.05
    assert relative_rms(f, got.predict, 3.0, rng) <= 0.05
    X = in_ball(4000, 2, 3.0, rng)
    assert np.abs(got.predict(X) - f.clean(X)).max() <= 0.1 * f.clean(X).std()
    assert np.all(got.angle_errors < 0.05)


def test_affine_features_belong_to_the_affine_part() -> None:
    """Corollary identifiability by majority: exactly the nonlinear directions, and the slope of the linear ones."""
    V = np.array([[1.0, 0.0, 0.0], [0.0, 0.8, 0.6], [0.0, -0.6, 0.8]])

    def f(X: np.ndarray) -> np.ndarray:
        S = X @ V.T
        return np.sin(2 * S[:, 0]) + np.abs(S[:, 1] - 0.3) + 1.5 * S[:, 2] + 0.7

    rng = np.random.default_rng(4)
    settings = replace(survey(f, dim=3, radius=3.0, rng=rng), repeats=repetitions(0.3), **QUICK)
    got = identify(f, dim=3, radius=3.0, accuracy=0.1, settings=settings, rng=rng)
    assert got.directions.shape == (2, 3)
    assert sines(V[:2], got.directions).min(axis=1).max() <= 0.05
    assert got.slope @ V[2] == pytest.approx(1.5, abs=0.05)
    assert np.all(got.bend >= 0.1)


@pytest.mark.parametrize(
    ("kinds", "samples"),
    [(("sine",), QUICKEST), pytest.param(("sine", "tanh", "relu"), QUICK, marks=pytest.mark.heavy)],
)
def test_fewer_features_than_dimensions(kinds: tuple[str, ...], samples: dict[str, int]) -> None:
    """The footnote: d = 30, n = 3, with an affine part that points out of the span."""
    f = planted(dim=30, features=3, kinds=kinds, separation=0.5, noise=1e-4, rng=7)
    rng = np.random.default_rng(5)
    space = find_subspace(f, dim=30, radius=3.0, rng=rng)
    assert space.span.shape == (3, 30)
    inside = np.linalg.norm(f.directions @ space.span.T, axis=1)
    assert np.all(inside >= 1 - 1e-3)
    settings = replace(survey(space.inside(f), dim=3, radius=3.0, rng=rng), **samples)
    got = solve(f, 30, 3.0, 1e-4, rng, settings=settings)
    assert got.directions.shape == (3, 30)
    assert sines(f.directions, got.directions).min(axis=1).max() <= 0.05
    assert relative_rms(f, got.predict, 3.0, rng) <= 0.05


ROUGH = np.array([[1.0, 0.0], [np.cos(1.0), np.sin(1.0)], [np.cos(2.0), np.sin(2.0)]])


def steep_saw_and_two_more(X: np.ndarray) -> np.ndarray:
    """A saw of slope 12, whose differences of two lengths disagree by several times what tanh and |·| amount to."""
    S = X @ ROUGH.T
    return 3.6 * np.abs((S[:, 0] / 0.3) % 1 - 0.5) + np.tanh(S[:, 1]) + np.abs(S[:, 2] - 0.3)


@pytest.mark.parametrize("seed", range(5))
def test_a_steep_feature_hides_no_dimension(seed: int) -> None:
    """The floor of each singular direction is its own: d = 2, n = 3 is no case for the footnote."""
    space = find_subspace(steep_saw_and_two_more, dim=2, radius=3.0, rng=np.random.default_rng(seed))
    assert space.span.shape == (2, 2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("active", [0, 1, 3])
def test_noise_adds_no_dimension(active: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def f(X: np.ndarray) -> np.ndarray:
        return np.sin(X[:, :active]).sum(axis=1) + X[:, -1] + 1e-3 * rng.standard_normal(len(X))

    assert len(find_subspace(f, dim=6, radius=3.0, rng=rng).span) == active


def test_no_span_is_looked_for_with_as_many_features_as_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    module = sys.modules[solve.__module__]  # `ridgescope.paper.learn` is the function of that name
    monkeypatch.setattr(module, "find_subspace", lambda *a, **k: looked.append(k["dim"]) or find_subspace(*a, **k))
    for features in (None, 1, 2, 3):
        solve(steep_saw_and_two_more, 2, 3.0, None, np.random.default_rng(0), max_queries=1, features=features)
    assert looked == [2, 2]


@pytest.mark.parametrize("constant", [1.0, 10.0])
def test_a_constant_is_subtracted_before_the_search(constant: float) -> None:
    """The remark after Assumption nondegen: f + c is learned as f is, but for its bias."""
    directions = ROUGH[:2]
    settings = Settings(ell=10.0, ell2=10.0, frequency=4.0, lowest=0.5, alpha=0.1, eta=0.0, samples=10_000)
    plain, lifted = (
        learn_bounded(
            lambda X, c=c: c + np.sin(2 * X @ directions.T).sum(axis=1) / 2,
            dim=2,
            radius=3.0,
            settings=settings,
            rng=np.random.default_rng(1),
        )
        for c in (0.0, constant)
    )
    assert sines(directions, plain.directions).min(axis=1).max() <= 0.05
    np.testing.assert_allclose(lifted.directions, plain.directions, atol=1e-12)
    assert lifted.bias - plain.bias == pytest.approx(constant, abs=1e-6)


def test_errors_of_sharpened_directions_cover_the_truth() -> None:
    """Most true angles are within two stated errors, and stated errors are of the size of true ones: 24 directions."""
    V = np.array([[1.0, 0.0, 0.0], [0.0, 0.8, 0.6]])
    settings = Settings(ell=12.0, ell2=15.0, frequency=5.0, lowest=0.5, alpha=0.1, eta=0.01)
    angles, errors = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        start = V + 0.02 * rng.standard_normal(V.shape)
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        model = empty_model(3).with_directions(start, settings.reach, settings.table_step)
        found = sharpen(lambda X: np.sin(2 * X @ V.T).sum(axis=1), model, settings=settings, m=4_000, rng=rng)
        angles.append(np.arcsin(np.diag(sines(found.directions, V))))
        errors.append(found.errors)
    ratios = np.concatenate(angles) / np.concatenate(errors)
    assert np.mean(ratios <= 2) >= 0.85
    assert 0.5 <= np.sqrt(np.mean(ratios**2)) <= 1.2


@pytest.mark.heavy
def test_stated_errors_cover_the_truth() -> None:
    """The angle errors of `learn` over a dozen targets: at least nine of ten directions within two stated errors."""
    ratios = []
    for seed in range(12):
        f = planted(dim=3, features=4, kinds=PAPER_KINDS, separation=0.1, noise=1e-3, rng=seed)
        rng = np.random.default_rng(seed)
        settings = replace(survey(f, dim=3, radius=3.0, noise=1e-3, rng=rng), **QUICK)
        got = learn(f, dim=3, radius=3.0, settings=settings, rng=rng)
        ratios.append(np.arcsin(sines(got.directions, f.directions).min(axis=1)) / got.angle_errors)
    assert np.mean(np.concatenate(ratios) <= 2) >= 0.9
    assert np.median(np.concatenate(ratios)) >= 0.2  # errors that cover anything would say nothing


def hidden_kink(X: np.ndarray) -> np.ndarray:
    """A sine, and a kink of a hundredth of its slope across it, which few samples do not show."""
    return np.sin(2 * X[:, 0]) + 0.02 * np.abs(X[:, 1] - 0.3)


def test_a_missed_feature_is_not_missed_silently() -> None:
    """Corollary identifiability: at an accuracy below the bend of what the search cannot see, the result says so."""
    settings = Settings(
        ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.1, eta=0.01, samples=5_000, most=5_000, refine=20_000
    )
    coarse, fine = (
        identify(hidden_kink, dim=2, radius=3.0, accuracy=accuracy, settings=settings, rng=np.random.default_rng(1))
        for accuracy in (0.2, 0.01)
    )
    for got in (coarse, fine):
        assert sines(np.eye(2), got.directions).min(axis=1)[0] <= 0.05
        assert np.all(got.bend >= got.accuracy)
    assert len(coarse.directions) == 1
    assert coarse.complete
    assert not fine.complete
    assert fine.residual >= 0.01


@pytest.mark.parametrize("accuracy", [0.0, -0.1, float("nan"), float("inf")])
def test_an_accuracy_that_means_nothing_is_refused(accuracy: float) -> None:
    settings = Settings(ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.1, eta=0.01)
    with pytest.raises(InvalidInput, match="accuracy must be a positive number"):
        identify(hidden_kink, dim=2, radius=3.0, accuracy=accuracy, settings=settings, rng=np.random.default_rng(1))


def test_affine_function_has_no_directions() -> None:
    a = np.array([0.3, -1.0, 2.0, 0.0])
    got = solve(lambda X: 1.0 + X @ a, 4, 2.0, 0.0, np.random.default_rng(6))
    assert got.directions.shape == (0, 4)
    np.testing.assert_allclose(got.slope, a, atol=1e-5)
    assert got.bias == pytest.approx(1.0, abs=1e-5)


def test_budget_is_kept() -> None:
    f = planted(dim=3, features=4, kinds=("sine",), rng=1)
    settings = replace(survey(f, dim=3, radius=3.0, rng=np.random.default_rng(7)), **QUICKEST)
    for limit, rounds in ((500_000, 0), (1_500_000, 1)):
        got = solve(f, 3, 3.0, 0.0, np.random.default_rng(7), max_queries=limit, settings=settings)
        assert got.rounds == rounds
        assert got.queries <= limit


def test_same_seed_same_bits() -> None:
    """Search, rounds, sharpening, responses and completion: not a bit depends on anything but the seed."""
    f = planted(dim=2, features=3, kinds=("sine", "abs"), noise=1e-3, rng=1)
    settings = replace(survey(f, dim=2, radius=3.0, noise=1e-3, rng=np.random.default_rng(10)), **QUICKEST)
    one, two = (
        solve(f, 2, 3.0, 1e-3, np.random.default_rng(10), settings=settings, max_queries=1_500_000) for _ in "ab"
    )
    assert len(one.directions)
    assert one.queries == two.queries
    for name in ("directions", "slope", "bias", "angle_errors"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    z = np.linspace(-3, 3, 301)
    for r, s in zip(one.responses, two.responses, strict=True):
        np.testing.assert_array_equal(r(z), s(z))


def test_survey_sees_bandwidth_and_noise() -> None:
    """The search reaches beyond the fastest wave, and noise lengthens the differences."""
    f = planted(dim=3, features=4, kinds=("sine",), rng=2)
    fastest = max(d.parameters["frequency"] for d in f.drawn)
    quiet, noisy = (survey(f, dim=3, radius=3.0, noise=e, rng=np.random.default_rng(9)) for e in (0.0, 0.5))
    assert fastest < quiet.frequency < 5 * fastest
    assert quiet.alpha < noisy.alpha <= 2 / noisy.frequency
    assert quiet.queries == 32 * 2048


def test_distance_from_affine_is_half_the_narrowest_strip() -> None:
    z = np.linspace(-1, 1, 801)
    assert bend_of(3 * z - 1, z) == pytest.approx(0.0, abs=1e-9)
    assert bend_of(np.abs(z), z) == pytest.approx(0.5, rel=0.02)
    assert bend_of(z**2 + 5 * z, z) == pytest.approx(0.5, rel=0.02)


def test_points_along_a_direction_stay_in_the_ball() -> None:
    u = np.array([0.6, 0.0, 0.8])
    X = along(u, 500, 2.0, np.random.default_rng(8))
    assert np.linalg.norm(X, axis=1).max() <= 2.0 + 1e-9
    assert np.abs(X @ u).max() > 1.9


@pytest.mark.heavy
@pytest.mark.parametrize(("dim", "features"), [(3, 4), (4, 6), (5, 8)])
def test_acceptance(dim: int, features: int) -> None:
    """All nonlinear directions within 0.05 rad, none false, relative RMS below 5 %, in 18 of 20 seeds."""
    good = 0
    for seed in range(20):
        f = planted(dim=dim, features=features, kinds=PAPER_KINDS, separation=0.1, noise=1e-3, rng=seed)
        start = time.process_time()
        got = rs.extract(f, dim=dim, radius=3.0, method="paper", noise=1e-3, rng=seed)
        spent = time.process_time() - start
        near = np.arcsin(sines(f.directions, got.directions)) if len(got.features) else np.full((features, 1), 9.0)
        rms = relative_rms(f, got.predict, 3.0, np.random.default_rng(1000 + seed))
        worst, strayed = near.min(axis=1).max(), near.min(axis=0).max()
        ok = bool(max(worst, strayed) <= 0.05 and rms < 0.05)
        print(
            f"d={dim} n={features} seed={seed} ok={ok} found={len(got.features)} angle={worst:.4f} rms={rms:.4f} "
            f"queries={got.queries:.3g} cpu={spent:.0f}s",
            flush=True,
        )
        good += ok
    assert good >= 18


@pytest.mark.parametrize("run", [learn, learn_bounded])
def test_the_pure_form_uses_no_addition(run: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detrending, sharpening, merging, backfitting and the low band are out of reach, and not needed."""
    module = sys.modules[learn.__module__]
    for name in ("detrend", "sharpen", "merge", "backfit", "complete_on_ball"):
        monkeypatch.setattr(module, name, None)
    f = planted(dim=2, features=3, kinds=("sine",), separation=0.5, noise=1e-3, rng=2, affine=False)
    rng = np.random.default_rng(1)
    settings = replace(survey(f, dim=2, radius=3.0, noise=1e-3, rng=rng), samples=60_000)
    got = run(f, dim=2, radius=3.0, settings=settings, rng=rng, additions=False)  # type: ignore[operator]
    assert got.directions.shape == (3, 2)
    assert sines(f.directions, got.directions).min(axis=1).max() <= 0.05
    assert got.rounds == 1
    with pytest.raises(TypeError):
        run(f, dim=2, radius=3.0, settings=settings, rng=rng)  # type: ignore[operator]


def test_the_pure_form_recovers_an_unbounded_response() -> None:
    """Theorem main-learning as its proof goes: a staircase with slope and constant, as α and η blur it."""
    u, a = np.array([0.6, 0.8]), np.array([2.0, -1.0])

    def f(X: np.ndarray) -> np.ndarray:
        return np.sin(3 * X @ u) + 3 * X @ u + X @ a + 5.0

    rng = np.random.default_rng(1)
    settings = Settings(ell=15.0, ell2=8.0, frequency=5.0, lowest=0.3, alpha=0.05, eta=0.01, samples=100_000)
    got = learn(f, dim=2, radius=3.0, settings=settings, rng=rng, additions=False)
    assert sines(u[None], got.directions).shape == (1, 1)
    assert sines(u[None], got.directions).max() <= 0.05
    X = in_ball(2000, 2, 3.0, rng)
    assert np.sqrt(np.mean((got.predict(X) - f(X)) ** 2)) <= 0.2
    assert got.predict([[0.0, 0.0]])[0] == pytest.approx(5.0)  # f(0) is exact


def test_the_pure_form_inside_a_span_keeps_the_slope_outside() -> None:
    u, a = np.eye(4)[0], np.array([0.5, 1.0, -2.0, 3.0])
    settings = Settings(ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.05, eta=0.01, samples=20_000)
    got = solve(
        lambda X: np.sin(2 * X @ u) + X @ a,
        4,
        3.0,
        None,
        np.random.default_rng(1),
        settings=settings,
        additions=False,
    )
    assert np.abs(got.directions @ u).round(6) == 1.0
    np.testing.assert_allclose(got.slope[1:], a[1:], atol=1e-6)


def test_the_budget_of_the_pure_form_is_kept() -> None:
    f = planted(dim=3, features=3, kinds=("sine",), separation=0.5, rng=1)
    settings = replace(survey(f, dim=3, radius=3.0, rng=np.random.default_rng(7)), samples=20_000)
    queries = {}
    for limit in (200_000, 410_000, 450_000, 10**9):
        got = learn(
            f,
            dim=3,
            radius=3.0,
            settings=settings,
            rng=np.random.default_rng(7),
            max_queries=limit,
            additions=False,
        )
        assert got.queries <= limit
        queries[limit] = got.queries
    assert queries[200_000] < 100_000 < queries[410_000] < queries[450_000] < queries[10**9]


def test_identify_in_pure_form_says_that_angles_are_unknown() -> None:
    settings = Settings(ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.05, eta=0.01, samples=20_000)
    got = identify(
        hidden_kink, dim=2, radius=3.0, accuracy=0.3, settings=settings, rng=np.random.default_rng(1), additions=False
    )
    assert len(got.directions) == 1
    assert np.all(np.isinf(got.angle_errors))
    assert not got.complete
