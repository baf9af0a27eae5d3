"""Rounds of a layer with more features than a joint fit can handle: responses one by one, directions as proposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .search import Candidates
from .wide.layer import MAX_INTERVALS, WideLayer

if TYPE_CHECKING:
    from .state import State


def fit_wide_layer(state: State, candidates: Candidates) -> None:
    """Fit responses for more features than a joint fit can handle; their directions stay as proposed."""
    rng, error, far = state.streams("wide", 0), state.goal.error, candidates.far_field
    if far is not None:
        state.wide = WideLayer.from_far_field(far, state.radius, state.reach, error, rng)
    else:
        noise, std, band = state.survey.noise, state.survey.std, state.survey.bandwidth
        measure = error, min((48.0 * noise / std) ** 0.25 / band, 0.1 * state.radius), noise
        state.wide = WideLayer.from_directions(state.ask("fit"), candidates.directions, state.radius, *measure, rng)
    intervals = state.wide.enough_intervals(state.ask("fit"), rng)
    _fit_responses(state, state.wide, intervals)
    if state.best.sup > state.ample_error and intervals < MAX_INTERVALS and state.wide.where.possible.any():
        _fit_responses(state, state.wide, 2 * intervals)
    state.record_round(candidates.proposer, state.wide.count, candidates.note)


def _fit_responses(state: State, wide: WideLayer, intervals: int) -> None:
    """Fit all responses on so many intervals, and take that as the model."""
    rng = state.streams("wide", intervals)
    state.use_model(wide.fit(state.ask("fit"), state.samples, intervals, state.allowance(), rng))
    state.say(
        f"{state.model.count} responses on {state.model.intervals[0]} intervals, "
        f"largest held-out error {state.best.sup / state.survey.std:.1e} of f's standard deviation"
    )


def refine_wide_layer(state: State, wide: WideLayer) -> bool:
    """Fit all responses on twice as many intervals; return False where that cannot help."""
    intervals = int(state.model.intervals[0])
    if intervals >= MAX_INTERVALS or not wide.where.possible.any():
        return False
    _fit_responses(state, wide, 2 * intervals)
    return True
