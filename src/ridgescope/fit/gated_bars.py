"""Standard errors of gated units, from the inverse of their Gauss–Newton matrix.

The unknowns are (b, g, c, w) of every unit, with outputs, bias and slope projected out (see `gated_solve`). With σ² the
mean square that the units leave, their covariance is σ² (JᵀPJ)⁻¹, plus the square of the step that a fit short of its
minimum has left. With v = g/|g| and u = w⊥/|w⊥|, w⊥ = w − (w·v)v, directions and carriers turn by

    δv = (1 − v vᵀ) δg/|g|,      δu = (1 − v vᵀ − u uᵀ)(δw − (w·v) δv)/|w⊥|  −  (u·δv) v.

The errors of s and t are those of draws of k, b, α, β and c from the same covariance.

Where no matrix of all unknowns can be formed, random errors e of the answers are followed: they change the unknowns by
(JᵀPJ)⁻¹JᵀP e, one solution by conjugate gradients, and a few such changes give the expected squared turns of v and u,
each a sum over d − 1 directions, all couplings included. The covariance of k, b, α, β and c is then that of the unit's
own block (`gated_blocks`), made larger by as much as that of its direction is.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Floats
from . import threads
from .errorbars import COVERAGE, GRID, ErrorBars, chi_square_quantile, half_of_95
from .gated_blocks import GatedBlocks
from .gated_form import GATES, GatedForms
from .gated_solve import GatedSolved, GatedStep
from .model import TINY

_RIDGE = 1e-12  # of the mean diagonal entry: rounding errors
_SEED = 0  # of draws, which are an integration rule: the same for the same fit
_FOLLOWED = 3  # random errors that the fit follows: sums over 63 directions are then known to a tenth
_SHAPE = [1, 0, 3, 4, 5]  # k, b, c, α and β among the unknowns of a unit's own block
_DRAWS = 64  # of shape parameters: their standard deviation is known to one part in eleven


@threads.one_blas_thread()
def gated_error_bars(forms: GatedForms, X: Floats, Y: Floats, noise: float) -> ErrorBars:
    """Return the standard errors of gated units fitted to X (m, d) and Y (m, p); `noise` is that of one answer."""
    solved = GatedSolved.of(forms, X, Y)
    freedom = max(Y.size - forms.unknowns, 1)
    variance = max(solved.cost / freedom, noise**2 if freedom < forms.unknowns else 0.0)
    step = GatedStep(solved)
    if step.blocks is not None:
        return _followed(step, step.blocks, variance)
    n, width = step.right.rows.shape
    angles, squares, carrier, bands = np.empty(n), np.empty(n), np.zeros(n), []
    rng = np.random.default_rng(_SEED)
    assert step.matrix is not None
    inverse = _inverse(step.matrix)
    left = inverse @ step.right.rows.ravel()
    for i in range(n):
        at = slice(i * width, (i + 1) * width)
        covariance = variance * inverse[at, at] + np.multiply.outer(left[at], left[at])
        covariance = step.project_unit(i, covariance)
        of_v, of_u = _turns(forms, i, covariance)
        angles[i], squares[i] = half_of_95(of_v), float(np.trace(of_v))
        carrier[i] = half_of_95(of_u) if forms.gated[i] else 0.0
        shape = _shape_of(forms, i)
        bands.append(_bands(forms, i, shape @ covariance @ shape.T, rng))
    plain, gain = zip(*bands, strict=True)
    return ErrorBars(angles, squares, plain, carrier=carrier, gain_band=gain)


def _followed(step: GatedStep, blocks: GatedBlocks, variance: float) -> ErrorBars:
    """Return standard errors by following random errors of the answers."""
    forms, rng = step.forms, np.random.default_rng(_SEED)
    n, across = forms.count, max(forms.dim - 1, 1)
    square = np.zeros((n, 2))
    for _ in range(_FOLLOWED):
        errors = rng.standard_normal(step.solved.Y.shape, dtype=np.float32)
        change = step.solution(step.adjoint(step.project(errors)), 0.0).rows
        square += _squared_turns(forms, blocks, change) / _FOLLOWED
    left = _squared_turns(forms, blocks, step.solution(step.right, 0.0).rows)
    each = (variance * square + left) / across
    angle, carrier = 0.5 * np.sqrt(each * chi_square_quantile(COVERAGE, across)).T
    along, own = blocks.inverses(0.0)
    steep = np.maximum(np.linalg.norm(forms.g, axis=1), TINY)
    alone = own[:, 0, 0] / steep**2
    gauges = np.stack([blocks.split(step.fixed[:, k])[0] for k in (0, 1)], axis=1)
    free = np.eye(6) - gauges.swapaxes(1, 2) @ gauges
    coupled = variance * np.maximum(square[:, 0] / across / np.maximum(alone, TINY), 1.0)
    covariance = coupled[:, None, None] * (free @ along @ free)
    bands = [_bands(forms, i, covariance[i][np.ix_(_SHAPE, _SHAPE)], rng) for i in range(n)]
    plain, gain = zip(*bands, strict=True)
    return ErrorBars(angle, each[:, 0] * across, plain, carrier=np.where(forms.gated, carrier, 0.0), gain_band=gain)


def _squared_turns(forms: GatedForms, blocks: GatedBlocks, change: Floats) -> Floats:
    """Return (n, 2) |δv|² and |δu|² for a change (n, 2(d + 1)) of (b, g, c, w)."""
    q, v, u = forms.dim + 1, blocks.v, blocks.u

    def without(rows: Floats, unit_rows: Floats) -> Floats:
        return np.asarray(rows - np.einsum("nd,nd->n", rows, unit_rows)[:, None] * unit_rows)

    of_v = without(change[:, 1:q], v) / np.maximum(np.linalg.norm(forms.g, axis=1, keepdims=True), TINY)
    alpha, beta = (np.einsum("nd,nd->n", forms.w, e)[:, None] for e in (v, u))
    of_u = without(without(change[:, q + 1 :] - alpha * of_v, v), u) / np.maximum(beta, TINY)
    of_u -= np.einsum("nd,nd->n", u, of_v)[:, None] * v
    return np.stack([np.sum(of_v**2, axis=1), np.sum(of_u**2, axis=1)], axis=1)


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


def _shape_of(forms: GatedForms, i: int) -> Floats:
    """Return how k, b, c, α and β of unit i follow (b, g, c, w), (5, 2(d + 1))."""
    q = forms.dim + 1
    k, u, _, _ = forms.split(i)
    v, shape = forms.g[i] / max(k, TINY), np.zeros((5, 2 * q))
    shape[0, 1:q], shape[1, 0], shape[2, q] = v, 1.0, 1.0
    shape[3, q + 1 :], shape[4, q + 1 :] = v, u
    return shape


def _bands(forms: GatedForms, i: int, covariance: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the standard errors (GRID, p) of s and t of unit i, s without its affine part.

    `covariance` (5, 5) is that of k, b, c, α and β.
    """
    k, _, alpha, beta = forms.split(i)
    p = forms.outputs.shape[1]
    values, vectors = np.linalg.eigh(covariance)
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
