"""Gated units that the search has missed, from what the other ones leave.

One unit leaves about o φ(g·x + b)(w·x + c), whose part of second degree is (g·x)(w·x) and (g·x)²: a quadratic form
fitted to the residual, along the output in which it is largest, has its two largest eigenvalues in the plane of g and
w. In that plane the direction of g is one angle, so that all of them are tried with a few steepnesses and biases, c
and w by least squares. The best are refined together with all other units. No query is asked.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import LinAlgError

from ..deadline import check_time
from ..geometry import Floats
from .context import FitContext
from .gated_form import GATES, GatedForms
from .gated_solve import GatedSolved, is_iterative, minimise
from .model import TINY

_FOUND = 10.0  # cost over that of noise up to which nothing is missing
_PAYS = 0.6  # share of the squared held-out error that one more unit may leave: less than one of two missing ones does
_MOST = 4  # units that are added at the most; each needs a fit of all
_ANGLES, _STEEPNESS, _BIASES = 48, (0.4, 0.8, 1.6), (-1.0, -0.3, 0.3, 1.0)  # of a gate; over the median of the others
_STARTS, _LOOK_STEPS = 6, 6  # starts that are compared after some steps of all units: on its own, against what the
# others leave after they have made up for it, a gate becomes ever flatter
_STEPS, _SLOW = 40, 1e-3  # steps of the best, and the gain that ends them
_FEW_OUTPUTS, _OUTLYING = 6, 3.0  # of them, below which singular values say nothing; and the largest over errors'
_SPARE = 1.5  # points over the coefficients of a quadratic form


def with_missed_units(context: FitContext, solved: GatedSolved, floor: float) -> GatedSolved:
    """Add units that the residual shows, as long as held-out points confirm them.

    `floor` is the least cost that noise and rounding leave.
    """
    X, Y = context.samples.held_out
    for _ in range(_MOST if len(X) else 0):
        if solved.cost <= _FOUND * floor or not solved.is_sound:
            break
        more = _with_one_more(solved, floor)
        if more is None:
            break
        before, after = (float(np.sum((Y - s.forms.predict(X)) ** 2)) for s in (solved, more))
        if not after < _PAYS * before:
            break
        context.say("  the residual shows one more gated unit", detail=True)
        solved = more
    return solved


def _with_one_more(solved: GatedSolved, floor: float) -> GatedSolved | None:
    """Return the units with the one that explains most of the residual, all of them refined; None without any."""
    power, right = np.linalg.eigh(solved.residual.T @ solved.residual)
    if not _stands_out(power[-solved.forms.count :], len(solved.X)):
        return None
    starts = _starts(solved, solved.residual @ right[:, -1])
    best: GatedSolved | None = None
    for start in starts[:1] if is_iterative(solved.forms.count, solved.forms.dim) else starts:
        check_time()
        try:
            more = minimise(GatedSolved.of(_joined(solved.forms, *start), solved.X, solved.Y), steps=_LOOK_STEPS)
        except LinAlgError:
            continue
        best = more if best is None or more.cost < best.cost else best
    return None if best is None else minimise(best, steps=_STEPS, min_gain=_SLOW, target=0.1 * floor)


def _stands_out(power: Floats, points: int) -> bool:
    """Return whether the largest of squared singular values, in ascending order, stands out as that of a unit does.

    Errors in so many points and p outputs have singular values that differ by 1 + √(p/points) or so. What units are
    still off by, before a fit has ended, is in as many of them as there are units.
    """
    singular = np.sqrt(np.maximum(power, 0.0))
    edge = float(np.median(singular)) * (1.0 + np.sqrt(len(power) / points))
    return len(power) < _FEW_OUTPUTS or bool(singular[-1] > _OUTLYING * edge)


def _joined(forms: GatedForms, g: Floats, b: float, w: Floats, c: float) -> GatedForms:
    """Return the forms with one more gated unit, of the most frequent family."""
    return replace(
        forms,
        g=np.concatenate([forms.g, g[None]]),
        b=np.append(forms.b, b),
        w=np.concatenate([forms.w, w[None]]),
        c=np.append(forms.c, c),
        family=np.append(forms.family, np.argmax(np.bincount(forms.family))),
        coefficients=np.insert(forms.coefficients, forms.count, 0.0, axis=0),
    )


def _starts(solved: GatedSolved, target: Floats) -> list[tuple[Floats, float, Floats, float]]:
    """Return g, b, w and c of the best gates in the plane that a quadratic form of the target shows."""
    X = solved.X
    values, vectors = np.linalg.eigh(quadratic_form(X, target))
    plane = vectors[:, np.argsort(-np.abs(values))[:2]]
    if plane.shape[1] < 2:
        return []
    z = X @ plane
    typical = float(np.median(np.linalg.norm(solved.forms.g, axis=1)))
    family = GATES[int(np.argmax(np.bincount(solved.forms.family)))]
    turns = np.linspace(0.0, 2.0 * np.pi, _ANGLES, endpoint=False)
    flat = np.concatenate([np.ones((len(X), 1)), z], axis=1)
    found = list[tuple[float, int, tuple[Floats, float, Floats, float]]]()
    for turn in turns:
        v = np.array([np.cos(turn), np.sin(turn)])
        for k in typical * np.array(_STEEPNESS):
            for b in _BIASES:
                gate = family.atom(k * (z @ v) + b)[0]
                columns = np.concatenate([gate[:, None] * flat, flat], axis=1)
                solution = np.linalg.lstsq(columns, target, rcond=None)[0]
                left = float(np.sum((target - columns @ solution) ** 2))
                found.append((left, len(found), (k * (plane @ v), b, plane @ solution[1:3], float(solution[0]))))
    starts = []
    for _, _, (g, b, w, c) in sorted(found)[:_STARTS]:
        length = max(float(np.sqrt(w @ w + c * c)), TINY)
        starts.append((g, float(b), w / length, c / length))
    return starts


def quadratic_form(X: Floats, target: Floats) -> Floats:
    """Return (d, d) the quadratic form of a polynomial of second degree fitted to a target (m,) at X (m, d).

    By least squares where points suffice, else by moments in coordinates in which points look alike in all directions.
    """
    m, d = X.shape
    i, j = np.triu_indices(d)
    if m >= _SPARE * (1 + d + len(i)):
        columns = np.concatenate([np.ones((m, 1)), X, X[:, i] * X[:, j]], axis=1)
        found = np.linalg.lstsq(columns, target, rcond=None)[0][1 + d :]
        form = np.zeros((d, d))
        form[i, j] = 0.5 * found
        return np.asarray(form + form.T)
    Q, R = np.linalg.qr(np.concatenate([np.ones((m, 1)), X], axis=1))
    inner = Q[:, 1:].T @ (target[:, None] * Q[:, 1:])
    return np.asarray(R[1:, 1:].T @ inner @ R[1:, 1:])
