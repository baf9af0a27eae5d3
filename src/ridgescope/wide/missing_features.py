"""Features of a wide layer that a search has missed, from what the other ones leave.

A missing feature leaves φ(w·x + b) c, less what the others make up for: a matrix of rank one over points × outputs. If
a few of thousands are missing, each leaves a singular value above all others, with c as its right vector and u, about
φ(w·x + b) at the points, as its left one. As u has no affine part, it varies mostly with (w·x)², so that w is the
eigenvector of the largest eigenvalue of

    M = Σ_x u(x) (x − x̄)(x − x̄)ᵀ

if points look the same in all directions. They do in the coordinates q of an orthonormal basis Q of the affine
functions, x − x̄ = Rᵀq, in which w is Rw. No query is asked.

*What shows.* Independent errors σ in m points and p outputs have singular values about σ√m, up to σ(√m + √p), and M
then has eigenvalues in a semicircle, half of which are below 0.404 of its radius.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Floats, unit
from .linear_half import LinearHalf

_OUTLYING = 3.0  # singular value over the largest of errors: what features are still off by is not independent
_APART = 1.5  # eigenvalue over the radius of the semicircle. Empirical: those of features stand out two- to fourfold
_SEMICIRCLE = 0.404  # median of the absolute eigenvalues over that radius
_MOST_SHARE = 4  # one in so many singular values may be outlying, or their median says nothing of the others


def missing_directions(half: LinearHalf) -> Floats:
    """Return (k, d) directions of features that the residual shows to be missing, the most visible one first."""
    points, residual = half.equations, half.residual
    (m, p), d = residual.shape, half.forms.dim
    power, right = np.linalg.eigh(residual.T @ residual)
    singular = np.sqrt(np.maximum(power[::-1], 0.0))
    edge = float(np.median(singular)) * (1.0 + np.sqrt(p / m))
    count = int(np.sum(singular > _OUTLYING * edge))
    q, found = np.ascontiguousarray(points.Q[:, 1:]), []
    for j in range(min(count, p // _MOST_SHARE)):
        u = residual @ right[:, p - 1 - j]
        values, vectors = np.linalg.eigh(q.T @ (u[:, None] * q))
        size = np.abs(values)
        if size.max() > _APART / _SEMICIRCLE * np.median(size):
            found.append(np.linalg.solve(points.R[1:, 1:], vectors[:, int(np.argmax(size))]))
    return unit(np.array(found).reshape(-1, d))
