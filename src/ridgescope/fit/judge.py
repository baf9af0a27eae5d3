"""The judge: from candidate directions, good and bad, to the best sum of features that the answers support.

    settle    move all candidates together while points are added along where they now are
    tidy      drop what does not pay, merge what describes one feature; every drop is a trial on held-out points
    refine    finer knots or kinks where the residual has structure along a feature; then settle again

and round again until held-out points agree with the model to what is asked for, or nothing helps any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..geometry import Floats
from . import prune, refine
from .data import Samples, ask_along, held_out_error
from .model import Model
from .solve import Fitted, levenberg_marquardt

SETTLING, FINAL = 1e-6, 1e-10
"""Roughness weights while directions still wander, and once they stand."""


@dataclass(frozen=True)
class Aim:
    """When is a fit good enough, and what may it cost?"""

    error: float
    """Largest error on held-out points that is asked for, in f's units."""
    noise: float
    """Standard deviation of one answer's error; no fit is asked to go below it."""
    intervals: int = 16
    """Spline intervals that a new feature starts with."""
    per_unknown: float = 3.0
    """Points for each unknown of the fit."""
    rounds: int = 12


@dataclass(frozen=True, eq=False)
class Judged:
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


class Judge:
    """One fit in progress: the samples, the allowance, and the steps above."""

    def __init__(
        self,
        ask: Callable[[Floats], Floats],
        samples: Samples,
        aim: Aim,
        rng: np.random.Generator,
        allowance: Callable[[], float] = lambda: float("inf"),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.ask, self.samples, self.aim, self.rng = ask, samples, aim, rng
        self.allowance, self.say = allowance, say

    def run(self, model: Model, *, wander: bool = True) -> Judged:
        """Fit `model` from where it stands; `wander` if its directions are still guesses."""
        fitted = self._settle(model) if wander else self._polish(model)
        fitted = self._tidy(fitted)
        best = self._judge(fitted)
        for _ in range(self.aim.rounds):
            if best.done:
                break
            refined = self._refine(best.fitted)
            if refined is None:
                break
            now = self._judge(self._tidy(refined))
            stuck = now.rms > 0.8 * best.rms
            if now.rms < best.rms:
                best = now
            if stuck:
                break
        return self._judge(self._finish(best.fitted))

    def firm(self, model: Model) -> Judged:
        """Half as many points again, another look at the responses; the set of features stays."""
        ask_along(self.ask, self.samples, model.directions, int(min(self.samples.count // 2, self.allowance())), self.rng)
        fitted = self._polish(model)
        refined = self._refine(fitted)
        return self._judge(self._finish(refined if refined is not None else fitted))

    # -- the steps ------------------------------------------------------------------------------------------

    def _settle(self, model: Model, phases: int = 6) -> Fitted:
        """All directions move together; the points grow with them, from half of what is wanted to all of it."""
        damping, fitted = 0.1, None
        for phase in range(phases):
            self._top_up(model, (phase + 1 + phases) / (2 * phases))
            X, Y = self.samples.train
            fitted = levenberg_marquardt(model, X, Y, steps=5, damping=damping, smooth=SETTLING, progress=1e-2)
            model, damping = fitted.model, max(fitted.damping, 1e-3)
            if fitted.converged and self._missing(model, 1.0) <= 0:
                break
            self.say(f"settle {phase}: {len(X)} points, {model.count} candidates, rms {self._rms(fitted):.2e}")
        assert fitted is not None
        return fitted

    def _tidy(self, fitted: Fitted) -> Fitted:
        """Drop the cheapest features, as many at once as the trial on held-out points allows."""
        share = 0.5
        while fitted.model.count and share > 0.05:
            costs = prune.removal_costs(fitted.linear)
            drop = prune.cheap(costs, fitted.linear.cost, share)
            trial = self._trial(fitted, drop) if len(drop) else None
            if trial is None:
                share /= 2
            else:
                fitted = trial
        return self._merge(fitted)

    def _merge(self, fitted: Fitted) -> Fitted:
        """Try each pair of near twins as one feature."""
        tried: set[tuple[float, ...]] = set()
        while True:
            for i, j in prune.twins(fitted.model.directions, 0.25):
                key = tuple(fitted.model.directions[[i, j]].sum(axis=0))
                if key in tried:
                    continue
                tried.add(key)
                strength = [np.sum(fitted.model.block(k) ** 2) for k in (i, j)]
                trial = self._trial(fitted, np.array([j if strength[0] >= strength[1] else i]))
                if trial is not None:
                    fitted = trial
                    break
            else:
                return fitted

    def _trial(self, fitted: Fitted, drop: Floats) -> Fitted | None:
        """The refitted smaller model, if held-out points bear it."""
        keep = np.setdiff1d(np.arange(fitted.model.count), drop)
        X, Y = self.samples.train
        smaller = levenberg_marquardt(fitted.model.keep(keep), X, Y, steps=4, smooth=SETTLING)
        before, after = held_out_error(fitted.model, self.samples)[0], held_out_error(smaller.model, self.samples)[0]
        slack = 1.0 + 2.0 / np.sqrt(max(len(self.samples.held_out[0]), 1))
        if after <= max(before * slack, 1.02 * self.aim.noise):
            self.say(f"dropped {len(drop)}: {len(keep)} left, held-out rms {before:.2e} -> {after:.2e}")
            return smaller
        return None

    def _refine(self, fitted: Fitted) -> Fitted | None:
        """Extend the responses whose residual has structure, ask where they are, and settle."""
        X, Y = self.samples.train
        residual = Y - fitted.model.predict(X)
        wanted = refine.extensions(fitted.model, X, residual)
        chosen = [e for e in wanted if e.gain >= 0.25 * wanted[0].gain or e.gain >= 0.3 / fitted.model.count]
        if not chosen:
            return None
        self.say("refine " + ", ".join(f"{e.feature}: K={e.intervals} kinks={len(e.kinks)} ({e.gain:.2f})" for e in chosen[:6]))
        model = refine.apply(fitted.model, chosen)
        self._top_up(model, 1.0, np.array([e.feature for e in chosen]))
        return self._polish(model)

    def _polish(self, model: Model) -> Fitted:
        X, Y = self.samples.train
        return levenberg_marquardt(model, X, Y, steps=8, damping=1e-3, smooth=SETTLING * 1e-2, progress=1e-2)

    def _finish(self, fitted: Fitted) -> Fitted:
        """The last digits, with next to no smoothing."""
        X, Y = self.samples.train
        floor = 1e-28 * float(np.sum(Y**2))
        return levenberg_marquardt(fitted.model, X, Y, steps=10, damping=1e-6, smooth=FINAL, enough=floor, progress=1e-3)

    # -- helpers --------------------------------------------------------------------------------------------

    def _top_up(self, model: Model, share: float, at: Floats | None = None) -> None:
        """Ask until there are enough points for the model's unknowns, along the features that need them."""
        missing = self._missing(model, share)
        if at is not None:  # new knots need points of their own
            missing = max(missing, int(self.aim.per_unknown * model.widths[at].sum()) // 4)
        missing = int(min(missing, self.allowance()))
        directions = model.directions if at is None else model.directions[at.astype(np.intp)]
        ask_along(self.ask, self.samples, directions, missing, self.rng)

    def _missing(self, model: Model, share: float) -> int:
        unknowns = model.columns + model.count * (model.dim - 1) / model.outputs
        return int(share * self.aim.per_unknown * unknowns * 8 / 7) - int(self.samples.worth)

    def _rms(self, fitted: Fitted) -> float:
        X, Y = self.samples.train
        return float(np.sqrt(fitted.linear.cost / Y.size))

    def _judge(self, fitted: Fitted) -> Judged:
        rms, sup = held_out_error(fitted.model, self.samples)
        done = sup <= max(self.aim.error, 4.0 * self.aim.noise)
        self.say(f"judge: {fitted.model.count} features, held-out rms {rms:.2e}, sup {sup:.2e}, done {done}")
        return Judged(fitted, rms, sup, done)
