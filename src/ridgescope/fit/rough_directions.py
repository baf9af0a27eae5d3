"""Closed forms along directions that are rough: turn and choose in turn.

From directions a few tenths of a radian off, closed forms explain most of f, though many get the wrong family. Their
gradients are nearly right all the same, so a few steps with free directions halve the angles, after which more families
show, and so on:

    ask       as many points as all unknowns of closed forms need, w_i, b_i and c_i
    turn      a few Levenberg–Marquardt steps of all unknowns (`closed_steps`)
    choose    families again (`closed_choice`), and repeat while the held-out error falls

Splines would have sixteen times as many linear unknowns, p-vectors each, and need as many more points.
"""

from __future__ import annotations

import numpy as np

from .closed_choice import choose_again
from .closed_solve import Solved
from .closed_starts import Trial
from .closed_steps import minimise
from .context import STEADY_GAIN, improves
from .samples import HELD_OUT_EVERY, ask_along

_ROUGH = 0.5  # RMS over f's standard deviation: if closed forms leave more, they are no better than guesses
_ROUNDS = 20  # at most: five to ten suffice from 0.2 rad
_STEPS, _MIN_GAIN = 2, 0.1  # steps between two choices, and the share of the cost that a step must gain for another
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
    damping = _FIRST_DAMPING
    for _ in range(_ROUNDS):
        before = trial.rms(best)
        free = minimise(best, steps=_STEPS, min_gain=_MIN_GAIN, free=True, target=trial.floor, damping=damping)
        now = choose_again(trial, free, _CHOICES)
        best = now if trial.rms(now) < before else best
        trial.context.say(f"  rough directions turned: held-out RMS {before:.1e} -> {trial.rms(now):.1e}", detail=True)
        if trial.is_exact(best) or not improves(trial.rms(best), before, STEADY_GAIN):
            break
        damping = max(_FALL * damping, _MIN_DAMPING)
    return trial, best


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
