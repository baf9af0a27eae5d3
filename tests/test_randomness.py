"""One seed for a run, one independent stream for each stage and round; points where they should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from ridgescope.geometry import along, angle, in_ball, random_basis, random_directions, shrink_to, unit
from ridgescope.randomness import Streams


@given(seed=st.integers(0, 2**63), stage=st.text(max_size=8), round=st.integers(0, 20))
def test_the_same_seed_gives_the_same_bits(seed, stage, round):
    a, b = Streams.of(seed), Streams.of(seed)
    a("another stage").random(100)  # what one stage uses is nobody else's business
    assert a(stage, round).random(5).tobytes() == b(stage, round).random(5).tobytes()


def test_seeds_stages_and_rounds_are_different_streams():
    draws = {
        Streams.of(seed)(stage, round).random(2).tobytes()
        for seed in range(5)
        for stage in ("survey", "slices", "fit", "certify")
        for round in range(5)
    }
    assert len(draws) == 100


def test_streams_are_uncorrelated():
    streams = Streams.of(0)
    draws = np.array([streams("fit", r).standard_normal(20_000) for r in range(8)])
    off = np.corrcoef(draws)[~np.eye(8, dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(20_000)


def test_a_generator_or_a_seed_sequence_will_do():
    first = Streams.of(np.random.default_rng(7))("fit").random(3)
    again = Streams.of(np.random.default_rng(7))("fit").random(3)
    assert np.array_equal(first, again)
    generator = np.random.default_rng(7)
    Streams.of(generator)
    assert not np.array_equal(Streams.of(generator)("fit").random(3), first)
    sequence = np.random.SeedSequence(3)
    assert np.array_equal(Streams.of(sequence)("fit").random(3), Streams.of(3)("fit").random(3))
    child = sequence.spawn(1)[0]
    assert not np.array_equal(Streams.of(child)("fit").random(3), Streams.of(3)("fit").random(3))


def test_no_seed_means_fresh_entropy():
    assert not np.array_equal(Streams.of(None)("fit").random(3), Streams.of(None)("fit").random(3))


def test_the_same_seed_plants_the_same_target():
    a, b, c = (rs.targets.planted(5, 8, noise=0.1, rng=seed) for seed in (1, 1, 2))
    X = np.random.default_rng(0).standard_normal((50, 5))
    assert a(X).tobytes() == b(X).tobytes() != c(X).tobytes()


# -- points -------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 30), dim=st.integers(1, 12), seed=st.integers(0, 10**6), radius=st.floats(0.1, 50))
def test_points_are_in_the_ball_and_directions_on_the_sphere(count, dim, seed, radius):
    rng = np.random.default_rng(seed)
    np.testing.assert_allclose(np.linalg.norm(random_directions(count, dim, rng), axis=1), 1.0)
    assert (np.linalg.norm(in_ball(count, dim, radius, rng), axis=1) <= radius * (1 + 1e-14)).all()
    k = min(count, dim)
    basis = random_basis(k, dim, rng)
    np.testing.assert_allclose(basis @ basis.T, np.eye(k), atol=1e-12)


def test_points_in_the_ball_are_uniform_in_volume():
    r = np.linalg.norm(in_ball(40_000, 3, 2.0, np.random.default_rng(0)), axis=1) / 2.0
    for q in (0.25, 0.5, 0.75):
        assert np.mean(r**3 < q) == pytest.approx(q, abs=0.01)


@given(count=st.integers(1, 20), dim=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_points_along_a_direction_have_the_coordinate_asked_for(count, dim, seed):
    rng = np.random.default_rng(seed)
    V = random_directions(3, dim, rng)
    which = rng.integers(0, 3, count)
    z = rng.uniform(-2.0, 2.0, count)
    X = along(V, which, z, 2.0, rng)
    np.testing.assert_allclose(np.einsum("md,md->m", X, V[which]), z, atol=1e-12)
    assert (np.linalg.norm(X, axis=1) <= 2.0).all()


def test_shrinking_moves_only_what_is_outside():
    x = np.array([[1.0, 0.0], [0.0, 2.5]])
    shrunk = shrink_to(x.copy(), 2.0)
    assert np.array_equal(shrunk[0], x[0])
    assert np.linalg.norm(shrunk[1]) <= 2.0


def test_unit_and_angle():
    assert unit([[3.0, 4.0]]).tolist() == [[0.6, 0.8]]
    assert angle(np.array([1.0, 0.0]), np.array([-np.cos(1e-11), np.sin(1e-11)])) == pytest.approx(1e-11, rel=1e-12)
