"""One feature that stands for many nearly parallel ones, and what its tangents say about these.

Neurons that weight decay has drawn together have directions within a tenth of a radian of each other, and norms and
biases that agree. Second derivatives show them as one member: with ω = (w, b) the middle of theirs, ω_i = ω + δ_i, and
z = w·x + b,

    Σ c_i φ(ω_i·(x, 1))  =  φ(z) Σ c_i  +  φ'(z) Σ c_i δ_i·(x, 1)  +  ½ φ''(z) Σ c_i (δ_i·(x, 1))²  +  …

One feature in their place leaves the second term, M (x, 1) φ'(z) with M = Σ c_i δ_iᵀ, which its tangents φ'(z)·(x, 1)
explain, and those of no other feature. With as many outputs as members and more, the rank of M with the column Σ c_i is
the number of members, and its rows span their directions. The third term then tells which member has which output.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky

from ..deadline import spend
from ..geometry import Floats
from . import threads
from .activations import ACTIVATIONS
from .closed_form import ClosedForms
from .closed_solve import Data
from .model import TINY

LEAST_SHARE = 0.25
"""Share of what is left, at points that were not used, that the tangents of a crowded feature explain at least: 0.45 of
36 neurons in a layer of 240, where those of a feature beside it explain 0.13."""
CLEARLY_MORE = 2.0
"""Factor by which this share exceeds that of any other feature's tangents."""
DROP = 4.0
"""Factor by which singular values of M drop after its rank: 5 to 19 in that layer, and less than 1.6 elsewhere."""
FAINT = 0.03
"""Singular values of M, over the first of those across the feature, that count before there is a drop: other features,
turned to make up for what is missing, blur the smaller ones."""
_RIDGE = 1e-10  # of the largest diagonal entry: columns of normal equations that agree to rounding
POINTS_PER_COLUMN = 16.0
"""Points for each of the d + 2 columns of a feature's tangents, and as many to judge them: with fewer than 8, errors of
their coefficients hide what they explain, and more tell little more."""


@dataclass(frozen=True, eq=False)
class Tangents:
    """What the tangents of one feature explain of what the features beside it leave."""

    rows: Floats
    """(k, d) orthonormal rows in the space of x, the most important first."""
    sizes: Floats
    """(k,) singular values of M, the column Σ c_i included, as RMS errors over points and outputs."""

    @classmethod
    def of(cls, forms: ClosedForms, which: int, data: Data, left: Floats) -> Tangents:
        """Fit the feature and its tangents to what is left (m, p)."""
        B = _columns(forms, which, data)
        gram = threads.gram(B)
        factor = np.asarray(cholesky(gram + _RIDGE * float(np.max(np.diag(gram))) * np.eye(len(gram)), lower=True))
        coefficients = cho_solve((factor, True), threads.inner(B, left))
        sizes = np.linalg.svd(factor.T @ coefficients, compute_uv=False) / np.sqrt(left.size)
        # what lies along the feature's own direction is its norm, which each member has
        across = coefficients[1:-1] - np.outer(forms.directions[which], forms.directions[which] @ coefficients[1:-1])
        return cls(np.linalg.svd(across, full_matrices=False)[0].T, sizes)

    @property
    def members(self) -> int | None:
        """Number of members, where singular values drop clearly after it; None where they do not."""
        ratios = self.sizes[1:-1] / np.maximum(self.sizes[2:], TINY)
        last = int(np.argmax(ratios[: len(ratios) // 2 + 1]))
        return last + 2 if ratios[last] >= DROP else None

    @property
    def most_members(self) -> int:
        """Number of members at the most, as far as a blurred spectrum tells."""
        return 1 + int(np.sum(self.sizes[1:] >= FAINT * self.sizes[1]))


@threads.one_blas_thread()
def crowded_feature(forms: ClosedForms, data: Data, left: Floats) -> int | None:
    """Return the feature whose tangents explain far more of what is left (m, p) than those of others; None without one.

    Families whose steepness is no parameter have tangents along their kinks only, and are left out.
    """
    half = int(min(len(left) // 2, POINTS_PER_COLUMN * (forms.dim + 2)))
    fit, judge = slice(0, half), slice(half, 2 * half)
    shares, size = np.zeros(forms.count), float(np.sum(left[judge] ** 2)) + TINY
    for i in np.flatnonzero(movable(forms)):
        B = _columns(forms, int(i), data)
        spend(half * B.shape[1] * (B.shape[1] + left.shape[1]))
        gram = B[fit].T @ B[fit]
        try:
            factor = cho_factor(gram + _RIDGE * float(np.max(np.diag(gram))) * np.eye(len(gram)))
        except LinAlgError:
            continue
        wrong = left[judge] - B[judge] @ cho_solve(factor, B[fit].T @ left[fit])
        shares[i] = 1.0 - float(np.sum(wrong**2)) / size
    first, *others = np.argsort(-shares)
    clear = shares[first] >= CLEARLY_MORE * max((shares[i] for i in others), default=0.0)
    return int(first) if shares[first] >= LEAST_SHARE and clear else None


def movable(forms: ClosedForms) -> np.ndarray:
    """Return (n,) whether both steepness and place of each feature are parameters."""
    return np.array([k >= 0 and ACTIVATIONS[k].moves == (True, True) for k in forms.family])


def _columns(forms: ClosedForms, which: int, data: Data) -> Floats:
    """Return φ(z), φ'(z) x and φ'(z) of a feature (m, d + 2), less their affine parts."""
    y = data.X @ (forms.directions[which] * forms.kappa[which] / forms.radius) + forms.b[which]
    value, slope = ACTIVATIONS[forms.family[which]].atom(y)
    return data.bend(np.column_stack([value, slope[:, None] * data.X, slope]))
