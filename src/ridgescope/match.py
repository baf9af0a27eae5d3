"""Compare two sets of directions: which ones are the same up to sign, and by what angle they differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidInput
from .geometry import Floats, angle

_TIE = 1e-9
"""Weight of the angle among pairs beyond `within`: too small to change the assignment of closer pairs."""
_INACCURATE_COSINE = 0.999
"""Above it (angles below 0.045 rad) arccos loses more than two digits, so the angle is computed from differences."""


@dataclass(frozen=True)
class Match:
    """The best one-to-one assignment between found and true directions, as `rs.match` returns it."""

    angles: Floats
    """(n_true,) angle in radians to the assigned found direction; π/2 if none is assigned."""
    partner: NDArray[np.intp]
    """(n_true,) index of the assigned found direction, −1 if none is assigned."""
    within: float
    """Largest angle in radians at which two directions count as the same."""
    missed: NDArray[np.intp]
    """Indices of the true directions without a partner within that angle."""
    false: NDArray[np.intp]
    """Indices of the found directions that are not a partner within that angle."""

    def share(self, angle: float) -> float:
        """Return the fraction of the true directions found within `angle` radians; 1 if there are none."""
        return float(np.mean(self.angles <= angle)) if len(self.angles) else 1.0

    def __str__(self) -> str:
        n = len(self.angles)
        hit = self.angles[self.angles <= self.within]
        worst = f", worst {hit.max():.2g} rad, median {np.median(hit):.2g} rad" if len(hit) else ""
        return f"{n - len(self.missed)} of {n} found within {self.within:g} rad{worst}; {len(self.false)} false"


def match(found: ArrayLike, truth: ArrayLike, *, within: float = 0.1) -> Match:
    """Assign found directions to true ones, one to one, such that the sum of angles is smallest. Signs are ignored.

    Angles beyond `within` all cost the same, so that a pair too far apart never takes the partner of a close one.

    Parameters
    ----------
    found
        (m, d) directions; rows may have any length except zero.
    truth
        (n, d) directions to compare with.
    within
        Largest angle in radians at which two directions count as the same.

    Returns
    -------
    Match
        Angles, accurate to 1e-12 rad, partners, and the directions that have none.

    Raises
    ------
    InvalidInput
        If an array is not of shape (count, dim), the dimensions differ, or a direction is zero or not finite.

    Examples
    --------
    >>> compared = rs.match([[0.0, -1.0], [1.0, 0.02]], [[1.0, 0.0]])
    >>> print(compared)
    1 of 1 found within 0.1 rad, worst 0.02 rad, median 0.02 rad; 1 false
    >>> compared.partner, compared.false
    (array([1]), array([0]))
    """
    a, b = _unit_rows(found, "found"), _unit_rows(truth, "truth")
    if a.size and b.size and a.shape[1] != b.shape[1]:
        raise InvalidInput(f"found has {a.shape[1]} coordinates, truth has {b.shape[1]}; they must agree")
    angles = np.full(len(b), np.pi / 2)
    partner = np.full(len(b), -1, dtype=np.intp)
    if a.size and b.size:
        cost = _pairwise_angles(b, a)
        far = cost > within
        cost[far] = within + _TIE * cost[far]
        rows, columns = _cheapest_pairs(cost)
        partner[rows] = columns
        angles[rows] = angle(b[rows], a[columns])
    missed = np.flatnonzero(angles > within)
    false = np.setdiff1d(np.arange(len(a)), partner[angles <= within])
    for array in (angles, partner, missed, false):
        array.flags.writeable = False
    return Match(angles=angles, partner=partner, within=within, missed=missed, false=false)


def _cheapest_pairs(cost: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows and columns of the pairs of least total cost; each row, or each column if these are fewer, has one.

    Where the cheapest partners of all are distinct no assignment can cost less.
    """
    if cost.shape[0] > cost.shape[1]:
        columns, rows = _cheapest_pairs(cost.T)
        return rows, columns
    rows, columns = np.arange(len(cost)), cost.argmin(axis=1)
    if len(np.unique(columns)) < len(columns):
        from scipy.optimize import linear_sum_assignment  # takes longer to import than most assignments take

        rows, columns = linear_sum_assignment(cost)
    return rows, columns


