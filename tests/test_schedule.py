"""Which proposers have their turn, and what a turn brings back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import ridgescope as rs
from loop import make_state, two_features
from ridgescope.geometry import in_ball, unit
from ridgescope.result import Round
from ridgescope.schedule import AutoPolicy, SamePolicy, Situation, policy_of, propose
from ridgescope.search import PROPOSERS, Proposal, Proposer


def situation(
    *proposers, unsearched=False, unresolved=False, wide=False, unbounded=True, rounded=False, oscillates=False
):
    history = tuple(Round(i + 1, name, 0, 0, 0, 1.0) for i, name in enumerate(proposers))
    return Situation(history, unsearched, unresolved, wide, unbounded, rounded, oscillates)


def names(s):
    return [p.name for p in AutoPolicy().next_proposers(s)]


def test_kinks_then_curvature_come_first():
    assert names(situation(unsearched=True)) == ["kinks", "curvature"]


def test_gated_kinks_are_looked_for_where_chords_are_parabolas():
    at_first = replace(situation(unsearched=True), is_piecewise_quadratic=True)
    assert names(at_first) == ["gated_kinks", "kinks", "curvature"]
    later = replace(situation("gated_kinks+kinks+curvature", unsearched=True), is_piecewise_quadratic=True)
    assert names(later) == ["kinks", "curvature"]


def test_a_larger_subspace_is_searched_anew():
    assert names(situation("kinks+curvature", "random", unsearched=True)) == ["kinks", "curvature"]


def test_the_points_where_the_model_is_most_wrong_come_first_but_not_twice_in_a_row():
    assert names(situation("kinks+curvature")) == ["outliers", "random"]
    assert names(situation("kinks+curvature", "outliers")) == ["random"]
    assert names(situation("kinks+curvature", "outliers", "random")) == ["outliers", "random"]


@pytest.mark.parametrize(("unbounded", "first"), [(True, "far_field"), (False, "curvature")])
def test_a_wide_layer_is_first_looked_at_as_a_whole(unbounded, first):
    assert names(situation(unsearched=True, wide=True, unbounded=unbounded)) == [first]
    assert names(situation(first, wide=True, unbounded=unbounded)) == ["kinks", "curvature"]


def test_in_single_precision_a_wide_layer_is_looked_at_from_close_by():
    assert names(situation(unsearched=True, wide=True, rounded=True)) == ["kinks", "curvature"]


@pytest.mark.parametrize(
    ("options", "cycle"),
    [
        ({}, ["random", "random", "slices"]),
        ({"unresolved": True}, ["slices", "random"]),
        ({"oscillates": True}, ["slices", "random"]),
    ],
)
def test_what_is_left_goes_round_the_cycle(options, cycle):
    done = ["kinks+curvature"]
    for turn in range(7):
        first, name = names(situation(*done, **options))
        assert first == "outliers"
        assert name == cycle[turn % len(cycle)]
        done.append(name)


def test_the_cycle_that_was_begun_goes_on_whatever_is_learnt_meanwhile():
    assert names(situation("kinks+curvature", "random", unresolved=True))[-1] == "random"
    assert names(situation("kinks+curvature", "slices"))[-1] == "random"


@dataclass(frozen=True)
class Axes:
    """Proposes the coordinate axes, as a user's own class might."""

    name: str = "axes"

    def cost(self, setting):
        return 10

    def propose(self, ask, setting, *, queries, rng):
        ask(np.zeros((3, setting.dim)))
        return Proposal(np.eye(setting.dim), np.ones(setting.dim), note=f"{setting.dim} axes")


def test_a_proposer_of_ones_own_needs_no_more_than_its_class():
    assert isinstance(Axes(), Proposer)
    found = rs.extract(two_features, dim=2, method=Axes(), rng=0)
    assert found.certificate.met
    assert [line.proposer for line in found.history] == ["axes"]
    assert found.queries_by_stage["axes"] == 3


def test_names_and_objects_can_be_mixed():
    found = rs.extract(two_features, dim=2, method=["random", Axes()], rng=0)
    assert found.certificate.met
    assert found.history[0].proposer == "random+axes"


