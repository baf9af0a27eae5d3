"""Rough planes made finer where many of them cross a line between two of its points: jumps tell them apart.

Second differences on a line (`kink_tracks`) near the crossing of plane k hold a_k times its share, and those of all
other planes whose crossings lie as near, or may lie there for all that is known of them. With p outputs a difference is
a vector of p numbers, and the directions a_k/|a_k| of the few planes that may show in it are independent: least squares
give each plane its share of each difference,

    D_j  ≈  Σ_{k near j} c_jk a_k/|a_k|,

and the centroid of a plane's shares along a line is where the line crosses it, whatever the others do. The equations
v_k·x = t_k of all lines are then solved for (v_k, t_k) as in `kink_tracks`, with equations that do not fit counting
less, and the jumps of all planes that are placed within a step are solved for at once. What sweeps over single planes
take for noise, the crossings of all the others, is accounted for from the first round on, so that errors of several
steps do no harm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..deadline import check_time
from ..geometry import Floats
from .kink_tracks import Found, Tracks

_FAR_OFF, _WIDEST = 4.5, 12  # errors σ that the differences looked at must cover; and at most so many on either side
_SLANTED = 0.3  # least |v·u|·√d: a line crosses others at so small an angle that its crossing is not known
_SHRUNK = 1e-3  # share by which least squares shrink what they give: nothing where jumps are independent
_OUTLIER, _DOUBTFUL = 5.0, 3.0  # errors at which an equation is of another plane, and from which on it counts less
_REWEIGHTED = 3  # solutions of a plane's equations, with new weights each
_SPARE = 10  # equations needed beyond the unknowns
_PLACED = 0.5  # errors of crossings, in steps, up to which a plane's jump can be read from its differences
_ROUNDS, _LITTLE = 12, 0.8  # most rounds; the last one lowers the median error to more than this share


def unmix(tracks: Tracks, planes: Found, enough: float) -> Found:
    """Return the planes with better v, t and a, and the expected errors of v·x − t on the lines.

    Ends where `enough` of them, a share, are so well known that each can be refined by itself.
    """
    found = Found(planes.v.copy(), planes.t.copy(), planes.a.copy(), planes.error.copy())
    for _ in range(_ROUNDS):
        check_time()
        if np.mean(found.error <= tracks.resolved) >= enough:
            break
        before = float(np.median(found.error))
        _move_all(tracks, found, *_crossings(tracks, found))
        _scale_all(tracks, found)
        if np.median(found.error) > _LITTLE * before:
            break
    return found


def _crossings(tracks: Tracks, planes: Found) -> tuple[Floats, Floats]:
    """Return where lines (L,) cross planes (K,), NaN where that is not seen, and the errors of v·x there."""
    size = np.linalg.norm(planes.a, axis=1)
    units = planes.a / size[:, None]
    gram = units @ units.T
    at = np.full((len(tracks.origin), len(size)), np.nan)
    error = np.full_like(at, np.inf)
    for i in range(len(at)):
        slope = planes.v @ tracks.along[i]
        per_step = np.maximum(np.abs(slope) * tracks.step, np.finfo(float).tiny)
        with np.errstate(divide="ignore", invalid="ignore"):
            place = ((planes.t - planes.v @ tracks.origin[i]) / slope - tracks.low) / tracks.step
        count = tracks.differences.shape[1]
        wide = np.clip(np.ceil(_FAR_OFF * planes.error / per_step - 0.3), 0, _WIDEST).astype(np.intp)
        cell = np.floor(np.nan_to_num(np.clip(place, -1e6, 1e6), nan=-1e6)).astype(np.intp)
        first, last = cell - 1 - wide, cell + wide
        plane, index, shares, left = _shares(tracks.differences[i], units, gram, first, last)
        middle = 0.5 * (first + last)[plane]
        amount, torque, doubt = (
            np.bincount(plane, weights=w, minlength=len(size))
            for w in (shares, shares * (index - middle), ((index - middle) * left[index]) ** 2)
        )
        expected = per_step * size
        seen = (first >= 0) & (last < count) & (np.abs(slope) * tracks.origin.shape[1] ** 0.5 > _SLANTED)
        off = torque / expected
        spoilt = np.maximum(np.sqrt(doubt) / expected, np.abs(amount / expected - 1.0) * (wide + 1.0))
        at[i, seen] = (tracks.low + (0.5 * (first + last) + 1.0 + off) * tracks.step)[seen]
        error[i, seen] = (spoilt * per_step + tracks.noise / size)[seen]
    return at, error


def _shares(
    differences: Floats, units: Floats, gram: Floats, first: NDArray[np.intp], last: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats, Floats]:
    """Return planes, indices and shares c of one line's differences (m, p), and what they leave (m,), per output."""
    m, p = differences.shape
    low, high = np.maximum(first, 0), np.minimum(last, m - 1)
    length = np.maximum(high - low + 1, 0)
    plane = np.repeat(np.arange(len(first)), length)
    index = np.arange(len(plane)) - np.repeat(np.cumsum(length) - length - low, length)
    order = np.argsort(index, kind="stable")
    plane, index = plane[order], index[order]
    start = np.searchsorted(index, np.arange(m))
    column = np.arange(len(index)) - start[index]
    most = int(column.max(initial=0)) + 1
    who = np.full((m, most), -1, dtype=np.intp)
    who[index, column] = plane
    there = who >= 0
    rhs = np.zeros((m, most))
    rhs[index, column] = (differences @ units.T)[index, plane]
    matrix = np.where(there[:, :, None] & there[:, None, :], gram[who[:, :, None], who[:, None, :]], 0.0)
    matrix[:, np.arange(most), np.arange(most)] = 1.0 + _SHRUNK
    shares = np.linalg.solve(matrix, rhs[:, :, None])[:, :, 0] * there
    energy = np.einsum("jp,jp->j", differences, differences) - np.einsum("jk,jk->j", shares, rhs)
    return plane, index, shares[index, column], np.sqrt(np.maximum(energy, 0.0) / p)


