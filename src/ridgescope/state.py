"""Where one extraction stands: what is known of f, the points asked so far, the model, and how that model grows.

run_survey                scale, noise, bandwidth, and the subspace in which all further work is done
fit_affine                the model without features
fit                       candidate directions join the model, all features are fitted together, and those that do
                          not pay are pruned; a wide layer goes its own way, responses one by one
refit_with_more_points    the same features, more points, finer responses where they help
enlarge_subspace          the same features in a larger subspace
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from .deadline import check_time
from .failures import Failure, attempt
from .feature import Plane, Round
from .fit.closed_bars import error_bars_of
from .fit.context import Evaluation, FitGoal, evaluate
from .fit.errorbars import ErrorBars
from .fit.fitter import Fitter
from .fit.gated_fit import points_of
from .fit.gated_form import GatedModel
from .fit.levenberg_marquardt import Fitted, LMOptions, levenberg_marquardt
from .fit.model import Model
from .fit.pruning import strongest_features
from .fit.samples import Samples
from .geometry import Floats
from .known_directions import KnownDirections, restore_directions
from .noise import max_noise_quantile
from .oracle.base import Oracle
from .progress import Report, Step
from .randomness import Streams
from .search import Ask, Candidates
from .search.base import GatedCandidates
from .structure import SHARP_DROP, Evidence
from .survey import Recorder, Survey, run_survey
from .wide.closed_layer import ClosedLayer
from .wide.layer import CLOSED_FEATURES, WIDE_FEATURES, WideLayer
from .wide.polished_bars import polished_bars
from .wide_rounds import fit_wide_layer, refine_wide_layer

T = TypeVar("T")

SEARCH_POINT_WEIGHT = 0.1
"""Sample weight of search points relative to fit points: ten as close together as those of a stencil count as one."""
CERTIFICATE_RESERVE = 1500
"""Queries kept back for the certificate: 459 uniform ones, 160 of local search, twelve for each of some 70 features."""
RESERVED_SHARE = 4
"""A certificate never keeps back more than one part in so many of a small budget."""
LEAST_ALLOWANCE = 50
"""Queries without which neither a proposer nor a fit can do anything."""
WIDE_PRODUCT = 10_000
"""Inputs × outputs from which on f is treated as a wide layer, whose joint Jacobian does not fit into memory."""
SMOOTHEST_INTERVALS, FINEST_START = 16, 128
"""Spline intervals of a new feature: at least, and at most; knots beyond that are added where the residual asks."""
POINTS_PER_PERIOD = 1.5
"""The bandwidth is that of 99 % of the power, so that one and a half of its half-periods share one interval."""
GOAL_SHARE = 0.2
"""A fit aims at this share of the tolerance, since held-out points see less than the certificate's local search."""
AMPLE_SHARE = 0.5
"""A certificate with errors below this share of the tolerance has room to spare."""
ROUNDING_UNITS = 64.0
"""Double-precision rounding units of the largest answer that a model's own sum of some hundred terms may be off by."""
REFIT_WORSE = 2.0
"""A refit whose held-out error is larger than this factor times the one before is discarded."""
RANDOM_RESTARTS = 2
"""How often the weakest third of random starts may begin anew."""
EXACT, BEYOND_NOISE = 1e-6, 3.0
"""RMS error over f's standard deviation, and over its noise, up to which closed forms leave nothing to explain."""
PROPOSED_ANGLE_SHARE = 0.1
"""Directions count as good as proposed if their expected error is below this share of the tolerance."""


