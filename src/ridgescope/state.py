"""Where one extraction stands: what is known of f, the points asked so far, the model, and how that model grows.

    survey        scale, noise, bandwidth, and the subspace in which all further work is done
    join          candidate directions join the model, and the judge says which of them pay
    join_wide     more of them than a joint fit can turn: directions as seen, responses one by one
    firm          the same features, more points, another look at the responses
    extend        the same features in a larger subspace

Nothing here decides what comes next: `run` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from .feature import Plane
from .fit.context import Evaluation, FitGoal, evaluate
from .fit.errorbars import ErrorBars, error_bars
from .fit.fitter import Fitter
from .fit.levenberg_marquardt import Fitted, LMOptions, levenberg_marquardt
from .fit.linear import Linear
from .fit.model import Model
from .fit.samples import Samples
from .geometry import Floats
from .noise import max_noise_quantile
from .oracle.base import Oracle
from .progress import Step, Tell
from .query.recipe import turned
from .randomness import Streams
from .result import Round
from .search.base import Ask
from .search.kinks import KinkProposal
from .survey import Survey, survey
from .wide.layer import MAX_INTERVALS, WideLayer

CROWDED = 0.1
"""Worth to the fit of one point of a search."""
_RESERVE = 1500
"""Queries kept back for the certificate."""


@dataclass(eq=False, kw_only=True)
class State:
    """What a run has and knows; `judged` is its model."""

    oracle: Oracle
    radius: float
    tolerance: float
    stated_noise: float | None
    max_features: int | None
    streams: Streams
    tell: Tell
    known: Survey = field(init=False)
    samples: Samples = field(init=False)
    judged: Evaluation | None = None
    wide: WideLayer | None = None
    """More features than a joint fit can turn, where there are."""
    untouched: bool = False
    """Do directions stand where a search put them?"""
    history: list[Round] = field(default_factory=list)
    planes: list[Plane] = field(default_factory=list)
    new_ground: bool = True
    """Has nothing been searched since the subspace was found or widened?"""
    crowded: bool = False
    """Has a proposer seen more features than it could tell apart?"""
    spread: float = 0.0
    """Expected error of directions as they were last proposed, radians, where a fit may well do better."""

    def __post_init__(self) -> None:
        d = self.oracle.dim
        self.known = Survey(0.0, 1e-300, 1.0, True, np.eye(d), np.empty((0, d)), np.empty((0, 1)), False)
        self.samples = Samples(d, self.radius)

    def say(self, text: str, detail: bool = False) -> None:
        self.tell(Step.of(self, text))

    def note(self, proposer: str, candidates: int, note: str) -> None:
        """One more line of the history."""
        relative = self.best.rms / self.known.scale if self.known.scale > 0 else 0.0
        line = Round(len(self.history) + 1, proposer, self.oracle.queries, candidates, self.model.count, relative, note)
        self.history.append(line)
        self.say(str(line))

    # -- what follows from it --------------------------------------------------------------------------------

    @property
    def reach(self) -> float:
        return float("inf") if self.oracle.reach is None else self.oracle.reach

    @property
    def inner_dim(self) -> int:
        return len(self.known.basis)

    @property
    def is_wide(self) -> bool:
        """Many inputs times many outputs: a layer of a network, perhaps of thousands of features."""
        return self.inner_dim * (self.oracle.outputs or 1) >= 10_000

    @property
    def best(self) -> Evaluation:
        """The fit so far, once there is one."""
        assert self.judged is not None
        return self.judged

    @property
    def model(self) -> Model:
        return self.best.model

    @property
    def ample(self) -> float:
        """An error that leaves room to spare below the tolerance."""
        return 0.5 * self.tolerance * self.known.scale + self.loud

    @property
    def loud(self) -> float:
        """What noise alone may do to the worst answer of a certificate, or of those held out."""
        return max_noise_quantile(max(_RESERVE, self.samples.held_out[1].size)) * self.known.noise

    @property
    def rounding(self) -> float:
        """Errors below this are those of the arithmetic: of the answers in the ball and of a sum over it."""
        return 64.0 * self.oracle.rounding * self.known.largest

    def allowance(self) -> float:
        """Queries that search and fit may still spend."""
        if self.oracle.max_queries is None:
            return float("inf")
        return max(0.0, self.oracle.remaining - min(_RESERVE, self.oracle.max_queries // 4))

    def ask(self, stage: str) -> Ask:
        """The oracle inside the subspace."""
        basis = self.known.basis
        if len(basis) == self.oracle.dim:  # the identity: the bits of the questions stay as they are
            return self.oracle.counted(stage)
        return lambda Y: self.oracle(turned(Y, basis), stage=stage)

    def error_bars(self) -> ErrorBars:
        variance = max(self.best.rms, self.known.noise) ** 2
        return error_bars(self.model, *self.samples.train, variance)

    def _aim(self) -> FitGoal:
        fine = int(2 ** np.ceil(np.log2(max(4.0 * self.radius * self.known.bandwidth / np.pi / 1.5, 16.0))))
        return FitGoal(
            error=0.2 * self.tolerance * self.known.scale + (self.stated_noise or 0.0) + self.rounding,
            noise=self.known.noise,
            intervals=min(fine, 128),
        )

    def _verdict(self, fitted: Fitted) -> Evaluation:
        return evaluate(fitted, self.samples, self._aim())

    # -- the subspace ----------------------------------------------------------------------------------------

    def survey(self) -> None:
        """Scale, noise, bandwidth, subspace; from here on all work is done inside that subspace."""
        rng = self.streams("survey")
        self._work_in(survey(self.oracle, self.radius, self.stated_noise, rng, tolerance=self.tolerance))
        self.say(
            f"survey: standard deviation {self.known.scale:.3g}, noise {self.known.noise:.1e}, "
            f"bandwidth {self.known.bandwidth:.3g}, {self.inner_dim} of {self.oracle.dim} dimensions matter"
        )

    def extend(self, basis: Floats) -> None:
        """Go on in a larger subspace: the features stay, points asked inside the smaller one are set aside."""
        model, extra = self.model, len(basis) - self.inner_dim
        wider = np.concatenate([model.directions, np.zeros((model.count, extra))], axis=1)
        coefficients = np.concatenate([model.coefficients, np.zeros((extra, model.outputs))])
        self._work_in(replace(self.known, basis=basis))
        moved = replace(model, directions=wider, coefficients=coefficients)
        self.judged = self._verdict(levenberg_marquardt(moved, *self.samples.train, LMOptions(steps=0)))
        self.new_ground = True

    def _work_in(self, known: Survey) -> None:
        """In the survey's subspace, with the survey's points as the first."""
        self.known = known
        self.samples = Samples(self.inner_dim, self.radius)
        self.samples.add(known.points @ known.basis.T, known.values, weight=CROWDED)

    def use_identity(self) -> None:
        """Back to the full space, where the paper's route has worked."""
        if self.inner_dim < self.oracle.dim:
            self.known = replace(self.known, basis=np.eye(self.oracle.dim))
            self.samples = Samples(self.oracle.dim, self.radius)
            self.samples.add(self.known.points, self.known.values)

    def keep_some(self, X: Floats, answers: Floats) -> None:
        """A few answers of each of the paper's large batches, for the verdict and the error bars."""
        inside = np.flatnonzero(np.einsum("md,md->m", X, X) <= self.radius**2)[:64]
        self.samples.add(X[inside] @ self.known.basis.T, answers[inside])

    # -- the model -------------------------------------------------------------------------------------------

    def fit_affine(self) -> None:
        """The model without features."""
        X, Y = self.samples.train
        model = Model.start(np.empty((0, self.inner_dim)), self.radius, 16, Y.shape[1])
        self.judged = self._verdict(levenberg_marquardt(model, X, Y) if len(X) else _as_it_is(model, 0.0))

    def take(self, model: Model) -> None:
        """A model as it is, from elsewhere."""
        self.judged = self._verdict(_as_it_is(model, float("nan")))

    def join(self, candidates: Floats, note: str, proposer: str = "fit", kinks: tuple[Floats, ...] = ()) -> None:
        """Fit model and candidates (k, d) together, and keep that where held-out points agree better."""
        number, before = len(self.history) + 1, self.best
        aim = replace(self._aim(), restarts=2 if proposer == "random" else 0)
        judge = Fitter(self.ask("fit"), self.samples, aim, self.streams("fit", number), self.allowance, self.say)
        proposed = before.model.join(candidates, aim.intervals, kinks) if len(candidates) else before.model
        now = judge.fit(proposed, len(candidates)) if len(candidates) else before
        as_proposed = bool(len(candidates)) and now.directions_as_proposed
        if self.max_features is not None and now.model.count > self.max_features:
            now = self._verdict(self._strongest(now.model, self.max_features))
        if now.rms <= before.rms or now.meets_goal:
            self.judged, self.untouched = now, as_proposed and self.spread <= 0.1 * self.tolerance
        self.note(proposer, len(candidates), note)

    def _strongest(self, model: Model, count: int) -> Fitted:
        """The `count` strongest features, refitted."""
        strength = np.array([model.response(i, False).without_affine()[0].rms() for i in range(model.count)])
        keep = np.sort(np.argsort(-strength)[:count])
        return levenberg_marquardt(model.keep(keep), *self.samples.train, LMOptions(steps=8))

    def firm(self, answered: Iterable[tuple[Floats, Floats]]) -> bool:
        """More points, and another look at the responses; False where that did not help or cannot be paid for.

        `answered` are points that were asked for another purpose, with their answers: the fit may have them now.
        """
        if self.allowance() < 50:
            return False
        if self.wide is not None:
            return self._firm_wide(self.wide)
        for points, answers in answered:
            self.samples.add(points, answers)
        rng = self.streams("firm", self.samples.count)
        judge = Fitter(self.ask("fit"), self.samples, self._aim(), rng, self.allowance, self.say)
        now = judge.refit_with_more_points(self.model, keep_directions=self.untouched)
        if now.rms > 2.0 * self.best.rms:
            return False
        self.judged = now
        return True

    # -- a wide layer ----------------------------------------------------------------------------------------

    def join_wide(self, seen: KinkProposal | Floats, note: str, proposer: str) -> None:
        """Responses for more features than a joint fit can turn: directions as seen from far away, or (k, d) alone."""
        rng, error, known = self.streams("wide", 0), self._aim().error, self.known
        if isinstance(seen, KinkProposal):
            self.wide = WideLayer.from_far_field(seen, self.radius, self.reach, error, rng)
        else:
            step = min((48.0 * known.noise / known.scale) ** 0.25 / known.bandwidth, 0.1 * self.radius)
            self.wide = WideLayer.from_directions(self.ask("fit"), seen, self.radius, error, step, known.noise, rng)
        intervals = self.wide.enough_intervals(self.ask("fit"), rng)
        self._fit_wide(self.wide, intervals)
        if self.best.sup > self.ample and intervals < MAX_INTERVALS and self.wide.where.possible.any():
            self._fit_wide(self.wide, 2 * intervals)
        self.note(proposer, self.wide.count, note)

    def _fit_wide(self, wide: WideLayer, intervals: int) -> None:
        rng = self.streams("wide", intervals)
        self.take(wide.fit(self.ask("fit"), self.samples, intervals, self.allowance(), rng))
        self.say(
            f"{self.model.count} responses on {self.model.intervals[0]} intervals, "
            f"held-out sup {self.best.sup / self.known.scale:.1e}"
        )

    def _firm_wide(self, wide: WideLayer) -> bool:
        intervals = int(self.model.intervals[0])
        if intervals >= MAX_INTERVALS or not wide.where.possible.any():
            return False
        self._fit_wide(wide, 2 * intervals)
        return True


def _as_it_is(model: Model, cost: float) -> Fitted:
    return Fitted(Linear(model, None, cost), 0.0, 0, True)
