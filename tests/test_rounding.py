"""Rounding inside the function: found where it is, measured within a factor of two, and never taken for more."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.geometry import in_ball, random_directions, unit
from ridgescope.rounding import measure_rounding, quantum
from ridgescope.survey import Recorder, run_survey
from rounded import ACTIVATIONS, FORMATS, bfloat16, layer

RADIUS = 3.0
V = unit([[1.0, 2.0, -1.0, 0.5], [0.3, -1.0, 0.2, 2.0]])
DOUBLE = float(np.finfo(np.float64).eps)


def look(function, dim, seed=0, **options):
    oracle = rs.oracle.Oracle(function, dim=dim, **options)
    return run_survey(Recorder(oracle), RADIUS, None, np.random.default_rng(seed))


def errors(rounded, exact, dim):
    X = in_ball(2000, dim, RADIUS, np.random.default_rng(9))
    return np.asarray(rounded(X), dtype=np.float64) - exact(X)


# -- rounded inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("dim", "features"), [(4, 4), (8, 10)])
def test_the_error_of_short_formats_is_known_within_a_factor_of_two(form, activation, dim, features):
    for seed in range(3):
        rounded, exact = layer(FORMATS[form], activation, dim, features, seed)
        known, true = look(rounded, dim, seed), np.sqrt(np.mean(errors(rounded, exact, dim) ** 2))
        assert 0.5 * true < known.noise < (2.0 if form != "float32" else 2.5) * true  # largest answer's last place
        assert (known.rounding.deviation > 0) == (form != "float32")


def test_inputs_of_two_decimals_are_rounded_inputs():
    exact = layer(lambda X: X, "tanh", 4, 6, 0)[1]

    def rounded(X):
        return exact(np.round(X, 2))

    known, true = look(rounded, 4), np.sqrt(np.mean(errors(rounded, exact, 4) ** 2))
    assert 0.5 * true < known.rounding.deviation < 2.0 * true
    assert not known.rounding.of_answers


def test_cells_are_those_of_the_functions_own_coordinates():
    rounded, exact = layer(bfloat16, "tanh", 4, 5, 0)
    options = {"center": [0.3, -0.2, 1.0, 0.1], "scale": [0.5, 1.0, 1.1, 0.7]}
    known = look(rounded, 4, **options)
    X = np.array(options["center"]) + options["scale"] * in_ball(2000, 4, RADIUS, np.random.default_rng(9))
    true = np.sqrt(np.mean((rounded(X) - exact(X)) ** 2))
    assert 0.4 * true < known.rounding.deviation < 2.0 * true


def test_lines_that_meet_a_jump_are_left_aside():
    rounded, exact = layer(bfloat16, "tanh", 4, 6, 0)
    true = np.sqrt(np.mean(errors(rounded, exact, 4) ** 2))
    for seed in range(3):
        known = look(lambda X: rounded(X) + 3.0 * np.sign(bfloat16(X)[:, 0] - 0.3), 4, seed)
        assert 0.5 * true < known.rounding.deviation < 2.0 * true


@pytest.mark.parametrize("form", FORMATS)
def test_rounding_costs_few_queries(form):
    oracle = rs.oracle.Oracle(layer(FORMATS[form], "gelu", 5, 6, 0)[0], dim=5)
    earlier = oracle(in_ball(256, 5, RADIUS, np.random.default_rng(1)))
    measure_rounding(oracle, oracle, RADIUS, float(earlier.std()), earlier, np.random.default_rng(0))
    assert 0 < oracle.queries - 256 <= 200


def test_an_exact_function_is_not_asked_about_rounding():
    oracle = rs.oracle.Oracle(layer(lambda X: X, "gelu", 5, 6, 0)[1], dim=5)
    earlier = oracle(in_ball(256, 5, RADIUS, np.random.default_rng(1)))
    measure_rounding(oracle, oracle, RADIUS, float(earlier.std()), earlier, np.random.default_rng(0))
    assert oracle.queries - 256 == 16, "neighbours differ, and that is all that must be known"


# -- rounded answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1e-5, 3.7e-5, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_quantum_bounds_the_error_by_its_half(step, kind, activation):
    exact = layer(lambda X: X, activation, 5, 8, 1)[1]
    known = look(lambda X: (np.round(exact(X) / step) * step).astype(kind), 5)
    assert known.rounding.of_answers
    assert known.rounding.bound == pytest.approx(0.5 * step, rel=1e-6)
    assert known.noise == pytest.approx(step / np.sqrt(12.0), rel=1e-6)


def test_answers_of_a_short_format_have_half_its_last_place():
    exact = layer(lambda X: X, "tanh", 5, 8, 1)[1]
    known = look(lambda X: bfloat16(exact(X)), 5)
    gaps = errors(lambda X: bfloat16(exact(X)), exact, 5)
    assert known.rounding.of_answers
    assert np.abs(gaps).max() <= known.rounding.bound <= 2.5 * np.abs(gaps).max()
    assert known.noise == pytest.approx(np.sqrt(np.mean(gaps**2)), rel=0.2)


@pytest.mark.parametrize("multiples", [(1, 2, 3), (2, 3), (4, 6, 9)])
def test_the_quantum_may_be_a_part_of_every_difference(multiples):
    rng = np.random.default_rng(0)
    values = 0.3 + 0.007 * np.cumsum(rng.choice(multiples, 60))
    assert quantum(values, DOUBLE) == pytest.approx(0.007, rel=1e-9)


def test_numbers_without_a_quantum_have_none():
    rng = np.random.default_rng(0)
    assert quantum(rng.standard_normal(500), DOUBLE) == 0.0
    assert quantum(rng.standard_normal(500).astype(np.float32).astype(np.float64), 1.2e-7) == 0.0
    assert quantum(np.arange(5.0), DOUBLE) == 0.0, "too few to tell"


# -- what is no rounding -------------------------------------------------------------------------------------


def hashed(X):
    return np.array([int(hashlib.md5(np.ascontiguousarray(row).tobytes()).hexdigest()[:8], 16) / 2**32 for row in X])


MANY = random_directions(200, 4, np.random.default_rng(5))
PLACES = np.random.default_rng(6).uniform(-2.0, 2.0, 200)
NOT_ROUNDED = {
    "smooth": lambda X: np.tanh(2.0 * X @ V.T).sum(axis=1),
    "single precision": lambda X: np.tanh(2.0 * X @ V.T).sum(axis=1).astype(np.float32),
    "kinks": lambda X: np.abs(X @ MANY[:30].T - 0.3).sum(axis=1),
    "half flat": lambda X: np.maximum(X @ V[0] - 0.5, 0.0),
    "saturated": lambda X: np.tanh(200.0 * X @ V[0]),
    "steep": lambda X: np.tanh(50.0 * X @ V[0]) + np.tanh(30.0 * X @ V[1]),
    "narrow": lambda X: np.exp(-((20.0 * X @ V[0]) ** 2)) + np.exp(-((10.0 * X @ V[1]) ** 2)),
    "wave": lambda X: np.sin(40.0 * X @ V[0]),
    "fast wave": lambda X: np.sin(1e5 * X @ V[0]),
    "fast wave in single precision": lambda X: np.sin(1e5 * X @ V[0]).astype(np.float32),
    "fast part": lambda X: np.tanh(2.0 * X @ V[0]) + 0.5 * np.sin(1e6 * X @ V[1]),
    "hash": hashed,
    "hash of rounded inputs": lambda X: hashed(np.round(X, 2)),
    "hash of half precision": lambda X: hashed(bfloat16(X)),
    "one jump": lambda X: np.sign(X @ V[0]),
    "jumps": lambda X: np.sign(X @ MANY[:20].T - PLACES[:20]).sum(axis=1),
    "many jumps": lambda X: np.sign(X @ MANY.T - PLACES).sum(axis=1),
    "floors": lambda X: np.floor(3.0 * X @ V[0]) + np.floor(2.0 * X @ V[1]),
    "constant": lambda X: np.ones(len(X)),
}


@pytest.mark.parametrize("name", NOT_ROUNDED)
def test_what_varies_fast_or_jumps_is_not_taken_for_rounding(name):
    for seed in range(2):
        assert look(NOT_ROUNDED[name], 4, seed).rounding.bound == 0.0


@pytest.mark.parametrize("name", ["smooth", "kinks", "half flat", "saturated", "steep", "narrow", "one jump", "jumps"])
def test_exact_functions_have_no_noise(name):
    known = look(NOT_ROUNDED[name], 4)
    assert known.noise < 1e-13 * known.std


def test_trees_are_no_rounding():
    ensemble = pytest.importorskip("sklearn.ensemble")
    X = in_ball(1000, 4, RADIUS, np.random.default_rng(3))
    for kind in (ensemble.RandomForestRegressor, ensemble.GradientBoostingRegressor):
        trees = kind(n_estimators=50, random_state=0).fit(X, np.tanh(2.0 * X @ V.T).sum(axis=1))
        assert look(trees.predict, 4).rounding.bound == 0.0


# -- in a run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_a_run_on_a_short_format_finds_the_features_and_says_what_it_allows_for(form):
    rounded, exact = layer(FORMATS[form], "gelu", 4, 4, 1)
    found = rs.extract(rounded, dim=4, radius=RADIUS, tolerance=0.05, rng=0)
    certificate = found.certificate
    assert certificate.met
    X = in_ball(5000, 4, RADIUS, np.random.default_rng(9))
    assert np.abs(exact(X) - found.predict(X)).max() <= 0.05 * certificate.std + certificate.noise
    assert certificate.noise > np.abs(rounded(X) - exact(X)).std()


@pytest.mark.parametrize("max_queries", [None, 100_000])
def test_a_tolerance_that_rounding_hides_is_undecided_and_named(max_queries):
    """More queries would not decide it, so that a budget is not used up for it."""
    exact = layer(lambda X: X, "tanh", 4, 4, 0)[1]
    options = {"radius": RADIUS, "tolerance": 1e-2, "max_queries": max_queries, "rng": 0}
    found = rs.extract(lambda X: np.round(exact(X), 1), dim=4, **options)
    assert found.certificate.verdict == "undecided"
    assert found.stop is rs.StopReason.UNDECIDED
    assert found.diagnosis.endswith(rs.diagnose.Cause.ROUNDED_ANSWERS.value)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("form", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01), ("0.001", 0.01), ("0.01", 0.01), ("0.1", 0.05)]
)
def test_certificates_of_functions_that_round_are_true(form, tolerance):
    """Against the exact function, over twelve layers; each run ends within a minute."""
    met = 0
    for seed in range(12):
        dim, features, activation = 4 + seed % 5, 4 + 3 * seed % 7, list(ACTIVATIONS)[seed % 3]
        function, exact = layer(FORMATS.get(form, lambda X: X), activation, dim, features, seed)
        if form not in FORMATS:
            step = float(form)
            function = lambda X, exact=exact, step=step: np.round(exact(X) / step) * step  # noqa: E731
        start = time.process_time()
        found = rs.extract(function, dim=dim, radius=RADIUS, tolerance=tolerance, rng=0)
        assert time.process_time() - start < 60.0
        X = in_ball(20_000, dim, RADIUS, np.random.default_rng(9))
        error, certificate = np.abs(exact(X) - found.predict(X)).max(), found.certificate
        assert not certificate.met or error <= tolerance * certificate.std + certificate.noise
        met += certificate.met
    assert met >= 9
