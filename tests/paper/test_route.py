"""rs.extract(method="paper"): the same result type as every other method, the same bits for the same seed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.errors import InvalidInput
from ridgescope.paper.directions import sines
from ridgescope.targets.planted import planted

TARGET = planted(dim=2, features=3, kinds=("sine",), separation=0.5, noise=1e-3, rng=4)


@cache
def found() -> rs.Extraction:
    return run(0)


def run(seed: int) -> rs.Extraction:
    return rs.extract(TARGET, dim=2, method="paper", noise=1e-3, rng=seed, max_queries=3_000_000)


def test_paper_route_returns_an_extraction() -> None:
    """n > d, with noise: directions, error on the ball, queries by stage, certificate."""
    got = found()
    assert isinstance(got, rs.Extraction)
    near = sines(TARGET.directions, got.directions)
    assert max(near.min(axis=1).max(), near.min(axis=0).max()) <= 0.05
    X = np.random.default_rng(1).uniform(-2, 2, (2000, 2))
    assert np.sqrt(np.mean((got.predict(X) - TARGET.clean(X)) ** 2)) <= 0.05 * TARGET.clean(X).std()
    assert got.queries == sum(got.queries_by_stage.values()) <= 3_000_000
    assert got.queries_by_stage["paper"] > 300_000
    assert got.certificate.sentence


def test_same_seed_same_bits() -> None:
    one, two, other = found(), run(0), run(8)
    X = np.random.default_rng(2).uniform(-2, 2, (500, 2))
    np.testing.assert_array_equal(one.directions, two.directions)
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    assert one.queries_by_stage == two.queries_by_stage
    assert not np.array_equal(one.predict(X), other.predict(X))


def test_reach_and_several_outputs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot honour reach=5"):
        rs.extract(TARGET, dim=2, method="paper", reach=5.0)
    with pytest.raises(InvalidInput, match="one output; this one has 2"):
        rs.extract(lambda X: np.sin(X[:, :2]), dim=2, method="paper")


def test_a_budget_too_small_for_one_round_ends_the_run() -> None:
    got = rs.extract(TARGET, dim=2, method="paper", max_queries=100_000)
    assert got.stopped.startswith("Budget exhausted")
    assert got.queries <= 100_000


def test_the_pure_route_is_the_pure_form() -> None:
    got = rs.extract(TARGET, dim=2, method="paper-pure", noise=1e-3, rng=0, max_queries=1_000_000)
    assert got.stop is rs.StopReason.ROUTE_FINISHED
    assert [line.proposer for line in got.history] == ["paper-pure"]
    assert sines(got.directions, TARGET.directions).min(axis=1).max() <= 0.05
    assert got.queries <= 1_000_000
    with pytest.raises(InvalidInput, match='"paper-pure" cannot be combined'):
        rs.extract(TARGET, dim=2, method=("paper-pure", "kinks"))
    with pytest.raises(InvalidInput, match='method="paper-pure" queries several radii'):
        rs.extract(TARGET, dim=2, method="paper-pure", reach=5.0)
