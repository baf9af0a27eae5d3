"""The fit of gated features: closed forms first, splines for what has none.

    starts     gate weight k and bias b of every unit and family, from the derivatives t' (or s'') that the search has
               measured along v: the best place of a grid, refined
    carriers   with gates known, φ·(c + αz + β u·x) is linear: one solve over values gives c, α, β and the output
    minimise   gates, carriers and outputs together (`gated_solve`), to the noise or to rounding
    splines    where no family reaches the goal: s and t as splines, directions and carriers as proposed

Held-out points choose among families and between closed forms and splines.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import LinAlgError

from ..geometry import Floats
from ..search.base import GatedCandidates
from ..search.gated import in_gauge
from . import threads
from .context import Evaluation, FitContext
from .gated_form import GATES, GatedForms
from .gated_solve import GatedSolved, minimise
from .gated_splines import fit_splines
from .levenberg_marquardt import Fitted
from .model import TINY
from .samples import HELD_OUT_EVERY, ask_along

_SCALES, _PLACES = (0.3, 64.0, 1.35), 25  # |k|·R of the grid: first, last, factor; places of b in [−R, R]
_ZOOMS, _ZOOM_POINTS, _ZOOM = 6, 7, 0.4  # refinements of the grid, their points each way, and the factor of its cells
_SECOND_STEP = 1e-4  # of y, for φ'' as a difference of φ'
_ENTRANTS = 3  # families that are compared on values
_POINTS_PER_COLUMN, _POINTS_PER_UNKNOWN = 2.0, 2.0  # of the linear solve, and answers for each parameter
_REFIT_POINTS = 0.3  # share of the points added by a refit
_LOOK_STEPS, _LAST_STEPS, _SLOW = 4, 25, 1e-2  # steps of a comparison, to the end, and the gain that ends these
_ROUNDING = 1e-28  # of ‖Y‖²: the square of some tens of rounding errors
_SIGNIFICANT = 4.0  # variances per output below which a unit's removal cost is that of noise
_SPLINE_SHARE = 0.01  # of the goal: error of the splines that stand for closed forms
_NO_WORSE = 1.05  # RMS error over that of the larger model up to which a smaller one is preferred


def fit_gated(context: FitContext, candidates: GatedCandidates) -> Evaluation:
    """Fit gated and plain features along the proposed directions and carriers, and return them with their errors."""
    n, d = candidates.directions.shape
    context.say(
        f"fitting {int(candidates.gated.sum())} gated and {n - int(candidates.gated.sum())} plain features to "
        f"{context.samples.count:,} points"
    )
    p = candidates.amounts.shape[1]
    gated = int(candidates.gated.sum())
    linear = n + 2 * gated + d + 1
    unknowns = n * (d + 1 + p) + gated * (d + 1) + (d + 1) * p
    wanted = max(_POINTS_PER_COLUMN * linear, _POINTS_PER_UNKNOWN * unknowns / p)
    _ask(context, candidates, int(wanted * HELD_OUT_EVERY / (HELD_OUT_EVERY - 1)))
    closed = _closed(context, candidates)
    if closed is not None and closed.meets_goal:
        return closed
    splines = fit_splines(context, candidates.directions, candidates.carriers)
    found = [now for now in (closed, splines) if now is not None]
    return min(found, key=lambda now: now.rms)


def refit_gated(context: FitContext, forms: GatedForms) -> Evaluation:
    """Fit the same units again with more points."""
    units = in_gauge(forms.g, forms.w)
    directions = np.concatenate([units.directions, units.carriers[forms.gated]])
    count = int(min(_REFIT_POINTS * len(context.samples.unclustered[0]), context.allowance()))
    ask_along(context.ask, context.samples, directions, count, context.rng)
    X, Y = context.samples.train
    return _finished(context, GatedSolved.of(forms, X, Y))


def _ask(context: FitContext, candidates: GatedCandidates, wanted: int) -> None:
    """Ask points along directions and carriers until there are so many, stencils not counted."""
    missing = int(min(wanted - len(context.samples.unclustered[0]), context.allowance()))
    directions = np.concatenate([candidates.directions, candidates.carriers[candidates.gated]])
    ask_along(context.ask, context.samples, directions, missing, context.rng)


# -- closed forms ------------------------------------------------------------------------------------------------


@threads.one_blas_thread()
def _closed(context: FitContext, candidates: GatedCandidates) -> Evaluation | None:
    """Return closed forms of the family that held-out points prefer; None if there are too few points for any."""
    X, Y = context.samples.train
    gated = candidates.gated
    if len(X) < _POINTS_PER_COLUMN * (len(gated) + 2 * int(gated.sum()) + candidates.directions.shape[1] + 1):
        return None
    placed = [_places(candidates, index, context.samples.radius) for index in range(len(GATES))]
    misfits = np.stack([misfit for _, _, misfit in placed])  # (families, n)
    best_plain = int(np.argmin(misfits[:, ~gated].sum(axis=1)))
    order = np.argsort(misfits[:, gated].sum(axis=1), kind="stable")
    tried = list[GatedSolved]()
    for index in order[:_ENTRANTS]:
        family = np.where(gated, index, best_plain).astype(np.intp)
        k, b = (np.choose(gated, [placed[best_plain][j], placed[index][j]]) for j in (0, 1))
        try:
            forms = _with_carriers(candidates, family, k, b, X, Y, context.samples.radius)
            tried.append(minimise(GatedSolved.of(forms, X, Y), steps=_LOOK_STEPS, min_gain=0.0, target=_floor(context)))
        except LinAlgError:
            continue
        context.say(f"  gates of family {GATES[index].name}: RMS error {tried[-1].rms:.1e}", detail=True)
        if tried[-1].cost <= 4.0 * _floor(context):
            break
    return _finished(context, min(tried, key=lambda s: s.cost)) if tried else None


def _floor(context: FitContext) -> float:
    """Return the sum of squares that noise or rounding leaves."""
    Y = context.samples.train[1]
    return float(max(_ROUNDING * np.sum(Y**2), context.goal.noise**2 * Y.size))


def _finished(context: FitContext, solved: GatedSolved) -> Evaluation:
    """Minimise to the end, drop units that are not significant, and return the splines that stand for the rest."""
    solved = minimise(solved, steps=_LAST_STEPS, min_gain=_SLOW, target=0.1 * _floor(context))
    solved = _pruned(context, solved)
    now = _evaluated(context, solved)
    context.say(
        f"fitted {solved.forms.count} units, {int(solved.forms.gated.sum())} of them gated: RMS error {now.rms:.1e}, "
        f"largest {now.sup:.1e} on held-out points"
    )
    return now


def _evaluated(context: FitContext, solved: GatedSolved) -> Evaluation:
    model = solved.forms.model(_SPLINE_SHARE * max(context.goal.error, TINY))
    return replace(context.evaluate(Fitted.without_fit(model, solved.cost)), gates=solved.forms)


def _pruned(context: FitContext, solved: GatedSolved) -> GatedSolved:
    """Drop units whose removal costs no more than noise would, one after the other, if held-out points agree."""
    X, Y = context.samples.held_out
    while solved.forms.count > 1 and len(X):
        freedom = max(len(solved.X) - len(solved.factor), 1)
        costs = solved.removal_costs() / (_SIGNIFICANT * max(solved.cost, _floor(context)) / freedom + TINY)
        if not (costs < 1.0).any():
            break
        keep = np.delete(np.arange(solved.forms.count), int(np.argmin(costs)))
        smaller = minimise(GatedSolved.of(solved.forms.keep(keep), solved.X, solved.Y), steps=2)
        before, after = (float(np.sum((Y - s.forms.predict(X)) ** 2)) for s in (solved, smaller))
        if after > _NO_WORSE**2 * max(before, _floor(context) * len(X) / len(solved.X)):
            break
        context.say(f"  dropped 1 of {solved.forms.count} gated units", detail=True)
        solved = smaller
    return solved


# -- starts --------------------------------------------------------------------------------------------------------


def _places(candidates: GatedCandidates, index: int, radius: float) -> tuple[Floats, Floats, Floats]:
    """Return k and b (n,) of every unit if its gate is of this family, and the share of t', or s'', left unexplained."""
    z = candidates.points @ candidates.directions.T
    n = len(candidates.directions)
    k, b, misfit = np.empty(n), np.empty(n), np.empty(n)
    low, high, factor = _SCALES
    sizes = low * factor ** np.arange(int(np.log(high / low) / np.log(factor)) + 1) / radius
    grid_k = np.concatenate([sizes, -sizes])
    grid_at = np.linspace(-radius, radius, _PLACES)
    for i in range(n):
        target = _leading(candidates.amounts[:, :, i])
        shape = _derivative(index, 1 if candidates.gated[i] else 2)
        K, at = (a.ravel() for a in np.meshgrid(grid_k, grid_at, indexing="ij"))
        log_step, step = np.log(factor), grid_at[1] - grid_at[0]
        for _ in range(_ZOOMS + 1):
            left = _unexplained(shape(K[:, None] * (z[:, i] - at[:, None])), target)
            best = int(np.argmin(left))
            k[i], misfit[i], place = K[best], left[best], at[best]
            b[i] = -K[best] * place
            log_step, step = _ZOOM * log_step, _ZOOM * step
            near = np.linspace(-1.0, 1.0, _ZOOM_POINTS)
            K, at = (a.ravel() for a in np.meshgrid(k[i] * np.exp(log_step * near), place + step * near, indexing="ij"))
    return k, b, misfit


