"""Fit one closed form to a response: separable least squares from the places that the grid suggests."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, pi, sqrt

import numpy as np

from ..geometry import Floats
from .families import Atom, Family, Place, Points


@dataclass(frozen=True, eq=False)
class Fit:
    family: str
    parameters: int
    """How many, c included."""
    seen: float
    """RMS of what it leaves of the response."""
    hidden: float
    """RMS of the part of it that the response's cells cannot show."""
    amplitude: float
    place: Place
    blurred: bool = False
    """Steeper than the response's cells can show: the place is known, the profile is not."""
    powers: Floats | None = None
    """Of a polynomial: the coefficients of u², u³, …, from degree modulo + 1."""

    def acceptable(self, sigma: float) -> bool:
        if self.blurred and self.family in ("softplus", "gelu", "silu"):
            return False  # a kink, and relu's to name
        if self.family == "clip" and abs(self.place.t) + 1.0 / self.place.kappa > 1.0:
            return False  # one of its kinks is out of sight: again a relu
        # The fit that made the response blurs a hidden part as its own sample weighs it, not quite as we do.
        return self.seen**2 <= (3.0 * sigma) ** 2 + self.hidden**2

    def score(self, sigma: float, numbers: int) -> float:
        return numbers * (self.seen / sigma) ** 2 + self.parameters * log(numbers)


@dataclass(frozen=True, eq=False)
class _Solved:
    """The linear parameters at a place."""

    place: Place
    c: float
    rows: Floats
    """(3, D) φ and its derivatives by log κ and t, in the coordinates of the space."""
    rest: Floats
    left: float
    """Square of the residual `rest` (D,)."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be explained."""

    points: Points
    space: Floats
    """(M, D) orthonormal columns: all that the response can show, polynomials excepted."""
    target: Floats
    """(D,) the response in these coordinates."""
    cells: int
    kinks: Floats
    """Places in u, strongest first."""
    sigma: float
    """RMS error of the response's values."""

    def coordinates(self, rows: Floats) -> Floats:
        """Functions at u, (…, M), in the coordinates of the space: (…, D)."""
        return np.asarray((rows * self.points.root) @ self.space)

    def solve(self, atom: Atom, place: Place) -> _Solved:
        y = place.y(self.points.u)
        value, slope = atom(y)
        rows = self.coordinates(np.stack([value, slope * y, (-place.sign * place.kappa) * slope]))
        c = float(rows[0] @ self.target) / max(float(rows[0] @ rows[0]), 1e-300)
        rest = self.target - c * rows[0]
        return _Solved(place, c, rows, rest, float(rest @ rest))

    def hidden(self, atom: Atom, solved: _Solved) -> float:
        whole = self.points.project(atom(solved.place.y(self.points.u))[0])
        square = float(whole @ whole) - float(solved.rows[0] @ solved.rows[0])
        return abs(solved.c) * sqrt(max(square, 0.0))

    @property
    def steepest(self) -> float:
        """Largest κ to try: a bend or rise of half a cell. From half of that on its profile is a blur."""
        return 2.0 * self.cells


def _refined(task: Task, family: Family, now: _Solved, rounds: int = 30) -> _Solved:
    """Levenberg–Marquardt in (log κ, t), the linear parameters eliminated (Kaufman's Jacobian):

    (J Jᵀ + μ diag J Jᵀ) δ = J r,   J = c·(∂φ/∂log κ, ∂φ/∂t) without its part along φ and the polynomials.
    """
    damping, moves = 1e-3, np.flatnonzero(family.moves)
    done = 1e-24 * float(task.target @ task.target)
    for _ in range(rounds):
        row = now.rows[0]
        jacobian = now.c * now.rows[1:][moves]
        jacobian -= np.multiply.outer(jacobian @ row / max(float(row @ row), 1e-300), row)
        normal, gradient = jacobian @ jacobian.T, jacobian @ now.rest
        normal.flat[:: len(moves) + 1] *= 1.0 + damping
        if now.left <= done or damping > 1e4 or not normal.diagonal().min() > 0.0:
            break
        step = np.zeros(2)
        step[moves] = _solve_small(normal, gradient)
        trial = task.solve(family.atom, _stepped(now.place, step, task.steepest))
        if not trial.left < now.left:
            damping *= 10.0
            continue
        gain, now, damping = 1.0 - trial.left / now.left, trial, max(0.1 * damping, 1e-9)
        if gain < 1e-6 or (gain < 0.1 and now.left > (6.0 * task.sigma) ** 2):  # converged, or hopeless
            break
    return now


