"""`method="paper"`: the paper's own algorithms end to end, turned into the model that every other method returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .errors import BudgetExhausted, InvalidInput
from .fit.model import Model
from .geometry import Floats
from .oracle.base import Oracle
from .response import interpolate

Keep = Callable[[Floats, Floats], None]
"""Takes points (m, d) and their answers (m, p)."""
INTERVALS = 64
"""Spline intervals that a recovered response is written in."""


@dataclass(frozen=True)
class _Asked:
    """The oracle as the field that the paper's algorithms ask."""

    oracle: Oracle
    keep: Keep

    def __call__(self, X: Floats) -> Floats:
        answers = self.oracle(X, stage="paper")
        self.keep(X, answers)
        return answers[:, 0]


def learn_model(
    oracle: Oracle, radius: float, noise: float | None, keep: Keep, rng: np.random.Generator
) -> tuple[Model, str]:
    """(model, note) from `paper.solve`; every answer is offered to `keep`."""
    from .paper import solve

    if oracle.reach is not None:
        raise InvalidInput(
            f'method="paper" asks several radii away from the centre and cannot honour reach={oracle.reach:g}; '
            'leave reach out, or use method="auto"'
        )
    if not oracle.scalar:
        raise InvalidInput(
            f'method="paper" is about functions with one output; this one has {oracle.outputs}. '
            'Ask for one output at a time, or use method="auto"'
        )

    budget = None if oracle.max_queries is None else int(oracle.remaining)
    if budget is not None and budget < 300_000:
        raise BudgetExhausted(oracle.queries, 300_000, oracle.max_queries or 0, "paper")
    learned = solve(_Asked(oracle, keep), oracle.dim, radius, noise, rng, max_queries=budget)
    start = Model.start(np.asarray(learned.directions), radius, INTERVALS, 1)
    blocks = [interpolate(s, radius, INTERVALS).coefficients[:, None] for s in learned.responses]
    affine = np.concatenate([[learned.bias], np.asarray(learned.slope)])[:, None]
    model = Model(radius, start.directions, start.intervals, start.kinks, np.concatenate([*blocks, affine]))
    return model, f"{len(learned.directions)} directions in {learned.rounds} rounds of search and peeling"