@dataclass(eq=False, kw_only=True)
class State:
    """What a run has and knows."""

    oracle: Oracle
    radius: float
    tolerance: float
    stated_noise: float | None
    max_features: int | None
    streams: Streams
    report: Report
    max_seconds: float | None = None
    approximate: bool = False
    """Whether to go on where f is no sum of features."""
    survey: Survey = field(init=False)
    samples: Samples = field(init=False)
    evaluation: Evaluation | None = None
    """The model with its errors on held-out points; None before the first fit."""
    wide: WideLayer | None = None
    """The layer, where there are more features than a joint fit can handle."""
    history: list[Round] = field(default_factory=list)
    planes: list[Plane] = field(default_factory=list)
    searched_dim: int = 0
    """Dimension of the subspace in which proposers have looked; 0 before the first round."""
    unresolved: bool = False
    """A proposer has seen more features than it could tell apart."""
    effort_limit: float = float("inf")
    """Queries after which search and fit end, where f may be no sum of features."""
    proposed: int | None = None
    """Features that the only round proposed, where its proposers have evidence that these are all."""
    proposed_by_kinks: bool = False
    """Whether that evidence is kinks of gates rather than derivatives."""
    known: KnownDirections = field(default_factory=KnownDirections.none)
    """Directions whose errors the search has stated."""
    evidence: Evidence | None = None
    """What the tests of structure have measured, once they were made."""
    _fitter: Fitter | None = None
    """The fit that is going on."""
    _bars: dict[tuple[Evaluation, int], ErrorBars] = field(default_factory=dict)  # of one fit and number of samples

    def __post_init__(self) -> None:
        self.survey, self.samples = Survey.unknown(self.oracle.dim), Samples(self.oracle.dim, self.radius)

    def say(self, text: str, detail: bool = False) -> None:
        """Report one line of progress; `detail` lines are for those who ask for them."""
        now, count = self.evaluation, len(self.history)
        residual = self.residual if now is not None and self.survey.std > 0 else float("nan")
        step = Step.of(self.oracle, text, round=count, residual=residual, tolerance=self.tolerance, detail=detail)
        step.features = now.model.count if now is not None else 0
        self.report(step)

    @property
    def residual(self) -> float:
        """Held-out RMS error of the model, as a fraction of f's standard deviation; 0 where there is neither."""
        known = self.evaluation is not None and self.survey.std > 0
        return self.best.rms / self.survey.std if known else 0.0

    def attempt(self, step: str, action: Callable[[], T]) -> T | None:
        """Return what `action` returns; where it fails, add a line to the history and return None."""
        outcome = attempt(action)
        if not isinstance(outcome, Failure):
            return outcome
        features = self.evaluation.model.count if self.evaluation is not None else 0
        number, queries = len(self.history) + 1, self.oracle.queries
        self.history.append(Round(number, step, queries, 0, features, self.residual, failure=outcome.reason))
        self.say(str(self.history[-1]))
        return None

    def record_round(self, proposer: str, candidates: int, note: str) -> None:
        """Add one line to the history."""
        count, queries = self.model.count, self.oracle.queries
        line = Round(len(self.history) + 1, proposer, queries, candidates, count, self.residual, note)
        self.history.append(line)
        self.say(str(line))

    @property
    def reach(self) -> float:
        """Distance from the centre beyond which nothing may be asked; infinite where anything may."""
        return float("inf") if self.oracle.reach is None else self.oracle.reach

    @property
    def inner_dim(self) -> int:
        """Dimension r of the subspace on which f depends."""
        return len(self.survey.basis)

    @property
    def is_wide(self) -> bool:
        """Many inputs and many outputs: a layer of a network, perhaps with thousands of features."""
        return self.inner_dim * (self.oracle.outputs or 1) >= WIDE_PRODUCT

    @property
    def best(self) -> Evaluation:
        """The fit so far, once there is one."""
        assert self.evaluation is not None
        return self.evaluation

    @property
    def model(self) -> Model:
        """The model so far, once there is one."""
        return self.best.model

    @property
    def ample_error(self) -> float:
        """The error of a certificate that leaves room to spare below the tolerance."""
        return AMPLE_SHARE * self.tolerance * self.survey.std + self.noise_quantile

    @property
    def noise_quantile(self) -> float:
        """What noise alone may add to the worst answer of a certificate, or of those held out."""
        answers = max(CERTIFICATE_RESERVE, self.samples.held_out[1].size)
        return max_noise_quantile(answers) * self.survey.noise

    @property
    def rounding_error(self) -> float:
        """Errors below this are those of the arithmetic: one unit of the answers' own type, and the model's sum."""
        return (self.oracle.rounding + ROUNDING_UNITS * float(np.finfo(np.float64).eps)) * self.survey.largest

    def allowance(self) -> float:
        """Return the number of queries that search and fit may still spend."""
        most = self.oracle.max_queries
        reserve = min(CERTIFICATE_RESERVE, most // RESERVED_SHARE) if most is not None else 0
        return max(0.0, min(self.effort_limit - self.oracle.queries, self.oracle.remaining - reserve))

    def ask(self, stage: str) -> Ask:
        """Return the oracle inside the subspace, as a function of (m, r) points, which may raise OutOfTime."""
        basis = self.survey.basis
        same = self.survey.is_identity  # then the bits of the questions stay as they are

        def ask(Y: Floats) -> Floats:
            check_time()
            return self.oracle(Y if same else Y @ basis, stage=stage)

        return ask

    def error_bars(self) -> ErrorBars:
        """Return the standard errors of directions and responses; they are computed once for a fit and its points."""
        noise = self.survey.noise, self.survey.random_noise
        if (key := (self.best, self.samples.count)) not in self._bars:
            polished = polished_bars(self.best, self.samples) if self.is_polished else None
            bars = polished or error_bars_of(self.best, *points_of(self.samples, self.best.gates), *noise)
            self._bars = {key: self.known.sharpened(bars, self.model.directions @ self.survey.basis)}
        return self._bars[key]

    @property
    def goal(self) -> FitGoal:
        """What a fit has to reach."""
        periods = 4.0 * self.radius * self.survey.bandwidth / np.pi / POINTS_PER_PERIOD
        finest = int(2 ** np.ceil(np.log2(max(periods, float(SMOOTHEST_INTERVALS)))))
        unavoidable = (self.stated_noise or 0.0) + self.rounding_error + self.survey.rounding.deviation
        error = GOAL_SHARE * self.tolerance * self.survey.std + unavoidable
        return FitGoal(error=error, noise=self.survey.noise, intervals=min(finest, FINEST_START))

    @property
    def leaves_only_noise(self) -> bool:
        """Whether closed forms of all features leave no more than noise; True if splines are among them."""
        plain, (X, Y) = self.best.forms, self.samples.held_out
        forms = plain if plain is not None and len(plain.closed) == plain.count else self.best.gates
        if forms is None or not len(X):
            return True
        most = max(EXACT * self.survey.std, BEYOND_NOISE * self.goal.noise)
        return float(np.sqrt(np.mean((Y - forms.predict(X)) ** 2))) <= most

    def _evaluated(self, fitted: Fitted) -> Evaluation:
        return evaluate(fitted, self.samples, self.goal)

    def run_survey(self) -> None:
        """Ask for scale, noise, bandwidth and subspace, in which later work is done; keep answers if it fails."""
        rng, recorder = self.streams("survey"), Recorder(self.oracle)
        try:
            self._work_in(run_survey(recorder, self.radius, self.stated_noise, rng, tolerance=self.tolerance))
        except BaseException:
            self._work_in(recorder.partial_survey(self.radius))
            raise
        self.say(
            f"survey: standard deviation {self.survey.std:.3g}, noise {self.survey.noise:.1e}, "
            f"bandwidth {self.survey.bandwidth:.3g}, f depends on {self.inner_dim} of {self.oracle.dim} dimensions"
        )

    def enlarge_subspace(self, basis: Floats) -> None:
        """Go on in the larger subspace of `basis` (r, d); features stay, points of the smaller one are set aside."""
        model, extra = self.model, len(basis) - self.inner_dim
        self._work_in(replace(self.survey, basis=basis))
        moved, (X, Y) = model.in_larger_space(extra), self.samples.train
        if isinstance(moved, GatedModel) or len(X) < moved.columns:  # too few points for the responses of all features
            fitted = Fitted.without_fit(moved.with_affine_part(X, Y), float("nan"))
        else:
            fitted = levenberg_marquardt(moved, X, Y, LMOptions(steps=0))
        self.evaluation = replace(self._evaluated(fitted), directions_as_proposed=self.best.directions_as_proposed)

    def _work_in(self, survey: Survey) -> None:
        """Work in the survey's subspace, with the survey's points as the first samples."""
        self.survey = survey
        self.samples = Samples(self.inner_dim, self.radius)
        self.samples.add(survey.inside(survey.points), survey.values, weight=SEARCH_POINT_WEIGHT)

    def fit_affine(self) -> None:
        """Fit the affine model; if it suffices, there is nothing to search for."""
        X, Y = self.survey.uniform_samples() or self.samples.train
        model = Model.start(np.empty((0, self.inner_dim)), self.radius, SMOOTHEST_INTERVALS, self.oracle.outputs or 1)
        fitted = levenberg_marquardt(model, X, Y) if len(X) else Fitted.without_fit(model, 0.0)
        self.evaluation = self._evaluated(fitted)

    def fit_without_search(self) -> None:
        """Fit what needs no search: the affine part and, in one dimension, the only direction that there is."""
        self.fit_affine()
        if self.inner_dim == 1 and not self.best.meets_goal:
            self._fit_jointly(Candidates(np.ones((1, 1)), "fit", "the only direction"))

    def use_model(self, model: Model) -> None:
        """Take a model as it is, without a fit."""
        self.evaluation = self._evaluated(Fitted.without_fit(model, float("nan")))

    def fit(self, candidates: Candidates) -> None:
        """Fit the model and the candidates together, prune what does not pay, and add a line to the history."""
        number, self.searched_dim = len(self.history) + 1, self.inner_dim
        self.unresolved = self.unresolved or not candidates.resolved
        first = not self.history or (self.evidence is None and not self.model.count)  # or the first but for a look
        certain = candidates.complete and candidates.drop >= SHARP_DROP and first
        self.proposed = len(candidates.directions) if certain else None
        self.proposed_by_kinks = candidates.gated is not None and candidates.gated.kinks is not None
        self.planes += [replace(p, basis=p.basis @ self.survey.basis, round=number) for p in candidates.planes]
        if candidates.gated is not None:
            self._fit_gated(candidates, candidates.gated)
            return
        if self.is_layer(candidates):
            if not (self.attempt("fit", lambda: self._fit_closed_forms(candidates)) or self.model.count):
                self.attempt("fit", lambda: fit_wide_layer(self, candidates))
            return
        most = 2 * self.max_features if self.max_features is not None else len(candidates.directions)
        only = self.inner_dim == 1 and self.model.count > 0  # the only direction is there already
        self._fit_jointly(candidates.first(0 if only else most))

    def _fit_jointly(self, candidates: Candidates) -> None:
        """Fit all features together, and keep that where held-out points agree better."""
        before, new = self.best, len(candidates.directions)
        fitted = self.attempt("fit", lambda: self._fitted_with(candidates)) if new else None
        now = replace(before, directions_as_proposed=False) if fitted is None else fitted
        if self.max_features is not None and now.model.count > self.max_features:
            limited = self._evaluated(strongest_features(now.model, self.max_features, self.samples))
            now = replace(limited, directions_as_proposed=now.directions_as_proposed)
        if now.rms <= before.rms or now.meets_goal:
            accurate = candidates.angle_error <= PROPOSED_ANGLE_SHARE * self.tolerance
            self.evaluation = replace(now, directions_as_proposed=now.directions_as_proposed and accurate)
        self.known = self.known.extended(candidates.directions @ self.survey.basis, candidates.angle_errors)
        restore_directions(self)
        self.record_round(candidates.proposer, new, candidates.note)

    def _fit_gated(self, candidates: Candidates, gated: GatedCandidates) -> None:
        """Fit gated and plain features together, and keep that where held-out points agree better."""
        self._fitter = fitter = self._make_fitter(self.goal, self.streams("fit", len(self.history) + 1))
        now, self._fitter = self.attempt("fit", lambda: fitter.fit_gated(gated, self.max_features)), None
        if now is not None and (now.rms <= self.best.rms or now.meets_goal):
            self.evaluation = now
        self.record_round(candidates.proposer, len(gated.directions), candidates.note)

    def _fitted_with(self, candidates: Candidates) -> Evaluation:
        """Fit the model and the candidates from where they stand."""
        restarts = RANDOM_RESTARTS * (candidates.proposer == "random")
        goal = replace(self.goal, restarts=restarts, keep_significant=self.proposed is not None)
        proposed = self.model.join(candidates.directions, goal.intervals, candidates.kinks)
        self._fitter = self._make_fitter(goal, self.streams("fit", len(self.history) + 1))
        first, new = self.is_wide and not self.model.count, len(candidates.directions)
        now, self._fitter = self._fitter.fit(proposed, new, others_may_follow=first), None
        return now

    def keep_current_fit(self) -> None:
        """Take the best model of a fit that was cut short, where it is better than the one before."""
        best = self._fitter.best if self._fitter is not None else None
        if best is not None and (self.evaluation is None or best.rms < self.evaluation.rms):
            self.evaluation = best

    def _make_fitter(self, goal: FitGoal, rng: np.random.Generator) -> Fitter:
        return Fitter(self.ask("fit"), self.samples, goal, rng, self.allowance, self.say)

    def refit_with_more_points(self, answered: Iterable[tuple[Floats, Floats]]) -> bool:
        """Refit the same features with more points; return False if that did not help or cannot be paid for.

        `answered` are points that were asked for another purpose, with their answers; they join the samples.
        """
        if self.allowance() < LEAST_ALLOWANCE:
            return False
        if self.wide is not None:
            return refine_wide_layer(self, self.wide)
        for points, answers in answered:
            self.samples.add(points, answers)
        fitter = self._make_fitter(self.goal, self.streams("firm", self.samples.count))
        keep, forms, gates = self.best.directions_as_proposed, self.best.forms, self.best.gates
        if isinstance(self.model, GatedModel):
            now = self.attempt("refit", lambda: fitter.refit_gated(gates)) if gates is not None else None
        elif self.is_polished:
            now = self.attempt("refit", lambda: ClosedLayer.of(fitter).refit(forms))
        else:
            now = self.attempt("refit", lambda: fitter.refit_with_more_points(self.model, keep, forms))
        if now is None or now.rms > REFIT_WORSE * self.best.rms:
            return False
        self.evaluation = replace(now, directions_as_proposed=self.best.directions_as_proposed)
        restore_directions(self)
        return True

    @property
    def is_polished(self) -> bool:
        """Whether the model is a wide layer of closed forms, all of whose unknowns move together."""
        return self.is_wide and self.best.forms is not None and self.model.count > WIDE_FEATURES

    def is_layer(self, candidates: Candidates) -> bool:
        """Whether these are so many features of a wide layer that its own fit is for them."""
        many = self.model.count + len(candidates.directions) > WIDE_FEATURES
        return self.is_wide and many and (self.is_polished or not self.model.count)

    def _fit_closed_forms(self, candidates: Candidates) -> bool:
        """Fit all features as closed forms; return whether these meet the goal, or may for want of other features."""
        first = not self.model.count
        self._fitter = fitter = self._make_fitter(self.goal, self.streams("fit", len(self.history) + 1))
        found = ClosedLayer.of(fitter).extend(self.best.forms, candidates.directions, candidates.kinks)
        if not (found is not None and found.meets_goal) and first and len(candidates.directions) <= CLOSED_FEATURES:
            model = self.model.join(candidates.directions, self.goal.intervals, candidates.kinks)
            found = fitter.fit_closed_forms(model, len(candidates.directions)) or found
        if found is None or (not found.meets_goal and candidates.complete and first):
            return False
        self.evaluation, self._fitter = min(found, self.best, key=lambda fit: (not fit.meets_goal, fit.rms)), None
        self.record_round(candidates.proposer, len(candidates.directions), candidates.note)
        return True
