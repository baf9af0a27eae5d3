"""When a run asks for its certificate, and what it does where fresh queries disagree with the model.

Then either the subspace has missed a direction, which joins it, or the same features are refitted with more points;
and fresh queries are asked again, a few times at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from .certificate import Certificate
from .certify import Requirement, certify
from .clusters import split_clusters
from .feature import Checks
from .fit.closed_fit import refit_exact_forms
from .fit.context import EXPENSIVE_UNKNOWNS, Evaluation, is_expensive
from .fit.model import Model
from .fit.samples import ask_along
from .fit.steep_forms import ask_steep
from .geometry import Floats, random_directions
from .missed_subspace import missed_directions
from .noise import max_noise_quantile
from .state import SEARCH_POINT_WEIGHT, State
from .subspace_refinement import refined_subspace

ATTEMPTS = 4
"""Certificates asked in a row, each after another refit; more seldom help, and each costs some 900 queries."""
LAST_ATTEMPT = 9
"""Number in the random stream of the certificate that is asked when a run ends without one."""
ROUNDS_STRIDE = 16
"""Attempts of different rounds have random streams of their own: the stream's number is attempt + 16·rounds."""
TYPICAL_ANSWERS = 1000
"""Answers of a certificate, about."""
NOISE_SHARE = 0.1
"""Share of the tolerance above which noise is allowed for by the quantile of its largest value, not by 3 deviations."""
USUAL_DEVIATIONS = 3.0
NOISY_RMS = 3.0
"""A fit whose error is at most this many deviations of the noise is limited by noise, not by its knots."""
ANGLE_SHARE = 0.1
"""Directions are to be known to this share of the tolerance."""
REFINED_SHARE = 0.5
"""Queries, of those asked so far, that the last digits of the subspace may take."""
ANSWERS_PER_UNKNOWN = 4.0
"""Answers of the fit for each unknown before that: with fewer, one point may be all that shows a steep bend."""
PROBES_PER_DIM, MOST_PROBES = 2, 64
"""Random directions that a certificate goes along beside the features."""


@dataclass(frozen=True)
class CertificationOutcome:
    """What an attempt to certify the model brought."""

    certificate: Certificate | None
    """The certificate of the model as it now stands; None if fresh queries were not asked, or the model has changed
    since they were."""
    new_dimensions: int = 0
    """Dimensions that were found missing and have joined the subspace."""

    @property
    def certified(self) -> bool:
        """Whether the model as it stands is certified."""
        return self.certificate is not None and self.certificate.met

    @property
    def undecided(self) -> bool:
        """Whether noise hides if the model as it stands meets the tolerance."""
        return self.certificate is not None and self.certificate.verdict == "undecided"


