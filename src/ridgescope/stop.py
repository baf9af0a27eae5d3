"""Why a run ended: the value from which sentences, exit codes and diagnoses are made, never the other way round."""

from __future__ import annotations

import enum


class StopReason(enum.StrEnum):
    """Why a run ended. Its value is its name in lower case, as saved results and JSON have it.

    Whether the tolerance is met is a question to `Extraction.certificate`: it can be met by a run that stopped early.

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
    """f does not vary over the ball, or gave no answers there, so that there is nothing to search."""
    BUDGET = enum.auto()
    """`max_queries` queries are spent, or the rest is reserved for the certificate."""
    TIME = enum.auto()
    """`max_seconds` seconds are over."""
    INTERRUPTED = enum.auto()
    """The user interrupted the run (Ctrl-C)."""
    ROUTE_FINISHED = enum.auto()
    """The paper's route (`method="paper"`) ran to its end."""
    TOO_WIDE = enum.auto()
    """There are too many features for a joint fit, and separate fits did not reach the tolerance."""
    ROUND_LIMIT = enum.auto()
    """The largest number of rounds did not reach the tolerance."""
    NO_PROGRESS = enum.auto()
    """Several rounds in a row did not improve the fit."""
    UNDECIDED = enum.auto()
    """Noise hides whether the tolerance is met; the certificate says how many queries would decide it."""
    FAILED = enum.auto()
    """A step without which the run cannot go on has failed; the history says which and why."""
    UNKNOWN = enum.auto()
    """Not recorded: the result was saved by a version that did not keep the reason."""