@dataclass(frozen=True)
class GatedMatch:
    """The assignment of gated units, as `rs.match_gated` returns it."""

    gates: Match
    """The assignment of the gate directions v, which decides."""
    carrier_angles: Floats
    """(n_true,) angle in radians between the carriers of assigned units; π/2 if none is assigned or one is plain."""

    def share(self, angle: float) -> float:
        """Return the fraction of the true units whose gate and carrier are both found within `angle` radians."""
        worst = np.maximum(self.gates.angles, self.carrier_angles)
        return float(np.mean(worst <= angle)) if len(worst) else 1.0

    def __str__(self) -> str:
        worst = f", carriers within {self.carrier_angles.max():.2g} rad" if len(self.carrier_angles) else ""
        return f"{self.gates}{worst}"


def match_gated(
    found: tuple[ArrayLike, ArrayLike], truth: tuple[ArrayLike, ArrayLike], *, within: float = 0.1
) -> GatedMatch:
    """Assign found gated units to true ones by their gates, and compare the carriers of assigned ones.

    A carrier counts up to multiples of its gate, which belong to the plain part of a unit; signs are ignored.

    Parameters
    ----------
    found, truth
        Pairs (gates, carriers) of (m, d) and (n, d) arrays, such as (W_gate, W_up). A zero row among the carriers
        stands for a plain unit.
    within
        Largest angle in radians at which two gates count as the same.

    Returns
    -------
    GatedMatch
        The match of the gates, and the angles of the carriers.

    Examples
    --------
    >>> compared = rs.match_gated(([[1.0, 0.0]], [[0.3, 1.0]]), ([[2.0, 0.0]], [[0.0, -1.0]]))
    >>> float(compared.carrier_angles[0])
    0.0
    """
    gates = match(found[0], truth[0], within=within)
    ours, true = (_across(*pair, name) for pair, name in ((found, "found"), (truth, "truth")))
    angles = np.full(len(gates.partner), np.pi / 2)
    for i, j in enumerate(gates.partner):
        if j >= 0 and gates.angles[i] <= within:
            both_plain = not ours[j].any() and not true[i].any()
            if both_plain or (ours[j].any() and true[i].any()):
                angles[i] = 0.0 if both_plain else float(angle(ours[j], true[i]))
    angles.flags.writeable = False
    return GatedMatch(gates, angles)


def _across(gates: ArrayLike, carriers: ArrayLike, name: str) -> Floats:
    """Return the carriers without their parts along the gates, of length one; zero rows stay zero."""
    v, u = _unit_rows(gates, f"{name}[0]"), np.asarray(carriers, dtype=np.float64)
    if u.shape != v.shape:
        raise InvalidInput(f"{name} has gates of shape {v.shape} and carriers of shape {u.shape}; they must agree")
    across = u - np.einsum("nd,nd->n", u, v)[:, None] * v
    length = np.linalg.norm(across, axis=1, keepdims=True)
    return np.asarray(np.where(length > 0, across / np.where(length > 0, length, 1.0), 0.0))


def _pairwise_angles(b: Floats, a: Floats) -> Floats:
    """Return (n, m) angles between the unit rows of b (n, d) and a (m, d), small ones to full precision."""
    cosines = np.minimum(np.abs(b @ a.T), 1.0)
    angles = np.arccos(cosines)
    i, j = np.nonzero(cosines > _INACCURATE_COSINE)
    angles[i, j] = angle(b[i], a[j])
    return angles


def _unit_rows(directions: ArrayLike, name: str) -> Floats:
    """Return the directions (count, dim) scaled to length one; raise `InvalidInput` for zero or non-finite rows."""
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
