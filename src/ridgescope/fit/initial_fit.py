"""The first fit of directions that are guesses: all of them move together, while points are added along them."""

from __future__ import annotations

import numpy as np

from .context import STEADY_GAIN, FitContext, improves
from .levenberg_marquardt import Fitted
from .linear import MAX_GRAM_COLUMNS, MEDIUM_SMOOTHING, Gram
from .model import Model

_POINTS = 1.4  # factor on the points per unknown while directions are guesses; empirical: trades queries for restarts
_GROWTH_PHASES, _MAX_PHASES = 6, 20  # phases in which the points grow from half to all, and most phases
_PHASE_STEPS, _LAST_STEPS = 5, 20  # steps of a phase, and with all points once directions are nearly right
_FIRST_DAMPING, _MIN_DAMPING = 0.1, 1e-3  # guesses must not jump far, and the next phase has other points
_EXTRA_POINTS = 0.5  # share of the present points that is added once if the error stalls
_KNOT_FACTORS = (1, 2, 4, 8)
_MAX_NEW_INTERVALS = 256  # of a new feature
_MAX_COLUMN_SHARE = 0.5  # of the points: more columns would fit noise
_HALVES = 0.5  # factor by which the error must fall for finer knots in all new responses at once
_FITS = 0.1  # error over f's standard deviation below which knots are fine enough; `refine` does the rest


def initial_fit(context: FitContext, model: Model, new: int) -> Fitted:
    """Move all directions together; the points grow from half of the number needed to all of it.

    Continue while the error falls by 10 % a phase; on a stall add half as many points, once. In the first phase the
    last `new` features get the knots that they need.
    """
    damping, fitted, before, may_add = _FIRST_DAMPING, None, np.inf, True
    for phase in range(_MAX_PHASES):
        context.top_up(model, _POINTS * min(1.0, (phase + 1 + _GROWTH_PHASES) / (2 * _GROWTH_PHASES)))
        linear = context.choose_smoothing(choose_knots(context, model, new if phase == 0 else 0))
        fitted = context.lm_steps(linear.model, _PHASE_STEPS, damping, linear)
        model, damping = fitted.model, max(fitted.damping, _MIN_DAMPING)
        rms = context.training_rms(fitted)
        points = len(context.samples.train[0])
        context.say(
            f"  phase {phase + 1}: {model.count} directions, {points:,} points, training RMS {rms:.2e}", detail=True
        )
        if context.are_directions_nearly_right(rms):  # the remaining points at once
            context.top_up(model, 1.0)
            return context.lm_steps(model, _LAST_STEPS, damping)  # so that true features do not depend on false ones
        stalled = fitted.converged or not improves(rms, before, STEADY_GAIN)
        if context.missing_points(model, _POINTS) <= 0 and stalled:
            if not may_add or context.allowance() < 1:
                break
            may_add = False
            context.add_samples(model, _EXTRA_POINTS)
        before = rms
    assert fitted is not None
    return fitted


def choose_knots(context: FitContext, model: Model, new: int) -> Gram:
    """Return the normal equations, with finer knots for the last `new` features if these at least halve the error.

    A few steep responses among many are left to `refine`, which extends them one by one.
    """
    X, Y = context.samples.train
    best, least = Gram(model, X, Y), np.inf
    for factor in _KNOT_FACTORS if new else ():
        intervals = model.intervals.copy()
        intervals[model.count - new :] *= factor
        finer = model.reshaped(intervals, model.kinks)
        most = min(_MAX_COLUMN_SHARE * len(X), MAX_GRAM_COLUMNS)
        if factor > 1 and (finer.columns > most or intervals.max(initial=0) > _MAX_NEW_INTERVALS):
            break
        gram = best if factor == 1 else Gram(finer, X, Y)
        error = context.held_out_rms(gram.solve(MEDIUM_SMOOTHING).model)
        if error < _HALVES * least:
            best, least = gram, error
        if least < _FITS * float(np.std(Y)):
            break
    return best
