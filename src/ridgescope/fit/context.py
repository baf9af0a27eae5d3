"""The context of one fit: its samples, its goal, its budget, and the operations that all of its stages share.

    top_up, add_samples            ask points along the features: as many as the unknowns need, or some more
    refit_directions, lm_steps     move directions: those nearly right, those that are still guesses
    polish                         solve for responses after a change of knots, with a few steps if directions may move
    evaluate                       compute errors on held-out points, and whether they meet the goal

Every stage takes a `FitContext`; the order of stages is defined in `fitter`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..deadline import check_time
from ..geometry import Floats
from ..noise import max_noise_quantile
from .closed_form import ClosedForms
from .gated_form import GatedForms
from .levenberg_marquardt import Fitted, LMOptions, levenberg_marquardt
from .linear import MEDIUM_SMOOTHING, STRONG_SMOOTHING, WEAK_SMOOTHING, Gram, Linear
from .model import Model
from .samples import HELD_OUT_EVERY, Samples, ask_along, held_out_error

EXPENSIVE_UNKNOWNS = 2500
"""Columns and direction entries above which one joint step takes seconds; see `is_expensive`."""
SCAN_POINTS = 8000
"""Number of points in a scan of the residual for structure along the features. Empirical: a larger scan takes longer
than the fit; if a scan finds nothing, all points are scanned.
"""
DUPLICATE_ANGLE = 0.12
"""Radians within which two features are tried as one. Empirical: a larger angle costs trials, a smaller one leaves
duplicates. Held-out points decide, so that true pairs (0.06 rad in the benchmark case "twins") stay.
"""
CLEAR_GAIN = 0.2
"""Share by which the error must fall for a change that adds unknowns or moves directions found by a search. Empirical:
below it, gains on a hundred held-out points are often chance.
"""
STEADY_GAIN = 0.1
"""Share by which the error must fall from one phase to the next for more phases of the same kind. Empirical: trades
steps against stopping on a plateau.
"""
NO_LOSS, SLIGHT_LOSS, SMALL_LOSS = 0.01, 0.02, 0.1
"""Shares by which the error may rise for other knots, for a further step of a noise-limited fit, and for fewer kinks.
Empirical: near the noise such a rise is chance; fewer kinks make directions more accurate.
"""
AT_NOISE = 1.2
"""RMS error over noise up to which an error counts as noise; with a hundred points it varies by 7 % itself."""
NOISE_LIMITED = 2.0
"""RMS error over noise up to which model errors are at most √3 times the noise, and more points help."""
_MIN_QUANTILE = 4.0  # noise deviations that the largest error may always have: noise is seldom exactly Gaussian
_NEARLY_RIGHT = 0.05  # RMS error over f's standard deviation; empirical: guessed directions have a larger error
_POINTS_FOR_NEW_KNOTS = 3  # per column of a feature whose knots have changed: fewer leave coefficients undetermined
_REFIT_STEPS = 5  # near the solution convergence is quadratic
_POLISH = LMOptions(steps=3, damping=1e-3, min_gain=0.05)  # empirical: more steps are wasted if knots will change again
_MIN_GAIN, _MIN_GAIN_EXPENSIVE = 1e-2, 0.1  # of the objective, for another step; empirical: trades time for accuracy


class Say(Protocol):
    """A receiver of progress messages; those with `detail` belong to a verbose log."""

    def __call__(self, text: str, detail: bool = False) -> None: ...


def silent(text: str, detail: bool = False) -> None:
    """Ignore all messages."""


def improves(after: float, before: float, by: float) -> bool:
    """Return whether an error fell by more than the share `by`."""
    return after < (1.0 - by) * before


def is_no_worse(after: float, before: float, by: float) -> bool:
    """Return whether an error rose by at most the share `by`."""
    return after <= (1.0 + by) * before


@dataclass(frozen=True)
class FitGoal:
    """The accuracy that a fit must reach, and what it may cost."""

    error: float
    """Largest error allowed on held-out points, in f's units."""
    noise: float
    """Standard deviation of one answer's error; no fit has to go below it."""
    intervals: int = 16
    """Spline intervals of a new feature."""
    per_unknown: float = 5.0
    """Points per unknown of the fit."""
    rounds: int = 12
    """Largest number of consecutive refinements of knots and kinks."""
    restarts: int = 0
    """How often the weakest third restarts at random if the fit stalls; for starts that are mere guesses."""
    keep_significant: bool = False
    """Drop a feature only if held-out points do not miss it, even if the goal would be met without it: there is
    evidence that all candidates are features, and the others would turn to compensate for one that is missing."""

    def is_met(self, rms: float, sup: float, count: int) -> bool:
        """Return whether errors on `count` held-out answers are at most those allowed, or as small as noise permits."""
        noise_sup = max(_MIN_QUANTILE, max_noise_quantile(count)) * self.noise
        return sup <= max(self.error, noise_sup) and rms <= max(self.error, AT_NOISE * self.noise)

    @property
    def is_below_noise(self) -> bool:
        """Whether noise exceeds the error allowed, so that single answers cannot show whether the goal is reached."""
        return self.noise > self.error


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A fit and its errors on held-out points."""

    fitted: Fitted
    rms: float
    """Root mean square over points and outputs, in f's units."""
    sup: float
    """Largest error, in f's units."""
    meets_goal: bool
    directions_as_proposed: bool = False
    """True if the goal was met with directions and kinks as the search proposed them.

    A later refit then tries to keep them, and `Fitter.refit_with_more_points` passes the value on.
    """
    forms: ClosedForms | None = None
    """The closed forms that the model's splines stand for, if its features have such."""
    gates: GatedForms | None = None
    """The gated units in closed form that the model's splines stand for, if it has such."""

    @property
    def model(self) -> Model:
        return self.fitted.model


