"""A result held against its function again, and several runs held against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from made import extraction
from ridgescope.stability import group_features


def box(X):
    return np.sin(2 * X[:, 0]) + np.tanh(X[:, 1])


def test_a_result_that_holds_is_verified_with_fresh_queries():
    asked = []

    def watched(X):
        asked.append(X)
        return box(X)

    found = rs.extract(watched, dim=2)
    before = np.concatenate(asked)
    asked.clear()
    again = rs.verify(found, watched)
    assert again.certificate.met
    assert again.queries == again.certificate.samples == len(np.concatenate(asked))
    fresh = {tuple(row) for row in np.concatenate(asked)}
    assert fresh.isdisjoint(map(tuple, before))
    assert again.stop is rs.StopReason.CERTIFIED
    assert len(again.checks) == again.queries


def test_a_function_that_changed_is_noticed():
    found = rs.extract(box, dim=2)
    changed = rs.verify(found, lambda X: box(X) + 0.5 * np.maximum(X[:, 0] + X[:, 1] - 3, 0))
    assert not changed.certificate.met
    assert changed.stop is rs.StopReason.TOLERANCE_NOT_MET


def test_verify_speaks_in_the_coordinates_of_the_result():
    center, scale = [350.0, 1e5], [20.0, 1e4]

    def boiler(X):
        return np.tanh((X[:, 0] - 350.0) / 20.0 + (X[:, 1] - 1e5) / 1e4)

    oracle = rs.oracle.Oracle(boiler, dim=2, center=center, scale=scale)
    found = rs.extract(oracle, radius=2.0)
    assert rs.verify(found, boiler).certificate.met
    assert rs.verify(found, oracle).certificate.met
    with pytest.raises(rs.InvalidInput, match="they must agree"):
        rs.verify(found, rs.oracle.Oracle(boiler, dim=2))


def test_queries_and_tolerance_can_be_chosen():
    found = rs.extract(box, dim=2)
    again = rs.verify(found, box, queries=100, tolerance=1e-12)
    assert again.queries == 100
    assert not again.certificate.met
    assert again.certificate.tolerance == 1e-12


def test_runs_of_several_seeds_find_the_same():
    calls = []
    stable = rs.stability(box, 2, seeds=(0, 1), after_each=lambda seed, run: calls.append((seed, len(run.features))))
    assert calls == [(0, 2), (1, 2)]
    assert len(stable.shared) == len(stable.groups) == 2
    assert max(g.spread for g in stable.groups) < 1e-3
    assert "2 of 2 features are found by all 2 runs" in str(stable)
    with pytest.raises(rs.InvalidInput, match="at least two seeds"):
        rs.stability(box, 2, seeds=(0,))


def test_what_only_some_runs_found_is_kept_separate():
    one, two = extraction(features=3), extraction(features=2)
    turned = replace(two, features=tuple(replace(f, direction=-f.direction) for f in two.features))
    groups = group_features([one, turned, extraction(features=0)])
    assert [g.runs for g in groups] == [(0, 1), (0, 1), (0,)]
    assert groups[0].spread == 0.0
    assert np.array_equal(groups[2].direction, [0, 0, 1])
    assert group_features([extraction(features=0)]) == ()


def test_an_oracle_that_does_not_reach_as_far_as_the_result_is_refused():
    found = rs.extract(box, dim=2, rng=0)
    with pytest.raises(rs.InvalidInput, match=r"radius 3 and the oracle reach=1: .*reach of at least the radius"):
        rs.verify(found, rs.oracle.Oracle(box, dim=2, reach=1.0))
    assert rs.verify(found, rs.oracle.Oracle(box, dim=2, reach=found.radius)).certificate.met
