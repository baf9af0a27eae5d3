"""Compare two sets of directions: who is whom, up to sign, and by what angle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from .errors import InvalidInput
from .geometry import Floats, angle


@dataclass(frozen=True)
class Match:
    """The best one-to-one assignment between found and true directions."""

    angles: Floats
    """(n_true,) angle in radians to the assigned found direction; π/2 where none was left to assign."""
    partner: NDArray[np.intp]
    """(n_true,) index of the assigned found direction, −1 where none."""
    within: float
    """Angle up to which a pair counts as the same direction."""
    missed: NDArray[np.intp]
    """Indices of true directions without a partner within that angle."""
    false: NDArray[np.intp]
    """Indices of found directions that are nobody's partner within that angle."""

    def share(self, angle: float) -> float:
        """Share of the true directions found within `angle` radians."""
        return float(np.mean(self.angles <= angle)) if len(self.angles) else 1.0

    def __str__(self) -> str:
        n = len(self.angles)
        hit = self.angles[self.angles <= self.within]
        worst = f", worst {hit.max():.2g} rad, median {np.median(hit):.2g} rad" if len(hit) else ""
        return f"{n - len(self.missed)} of {n} found within {self.within:g} rad{worst}; {len(self.false)} false"


def match(found: ArrayLike, truth: ArrayLike, *, within: float = 0.1) -> Match:
    """Assign found directions to true ones, one to one, with the least total angle; signs do not count.

    `found` (m, d) and `truth` (n, d) need not be unit rows, only non-zero. Angles are exact down to
    1e-12 rad. Those beyond `within` all cost the same, so that a hopeless pair never takes the partner of a
    good one.
    """
    a, b = _rows(found, "found"), _rows(truth, "truth")
    if a.size and b.size and a.shape[1] != b.shape[1]:
        raise InvalidInput(f"found has {a.shape[1]} coordinates, truth has {b.shape[1]}; they must agree")
    angles = np.full(len(b), np.pi / 2)
    partner = np.full(len(b), -1, dtype=np.intp)
    if a.size and b.size:
        cost = _pairwise(b, a)
        far = cost > within
        cost[far] = within + 1e-9 * cost[far]  # among hopeless pairs, still the nearest
        rows, columns = linear_sum_assignment(cost)
        partner[rows] = columns
        angles[rows] = angle(b[rows], a[columns])
    missed = np.flatnonzero(angles > within)
    good = partner[angles <= within]
    false = np.setdiff1d(np.arange(len(a)), good)
    for array in (angles, partner, missed, false):
        array.flags.writeable = False
    return Match(angles=angles, partner=partner, within=within, missed=missed, false=false)


def _pairwise(b: Floats, a: Floats) -> Floats:
    """(n, m) angles. Where the cosine is too blunt a measure, the pair is measured again, exactly."""
    cosines = np.minimum(np.abs(b @ a.T), 1.0)
    angles = np.arccos(cosines)
    i, j = np.nonzero(cosines > 0.999)
    angles[i, j] = angle(b[i], a[j])
    return angles


def _rows(directions: ArrayLike, name: str) -> Floats:
    rows = np.asarray(directions, dtype=np.float64)
    if rows.size == 0:
        return rows.reshape(0, rows.shape[-1] if rows.ndim == 2 else 0)
    if rows.ndim != 2:
        raise InvalidInput(f"{name} must be a (count, dim) array of directions, not of shape {rows.shape}")
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    bad = ~(np.isfinite(length) & (length > 0))
    if bad.any():
        first = int(np.argmax(bad))
        raise InvalidInput(f"{name}[{first}] has length {length[first, 0]}; a direction must be finite and non-zero")
    return np.asarray(rows / length)
