"""Closed forms along directions that are rough: turn and choose in turn.

From directions a few tenths of a radian off, closed forms explain most of f, though many get the wrong family. Their
gradients are nearly right all the same, so a few steps with free directions halve the angles, after which more families
show, and so on:

    ask       as many points as all unknowns of closed forms need, w_i, b_i and c_i
    turn      a few Levenberg–Marquardt steps of all unknowns (`closed_steps`)
    choose    families again (`closed_choice`), and repeat while the held-out error falls
    ask       once most families are right, where features bend beyond nearly all points

Splines would have sixteen times as many linear unknowns, p-vectors each, and need as many more points.
"""

from __future__ import annotations

import numpy as np

from .closed_choice import choose_again
from .closed_solve import Solved
from .closed_starts import Trial
from .closed_steps import minimise
from .context import STEADY_GAIN, improves
from .model import TINY
from .samples import HELD_OUT_EVERY, ask_along

_ROUGH = 0.5  # RMS over f's standard deviation: if closed forms leave more, they are no better than guesses
_ROUNDS = 20  # at most: five to ten suffice from 0.2 rad
_STEPS, _MIN_GAIN = 2, 0.1  # steps between two choices, and the share of the cost that a step must gain for another
_LONG_STEPS = 4  # the same once most families are right
_FAILURES = 2  # rounds without a gain that end the iteration: a choice may help the next one
_BEYOND = 3.0  # points on either side of a bend for each entry of a direction, which only these points determine
_ASKED_BEYOND = 4.0  # points asked for one that is beyond: of those along a feature some four in ten may be
_CHOICES = 2  # rounds of a choice: families change again after the next steps
_FIRST_DAMPING, _FALL, _MIN_DAMPING = 0.3, 0.2, 1e-3  # wrong families must not turn directions far


def turn_and_choose(trial: Trial, best: Solved) -> tuple[Trial, Solved]:
    """Turn directions and choose families in turn; return the fit and the data that it is of.

    Nothing is done if closed forms explain too little, or all the points that they need cannot be afforded.
    """
    if trial.rms(best) > _ROUGH * trial.std or not _ask_enough(trial, best):
        return trial, best
    trial = Trial.of(trial.context)
    best = minimise(Solved.of(best.forms, trial.data), steps=_STEPS)
    best = _turned(trial, best, _FIRST_DAMPING, until_promising=True)
    if trial.is_promising(best) and not trial.is_exact(best):
        if _ask_beyond_bends(trial, best):
            trial = Trial.of(trial.context)
            best = Solved.of(best.forms, trial.data)
        best = _turned(trial, best, _MIN_DAMPING)
    return trial, best


def _turned(trial: Trial, now: Solved, damping: float, until_promising: bool = False) -> Solved:
    """Turn and choose until the error is noise or no longer falls, and return the best fit on held-out points.

    If `until_promising`, it also ends when most families must be right.
    """
    best, failures = now, 0
    for _ in range(_ROUNDS):
        before, steps = trial.rms(best), _LONG_STEPS if trial.is_promising(now) else _STEPS
        free = minimise(now, steps=steps, min_gain=_MIN_GAIN, free=True, target=trial.floor, damping=damping)
        now = choose_again(trial, free, _CHOICES)
        trial.context.say(f"  rough directions turned: held-out RMS {before:.1e} -> {trial.rms(now):.1e}", detail=True)
        failures = 0 if improves(trial.rms(now), before, STEADY_GAIN) else failures + 1
        best = now if trial.rms(now) < before else best
        done = trial.is_exact(best) or (until_promising and trial.is_promising(best))
        if done or failures >= _FAILURES:
            break
        damping = max(_FALL * damping, _MIN_DAMPING)
    return best


def _ask_enough(trial: Trial, best: Solved) -> bool:
    """Ask the points that all unknowns of the forms need; return False if they are too many."""
    context, forms = trial.context, best.forms
    unknowns = forms.count * (forms.dim + 1) / forms.coefficients.shape[1] + len(forms.coefficients)
    wanted = context.goal.per_unknown * unknowns * HELD_OUT_EVERY / (HELD_OUT_EVERY - 1)
    missing = int(np.ceil(wanted - context.samples.weight))
    if missing > context.allowance():
        return False
    ask_along(context.ask, context.samples, forms.directions, missing, context.rng)
    return True


def _ask_beyond_bends(trial: Trial, best: Solved) -> bool:
    """Ask along features that have too few points on one side of their bend; return False if none has, or too many.

    In many dimensions most points have a small v·x, and a bend farther out divides them into nearly all and a few. With
    slopes between two values, m·var(φ')/range² is the number of the few.
    """
    context, forms, slopes = trial.context, best.forms, best.slopes
    spread = np.maximum(np.ptp(slopes, axis=0), TINY)
    missing = _BEYOND * (forms.dim + 1) - len(slopes) * np.var(slopes, axis=0) / spread**2
    few = np.flatnonzero(missing > 0.0)
    count = int(_ASKED_BEYOND * missing[few].sum())
    if not len(few) or count > context.allowance():
        return False
    context.say(f"  asking {count:,} points along {len(few)} features that bend where few points are", detail=True)
    ask_along(context.ask, context.samples, forms.directions[few], count, context.rng)
    return True
