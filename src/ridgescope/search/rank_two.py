"""The products of two linear forms in a linear space of quadratic forms.

A bilinear layer f_j = Σ_k o_kj (g_k·x)(u_k·x) has the Hessians H_j = Σ_k 2 o_kj M_k, M_k = (g_k u_kᵀ + u_k g_kᵀ)/2.
Each M_k has one positive and one negative eigenvalue, M = a aᵀ − b bᵀ, and gives its forms back, g = a + b and
u = a − b, up to their order and a factor. If there are at least as many outputs as products, n, the span of the H_j is
that of the M_k.
In R^d such matrices make a variety of dimension 2d − 1 in one of D = d(d+1)/2, so that the span of n of them in general
position holds no others if n + 2d − 1 ≤ D (trisecant lemma), and a space of that dimension in general position none at
all: n members of a space of dimension n are evidence for themselves.

*Search.* Alternating projections onto the span and onto matrices a aᵀ − b bᵀ from random starts, across known members,
then Gauss–Newton steps on (I − P)(a aᵀ − b bᵀ) = 0. *Isolation.* The tangent space at M, {x aᵀ + a xᵀ + y bᵀ + b yᵀ},
must meet the span in the multiples of M alone; it does not where squares of several forms are in the span.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Floats, unit
from .rank_one import pack, unpack

MOST_DIM = 48  # more take minutes: a round has 50,000 eigendecompositions
_ROUNDS, _PATIENCE, _STARTS = 200, 12, 32  # rounds: most, and in a row without a new member; starts of each. Empirical
_PROJECTIONS, _STEPS = 400, 30  # most alternating projections and Gauss–Newton steps
_PROMISING = 0.9  # ‖PM‖² from which on an end of the projections is polished. Empirical
_SAME = 1e-4  # 1 − |cos| below which two matrices are one member: far above their errors, far below their distances
_OUTSIDE = 10.0  # distance of a member from the span over the error of the span
_SEMIDEFINITE = 1e-6  # ratio of the eigenvalues of M below which it is a square
_ISOLATED = 1e-3  # sine between tangent space and span: at 1e-3, errors of 1e-9 move a member by 1e-6
_INDEPENDENT = 1e-6  # least singular value of the members, each of length one


def has_room(count: int, dim: int) -> bool:
    """Return whether the span of so many products in general position holds no others."""
    return count == 1 or count + 2 * dim - 1 <= dim * (dim + 1) // 2


def products_in(basis: Floats, error: float, rng: np.random.Generator) -> tuple[Floats, Floats] | None:
    """Return the forms g and u (n, d), of length one, of the products that span a space with orthonormal rows (n, D).

    None if there are not as many as the space has dimensions, if they are not isolated, or if there may be others.
    `error` is that of the basis.
    """
    n, d = len(basis), len(unpack(basis[0]))
    if not has_room(n, d) or d > MOST_DIM:
        return None
    tolerance = _OUTSIDE * max(error, np.finfo(float).eps)
    known = np.empty((0, basis.shape[1]))
    forms: list[tuple[Floats, Floats]] = []
    without_new = 0
    for _ in range(_ROUNDS):
        before = len(forms)
        for start in _ends(basis, known, rng):
            a, b, outside = _polished(basis, start)
            M = pack(np.outer(a, a) - np.outer(b, b))
            new = not len(known) or np.abs(known @ M).max() < 1.0 - _SAME
            if outside <= tolerance and new and is_isolated(basis, a, b):
                known, forms = np.vstack([known, M]), [*forms, (a + b, a - b)]
        without_new = 0 if len(forms) > before else without_new + 1
        if len(forms) >= n or without_new >= _PATIENCE:
            break
    if len(forms) != n or np.linalg.svd(known, compute_uv=False)[-1] < _INDEPENDENT:
        return None
    g, u = (np.stack([pair[i] for pair in forms]) for i in (0, 1))
    return g / np.linalg.norm(g, axis=1, keepdims=True), u / np.linalg.norm(u, axis=1, keepdims=True)


def axes_of_products(basis: Floats, error: float, rng: np.random.Generator) -> Floats:
    """Return the directions (2n, d) whose squares the n products in a span are, 4 (g·x)(u·x) = ((g+u)·x)² − ((g−u)·x)².

    There are none if the span does not determine products.
    """
    forms = products_in(basis, error, rng)
    if forms is None:
        return np.empty((0, unpack(basis[0]).shape[0]))
    return unit(np.concatenate([forms[0] + forms[1], forms[0] - forms[1]]))


def _ends(basis: Floats, known: Floats, rng: np.random.Generator) -> Floats:
    """Return (k, D) the ends of alternating projections that came close to matrices a aᵀ − b bᵀ."""
    inside = known @ basis.T
    rest = np.linalg.svd(inside)[2][len(known) :] if len(known) else np.eye(len(basis))
    X = rng.standard_normal((_STARTS, len(rest))) @ rest @ basis
    for _ in range(_PROJECTIONS):
        M = _truncated(X)
        M /= np.maximum(np.linalg.norm(M, axis=1, keepdims=True), 1e-300)
        after = (M @ basis.T) @ basis
        moved = np.linalg.norm(after - X, axis=1).max()
        X = after
        if moved < _ISOLATED:
            break
    return np.asarray(X[np.einsum("kd,kd->k", X, X) >= _PROMISING])


def _truncated(rows: Floats) -> Floats:
    """Return the closest packed a aᵀ − b bᵀ (k, D) to packed matrices."""
    values, vectors = np.linalg.eigh(unpack(rows))
    a = vectors[:, :, -1] * np.sqrt(np.maximum(values[:, -1:], 0.0))
    b = vectors[:, :, 0] * np.sqrt(np.maximum(-values[:, :1], 0.0))
    return pack(a[:, :, None] * a[:, None, :] - b[:, :, None] * b[:, None, :])


def _polished(basis: Floats, start: Floats) -> tuple[Floats, Floats, float]:
    """Return a, b of a matrix of length one near a packed one, and its distance from the span; ∞ for a square."""
    values, vectors = np.linalg.eigh(unpack(start))
    size = np.sqrt(np.maximum([values[-1], -values[0]], 0.0))
    a, b = vectors[:, -1] * size[0], vectors[:, 0] * size[1]
    outside = np.inf
    for _ in range(_STEPS):
        if min(a @ a, b @ b) < _SEMIDEFINITE * max(a @ a, b @ b):
            return a, b, np.inf
        M = pack(np.outer(a, a) - np.outer(b, b))
        scale = np.linalg.norm(M)
        a, b, M = a / np.sqrt(scale), b / np.sqrt(scale), M / scale
        left = M - (M @ basis.T) @ basis
        last, outside = outside, float(np.linalg.norm(left))
        if outside >= 0.5 * last:  # rounding is reached, or there is no member here
            break
        columns = _tangents(a, b)
        rejected = columns - (columns @ basis.T) @ basis
        design, target = np.vstack([rejected.T, (columns @ M)[None, :]]), np.append(-left, 0.0)
        step = np.linalg.lstsq(design, target, rcond=1e-12)[0]
        a, b = a + step[: len(a)], b + step[len(a) :]
    return a, b, outside


def _tangents(a: Floats, b: Floats) -> Floats:
    """Return the packed derivatives (2d, D) of a aᵀ − b bᵀ by the coordinates of a and of b."""
    one = np.eye(len(a))
    of_a = one[:, :, None] * a + a[:, None] * one[:, None, :]
    of_b = one[:, :, None] * b + b[:, None] * one[:, None, :]
    return pack(np.concatenate([of_a, -of_b]))


def is_isolated(basis: Floats, a: Floats, b: Floats) -> bool:
    """Return whether the tangent space at a aᵀ − b bᵀ meets the span in one dimension only."""
    _, size, rows = np.linalg.svd(_tangents(a, b), full_matrices=False)
    tangent = rows[size > _SEMIDEFINITE * size[0]]
    cosines = np.linalg.svd(tangent @ basis.T, compute_uv=False)
    return len(cosines) < 2 or bool(cosines[1] ** 2 < 1.0 - _ISOLATED**2)
