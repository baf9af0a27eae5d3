"""Which family each response is of, if any: chosen for one feature at a time, fitted for all together, and again.

    place     for every family, the member closest to each response, from a grid over a spline and from then on from
              where it was
    choose    the family of least misfit, or a spline if no family does as well as one
    fit       all features together (`closed_form.minimise`)
    repeat    with the partial responses of that fit, which are more exact, as long as the held-out error falls

Families that look alike on coarse responses, such as GELU and SiLU, are distinguished as the errors of the other
features become small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb

import numpy as np

from ..bspline import design_matrix
from ..geometry import Floats
from ..shapes.families import POINT_LIMITS, POINTS_PER_CELL, sample_points
from ..shapes.fitting import SIGNIFICANT
from ..shapes.naming import EXACTNESS, fit_as
from .activations import ACTIVATIONS, SPLINE, Indices
from .closed_form import ClosedForms, leading_output
from .closed_solve import Solved
from .closed_starts import POINTS_PER_COLUMN, SPLINE_INTERVALS, Trial, strongest_first
from .closed_steps import minimise
from .model import TINY, Model
from .partial_responses import PartialResponses
from .placing import CoarseResponses

_ROUNDS = 30  # at most: two or three suffice unless points are few, and the error must fall in each
_AS_GOOD = 1.6  # misfit over a spline's, or over the noise: with 256 bins such a quotient varies by 0.15 by chance
_NOT_FAR = 100.0  # the same for a last trial, in which held-out points alone decide
_LARGE = SIGNIFICANT * EXACTNESS  # share of a response that makes a misfit of the layer's family too large to try it
_TIED = 1.03  # of the least misfit: families within it are equally good, and the simplest is taken
_MOST = 0.5  # share of features whose family is that of a layer
_HOPEFUL = 100.0  # of the least misfit: worse families are not fitted again in the next round
_POWERS_DEPEND = 0.3  # splines over the dimension of all k-th powers from which on these leak from one to another
MAX_DEGREE = 3
"""Largest degree k of the powers that are looked at. Empirical, as the share above."""
_MOST_SPLINES = 0.9  # share of features without a family: if there are more, closed forms are of little use
_FEWEST_POINTS = 64  # at which coarse splines are compared with families
_FINEST = 32  # intervals of features without a family, while families are chosen
_HALF = 0.5  # share to which a round must lower the error for another one to follow, unless families have changed
_SPLINE_ERROR = 0.1  # of a fit's error: that of splines that stand for its forms
_START_ERROR = 1e-5  # of the faintest response: error of splines that only show where to start
_KINK_KAPPA = 8.0  # of a smooth form that takes the place of a kink
_FEW_STEPS, _LONG_STEPS = 6, 25  # of a fit, while families change, and when they do not
_SLOW = 1e-2  # share of the cost: a step that gains less is the last

_SIMPLEST_FIRST = sorted(range(len(ACTIVATIONS)), key=lambda k: ACTIVATIONS[k].parameters)


@dataclass(eq=False)
class Places:
    """For every family, its member closest to each of n responses."""

    kappa: Floats
    """(F, n)."""
    b: Floats
    """(F, n)."""
    misfit: Floats
    """(F, n)."""

    @classmethod
    def on_splines(cls, model: Model) -> Places:
        """Start from the members of a grid that are closest to the model's splines."""
        n, R, intervals = model.count, model.radius, int(model.intervals.max())
        kinks = tuple(strongest_first(model, i) / R for i in range(n))
        empty = np.zeros((len(ACTIVATIONS), n))
        places = cls(empty.copy(), empty.copy(), empty)
        u = _coarse_points(intervals)
        places._search(np.arange(n), np.stack([model.term(i, R * u) for i in range(n)]), intervals, kinks)
        return places

    def _search(self, which: Indices, values: Floats, intervals: int, kinks: tuple[Floats, ...] | None = None) -> None:
        """Put all families of the features `which` where a grid has their closest members to these splines."""
        start = CoarseResponses.of(values, intervals).start(range(len(ACTIVATIONS)), kinks)
        self.kappa[:, which], self.b[:, which], self.misfit[:, which] = start.kappa, start.b, 0.0

    @classmethod
    def around(cls, forms: ClosedForms) -> Places:
        """Start every family where the features' own families are, or where it is closest to their splines."""
        moved = [_changed(forms, k) for k in range(len(ACTIVATIONS))]
        kappa, b = np.stack([f.kappa for f in moved]), np.stack([f.b for f in moved])
        places = cls(kappa, b, np.zeros(kappa.shape))
        places.move(forms)
        return places

    def fit(self, responses: PartialResponses) -> None:
        """Move all members that have a chance to where they are closest to the responses."""
        family, feature = np.nonzero(self.misfit <= _HOPEFUL * self.misfit.min(axis=0) + TINY)
        found = responses.fit(family, feature, self.kappa[family, feature], self.b[family, feature])
        self.kappa[family, feature], self.b[family, feature] = found.kappa, found.b
        self.misfit[family, feature] = found.misfit

    def choice(self, most: Floats) -> Indices:
        """Return the family of each feature, or `SPLINE` if every family leaves more than `most` (n,)."""
        least = self.misfit.min(axis=0)
        family = np.full(len(least), SPLINE, np.intp)
        for k in reversed(_SIMPLEST_FIRST):
            family = np.where(self.misfit[k] <= _TIED * least + TINY, k, family)
        common = int(np.bincount(family).argmax())
        if np.mean(family == common) >= _MOST:  # a layer of a network has one family: others need better evidence
            family = np.where(self.misfit[common] <= _AS_GOOD * least + TINY, common, family)
        return np.asarray(np.where(least <= most + TINY, family, SPLINE), np.intp)

    def move(self, forms: ClosedForms) -> None:
        """Take over where a joint fit has moved the features' own families, and search again for those of splines."""
        own, splines = forms.closed, np.flatnonzero(forms.family == SPLINE)
        self.kappa[forms.family[own], own], self.b[forms.family[own], own] = forms.kappa[own], forms.b[own]
        if len(splines):
            design = design_matrix(_coarse_points(forms.intervals), 1.0, forms.intervals)
            self._search(splines, np.stack([design @ forms.block(int(i)) for i in splines]), forms.intervals)


