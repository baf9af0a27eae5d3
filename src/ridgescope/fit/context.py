"""Where one fit stands: the points it has and may still ask, what it aims at, what it has decided on the way.

    top_up, more      points along the features, as many as the unknowns want or some more
    free, step        directions move: those nearly right, those that still wander
    polish            responses anew for changed knots, and a few steps where directions may move
    verdict           what held-out points say

Every step of the judge works on an `FitContext`; none of them decides here what comes next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from ..noise import max_noise_quantile
from . import prune
from .levenberg_marquardt import Fitted, levenberg_marquardt
from .linear import Gram, Linear
from .model import Model
from .samples import Samples, ask_along, held_out_error

SETTLING, STANDING, FINAL = 1e-6, 1e-8, 1e-10
"""Roughness weights while directions still wander, once they stand, and at the very end."""
TWINS = 0.12
"""Radians within which two features may be one."""
_LOOK = 8000  # points that the search for structure along features looks at
_MANY = 2500  # unknowns of a fit whose steps take seconds
_NEAR = 0.05  # of f's standard deviation: a model whose error is smaller has its directions nearly right


@dataclass(frozen=True)
class FitGoal:
    """When is a fit good enough, and what may it cost?"""

    error: float
    """Largest error on held-out points that is asked for, in f's units."""
    noise: float
    """Standard deviation of one answer's error; no fit is asked to go below it."""
    intervals: int = 16
    """Spline intervals that a new feature starts with."""
    per_unknown: float = 5.0
    """Points for each unknown of the fit."""
    rounds: int = 12
    restarts: int = 0
    """How often the weakest third starts anew at random where the fit stalls: for starts that are mere guesses."""

    def is_met(self, rms: float, sup: float, count: int) -> bool:
        """Do so many held-out answers agree to what is asked for, or as well as noise lets them?"""
        loud = max(4.0, max_noise_quantile(count)) * self.noise
        return sup <= max(self.error, loud) and rms <= max(self.error, 1.2 * self.noise)

    @property
    def noisy(self) -> bool:
        """Is noise more than the error asked for, so that single answers cannot tell whether it is reached?"""
        return self.noise > self.error


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The outcome."""

    fitted: Fitted
    rms: float
    """On held-out points, in f's units."""
    sup: float
    done: bool
    """Held-out points agree to what was asked for."""

    @property
    def model(self) -> Model:
        return self.fitted.model


