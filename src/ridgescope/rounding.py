"""Rounding inside the function: answers of few digits, and inputs that are rounded before anything is computed.

Points a millionth of the radius apart may round to one input, or their answers to one number. Then neighbouring answers
are identical and say nothing about the error, which shows only over steps as long as those that stencils and fits take.
A hash, a wave of high frequency or a forest of trees looks much like this, and is no rounding. So the cause must be
shown first:

- *rounded answers* are whole multiples of a quantum q, with errors of at most q/2 and a standard deviation of q/√12, or
  they are all numbers of a short format, such as bfloat16, in whose last place the error is;
- *rounded inputs*: all points of a cell, which the format rounds to one number, have the same answer, and points of
  different cells have not. The error is then the misfit of a local cubic along lines with points a few cells apart, as
  fourth differences show it. That of a smooth function is far smaller, and a kink or a jump is met by few lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .geometry import Floats, in_ball, random_directions
from .noise import LINE_POINTS, line_variances
from .oracle.base import Oracle

TIE_PAIRS, TIE_STEP = 8, 1e-9
"""Pairs of points whose answers are compared, and their distance in radii: below the spacing of single precision, and
far above that of double precision."""
TIES = 0.5
"""Share of these pairs that must agree; of a function in single precision, nine in ten do."""
FIRST_CELLS, MORE_CELLS = 4, 12
"""Cells whose opposite corners are compared for each format, and for one that has passed."""
CELLS_INSIDE = 0.9
"""Radii within which the middles of cells lie, so that corners are inside the ball."""
SHORTER, CORNER = 0.8, 0.9
"""Factor on the distance of a corner from the middle until both round to the same, and another one for safety."""
NEXT_CELL = 3.0
"""Distance from the middle, in half widths, of a point in another cell."""
DIFFERENT = 0.4
"""Share of such points that must have another answer: a forest of trees has the same one in eight of ten."""
LINES = 16
"""Lines for the misfit, which is then known to some 30 %: rounding errors vary with the place."""
CELLS_PER_STEP, STEPS = 8.0, (3e-3, 5e-2)
"""Distance of a line's points in relative rounding errors of the inputs, and its limits in radii: over shorter steps
errors are not independent, and over longer ones f bends."""
OUTLIER = 10.0
"""Times the upper quartile of the variances: a line that meets a kink or a jump. The median would not do, since
errors are far smaller where responses are saturated than elsewhere."""
MOST_ERROR = 16.0
"""Largest deviation that rounded inputs explain, in relative rounding errors of the inputs and standard deviations of
f: layers with one to three roundings have 1 to 2, and a hash of rounded inputs has hundreds."""
BOUND_DEVIATIONS = 6.0
"""Largest rounding error in deviations: 4 to 8 true ones among thousands of errors of bfloat16 and float16 layers."""
MOST_QUANTUM = 0.15
"""Largest quantum, in standard deviations of f: a function of a few jumps has values on a coarser grid."""
LEAST_QUANTUM = 1e-6
"""Least quantum, in largest answers: a finer one matters to no tolerance, and any number has a last digit."""
LEAST_LEVELS = 16
"""Different answers without which a common quantum or format may be chance."""
MOST_PARTS = 6
"""The smallest difference between answers may be so many quanta."""
ROUNDED_UNITS = 16.0
"""Double-precision rounding units of the largest answer by which a multiple of the quantum may be off, beside one unit
of the answers' own type."""
CLEAR = 0.2
"""Share of a quantum that this must be below, for multiples to differ from other numbers."""
WINDOW_GROWTH = 8.0
"""Factor from one window of differences to the next, in which the quantum is known eight times better."""


@dataclass(frozen=True)
class Rounding:
    """The error that rounding inside the function leaves in its answers; all zero where none was found."""

    deviation: float = 0.0
    """Standard deviation of the error."""
    bound: float = 0.0
    """Largest error: half a last place of the answers, or a few deviations where inputs are rounded."""
    of_answers: bool = False
    """Whether answers are rounded, rather than inputs."""


