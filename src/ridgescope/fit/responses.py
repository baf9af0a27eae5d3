"""Responses as fine as the answers support, and no finer: knots and kinks come, and go where they do not pay.

    refined               finer knots or kinks where the residual has structure along a feature
    split_features                two features where one looks like two
    reshaped              other knots where noise is what limits the fit
    without_idle_kinks    fewer kinks

`refine` and `split` say what might help; here it is tried, and held-out points decide.
"""

from __future__ import annotations

import numpy as np

from . import prune, refine, split
from .context import TWINS, Evaluation, FitContext, is_expensive
from .levenberg_marquardt import Fitted
from .linear import WIDE, Gram
from .samples import held_out_error
from .tidy import fewer

_ALIKE = 30  # features of which none may stand out though all have too few knots


def refined(context: FitContext, best: Evaluation) -> Evaluation:
    """Refine as long as held-out points get better; where some of the points show nothing that helps, all are looked
    at, and where a bold refinement fails, a timid one is tried.
    """
    boldness, everywhere = 1.0, False
    for _ in range(context.aim.rounds):
        if best.done or best.rms <= 1.02 * context.aim.noise or boldness < 0.1:
            break
        extended = refined_once(context, best.fitted, boldness, everywhere)
        now = best if extended is None else context.evaluate(extended)
        if now.rms < 0.9 * best.rms:
            best, boldness = _lightened(context, now), 1.0
            continue
        best = now if now.rms < best.rms else best
        if extended is None and (everywhere or not context.scan_is_subsampled):
            break
        boldness = boldness if extended is None else boldness / 4.0
        everywhere = context.scan_is_subsampled
    return best


def refined_once(context: FitContext, fitted: Fitted, boldness: float, everywhere: bool = False) -> Fitted | None:
    """Extend the responses whose residual has structure, ask where they are, and settle; None where nothing has."""
    X, residual = context.left_over(fitted.model, everywhere)
    wanted = refine.extensions(fitted.model, X, residual)
    if not wanted:
        return _finer(context, fitted) if boldness == 1.0 else None
    chosen = wanted[: max(1, int(boldness * len(wanted)))]
    context.say(
        "refine " + ", ".join(f"{e.feature}: K={e.intervals} kinks={len(e.kinks)} ({e.gain:.2f})" for e in chosen[:6])
    )
    model = refine.apply(fitted.model, chosen)
    context.top_up(model, 1.0, np.array([e.feature for e in chosen]))
    return context.polish(model)


def _finer(context: FitContext, fitted: Fitted) -> Fitted | None:
    """Twice the knots for all: of many alike, no response alone stands out as too coarse."""
    model = fitted.model
    finer = model.reshaped(2 * model.intervals, model.kinks)
    if model.count <= _ALIKE or context.rms(fitted) <= 3.0 * context.aim.noise:
        return None
    if finer.columns > WIDE or context.missing(finer, 1.0) > context.allowance() or not _knots_matter(context, fitted):
        return None
    context.say(f"twice the knots for all {model.count}")
    context.top_up(finer, 1.0)
    return context.polish(finer)


def _knots_matter(context: FitContext, fitted: Fitted) -> bool:
    """Would twice the knots help, or, where points are too few to tell, do half the knots hurt?

    Where directions are what is wrong, neither.
    """
    model, (X, Y) = fitted.model, context.samples.train
    finer = model.reshaped(2 * model.intervals, model.kinks)
    tells = finer.columns <= 0.5 * len(X)
    other = finer if tells else model.reshaped(np.maximum(model.intervals // 2, 4), model.kinks)
    solved = Gram(other, X, Y).solve(context.smooth).model
    here, there = (held_out_error(m, context.samples)[0] for m in (model, solved))
    return there < 0.8 * here if tells else there > 1.2 * here


def _lightened(context: FitContext, now: Evaluation) -> Evaluation:
    """Where steps are dear, without the false candidates that finer responses have left idle."""
    if context.fixed or not is_expensive(now.model):
        return now
    lighter = fewer(context, now.fitted)
    return now if lighter is now.fitted else context.evaluate(lighter)


def split_features(context: FitContext, best: Evaluation) -> Evaluation:
    """Where directions are nearly right and one feature looks like two, it becomes two, if held-out points gain."""
    while not context.is_enough(best) and context.is_near(best.rms):
        X, residual = context.left_over(best.model)
        found = split.splits(best.model, X, residual)
        if not found:
            break
        context.say(f"feature {found[0].feature} looks like two: {found[0].share:.0%} of what is left")
        two = context.refit_directions(found[0].apply(best.model, 0.5 * TWINS))
        now = refined(context, context.evaluate(two))
        if now.rms > 0.8 * best.rms:
            break
        best = now
    return best


def reshaped(context: FitContext, fitted: Fitted) -> Fitted:
    """Where noise limits the fit: kinks for fine knots, and no knot more than the noise warrants, nor less.

    Every knot that goes leaves directions better known; every one that was missing bends them.
    """
    best = held_out_error(fitted.model, context.samples)[0]
    for _ in range(4):
        if best > 30.0 * context.aim.noise or is_expensive(fitted.model):
            break
        X, Y = context.samples.spread
        found = refine.reshapings(fitted.model, X, Y - fitted.model.predict(X), context.aim.intervals)
        if not found:
            break
        now = context.polish(refine.apply(fitted.model, found))
        rms = held_out_error(now.model, context.samples)[0]
        context.say(f"{len(found)} responses on other knots: held-out rms {best:.2e} -> {rms:.2e}")
        if rms > 1.01 * best:
            break
        fitted, best = now, rms
    return fitted


def without_idle_kinks(context: FitContext, fitted: Fitted) -> Fitted:
    """Without the kinks whose removal costs next to nothing, if held-out points bear it."""
    if not any(map(len, fitted.model.kinks)):
        return fitted
    costs = prune.kink_costs(fitted.linear)
    flat = np.concatenate(costs) if costs else np.empty(0)
    idle = prune.cheap(flat, fitted.linear.cost, 0.1)
    if not len(idle):
        return fitted
    keep = np.split(np.isin(np.arange(len(flat)), idle, invert=True), np.cumsum([len(c) for c in costs])[:-1])
    kinks = tuple(t[k] for t, k in zip(fitted.model.kinks, keep, strict=True))
    context.fixed = True
    fewer_kinks = context.polish(fitted.model.reshaped(fitted.model.intervals, kinks))
    context.fixed = False
    before, after = (held_out_error(f.model, context.samples)[0] for f in (fitted, fewer_kinks))
    return fewer_kinks if after <= 1.1 * before else fitted
