"""Planes of a piecewise linear f from the jumps of its gradient across bends.

The gradient jumps by a vᵀ across a plane, and the bend of a line shows a up to its length. A forward difference of
length h along one axis is wrong if its step meets another plane. In exact answers steps are so short that this is rare,
and the jump as a whole shows it: it has not rank one, or does not agree with the bend.

Rounding asks for longer steps. The change of a wrong row across the bend is no multiple of a: with many outputs that
shows, row by row. With a single output two differences of different steps agree only if neither is wrong. Wrong rows
are measured again with other steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from .base import Setting
from .lines import Answer
from .planes import TELLING, KinkSearch

_RANK_ONE = 0.05  # second over first singular value of a gradient jump; another plane crossed makes more. Empirical
_LINE_SHARE, _JUMP_SHARE = 0.2, 1e-3  # allowed error of Jᵀ·along: of the jump seen on the line, plus of |J|
_OFF = 2.0  # error of a row across the jump, over that which rounding makes, from which on the row is wrong
_TRIES = ((-1.0, 1.0), (1.0, 0.5), (-1.0, 0.5), (1.0, 0.25))  # sign and length of further steps, over the first
_HOPELESS, _WRONG = 0.7, 0.1  # share of wrong rows: another plane is in between; and the share allowed in the end


def forward_gradients(answer: Answer, x: Floats, steps: Floats) -> Floats:
    """Return (k, d, p) forward differences at k points; each coordinate moves towards zero, to stay in the ball."""
    k, d = x.shape
    signed = np.where(x > 0, -1.0, 1.0) * steps[:, None]
    moved = np.repeat(x[:, None], d + 1, axis=1)
    moved[:, np.arange(d) + 1, np.arange(d)] += signed
    values = answer(moved.reshape(-1, d)).reshape(k, d + 1, -1)
    return np.asarray((values[:, 1:] - values[:, :1]) / signed[:, :, None])


def rank_one_jump(jump: Floats, along: Floats, seen: Floats) -> tuple[Floats, Floats] | None:
    """Return v and a of a gradient jump J = v aᵀ (d, p) measured across a bend in the direction `along`.

    None unless J has rank one and Jᵀ·along equals the slope jump `seen` on the line: this excludes steps that crossed
    another plane, and double bends.
    """
    if not np.isfinite(jump).all():
        return None
    left, size, right = np.linalg.svd(jump, full_matrices=False)
    if size[0] == 0.0 or (len(size) > 1 and size[1] > _RANK_ONE * size[0]):
        return None
    if np.linalg.norm(jump.T @ along - seen) > _LINE_SHARE * np.linalg.norm(seen) + _JUMP_SHARE * size[0]:
        return None
    sign = 1.0 if left[:, 0] @ along > 0 else -1.0  # so that a is the jump when crossing in the direction v
    return sign * left[:, 0], sign * size[0] * right[0]


def rows_show_errors(setting: Setting) -> bool:
    """Return whether there are enough outputs to tell wrong rows of gradients."""
    return setting.outputs >= TELLING


def gradient_jumps(
    search: KinkSearch,
    x: Floats,
    steps: Floats,
    pairs: NDArray[np.intp],
    jumps: Floats,
    noise: float,
) -> list[tuple[Floats, float] | None]:
    """Return ν = v/(v·u) (d,) and its error, relative, for bends with slope jumps (b, p) on a line along u.

    `pairs` (b, 2) are the indices of the points x (k, d) before and after each bend, `steps` (k,) the lengths of their
    forward differences, and `noise` is the norm over outputs of the error of an answer. None where rows are wrong.
    """
    k, d = x.shape
    here = search.residual(x)
    sign = np.where(x > 0, -1.0, 1.0)
    rows = np.repeat(np.arange(k), d), np.tile(np.arange(d), k)
    slopes = _differences(search, x, here, rows, (sign * steps[:, None])[rows]).reshape(k, d, -1)
    size = np.linalg.norm(jumps, axis=1)
    unit = jumps / size[:, None]
    out: list[tuple[Floats, float] | None] = []
    change = slopes[pairs[:, 1]] - slopes[pairs[:, 0]]
    allowed = noise * np.sqrt(2.0 * np.sum(1.0 / steps[pairs] ** 2, axis=1))[:, None] * np.ones(d)
    shown = rows_show_errors(search.setting)
    off = _off(change, unit) / allowed if shown else np.full(allowed.shape, np.inf)
    alive = np.mean(off > _OFF, axis=1) <= _HOPELESS if shown else np.ones(len(jumps), dtype=np.bool_)
    earlier = [change.copy()]
    for turn, length in _TRIES:
        b, j = np.nonzero((off > _OFF) & alive[:, None])
        if not len(b):
            break
        new = []
        for side in (0, 1):
            s = pairs[b, side]
            new.append(_differences(search, x, here, (s, j), turn * length * sign[s, j] * steps[s]))
        again = new[1] - new[0]
        limit = allowed[b, j] / length
        if shown:
            error = _off(again[:, None, :], unit[b])[:, 0] / limit
        else:  # two differences of different steps agree where neither meets another plane
            error = np.min([np.linalg.norm(again - other[b, j], axis=1) for other in earlier], axis=0) / (2.0 * limit)
            earlier.append(np.full_like(change, np.inf))
            earlier[-1][b, j] = again
        better = error < off[b, j]
        change[b[better], j[better]] = again[better]
        off[b[better], j[better]] = error[better]
    for i in range(len(jumps)):
        if not alive[i] or np.mean(off[i] > _OFF) > _WRONG:
            out.append(None)
            continue
        nu = change[i] @ unit[i] / size[i]
        out.append((nu, float(allowed[i, 0] / np.sqrt(jumps.shape[1]) / size[i] * np.sqrt(d))))
    return out


def _off(change: Floats, unit: Floats) -> Floats:
    """Return (b, d) norms of the parts of changes (b, d, p) that are across unit vectors (b, p)."""
    along = np.einsum("bdp,bp->bd", change, unit)
    return np.asarray(np.sqrt(np.maximum(np.einsum("bdp,bdp->bd", change, change) - along**2, 0.0)))


def _differences(
    search: KinkSearch, x: Floats, here: Floats, rows: tuple[NDArray[np.intp], NDArray[np.intp]], steps: Floats
) -> Floats:
    """Return (m, p) differences at points rows[0] along axes rows[1] with signed steps (m,)."""
    moved = x[rows[0]]
    moved[np.arange(len(moved)), rows[1]] += steps
    return np.asarray((search.residual(moved) - here[rows[0]]) / steps[:, None])
