"""One seed for a run, one independent generator for each (stage, round).

A stage's stream depends only on the seed, its name and its round, never on how much randomness another stage used:
adding a query in one place does not change the random numbers of the rest of the run.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Streams:
    """Random generators by name and round: `streams("survey")`, `streams("slices", 2)`."""

    root: np.random.SeedSequence

    @classmethod
    def of(cls, rng: int | np.random.Generator | np.random.SeedSequence | None) -> Streams:
        """Return streams from a seed, a `SeedSequence`, a `Generator` (which is advanced), or None (fresh entropy)."""
        if isinstance(rng, np.random.Generator):
            return cls(np.random.SeedSequence(rng.integers(0, 2**32, size=8).tolist()))
        if isinstance(rng, np.random.SeedSequence):
            return cls(rng)
        return cls(np.random.SeedSequence(rng))

    def __call__(self, stage: str, round: int = 0) -> np.random.Generator:
        key = (*self.root.spawn_key, zlib.crc32(stage.encode()), round)
        return np.random.default_rng(np.random.SeedSequence(self.root.entropy, spawn_key=key))
