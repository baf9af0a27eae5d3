"""Standard errors of directions and responses, from the inverse Gauss–Newton matrix.

With σ² the mean square error on held-out points (noise and model errors), the covariance of the
nonlinear parameters is σ² S⁻¹, S the projected `normal_matrix`. The error of direction i is a vector in
d − 1 dimensions with covariance Σ_i; its length squared is a weighted sum of chi-squares, approximated by the scaled
chi-square with the same mean and variance (Satterthwaite). `angle_error` is half the length that 95.45 % of such
errors stay below, so that twice this value corresponds to two standard errors of a normal quantity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.stats import chi2

from ..geometry import Floats
from . import threads
from .levenberg_marquardt import normal_matrix
from .linear import WEAK_SMOOTHING, solve_linear
from .model import TINY, Model

GRID = 65
"""Number of points of [−R, R] at which a response's standard error is given."""
MAX_COEFFICIENTS = 10**6
"""Coefficients above which error bars are rough: one matrix for each feature would take hours."""
MAX_JOINT_UNKNOWNS = 6000
"""Columns and direction entries up to which the full matrix of all features is formed: 290 MB."""
_COVERAGE = 0.9545  # probability that a normal quantity is within two standard errors
_ROUGH_POINTS = 512  # points that a rough error bar is averaged over: accurate to one part in twenty
_MAX_CONDITION = 1e12  # above which an inverse has no accurate digits


@dataclass(frozen=True, eq=False)
class ErrorBars:
    """Standard errors of a fitted model."""

    angle: Floats
    """(n,) radians; 95 % of errors are below twice this."""
    mean_square_angle: Floats
    """(n,) trace of the direction's covariance: the expected squared angle."""
    band: tuple[Floats, ...]
    """(GRID, p) standard error of each response on a uniform grid of [−R, R]."""

    @classmethod
    def unknown(cls, model: Model) -> ErrorBars:
        """Return infinite errors, for a model whose errors could not be computed."""
        infinite = np.full(model.count, np.inf)
        return cls(infinite, infinite, (np.full((GRID, model.outputs), np.inf),) * model.count)


@threads.one_blas_thread()
def error_bars(model: Model, X: Floats, Y: Floats, variance: float, smoothing: float = WEAK_SMOOTHING) -> ErrorBars:
    """Return the standard errors of a model fitted to X (m, d) and Y (m, p).

    `variance` is the mean square of one answer's difference from the model, on held-out points.
    """
    n, d = model.directions.shape
    if n == 0:
        return ErrorBars(np.empty(0), np.empty(0), ())
    if model.coefficients.size > MAX_COEFFICIENTS:
        return _rough_bars(model, X, variance)
    parts = [np.arange(n)] if model.columns + n * d <= MAX_JOINT_UNKNOWNS else np.array_split(np.arange(n), n)
    angles, squares, bands = [], [], []
    left = Y - model.predict(X) if len(parts) > 1 else np.zeros_like(Y)
    for part in parts:  # one part: the full matrix; else each feature on its own, others held fixed
        alone = model if len(part) == n else model.keep(part)
        target = Y if len(part) == n else left + alone.predict(X)
        linear = solve_linear(alone, X, target, smoothing)
        covariance = variance * _inverse(normal_matrix(linear, X), alone.directions)
        assert linear.factor is not None
        half = threads.solve_lower(linear.factor, np.eye(len(linear.factor)))
        for j in range(len(part)):
            block = covariance[j * d : (j + 1) * d, j * d : (j + 1) * d]
            angles.append(_half_of_95(block))
            squares.append(float(np.trace(block)))
            bands.append(_band(alone, j, half[:, alone.offsets[j] : alone.offsets[j + 1]], variance))
    return ErrorBars(np.array(angles), np.array(squares), tuple(bands))


def _rough_bars(model: Model, X: Floats, variance: float) -> ErrorBars:
    """Return rough error bars, each direction on its own, its matrix a multiple of the identity: Σ |s_i'|²|x|²/d."""
    n, d = model.directions.shape
    squares = np.empty(n)
    few = X[:: max(1, len(X) // _ROUGH_POINTS)]
    for i, v in enumerate(model.directions):
        slope = model.term_slope(i, few @ v)
        pull = float(np.einsum("mp,mp,m->", slope, slope, np.einsum("md,md->m", few, few))) * len(X) / len(few)
        squares[i] = variance * d * (d - 1) / max(pull, TINY)
    band = np.full((GRID, model.outputs), np.sqrt(variance * float(model.widths.mean()) / max(len(X), 1)))
    return ErrorBars(np.sqrt(squares), squares, (band,) * n)


def _inverse(matrix: Floats, V: Floats) -> Floats:
    """Return the inverse on the tangent spaces; the matrix is singular along each v_i."""
    n, d = V.shape
    typical = np.trace(matrix) / len(matrix) + TINY
    radial = np.zeros((len(matrix), n))
    radial[np.arange(n * d), np.repeat(np.arange(n), d)] = V.ravel()
    try:
        inverse = cho_solve(cho_factor(matrix + typical * (radial @ radial.T), lower=True), np.eye(len(matrix)))
        if float(np.abs(inverse).max()) * typical < _MAX_CONDITION:
            return np.asarray(inverse - radial @ (radial.T @ inverse @ radial) @ radial.T)
    except LinAlgError:
        pass
    values, vectors = np.linalg.eigh(matrix)  # two features at the same place: leave out what data cannot distinguish
    useful = values > 1.0 / _MAX_CONDITION * max(values[-1], typical)
    return np.asarray((vectors[:, useful] / values[useful]) @ vectors[:, useful].T)


def _half_of_95(covariance: Floats) -> float:
    """Return half the length that 95.45 % of vectors with this covariance stay below."""
    mean, squares = np.trace(covariance), np.sum(covariance * covariance)
    if mean <= 0:
        return 0.0
    freedom = mean**2 / squares
    return float(0.5 * np.sqrt(squares / mean * chi2.ppf(_COVERAGE, freedom)))


def _band(model: Model, i: int, half: Floats, variance: float) -> Floats:
    """Return the standard error (GRID, p) of response i.

    `half` are its columns of L⁻¹, so that halfᵀhalf is its block of (ΦᵀΦ+μ)⁻¹.
    """
    z = np.linspace(-model.radius, model.radius, GRID)
    phi = model.columns_of(i, z)
    # without the affine part, which data cannot attribute to one feature
    line = np.stack([np.ones(GRID), z], axis=1)
    phi -= line @ np.linalg.lstsq(line, phi, rcond=None)[0]
    covariance = np.einsum("gk,gk->g", phi @ (half.T @ half), phi)
    return np.repeat(np.sqrt(variance * np.maximum(covariance, 0.0))[:, None], model.outputs, axis=1)
