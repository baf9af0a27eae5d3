"""Guesses settle: all candidates move together, while points are added along where they now are.

What was dropped too early, and what has stalled, gets another chance that goes the same way: settle, tidy, refine.
"""

from __future__ import annotations

import numpy as np

from ..geometry import random_directions
from .context import STANDING, TWINS, Evaluation, FitContext
from .levenberg_marquardt import Fitted
from .linear import WIDE, Gram
from .model import Model
from .responses import refined
from .samples import held_out_error
from .tidy import tidy

_GUESSES = 1.4  # times as many points for each unknown while directions are guesses


def settle(context: FitContext, model: Model, fresh: int, phases: int = 6, most: int = 20) -> Fitted:
    """All directions move together; the points grow with them, from half of what is wanted to all of it.

    Guesses first crawl and then fall into place: with all the points, as many phases more as still bring a tenth.
    Where they stall short of it, points may be what is missing: half as many again, once.
    """
    damping, fitted, before, helps = 0.1, None, np.inf, 1
    for phase in range(most):
        context.top_up(model, _GUESSES * min(1.0, (phase + 1 + phases) / (2 * phases)))
        X, _ = context.samples.train
        linear = context.choose_smoothing(choose_knots(context, model, fresh if phase == 0 else 0))
        fitted = context.lm_steps(linear.model, 5, damping, linear)
        model, damping = fitted.model, max(fitted.damping, 1e-3)
        rms = context.rms(fitted)
        context.say(f"settle {phase}: {len(X)} points, {model.count} candidates, rms {rms:.2e}")
        if context.is_near(rms):  # no guesses any more: the remaining points at once
            context.top_up(model, 1.0)
            return context.lm_steps(model, 20, damping)  # false ones are idle only where the others are in place
        if context.missing(model, _GUESSES) <= 0 and (fitted.converged or rms > 0.9 * before):
            if not helps or context.allowance() < 1:
                break
            helps -= 1
            context.add_samples(model, 0.5)
        before = rms
    assert fitted is not None
    return fitted


def choose_knots(context: FitContext, model: Model, fresh: int) -> Gram:
    """Knots for the new features: finer ones than the survey suggested where without them hardly anything fits.

    A few steep responses among many are left to `refined`, which extends them one by one.
    """
    X, Y = context.samples.train
    best, least = Gram(model, X, Y), np.inf
    hopeless = 0.1 * float(np.std(Y))
    for factor in (1, 2, 4, 8) if fresh else ():
        intervals = model.intervals.copy()
        intervals[model.count - fresh :] *= factor
        finer = model.reshaped(intervals, model.kinks)
        if factor > 1 and (finer.columns > min(0.5 * len(X), WIDE) or intervals.max(initial=0) > 256):
            break
        gram = best if factor == 1 else Gram(finer, X, Y)
        error = held_out_error(gram.solve(STANDING).model, context.samples)[0]
        if error < 0.5 * least:
            best, least = gram, error
        if least < hopeless:
            break
    return best


def retry_dropped(context: FitContext, best: Evaluation) -> Evaluation:
    """While knots were too coarse, a weak feature may have been dropped as not worth its while: what was dropped
    joins once more, now that little else is left.
    """
    if context.is_enough(best) or not context.dropped:
        return best
    dropped = np.concatenate(context.dropped)
    closest = np.abs(dropped @ best.model.directions.T).max(axis=1, initial=0.0)
    again = dropped[closest < np.cos(TWINS)]
    if not len(again):
        return best
    context.say(f"second chance for {len(again)}")
    return _better(context, best, best.model.join(again, context.aim.intervals), len(again))


def restart_weakest(context: FitContext, best: Evaluation) -> Evaluation:
    """Where guesses have stalled, several often share one feature while another has none: the third that pays
    least starts anew at random, as long as held-out points gain by it.
    """
    vain = 0
    for _ in range(context.aim.restarts):
        if context.is_enough(best) or not best.model.count or vain > 1:
            break
        costs = context.removal_costs(best.fitted)
        born = max(2, best.model.count // 3)
        kept = context.refit_directions(best.model.keep(np.sort(np.argsort(-costs)[: best.model.count - born]))).model
        anew = kept.join(random_directions(born, kept.dim, context.rng), context.aim.intervals)
        now = _better(context, best, anew, born)
        vain = 0 if now.rms < 0.9 * best.rms else vain + 1
        best = now
    return best


def _better(context: FitContext, best: Evaluation, model: Model, fresh: int) -> Evaluation:
    """The better of `best` and what becomes of `model`."""
    tidied = tidy(context, settle(context, model, fresh))
    now = refined(context, context.evaluate(tidied))
    return now if now.rms < best.rms else best
