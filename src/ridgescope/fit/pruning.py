"""Drop features and kinks that are not needed: removal costs, duplicates, and the trial on held-out points.

If feature i is dropped and the other coefficients are solved for again (directions kept), the sum of squares rises by

    Σ_q c_iqᵀ [((ΦᵀΦ+μ)⁻¹)_ii]⁻¹ c_iq

so one factorisation gives the cost of every removal. A low cost is only a proposal: the smaller model is refitted,
directions included, and kept if held-out errors do not rise by more than their own uncertainty.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from . import threads
from .context import DUPLICATE_ANGLE, SLIGHT_LOSS, SMALL_LOSS, Evaluation, FitContext, is_expensive, is_no_worse
from .levenberg_marquardt import Fitted, LMOptions, levenberg_marquardt
from .linear import MAX_GRAM_COLUMNS, Linear, keep_features, solve_linear
from .model import TINY, Model
from .samples import Samples, held_out_squares

FIXED_DUPLICATE_ANGLE = 0.1 * DUPLICATE_ANGLE
"""Radians within which two features with fixed directions are tried as one: neither could compensate for the other."""
_FIRST_SHARE, _LAST_SHARE = 0.5, 0.05  # of the cost that simultaneous drops may add; halved after a failure
_NOISE_SHARE = 4.0  # factor on the share of the cost due to fitted noise, if most of the cost is noise
_LIMIT = 1.05  # largest held-out error of a smaller model, over the least seen
_UNNEEDED = 0.3  # of the error allowed: the largest error after dropping a feature that the goal does not need
_UNNEEDED_FIXED = 3.0  # over the present error: the same for directions as proposed, of which significant features stay
_ABOVE_NOISE = 4.0  # over the noise: a largest error above this is the model's, not noise
_HOPELESS = 3.0  # over the error before: a merge ends if its first, cheap fit is worse than this
_KINK_SHARE = 0.1  # of the cost that the kinks dropped at once may add
_BLOCK_RIDGE = 1e-15  # relative: rounding errors of a block of the inverse
_STRONGEST = LMOptions(steps=8)  # after the weakest features were dropped for `max_features`
_TRIAL = LMOptions(steps=4)  # of a smaller model: its other features turn to compensate
_FIRST_LOOK = LMOptions(steps=1, matrix_free=True)
_SECOND_LOOK = LMOptions(steps=3, matrix_free=True)


def prune(context: FitContext, fitted: Fitted, as_proposed: bool = False) -> Fitted:
    """Drop the features whose removal costs least, then those that the goal does not need, then merge duplicates.

    With `as_proposed` directions are as a search gave them, and a weak but significant feature stays: without it the
    others would turn to compensate for it.
    """
    limit = _limit(context, fitted)
    fitted = drop_cheapest(context, fitted)
    limit = _limit(context, fitted, limit)
    fitted = drop_unneeded(context, fitted, limit, as_proposed)
    return merge_duplicates(context, fitted, limit)


def drop_cheapest(context: FitContext, fitted: Fitted) -> Fitted:
    """Drop the cheapest features, as many at once as the trial on held-out points allows."""
    share, limit, least = _FIRST_SHARE, _limit(context, fitted), _LAST_SHARE
    if context.is_noise_limited(context.held_out_rms(fitted.model)):
        share = min(share, _NOISE_SHARE * fitted.model.parameters / context.samples.train[1].size)
        least = _LAST_SHARE / _FIRST_SHARE * share
    while fitted.model.count and share > least:
        drop = cheapest(removal_costs(context, fitted), fitted.linear.cost, share)
        trial = _trial(context, fitted, drop, limit) if len(drop) else None
        if trial is None:
            share /= 2
        else:
            fitted, limit = trial, _limit(context, trial, limit)
    return fitted


def _limit(context: FitContext, fitted: Fitted, before: float = np.inf) -> float:
    """Held-out error up to which a drop is accepted: a little above the least that was seen while dropping."""
    return min(before, _LIMIT * context.held_out_rms(fitted.model))


def drop_unneeded(context: FitContext, fitted: Fitted, limit: float, as_proposed: bool) -> Fitted:
    """Drop, one by one, features without which the fit would still meet its goal."""
    if context.goal.keep_significant:
        return fitted
    most = _UNNEEDED * context.goal.error
    if context.fixed or as_proposed:
        most = min(most, _UNNEEDED_FIXED * max(context.training_rms(fitted), context.goal.noise))
    while fitted.model.count:
        costs = removal_costs(context, fitted)
        least = int(np.argmin(costs))
        predicted = np.sqrt((fitted.linear.cost + costs[least]) / context.samples.train[1].size)
        trial = _trial(context, fitted, np.array([least]), limit) if predicted < most else None
        if trial is None:
            return fitted
        fitted = trial
    return fitted


def merge_duplicates(context: FitContext, fitted: Fitted, limit: float) -> Fitted:
    """Try each pair of close features as one; pairs with fixed directions have to be closer.

    The merged feature has the knots and kinks of both: a smooth response with a kink is often found twice.
    """
    tried: set[tuple[float, ...]] = set()
    while True:
        for pair in close_pairs(fitted.model.directions, FIXED_DUPLICATE_ANGLE if context.fixed else DUPLICATE_ANGLE):
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


def prune_if_expensive(context: FitContext, now: Evaluation) -> Evaluation:
    """Drop false candidates that finer responses have made superfluous, if steps are expensive."""
    if context.fixed or not is_expensive(now.model):
        return now
    smaller = drop_cheapest(context, now.fitted)
    return now if smaller is now.fitted else context.evaluate(smaller)


def drop_unneeded_kinks(context: FitContext, fitted: Fitted) -> Fitted:
    """Drop the kinks whose removal costs next to nothing, if the held-out error hardly rises."""
    if not any(map(len, fitted.model.kinks)):
        return fitted
    costs = kink_costs(fitted.linear)
    flat = np.concatenate(costs)
    drop = cheapest(flat, fitted.linear.cost, _KINK_SHARE)
    if not len(drop):
        return fitted
    keep = np.split(np.isin(np.arange(len(flat)), drop, invert=True), np.cumsum([len(c) for c in costs])[:-1])
    kinks = tuple(t[k] for t, k in zip(fitted.model.kinks, keep, strict=True))
    fewer = context.with_fixed_directions().polish(fitted.model.reshaped(fitted.model.intervals, kinks))
    before, after = (context.held_out_rms(f.model) for f in (fitted, fewer))
    return fewer if is_no_worse(after, before, SMALL_LOSS) else fitted


def strongest_features(model: Model, count: int, samples: Samples) -> Fitted:
    """Keep the `count` strongest features and refit them."""
    strength = np.array([model.response(i, False).without_affine()[0].rms() for i in range(model.count)])
    keep = np.sort(np.argsort(-strength)[:count])
    return levenberg_marquardt(model.keep(keep), *samples.train, _STRONGEST)


# -- the trial ----------------------------------------------------------------------------------------------


def _trial(
    context: FitContext, fitted: Fitted, drop: NDArray[np.intp], limit: float, into: int | None = None
) -> Fitted | None:
    """Refit without the features `drop`; return the result if held-out points accept it, else None.

    They accept it point by point, or by an RMS within `limit`. The dropped feature may be merged `into` another one. If
    steps are expensive directions stay fixed, except after a merge.
    """
    keep = np.setdiff1d(np.arange(fitted.model.count), drop)
    before = held_out_squares(fitted.model, context.samples)[0]
    smaller = _refitted(context, fitted, keep, _HOPELESS * float(np.sqrt(before.mean())), into)
    if smaller is None:
        return None
    goal = context.goal
    after, sup = held_out_squares(smaller.model, context.samples)
    meets_goal = _ABOVE_NOISE * goal.noise < sup <= goal.error
    worse = after - before  # point by point: errors that both models share cancel
    slack = float(np.std(worse)) / np.sqrt(max(len(worse), 1))
    old, new = float(np.sqrt(before.mean())), float(np.sqrt(after.mean()))
    if goal.keep_significant and into is None:
        accepted = float(worse.mean()) <= slack
    elif context.is_noise_limited(old):  # a feature far below the noise may be significant: the RMS hardly changes
        accepted = float(worse.mean()) <= max(slack, (_UNNEEDED * goal.error) ** 2)
    else:
        accepted = meets_goal or float(worse.mean()) <= slack or new <= max(limit, (1.0 + SLIGHT_LOSS) * goal.noise)
    if not accepted:
        return None
    context.memory.pruned.append(fitted.model.directions[drop])
    context.say(
        f"  dropped {len(drop)} of {len(keep) + len(drop)} features: held-out RMS {old:.2e} -> {new:.2e}", detail=True
    )
    return smaller


def _refitted(
    context: FitContext, fitted: Fitted, keep: NDArray[np.intp], hopeless: float, into: int | None
) -> Fitted | None:
    """Refit the features `keep`; None if the held-out error of a first, cheap fit exceeds `hopeless`."""
    (X, Y), smoothing = context.samples.train, context.memory.smoothing
    merged = _merged(fitted.model, keep, into)
    if not context.fixed and not is_expensive(fitted.model):
        return levenberg_marquardt(merged or fitted.model.keep(keep), X, Y, replace(_TRIAL, smoothing=smoothing))
    linear = solve_linear(merged, X, Y, smoothing) if merged else keep_features(fitted.linear, keep, X, Y, smoothing)
    if context.fixed or into is None:
        return Fitted(linear, fitted.damping, 0, False)
    first = levenberg_marquardt(linear.model, X, Y, replace(_FIRST_LOOK, smoothing=smoothing), solved=linear)
    if context.held_out_rms(first.model) > max(hopeless, context.goal.error):
        return None
    options = replace(_SECOND_LOOK, damping=first.damping, smoothing=smoothing)
    return levenberg_marquardt(first.model, X, Y, options, solved=first.linear)


def _merged(model: Model, keep: NDArray[np.intp], into: int | None) -> Model | None:
    """Merge the dropped feature's knots and kinks into `into`; None if it adds none."""
    if into is None:
        return None
    (dropped,) = np.setdiff1d(np.arange(model.count), keep)
    merged = model.merged(into, int(dropped))
    return merged if merged.columns > model.keep(keep).columns else None


