"""Clusters of nearly parallel neurons that a search has taken for one, told apart before the certificate.

Neurons within a tenth of a radian of each other are one rank-one member to second derivatives in single precision, and
one feature in their place may well meet the tolerance. What it leaves is far above rounding all the same, and answers
that the run has already tell how many there are (`fit.crowded`) and which (`fit.members`):

1. one feature's tangents explain most of what is left: it stands for a cluster;
2. somewhat too many members in its place, and some steps of all features: the others come right, which had turned;
3. what these others leave has the rank of the cluster; so many members are started in the span of its tangents;
4. exact steps of the members and steps of all features in turn, down to rounding.

Steps 2 to 4 take some ten seconds each for 240 neurons of 120 inputs. The result is kept if it leaves a tenth at most.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from .fit.closed_fit import MANY_OUTPUTS
from .fit.closed_form import ClosedForms
from .fit.closed_solve import Data, Solved
from .fit.closed_starts import spline_fit
from .fit.closed_steps import minimise
from .fit.context import Evaluation, evaluate
from .fit.crowded import POINTS_PER_COLUMN as TANGENT_POINTS
from .fit.crowded import Tangents, crowded_feature, movable
from .fit.members import Members
from .fit.samples import ask_along
from .geometry import Floats
from .state import State

MOST_CLUSTERS = 3
"""Clusters that are resolved in a run, so that the effort is bounded."""
MOST_UNKNOWNS, MOST_MEMBERS = 60_000, 64
"""Entries of all directions up to which a step of all features takes a second or two; and members up to which one of
these alone does."""
ABOVE_ROUNDING = 10.0
"""RMS error over that of rounding from which on something is left to be found."""
AT_ROUNDING = 1.5
"""The same at which nothing is left to gain."""
KEPT = 0.1
"""Share of the held-out error that a resolved cluster leaves at most: 0.002 of 36 neurons, of which one feature had
stood for all, and 0.01 where five of them were stuck."""
ANSWERS_PER_UNKNOWN, POINTS_PER_COLUMN = 2.5, 4.0
"""Answers for each unknown, and points for each column of values, that the steps are made with."""
FIRST_STEPS, CLEARINGS = 5, 4
"""Steps of all features at first, and how often these are made until the rank of the cluster is clear."""
FREE_STEPS, OWN_STEPS = 4, 40
"""Steps of all features between those of the members, and of the members at a time."""
TURNS, LEAST_GAIN = 12, 0.2
"""Turns of members and all features, and the share of the error that one must gain for another."""
STARTS = 4
"""Random starts of the members: two of three end with a few members stuck."""
_DAMPING = 1e-4, 1e-6  # of a first step from rough members, and from better ones


def split_clusters(state: State) -> None:
    """Tell clusters apart while what closed forms of all features leave is far above rounding; see the module."""
    for _ in range(MOST_CLUSTERS):
        forms = state.best.forms
        if forms is None or not _may_be_crowded(state, forms):
            return
        before = _held_out_error(state, forms)
        now = state.attempt("clusters", partial(_split, state, forms))
        if now is None or now.forms is None or not _held_out_error(state, now.forms) <= KEPT * before:
            return
        state.say(f"a feature stands for {now.forms.count - forms.count + 1} nearly parallel ones: RMS {now.rms:.2e}")
        state.evaluation, state.proposed = now, None


def _may_be_crowded(state: State, forms: ClosedForms) -> bool:
    """Return whether a feature of these may be told to be several: each has a closed form, and much is left."""
    outputs = state.oracle.outputs or 1
    small = forms.count * (forms.dim + 1) <= MOST_UNKNOWNS
    if not (small and outputs >= MANY_OUTPUTS and state.survey.deterministic and len(state.samples.held_out[0])):
        return False
    closed = len(forms.closed) == forms.count and bool(movable(forms).any())
    return closed and _held_out_error(state, forms) > ABOVE_ROUNDING * _rounding(state)


def _rounding(state: State) -> float:
    return max(state.survey.noise, state.rounding_error)


def _held_out_error(state: State, forms: ClosedForms) -> float:
    X, Y = state.samples.held_out
    return float(np.sqrt(np.mean((Y - forms.predict(X)) ** 2)))


def _split(state: State, forms: ClosedForms) -> Evaluation | None:
    """Return the fit with a crowded feature told apart; None if there is none, or no clear number of members."""
    most = min(MOST_MEMBERS, (state.oracle.outputs or 1) // 2, forms.dim // 2)
    which = _crowded(state, forms)
    data = _data(state, forms, most) if which is not None else None
    if data is None or which is None:
        return None
    rng = state.streams("clusters", state.samples.count)
    # others have turned to make up for what is missing, which blurs the rank of the cluster until they are right
    order = np.append(np.delete(np.arange(forms.count), which), which)
    forms = Solved.of(forms.keep(order), data).forms
    tangents = Tangents.of(forms, forms.count - 1, data, _left_by_others(forms, data))
    members = _started(forms, data, tangents, min(tangents.most_members, most), rng)
    first, solved = forms.count - 1, Solved.of(_with_members(forms, *members, forms.count - 1), data)
    for _ in range(CLEARINGS):
        solved = minimise(solved, steps=FIRST_STEPS, min_gain=0.0, free=True, damping=_DAMPING[0])
        forms = _with_middle(solved.forms, first)
        tangents = Tangents.of(forms, first, data, _left_by_others(forms, data))
        if tangents.members is not None:
            break
    if tangents.members is None or tangents.members > most:
        return None
    floors = AT_ROUNDING * state.survey.noise, AT_ROUNDING * _rounding(state)
    solved, data = _best_of_starts(forms, data, tangents, floors, rng), Data(*state.samples.unclustered)
    ended = _ended(solved.forms, first, data)
    solved = _polished(solved.forms.keep(np.arange(first + 1)), data, ended, floors[0])  # with all answers there are
    now = evaluate(spline_fit(solved, state.goal), state.samples, state.goal)
    return replace(now, forms=solved.forms, directions_as_proposed=False)


def _best_of_starts(
    forms: ClosedForms, data: Data, tangents: Tangents, floors: tuple[float, float], rng: np.random.Generator
) -> Solved:
    """Return the best fit from some random starts of the members, the first that leaves the second of `floors` at most.

    Each is polished down to the first of them.

    A start has the other features as the best one before has left them: a few members that are stuck between others
    hardly turn these.
    """
    first, count, best = forms.count - 1, tangents.members or 1, None
    for _ in range(STARTS):
        solved = _polished(forms, data, _started(forms, data, tangents, count, rng), floors[0])
        best = solved if best is None or solved.cost < best.cost else best
        if best.cost <= floors[1] ** 2 * data.Y.size:
            break
        forms = _with_middle(best.forms, first)
        tangents = Tangents.of(forms, first, data, _left_by_others(forms, data))
    assert best is not None
    return best


def _crowded(state: State, forms: ClosedForms) -> int | None:
    """Return the feature that stands for a cluster, as far as the points that there are tell."""
    X, Y = state.samples.unclustered
    stride = max(1, int(len(X) / (2.0 * TANGENT_POINTS * (forms.dim + 2))))
    data = Data(X[::stride], Y[::stride])
    return crowded_feature(forms, data, Solved.of(forms, data).residual)


def _data(state: State, forms: ClosedForms, most: int) -> Data | None:
    """Return points and answers for the steps, of which some are asked where there are too few; None if they cannot."""
    outputs, count = state.oracle.outputs or 1, forms.count + most
    unknowns = count * (forms.dim + 1 + outputs) + (forms.dim + 1) * outputs
    wanted = int(max(ANSWERS_PER_UNKNOWN * unknowns / outputs, POINTS_PER_COLUMN * (count + forms.dim + 1)))
    missing = wanted - len(state.samples.unclustered[0])
    if missing > state.allowance():
        return None
    ask_along(state.ask("fit"), state.samples, forms.directions, missing, state.streams("cluster points", forms.count))
    X, Y = state.samples.unclustered
    some = np.sort(state.streams("cluster rows", forms.count).permutation(len(X))[:wanted])
    return Data(X[some], Y[some])


def _left_by_others(forms: ClosedForms, data: Data) -> Floats:
    """Return what the features but the last leave (m, p)."""
    return np.asarray(data.Y - data.bend(forms.atoms(data.X)[0][:, :-1]) @ forms.outputs[:-1])


def _started(
    forms: ClosedForms, data: Data, tangents: Tangents, count: int, rng: np.random.Generator
) -> tuple[Members, Floats]:
    """Return so many members in place of the last feature, and the rows of the subspace in which they live."""
    v, kappa = forms.directions[-1], forms.kappa[-1] / forms.radius
    U = np.concatenate([v[None], tangents.rows[: count - 1]])
    near = _members(forms, forms.count - 1, data, U)
    middle = np.concatenate([[kappa], np.zeros(count - 1), [forms.b[-1]]])
    return Members.started(near, middle, tangents.sizes[1:count], count, rng), U


def _ended(forms: ClosedForms, first: int, data: Data) -> tuple[Members, Floats]:
    """Return the features from `first` on as members, and the rows of the subspace that they span."""
    U = np.linalg.qr(forms.directions[first:].T)[0].T
    return _members(forms, first, data, U), U


def _members(forms: ClosedForms, first: int, data: Data, U: Floats) -> Members:
    """Return the features from `first` on as members that live in the subspace of U."""
    Q = np.linalg.qr(np.concatenate([data.flat, forms.atoms(data.X)[0][:, :first]], axis=1))[0]
    w = forms.directions[first:] * (forms.kappa[first:] / forms.radius)[:, None]
    Z = np.concatenate([data.X @ U.T, np.ones((len(data.X), 1))], axis=1)
    target = data.Y - Q @ (Q.T @ data.Y)
    return Members(int(forms.family[-1]), Z, Q, target, np.column_stack([w @ U.T, forms.b[first:]]))


def _with_members(forms: ClosedForms, members: Members, U: Floats, first: int) -> ClosedForms:
    """Return the features before `first` and the members, with coefficients still to be solved for."""
    w, k = members.omega[:, :-1] @ U, len(members.omega)
    size = np.linalg.norm(w, axis=1)
    return replace(
        forms,
        directions=np.concatenate([forms.directions[:first], w / size[:, None]]),
        family=np.concatenate([forms.family[:first], np.full(k, members.family)]),
        kappa=np.concatenate([forms.kappa[:first], size * forms.radius]),
        b=np.concatenate([forms.b[:first], members.omega[:, -1]]),
        coefficients=np.zeros((first + k + forms.dim + 1, forms.coefficients.shape[1])),
    )


def _freed(forms: ClosedForms, data: Data, members: tuple[Members, Floats], steps: int, damping: float) -> Solved:
    """Return a fit in which all features have moved, with the members in place of the last one."""
    started = Solved.of(_with_members(forms, *members, forms.count - 1), data)
    return minimise(started, steps=steps, min_gain=0.0, free=True, damping=damping)


def _with_middle(forms: ClosedForms, first: int) -> ClosedForms:
    """Return the features before `first`, and one in the middle of the others, by their strength."""
    strength = np.linalg.norm(forms.outputs[first:], axis=1)
    w = strength @ (forms.directions[first:] * forms.kappa[first:, None]) / strength.sum()
    kept = forms.keep(np.arange(first + 1))
    directions, kappa, b = kept.directions.copy(), kept.kappa.copy(), kept.b.copy()
    kappa[-1] = np.linalg.norm(w)
    directions[-1], b[-1] = w / kappa[-1], strength @ forms.b[first:] / strength.sum()
    return replace(kept, directions=directions, kappa=kappa, b=b)


def _polished(forms: ClosedForms, data: Data, members: tuple[Members, Floats], floor: float) -> Solved:
    """Move members, then all features, in turn, until no more than the error `floor` is left, or no more is gained."""
    first, best = forms.count - 1, Solved.of(forms, data)
    for _ in range(TURNS):
        inside, U = members
        solved = _freed(forms, data, (inside.minimised(OWN_STEPS), U), FREE_STEPS, _DAMPING[1])
        gained = solved.cost < (1.0 - LEAST_GAIN) ** 2 * best.cost
        best = solved if solved.cost < best.cost else best
        if not gained or solved.cost <= floor**2 * data.Y.size:
            break
        members = _ended(solved.forms, first, data)
        forms = solved.forms.keep(np.arange(first + 1))
    return best
