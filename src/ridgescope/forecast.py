"""What the tolerance would take at the rate at which the error has fallen so far.

Errors fall about like a power of the number of queries, and features grow about like a power of the error:

    error ∝ queries^(−a)        features ∝ error^(−b)

Both powers are read off between the end of a run and an earlier stage of it, at two thirds of its queries or fewer. A
run whose error did not fall in between has no forecast: more queries alone would not help it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log

FALLING = 0.9
"""Error at the end over the error at the earlier stage up to which it counts as falling."""
EARLIER = 2.0 / 3.0
"""Largest share of the queries that the earlier stage may have taken: closer ones differ by chance."""
WITHIN_REACH = 30.0
"""A forecast of at most so many times the queries spent is worth raising the budget for; a power of two points is no
guide to more."""
FAR = 1000.0
"""A forecast of more times the queries spent is said without figures."""
MOST = 10**15
"""Numbers above this are cut to it."""


@dataclass(frozen=True)
class Forecast:
    """Queries and features that the tolerance would take, at the rate at which the error has fallen."""

    queries: int
    """Queries in all."""
    features: int
    """Features in all; 0 where their number did not grow while the error fell."""
    growth: float
    """`queries` over those that are spent."""

    @property
    def is_within_reach(self) -> bool:
        """Whether a larger budget is likely to help."""
        return self.growth <= WITHIN_REACH

    @property
    def sentence(self) -> str:
        """The forecast in words; without figures where two points of a power law say no more than that it is far."""
        if self.growth > FAR:
            return f"At the current rate the tolerance would take more than {FAR:,.0f} times the queries so far."
        features = f"{self.features:,} features and " if self.features else ""
        return f"At the current rate the tolerance would take about {features}{self.queries:,} queries."


@dataclass(frozen=True)
class Stage:
    """Where a run stood."""

    queries: int
    features: int
    error: float
    """Error of the model, in the units of the target."""


def forecast(stages: Sequence[Stage], target: float) -> Forecast | None:
    """Return what an error of `target` would take, given stages in the order of their queries, the last one the end.

    None if the error was not falling, if too little is known, or if the target is reached.
    """
    if not stages or not target > 0.0:
        return None
    end = stages[-1]
    earlier = [s for s in stages[:-1] if 0 < s.queries <= EARLIER * end.queries and isfinite(s.error)]
    if not earlier or not isfinite(end.error) or not 0.0 < target < end.error:
        return None
    start = earlier[-1]
    if end.error > FALLING * start.error:
        return None
    fall, left = log(start.error / end.error), log(end.error / target)
    exponent = left * log(end.queries / start.queries) / fall
    queries = _times(end.queries, exponent)
    features = 0
    if end.features > start.features:
        features = _times(end.features, left * log(end.features / max(start.features, 1)) / fall)
    return Forecast(queries, features, queries / end.queries)


def _times(number: int, exponent: float) -> int:
    """Return number·e^exponent to two digits, at most `MOST`."""
    if exponent > log(MOST / number):
        return MOST
    return int(float(f"{number * exp(exponent):.1e}"))