@dataclass(frozen=True)
class _Format:
    """A way to round numbers."""

    relative: float
    """Largest error, relative to the size of the inputs."""
    rounded: Callable[[Floats], Floats]

    @classmethod
    def binary(cls, bits: int) -> _Format:
        """Return the format of numbers with so many significant bits."""

        def rounded(X: Floats) -> Floats:
            mantissa, exponent = np.frexp(X)
            return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits))

        return cls(2.0**-bits, rounded)

    @classmethod
    def decimal(cls, decimals: int, size: float) -> _Format:
        """Return the format of numbers with so many decimals, for numbers of this size."""
        return cls(0.5 * 10.0**-decimals / size, lambda X: np.round(X, decimals))


SHORT = (_Format.binary(8), _Format.binary(11))
"""bfloat16, and float16 or the tensor cores' TF32."""


def measure_rounding(
    oracle: Oracle,
    ask: Callable[[Floats], Floats],
    radius: float,
    std: float,
    earlier: Floats,
    rng: np.random.Generator,
) -> Rounding:
    """Return what rounding inside f leaves, from 16 queries and, where neighbouring answers agree, 32 to 180 more.

    `ask` asks the oracle, and `earlier` are its answers so far.
    """
    if std <= 0:
        return Rounding()
    at = in_ball(TIE_PAIRS, oracle.dim, (1.0 - TIE_STEP) * radius, rng)
    Y = ask(np.concatenate([at, at + TIE_STEP * radius * random_directions(TIE_PAIRS, oracle.dim, rng)]))
    if _same_share(*np.split(Y, 2)) < TIES:
        return Rounding()
    of_answers = _answer_rounding(np.concatenate([earlier, Y]), std, oracle.rounding)
    of_inputs = _input_rounding(oracle, ask, radius, std, rng)
    return max(of_inputs, of_answers, key=lambda found: found.deviation)


def _same_share(first: Floats, second: Floats) -> float:
    """Return the share of answers (m, p) in `first` that are the same numbers as in `second`."""
    finite = np.isfinite(first) & np.isfinite(second)
    return float(np.mean((first == second)[finite])) if finite.any() else 0.0


# -- rounded inputs ------------------------------------------------------------------------------------------


def _input_rounding(
    oracle: Oracle, ask: Callable[[Floats], Floats], radius: float, std: float, rng: np.random.Generator
) -> Rounding:
    """Return the error that rounding of the inputs leaves, if one of a few formats explains that neighbours agree."""
    size = float(np.sqrt(np.mean(oracle.center**2 + (radius * oracle.scale) ** 2)))
    for form in (*SHORT, _Format.decimal(2, size), _Format.decimal(3, size)):
        if _has_cells(form, oracle, ask, radius, rng):
            step = float(np.clip(CELLS_PER_STEP * form.relative, *STEPS))
            deviation = _misfit(step, ask, oracle.dim, radius, rng)
            if deviation <= MOST_ERROR * form.relative * std:
                return Rounding(deviation, BOUND_DEVIATIONS * deviation)
    return Rounding()


def _has_cells(
    form: _Format, oracle: Oracle, ask: Callable[[Floats], Floats], radius: float, rng: np.random.Generator
) -> bool:
    """Return whether f is constant on the cells of a format, and differs from one cell to another."""

    def asked(X: Floats) -> Floats:
        return ask((X - oracle.center) / oracle.scale)

    for count in (FIRST_CELLS, MORE_CELLS):
        X = oracle.center + oracle.scale * in_ball(count, oracle.dim, CELLS_INSIDE * radius, rng)
        middle = form.rounded(X)
        down, up = (_half_width(form, middle, sign) for sign in (-1.0, 1.0))
        corners = np.concatenate([middle - CORNER * down, middle + CORNER * up, middle + NEXT_CELL * up])
        if float(np.linalg.norm((corners - oracle.center) / oracle.scale, axis=1).max()) > radius:
            return False
        low, high = np.split(asked(corners[: 2 * count]), 2)
        if _same_share(low, high) < 1.0:
            return False
    return _same_share(high, asked(corners[2 * count :])) <= 1.0 - DIFFERENT


