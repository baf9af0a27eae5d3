"""Closed forms of one response: the families, and the splines that stand for them.

A closed form is c·φ(κu + b), u = z/R in [−1, 1], with φ from `shapes.families` or from those added here, and a
p-vector c. The affine part of f takes up every line, so that families which differ by lines are one: leaky ReLU is
ReLU, and both are ½|y|; sigmoid is tanh. For the same reason the sign of a direction is a gauge wherever
φ(−y) = ±φ(y) + line, as

    |−y| = |y|,   softplus(−y) = softplus(y) − y,   gelu(−y) = gelu(y) − y,   silu(−y) = silu(y) − y,

and tanh, erf, arctan, sine are odd. Only the families named in `ONE_SIDED` tell v from −v.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ..bspline import design_matrix, interpolation_nodes
from ..geometry import Floats
from ..shapes.families import FAMILIES, Family

Indices = NDArray[np.intp]
_GELU_SLOPE, _GELU_CUBIC = sqrt(2.0 / pi), 0.044715  # of GELU's approximation by tanh (Hendrycks and Gimpel, 2016)
MIN_KAPPA, MAX_KAPPA = 0.05, 256.0
"""Limits of |κ|: a form of smaller κ is a parabola, one of larger κ a kink or noise, whatever its family."""
_MIN_INTERVALS, _MAX_INTERVALS = 8, 512  # of the spline that represents a closed form
_CHECKS = 4  # points per interval at which the error of such a spline is measured


def _gelu_tanh(y: Floats) -> tuple[Floats, Floats]:
    square = y * y  # a product is many times as fast as a power
    t = np.tanh(_GELU_SLOPE * y * (1.0 + _GELU_CUBIC * square))
    inner = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * square)
    return 0.5 * y * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * y * (1.0 - t * t) * inner


def _mish(y: Floats) -> tuple[Floats, Floats]:
    # t = tanh(log(1 + e^y)) as a quotient of polynomials of e^−|y|: far faster than the functions themselves.
    e, right = np.exp(-np.abs(y)), y > 0.0
    above, rest = np.where(right, 1.0 + 2.0 * e, e * (e + 2.0)), np.where(right, 2.0 * e * e, 2.0)
    t, complement = above / (above + rest), rest / (above + rest)
    return y * t, t + y * complement * (1.0 + t) * expit(y)


ACTIVATIONS: tuple[Family, ...] = (
    *FAMILIES,
    Family("gelu_tanh", _gelu_tanh, "dip"),
    Family("mish", _mish, "dip", 1.2),
    Family("square", lambda y: (y * y, 2.0 * y), "power", moves=(False, False)),
    Family("cube", lambda y: (y * y * y, 3.0 * y * y), "power", moves=(False, True)),
)
"""All families, from common to rare; a family is referred to by its index here."""
ONE_SIDED = ("exponential", "mish")
"""Families with φ(−y) ≠ ±φ(y) + line, for which the sign of κ matters."""
SPLINE = -1
"""Stands for a family's index where a feature has no closed form."""
INDEX = {family.name: i for i, family in enumerate(ACTIVATIONS)}


def atoms(family: Indices, y: Floats) -> tuple[Floats, Floats]:
    """Return φ(y) and φ'(y), row by row of y (k, M), for the families (k,) of the rows; equal ones are adjacent."""
    values, slopes = np.empty_like(y), np.empty_like(y)
    edges = np.flatnonzero(np.diff(family, prepend=-1, append=-1))
    for start, end in pairwise(edges):
        values[start:end], slopes[start:end] = ACTIVATIONS[family[start]].atom(y[start:end])
    return values, slopes


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
