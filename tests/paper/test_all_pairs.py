"""All pairs: less noise than disjoint pairs from as many values, and the same directions. Its formulas are checks."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.errors import InvalidInput
from ridgescope.paper import Derivative, est_weight, find_directions
from ridgescope.paper.all_pairs import plane_of_all_pairs, slices
from ridgescope.paper.directions import sines
from ridgescope.paper.mass import Grid, mass_plane

STAR = np.array([[1.0, 0.2, 0.1], [-0.3, 1.0, 0.4], [0.2, -0.5, 1.0], [0.7, 0.7, -0.6]])
STAR = STAR / np.linalg.norm(STAR, axis=1, keepdims=True)
FREQUENCY = np.array([2.0, 2.5, 3.0, 3.5])


def four_sines(X: np.ndarray) -> np.ndarray:
    return np.sin((X @ STAR.T) * FREQUENCY).sum(axis=1) / 4


def test_noise_is_a_tenth_of_that_of_disjoint_pairs() -> None:
    """Where f has no mass, from as many values; the ratio falls with the root of their number."""
    ratios = []
    for m in (10_000, 40_000):
        stderr = [
            np.median(plane(four_sines, 12.0, np.eye(3), np.full(2, 48.0), Grid(0.05, 60), m=m, rng=rng).stderr)
            for plane, rng in ((plane_of_all_pairs, np.random.default_rng(1)), (mass_plane, np.random.default_rng(1)))
        ]
        ratios.append(stderr[0] / stderr[1])
    assert ratios[1] <= 0.1
    assert ratios[1] == pytest.approx(ratios[0] / 2, rel=0.1)


def strong_and_weak(X: np.ndarray) -> np.ndarray:
    """A sine and one of a twelfth of its size, whose mass is 1/144 of the other's."""
    return np.sin(3 * X @ STAR[0]) + 0.08 * np.sin(2 * X @ STAR[1])


def test_a_weak_feature_is_seen_beside_a_strong_one() -> None:
    """What the strong one adds to the noise of disjoint pairs hides the weak one; most seeds, no false direction."""
    options = {"dim": 3, "m": 60_000, "frequency": 5.0, "separation": 0.3}
    seen = {"all_pairs": 0, "disjoint_pairs": 0}
    for name in seen:
        for seed in range(5):
            rng = np.random.default_rng(seed)
            found = find_directions(strong_and_weak, 15.0, rng=rng, estimator=name, **options)
            near = sines(STAR[:2], found.directions)
            assert near.min(axis=0).max() <= 0.05
            assert found.queries == 2 * 60_000 * 2
            seen[name] += near.min(axis=1).max() <= 0.05
    assert seen["all_pairs"] >= 4
    assert seen["disjoint_pairs"] == 0


def test_derivatives_are_searched_as_functions_are() -> None:
    field = Derivative(lambda X: four_sines(X) + X @ [0.1, -0.2, 0.05], 0.1, 0.02)
    found = find_directions(
        field,
        15.0,
        dim=3,
        m=6_000,
        rng=np.random.default_rng(2),
        frequency=5.0,
        separation=0.3,
        asked_per_point=4,
        estimator="all_pairs",
    )
    near = sines(STAR, found.directions)
    assert near.min(axis=1).max() <= 0.03
    assert near.min(axis=0).max() <= 0.03


@pytest.mark.parametrize("f", [lambda X: np.zeros(len(X)), lambda X: np.ones(len(X))])
def test_nothing_is_found_in_a_constant(f: object) -> None:
    found = find_directions(f, 10.0, dim=3, m=5_000, rng=np.random.default_rng(3), frequency=4.0, estimator="all_pairs")
    assert found.directions.shape == (0, 3)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_found_in_noise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = find_directions(
        lambda X: rng.standard_normal(len(X)), 10.0, dim=2, m=5_000, rng=rng, frequency=4.0, estimator="all_pairs"
    )
    assert found.directions.shape == (0, 2)


@pytest.mark.parametrize("m", [4, 5, 63, 64, 65, 1000])
def test_every_value_is_of_one_slice(m: int) -> None:
    pieces = list(slices(four_sines, 3.0, np.eye(3), 2, m, np.random.default_rng(4)))
    sizes = [len(piece.x) for piece in pieces]
    assert sum(sizes) == 2 * m
    assert 2 <= min(sizes) <= max(sizes) <= min(sizes) + 1
    assert len(sizes) >= 2


def test_same_seed_same_bits() -> None:
    one, two = (
        est_weight(four_sines, 5.0, STAR, None, 500, np.random.default_rng(5), "all_pairs").scaled for _ in "ab"
    )
    np.testing.assert_array_equal(one, two)


def test_too_few_samples_and_unknown_estimators_are_refused() -> None:
    with pytest.raises(InvalidInput, match="needs m of at least 4"):
        est_weight(four_sines, 5.0, STAR, m=3, estimator="all_pairs")
    with pytest.raises(InvalidInput, match="one of disjoint_pairs, all_pairs; got 'pairs'"):
        est_weight(four_sines, 5.0, STAR, estimator="pairs")
