"""What every proposer is given and what it gives back.

A proposer is a function

    propose(ask, setting, *, queries, rng) -> Proposal

It may ask at most `queries` rows, never outside `setting.reach`, and returns candidate unit directions with scores.
It may be generous: the joint fit is the judge, and a false proposal costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..feature import Plane
from ..geometry import Floats

Ask = Callable[[Floats], Floats]
"""(m, d) points to (m, p) values of f, or of what the model leaves of it; a NaN row is a dropped answer."""


@dataclass(frozen=True)
class Setting:
    """What the survey knows, in the coordinates of the ball."""

    dim: int
    outputs: int
    radius: float
    """The ball on which f is to be reproduced."""
    reach: float
    """Never ask farther than this from the origin; infinite where anything may be asked."""
    scale: float
    """Standard deviation over the ball of what is asked."""
    noise: float
    """Standard deviation of the error of one answer, rounding included; never 0."""
    bandwidth: float
    """Frequency (radians per unit length) below which nearly all of f's power along random lines lies."""
    gradient: Ask | None = None
    """(m, d) → (m, p, d), where the oracle offers derivatives."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """Candidates, best first."""

    directions: Floats
    """(k, d) unit rows."""
    scores: Floats
    """(k,) larger is better; comparable within one proposal only."""
    note: str = ""
    """What the proposer saw, in a few words with numbers, for the history."""
    planes: tuple[Plane, ...] = ()
    at: tuple[Floats, ...] = ()
    """For each direction the places where its response breaks, where known; empty: nothing is known."""
    explains: Ask | None = None
    """The part of f that the proposal accounts for already; the next proposer of the round need not look at it."""
    crowded: bool = False
    """There are more features than this proposer could ever tell apart."""
    spread: float = 0.0
    """Expected error of the worst direction, radians, where it is not far below what a fit would leave."""
