"""Where a certificate asks: along the features, where the model bends, and from the worst points on.

A query is asked of the oracle and of the model; its error is the largest over the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .geometry import Floats, along, random_directions
from .oracle.base import Oracle

CHAINS, MOVES, ROUNDS = 4, 4, 10
"""Local search: 160 queries in ten batches, since each batch may be a round trip to a server."""
FIRST_MOVE = 0.5
"""Length of the first moves of the local search, in radii."""
BENT_SHARE = 4
"""One query in so many along the features goes where the model bends most, as errors at cusps and narrow bumps do."""
BENT_PLACES = 3
"""Such places of each feature."""
CURVATURE_GRID = 129
"""Places of [−R, R] at which the model's second differences along a feature are compared."""
SURFACE = 0.01
"""A move that leaves the ball ends within this share of the radius below its surface."""


class Errors:
    """Asks the oracle and the model, and keeps every point with its error; dropped answers are left out."""

    def __init__(self, oracle: Oracle, predict: Callable[[Floats], ArrayLike]) -> None:
        self.oracle, self.predict = oracle, predict
        self.batches: list[tuple[Floats, Floats]] = []
        """Points and answers as they were asked."""
        self.points: Floats = np.empty((0, oracle.dim))
        self.sizes: Floats = np.empty(0)
        self.pairs: Floats = np.empty((0, 2))
        """Answer and model, for the output with the largest error."""
        self.largest = 0.0
        """Largest |answer|: those from far outside the ball, which a search may have seen, say nothing here."""

    def ask(self, U: Floats) -> tuple[Floats, Floats]:
        """Return answers (m, p) and f̃ − f̂ (m, p): NaN rows where no answer came, inf where the model has none."""
        answers = self.oracle(U, stage="certify")
        self.batches.append((U, answers))
        model = np.asarray(self.predict(U), dtype=np.float64).reshape(answers.shape)
        gap = answers - model
        gap[~np.isfinite(gap) & np.isfinite(answers)] = inf
        answered = np.isfinite(answers).all(axis=1)
        self.largest = max(self.largest, float(np.abs(answers[answered]).max(initial=0.0)))
        self.points = np.concatenate([self.points, U[answered]])
        self.sizes = np.concatenate([self.sizes, size(gap[answered])])
        worst = (np.flatnonzero(answered), np.argmax(np.abs(gap[answered]), axis=1))
        self.pairs = np.concatenate([self.pairs, np.stack([answers[worst], model[worst]], axis=1)])
        return answers, gap


def size(gaps: Floats) -> Floats:
    """Return (m,): the largest |error| over the outputs of each row."""
    return np.asarray(np.abs(gaps).max(axis=1)) if len(gaps) else np.empty(0)


def along_features(
    count: int, directions: Floats, predict: Callable[[Floats], ArrayLike], radius: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.intp]]:
    """Return (count, d) points and their features: shared evenly, each feature's z stratified over [−R, R].

    One in `BENT_SHARE` of each feature's points is moved to where the model bends most along it.
    """
    n, d = directions.shape
    if not count or not n:
        return np.empty((0, d)), np.empty(0, dtype=np.intp)
    strata = ceil(count / n)
    turn = np.arange(count)
    which = rng.permutation(n)[turn % n]
    # Each feature starts at a random stratum: those that a short last turn leaves out are not all at one end.
    stratum = (turn // n + rng.integers(strata, size=n)[which]) % strata
    z = radius * np.sin(np.pi * ((stratum + rng.random(count)) / strata - 0.5))
    bent = (turn // n) % BENT_SHARE == BENT_SHARE - 1
    place = (turn[bent] // n) // BENT_SHARE % BENT_PLACES
    step = 2.0 * radius / (CURVATURE_GRID - 1)
    z[bent] = _where_bent(directions, predict, radius)[which[bent], place] + step * rng.uniform(-1.0, 1.0, bent.sum())
    return along(directions, which, z, radius, rng), which


def _where_bent(directions: Floats, predict: Callable[[Floats], ArrayLike], radius: float) -> Floats:
    """Return (n, BENT_PLACES) positions in [−R, R] where the model bends most along each direction (n, d).

    They are inner points of a grid of `CURVATURE_GRID`, those with the largest second differences.
    """
    n, d = directions.shape
    z = np.linspace(-radius, radius, CURVATURE_GRID)
    values = np.asarray(predict((z[:, None, None] * directions).reshape(-1, d)), dtype=np.float64)
    bend = np.abs(np.diff(values.reshape(CURVATURE_GRID, n, -1), n=2, axis=0)).max(axis=2)
    return np.asarray(z[1:-1][np.argsort(-np.nan_to_num(bend), axis=0)[:BENT_PLACES].T])


def search_worst(errors: Errors, directions: Floats, radius: float, queries: int, rng: np.random.Generator) -> None:
    """Search from the worst points for worse ones: each round tries a few moves and goes on from the worst found.

    The width of a region of large error is not known, so a chain's moves start at half the radius and halve when all
    of them fail.
    """
    chains = min(CHAINS, len(errors.sizes), queries)
    if not chains:
        return
    worst = np.argsort(-errors.sizes, kind="stable")[:chains]
    places, sizes, lengths = errors.points[worst], errors.sizes[worst], np.full(chains, FIRST_MOVE * radius)
    while queries > 0:
        moves = max(1, min(MOVES, queries // chains))
        chain = np.repeat(np.arange(chains), moves)[:queries]
        tried = _moved(places[chain], lengths[chain], directions, radius, rng)
        queries -= len(tried)
        found = np.nan_to_num(size(errors.ask(tried)[1]), nan=-inf, posinf=inf)
        for j in np.unique(chain):
            best = int(np.argmax(np.where(chain == j, found, -inf)))
            if found[best] > sizes[j]:
                places[j], sizes[j] = tried[best], found[best]
            else:
                lengths[j] *= 0.5


def _moved(places: Floats, lengths: Floats, directions: Floats, radius: float, rng: np.random.Generator) -> Floats:
    """Return the points `places` (m, d), each moved by its length of `lengths` (m,) within a factor of two.

    Every other one moves along a feature, where a wrong response shows, the rest in any direction. A move that leaves
    the ball ends within 1 % of its surface, not on it: in one dimension all would end in the same point.
    """
    m, d = places.shape
    ways = random_directions(m, d, rng)
    if len(directions):
        on_feature = np.arange(m) % 2 == 0
        ways[on_feature] = directions[rng.integers(len(directions), size=int(on_feature.sum()))]
    steps = lengths * np.exp2(rng.uniform(-1.0, 1.0, m)) * rng.choice([-1.0, 1.0], m)
    moved: Floats = places + steps[:, None] * ways
    norm = np.linalg.norm(moved, axis=1)
    outside = norm > radius
    inside = radius * (1.0 - SURFACE * rng.random(int(outside.sum())))
    moved[outside] *= (inside / norm[outside])[:, None]
    return moved