@dataclass(eq=False)
class FitContext:
    """What a fit has, may ask and aims at, and what it has decided on the way."""

    ask: Callable[[Floats], Floats]
    samples: Samples
    aim: FitGoal
    rng: np.random.Generator
    allowance: Callable[[], float]
    """Queries that may still be spent."""
    say: Callable[[str], None]
    smooth: float = SETTLING
    """Roughness weight."""
    dropped: list[Floats] = field(default_factory=list)
    """Directions that did not pay, as they stood when they went."""
    fixed: bool = False
    """Are directions and kinks to stay where they are?"""
    untouched: bool = False
    """Have they stayed where they were proposed to the end?"""
    _priced: tuple[Linear, Floats] | None = field(default=None, init=False, repr=False)

    # -- points ----------------------------------------------------------------------------------------------

    def top_up(self, model: Model, share: float, at: NDArray[np.intp] | None = None) -> None:
        """Ask until there are enough points for the model's unknowns, along the features that need them."""
        missing = self.missing(model, share)
        if at is not None:  # new knots need points of their own
            missing = max(missing, 3 * int(model.widths[at].sum()))
        missing = int(min(missing, self.allowance()))
        directions = model.directions if at is None else model.directions[at]
        ask_along(self.ask, self.samples, directions, missing, self.rng)

    def add_samples(self, model: Model, share: float) -> None:
        """That share more points than there are."""
        ask_along(
            self.ask,
            self.samples,
            model.directions,
            int(min(share * self.samples.worth, self.allowance())),
            self.rng,
        )

    def missing(self, model: Model, share: float) -> int:
        """Points short of that share of what the model's unknowns want."""
        turning = 0.0 if self.fixed else model.count * (model.dim - 1) / model.outputs
        unknowns = model.columns + turning
        return int(share * self.aim.per_unknown * unknowns * 8 / 7) - int(self.samples.worth)

    @property
    def scan_is_subsampled(self) -> bool:
        """Are there more points than a look at what is left looks at, and may directions move, so that it matters?"""
        return not self.fixed and self.samples.count > _LOOK

    def left_over(self, model: Model, everywhere: bool = False) -> tuple[Floats, Floats]:
        """Some of the points, or all, and what the model leaves there."""
        X, Y = self.samples.spread
        some = slice(0, len(X), 1 if everywhere else max(1, len(X) // _LOOK))
        return X[some], Y[some] - model.predict(X[some])

    # -- fits ------------------------------------------------------------------------------------------------

    def refit_directions(self, model: Model) -> Fitted:
        """Directions that are nearly right, let go, with all the points that they need."""
        self.top_up(model, 1.0)
        return levenberg_marquardt(model, *self.samples.train, steps=5, smooth=self.smooth, progress=_pays(model))

    def lm_steps(self, model: Model, steps: int, damping: float, solved: Linear | None = None) -> Fitted:
        """Steps of directions that still wander; of many, roughly: no matrix would serve for a second step."""
        return levenberg_marquardt(
            model,
            *self.samples.train,
            steps=steps,
            damping=damping,
            smooth=self.smooth,
            progress=_pays(model),
            solved=solved,
            roughly=is_expensive(model),
        )

    def polish(self, model: Model) -> Fitted:
        """The best responses, and a few steps from there where directions may move."""
        X, Y = self.samples.train
        linear = self.choose_smoothing(Gram(model, X, Y))
        if self.fixed:
            return Fitted(linear, 0.0, 0, False)
        return levenberg_marquardt(
            linear.model,
            X,
            Y,
            steps=3,
            damping=1e-3,
            smooth=self.smooth,
            progress=0.05,
            solved=linear,
            roughly=is_expensive(model),
        )

    def choose_smoothing(self, gram: Gram) -> Linear:
        """The roughness weight that held-out points like best: guesses want much of it, fast responses little."""
        solved = {smooth: gram.solve(smooth) for smooth in (SETTLING, STANDING, FINAL)}
        errors = {smooth: held_out_error(linear.model, self.samples)[0] for smooth, linear in solved.items()}
        self.smooth = min(errors, key=lambda weight: errors[weight])
        return solved[self.smooth]

    # -- what they are worth ---------------------------------------------------------------------------------

    def evaluate(self, fitted: Fitted) -> Evaluation:
        """What held-out points say."""
        rms, sup = held_out_error(fitted.model, self.samples)
        done = self.aim.is_met(rms, sup, self.samples.held_out[1].size)
        self.say(f"judge: {fitted.model.count} features, held-out rms {rms:.2e}, sup {sup:.2e}, done {done}")
        return Evaluation(fitted, rms, sup, done)

    def is_enough(self, best: Evaluation) -> bool:
        """Is that all that was asked for, or all that the noise allows?"""
        return best.done or best.rms <= 1.2 * self.aim.noise

    def is_near(self, rms: float) -> bool:
        """Does an error as small as that say that directions are nearly right?"""
        return rms < _NEAR * float(np.std(self.samples.train[1]))

    def is_noisy(self, rms: float) -> bool:
        """Is an error as small as that mostly noise, and noise what keeps the fit from its aim?"""
        return self.aim.noisy and rms <= 2.0 * self.aim.noise

    def rms(self, fitted: Fitted) -> float:
        """On the points that were fitted."""
        _, Y = self.samples.train
        return float(np.sqrt(fitted.linear.cost / Y.size))

    def removal_costs(self, fitted: Fitted) -> Floats:
        """(n,) what each feature's removal would cost; of the model last asked about they are known."""
        if self._priced is None or self._priced[0] is not fitted.linear:
            self._priced = (fitted.linear, prune.removal_costs(fitted.linear, *self.samples.train, self.smooth))
        return self._priced[1]


def is_expensive(model: Model) -> bool:
    """Does a step of everything take seconds?"""
    return model.columns + model.count * model.dim > _MANY


def _pays(model: Model) -> float:
    """The part by which a step must lower the cost if another one is to follow."""
    return 0.1 if is_expensive(model) else 1e-2
