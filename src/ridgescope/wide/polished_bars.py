"""Standard errors of a polished layer, for which no matrix of all unknowns can be formed.

If errors e of the answers were known, the unknowns would be off by (JᵀPJ)⁻¹ JᵀP e, one solution by conjugate gradients.
For random e of variance one that is a random vector of the covariance (JᵀPJ)⁻¹. Its part across w_i has d − 1
entries, so that a few such vectors give the expected squared error of every direction to √(2/(k(d − 1))), all couplings
included. The square of the step that a fit short of its minimum has left is added. For b_i and |w_i|, two numbers only,
the covariance is that of the feature's own block, made larger by as much as that of its direction is.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_solve

from ..fit import threads
from ..fit.activations import ACTIVATIONS
from ..fit.closed_form import ClosedForms
from ..fit.context import Evaluation
from ..fit.errorbars import COVERAGE, GRID, ErrorBars, chi_square_quantile
from ..fit.model import TINY
from ..fit.samples import Samples
from ..geometry import Floats
from .linear_half import Equations, LinearHalf
from .polish import PolishStep

_ENTRIES, _MOST_DRAWS = 190, 3
"""Entries across w_i of the random errors that the fit follows, for variances to a tenth; and most of these errors."""
_SEED = 0  # of these errors: bars are the same whenever they are asked for
_LEAST_FREEDOM = 0.05  # of the equations, that are counted as freedom even if unknowns are as many


def polished_bars(fit: Evaluation, samples: Samples) -> ErrorBars | None:
    """Return the standard errors of a polished layer fitted to the samples; None if it has no closed forms."""
    return None if fit.forms is None else bars_of(fit.forms, *samples.unclustered)


@threads.one_blas_thread()
def bars_of(forms: ClosedForms, X: Floats, Y: Floats) -> ErrorBars:
    """Return the standard errors of forms fitted to X (m, d) and Y (m, p)."""
    points = Equations(X, Y)
    half = LinearHalf.of(forms, points)
    step, d = PolishStep(half, free=True), forms.dim
    unknowns = forms.coefficients.size + forms.count * (d + 1)
    variance = half.cost / max(points.size - unknowns, _LEAST_FREEDOM * points.size)
    rng, square = np.random.default_rng(_SEED), np.zeros(forms.count)
    draws = min(_MOST_DRAWS, -(-_ENTRIES // max(d - 1, 1)))
    for _ in range(draws):
        turned = step.response_to(rng.standard_normal(Y.shape, dtype=np.float32))
        square += _across(turned, forms) / (draws * max(d - 1, 1))
    steep = np.abs(forms.kappa) / forms.radius
    left = _across(step.change(0.0), forms) / max(d - 1, 1)
    each = (variance * square + left) / np.maximum(steep, TINY) ** 2
    angles = 0.5 * np.sqrt(each * chi_square_quantile(COVERAGE, max(d - 1, 1)))
    coupled = variance * np.maximum(square * step.own.across, 1.0)
    pairs = coupled[:, None, None] * np.linalg.pinv(step.own.along, hermitian=True)
    inverse = cho_solve((half.factor, True), np.eye(forms.count), check_finite=False)
    spread = np.where(np.isinf(half.scale), 0.0, coupled * np.diagonal(inverse) / half.scale**2)
    bands = tuple(_band(forms, i, pairs[i], float(spread[i])) for i in range(forms.count))
    return ErrorBars(angles, (d - 1) * each, bands)


def _across(change: Floats, forms: ClosedForms) -> Floats:
    """Return (n,) the squared length of the part of δw_i across w_i, for changes (n, d + 1)."""
    w = change[:, 1:]
    w = w - np.einsum("nd,nd->n", w, forms.directions)[:, None] * forms.directions
    return np.asarray(np.einsum("nd,nd->n", w, w))


def _band(forms: ClosedForms, i: int, covariance: Floats, spread: float) -> Floats:
    """Return the standard error (GRID, p) of response i without its affine part, given that of b_i and |w_i|."""
    z = forms.radius * np.linspace(-1.0, 1.0, GRID)
    value, slope = ACTIVATIONS[forms.family[i]].atom(forms.kappa[i] / forms.radius * z + forms.b[i])
    line = np.stack([np.ones(GRID), z / forms.radius], axis=1)
    rows = np.stack([value, slope, slope * z], axis=1)
    rows -= line @ np.linalg.lstsq(line, rows, rcond=None)[0]
    moved = np.einsum("ga,ab,gb->g", rows[:, 1:], covariance, rows[:, 1:])
    c = forms.outputs[i]
    return np.asarray(np.sqrt(np.maximum(np.multiply.outer(moved, c**2) + (rows[:, 0] ** 2 * spread)[:, None], 0.0)))
