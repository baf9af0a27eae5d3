"""Closed forms first: which features have one, and which keep a spline.

    start     all features alike, or as splines, coarse or fitted
    choose    the family of each feature (`closed_choice`), or none: then it keeps a spline
    refine    the knots of features that keep a spline, with more points along them
    finish    all get one family if that is no worse, features that are not significant go, directions move, and the
              result is a `Model` of splines

Held-out points decide at every turn. An attempt that fails costs a few linear solves with one column per feature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from . import threads
from .activations import SPLINE
from .closed_choice import (
    MAX_DEGREE,
    choose_again,
    choose_families,
    cubes_leak,
    leaking_degree,
    names_of,
    unify_families,
)
from .closed_form import ClosedForms
from .closed_solve import Data, Solved
from .closed_starts import (
    ENTRANTS,
    POINTS_PER_COLUMN,
    Trial,
    are_bends_known,
    coarse_fit,
    common_starts,
    rounding_cost,
    spline_fit,
)
from .closed_steps import minimise, minimise_to_rounding
from .context import Evaluation, FitContext, FitGoal, evaluate, is_expensive
from .model import TINY, Model
from .pruning import FIXED_DUPLICATE_ANGLE, close_pairs
from .rough_directions import turn_and_choose
from .samples import Samples, ask_along

POINTS_PER_FEATURE = 8
"""Points that a first attempt asks for each new feature: some three for each unknown of a layer with many outputs."""
MANY_OUTPUTS = 8
"""Outputs from which on so few points suffice: each tells as much as this many of a scalar function."""
_CHOOSABLE = 0.3  # RMS over f's standard deviation: if closed forms leave more, their partial responses show no family
_FINALISTS = 2  # fits that go on to the end
_LOOK_STEPS, _LONG_STEPS, _FREE_STEPS = 4, 25, 6  # of a first look, to the end, and with free directions
_SLOW = 1e-2  # share of the cost: a step that gains less is the last
_SIGNIFICANT = 4.0  # variances per output below which a feature's removal cost is that of noise
_FAINT = 1e-6  # of the median removal cost: a feature a thousand times weaker than others
_FREE_POINTS, _ASKED_TO_MOVE = 1.3, 2.0  # answers per unknown from which on directions may move; asked where they must
_MAX_INTERVALS, _MAX_COLUMNS = 512, 3000  # of features without a closed form; of all features while these are refined
_FEW_SPLINES = 0.5  # share of such features up to which these get points of their own, fewer than splines of all take
_FAST = 0.3  # share of the error that is left when knots are doubled, if the response is smooth
_REFINE_POINTS = 2.5  # points per column while these are refined
_OWN_POINTS = 3  # points for each column of a spline whose knots are new: fewer leave coefficients undetermined
_SHARPENINGS, _CLEANINGS, _SHARPER = 3, 3, 0.1  # of a fit that is part spline; error left that calls for another one
_DOUBLED = 3.0  # rise of the cost over the cost if the error is twice as large
_UNNEEDED = 0.3  # of the error allowed: the RMS error up to which a smaller model is worth a trial
_HALF = 0.5  # share of the cost that a step with free directions must gain for another one to follow


@dataclass(frozen=True, eq=False)
class Attempt:
    """What closed forms explain."""

    evaluation: Evaluation | None
    """The model, with its closed forms, if it meets the goal."""
    promising: bool = False
    """Whether more points may help."""
    short: Evaluation | None = None
    """Closed forms of all features that explain most of f and miss the goal, perhaps for want of other features."""


@threads.one_blas_thread()
def fit_closed_forms(
    context: FitContext,
    model: Model,
    *,
    common: bool = True,
    coarse: bool = True,
    fitted: bool = False,
    settled: bool = False,
) -> Attempt:
    """Fit closed forms along the model's directions, and return them as splines if they meet the goal.

    They start from the splines of a `coarse` fit, or from the model's own if it is `fitted`, and, with `common`, from
    the same family and shape for all features. With `settled` all features are known to be true ones.
    """
    if not model.count or context.goal.is_below_noise or not len(context.samples.held_out[0]):
        return Attempt(None)
    trial = Trial.of(context)
    if len(trial.data.X) < POINTS_PER_COLUMN * (model.count + model.dim + 1):
        return Attempt(None, promising=True)
    alike, settled = None, settled or context.goal.keep_significant
    if common and are_bends_known(model):
        alike = _selected(trial, common_starts(trial, model), trial.data)
        if (tried := _concluded(context, trial, alike, settled)).evaluation is not None:
            return tried
        trial = Trial.of(context)
    crowded = leaking_degree(model.count, model.dim) >= MAX_DEGREE
    splines = model if fitted else coarse_fit(context, model, crowded) if coarse else None
    best = choose_families(trial, splines) if splines is not None else None
    known = best is not None and trial.is_promising(best) and _has_few_splines(best.forms)
    if common and not known:
        alike = alike or _selected(trial, common_starts(trial, model), trial.look(model.count + model.dim + 1))
        if best is None or trial.rms(alike) < trial.rms(best):
            choosable = not trial.is_exact(alike) and trial.rms(alike) <= _CHOOSABLE * trial.std
            best = choose_again(trial, alike) if choosable else alike
    if best is None:
        return Attempt(None)
    many = coarse and is_expensive(model) and model.outputs >= MANY_OUTPUTS
    if many and not (context.fixed or trial.is_promising(best)):
        trial, best = turn_and_choose(trial, best)  # splines would take minutes
    if _has_few_splines(best.forms) and trial.is_promising(best) and not cubes_leak(best.forms):
        trial, best = refine_splines(trial, best)
    return _concluded(context, trial, best, settled)


@threads.one_blas_thread()
def refit_closed_forms(context: FitContext, forms: ClosedForms) -> Attempt:
    """Fit closed forms again, to more points, with finer splines among them if the goal is not met."""
    trial = Trial.of(context)
    best = minimise(Solved.of(forms, trial.data), steps=_LONG_STEPS)
    if trial.is_promising(best) and _has_few_splines(forms):
        trial, best = refine_splines(trial, best)
    return _concluded(context, trial, best, settled=True)


@threads.one_blas_thread()
def refit_exact_forms(forms: ClosedForms, samples: Samples, goal: FitGoal) -> Evaluation:
    """Fit closed forms that are right up to their last digits again, to other points or answers."""
    data = Data(*samples.unclustered)
    solved = minimise_to_rounding(Solved.of(forms, data), target=rounding_cost(data))
    return replace(evaluate(spline_fit(solved, goal), samples, goal), forms=solved.forms)


def _selected(trial: Trial, started: list[ClosedForms], look: Data) -> Solved:
    """Return the fit that held-out points prefer: all take some steps, on the data of a `look`, and the best go on."""
    seen = [minimise(Solved.of(forms, look), steps=_LOOK_STEPS, min_gain=0.0) for forms in started]
    seen.sort(key=trial.rms)
    trial.context.say(
        "  all of one family: " + ", ".join(f"{names_of(s.forms)} {trial.rms(s):.1e}" for s in seen[:ENTRANTS]),
        detail=True,
    )
    finals = [_minimised(trial, Solved.of(s.forms, trial.data)) for s in seen[:_FINALISTS]]
    return min(finals, key=trial.rms)


def _minimised(trial: Trial, solved: Solved) -> Solved:
    return minimise(solved, steps=_LONG_STEPS, min_gain=_SLOW, target=trial.floor)


def refine_splines(trial: Trial, best: Solved) -> tuple[Trial, Solved]:
    """Ask points along the features that are splines, then refine their knots while the error falls fast.

    Closed forms need few points, and splines some in every interval: until then the error says nothing about knots,
    and little about families. After that, the error of a smooth response falls to a sixteenth when its knots are
    doubled, that of a kink to a half: kinks are for the fit by splines to find.
    """
    smooth, intervals = True, best.forms.intervals
    while smooth and not trial.is_met(best):
        more = _with_more_points(trial, best, intervals)
        if more is None:
            break
        trial, now = more
        if intervals == best.forms.intervals and not trial.is_met(now):
            now = choose_again(trial, now)
            smooth = _has_few_splines(now.forms)
        else:
            smooth = trial.rms(now) < _FAST * trial.rms(best)
        best, intervals = now, 2 * now.forms.intervals
    return trial, best


def _has_few_splines(forms: ClosedForms) -> bool:
    """Return whether so few features are splines, or none, that families are known."""
    return float(np.mean(forms.family == SPLINE)) <= _FEW_SPLINES


def _with_more_points(trial: Trial, best: Solved, intervals: int) -> tuple[Trial, Solved] | None:
    """Return a fit with so many intervals and points for them; None without splines or if that takes too much."""
    context, splines = trial.context, np.flatnonzero(best.forms.family == SPLINE)
    own = len(splines) * (intervals + 3)
    columns = best.forms.count + best.forms.dim + own
    missing = max(int(_REFINE_POINTS * columns) - len(trial.data.X), _OWN_POINTS * own)
    if not own or intervals > _MAX_INTERVALS or columns > _MAX_COLUMNS or missing > context.allowance():
        return None
    ask_along(context.ask, context.samples, best.forms.directions[splines], missing, context.rng)
    trial = Trial.of(context)
    finer = Solved.of(replace(best.forms, intervals=intervals), trial.data)
    return trial, minimise(finer, steps=_LOOK_STEPS, min_gain=_SLOW, target=trial.floor)


# -- finish ---------------------------------------------------------------------------------------------------


def _concluded(context: FitContext, trial: Trial, best: Solved, settled: bool) -> Attempt:
    """Prune, move directions, and evaluate the splines that stand for the closed forms.

    False directions are looked for unless all features are known to be true ones, or `settled`. If there are so many
    splines in the end that these express the cubes of each other, all features are better fitted as splines.
    """
    if not trial.is_promising(best):
        return Attempt(None)
    best = unify_families(trial, best)
    if not trial.is_met(best):
        trial, best = _with_points_to_move(trial, best)
        best = _freed(trial, best)
    if not trial.is_met(best):
        closed = len(best.forms.closed) == best.forms.count
        short = replace(trial.evaluate(best), forms=best.forms) if closed else None
        return Attempt(None, promising=True, short=short)
    changed = _freed(trial, _pruned(trial, _without_duplicates(trial, best)))
    best = best if changed is best else _reconsidered(trial, changed)  # unless families were chosen from this very fit
    if not settled or cubes_leak(best.forms):
        cleaned = _cleaned(trial, best)
        best = _sharpened(trial, cleaned)
        best = best if best is cleaned else _cleaned(trial, best)
    else:
        best = _sharpened(trial, best)
    best = _without_faint(trial, _pruned(trial, best))
    context.say(f"  closed forms {names_of(best.forms)}: held-out RMS {trial.rms(best):.2e}", detail=True)
    if not trial.is_met(best) or (cubes_leak(best.forms) and not trial.is_exact(best)):
        return Attempt(None, promising=True)
    now = trial.evaluate(best)
    return Attempt(replace(now, forms=best.forms) if now.meets_goal else None, promising=True)


def _reconsidered(trial: Trial, solved: Solved) -> Solved:
    """Choose families again once directions are right, if more than noise is left and the error falls clearly.

    Families that differ by a ten-thousandth, as GELU and its form by tanh, do not show before.
    """
    if trial.is_exact(solved) or not len(solved.forms.closed):
        return solved
    again = choose_again(trial, solved)
    again = solved if again is solved else _freed(trial, again)
    return again if trial.rms(again) < _HALF * trial.rms(solved) else solved


def _without_duplicates(trial: Trial, solved: Solved) -> Solved:
    """Drop one of each pair of features with the same direction, if held-out points agree.

    Neither of the two need be superfluous as it stands: together they may have settled beside the true form.
    """
    failed = False
    while pairs := close_pairs(solved.forms.directions, FIXED_DUPLICATE_ANGLE):
        seconds = {second for _, second in pairs} if not failed else {pairs[-1][1]}
        keep = np.array([i for i in range(solved.forms.count) if i not in seconds], np.intp)
        fewer = _minimised(trial, Solved.of(solved.forms.keep(keep), solved.data))
        if trial.is_no_worse(fewer, solved):
            trial.context.say(f"  dropped {len(seconds)} duplicates of closed forms", detail=True)
            solved = fewer
        elif failed or len(seconds) == 1:
            break
        else:
            failed = True
    return solved


def _pruned(trial: Trial, solved: Solved) -> Solved:
    """Drop features whose removal costs no more than noise would, if held-out points agree."""
    while True:
        forms = solved.forms
        freedom = max(len(solved.data.X) - len(forms.coefficients), 1)
        noise = max(solved.cost, trial.floor) / freedom
        costs = solved.removal_costs() / (_SIGNIFICANT * noise + TINY)
        if not (costs < 1.0).any():
            return solved
        # One after the other: of two equal features each is superfluous, but not both.
        keep = np.delete(np.arange(forms.count), int(np.argmin(costs)))
        smaller = minimise(Solved.of(forms.keep(keep), solved.data), steps=2)
        if not trial.is_no_worse(smaller, solved):
            return solved
        trial.context.say(f"  dropped 1 of {forms.count} closed forms", detail=True)
        solved = smaller


def _sharpened(trial: Trial, solved: Solved) -> Solved:
    """Refine the knots of splines and move directions together, then choose families again, while the error falls fast.

    Either alone may not help: a spline makes up for a direction that is off, and a direction for knots that are coarse.
    If knots limit the error it falls to a sixteenth when they are doubled.
    """
    for _ in range(_SHARPENINGS):
        splines = int(np.sum(solved.forms.family == SPLINE))
        if not splines or trial.is_exact(solved):
            break
        room = len(trial.data.X) / _REFINE_POINTS - solved.forms.count - solved.forms.dim
        intervals = int(min(2 * solved.forms.intervals, room / splines - 3, _MAX_INTERVALS))
        finer = replace(solved.forms, intervals=max(intervals, solved.forms.intervals))
        if not _determined(finer, solved.data):
            break
        now = minimise(Solved.of(finer, solved.data), steps=_FREE_STEPS, min_gain=_HALF, free=True)
        before = trial.rms(solved)
        trial.context.say(f"  sharpened: {before:.2e} -> {trial.rms(now):.2e}", detail=True)
        if trial.rms(now) >= _HALF * before and not trial.is_clearly_better(now, solved):
            break
        solved = choose_again(trial, now)
        if trial.rms(solved) >= _SHARPER * before:
            break
    return solved


def _cleaned(trial: Trial, solved: Solved) -> Solved:
    """Drop what is not needed, and choose families again, as splines of false directions hide those of true ones."""
    for _ in range(_CLEANINGS):
        fewer = _without_needless(trial, solved)
        if fewer is solved or not (fewer.forms.family == SPLINE).any():
            return fewer
        solved = choose_again(trial, fewer)
    return solved


def _without_needless(trial: Trial, solved: Solved) -> Solved:
    """Drop the features that are needed least while held-out points do not miss them.

    A false direction makes up for errors of others, so that its removal costs more than noise would, until these have
    turned. Features whose removal would at most double the error go together, others one by one, and none without
    which the goal would not be met.
    """
    most, at_once = (_UNNEEDED * trial.context.goal.error) ** 2 * solved.data.Y.size, True
    while True:
        forms = solved.forms
        costs = solved.removal_costs() * np.diff(forms.offsets)
        order = np.argsort(costs)
        count = max(1, int(np.sum(np.cumsum(costs[order]) <= _DOUBLED * solved.cost))) if at_once else 1
        if count >= forms.count or solved.cost + float(np.sum(costs[order[:count]])) > most:
            return solved
        fewer = Solved.of(forms.keep(np.sort(order[count:])), solved.data)
        fewer = minimise(fewer, steps=_LOOK_STEPS, min_gain=_SLOW)
        if not trial.is_no_worse(fewer, solved) and _determined(fewer.forms, fewer.data):
            # directions may have made up for the false ones
            fewer = minimise(fewer, steps=_FREE_STEPS, min_gain=_SLOW, free=True)
        if trial.is_no_worse(fewer, solved):
            trial.context.say(f"  dropped {count} of {forms.count} features that are not needed", detail=True)
            solved = fewer
        elif count > 1:
            at_once = False
        else:
            return solved


def _determined(forms: ClosedForms, data: Data) -> bool:
    """Return whether the answers suffice for all unknowns, those of directions included."""
    columns = int(forms.offsets[-1]) + forms.dim + 1
    return bool(data.Y.size >= _FREE_POINTS * (forms.count * (forms.dim + 1) + columns * data.Y.shape[1]))


def _freed(trial: Trial, solved: Solved) -> Solved:
    """Move directions as well, if the points suffice, and keep that if the held-out error falls.

    Where families met the goal without being exact, directions may only make up for wrong families: then the error must
    fall by far more than by chance.
    """
    forms = solved.forms
    if not _determined(forms, solved.data):
        return solved
    free = solved
    if not trial.is_exact(solved):
        free = minimise(solved, steps=_FREE_STEPS, min_gain=_HALF, free=True, target=trial.floor)
    if trial.is_exact(free) and trial.is_above_noise(free) and len(forms.closed) == forms.count:
        free = minimise_to_rounding(free, target=trial.floor)
    trusted = trial.is_exact(free) or not trial.is_met(solved)
    better = trial.rms(free) < trial.rms(solved) if trusted else trial.is_clearly_better(free, solved)
    return free if better else solved


def _with_points_to_move(trial: Trial, solved: Solved) -> tuple[Trial, Solved]:
    """Return a fit to so many points that directions may move, if all features have closed forms."""
    context, forms = trial.context, solved.forms
    if trial.data.Y.size >= _FREE_POINTS * forms.unknowns or len(forms.closed) < forms.count:
        return trial, solved
    missing = int(_ASKED_TO_MOVE * forms.unknowns / trial.data.Y.shape[1]) - len(trial.data.X)
    if missing > context.allowance():
        return trial, solved
    ask_along(context.ask, context.samples, forms.directions, missing, context.rng)
    trial = Trial.of(context)
    return trial, minimise(Solved.of(forms, trial.data), steps=_LOOK_STEPS, min_gain=_SLOW, target=trial.floor)


def _without_faint(trial: Trial, solved: Solved) -> Solved:
    """Drop features so faint that they only make up for errors of the others, if these do as well without them."""
    costs = solved.removal_costs()
    keep = np.flatnonzero(costs >= _FAINT * float(np.median(costs[solved.forms.closed])))
    if len(keep) == solved.forms.count:
        return solved
    fewer = _freed(trial, minimise(Solved.of(solved.forms.keep(keep), solved.data), steps=_LOOK_STEPS))
    if not trial.is_no_worse(fewer, solved):
        return solved
    trial.context.say(f"  dropped {solved.forms.count - len(keep)} faint features", detail=True)
    return fewer
