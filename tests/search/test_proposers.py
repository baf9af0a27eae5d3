"""The contract of proposers: what a call may cost, what is counted and refused, and one of a user's own."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.geometry import random_directions
from ridgescope.search import (
    PROPOSERS,
    Curvature,
    CurvatureSettings,
    Kinks,
    KinkSettings,
    Proposal,
    Proposer,
    RandomStarts,
    Setting,
    Slices,
    SliceSettings,
    Tensors,
    run_proposer,
)

SETTING = Setting(dim=5, outputs=1, radius=3.0, reach=3.0, std=1.0, noise=1e-12, bandwidth=6.0)


@dataclass(frozen=True)
class Axes:
    """The coordinate axes, after asking so many rows."""

    rows: int = 7
    name: str = "axes"

    def cost(self, setting):
        return 100

    def propose(self, ask, setting, *, queries, rng):
        ask(np.zeros((self.rows, setting.dim)))
        return Proposal(np.eye(setting.dim), np.ones(setting.dim), f"{setting.turns} turns of {setting.rounds}")


def call(proposer, setting=SETTING, queries=1000, ask=lambda X: X[:, :1]):
    return run_proposer(proposer, ask, setting, queries=queries, rng=np.random.default_rng(0))


def test_all_have_names_and_are_frozen():
    names = ["slices", "curvature", "tensors", "kinks", "gated_kinks", "far_field", "plateaus", "outliers", "random"]
    assert list(PROPOSERS) == names
    for name, proposer in PROPOSERS.items():
        assert isinstance(proposer, Proposer)
        assert proposer.name == name
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            proposer.settings = None


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("dim", [3, 20])
def test_what_a_call_may_cost(dim, rounds):
    setting = replace(SETTING, dim=dim, rounds=rounds, directions=np.empty((0, dim)))
    twice = 30 * 2 * dim * (dim + 16)  # thirty for each parameter of two features a dimension
    for name in ("kinks", "gated_kinks", "far_field"):
        assert PROPOSERS[name].cost(setting) == twice * 2**rounds
    assert PROPOSERS["curvature"].cost(setting) == twice * 2**rounds * 3 // 2  # half again for gated units
    assert Tensors().cost(setting) == 30 * max(60, 3 * dim * (dim + 1) // 2) * (dim + 16) * 2**rounds
    assert Slices().cost(setting) == 20 * twice
    assert Slices().cost(replace(setting, turns=2)) == 80 * twice
    assert RandomStarts().cost(setting) == 0


@pytest.mark.parametrize(("known", "count"), [(0, 10), (1, 9), (8, 8), (40, 20)])
def test_random_starts_depend_on_what_the_model_has(known, count):
    setting = replace(SETTING, directions=random_directions(known, 5, np.random.default_rng(1)))
    found = call(RandomStarts(), setting)
    assert found.directions.shape == (count, 5)
    assert found.queries == 0
    assert not found.complete


@pytest.mark.parametrize(
    ("usual", "thrifty"),
    [
        (Slices(), Slices(SliceSettings(share=0.2))),
        (Kinks(), Kinks(KinkSettings(points_per_radian=3.0))),
        (Curvature(), Curvature(CurvatureSettings(probe_points=5))),
    ],
)
def test_settings_change_what_is_asked(usual, thrifty):
    f = rs.targets.planted(5, 4, ("tanh",), rng=0)
    ask = lambda X: f(X)[:, None]  # noqa: E731
    assert call(thrifty, queries=5000, ask=ask).queries < call(usual, queries=5000, ask=ask).queries


def test_rows_are_counted_with_those_of_gradients():
    class Both(Axes):
        def propose(self, ask, setting, *, queries, rng):
            setting.gradient(np.zeros((3, setting.dim)))
            return super().propose(ask, setting, queries=queries, rng=rng)

    assert call(Axes()).queries == 7
    assert call(Both(), replace(SETTING, gradient=lambda X: X[:, None, :])).queries == 10


def test_more_than_it_is_allowed_is_not_asked():
    asked = []
    with pytest.raises(rs.RidgescopeError, match=r"7 rows.*5 are left"):
        call(Axes(), queries=5, ask=lambda X: asked.append(len(X)))
    assert not asked


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(2.0 * np.eye(5), np.ones(5)),
        Proposal(np.eye(4), np.ones(4)),
        Proposal(np.eye(5), np.ones(4)),
        Proposal(np.full((1, 5), np.nan), np.ones(1)),
    ],
)
def test_what_is_no_proposal_is_refused_by_name(proposal):
    class Wrong(Axes):
        def propose(self, ask, setting, *, queries, rng):
            return proposal

    with pytest.raises(rs.InvalidInput, match=r"'axes'.*unit row of 5"):
        call(Wrong())


def target(X):
    return np.tanh(2 * X[:, 1]) + np.sin(X[:, 3]) + X[:, 0]


@pytest.mark.parametrize("method", [Axes(), (Axes(), "random"), ["kinks", Axes()]])
def test_a_proposer_of_ones_own_needs_no_edit_here(method):
    found = rs.extract(target, dim=5, method=method, rng=0)
    assert found.certificate.met
    assert rs.match(found.directions, np.eye(5)[[1, 3]]).share(1e-3) == 1.0
    assert found.queries_by_stage["axes"] == 7
    methods = method if isinstance(method, tuple | list) else (method,)
    assert found.history[0].proposer == "+".join(m if isinstance(m, str) else m.name for m in methods)


@pytest.mark.parametrize("method", [Axes, 3, None, ("kinks", object()), []])
def test_what_is_no_proposer_is_refused(method):
    with pytest.raises(rs.InvalidInput, match="unknown method"):
        rs.extract(target, dim=5, method=method)


@pytest.mark.parametrize("method", ["tensors", "far_field"])
def test_every_proposer_can_be_named(method):
    f = rs.targets.planted(3, 4, ("softplus",), rng=1)
    found = rs.extract(f, method=method, rng=0, max_queries=20_000)
    assert found.history[0].proposer == method
    assert rs.match(found.directions, f.directions).share(1e-2) == 1.0
