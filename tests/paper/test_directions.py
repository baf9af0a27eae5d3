"""FindDirections: what it finds, what it does not find, how it branches, and the vote."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgescope.errors import InvalidInput
from ridgescope.geometry import random_basis
from ridgescope.paper import repetitions, separating, vote
from ridgescope.paper.directions import find_directions, separate, sines
from ridgescope.paper.majority import search
from ridgescope.paper.survey import Settings

STAR = np.array([[1.0, 0.2, 0.1], [-0.3, 1.0, 0.4], [0.2, -0.5, 1.0], [0.7, 0.7, -0.6]])
STAR = STAR / np.linalg.norm(STAR, axis=1, keepdims=True)
FREQUENCY = np.array([2.0, 2.5, 3.0, 3.5])


def four_sines(X: np.ndarray) -> np.ndarray:
    return np.sin((X @ STAR.T) * FREQUENCY).sum(axis=1) / 4


def test_four_sines_in_three_dimensions() -> None:
    """Completeness, no extraneous direction, γ/2-separation: the three items of Lemma find-directions."""
    found = find_directions(
        four_sines, 15.0, dim=3, m=60_000, rng=np.random.default_rng(1), frequency=5.0, separation=0.3
    )
    near = sines(STAR, found.directions)
    assert near.min(axis=1).max() <= 0.02
    assert near.min(axis=0).max() <= 0.02
    apart = sines(found.directions, found.directions)[np.triu_indices(len(found.directions), 1)]
    assert apart.min() >= 0.15
    assert found.queries == 2 * 60_000 * 2


def test_one_branch_per_level_where_the_basis_separates() -> None:
    """Claim bounded-recursion over 40 random bases, as separating as it asks: no candidate has two children."""
    gamma = float(sines(STAR, STAR)[np.triu_indices(4, 1)].min())
    examined = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        basis = random_basis(3, 3, rng)
        assert separating(STAR, basis) >= gamma / 40**3
        found = find_directions(four_sines, 30.0, dim=3, m=20_000, rng=rng, frequency=5.0, separation=0.3, basis=basis)
        for level in found.levels[1:]:
            assert level.branches.max() <= 1
            examined += level.candidates
    assert examined >= 40 * 3


def test_two_lines_over_one_cell_branch() -> None:
    """Where b₁, b₂ do not separate, both lines are followed."""
    v = np.array([[1.0, 0.0, 0.0], [1 / math.sqrt(2), 0.0, 1 / math.sqrt(2)]])
    assert separating(v, np.eye(3)) == 0

    def f(X: np.ndarray) -> np.ndarray:
        return (np.sin(2 * X @ v[0]) + np.sin(2 * math.sqrt(2) * X @ v[1])) / 2

    found = find_directions(
        f, 15.0, dim=3, m=40_000, rng=np.random.default_rng(2), frequency=4.0, separation=0.3, basis=np.eye(3)
    )
    assert max(level.branches.max() for level in found.levels[1:]) == 2
    assert sines(v, found.directions).min(axis=1).max() <= 0.03


@pytest.mark.parametrize("f", [lambda X: np.zeros(len(X)), lambda X: np.ones(len(X))])
def test_nothing_is_found_in_a_constant(f: object) -> None:
    found = find_directions(f, 10.0, dim=3, m=20_000, rng=np.random.default_rng(3), frequency=4.0)
    assert found.directions.shape == (0, 3)


def test_results_are_read_only() -> None:
    found = find_directions(four_sines, 10.0, dim=3, m=5_000, rng=np.random.default_rng(4), frequency=5.0)
    with pytest.raises(ValueError, match="read-only"):
        found.directions[:] = 0


def test_same_seed_same_bits() -> None:
    one, two = (
        find_directions(four_sines, 10.0, dim=3, m=5_000, rng=np.random.default_rng(5), frequency=5.0) for _ in "ab"
    )
    np.testing.assert_array_equal(one.points, two.points)


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_separating_does_not_care_about_signs(seed: int, d: int) -> None:
    """Definition 2d-separated needs an absolute value: swapping i and j flips the sign of the expression."""
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((4, d))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    basis = random_basis(d, d, rng)
    signs = rng.choice([-1.0, 1.0], (4, 1))
    assert separating(V, basis) == pytest.approx(separating((V * signs)[::-1], basis))


@given(st.integers(0, 10_000), st.floats(0.05, 0.9))
def test_greedy_subset_is_separated_and_maximal(seed: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((12, 3))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    kept = separate(V, rng.uniform(size=12), gamma)
    apart = sines(V[kept], V[kept])[np.triu_indices(len(kept), 1)]
    assert np.all(apart >= gamma)
    assert np.all(sines(V, V[kept]).min(axis=1) < gamma)


def unreliable_run(truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With probability 0.9 the truth, slightly off and with any signs; else one missing and one invented."""
    U = truth + 0.005 * rng.standard_normal(truth.shape)
    U *= rng.choice([-1.0, 1.0], (len(U), 1))
    if rng.uniform() > 0.9:
        U = np.concatenate([U[1:], rng.standard_normal((1, U.shape[1]))])
    return U / np.linalg.norm(U, axis=1, keepdims=True)


def test_majority_fails_no_more_often_than_delta() -> None:
    """From 0.9 per run to 1−δ by O(log 1/δ) runs: failure rate over 400 votes, δ = 0.05."""
    rng = np.random.default_rng(6)
    delta = 0.05
    runs = repetitions(delta)
    failures = 0
    for _ in range(400):
        result = vote([unreliable_run(STAR, rng) for _ in range(runs)], angle=0.05)
        right = len(result.directions) == 4 and sines(STAR, result.directions).min(axis=1).max() <= 0.02
        failures += not right
    assert failures / 400 <= delta


@pytest.mark.heavy
def test_majority_of_real_runs() -> None:
    """Lemma find-directions succeeds with probability 0.9, the vote of O(log 1/δ) runs with 1−δ: 100 seeds."""
    delta = 0.05
    once = Settings(ell=10.0, ell2=10.0, frequency=4.0, lowest=0.5, alpha=0.1, eta=0.0, separation=0.3)
    often = replace(once, repeats=repetitions(delta))

    def failure_rate(settings: Settings) -> float:
        failures = 0
        for seed in range(100):
            U = search(four_sines, dim=3, settings=settings, m=3_000, rng=np.random.default_rng(seed))
            failures += not (len(U) == 4 and sines(STAR, U).min(axis=1).max() <= 0.05)
        return failures / 100

    assert 0 < failure_rate(once) <= 0.1
    assert failure_rate(often) <= delta


def test_repetitions_grow_like_the_logarithm() -> None:
    assert repetitions(0.1**4) <= 2 * repetitions(0.1**2) <= 2 * repetitions(0.1**4)
    with pytest.raises(InvalidInput, match="at least one"):
        vote([], angle=0.1)
