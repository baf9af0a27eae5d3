"""survey → propose → fit → prune → certify, and round again on the residual until certified."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .arguments import PAPER_METHODS, check_arguments, check_seconds
from .certificate import Certificate
from .certification import CertificationOutcome, Certifier
from .data import check_rows, choose_domain, held_out_rows, rows_of, unlimited
from .deadline import OutOfTime, OutOfWork, counted_work, time_limit
from .diagnose import Course, describe_stop, diagnose
from .errors import BadAnswer, BudgetExhausted, FileProblem, OracleFailed
from .feature import Feature
from .fit.canonical import canonical_features
from .fit.errorbars import ErrorBars
from .fit.model import TINY
from .fit_evidence import assess_fit, fit_evidence
from .forecast import Forecast, Stage, forecast
from .geometry import Floats
from .narrowed_subspace import narrow_subspace
from .oracle.base import Oracle, as_oracle
from .paper_route import keep_some, learn_model, use_full_space
from .progress import shown
from .randomness import Streams
from .result import Extraction
from .schedule import Policy, Situation, budget_for_tests, examined, policy_of, propose
from .search import Proposer
from .star_planes import with_planes
from .state import LEAST_ALLOWANCE, State
from .stop import Interrupted, StopReason
from .structure import Kind, Structure, assess, assess_proposals, classify

T = TypeVar("T")

MAX_ROUNDS = 12
"""Rounds after which a run gives up. The budget of most proposers doubles with each round, so the last ones would ask
thousands of times what the first one did."""
MAX_STALLED, MAX_STALLED_IN_DOUBT = 3, 1
"""Rounds in a row without progress after which a run gives up: one for each kind of proposer of the cycle; and a single
one with candidates where f may be no sum of features."""
LAST_SHARE = 0.05
"""Share of the time limit that error bars, and that names of shapes, may take after it has passed."""
PROGRESS = 0.8
"""A round has made progress if it lowers the held-out error to this share of what it was."""


def extract(
    oracle: Callable[[Any], Any] | Oracle,
    dim: int | None = None,
    *,
    radius: float | None = None,
    center: ArrayLike | None = None,
    reach: float | None = None,
    data: ArrayLike | None = None,
    tolerance: float = 1e-2,
    noise: float | None = None,
    confidence: float = 0.99,
    approximate: bool = False,
    max_features: int | None = None,
    max_queries: int | None = None,
    max_seconds: float | None = None,
    method: str | Proposer | Sequence[str | Proposer] = "auto",
    rng: int | np.random.Generator = 0,
    executor: Executor | None = None,
    ledger: str | os.PathLike[str] | None = None,
    progress: bool | str | Callable[[str], object] = False,
    planes: int = 0,
) -> Extraction:
    """Recover f(x) = b + a·x + Σ_i s_i(v_i·x) from queries.

    Parameters
    ----------
    oracle
        A callable from (m, d) to (m,) or (m, p), or any `rs.oracle` object.
    dim
        The input dimension d; it may be left out where the oracle knows it.
    radius, center
        The ball on which f is to be reproduced. The radius is 3 by default, unless `data` or the oracle gives another.
    reach
        Largest distance from the centre at which f may be asked; None: any distance.
    data
        (m, d) rows at which f is used, such as recorded activations. Their mean is the centre of the ball, and its
        radius is the distance within which 99 % of them lie, unless `center` or `radius` is given. In the end f is
        asked at up to 1,000 of them, which search and fit have not seen: see `found.data_check`.
    tolerance
        Largest error allowed, as a fraction of f's standard deviation over the ball.
    noise
        Bound on the error of one answer, in f's units; None: it is estimated.
    confidence
        Confidence of the certificate's statement.
    approximate
        Whether to go on where f is found to be no sum of features, for the sake of a surrogate. By default such a run
        ends as soon as that is known, and says what f is instead.
    max_features, max_queries
        Hard limits. A run that has spent `max_queries` ends with what is known so far.
    max_seconds
        Time limit, kept to within one step of the run; it ends with what is known so far, without a certificate.
    method
        "auto", "paper", "paper-pure", or "slices", "curvature", "tensors", "kinks", "gated_kinks", "far_field",
        "plateaus", "outliers", "random", an object of your own (see `ridgescope.search.Proposer`), or a sequence of
        these.
    rng
        Seed or Generator; the same seed and oracle give the same bits.
    executor
        Any `concurrent.futures.Executor` that is to call the oracle: threads, processes,
        `dask.distributed.Client(…).get_executor()`. The bits do not depend on it.
    ledger
        File in which every answer is stored before it is used. Run again with the same arguments, a run that was
        interrupted asks nothing twice and ends with the same bits.
    progress
        True shows on standard error what the run is doing: live in a terminal, a line per step elsewhere. "verbose"
        adds the details of each fit. A callable gets all lines, which are `ridgescope.progress.Step`s and carry their
        figures.
    planes
        Number of planar slices of f to ask in the end for the star in the report, some 5,000 queries each, where the
        search itself took none; they are counted as the stage "picture".

    Returns
    -------
    Extraction
        Directions, responses, the model that reproduces f, and the certificate; `found.stop` says why the run ended.

    Raises
    ------
    InvalidInput
        If an argument cannot be used; nothing has been asked then.
    OracleFailed, BadAnswer
        If the function raised an exception, or answered something that is not a row of finite real numbers. The
        error's `found` holds what was known by then.
    Interrupted
        On Ctrl-C: a `KeyboardInterrupt` whose `found` holds what is known so far.

    Examples
    --------
    >>> import numpy as np, ridgescope as rs
    >>> found = rs.extract(lambda X: np.tanh(2 * X[:, 0]) + np.abs(X[:, 1]), dim=2, rng=0)
    >>> len(found.features), found.certificate.met
    (2, True)
    """
    asked = as_oracle(oracle, dim=_columns(oracle, data) if dim is None and data is not None else dim)
    domain, reach = choose_domain(asked, radius, center, data), asked.reach if reach is None else reach
    radius = domain.radius
    methods = check_arguments(radius, reach, tolerance, noise, confidence, max_features, method, rng)
    check_seconds(max_seconds)
    asked = asked.fresh(center=domain.center, reach=reach, max_queries=max_queries, executor=executor)
    seed = repr(rng) if isinstance(rng, int) else "from a generator"
    with shown(progress) as report:
        state = State(
            oracle=asked,
            radius=radius,
            tolerance=tolerance,
            stated_noise=noise,
            max_features=max_features,
            streams=Streams.of(rng),
            report=report,
            max_seconds=max_seconds,
            approximate=approximate,
        )
        certifier = Certifier(state, confidence)
        try:
            with asked.recording(ledger):
                stop, shortfall = _run(state, certifier, methods)
                certifier.conclude(queries=0 if stop is StopReason.TIME else None)
                asked.checkpoint_ledger()
                found = _result(state, certifier, stop, seed, shortfall)
                if stop is not StopReason.TIME:
                    found = _with_data(with_planes(found, asked, planes), state, domain.rows)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(_known_so_far(state, certifier, StopReason.INTERRUPTED, seed)) from interrupt
        except (OracleFailed, BadAnswer, FileProblem) as problem:
            problem.found = _known_so_far(state, certifier, StopReason.FAILED, seed)
            raise
    return replace(found, asked=asked.asked)._knowing(unlimited(asked))


def _columns(oracle: Callable[[Any], Any] | Oracle, data: ArrayLike) -> int | None:
    """Return the number of inputs that the data show, where the oracle does not say it itself."""
    return None if getattr(oracle, "dim", None) is not None else rows_of(data).shape[1]


def _with_data(found: Extraction, state: State, rows: Floats | None) -> Extraction:
    """Return the result with its errors on rows of the user's data, as far as the budget allows."""
    if rows is None:
        return found
    oracle = state.oracle
    held_out = held_out_rows(rows, oracle, state.streams("data"))
    check = check_rows(found, held_out, oracle=oracle)
    return replace(found, data_check=check, queries=oracle.queries, queries_by_stage=dict(oracle.queries_by_stage))


