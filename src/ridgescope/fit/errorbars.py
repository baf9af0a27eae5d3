"""Standard errors of directions and responses, from the inverse Gauss–Newton matrix.

The mean square error on held-out points is σ² + τ²: random noise σ², which differs from one answer to the next, and τ²,
the errors of the model and of rounding, which close points share. A spline's error has the length of a knot interval,
and the points of one stencil or line lie within it: many answers, yet one error. With S the projected `normal_matrix`,
j_m the projected row of the Jacobian at point m, and c the clusters of points within one knot interval of each other,
the covariance of the nonlinear parameters is

    S⁻¹ (σ² S + τ² Σ_c g_c g_cᵀ) S⁻¹,        g_c = Σ_{m in c} j_m

A cluster of k points that are alike has Σ j_m j_mᵀ ≈ g_c g_cᵀ/k, so that S plus Σ_c (1 − 1/k) g_c g_cᵀ, a sum over the
clusters of more than one point, stands for the sum over all. It is never less, and measured fits gave angles one
percent larger at most. Of all of this only the d × d blocks of single directions are needed. With S⁻¹ = KᵀK, K the
inverse Cholesky factor, they are products of K's columns, and no product of two full matrices is formed.

A fit whose iteration ended early, or left directions as proposed, is not at its minimum: the step S⁻¹Jᵀr that remains
is an error too, and its square is added.

The error of direction i is a vector in d − 1 dimensions with covariance Σ_i; its length squared is a weighted sum of
chi-squares, approximated by the scaled chi-square with the same mean and variance (Satterthwaite). `angle_error` is
half the length that 95.45 % of such errors stay below, so that twice this value corresponds to two standard errors of
a normal quantity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve
from scipy.linalg.lapack import dtrtri
from scipy.spatial import cKDTree
from scipy.special import gammaincinv

from ..deadline import check_time
from ..geometry import Floats
from . import threads
from .jacobian import output_vectors
from .levenberg_marquardt import column_vectors, gradient, normal_matrix, tangent_columns
from .linear import WEAK_SMOOTHING, Linear, chunks, solve_linear
from .model import ROWS, TINY, Model

GRID = 65
"""Number of points of [−R, R] at which a response's standard error is given."""
MAX_COEFFICIENTS = 10**6
"""Coefficients above which error bars are rough: one matrix for each feature would take hours."""
MAX_JOINT_UNKNOWNS = 6000
"""Columns and direction entries up to which the full matrix of all features is formed: 290 MB."""
COVERAGE = 0.9545
"""Probability that a normal quantity is within two standard errors."""
_ROUGH_POINTS = 512  # points that a rough error bar is averaged over: accurate to one part in twenty
_CLOSER = (1, 8, 64)  # distances within which errors are compared, as parts of a knot interval
_MOST_COMMON = 0.9  # share of the common error of wide clusters that closer ones must hold to replace them
_MAX_CONDITION = 1e12  # above which an inverse has no accurate digits
_ROOT_RIDGE = 1e-12  # of the mean diagonal entry: makes a Gram matrix of too few rows positive
_TREE_COORDINATES = (
    8  # in which a tree looks for close points, since one of many more coordinates is no faster than none
)


@dataclass(frozen=True, eq=False)
class ErrorBars:
    """Standard errors of a fitted model."""

    angle: Floats
    """(n,) radians; 95 % of errors are below twice this."""
    mean_square_angle: Floats
    """(n,) trace of the direction's covariance: the expected squared angle."""
    band: tuple[Floats, ...]
    """(GRID, p) standard error of each response on a uniform grid of [−R, R]."""
    carrier: Floats | None = None
    """(n,) radians, as `angle`, of the carriers of gated features; None if there are none."""
    gain_band: tuple[Floats, ...] = ()
    """(GRID, p) standard error of the gain of each feature; empty if none is gated."""

    @classmethod
    def unknown(cls, model: Model) -> ErrorBars:
        """Return infinite errors, for a model whose errors could not be computed."""
        infinite = np.full(model.count, np.inf)
        return cls(infinite, infinite, (np.full((GRID, model.outputs), np.inf),) * model.count)


