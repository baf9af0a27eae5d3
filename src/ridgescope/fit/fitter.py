"""The judge: from candidate directions, good and bad, to the best sum of features that the answers support.

    as proposed   the best responses for the directions as they are; a good search needs no more
    settle        else all candidates move together, while points are added along where they now are
    tidy          drop what does not pay, merge what describes one feature; every drop is a trial on held-out points
    refine        finer knots or kinks where the residual has structure along a feature; more points where that stalls
    sharpen       where noise is what is left: as many points as the aim takes, and the features that show among them

until held-out points agree with the model to what is asked for, or nothing helps any more.

The steps stand in `settle`, `tidy`, `responses` and `sharpen`; each takes the `FitContext`, where the fit stands, and a
fit, and returns a fit. Here is their order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..geometry import Floats
from .context import FINAL, SETTLING, STANDING, Evaluation, FitContext, FitGoal, is_expensive
from .initial_fit import choose_knots, restart_weakest, retry_dropped, settle
from .levenberg_marquardt import Fitted, is_small, levenberg_marquardt
from .model import Model
from .noise_limited import sharpened
from .responses import refined, refined_once, reshaped, split_features, without_idle_kinks
from .samples import Samples, ask_along, ask_ends, held_out_error
from .tidy import tidy

__all__ = ["FINAL", "Evaluation", "FitGoal", "Fitter", "is_expensive"]


class Fitter:
    """One fit in progress, and the order of the steps above."""

    def __init__(
        self,
        ask: Callable[[Floats], Floats],
        samples: Samples,
        aim: FitGoal,
        rng: np.random.Generator,
        allowance: Callable[[], float] = lambda: float("inf"),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.context = FitContext(ask, samples, aim, rng, allowance, say)

    @property
    def untouched(self) -> bool:
        """Have directions and kinks stayed where they were proposed to the end?"""
        return self.context.untouched

    def run(self, model: Model, fresh: int = 0) -> Evaluation:
        """Fit `model` from where it stands, good candidates and bad; its last `fresh` features are new."""
        context = self.context
        context.smooth, context.dropped = SETTLING, []
        if fresh:
            _ask_about(context, model.directions[-fresh:])
        best = _as_proposed(context, model, fresh)
        context.untouched = best.done
        if not best.done:
            near = context.is_near(best.rms)
            moved = context.refit_directions(best.model) if near else settle(context, best.model, fresh)
            best = context.evaluate(tidy(context, moved))
            best = split_features(context, refined(context, best))
            if context.is_near(10.0 * best.rms):  # points are missing rather than features
                best = _with_more_points(context, best)
            best = best if near else restart_weakest(context, retry_dropped(context, best))
            best = _with_more_points(context, best)
        tidied = tidy(context, _loosened(context, best))
        if context.is_noisy(best.rms) and not is_expensive(best.model):
            tidied, context.untouched = sharpened(context, tidied), False
        return context.evaluate(_finish(context, tidied, best.done and context.untouched))

    def firm(self, model: Model, untouched: bool = False) -> Evaluation:
        """More points, another look at the responses; the set of features stays, `untouched` directions if they may.

        Points that a certificate has asked meanwhile are among the samples already.
        """
        context = self.context
        context.smooth = STANDING
        context.add_samples(model, 0.1)
        context.fixed = untouched
        fitted = context.polish(model)
        now = context.evaluate(refined_once(context, fitted, 1.0) or fitted)
        context.fixed = False
        if untouched and not now.done:
            now = context.evaluate(context.polish(now.model))
        return context.evaluate(_finish(context, now.fitted, untouched and now.done))


def _ask_about(context: FitContext, fresh: Floats) -> None:
    """New candidates (k, d) are first asked along their own lines: a response that bends far out shows nowhere else."""
    wanted = len(fresh) * (context.aim.intervals + 8)
    ask_along(context.ask, context.samples, fresh, int(min(wanted, context.allowance())), context.rng)
    if context.allowance() >= 4 * len(fresh):
        ask_ends(context.ask, context.samples, fresh)


def _as_proposed(context: FitContext, model: Model, fresh: int) -> Evaluation:
    """The best responses for the directions as they are.

    A search often gives directions far better than a fit with knots still too coarse could: that fit would spoil
    them. Where they are rough, no response helps much, and nothing but a few linear solves is lost.
    """
    context.fixed = True
    context.top_up(model, 1.0)
    linear = context.choose_smoothing(choose_knots(context, model, fresh))
    best = context.evaluate(Fitted(linear, 0.0, 0, False))
    if best.done or context.is_near(best.rms):
        best = refined(context, best)  # with coarse knots one of two twins would seem idle
        best = _with_more_points(context, best)
        best = context.evaluate(tidy(context, best.fitted))
    context.fixed = False
    return best


def _with_more_points(context: FitContext, best: Evaluation) -> Evaluation:
    """More points, and another look, as long as that pays.

    Directions that may not move keep points from paying where those fitted agree no better than those held out.
    """
    for _ in range(3):
        if context.is_enough(best) or context.allowance() < 1:
            break
        if context.fixed and context.rms(best.fitted) > 0.8 * best.rms:
            break
        context.add_samples(best.model, 0.4)
        again = refined(context, context.evaluate(context.polish(best.model)))
        pays = again.sup < 0.8 * best.sup
        best = again
        if not pays:
            break
    return best


def _loosened(context: FitContext, best: Evaluation) -> Fitted:
    """Directions that stayed where a search put them, let go if held-out points gain by it: among directions that
    are slightly off, a false one is not idle but makes up for them.
    """
    if not context.untouched or is_expensive(best.model):
        return best.fitted
    free = levenberg_marquardt(
        best.model, *context.samples.train, steps=5, smooth=context.smooth, solved=best.fitted.linear
    )
    return free if held_out_error(free.model, context.samples)[0] < 0.8 * best.rms else best.fitted


def _finish(context: FitContext, fitted: Fitted, untouched: bool) -> Fitted:
    """Kinks that do not pay go; then the last digits, unless knots limit the fit, there are so many features that the
    steps would take long for nothing, and directions still stand where a search put them or all that was asked for is
    reached.
    """
    fitted = without_idle_kinks(context, reshaped(context, fitted))
    X, Y = context.samples.train
    noisy = 3.0 * context.aim.noise
    before = held_out_error(fitted.model, context.samples)
    dear = is_expensive(fitted.model) and before[0] > noisy
    if dear and (untouched or (before[1] <= context.aim.error and not is_small(fitted.model))):
        return fitted
    floor = 1e-28 * float(np.sum(Y**2))
    last = levenberg_marquardt(
        fitted.model,
        X,
        Y,
        steps=10,
        damping=1e-6,
        smooth=context.smooth,
        enough=floor,
        progress=0.1,
        solved=fitted.linear,
        roughly=dear,
    )
    after = held_out_error(last.model, context.samples)
    context.say(f"last digits: {last.steps} steps, held-out rms {before[0]:.2e} -> {after[0]:.2e}")
    # Where knots, not noise, limit the fit, turning directions trades one error for another: only if it pays.
    enough = 1.02 if before[0] <= noisy else 0.8
    return last if after[0] <= enough * before[0] else fitted
