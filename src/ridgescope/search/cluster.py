"""Many noisy sightings of few directions: one direction for each group, up to sign.

Each sighting is a unit vector with its own expected error. The heaviest unclaimed sighting claims every other
that lies within what their two errors allow; a claimed group is summarised by the leading eigenvector of Σ w
v vᵀ, which is blind to sign, with w falling as the square of the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats


@dataclass(frozen=True, eq=False)
class Clusters:
    """Best first."""

    directions: Floats
    """(n, d) unit rows."""
    scores: Floats
    """(n,) summed weight of the members."""
    votes: NDArray[np.intp]
    """(n,) how many sightings each one has."""
    spread: Floats
    """(n,) expected error of its most exact member, radians."""
    label: NDArray[np.intp]
    """(k,) the cluster of each sighting."""


def cluster(
    directions: Floats, weights: Floats, spread: Floats, *, tolerance: float = 0.02, most: float = 0.2
) -> Clusters:
    """Group unit rows (k, d) up to sign.

    Two sightings may be one direction when their angle is at most tolerance + 2·(sum of their errors), and
    never when it exceeds `most`.
    """
    k, d = directions.shape
    label = np.full(k, -1, dtype=np.intp)
    centres: list[Floats] = []
    order = np.argsort(-weights, kind="stable")
    for i in order:
        if label[i] >= 0:
            continue
        free = np.flatnonzero(label < 0)
        cosines = np.minimum(np.abs(directions[free] @ directions[i]), 1.0)
        near = np.arccos(cosines) <= np.minimum(tolerance + 2.0 * (spread[free] + spread[i]), most)
        near |= free == i
        members = free[near]
        label[members] = len(centres)
        centres.append(_centre(directions[members], spread[members] + 0.25 * tolerance))
    n = len(centres)
    scores = np.zeros(n)
    np.add.at(scores, label, weights)
    best = np.argsort(-scores, kind="stable")
    rank = np.empty(n, dtype=np.intp)
    rank[best] = np.arange(n)
    exact = np.full(n, np.inf)
    np.minimum.at(exact, label, spread)
    return Clusters(
        directions=np.reshape(centres, (n, d))[best],
        scores=scores[best],
        votes=np.bincount(label, minlength=n)[best],
        spread=exact[best],
        label=rank[label] if k else label,
    )


def _centre(rows: Floats, error: Floats) -> Floats:
    weighted = rows / error[:, None]
    _, _, basis = np.linalg.svd(weighted, full_matrices=False)
    return np.asarray(basis[0])