@threads.one_blas_thread()
def error_bars(
    model: Model,
    X: Floats,
    Y: Floats,
    variance: float,
    smoothing: float = WEAK_SMOOTHING,
    *,
    random_variance: float | None = None,
) -> ErrorBars:
    """Return the standard errors of a model fitted to X (m, d) and Y (m, p).

    `variance` is the mean square of one answer's difference from the model, on held-out points, and `random_variance`
    the part of it that is independent noise; None means all of it. The others are errors that close points share.
    """
    n, d = model.directions.shape
    if n == 0:
        return ErrorBars(np.empty(0), np.empty(0), ())
    if model.coefficients.size > MAX_COEFFICIENTS:
        return _rough_bars(model, X, variance)
    parts = [np.arange(n)] if model.columns + n * d <= MAX_JOINT_UNKNOWNS else np.array_split(np.arange(n), n)
    angles, squares, bands = [], [], []
    left = Y - model.predict(X)
    shared = max(0.0, variance - random_variance) if random_variance is not None else 0.0
    clusters: NDArray[np.intp] | None = None
    if shared > 0.0:
        clusters, correlation = sharing_points(X, left, 2.0 * model.radius / float(np.median(model.intervals)))
        shared = min(shared, variance * correlation)
    for part in parts:  # one part: the full matrix; else each feature on its own, others held fixed
        alone = model if len(part) == n else model.keep(part)
        target = Y if len(part) == n else left + alone.predict(X)
        linear = solve_linear(alone, X, target, smoothing)
        root = _inverse_root(normal_matrix(linear, X), alone.directions)
        step = root.T @ (root @ gradient(linear, X, target))
        rows = [np.sqrt(variance) * root, step[None]]
        if clusters is not None:
            rows.append(np.sqrt(shared) * ((_cluster_rows(linear, X, clusters) @ root.T) @ root))
        assert linear.factor is not None
        half = _inverse_factor(linear.factor)
        for j in range(len(part)):
            own = [r[:, j * d : (j + 1) * d] for r in rows]
            block = np.sum([r.T @ r for r in own], axis=0)
            angles.append(half_of_95(block))
            squares.append(float(np.trace(block)))
            bands.append(_band(alone, j, half[:, alone.offsets[j] : alone.offsets[j + 1]], variance))
    return ErrorBars(np.array(angles), np.array(squares), tuple(bands))


def close_points(X: Floats, distance: float) -> NDArray[np.intp]:
    """Return the number of each point's cluster (m,): a point and all within `distance` of it that have none yet."""
    few = np.ascontiguousarray(X[:, :_TREE_COORDINATES])
    tree = cKDTree(few)
    cluster = np.full(len(X), -1, dtype=np.intp)
    crowded = tree.query_ball_point(few, distance, return_length=True) > 1
    cluster[~crowded] = np.arange(np.sum(~crowded))
    count = int(np.sum(~crowded))
    for i in np.flatnonzero(crowded):
        if cluster[i] < 0:
            near = np.array(tree.query_ball_point(few[i], distance))
            near = near[cluster[near] < 0]
            near = near[np.linalg.norm(X[near] - X[i], axis=1) <= distance]
            cluster[near] = count
            count += 1
    return cluster


def sharing_points(X: Floats, left: Floats, distance: float) -> tuple[NDArray[np.intp], float]:
    """Return clusters (m,) of points that share errors, and the correlation between the errors of two of a cluster.

    The clusters are the closest ones, up to `distance` wide, that hold most of what errors (m, p) of neighbours have in
    common: rounding to steps is the same only where values are less than a step apart, what splines leave is the same
    in a knot interval. All pairs of a cluster have the same weight, as they have in the matrices of `_cluster_rows`.
    """
    found, power = None, float(np.mean(left**2))
    for closer in _CLOSER:
        cluster = close_points(X, distance / closer)
        k = np.bincount(cluster)
        total = np.stack([np.bincount(cluster, weights=column) for column in left.T], axis=1)
        own = np.stack([np.bincount(cluster, weights=column**2) for column in left.T], axis=1)
        common, pairs = float(np.mean(total**2 - own, axis=1).sum()), float(np.sum(k * (k - 1.0)))
        if found is not None and common < _MOST_COMMON * found[0]:
            break
        found = common, cluster, float(np.clip(common / max(pairs * power, TINY), 0.0, 1.0))
        if common <= 0.0:
            break
    assert found is not None
    return found[1], found[2]