def _coarse_points(intervals: int) -> Floats:
    """Return the points at which splines of so many intervals are compared with families."""
    enough = 1 << (POINTS_PER_CELL * intervals - 1).bit_length()
    return sample_points(int(np.clip(enough, _FEWEST_POINTS, POINT_LIMITS[1]))).u


def choose_families(trial: Trial, splines: Model) -> Solved | None:
    """Choose a family for each feature of a model fitted with splines; None if most features have none."""
    residual = trial.answers - splines.predict(trial.data.X)
    outputs = np.stack([leading_output(splines.block(i)) for i in range(splines.count)])

    def curves(u: Floats) -> Floats:
        return np.stack([splines.term(i, splines.radius * u[i]) @ outputs[i] for i in range(splines.count)])

    U = trial.data.X @ splines.directions.T / splines.radius
    degree = leaking_degree(splines.count, splines.dim)
    responses = PartialResponses.of(U, residual @ outputs.T, curves, degree)
    intervals = int(splines.intervals.max())
    blank = ClosedForms.blank(splines.directions, splines.radius, intervals, splines.outputs)
    return _chosen(trial, blank, Places.on_splines(splines), responses, None)


def choose_again(trial: Trial, best: Solved, rounds: int = _ROUNDS) -> Solved:
    """Choose families anew from a fit of closed forms, in so many rounds at most; held-out points decide."""
    places, responses = Places.around(best.forms), partial_responses(trial, best.forms)
    return _chosen(trial, best.forms, places, responses, best, rounds) or best


def unify_families(trial: Trial, best: Solved) -> Solved:
    """Give all features the family that half of them or more have, if that is no worse on held-out points.

    A layer of a network has one family. A feature of it whose bend lies far out is explained by others as well, or by a
    spline, and gets one of these while the errors of the other features are still large.
    """
    forms = best.forms
    common = int(np.bincount(forms.family[forms.closed], minlength=1).argmax())
    share = float(np.mean(forms.family == common))
    if not _MOST <= share < 1.0:
        return best
    odd, responses = np.flatnonzero(forms.family != common), partial_responses(trial, forms)
    most = np.maximum(_NOT_FAR * np.maximum(responses.noise, trial.exactness**2), _LARGE**2 * responses.size)
    if any(responses.least_misfit(common, int(i)) > most[i] for i in odd):
        return best
    places, family = Places.around(forms), np.full(forms.count, common, np.intp)
    faintest = float(np.sqrt(np.min((responses.size * responses.freedom(0))[odd]) / len(trial.data.X)))
    splines = forms.keep(odd).model(max(_SPLINE_ERROR * trial.rms(best), _START_ERROR * faintest))
    for j, i in enumerate(odd):
        fit = fit_as(splines.response(j, False).without_affine()[0], 0.0, ACTIVATIONS[common])
        if fit is not None:
            places.kappa[common, i] = fit.place.sign * fit.place.kappa
            places.b[common, i] = -places.kappa[common, i] * fit.place.t
    start = Solved.of(_with_families(forms, places, family, len(trial.data.X)), trial.data)
    now = minimise(start, steps=_LONG_STEPS, min_gain=_SLOW, target=trial.floor)
    if not trial.is_exact(now):
        now = minimise(now, steps=_FEW_STEPS, min_gain=_SLOW, free=True, target=trial.floor)
    agreed = trial.is_exact(now) or trial.is_no_worse(now, best)
    trial.context.say(f"  all {ACTIVATIONS[common].name}: held-out RMS {trial.rms(now):.1e}", detail=True)
    return now if agreed else best


