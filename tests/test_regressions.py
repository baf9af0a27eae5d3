"""Functions on which a run once died."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.search import Curvature, Setting, run_proposer


@pytest.mark.parametrize("k", [80.0, 100.0])
def test_a_fast_sine_in_one_dimension(k):
    found = rs.extract(lambda X: np.sin(k * X[:, 0]), dim=1, max_queries=20_000)
    assert found.queries <= 20_000
    assert found.stop is not rs.StopReason.FAILED


def test_curvature_that_finds_no_member_in_a_subspace_proposes_nothing(monkeypatch):
    """Rank without rank-one members, in a subspace of the input: there is nothing to lift."""
    import ridgescope.search.curvature as curvature

    found = curvature.members

    def none(space, rng, **options):
        seen = found(space, rng, **options)
        width = seen.vectors.shape[1]
        return type(seen)(**{**vars(seen), "vectors": np.empty((0, width)), "inside": np.empty(0)})

    monkeypatch.setattr(curvature, "members", none)
    rng = np.random.default_rng(0)
    W, out = rng.uniform(-0.15, 0.15, (60, 48)), rng.standard_normal((60, 48))
    setting = Setting(dim=48, outputs=48, radius=3.0, reach=3.0, std=1.0, noise=1e-12, bandwidth=2.0)
    proposal = run_proposer(Curvature(), lambda X: np.tanh(3.0 * X @ W.T) @ out, setting, queries=60_000, rng=rng)
    assert proposal.directions.shape == (0, 48)
