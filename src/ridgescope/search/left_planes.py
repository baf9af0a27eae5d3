"""Planes that second differences on many lines show although no line search has found them.

Where a line crosses a plane, the differences are positive multiples of its slope jump a, in several outputs a direction
of its own, whatever the line. So differences along one direction, on many lines, are those of one plane, and their
centroids are points of it: the plane is the one through them, and no answer more has to be asked.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..deadline import time_left
from ..geometry import Floats
from .kink_tracks import Found, Tracks

_ALIKE = 0.85  # cosine of differences of one plane: two planes that a line crosses at one place make others
_SPREAD, _PARTS = 0.7, 6.0  # cosine from which on, and noise on a from which on, a difference is of a known direction
_SPARE = 10  # points needed beyond the unknowns
_FITS = 20  # fits in which points off the plane lose weight
_TRIES = 200  # directions that are tried


def planes_left(tracks: Tracks, left: Floats, threshold: float, most: int) -> Found:
    """Return planes that the differences `left` (L, m, p) show; those above the `threshold` are more than noise.

    Where the time limit passes, those found by then are returned.
    """
    d = tracks.origin.shape[1]
    size = np.linalg.norm(left, axis=2)
    open_, found = size > threshold, list[tuple[Floats, float, Floats, float]]()
    for _ in range(_TRIES):
        where = np.nonzero(open_)
        if len(found) >= most or len(where[0]) < 2 or time_left() <= 0.0:
            break
        vectors, lengths = left[where], size[where]
        first = int(np.argmax(lengths))
        alike = vectors @ vectors[first] >= _ALIKE * lengths * lengths[first]
        open_[where[0][alike], where[1][alike]] = False
        if alike.sum() < d / 4:
            continue
        mean = vectors[alike].sum(axis=0)
        plane = _plane_along(tracks, left, size, mean / np.linalg.norm(mean))
        if plane is not None:
            found.append(plane)
    v, a = np.array([one[0] for one in found]).reshape(-1, d), np.array([one[2] for one in found])
    t, error = (np.array([one[i] for one in found], dtype=np.float64) for i in (1, 3))
    return Found(v, t, a.reshape(-1, left.shape[2]), error)


def _plane_along(
    tracks: Tracks, left: Floats, size: Floats, unit: Floats
) -> tuple[Floats, float, Floats, float] | None:
    """Return v, t, a and the error of the plane whose slope jumps along a unit vector; None if there is none."""
    along = left @ unit
    shows = (along >= _SPREAD * size) & (along > _PARTS * tracks.noise * (6.0 / len(unit)) ** 0.5)
    lines = np.flatnonzero(shows.any(axis=1))
    d = tracks.origin.shape[1]
    if len(lines) < d + 1 + _SPARE:
        return None
    peak = np.argmax(np.where(shows, along, 0.0)[lines], axis=1)
    inside = (peak > 0) & (peak < along.shape[1] - 1)
    lines, peak = lines[inside], peak[inside]
    if len(lines) < d + 1 + _SPARE:
        return None
    near = np.maximum(along[lines[:, None], peak[:, None] + np.arange(-1, 2)], 0.0)
    total = near.sum(axis=1)
    at = tracks.low + (peak + 1.0 + (near[:, 2] - near[:, 0]) / total) * tracks.step
    x = tracks.origin[lines] + at[:, None] * tracks.along[lines]
    v, t, error, used = _through(x)
    if error > tracks.resolved or used.sum() < d + 1 + _SPARE:
        return None
    slope = np.abs(tracks.along[lines] @ v) * tracks.step
    amount = float(np.median(total[used] / np.maximum(slope[used], np.finfo(float).tiny)))
    return v, t, amount * unit, error


def _through(x: Floats) -> tuple[Floats, float, float, NDArray[np.bool_]]:
    """Return v and t of the plane through most points (k, d), its error, and whether each point is on it."""
    weight = np.ones(len(x))
    v, t, off = np.zeros(x.shape[1]), 0.0, np.zeros(len(x))
    for _ in range(_FITS):
        middle = weight @ x / weight.sum()
        y = (x - middle) * np.sqrt(weight)[:, None]
        v = np.asarray(np.linalg.eigh(y.T @ y)[1][:, 0])
        t = float(v @ middle)
        off = np.abs(x @ v - t)
        scale = max(float(np.median(off)), np.finfo(float).tiny)
        weight = 1.0 / (1.0 + (off / scale) ** 2)
    scale = 1.4826 * float(np.median(off)) * len(x) / max(len(x) - x.shape[1] - 1.0, 1.0)
    return v, t, scale, off <= 5.0 * scale