def _known_so_far(state: State, certifier: Certifier, stop: StopReason, seed: str) -> Extraction:
    """Return the result as it stands, without another query, hence without a certificate."""
    state.keep_current_fit()
    certifier.discard()
    certifier.conclude(queries=0)
    return replace(_result(state, certifier, stop, seed), asked=state.oracle.asked)


def _run(
    state: State, certifier: Certifier, methods: tuple[str | Proposer, ...]
) -> tuple[StopReason, BudgetExhausted | None]:
    """Run the loop, or the paper's route, until it ends or budget or time do."""

    paper = methods[0] in PAPER_METHODS
    run = partial(_paper, state, methods) if paper else partial(_loop, state, certifier, policy_of(methods))

    try:
        with time_limit(state.max_seconds), counted_work():
            return state.attempt("run", run) or StopReason.FAILED, None
    except BudgetExhausted as shortfall:
        state.keep_current_fit()
        return StopReason.BUDGET, shortfall
    except (OutOfTime, OutOfWork) as limit:
        state.keep_current_fit()
        return StopReason.TIME if isinstance(limit, OutOfTime) else StopReason.TOLERANCE_NOT_MET, None


def _loop(state: State, certifier: Certifier, policy: Policy) -> StopReason:
    """Propose, fit, prune and certify, round after round; return why it ended."""
    state.run_survey()
    state.fit_without_search()
    stalled, looked = 0, True
    while True:
        outcome = certifier.try_certify()
        reason = StopReason.CERTIFIED if outcome.certified else _reason_to_stop(state, outcome, stalled)
        if reason is None and state.history and looked:  # the cheap search of the first round did not suffice
            reason = _examine(state)
        if reason is not None:
            return reason
        certifier.discard()  # whatever the round brings, the certificate is no longer of the model as it stands
        candidates = narrow_subspace(state, propose(state, policy.next_proposers(Situation.of(state))))
        known = candidates.complete or candidates.by_tensors or state.is_layer(candidates)
        looked = not (candidates.excludes_far_field or candidates.cut_short)  # else the cheap search is still to come
        if not known and looked:  # before a fit that may be expensive
            reason = _examine(state)
            if reason is not None:
                return reason
        before = state.best.rms
        state.fit(candidates)
        if state.best.rms < PROGRESS * before:
            stalled = 0
        elif candidates.proposer != "outliers" and (len(candidates.directions) or not _in_doubt(state)):
            stalled += 1


