"""Planted targets know their truth: separation, twins, noise, clean values, and the standard cases."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from ridgescope.geometry import angle, in_ball
from ridgescope.targets import CASES, KINDS, SMOOTH, planted
from ridgescope.targets.kinds import DRAW

# the table of the standard cases: d, n, outputs, noise
STANDARD = {
    "first": (3, 4, None, 0.0),
    "small": (5, 8, None, 0.0),
    "mixed": (10, 20, None, 0.0),
    "superposed": (20, 40, None, 0.0),
    "dense": (20, 100, None, 0.0),
    "extreme": (4, 30, None, 0.0),
    "waves": (10, 20, None, 0.0),
    "noisy": (10, 20, None, 0.02),
    "twins": (10, 16, None, 0.0),
    "lowrank": (100, 8, None, 0.0),
    "vector": (16, 40, 6, 0.0),
    "relu": (20, 60, None, 0.0),
    "large": (50, 200, None, 0.0),
}


def sines(V):
    """Pairwise sines, upper triangle."""
    cosines = np.abs(V @ V.T)[np.triu_indices(len(V), 1)]
    return np.sqrt(np.maximum(1 - cosines**2, 0))


def ball(target, count=200, seed=0):
    return in_ball(count, target.dim, 3.0, np.random.default_rng(seed))


def recomposed(target, X):
    """b + a·x + Σ s_i(v_i·x) from the parts of the target."""
    total = target.bias + X @ target.slope
    total = total[:, 0] if target.scalar else total
    for v, s in zip(target.directions, target.responses, strict=True):
        total = total + s(X @ v)
    return total


@given(
    dim=st.integers(2, 12),
    features=st.integers(0, 12),
    outputs=st.one_of(st.none(), st.integers(1, 4)),
    separation=st.floats(0.0, 0.3),
    seed=st.integers(0, 10**6),
)
def test_a_target_is_the_sum_of_its_parts(dim, features, outputs, separation, seed):
    target = planted(dim, features, separation=separation if dim > 2 else 0.0, outputs=outputs, rng=seed)
    assert target.directions.shape == (features, dim)
    np.testing.assert_allclose(np.linalg.norm(target.directions, axis=1), 1.0)
    if dim > 2:
        assert (sines(target.directions) >= separation - 1e-12).all()
    X = ball(target, 20, seed)
    assert target(X).shape == ((20,) if outputs is None else (20, outputs))
    np.testing.assert_allclose(target.clean(X), recomposed(target, X), atol=1e-10)
    assert np.array_equal(target(X), target.clean(X))
    assert target.parameters == features * (dim + 16)
    assert len(target.kinds) == len(target.responses) == features


@given(separation=st.floats(0.05, 0.3), seed=st.integers(0, 10**6))
def test_separation_holds_among_many_directions(separation, seed):
    assert sines(planted(3, 20, separation=separation, rng=seed).directions).min() >= separation - 1e-12


@pytest.mark.parametrize("kind", sorted(DRAW))
def test_every_kind_is_finite_and_nonlinear(kind):
    for seed in range(5):
        drawn = DRAW[kind](np.random.default_rng(seed))
        z = np.linspace(-3, 3, 601)
        y = drawn(z)
        assert drawn.kind == kind
        assert np.isfinite(y).all()
        assert all(np.isfinite(v) for v in drawn.parameters.values())
        rest = y - np.polynomial.polynomial.polyval(z, np.polynomial.polynomial.polyfit(z, y, 1))
        assert np.sqrt(np.mean(rest**2)) > 0.02, f"{kind} with seed {seed} is nearly affine"


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "abs", "triangle"])
def test_kinds_with_kinks_are_not_smooth(kind):
    assert not DRAW[kind](np.random.default_rng(0)).smooth
    assert kind not in SMOOTH


def test_polynomials_must_be_requested_by_name():
    assert "polynomial" not in KINDS
    assert set(KINDS) | {"polynomial"} == set(DRAW)
    assert planted(3, 2, kinds="polynomial").kinds == ("polynomial", "polynomial")


@given(pairs=st.integers(0, 4), twin_angle=st.floats(1e-3, 0.09), seed=st.integers(0, 10**6))
def test_twins_are_exactly_as_far_apart_as_asked(pairs, twin_angle, seed):
    V = planted(6, 9, twins=pairs, twin_angle=twin_angle, separation=0.1, rng=seed).directions
    for i in range(pairs):
        assert angle(V[2 * i], V[2 * i + 1]) == pytest.approx(twin_angle, rel=1e-9)
    alone = [j for j in range(9) if j >= 2 * pairs or j % 2 == 0]
    assert (sines(V[alone]) >= 0.1 - 1e-12).all()


@pytest.mark.parametrize("kind", ["uniform", "adversarial", "fresh"])
@pytest.mark.parametrize("outputs", [None, 3])
@given(noise=st.floats(1e-6, 2.0), seed=st.integers(0, 1000))
def test_noise_keeps_its_bound(kind, outputs, noise, seed):
    target = planted(4, 3, noise=noise, noise_kind=kind, outputs=outputs, rng=seed)
    X = ball(target, 60, seed)
    error = np.abs(target(X) - target.clean(X))
    assert (error <= noise * (1 + 1e-12) + 1e-14).all()
    assert error.max() > 0.5 * noise


def test_uniform_noise_is_uniform_and_a_function_of_x():
    target = planted(3, 2, noise=0.5, rng=4)
    X = ball(target, 20_000)
    e = (target(X) - target.clean(X)) / 0.5
    assert np.array_equal(target(X), target(X))
    assert abs(e.mean()) < 0.03
    assert np.std(e) == pytest.approx(1 / np.sqrt(3), rel=0.02)
    assert abs(np.corrcoef(e[:-1], e[1:])[0, 1]) < 0.03
    nudged = X + 1e-13
    assert abs(np.corrcoef(e, target(nudged) - target.clean(nudged))[0, 1]) < 0.03, "nothing to average"


def test_adversarial_noise_is_a_fixed_sign_pattern_that_is_always_at_its_bound():
    target = planted(3, 2, noise=0.25, noise_kind="adversarial", rng=4)
    X = ball(target, 5000)
    e = target(X) - target.clean(X)
    np.testing.assert_allclose(np.abs(e), 0.25, atol=1e-12)
    assert np.array_equal(target(X), target(X))
    assert 0.3 < np.mean(e > 0) < 0.7
    near = X + 1e-4
    assert np.mean(np.sign(e) == np.sign(target(near) - target.clean(near))) > 0.99, "a pattern"


def test_fresh_noise_differs_at_every_call():
    target = planted(3, 2, noise=0.1, noise_kind="fresh")
    X = ball(target, 10)
    assert not np.array_equal(target(X), target(X))
    assert not rs.oracle.Oracle(target).repeats(X).deterministic


@given(cut=st.integers(1, 699), noise=st.sampled_from([0.0, 0.1]), outputs=st.sampled_from([None, 2]))
def test_the_bits_do_not_depend_on_the_batch(cut, noise, outputs):
    target = planted(7, 11, noise=noise, outputs=outputs, rng=2)
    X = ball(target, 700)
    assert np.concatenate([target(X[:cut]), target(X[cut:])]).tobytes() == target(X).tobytes()


def test_a_users_own_function_is_a_kind():
    def cube(z):
        return z**3

    target = planted(2, 1, kinds=cube)
    assert target.kinds == ("cube",)
    z = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(target.responses[0](z), target.coefficients[0, 0] * z**3)
    assert sorted(planted(3, 4, kinds=("tanh", cube)).kinds) == ["cube", "cube", "tanh", "tanh"]


def test_responses_of_a_vector_target_have_a_last_axis_of_outputs():
    target = planted(3, 2, outputs=4)
    assert target.responses[0](np.zeros((5, 6))).shape == (5, 6, 4)
    assert target.outputs == 4
    assert planted(3, 2).outputs is None


def test_without_the_affine_part_nothing_is_left_of_it():
    target = planted(3, 2, affine=False)
    assert not target.bias.any()
    assert not target.slope.any()


@pytest.mark.parametrize("case", ["small", "vector"])
def test_a_target_can_be_sent_to_another_process(case):
    target = CASES[case].make(1)
    again = pickle.loads(pickle.dumps(target))
    assert again(ball(target)).tobytes() == target(ball(target)).tobytes()


def test_a_target_is_frozen():
    target = planted(3, 2)
    with pytest.raises(ValueError, match="read-only"):
        target.directions[0, 0] = 1.0


# -- the standard cases --------------------------------------------------------------------------------------


def test_the_standard_cases_are_all_there():
    assert list(CASES) == list(STANDARD)
    assert all(case.radius == 3.0 for case in CASES.values())


@pytest.mark.parametrize("name", STANDARD)
def test_a_standard_case_is_as_in_the_table(name):
    d, n, outputs, noise = STANDARD[name]
    case = CASES[name]
    target = case.make(0)
    assert (case.dim, case.features) == target.directions.shape[::-1] == (d, n)
    assert (target.outputs, target.noise) == (outputs, noise)
    assert set(target.kinds) == set(case.kinds[:n])
    X = ball(target)
    assert np.isfinite(target(X)).all()
    assert np.std(target.clean(X)) > 0.1
    if name != "twins":
        assert (sines(target.directions) >= 0.1 - 1e-12).all()


def test_the_smooth_cases_are_smooth_and_the_mixed_ones_hold_every_kind():
    for name in ("dense", "extreme", "twins", "large"):
        assert all(drawn.smooth for drawn in CASES[name].make(0).drawn)
    assert set(CASES["mixed"].make(0).kinds) == set(KINDS)
    assert set(CASES["relu"].make(0).kinds) == {"relu"}


def test_the_waves_have_frequencies_from_6_to_18():
    frequencies = [d.parameters["frequency"] for s in range(5) for d in CASES["waves"].make(s).drawn]
    assert 6 <= min(frequencies) < 7
    assert 17 < max(frequencies) <= 18


def test_the_twins_are_four_pairs():
    V = CASES["twins"].make(5).directions
    assert np.sum(sines(V) < 0.1) == 4
    np.testing.assert_allclose(np.sort(sines(V))[:4], np.sin(0.06), rtol=1e-9)


def test_a_case_takes_changes():
    assert CASES["small"].make(0, noise=0.3, noise_kind="adversarial").noise == 0.3


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0, "features": 1}, "dim ≥ 1 and features ≥ 0; got dim=0, features=1"),
        ({"dim": 3, "features": -1}, "got dim=3, features=-1"),
        ({"dim": 3, "features": 3, "twins": 2}, "2 pairs of twins need 4 features, not 3"),
        ({"dim": 3, "features": 3, "noise": -0.1}, r"noise must be finite and not negative; got -0\.1"),
        ({"dim": 3, "features": 3, "noise": np.nan}, "noise must be finite and not negative; got nan"),
        ({"dim": 3, "features": 3, "noise_kind": "pink"}, "one of uniform, adversarial, fresh; got 'pink'"),
        ({"dim": 3, "features": 3, "separation": 1.5}, r"separation is a sine, .* below 1; got 1\.5"),
        ({"dim": 3, "features": 3, "kinds": ("tanh", "cosh")}, "unknown kind 'cosh'; choose from tanh, sine"),
        ({"dim": 3, "features": 3, "kinds": ()}, "kinds is empty; choose from"),
        ({"dim": 3, "features": 3, "outputs": 0}, "outputs must be at least 1, or None for a scalar target"),
        (
            {"dim": 1, "features": 2},
            "2 features in one dimension would all share a direction; use features=1",
        ),
        (
            {"dim": 2, "features": 9, "separation": 0.9},
            r"could not place 9 directions in 2 dimensions with sines at least 0\.9; lower separation",
        ),
    ],
)
def test_a_target_that_cannot_be_drawn_is_refused_with_the_reason(options, message):
    with pytest.raises(rs.InvalidInput, match=message):
        planted(**options)
