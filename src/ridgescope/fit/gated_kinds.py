"""Which units of a fit have a carrier: gated ones that need none become plain, plain ones that miss one become gated.

*Without need.* A carrier w of a gated unit adds o φ(y)(w·x). Where that is little more than noise would put into so
many unknowns, beyond what the linear columns follow, the unit is tried as a plain one, and all others like it with it.

*Missed.* What a plain unit leaves where it has a carrier is o φ(y)(w·x), which changes its sign across the hyperplane
w·x = 0: least squares of the residual along o on φ(y) x give w, and how much they explain says whether it is there.
That shows before the other units have moved to make up for it.
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

_DOUBTFUL = 30.0  # variances per unknown below which a carrier may hold noise only; gates that move with it make more
# than one of them, and held-out points decide
_NO_WORSE, _STEPS = 1.05, 4  # RMS error on held-out points that fewer carriers may make; and steps without them
_OUTSTANDING = 30.0  # variances per unknown above which a plain unit misses a carrier; errors of others are not
# independent, so that single answers are worth less than noise would make them
_AT_FLOOR, _PAYS = 4.0, 0.5  # cost over that of noise from which carriers may be missing; share of it that they leave


def without_idle_carriers(context: FitContext, solved: GatedSolved, floor: float) -> GatedSolved:
    """Make gated units plain whose carriers add no more than noise, if held-out points agree.

    `floor` is the least cost that noise and rounding leave.
    """
    idle, (X, Y) = _idle(solved, floor), context.samples.held_out
    if not len(idle) or not len(X):
        return solved
    fewer = minimise(GatedSolved.of(_as_plain(solved.forms, idle), solved.X, solved.Y), steps=_STEPS)
    before, after = (float(np.sum((Y - s.forms.predict(X)) ** 2)) for s in (solved, fewer))
    if after > _NO_WORSE**2 * max(before, floor * len(X) / len(solved.X)):
        return solved
    context.say(f"  {len(idle)} gated units need no carrier", detail=True)
    return fewer


def with_missed_carriers(context: FitContext, solved: GatedSolved, floor: float) -> GatedSolved:
    """Give plain units carriers where the residual shows them, if that lowers the cost much."""
    if solved.cost <= _AT_FLOOR * floor or (forms := _with_carriers_seen(solved, floor)) is None:
        return solved
    more = GatedSolved.of(forms, solved.X, solved.Y)
    if more.cost > _PAYS * solved.cost:
        return solved
    context.say(f"  {int(forms.gated.sum() - solved.forms.gated.sum())} plain units have a carrier", detail=True)
    return more


def _idle(solved: GatedSolved, floor: float) -> NDArray[np.intp]:
    """Return the gated units whose carriers add no more than noise beyond what the linear columns follow."""
    forms = solved.forms
    carried = solved.project(solved.gate * (solved.X @ forms.w.T))
    added = np.einsum("mn,mn->n", carried, carried) * np.sum(forms.outputs**2, axis=1)
    constant = np.abs(forms.c) > np.linalg.norm(forms.w, axis=1) * forms.radius  # else no plain unit is left
    return np.flatnonzero(forms.gated & constant & (added <= _DOUBTFUL * _per_carrier(solved, floor)))


def _as_plain(forms: GatedForms, which: NDArray[np.intp]) -> GatedForms:
    """Return the forms with these units plain."""
    w, c = forms.w.copy(), forms.c.copy()
    w[which], c[which] = 0.0, 1.0
    return replace(forms, w=w, c=c)


def _with_carriers_seen(solved: GatedSolved, floor: float) -> GatedForms | None:
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
