"""Which proposers have their turn in a round, and that turn.

A policy is an object with one method, `next_proposers(situation)`: it sees a snapshot of the run and names the
proposers of the next round. `propose` calls them one after the other, each on the residual that the model and the
proposals before it leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Protocol

import numpy as np

from .deadline import check_time, limit_work, time_left, time_limit
from .feature import Round
from .fit.model import TINY
from .geometry import Floats
from .search import PROPOSERS, Ask, Candidates, Proposal, Proposer, Setting, run_proposer
from .search.kink_scans import KINKS
from .search.spans import hessian_queries
from .sharper_kinks import sharper_kinks
from .state import SEARCH_POINT_WEIGHT, State
from .structure import Evidence, Kind, classify, examine

OSCILLATIONS = 30.0
"""Bandwidth × radius above which f oscillates too fast for a random start to find its basin: more than ten full
periods across the ball, so that a basin is narrower than a tenth of a radian. Empirical within a factor of two."""
PARABOLAS = 0.01
"""Share of windows of chords on parabolas from which on f counts as piecewise quadratic: five of 500. Those of smooth
functions are none, and those of a layer of a hundred units a few in a hundred, as kinks spoil the others."""
EXPLAINED = 0.1
"""Share of the tolerance that the proposals of a round may leave unexplained; the rest of the round is then skipped."""
STRUCTURE_QUERIES, STRUCTURE_SHARE = 1500, 0.3
"""Queries for the tests of structure, times d + 16, or those of a full rank of Hessians where that takes more; and the
share of the budget that they may take."""
EFFORT_PER_PARAMETER, MIN_EFFORT_FEATURES = 12, 60
"""Further queries for a function that may be no sum, for each parameter of as many features as its Hessians could tell
apart, and of so many at least. Empirical: recovery of sums takes 7 to 54 queries a parameter in all."""
WORK, WORK_DIM, MOST_WORK = 3e11, 8, 4.0
"""Multiplications in large sums that such a search may take in up to 8 dimensions, half a minute of one core, and in
proportion beyond, up to four times as many."""
RESPONSE_PARAMETERS = 16
"""Parameters of a response, as the recovery benchmark counts them."""
MANY_DIMENSIONS = 12
"""Dimensions above which tests of structure come before higher derivatives: those test Hessians of this width first."""
PROPOSER_SHARE = 0.5
"""Share of the remaining budget that one proposer may take, so that the fit has points of its own."""
FIT_TIME = 0.4
"""Share of the time left before a round that its search leaves to the fit. Empirical: the fit of a transformer's block
takes longer than its search, that of a small layer far less."""
WORST = 100
"""Number of points at which the model is most wrong that a proposer gets."""
STENCIL_POINTS = 4096
"""Answers of one search batch that join the samples; a larger batch is thinned to this, or it would swamp the fit."""


@dataclass(frozen=True)
class Situation:
    """What a policy may look at before a round. It is a snapshot: nothing in it changes afterwards."""

    history: tuple[Round, ...]
    """The rounds so far, without lines of failures."""
    subspace_unsearched: bool
    """No proposer has looked at the residual since the subspace was found or enlarged."""
    unresolved: bool
    """A proposer has seen more features than it could tell apart."""
    is_wide: bool
    """Many inputs and many outputs: perhaps a layer with thousands of features."""
    is_unbounded: bool
    """Queries may be asked at any distance from the centre."""
    is_rounded: bool
    """Answers have the errors of single precision, which grow with the distance."""
    oscillates: bool
    """f oscillates too fast for random starts."""
    is_piecewise_quadratic: bool = False
    """Parts of many chords are parabolas, as where ReLUs are multiplied by linear forms."""
    has_many_dimensions: bool = False
    """More than `MANY_DIMENSIONS`."""
    saturates: bool = False
    """The last round has found responses that saturate, and has looked for no others."""

    @classmethod
    def of(cls, state: State) -> Situation:
        """Take the snapshot of `state`."""
        return cls(
            history=tuple(line for line in state.history if not line.failure),
            subspace_unsearched=state.searched_dim != state.inner_dim,
            unresolved=state.unresolved,
            is_wide=state.is_wide,
            is_unbounded=state.reach == float("inf"),
            is_rounded=KINKS.exact <= state.survey.noise / max(state.survey.std, TINY) <= KINKS.rounded,
            oscillates=state.survey.bandwidth * state.radius > OSCILLATIONS,
            is_piecewise_quadratic=state.survey.parabolas >= PARABOLAS,
            has_many_dimensions=state.inner_dim > MANY_DIMENSIONS,
            saturates=bool(state.history) and state.history[-1].proposer == PROPOSERS["plateaus"].name,
        )


class Policy(Protocol):
    """Names the proposers of each round; the loop decides when to stop."""

    def next_proposers(self, situation: Situation) -> tuple[Proposer, ...]:
        """Return the proposers of the next round, in the order in which they are to be called."""


@dataclass(frozen=True)
class SamePolicy:
    """The same proposers in every round, as the user named them."""

    proposers: tuple[Proposer, ...]

    def next_proposers(self, situation: Situation) -> tuple[Proposer, ...]:
        """Return the proposers that were named."""
        return self.proposers


@dataclass(frozen=True)
class AutoPolicy:
    """Cheap proposers first, expensive ones only for what they leave.

    A wide layer is first looked at from far away, where all its features show at once, or, where `reach` forbids
    that, by its curvature, but not in single precision, which shows more from close by. In many dimensions a few far
    points show whether all responses saturate, so that each is a step on far lines. Otherwise kinks, and then
    curvature on what the kinks leave, cover smooth and piecewise smooth responses for a few queries a parameter. What
    they leave is first looked at where it is largest. If that shows nothing, or nothing more, it goes to random starts
    twice and to planar spectra once, in turn; planar spectra come first where f
    oscillates too fast for random starts or has more features than derivatives can tell apart.
    """

    def next_proposers(self, situation: Situation) -> tuple[Proposer, ...]:
        """Return the proposers of the next round."""
        rounds = len(situation.history)
        if situation.subspace_unsearched and situation.is_wide and not rounds and not situation.is_rounded:
            return (PROPOSERS["far_field" if situation.is_unbounded else "curvature"],)
        if situation.subspace_unsearched or situation.saturates or (situation.is_wide and rounds == 1):
            rounded = situation.is_rounded and not situation.is_wide  # gradients in few dimensions are rounded, too
            far = not rounds and situation.is_unbounded and (situation.has_many_dimensions or rounded)
            first = (PROPOSERS["gated_kinks"],) if situation.is_piecewise_quadratic and not rounds else ()
            first = first or ((PROPOSERS["plateaus"],) if far else ())
            return *first, PROPOSERS["kinks"], PROPOSERS["curvature"]
        later = [line.proposer for line in situation.history if line.proposer in ("slices", "random")]
        slices_first = later[0] == "slices" if later else situation.oscillates or situation.unresolved
        cycle = ("slices", "random") if slices_first else ("random", "random", "slices")
        again = situation.history[-1].proposer == PROPOSERS["outliers"].name
        first = () if again else (PROPOSERS["outliers"],)
        return *first, PROPOSERS[cycle[len(later) % len(cycle)]]


def policy_of(methods: Sequence[str | Proposer]) -> Policy:
    """Return the policy for checked methods: ("auto",), or proposers by name or as objects."""
    if tuple(methods) == ("auto",):
        return AutoPolicy()
    return SamePolicy(tuple(PROPOSERS[m] if isinstance(m, str) else m for m in methods))


# -- one turn ------------------------------------------------------------------------------------------------


def propose(state: State, proposers: tuple[Proposer, ...]) -> Candidates:
    """Call the proposers one after the other, until what they have found explains f, and return all candidates.

    What they have found when their share of the time limit ends is returned, too, so that it is fitted in the rest.
    """
    check_time()
    left = time_left()
    reserve = FIT_TIME * left if isfinite(left) else 0.0
    proposals: list[Proposal] = []
    names: list[str] = []
    notes: list[str] = []
    resolved, complete, by_tensors, cut_short, angle_error, far_field = True, False, False, False, 0.0, None
    for proposer in proposers:
        if _is_explained(state, proposals):
            complete = True
            break
        proposal = _call(state, proposer, proposals, reserve)
        cut_short = time_left() <= reserve
        if not (any(len(p.directions) for p in proposals) or state.model.count or cut_short):
            proposal = sharper_kinks(proposal, *state.samples.train, state.radius, _explained_error(state))
        if not proposal.resolved and not cut_short and _may_be_a_sum(state):
            # higher derivatives may tell so many features apart
            higher = _call(state, PROPOSERS["tensors"], proposals, reserve)
            note = f"{proposal.note}; {higher.note}"
            proposal = replace(higher if len(higher.directions) else proposal, note=note)
            resolved = resolved and len(proposal.directions) > 0
            by_tensors = len(higher.directions) > 0
            angle_error = proposal.angle_error
        elif not proposal.resolved:
            resolved = False
        complete = proposal.complete
        far_field = proposal if proposer.name == "far_field" else None
        proposals.append(proposal)
        if proposal.applies or len(proposers) == 1:
            names.append(proposer.name)
            notes.append(f"{proposer.name}: {proposal.note}")
        state.say(f"{proposer.name}: {len(proposal.directions)} candidates; {proposal.note}")
        if proposal.only or cut_short:
            complete = complete or (proposal.only and _is_explained(state, proposals))
            break
    gated = next((p.gated for p in proposals if p.gated is not None), None)
    if gated is not None:
        plain = [p.directions for p in proposals if p.gated is None]
        gated = gated.with_plain(np.concatenate(plain)) if plain else gated
    return Candidates(
        directions=np.concatenate([p.directions for p in proposals]),
        kinks=tuple(t for p in proposals for t in p.kinks or (np.empty(0),) * len(p.directions)),
        proposer="+".join(names),
        note="; ".join(notes),
        planes=tuple(plane for p in proposals for plane in p.planes),
        far_field=far_field,
        resolved=resolved,
        angle_error=angle_error,
        angle_errors=np.concatenate([_errors_of(p) for p in proposals]),
        complete=complete,
        spanning=any(p.spanning for p in proposals),
        by_tensors=by_tensors,
        drop=min((p.drop for p in proposals), default=float("inf")),
        gated=gated,
        cut_short=cut_short,
    )


def _errors_of(proposal: Proposal) -> Floats:
    """Return the errors of all directions, infinite where the proposer does not say."""
    count = len(proposal.directions)
    return proposal.angle_errors if len(proposal.angle_errors) == count else np.full(count, np.inf)


def _may_be_a_sum(state: State) -> bool:
    """Return whether a search by higher derivatives is worth its while.

    In many dimensions the tests of structure look at Hessians in a subspace and are much the cheaper: they go first.
    """
    if state.inner_dim <= MANY_DIMENSIONS or state.approximate:
        return True
    kind = classify(examined(state))
    return not (kind.excludes_sum or kind is Kind.DEPTH)


def _call(state: State, proposer: Proposer, proposals: Sequence[Proposal], reserve: float) -> Proposal:
    """Let one proposer look at what model and `proposals` leave, within its own cost and the run's budget.

    It has until `reserve` seconds before the time limit. A proposer that fails proposes nothing.
    """
    setting = _setting(state, proposer)
    setting = replace(setting, proposed=np.concatenate([setting.proposed, *(p.directions for p in proposals)]))
    queries = int(max(0, min(proposer.cost(setting), PROPOSER_SHARE * state.allowance())))
    state.oracle.announce(queries, stage=proposer.name)
    ask = _residual(state, proposer.name, [p.explains for p in proposals if p.explains is not None])
    rng = state.streams(proposer.name, len(state.history) + 1)
    with time_limit(time_left() - reserve):
        found = state.attempt(proposer.name, lambda: run_proposer(proposer, ask, setting, queries=queries, rng=rng))
    return Proposal.empty(setting, "failed") if found is None else found


def _residual(state: State, stage: str, explained: Sequence[Ask]) -> Ask:
    """Return the function that proposers ask: f less the model and less what this round's proposals explain.

    Every answer joins the samples of the fit.
    """
    ask, model, samples, parts = state.ask(stage), state.model, state.samples, list(explained)

    def residual(Y: Floats) -> Floats:
        answers = ask(Y)
        samples.add(Y, answers, thin=max(1, len(Y) // STENCIL_POINTS), weight=SEARCH_POINT_WEIGHT)
        left = answers - model.predict(Y) if model.count else answers
        return left - sum(part(Y) for part in parts) if parts else left

    return residual


def _is_explained(state: State, proposals: Sequence[Proposal]) -> bool:
    """Return whether model and proposals leave only an affine function of the points asked so far."""
    parts = [p.explains for p in proposals if p.explains is not None]
    if not parts:
        return False
    X, Y = state.samples.train
    left = Y - state.model.predict(X) - sum(part(X) for part in parts)
    flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
    left = left - flat @ np.linalg.lstsq(flat, left, rcond=None)[0]
    return float(np.abs(left).max()) <= _explained_error(state)


def _explained_error(state: State) -> float:
    """Return the largest error up to which f counts as explained."""
    return EXPLAINED * state.tolerance * state.survey.std


def _setting(state: State, proposer: Proposer) -> Setting:
    """Describe the residual to a proposer, in the coordinates of the subspace."""
    found = state.model.count > 0
    return Setting(
        dim=state.inner_dim,
        outputs=state.oracle.outputs or 1,
        radius=state.radius,
        reach=state.radius if found else state.reach,  # the model, hence the residual, means nothing beyond the ball
        std=state.best.rms if found else max(state.survey.inner_std, state.survey.std),
        noise=state.survey.noise,
        bandwidth=state.survey.bandwidth,
        gradient=_gradient(state) if state.oracle.has_gradient and not found else None,
        directions=state.model.directions,
        rounds=len(state.history),
        turns=sum(line.proposer == proposer.name for line in state.history),
        worst=_worst(state) if found else np.empty((0, state.inner_dim)),
    )


def _worst(state: State) -> Floats:
    """Return the points of the fit at which the model is most wrong, the worst first."""
    X, Y = state.samples.unclustered
    size = np.linalg.norm(Y - state.model.predict(X), axis=1)
    return X[np.argsort(-size, kind="stable")[:WORST]]


def examined(state: State) -> Evidence:
    """Return what the tests of structure have measured; they are made once in a run.

    Where f may be no sum of features, what is left of the search is bounded by what a sum of as many features as
    derivatives could tell apart would take, unless a surrogate is asked for.
    """
    if state.evidence is None:
        state.evidence = evidence = _examine(state)
        if not state.approximate and classify(evidence) is not Kind.SUM:
            features = max(evidence.full_rank, MIN_EFFORT_FEATURES)
            effort = EFFORT_PER_PARAMETER * features * (state.inner_dim + RESPONSE_PARAMETERS)
            state.effort_limit = state.oracle.queries + effort
            limit_work(WORK * min(max(1.0, state.inner_dim / WORK_DIM), MOST_WORK))
    return state.evidence


def budget_for_tests(state: State) -> int:
    """Return the budget whose share for tests of structure pays for the Hessians of a full rank."""
    return ceil(hessian_queries(state.inner_dim, state.oracle.outputs or 1) / STRUCTURE_SHARE)


def _examine(state: State) -> Evidence:
    """Ask what f is, as a whole and inside the ball. The answers join the samples; tests that fail show nothing."""
    setting = replace(_setting(state, PROPOSERS["random"]), reach=state.radius, std=state.survey.std, gradient=None)
    ask, samples = state.ask("structure"), state.samples

    def recorded(Y: Floats) -> Floats:
        answers = ask(Y)
        samples.add(Y, answers, thin=max(1, len(Y) // STENCIL_POINTS), weight=SEARCH_POINT_WEIGHT)
        return answers

    wanted = max(STRUCTURE_QUERIES * (setting.dim + 16), hessian_queries(setting.dim, setting.outputs))
    queries = int(min(wanted, STRUCTURE_SHARE * state.allowance()))
    state.oracle.announce(queries, stage="structure")
    rng = state.streams("structure", len(state.history))
    found = state.attempt("structure", lambda: examine(recorded, setting, queries=queries, rng=rng))
    return Evidence(setting.dim) if found is None else found


def _gradient(state: State) -> Callable[[Floats], Floats]:
    """Return the oracle's gradient in the coordinates of the subspace."""
    oracle, basis = state.oracle, state.survey.basis
    return lambda Y: oracle.gradient(Y @ basis, stage="gradient") @ basis.T
