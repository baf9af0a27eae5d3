"""Standard errors of closed forms, from the inverse of their own Gauss–Newton matrix.

The unknowns are b_i and w_i, with the output vectors, the splines and the affine part projected out (see
`closed_form`). With σ² the mean square of what the forms leave, the covariance of the unknowns is σ² S⁻¹, plus what
errors that close points share add to it (see `errorbars`), plus the square of the Gauss–Newton step that a fit short of
its minimum has left. The error of a direction is the part of δw_i across w_i, over |w_i|. Response s_i changes by
φ_i'(u δκ + δb) c_i, by what c_i follows a change of all unknowns, and by the error that c_i has besides; that of a
spline changes with its coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError

from ..bspline import design_matrix
from ..deadline import check_time
from ..geometry import Floats
from . import threads
from .activations import ACTIVATIONS, SPLINE, Indices
from .closed_form import ClosedForms
from .closed_solve import Data, Solved
from .closed_steps import moves_of
from .closed_tangents import Tangents
from .context import Evaluation
from .errorbars import GRID, ErrorBars, error_bars, half_of_95, sharing_points
from .gated_bars import gated_error_bars
from .gated_form import GatedModel
from .model import TINY

MAX_JOINT_UNKNOWNS = 1500
"""Entries of all w_i and b_i up to which their joint matrix is inverted; beyond, each feature's on its own."""
_POINTS_PER_COLUMN = 6.0  # and unknown of one feature, that matrices across are summed over; measured: 3 % of an angle
_CLUSTERED = 32  # parts of the diameter within which points share the error of a model
_TOGETHER = 8  # single features whose matrices are made together by one thread
_SHARES = 4  # such groups whose matrices are kept at a time
_MOST_NUMBERS = 2**22  # of the columns of such a group, 32 MB
_INTERVALS = 12  # of splines beside the matrices of single features; measured: all angles within 4 % of finer ones
_ENOUGH_FREEDOM = 200  # answers beyond unknowns from which on what is left shows the noise to one part in twenty
_RIDGE = 1e-12  # of the mean diagonal entry: rounding errors


def error_bars_of(fit: Evaluation, X: Floats, Y: Floats, noise: float, random_noise: float) -> ErrorBars:
    """Return the standard errors of a fit: of its closed forms if it has such, else of its splines.

    The errors of closed forms are their own, not those of the splines that stand for them. `noise` is the standard
    deviation of one answer's error, `random_noise` that of its part which is another one at any other point.
    """
    if fit.gates is not None:
        return gated_error_bars(fit.gates, X, Y, noise)
    if isinstance(fit.model, GatedModel):
        return ErrorBars.unknown(fit.model)
    forms = fit.forms
    if forms is None or not fit.model.count:
        return error_bars(fit.model, X, Y, max(fit.rms, noise) ** 2, random_variance=random_noise**2)
    left = float(np.sum((Y - forms.predict(X)) ** 2))
    freedom = Y.size - forms.coefficients.size - forms.count * (forms.dim + 1)
    variance = left / max(freedom, 1)
    if freedom < _ENOUGH_FREEDOM:
        variance = max(variance, noise**2)
    return closed_error_bars(forms, X, Y, variance, shared=max(0.0, variance - random_noise**2))


