"""The survey's subspace to the last digits, once the responses inside it are known exactly.

The survey finds the subspace by difference quotients, which balance noise against bias: a weak direction is off by
1e-6 to 1e-3 rad, and no fit inside the subspace can tell. If f depends on r dimensions, their true subspace is a graph
over the one found: with B (r, d) the basis found,

    f(x) = g(B x + E x),      E (r, d) small and zero on the subspace,      g the model inside the subspace

With q_k = (1 − BᵀB) e_k, the part of a coordinate vector across the subspace, the point Bᵀu + t q_k has the answer
g(u + t E e_k). As g is known, column k of E follows from a few answers by Gauss–Newton steps; t is as large as the ball
permits, so that the error is that of rounding. Nothing of size d × d is ever kept.
"""

from __future__ import annotations

import numpy as np

from .fit.closed_form import ClosedForms
from .fit.model import TINY
from .geometry import Floats, along, in_ball
from .oracle.base import Oracle
from .span_refinement import most_informative
from .survey import Survey

INSIDE, OUTSIDE = 0.79, 0.6
"""Radii that points have inside the subspace at most, and across it."""
CANDIDATES = 8
"""Points u, for each feature and for each point that is used, from which the most informative are chosen."""
OVERSAMPLED, LEAST_POINTS = 1.5, 4
"""Equations for each unknown, and points u at the least, since a steep response is flat at most of them."""
ABOVE_NOISE = 5.0
"""RMS residual of each point across the subspace, over the noise, up to which refined rows would be as uncertain as
they are: one in a million points of noise alone is above it."""
NEGLIGIBLE = 1e-7
"""Radians by which the weakest direction may be off on account of the subspace."""
STEPS = 12
"""Gauss–Newton steps at most, those that are halved included, which need no queries."""
CONVERGED = 1e-12
"""Size of a step that only rounding errors make."""
MOST_TURNED = 0.03
"""‖E‖ up to which the equations are trusted."""
LEAST_ACROSS = 1e-3
"""Length of q_k below which coordinate k lies in the subspace, and its column of E counts for nothing."""
MOST_NUMBERS = 2**24
"""Coordinates of the points that are made at once: 128 MB."""


def refined_subspace(
    oracle: Oracle, forms: ClosedForms, survey: Survey, allowance: float, rng: np.random.Generator
) -> Floats | None:
    """Return (r, d) rows M, near the survey's basis, with f(x) = g(M x) for the forms g; None if they are as good.

    Nothing is asked if the subspace is everything or its refinement would take more queries than allowed.
    """
    basis, outputs = survey.basis, forms.coefficients.shape[1]
    r, d = basis.shape
    each = points_needed(r, outputs)
    if r == d or each * (d + 1) > allowance:
        return None
    U = _informative(forms, each, rng)
    if not _is_off(oracle, forms, survey, U, rng):
        return None
    columns = list[Floats]()
    size = max(1, MOST_NUMBERS // (each * d))
    for first in range(0, d, size):
        which = np.arange(first, min(first + size, d))
        across = -basis[:, which].T @ basis
        across[np.arange(len(which)), which] += 1.0
        steps = OUTSIDE * forms.radius / np.maximum(np.linalg.norm(across, axis=1), LEAST_ACROSS)
        X = (U @ basis)[:, None, :] + steps[:, None] * across
        answers = oracle(X.reshape(-1, d), stage="subspace").reshape(each, len(which), outputs)
        if not np.isfinite(answers).all():
            return None
        columns += [_column(forms, U, answers[:, j], float(step)) for j, step in enumerate(steps)]
    E = np.stack(columns, axis=1)
    E -= (E @ basis.T) @ basis
    return np.asarray(basis + E) if np.linalg.norm(E, 2) <= MOST_TURNED else None


def points_needed(dim: int, outputs: int) -> int:
    """Return the number of points of a subspace of `dim` dimensions that are asked along each dimension across it.

    As many show first, across it in random directions, whether it is off at all.
    """
    return max(LEAST_POINTS, int(np.ceil(OVERSAMPLED * dim / outputs)))


def _is_off(oracle: Oracle, forms: ClosedForms, survey: Survey, U: Floats, rng: np.random.Generator) -> bool:
    """Return whether answers across the subspace show that it is off by more than is negligible, or than noise.

    They are asked at points U whose gradients determine all of the subspace: at random ones steep features are
    saturated, and say nothing of what is off along them.
    """
    e = rng.standard_normal((len(U), survey.basis.shape[1]))
    e -= (e @ survey.basis.T) @ survey.basis
    e *= OUTSIDE * forms.radius / np.linalg.norm(e, axis=1)[:, None]
    residual = oracle(U @ survey.basis + e, stage="subspace") - forms.predict(U)
    if np.sqrt(np.mean(residual**2, axis=1)).max() <= ABOVE_NOISE * survey.noise:
        return False
    # The residual is ∇g E e for random e: it is compared with the weakest feature, whose direction is off most.
    strengths = np.linalg.norm(forms.outputs, axis=1) * np.abs(forms.kappa) / forms.radius
    weakest = float(np.min(strengths * np.sqrt(np.mean(forms.atoms(U)[1] ** 2, axis=0))))
    angle = float(np.sqrt(np.mean(np.sum(residual**2, axis=1)))) / (OUTSIDE * forms.radius * max(weakest, TINY))
    return bool(angle > NEGLIGIBLE)


def _gradients(forms: ClosedForms, U: Floats) -> Floats:
    """Return ∇g (m, p, r) at the points U (m, r) of closed forms."""
    slopes = forms.atoms(U)[1]
    w = forms.directions * (forms.kappa / forms.radius)[:, None]
    bends = np.einsum("mn,np,nr->mpr", slopes, forms.outputs, w, optimize=True)
    return np.asarray(bends + forms.coefficients[forms.offsets[-1] + 1 :].T)


def _informative(forms: ClosedForms, count: int, rng: np.random.Generator) -> Floats:
    """Return (count, r) points, chosen among many, whose gradients together determine all of the subspace."""
    radius = INSIDE * forms.radius
    bends = np.clip(-forms.b / forms.kappa * forms.radius, -radius, radius)
    which = np.repeat(np.arange(forms.count), CANDIDATES)
    there = along(forms.directions, which, bends[which], radius, rng)  # a steep response changes nowhere else
    U = np.concatenate([there, in_ball(CANDIDATES * count, forms.dim, radius, rng)])
    return np.asarray(U[most_informative(_gradients(forms, U), count)])


def _column(forms: ClosedForms, U: Floats, answers: Floats, step: float) -> Floats:
    """Return (r,) the column e of E for which g(U + step·e) is closest to the answers (k, p)."""
    e = change = np.zeros(forms.dim)
    factor, residual = 1.0, answers - forms.predict(U)
    for _ in range(STEPS):
        if factor == 1.0:
            matrix = step * _gradients(forms, U + step * e).reshape(-1, forms.dim)
            change = np.asarray(np.linalg.lstsq(matrix, residual.ravel(), rcond=None)[0])
        trial = e + factor * change
        now = answers - forms.predict(U + step * trial)
        if np.linalg.norm(now) < np.linalg.norm(residual):
            e, residual, factor = trial, now, 1.0
        elif np.linalg.norm(change) <= CONVERGED:
            break
        else:
            factor *= 0.5
    return e
