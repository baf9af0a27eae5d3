"""Who is whom, up to sign, and by what angle."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from ridgescope.geometry import random_directions


def tilted(v, angle, rng):
    """v turned by exactly `angle`, in a random plane."""
    w = rng.standard_normal(len(v))
    w -= (w @ v) * v
    return np.cos(angle) * v + np.sin(angle) * w / np.linalg.norm(w)


@given(
    exponent=st.floats(-12, -1),
    dim=st.integers(2, 30),
    seed=st.integers(0, 10**6),
    flip=st.sampled_from([1, -1]),
)
def test_angles_are_right_down_to_1e_12(exponent, dim, seed, flip):
    rng = np.random.default_rng(seed)
    v = random_directions(1, dim, rng)
    angle = 10.0**exponent
    found = flip * tilted(v[0], angle, rng)[None]
    assert rs.match(found, v).angles[0] == pytest.approx(angle, rel=1e-9, abs=4e-16)


def test_a_direction_matches_itself_and_its_negative_exactly():
    V = random_directions(6, 4, np.random.default_rng(0))
    assert (rs.match(V, V).angles == 0).all()
    assert (rs.match(-V, V).angles == 0).all()


def test_right_angles_are_the_largest():
    assert rs.match([[1.0, 0.0]], [[0.0, 1.0]]).angles[0] == pytest.approx(np.pi / 2)


@given(n=st.integers(1, 6), dim=st.integers(2, 5), seed=st.integers(0, 10**6), noise=st.floats(1e-9, 1e-2))
def test_shuffled_flipped_and_rescaled_directions_are_found_again(n, dim, seed, noise):
    rng = np.random.default_rng(seed)
    truth = np.linalg.qr(rng.standard_normal((max(n, dim), max(n, dim))))[0][:n]
    order = rng.permutation(n)
    found = np.array([tilted(v, noise, rng) for v in truth])[order] * rng.choice([-3.0, 0.5], (n, 1))
    matched = rs.match(found, truth)
    assert np.array_equal(order[matched.partner], np.arange(n))
    np.testing.assert_allclose(matched.angles, noise, rtol=1e-6, atol=1e-15)
    assert matched.missed.size == matched.false.size == 0
    assert matched.share(2 * noise) == 1.0


@given(m=st.integers(1, 5), n=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_the_assignment_is_optimal(m, n, seed):
    rng = np.random.default_rng(seed)
    within = 0.4
    truth, found = random_directions(n, 2, rng), random_directions(m, 2, rng)
    cost = np.minimum(np.arccos(np.minimum(np.abs(truth @ found.T), 1.0)), within)
    wide = cost if n <= m else cost.T
    best = min(sum(wide[i, j] for i, j in enumerate(p)) for p in permutations(range(wide.shape[1]), wide.shape[0]))
    matched = rs.match(found, truth, within=within)
    paired = matched.partner >= 0
    assert paired.sum() == min(m, n)
    assert len(set(matched.partner[paired])) == min(m, n)
    assert np.minimum(matched.angles[paired], within).sum() == pytest.approx(best, abs=1e-6)


def test_twins_closer_than_the_cosine_can_tell_are_distinguished():
    rng = np.random.default_rng(3)
    v = random_directions(1, 8, rng)[0]
    truth = np.array([v, tilted(v, 1e-9, rng)])
    matched = rs.match(truth[::-1], truth)
    assert matched.partner.tolist() == [1, 0]
    assert (matched.angles < 1e-15).all()


def test_a_hopeless_pair_takes_no_partner_from_a_good_one():
    found = [[1.0, 0.0, 0.0]]
    truth = [[0.9, 0.0, 0.5], [1.0, 0.01, 0.0]]
    matched = rs.match(found, truth, within=0.1)
    assert matched.partner.tolist() == [-1, 0]
    assert matched.missed.tolist() == [0]


def test_sizes_may_differ():
    V = np.eye(3)
    more = rs.match(V, V[:1])
    assert (more.partner.tolist(), more.missed.tolist(), more.false.tolist()) == ([0], [], [1, 2])
    fewer = rs.match(V[2:], V)
    assert (fewer.partner[2], fewer.missed.tolist(), fewer.false.tolist()) == (0, [0, 1], [])
    assert fewer.share(1e-9) == pytest.approx(1 / 3)


@pytest.mark.parametrize("nothing", [[], np.empty((0, 3)), np.empty(0)])
def test_nothing_found_and_nothing_to_find(nothing):
    none = rs.match(nothing, np.eye(3))
    assert none.missed.tolist() == [0, 1, 2]
    assert none.partner.tolist() == [-1, -1, -1]
    assert np.array_equal(none.angles, np.full(3, np.pi / 2))
    extra = rs.match(np.eye(3), nothing)
    assert extra.false.tolist() == [0, 1, 2]
    assert extra.share(0.1) == 1.0
    assert len(rs.match(nothing, nothing).angles) == 0


def test_arrays_are_read_only():
    matched = rs.match(np.eye(2), np.eye(2))
    for name in ("angles", "partner", "missed", "false"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(matched, name)[...] = 0


def test_it_reads_as_a_sentence():
    assert str(rs.match(np.eye(3)[:2], np.eye(3))) == (
        "2 of 3 found within 0.1 rad, worst 0 rad, median 0 rad; 0 false"
    )
    assert str(rs.match([], np.eye(2))) == "0 of 2 found within 0.1 rad; 0 false"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([[1.0, 0.0]], "found has 2 coordinates, truth has 3; they must agree"),
        ([1.0, 0.0, 0.0], r"found must be a \(count, dim\) array of directions, not of shape \(3,\)"),
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], r"found\[1\] has length 0\.0; a direction must be finite"),
        ([[np.nan, 0.0, 0.0]], r"found\[0\] has length nan"),
    ],
)
def test_what_is_no_set_of_directions_is_refused(found, message):
    with pytest.raises(rs.InvalidInput, match=message):
        rs.match(found, np.eye(3))


def test_the_name_stays_a_function_whoever_imports_the_module_first():
    import ridgescope.match

    assert rs.Match.__module__ == "ridgescope.match"
    assert callable(rs.match)
    assert rs.match is ridgescope.match
