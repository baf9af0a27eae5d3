"""Gated features without a closed form: s and t as splines, for directions and carriers that are known.

    f̂(x) = b + a·x + Σ_i Σ_k [ c_ik + e_ik (u_i·x) ] B_k(v_i·x)

is linear in all coefficients. A roughness penalty far below the weight of a point fills in where there is none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ..deadline import check_time
from ..geometry import Floats
from . import threads
from .context import Evaluation, FitContext
from .gated_form import GatedModel
from .jacobian import RIDGE, roughness_scale
from .levenberg_marquardt import Fitted
from .linear import MEDIUM_SMOOTHING, WEAK_SMOOTHING, chunks
from .model import Model
from .samples import HELD_OUT_EVERY, ask_along

MAX_COLUMNS = 3000
"""Columns up to which splines are fitted: a few seconds for each solve."""
_MAX_INTERVALS = 128
_POINTS_PER_COLUMN = 2.5
_HELPS = 0.5  # share of the error that finer knots must leave at most for still finer ones to follow


@threads.one_blas_thread()
def fit_splines(context: FitContext, directions: Floats, carriers: Floats) -> Evaluation | None:
    """Fit splines along directions (n, d) with carriers (n, d), zero rows for plain features; finer while that helps.

    Return None if there would be more than `MAX_COLUMNS` columns.
    """
    best: Evaluation | None = None
    intervals = context.goal.intervals
    while intervals <= _MAX_INTERVALS:
        columns = (len(directions) + int(carriers.any(axis=1).sum())) * (intervals + 3) + directions.shape[1] + 1
        missing = _POINTS_PER_COLUMN * columns * HELD_OUT_EVERY / (HELD_OUT_EVERY - 1)
        missing -= context.samples.weight
        if columns > MAX_COLUMNS or missing > context.allowance():
            break
        lines = np.concatenate([directions, carriers[carriers.any(axis=1)]])
        ask_along(context.ask, context.samples, lines, int(missing), context.rng)
        now = min(
            (
                _solved(context, directions, carriers, intervals, weight)
                for weight in (MEDIUM_SMOOTHING, WEAK_SMOOTHING)
            ),
            key=lambda found: found.rms,
        )
        helps = best is None or now.rms < _HELPS * best.rms
        best = now if best is None or now.rms < best.rms else best
        if best.meets_goal or not helps:
            break
        intervals *= 2
    return best


def _solved(context: FitContext, directions: Floats, carriers: Floats, intervals: int, smoothing: float) -> Evaluation:
    X, Y = context.samples.train
    n, d = directions.shape
    shape = Model.start(directions, context.samples.radius, intervals, Y.shape[1])
    gated = np.flatnonzero(carriers.any(axis=1))
    width = intervals + 3
    gain_columns = np.concatenate([np.arange(i * width, (i + 1) * width) for i in gated]).astype(np.intp)
    N = shape.columns + len(gain_columns)
    gram, right = np.zeros((N, N)), np.zeros((N, Y.shape[1]))
    for rows in chunks(len(X), N):
        phi = shape.design(X[rows])
        times = np.repeat(X[rows] @ carriers[gated].T, width, axis=1)
        phi = np.concatenate([phi, phi[:, gain_columns] * times], axis=1)
        gram += phi.T @ phi
        right += phi.T @ Y[rows]
    check_time()
    second = np.diff(np.eye(width), n=2, axis=0)
    rough = smoothing * len(X) * roughness_scale(intervals) * (second.T @ second)
    for i in range(n):
        gram[i * width : (i + 1) * width, i * width : (i + 1) * width] += rough
    for j in range(len(gated)):
        at = slice(shape.columns + j * width, shape.columns + (j + 1) * width)
        gram[at, at] += rough * context.samples.radius**2 / d
    gram[np.diag_indices_from(gram)] += RIDGE * len(X) + 1e-13 * gram.diagonal()
    try:
        c = np.asarray(cho_solve(cho_factor(gram, lower=True, overwrite_a=True), right))
    except LinAlgError:
        c = np.asarray(np.linalg.lstsq(gram, right, rcond=None)[0], dtype=np.float64)
    t = np.zeros((n * width + 1 + d, Y.shape[1]))
    t[gain_columns] = c[shape.columns :]
    gain = replace(shape, coefficients=t)
    plain = c[: shape.columns].copy()
    model = GatedModel(
        shape.radius, shape.directions, shape.intervals, shape.kinks, plain, carriers=carriers, gain=gain
    )
    return context.evaluate(Fitted.without_fit(model.in_gauge(), float("nan")))
