"""One extraction in progress: what is known, what has been fitted, what was spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .certify import certify
from .diagnose import diagnose
from .errors import BudgetExhausted
from .fit.data import Samples, held_out_error
from .fit.errorbars import ErrorBars, error_bars
from .fit.gauge import canonical
from .fit.judge import FINAL, Aim, Judge, Judged, many
from .fit.linear import Linear
from .fit.model import Model
from .fit.solve import Fitted, levenberg_marquardt
from .geometry import Floats, random_directions
from .oracle.base import Oracle
from .paper_route import learn_model
from .progress import Step, Tell
from .query.recipe import turned
from .randomness import Streams
from .result import Certificate, Checks, Extraction, Plane, Round
from .search import propose_with
from .search.base import Proposal, Setting
from .search.kinks import KinkProposal
from .survey import Survey, survey
from .wide import FINEST, MANY, WideLayer
from .widen import missed_directions

_RESERVE = 1500
"""Queries kept back for the certificate."""
_ATTEMPTS = 4
_MOST_ROUNDS = 12
_CROWDED = 0.1
"""Worth to the fit of one point of a search."""


class Run:
    """State of one extraction; `extract` drives it."""

    def __init__(
        self,
        oracle: Oracle,
        *,
        radius: float,
        tolerance: float,
        noise: float | None,
        confidence: float,
        max_features: int | None,
        streams: Streams,
        seed: str,
        tell: Tell,
    ) -> None:
        self.oracle, self.radius, self.tolerance, self.stated_noise = oracle, radius, tolerance, noise
        self.confidence, self.max_features, self.streams, self.seed = confidence, max_features, streams, seed
        self._tell = tell
        self.history: list[Round] = []
        self.planes: list[Plane] = []
        self.judged: Judged | None = None
        self.certificate: Certificate | None = None
        self.checks: tuple[Checks, Floats] | None = None
        """The certificate's queries, and the lines that they went along."""
        self._spent: list[tuple[Floats, Floats]] = []
        """Points and answers of the last certificate."""
        self._untouched = False
        """Do directions stand where a search put them?"""
        self._looked_closer = False
        """Have responses been looked at once more for the sake of directions?"""
        self.stopped = ""
        self.known = Survey(
            0.0, 1e-300, 1.0, True, np.eye(oracle.dim), np.empty((0, oracle.dim)), np.empty((0, 1)), False
        )
        self.samples = Samples(oracle.dim, radius)
        self._failures = 0
        self._looked_outside = 0
        """Size of the subspace when what it might have missed was last looked for."""
        self.new_ground = True
        """Has nothing been searched since the subspace was found or widened?"""
        self._wide: WideLayer | None = None
        """More features than a joint fit can turn, where there are."""
        self.crowded = False
        """Has a proposer seen more features than it could tell apart?"""

    def say(self, text: str) -> None:
        self._tell(Step.of(self, text))

    # -- the steps of the loop ------------------------------------------------------------------------------

    def survey(self) -> None:
        """Scale, noise, bandwidth, subspace; from here on all work is done inside that subspace."""
        self.known = survey(self.oracle, self.radius, self.stated_noise, self.streams("survey"))
        self.samples = Samples(self.inner_dim, self.radius)
        self.samples.add(self.known.points @ self.known.basis.T, self.known.values, worth=_CROWDED)
        self.say(
            f"survey: standard deviation {self.known.scale:.3g}, noise {self.known.noise:.1e}, "
            f"bandwidth {self.known.bandwidth:.3g}, {self.inner_dim} of {self.oracle.dim} dimensions matter"
        )

    def fit_affine(self) -> None:
        """The model without features: where it does, there is nothing to search for."""
        self.judged = self._verdict(self._affine())
        if self.inner_dim == 1 and not self.judged.done:
            self._judge(np.ones((1, 1)), "the only direction")

    def _affine(self) -> Fitted:
        X, Y = self.samples.train
        model = Model.start(np.empty((0, self.inner_dim)), self.radius, 16, Y.shape[1])
        if not len(X):
            return Fitted(Linear(model, None, 0.0), 0.0, 0, True)
        return levenberg_marquardt(model, X, Y)

    def round(self, proposers: tuple[str, ...]) -> None:
        """Propose on the residual, fit all together, and note what it brought."""
        number = len(self.history) + 1
        self.new_ground, self.certificate = False, None
        found, notes = [], []
        kinks: tuple[Floats, ...] = ()
        explained: list[Callable[[Floats], Floats]] = []
        for name in proposers:
            if explained and self._is_explained(explained):
                break
            most = self._cap(name, number)
            self.oracle.expect(most, stage=name)
            proposal = propose_with(
                name,
                self._residual(name, explained),
                self._setting(),
                queries=most,
                rng=self.streams(name, number),
                known=self.model.directions,
            )
            self.crowded |= proposal.crowded
            self.planes += [replace(p, basis=p.basis @ self.known.basis, round=number) for p in proposal.planes]
            found.append(proposal.directions)
            kinks += proposal.at or (np.empty(0),) * len(proposal.directions)
            explained += [proposal.explains] if proposal.explains is not None else []
            notes.append(f"{name}: {proposal.note}")
            self.say(f"{name}: {len(proposal.directions)} candidates; {proposal.note}")
        candidates = np.concatenate(found)
        if self.is_wide and len(candidates) > MANY and not self.model.count:
            self._judge_wide(proposal if proposers == ("zoom",) else candidates, proposers[-1], "; ".join(notes))
            return
        if self.max_features is not None:
            candidates, kinks = candidates[: 2 * self.max_features], kinks[: 2 * self.max_features]
        before = self.judged
        self._judge(candidates, "; ".join(notes), "+".join(proposers), kinks)
        assert before is not None
        assert self.judged is not None
        improved = self.judged.rms < 0.8 * before.rms
        self._failures = 0 if improved else self._failures + 1

    @property
    def is_wide(self) -> bool:
        """Many inputs times many outputs: a layer of a network, perhaps of thousands of features."""
        return self.inner_dim * (self.oracle.outputs or 1) >= 10_000

    def _judge_wide(self, seen: Proposal | Floats, proposer: str, note: str) -> None:
        """Responses for more features than a joint fit can turn: directions as seen."""
        rng, error, known = self.streams("wide", 0), self._aim().error, self.known
        if isinstance(seen, KinkProposal):
            self._wide = WideLayer.of(seen, self.radius, self.reach, error, rng)
        else:
            V = seen.directions if isinstance(seen, Proposal) else seen
            step = min((48.0 * known.noise / known.scale) ** 0.25 / known.bandwidth, 0.1 * self.radius)
            self._wide = WideLayer.near(self.ask("fit"), V, self.radius, error, step, known.noise, rng)
        intervals = self._wide.enough_intervals(self.ask("fit"), rng)
        self._fit_wide(intervals)
        assert self.judged is not None
        if self.judged.sup > self._ample and intervals < FINEST and self._wide.where.possible.any():
            self._fit_wide(2 * intervals)
        self._note(proposer, self._wide.count, note)

    def _fit_wide(self, intervals: int) -> None:
        assert self._wide is not None
        rng = self.streams("wide", intervals)
        model = self._wide.fit(self.ask("fit"), self.samples, intervals, self._allowance(), rng)
        self.judged = self._verdict(Fitted(Linear(model, None, float("nan")), 0.0, 0, True))
        self.say(
            f"{model.count} responses on {model.intervals[0]} intervals, "
            f"held-out sup {self.judged.sup / self.known.scale:.1e}"
        )

    def paper(self) -> None:
        """One round of the paper's own route; its model is taken as it is."""
        model, note = learn_model(self.oracle, self.radius, self.stated_noise, self._keep_some, self.streams("paper"))
        self._use_identity()
        self.judged = self._verdict(Fitted(Linear(model, None, float("nan")), 0.0, 0, True))
        self._note("paper", model.count, note)
        self.stopped = "Finished: the paper's route ran to its end."

    def _keep_some(self, X: Floats, answers: Floats) -> None:
        """A few answers of each of the paper's large batches, for the verdict and the error bars."""
        inside = np.flatnonzero(np.einsum("md,md->m", X, X) <= self.radius**2)[:64]
        self.samples.add(X[inside] @ self.known.basis.T, answers[inside])

    def _use_identity(self) -> None:
        """Back to the full space, where the paper's route has worked."""
        if self.inner_dim < self.oracle.dim:
            self.known = replace(self.known, basis=np.eye(self.oracle.dim))
            self.samples = Samples(self.oracle.dim, self.radius)
            self.samples.add(self.known.points, self.known.values)

    def certified(self) -> bool:
        """Is the fit good enough, and do fresh queries agree with room to spare? If not: more points."""
        close = self.tolerance * self.known.scale + 4.0 * self.known.noise + self._rounding
        if self.judged is None or self.judged.sup > close:
            if self.history and self._looked_outside != self.inner_dim:
                self._looked_outside = self.inner_dim
                self._widened()
            return False
        for attempt in range(_ATTEMPTS):
            self._certify(attempt)
            assert self.certificate is not None
            ample = self.certificate.met and self.certificate.sup_seen <= self._ample
            if (ample and not self._vague()) or (self.certificate.met and attempt == _ATTEMPTS - 1):
                break
            self.say(f"certificate attempt {attempt + 1}: {self.certificate.sentence}")
            if self._widened() or attempt == _ATTEMPTS - 1 or not self._firmed_up():
                break
        if self.certificate is not None and self.certificate.met:
            self.stopped = "Certified: fresh queries agree with the model to the tolerance."
            return True
        return False

    def _vague(self) -> bool:
        """Is a direction not yet known to a tenth of the tolerance, though knots and not noise are what limits it?

        Asked once: where one more look at the responses does not help, nothing will. Where steps take long, not at all.
        """
        if self._untouched or self._looked_closer or self._is_noisy or many(self.model):
            return False
        self._looked_closer = True
        return bool(2.0 * self._error_bars().angle.max(initial=0.0) > 0.1 * self.tolerance)

    @property
    def _is_noisy(self) -> bool:
        assert self.judged is not None
        return self.judged.rms <= 3.0 * self.known.noise

    def stuck(self) -> bool:
        """Is there nothing to search, nothing to pay with, or no progress?"""
        if self.known.scale == 0.0:
            self.stopped = (
                "Stopped: f does not vary over the ball, or gave no answers there; there is nothing to search."
            )
            return True
        if self.oracle.max_queries is not None and self._allowance() < 50:
            self.stopped = (
                f"Budget exhausted: {self.oracle.queries:,} of max_queries={self.oracle.max_queries:,} are spent or "
                "kept for the certificate. Raise max_queries, or loosen the tolerance."
            )
            return True
        if self._wide is not None:
            self.stopped = (
                f"Stopped: {self.model.count:,} features were seen, too many to turn in a joint fit, and "
                "their responses did not reach the tolerance. Their directions stand; try a looser tolerance."
            )
            return True
        if len(self.history) >= _MOST_ROUNDS:
            self.stopped = f"Stopped: {_MOST_ROUNDS} rounds did not reach the tolerance."
            return True
        if self._failures >= 3:
            self.stopped = "Stopped: three rounds in a row brought no better fit."
            return True
        return False

    def conclude(self) -> None:
        """The last certificate, where none stands yet."""
        if self.certificate is None:
            self._certify(9)

    def ran_out(self, stop: BudgetExhausted) -> None:
        """The budget is spent: keep what is known and say so."""
        self.stopped = f"Budget exhausted: {stop}"
        if self.judged is None:
            self.judged = self._verdict(self._affine())
        if self.certificate is None:
            self._certify(9)

    def interrupted(self) -> Extraction:
        """What is known at this point, without another query, hence without a certificate."""
        self.stopped = f"Interrupted after {self.oracle.queries:,} queries."
        if self.judged is None:
            self.judged = self._verdict(self._affine())
        if self.certificate is None:
            self._certify(9, queries=0)
        return replace(self.result(), diagnosis="")  # a run that was cut short says nothing about f

    # -- the fit ---------------------------------------------------------------------------------------------

    @property
    def reach(self) -> float:
        return float("inf") if self.oracle.reach is None else self.oracle.reach

    @property
    def inner_dim(self) -> int:
        return len(self.known.basis)

    @property
    def model(self) -> Model:
        assert self.judged is not None
        return self.judged.model

    def ask(self, stage: str) -> Callable[[Floats], Floats]:
        """The oracle inside the subspace."""
        basis = self.known.basis
        if len(basis) == self.oracle.dim:  # the identity: the bits of the questions stay as they are
            return self.oracle.counted(stage)
        return lambda Y: self.oracle(turned(Y, basis), stage=stage)

    def _residual(self, stage: str, explained: list[Callable[[Floats], Floats]]) -> Callable[[Floats], Floats]:
        """What the model, and this round's earlier proposals, leave of f; answers join the samples."""
        ask, model, samples, parts = self.ask(stage), self.model, self.samples, list(explained)

        def residual(Y: Floats) -> Floats:
            answers = ask(Y)
            samples.add(Y, answers, thin=_thinning(len(Y)), worth=_CROWDED)
            left = answers - model.predict(Y) if model.count else answers
            return left - sum(part(Y) for part in parts) if parts else left

        return residual

    def _is_explained(self, parts: list[Callable[[Floats], Floats]]) -> bool:
        """Do model and proposals leave only an affine function of the points asked so far?"""
        X, Y = self.samples.train
        left = Y - self.model.predict(X) - sum(part(X) for part in parts)
        flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        left = left - flat @ np.linalg.lstsq(flat, left, rcond=None)[0]
        return float(np.abs(left).max()) <= 0.1 * self.tolerance * self.known.scale

    def _setting(self) -> Setting:
        assert self.judged is not None
        found = self.model.count > 0
        return Setting(
            dim=self.inner_dim,
            outputs=self.oracle.outputs or 1,
            radius=self.radius,
            reach=self.radius if found else self.reach,  # beyond the ball the model, hence the residual, means nothing
            scale=self.judged.rms if found else self.known.scale,
            noise=self.known.noise,
            bandwidth=self.known.bandwidth,
            gradient=self._gradient() if self.oracle.has_gradient and not found else None,
        )

    def _gradient(self) -> Callable[[Floats], Floats]:
        basis = self.known.basis
        return lambda Y: self.oracle.gradient(turned(Y, basis), stage="gradient") @ basis.T

    def _cap(self, name: str, number: int) -> int:
        """Queries one proposer may spend: some thirty for each parameter of 2d features, doubling with the rounds.

        Planes, where nothing cheaper has helped, twenty times as many at first, doubling each time they are asked.
        """
        d = self.inner_dim
        turns = 1 + sum(line.proposer == "slices" for line in self.history) if name == "slices" else number
        most = 30 * 2 * d * (d + 16) * 2 ** (turns - 1) * (20 if name == "slices" else 1)
        return int(max(0, min(most, self._allowance())))

    @property
    def _ample(self) -> float:
        """An error that leaves room to spare below the tolerance."""
        return 0.5 * self.tolerance * self.known.scale + 4.0 * self.known.noise

    @property
    def _rounding(self) -> float:
        """Errors below this are those of the arithmetic: of the answers in the ball and of a sum over it."""
        return 64.0 * self.oracle.rounding * self.known.largest

    def _allowance(self) -> float:
        if self.oracle.max_queries is None:
            return float("inf")
        return max(0.0, self.oracle.remaining - min(_RESERVE, self.oracle.max_queries // 4))

    def _aim(self) -> Aim:
        fine = int(2 ** np.ceil(np.log2(max(4.0 * self.radius * self.known.bandwidth / np.pi / 1.5, 16.0))))
        return Aim(
            error=0.2 * self.tolerance * self.known.scale + (self.stated_noise or 0.0) + self._rounding,
            noise=self.known.noise,
            intervals=min(fine, 128),
        )

    def _judge(self, candidates: Floats, note: str, proposer: str = "fit", kinks: tuple[Floats, ...] = ()) -> None:
        number = len(self.history) + 1
        before = self.judged
        assert before is not None
        aim = replace(self._aim(), rebirths=2 if proposer == "random" else 0)
        judge = Judge(self.ask("fit"), self.samples, aim, self.streams("fit", number), self._allowance, self.say)
        proposed = before.model.join(candidates, aim.intervals, kinks) if len(candidates) else before.model
        now = judge.run(proposed, len(candidates)) if len(candidates) else before
        if self.max_features is not None and now.model.count > self.max_features:
            now = self._verdict(self._strongest(now.model, self.max_features))
        if now.rms <= before.rms or now.done:
            self.judged, self._untouched = now, judge.untouched
        self._note(proposer, len(candidates), note)

    def _strongest(self, model: Model, count: int) -> Fitted:
        """The `count` strongest features, refitted."""
        strength = np.array([model.response(i, False).without_affine()[0].rms() for i in range(model.count)])
        keep = np.sort(np.argsort(-strength)[:count])
        return levenberg_marquardt(model.keep(keep), *self.samples.train, steps=8)

    def _note(self, proposer: str, candidates: int, note: str) -> None:
        """One more line of the history."""
        assert self.judged is not None
        relative = self.judged.rms / self.known.scale if self.known.scale > 0 else 0.0
        line = Round(len(self.history) + 1, proposer, self.oracle.queries, candidates, self.model.count, relative, note)
        self.history.append(line)
        self.say(str(line))

    def _verdict(self, fitted: Fitted) -> Judged:
        rms, sup = held_out_error(fitted.model, self.samples)
        aim = self._aim()
        return Judged(fitted, rms, sup, sup <= max(aim.error, 4.0 * aim.noise))

    def _firmed_up(self) -> bool:
        """More points, and another look at the responses; False where that did not help or cannot be paid for."""
        before = self.judged
        assert before is not None
        if self._allowance() < 50:
            return False
        if self._wide is not None:
            if int(self.model.intervals[0]) >= FINEST or not self._wide.where.possible.any():
                return False
            self._fit_wide(2 * int(self.model.intervals[0]))
            self.certificate = None
            return True
        for points, answers in self._spent:
            self.samples.add(points, answers)
        self._spent = []
        rng = self.streams("firm", self.samples.count)
        judge = Judge(self.ask("fit"), self.samples, self._aim(), rng, self._allowance, self.say)
        now = judge.firm(self.model, self._untouched)
        if now.rms > 2.0 * before.rms:
            return False
        self.judged, self.certificate = now, None
        return True

    def _widened(self) -> bool:
        """Did the subspace miss a direction? If so it joins, and the search goes on with it."""
        d, basis = self.oracle.dim, self.known.basis
        if len(basis) == d:
            return False
        rng = self.streams("widen", len(basis))
        found = missed_directions(self.oracle, self.model, self.known, self.radius, rng)
        if not len(found):
            return False
        self._use_basis(np.concatenate([basis, found]))
        self.new_ground, self.certificate = True, None
        self.say(f"fresh queries show {len(found)} more dimensions that matter: {self.inner_dim} of {d}")
        return True

    def _probes(self, attempt: int) -> Floats:
        """Random directions for the certificate to go along, since points of a ball hardly move along any."""
        r = self.inner_dim
        return random_directions(min(2 * r, 64), r, self.streams("probe", attempt + 16 * len(self.history)))

    def _use_basis(self, basis: Floats) -> None:
        """Go on in a larger subspace: the features stay, points asked inside the smaller one are set aside."""
        model, extra = self.model, len(basis) - self.inner_dim
        wider = np.concatenate([model.directions, np.zeros((model.count, extra))], axis=1)
        coefficients = np.concatenate([model.coefficients, np.zeros((extra, model.outputs))])
        self.known = replace(self.known, basis=basis)
        self.samples = Samples(self.inner_dim, self.radius)
        self.samples.add(self.known.points @ basis.T, self.known.values, worth=_CROWDED)
        moved = replace(model, directions=wider, coefficients=coefficients)
        self.judged = self._verdict(levenberg_marquardt(moved, *self.samples.train, steps=0))

    def _certify(self, attempt: int, queries: int | None = None) -> None:
        basis, model = self.known.basis, self.model
        self._spent = []
        lines = np.concatenate([model.directions, self._probes(attempt)]) @ basis
        kept: list[Checks] = []
        self.certificate = certify(
            self.oracle,
            lambda U: model.predict(U @ basis.T),
            lines,
            radius=self.radius,
            tolerance=self.tolerance,
            noise=self.stated_noise if self.stated_noise is not None else 3.0 * self.known.noise + self._rounding,
            confidence=self.confidence,
            scale=self.known.scale,
            rng=self.streams("certify", attempt + 16 * len(self.history)),
            queries=queries,
            keep=kept.append,
            record=self._record,
        )
        self.checks = (kept[0].thinned(), lines) if kept else None

    def _record(self, U: Floats, answers: Floats) -> None:
        """The certificate's answers are set aside: a fit may have them once they no longer count as fresh."""
        self._spent.append((U @ self.known.basis.T, answers))

    # -- the result ------------------------------------------------------------------------------------------

    def result(self) -> Extraction:
        assert self.judged is not None
        assert self.certificate is not None
        scalar = bool(self.oracle.scalar)
        features, bias, slope = canonical(self.model, self._error_bars(), self.known.basis, scalar=scalar)
        return Extraction(
            features=features,
            bias=bias,
            slope=slope,
            radius=self.radius,
            center=self.oracle.center,
            scale=self.oracle.scale,
            certificate=self.certificate,
            queries=self.oracle.queries,
            queries_by_stage=dict(self.oracle.queries_by_stage),
            history=tuple(self.history),
            diagnosis=diagnose(self.known, self.judged, self.certificate, features, self.stopped),
            stopped=self.stopped,
            deterministic=self.known.deterministic,
            dropped=self.oracle.dropped,
            seed=self.seed,
            planes=tuple(self.planes),
            checks=self._checks_along(np.array([f.direction for f in features])),
        )

    def _error_bars(self) -> ErrorBars:
        assert self.judged is not None
        variance = max(self.judged.rms, self.known.noise) ** 2
        return error_bars(self.model, *self.samples.train, variance, FINAL)

    def _checks_along(self, directions: Floats) -> Checks | None:
        """The certificate's queries, told by the features of the result."""
        return self.checks[0].seen_from(self.checks[1], directions) if self.checks is not None else None


def _thinning(count: int) -> int:
    """Keep every k-th answer of a large search, so that the fit is not swamped by one stencil or plane."""
    return max(1, count // 4096)
