"""The fit of gated features: closed forms first, splines for what has none.

    starts     gate weight k and bias b of every unit and family, from the derivatives t' (or s'') that the search has
               measured along v: the best place of a grid, refined
    carriers   with gates known, φ·(c + αz + β u·x) is linear: one solve over values gives c, α, β and the output
    minimise   gates, carriers and outputs together (`gated_solve`), to the noise or to rounding
    splines    where no family reaches the goal: s and t as splines, directions and carriers as proposed

Held-out points choose among families and between closed forms and splines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ..deadline import OutOfTime, OutOfWork
from ..geometry import Floats
from ..search.base import GatedCandidates
from ..search.gated import in_gauge
from . import threads
from .context import Evaluation, FitContext, evaluate
from .gated_form import GATE_INDEX, GATES, GatedForms
from .gated_kinds import with_missed_carriers, without_idle_carriers
from .gated_missing import with_missed_units
from .gated_solve import GatedSolved, is_iterative, minimise
from .gated_splines import fit_splines
from .levenberg_marquardt import Fitted
from .model import TINY
from .samples import HELD_OUT_EVERY, Samples, ask_along

Placed = tuple[Floats, Floats, Floats]
"""k, b and the share of its derivatives that is left, of every unit, (n,) each."""
_SCALES, _PLACES = (0.3, 64.0, 1.35), 25  # |k|·R of the grid: first, last, factor; places of b in [−R, R]
_STARTS = 16  # places of the grid that are refined, of different k: half of all
_JUDGES, _FEW_STARTS = 16, 4  # units, at least, whose median decides among families, and starts of each
_PLACING_STEPS, _FIRST_DAMPING, _NUDGE = 40, 1e-2, 1e-6  # of that: steps, first damping, and for its derivatives
_SECOND_STEP = 1e-4  # of y, for φ'' as a difference of φ'
_ENTRANTS = 4  # families that are compared on values
_POINTS_PER_COLUMN, _POINTS_PER_UNKNOWN = 2.0, 2.0  # of the linear solve, and answers for each parameter
_OWN_POINTS = 1.25  # times these where steps are iterative: fewer make them slow
_ROUNDED = 1e-10  # noise over standard deviation of answers from which on they are no longer of double precision
_REFIT_POINTS = 0.3  # share of the points added by a refit
_LOOK_STEPS, _LAST_STEPS, _SLOW = 4, 25, 1e-2  # steps of a comparison, to the end, and the gain that ends these
_CLOSE = 10.0  # RMS errors of two families, as placed, within which both are fitted before one is chosen
_MOST_POINTS = 3.0  # points of a fit over those that it needs
_RIDGE = 1e-15  # of a unit diagonal: the rounding error of a sum
_ROUNDING = 1e-28  # of ‖Y‖²: the square of some tens of rounding errors
_SIGNIFICANT = 4.0  # variances for each of a unit's unknowns below which its removal cost is that of noise
_FAINT = 1e-6  # of the median removal cost: a unit a thousand times weaker than others makes up for their errors
_SPLINE_SHARE = 0.01  # of the goal: error of the splines that stand for closed forms
_NO_WORSE = 1.05  # RMS error over that of the larger model up to which a smaller one is preferred


def fit_gated(context: FitContext, candidates: GatedCandidates) -> Evaluation:
    """Fit gated and plain features along the proposed directions and carriers, and return them with their errors."""
    n, gated = len(candidates.directions), int(candidates.gated.sum())
    context.say(f"fitting {gated} gated and {n - gated} plain features to {context.samples.count:,} points")
    _ask(context, candidates)
    closed = _closed(context, candidates)
    if closed is not None and closed.meets_goal:
        return closed
    splines = fit_splines(context, candidates.directions, candidates.carriers)
    found = [now for now in (closed, splines) if now is not None]
    return min(found, key=lambda now: now.rms)


def limit_features(context: FitContext, found: Evaluation, count: int) -> Evaluation:
    """Return the fit of the `count` features that matter most; closed forms are fitted again."""
    if found.model.count <= count:
        return found
    if found.gates is None:
        strength = [float(np.sum(found.model.block(i) ** 2)) for i in range(found.model.count)]
        keep = np.sort(np.argsort(strength)[-count:])
        return context.evaluate(Fitted.without_fit(found.model.keep(keep), float("nan")))
    X, Y = points_of(context.samples, found.gates)
    keep = np.sort(np.argsort(GatedSolved.of(found.gates, X, Y).removal_costs())[-count:])
    return _finished(context, GatedSolved.of(found.gates.keep(keep), X, Y))


def training_points(samples: Samples, least: float) -> tuple[Floats, Floats]:
    """Return the points that units are fitted to: the fit's own, if these are as many as `least`, or all."""
    return samples.unclustered if samples.fitted >= least else samples.train


