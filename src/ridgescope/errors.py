"""Every way ridgescope stops early. A message names the offending value and a remedy."""

from __future__ import annotations


class RidgescopeError(Exception):
    """Base of all errors raised on purpose."""


class InvalidInput(RidgescopeError, ValueError):
    """An argument that cannot be used."""


class BadAnswer(RidgescopeError, ValueError):
    """The function answered with something that is not a row of finite real numbers."""


class OracleFailed(RidgescopeError, RuntimeError):
    """The function raised instead of answering."""


class BudgetExhausted(RidgescopeError):
    """The next question would exceed `max_queries`; it was not asked."""

    def __init__(self, asked: int, wanted: int, limit: int, stage: str) -> None:
        self.asked, self.wanted, self.limit, self.stage = asked, wanted, limit, stage
        super().__init__(
            f"stage '{stage}' wanted {wanted:,} more queries, but {asked:,} of max_queries={limit:,} "
            "are spent; nothing more was asked. Raise max_queries, or loosen the tolerance."
        )

    def __reduce__(self) -> tuple[type[BudgetExhausted], tuple[int, int, int, str]]:
        return type(self), (self.asked, self.wanted, self.limit, self.stage)


class ReachExceeded(RidgescopeError):
    """A stage wanted to ask outside the ball of radius `reach`: a fault in ridgescope, not in the caller."""


class FileProblem(RidgescopeError, ValueError):
    """A saved result that is truncated, foreign, or from another version."""


class LedgerProblem(FileProblem):
    """A ledger that is damaged, in use, full, or another function's."""