def _chosen(
    trial: Trial,
    forms: ClosedForms,
    places: Places,
    responses: PartialResponses,
    best: Solved | None,
    rounds: int = _ROUNDS,
) -> Solved | None:
    """Choose, fit and repeat as long as the held-out error falls.

    When it no longer does, features that are still splines are tried as the families closest to them.
    """
    before = np.zeros(forms.count, np.intp) if best is None else best.forms.family
    as_good = _AS_GOOD
    places.fit(responses)
    for _ in range(rounds):
        unexplained = responses.spline_misfits(forms.intervals)
        # A feature that is a spline already is fitted exactly by one; what it really leaves is in the noise.
        unexplained = np.maximum(unexplained, np.where(before == SPLINE, responses.noise, 0.0))
        family = places.choice(as_good * unexplained)
        same = best is not None and np.array_equal(family, before)
        if np.mean(family == SPLINE) > _MOST_SPLINES or (same and as_good == _NOT_FAR):
            break
        forms = _with_families(forms, places, family, len(trial.data.X))
        steps = _LONG_STEPS if same else _FEW_STEPS
        now = minimise(Solved.of(forms, trial.data, near=best), steps=steps, min_gain=_SLOW, target=trial.floor)
        trial.context.say(f"  closed forms: {names_of(now.forms)} {trial.rms(now):.1e}", detail=True)
        falls = best is None or trial.rms(now) < (_HALF if same else 1.0) * trial.rms(best)
        if best is None or trial.rms(now) < trial.rms(best):
            best = now
            trial.remember(best)
        if cubes_leak(forms) and not trial.is_promising(best):
            break  # no family can be recognised while the errors of many splines are large
        if trial.is_exact(best) or not (falls or (as_good == _AS_GOOD and (best.forms.family == SPLINE).any())):
            break
        as_good, before = _AS_GOOD if falls else _NOT_FAR, best.forms.family
        if falls:
            places.move(best.forms)
            responses = partial_responses(trial, best.forms)
            places.fit(responses)
    return best


def leaking_degree(splines: int, dim: int) -> int:
    """Return the degree of polynomials that leak between so many splines; a closed form has no room for others."""
    dependent = (k for k in range(2, MAX_DEGREE + 1) if splines >= _POWERS_DEPEND * comb(dim + k - 1, k))
    return max(dependent, default=1)


def cubes_leak(forms: ClosedForms) -> bool:
    """Return whether so many features are splines that these express the cubes of each other."""
    return leaking_degree(forms.count - len(forms.closed), forms.dim) >= MAX_DEGREE


def _with_families(forms: ClosedForms, places: Places, family: Indices, points: int) -> ClosedForms:
    """Return the forms with these families, each where it is closest, and as fine splines as the points support."""
    own, splines = np.arange(forms.count), int(np.sum(family == SPLINE))
    room = points / POINTS_PER_COLUMN - forms.count - forms.dim
    intervals = int(np.clip(room / max(splines, 1) - 3, SPLINE_INTERVALS, max(_FINEST, forms.intervals)))
    closed = family != SPLINE
    return replace(
        forms,
        family=family,
        kappa=np.where(closed, places.kappa[family, own], 1.0),
        b=np.where(closed, places.b[family, own], 0.0),
        intervals=intervals,
    )


def partial_responses(trial: Trial, forms: ClosedForms) -> PartialResponses:
    """Return the partial responses of a fit of closed forms."""
    X, degree = trial.data.X, leaking_degree(forms.count - len(forms.closed), forms.dim)
    blocks = [forms.block(i) for i in range(forms.count)]
    outputs = forms.outputs / np.maximum(np.linalg.norm(forms.outputs, axis=1), TINY)[:, None]

    def curves(u: Floats) -> Floats:
        values = np.empty_like(u)
        for i, block in enumerate(blocks):
            if forms.family[i] == SPLINE:
                columns = design_matrix(u[i], 1.0, forms.intervals)
            else:
                columns = ACTIVATIONS[forms.family[i]].atom(forms.kappa[i] * u[i] + forms.b[i])[0][:, None]
            values[i] = columns @ (block @ outputs[i])
        return values

    residual = (trial.answers - forms.predict(X)) @ outputs.T
    return PartialResponses.of(X @ forms.directions.T / forms.radius, residual, curves, degree)


def _changed(forms: ClosedForms, to: int) -> ClosedForms:
    """Return the forms with all features but splines of another family, at the same places."""
    family, kappa, b = forms.family.copy(), forms.kappa.copy(), forms.b.copy()
    for i in forms.closed:
        old, new = ACTIVATIONS[family[i]], ACTIVATIONS[to]
        steep = (kappa[i] / old.stretch if old.moves[0] else _KINK_KAPPA) * new.stretch if new.moves[0] else 1.0
        family[i], b[i], kappa[i] = to, b[i] * steep / kappa[i] if new.moves[1] else 0.0, steep
    return replace(forms, family=family, kappa=kappa, b=b)


def names_of(forms: ClosedForms) -> str:
    """Return the names of the families with the numbers of their features, from frequent to rare."""
    which, counts = np.unique(forms.family, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    names = ["spline" if which[k] == SPLINE else ACTIVATIONS[which[k]].name for k in order]
    return ", ".join(f"{counts[k]} {name}" for k, name in zip(order, names, strict=True))
