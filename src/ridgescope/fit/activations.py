"""Closed forms of one response: the families, where a coarse response suggests that they start, and their splines.

A closed form is c·φ(κu + b), u = z/R in [−1, 1], with φ from `shapes.families` or from those added here, and a
p-vector c. The affine part of f takes up every line, so that families which differ by lines are one: leaky ReLU is
ReLU, and both are ½|y|; sigmoid is tanh. For the same reason the sign of a direction is a gauge wherever
φ(−y) = ±φ(y) + line, as

    |−y| = |y|,   softplus(−y) = softplus(y) − y,   gelu(−y) = gelu(y) − y,   silu(−y) = silu(y) − y,

and tanh, erf, arctan, sine are odd. Only the families named in `ONE_SIDED` tell v from −v.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ..bspline import design_matrix, interpolation_nodes
from ..geometry import Floats
from ..shapes.families import FAMILIES, Family, Points, grid_of, point_count, sample_points, spline_space

Indices = NDArray[np.intp]
_GELU_SLOPE, _GELU_CUBIC = sqrt(2.0 / pi), 0.044715  # of GELU's approximation by tanh (Hendrycks and Gimpel, 2016)
_CUBES = 9  # starting shifts of a cube over [−1, 1]
_PHASES = 4  # starting phases of a sine, over half a period
_NARROW_GAIN = 1.5  # factor of the misfit by which a narrower bend must be better than a wider one to be started from
_FIT_STEPS = 12  # of the fit to coarse responses, which are not worth more digits
_DAMPING, _FALL, _RISE = 1e-2, 0.2, 8.0
_RIDGE = 1e-12  # of the largest diagonal entry
_TINY = 1e-300  # keeps a quotient of zeros finite
_VISIBLE = 1e-9  # of an atom's norm: what is left of it without its affine part, if it bends at all
_MAX_STEP = 0.5  # of κ or of a width, in one step
MIN_KAPPA, MAX_KAPPA = 0.05, 256.0
"""Limits of |κ|: a form of smaller κ is a parabola, one of larger κ a kink or noise, whatever its family."""
_MIN_INTERVALS, _MAX_INTERVALS = 8, 512  # of the spline that represents a closed form
_CHECKS = 4  # points per interval at which the error of such a spline is measured


def _gelu_tanh(y: Floats) -> tuple[Floats, Floats]:
    t = np.tanh(_GELU_SLOPE * (y + _GELU_CUBIC * y**3))
    inner = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * y * y)
    return 0.5 * y * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * y * (1.0 - t * t) * inner


def _mish(y: Floats) -> tuple[Floats, Floats]:
    t = np.tanh(np.logaddexp(0.0, y))
    return y * t, t + y * (1.0 - t * t) * expit(y)


ACTIVATIONS: tuple[Family, ...] = (
    *FAMILIES,
    Family("gelu_tanh", _gelu_tanh, "dip"),
    Family("mish", _mish, "dip", 1.2),
    Family("square", lambda y: (y * y, 2.0 * y), "power", moves=(False, False)),
    Family("cube", lambda y: (y**3, 3.0 * y * y), "power", moves=(False, True)),
)
"""All families, from common to rare; a family is referred to by its index here."""
ONE_SIDED = ("exponential", "mish")
"""Families with φ(−y) ≠ ±φ(y) + line, for which the sign of κ matters."""
SPLINE = -1
"""Stands for a family's index where a feature has no closed form."""
INDEX = {family.name: i for i, family in enumerate(ACTIVATIONS)}


@dataclass(frozen=True, eq=False)
class Starts:
    """Closed forms of one family that are closest to n given responses."""

    family: int
    kappa: Floats
    b: Floats
    misfit: Floats
    """(n,) squared distances from the responses."""


