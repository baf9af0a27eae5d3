"""Why a run ended, and what to try where the tolerance was not met: sentences made from values, never the reverse."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bilinear import describe_products
from .certificate import Certificate
from .errors import BudgetExhausted
from .feature import Feature
from .fit.context import Evaluation
from .forecast import Forecast
from .state import State
from .stop import StopReason
from .structure import Kind, Structure
from .survey import Survey

MOSTLY_NOISE = 0.3
"""Noise of at least this share of the residual is named as its cause."""
SINGLE_PRECISION = (1e-9, 1e-3)
"""Noise of a deterministic function, in standard deviations, that is the rounding of single precision or less."""
DOUBLE = (
    "The function computes in low precision, which hides features; a model of PyTorch is asked in double precision by "
    'rs.oracle.torch(model, dtype="float64").'
)
"""What to try with such a function, beside the remedy for the cause."""
HARDLY_EXPLAINED = 0.9
"""Share of the variance below which f does not look like a sum of features at all."""


def describe_stop(
    stop: StopReason, state: State, certificate: Certificate, shortfall: BudgetExhausted | None = None
) -> str:
    """Return the sentence for `found.stopped`.

    `shortfall` says which question could not be paid for, where the budget ended in the middle of a step. What to do
    about it is the diagnosis's to say.
    """
    asked, limit = state.oracle.queries, state.oracle.max_queries
    match stop:
        case StopReason.CERTIFIED:
            close = "the noise" if certificate.limited_by_noise else "the tolerance"
            return f"Certified: fresh queries agree with the model to {close}."
        case StopReason.BUDGET if shortfall is not None:
            return (
                f"Budget exhausted: stage '{shortfall.stage}' wanted {shortfall.wanted:,} more queries, but "
                f"{shortfall.asked:,} of max_queries={shortfall.limit:,} were spent."
            )
        case StopReason.BUDGET:
            return f"Budget exhausted: {asked:,} of max_queries={limit:,} are spent or kept for the certificate."
        case StopReason.NOT_A_SUM:
            return f"Stopped after {asked:,} queries: f is no sum of features here; found.structure says what it is."
        case StopReason.TOLERANCE_NOT_MET:
            return f"Stopped after {asked:,} queries: the search ended without meeting the tolerance."
        case StopReason.UNDECIDED if state.survey.deterministic:
            return (
                f"Undecided: errors of up to {certificate.noise:.2g} in the answers hide whether the tolerance is met, "
                "and more queries would not show it. Loosen the tolerance, or ask for more digits."
            )
        case StopReason.UNDECIDED:
            return (
                f"Undecided: noise of deviation {state.survey.noise:.2g} hides whether the tolerance is met. "
                "Loosen the tolerance, or give max_queries to spend more on it."
            )
        case StopReason.TIME:
            return f"Time is up: max_seconds={state.max_seconds or 0:g} passed after {asked:,} queries."
        case StopReason.FAILED:
            return f"Stopped: a step failed after {asked:,} queries; the history says which and why."
        case StopReason.INTERRUPTED:
            return f"Interrupted after {asked:,} queries."
        case StopReason.CONSTANT:
            return "Stopped: f does not vary over the ball, or gave no answers there; there is nothing to search."
        case StopReason.TOO_WIDE:
            return (
                f"Stopped: {state.model.count:,} features were found, too many for a joint fit, and their responses "
                "alone did not reach the tolerance. Their directions stand; try a looser tolerance."
            )
        case StopReason.ROUND_LIMIT:
            return f"Stopped: {len(state.history)} rounds did not reach the tolerance."
        case StopReason.NO_PROGRESS:
            return "Stopped: several rounds in a row did not improve the fit."
        case StopReason.ROUTE_FINISHED:
            return "Finished: the paper's route ran to its end."
    return f"Stopped: {stop.value.replace('_', ' ')}."


class Cause(enum.Enum):
    """The most likely reason why the tolerance was not met; its value is what to try."""

    NO_ANSWERS = "Too few answers to say anything about f: raise max_queries."
    PROBABILITIES = (
        "Every answer is a row of probabilities: a softmax is not a sum of features, its log-odds are. "
        'Try rs.oracle.Oracle(f, output="log_odds").'
    )
    BUDGET_BEFORE_FIT = "The budget ended before the first fit: raise max_queries."
    BUDGET = "The budget ended the search while the error was still falling: raise max_queries."
    BUDGET_WITHOUT_PROGRESS = (
        "The budget ended the search, but the error was not falling fast enough for more queries to help: f may be no "
        "sum of features on this ball. Try a smaller radius, an inner layer of the model, or a looser tolerance."
    )
    BUDGET_BEFORE_TESTS = "The budget ended before it could be tested what f is."
    TIME = "The time limit ended the search before it was done: raise max_seconds."
    NOISE = "Noise of the answers hides the rest: ask for a looser tolerance, or average repeated queries."
    ROUNDED_ANSWERS = "The answers are rounded, which limits the fit: ask for more digits, or for a looser tolerance."
    ROUNDED_INPUTS = (
        "The function rounds its inputs, as half precision does, which limits the fit: run it in double precision, "
        'rs.oracle.torch(model, dtype="float64") for a model of PyTorch, or ask for a looser tolerance.'
    )
    NOT_A_SUM = (
        "f does not look like a sum of one-dimensional responses on this ball. Try a smaller radius, an inner layer of "
        "the model, or its logits."
    )
    NEARLY_A_SUM = "f is close to a sum of features. Try a smaller radius, or a looser tolerance."


UNEXPLAINED = (Cause.BUDGET_WITHOUT_PROGRESS, Cause.NOT_A_SUM, Cause.NEARLY_A_SUM)
"""Causes that the evidence of the tests of structure adds something to."""


@dataclass(frozen=True)
class Course:
    """How a run went."""

    stop: StopReason
    rounds: int = 0
    """Fits that were finished."""
    ahead: Forecast | None = None
    """What the tolerance would take at the current rate; None where the error was not falling."""
    approximate: bool = False
    """Whether a surrogate was asked for."""
    tests: int | None = None
    """The budget with which the structure of f could have been tested; None where the run's own was large enough."""