def _cluster_rows(linear: Linear, X: Floats, cluster: NDArray[np.intp]) -> Floats:
    """Return rows F (f, q) with FᵀF = Σ_c (1 − 1/k) g_c g_cᵀ over the clusters c of k > 1 points, all outputs together.

    g_c = Σ_{m in c} j_m with the rows j = J − Φ A⁻¹ ΦᵀJ of the projected Jacobian.
    """
    model, w = linear.model, output_vectors(linear.model)
    vectors = column_vectors(model, w)
    q, N, size = len(vectors), model.columns, np.bincount(cluster)
    several = np.flatnonzero(size > 1)
    order = np.flatnonzero(size[cluster] > 1)
    order = order[np.argsort(cluster[order], kind="stable")]
    ends = np.concatenate([[0], np.cumsum(size[several])])
    g, phi = np.zeros((len(several), q)), np.zeros((len(several), N))
    for c in threads.portions(len(several), max(1, ROWS // int(size.max()))):  # whole clusters
        check_time()
        rows, starts = X[order[ends[c.start] : ends[c.stop]]], ends[c] - ends[c.start]
        g[c] = np.add.reduceat(tangent_columns(model, rows, w), starts, axis=0)
        phi[c] = np.add.reduceat(model.design(rows), starts, axis=0)
    assert linear.factor is not None
    follow = cho_solve((linear.factor, True), phi.T)
    for c in chunks(len(X), N + q):
        threads.add_product(g, -model.design(X[c]) @ follow, tangent_columns(model, X[c], w))
    g *= np.sqrt(1.0 - 1.0 / size[several])[:, None]
    if len(g) * model.outputs <= q:
        return np.concatenate([g * column for column in vectors.T])
    gram = (g.T @ g) * (vectors @ vectors.T)
    gram[np.diag_indices_from(gram)] += _ROOT_RIDGE * np.trace(gram) / q + TINY
    return threads.cholesky(gram).T


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


def _inverse_root(matrix: Floats, V: Floats) -> Floats:
    """Return K (r, q), KᵀK the inverse on the tangent spaces; the matrix is singular along each v_i."""
    d = V.shape[1]
    typical = np.trace(matrix) / len(matrix) + TINY
    regular = matrix.copy()
    for i, v in enumerate(V):
        regular[i * d : (i + 1) * d, i * d : (i + 1) * d] += typical * np.multiply.outer(v, v)
    try:
        root = _inverse_factor(threads.cholesky(regular))
        if float(np.einsum("ka,ka->a", root, root).max()) * typical < _MAX_CONDITION:
            for i, v in enumerate(V):
                own = root[:, i * d : (i + 1) * d]
                own -= np.multiply.outer(own @ v, v)
            return root
    except LinAlgError:
        pass
    values, vectors = np.linalg.eigh(matrix)  # two features at the same place: leave out what data cannot distinguish
    useful = values > 1.0 / _MAX_CONDITION * max(values[-1], typical)
    return np.asarray((vectors[:, useful] / np.sqrt(values[useful])).T)


def _inverse_factor(factor: Floats) -> Floats:
    """Return L⁻¹ of a lower triangular L, at a third of the cost of solving for the columns of the identity."""
    return np.asarray(dtrtri(factor, lower=1)[0])


def chi_square_quantile(share: float, freedom: float) -> float:
    """Return the value that a χ² variable stays below in this share of cases.

    `scipy.stats` has it as well, but takes longer to import than a small run takes, and more memory.
    """
    return 2.0 * float(gammaincinv(0.5 * freedom, share))


def half_of_95(covariance: Floats) -> float:
    """Return half the length that 95.45 % of vectors with this covariance stay below."""
    mean, squares = np.trace(covariance), np.sum(covariance * covariance)
    if mean <= 0:
        return 0.0
    freedom = mean**2 / squares
    return float(0.5 * np.sqrt(squares / mean * chi_square_quantile(COVERAGE, freedom)))


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
