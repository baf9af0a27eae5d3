"""One turn of proposers, each on what the model and those before it leave of f."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .geometry import Floats
from .query.recipe import turned
from .search import propose_with
from .search.base import Ask, Proposal, Setting
from .search.kinks import KinkProposal
from .state import CROWDED, State


@dataclass(frozen=True, eq=False)
class Candidates:
    """What the proposers of one turn have found."""

    directions: Floats
    """(k, d) unit rows, those of each proposer best first."""
    kinks: tuple[Floats, ...]
    """For each direction the places where its response breaks, as far as they are known."""
    note: str
    zoomed: KinkProposal | None
    """The same as it was seen from far away, where it was."""

    def first(self, count: int) -> Candidates:
        return replace(self, directions=self.directions[:count], kinks=self.kinks[:count])


def propose(state: State, proposers: tuple[str, ...]) -> Candidates:
    """Ask them one after the other, until what they have found explains f; planes and points stay with the state."""
    number = len(state.history) + 1
    state.new_ground, state.spread = False, 0.0
    found, notes = [], []
    kinks: tuple[Floats, ...] = ()
    explained: list[Ask] = []
    zoomed = None
    for name in proposers:
        if explained and _is_explained(state, explained):
            break
        proposal = _proposed(state, name, number, explained)
        if proposal.crowded:  # second derivatives cannot tell so many apart; higher ones may
            higher = _proposed(state, "tensors", number, explained)
            note = f"{proposal.note}; {higher.note}"
            proposal = replace(higher if len(higher.directions) else proposal, note=note)
            state.crowded |= not len(proposal.directions)
            state.spread = proposal.spread
        state.planes += [replace(p, basis=p.basis @ state.known.basis, round=number) for p in proposal.planes]
        found.append(proposal.directions)
        kinks += proposal.at or (np.empty(0),) * len(proposal.directions)
        explained += [proposal.explains] if proposal.explains is not None else []
        zoomed = proposal if name == "zoom" and isinstance(proposal, KinkProposal) else None
        notes.append(f"{name}: {proposal.note}")
        state.say(f"{name}: {len(proposal.directions)} candidates; {proposal.note}")
    return Candidates(np.concatenate(found), kinks, "; ".join(notes), zoomed)


def _proposed(state: State, name: str, number: int, explained: list[Ask]) -> Proposal:
    most = _cap(state, name)
    state.oracle.expect(most, stage=name)
    return propose_with(
        name,
        _residual(state, name, explained),
        _setting(state),
        queries=most,
        rng=state.streams(name, number),
        known=state.model.directions,
    )


def _residual(state: State, stage: str, explained: list[Ask]) -> Ask:
    """What the model, and this turn's earlier proposals, leave of f; answers join the samples."""
    ask, model, samples, parts = state.ask(stage), state.model, state.samples, list(explained)

    def residual(Y: Floats) -> Floats:
        answers = ask(Y)
        samples.add(Y, answers, thin=_thinning(len(Y)), weight=CROWDED)
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


def _setting(state: State) -> Setting:
    found = state.model.count > 0
    return Setting(
        dim=state.inner_dim,
        outputs=state.oracle.outputs or 1,
        radius=state.radius,
        reach=state.radius if found else state.reach,  # beyond the ball the model, hence the residual, means nothing
        scale=state.best.rms if found else state.known.scale,
        noise=state.known.noise,
        bandwidth=state.known.bandwidth,
        gradient=_gradient(state) if state.oracle.has_gradient and not found else None,
    )


def _gradient(state: State) -> Ask:
    oracle, basis = state.oracle, state.known.basis
    return lambda Y: oracle.gradient(turned(Y, basis), stage="gradient") @ basis.T


def _cap(state: State, name: str) -> int:
    """Queries one proposer may spend: some thirty for each parameter of 2d features, doubling with the rounds.

    Planes, where nothing cheaper has helped, twenty times as many at first, doubling each time they are asked; higher
    derivatives, which are for more than d²/2 features, as for three times as many, and for sixty where d is small.
    """
    d, planar = state.inner_dim, name == "slices"
    before = sum(line.proposer == "slices" for line in state.history) if planar else len(state.history)
    features = max(3 * d * (d + 1) // 2, 60) if name == "tensors" else 2 * d
    most = 30 * features * (d + 16) * 2**before * (20 if planar else 1)
    return int(max(0, min(most, state.allowance())))