def _move_all(tracks: Tracks, planes: Found, at: Floats, error: Floats) -> None:
    """Solve the equations v·x = t of each plane, in place."""
    d = tracks.origin.shape[1]
    for k in range(len(planes.t)):
        lines = np.flatnonzero(np.isfinite(at[:, k]))
        x = tracks.origin[lines] + at[lines, k, None] * tracks.along[lines]
        off, each, sigma = x @ planes.v[k] - planes.t[k], error[lines, k], planes.error[k]
        used = np.abs(off) <= _OUTLIER * np.maximum(sigma, each)
        if used.sum() < d + 1 + _SPARE:
            continue
        rows = np.concatenate([x[used], -np.ones((int(used.sum()), 1))], axis=1)
        off, each = off[used], each[used]
        # each component of v is known to σ over the distance from the centre, and t to σ
        prior = np.append(np.full(d, np.mean(np.einsum("ld,ld->l", x[used], x[used]))), 1.0) / sigma**2
        weight, change, left = 1.0 / each, np.zeros(d + 1), sigma
        for _ in range(_REWEIGHTED):
            weighted = rows * weight[:, None]
            gram = weighted.T @ weighted
            gram[np.diag_indices(d + 1)] += float(np.mean((off * weight) ** 2)) * prior
            change = np.linalg.solve(gram, -(weighted.T @ (off * weight)))
            rest = off + rows @ change
            left = 1.4826 * float(np.median(np.abs(rest)))
            far = rest / (_DOUBTFUL * np.maximum(left, each))
            weight = 1.0 / (np.sqrt(each**2 + left**2) * (1.0 + far**2))
        size = float(np.linalg.norm(planes.v[k] + change[:d]))
        planes.v[k] = (planes.v[k] + change[:d]) / size
        planes.t[k] = (planes.t[k] + change[d]) / size
        inflation = len(off) / (len(off) - d - 1.0)
        planes.error[k] = float(np.clip(left * np.sqrt(inflation), 1e-9 * tracks.arm, sigma))


def _scale_all(tracks: Tracks, planes: Found) -> None:
    """Solve for the jumps of all planes that are placed well, by all differences at once, in place."""
    typical = tracks.origin.shape[1] ** -0.5
    placed = planes.error <= _PLACED * typical * tracks.step
    if not placed.any():
        return
    shares = _placed_shares(tracks, planes)
    flat = tracks.differences.reshape(-1, tracks.differences.shape[2])
    ours = shares[:, np.flatnonzero(placed)]
    others = shares[:, np.flatnonzero(~placed)]
    gram = (ours.T @ ours).toarray()
    rhs = ours.T @ flat - (ours.T @ others) @ planes.a[~placed]
    ridge = _SHRUNK * np.maximum(np.diag(gram), np.finfo(float).tiny)  # towards what they were
    gram[np.diag_indices(len(gram))] += ridge
    planes.a[placed] = np.linalg.solve(gram, rhs + ridge[:, None] * planes.a[placed])


def _placed_shares(tracks: Tracks, planes: Found) -> csr_array:
    """Return (L·m, K) shares of the planes, per unit of jump, in the differences where they cross the lines."""
    count, m = len(tracks.origin), tracks.differences.shape[1]
    slope = tracks.along @ planes.v.T
    with np.errstate(divide="ignore", invalid="ignore"):
        place = ((planes.t - tracks.origin @ planes.v.T) / slope - tracks.low) / tracks.step
    place = np.nan_to_num(np.clip(place, -2.0, m + 2.0), nan=-2.0)
    cell = np.floor(place).astype(np.intp)
    part, size = place - cell, np.abs(slope) * tracks.step
    line, plane = np.meshgrid(np.arange(count), np.arange(len(planes.t)), indexing="ij")
    rows, columns, values = [], [], []
    for index, share in ((cell - 1, size * (1.0 - part)), (cell, size * part)):
        inside = (index >= 0) & (index < m)
        rows.append((line * m + index)[inside])
        columns.append(plane[inside])
        values.append(share[inside])
    parts = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
    return csr_array(parts, shape=(count * m, len(planes.t)))
