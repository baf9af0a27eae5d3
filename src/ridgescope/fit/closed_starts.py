"""Where closed forms start: all features alike, or from coarse splines; and what held-out points say of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats
from .activations import ACTIVATIONS, MAX_KAPPA
from .closed_form import ClosedForms
from .closed_solve import Data, Solved
from .context import AT_NOISE, SLIGHT_LOSS, Evaluation, FitContext, FitGoal
from .levenberg_marquardt import Fitted
from .linear import MEDIUM_SMOOTHING, Gram
from .model import TINY, Model

ENTRANTS = 5
"""Families that are worth a few steps; the true one is nearly always among the first two."""
SPLINE_INTERVALS = 8
"""Intervals of a feature that has no closed form, while others are looked for."""
POINTS_PER_COLUMN = 2.0
"""Training points per linear column at the least."""
_HOPELESS = 0.3  # RMS over f's standard deviation: if coarse splines leave more, directions or knots are far off
_COARSE_POINTS = 2.5  # training points per column of coarse splines, which a weak roughness penalty regularises
_MIN_COARSE, _MAX_COARSE = 3, 32  # intervals of coarse splines: fewer show no bend, and more are not coarse
_COMMON_KAPPAS = (1.0, 2.0, 4.0, 8.0, 16.0)  # with which all features start alike
_WIDTHS = (0.5, 1.0, 2.0)  # κ over half the distance of two kinks, that features start with between these
_BENT = 0.5  # share of the features with two kinks from which on they may
_PROMISING = 0.05  # RMS over f's standard deviation: if closed forms leave less, more points may help
_EXACT = 1e-6  # of f's standard deviation: an error that no wrong family would leave
_LOOK_POINTS = 4.0  # points per column of a first look
_SPLINE_SHARE = 3e-3  # of the goal: error of the splines that stand for closed forms
_FAR_BETTER = 0.5  # of the error: a fit that is better than this is kept, since it takes a while to make splines of it
_CLEAR = 4.0  # standard errors. Empirical: fits that gained more had a better worst direction in all but one of nine
_ROUNDING = 1e-13  # of the answers' norm: rounding errors of a sum of some hundred terms


@dataclass(frozen=True, eq=False)
class Trial:
    """The data of an attempt, and what closed forms make of the held-out points."""

    context: FitContext
    data: Data

    @classmethod
    def of(cls, context: FitContext) -> Trial:
        return cls(context, Data(*context.samples.unclustered))

    @property
    def floor(self) -> float:
        """The cost of rounding errors, below which nothing is left to gain."""
        return rounding_cost(self.data)

    @property
    def std(self) -> float:
        """Standard deviation of the answers beyond their affine part."""
        return float(np.std(self.data.Y))

    @property
    def answers(self) -> Floats:
        """The answers at the points, with their affine part."""
        return self.context.samples.unclustered[1]

    def look(self, columns: int) -> Data:
        """Return as many of the points as a first look at a model of that many columns needs."""
        stride = max(1, int(len(self.data.X) / (_LOOK_POINTS * columns)))
        X, Y = self.context.samples.unclustered
        return self.data if stride == 1 else Data(X[::stride], Y[::stride])

    def errors(self, forms: ClosedForms) -> tuple[float, float]:
        """Return RMS and largest error on held-out points."""
        X, Y = self.context.samples.held_out
        wrong = Y - forms.predict(X)
        return float(np.sqrt(np.mean(wrong**2))), float(np.abs(wrong).max())

    def rms(self, solved: Solved) -> float:
        return self.errors(solved.forms)[0]

    def is_no_worse(self, after: Solved, before: Solved) -> bool:
        """Return whether the held-out error has hardly risen, or is all rounding."""
        return self.rms(after) <= max((1.0 + SLIGHT_LOSS) * self.rms(before), _ROUNDING * self.std)

    def is_clearly_better(self, after: Solved, before: Solved) -> bool:
        """Return whether the mean square of the held-out errors has fallen by far more than it varies by chance."""
        X, Y = self.context.samples.held_out
        gains = np.mean((Y - before.forms.predict(X)) ** 2 - (Y - after.forms.predict(X)) ** 2, axis=1)
        return bool(gains.mean() > _CLEAR * gains.std() / np.sqrt(len(gains)))

    @property
    def exactness(self) -> float:
        """The held-out error, so small or in the noise, that no wrong family would leave."""
        return max(_EXACT * self.std, AT_NOISE * self.context.goal.noise)

    def is_exact(self, solved: Solved) -> bool:
        """Return whether the held-out error is so small, or in the noise, that all families must be right."""
        return self.rms(solved) <= self.exactness

    def is_above_noise(self, solved: Solved) -> bool:
        """Return whether the held-out error is more than noise, so that further digits can be had."""
        return self.rms(solved) > AT_NOISE * self.context.goal.noise

    def is_promising(self, solved: Solved) -> bool:
        """Return whether the held-out error is so small that most families must be right."""
        return self.rms(solved) <= _PROMISING * self.std

    def is_met(self, solved: Solved) -> bool:
        rms, sup = self.errors(solved.forms)
        return self.context.goal.is_met(rms, sup, self.context.samples.held_out[1].size)

    def evaluate(self, solved: Solved) -> Evaluation:
        """Return the fit as splines with their errors; the best so far is kept for a fit that is cut short."""
        return self.context.evaluate(spline_fit(solved, self.context.goal))

    def remember(self, solved: Solved) -> None:
        """Keep the fit for the case that the whole is cut short, if it is far better than what is kept already."""
        before = self.context.memory.best
        if before is None or self.rms(solved) < _FAR_BETTER * before.rms:
            self.evaluate(solved)


def rounding_cost(data: Data) -> float:
    """Return the sum of squares that rounding errors of the answers leave."""
    return _ROUNDING**2 * float(np.vdot(data.Y, data.Y))


def spline_fit(solved: Solved, goal: FitGoal) -> Fitted:
    """Return the splines that stand for closed forms, far more exact than the goal asks."""
    return Fitted.without_fit(solved.forms.model(_SPLINE_SHARE * max(goal.error, TINY)), solved.cost)


def are_bends_known(model: Model) -> bool:
    """Return whether most features come with the two places between which their responses rise."""
    return sum(len(t) == 2 for t in model.kinks) > _BENT * model.count


def common_starts(trial: Trial, model: Model) -> list[ClosedForms]:
    """Return the families that explain most with the same κ and b for all features, each with its best κ."""
    n, R = model.count, model.radius
    blank = ClosedForms.blank(model.directions, R, SPLINE_INTERVALS, model.outputs)
    look = trial.look(n + model.dim + 1)
    best, bent = [], are_bends_known(model)
    for k, form in enumerate(ACTIVATIONS):
        alike = replace(blank, family=np.full(n, k, np.intp))
        if form.moves[0]:
            starts = [replace(alike, kappa=np.full(n, kappa * form.stretch)) for kappa in _COMMON_KAPPAS]
            starts += [_between_bends(alike, model.kinks, factor * form.stretch) for factor in _WIDTHS if bent]
        else:
            starts = [replace(alike, b=-np.array([t[0] / R if len(t) else 0.0 for t in model.kinks]))]
        solved = [Solved.of(start, look) for start in starts]
        best.append(min((trial.rms(s), j, s.forms) for j, s in enumerate(solved)))
    best.sort(key=lambda entry: entry[0])
    return [forms for _, _, forms in best[:ENTRANTS]]


def _between_bends(alike: ClosedForms, kinks: tuple[Floats, ...], kappa: float) -> ClosedForms:
    """Return the forms with each feature between its two kinks, over half their distance as steep as κ says.

    Features without two kinks are in the middle, and as steep as most others.
    """
    known = [t / alike.radius for t in kinks if len(t) == 2]
    usual = float(np.median([t[1] - t[0] for t in known]))
    ends = np.array([t / alike.radius if len(t) == 2 else (-0.5 * usual, 0.5 * usual) for t in kinks])
    steep = 2.0 * kappa / (ends[:, 1] - ends[:, 0])
    return replace(alike, kappa=np.minimum(steep, MAX_KAPPA), b=-np.minimum(steep, MAX_KAPPA) * ends.mean(axis=1))


def coarse_fit(context: FitContext, model: Model, crowded: bool) -> Model | None:
    """Fit coarse splines along the model's directions; None if points are too few or too little is explained.

    In a `crowded` space splines take over parts of each other, so that these show their families only if all are nearly
    right.
    """
    X, Y = context.samples.unclustered
    intervals = min(int(len(X) / (_COARSE_POINTS * model.count)) - 3, context.goal.intervals, _MAX_COARSE)
    if intervals < _MIN_COARSE:
        return None
    shape = model.reshaped(np.full(model.count, intervals, np.intp), model.kinks)
    coarse = Gram(shape, X, Y).solve(MEDIUM_SMOOTHING).model
    most = _PROMISING if crowded else _HOPELESS
    return coarse if context.held_out_rms(coarse) <= most * float(np.std(Y)) else None


def strongest_first(model: Model, i: int) -> Floats:
    """Return the kinks of feature i, those of the largest weights first."""
    weights = np.linalg.norm(model.block(i)[model.intervals[i] + 3 :], axis=1)
    return np.asarray(model.kinks[i][np.argsort(-weights, kind="stable")])
