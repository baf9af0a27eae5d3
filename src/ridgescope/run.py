"""One extraction in progress: the steps of the loop, and when it ends.

Data goes one way: `propose` asks the residual for candidates, `state` fits them, `assure` asks whether that is enough.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .certification import Assurance
from .diagnose import diagnose
from .errors import BudgetExhausted
from .fit.canonical import canonical_features
from .paper_route import learn_model
from .propose import propose
from .result import Extraction
from .state import State
from .wide.layer import WIDE_FEATURES

_MOST_ROUNDS = 12


class Run:
    """One extraction; `extract` drives it."""

    def __init__(self, state: State, *, confidence: float, seed: str) -> None:
        self.state, self.assurance = state, Assurance(state, confidence)
        self.seed, self.stopped = seed, ""
        self._failures = 0
        """Rounds in a row that brought no better fit."""

    # -- the steps of the loop -------------------------------------------------------------------------------

    def survey(self) -> None:
        """What a few cheap questions tell."""
        self.state.survey()

    def fit_affine(self) -> None:
        """The model without features: where it does, there is nothing to search for."""
        self.state.fit_affine()
        if self.state.inner_dim == 1 and not self.state.best.meets_goal:
            self.state.join(np.ones((1, 1)), "the only direction")

    def round(self, proposers: tuple[str, ...]) -> None:
        """Propose on the residual, fit all together, and note what it brought."""
        self.assurance.certificate = None
        state = self.state
        seen = propose(state, proposers)
        if state.is_wide and len(seen.directions) > WIDE_FEATURES and not state.model.count:
            state.join_wide(seen.directions if seen.zoomed is None else seen.zoomed, seen.note, proposers[-1])
            return
        if state.max_features is not None:
            seen = seen.first(2 * state.max_features)
        before = state.best
        state.join(seen.directions, seen.note, "+".join(proposers), seen.kinks)
        improved = state.best.rms < 0.8 * before.rms
        self._failures = 0 if improved else self._failures + 1

    def paper(self) -> None:
        """One round of the paper's own route; its model is taken as it is."""
        state = self.state
        rng = state.streams("paper")
        model, note = learn_model(state.oracle, state.radius, state.stated_noise, state.keep_some, rng)
        state.use_identity()
        state.take(model)
        state.note("paper", model.count, note)
        self.stopped = "Finished: the paper's route ran to its end."

    def certified(self) -> bool:
        """Do fresh queries agree with the model?"""
        if not self.assurance.given():
            return False
        certificate = self.assurance.certificate
        close = "the noise" if certificate is not None and certificate.drowned else "the tolerance"
        self.stopped = f"Certified: fresh queries agree with the model to {close}."
        return True

    def stuck(self) -> bool:
        """Is there nothing to search, nothing to pay with, or no progress?"""
        state, oracle = self.state, self.state.oracle
        if state.known.scale == 0.0:
            self.stopped = (
                "Stopped: f does not vary over the ball, or gave no answers there; there is nothing to search."
            )
            return True
        if oracle.max_queries is not None and state.allowance() < 50:
            self.stopped = (
                f"Budget exhausted: {oracle.queries:,} of max_queries={oracle.max_queries:,} are spent or "
                "kept for the certificate. Raise max_queries, or loosen the tolerance."
            )
            return True
        if state.wide is not None:
            self.stopped = (
                f"Stopped: {state.model.count:,} features were seen, too many to turn in a joint fit, and "
                "their responses did not reach the tolerance. Their directions stand; try a looser tolerance."
            )
            return True
        if len(state.history) >= _MOST_ROUNDS:
            self.stopped = f"Stopped: {_MOST_ROUNDS} rounds did not reach the tolerance."
            return True
        if self._failures >= 3:
            self.stopped = "Stopped: three rounds in a row brought no better fit."
            return True
        return False

    # -- the end ---------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """The last certificate, where none stands yet."""
        self.assurance.conclude()

    def ran_out(self, stop: BudgetExhausted) -> None:
        """The budget is spent: keep what is known and say so."""
        self.stopped = f"Budget exhausted: {stop}"
        if self.state.judged is None:
            self.state.fit_affine()
        self.assurance.conclude()

    def interrupted(self) -> Extraction:
        """What is known at this point, without another query, hence without a certificate."""
        self.stopped = f"Interrupted after {self.state.oracle.queries:,} queries."
        if self.state.judged is None:
            self.state.fit_affine()
        self.assurance.conclude(queries=0)
        return replace(self.result(), diagnosis="")  # a run that was cut short says nothing about f

    def result(self) -> Extraction:
        state, oracle, certificate = self.state, self.state.oracle, self.assurance.certificate
        assert certificate is not None
        scalar = bool(oracle.scalar)
        features, bias, slope = canonical_features(state.model, state.error_bars(), state.known.basis, scalar=scalar)
        return Extraction(
            features=features,
            bias=bias,
            slope=slope,
            radius=state.radius,
            center=oracle.center,
            scale=oracle.scale,
            certificate=certificate,
            queries=oracle.queries,
            queries_by_stage=dict(oracle.queries_by_stage),
            history=tuple(state.history),
            diagnosis=diagnose(state.known, state.best, certificate, features, self.stopped),
            stopped=self.stopped,
            deterministic=state.known.deterministic,
            dropped=oracle.dropped,
            seed=self.seed,
            planes=tuple(state.planes),
            checks=self.assurance.checks_along(np.array([f.direction for f in features])),
        )