def evaluate(fitted: Fitted, samples: Samples, goal: FitGoal) -> Evaluation:
    """Return the fit with its errors on held-out points and whether they meet the goal."""
    rms, sup = held_out_error(fitted.model, samples)
    return Evaluation(fitted, rms, sup, goal.is_met(rms, sup, samples.held_out[1].size))


@dataclass(eq=False)
class FitMemory:
    """Values that the stages of one fit keep for each other."""

    smoothing: float = STRONG_SMOOTHING
    """Roughness weight last chosen by held-out points."""
    pruned: list[Floats] = field(default_factory=list)
    """Pruned directions, kept for a retry: arrays (k, d)."""
    costs: tuple[Linear, Floats] | None = None
    """The solution for which removal costs were last computed, and these costs."""
    best: Evaluation | None = None
    """The evaluation with the least held-out error so far, for a fit that is cut short."""

    forms: tuple[float, ClosedForms] | None = None
    """The closed forms of a wide layer with the least held-out error so far, which is the first number."""

    def remember_forms(self, rms: float, forms: ClosedForms) -> None:
        """Keep closed forms of this held-out error if they are the best so far."""
        if self.forms is None or rms < self.forms[0]:
            self.forms = rms, forms

    def remember(self, now: Evaluation) -> None:
        """Keep `now` if it is the best so far."""
        if self.best is None or now.rms < self.best.rms:
            self.best = now


