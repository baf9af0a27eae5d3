"""Which units of a fit have a carrier: gated ones that need none become plain, plain ones that miss one become gated.

*Without need.* A carrier w of a gated unit adds o φ(y)(w·x). Where that is no more than noise would put into so many
unknowns, the unit is tried as a plain one, with all others of its kind at once.

*Missed.* What a plain unit leaves where it has a carrier is o φ(y)(w·x), which changes its sign across the hyperplane
w·x = 0: least squares of the residual along o on φ(y) x give w, and how much they explain says whether it is there.

Held-out points decide on both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..deadline import check_time
from .context import FitContext
from .gated_form import GatedForms
from .gated_solve import GatedSolved, minimise
from .model import TINY

_SIGNIFICANT = 4.0  # variances per unknown below which what a carrier adds is that of noise
_AT_FLOOR = 4.0  # cost over that of noise from which carriers may be missing
_PAYS, _NO_WORSE = 0.5, 1.05  # RMS error that new carriers leave at most, and that taking some away may make
_STEPS, _SLOW, _FEW_STEPS = 25, 1e-2, 4  # steps after carriers have come, the gain that ends them, and after some went
_OUTSTANDING = 30.0  # the same above which a plain unit misses one: what other units leave is not independent


def of_right_kinds(context: FitContext, solved: GatedSolved, floor: float) -> GatedSolved:
    """Make plain units gated where they miss a carrier, and gated ones plain where theirs adds nothing.

    `floor` is the least cost that noise and rounding leave.
    """
    X, Y = context.samples.held_out

    def left(s: GatedSolved) -> float:
        return float(np.sum((Y - s.forms.predict(X)) ** 2))

    if not len(X):
        return solved
    more = with_missed_carriers(solved, floor) if solved.cost > _AT_FLOOR * floor else None
    if more is not None:
        trial = minimise(GatedSolved.of(more, solved.X, solved.Y), steps=_STEPS, min_gain=_SLOW, target=0.1 * floor)
        if left(trial) < _PAYS**2 * left(solved):
            count = int(trial.forms.gated.sum() - solved.forms.gated.sum())
            context.say(f"  {count} plain units have a carrier", detail=True)
            solved = trial
    idle = idle_carriers(solved, floor)
    if len(idle):
        trial = minimise(GatedSolved.of(as_plain(solved.forms, idle), solved.X, solved.Y), steps=_FEW_STEPS)
        if left(trial) <= _NO_WORSE**2 * max(left(solved), floor * len(X) / len(solved.X)):
            context.say(f"  {len(idle)} gated units need no carrier", detail=True)
            solved = trial
    return solved


def idle_carriers(solved: GatedSolved, floor: float) -> NDArray[np.intp]:
    """Return the gated units whose carriers add no more than noise; `floor` is the least cost that noise leaves."""
    forms = solved.forms
    added = np.einsum("mn,mn->n", *(2 * [solved.gate * (solved.X @ forms.w.T)])) * np.sum(forms.outputs**2, axis=1)
    # beside w the unit has c: without a constant part there is no plain unit to become
    kept = np.einsum("mn,mn->n", solved.gate, solved.gate) * np.sum((forms.c[:, None] * forms.outputs) ** 2, axis=1)
    return np.flatnonzero(forms.gated & (added <= _SIGNIFICANT * _per_carrier(solved, floor)) & (added < kept))


def as_plain(forms: GatedForms, which: NDArray[np.intp]) -> GatedForms:
    """Return the forms with these units plain."""
    w, c, coefficients = forms.w.copy(), forms.c.copy(), forms.coefficients.copy()
    coefficients[which] *= c[which, None]
    w[which], c[which] = 0.0, 1.0
    return replace(forms, w=w, c=c, coefficients=coefficients)


def with_missed_carriers(solved: GatedSolved, floor: float) -> GatedForms | None:
    """Return the forms with plain units gated where the residual shows a carrier; None if it shows none."""
    forms, X = solved.forms, solved.X
    w, c = forms.w.copy(), forms.c.copy()
    for i in np.flatnonzero(~forms.gated):
        check_time()
        size = float(forms.outputs[i] @ forms.outputs[i])
        columns = solved.gate[:, i, None] * np.concatenate([X, np.ones((len(X), 1))], axis=1)
        target = solved.residual @ forms.outputs[i] / max(size, TINY)
        found = np.linalg.lstsq(columns, target, rcond=None)[0]
        gain = size * (float(target @ target) - float(np.sum((target - columns @ found) ** 2)))
        if gain > _OUTSTANDING * _per_carrier(solved, floor):
            w[i], c[i] = found[:-1], 1.0 + found[-1]
    if not np.any(w[~forms.gated]):
        return None
    length = np.sqrt(np.einsum("nd,nd->n", w, w) + c * c)
    return replace(forms, w=w / length[:, None], c=c / length)


def _per_carrier(solved: GatedSolved, floor: float) -> float:
    """Return the sum of squares that errors of the answers put into the unknowns of one carrier."""
    freedom = max(len(solved.X) - len(solved.factor), 1) * solved.Y.shape[1]
    return float(max(solved.cost, floor) / freedom * solved.forms.dim)
