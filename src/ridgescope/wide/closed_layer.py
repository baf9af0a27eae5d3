"""A wide layer of one activation: the family of all responses is chosen, and all unknowns are refined together.

    points     some more than the unknowns need, along the features and in the ball
    family     each family with the same κ for all features, on some of the points; the best take a few steps in κ and b
    polish     all of w_i and b_i move (`polish`), until the error no longer falls
    replenish  features that the residual shows to be missing join (`missing_features`), and all are polished again
    prune      features that are not significant go, if held-out points do not miss them

Held-out points decide at every turn. Responses without a common family are left to splines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..deadline import OutOfTime, OutOfWork
from ..fit.activations import ACTIVATIONS, MAX_KAPPA, Indices
from ..fit.closed_form import ClosedForms
from ..fit.context import AT_NOISE, SLIGHT_LOSS, Evaluation, FitContext, evaluate
from ..fit.fitter import Fitter
from ..fit.levenberg_marquardt import Fitted
from ..fit.model import TINY
from ..fit.pruning import close_pairs
from ..fit.samples import HELD_OUT_EVERY, ask_along
from ..geometry import Floats
from .linear_half import Equations, LinearHalf
from .missing_features import missing_directions
from .polish import polish

_POINTS = 2.5  # equations per unknown: errors of the answers enter the unknowns by 1/(1 − 1/2.5) times their variance
_LOOK_POINTS, _ENOUGH_POINTS = 1.5, 2000
"""Points per linear column of a first look, and points from which on so few suffice: misfits are then averages of many.
Below that there are `_POINTS` per column."""
_STEEPNESS: tuple[tuple[float, ...], ...] = ((1.0, 4.0), (0.25, 0.5, 2.0, 8.0))
"""κ of all features alike, over that which makes the standard deviation of y one and over the family's stretch: those
that all families are tried with, and further ones for the best families."""
_CANDIDATES = 5  # families that are tried with further κ
_HEATS = ((5, 3), (3, 5))
"""Families that take steps in κ and b, and how many, one heat after the other. While all have the same κ, families of
one kind differ less than by chance."""
_RECONSIDERED = 2  # families that are tried in the places of polished ones
_NEXT = 10.0  # their error over that of the polished ones, before they are polished, too
_FINALISTS = 2  # of them, that are polished
_REPLENISHED, _HELPED = 4, 0.7
"""How often features that the residual shows are added, and the share of the error that they may leave. Empirical: each
one of those that are missing leaves about as much as the others."""
_STOPGAP = 1e-2
"""Removal cost over the median below which features stand in for others: of layers whose neurons are alike the least
cost is a tenth of the median. Where it is not, held-out points miss them."""
_RUNAWAY = 3.0
"""Factor of the median steepness from which on a bend is tried with the median. Empirical: weight norms of a layer that
was trained differ by less, and a bend of its own kind that is tried is kept as it was."""
_SHARED = 0.9
"""Cosine between two features from which on they may share one response. Empirical: more where some did."""
_ALONG_STEPS, _FREE_STEPS = 6, 15
_SLOW, _SLOW_LOOK = 0.1, 0.2  # share of the cost: a step that gains less is the last
_PROMISING = 0.1  # RMS over f's standard deviation beyond its affine part: with more left, the family is wrong
_SURE = 1e-5  # the same that no wrong family leaves: GELU in place of its form by tanh leaves 1e-4
_EXACT = 1e-12  # of the answers: rounding errors of double precision, with some room
_SIGNIFICANT = 4.0  # variances per unknown of a feature below which its removal cost is that of noise
_FAINT = 1e-6  # of the median removal cost: a feature a thousand times weaker than others makes up for their errors
_ROUNDING = 1e-8  # of the answers' standard deviation: a held-out error so small is no reason to keep a feature
_DUPLICATE = 1e-3  # radians: of two features so close one is superfluous
_SPLINE_SHARE = 3e-3  # of the goal: error of the splines that stand for closed forms
_PRUNINGS = 4  # rounds of pruning


@dataclass(frozen=True, eq=False)
class ClosedLayer:
    """One fit of a wide layer."""

    context: FitContext

    @classmethod
    def of(cls, fitter: Fitter) -> ClosedLayer:
        """Create the fit from samples, goal and budget of a fitter."""
        return cls(fitter.new_context())

    def extend(self, forms: ClosedForms | None, directions: Floats, kinks: tuple[Floats, ...]) -> Evaluation | None:
        """Fit a layer along `directions`, or one that has forms already with these as further ones.

        Where a limit cuts the fit short, the memory of its context keeps the best forms so far as an evaluation.
        """
        try:
            return self.fit(directions, kinks) if forms is None else self.refit(forms, directions)
        except (OutOfTime, OutOfWork):
            best = self.context.memory.forms
            if best is not None:
                self.context.memory.remember(self._evaluated(best[1], float("nan")))
            raise

    def fit(self, directions: Floats, kinks: tuple[Floats, ...]) -> Evaluation | None:
        """Fit a layer along directions (n, d), whose kinks are given as far as known; None if no family explains it."""
        self._ask_for(directions)
        everything, held_out = self._equations(), self.context.samples.held_out
        columns = len(directions) + directions.shape[1] + 1
        if not len(held_out[0]) or len(everything.X) < columns:
            return None
        best: LinearHalf | None = None
        for forms in self._families(everything, directions, kinks):
            start = polish(LinearHalf.of(forms, everything), steps=_ALONG_STEPS, free=False, min_gain=_SLOW_LOOK)
            if self._rms(start) > _PROMISING * self._std(everything):
                continue
            now = self._replenished(self._restarted(self._polished(start), directions, kinks))
            best = now if best is None or self._rms(now) < self._rms(best) else best
            if self._is_exact(best):
                break
        return None if best is None else self._concluded(self._reconsidered(best))

    def refit(self, forms: ClosedForms | None, directions: Floats | None = None) -> Evaluation | None:
        """Fit a layer again to all points, with further features along `directions` (k, d); None without forms."""
        if forms is None:
            return None
        directions = np.empty((0, forms.dim)) if directions is None else directions
        self._ask_for(np.concatenate([forms.directions, directions]))
        start = LinearHalf.of(_joined(forms, directions), self._equations())
        if len(directions):
            start = polish(start, steps=_ALONG_STEPS, free=False, min_gain=_SLOW_LOOK)
        return self._concluded(self._polished(start))

    # -- points ----------------------------------------------------------------------------------------------

    def _ask_for(self, directions: Floats) -> None:
        """Ask so many points that there are `_POINTS` equations per unknown."""
        context, (n, d) = self.context, directions.shape
        have, p = HELD_OUT_EVERY * len(context.samples.held_out[0]), context.samples.train[1].shape[1]
        wanted = _POINTS * (n * (d + 1 + p) / p + d + 1) * HELD_OUT_EVERY / (HELD_OUT_EVERY - 1)
        missing = int(min(wanted - have, context.allowance()))
        ask_along(context.ask, context.samples, directions, missing, context.rng)

    def _equations(self) -> Equations:
        return Equations(*self.context.samples.unclustered)

    # -- errors ----------------------------------------------------------------------------------------------

    def _std(self, points: Equations) -> float:
        """Return the standard deviation of the answers beyond their affine part."""
        return float(np.sqrt(np.mean(points.Y**2)))

    def _rms(self, half: LinearHalf) -> float:
        """Return the RMS error on held-out points."""
        X, Y = self.context.samples.held_out
        return float(np.sqrt(np.mean((Y - half.forms.predict(X)) ** 2)))

    def _remembered_rms(self, half: LinearHalf) -> float:
        """Return the RMS error on held-out points, and have the forms kept if no others have a lower one so far."""
        rms = self._rms(half)
        self.context.memory.remember_forms(rms, half.forms)
        return rms

    def _is_exact(self, half: LinearHalf) -> bool:
        """Return whether the held-out error is noise, or so small that the family must be right."""
        return self._rms(half) <= max(AT_NOISE * self.context.goal.noise, _SURE * self._std(half.equations))

    # -- family ----------------------------------------------------------------------------------------------

    def _families(self, points: Equations, directions: Floats, kinks: tuple[Floats, ...]) -> list[ClosedForms]:
        """Return the forms to polish, best first: one for each of a few families, after some steps in κ and b."""
        n, d = directions.shape
        X, Y = self.context.samples.unclustered
        enough = int(max(_LOOK_POINTS * (n + d + 1), min(_POINTS * (n + d + 1), _ENOUGH_POINTS)))
        some = np.linspace(0, len(X), enough, endpoint=False).astype(np.intp)
        look = points if enough >= len(X) else Equations(X[some], Y[some])
        seen: list[tuple[float, int, ClosedForms]] = []
        promising = list(range(len(ACTIVATIONS)))
        for steepness in _STEEPNESS:
            for k in promising:
                for forms in _alike(k, directions, kinks, self._radius, look, steepness):
                    half = LinearHalf.of(forms, look, refined=False)
                    seen.append((self._remembered_rms(half), k, half.forms))
            seen = _best_of_each(seen)
            promising = [k for _, k, _ in seen[:_CANDIDATES] if ACTIVATIONS[k].moves[0]]
        tried = seen
        for count, steps in _HEATS:
            halves = [LinearHalf.of(forms, look) for _, _, forms in tried[:count]]
            halves = [polish(half, steps=steps, free=False, min_gain=_SLOW_LOOK) for half in halves]
            tried = [(self._remembered_rms(half), int(half.forms.family[0]), half.forms) for half in halves]
            tried = _best_of_each(tried)
        names = ", ".join(f"{ACTIVATIONS[k].name} {rms:.1e}" for rms, k, _ in tried)
        self.context.say(f"  all of one family, directions fixed: {names}", detail=True)
        return [forms for _, _, forms in tried[:_FINALISTS]]

    @property
    def _radius(self) -> float:
        return self.context.samples.radius

    # -- polish ----------------------------------------------------------------------------------------------

    def _polished(self, half: LinearHalf) -> LinearHalf:
        def say(now: LinearHalf) -> None:
            self.context.say(f"  polished: held-out RMS {self._remembered_rms(now):.2e}", detail=True)

        floor = (_EXACT * float(np.linalg.norm(half.equations.straight))) ** 2
        return polish(half, steps=_FREE_STEPS, min_gain=_SLOW, target=floor, say=say)

    def _restarted(self, half: LinearHalf, directions: Floats, kinks: tuple[Floats, ...]) -> LinearHalf:
        """Start bends that are far steeper or flatter than most again from the median, if that lowers the error.

        From a common κ some responses run away to a steepness at which they explain a little of what they should, and
        no step leads back from there. They begin again along their directions and at their kinks as proposed.
        """
        forms = half.forms
        scales, shifts = np.array([ACTIVATIONS[k].moves for k in forms.family], dtype=np.bool_).T
        if self._is_exact(half) or not scales.any():
            return half
        typical = float(np.median(np.abs(forms.kappa[scales])))
        ratio = np.where(scales, np.abs(forms.kappa) / typical, 1.0)
        away = np.abs(np.log(np.maximum(ratio, TINY))) > np.log(_RUNAWAY)
        if not away.any():
            return half
        again = replace(
            forms,
            directions=np.where(away[:, None], directions, forms.directions),
            kappa=np.where(away, typical, forms.kappa),
            b=np.where(away, -typical * shifts * _places(kinks, forms), forms.b),
        )
        start = LinearHalf.of(again, half.equations)
        now = self._polished(polish(start, steps=_ALONG_STEPS, free=False, min_gain=_SLOW_LOOK))
        better = self._rms(now) < self._rms(half)
        outcome = "which lowers the error" if better else "without effect"
        self.context.say(f"  {int(away.sum())} bends of outlying steepness started again, {outcome}", detail=True)
        return now if better else half

    def _replenished(self, half: LinearHalf) -> LinearHalf:
        """Add features that the residual shows to be missing, and drop such as only make up for others."""
        for _ in range(_REPLENISHED):
            if self._is_exact(half):
                break
            fewer = _without_stopgaps(half)
            # what features leave whose stand-ins have just gone would look like further missing ones
            new = missing_directions(half) if fewer is half else np.empty((0, half.forms.dim))
            if fewer is half and not len(new):
                break
            dropped = half.forms.count - fewer.forms.count
            self.context.say(f"  the residual shows {len(new)} more features; dropped {dropped}", detail=True)
            more = LinearHalf.of(_joined(fewer.forms, new), half.equations)
            more = polish(more, steps=_ALONG_STEPS, free=False, min_gain=_SLOW_LOOK)
            more = self._polished(more)
            if self._rms(more) > _HELPED * self._rms(half):
                break
            half = more
        return half

    def _reconsidered(self, half: LinearHalf) -> LinearHalf:
        """Try the families that come next in the places of these forms, if more than noise is left.

        Families that differ by a ten-thousandth, as GELU and its form by tanh, do not show before directions are right.
        """
        if self._is_exact(half):
            return half
        others = []
        for k in range(len(ACTIVATIONS)):
            if k != half.forms.family[0] and ACTIVATIONS[k].moves == ACTIVATIONS[half.forms.family[0]].moves:
                other = LinearHalf.of(_of_family(half.forms, k), half.equations, refined=False)
                others.append((self._rms(other), k, other.forms))
        for _, _, forms in sorted(others, key=lambda entry: entry[:2])[:_RECONSIDERED]:
            start = polish(LinearHalf.of(forms, half.equations), steps=_ALONG_STEPS, free=False, min_gain=_SLOW_LOOK)
            now = self._polished(start) if self._rms(start) <= _NEXT * self._rms(half) else start
            half = now if self._rms(now) < self._rms(half) else half
        return half

    def _concluded(self, half: LinearHalf) -> Evaluation:
        """Prune, polish again if that changed anything, and evaluate the splines that stand for the closed forms."""
        for _ in range(_PRUNINGS):
            fewer = self._pruned(half)
            if fewer is half:
                break
            half = fewer
        now = self._evaluated(half.forms, half.cost)
        self.context.memory.remember(now)
        return now

    def _evaluated(self, forms: ClosedForms, cost: float) -> Evaluation:
        """Return the errors of the splines that stand for the closed forms."""
        model = forms.model(_SPLINE_SHARE * max(self.context.goal.error, TINY))
        now = evaluate(Fitted.without_fit(model, cost), self.context.samples, self.context.goal)
        return replace(now, forms=forms)

    def _pruned(self, half: LinearHalf) -> LinearHalf:
        """Drop features whose removal costs no more than noise would, and second ones of close pairs.

        The fit as it was is returned where held-out points miss them.
        """
        forms, points = half.forms, half.equations
        unknowns = forms.coefficients.size + forms.count * (forms.dim + 1)
        noise = half.cost / max(points.size - unknowns, points.Y.shape[1])
        costs = half.removal_costs()
        least = max(_SIGNIFICANT * noise * (forms.dim + 1 + points.Y.shape[1]), _FAINT * float(np.median(costs)))
        weak = set(np.flatnonzero(costs < least).tolist())
        close = {a if costs[a] < costs[b] else b for a, b in close_pairs(forms.directions, _DUPLICATE)}
        if not (weak | close) or len(weak | close) == forms.count:
            return half
        keep: Indices = np.setdiff1d(np.arange(forms.count), np.array(sorted(weak | close)))
        fewer = self._polished(LinearHalf.of(forms.keep(keep), points))
        if self._rms(fewer) > max((1.0 + SLIGHT_LOSS) * self._rms(half), _ROUNDING * self._std(points)):
            return half
        self.context.say(f"  dropped {forms.count - len(keep)} of {forms.count} features", detail=True)
        return fewer


def _without_stopgaps(half: LinearHalf) -> LinearHalf:
    """Return the fit without features that matter far less than others: most of them make up for others' errors.

    Nearly parallel ones among them keep steps from converging. Each of two that share one response matters little, so
    that of such only the weaker one goes.
    """
    costs, v = half.removal_costs(), half.forms.directions
    dropped: list[int] = []
    for i in np.argsort(costs):
        if costs[i] >= _STOPGAP * float(np.median(costs)):
            break
        if np.abs(v[dropped] @ v[i]).max(initial=0.0) < _SHARED:
            dropped.append(int(i))
    if not dropped:
        return half
    return LinearHalf.of(half.forms.keep(np.setdiff1d(np.arange(half.forms.count), dropped)), half.equations)


def _best_of_each(seen: list[tuple[float, int, ClosedForms]]) -> list[tuple[float, int, ClosedForms]]:
    """Return the entry of least error of each family, best first."""
    best: dict[int, tuple[float, int, ClosedForms]] = {}
    for entry in seen:
        if entry[1] not in best or entry[0] < best[entry[1]][0]:
            best[entry[1]] = entry
    return sorted(best.values(), key=lambda entry: entry[:2])


def _alike(
    k: int,
    directions: Floats,
    kinks: tuple[Floats, ...],
    radius: float,
    points: Equations,
    steepness: tuple[float, ...],
) -> list[ClosedForms]:
    """Return the forms of family k with the same κ for all features, for some κ, bent where kinks are known to be."""
    n, family = len(directions), ACTIVATIONS[k]
    blank = ClosedForms.blank(directions, radius, 1, points.Y.shape[1])
    blank = replace(blank, family=np.full(n, k, np.intp))
    places = _places(kinks, blank)
    if not family.moves[0]:
        return [replace(blank, b=-places * family.moves[1])]
    natural = radius * np.sqrt(points.X.shape[1] / np.mean(np.sum(points.X**2, axis=1)))
    kappas = [min(s * natural * family.stretch, MAX_KAPPA) for s in steepness]
    return [replace(blank, kappa=np.full(n, kappa), b=-kappa * places * family.moves[1]) for kappa in kappas]


def _places(kinks: tuple[Floats, ...], forms: ClosedForms) -> Floats:
    """Return (n,) where the responses of these forms bend, over the radius: at their first kink, or at the centre."""
    return np.array([t[0] / forms.radius if len(t) else 0.0 for t in kinks]) if kinks else np.zeros(forms.count)


def _of_family(forms: ClosedForms, k: int) -> ClosedForms:
    """Return the forms with family k at the same places."""
    old, new = ACTIVATIONS[forms.family[0]], ACTIVATIONS[k]
    factor = new.stretch / old.stretch
    return replace(forms, family=np.full(forms.count, k, np.intp), kappa=factor * forms.kappa, b=factor * forms.b)


def _joined(forms: ClosedForms, directions: Floats) -> ClosedForms:
    """Return the forms with further features along `directions`, of the most frequent family and a median κ."""
    if not len(directions):
        return forms
    k, count = len(directions), np.bincount(forms.family)
    kappa = float(np.median(np.abs(forms.kappa)))
    return replace(
        forms,
        directions=np.concatenate([forms.directions, directions]),
        family=np.append(forms.family, np.full(k, int(np.argmax(count)), np.intp)),
        kappa=np.append(forms.kappa, np.full(k, kappa)),
        b=np.append(forms.b, np.zeros(k)),
        coefficients=np.concatenate(
            [
                forms.coefficients[: forms.count],
                np.zeros((k, forms.coefficients.shape[1])),
                forms.coefficients[forms.count :],
            ]
        ),
    )