def find_cause(survey: Survey, evaluation: Evaluation, course: Course, left: float) -> Cause:
    """Return the most likely reason why the tolerance was not met; `left` is the share of std that the model leaves."""
    if not np.isfinite(evaluation.rms):
        return Cause.NO_ANSWERS
    if survey.probabilities:
        return Cause.PROBABILITIES
    if course.stop is StopReason.TIME:
        return Cause.TIME
    if survey.rounding.deviation > MOSTLY_NOISE * evaluation.rms:
        return Cause.ROUNDED_ANSWERS if survey.rounding.of_answers else Cause.ROUNDED_INPUTS
    if survey.noise > MOSTLY_NOISE * evaluation.rms:
        return Cause.NOISE
    if course.stop is StopReason.BUDGET:
        if not course.rounds:
            return Cause.BUDGET_BEFORE_FIT
        helps = course.ahead is not None and course.ahead.is_within_reach
        if helps:
            return Cause.BUDGET
        return Cause.BUDGET_WITHOUT_PROGRESS if course.tests is None else Cause.BUDGET_BEFORE_TESTS
    return Cause.NOT_A_SUM if explained_share(left) < HARDLY_EXPLAINED else Cause.NEARLY_A_SUM


def is_low_precision(survey: Survey) -> bool:
    """Return whether the function computes in single or half precision, so that a double copy would show more."""
    least, most = SINGLE_PRECISION
    rounds_inputs = survey.rounding.deviation > 0.0 and not survey.rounding.of_answers
    return survey.deterministic and (rounds_inputs or least * survey.std < survey.noise <= most * survey.std)


def residual_share(survey: Survey, evaluation: Evaluation, certificate: Certificate) -> float:
    """Return the RMS of what the model leaves, less the noise in it, over f's standard deviation.

    It is that of fresh queries where there are any.
    """
    fresh = certificate.samples > 0 and np.isfinite(certificate.rms)
    square = (certificate.rms if fresh else evaluation.rms) ** 2 - certificate.sigma**2
    return float(np.sqrt(max(square, 0.0))) / survey.std if survey.std > 0 else 0.0


def explained_share(left: float) -> float:
    """Return the share of f's variance that a model explains, from 0 to 1, given the share of std that it leaves."""
    return max(0.0, 1.0 - left**2)


def diagnose(
    survey: Survey,
    evaluation: Evaluation,
    certificate: Certificate,
    features: Sequence[Feature],
    course: Course,
    structure: Structure | None = None,
) -> str:
    """Return why the tolerance was not met and what to try, or what a reader should know of the directions.

    The text is empty where all is well, and for a run that was interrupted, which says nothing about f.
    """
    if course.stop in (StopReason.INTERRUPTED, StopReason.FAILED):
        return ""
    if certificate.met:
        return _other_choices(features, structure)
    left, ahead = residual_share(survey, evaluation, certificate), course.ahead
    cause = find_cause(survey, evaluation, course, left)
    if cause is Cause.NO_ANSWERS:
        return str(cause.value)
    remedy = cause.value
    is_known = survey.probabilities or cause in (Cause.ROUNDED_ANSWERS, Cause.ROUNDED_INPUTS)
    if structure is not None and structure.kind not in (Kind.SUM, Kind.UNDETERMINED) and not is_known:
        remedy = structure.sentence
    elif structure is not None and structure.evidence and cause in UNEXPLAINED:
        remedy = f"{structure.sentence} {remedy}"
    elif cause is Cause.BUDGET_BEFORE_TESTS:
        remedy = f"{remedy} About {course.tests:,} queries pay for the tests and for a search before them."
    elif cause is Cause.BUDGET and ahead is not None:
        remedy = f"{remedy} About {ahead.queries:,} would be needed at the current rate."
    if course.approximate and ahead is not None:
        remedy = f"{remedy} {ahead.sentence}"
    is_sum = structure is None or not structure.kind.excludes_sum
    if is_sum and is_low_precision(survey) and not is_known:
        remedy = f"{DOUBLE} {remedy}"
    count = f"{len(features)} feature{'s' * (len(features) != 1)}"
    return (
        f"An affine part and {count} explain {100 * explained_share(left):.1f} % of f's variance; "
        f"the residual has an RMS of {left:.2g} of f's standard deviation. {remedy}"
    )


def _other_choices(features: Sequence[Feature], structure: Structure | None) -> str:
    """Return a warning if responses are polynomials, whose directions are not unique."""
    polynomial = sum(1 for f in features if f.shape is not None and f.shape.name == "polynomial")
    is_polynomial = structure is not None and structure.kind is Kind.SUM and structure.evidence.get("degree", 0.0) > 0
    warning = structure.sentence if structure is not None and is_polynomial else ""
    if polynomial:
        warning = (
            f"{polynomial} of {len(features)} responses are polynomials: their directions are one choice among many "
            "that give the same function."
        )
    return f"{warning} {describe_products(features)}".strip() if warning else ""
