"""Answers turned into fewer numbers where they are made, so that little travels back.

A reduction makes one number, or a few, of each `group` of neighbouring answers: a product of two values, a difference.
Whoever wants only those asks with `Oracle.reduced`. A worker then checks the answers of its block, reduces them, and
sends back the result with a few words about the answers; without workers the same is done here, and with a ledger,
which must have the answers themselves, it is done here as well. Blocks are cut by size into whole groups: every way
gives the same bits, on processors of one kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from . import answers

Keep = Callable[[Floats, Floats], None]
"""Takes rows and their answers."""
_FEW = 4
"""Answers of a block that come back as they are, at most."""


class Reduction(Protocol):
    """A function of rows (m, d) and answers (m, p); sent to workers, hence made of plain numbers."""

    @property
    def group(self) -> int:
        """Neighbouring rows that belong together."""

    def __call__(self, rows: Floats, values: Floats) -> Floats:
        """(m/group, …)"""


@dataclass(frozen=True, eq=False)
class Reduced:
    """What comes back for a block."""

    numbers: Floats
    seen: answers.Seen
    which: NDArray[np.intp]
    """Rows of the block whose answers come along."""
    values: Floats
    """(k, p) those answers."""


@dataclass(frozen=True, eq=False)
class Finish:
    """Check a block's answers, reduce them, and keep a few: of the first rows of groups, within a radius."""

    reduction: Reduction
    rules: answers.Rules
    center: Floats
    scale: Floats
    radius: float | None = None

    def __call__(self, X: Floats, raw: Any) -> Reduced:
        values, seen = answers.check(X, raw, self.rules)
        U = np.asarray((X - self.center) / self.scale)
        which = np.empty(0, dtype=np.intp)
        if self.radius is not None:
            first = U[:: self.reduction.group]
            inside = np.einsum("md,md->m", first, first) <= self.radius**2
            which = np.flatnonzero(inside)[:_FEW] * self.reduction.group
        return Reduced(self.reduction(U, values), seen, which, values[which])
