"""All errors that ridgescope raises on purpose. A message names the offending value and a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import Extraction


class RidgescopeError(Exception):
    """Base class of all errors that ridgescope raises on purpose."""

    found: Extraction | None = None
    """What an extraction knew when it was ended by this error, where one was."""


class InvalidInput(RidgescopeError, ValueError):
    """An argument cannot be used; the message names it."""


class BadAnswer(RidgescopeError, ValueError):
    """The function answered with something other than rows of finite real numbers."""


class OracleFailed(RidgescopeError, RuntimeError):
    """The function failed instead of answering: it raised an error, or its server or program did not answer."""


class BudgetExhausted(RidgescopeError):
    """The next queries would exceed `max_queries`; they were not asked."""

    def __init__(self, asked: int, wanted: int, limit: int, stage: str) -> None:
        self.asked, self.wanted, self.limit, self.stage = asked, wanted, limit, stage
        super().__init__(
            f"stage '{stage}' wanted {wanted:,} more queries, but {asked:,} of max_queries={limit:,} "
            "are spent; nothing more was asked. Raise max_queries, or loosen the tolerance."
        )

    def __reduce__(self) -> tuple[type[BudgetExhausted], tuple[int, int, int, str]]:
        return type(self), (self.asked, self.wanted, self.limit, self.stage)


class ReachExceeded(RidgescopeError):
    """A stage tried to query outside the ball of radius `reach`, which is a bug in ridgescope."""


class FileProblem(RidgescopeError, ValueError):
    """A file cannot be used: it is missing, truncated, of another version, or not of the expected kind."""


class LedgerProblem(FileProblem):
    """A ledger cannot be used: it is damaged, in use, on a full disk, or of another function."""