@pytest.mark.parametrize("name", sorted(PROPOSERS))
def test_every_built_in_proposer_can_be_named(name):
    assert policy_of((name,)) == SamePolicy((PROPOSERS[name],))
    assert PROPOSERS[name].name == name
    found = rs.extract(lambda X: np.abs(X[:, 0] - 0.3) + np.tanh(X[:, 1]), dim=3, method=name, max_queries=6000)
    assert found.history[0].proposer == name


@pytest.mark.parametrize("bad", ["zoom", [], ["auto", "kinks"], ["paper", "kinks"], 3, [object()], None])
def test_what_is_no_method_is_refused(bad):
    with pytest.raises(rs.InvalidInput):
        rs.extract(two_features, dim=2, method=bad)


def test_a_turn_asks_within_its_cost_and_keeps_its_answers_for_the_fit():
    state = make_state(two_features, 2)
    state.run_survey()
    state.fit_without_search()
    points = state.samples.count
    candidates = propose(state, (Axes(),))
    np.testing.assert_array_equal(candidates.directions, np.eye(2))
    assert candidates.resolved
    assert state.samples.count == points + 3
    assert state.oracle.planned["axes"] == 10


def test_later_proposers_see_what_earlier_ones_leave():
    seen = []

    @dataclass(frozen=True)
    class Watching:
        name: str = "watching"

        def cost(self, setting):
            return 10

        def propose(self, ask, setting, *, queries, rng):
            seen.append(ask(np.array([[0.5, 0.5]]))[0, 0])
            return Proposal(np.empty((0, 2)), np.empty(0))

    @dataclass(frozen=True)
    class Explaining(Watching):
        name: str = "explaining"

        def propose(self, ask, setting, *, queries, rng):
            part = lambda X: np.tanh(2.0 * X[:, :1])  # noqa: E731
            return Proposal(np.eye(2)[:1], np.ones(1), explains=part)

    state = make_state(two_features, 2)
    state.run_survey()
    state.fit_without_search()
    propose(state, (Watching(), Explaining(), Watching()))
    assert seen[0] - seen[1] == pytest.approx(np.tanh(1.0))


@dataclass(frozen=True)
class Rough:
    """Proposes two planes of a piecewise linear function, each 1e-2 rad off, and says that there is nothing else."""

    V: np.ndarray
    name: str = "rough"

    def cost(self, setting):
        return 200

    def propose(self, ask, setting, *, queries, rng):
        ask(in_ball(200, setting.dim, setting.radius, rng))
        planes = unit(self.V + 1e-2 * rng.standard_normal(self.V.shape))
        explains = lambda X: np.abs(X @ planes.T).sum(axis=1, keepdims=True)  # noqa: E731
        return Proposal(planes, np.ones(2), kinks=(np.zeros(1), np.zeros(1)), explains=explains, only=True)


@dataclass(frozen=True)
class Nothing(Axes):
    """Proposes nothing."""

    name: str = "nothing"

    def propose(self, ask, setting, *, queries, rng):
        return Proposal(np.empty((0, setting.dim)), np.empty(0))


@pytest.mark.parametrize("before", [(), (Nothing(),)])
def test_kinks_are_sharpened_before_they_leave_anything_and_then_explain_all(before):
    """Also where a proposer without candidates had its turn before."""
    V = unit(np.random.default_rng(0).standard_normal((2, 3)))
    state = make_state(lambda X: np.abs(X @ V.T).sum(axis=1), 3)
    state.run_survey()
    state.fit_without_search()
    candidates = propose(state, (*before, Rough(V), Axes()))
    assert rs.match(candidates.directions, V).angles.max() < 1e-9
    assert candidates.complete
    assert "axes" not in state.oracle.queries_by_stage


def test_planes_that_leave_something_are_not_said_to_be_all():
    V = unit(np.random.default_rng(0).standard_normal((2, 3)))
    state = make_state(lambda X: np.abs(X @ V.T).sum(axis=1) + np.tanh(X[:, 0]), 3)
    state.run_survey()
    state.fit_without_search()
    assert not propose(state, (Rough(V), Axes())).complete
