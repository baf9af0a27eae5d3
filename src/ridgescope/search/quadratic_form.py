"""The axes of a quadratic form that is known up to squares of known directions.

    F = Σ_j q_j a_j a_jᵀ + Σ_i c_i v_i v_iᵀ,        v_i known, c_i not

A quadratic form in f has the same Hessian everywhere, and so has what bends alike at all points where Hessians were
measured. How much of the Hessian along a known direction belongs to the form is a matter of choice. The choice here is
the one with the fewest a_j, but a rank that is not much less is not worth a square in each of the known responses.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Floats

_WEAK = 1e-6  # share of a form below which an axis is left out: error of the search for few axes
_STEPS, _SHRINK = 40, 0.7  # most steps towards the least rank; factor of the smoothing from one to the next
_WORTH = 0.5  # most axes, over those of the form as it stands, for which known responses may get squares


def fewest_axes(form: Floats, known: Floats, *, error: float) -> Floats:
    """Return the axes (k, r) of a form (r, r) of norm one and error `error`, given the known directions (n, r)."""
    least = max(error, _WEAK)
    axes, fewer = _axes(form, least), _axes(of_least_rank(form, known, error=least), least)
    return fewer if len(fewer) <= _WORTH * len(axes) else axes


def of_least_rank(form: Floats, known: Floats, *, error: float) -> Floats:
    """Return `form` less those multiples of v vᵀ of the known v (n, r) that leave a matrix M of least rank.

    Least squares in W M W with W = (M² + ε²)^(−1/4) of the last M decrease the sum of √(λ² + ε²) over the eigenvalues
    λ of M, which for small ε is the nuclear norm, whose minimum has the least rank under general conditions (Mohan &
    Fazel 2012). ε shrinks to `error`.
    """
    left, squares = form, known[:, :, None] * known[:, None, :]
    epsilon = float(np.linalg.norm(form, 2))
    for _ in range(_STEPS if len(known) else 0):
        values, axes = np.linalg.eigh(left)
        weight = (axes / np.sqrt(np.hypot(values, epsilon))) @ axes.T
        columns = (weight @ squares @ weight).reshape(len(known), -1).T
        amounts = np.linalg.lstsq(columns, (weight @ form @ weight).ravel(), rcond=None)[0]
        left = form - np.tensordot(amounts, squares, 1)
        epsilon = max(_SHRINK * epsilon, error)
    return left


def _axes(matrix: Floats, least: float) -> Floats:
    """Return the eigenvectors, as rows, of the eigenvalues above `least` in size."""
    values, axes = np.linalg.eigh(matrix)
    return np.asarray(axes.T[np.abs(values) > least])