@dataclass(frozen=True, eq=False)
class FitContext:
    """Samples, goal, budget and memory of one fit."""

    ask: Callable[[Floats], Floats]
    """Maps points (m, d) to answers (m, p)."""
    samples: Samples
    goal: FitGoal
    rng: np.random.Generator
    allowance: Callable[[], float]
    """Returns the number of queries that may still be spent."""
    say: Say = silent
    fixed: bool = False
    """True if directions and kinks must not move."""
    memory: FitMemory = field(default_factory=FitMemory)

    def with_fixed_directions(self) -> FitContext:
        """Return the same context, memory included, in which directions and kinks must not move."""
        return replace(self, fixed=True)

    # -- points ----------------------------------------------------------------------------------------------

    def top_up(self, model: Model, share: float, at: NDArray[np.intp] | None = None) -> None:
        """Ask along the features `at`, or all, until there are `share` × the points that the unknowns need."""
        missing = self.missing_points(model, share)
        if at is not None:  # new knots need points of their own
            missing = max(missing, _POINTS_FOR_NEW_KNOTS * int(model.widths[at].sum()))
        directions = model.directions if at is None else model.directions[at]
        self._ask_along(directions, missing)

    def add_samples(self, model: Model, share: float) -> None:
        """Add share × current sample weight new points along the features."""
        self._ask_along(model.directions, share * self.samples.weight)

    def _ask_along(self, directions: Floats, count: float) -> None:
        """Ask `count` points along `directions`, or as many as the allowance permits."""
        ask_along(self.ask, self.samples, directions, int(min(count, self.allowance())), self.rng)

    def missing_points(self, model: Model, share: float) -> int:
        """Return the points missing for `share` × the number that the unknowns need; negative if there are more."""
        turning = 0.0 if self.fixed else model.count * (model.dim - 1) / model.outputs
        unknowns = model.columns + turning
        wanted = share * self.goal.per_unknown * unknowns * HELD_OUT_EVERY / (HELD_OUT_EVERY - 1)
        return int(wanted) - int(self.samples.weight)

    @property
    def scan_is_subsampled(self) -> bool:
        """True if directions may move and there are more than `SCAN_POINTS` samples, so that a scan may skip some."""
        return not self.fixed and self.samples.count > SCAN_POINTS

    def residual_scan(self, model: Model, all_points: bool = False) -> tuple[Floats, Floats]:
        """Return a subsample of the unclustered training points, or all of them, and the model's residual there."""
        X, Y = self.samples.unclustered
        some = slice(0, len(X), 1 if all_points else max(1, len(X) // SCAN_POINTS))
        return X[some], Y[some] - model.predict(X[some])

    # -- fits ------------------------------------------------------------------------------------------------

    def refit_directions(self, model: Model) -> Fitted:
        """Move directions that are nearly right, after asking all the points that they need."""
        self.top_up(model, 1.0)
        options = LMOptions(steps=_REFIT_STEPS, smoothing=self.memory.smoothing, min_gain=_min_gain(model))
        return levenberg_marquardt(model, *self.samples.train, options)

    def lm_steps(self, model: Model, steps: int, damping: float, solved: Linear | None = None) -> Fitted:
        """Move directions that are still guesses; an expensive model takes matrix-free steps."""
        options = LMOptions(
            steps=steps,
            damping=damping,
            smoothing=self.memory.smoothing,
            min_gain=_min_gain(model),
            matrix_free=is_expensive(model),
        )
        return levenberg_marquardt(model, *self.samples.train, options, solved=solved)

    def polish(self, model: Model) -> Fitted:
        """Solve for the responses and, if directions may move, take a few steps from there."""
        X, Y = self.samples.train
        linear = self.choose_smoothing(Gram(model, X, Y))
        if self.fixed:
            return Fitted(linear, 0.0, 0, False)
        options = replace(_POLISH, smoothing=self.memory.smoothing, matrix_free=is_expensive(model))
        return levenberg_marquardt(linear.model, X, Y, options, solved=linear)

    def choose_smoothing(self, gram: Gram) -> Linear:
        """Solve with the roughness weight of least held-out error: large for guesses, small for fast responses."""
        solved = {weight: gram.solve(weight) for weight in (STRONG_SMOOTHING, MEDIUM_SMOOTHING, WEAK_SMOOTHING)}
        errors = {weight: self.held_out_rms(linear.model) for weight, linear in solved.items()}
        self.memory.smoothing = min(errors, key=lambda weight: errors[weight])
        return solved[self.memory.smoothing]

    # -- errors ----------------------------------------------------------------------------------------------

    def evaluate(self, fitted: Fitted) -> Evaluation:
        """Evaluate a fit as the function `evaluate` does, remember it if it is the best, and log its errors."""
        check_time()
        now = evaluate(fitted, self.samples, self.goal)
        self.memory.remember(now)
        self.say(f"  {now.model.count} features: held-out RMS {now.rms:.2e}, largest error {now.sup:.2e}", detail=True)
        return now

    def is_good_enough(self, best: Evaluation) -> bool:
        """Return whether the goal is met or the error is all noise."""
        return best.meets_goal or best.rms <= AT_NOISE * self.goal.noise

    def are_directions_nearly_right(self, rms: float) -> bool:
        """Return whether an RMS error is so small that directions must be nearly right."""
        return rms < _NEARLY_RIGHT * float(np.std(self.samples.train[1]))

    def is_noise_limited(self, rms: float) -> bool:
        """Return whether an RMS error is mostly noise, and noise is what keeps the fit from its goal."""
        return self.goal.is_below_noise and rms <= NOISE_LIMITED * self.goal.noise

    def held_out_rms(self, model: Model) -> float:
        """RMS error on held-out points."""
        return held_out_error(model, self.samples)[0]

    def training_rms(self, fitted: Fitted) -> float:
        """Return the RMS error on the training points."""
        return float(np.sqrt(fitted.linear.cost / self.samples.train[1].size))


def is_expensive(model: Model) -> bool:
    """Return whether one joint step takes seconds, so that steps should be few."""
    return model.columns + model.count * model.dim > EXPENSIVE_UNKNOWNS


def _min_gain(model: Model) -> float:
    """Return the share by which a step must lower the objective for another one to follow."""
    return _MIN_GAIN_EXPENSIVE if is_expensive(model) else _MIN_GAIN
