"""The judge: from candidate directions, good and bad, to the best sum of features that the answers support.

    as proposed   the best responses for the directions as they are; a good search needs no more
    settle        else all candidates move together, while points are added along where they now are
    tidy          drop what does not pay, merge what describes one feature; every drop is a trial on held-out points
    refine        finer knots or kinks where the residual has structure along a feature; more points where that stalls
    sharpen       where noise is what is left: as many points as the aim takes, and the features that show among them

until held-out points agree with the model to what is asked for, or nothing helps any more.

The steps stand in `settle`, `tidy`, `responses` and `sharpen`; each takes the `Inquiry`, where the fit stands, and a
fit, and returns a fit. Here is their order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..geometry import Floats
from .data import Samples, ask_along, ask_ends, held_out_error
from .inquiry import FINAL, SETTLING, STANDING, Aim, Inquiry, Judged, many
from .model import Model
from .responses import parted, refined, refined_once, reshaped, without_idle_kinks
from .settle import choose_shape, reborn, second_chance, settle
from .sharpen import sharpened
from .solve import Fitted, is_small, levenberg_marquardt
from .tidy import tidy

__all__ = ["FINAL", "Aim", "Judge", "Judged", "many"]


class Judge:
    """One fit in progress, and the order of the steps above."""

    def __init__(
        self,
        ask: Callable[[Floats], Floats],
        samples: Samples,
        aim: Aim,
        rng: np.random.Generator,
        allowance: Callable[[], float] = lambda: float("inf"),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.inquiry = Inquiry(ask, samples, aim, rng, allowance, say)

    @property
    def untouched(self) -> bool:
        """Have directions and kinks stayed where they were proposed to the end?"""
        return self.inquiry.untouched

    def run(self, model: Model, fresh: int = 0) -> Judged:
        """Fit `model` from where it stands, good candidates and bad; its last `fresh` features are new."""
        inquiry = self.inquiry
        inquiry.smooth, inquiry.dropped = SETTLING, []
        if fresh:
            _ask_about(inquiry, model.directions[-fresh:])
        best = _as_proposed(inquiry, model, fresh)
        inquiry.untouched = best.done
        if not best.done:
            near = inquiry.is_near(best.rms)
            moved = inquiry.free(best.model) if near else settle(inquiry, best.model, fresh)
            best = inquiry.verdict(tidy(inquiry, moved))
            best = parted(inquiry, refined(inquiry, best))
            if inquiry.is_near(10.0 * best.rms):  # points are missing rather than features
                best = _with_more_points(inquiry, best)
            best = best if near else reborn(inquiry, second_chance(inquiry, best))
            best = _with_more_points(inquiry, best)
        tidied = tidy(inquiry, _loosened(inquiry, best))
        if inquiry.is_noisy(best.rms) and not many(best.model):
            tidied, inquiry.untouched = sharpened(inquiry, tidied), False
        return inquiry.verdict(_finish(inquiry, tidied, best.done and inquiry.untouched))

    def firm(self, model: Model, untouched: bool = False) -> Judged:
        """More points, another look at the responses; the set of features stays, `untouched` directions if they may.

        Points that a certificate has asked meanwhile are among the samples already.
        """
        inquiry = self.inquiry
        inquiry.smooth = STANDING
        inquiry.more(model, 0.1)
        inquiry.fixed = untouched
        fitted = inquiry.polish(model)
        now = inquiry.verdict(refined_once(inquiry, fitted, 1.0) or fitted)
        inquiry.fixed = False
        if untouched and not now.done:
            now = inquiry.verdict(inquiry.polish(now.model))
        return inquiry.verdict(_finish(inquiry, now.fitted, untouched and now.done))


def _ask_about(inquiry: Inquiry, fresh: Floats) -> None:
    """New candidates (k, d) are first asked along their own lines: a response that bends far out shows nowhere else."""
    wanted = len(fresh) * (inquiry.aim.intervals + 8)
    ask_along(inquiry.ask, inquiry.samples, fresh, int(min(wanted, inquiry.allowance())), inquiry.rng)
    if inquiry.allowance() >= 4 * len(fresh):
        ask_ends(inquiry.ask, inquiry.samples, fresh)


def _as_proposed(inquiry: Inquiry, model: Model, fresh: int) -> Judged:
    """The best responses for the directions as they are.

    A search often gives directions far better than a fit with knots still too coarse could: that fit would spoil
    them. Where they are rough, no response helps much, and nothing but a few linear solves is lost.
    """
    inquiry.fixed = True
    inquiry.top_up(model, 1.0)
    linear = inquiry.choose_smoothing(choose_shape(inquiry, model, fresh))
    best = inquiry.verdict(Fitted(linear, 0.0, 0, False))
    if best.done or inquiry.is_near(best.rms):
        best = refined(inquiry, best)  # with coarse knots one of two twins would seem idle
        best = _with_more_points(inquiry, best)
        best = inquiry.verdict(tidy(inquiry, best.fitted))
    inquiry.fixed = False
    return best


def _with_more_points(inquiry: Inquiry, best: Judged) -> Judged:
    """More points, and another look, as long as that pays.

    Directions that may not move keep points from paying where those fitted agree no better than those held out.
    """
    for _ in range(3):
        if inquiry.is_enough(best) or inquiry.allowance() < 1:
            break
        if inquiry.fixed and inquiry.rms(best.fitted) > 0.8 * best.rms:
            break
        inquiry.more(best.model, 0.4)
        again = refined(inquiry, inquiry.verdict(inquiry.polish(best.model)))
        pays = again.sup < 0.8 * best.sup
        best = again
        if not pays:
            break
    return best


def _loosened(inquiry: Inquiry, best: Judged) -> Fitted:
    """Directions that stayed where a search put them, let go if held-out points gain by it: among directions that
    are slightly off, a false one is not idle but makes up for them.
    """
    if not inquiry.untouched or many(best.model):
        return best.fitted
    free = levenberg_marquardt(
        best.model, *inquiry.samples.train, steps=5, smooth=inquiry.smooth, solved=best.fitted.linear
    )
    return free if held_out_error(free.model, inquiry.samples)[0] < 0.8 * best.rms else best.fitted


def _finish(inquiry: Inquiry, fitted: Fitted, untouched: bool) -> Fitted:
    """Kinks that do not pay go; then the last digits, unless knots limit the fit, there are so many features that the
    steps would take long for nothing, and directions still stand where a search put them or all that was asked for is
    reached.
    """
    fitted = without_idle_kinks(inquiry, reshaped(inquiry, fitted))
    X, Y = inquiry.samples.train
    noisy = 3.0 * inquiry.aim.noise
    before = held_out_error(fitted.model, inquiry.samples)
    dear = many(fitted.model) and before[0] > noisy
    if dear and (untouched or (before[1] <= inquiry.aim.error and not is_small(fitted.model))):
        return fitted
    floor = 1e-28 * float(np.sum(Y**2))
    last = levenberg_marquardt(
        fitted.model,
        X,
        Y,
        steps=10,
        damping=1e-6,
        smooth=inquiry.smooth,
        enough=floor,
        progress=0.1,
        solved=fitted.linear,
        roughly=dear,
    )
    after = held_out_error(last.model, inquiry.samples)
    inquiry.say(f"last digits: {last.steps} steps, held-out rms {before[0]:.2e} -> {after[0]:.2e}")
    # Where knots, not noise, limit the fit, turning directions trades one error for another: only if it pays.
    enough = 1.02 if before[0] <= noisy else 0.8
    return last if after[0] <= enough * before[0] else fitted
