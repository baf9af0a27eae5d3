"""Why a run ended, as a value from which sentences, exit codes and diagnoses are made; and what Ctrl-C raises."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import Extraction


class StopReason(enum.StrEnum):
    """Why a run ended. Its value is its name in lower case, as in saved results and JSON.

    Whether the tolerance is met is a field of `Extraction.certificate`: it can be met by a run that stopped early.

    Examples
    --------
    >>> rs.extract(f, dim=5, max_queries=1000).stop
    <StopReason.BUDGET: 'budget'>
    """

    CERTIFIED = enum.auto()
    """Fresh queries agree with the model to the tolerance."""
    TOLERANCE_NOT_MET = enum.auto()
    """All steps are done, and fresh queries do not agree with the model to the tolerance."""
    NOT_A_SUM = enum.auto()
    """The tests of structure show that f is not a sum of features on this ball."""
    CONSTANT = enum.auto()
    """f does not vary over the ball, or gave no answers there, so that there is nothing to search for."""
    BUDGET = enum.auto()
    """`max_queries` queries are spent, or the rest is reserved for the certificate."""
    TIME = enum.auto()
    """`max_seconds` have passed."""
    INTERRUPTED = enum.auto()
    """The user interrupted the run (Ctrl-C)."""
    ROUTE_FINISHED = enum.auto()
    """The paper's route (`method="paper"` or `"paper-pure"`) ran to its end."""
    TOO_WIDE = enum.auto()
    """There are too many features for a joint fit, and separate fits did not reach the tolerance."""
    ROUND_LIMIT = enum.auto()
    """The tolerance was not reached within the largest number of rounds."""
    NO_PROGRESS = enum.auto()
    """Several rounds in a row did not improve the fit."""
    UNDECIDED = enum.auto()
    """Noise hides whether the tolerance is met; the certificate says how many queries would decide it."""
    FAILED = enum.auto()
    """A step without which the run cannot go on has failed; the history says which and why."""
    UNKNOWN = enum.auto()
    """The reason was not recorded: the version that saved the result did not keep it."""


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during an extraction; `found` is the result so far, without a certificate."""

    def __init__(self, found: Extraction) -> None:
        self.found = found
        super().__init__(found.stopped)

    def __reduce__(self) -> tuple[type[Interrupted], tuple[Extraction]]:
        return type(self), (self.found,)