# -- costs of removals --------------------------------------------------------------------------------------


def removal_costs(context: FitContext, fitted: Fitted) -> Floats:
    """Return (n,) the rise of the sum of squares without each feature; the last result is cached."""
    memory = context.memory
    if memory.costs is None or memory.costs[0] is not fitted.linear:
        memory.costs = (fitted.linear, feature_costs(fitted.linear, *context.samples.train, memory.smoothing))
    return memory.costs[1]


@threads.one_blas_thread()
def feature_costs(linear: Linear, X: Floats, Y: Floats, smoothing: float) -> Floats:
    """Return (n,) the rise of the sum of squares if each feature were dropped and the other coefficients solved again.

    If the full matrix is too large to factorise this is an upper bound: only the affine part is fitted again.
    """
    model = linear.model
    if model.columns > MAX_GRAM_COLUMNS:
        return np.array([_bend_of(linear, i, X) for i in range(model.count)])
    factor = linear.factor if linear.factor is not None else solve_linear(model, X, Y, smoothing).factor
    assert factor is not None
    inverse_half = threads.solve_lower(factor, np.eye(len(factor)))
    costs = np.empty(model.count)
    for i in range(model.count):
        half = inverse_half[:, model.offsets[i] : model.offsets[i + 1]]
        block = half.T @ half
        c = model.block(i)
        regular = block + _BLOCK_RIDGE * np.trace(block) * np.eye(len(block))
        costs[i] = float(np.sum(c * np.linalg.solve(regular, c)))
    return costs


