"""Fit one closed form to a response: separable least squares from the placements that the grid suggests.

A response is known up to an affine part, so every family φ is fitted as

    s(z) ≈ c·φ(y) + affine,      y = κ(u − t),  u = z/R in [−1, 1]

c and the affine part are eliminated; log κ and t are found by Levenberg–Marquardt. The response is a spline with K
cells, which blurs a narrow bend. So a form is compared after projection onto the spline space without affine
functions (`ShapeProblem.space`), and the size of the part removed by the projection is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, pi, sqrt

import numpy as np

from ..geometry import Floats
from .families import Atom, Family, Placement, Points

SIGNIFICANT = 3.0
"""Standard errors σ: a misfit up to this is explained by the errors of the response."""
MAX_DEGREE = 4
"""Highest degree of the polynomials tried; more coefficients would explain anything."""
_STEEPEST = 2.0  # times the number of cells: κ of a bend or rise of half a cell
_BLURRED = 0.5  # of that: from here on the profile is not visible
_LM_STEPS = 30
_FIRST_DAMPING, _MIN_DAMPING, _MAX_DAMPING, _FALL, _RISE = 1e-3, 1e-9, 1e4, 0.1, 10.0
_EXACT = 1e-24  # of the response's square: rounding errors
_CONVERGED, _SLOW, _FAR = 1e-6, 0.1, 6.0  # gain that ends the iteration; the same while the misfit is above 6σ
_MAX_LOG_KAPPA, _MIN_KAPPA = 0.7, 0.5  # of a step: at most a factor of two; below κ = 0.5 every form is a polynomial
_REACH = 2.0  # widths 1/κ beyond [−1, 1] at which a bend may be: farther away it is not visible
_SHORTEST = 1e-3  # distance of kinks, in units of R
_TINY = 1e-300  # keeps a quotient of zeros finite


@dataclass(frozen=True, eq=False)
class ShapeFit:
    """One closed form with its best parameters."""

    family: str
    parameters: int
    """Number of parameters, c included."""
    seen: float
    """RMS of the response minus the form."""
    hidden: float
    """RMS of the part of the form that the response's cells cannot represent."""
    amplitude: float
    place: Placement
    blurred: bool = False
    """True if steeper than the response's cells can represent: the position is known, the profile is not."""
    powers: Floats | None = None
    """The coefficients of u², u³, … of a polynomial."""

    def is_acceptable(self, sigma: float) -> bool:
        """Return whether the misfit is within the response's errors σ and the part that its cells cannot represent."""
        if self.blurred and self.family in ("softplus", "gelu", "silu"):
            return False  # a kink, which is called relu
        if self.family == "clip" and abs(self.place.t) + 1.0 / self.place.kappa > 1.0:
            return False  # one of its kinks is outside: also a relu
        # The fit that made the response blurs a hidden part by its own sample, not exactly as this projection does.
        return self.seen**2 <= (SIGNIFICANT * sigma) ** 2 + self.hidden**2

    def score(self, sigma: float, numbers: int) -> float:
        """Return the Bayesian information criterion for a response of `numbers` coefficients."""
        return numbers * (self.seen / sigma) ** 2 + self.parameters * log(numbers)


@dataclass(frozen=True, eq=False)
class _Solved:
    """The linear parameter c at a placement."""

    place: Placement
    c: float
    rows: Floats
    """(3, D) φ and its derivatives by log κ and t, in the coordinates of the space."""
    rest: Floats
    left: float
    """Squared norm of the residual `rest` (D,)."""


@dataclass(frozen=True, eq=False)
class ShapeProblem:
    """The response to be explained, in the coordinates of its spline space."""

    points: Points
    space: Floats
    """(M, D) orthonormal columns: all functions that the response can represent, without affine ones."""
    target: Floats
    """(D,) the response in these coordinates."""
    cells: int
    kinks: Floats
    """Positions of its kinks in u, strongest first."""
    sigma: float
    """RMS error of the response's values."""

    def coordinates(self, rows: Floats) -> Floats:
        """Return functions at u, (…, M), in the coordinates of the space, (…, D)."""
        return np.asarray((rows * self.points.weight) @ self.space)

    def solve(self, atom: Atom, place: Placement) -> _Solved:
        """Solve for the best c at this placement."""
        y = place.y(self.points.u)
        value, slope = atom(y)
        rows = self.coordinates(np.stack([value, slope * y, (-place.sign * place.kappa) * slope]))
        c = float(rows[0] @ self.target) / max(float(rows[0] @ rows[0]), _TINY)
        rest = self.target - c * rows[0]
        return _Solved(place, c, rows, rest, float(rest @ rest))

    def hidden(self, atom: Atom, solved: _Solved) -> float:
        """Return the RMS of the part of c·φ that the response's cells cannot represent."""
        whole = self.points.project(atom(solved.place.y(self.points.u))[0])
        square = float(whole @ whole) - float(solved.rows[0] @ solved.rows[0])
        return abs(solved.c) * sqrt(max(square, 0.0))

    @property
    def steepest(self) -> float:
        """The largest κ to try."""
        return _STEEPEST * self.cells


def fit_family(problem: ShapeProblem, family: Family, found: list[Placement], *, all_starts: bool = False) -> ShapeFit:
    """Fit a family from the response's kinks and from the placements `found` on its group's grid."""
    starts = _from_kinks(family.name, problem.kinks) + [_start_of(problem, family, place) for place in found]
    return fit_from(problem, family, starts, all_starts=all_starts)