@threads.one_blas_thread()
def closed_error_bars(forms: ClosedForms, X: Floats, Y: Floats, variance: float, shared: float = 0.0) -> ErrorBars:
    """Return the standard errors of closed forms fitted to X (m, d) and Y (m, p).

    `variance` is the mean square of one answer's difference from the forms, `shared` the part of it that close points
    have in common.
    """
    n, q = forms.count, forms.dim + 1
    joint = n * q <= MAX_JOINT_UNKNOWNS
    whole = Solved.of(forms, Data(X, Y))
    sums = _Sums(whole, whole.slopes, forms.outputs) if joint else _Sums.of_single_features(whole, Y)
    clusters = None
    if shared > 0 and joint:
        clusters, correlation = sharing_points(X, Y - forms.predict(X), 2.0 * forms.radius / _CLUSTERED)
        shared = min(shared, variance * correlation)
    parts = [np.arange(n)] if joint else np.array_split(np.arange(n), n)
    along = None if sums.solved is whole else _Along.of(whole)
    spread = np.zeros(n)
    spread[forms.closed] = variance * whole.column_variances()
    gradient = whole.gradient() / sums.weight
    angles, squares, bands = np.empty(n), np.empty(n), []
    for part, (matrix, common, follow) in zip(parts, _all_matrices(sums, parts, clusters), strict=True):
        check_time()
        if along is not None:
            matrix, follow = along.inside(int(part[0]), matrix, follow, sums.weight)
        inverse = _inverse(matrix, forms, part)
        step = inverse @ gradient[part].ravel()
        covariance = (variance / sums.weight) * inverse + np.outer(step, step)
        if common is not None:
            covariance += shared * (inverse @ common @ inverse)
        for j, i in enumerate(part):
            at = slice(j * q, (j + 1) * q)
            across = np.eye(forms.dim) - np.multiply.outer(forms.directions[i], forms.directions[i])
            turned = across @ covariance[at, at][1:, 1:] @ across * (forms.radius / forms.kappa[i]) ** 2
            angles[i], squares[i] = half_of_95(turned), float(np.trace(turned))
            if forms.family[i] == SPLINE:
                bands.append(_spline_band(whole, int(i), variance))
            else:
                by_output = follow[j] * np.repeat(forms.outputs[part], q, axis=0).T
                bands.append(_band(forms, int(i), covariance, at, by_output, float(spread[i])))
    return ErrorBars(angles, squares, tuple(bands))


@dataclass(frozen=True, eq=False)
class _Sums:
    """What the matrices are summed over: columns at some points, and the slopes of the features there."""

    solved: Solved
    slopes: Floats
    """(m, n) φ' of all features."""
    outputs: Floats
    """(n, p) their output vectors."""
    weight: float = 1.0
    """Times which these sums stand for those over all points."""

    @classmethod
    def of_single_features(cls, whole: Solved, Y: Floats) -> _Sums:
        """Return sums beside coarse splines, over fewer points if there are many, for each feature on its own.

        What columns follow of a feature's Jacobian is a smooth part, the same with finer splines, and a random part,
        which shrinks with the number of points: of m answers N columns leave m − N.
        """
        forms = whole.forms
        coarse = replace(forms, intervals=min(forms.intervals, _INTERVALS))
        coarse = replace(coarse, coefficients=np.zeros((int(coarse.offsets[-1]) + forms.dim + 1, Y.shape[1])))
        X, N = whole.data.X, len(coarse.coefficients)
        stride = max(1, int(len(X) / (_POINTS_PER_COLUMN * (N + forms.dim + 1))))
        data = whole.data if stride == 1 else Data(X[::stride], Y[::stride])
        solved = whole if stride == 1 and coarse.intervals == forms.intervals else Solved.of(coarse, data)
        left = max(len(X) - len(forms.coefficients), 1)
        weight = left / max(len(solved.data.X) - N, 1)
        return cls(solved, whole.slopes[::stride], forms.outputs, weight)


