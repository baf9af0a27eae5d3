"""`rs.extract(method="paper")` and `"paper-pure"`: the paper's own algorithms end to end.

What they learn is converted to the model of the other methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .errors import BudgetExhausted, InvalidInput
from .fit.model import Model
from .fit.samples import Samples
from .geometry import Floats
from .oracle.base import Oracle
from .response import interpolate
from .state import State

Keep = Callable[[Floats, Floats], None]
"""Function that receives points (m, d) and their answers (m, p)."""
INTERVALS = 64
"""Number of spline intervals of a recovered response. Empirical: the error of the response, about a percent, is larger
than that of the spline."""
LEAST_QUERIES = 300_000
"""Smallest budget: the steps before and after the search (survey, low-band fits, completion on the ball) take about
210,000 queries in few dimensions, before the search for directions begins."""

KEPT_OF_A_BATCH = 64
"""Answers that are kept of each batch, since millions are asked."""


def keep_some(state: State, X: Floats, answers: Floats) -> None:
    """Keep some answers of each large batch, for the evaluation and the error bars.

    They are taken evenly from the batch, whose neighbouring rows are those of one stencil.
    """
    inside = np.flatnonzero(np.einsum("md,md->m", X, X) <= state.radius**2)
    inside = inside[:: max(1, len(inside) // KEPT_OF_A_BATCH)][:KEPT_OF_A_BATCH]
    state.samples.add(state.survey.inside(X[inside]), answers[inside])


def use_full_space(state: State) -> None:
    """Go back to all d dimensions, in which this route works."""
    if state.inner_dim < state.oracle.dim:
        state.survey = replace(state.survey, basis=np.eye(state.oracle.dim))
        state.samples = Samples(state.oracle.dim, state.radius)
        state.samples.add(state.survey.points, state.survey.values)


@dataclass(frozen=True)
class OracleField:
    """Adapter from a scalar oracle to the field that `paper.solve` evaluates; every answer is passed to `keep`."""

    oracle: Oracle
    keep: Keep

    def __call__(self, X: Floats) -> Floats:
        """Return the (m,) answers at the rows of X (m, d)."""
        answers = self.oracle(X, stage="paper")
        self.keep(X, answers)
        return answers[:, 0]


PURE_QUERIES = 150_000
"""Smallest budget of the paper's route without additions: survey, span, and gradient take about 100,000 queries."""


def learn_model(
    oracle: Oracle, radius: float, noise: float | None, keep: Keep, rng: np.random.Generator, *, additions: bool
) -> tuple[Model, str]:
    """Run `paper.solve` on a scalar oracle; return its result as a spline model, and a note for the history.

    Every answer is passed to `keep`. Raises InvalidInput if the method does not apply, and BudgetExhausted before the
    first query if the oracle's budget is below what the steps around the search take. Without additions
    the proofs run as they stand.
    """
    from .paper import solve

    name = "paper" if additions else "paper-pure"
    if oracle.reach is not None:
        raise InvalidInput(
            f'method="{name}" queries several radii away from the centre and cannot honour reach={oracle.reach:g}; '
            'leave reach out, or use method="auto"'
        )
    if not oracle.scalar:
        raise InvalidInput(
            f'method="{name}" takes functions with one output; this one has {oracle.outputs}. '
            'Extract one output at a time, or use method="auto"'
        )

    budget = None if oracle.max_queries is None else int(oracle.remaining)
    least = LEAST_QUERIES if additions else PURE_QUERIES
    if budget is not None and budget < least:
        raise BudgetExhausted(oracle.queries, least, oracle.max_queries or 0, "paper")
    field = OracleField(oracle, keep)
    learned = solve(field, oracle.dim, radius, noise, rng, max_queries=budget, additions=additions)
    start = Model.start(np.asarray(learned.directions), radius, INTERVALS, 1)
    blocks = [interpolate(s, radius, INTERVALS).coefficients[:, None] for s in learned.responses]
    affine = np.concatenate([[learned.bias], np.asarray(learned.slope)])[:, None]
    model = Model(radius, start.directions, start.intervals, start.kinks, np.concatenate([*blocks, affine]))
    rounds = f"{learned.rounds} rounds of search and peeling" if additions else "one search"
    return model, f"{len(learned.directions)} directions in {rounds}"
