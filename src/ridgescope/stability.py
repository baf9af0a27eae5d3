"""The same function under several seeds: which features does every run find, and to what angle?"""

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
    """One feature as several runs saw it."""

    runs: tuple[int, ...]
    """Which runs found it."""
    members: tuple[Feature, ...]
    """The feature of each of these runs."""

    @property
    def direction(self) -> Floats:
        """That of the first run that found it."""
        return self.members[0].direction

    @property
    def spread(self) -> float:
        """Largest angle to the first run's direction, radians."""
        rows = np.array([f.direction for f in self.members])
        return float(angle(rows, np.broadcast_to(rows[0], rows.shape)).max())

    @property
    def strength(self) -> float:
        return float(np.mean([f.strength for f in self.members]))


@dataclass(frozen=True, eq=False)
class Stability:
    """What several runs have in common."""

    runs: tuple[Extraction, ...]
    groups: tuple[Group, ...]
    """Found by most runs first, then the strongest."""
    within: float

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
    """Extract once for each seed and bring together what is the same, up to sign and `within` radians.

    `options` go to `rs.extract`; `after_each` is called with the seed and the result of each run.
    """
    if len(seeds) < 2:
        raise InvalidInput(f"stability compares at least two runs; seeds={tuple(seeds)!r}")
    runs = []
    for seed in seeds:
        runs.append(extract(oracle, dim, rng=seed, **options))
        if after_each is not None:
            after_each(seed, runs[-1])
    return Stability(tuple(runs), common(runs, within), within)


def common(runs: Sequence[Extraction], within: float = 0.1) -> tuple[Group, ...]:
    """Features of several results, those with the same direction together."""
    groups: list[list[tuple[int, Feature]]] = []
    for number, run in enumerate(runs):
        known = np.array([g[0][1].direction for g in groups]).reshape(len(groups), run.dim)
        told = match(run.directions, known, within=within)
        for group, partner, off in zip(list(groups), told.partner, told.angles, strict=True):
            if off <= within:
                group.append((number, run.features[partner]))
        groups += [[(number, run.features[i])] for i in told.false]
    made = [Group(tuple(n for n, _ in g), tuple(f for _, f in g)) for g in groups]
    return tuple(sorted(made, key=lambda g: (-len(g.runs), -g.strength)))
