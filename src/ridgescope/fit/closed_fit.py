"""Closed forms first: which features have one, and which keep a spline.

    start     a coarse spline fit gives each response roughly; every family has its closest member to each of them
    select    a few families, each for all features, and the closest family of each feature, take some steps; those
              with the least held-out error go on
    mend      features along which the residual has structure become splines again, get another family if one fits,
              and stay splines otherwise
    finish    features that are not significant go, directions move, and the result is a `Model` of splines

Held-out points decide at every turn. An attempt that fails costs a few linear solves with one column per feature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..bspline import design_matrix
from ..geometry import Floats
from ..shapes.families import point_count, sample_points
from . import threads
from .activations import ACTIVATIONS, SPLINE, CoarseResponses, Indices
from .closed_form import ClosedForms, Solved, minimise
from .closed_starts import (
    CLOSE,
    ENTRANTS,
    POINTS_PER_COLUMN,
    SPLINE_INTERVALS,
    Trial,
    coarse_fit,
    coarse_starts,
    common_starts,
)
from .context import Evaluation, FitContext
from .levenberg_marquardt import Fitted
from .linear import MAX_GRAM_COLUMNS
from .model import TINY, Model
from .pruning import FIXED_DUPLICATE_ANGLE, close_pairs
from .samples import ask_along

LEAST_FEATURES = 4
"""Features from which on closed forms are tried; splines of fewer are fitted within a second."""
POINTS_PER_FEATURE = 8
"""Points that a first attempt asks for each new feature: some three for each unknown of a layer with many outputs."""
MANY_OUTPUTS = 8
"""Outputs from which on so few points suffice: each tells as much as this many of a scalar function."""
_MENDABLE = 0.1  # RMS over f's standard deviation: if closed forms leave more, too many features have another family
_PROMISING = 0.05  # the same: if they leave less, more points may help
_FINALISTS = 2  # fits that go on to the end
_LOOK_STEPS, _LONG_STEPS, _FREE_STEPS = 4, 25, 6  # of a first look, to the end, and with free directions
_SLOW = 1e-2  # share of the cost: a step that gains less is the last
_MEND_ROUNDS = 4
_STRUCTURED, _WORST = 3.0, 0.03  # gain over what noise would give, and share of the largest gain, of features to mend
_OPEN_POINTS, _MOST_OPEN = 4.0, 24  # points per column of features to mend, which have no penalty, and most intervals
_KEPT_OPEN = 3.0  # error over that of splines up to which another family is preferred to them
_EMPTY = 1e-6  # of the mean square of a spline column: ridge for columns without points
_FAMILIAR = 4.0  # factor of the misfit by which a family that no other feature has must be better
_SIGNIFICANT = 4.0  # variances per output below which a feature's removal cost is that of noise
_FAINT = 1e-6  # of the median removal cost: a feature a thousand times weaker than others
_FREE_POINTS = 1.3  # answers per unknown from which on directions may move
_SPLINE_SHARE = 3e-3  # of the goal: error of the splines that stand for closed forms
_KINDS = (("hinge", "dip"), ("sigmoid",))
_KINK_KAPPA = 8.0  # of a smooth form that takes the place of a kink
_FINER_INTERVALS = (16, 32, 64, 128)  # of features without a closed form, in turn
_REFINE_POINTS = 2.5  # points per column while these are refined
_FAR_BETTER = 0.1  # of the error: splines in place of families that meet the goal must do as well as this
_HALF = 0.5  # share of the cost that a step with free directions must gain for another one to follow


@dataclass(frozen=True, eq=False)
class Attempt:
    """What closed forms explain."""

    evaluation: Evaluation | None
    """The model, with its closed forms, if it meets the goal."""
    promising: bool = False
    """Whether more points may help."""


@threads.one_blas_thread()
def fit_closed_forms(context: FitContext, model: Model, *, common: bool = True, coarse: bool = True) -> Attempt:
    """Fit closed forms along the model's directions, and return them as splines if they meet the goal.

    `common` and `coarse` are the starts to try; see `common_starts` and `coarse_starts`.
    """
    if model.count < LEAST_FEATURES or context.goal.is_below_noise or not len(context.samples.held_out[0]):
        return Attempt(None)
    trial = Trial.of(context)
    if len(trial.data.X) < POINTS_PER_COLUMN * (model.count + model.dim + 1):
        return Attempt(None, promising=True)
    splines = coarse_fit(context, model) if coarse else None
    started = coarse_starts(splines, len(trial.data.X)) if splines is not None else []
    started += common_starts(trial, model) if common else []
    if not started:
        return Attempt(None)
    best = _selected(trial, started)
    if trial.rms(best) > _MENDABLE * trial.std:
        return Attempt(None)
    best = _reclosed(trial, _mended(trial, _unified(trial, best)))
    if not trial.is_met(best) and (best.forms.family == SPLINE).any() and (best.forms.family != SPLINE).any():
        trial, best = _refined(trial, best)
    return _concluded(context, trial, best)


def refit_closed_forms(context: FitContext, forms: ClosedForms) -> Attempt:
    """Fit closed forms again, to more points."""
    trial = Trial.of(context)
    return _concluded(context, trial, minimise(Solved.of(forms, trial.data), steps=_LONG_STEPS))


# -- select ---------------------------------------------------------------------------------------------------


def _selected(trial: Trial, started: list[ClosedForms]) -> Solved:
    """Return the fit that held-out points prefer: all take some steps, and the best go on."""
    look = trial.look(started[0].count + started[0].dim + 1)
    seen = [minimise(Solved.of(forms, look), steps=_LOOK_STEPS, min_gain=0.0) for forms in started]
    seen.sort(key=trial.rms)
    trial.context.say(
        "  closed forms: " + ", ".join(f"{_names(s.forms)} {trial.rms(s):.1e}" for s in seen[:ENTRANTS]), detail=True
    )
    finals = [_minimised(trial, Solved.of(s.forms, trial.data)) for s in seen[:_FINALISTS]]
    return min(finals, key=trial.rms)


def _minimised(trial: Trial, solved: Solved) -> Solved:
    return minimise(solved, steps=_LONG_STEPS, min_gain=_SLOW, target=trial.floor)


def _names(forms: ClosedForms) -> str:
    """Return the names of the families, from frequent to rare."""
    which, counts = np.unique(forms.family, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return "+".join("spline" if which[k] == SPLINE else ACTIVATIONS[which[k]].name for k in order)


def _unified(trial: Trial, best: Solved) -> Solved:
    """Give all features of one kind the same family, if held-out points agree: coarse responses do not tell them apart.

    The families of one kind are those of one group; those of hinges and of dips, which look alike, are one kind.
    """
    for kind in _KINDS:
        members = np.array([k for k, form in enumerate(ACTIVATIONS) if form.group in kind], np.intp)
        which = np.flatnonzero(np.isin(best.forms.family, members))
        if trial.is_exact(best) or len(members) < 2 or len(which) < 2:
            continue
        look = trial.look(len(best.forms.coefficients))
        trials = [Solved.of(_changed(best.forms, which, int(k)), look) for k in members]
        tried = min((minimise(t, steps=_LOOK_STEPS, min_gain=0.0) for t in trials), key=trial.rms)
        same = _minimised(trial, Solved.of(tried.forms, trial.data))
        trial.context.say(
            f"  closed forms: {_names(best.forms)} {trial.rms(best):.1e}, {_names(same.forms)} {trial.rms(same):.1e}",
            detail=True,
        )
        best = same if trial.rms(same) < trial.rms(best) else best
    return best


def _changed(forms: ClosedForms, which: Indices, to: int) -> ClosedForms:
    """Return the forms with the features `which` of another family, at the same places."""
    family, kappa, b = forms.family.copy(), forms.kappa.copy(), forms.b.copy()
    for i in which:
        old, new = ACTIVATIONS[family[i]], ACTIVATIONS[to]
        steep = (kappa[i] / old.stretch if old.moves[0] else _KINK_KAPPA) * new.stretch if new.moves[0] else 1.0
        family[i], b[i], kappa[i] = to, b[i] * steep / kappa[i], steep
    return replace(forms, family=family, kappa=kappa, b=b)


def _refined(trial: Trial, best: Solved) -> tuple[Trial, Solved]:
    """Refine the knots of the features that are splines, with more points along them, while the error falls."""
    context, forms = trial.context, best.forms
    splines = np.flatnonzero(forms.family == SPLINE)
    for intervals in _FINER_INTERVALS:
        columns = forms.count + forms.dim + len(splines) * (intervals + 3)
        missing = int(_REFINE_POINTS * columns) - len(trial.data.X)
        if columns > MAX_GRAM_COLUMNS or missing > context.allowance():
            break
        ask_along(context.ask, context.samples, forms.directions[splines], missing, context.rng)
        trial = Trial.of(context)
        now = _minimised(trial, Solved.of(replace(best.forms, intervals=intervals), trial.data))
        helps = trial.rms(now) < _HALF * trial.rms(best)
        best = now
        if trial.is_met(best) or not helps:
            break
    return trial, best


# -- mend -----------------------------------------------------------------------------------------------------


def _mended(trial: Trial, best: Solved) -> Solved:
    """Give features that resist another family or a spline, as long as the held-out error falls."""
    tried = np.zeros((len(ACTIVATIONS), best.forms.count), dtype=bool)
    for _ in range(_MEND_ROUNDS):
        if trial.is_exact(best):
            break
        resist = _resisting(best)
        if not len(resist):
            break
        opened = _opened(trial, best, resist)
        if trial.rms(opened) > trial.rms(best):
            break
        changed = _closed(opened.forms, resist, tried)
        tried[changed.family[resist], resist] |= changed.family[resist] != SPLINE
        closed = _minimised(trial, Solved.of(changed, trial.data))
        trial.context.say(
            f"  mending {len(resist)} features: {trial.rms(best):.1e}, as splines {trial.rms(opened):.1e}, "
            f"{_names(closed.forms)} {trial.rms(closed):.1e}",
            detail=True,
        )
        if trial.rms(closed) < min(trial.rms(best), _KEPT_OPEN * trial.rms(opened)):
            best = _unified(trial, closed)
        elif trial.rms(opened) < (_FAR_BETTER if trial.is_met(best) else _HALF) * trial.rms(best):
            best = opened
        else:
            break
    return best


def _reclosed(trial: Trial, best: Solved) -> Solved:
    """Try the families of the other features for those that are still splines; held-out points decide.

    A weak response, whose spline is mostly error, is close to no family; it starts as a typical member.
    """
    forms = best.forms
    splines = np.flatnonzero(forms.family == SPLINE)
    for k in np.unique(forms.family[forms.closed]) if len(splines) else ():
        family, kappa, b = forms.family.copy(), forms.kappa.copy(), forms.b.copy()
        family[splines], b[splines] = k, 0.0
        kappa[splines] = np.median(np.abs(forms.kappa[forms.family == k]))
        closed = _minimised(trial, Solved.of(replace(forms, family=family, kappa=kappa, b=b), trial.data))
        best = closed if trial.rms(closed) < trial.rms(best) else best
    return best


def _resisting(solved: Solved) -> Indices:
    """Return the closed features along which the residual has structure, those with the most first."""
    forms, X, r = solved.forms, solved.data.X, solved.residual
    noise = solved.cost / max(len(X), 1)
    gains = np.zeros(forms.count)
    for i in forms.closed:
        B = design_matrix(X @ forms.directions[i], forms.radius, SPLINE_INTERVALS)
        right = B.T @ r
        normal = B.T @ B + np.eye(B.shape[1]) * (_EMPTY * len(X) / B.shape[1])
        gains[i] = float(np.vdot(right, np.linalg.solve(normal, right))) / B.shape[1]
    resist = np.flatnonzero((gains > _STRUCTURED * noise) & (gains > _WORST * gains.max(initial=0.0)))
    most = int((len(X) / POINTS_PER_COLUMN - forms.count - forms.dim) / (SPLINE_INTERVALS + 3))
    return np.asarray(resist[np.argsort(-gains[resist], kind="stable")][: max(most, 0)])


def _opened(trial: Trial, solved: Solved, which: Indices) -> Solved:
    """Return the fit in which the features `which` are splines, with as many knots as the points support."""
    forms, family = solved.forms, solved.forms.family.copy()
    family[which] = SPLINE
    room = len(solved.data.X) / _OPEN_POINTS - forms.count - forms.dim
    intervals = int(np.clip(room / np.sum(family == SPLINE) - 3, SPLINE_INTERVALS, _MOST_OPEN))
    return _minimised(trial, Solved.of(replace(forms, family=family, intervals=intervals), solved.data))


def _closed(forms: ClosedForms, which: Indices, tried: Floats) -> ClosedForms:
    """Return the forms with the splines `which` as the closest family that they have not had yet, if one is close."""
    u = sample_points(point_count(forms.intervals)).u
    design = design_matrix(u, 1.0, forms.intervals)
    values = np.stack([design @ forms.coefficients[forms.offsets[i] : forms.offsets[i + 1]] for i in which])
    responses = CoarseResponses.of(values, forms.intervals)
    starts = [responses.start(k) for k in range(len(ACTIVATIONS))]
    misfit = np.stack([s.misfit for s in starts])
    size = np.maximum(np.sum(responses.rows**2, axis=1), TINY)
    close = misfit.min(axis=0) <= CLOSE**2 * size
    used = np.isin(np.arange(len(ACTIVATIONS)), np.unique(forms.family))
    misfit = np.where(used[:, None], misfit, _FAMILIAR * misfit)
    misfit[tried[:, which]] = np.inf
    choice = misfit.argmin(axis=0)
    family, kappa, b = forms.family.copy(), forms.kappa.copy(), forms.b.copy()
    for j, i in enumerate(which):
        if not close[j]:
            continue
        family[i], kappa[i], b[i] = choice[j], starts[choice[j]].kappa[j], starts[choice[j]].b[j]
    return replace(forms, family=family, kappa=kappa, b=b)


# -- finish ---------------------------------------------------------------------------------------------------


def _concluded(context: FitContext, trial: Trial, best: Solved) -> Attempt:
    """Prune, move directions, and evaluate the splines that stand for the closed forms."""
    if trial.rms(best) > _PROMISING * trial.std:
        return Attempt(None)
    best = _freed(trial, _pruned(trial, _without_duplicates(trial, best)))
    best = _without_faint(trial, _pruned(trial, best))
    context.say(f"  closed forms {_names(best.forms)}: held-out RMS {trial.rms(best):.2e}", detail=True)
    if not trial.is_met(best):
        return Attempt(None, promising=True)
    model = best.forms.model(_SPLINE_SHARE * max(context.goal.error, TINY))
    now = context.evaluate(Fitted.without_fit(model, best.cost))
    return Attempt(replace(now, forms=best.forms) if now.meets_goal else None, promising=True)


def _without_duplicates(trial: Trial, solved: Solved) -> Solved:
    """Drop one of each pair of features with the same direction, if held-out points agree.

    Neither of the two need be superfluous as it stands: together they may have settled beside the true form.
    """
    pairs = close_pairs(solved.forms.directions, FIXED_DUPLICATE_ANGLE)
    while pairs:
        _, second = pairs.pop()
        keep = np.delete(np.arange(solved.forms.count), second)
        fewer = _minimised(trial, Solved.of(solved.forms.keep(keep), solved.data))
        if trial.is_no_worse(fewer, solved):
            trial.context.say("  dropped a duplicate of a closed form", detail=True)
            solved, pairs = fewer, close_pairs(fewer.forms.directions, FIXED_DUPLICATE_ANGLE)
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


def _freed(trial: Trial, solved: Solved) -> Solved:
    """Move directions as well, if the points suffice, and keep that if the held-out error falls.

    Where families met the goal without being exact, directions would only make up for wrong families.
    """
    forms = solved.forms
    unknowns = len(forms.closed) * (forms.dim + 1) + forms.coefficients.size
    if trial.data.Y.size < _FREE_POINTS * unknowns:
        return solved
    free = minimise(solved, steps=_FREE_STEPS, min_gain=_HALF, free=True, target=trial.floor)
    helps = trial.is_exact(free) or not trial.is_met(solved)
    return free if helps and trial.rms(free) < trial.rms(solved) else solved


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
