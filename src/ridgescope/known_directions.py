"""Directions that a search knows better than a fit, and features that return to them.

Second derivatives may show directions to a millionth, while a spline, or a family that is not quite the true one,
leaves a thousandth of f, and least squares turns directions to make up for that. So searches state an error for each
direction, from what their own equations leave. After a fit, features that are less well known than that go back to
where the search saw them and their responses are solved for again, if the fit is still as good as it has to be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .fit.closed_solve import Data, Solved
from .fit.closed_starts import spline_fit
from .fit.closed_steps import minimise
from .fit.context import AT_NOISE, SLIGHT_LOSS, Evaluation, FitGoal, evaluate, is_no_worse
from .fit.errorbars import ErrorBars
from .fit.gated_form import GatedModel
from .fit.levenberg_marquardt import LMOptions, levenberg_marquardt
from .fit.samples import Samples
from .geometry import Floats, angle

if TYPE_CHECKING:
    from .state import State

EXACT = 1e-6
"""RMS error over the answers' standard deviation up to which nothing is left that directions could make up for."""
WORSE = 2.0
"""Factor by which the held-out error may rise within the goal: directions that have turned made up for that much."""
FAR = 0.01
"""Share of the tolerance that is far for a direction, in radians: a tenth of what directions are to be known to."""
BARS_AWAY = 5.0
"""Error bars of a fit within which its feature is the one that a search saw."""

_STEPS, _SLOW = 4, 1e-2  # of closed forms along directions that stay: their shapes are nearly right
_IN_SUBSPACE = 1e-9  # of a row's length: more than rounding


@dataclass(frozen=True, eq=False)
class KnownDirections:
    """Directions that searches have proposed, with errors of their own."""

    directions: Floats
    """(k, d) unit rows, in all dimensions."""
    errors: Floats
    """(k,) radians; infinite where a search does not say."""

    @classmethod
    def none(cls) -> KnownDirections:
        """Return what is known before any search."""
        return cls(np.empty((0, 0)), np.empty(0))

    def extended(self, directions: Floats, errors: Floats) -> KnownDirections:
        """Return these directions and further ones whose errors are known; `errors` may be empty."""
        if not len(errors):
            return self
        known = np.isfinite(errors)
        both = np.concatenate([self.directions.reshape(-1, directions.shape[1]), directions[known]])
        return KnownDirections(both, np.concatenate([self.errors, errors[known]]))

    def nearest(self, directions: Floats) -> tuple[Floats, Floats, Floats]:
        """Return for each of n directions the known one that is its own, of the same sign, their angle, and its error.

        The angle is infinite for a direction that has none, as another one is closer to each.
        """
        if not len(self.errors) or not len(directions):
            return directions, np.full(len(directions), np.inf), np.full(len(directions), np.inf)
        cosines = directions @ self.directions.T
        own = np.abs(cosines).argmax(axis=1)
        mutual = np.abs(cosines).argmax(axis=0)[own] == np.arange(len(directions))
        sign = np.where(cosines[np.arange(len(own)), own] < 0, -1.0, 1.0)
        there = sign[:, None] * self.directions[own]
        return there, np.where(mutual, angle(there, directions), np.inf), self.errors[own]

    def sharpened(self, bars: ErrorBars, directions: Floats) -> ErrorBars:
        """Return the error bars of features along `directions`, none larger than what a search knows of them.

        That is the search's own error and the angle by which the feature has moved from where the search saw it.
        """
        if not len(self.errors) or len(bars.angle) != len(directions):
            return bars
        _, moved, errors = self.nearest(directions)
        error = moved + errors
        squares = np.minimum(bars.mean_square_angle, error**2)
        return replace(bars, angle=np.minimum(bars.angle, error), mean_square_angle=squares)


def restore_directions(state: State) -> None:
    """Put the features that a search knows better back to where it saw them, if the fit bears that."""
    then = state.attempt("known directions", lambda: _restored(state))
    if then is not None and then is not state.best:
        rms = f"held-out RMS {state.best.rms:.2e} -> {then.rms:.2e}"
        state.evaluation = then
        state.say(f"  directions as the search saw them: {rms}", detail=True)


def _restored(state: State) -> Evaluation:
    """Return the fit after that, or as it is; nothing is done unless a feature has moved far for the tolerance."""
    now, known, samples, goal, basis = state.best, state.known, state.samples, state.goal, state.survey.basis
    if not len(known.errors) or not now.model.count or isinstance(now.model, GatedModel):
        return now
    if now.rms <= max(EXACT * state.survey.std, AT_NOISE * goal.noise):
        return now
    there, moved, errors = known.nearest(now.model.directions @ basis)
    inside = there @ basis.T
    back = (moved > errors) & (moved < np.inf) & _is_unit(inside)
    if not (moved[back] > FAR * state.tolerance).any():
        return now
    bar = state.error_bars().angle
    back &= (errors < bar) & (moved <= BARS_AWAY * bar)
    if not back.any():
        return now
    then = _along(now, np.where(back[:, None], inside, now.model.directions), samples, goal)
    bears = then.meets_goal and is_no_worse(then.rms, now.rms, WORSE - 1.0)
    return then if bears or is_no_worse(then.rms, now.rms, SLIGHT_LOSS) else now


def _is_unit(rows: Floats) -> NDArray[np.bool_]:
    """Return which rows have kept their length, so that they lie in the subspace."""
    return np.asarray(np.abs(np.linalg.norm(rows, axis=1) - 1.0) < _IN_SUBSPACE)


def _along(now: Evaluation, directions: Floats, samples: Samples, goal: FitGoal) -> Evaluation:
    """Return the same features along other directions, their responses solved for again."""
    if now.forms is not None:
        start = Solved.of(replace(now.forms, directions=directions), Data(*samples.unclustered))
        solved = minimise(start, steps=_STEPS, min_gain=_SLOW)
        then = replace(evaluate(spline_fit(solved, goal), samples, goal), forms=solved.forms)
    else:
        model = replace(now.model, directions=directions)
        then = evaluate(levenberg_marquardt(model, *samples.train, LMOptions(steps=0)), samples, goal)
    return replace(then, directions_as_proposed=now.directions_as_proposed)