def _solve_small(matrix: Floats, right: Floats) -> Floats:
    """Cramer's rule for 1×1 and damped, hence regular, 2×2: a tenth of the time of a general solver."""
    if len(right) == 1:
        return np.asarray(right / matrix[0, 0])
    (a, b), (c, d) = matrix.tolist()
    x, y = right.tolist()
    return np.asarray([d * x - b * y, a * y - c * x]) / float(a * d - b * c)


def _stepped(place: Place, step: Floats, steepest: float) -> Place:
    """At most a factor of two in κ and a width in t, and a bend that stays in sight of [−1, 1]."""
    kappa = min(max(place.kappa * exp(min(max(step[0], -0.7), 0.7)), 0.5), steepest)
    reach, width = 1.0 + 2.0 / kappa, 1.0 / kappa
    t = place.t + min(max(float(step[1]), -width), width)
    return Place(kappa, min(max(t, -reach), reach), place.sign)


def fitted(task: Task, family: Family, found: list[Place]) -> Fit:
    """From one start after the other (there are false minima in κ) until the residual is within σ."""
    best: _Solved | None = None
    for start in _from_kinks(family.name, task.kinks) + [_like(task, family, place) for place in found]:
        solved = _refined(task, family, task.solve(family.atom, start))
        best = solved if best is None or solved.left < best.left else best
        if best.left <= task.sigma**2:
            break
    assert best is not None
    hidden = task.hidden(family.atom, best)
    blurred = best.place.kappa >= 0.5 * task.steepest
    return Fit(family.name, family.parameters, sqrt(best.left), hidden, best.c, best.place, blurred)


def _from_kinks(name: str, kinks: Floats) -> list[Place]:
    """Starts that the response's explicit kinks (in u, strongest first) suggest."""
    if name == "relu":
        return [Place(1.0, float(t)) for t in kinks[:1]]
    if name == "clip" and len(kinks) >= 2:
        low, high = sorted(kinks[:2].tolist())
        return [Place(2.0 / max(high - low, 1e-3), 0.5 * (low + high))]
    if name == "triangle" and len(kinks) >= 2:
        kappa = pi / max(float(np.median(np.diff(np.sort(kinks)))), 1e-3)
        return [Place(kappa, float(kinks[0]) - pi / (2.0 * kappa))]
    return []


def _like(task: Task, family: Family, found: Place) -> Place:
    """Where the family looks like the group's atom at `found`."""
    if family.group == "sine":
        y = found.kappa * task.points.u
        pair = task.coordinates(np.stack([np.sin(y), np.cos(y)]))
        a, b = np.linalg.lstsq(pair.T, task.target, rcond=None)[0]
        return Place(found.kappa, -float(np.arctan2(b, a)) / found.kappa)
    if not family.moves[0]:
        return Place(1.0, found.t)
    return Place(min(found.kappa * family.stretch, task.steepest), found.t, found.sign)


def polynomial_fits(task: Task, modulo: int) -> list[Fit]:
    """Degrees modulo + 1 … 4."""
    rows = task.coordinates(task.points.u ** np.arange(modulo + 1, 5)[:, None])
    fits = []
    for count in range(1, min(len(rows) + 1, len(task.target))):
        c = np.asarray(np.linalg.lstsq(rows[:count].T, task.target, rcond=None)[0], dtype=np.float64)
        left = float(np.linalg.norm(task.target - c @ rows[:count]))
        fits.append(Fit("polynomial", count, left, 0.0, 1.0, Place(1.0, 0.0), powers=c))
    return fits