def points_of(samples: Samples, forms: GatedForms | None) -> tuple[Floats, Floats]:
    """Return the points that these units, or features without gates, are fitted to."""
    return samples.train if forms is None else training_points(samples, forms.unknowns / forms.coefficients.shape[1])


def refit_gated(context: FitContext, forms: GatedForms) -> Evaluation:
    """Fit the same units again with more points."""
    units = in_gauge(forms.g, forms.w)
    directions = np.concatenate([units.directions, units.carriers[forms.gated]])
    count = int(min(_REFIT_POINTS * len(context.samples.unclustered[0]), context.allowance()))
    ask_along(context.ask, context.samples, directions, count, context.rng)
    X, Y = points_of(context.samples, forms)
    return _finished(context, GatedSolved.of(forms, X, Y))


def _ask(context: FitContext, candidates: GatedCandidates) -> None:
    """Ask points along directions and carriers until there are as many as wanted.

    Those of stencils count by their weight, but not at all where steps are iterative, or begin far from the minimum as
    in single precision: a few places, each asked many times, tell the units apart so badly that conjugate gradients
    would take hundreds of products, and steps would end elsewhere.
    """
    each = HELD_OUT_EVERY / (HELD_OUT_EVERY - 1)
    missing = int(_wanted_points(candidates) * each) - context.samples.weight
    rounded = context.goal.noise > _ROUNDED * float(np.std(context.samples.train[1]))
    if candidates.kinks is None and (rounded or is_iterative(*candidates.directions.shape)):
        missing = (_OWN_POINTS * _wanted_points(candidates) - context.samples.fitted) * each
    missing = int(min(missing, context.allowance()))
    directions = np.concatenate([candidates.directions, candidates.carriers[candidates.gated]])
    ask_along(context.ask, context.samples, directions, missing, context.rng)


# -- closed forms ------------------------------------------------------------------------------------------------


@threads.one_blas_thread()
def _closed(context: FitContext, candidates: GatedCandidates) -> Evaluation | None:
    """Return closed forms of the family that held-out points prefer; None if there are too few points for any."""
    X, gated = context.samples.train[0], candidates.gated
    if len(X) < _POINTS_PER_COLUMN * (len(gated) + 2 * int(gated.sum()) + candidates.directions.shape[1] + 1):
        return None
    if candidates.kinks is not None:
        return _with_relu(context, candidates, candidates.kinks)
    placed, order = _families(_Placing(candidates, context.samples.radius), gated)
    pairs = [(index, order[False][0]) for index in order[True]]
    if not gated.all():
        pairs += [(order[True][0], index) for index in order[False][1:]]
    started = [s for pair in pairs if (s := _with_families(context, candidates, placed, pair)) is not None]
    if not started:
        return None
    started.sort(key=lambda s: s.cost)
    near = [s for s in started if s.rms <= _CLOSE * started[0].rms]
    tried = [minimise(s, steps=_LOOK_STEPS, min_gain=0.0) for s in near] if len(near) > 1 else near
    return _finished(context, min(tried, key=lambda s: s.cost))


def _with_relu(context: FitContext, candidates: GatedCandidates, kinks: Floats) -> Evaluation | None:
    """Return ReLU units whose kinks are known; None if their carriers cannot be solved for."""
    known = {GATE_INDEX["relu"]: (np.ones(len(kinks)), -kinks, np.zeros(len(kinks)))}
    solved = _with_families(context, candidates, known, (GATE_INDEX["relu"], GATE_INDEX["relu"]))
    return None if solved is None else _finished(context, solved)


