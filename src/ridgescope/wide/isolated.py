"""Responses read one at a time, where every other feature is straight.

Take a line along v_i that starts at L·u_i with u_i ⟂ v_i. If L is so large that |L u_i·v_j| exceeds the stretch on
which any other feature bends, then on the line

    f(L u_i + z v_i)  =  s_i(z) + affine in z,

so K+3 answers give the cubic spline on K intervals through s_i, whatever s_i is, and no fit has to disentangle
features that overlap in the ball. An error δ of the direction moves z by ε = L δ·u_i; the line from −L u_i moves it
the other way. Half the difference of the two is ε s_i' + affine, which tells ε; their mean is s_i + ε² s_i''/2 +
affine, from which the second term is taken out. What is affine in all responses is found last, together, by least
squares near the centre.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions
from ..response import basis, basis_slope

_DRAWS = 64  # directions u that are tried for every feature
_ROOM = 3.0  # times what the bends need
_BATCH = 8192  # points asked at once


@dataclass(frozen=True, eq=False)
class Isolation:
    """Where each feature is to be read."""

    offsets: Floats
    """(n, d) L_i u_i; their rows of features that cannot be isolated are of no use."""
    possible: NDArray[np.bool_]
    """(n,)"""


def isolate(V: Floats, stretch: float, farthest: float, rng: np.random.Generator) -> Isolation:
    """For each row v_i of V the best of some random directions across it.

    `stretch`: |v_j·x| beyond which feature j is straight. `farthest`: largest norm that may be asked, or that rounding
    bears.
    """
    n = len(V)
    cos = V @ V.T
    gap, best = np.zeros(n), np.zeros_like(V)
    for u in random_directions(_DRAWS, V.shape[1], rng):
        a = V @ u
        across = np.sqrt(np.maximum(1.0 - a**2, 1e-30))
        seen = np.abs(a[None, :] - a[:, None] * cos) / across[:, None]
        np.fill_diagonal(seen, np.inf)
        least = seen.min(axis=1)
        better = least > gap
        gap[better] = least[better]
        best[better] = ((u - a[:, None] * V) / across[:, None])[better]
    L = _ROOM * stretch / np.maximum(gap, 1e-300)
    possible = L + stretch <= farthest
    return Isolation(np.where(possible, L, 0.0)[:, None] * best, possible)


def read(
    ask: Callable[[Floats], Floats], V: Floats, where: Isolation, radius: float, intervals: int
) -> tuple[NDArray[np.intp], Floats]:
    """(k,) features that were read and the (k, K+3, p) coefficients of their responses, free of an affine part."""
    z = nodes(radius, intervals)
    invert = np.linalg.inv(collocation(z, radius, intervals))
    line = np.stack([np.ones_like(z), z / radius], axis=1)
    bent = np.eye(len(z)) - line @ np.linalg.pinv(line)
    first, second = bent @ slopes(z, radius, intervals) @ invert, bent @ curvatures(z, radius, intervals) @ invert
    which = np.flatnonzero(where.possible)
    each = max(1, _BATCH // (2 * len(z)))
    out = []
    for c in range(0, len(which), each):
        some = which[c : c + each]
        on_line = np.multiply.outer(z, V[some]).transpose(1, 0, 2)
        far = where.offsets[some][:, None, :]
        X = np.stack([on_line + far, on_line - far])
        there, back = bent @ ask(X.reshape(-1, V.shape[1])).reshape(2, len(some), len(z), -1)
        mean, half = 0.5 * (there + back), 0.5 * (there - back)
        turning = first @ mean
        shift = np.einsum("ikp,ikp->i", half, turning) / (np.einsum("ikp,ikp->i", turning, turning) + 1e-300)
        out.append(invert @ (mean - 0.5 * shift[:, None, None] ** 2 * (second @ mean)))
    return which, np.concatenate(out) if out else np.empty((0, intervals + 3, 1))


def rank_one(blocks: Floats, tolerance: float) -> Floats:
    """Each (K+3, p) block as one function times one p-vector, where it is that to `tolerance`."""
    out = blocks.copy()
    for i, block in enumerate(blocks):
        w = block[np.argmax(np.einsum("kp,kp->k", block, block))]
        for _ in range(4):
            w = block.T @ (block @ (w / max(np.linalg.norm(w), 1e-300)))
        w = w / max(np.linalg.norm(w), 1e-300)
        own = np.multiply.outer(block @ w, w)
        if np.linalg.norm(block - own) <= tolerance * np.linalg.norm(block):
            out[i] = own
    return out


def nodes(radius: float, intervals: int) -> Floats:
    """The knots, and the middles of the first and the last interval: K+3 places that fix a spline."""
    knots = np.linspace(-radius, radius, intervals + 1)
    h = knots[1] - knots[0]
    return np.asarray(np.sort(np.concatenate([knots, [-radius + 0.5 * h, radius - 0.5 * h]])))


def slopes(z: Floats, radius: float, intervals: int) -> Floats:
    """(m, K+3) first derivatives of the B-splines at z."""
    k, weights = basis_slope(z, radius, intervals)
    return _rows(k, weights, intervals + 3)


def curvatures(z: Floats, radius: float, intervals: int) -> Floats:
    """(m, K+3) second derivatives: second differences, linear between knots."""
    u = (z + radius) * (intervals / (2.0 * radius))
    k = np.minimum(u.astype(np.intp), intervals - 1)
    linear = _rows(k, np.stack([1.0 - (u - k), u - k]), intervals + 1)
    differences = np.diff(np.eye(intervals + 3), 2, axis=0)
    return np.asarray(linear @ differences * (intervals / (2.0 * radius)) ** 2)


def collocation(z: Floats, radius: float, intervals: int) -> Floats:
    """(m, K+3) values of the B-splines at z."""
    return _rows(*basis(z, radius, intervals), intervals + 3)


def _rows(first: NDArray[np.intp], weights: Floats, width: int) -> Floats:
    """(m, width) with the weights of each row from its first column on."""
    out = np.zeros((len(first), width))
    for j, w in enumerate(weights):
        out[np.arange(len(first)), first + j] += w
    return out
