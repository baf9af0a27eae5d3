"""One turn of proposers, each on what the model and those before it leave of f."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .geometry import Floats
from .query.recipe import turned
from .search import PROPOSERS, Ask, Proposal, Proposer, Setting, run_proposer
from .state import CROWDED, State


@dataclass(frozen=True, eq=False)
class Candidates:
    """What the proposers of one turn have found."""

    directions: Floats
    """(k, d) unit rows, those of each proposer best first."""
    kinks: tuple[Floats, ...]
    """For each direction the places where its response breaks, as far as they are known."""
    note: str
    far: Proposal | None
    """The same with places and jumps of the responses, as seen from far away, where it was."""

    def first(self, count: int) -> Candidates:
        return replace(self, directions=self.directions[:count], kinks=self.kinks[:count])


def propose(state: State, proposers: tuple[Proposer, ...]) -> Candidates:
    """Ask them one after the other, until what they have found explains f; planes and points stay with the state."""
    number = len(state.history) + 1
    state.new_ground, state.spread = False, 0.0
    found, notes = [], []
    kinks: tuple[Floats, ...] = ()
    explained: list[Ask] = []
    far = None
    for proposer in proposers:
        if explained and _is_explained(state, explained):
            break
        proposal = _proposed(state, proposer, number, explained)
        if not proposal.resolved:  # second derivatives cannot tell so many apart; higher ones may
            higher = _proposed(state, PROPOSERS["tensors"], number, explained)
            note = f"{proposal.note}; {higher.note}"
            proposal = replace(higher if len(higher.directions) else proposal, note=note)
            state.crowded |= not len(proposal.directions)
            state.spread = proposal.angle_error
        state.planes += [replace(p, basis=p.basis @ state.known.basis, round=number) for p in proposal.planes]
        found.append(proposal.directions)
        kinks += proposal.kinks or (np.empty(0),) * len(proposal.directions)
        explained += [proposal.explains] if proposal.explains is not None else []
        far = proposal if proposer.name == "far_field" else None
        notes.append(f"{proposer.name}: {proposal.note}")
        state.say(f"{proposer.name}: {len(proposal.directions)} candidates; {proposal.note}")
    return Candidates(np.concatenate(found), kinks, "; ".join(notes), far)


def _proposed(state: State, proposer: Proposer, number: int, explained: list[Ask]) -> Proposal:
    name, setting = proposer.name, _setting(state, proposer)
    most = int(min(proposer.cost(setting), state.allowance()))
    state.oracle.expect(most, stage=name)
    rng = state.streams(name, number)
    return run_proposer(proposer, _residual(state, name, explained), setting, queries=most, rng=rng)


def _residual(state: State, stage: str, explained: list[Ask]) -> Ask:
    """What the model, and this turn's earlier proposals, leave of f; answers join the samples."""
    ask, model, samples, parts = state.ask(stage), state.model, state.samples, list(explained)

    def residual(Y: Floats) -> Floats:
        answers = ask(Y)
        samples.add(Y, answers, thin=_thinning(len(Y)), worth=CROWDED)
        left = answers - model.predict(Y) if model.count else answers
        return left - sum(part(Y) for part in parts) if parts else left

    return residual


def _thinning(count: int) -> int:
    """Keep every k-th answer of a large search, so that the fit is not swamped by one stencil or plane."""
    return max(1, count // 4096)


def _is_explained(state: State, parts: list[Ask]) -> bool:
    """Do model and proposals leave only an affine function of the points asked so far?"""
    X, Y = state.samples.train
    left = Y - state.model.predict(X) - sum(part(X) for part in parts)
    flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
    left = left - flat @ np.linalg.lstsq(flat, left, rcond=None)[0]
    return float(np.abs(left).max()) <= 0.1 * state.tolerance * state.known.scale


def _setting(state: State, proposer: Proposer) -> Setting:
    found = state.model.count > 0
    return Setting(
        dim=state.inner_dim,
        outputs=state.oracle.outputs or 1,
        radius=state.radius,
        reach=state.radius if found else state.reach,  # beyond the ball the model, hence the residual, means nothing
        std=state.best.rms if found else state.known.scale,
        noise=state.known.noise,
        bandwidth=state.known.bandwidth,
        gradient=_gradient(state) if state.oracle.has_gradient and not found else None,
        directions=state.model.directions,
        rounds=len(state.history),
        turns=sum(line.proposer == proposer.name for line in state.history),
    )


def _gradient(state: State) -> Ask:
    oracle, basis = state.oracle, state.known.basis
    return lambda Y: oracle.gradient(turned(Y, basis), stage="gradient") @ basis.T
