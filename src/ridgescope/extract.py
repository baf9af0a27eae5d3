"""survey → propose → fit → prune → certify, and round again on the residual until certified."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .arguments import checked
from .errors import BudgetExhausted
from .oracle.base import Oracle, as_oracle
from .picture import with_planes
from .progress import shown
from .randomness import Streams
from .result import Extraction, Interrupted
from .run import Run
from .schedule import schedule
from .search import Proposer
from .state import State


def extract(
    oracle: Callable[[Any], Any] | Oracle,
    dim: int | None = None,
    *,
    radius: float = 3.0,
    center: ArrayLike | None = None,
    reach: float | None = None,
    tolerance: float = 1e-2,
    noise: float | None = None,
    confidence: float = 0.99,
    max_features: int | None = None,
    max_queries: int | None = None,
    method: str | Proposer | Sequence[str | Proposer] = "auto",
    rng: int | np.random.Generator = 0,
    executor: Executor | None = None,
    ledger: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[str], object] = False,
    planes: int = 0,
) -> Extraction:
    """Recover f(x) = b + a·x + Σ_i s_i(v_i·x) from queries.

    Parameters
    ----------
    oracle
        A callable from (m, d) to (m,) or (m, p), or any `rs.oracle` object.
    dim
        d; may be left out where the oracle knows it.
    radius, center
        The ball on which f is to be reproduced.
    reach
        Never ask farther than this from the centre; None: anywhere.
    tolerance
        Largest error, as a fraction of f's standard deviation over the ball.
    noise
        Bound on the error of one answer, in f's units; None: estimated.
    confidence
        Of the certificate's statement.
    max_features, max_queries
        Limits; running out of queries ends the run with what is known so far.
    method
        "auto", "paper", or one or several of "slices", "curvature", "tensors", "kinks", "far_field", "random" and
        proposers of your own, objects as `ridgescope.search.Proposer` describes them.
    rng
        Seed or Generator; the same seed and oracle give the same bits.
    executor
        Any `concurrent.futures.Executor` that is to call the oracle: threads, processes,
        `dask.distributed.Client(…).get_executor()`. The bits do not depend on it.
    ledger
        File in which every answer is stored before it is used. Run again with the same arguments, a run that was
        interrupted asks nothing twice and ends with the same bits.
    progress
        True shows where the run stands on standard error: live in a terminal, a line per step elsewhere. A callable
        gets the lines, which are `ridgescope.progress.Step`s and carry their figures.

    planes
        Slices of f to ask in the end for the star of the report, some 5,000 queries each, where the search itself took
        none; counted as the stage "picture".

    Ctrl-C raises `rs.Interrupted`, a `KeyboardInterrupt` whose `found` holds what is known so far.
    """
    methods = checked(radius, reach, tolerance, noise, confidence, max_features, method, rng)
    asked = as_oracle(oracle, dim=dim).fresh(center=center, reach=reach, max_queries=max_queries, executor=executor)
    with shown(progress) as tell:
        state = State(
            oracle=asked,
            radius=radius,
            tolerance=tolerance,
            stated_noise=noise,
            max_features=max_features,
            streams=Streams.of(rng),
            tell=tell,
        )
        run = Run(state, confidence=confidence, seed=repr(rng) if isinstance(rng, int) else "from a generator")
        try:
            with asked.recording(ledger):
                try:
                    _loop(run, methods)
                except BudgetExhausted as stop:
                    run.ran_out(stop)
                asked.settle()
                found = with_planes(run.result(), asked, planes)
        except KeyboardInterrupt as stop:
            raise Interrupted(replace(run.interrupted(), asked=asked.asked)) from stop
    return replace(found, asked=asked.asked)


def _loop(run: Run, methods: tuple[str | Proposer, ...]) -> None:
    run.survey()
    run.fit_affine()
    if methods == ("paper",):
        run.paper()
    else:
        proposers = schedule(methods, run.state)
        while not (run.certified() or run.stuck()):
            run.round(next(proposers))
    run.conclude()
