"""The fit: from candidate directions, good and bad, to the best sum of features that the answers support.

    closed_fit     ask whether responses are of known families; if they all are, the fit is finished. If splines are
                   quick to fit, they come first, and show the families before any knots are refined
    responses      fit the best responses for the directions as proposed; after a good search this is enough
    initial_fit    otherwise move all candidates together, while points are added along them
    prune          drop unneeded features and merge duplicates; held-out points decide on every drop
    refine         add knots or kinks if the residual has structure along a feature; add points if that stalls
    split          replace a feature by two if the residual suggests a nearly parallel pair
    noise_limited  if noise limits the fit, add points and search the residual for weak features

These repeat until errors on held-out points meet the goal or nothing helps any more.

Each stage has its own module; it takes the `FitContext` and a fit, and returns a fit. This module defines their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ..geometry import Floats, random_directions
from ..search.base import GatedCandidates
from .closed_fit import (
    MANY_OUTPUTS,
    POINTS_PER_FEATURE,
    Attempt,
    fit_closed_forms,
    refit_closed_forms,
)
from .closed_form import ClosedForms
from .closed_starts import are_bends_known
from .context import (
    CLEAR_GAIN,
    DUPLICATE_ANGLE,
    SLIGHT_LOSS,
    STEADY_GAIN,
    Evaluation,
    FitContext,
    FitGoal,
    FitMemory,
    Say,
    improves,
    is_expensive,
    is_no_worse,
    silent,
)
from .gated_fit import fit_gated, limit_features, refit_gated
from .gated_form import GatedForms
from .initial_fit import choose_knots, initial_fit
from .knots import adapt_knots_to_noise, refine, refine_once
from .levenberg_marquardt import Fitted, LMOptions, fits_dense_step, levenberg_marquardt
from .linear import MEDIUM_SMOOTHING, STRONG_SMOOTHING
from .model import Model
from .noise_limited import fit_below_noise
from .pruning import drop_unneeded_kinks, prune, removal_costs
from .samples import Samples, ask_along, ask_bends, ask_ends, held_out_error
from .split import split_features

_EXTRA_POINTS = 8  # points for each new feature beyond one per interval
_BEND_POINTS = 12  # points where a response rises: a sixth is held out, and five show its height, place and width twice
_MORE_POINTS, _MORE_TIMES = 0.4, 3  # share of the points added if points are missing, and how often
_REFIT_POINTS = 0.1  # share of the points added by a refit
_POINTS_MISSING = 10.0  # an error this factor below that of nearly right directions shows a lack of points
_KNOTS_MISSING = 4.0  # an error up to this factor above that of nearly right directions may be one of coarse knots
_QUICK_COLUMNS = 200  # of splines, up to which families are found faster with them than with coarser ones
_FREE = LMOptions(steps=5)
_LAST = LMOptions(steps=10, damping=1e-6, min_gain=0.1)  # near the solution a step gains digits, or nothing
_ROUNDING = 1e-28  # of ‖Y‖²: the square of some tens of rounding errors
_ABOVE_NOISE = 3.0  # error over noise above which knots, not noise, limit the fit
_RESTARTED, _MIN_RESTARTED = 3, 2  # one feature in three restarts, and at least two
_FAILED_RESTARTS = 2  # consecutive failures that end the restarts


def _unlimited() -> float:
    return float("inf")


@dataclass(frozen=True, eq=False)
class Fitter:
    """Fits models to one set of samples, which it may extend by queries."""

    ask: Callable[[Floats], Floats]
    """Maps points (m, d) to answers (m, p)."""
    samples: Samples
    goal: FitGoal
    rng: np.random.Generator
    allowance: Callable[[], float] = _unlimited
    """Returns the number of queries that may still be spent."""
    say: Say = silent
    memory: list[FitMemory] = field(default_factory=list)
    """What the fits so far remember, the last one last."""

    @property
    def best(self) -> Evaluation | None:
        """The best model of the fits so far, the last of which may be going on or was cut short."""
        known = [memory.best for memory in self.memory if memory.best is not None]
        return min(known, key=lambda best: best.rms, default=None)

    def fit(self, model: Model, new: int = 0, *, others_may_follow: bool = False) -> Evaluation:
        """Fit `model`, whose last `new` features are candidates, good or bad, and return it with its errors.

        If `others_may_follow`, closed forms of a wide layer that miss the goal are returned as they are: splines, which
        take minutes there, would make up for the missing features.

        The result has `directions_as_proposed` if the goal was met without moving a direction and no weak features
        were searched for in the noise afterwards.
        """
        context = self.new_context()
        self.say(f"fitting {model.count} features, {new} of them new, to {self.samples.count:,} points")
        quick = _splines_are_quick(context, model)
        tried = Attempt(None) if quick else _closed_forms(context, model, new)
        if tried.evaluation is not None:
            return self._said(tried.evaluation)
        if others_may_follow and tried.short is not None and is_expensive(model):
            return self._said(tried.short)
        if quick:
            _ask_about(context, model.directions[model.count - new :], 0)
        best = _responses_for(context.with_fixed_directions(), model, new)
        if best.forms is not None:
            return self._said(replace(best, directions_as_proposed=True))
        as_proposed = best.meets_goal
        if not as_proposed:
            closed = _closed_forms(context, model, 0).evaluation if quick else None
            if closed is not None:
                return self._said(closed)
            best = _moved(context, best, new)
        closed = _closed_responses(context, best)
        if closed is not None:
            return self._said(replace(closed, directions_as_proposed=as_proposed))
        pruned = prune(context, _try_moving_directions(context, best) if as_proposed else best.fitted, as_proposed)
        if context.is_noise_limited(best.rms) and not is_expensive(best.model):
            pruned, as_proposed = fit_below_noise(context, pruned, as_proposed), False
        return self._finished(context, pruned, as_proposed, as_proposed)

    def fit_closed_forms(self, model: Model, new: int) -> Evaluation | None:
        """Fit `model`, whose last `new` features are candidates, as closed forms; None if these miss the goal."""
        context = self.new_context()
        self.say(f"fitting {model.count} features as closed forms, to {self.samples.count:,} points")
        found = _closed_forms(context, model, new).evaluation
        return None if found is None else self._said(found)

    def fit_gated(self, candidates: GatedCandidates, most: int | None = None) -> Evaluation:
        """Fit gated features along the proposed directions and carriers; at most `most` of them are kept."""
        context = self.new_context()
        found = fit_gated(context, candidates)
        return found if most is None else limit_features(context, found, most)

    def refit_gated(self, forms: GatedForms) -> Evaluation:
        """Fit the same gated units again with more points."""
        return refit_gated(self.new_context(), forms)

    def refit_with_more_points(
        self, model: Model, keep_directions: bool = False, forms: ClosedForms | None = None
    ) -> Evaluation:
        """Fit again with a tenth more points, refining knots and kinks once; the set of features stays.

        With `keep_directions` directions move only if the goal is not met otherwise. Points asked by a certificate
        since the last fit are already among the samples. `forms` are the closed forms that the model stands for; they
        are refitted instead of its splines if they meet the goal.
        """
        context = self.new_context(MEDIUM_SMOOTHING)
        self.say(f"refitting {model.count} features with more points")
        context.add_samples(model, _REFIT_POINTS)
        tried = refit_closed_forms(context, forms) if forms is not None else Attempt(None)
        closed = tried.evaluation or (tried.short if is_expensive(model) else None)
        if closed is not None:
            return self._said(replace(closed, directions_as_proposed=keep_directions))
        first = context.with_fixed_directions() if keep_directions else context
        fitted = first.polish(model)
        now = context.evaluate(refine_once(first, fitted, 1.0) or fitted)
        if keep_directions and not now.meets_goal:
            now = context.evaluate(context.polish(now.model))
        return self._finished(context, now.fitted, keep_directions and now.meets_goal, keep_directions)

    def new_context(self, smoothing: float = STRONG_SMOOTHING) -> FitContext:
        """Return the context of a fit that begins, with a memory of its own."""
        memory = FitMemory(smoothing)
        self.memory.append(memory)
        return FitContext(self.ask, self.samples, self.goal, self.rng, self.allowance, self.say, memory=memory)

    def _finished(self, context: FitContext, fitted: Fitted, may_skip: bool, as_proposed: bool) -> Evaluation:
        """Take the last steps, log the errors, return the result; see `_last_steps` and `Evaluation` for the flags."""
        done = context.evaluate(_last_steps(context, fitted, may_skip))
        return self._said(replace(done, directions_as_proposed=as_proposed))

    def _said(self, done: Evaluation) -> Evaluation:
        """Log the errors of a finished fit and return it."""
        met = "met" if done.sup <= self.goal.error else "met as far as noise allows"
        self.say(
            f"fitted {done.model.count} features: RMS error {done.rms:.1e}, largest {done.sup:.1e} on held-out points; "
            f"the goal of {self.goal.error:.1e} is {met if done.meets_goal else 'not met'}"
        )
        return done


def _splines_are_quick(context: FitContext, model: Model) -> bool:
    """Return whether splines of all features take less time than it takes to find families without them.

    If there are many outputs closed forms go first nevertheless, since they need fewer points.
    """
    columns = model.count * (context.goal.intervals + 3)
    return columns <= _QUICK_COLUMNS and model.outputs < MANY_OUTPUTS


def _closed_forms(context: FitContext, model: Model, new: int) -> Attempt:
    """Ask about the last `new` features, and try closed forms.

    Closed forms need fewer points than splines: they are tried first with some of these, all features alike, and again
    with all points, from coarse splines.
    """
    few = POINTS_PER_FEATURE * new if model.outputs >= MANY_OUTPUTS else 0
    directions = model.directions[model.count - new :]
    ask_along(context.ask, context.samples, directions, int(min(few, context.allowance())), context.rng)
    tried = fit_closed_forms(context, model, coarse=False) if few else Attempt(None, promising=True)
    if tried.evaluation is None:
        if new:
            _ask_about(context, directions, few)
            _ask_bends(context, model, new)
        tried = fit_closed_forms(context, model, common=tried.promising)
    if tried.evaluation is None:
        return tried
    return replace(tried, evaluation=replace(tried.evaluation, directions_as_proposed=True))


def _ask_bends(context: FitContext, model: Model, new: int) -> None:
    """Ask where the last `new` features rise, if the search has seen most of them rise between two places."""
    if are_bends_known(model) and context.allowance() >= _BEND_POINTS * new:
        first = model.count - new
        bends, directions = model.kinks[first:], model.directions[first:]
        ask_bends(context.ask, context.samples, directions, bends, _BEND_POINTS, context.rng)


def _ask_about(context: FitContext, new: Floats, asked: int) -> None:
    """Ask along the lines of new candidates (k, d), as other points are too few near the ends of these lines.

    `asked` of the points have been asked already.
    """
    wanted = len(new) * (context.goal.intervals + _EXTRA_POINTS) - asked
    ask_along(context.ask, context.samples, new, int(min(wanted, context.allowance())), context.rng)
    if context.allowance() >= 4 * len(new):
        ask_ends(context.ask, context.samples, new)


def _responses_for(fixed: FitContext, model: Model, new: int) -> Evaluation:
    """Fit the best responses for the directions as they are, as closed forms if their families show in first splines.

    A search often gives far better directions than a fit with coarse knots, which would spoil them. If they are
    rough, no response helps much, and only a few linear solves are lost.
    """
    fixed.top_up(model, 1.0)
    linear = fixed.choose_smoothing(choose_knots(fixed, model, new))
    best = _with_finer_knots(fixed, fixed.evaluate(Fitted(linear, 0.0, 0, False)))
    if fixed.are_directions_nearly_right(best.rms):
        closed = fit_closed_forms(fixed, best.model, common=False, fitted=True).evaluation
        if closed is not None:
            return closed
    if best.meets_goal or fixed.are_directions_nearly_right(best.rms):
        best = refine(fixed, best)  # with coarse knots one of two close features would seem superfluous
        best = _with_more_points(fixed, best)
        best = fixed.evaluate(prune(fixed, best.fitted))
    return best


def _with_finer_knots(fixed: FitContext, best: Evaluation) -> Evaluation:
    """Refine knots once where coarse ones alone may leave so much that directions look like guesses.

    Moving all directions takes many times as long. If they are guesses, the points asked serve that fit.
    """
    in_doubt = fixed.are_directions_nearly_right(best.rms / _KNOTS_MISSING)
    if best.meets_goal or fixed.are_directions_nearly_right(best.rms) or not in_doubt:
        return best
    finer = refine_once(fixed, best.fitted, 1.0)
    if finer is None:
        return best
    now = fixed.evaluate(finer)
    return now if fixed.are_directions_nearly_right(now.rms) else best


def _closed_responses(context: FitContext, best: Evaluation) -> Evaluation | None:
    """Return closed forms in place of splines that are nearly right, if held-out points agree."""
    if not (best.meets_goal or context.are_directions_nearly_right(best.rms)):
        return None
    closed = fit_closed_forms(context, best.model, common=False, fitted=True, settled=True).evaluation
    return closed if closed is not None and closed.rms <= best.rms else None


def _moved(context: FitContext, best: Evaluation, new: int) -> Evaluation:
    """Fit with moving directions, starting from a fit that misses the goal."""
    nearly_right = context.are_directions_nearly_right(best.rms)
    moved = context.refit_directions(best.model) if nearly_right else initial_fit(context, best.model, new)
    best = refine(context, context.evaluate(prune(context, moved)))
    if nearly_right and not is_expensive(best.model):
        best = retry_dropped(context, best)  # while one is missing the others turn to make up for it
    best = split_features(context, best)
    if context.are_directions_nearly_right(_POINTS_MISSING * best.rms):
        best = _with_more_points(context, best)
    if not nearly_right:
        best = restart_weakest(context, retry_dropped(context, best))
    return _with_more_points(context, best)


def _with_more_points(context: FitContext, best: Evaluation) -> Evaluation:
    """Add points and refine again as long as that helps.

    With fixed directions more points cannot help if the training error is as large as the held-out error.
    """
    for _ in range(_MORE_TIMES):
        if context.is_good_enough(best) or context.allowance() < 1:
            break
        if context.fixed and not improves(context.training_rms(best.fitted), best.rms, CLEAR_GAIN):
            break
        context.add_samples(best.model, _MORE_POINTS)
        again = refine(context, context.evaluate(context.polish(best.model)))
        helps = improves(again.sup, best.sup, CLEAR_GAIN)
        best = again
        if not helps:
            break
    return best


def retry_dropped(context: FitContext, best: Evaluation) -> Evaluation:
    """Retry pruned directions: with coarse knots a weak feature may have seemed superfluous."""
    if context.is_good_enough(best) or not context.memory.pruned:
        return best
    dropped = np.concatenate(context.memory.pruned)
    closest = np.abs(dropped @ best.model.directions.T).max(axis=1, initial=0.0)
    again = dropped[closest < np.cos(DUPLICATE_ANGLE)]
    if not len(again):
        return best
    context.say(f"  retrying {len(again)} pruned directions", detail=True)
    return _better(context, best, best.model.join(again, context.goal.intervals), len(again))


def restart_weakest(context: FitContext, best: Evaluation) -> Evaluation:
    """Restart the third of the features that explain least at random directions, while the held-out error falls.

    If guesses have stalled, several often share one feature while another has none.
    """
    failures = 0
    for _ in range(context.goal.restarts):
        if context.is_good_enough(best) or not best.model.count or failures >= _FAILED_RESTARTS:
            break
        costs = removal_costs(context, best.fitted)
        count = max(_MIN_RESTARTED, best.model.count // _RESTARTED)
        strongest = np.sort(np.argsort(-costs)[: best.model.count - count])
        kept = context.refit_directions(best.model.keep(strongest)).model
        context.say(f"  restarting {count} of {best.model.count} features at random", detail=True)
        model = kept.join(random_directions(count, kept.dim, context.rng), context.goal.intervals)
        now = _better(context, best, model, count)
        failures = 0 if improves(now.rms, best.rms, STEADY_GAIN) else failures + 1
        best = now
    return best


def _better(context: FitContext, best: Evaluation, model: Model, new: int) -> Evaluation:
    """Return the better of `best` and the fit of `model`, whose last `new` features are new."""
    pruned = prune(context, initial_fit(context, model, new))
    now = refine(context, context.evaluate(pruned))
    return now if now.rms < best.rms else best


def _try_moving_directions(context: FitContext, best: Evaluation) -> Fitted:
    """Move directions that met the goal as proposed, and keep the result if the held-out error clearly falls.

    If directions are slightly off, a false feature compensates for them and cannot be pruned.
    """
    if is_expensive(best.model):
        return best.fitted
    options = replace(_FREE, smoothing=context.memory.smoothing)
    free = levenberg_marquardt(best.model, *context.samples.train, options, solved=best.fitted.linear)
    gained = improves(context.held_out_rms(free.model), best.rms, CLEAR_GAIN)
    return free if gained else best.fitted


def _last_steps(context: FitContext, fitted: Fitted, may_skip: bool) -> Fitted:
    """Drop unneeded kinks and iterate to the last digits.

    The iteration is skipped if knots limit the error and steps are expensive, and either `may_skip` is true or the goal
    is met and steps would take minutes.
    """
    fitted = drop_unneeded_kinks(context, adapt_knots_to_noise(context, fitted))
    X, Y = context.samples.train
    rms, sup = held_out_error(fitted.model, context.samples)
    at_noise = rms <= _ABOVE_NOISE * context.goal.noise
    costly = is_expensive(fitted.model) and not at_noise
    if costly and (may_skip or (sup <= context.goal.error and not fits_dense_step(fitted.model))):
        return fitted
    floor = _ROUNDING * float(np.sum(Y**2))
    options = replace(_LAST, smoothing=context.memory.smoothing, target_cost=floor, matrix_free=costly)
    last = levenberg_marquardt(fitted.model, X, Y, options, solved=fitted.linear)
    after = context.held_out_rms(last.model)
    context.say(f"  last {last.steps} steps: held-out RMS {rms:.2e} -> {after:.2e}", detail=True)
    # If knots, not noise, limit the fit, moving directions trades one error for another: only accept a clear gain.
    accepted = is_no_worse(after, rms, SLIGHT_LOSS) if at_noise else is_no_worse(after, rms, -CLEAR_GAIN)
    return last if accepted else fitted