@dataclass(eq=False)
class Certifier:
    """Asks for the certificate of a run's model, and keeps what was asked for it."""

    state: State
    confidence: float
    certificate: Certificate | None = None
    """The certificate of the model as it stands, if there is one."""
    _checks: tuple[Checks, Floats] | None = None
    """The certificate's queries, and the lines that they went along."""
    _answered: list[tuple[Floats, Floats]] = field(default_factory=list)
    """Points and answers of the last certificate, which a refit may use."""
    _refitted_for_directions: bool = False
    """A refit for the sake of uncertain directions is made once: where it does not help, a second one will not."""
    _refuted: tuple[Model, Certificate] | None = None
    """The last model that fresh queries have shown not to meet the tolerance, and its certificate."""
    _attempts: int = 0
    """Certificates asked so far; they share the confidence."""
    _refined: Floats | None = None
    """The basis of the subspace that was last refined, or found to be good enough."""
    _outside_dim: int = 0
    """Dimension of the subspace when missing directions were last looked for after a bad fit."""

    def try_certify(self) -> CertificationOutcome:
        """Ask fresh queries if the fit looks good enough; where they disagree, refit and ask again.

        A fit that is not good enough is not certified; the first time in each subspace, directions that the subspace
        has missed are looked for instead.
        """
        state, new = self.state, 0
        unavoidable = max(state.noise_quantile, state.survey.rounding.bound) + state.rounding_error
        close = state.tolerance * state.survey.std + unavoidable
        if state.best.sup > close:
            if state.history and self._outside_dim != state.inner_dim:
                self._outside_dim = state.inner_dim
                new = self._enlarge_subspace()
            return CertificationOutcome(None, new)
        if not state.model.count and self._recall_refuted():
            return CertificationOutcome(self.certificate)
        split_clusters(state)
        self._refine_subspace()
        for attempt in range(ATTEMPTS):
            last = attempt == ATTEMPTS - 1
            certificate = self._certify(attempt)
            ample = certificate.met and certificate.sup_seen <= state.ample_error
            if (ample and not self._refit_for_directions()) or (certificate.met and last):
                break
            state.say(f"certificate attempt {attempt + 1}: {certificate.sentence}")
            if certificate.verdict == "undecided":  # more fresh queries would not decide it within reach
                break
            new = self._enlarge_subspace()
            if new or last or not state.model.count:  # an affine function has nothing that more points would refine
                break
            if not state.refit_with_more_points(self._answered):
                break
            self.discard()
        return CertificationOutcome(self.certificate, new)

    def conclude(self, queries: int | None = None) -> None:
        """Ask for the last certificate where none stands, with `queries` fresh queries (None: the default number)."""
        if self.state.evaluation is None:
            self.state.fit_affine()
        if self.certificate is None and not self._recall_refuted():
            self._certify(LAST_ATTEMPT, queries)

    def _recall_refuted(self) -> bool:
        """Take the certificate of the model as it stands, if it is the one last refuted; return whether it is."""
        if self._refuted is None or self._refuted[0] is not self.state.model:
            return False
        self.certificate = self._refuted[1]
        return True

    def discard(self) -> None:
        """Forget the certificate, since the model is about to change or has changed."""
        self.certificate = None

    def checks_along(self, directions: Floats) -> Checks | None:
        """Return the certificate's queries, each assigned to one of the result's `directions` (n, d)."""
        return self._checks[0].seen_from(self._checks[1], directions) if self._checks is not None else None

    def _certify(self, attempt: int, queries: int | None = None) -> Certificate:
        """Ask fresh queries about the model as it stands."""
        state = self.state
        survey, model, turn = state.survey, state.model, attempt + ROUNDS_STRIDE * len(state.history)
        lines = np.concatenate([model.directions, self._probes(turn)]) @ survey.basis
        self._attempts += 1
        requirement = Requirement(
            radius=state.radius,
            tolerance=state.tolerance,
            noise=state.stated_noise if state.stated_noise is not None else self._noise_bound(),
            sigma=0.0 if survey.deterministic else survey.noise,
            confidence=self.confidence,
            attempt=self._attempts,
            std=survey.std,
        )
        test = certify(
            state.oracle,
            lambda U: model.predict(U @ survey.basis.T),
            lines,
            requirement,
            rng=state.streams("certify", turn),
            queries=queries,
        )
        self.certificate = test.certificate
        if test.certificate.verdict == "not met" and test.certificate.samples:
            self._refuted = model, test.certificate
        self._answered = [(U @ survey.basis.T, answers) for U, answers in test.batches]
        self._checks = (test.checks.thinned(), lines) if test.checks is not None else None
        return test.certificate

    def _noise_bound(self) -> float:
        """What noise and rounding may add to one of the certificate's answers.

        A deterministic function has no noise but rounding, of its answers or inside it, as far as the survey has found
        the format or the quantum: whatever else the model leaves is error.
        """
        state = self.state
        rounding = state.survey.rounding.bound + state.rounding_error
        if state.survey.deterministic:
            return rounding
        noisy = state.survey.noise > NOISE_SHARE * state.tolerance * state.survey.std
        deviations = max_noise_quantile(TYPICAL_ANSWERS) if noisy else USUAL_DEVIATIONS
        return deviations * state.survey.noise + rounding

    def _probes(self, turn: int) -> Floats:
        """Random directions to go along, since uniform points of a ball hardly move along any direction."""
        r = self.state.inner_dim
        return random_directions(min(PROBES_PER_DIM * r, MOST_PROBES), r, self.state.streams("probe", turn))

    def _refit_for_directions(self) -> bool:
        """Use up the one refit for the sake of directions, and return whether it is needed."""
        state = self.state
        noisy = state.best.rms <= NOISY_RMS * state.survey.noise
        forms = state.best.forms
        if forms is None:
            settled = state.best.directions_as_proposed or is_expensive(state.model)
        else:  # their error bars are their own, not those of the splines that stand for them, and so is their cost
            settled = forms.unknowns > EXPENSIVE_UNKNOWNS
        settled = settled or noisy
        if settled or self._refitted_for_directions:
            return False
        self._refitted_for_directions = True
        return bool(2.0 * state.error_bars().angle.max(initial=0.0) > ANGLE_SHARE * state.tolerance)

    def _refine_subspace(self) -> None:
        """Turn the subspace to where fresh queries across it show that it is, if all responses are exactly known."""
        state, basis = self.state, self.state.survey.basis
        forms = state.best.forms
        exact = forms is not None and len(forms.closed) == forms.count and state.survey.deterministic
        if len(basis) == state.oracle.dim or forms is None or not exact or basis is self._refined:
            return
        self._refined = basis
        X, Y = state.samples.unclustered
        missing = int(np.ceil(ANSWERS_PER_UNKNOWN * forms.unknowns / Y.shape[1])) - len(X)
        if 0 < missing <= state.allowance():
            rng = state.streams("exact", len(basis))
            ask_along(state.ask("fit"), state.samples, forms.directions, missing, rng)
            ask_steep(state.ask("fit"), state.samples, forms, state.allowance(), rng)
            now = refit_exact_forms(forms, state.samples, state.goal)
            if not now.meets_goal:
                return
            self._keep_exact(now)
            forms = now.forms or forms
        affordable = min(state.allowance(), REFINED_SHARE * state.oracle.queries)
        rng = state.streams("refine", len(basis))
        turned = refined_subspace(state.oracle, forms, state.survey, affordable, rng)
        if turned is None:
            return
        left, _, right = np.linalg.svd(turned, full_matrices=False)
        self._refined = left @ right  # the orthonormal rows closest to the others
        survey, samples = replace(state.survey, basis=self._refined), state.samples.transformed(self._refined @ basis.T)
        samples.add(survey.inside(survey.points), survey.values, weight=SEARCH_POINT_WEIGHT)
        now = refit_exact_forms(forms, samples, state.goal)
        if now.meets_goal:
            state.survey, state.samples = survey, samples
            self._keep_exact(now)
            state.say(f"fresh queries across the subspace have turned it by {_angle(basis, self._refined):.1e} rad")

    def _keep_exact(self, now: Evaluation) -> None:
        """Take a refit of the same closed forms as the model."""
        self.state.evaluation = replace(now, directions_as_proposed=self.state.best.directions_as_proposed)

    def _enlarge_subspace(self) -> int:
        """Look for directions that the subspace has missed; they join it. Return how many there are."""
        state, basis = self.state, self.state.survey.basis
        if len(basis) == state.oracle.dim:
            return 0
        rng = state.streams("widen", len(basis))
        found = missed_directions(state.oracle, state.model, state.survey, state.radius, rng)
        if len(found):
            state.enlarge_subspace(np.concatenate([basis, found]))
            self.discard()
            state.say(
                f"fresh queries show {len(found)} more dimensions that f depends on: "
                f"{state.inner_dim} of {state.oracle.dim}"
            )
        return len(found)


def _angle(before: Floats, after: Floats) -> float:
    """Return the largest angle between two subspaces that are close to each other, given by orthonormal rows."""
    return float(np.linalg.norm(after - (after @ before.T) @ before, 2))