@threads.one_blas_thread()
def kink_costs(linear: Linear) -> list[Floats]:
    """Return for each feature the rise of the sum of squares if one kink were dropped and coefficients solved again."""
    model = linear.model
    if linear.factor is None:
        return [np.full(len(t), np.inf) for t in model.kinks]
    inverse_half = threads.solve_lower(linear.factor, np.eye(len(linear.factor)))
    costs = []
    for i in range(model.count):
        at = slice(model.offsets[i] + model.intervals[i] + 3, model.offsets[i + 1])
        variance = np.einsum("kj,kj->j", inverse_half[:, at], inverse_half[:, at])
        costs.append(np.sum(model.coefficients[at] ** 2, axis=1) / np.maximum(variance, TINY))
    return costs


def _bend_of(linear: Linear, i: int, X: Floats) -> float:
    """Return the sum of squares of feature i over the points after subtracting its best straight line."""
    z = X @ linear.model.directions[i]
    values = linear.model.term(i, z)
    line = np.stack([np.ones_like(z), z], axis=1)
    return float(np.sum((values - line @ np.linalg.lstsq(line, values, rcond=None)[0]) ** 2))


def close_pairs(directions: Floats, angle: float) -> list[tuple[int, int]]:
    """Return pairs of rows closer than `angle`, for any signs, closest first."""
    closeness = np.abs(directions @ directions.T)
    i, j = np.nonzero(np.triu(closeness > np.cos(angle), 1))
    order = np.argsort(-closeness[i, j])
    return [(int(a), int(b)) for a, b in zip(i[order], j[order], strict=True)]


def cheapest(costs: Floats, cost: float, share: float) -> NDArray[np.intp]:
    """Return indices of the cheapest removals that together raise the cost by at most `share` of it."""
    order = np.argsort(costs)
    return np.asarray(order[np.cumsum(costs[order]) <= share * cost], dtype=np.intp)