def _examine(state: State) -> StopReason | None:
    """Test the structure of f; return why it ends the search, or None if it does not."""
    kind = classify(examined(state))
    if state.approximate:
        return None
    if kind is Kind.DEPTH:  # no sum, or one of more features than any search here can tell apart
        return StopReason.TOLERANCE_NOT_MET
    return StopReason.NOT_A_SUM if kind.excludes_sum else None


def _reason_to_stop(state: State, outcome: CertificationOutcome, stalled: int) -> StopReason | None:
    """Return why the loop must end before another round, or None if it may go on."""
    if outcome.undecided and (state.oracle.max_queries is None or state.survey.deterministic):
        return StopReason.UNDECIDED  # more queries see no more of what rounding hides
    if state.survey.std == 0.0:
        return StopReason.CONSTANT
    if state.allowance() < LEAST_ALLOWANCE:
        return StopReason.TOLERANCE_NOT_MET if state.oracle.remaining > state.oracle.queries else StopReason.BUDGET
    if state.wide is not None:
        return StopReason.TOO_WIDE
    if len(state.history) >= MAX_ROUNDS:
        return StopReason.ROUND_LIMIT
    most = MAX_STALLED_IN_DOUBT if _in_doubt(state) else MAX_STALLED
    return StopReason.NO_PROGRESS if stalled >= most else None


def _in_doubt(state: State) -> bool:
    """Return whether f may be no sum of features, so that the search is bounded."""
    return state.effort_limit < float("inf")


def _paper(state: State, methods: tuple[str | Proposer, ...]) -> StopReason:
    """Run the paper's own route once and take its model as it is."""
    state.run_survey()
    state.fit_without_search()
    rng, keep, additions = state.streams("paper"), partial(keep_some, state), methods == ("paper",)
    model, note = learn_model(state.oracle, state.radius, state.stated_noise, keep, rng, additions=additions)
    use_full_space(state)
    state.use_model(model)
    state.record_round("paper" if additions else "paper-pure", model.count, note)
    return StopReason.ROUTE_FINISHED