def fit_from(problem: ShapeProblem, family: Family, starts: list[Placement], *, all_starts: bool = False) -> ShapeFit:
    """Fit a family from one start after the other, as there are false minima in κ, until the residual is within σ.

    With `all_starts` none is left out, and the best of all is returned.
    """
    best: _Solved | None = None
    for start in starts:
        solved = _minimise(problem, family, problem.solve(family.atom, start))
        best = solved if best is None or solved.left < best.left else best
        if best.left <= problem.sigma**2 and not all_starts:
            break
    assert best is not None
    hidden = problem.hidden(family.atom, best)
    blurred = best.place.kappa >= _BLURRED * problem.steepest
    return ShapeFit(family.name, family.parameters, sqrt(best.left), hidden, best.c, best.place, blurred)


def _minimise(problem: ShapeProblem, family: Family, now: _Solved) -> _Solved:
    """Minimise over (log κ, t) by Levenberg–Marquardt, the linear parameters eliminated (Kaufman's Jacobian):

    (J Jᵀ + μ diag J Jᵀ) δ = J r,   J = c·(∂φ/∂log κ, ∂φ/∂t) without its part along φ and the affine functions.
    """
    damping, moves = _FIRST_DAMPING, np.flatnonzero(family.moves)
    exact = _EXACT * float(problem.target @ problem.target)
    for _ in range(_LM_STEPS):
        row = now.rows[0]
        jacobian = now.c * now.rows[1:][moves]
        jacobian -= np.multiply.outer(jacobian @ row / max(float(row @ row), _TINY), row)
        normal, gradient = jacobian @ jacobian.T, jacobian @ now.rest
        normal.flat[:: len(moves) + 1] *= 1.0 + damping
        if now.left <= exact or damping > _MAX_DAMPING or not normal.diagonal().min() > 0.0:
            break
        step = np.zeros(2)
        step[moves] = _solve_small(normal, gradient)
        trial = problem.solve(family.atom, _stepped(now.place, step, problem.steepest))
        if not trial.left < now.left:
            damping *= _RISE
            continue
        gain, now = 1.0 - trial.left / now.left, trial
        damping = max(_FALL * damping, _MIN_DAMPING)
        if gain < _CONVERGED or (gain < _SLOW and now.left > (_FAR * problem.sigma) ** 2):
            break
    return now


def _solve_small(matrix: Floats, right: Floats) -> Floats:
    """Solve by Cramer's rule for 1×1 and damped, hence regular, 2×2: ten times as fast as a general solver."""
    if len(right) == 1:
        return np.asarray(right / matrix[0, 0])
    (a, b), (c, d) = matrix.tolist()
    x, y = right.tolist()
    return np.asarray([d * x - b * y, a * y - c * x]) / float(a * d - b * c)


def _stepped(place: Placement, step: Floats, steepest: float) -> Placement:
    """Return the placement after a step of at most a factor of two in κ and a width in t, the bend near [−1, 1]."""
    turn = min(max(step[0], -_MAX_LOG_KAPPA), _MAX_LOG_KAPPA)
    kappa = min(max(place.kappa * exp(turn), _MIN_KAPPA), steepest)
    reach, width = 1.0 + _REACH / kappa, 1.0 / kappa
    t = place.t + min(max(float(step[1]), -width), width)
    return Placement(kappa, min(max(t, -reach), reach), place.sign)


def _from_kinks(name: str, kinks: Floats) -> list[Placement]:
    """Return starts that the response's explicit kinks (in u, strongest first) suggest."""
    if name == "relu":
        return [Placement(1.0, float(t)) for t in kinks[:1]]
    if name == "clip" and len(kinks) >= 2:
        low, high = sorted(kinks[:2].tolist())
        return [Placement(2.0 / max(high - low, _SHORTEST), 0.5 * (low + high))]
    if name == "triangle" and len(kinks) >= 2:
        kappa = pi / max(float(np.median(np.diff(np.sort(kinks)))), _SHORTEST)
        return [Placement(kappa, float(kinks[0]) - pi / (2.0 * kappa))]
    return []


def _start_of(problem: ShapeProblem, family: Family, found: Placement) -> Placement:
    """Return the placement at which the family is closest to its group's atom at `found`."""
    if family.group == "sine":
        y = found.kappa * problem.points.u
        pair = problem.coordinates(np.stack([np.sin(y), np.cos(y)]))
        a, b = np.linalg.lstsq(pair.T, problem.target, rcond=None)[0]
        return Placement(found.kappa, -float(np.arctan2(b, a)) / found.kappa)
    if not family.moves[0]:
        return Placement(1.0, found.t)
    return Placement(min(found.kappa * family.stretch, problem.steepest), found.t, found.sign)


def fit_polynomials(problem: ShapeProblem) -> list[ShapeFit]:
    """Fit polynomials of degree 2, 3 and 4 without affine part."""
    rows = problem.coordinates(problem.points.u ** np.arange(2, MAX_DEGREE + 1)[:, None])
    fits = []
    for count in range(1, min(len(rows) + 1, len(problem.target))):
        c = np.asarray(np.linalg.lstsq(rows[:count].T, problem.target, rcond=None)[0], dtype=np.float64)
        left = float(np.linalg.norm(problem.target - c @ rows[:count]))
        fits.append(ShapeFit("polynomial", count, left, 0.0, 1.0, Placement(1.0, 0.0), powers=c))
    return fits
