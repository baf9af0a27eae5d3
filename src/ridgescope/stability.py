"""Extract the same function with several seeds: which features do all runs find, and by what angle do they differ?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InvalidInput
from .extract import extract
from .feature import Feature
from .geometry import Floats, angle
from .match import match
from .oracle.base import Oracle
from .result import Extraction


@dataclass(frozen=True, eq=False)
class Group:
    """One feature as several runs found it."""

    runs: tuple[int, ...]
    """Indices of the runs that found it."""
    members: tuple[Feature, ...]
    """The feature in each of these runs."""

    @property
    def direction(self) -> Floats:
        """(d,) direction in the first run that found it."""
        return self.members[0].direction

    @property
    def spread(self) -> float:
        """Largest angle in radians between the direction of the first run and that of any other."""
        rows = np.array([f.direction for f in self.members])
        return float(angle(rows, np.broadcast_to(rows[0], rows.shape)).max())

    @property
    def strength(self) -> float:
        """Mean strength over the runs that found the feature."""
        return float(np.mean([f.strength for f in self.members]))


@dataclass(frozen=True, eq=False)
class Stability:
    """The features that several runs have in common, as `rs.stability` returns them."""

    runs: tuple[Extraction, ...]
    """One result for each seed."""
    groups: tuple[Group, ...]
    """The features of all runs: those found by the most runs first, then the strongest."""
    within: float
    """Largest angle in radians at which two directions count as the same."""

    @property
    def shared(self) -> tuple[Group, ...]:
        """The features that every run found."""
        return tuple(g for g in self.groups if len(g.runs) == len(self.runs))

    def __str__(self) -> str:
        met = sum(r.certificate.met for r in self.runs)
        worst = f", at most {max(g.spread for g in self.shared):.1e} rad apart" if self.shared else ""
        some = len(self.groups) - len(self.shared)
        return (
            f"{len(self.shared)} of {len(self.groups)} features are found by all {len(self.runs)} runs{worst}; "
            f"{some} by some only; {met} of {len(self.runs)} runs are certified"
        )


def stability(
    oracle: Callable[[Any], Any] | Oracle,
    dim: int | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    within: float = 0.1,
    after_each: Callable[[int, Extraction], object] | None = None,
    **options: Any,
) -> Stability:
    """Extract a function once for each seed, and group the features that are the same up to sign.

    Parameters
    ----------
    oracle, dim
        As for `rs.extract`.
    seeds
        Two or more seeds.
    within
        Largest angle in radians at which two directions count as the same.
    after_each
        Called with the seed and the result after each run.
    **options
        Further arguments of `rs.extract`.

    Returns
    -------
    Stability
        The runs, and the features with the runs that found them.

    Raises
    ------
    InvalidInput
        If there are fewer than two seeds, or if `rs.extract` raises it.

    Examples
    --------
    >>> print(rs.stability(rs.targets.CASES["first"].make(0), seeds=(0, 1)))
    4 of 4 features are found by all 2 runs, at most 2.7e-07 rad apart; 0 by some only; 2 of 2 runs are certified
    """
    if len(seeds) < 2:
        raise InvalidInput(f"stability needs at least two seeds; got seeds={tuple(seeds)!r}")
    runs = []
    for seed in seeds:
        runs.append(extract(oracle, dim, rng=seed, **options))
        if after_each is not None:
            after_each(seed, runs[-1])
    return Stability(tuple(runs), group_features(runs, within), within)


def group_features(runs: Sequence[Extraction], within: float = 0.1) -> tuple[Group, ...]:
    """Return the features of several results, with those of the same direction in one group.

    Later runs are compared with the direction of the first run that found the feature.
    """
    groups: list[list[tuple[int, Feature]]] = []
    for number, run in enumerate(runs):
        known = np.array([g[0][1].direction for g in groups]).reshape(len(groups), run.dim)
        matched = match(run.directions, known, within=within)
        for group, partner, off in zip(list(groups), matched.partner, matched.angles, strict=True):
            if off <= within:
                group.append((number, run.features[partner]))
        groups += [[(number, run.features[i])] for i in matched.false]
    made = [Group(tuple(n for n, _ in g), tuple(f for _, f in g)) for g in groups]
    return tuple(sorted(made, key=lambda g: (-len(g.runs), -g.strength)))
