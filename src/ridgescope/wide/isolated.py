"""Measure responses one at a time, on lines along which every other feature is straight.

Take a line along v_i through L·u_i with u_i ⟂ v_i. If L is so large that |L u_i·v_j| exceeds the stretch on
which any other feature bends, then on the line

    f(L u_i + z v_i)  =  s_i(z) + affine in z,

so K+3 answers give the cubic spline on K intervals through s_i, whatever s_i is, and no fit has to separate
features that overlap in the ball. An error δ of the direction moves z by ε = L δ·u_i; on the line through −L u_i it
moves z the other way. Half their difference is ε s_i' + affine, which gives ε; their mean is s_i + ε² s_i''/2 +
affine, from which the second term is subtracted. The affine part of the sum is fitted last, by least squares near
the centre.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..bspline import curvature_matrix, design_matrix, interpolation_nodes, slope_matrix
from ..fit.model import TINY
from ..geometry import Floats, random_directions

_DRAWS = 64  # directions u tried for every feature; empirical: more of them hardly shorten the line
_ROOM = 3.0  # factor on the offset at which the others are straight: a response bends a little beyond its stretch
_BATCH = 8192  # points asked at once
_MIN_ACROSS = 1e-30  # of 1 − (u·v)²: a u parallel to v has no part across
_POWER_STEPS = 4  # of the power method, from a block's largest row: enough for one dominant singular vector


@dataclass(frozen=True, eq=False)
class Isolation:
    """The lines on which features are measured."""

    offsets: Floats
    """(n, d) points L_i u_i; zero for features that cannot be isolated."""
    possible: NDArray[np.bool_]
    """(n,) whether the feature can be isolated."""


def isolate(V: Floats, stretch: float, farthest: float, rng: np.random.Generator) -> Isolation:
    """Choose for each row v_i of V (n, d) the best of some random directions across it.

    `stretch` is the |v_j·x| beyond which feature j is straight, `farthest` the largest norm that may be asked or at
    which rounding errors are tolerable.
    """
    n = len(V)
    cos = V @ V.T
    gap, best = np.zeros(n), np.zeros_like(V)
    for u in random_directions(_DRAWS, V.shape[1], rng):
        a = V @ u
        across = np.sqrt(np.maximum(1.0 - a**2, _MIN_ACROSS))
        seen = np.abs(a[None, :] - a[:, None] * cos) / across[:, None]
        np.fill_diagonal(seen, np.inf)
        least = seen.min(axis=1)
        better = least > gap
        gap[better] = least[better]
        best[better] = ((u - a[:, None] * V) / across[:, None])[better]
    L = _ROOM * stretch / np.maximum(gap, TINY)
    possible = L + stretch <= farthest
    return Isolation(np.where(possible, L, 0.0)[:, None] * best, possible)


def read(
    ask: Callable[[Floats], Floats], V: Floats, where: Isolation, radius: float, intervals: int
) -> tuple[NDArray[np.intp], Floats]:
    """Measure the isolated features: return their indices (k,) and coefficients (k, K+3, p) without an affine part."""
    z = interpolation_nodes(radius, intervals)
    invert = np.linalg.inv(design_matrix(z, radius, intervals))
    line = np.stack([np.ones_like(z), z / radius], axis=1)
    bent = np.eye(len(z)) - line @ np.linalg.pinv(line)
    first = bent @ slope_matrix(z, radius, intervals) @ invert
    second = bent @ curvature_matrix(z, radius, intervals) @ invert
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
        shift = np.einsum("ikp,ikp->i", half, turning) / (np.einsum("ikp,ikp->i", turning, turning) + TINY)
        out.append(invert @ (mean - 0.5 * shift[:, None, None] ** 2 * (second @ mean)))
    return which, np.concatenate(out) if out else np.empty((0, intervals + 3, 1))


def rank_one(blocks: Floats, tolerance: float) -> Floats:
    """Replace each (K+3, p) block by one function times one p-vector if that is within the relative `tolerance`."""
    out = blocks.copy()
    for i, block in enumerate(blocks):
        w = block[np.argmax(np.einsum("kp,kp->k", block, block))]
        for _ in range(_POWER_STEPS):
            w = block.T @ (block @ (w / max(np.linalg.norm(w), TINY)))
        w = w / max(np.linalg.norm(w), TINY)
        own = np.multiply.outer(block @ w, w)
        if np.linalg.norm(block - own) <= tolerance * np.linalg.norm(block):
            out[i] = own
    return out
