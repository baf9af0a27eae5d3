"""Slices of f for the report: what they show, what they cost, and that they change nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.report import star
from ridgescope.star_planes import planes_through_pairs
from test_storage import same
from travel import TARGET

OPTIONS = {"radius": 2.0, "rng": 3}


@pytest.fixture(scope="module")
def plain():
    return rs.extract(TARGET, **OPTIONS)


@pytest.fixture(scope="module")
def drawn():
    return rs.extract(TARGET, planes=2, **OPTIONS)


def test_slices_are_a_stage_of_their_own_and_change_nothing_else(plain, drawn):
    assert not plain.planes
    assert len(drawn.planes) == 2
    stages = dict(drawn.queries_by_stage)
    spent = stages.pop("picture")
    assert stages == plain.queries_by_stage
    assert drawn.queries == plain.queries + spent
    bare = replace(drawn, planes=(), queries=plain.queries, asked=plain.asked, queries_by_stage=plain.queries_by_stage)
    assert same(bare, plain)


def test_the_caption_says_what_was_spent(plain, drawn):
    assert f"{drawn.queries_by_stage['picture']:,} queries were spent" in star.caption(drawn, drawn.planes)
    assert "recovered model" in star.caption(plain, star.shown_planes(plain))


def test_the_power_of_f_lies_on_the_rays_of_its_features(drawn):
    for plane in drawn.planes:
        power, (axis, _) = star._centred(plane)
        y = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
        rays = drawn.directions @ plane.basis.T
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        across = np.abs(y @ (rays @ [[0.0, 1.0], [-1.0, 0.0]]).T).min(axis=-1)
        far = np.linalg.norm(y, axis=-1) > 6 * plane.step
        on = across < 2.5 * plane.step
        assert (power[far & on] ** 2).sum() > 0.95 * (power[far] ** 2).sum()


def test_a_budget_that_is_spent_buys_no_slice(plain):
    found = rs.extract(TARGET, planes=2, max_queries=plain.queries + 6000, **OPTIONS)
    assert len(found.planes) == 1
    found = rs.extract(TARGET, planes=2, max_queries=plain.queries + 100, **OPTIONS)
    assert found.planes == ()
    assert "picture" not in found.queries_by_stage


def test_slices_stay_within_reach_and_in_the_ledger(tmp_path):
    far = []

    def watched(X):
        far.append(np.linalg.norm(X, axis=1).max())
        return TARGET(X)

    first = rs.extract(watched, dim=4, reach=2.5, planes=1, ledger=tmp_path / "l", **OPTIONS)
    assert len(first.planes) == 1
    assert max(far) <= 2.5
    assert rs.extract(watched, dim=4, reach=2.5, planes=1, ledger=tmp_path / "l", **OPTIONS).asked <= 12 + 32


def test_planes_go_through_pairs_of_features():
    V = np.random.default_rng(0).standard_normal((5, 4))
    bases = planes_through_pairs(V)
    assert len(bases) == 3
    for k, basis in enumerate(bases):
        assert np.allclose(basis @ basis.T, np.eye(2), atol=1e-12)
        for v in V[2 * k : 2 * k + 2]:
            assert np.allclose(v @ basis.T @ basis, v)