@dataclass(frozen=True, eq=False)
class _Along:
    """Sums over all points, beside all splines as they are, for b_i and the length of w_i.

    Far less is left of these two than of changes across w_i, so that few points, or coarse splines, show it badly.
    """

    axes: Floats
    """(n, d + 1, 2) b_i and w_i along v_i."""
    blocks: Floats
    """(n, 2, 2) of the projected normal matrix."""
    follow: Floats
    """(n, 2) how the factor of the feature's first column follows."""

    @classmethod
    def of(cls, whole: Solved) -> _Along:
        forms, slopes, n = whole.forms, whole.slopes, whole.forms.count
        axes = np.zeros((n, forms.dim + 1, 2))
        axes[:, 0, 0], axes[:, 1:, 1] = 1.0, forms.directions
        D = np.concatenate([slopes, slopes * (whole.data.X @ forms.directions.T)], axis=1)
        onto, straight = whole.onto(D), threads.inner(whole.data.Q, D)
        follow = whole.follow(onto)
        k, blocks = len(whole.splines.factor), np.empty((n, 2, 2))
        rough = whole.splines.rough @ follow[:k]
        for i in range(n):
            own = [i, n + i]
            block = D[:, own].T @ D[:, own] - straight[:, own].T @ straight[:, own]
            block -= follow[:, own].T @ onto[:, own] + follow[:k, own].T @ rough[:, own]
            blocks[i] = float(forms.outputs[i] @ forms.outputs[i]) * block
        rows = whole.place[forms.offsets[:-1]]
        own_follow = follow[rows].reshape(n, 2, n)[np.arange(n), :, np.arange(n)]
        return cls(axes, blocks, own_follow / whole.scale[rows][:, None])

    def inside(self, i: int, matrix: Floats, follow: Floats, weight: float) -> tuple[Floats, Floats]:
        """Return feature i's matrix and row of `follow` with these sums inside; correlations stay as they are."""
        axes, eye = self.axes[i], np.eye(2)
        try:
            here, exact = (np.linalg.cholesky(a) for a in (axes.T @ matrix @ axes, self.blocks[i] / weight))
        except LinAlgError:
            return matrix, follow
        scaling = np.eye(len(matrix)) + axes @ (np.linalg.solve(here.T, exact.T) - eye) @ axes.T
        follow = follow + (self.follow[i] - follow @ axes) @ axes.T
        return scaling.T @ matrix @ scaling, follow