@dataclass(frozen=True, eq=False)
class CoarseResponses:
    """The leading component of each coarse response, in coordinates of the spline space without affine functions."""

    intervals: int
    rows: Floats
    """(n, D)."""

    @classmethod
    def of(cls, values: Floats, intervals: int) -> CoarseResponses:
        """Take the leading component over the outputs of responses (n, M, p) at R·u, u the points of this grid."""
        points, space = _grid(intervals)
        inner = np.einsum("nmp,md->ndp", values * points.weight, space)
        vectors = np.linalg.eigh(np.einsum("ndp,nep->nde", inner, inner))
        return cls(intervals, np.asarray(np.sqrt(np.maximum(vectors[0][:, -1:], 0.0)) * vectors[1][:, :, -1]))

    def start(self, family: int, kinks: tuple[Floats, ...] | None = None) -> Starts:
        """Return the closed forms of a family closest to the responses; `kinks` are positions in u known already."""
        kappa, b, atoms = _atoms(family, self.intervals)
        inner = self.rows @ atoms.T
        left = np.maximum(np.sum(self.rows**2, axis=1)[:, None] - inner**2, 0.0)
        # Coarse responses do not show how narrow a bend is: start from the widest that is nearly the best.
        enough = left <= _NARROW_GAIN * left.min(axis=1, keepdims=True) + _TINY
        at = np.where(enough, -np.abs(kappa), -np.inf).argmax(axis=1)
        near = enough & (np.abs(kappa) <= np.abs(kappa[at])[:, None])
        at = np.where(near, left, np.inf).argmin(axis=1)
        fitted = self._fitted(family, kappa[at], b[at])
        if not ACTIVATIONS[family].moves[0] and kinks is not None:
            known = [i for i, t in enumerate(kinks) if len(t)]
            fitted.b[known] = [-fitted.kappa[i] * kinks[i][0] for i in known]
        return fitted

    def _fitted(self, family: int, kappa: Floats, b: Floats) -> Starts:
        """Minimise the misfit over (κ, b) by Levenberg–Marquardt, all responses at once."""
        moves = np.array(ACTIVATIONS[family].moves, dtype=np.float64)
        damping = np.full(len(kappa), _DAMPING)
        left, J, rest = self._linearised(family, kappa, b)
        for _ in range(_FIT_STEPS):
            J = J * moves[:, None]
            normal, g = np.einsum("nad,nbd->nab", J, J), np.einsum("nad,nd->na", J, rest)
            diagonal = np.einsum("naa->na", normal)
            normal = normal + np.eye(2) * (damping[:, None] * diagonal + _TINY)[:, :, None]
            step = np.linalg.solve(normal + np.eye(2) * (_RIDGE * diagonal.max() + _TINY), g[:, :, None])[:, :, 0]
            new = bounded(kappa, kappa + np.clip(step[:, 0], -_MAX_STEP * np.abs(kappa), _MAX_STEP * np.abs(kappa)))
            trial = self._linearised(family, new, b + np.clip(step[:, 1], -_MAX_STEP, _MAX_STEP))
            better = trial[0] < left
            damping = np.where(better, _FALL * damping, _RISE * damping)
            b = np.where(better, b + np.clip(step[:, 1], -_MAX_STEP, _MAX_STEP), b)
            kappa = np.where(better, new, kappa)
            left = np.where(better, trial[0], left)
            J = np.where(better[:, None, None], trial[1], J)
            rest = np.where(better[:, None], trial[2], rest)
        return Starts(family, kappa, b.copy(), left)

    def _linearised(self, family: int, kappa: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the squared misfit (n,), its projected Jacobian (n, 2, D) and the residual (n, D)."""
        points, space = _grid(self.intervals)
        value, slope = ACTIVATIONS[family].atom(kappa[:, None] * points.u + b[:, None])
        basis = space * points.weight
        row = value @ basis
        size = np.maximum(np.sum(row * row, axis=1), _TINY)
        c = np.sum(row * self.rows, axis=1) / size
        rest = self.rows - c[:, None] * row
        J = np.stack([(slope * points.u) @ basis, slope @ basis], axis=1) * c[:, None, None]
        J -= (np.einsum("nad,nd->na", J, row) / size[:, None])[:, :, None] * row[:, None, :]
        return np.sum(rest * rest, axis=1), J, rest


def bounded(old: Floats, kappa: Floats) -> Floats:
    """Return κ within its limits, with the sign that it had."""
    return np.asarray(np.sign(old) * np.clip(np.sign(old) * kappa, MIN_KAPPA, MAX_KAPPA))


def _grid(intervals: int) -> tuple[Points, Floats]:
    """Return the points at which responses on that many intervals are compared, and their spline space."""
    count = point_count(intervals)
    return sample_points(count), spline_space(intervals, count)


@lru_cache(maxsize=128)
def _atoms(family: int, intervals: int) -> tuple[Floats, Floats, Floats]:
    """Return κ (A,), b (A,) and the normalised atoms (A, D) of a family that coarse responses are compared with."""
    form = ACTIVATIONS[family]
    points, space = _grid(intervals)
    if form.group == "power":
        b = np.linspace(-1.0, 1.0, _CUBES) if form.moves[1] else np.zeros(1)
        kappa = np.ones(len(b))
    elif form.group == "sine":
        grid = grid_of(form.group, len(points.u))
        kappa = np.repeat(grid.kappa, _PHASES)
        b = np.tile(pi * np.arange(_PHASES) / _PHASES, len(grid.kappa))
    else:
        grid = grid_of(form.group, len(points.u))
        kappa = grid.sign * grid.kappa * form.stretch if form.moves[0] else np.ones(len(grid.t))
        b = -kappa * grid.t if form.moves[1] else np.zeros(len(grid.t))
    if form.name in ONE_SIDED and form.moves[1]:
        kappa, b = np.concatenate([kappa, -kappa]), np.concatenate([b, b])
    whole = form.atom(kappa[:, None] * points.u + b[:, None])[0] * points.weight
    atoms = whole @ space
    size = np.linalg.norm(atoms, axis=1)
    bends = size > _VISIBLE * np.linalg.norm(whole, axis=1)
    return kappa[bends], b[bends], atoms[bends] / size[bends, None]


# -- splines -------------------------------------------------------------------------------------------------


def kinks_of(name: str, kappa: float, b: float) -> tuple[Floats, Floats]:
    """Return the kinks of φ(κu + b) in (−1, 1) and the weights of |u − t| there."""
    low, high = sorted((b - kappa, b + kappa))
    if name == "relu":
        y, weight = np.zeros(1), np.full(1, 0.5)
    elif name == "clip":
        y, weight = np.array([-1.0, 1.0]), np.array([0.5, -0.5])
    elif name == "triangle":
        turn = np.arange(np.ceil(low / pi - 0.5), np.floor(high / pi - 0.5) + 1.0)
        y, weight = pi * (turn + 0.5), -(2.0 / pi) * (-1.0) ** turn
    else:
        return np.empty(0), np.empty(0)
    inside = (y > low) & (y < high)
    return (y[inside] - b) / kappa, weight[inside] * abs(kappa)


@lru_cache(maxsize=16)
def _interpolation(intervals: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return nodes of [−1, 1], the matrix from values there to coefficients, checking points, and the design there."""
    nodes = interpolation_nodes(1.0, intervals)
    inverse = np.asarray(np.linalg.inv(design_matrix(nodes, 1.0, intervals)), dtype=np.float64)
    checks = np.linspace(-1.0, 1.0, _CHECKS * intervals + 1)
    return nodes, inverse, checks, design_matrix(checks, 1.0, intervals)


def as_spline(family: int, kappa: float, b: float, error: float) -> tuple[Floats, Floats, Floats]:
    """Return spline coefficients, kinks and kink weights of φ(κu + b) on [−1, 1], correct to `error` if possible.

    The spline interpolates what is left without the kinks; its number of intervals is the least power of two that
    suffices, so that its error, which falls like the fourth power, is measured and not estimated.
    """
    form = ACTIVATIONS[family]
    t, weight = kinks_of(form.name, kappa, b)

    def smooth(u: Floats) -> Floats:
        return np.asarray(form.atom(kappa * u + b)[0] - np.abs(u[:, None] - t) @ weight)

    intervals = _MIN_INTERVALS
    while True:
        nodes, inverse, checks, design = _interpolation(intervals)
        coefficients = inverse @ smooth(nodes)
        wrong = float(np.abs(design @ coefficients - smooth(checks)).max())
        if wrong <= error or intervals >= _MAX_INTERVALS:
            return coefficients, t, weight
        intervals *= 2
