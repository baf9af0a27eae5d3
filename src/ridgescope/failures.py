"""A step that fails becomes a line of the history, and the run goes on with the others.

That holds for faults inside a run: an exception of ours, numpy's or scipy's in a proposer, a fit or a refinement. What
the user has to know at once passes through: a function that fails or answers nonsense, a damaged ledger, and the ends
of budget, time and effort. Under pytest, and where the environment has RIDGESCOPE_STRICT=1, faults are raised instead,
so that they are found and mended.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .deadline import OutOfTime, OutOfWork
from .errors import BadAnswer, BudgetExhausted, FileProblem, OracleFailed

T = TypeVar("T")

PASSED_ON = (BudgetExhausted, OutOfTime, OutOfWork, OracleFailed, BadAnswer, FileProblem)
"""Errors that are no faults of a step."""


@dataclass(frozen=True)
class Failure:
    """What went wrong in a step."""

    reason: str
    """The exception's type and text, and the place in the code where it was raised."""


def attempt(action: Callable[[], T]) -> T | Failure:
    """Return what `action` returns, or the `Failure` where it raises; see the top of this module for what is raised."""
    try:
        return action()
    except PASSED_ON:
        raise
    except Exception as problem:
        if is_strict():
            raise
        place = traceback.extract_tb(problem.__traceback__)[-1]
        return Failure(f"{type(problem).__name__}: {problem} ({Path(place.filename).name}:{place.lineno})")


def is_strict() -> bool:
    """Return whether failures are raised: under pytest, or where RIDGESCOPE_STRICT is set to 1."""
    return os.environ.get("RIDGESCOPE_STRICT", "1" if "PYTEST_CURRENT_TEST" in os.environ else "0") == "1"