def _leading(amounts: Floats) -> Floats:
    """Return the component (N,) of amounts (N, p) along the output in which they are largest."""
    if amounts.shape[1] == 1:
        return amounts[:, 0]
    return np.asarray(amounts @ np.linalg.svd(amounts, full_matrices=False)[2][0])


def _derivative(index: int, order: int):  # type: ignore[no-untyped-def]
    """Return φ' or φ'' of a family as a function."""
    atom = GATES[index].atom
    if order == 1:
        return lambda y: atom(y)[1]
    return lambda y: (atom(y + _SECOND_STEP)[1] - atom(y - _SECOND_STEP)[1]) / (2.0 * _SECOND_STEP)


def _unexplained(shapes: Floats, target: Floats) -> Floats:
    """Return (G,) the share of |target|² that no multiple of each row of shapes (G, N) explains."""
    with np.errstate(over="ignore", invalid="ignore"):
        energy, inner = np.einsum("gn,gn->g", shapes, shapes), shapes @ target
        share = inner**2 / (np.maximum(energy, TINY) * max(float(target @ target), TINY))
    return np.where(np.isfinite(share), 1.0 - share, 1.0)


def _with_carriers(
    candidates: GatedCandidates, family: np.ndarray, k: Floats, b: Floats, X: Floats, Y: Floats, radius: float
) -> GatedForms:
    """Return forms with these gates whose carriers and outputs are solved for; raise `LinAlgError` if that fails."""
    v, u, gated = candidates.directions, candidates.carriers, candidates.gated
    n, d = v.shape
    g = k[:, None] * v
    bare = GatedForms(radius, g, b, np.zeros((n, d)), np.ones(n), family, np.zeros((n + 1 + d, Y.shape[1])))
    gate = bare.gates(X)[0]
    parts = [gate, gate[:, gated] * (X @ v[gated].T), gate[:, gated] * (X @ u[gated].T)]
    columns = np.concatenate([*parts, np.ones((len(X), 1)), X], axis=1)
    scale = np.maximum(np.linalg.norm(columns, axis=0), TINY)
    if not np.isfinite(scale).all():
        raise LinAlgError("gates are not finite")
    solution = np.linalg.lstsq(columns / scale, Y, rcond=None)[0] / scale[:, None]
    k_gated = int(gated.sum())
    w, c, at = np.zeros((n, d)), np.ones(n), np.flatnonzero(gated)
    for j, i in enumerate(at):
        block = np.stack([solution[i], solution[n + j], solution[n + k_gated + j]])
        left = np.linalg.svd(block * np.array([1.0, radius, radius])[:, None], full_matrices=False)[0][:, 0]
        c[i], alpha, beta = left / np.array([1.0, radius, radius])
        w[i] = alpha * v[i] + beta * u[i]
        length = float(np.sqrt(w[i] @ w[i] + c[i] ** 2))
        w[i], c[i] = w[i] / length, c[i] / length
    return replace(bare, w=w, c=c)
