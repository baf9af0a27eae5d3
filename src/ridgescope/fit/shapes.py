"""Naming a response: which closed form, if any, explains it?

A response is known only modulo an affine part (the gauge), so every family φ is fitted as

    s(z) ≈ c·φ(y) + polynomial of degree `modulo`,      y = κ(u − t),  u = z/R in [−1, 1],

by separable least squares: c and the polynomial are eliminated, log κ and t are found by Levenberg–Marquardt
from the best atom of a grid. The response is a spline with K cells, which shows a narrow bend only blurred.
So a form is compared as such a spline would show it, projected onto the spline space without its
polynomials (`_Task.space`), and what the projection hides of it is known.

Modulo an affine part some families are one: relu, leaky relu and abs are all c|z − t| ("relu"); sigmoid is
tanh of half the argument ("tanh"); log cosh is softplus. Only one name of each is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, log, log2, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, expit, ndtr

from ..errors import InvalidInput
from ..geometry import Floats
from ..response import Response, basis
from ..result import Shape

Atom = Callable[[Floats], tuple[Floats, Floats]]
"""y ↦ (φ(y), φ'(y))."""

_EXACTNESS = 1 / 300
"""Of a response's RMS: how well it is known at best. Thrice this is the 1 % of the default tolerance."""
_GRID_MISFIT = 0.5
"""Of a response's RMS: what a group's best grid atom may leave for its families to be worth a fit. The grid
is so dense that random members of a family leave 0.1 as a rule, and less than this in 99 cases of 100."""
_STEEP = 9.0
"""κ above which a sigmoid is a step: nine tenths of its rise (tanh ±1.5 = ±0.905) take a sixth of [−R, R]."""


# -- families -----------------------------------------------------------------------------------------------


def _abs(y: Floats) -> tuple[Floats, Floats]:
    return 0.5 * np.abs(y), 0.5 * np.sign(y)


def _softplus(y: Floats) -> tuple[Floats, Floats]:
    return np.logaddexp(0.0, y), expit(y)


def _gelu(y: Floats) -> tuple[Floats, Floats]:
    below = ndtr(y)
    return y * below, below + y * np.exp(-0.5 * y * y) / sqrt(2 * pi)


def _silu(y: Floats) -> tuple[Floats, Floats]:
    p = expit(y)
    return y * p, p * (1.0 + y * (1.0 - p))


def _tanh(y: Floats) -> tuple[Floats, Floats]:
    value = np.tanh(y)
    return value, 1.0 - value * value


def _erf(y: Floats) -> tuple[Floats, Floats]:
    return erf(y), np.exp(-y * y) * (2.0 / sqrt(pi))


def _arctan(y: Floats) -> tuple[Floats, Floats]:
    return np.arctan(y), 1.0 / (1.0 + y * y)


def _clip(y: Floats) -> tuple[Floats, Floats]:
    return np.clip(y, -1.0, 1.0), (np.abs(y) < 1.0).astype(np.float64)


def _bump(y: Floats) -> tuple[Floats, Floats]:
    value = np.exp(-0.5 * y * y)
    return value, -y * value


def _sine(y: Floats) -> tuple[Floats, Floats]:
    return np.sin(y), np.cos(y)


def _triangle(y: Floats) -> tuple[Floats, Floats]:
    return (2 / pi) * np.arcsin(np.sin(y)), (2 / pi) * np.sign(np.cos(y))


def _exponential(y: Floats) -> tuple[Floats, Floats]:
    value = np.exp(y)
    return value, value


@dataclass(frozen=True)
class _Family:
    name: str
    atom: Atom
    group: str
    """Whose grid its search starts from."""
    stretch: float = 1.0
    """κ of the family that looks most like the group's own atom with κ = 1."""
    moves: tuple[bool, bool] = (True, True)
    """Whether κ and t are parameters."""

    @property
    def parameters(self) -> int:
        return 1 + sum(self.moves)


_FAMILIES = (  # from the common to the rare
    _Family("relu", _abs, "hinge", moves=(False, True)),
    _Family("softplus", _softplus, "hinge"),
    _Family("gelu", _gelu, "dip"),
    _Family("silu", _silu, "dip", 1.7),
    _Family("tanh", _tanh, "sigmoid"),
    _Family("erf", _erf, "sigmoid", 0.85),
    _Family("arctan", _arctan, "sigmoid", 1.7),
    _Family("clip", _clip, "sigmoid", 0.75),
    _Family("bump", _bump, "bump"),
    _Family("sine", _sine, "sine"),
    _Family("triangle", _triangle, "sine"),
    _Family("exponential", _exponential, "exponential", moves=(True, False)),
)
_RISE = {"erf": 2.0, "clip": 2.0, "arctan": pi}
_GROUP_ATOM: dict[str, Atom] = {
    "hinge": _softplus,
    "dip": _gelu,  # a hinge that first goes the wrong way: the best softplus says little about its κ
    "sigmoid": _tanh,
    "bump": _bump,
    "sine": _sine,
    "exponential": _exponential,
}


@dataclass(frozen=True)
class _Place:
    """y = sign·κ·(u − t); the sign matters to the exponential alone, others are even or odd modulo affine."""

    kappa: float
    t: float
    sign: float = 1.0

    def y(self, u: Floats) -> Floats:
        return (self.sign * self.kappa) * (u - self.t)


# -- sample points, projection, grid ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Points:
    """Midpoints u (M,) of [−1, 1], root weights with squares adding up to 1, and the polynomials' basis."""

    u: Floats
    root: Floats
    polynomials: Floats
    """(M, modulo+1) orthonormal columns spanning root·(1, u, …)."""

    def project(self, rows: Floats) -> Floats:
        """Functions at u, (…, M), times root and without their polynomial part."""
        rows = rows * self.root
        return np.asarray(rows - (rows @ self.polynomials) @ self.polynomials.T)


def _count(intervals: int) -> int:
    """Four points a cell within 256 … 1024: a power of two, so that few different grids are ever made."""
    return int(np.clip(1 << ceil(log2(4 * intervals)), 256, 1024))


@lru_cache(maxsize=16)
def _points(count: int, modulo: int, weight: bytes | None) -> _Points:
    u = (2.0 * np.arange(count) + 1.0) / count - 1.0
    root = np.ones(count)
    if weight is not None:
        given = np.frombuffer(weight)
        root = np.sqrt(np.interp(u, np.linspace(-1.0, 1.0, len(given)), given))
    root /= np.linalg.norm(root)
    columns = np.linalg.qr(np.polynomial.legendre.legvander(u, modulo) * root[:, None])[0]
    return _Points(u, root, columns)


@dataclass(frozen=True, eq=False)
class _Grid:
    """Projected atoms of unit norm, (A, M), or for sines pairs of them, (A, 2, M); equal κ side by side."""

    atoms: Floats
    kappa: Floats
    t: Floats
    sign: Floats

    def best(self, target: Floats) -> tuple[float, list[_Place]]:
        """Share of |target|² that the best atom leaves, and up to three places to start from, best first.

        These are the local maxima over κ of the best over t: one for each valley of the misfit in κ.
        """
        inner = self.atoms @ target
        energy = inner * inner if inner.ndim == 1 else np.einsum("ab,ab->a", inner, inner)
        edges = np.flatnonzero(np.diff(self.kappa, prepend=-1.0))
        best = np.maximum.reduceat(energy, edges)
        around = np.concatenate([[0.0], best, [0.0]])
        tops = np.flatnonzero((best >= around[:-2]) & (best >= around[2:]))
        tops = tops[np.argsort(-best[tops], kind="stable")][:3]
        where = [int(np.flatnonzero(energy == value)[0]) for value in best[tops]]
        places = [_Place(float(self.kappa[i]), float(self.t[i]), float(self.sign[i])) for i in where]
        return 1.0 - float(best.max()) / float(target @ target), places


def _scales(low: float, high: float, factor: float) -> Floats:
    return np.asarray(low * np.power(factor, np.arange(ceil(log(high / low) / log(factor)) + 1)))


@lru_cache(maxsize=64)
def _grid(group: str, count: int, modulo: int, weight: bytes | None) -> _Grid:
    """Neighbours differ by a factor 1.4 in κ and by 0.5/κ in t, less than the width of what they show."""
    points = _points(count, modulo, weight)
    if group == "sine":
        return _sine_grid(points, highest=count * pi / 16)  # four cells to a period
    if group == "exponential":
        kappa = np.tile(_scales(0.5, 16.0, 1.5), 2)
        sign = np.repeat([1.0, -1.0], len(kappa) // 2)
        t = sign
    else:
        places = [(k, t) for k in _scales(1.0, min(count / 8, 64), 1.4) for t in _spread(1.0 + 1.0 / k, 0.5 / k)]
        kappa, t = np.array(places).T
        sign = np.ones(len(t))
    y = (sign * kappa)[:, None] * (points.u - t[:, None])
    rows = points.project(_GROUP_ATOM[group](y)[0])
    return _Grid(rows / np.linalg.norm(rows, axis=1, keepdims=True), kappa, t, sign)


def _spread(reach: float, step: float) -> Floats:
    return np.linspace(-reach, reach, ceil(2.0 * reach / step) + 1)


def _sine_grid(points: _Points, highest: float) -> _Grid:
    """Frequencies 1/2 apart, from half a period over [−1, 1]; below that a sine is a polynomial."""
    kappa = np.arange(pi / 2, highest, 0.5)
    y = kappa[:, None] * points.u
    pair = points.project(np.stack([np.sin(y), np.cos(y)], axis=1))
    pair[:, 0] /= np.linalg.norm(pair[:, 0], axis=1, keepdims=True)
    pair[:, 1] -= np.einsum("am,am->a", pair[:, 0], pair[:, 1])[:, None] * pair[:, 0]
    pair[:, 1] /= np.linalg.norm(pair[:, 1], axis=1, keepdims=True)
    return _Grid(pair, kappa, np.zeros(len(kappa)), np.ones(len(kappa)))


@lru_cache(maxsize=16)
def _spline_space(intervals: int, count: int, modulo: int, weight: bytes | None) -> Floats:
    """(M, D) orthonormal columns: the splines of so many cells, without the polynomials."""
    points = _points(count, modulo, weight)
    k, weights = basis(points.u, 1.0, intervals)
    rows = np.zeros((intervals + 3, count))
    for j in range(4):
        rows[k + j, np.arange(count)] += weights[j]
    return _columns(points.project(rows))


def _columns(rows: Floats) -> Floats:
    """(M, rank) orthonormal columns that span the rows (n, M)."""
    vectors, sizes, _ = np.linalg.svd(rows.T, full_matrices=False)
    return np.asarray(vectors[:, sizes > 1e-10 * max(1.0, float(sizes.max(initial=0.0)))])


# -- one family ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Fit:
    family: str
    parameters: int
    """How many, c included."""
    seen: float
    """RMS of what it leaves of the response."""
    hidden: float
    """RMS of the part of it that the response's cells cannot show."""
    amplitude: float
    place: _Place
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

    place: _Place
    c: float
    rows: Floats
    """(3, D) φ and its derivatives by log κ and t, in the coordinates of the space."""
    rest: Floats
    left: float
    """Square of the residual `rest` (D,)."""


@dataclass(frozen=True, eq=False)
class _Task:
    """What is to be explained."""

    points: _Points
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

    def solve(self, atom: Atom, place: _Place) -> _Solved:
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


def _refined(task: _Task, family: _Family, now: _Solved, rounds: int = 30) -> _Solved:
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


def _stepped(place: _Place, step: Floats, steepest: float) -> _Place:
    """At most a factor of two in κ and a width in t, and a bend that stays in sight of [−1, 1]."""
    kappa = min(max(place.kappa * exp(min(max(step[0], -0.7), 0.7)), 0.5), steepest)
    reach, width = 1.0 + 2.0 / kappa, 1.0 / kappa
    t = place.t + min(max(float(step[1]), -width), width)
    return _Place(kappa, min(max(t, -reach), reach), place.sign)


def _fitted(task: _Task, family: _Family, found: list[_Place]) -> _Fit:
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
    return _Fit(family.name, family.parameters, sqrt(best.left), hidden, best.c, best.place, blurred)


def _from_kinks(name: str, kinks: Floats) -> list[_Place]:
    """Starts that the response's explicit kinks (in u, strongest first) suggest."""
    if name == "relu":
        return [_Place(1.0, float(t)) for t in kinks[:1]]
    if name == "clip" and len(kinks) >= 2:
        low, high = sorted(kinks[:2].tolist())
        return [_Place(2.0 / max(high - low, 1e-3), 0.5 * (low + high))]
    if name == "triangle" and len(kinks) >= 2:
        kappa = pi / max(float(np.median(np.diff(np.sort(kinks)))), 1e-3)
        return [_Place(kappa, float(kinks[0]) - pi / (2.0 * kappa))]
    return []


def _like(task: _Task, family: _Family, found: _Place) -> _Place:
    """Where the family looks like the group's atom at `found`."""
    if family.group == "sine":
        y = found.kappa * task.points.u
        pair = task.coordinates(np.stack([np.sin(y), np.cos(y)]))
        a, b = np.linalg.lstsq(pair.T, task.target, rcond=None)[0]
        return _Place(found.kappa, -float(np.arctan2(b, a)) / found.kappa)
    if not family.moves[0]:
        return _Place(1.0, found.t)
    return _Place(min(found.kappa * family.stretch, task.steepest), found.t, found.sign)


def _polynomial_fits(task: _Task, modulo: int) -> list[_Fit]:
    """Degrees modulo + 1 … 4."""
    rows = task.coordinates(task.points.u ** np.arange(modulo + 1, 5)[:, None])
    fits = []
    for count in range(1, min(len(rows) + 1, len(task.target))):
        c = np.asarray(np.linalg.lstsq(rows[:count].T, task.target, rcond=None)[0], dtype=np.float64)
        left = float(np.linalg.norm(task.target - c @ rows[:count]))
        fits.append(_Fit("polynomial", count, left, 0.0, 1.0, _Place(1.0, 0.0), powers=c))
    return fits


# -- the choice ---------------------------------------------------------------------------------------------


def name_shape(
    response: Response, noise: float = 0.0, weight: ArrayLike | None = None, *, modulo: int = 1
) -> Shape | None:
    """The closed form that explains a response, or None.

    `noise` is the standard error of the response's values. `weight`, on a uniform grid of [−R, R] of any
    length, says where it matters (uniform where None). Polynomials of degree `modulo` do not count: 1 for the
    gauge, more where so many features leave low-degree parts undetermined. A vector-valued response is named
    by its leading singular vector over z, of either sign, where that explains it.

    A form is acceptable when it leaves an RMS of at most 3σ, σ = max(noise, RMS/300): the response is not
    known better than its standard error, and a fit to the default tolerance of 1 % supports no claim beyond
    that. What the response's cells cannot show of the form (a kink between two knots) is allowed for on top.
    Acceptable forms are compared by

        N·(residual/σ)² + (number of parameters)·log N,      N = K + 3 coefficients of the spline.

    Of those within log N of the smallest, which the data do not tell apart, the simplest is named. A response
    that is itself within 3·noise of affine has no name.
    """
    count = _count(response.intervals)
    key = None if weight is None else _weight_key(weight)
    points = _points(count, modulo, key)
    values, total = _leading(points, response)
    outside = max(total - float(values @ values), 0.0)
    rms = sqrt(total)
    sigma = max(noise, _EXACTNESS * rms)
    rounding = 1e-10 * float(np.abs(response.coefficients).max(initial=0.0))
    if rms <= max(3.0 * noise, rounding) or outside > (3.0 * sigma) ** 2:
        return None
    task = _task(points, response, values, _spline_space(response.intervals, count, modulo, key), sigma)
    starts = {group: _grid(group, count, modulo, key).best(values) for group in _GROUP_ATOM}
    fits = [fit for fit in _all_fits(task, modulo, starts) if fit.acceptable(sigma)]
    if not fits:
        return None
    best = _simplest(fits, sigma, response.intervals + 3)
    return _written(best, response.radius, modulo, r2=1.0 - (best.seen**2 + outside) / total)


def _weight_key(weight: ArrayLike) -> bytes:
    """The weights as something that a cache can hold."""
    array = np.ascontiguousarray(weight, dtype=np.float64)
    if array.ndim != 1 or not (array >= 0).all() or not 0 < array.sum() < np.inf:
        raise InvalidInput(f"weight must be a row of numbers ≥ 0, not all of them 0; got {array}")
    return array.tobytes()


def _simplest(fits: list[_Fit], sigma: float, numbers: int) -> _Fit:
    """Fewest parameters, then the order of `_FAMILIES`, among the fits that σ cannot tell from the best."""
    scores = [fit.score(sigma, numbers) for fit in fits]
    rivals = [fit for fit, score in zip(fits, scores, strict=True) if score <= min(scores) + log(numbers)]
    order = ["polynomial", *(family.name for family in _FAMILIES)]
    return min(rivals, key=lambda fit: (fit.parameters, order.index(fit.family)))


def _all_fits(task: _Task, modulo: int, starts: dict[str, tuple[float, list[_Place]]]) -> list[_Fit]:
    """Likeliest group first: once a fit leaves a mere tenth of σ, none with as many parameters can matter."""
    fits = _polynomial_fits(task, modulo)
    for group in sorted(starts, key=lambda g: starts[g][0]):
        left, places = starts[group]
        for family in _FAMILIES:
            settled = any(f.seen <= 0.1 * task.sigma and f.parameters <= family.parameters for f in fits)
            few = family.parameters < len(task.target)  # else it would explain anything
            if family.group == group and left < _GRID_MISFIT**2 and few and not settled:
                fits.append(_fitted(task, family, places))
    return fits


def _leading(points: _Points, response: Response) -> tuple[Floats, float]:
    """The projected response (M,), of several outputs the leading combination, and its mean square in all."""
    values = response(response.radius * points.u)
    if values.ndim == 1:
        row = points.project(values)
        return row, float(row @ row)
    rows = points.project(values.T)
    _, vectors = np.linalg.eigh(rows @ rows.T)
    return np.asarray(vectors[:, -1] @ rows), float(np.sum(rows * rows))


def _task(points: _Points, response: Response, values: Floats, space: Floats, sigma: float) -> _Task:
    """The response's kinks, those inside (−R, R), add their own atoms to what it can show."""
    t = response.kinks / response.radius
    size = np.linalg.norm(np.atleast_2d(response.kink_weights.T), axis=0)
    t = t[np.argsort(-size, kind="stable")]
    t = t[np.abs(t) < 1.0]
    if len(t):
        atoms = points.project(np.abs(points.u - t[:, None]))
        space = np.concatenate([space, _columns(atoms - (atoms @ space) @ space.T)], axis=1)
    return _Task(points, space, values @ space, response.intervals, t, sigma)


# -- as a person would write it -----------------------------------------------------------------------------


def _written(fit: _Fit, radius: float, modulo: int, r2: float) -> Shape:
    if fit.powers is not None:
        return _written_polynomial(fit.powers, radius, modulo, r2)
    c, k, t = fit.amplitude, fit.place.sign * fit.place.kappa / radius, fit.place.t * radius
    name, b = fit.family, -k * t
    if name == "relu":
        jump = c / radius
        return Shape("relu", {"at": t, "jump": jump}, f"{_factor(jump)}relu({_shifted(t, radius)})", r2)
    if name == "bump":
        width = 1.0 / k
        formula = f"{_factor(c)}exp(−({_shifted(t, radius)})²/(2·{_number(width)}²))"
        return Shape("bump", {"amplitude": c, "at": t, "width": width}, formula, r2)
    if name == "exponential":
        c *= exp(b)
        return Shape("exponential", {"amplitude": c, "rate": k}, f"{_factor(c)}exp({_linear(k, 0.0)})", r2)
    if name == "tanh" and fit.place.kappa > _STEEP:
        numbers = {"height": 2.0 * c, "at": t, "steepness": 2.0 * k}
        inside = _shifted(t, radius)
        inside = f"{_number(2.0 * k)}({inside})" if inside != "z" else _linear(2.0 * k, 0.0)
        formula = f"{_factor(2.0 * c)}sigmoid({inside})"
        return Shape("step", numbers, formula, r2)
    if name in ("erf", "clip", "arctan") and fit.blurred:
        formula = f"{_factor(_RISE[name] * c)}step({_shifted(t, radius)})"
        return Shape("step", {"height": _RISE[name] * c, "at": t}, formula, r2)
    if name in ("sine", "triangle"):
        b = (b + pi * (c < 0) + pi) % (2.0 * pi) - pi
        c = abs(c)
        written = "sin" if name == "sine" else "triangle"
        numbers = {"amplitude": c, "frequency": k, "phase": b}
        return Shape(name, numbers, f"{_factor(c)}{written}({_linear(k, b)})", r2)
    inside = f"{_linear(k, b)}, −1, 1" if name == "clip" else _linear(k, b)
    return Shape(name, {"amplitude": c, "steepness": k, "bias": b}, f"{_factor(c)}{name}({inside})", r2)


def _written_polynomial(powers: Floats, radius: float, modulo: int, r2: float) -> Shape:
    degrees = range(modulo + 1, modulo + 1 + len(powers))
    c = {j: float(p) / radius**j for j, p in zip(degrees, powers, strict=True)}
    visible = [j for j, p in zip(degrees, powers, strict=True) if abs(p) > 5e-4 * np.abs(powers).max()]
    terms = [f"{_factor(c[j]).rstrip('·')}z{'⁰¹²³⁴'[j]}" for j in visible]
    formula = " + ".join(terms).replace("+ −", "− ")
    return Shape("polynomial", {f"c{j}": value for j, value in c.items()}, formula, r2)


def _number(x: float) -> str:
    return f"{x:.3g}".replace("-", "−")


def _factor(c: float) -> str:
    text = _number(c)
    return {"1": "", "−1": "−"}.get(text, text + "·")


def _shifted(t: float, radius: float) -> str:
    """z − t; a shift too small to see in three digits of the radius is none."""
    if abs(t) < 5e-4 * radius:
        return "z"
    return f"z − {_number(t)}" if t > 0 else f"z + {_number(-t)}"


def _linear(k: float, b: float) -> str:
    slope = {"1": "z", "−1": "−z"}.get(_number(k), f"{_number(k)}z")
    if abs(b) < 5e-4:
        return slope
    return f"{slope} + {_number(b)}" if b > 0 else f"{slope} − {_number(-b)}"