def _half_width(form: _Format, middle: Floats, sign: float) -> Floats:
    """Return how far each coordinate of `middle` (m, d) may move to the side of `sign` and still be rounded to it."""
    away = np.maximum(np.abs(middle), 1.0)
    while (off := form.rounded(middle + sign * away) != middle).any():
        away[off] *= SHORTER
    return away


def _misfit(step: float, ask: Callable[[Floats], Floats], dim: int, radius: float, rng: np.random.Generator) -> float:
    """Return the standard deviation of an answer's error, from random lines with points `step` radii apart."""
    places = step * radius * (np.arange(LINE_POINTS) - LINE_POINTS // 2)
    middle = in_ball(LINES, dim, radius - places[-1], rng)
    X = middle[:, None, :] + places[None, :, None] * random_directions(LINES, dim, rng)[:, None, :]
    variances = line_variances(ask(X.reshape(-1, dim)).reshape(LINES, LINE_POINTS, -1))
    if not len(variances):
        return 0.0
    return float(np.sqrt(np.mean(variances[variances <= OUTLIER * np.quantile(variances, 0.75)])))


# -- rounded answers -----------------------------------------------------------------------------------------


def _answer_rounding(answers: Floats, std: float, rounding: float) -> Rounding:
    """Return the error that rounding of the answers leaves; `rounding` is the machine epsilon of their type."""
    values = answers[np.isfinite(answers)]
    if len(np.unique(values)) < LEAST_LEVELS:
        return Rounding()
    q = quantum(values, rounding)
    if q > MOST_QUANTUM * std:
        return Rounding()
    half = np.full(len(values), 0.5 * q)  # of a last place
    for form in SHORT:
        if np.array_equal(form.rounded(values), values):
            half = np.maximum(half, 0.5 * form.relative * 2.0 ** np.frexp(values)[1])
            break
    return Rounding(float(np.sqrt(np.mean(half**2) / 3.0)), float(half.max()), bool(half.any()))


def quantum(answers: Floats, rounding: float) -> float:
    """Return q such that all answers are c + k·q with whole numbers k, up to rounding; 0 where there is none.

    The smallest difference between two answers is a small multiple of q. Larger differences then tell q more exactly.
    """
    values = np.unique(answers)
    largest = float(np.abs(values).max())
    error = (rounding + ROUNDED_UNITS * float(np.finfo(np.float64).eps)) * largest
    values = values[np.concatenate([[True], np.diff(values) > error])]
    if len(values) < LEAST_LEVELS:
        return 0.0
    gaps = np.diff(values)
    smallest = float(gaps.min())
    for parts in range(1, MOST_PARTS + 1):
        q = smallest / parts
        if q < LEAST_QUANTUM * largest or error > CLEAR * q:
            return 0.0
        q = _sharpened(q, gaps, np.abs(values - values[len(values) // 2]))
        multiples = (values - values[0]) / q
        if float(np.abs(multiples - np.round(multiples)).max()) <= error / q:
            return q
    return 0.0


def _sharpened(q: float, gaps: Floats, distances: Floats) -> float:
    """Return q fitted to `gaps` and then to `distances` in growing windows, both of them multiples of it."""
    reach, far = WINDOW_GROWTH * q, float(distances.max())
    while True:
        for lengths in (gaps, distances):
            some = lengths[lengths <= reach]
            counts = np.round(some / q)
            if counts.any():
                q = float(counts @ some / (counts @ counts))
        if reach >= far:
            return q
        reach *= WINDOW_GROWTH
