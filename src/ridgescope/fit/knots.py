"""Refine responses whose residual still has structure along the feature, by finer knots or kinks.

With the other features held fixed, the residual along feature i is a set of points (z_i, r). Extensions of the
response are fitted to it by one-dimensional least squares and compared by the Bayesian information criterion

    m·log(RSS) + (parameters)·log m

These are knots up to sixteen times as fine, or the present knots with up to a few atoms |z − t|, placed one after the
other where they explain most. Atoms are used only if they explain more than any finer knots; otherwise the response is
smooth and merely steep. If neither improves the criterion the response stays as it is.

    extensions, other_shapes         propose changes from the residual
    refine, adapt_knots_to_noise     try them; held-out points decide
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded

from ..bspline import basis, sparse_rows
from ..geometry import Floats
from . import threads
from .context import (
    CLEAR_GAIN,
    NO_LOSS,
    SLIGHT_LOSS,
    STEADY_GAIN,
    Evaluation,
    FitContext,
    improves,
    is_expensive,
    is_no_worse,
)
from .levenberg_marquardt import Fitted
from .linear import MAX_GRAM_COLUMNS, Gram
from .model import TINY, Model
from .pruning import prune_if_expensive

MAX_INTERVALS = 512
"""Most spline intervals of one response: finer ones would need thousands of points for one feature."""
MAX_NEW_KINKS = 6
"""Most kinks added to one response at a time; more are found in the next refinement."""
_SWEEPS = 3  # over all features: the error of the coarsest response hides that of others
_MINOR_OUTPUTS = 0.01  # largest share of a response's power in outputs that are ignored
_REFERENCE = 8  # factor on the knots: if these explain nothing, others will not either
_FINER = (2, 4, 16)
_COARSE_LEVELS = 5  # numbers of knots tried for a whole response: the coarsest times 1, 2, … 16
_CHANCE = 2.0  # standard deviations of the chance gain that are subtracted from what finer knots explain
_SMOOTH = 0.99  # share of the best knots' gain that doubled knots reach on a smooth response; they leave 1/8 of a kink
_ALIKE = 30  # features among which none may be conspicuous though all have too few knots
_SHRINK, _LEAST_BOLD = 4.0, 0.1  # factor by which fewer extensions are tried after a failure, and where that ends
_COARSE_KNOTS = 4  # least intervals when fewer knots are tried
_KNOTS_LIMIT = 3.0  # error over noise above which the knots, not noise, may limit the fit
_KNOTS_SUPPORTED = 0.5  # columns per point up to which held-out points can show whether finer knots help
_NEAR_NOISE, _ADAPTATIONS = 30.0, 4  # error over noise up to which knots are adapted to it, and how often at most
_BAND_RIDGE, _ATOM_RIDGE = 1e-10, 1e-12  # per point: for intervals without points, and for two atoms at one position
_FLAT_ATOM = 1e-9  # squared size of an atom, in m·spacing², below which only rounding distinguishes it from a spline
_SAME_KINK = 0.25  # knot spacings: closer kinks would be one kink in two columns
_GRID, _GRID_END = 0.5, 0.4  # knot spacings between the positions tried first for a kink, and where they end
_FINE_PARTS, _FINE_POINTS = (2, 12, 72), 13  # then 13 positions up to 1/2, 1/12, 1/72 spacing to either side


@dataclass(frozen=True, eq=False)
class Extension:
    """Other knots and kinks for one feature."""

    feature: int
    intervals: int
    kinks: Floats
    gain: float
    """Share of the residual sum of squares that it explains."""


# -- trying changes -----------------------------------------------------------------------------------------


def refine(context: FitContext, best: Evaluation) -> Evaluation:
    """Refine knots and kinks as long as the held-out error falls.

    If the residual scan finds nothing that helps, all points are scanned; if many extensions at once fail, fewer are
    tried.
    """
    boldness, all_points = 1.0, False
    for _ in range(context.goal.rounds):
        at_noise = is_no_worse(best.rms, context.goal.noise, SLIGHT_LOSS)
        if best.meets_goal or at_noise or boldness < _LEAST_BOLD:
            break
        extended = refine_once(context, best.fitted, boldness, all_points)
        now = best if extended is None else context.evaluate(extended)
        if improves(now.rms, best.rms, STEADY_GAIN):
            best, boldness = prune_if_expensive(context, now), 1.0
            continue
        best = now if now.rms < best.rms else best
        if extended is None and (all_points or not context.scan_is_subsampled):
            break
        boldness = boldness if extended is None else boldness / _SHRINK
        all_points = context.scan_is_subsampled
    return best


def refine_once(context: FitContext, fitted: Fitted, boldness: float, all_points: bool = False) -> Fitted | None:
    """Extend the share `boldness` of the responses whose residual has structure; None if no residual has.

    New points are asked along the extended features.
    """
    X, residual = context.residual_scan(fitted.model, all_points)
    wanted = extensions(fitted.model, X, residual)
    if not wanted:
        return _double_knots(context, fitted) if boldness == 1.0 else None
    chosen = wanted[: max(1, int(boldness * len(wanted)))]
    shapes = ", ".join(f"{e.feature}: {e.intervals} intervals, {len(e.kinks)} kinks" for e in chosen)
    context.say(f"  refining {len(chosen)} responses ({shapes})", detail=True)
    model = apply(fitted.model, chosen)
    context.top_up(model, 1.0, np.array([e.feature for e in chosen]))
    return context.polish(model)


def _double_knots(context: FitContext, fitted: Fitted) -> Fitted | None:
    """Double the knots of all responses, as among many similar features no single one may be conspicuously coarse.

    None if that cannot be afforded or would not help.
    """
    model = fitted.model
    finer = model.reshaped(2 * model.intervals, model.kinks)
    if model.count <= _ALIKE or context.training_rms(fitted) <= _KNOTS_LIMIT * context.goal.noise:
        return None
    unaffordable = finer.columns > MAX_GRAM_COLUMNS or context.missing_points(finer, 1.0) > context.allowance()
    if unaffordable or not _do_knots_limit(context, fitted):
        return None
    context.say(f"  doubling the knots of all {model.count} responses", detail=True)
    context.top_up(finer, 1.0)
    return context.polish(finer)


def _do_knots_limit(context: FitContext, fitted: Fitted) -> bool:
    """Return whether doubled knots would help or, if points are too few for that, halved knots would hurt.

    If directions are the problem, changing knots changes little: False.
    """
    model, (X, Y) = fitted.model, context.samples.train
    finer = model.reshaped(2 * model.intervals, model.kinks)
    enough_points = finer.columns <= _KNOTS_SUPPORTED * len(X)
    coarser = model.reshaped(np.maximum(model.intervals // 2, _COARSE_KNOTS), model.kinks)
    solved = Gram(finer if enough_points else coarser, X, Y).solve(context.memory.smoothing).model
    here, there = (context.held_out_rms(m) for m in (model, solved))
    return improves(there, here, CLEAR_GAIN) if enough_points else not is_no_worse(there, here, CLEAR_GAIN)


def adapt_knots_to_noise(context: FitContext, fitted: Fitted) -> Fitted:
    """Change knots of a fit near the noise: a kink instead of fine knots, and as many knots as the noise warrants.

    Every superfluous knot makes directions less accurate; every missing one biases them.
    """
    best = context.held_out_rms(fitted.model)
    for _ in range(_ADAPTATIONS):
        if best > _NEAR_NOISE * context.goal.noise or is_expensive(fitted.model):
            break
        X, Y = context.samples.unclustered
        found = other_shapes(fitted.model, X, Y - fitted.model.predict(X), context.goal.intervals)
        if not found:
            break
        now = context.polish(apply(fitted.model, found))
        rms = context.held_out_rms(now.model)
        context.say(f"  changed the knots of {len(found)} responses: held-out RMS {best:.2e} -> {rms:.2e}", detail=True)
        if not is_no_worse(rms, best, NO_LOSS):
            break
        fitted, best = now, rms
    return fitted


# -- proposing changes --------------------------------------------------------------------------------------


@threads.one_blas_thread()
def extensions(model: Model, X: Floats, residual: Floats) -> list[Extension]:
    """Return the best extension of each feature that has one, largest gain first.

    The part that an extension explains is subtracted before the next feature is examined, and all features are examined
    repeatedly. Of several outputs only those in which the response bends are used, since the others hold only noise.
    """
    found: dict[int, Extension] = {}
    Z, left = X @ model.directions.T, residual.copy()
    first = float(np.sum(residual**2))
    outputs = [bending_outputs(model, i) for i in range(model.count)]
    for _ in range(_SWEEPS):
        news = 0
        for i, w in enumerate(outputs):
            shape = found[i] if i in found else Extension(i, int(model.intervals[i]), model.kinks[i], 0.0)
            seen = left @ w.T
            better = _best_extension(model.radius, shape, Z[:, i], seen)
            if better is not None:
                before = float(np.sum(left**2))
                left -= ProfileFit(model.radius, better.intervals, Z[:, i], seen, better.kinks).values() @ w
                gain = shape.gain + (before - float(np.sum(left**2))) / first
                found[i] = Extension(i, better.intervals, better.kinks, gain)
                news += 1
        if not news:
            break
    return sorted(found.values(), key=lambda e: -e.gain)


def bending_outputs(model: Model, i: int) -> Floats:
    """Return (k, p) orthonormal rows, the main one first: output directions of 99 % of the bends of response i."""
    if model.outputs == 1:
        return np.ones((1, 1))
    K, c = int(model.intervals[i]), model.block(i)
    bends = np.concatenate([np.diff(c[: K + 3], n=2, axis=0), (4.0 * model.radius / K) * c[K + 3 :]])
    sizes, w = np.linalg.svd(bends, full_matrices=False)[1:]
    power = np.cumsum(sizes**2)
    return np.asarray(w[: 1 + int(np.searchsorted(power, (1.0 - _MINOR_OUTPUTS) * power[-1]))])


@threads.one_blas_thread()
def other_shapes(model: Model, X: Floats, residual: Floats, coarsest: int) -> list[Extension]:
    """Return other knots, with or without kinks, for features for which the criterion prefers them.

    While directions are inaccurate, a kink is blurred and looks merely steep: it gets fine knots, or noise hides it.
    Once they are accurate, one atom may explain more than fifty knots.
    """
    Z = X @ model.directions.T
    found = [_other_shape(model, i, Z[:, i], residual + model.term(i, Z[:, i]), coarsest) for i in range(model.count)]
    return [e for e in found if e is not None]


def _other_shape(model: Model, i: int, z: Floats, r: Floats, coarsest: int) -> Extension | None:
    """Do the same as `other_shapes` for feature i, given f minus the other features, r (m, p), at z."""
    r = r - r.mean(axis=0)
    R, K, total, p = model.radius, int(model.intervals[i]), float(np.sum(r**2)), int(r.shape[1])

    def columns(fit: ProfileFit) -> int:
        return p * len(fit.spline) + (p + 1) * len(fit.kinks)

    def score(fit: ProfileFit) -> float:
        return float(r.size * np.log(max(total - fit.explained, TINY)) + columns(fit) * np.log(r.size))

    def earned(fit: ProfileFit, sure: float = 0.0) -> float:
        """Subtract from the explained sum the chance gain of its columns and `sure` standard deviations of that."""
        chance = columns(fit) + sure * np.sqrt(2.0 * columns(fit))
        return float(fit.explained - chance * (total - fit.explained) / max(r.size - columns(fit), 1))

    levels = (coarsest << j for j in range(_COARSE_LEVELS))
    plain = {k: ProfileFit(R, k, z, r, np.empty(0)) for k in levels}
    most = max(earned(fit, _CHANCE) for fit in plain.values())
    least, best = score(ProfileFit(R, K, z, r, model.kinks[i])), None
    for k, fit in plain.items():
        if score(fit) < least:
            least, best = score(fit), Extension(i, k, np.empty(0), 0.0)
    fit = plain[coarsest]
    _place_kinks(fit, total, max(1, len(model.kinks[i])))
    if len(fit.kinks) and earned(fit) >= most and score(fit) < least:  # if merely steep, finer knots explain more
        best = Extension(i, coarsest, np.sort(fit.kinks), 0.0)
    return best


def apply(model: Model, chosen: list[Extension]) -> Model:
    """Return the model with these extensions and zero coefficients."""
    intervals, kinks = model.intervals.copy(), list(model.kinks)
    for e in chosen:
        intervals[e.feature], kinks[e.feature] = e.intervals, e.kinks
    return model.reshaped(intervals, tuple(kinks))


def _best_extension(R: float, shape: Extension, z: Floats, r: Floats) -> Extension | None:
    """Return the extension of `shape` that the criterion prefers to it, given the residual r (m, p) at z (m,)."""
    i, K, kinks, p, m = shape.feature, shape.intervals, shape.kinks, r.shape[1], r.size
    total = float(np.sum(r**2))

    def score(gain: float, parameters: int) -> float:
        return float(m * np.log(max(total - gain, TINY) / max(total, TINY)) + parameters * np.log(m))

    def earned(gain: float, parameters: int) -> float:  # less the chance gain of these columns
        return gain - parameters * (total - gain) / r.size

    def explained(factor: int) -> float:
        return ProfileFit(R, factor * K, z, r, kinks).explained

    fit = ProfileFit(R, K, z, r, kinks)
    here = score(fit.explained, 0)
    finer = {_REFERENCE * K: explained(_REFERENCE)}
    if earned(finer[_REFERENCE * K], (_REFERENCE - 1) * p * K) <= earned(fit.explained, 0):
        return None
    finer |= {factor * K: explained(factor) for factor in _FINER}
    most = max(earned(gain, p * (k - K)) for k, gain in finer.items())
    is_smooth = earned(finer[2 * K], p * K) >= _SMOOTH * most
    places, kinked = (np.empty(0), 0.0) if is_smooth else _place_kinks(fit, total, MAX_NEW_KINKS)
    # A true kink beats even much finer knots; on a smooth steep response it explains far less than they do.
    if len(places) and earned(kinked, (p + 1) * len(places)) >= most and score(kinked, (p + 1) * len(places)) < here:
        return Extension(i, K, np.sort(np.concatenate([kinks, places])), 0.0)
    scores = {k: score(gain, p * (k - K)) for k, gain in finer.items() if k <= MAX_INTERVALS}
    k = min(scores, key=lambda k: scores[k], default=K)
    return Extension(i, k, kinks, 0.0) if scores.get(k, here) < here else None


class ProfileFit:
    """Least squares of r (m, p) on a spline in z (m,) and a few atoms |z − t|, with one banded factorisation.

    With A = ΦᵀΦ, banded, ⟨a, b⟩ = aᵀb − (Φᵀa)ᵀA⁻¹(Φᵀb) is the inner product of the spline fits' residuals of a and b.
    """

    def __init__(self, radius: float, intervals: int, z: Floats, r: Floats, kinks: Floats) -> None:
        self.radius, self.spacing, self.z, self.r = radius, 2.0 * radius / intervals, z, r
        k, weights = basis(z, radius, intervals)
        m, N = len(z), intervals + 3
        self.phi = sparse_rows(k, weights, N)
        self._phi_t = self.phi.T
        band = np.zeros((4, N))  # lower form: band[j, c] = A[c + j, c]
        for a in range(4):
            for b in range(a, 4):
                band[b - a] += np.bincount(k + a, weights[a] * weights[b], minlength=N)[:N]
        band[0] += _BAND_RIDGE * m / N
        self._factor = cholesky_banded(band, lower=True)
        self._right = self._phi_t @ r
        self.spline = cho_solve_banded((self._factor, True), self._right)
        self.by_spline = float(np.sum(self._right * self.spline))
        self.kinks: Floats = np.empty(0)
        self.atoms, self._below, self._normal = np.empty((m, 0)), np.empty((N, 0)), np.empty((0, 0))
        self._onto = np.empty((0, r.shape[1]))
        self.explained = self.by_spline
        for t in kinks:
            self.add(float(t))

    def add(self, t: float) -> None:
        """Add an atom at t and update the explained sum of squares."""
        self.kinks = np.append(self.kinks, t)
        self.atoms = np.abs(self.z[:, None] - self.kinks)
        self._below = self._phi_t @ self.atoms
        solved = cho_solve_banded((self._factor, True), self._below)
        self._normal = self.atoms.T @ self.atoms - self._below.T @ solved  # ⟨atoms, atoms⟩, regularised
        self._normal[np.diag_indices_from(self._normal)] += _ATOM_RIDGE * len(self.z)
        self._onto = self.atoms.T @ self.r - solved.T @ self._right  # ⟨atoms, r⟩
        self.explained = self.by_spline + float(np.sum(self._onto * np.linalg.solve(self._normal, self._onto)))

    def values(self) -> Floats:
        """Return the (m, p) fitted values of spline and atoms."""
        if not len(self.kinks):
            return np.asarray(self.phi @ self.spline)
        u = np.linalg.solve(self._normal, self._onto)
        c = self.spline - cho_solve_banded((self._factor, True), self._below @ u)
        return np.asarray(self.phi @ c + self.atoms @ u)

    def gains(self, places: Floats) -> Floats:
        """Return (g,) the sum of squares that one more atom at each of these positions would explain."""
        T = np.abs(self.z[:, None] - places)
        below = self._phi_t @ T
        solved = cho_solve_banded((self._factor, True), below)
        size = np.einsum("mg,mg->g", T, T) - np.einsum("kg,kg->g", below, solved)
        onto = T.T @ self.r - solved.T @ self._right
        if len(self.kinks):
            shared = T.T @ self.atoms - solved.T @ self._below
            through = np.linalg.solve(self._normal, shared.T)
            size -= np.einsum("gj,jg->g", shared, through)
            onto -= through.T @ self._onto
        gains = np.sum(onto**2, axis=1) / np.maximum(size, _FLAT_ATOM * len(self.z) * self.spacing**2)
        for t in self.kinks:
            gains[np.abs(places - t) < _SAME_KINK * self.spacing] = 0.0
        return np.asarray(gains)


def _place_kinks(fit: ProfileFit, total: float, most: int) -> tuple[Floats, float]:
    """Add atoms greedily while the criterion improves; return their positions and the explained sum of squares.

    Each position is searched on a grid and then on ever finer ones, as a slightly misplaced kink leaves a residual that
    calls for more kinks.
    """
    h, R, p, size = fit.spacing, fit.radius, fit.r.shape[1], fit.r.size
    grid = np.arange(-R + _GRID * h, R - _GRID_END * h, _GRID * h)
    given = len(fit.kinks)
    while len(fit.kinks) < given + most:
        best = float(grid[np.argmax(fit.gains(grid))])
        for parts in _FINE_PARTS:
            fine = np.clip(best + h / parts * np.linspace(-1.0, 1.0, _FINE_POINTS), -R, R)
            gains = fit.gains(fine)
            best = float(fine[np.argmax(gains)])
        before, now = total - fit.explained, total - fit.explained - float(gains.max())
        if size * np.log(max(now, TINY) / max(before, TINY)) + (p + 1) * np.log(size) >= 0:
            break
        fit.add(best)
    return fit.kinks[given:], fit.explained
