"""The majority vote of Theorem weaker: from a search that succeeds with probability 0.9 to one with 1 − δ.

The proof runs Lemma find-directions O(log 1/δ) times and "post-processes by majority voting": a direction is kept when
more than half of the runs found one within a given angle of it.

Letters: d dimension, m number of samples, δ failure probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidInput
from ..geometry import Floats, frozen
from . import arguments
from .directions import find_directions, sines
from .mass import Field, PairField
from .survey import Settings


@dataclass(frozen=True)
class Vote:
    """The directions that more than the quorum of `runs` runs found.

    directions: (s, d) unit rows; share: (s,) share of the runs that found each; runs: number of runs.
    """

    directions: Floats
    share: Floats
    runs: int


def vote(runs: Sequence[Floats], *, angle: float = 0.1, quorum: float = 0.5) -> Vote:
    """Take the majority of independent runs (proof of Theorem weaker), which turns probability 0.9 into 1−δ.

    Parameters
    ----------
    runs
        Unit directions (s, d) of each run.
    angle
        Two directions are the same when the sine of their angle is at most this.
    quorum
        A direction is kept when more than this share of the runs found it.

    Returns
    -------
    Vote
        For each kept direction the principal axis of the votes for it, at most one of each run.

    Raises
    ------
    InvalidInput
        If there is no run, or a direction is not of length one.

    Examples
    --------
    >>> once, twice = np.eye(2)[:1], np.eye(2)
    >>> rs.paper.vote([once, twice, once], angle=0.1).share
    array([1.])
    """
    if len(runs) == 0:
        raise InvalidInput("a vote needs at least one run; got none")
    angle = arguments.share("angle", angle)
    if not 0 <= quorum < 1:
        raise InvalidInput(f"quorum must be a share of the runs, 0 ≤ quorum < 1; got {quorum!r}")
    rows = [np.atleast_2d(np.asarray(r, dtype=np.float64)) for r in runs]
    if len({r.shape[1] for r in rows}) > 1:
        raise InvalidInput(
            f"all runs must be of one dimension; got rows of {sorted({r.shape[1] for r in rows})} numbers"
        )
    rows = [arguments.unit_rows("directions of a run", r) if len(r) else r for r in rows]
    pooled = np.concatenate(rows)
    run_of = np.concatenate([np.full(len(r), i) for i, r in enumerate(rows)])
    kept: list[Floats] = []
    share: list[float] = []
    free = np.ones(len(pooled), dtype=bool)
    near = sines(pooled, pooled) <= angle
    while free.any():
        counts = np.array([len(np.unique(run_of[row & free])) if ok else 0 for row, ok in zip(near, free, strict=True)])
        centre = int(np.argmax(counts))
        if counts[centre] <= quorum * len(runs):
            break
        members = near[centre] & free
        axis = np.linalg.svd(pooled[members], full_matrices=False)[2][0]
        kept.append(axis)
        share.append(counts[centre] / len(runs))
        free &= ~(sines(pooled, axis[None])[:, 0] <= 2 * angle)  # two votes for one axis can be 2·angle apart
        free[members] = False
    out = np.array(kept).reshape(-1, pooled.shape[1])
    return Vote(frozen(out), frozen(share), len(runs))


def search(
    field: Field | PairField,
    *,
    dim: int,
    settings: Settings,
    m: int,
    rng: np.random.Generator,
    max_candidates: int | None = None,
) -> Floats:
    """Return directions (s, d): Lemma find-directions `settings.repeats` times with fresh bases, by majority."""
    runs = [
        find_directions(
            field,
            settings.ell,
            dim=dim,
            m=m,
            rng=rng,
            frequency=settings.frequency,
            separation=settings.separation,
            sigmas=settings.sigmas,
            max_candidates=max_candidates,
            estimator=settings.estimator,
        ).directions
        for _ in range(settings.repeats)
    ]
    return runs[0] if len(runs) == 1 else vote(runs, angle=settings.separation / 2).directions
