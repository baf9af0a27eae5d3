"""Standard errors of gated units, from the inverse of their Gauss–Newton matrix.

The unknowns are (b, g, c, w) of every unit, with outputs, bias and slope projected out (see `gated_solve`). With σ² the
mean square that the units leave, their covariance is σ² (JᵀPJ)⁻¹, plus the square of the step that a fit short of its
minimum has left. With v = g/|g| and u = w⊥/|w⊥|, w⊥ = w − (w·v)v, directions and carriers turn by

    δv = (1 − v vᵀ) δg/|g|,      δu = (1 − v vᵀ − u uᵀ)(δw − (w·v) δv)/|w⊥|  −  (u·δv) v.

The errors of s and t are those of draws of k, b, α, β and c from the same covariance.
"""

from __future__ import annotations

import numpy as np

from ..deadline import check_time
from ..geometry import Floats
from . import threads
from .errorbars import GRID, ErrorBars, half_of_95
from .gated_form import GATES, GatedForms
from .gated_solve import GatedSolved, GatedStep
from .model import TINY

_RIDGE = 1e-12  # of the mean diagonal entry: rounding errors
_DRAWS = 64  # of shape parameters: their standard deviation is known to one part in eleven


@threads.one_blas_thread()
def gated_error_bars(forms: GatedForms, X: Floats, Y: Floats, noise: float) -> ErrorBars:
    """Return the standard errors of gated units fitted to X (m, d) and Y (m, p); `noise` is that of one answer."""
    solved = GatedSolved.of(forms, X, Y)
    freedom = max(Y.size - forms.unknowns, 1)
    variance = max(solved.cost / freedom, noise**2 if freedom < forms.unknowns else 0.0)
    step = GatedStep(solved)
    n, width = step.right.rows.shape
    parts = [np.arange(n)] if step.matrix is not None else np.array_split(np.arange(n), n)
    angles, squares, carrier, bands, gain_bands = np.empty(n), np.empty(n), np.zeros(n), [], []
    rng = np.random.default_rng(0)  # the draws are an integration rule: the same for the same fit
    for part in parts:
        check_time()
        matrix = step.matrix if step.matrix is not None else step.own_matrix(int(part[0]))
        inverse = _inverse(matrix)
        left = inverse @ step.right.rows[part].ravel()
        for j, i in enumerate(part):
            at = slice(j * width, (j + 1) * width)
            covariance = variance * inverse[at, at] + np.multiply.outer(left[at], left[at])
            covariance = step.project_unit(int(i), covariance)
            of_v, of_u = _turns(forms, int(i), covariance)
            angles[i], squares[i] = half_of_95(of_v), float(np.trace(of_v))
            carrier[i] = half_of_95(of_u) if forms.gated[i] else 0.0
            s, t = _bands(solved, int(i), covariance, rng)
            bands.append(s)
            gain_bands.append(t)
    return ErrorBars(angles, squares, tuple(bands), carrier=carrier, gain_band=tuple(gain_bands))


def _inverse(matrix: Floats) -> Floats:
    typical = float(np.trace(matrix)) / len(matrix) + TINY
    return np.asarray(np.linalg.pinv(matrix + _RIDGE * typical * np.eye(len(matrix)), hermitian=True))


def _turns(forms: GatedForms, i: int, covariance: Floats) -> tuple[Floats, Floats]:
    """Return the covariances (d, d) of v and u of unit i, given that of (b, g, c, w)."""
    q = forms.dim + 1
    k, u, alpha, beta = forms.split(i)
    v = forms.g[i] / max(k, TINY)
    across = np.eye(forms.dim) - np.multiply.outer(v, v)
    to_v = np.zeros((forms.dim, 2 * q))
    to_v[:, 1:q] = across / max(k, TINY)
    to_w = np.zeros((forms.dim, 2 * q))
    to_w[:, q + 1 :] = np.eye(forms.dim)
    to_u = (across - np.multiply.outer(u, u)) @ (to_w - alpha * to_v) / max(beta, TINY)
    to_u -= np.multiply.outer(v, u @ to_v)
    return to_v @ covariance @ to_v.T, to_u @ covariance @ to_u.T


def _bands(solved: GatedSolved, i: int, covariance: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the standard errors (GRID, p) of s and t of unit i, s without its affine part."""
    forms, q = solved.forms, solved.forms.dim + 1
    k, u, alpha, beta = forms.split(i)
    v, p = forms.g[i] / max(k, TINY), forms.outputs.shape[1]
    shape = np.zeros((5, 2 * q))  # k, b, c, α, β by (b, g, c, w)
    shape[0, 1:q], shape[1, 0], shape[2, q] = v, 1.0, 1.0
    shape[3, q + 1 :], shape[4, q + 1 :] = v, u
    values, vectors = np.linalg.eigh(shape @ covariance @ shape.T)
    drawn = rng.standard_normal((_DRAWS, 5)) * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    z, atom = np.linspace(-forms.radius, forms.radius, GRID), GATES[forms.family[i]].atom
    dk, db, dc, da, dq = (column[:, None] for column in drawn.T)
    gate = atom((k + dk) * z + forms.b[i] + db)[0]
    s, t = gate * ((alpha + da) * z + forms.c[i] + dc), (beta + dq) * gate
    line = np.stack([np.ones(GRID), z], axis=1)
    s = s - (line @ np.linalg.lstsq(line, s.T, rcond=None)[0]).T
    t = t - (beta + dq) * atom(np.asarray(forms.b[i] + db))[0]
    size = np.abs(forms.outputs[i])
    return tuple(np.multiply.outer(np.std(a, axis=0), size).reshape(GRID, p) for a in (s, t))