def _families(placing: _Placing, gated: NDArray[np.bool_]) -> tuple[dict[int, Placed], dict[bool, list[int]]]:
    """Return k, b and misfit of all units for the families worth a trial, and these families for each kind of unit.

    The median over units decides, as the derivatives of single units may be almost straight. It is taken of refined
    places: on the grid the misfit of a weakly bent unit is that of its coarseness, whatever the family.
    """
    grid = [placing.on_grid(index) for index in range(len(GATES))]
    placed, order = dict[int, Placed](), dict[bool, list[int]]()
    for kind in (True, False):
        own = gated == kind
        some = np.flatnonzero(own)[:: max(1, int(own.sum()) // _JUDGES)]
        median = [placing.median_left(index, some, *grid[index][:2]) for index in range(len(GATES))]
        entrants = [int(index) for index in np.argsort(median, kind="stable")[:_ENTRANTS]]
        for index in entrants:
            if index not in placed:
                placed[index] = placing.refined(index, np.arange(len(gated)), *grid[index][:2])
        order[kind] = sorted(entrants, key=lambda i: float(np.median(placed[i][2][own])) if own.any() else 0.0)
    return placed, order


def _with_families(
    context: FitContext, candidates: GatedCandidates, placed: dict[int, Placed], families: tuple[int, int]
) -> GatedSolved | None:
    """Return units of these families, gated and plain ones, as placed; None if their values are not finite."""
    gated, (X, Y) = candidates.gated, _points(context, candidates)
    k, b = (np.where(gated, placed[families[0]][j], placed[families[1]][j]) for j in (0, 1))
    family = np.where(gated, *families).astype(np.intp)
    try:
        solved = GatedSolved.of(_with_carriers(candidates, family, k, b, X, Y, context.samples.radius), X, Y)
    except LinAlgError:
        return None
    names = " and ".join(GATES[f].name for f in (families if not gated.all() else families[:1]))
    context.say(f"  families {names}: RMS error {solved.rms:.1e}", detail=True)
    return solved


def _points(context: FitContext, candidates: GatedCandidates) -> tuple[Floats, Floats]:
    """Return the points of the fit's own and, up to three times as many as are needed in all, some of the search's."""
    X, Y = training_points(context.samples, _wanted_points(candidates))
    own = context.samples.unclustered
    wanted = int(_MOST_POINTS * _wanted_points(candidates))
    if len(X) <= wanted:
        return X, Y
    if len(own[0]) == len(X) or len(own[0]) >= wanted:
        return own
    others = np.linspace(0, len(X) - 1, wanted - len(own[0])).astype(np.intp)
    return np.concatenate([own[0], X[others]]), np.concatenate([own[1], Y[others]])


def _wanted_points(candidates: GatedCandidates) -> float:
    """Return the points that determine linear columns and unknowns twice."""
    (n, d), p, gated = candidates.directions.shape, candidates.amounts.shape[1], int(candidates.gated.sum())
    linear = n + 2 * gated + d + 1
    unknowns = n * (d + 1 + p) + gated * (d + 1) + (d + 1) * p
    return float(max(_POINTS_PER_COLUMN * linear, _POINTS_PER_UNKNOWN * unknowns / p))


def _floor(context: FitContext, Y: Floats) -> float:
    """Return the sum of squares that noise or rounding leaves of answers Y."""
    return float(max(_ROUNDING * np.sum(Y**2), context.goal.noise**2 * Y.size))


def _finished(context: FitContext, solved: GatedSolved) -> Evaluation:
    """Minimise to the end, drop units that are not significant, and return the splines that stand for the rest.

    Where a limit cuts that short, the memory of the context keeps the units so far.
    """
    latest = solved

    def keep(now: GatedSolved) -> None:
        nonlocal latest
        latest = now
        context.say(f"  step: RMS error {now.rms:.1e}", detail=True)

    floor = _floor(context, solved.Y)
    try:
        solved = with_missed_carriers(context, solved, floor)
        solved = minimise(solved, steps=_LAST_STEPS, min_gain=_SLOW, target=0.1 * floor, keep=keep)
        solved = with_missed_units(context, solved, floor)
        solved = _pruned(context, without_idle_carriers(context, solved, floor))
    except (OutOfTime, OutOfWork):
        _evaluated(context, latest)
        raise
    now = _evaluated(context, solved)
    context.say(
        f"fitted {solved.forms.count} units, {int(solved.forms.gated.sum())} of them gated: RMS error {now.rms:.1e}, "
        f"largest {now.sup:.1e} on held-out points"
    )
    return now


def _evaluated(context: FitContext, solved: GatedSolved) -> Evaluation:
    """Return the errors of the splines that stand for the units, and have them remembered."""
    model = solved.forms.model(_SPLINE_SHARE * max(context.goal.error, TINY))
    now = evaluate(Fitted.without_fit(model, solved.cost), context.samples, context.goal)
    now = replace(now, gates=solved.forms)
    context.memory.remember(now)
    return now


def _pruned(context: FitContext, solved: GatedSolved) -> GatedSolved:
    """Drop units whose removal costs no more than noise would, or hardly anything, if held-out points agree."""
    X, Y = context.samples.held_out
    while solved.forms.count > 1 and len(X):
        variance = max(solved.cost, _floor(context, solved.Y)) / max(len(solved.X) - len(solved.factor), 1)
        own = 1.0 + (solved.forms.dim + 1) * (1 + solved.forms.gated) / solved.Y.shape[1]  # unknowns for each output
        costs = solved.removal_costs()
        costs /= np.maximum(_SIGNIFICANT * variance * own, _FAINT * float(np.median(costs))) + TINY
        if not (costs < 1.0).any():
            break
        keep = np.delete(np.arange(solved.forms.count), int(np.argmin(costs)))
        smaller = minimise(GatedSolved.of(solved.forms.keep(keep), solved.X, solved.Y), steps=2)
        before, after = (float(np.sum((Y - s.forms.predict(X)) ** 2)) for s in (solved, smaller))
        if after > _NO_WORSE**2 * max(before, _floor(context, solved.Y) * len(X) / len(solved.X)):
            break
        context.say(f"  dropped 1 of {solved.forms.count} gated units", detail=True)
        solved = smaller
    return solved


# -- starts --------------------------------------------------------------------------------------------------------


class _Placing:
    """Gates c·φ(kz + b) that explain the derivatives of every unit along its direction."""

    def __init__(self, candidates: GatedCandidates, radius: float) -> None:
        self.z = (candidates.points @ candidates.directions.T).T
        """(n, N)."""
        self.targets = np.stack([_leading(candidates.amounts[:, :, i]) for i in range(len(self.z))])
        """(n, N) t' or s'', of length one."""
        self.targets /= np.maximum(np.linalg.norm(self.targets, axis=1, keepdims=True), TINY)
        self.orders = np.where(candidates.gated, 1, 2)
        low, high, factor = _SCALES
        sizes = low * factor ** np.arange(int(np.log(high / low) / np.log(factor)) + 1) / radius
        places = np.linspace(-radius, radius, _PLACES)
        self.k, at = (a.ravel() for a in np.meshgrid(np.concatenate([sizes, -sizes]), places, indexing="ij"))
        self.b = -self.k * at

    def on_grid(self, index: int) -> tuple[Floats, Floats, Floats]:
        """Return k and b of the best places of the grid, each (n, `_STARTS`), and (n,) what the best leave."""
        n = len(self.z)
        k, b, least = np.empty((n, _STARTS)), np.empty((n, _STARTS)), np.empty(n)
        for i in range(n):
            shapes = _derivative(index, int(self.orders[i]), self.k[:, None] * self.z[i] + self.b[:, None])
            left = _unexplained(shapes, self.targets[i])
            rows = left.reshape(-1, _PLACES)  # one for each k: along it the misfit has several minima
            at_best = np.argmin(rows, axis=1) + _PLACES * np.arange(len(rows))
            best = at_best[np.argsort(left[at_best], kind="stable")[:_STARTS]]
            k[i], b[i], least[i] = self.k[best], self.b[best], left[best[0]]
        return k, b, least

    def median_left(self, index: int, units: NDArray[np.intp], k: Floats, b: Floats) -> float:
        """Return the median of what is left of some units after refinement from few starts; 0 for no units."""
        if not len(units):
            return 0.0
        return float(np.median(self.refined(index, units, k[units, :_FEW_STARTS], b[units, :_FEW_STARTS])[2]))

    def refined(self, index: int, units: NDArray[np.intp], k: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
        """Return k, b and what is left of these units (n,): the best end of damped steps from all starts (n, S)."""
        n, starts = k.shape
        z, target = np.repeat(self.z[units], starts, axis=0), np.repeat(self.targets[units], starts, axis=0)
        order, x = np.repeat(self.orders[units], starts), np.stack([np.log(np.abs(k)).ravel(), b.ravel()], axis=1)
        sign = np.sign(k).ravel()

        def residual(x: Floats) -> Floats:
            y = (sign * np.exp(x[:, 0]))[:, None] * z + x[:, 1:]
            shapes = np.where(order[:, None] == 1, _derivative(index, 1, y), _derivative(index, 2, y))
            energy = np.maximum(np.einsum("in,in->i", shapes, shapes), TINY)
            return np.asarray(target - (np.einsum("in,in->i", shapes, target) / energy)[:, None] * shapes)

        x, cost = _batched_least_squares(residual, x)
        best = np.argmin(cost.reshape(n, starts), axis=1) + starts * np.arange(n)
        return (sign * np.exp(x[:, 0]))[best], x[best, 1], cost[best]


def _batched_least_squares(residual: Callable[[Floats], Floats], x: Floats) -> tuple[Floats, Floats]:
    """Minimise |residual(x)|² for every row of x (B, 2) by Levenberg–Marquardt; return rows and minima (B,)."""
    r = residual(x)
    cost, damping = np.einsum("in,in->i", r, r), np.full(len(x), _FIRST_DAMPING)
    for _ in range(_PLACING_STEPS):
        J = np.stack([(residual(x + h) - residual(x - h)) / (2.0 * _NUDGE) for h in _NUDGE * np.eye(2)], axis=1)
        normal, gradient = np.einsum("ian,ibn->iab", J, J), np.einsum("ian,in->ia", J, r)
        diagonal = np.einsum("iaa->ia", normal)
        shift = damping[:, None] * diagonal + TINY + 1e-15 * diagonal.max(axis=1, keepdims=True)
        step = -np.linalg.solve(normal + shift[:, :, None] * np.eye(2), gradient[:, :, None])[:, :, 0]
        tried = x + np.clip(step, -0.5, 0.5)
        after = residual(tried)
        lower = np.einsum("in,in->i", after, after)
        better = lower < cost
        x, r = np.where(better[:, None], tried, x), np.where(better[:, None], after, r)
        cost, damping = np.where(better, lower, cost), np.clip(np.where(better, 0.3, 5.0) * damping, 1e-12, 1e6)
    return x, cost


def _leading(amounts: Floats) -> Floats:
    """Return the component (N,) of amounts (N, p) along the output in which they are largest."""
    if amounts.shape[1] == 1:
        return amounts[:, 0]
    return np.asarray(amounts @ np.linalg.svd(amounts, full_matrices=False)[2][0])


def _derivative(index: int, order: int, y: Floats) -> Floats:
    """Return φ' or φ'' of a family at y."""
    atom = GATES[index].atom
    with np.errstate(over="ignore", invalid="ignore"):
        if order == 1:
            return atom(y)[1]
        return np.asarray((atom(y + _SECOND_STEP)[1] - atom(y - _SECOND_STEP)[1]) / (2.0 * _SECOND_STEP))


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
    columns /= scale
    gram = columns.T @ columns
    gram[np.diag_indices_from(gram)] += _RIDGE * len(gram)
    solution = cho_solve(cho_factor(gram, lower=True, overwrite_a=True), columns.T @ Y) / scale[:, None]
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
