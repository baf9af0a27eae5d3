"""Does the fit by itself show that f is the sum of the features that were found?

Any smooth function is close to a sum of features, and how close is a matter of how many there are: the last of them
lowers the error by some factor and no more. So in an approximation the weakest feature explains little more than what
is left. In an exact sum all of whose features are found, what is left is rounding, whatever the features are:

                                                left over rounding     weakest feature over what is left
    layers in single precision                  0.6 to 2.3             62 to 500,000
    the same, a false feature among them        1                      0.3
    exp(−|x|²/4), sin(x₁x₂/9), d = 2            200, 2e9 in double     1 to 17

That holds where every feature has a closed form. Splines adapt: they have as many unknowns as an error asks for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from .certificate import Certificate
from .fit.closed_solve import Data, Solved
from .state import State
from .structure import Kind, Structure

ROUNDING = 3.0
"""RMS error over that of rounding up to which rounding explains it: the survey measures rounding at a few places, and
where |f| is large there is more of it. Measured: up to 2.3 for layers of which every neuron is found."""
STANDS_OUT = 30.0
"""RMS of what the weakest feature explains, over that of what is left, from which on it is no part of an approximation.
Measured: at most 17 for approximations, and at least 62 for layers of which every neuron is found."""
POINTS_PER_COLUMN = 1.5
"""Points for each closed form and coordinate at least: with fewer, outputs of the others make up for any feature."""


@dataclass(frozen=True)
class FitEvidence:
    """What closed forms of all features leave and explain, in f's own units."""

    left: float
    """RMS error on points that were not fitted, inside the subspace that f depends on."""
    rounding: float
    """RMS error that rounding of the answers makes."""
    largest: float
    """Largest error of fresh queries, anywhere in the ball."""
    weakest: float
    """RMS of what the weakest feature explains and the others, with other outputs, do not."""

    @property
    def shows_sum(self) -> bool:
        """Whether only a sum of these features, and of no others above rounding, leaves and explains as much."""
        exact = self.left <= ROUNDING * self.rounding
        return exact and self.weakest >= max(STANDS_OUT * self.left, self.largest)


def fit_evidence(state: State, certificate: Certificate) -> FitEvidence | None:
    """Return what the fit shows; None where noise is random, a feature has no closed form, or points are too few."""
    forms, (X, Y) = state.best.forms, state.samples.unclustered
    held_out, answers = state.samples.held_out
    if forms is None or not forms.count or len(forms.closed) < forms.count or not state.survey.deterministic:
        return None
    if not (certificate.met and len(held_out)) or len(X) < POINTS_PER_COLUMN * (forms.count + forms.dim + 1):
        return None
    largest = max(float(np.abs(answers).max()), state.survey.largest)  # larger inside the subspace than in the ball
    costs = Solved.of(forms, Data(X, Y)).removal_costs()
    return FitEvidence(
        left=float(np.sqrt(np.mean((answers - forms.predict(held_out)) ** 2))),
        rounding=max(state.survey.noise, state.rounding_error * largest / state.survey.largest),
        largest=certificate.sup_seen,
        weakest=float(np.sqrt(np.min(costs) / Y.size)),
    )


def assess_fit(structure: Structure, fit: FitEvidence | None, *, features: int) -> Structure:
    """Return what the structure is where only a sum of exactly these features leaves as little as was left.

    A verdict that rests on derivatives or kinks stands, and so does what jumps show.
    """
    if structure.verdict != "unknown" or structure.kind is Kind.JUMPS or fit is None or not fit.shows_sum:
        return structure
    numbers = {**structure.evidence, "features": float(features), **asdict(fit)}
    sentence = (
        f"f is a sum of {features} features: their closed forms leave an error of {fit.left:.1e}, which rounding of "
        f"the answers explains, and each of them makes up for {fit.weakest:.1e} at least, where the weakest one of an "
        "approximation makes up for little more than what is left."
    )
    return Structure("exact", Kind.SUM, numbers, sentence)