def _all_matrices(
    sums: _Sums, parts: list[Indices], clusters: Indices | None
) -> Iterator[tuple[Floats, Floats | None, Floats]]:
    """Yield the matrices of each part; those of several small ones are made together, as products of many columns."""
    if len(parts) == 1:
        yield _matrices(sums, parts[0], clusters)
        return
    group = int(np.clip(_MOST_NUMBERS // sums.solved.data.flat.size, 1, _TOGETHER))
    for several in threads.portions(len(parts), _SHARES * group):
        groups = [parts[several][g] for g in threads.portions(len(parts[several]), group)]
        for made in threads.parallel_map(lambda some: _single_matrices(sums, np.concatenate(some)), groups):
            for normal, follow in made:
                yield normal, None, follow


def _single_matrices(sums: _Sums, features: Indices) -> list[tuple[Floats, Floats]]:
    """Return the first and the third matrix of `_matrices` for each of some features on its own."""
    solved, flat = sums.solved, sums.solved.data.flat
    q, k = flat.shape[1], len(solved.splines.factor)
    D = (sums.slopes[:, features, None] * flat[:, None, :]).reshape(len(flat), -1)
    straight = solved.data.Q.T @ D  # whole products, since other threads make those of other features
    onto = np.concatenate([solved.splines.columns.bent.T @ D, solved.atoms.bent.T @ D])
    follow = solved.follow(onto)
    rough = solved.splines.rough @ follow[:k]
    rows, made = solved.place[solved.forms.offsets[features]], []
    for j, i in enumerate(features):
        own = slice(j * q, (j + 1) * q)
        normal = D[:, own].T @ D[:, own] - straight[:, own].T @ straight[:, own]
        normal -= follow[:, own].T @ onto[:, own] + follow[:k, own].T @ rough[:, own]
        normal *= sums.outputs[i] @ sums.outputs[i]
        made.append((normal, follow[rows[j], own][None] / solved.scale[rows[j]]))
    return made


def _matrices(sums: _Sums, part: Indices, clusters: Indices | None) -> tuple[Floats, Floats | None, Floats]:
    """Return the projected normal matrix S (k(d+1), k(d+1)) of b_i and w_i for the features `part`.

    The second matrix, if there are clusters of points, is Σ_c (1 − 1/k) g_c g_cᵀ of `errorbars`. Row j of the third
    array (k, k(d+1)) is how the factor of column j follows a change of these unknowns.
    """
    solved, tangents = sums.solved, Tangents(sums.solved, part)
    c = np.repeat(sums.outputs[part], solved.forms.dim + 1, axis=0)
    products = c @ c.T
    normal = tangents.products() * products
    common = None if clusters is None else tangents.cluster_products(clusters)
    if common is not None:
        common *= products
    follow = tangents.follow
    rows = solved.place[solved.forms.offsets[part]]
    return normal, common, follow[rows] / solved.scale[rows, None]


def _inverse(matrix: Floats, forms: ClosedForms, part: Indices) -> Floats:
    """Return the inverse, in which parameters that a family does not have are fixed."""
    q = forms.dim + 1
    typical = float(np.trace(matrix)) / len(matrix) + TINY
    regular = matrix + _RIDGE * typical * np.eye(len(matrix))
    for j, i in enumerate(part):
        scales, shifts = moves_of(int(forms.family[i]))
        fixed = np.zeros((q, q))
        fixed[0, 0] = 0.0 if shifts else typical
        if not scales:
            fixed[1:, 1:] = typical * np.multiply.outer(forms.directions[i], forms.directions[i])
        regular[j * q : (j + 1) * q, j * q : (j + 1) * q] += fixed
    try:
        return np.asarray(np.linalg.inv(regular), dtype=np.float64)
    except LinAlgError:
        return np.asarray(np.linalg.pinv(regular, hermitian=True), dtype=np.float64)


def _band(forms: ClosedForms, i: int, covariance: Floats, at: slice, follow: Floats, spread: float) -> Floats:
    """Return the standard error (GRID, p) of response i, whose own unknowns are `at`, without its affine part.

    Output k of c_i follows a change of all unknowns by −follow[k] (p, q); `spread` is its own variance besides.
    """
    u = np.linspace(-1.0, 1.0, GRID)
    value, slope = ACTIVATIONS[forms.family[i]].atom(forms.kappa[i] * u + forms.b[i])
    line = np.stack([np.ones(GRID), u], axis=1)
    rows = np.stack([value, slope * u, slope], axis=1)
    rows -= line @ np.linalg.lstsq(line, rows, rcond=None)[0]
    own, c = rows[:, 0], forms.outputs[i]
    J = np.concatenate([rows[:, 2:], np.multiply.outer(rows[:, 1], forms.radius * forms.directions[i])], axis=1)
    moved = follow @ covariance
    direct = np.einsum("ga,ab,gb->g", J, covariance[at, at], J)
    both, indirect = J @ moved[:, at].T, np.einsum("kq,kq->k", moved, follow)
    square = np.multiply.outer(direct, c**2) - 2.0 * own[:, None] * both * c
    return np.asarray(np.sqrt(np.maximum(square + np.multiply.outer(own**2, indirect + spread), 0.0)))


def _spline_band(solved: Solved, i: int, variance: float) -> Floats:
    """Return the standard error (GRID, p) of a response that is a spline, without its affine part."""
    forms = solved.forms
    at = np.arange(forms.offsets[i], forms.offsets[i + 1])
    half = solved.half_inverse(at)
    u = np.linspace(-1.0, 1.0, GRID)
    line = np.stack([np.ones(GRID), u], axis=1)
    rows = design_matrix(u, 1.0, forms.intervals)
    rows = (rows - line @ np.linalg.lstsq(line, rows, rcond=None)[0]) / solved.scale[solved.place[at]]
    error = np.sqrt(variance * np.sum((rows @ half.T) ** 2, axis=1))
    return np.repeat(error[:, None], forms.coefficients.shape[1], axis=1)