def _result(
    state: State, certifier: Certifier, stop: StopReason, seed: str, shortfall: BudgetExhausted | None = None
) -> Extraction:
    """Put the result together: features in canonical form, the certificate, and why the run ended."""
    oracle, certificate = state.oracle, certifier.certificate
    assert certificate is not None
    # a run that has used up its time takes little more for error bars and names
    spare = LAST_SHARE * state.max_seconds if stop is StopReason.TIME and state.max_seconds is not None else None
    features, bias, slope = _features(state, spare)
    ahead, evidence = None if certificate.met else _forecast(state), state.evidence
    tests = budget_for_tests(state) if evidence is None or not evidence.says_something else 0
    rounds = sum(not line.failure for line in state.history)
    too_dear = tests if tests > (oracle.max_queries or tests) else None
    course = Course(stop, rounds, ahead, state.approximate, too_dear)
    structure = _structure(state, certificate, features)
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
        diagnosis=diagnose(state.survey, state.best, certificate, features, course, structure),
        structure=structure,
        forecast=ahead,
        stop=stop,
        stopped=describe_stop(stop, state, certificate, shortfall),
        deterministic=state.survey.deterministic,
        dropped=oracle.dropped,
        seed=seed,
        planes=tuple(state.planes),
        checks=certifier.checks_along(np.array([f.direction for f in features])),
    )


def _structure(state: State, certificate: Certificate, features: tuple[Feature, ...]) -> Structure:
    """Return what tests of structure show, or proposers of all features, or else the fit itself."""
    count, met, evidence = len(features), certificate.met, state.evidence
    structure = (
        assess_proposals(
            state.proposed if state.leaves_only_noise else None,
            features=count,
            certified=met,
            gated=sum(f.gated for f in features),
            by_kinks=state.proposed_by_kinks,
        )
        if evidence is None
        else assess(evidence, features=count, certified=met)
    )
    if structure.verdict != "unknown":
        return structure
    fit = state.attempt("structure", lambda: fit_evidence(state, certificate))
    return assess_fit(structure, fit, features=count)


def _forecast(state: State) -> Forecast | None:
    """Return what the tolerance would take at the rate of the run so far; None where the error was not falling.

    The error is the held-out RMS, less the noise in it. It has to become as small as the tolerance is against the
    largest held-out error.
    """
    survey, best, oracle = state.survey, state.best, state.oracle
    noise = 0.0 if survey.deterministic else survey.noise / max(survey.std, TINY)

    def stage(queries: int, features: int, residual: float) -> Stage:
        return Stage(queries, features, float(np.sqrt(max(residual**2 - noise**2, 0.0))))

    stages = [Stage(oracle.queries_by_stage.get("survey", 0), 0, 1.0)]  # an affine model leaves no more than f's std
    stages += [stage(line.queries, line.features, line.residual) for line in state.history if not line.failure]
    stages.append(stage(oracle.queries, best.model.count, state.residual))
    return forecast(stages, state.tolerance * min(1.0, best.rms / max(best.sup, TINY)))


def _features(state: State, seconds: float | None) -> tuple[tuple[Feature, ...], Floats, Floats]:
    """Return the features in canonical form, bias and slope.

    They are without error bars, or without names, where computing those fails or takes more than these seconds.
    """
    model, basis, scalar = state.model, state.survey.basis, state.oracle.scalar is not False
    bars = _within(seconds, lambda: state.attempt("error bars", state.error_bars)) or ErrorBars.unknown(model)

    def named() -> tuple[tuple[Feature, ...], Floats, Floats] | None:
        return state.attempt(
            "shapes",
            lambda: canonical_features(
                model, bars, basis, scalar=scalar, forms=state.best.forms, gates=state.best.gates
            ),
        )

    return _within(seconds, named) or canonical_features(model, bars, basis, scalar=scalar, named=False)


def _within(seconds: float | None, action: Callable[[], T | None]) -> T | None:
    """Return what `action` returns; None where it takes more than these seconds."""
    try:
        with time_limit(seconds):
            return action()
    except OutOfTime:
        return None
