"""What does not pay is dropped, what describes one feature is merged; every drop is a trial on held-out points.

`prune` prices removals and finds twins. A price is only a proposal: the smaller model is refitted, and stays where
held-out points bear it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import prune
from .context import TWINS, FitContext, is_expensive
from .levenberg_marquardt import Fitted, levenberg_marquardt
from .linear import keep_features, solve_linear
from .model import Model
from .samples import held_out_error, held_out_squares

_ONE = 0.1 * TWINS
"""Radians within which two features that cannot turn may be one."""


def tidy(context: FitContext, fitted: Fitted) -> Fitted:
    """Drop what does not pay, then what is not asked for, and merge what describes one feature."""
    limit = _limit(context, fitted)
    fitted = fewer(context, fitted)
    limit = _limit(context, fitted, limit)
    fitted = _without_idlers(context, fitted, limit)
    return _merge(context, fitted, limit)


def fewer(context: FitContext, fitted: Fitted) -> Fitted:
    """Without the cheapest features, as many at once as the trial on held-out points allows."""
    share, limit, least = 0.5, _limit(context, fitted), 0.05
    if context.is_noisy(held_out_error(fitted.model, context.samples)[0]):  # most of the cost is noise
        share = min(0.5, 4.0 * fitted.model.parameters / context.samples.train[1].size)
        least = 0.1 * share
    while fitted.model.count and share > least:
        costs = context.removal_costs(fitted)
        drop = prune.cheap(costs, fitted.linear.cost, share)
        trial = _trial(context, fitted, drop, limit) if len(drop) else None
        if trial is None:
            share /= 2
        else:
            fitted, limit = trial, _limit(context, trial, limit)
    return fitted


def _limit(context: FitContext, fitted: Fitted, before: float = np.inf) -> float:
    """Error on held-out points up to which drops are borne: a little above the best that was seen on the way."""
    return min(before, 1.05 * held_out_error(fitted.model, context.samples)[0])


def _without_idlers(context: FitContext, fitted: Fitted, limit: float) -> Fitted:
    """One by one, features without which the fit would still be all that was asked for.

    Among directions that stand where a search put them, a weak feature that plainly is one stays: without it the
    others would turn to make up for it.
    """
    idle = 0.3 * context.aim.error
    if context.fixed or context.untouched:
        idle = min(idle, 3.0 * max(context.rms(fitted), context.aim.noise))
    while fitted.model.count:
        costs = context.removal_costs(fitted)
        idlest = int(np.argmin(costs))
        foretold = np.sqrt((fitted.linear.cost + costs[idlest]) / context.samples.train[1].size)
        trial = _trial(context, fitted, np.array([idlest]), limit) if foretold < idle else None
        if trial is None:
            return fitted
        fitted = trial
    return fitted


def _merge(context: FitContext, fitted: Fitted, limit: float) -> Fitted:
    """Try each pair of near twins as one feature; those that cannot turn have to be nearer.

    The one has the knots and kinks of both: a response that bends smoothly and has a kink is often found twice.
    """
    tried: set[tuple[float, ...]] = set()
    while True:
        for pair in prune.twins(fitted.model.directions, _ONE if context.fixed else TWINS):
            key = tuple(fitted.model.directions[list(pair)].sum(axis=0))
            if key in tried:
                continue
            tried.add(key)
            weaker, stronger = sorted(pair, key=lambda k: float(np.sum(fitted.model.block(k) ** 2)))
            trial = _trial(context, fitted, np.array([weaker]), limit, into=stronger)
            if trial is not None:
                fitted = trial
                break
        else:
            return fitted


def _trial(
    context: FitContext, fitted: Fitted, drop: NDArray[np.intp], limit: float, into: int | None = None
) -> Fitted | None:
    """The refitted smaller model, if held-out points bear it as the larger one, or their rms is within `limit`.

    What goes may be taken `into` a feature that stays. Where steps are dear directions stay, unless one has to turn to
    make up for what it takes in.
    """
    keep = np.setdiff1d(np.arange(fitted.model.count), drop)
    before = held_out_squares(fitted.model, context.samples)[0]
    smaller = _without(context, fitted, keep, 3.0 * float(np.sqrt(before.mean())), into)
    if smaller is None:
        return None
    after, sup = held_out_squares(smaller.model, context.samples)
    ample = 4.0 * context.aim.noise < sup <= context.aim.error  # the smaller model is all that was asked for
    worse = after - before  # point by point: what both models share cancels
    slack = float(np.std(worse)) / np.sqrt(max(len(worse), 1))
    old, new = float(np.sqrt(before.mean())), float(np.sqrt(after.mean()))
    if context.is_noisy(old):  # a feature far below the noise may be plain to see, and the rms hardly feels it
        borne = float(worse.mean()) <= max(slack, (0.3 * context.aim.error) ** 2)
    else:
        borne = ample or float(worse.mean()) <= slack or new <= max(limit, 1.02 * context.aim.noise)
    if borne:
        context.dropped.append(fitted.model.directions[drop])
        context.say(f"dropped {len(drop)}: {len(keep)} left, held-out rms {old:.2e} -> {new:.2e}")
        return smaller
    return None


def _without(
    context: FitContext, fitted: Fitted, keep: NDArray[np.intp], hopeless: float, into: int | None
) -> Fitted | None:
    """The features that stay, refitted, or None where the error of a first, cheap look is hopeless."""
    (X, Y), smooth = context.samples.train, context.smooth
    smaller = _united(fitted.model, keep, into)
    if not context.fixed and not is_expensive(fitted.model):
        return levenberg_marquardt(smaller or fitted.model.keep(keep), X, Y, steps=4, smooth=smooth)
    linear = solve_linear(smaller, X, Y, smooth) if smaller else keep_features(fitted.linear, keep, X, Y, smooth)
    first = Fitted(linear, fitted.damping, 0, False)
    if context.fixed or into is None:
        return first
    turned = levenberg_marquardt(first.model, X, Y, steps=1, smooth=smooth, solved=first.linear, roughly=True)
    if held_out_error(turned.model, context.samples)[0] > max(hopeless, context.aim.error):
        return None
    return levenberg_marquardt(
        turned.model, X, Y, steps=3, damping=turned.damping, smooth=smooth, solved=turned.linear, roughly=True
    )


def _united(model: Model, keep: NDArray[np.intp], into: int | None) -> Model | None:
    """The model with what goes taken in, where that brings knots or kinks which what stays has not."""
    if into is None:
        return None
    (goes,) = np.setdiff1d(np.arange(model.count), keep)
    united = model.united(into, int(goes))
    return united if united.columns > model.keep(keep).columns else None
