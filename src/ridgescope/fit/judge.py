"""The judge: from candidate directions, good and bad, to the best sum of features that the answers support.

    as proposed   the best responses for the directions as they are; a good search needs no more
    settle        else all candidates move together, while points are added along where they now are
    tidy          drop what does not pay, merge what describes one feature; every drop is a trial on held-out points
    refine        finer knots or kinks where the residual has structure along a feature; more points where that stalls

until held-out points agree with the model to what is asked for, or nothing helps any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions
from . import prune, refine, split
from .data import Samples, ask_along, ask_ends, held_out_error, held_out_squares
from .linear import WIDE, Gram, Linear, keep_features
from .model import Model
from .solve import Fitted, levenberg_marquardt

SETTLING, STANDING, FINAL = 1e-6, 1e-8, 1e-10
"""Roughness weights while directions still wander, once they stand, and at the very end."""


_LOOK = 8000  # points that the search for structure along features looks at
_TWINS = 0.12  # radians within which two features may be one
_GUESSES = 1.4  # times as many points for each unknown while directions are guesses
_ALIKE = 30  # features of which none may stand out though all have too few knots
_MANY = 2500  # unknowns of a fit whose steps take seconds
_NEAR = 0.05  # of f's standard deviation: a model whose error is smaller has its directions nearly right


@dataclass(frozen=True)
class Aim:
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
    rebirths: int = 0
    """How often the weakest third starts anew at random where the fit stalls: for starts that are mere guesses."""


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
        self.allowance, self.say, self.smooth = allowance, say, SETTLING
        self.dropped: list[Floats] = []
        """Directions that did not pay, as they stood when they went."""
        self.fixed = False
        """Are directions and kinks to stay where they are?"""
        self.untouched = False
        """Have they stayed where they were proposed to the end?"""
        self._priced: tuple[Linear, Floats] | None = None

    def run(self, model: Model, fresh: int = 0) -> Judged:
        """Fit `model` from where it stands, good candidates and bad; its last `fresh` features are new.

        A new candidate is first asked along its own line: a response that bends far out shows nowhere else.
        """
        self.smooth, self.dropped = SETTLING, []
        if fresh:
            wanted = fresh * (self.aim.intervals + 8)
            ask_along(self.ask, self.samples, model.directions[-fresh:], int(min(wanted, self.allowance())), self.rng)
            if self.allowance() >= 4 * fresh:
                ask_ends(self.ask, self.samples, model.directions[-fresh:])
        best = self._as_proposed(model, fresh)
        self.untouched = best.done
        if not best.done:
            near = best.rms < _NEAR * float(np.std(self.samples.train[1]))
            best = self._judge(self._tidy(self._free(best.model) if near else self._settle(best.model, fresh)))
            best = self._parted(self._refined(best))
            best = self._with_more_points(best if near else self._reborn(self._second_chance(best)))
        return self._judge(self._finish(self._tidy(self._loosened(best)), best.done and self.untouched))

    def _loosened(self, best: Judged) -> Fitted:
        """Directions that stayed where a search put them, let go if held-out points gain by it: among directions that
        are slightly off, a false one is not idle but makes up for them.
        """
        if not self.untouched or many(best.model):
            return best.fitted
        free = levenberg_marquardt(
            best.model, *self.samples.train, steps=5, smooth=self.smooth, solved=best.fitted.linear
        )
        return free if held_out_error(free.model, self.samples)[0] < 0.8 * best.rms else best.fitted

    def _as_proposed(self, model: Model, fresh: int) -> Judged:
        """The best responses for the directions as they are.

        A search often gives directions far better than a fit with knots still too coarse could: that fit would spoil
        them. Where they are rough, no response helps much, and nothing but a few linear solves is lost.
        """
        self.fixed = True
        self._top_up(model, 1.0)
        linear = self._choose_smoothing(self._choose_shape(model, fresh))
        best = self._judge(Fitted(linear, 0.0, 0, False))
        if best.done or best.rms < _NEAR * float(np.std(self.samples.train[1])):
            best = self._with_more_points(self._refined(best))  # with coarse knots one of two twins would seem idle
            best = self._judge(self._tidy(best.fitted))
        self.fixed = False
        return best

    def _with_more_points(self, best: Judged) -> Judged:
        """More points, and another look, as long as that pays.

        Directions that may not move keep points from paying where those fitted agree no better than those held out.
        """
        for _ in range(3):
            if best.done or best.rms <= 1.2 * self.aim.noise or self.allowance() < 1:
                break
            if self.fixed and self._rms(best.fitted) > 0.8 * best.rms:
                break
            self._more(best.model, 0.4)
            again = self._refined(self._judge(self._polish(best.model)))
            pays = again.sup < 0.8 * best.sup
            best = again
            if not pays:
                break
        return best

    def _refined(self, best: Judged) -> Judged:
        """Refine as long as held-out points get better; where a bold refinement fails, a timid one is tried."""
        boldness = 1.0
        for _ in range(self.aim.rounds):
            if best.done or best.rms <= 1.02 * self.aim.noise or boldness < 0.1:
                break
            refined = self._refine(best.fitted, boldness)
            if refined is None:
                break
            now = self._judge(refined)
            if now.rms < 0.9 * best.rms:
                best, boldness = self._lightened(now), 1.0
            else:
                best = now if now.rms < best.rms else best
                boldness /= 4.0
        return best

    def _lightened(self, now: Judged) -> Judged:
        """Where steps are dear, without the false candidates that finer responses have left idle."""
        if self.fixed or not many(now.model):
            return now
        lighter = self._fewer(now.fitted)
        return now if lighter is now.fitted else self._judge(lighter)

    def firm(self, model: Model, untouched: bool = False) -> Judged:
        """More points, another look at the responses; the set of features stays, `untouched` directions if they may.

        Points that a certificate has asked meanwhile are among the samples already.
        """
        self.smooth = STANDING
        self._more(model, 0.1)
        self.fixed = untouched
        fitted = self._polish(model)
        now = self._judge(self._refine(fitted, 1.0) or fitted)
        self.fixed = False
        if untouched and not now.done:
            now = self._judge(self._polish(now.model))
        return self._judge(self._finish(now.fitted, untouched and now.done))

    # -- the steps ------------------------------------------------------------------------------------------

    def _settle(self, model: Model, fresh: int, phases: int = 6, most: int = 20) -> Fitted:
        """All directions move together; the points grow with them, from half of what is wanted to all of it.

        Guesses first crawl and then fall into place: with all the points, as many phases more as still bring a tenth.
        Where they stall short of it, points may be what is missing: half as many again, once.
        """
        damping, fitted, before, helps = 0.1, None, np.inf, 1
        for phase in range(most):
            self._top_up(model, _GUESSES * min(1.0, (phase + 1 + phases) / (2 * phases)))
            X, Y = self.samples.train
            linear = self._choose_smoothing(self._choose_shape(model, fresh if phase == 0 else 0))
            fitted = self._step(linear.model, 5, damping, linear)
            model, damping = fitted.model, max(fitted.damping, 1e-3)
            rms = self._rms(fitted)
            self.say(f"settle {phase}: {len(X)} points, {model.count} candidates, rms {rms:.2e}")
            if rms < _NEAR * float(np.std(Y)):  # no guesses any more: the remaining points at once
                self._top_up(model, 1.0)
                return self._step(model, 20, damping)  # false ones are idle only where the others are in place
            if self._missing(model, _GUESSES) <= 0 and (fitted.converged or rms > 0.9 * before):
                if not helps or self.allowance() < 1:
                    break
                helps -= 1
                self._more(model, 0.5)
            before = rms
        assert fitted is not None
        return fitted

    def _second_chance(self, best: Judged) -> Judged:
        """While knots were too coarse, a weak feature may have been dropped as not worth its while: what was dropped
        joins once more, now that little else is left.
        """
        if best.done or best.rms <= 1.2 * self.aim.noise or not self.dropped:
            return best
        dropped = np.concatenate(self.dropped)
        closest = np.abs(dropped @ best.model.directions.T).max(axis=1, initial=0.0)
        again = dropped[closest < np.cos(_TWINS)]
        if not len(again):
            return best
        self.say(f"second chance for {len(again)}")
        return self._better(best, best.model.join(again, self.aim.intervals), len(again))

    def _reborn(self, best: Judged) -> Judged:
        """Where guesses have stalled, several often share one feature while another has none: the third that pays
        least starts anew at random, as long as held-out points gain by it.
        """
        vain = 0
        for _ in range(self.aim.rebirths):
            if best.done or best.rms <= 1.2 * self.aim.noise or not best.model.count or vain > 1:
                break
            costs = self._removal_costs(best.fitted)
            born = max(2, best.model.count // 3)
            kept = self._free(best.model.keep(np.sort(np.argsort(-costs)[: best.model.count - born]))).model
            now = self._better(best, kept.join(random_directions(born, kept.dim, self.rng), self.aim.intervals), born)
            vain = 0 if now.rms < 0.9 * best.rms else vain + 1
            best = now
        return best

    def _parted(self, best: Judged) -> Judged:
        """Where directions are nearly right and one feature looks like two, it becomes two, if held-out points gain."""
        while not best.done and 1.2 * self.aim.noise < best.rms < _NEAR * float(np.std(self.samples.train[1])):
            X, residual = self._left_over(best.model)
            found = split.splits(best.model, X, residual)
            if not found:
                break
            self.say(f"feature {found[0].feature} looks like two: {found[0].share:.0%} of what is left")
            now = self._refined(self._judge(self._free(found[0].apply(best.model, 0.5 * _TWINS))))
            if now.rms > 0.8 * best.rms:
                break
            best = now
        return best

    def _better(self, best: Judged, model: Model, fresh: int) -> Judged:
        """The better of `best` and what becomes of `model`."""
        now = self._refined(self._judge(self._tidy(self._settle(model, fresh))))
        return now if now.rms < best.rms else best

    def _free(self, model: Model) -> Fitted:
        """Directions that are nearly right, let go, with all the points that they need."""
        self._top_up(model, 1.0)
        return levenberg_marquardt(model, *self.samples.train, steps=5, smooth=self.smooth, progress=_pays(model))

    def _step(self, model: Model, steps: int, damping: float, solved: Linear | None = None) -> Fitted:
        """Steps of directions that still wander; of many, roughly: no matrix would serve for a second step."""
        return levenberg_marquardt(
            model,
            *self.samples.train,
            steps=steps,
            damping=damping,
            smooth=self.smooth,
            progress=_pays(model),
            solved=solved,
            roughly=many(model),
        )

    def _choose_shape(self, model: Model, fresh: int) -> Gram:
        """Knots for the new features: finer ones than the survey suggested where without them hardly anything fits.

        A few steep responses among many are left to `_refine`, which extends them one by one.
        """
        X, Y = self.samples.train
        best, least = Gram(model, X, Y), np.inf
        hopeless = 0.1 * float(np.std(Y))
        for factor in (1, 2, 4, 8) if fresh else ():
            intervals = model.intervals.copy()
            intervals[model.count - fresh :] *= factor
            finer = model.reshaped(intervals, model.kinks)
            if factor > 1 and (finer.columns > min(0.5 * len(X), WIDE) or intervals.max(initial=0) > 256):
                break
            gram = best if factor == 1 else Gram(finer, X, Y)
            error = held_out_error(gram.solve(STANDING).model, self.samples)[0]
            if error < 0.5 * least:
                best, least = gram, error
            if least < hopeless:
                break
        return best

    def _choose_smoothing(self, gram: Gram) -> Linear:
        """The roughness weight that held-out points like best: guesses want much of it, fast responses little."""
        solved = {smooth: gram.solve(smooth) for smooth in (SETTLING, STANDING, FINAL)}
        errors = {smooth: held_out_error(linear.model, self.samples)[0] for smooth, linear in solved.items()}
        self.smooth = min(errors, key=lambda weight: errors[weight])
        return solved[self.smooth]

    def _tidy(self, fitted: Fitted) -> Fitted:
        """Drop what does not pay, then what is not asked for, and merge what describes one feature."""
        limit = self._limit(fitted)
        fitted = self._fewer(fitted)
        limit = self._limit(fitted, limit)
        fitted = self._without_idlers(fitted, limit)
        return fitted if self.fixed else self._merge(fitted, limit)  # one that cannot turn is dropped or stays

    def _limit(self, fitted: Fitted, before: float = np.inf) -> float:
        """Error on held-out points up to which drops are borne: a little above the best that was seen on the way."""
        return min(before, 1.05 * held_out_error(fitted.model, self.samples)[0])

    def _fewer(self, fitted: Fitted) -> Fitted:
        """Without the cheapest features, as many at once as the trial on held-out points allows."""
        share, limit = 0.5, self._limit(fitted)
        while fitted.model.count and share > 0.05:
            costs = self._removal_costs(fitted)
            drop = prune.cheap(costs, fitted.linear.cost, share)
            trial = self._trial(fitted, drop, limit) if len(drop) else None
            if trial is None:
                share /= 2
            else:
                fitted, limit = trial, self._limit(trial, limit)
        return fitted

    def _without_idlers(self, fitted: Fitted, limit: float) -> Fitted:
        """One by one, features without which the fit would still be all that was asked for.

        Among directions that stand where a search put them, a weak feature that plainly is one stays: without it the
        others would turn to make up for it.
        """
        idle = 0.3 * self.aim.error
        if self.fixed or self.untouched:
            idle = min(idle, 3.0 * max(self._rms(fitted), self.aim.noise))
        while fitted.model.count:
            costs = self._removal_costs(fitted)
            idlest = int(np.argmin(costs))
            foretold = np.sqrt((fitted.linear.cost + costs[idlest]) / self.samples.train[1].size)
            trial = self._trial(fitted, np.array([idlest]), limit) if foretold < idle else None
            if trial is None:
                return fitted
            fitted = trial
        return fitted

    def _removal_costs(self, fitted: Fitted) -> Floats:
        """Of the model last asked about they are known."""
        if self._priced is None or self._priced[0] is not fitted.linear:
            self._priced = (fitted.linear, prune.removal_costs(fitted.linear, *self.samples.train, self.smooth))
        return self._priced[1]

    def _merge(self, fitted: Fitted, limit: float) -> Fitted:
        """Try each pair of near twins as one feature."""
        tried: set[tuple[float, ...]] = set()
        while True:
            for i, j in prune.twins(fitted.model.directions, _TWINS):
                key = tuple(fitted.model.directions[[i, j]].sum(axis=0))
                if key in tried:
                    continue
                tried.add(key)
                strength = [np.sum(fitted.model.block(k) ** 2) for k in (i, j)]
                trial = self._trial(fitted, np.array([j if strength[0] >= strength[1] else i]), limit, turning=True)
                if trial is not None:
                    fitted = trial
                    break
            else:
                return fitted

    def _trial(self, fitted: Fitted, drop: NDArray[np.intp], limit: float, turning: bool = False) -> Fitted | None:
        """The refitted smaller model, if held-out points bear it as the larger one, or their rms is within `limit`.

        Where steps are dear directions stay, unless they must be `turning` to make up for what goes.
        """
        keep = np.setdiff1d(np.arange(fitted.model.count), drop)
        before = held_out_squares(fitted.model, self.samples)[0]
        smaller = self._without(fitted, keep, 3.0 * float(np.sqrt(before.mean())), turning)
        if smaller is None:
            return None
        after, sup = held_out_squares(smaller.model, self.samples)
        ample = 4.0 * self.aim.noise < sup <= self.aim.error  # the smaller model is all that was asked for
        worse = after - before  # point by point: what both models share cancels
        slack = float(np.std(worse)) / np.sqrt(max(len(worse), 1))
        old, new = float(np.sqrt(before.mean())), float(np.sqrt(after.mean()))
        if ample or float(worse.mean()) <= slack or new <= max(limit, 1.02 * self.aim.noise):
            self.dropped.append(fitted.model.directions[drop])
            self.say(f"dropped {len(drop)}: {len(keep)} left, held-out rms {old:.2e} -> {new:.2e}")
            return smaller
        return None

    def _without(self, fitted: Fitted, keep: NDArray[np.intp], hopeless: float, turning: bool) -> Fitted | None:
        """The features that stay, refitted, or None where the error of a first, cheap look is hopeless."""
        X, Y = self.samples.train
        if not self.fixed and not many(fitted.model):
            return levenberg_marquardt(fitted.model.keep(keep), X, Y, steps=4, smooth=self.smooth)
        first = Fitted(keep_features(fitted.linear, keep, X, Y, self.smooth), fitted.damping, 0, False)
        if self.fixed or not turning:
            return first
        turned = levenberg_marquardt(first.model, X, Y, steps=1, smooth=self.smooth, solved=first.linear)
        if held_out_error(turned.model, self.samples)[0] > max(hopeless, self.aim.error):
            return None
        return levenberg_marquardt(
            turned.model, X, Y, steps=3, damping=turned.damping, smooth=self.smooth, solved=turned.linear
        )

    def _refine(self, fitted: Fitted, boldness: float) -> Fitted | None:
        """Extend the responses whose residual has structure, ask where they are, and settle."""
        X, residual = self._left_over(fitted.model)
        wanted = refine.extensions(fitted.model, X, residual)
        if not wanted:
            return self._finer(fitted) if boldness == 1.0 else None
        chosen = wanted[: max(1, int(boldness * len(wanted)))]
        self.say(
            "refine "
            + ", ".join(f"{e.feature}: K={e.intervals} kinks={len(e.kinks)} ({e.gain:.2f})" for e in chosen[:6])
        )
        model = refine.apply(fitted.model, chosen)
        self._top_up(model, 1.0, np.array([e.feature for e in chosen]))
        return self._polish(model)

    def _finer(self, fitted: Fitted) -> Fitted | None:
        """Twice the knots for all: of many alike, no response alone stands out as too coarse."""
        model = fitted.model
        finer = model.reshaped(2 * model.intervals, model.kinks)
        if model.count <= _ALIKE or self._rms(fitted) <= 3.0 * self.aim.noise:
            return None
        if finer.columns > WIDE or self._missing(finer, 1.0) > self.allowance() or not self._knots_matter(fitted):
            return None
        self.say(f"twice the knots for all {model.count}")
        self._top_up(finer, 1.0)
        return self._polish(finer)

    def _knots_matter(self, fitted: Fitted) -> bool:
        """Would twice the knots help, or, where points are too few to tell, do half the knots hurt?

        Where directions are what is wrong, neither.
        """
        model, (X, Y) = fitted.model, self.samples.train
        finer = model.reshaped(2 * model.intervals, model.kinks)
        tells = finer.columns <= 0.5 * len(X)
        other = finer if tells else model.reshaped(np.maximum(model.intervals // 2, 4), model.kinks)
        here, there = (held_out_error(m, self.samples)[0] for m in (model, Gram(other, X, Y).solve(self.smooth).model))
        return there < 0.8 * here if tells else there > 1.2 * here

    def _polish(self, model: Model) -> Fitted:
        X, Y = self.samples.train
        linear = self._choose_smoothing(Gram(model, X, Y))
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
            roughly=many(model),
        )

    def _finish(self, fitted: Fitted, untouched: bool = False) -> Fitted:
        """Kinks that do not pay go; then the last digits, unless directions still stand where a search put them,
        knots limit the fit, and there are so many that the steps would take long for nothing.
        """
        fitted = self._without_idle_kinks(self._reshaped(fitted))
        X, Y = self.samples.train
        if untouched and many(fitted.model) and held_out_error(fitted.model, self.samples)[0] > 3.0 * self.aim.noise:
            return fitted
        floor = 1e-28 * float(np.sum(Y**2))
        last = levenberg_marquardt(
            fitted.model,
            X,
            Y,
            steps=10,
            damping=1e-6,
            smooth=self.smooth,
            enough=floor,
            progress=0.1,
            solved=fitted.linear,
        )
        before, after = (held_out_error(f.model, self.samples) for f in (fitted, last))
        self.say(f"last digits: {last.steps} steps, held-out rms {before[0]:.2e} -> {after[0]:.2e}")
        # Where knots, not noise, limit the fit, turning directions trades one error for another: only if it pays.
        enough = 1.02 if before[0] <= 3.0 * self.aim.noise else 0.8
        return last if after[0] <= enough * before[0] else fitted

    def _reshaped(self, fitted: Fitted) -> Fitted:
        """Where noise limits the fit: kinks for fine knots, and no knot more than the noise warrants, nor less.

        Every knot that goes leaves directions better known; every one that was missing bends them.
        """
        best = held_out_error(fitted.model, self.samples)[0]
        for _ in range(4):
            if best > 30.0 * self.aim.noise or many(fitted.model):
                break
            X, Y = self.samples.spread
            found = refine.reshapings(fitted.model, X, Y - fitted.model.predict(X), self.aim.intervals)
            if not found:
                break
            now = self._polish(refine.apply(fitted.model, found))
            rms = held_out_error(now.model, self.samples)[0]
            self.say(f"{len(found)} responses on other knots: held-out rms {best:.2e} -> {rms:.2e}")
            if rms > 1.01 * best:
                break
            fitted, best = now, rms
        return fitted

    def _without_idle_kinks(self, fitted: Fitted) -> Fitted:
        if not any(map(len, fitted.model.kinks)):
            return fitted
        costs = prune.kink_costs(fitted.linear)
        flat = np.concatenate(costs) if costs else np.empty(0)
        idle = prune.cheap(flat, fitted.linear.cost, 0.1)
        if not len(idle):
            return fitted
        keep = np.split(np.isin(np.arange(len(flat)), idle, invert=True), np.cumsum([len(c) for c in costs])[:-1])
        kinks = tuple(t[k] for t, k in zip(fitted.model.kinks, keep, strict=True))
        self.fixed = True
        fewer = self._polish(fitted.model.reshaped(fitted.model.intervals, kinks))
        self.fixed = False
        before, after = (held_out_error(f.model, self.samples)[0] for f in (fitted, fewer))
        return fewer if after <= 1.1 * before else fitted

    # -- helpers --------------------------------------------------------------------------------------------

    def _top_up(self, model: Model, share: float, at: NDArray[np.intp] | None = None) -> None:
        """Ask until there are enough points for the model's unknowns, along the features that need them."""
        missing = self._missing(model, share)
        if at is not None:  # new knots need points of their own
            missing = max(missing, 3 * int(model.widths[at].sum()))
        missing = int(min(missing, self.allowance()))
        directions = model.directions if at is None else model.directions[at]
        ask_along(self.ask, self.samples, directions, missing, self.rng)

    def _more(self, model: Model, share: float) -> None:
        ask_along(
            self.ask,
            self.samples,
            model.directions,
            int(min(share * self.samples.worth, self.allowance())),
            self.rng,
        )

    def _left_over(self, model: Model) -> tuple[Floats, Floats]:
        """Some of the points, and what the model leaves there."""
        X, Y = self.samples.spread
        some = slice(0, len(X), max(1, len(X) // _LOOK))
        return X[some], Y[some] - model.predict(X[some])

    def _missing(self, model: Model, share: float) -> int:
        turning = 0.0 if self.fixed else model.count * (model.dim - 1) / model.outputs
        unknowns = model.columns + turning
        return int(share * self.aim.per_unknown * unknowns * 8 / 7) - int(self.samples.worth)

    def _rms(self, fitted: Fitted) -> float:
        _, Y = self.samples.train
        return float(np.sqrt(fitted.linear.cost / Y.size))

    def _judge(self, fitted: Fitted) -> Judged:
        rms, sup = held_out_error(fitted.model, self.samples)
        done = sup <= max(self.aim.error, 4.0 * self.aim.noise)
        self.say(f"judge: {fitted.model.count} features, held-out rms {rms:.2e}, sup {sup:.2e}, done {done}")
        return Judged(fitted, rms, sup, done)


def many(model: Model) -> bool:
    """Does a step of everything take seconds?"""
    return model.columns + model.count * model.dim > _MANY


def _pays(model: Model) -> float:
    """The part by which a step must lower the cost if another one is to follow."""
    return 0.1 if many(model) else 1e-2
