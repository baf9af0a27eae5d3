"""A few cheap questions before the search: the size of f, its noise, its bandwidth, and the subspace it depends on.

Noise: from fourth differences along very short lines; see `noise`. Where neighbours there have the same answer, or
answers are less exact than their type, also along longer ones; see `rounding`.

Bandwidth: the frequency below which 99 % of the windowed power of f along random chords lies.

Subspace: gradients of f are Σ s_i'(v_i·x) v_i. Where they span less than R^d, so do the v_i, and all further work can
be done in their span.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .deadline import check_time
from .errors import BadAnswer
from .geometry import Floats, in_ball, random_directions
from .gradient_span import MOST_DIMENSIONS, GradientSpan
from .noise import LINE_POINTS, LINES, exact_noise, identical_share, noise_level, short_lines
from .oracle.base import Oracle
from .rounding import Rounding, measure_rounding

BALL_POINTS = 256
"""Uniform points of the ball, from which the standard deviation of f is known to some 5 %."""
BALL_SHARE = 0.5
"""Share of a small budget that these points may take, so that something is known of f whatever the budget."""
AFFINE_POINTS = 2
"""Uniform points for each unknown of an affine function that fix it over the ball: what is left grows by √2 at most."""
REPEATED_POINTS = 4
"""Points that are asked twice, to see whether f is deterministic."""
QUANTISATION = 0.3
"""Standard deviation of a rounding error, in units of the last place: 1/√12."""
IDENTICAL = 0.25
"""Share of neighbours, a millionth of the radius apart, with the same answer from which on rounding is looked for."""
INEXACT = 10.0
"""Errors of a deterministic function, in those of the answers' type, from which on rounding is looked for."""
NOISE_MATTERS = 0.05
"""Share of the tolerance above which noise is measured more exactly, since it may limit the fit."""
UNIFORM_DEVIATION = np.sqrt(3.0)
"""A bound on the noise divided by this is the standard deviation of noise uniform within it."""
REPRESENTABLE = (1e-70, 1e70)
"""Sizes of answers whose fourth powers, summed over millions of points, neither underflow nor overflow."""
LEAST_NOISE = 1e-300
"""Noise is never 0, so that one may divide by it."""
LEAST_SIGNAL = 0.1
"""Share of the spread of noisy answers that is f's at the least: a smaller one cannot be told from 256 points."""
CHORDS = 8
"""Random chords on which the bandwidth is measured."""
CHORD_POINTS = (64, 256, 1024)
"""Points on each chord; the finer grids are for functions whose power is not inside a quarter of the coarser ones."""
CHORD_SHARE = 0.15
"""Share of the remaining budget that a finer grid on the chords may take: the search and the fit need the rest."""
POWER_ABOVE = 1e-2
"""Share of the power that may lie above the bandwidth."""
LEAST_PERIODS = 2
"""The bandwidth is at least that of so many half-periods across the ball, whatever the chords show."""
PARABOLA_DEVIATIONS, STRAIGHT_DEVIATIONS = 36.0, 1e3
"""Third differences over noise up to which answers are on a parabola, eight deviations; and second differences
over that error from which on they are on no line: those of smooth functions fall by less from one order to the next.
"""
INSIDE_POINTS = 64
"""Uniform points of the ball inside the subspace, from which the standard deviation there is known to some 10 %."""
INSIDE_SHARE = 10
"""Times the queries for this that must remain, for it not to take them from the search."""
KEPT_BYTES = 2**27
"""Memory for the questions of the survey, which the fit uses too; one of each later batch is kept in as much again."""
PROBABILITY_ERROR = 1e-3
"""Rows of probabilities sum to 1 within this, in single or half precision too."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known before the search."""

    std: float
    """Standard deviation of f over the ball, root mean square over outputs."""
    noise: float
    """Standard deviation of one answer's error; never 0."""
    bandwidth: float
    """Frequency, radians per unit length, below which nearly all power along random chords lies."""
    deterministic: bool
    """Every repeated question had the same answer."""
    basis: Floats
    """(r, d) orthonormal rows spanning the subspace that f depends on."""
    points: Floats
    """(m, d) questions of the survey inside the ball."""
    values: Floats
    """(m, p) their answers, for the fit to use."""
    probabilities: bool
    """Every answer was a row of probabilities."""
    largest: float = 0.0
    """Largest |answer| in the ball, over all outputs."""
    uniform: int = 0
    """The first so many of `points` are uniform in the ball; others are on chords and around gradients."""
    rounding: Rounding = field(default_factory=Rounding)
    """What rounding inside f leaves in its answers."""
    parabolas: float = 0.0
    """Share of the chords' windows of five neighbours whose answers lie on a parabola, but not on a line."""
    inner_std: float = 0.0
    """Standard deviation of f over the ball inside the subspace, where the search asks: in a ball of many dimensions
    most points are near the middle of every direction."""

    @cached_property
    def is_identity(self) -> bool:
        """Whether points are their own coordinates; a subspace grown to all of R^d may have turned ones."""
        r, d = self.basis.shape
        return r == d and bool(np.array_equal(self.basis, np.eye(d)))

    @property
    def random_noise(self) -> float:
        """Standard deviation of the part of one answer's error that is another one at any other point."""
        return 0.0 if self.deterministic else self.noise

    @classmethod
    def unknown(cls, dim: int) -> Survey:
        """Return what is known before anything was asked: nothing."""
        basis = np.eye(dim if dim <= MOST_DIMENSIONS else 1, dim)
        return cls(0.0, LEAST_NOISE, 1.0, True, basis, np.empty((0, dim)), np.empty((0, 1)), False)

    def inside(self, X: Floats) -> Floats:
        """Return the coordinates of the points X (m, d) in the subspace; X itself where they are the same."""
        return X if self.is_identity else X @ self.basis.T

    def uniform_samples(self) -> tuple[Floats, Floats] | None:
        """Return the uniform points in the coordinates of the subspace, and their answers; None if they are few.

        An affine function fitted to all points, many of them close to the centre, may be worse than a constant.
        """
        X, Y = self.points[: self.uniform], self.values[: self.uniform]
        there = np.isfinite(Y).all(axis=1)
        if there.sum() < AFFINE_POINTS * (1 + len(self.basis)):
            return None
        return self.inside(X[there]), Y[there]


class Recorder:
    """Asks for the survey and keeps questions and answers."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle, self.X, self.Y = oracle, list[Floats](), list[Floats]()
        self.kept_bytes = 0

    def __call__(self, X: Floats) -> Floats:
        check_time()
        Y = self.oracle(X, stage="survey")
        room = 2 * KEPT_BYTES - self.kept_bytes
        rows = len(X) if X.nbytes + Y.nbytes <= room - KEPT_BYTES or not self.X else min(1, room // X[:1].nbytes)
        self.X.append(X[:rows].copy())
        self.Y.append(Y[:rows].copy())
        self.kept_bytes += self.X[-1].nbytes + self.Y[-1].nbytes
        return Y

    def partial_survey(self, radius: float) -> Survey:
        """Return what the answers so far show, for a survey that did not come to its end."""
        least, most = REPRESENTABLE
        if not self.X or not least < self.oracle.largest < most:
            return Survey.unknown(self.oracle.dim)
        X, Y = np.concatenate(self.X), np.concatenate(self.Y)
        good = np.isfinite(Y).all(axis=1) & (np.linalg.norm(X, axis=1) <= radius * (1.0 + 1e-12))
        X, Y = X[good], Y[good]
        unknown = Survey.unknown(self.oracle.dim)
        return replace(
            unknown,
            basis=unknown.basis if self.oracle.dim <= MOST_DIMENSIONS else _trend(X, Y, unknown.basis),
            std=_deviation(Y),
            bandwidth=LEAST_PERIODS * np.pi / radius,
            points=X,
            values=Y if len(Y) else np.empty((0, self.oracle.outputs or 1)),
            largest=float(np.abs(Y).max(initial=0.0)),
        )


def _trend(X: Floats, Y: Floats, otherwise: Floats) -> Floats:
    """Return the unit row (1, d) along which the first of answers (m, p) grows most; `otherwise` if they do not."""
    if len(X) < 2:
        return otherwise
    row = (Y[:, :1] - Y[:, :1].mean()).T @ (X - X.mean(axis=0))
    size = float(np.linalg.norm(row))
    return row / size if 0.0 < size < np.inf else otherwise


def _deviation(values: Floats) -> float:
    """Return the standard deviation of `values` (m, p), root mean square over outputs; without overflow."""
    unit = 2.0 ** np.frexp(np.abs(values).max(initial=0.0))[1]  # a power of two: no digit changes
    return float(np.sqrt(np.mean(np.var(values / unit, axis=0))) * unit) if len(values) else 0.0


def run_survey(
    ask: Recorder, radius: float, noise: float | None, rng: np.random.Generator, *, tolerance: float = 1e-2
) -> Survey:
    """Ask about 256 + 1000 + d² questions and return what they show.

    `noise` is the user's bound on the error of one answer, or None; noise that may limit the tolerance is measured with
    some 450 questions more.
    """
    oracle = ask.oracle
    ball = in_ball(int(max(1, min(BALL_POINTS, BALL_SHARE * oracle.remaining))), oracle.dim, radius, rng)
    values = ask(ball)
    _check_sizes(oracle.largest)
    good = values[np.isfinite(values).all(axis=1)]
    std = _deviation(good)
    repeat = oracle.repeats(ball[:REPEATED_POINTS], stage="survey")
    lines = short_lines(ask, oracle.dim, radius, rng)
    typical = QUANTISATION * oracle.resolution
    seen = max(noise_level(lines), repeat.spread, typical)
    rounding = Rounding()
    if identical_share(lines) > IDENTICAL or (repeat.deterministic and seen > INEXACT * typical):
        rounding = measure_rounding(oracle, ask, radius, std, np.concatenate(ask.Y), rng)
    if noise is None and seen > NOISE_MATTERS * tolerance * std > 0.0 and seen > rounding.deviation:
        seen = max(exact_noise(ask, oracle.dim, radius, rng) or seen, typical)
    seen = max(seen, rounding.deviation)
    if noise is not None:
        seen = max(seen, noise / UNIFORM_DEVIATION)
    seen = max(seen, LEAST_NOISE)
    if not repeat.deterministic:  # the spread of noisy answers is not all f's
        std = float(np.sqrt(max(std**2 - seen**2, (LEAST_SIGNAL * std) ** 2)))
    before = len(ask.Y)
    frequency = bandwidth(ask, oracle.dim, radius, seen, rng, CHORD_SHARE * oracle.remaining)
    basis = GradientSpan(oracle, ask, radius, std, seen, rng).subspace()
    inner_std, inner_noise = (std, seen) if len(basis) == oracle.dim else _inside(ask, basis, radius, std, rng)
    return Survey(
        std=std,
        noise=max(seen, inner_noise),
        inner_std=inner_std,
        bandwidth=frequency,
        deterministic=repeat.deterministic,
        basis=basis,
        points=np.concatenate(ask.X),
        values=np.concatenate(ask.Y),
        probabilities=_are_probabilities(good),
        largest=float(np.abs(good).max(initial=0.0)),
        uniform=len(ball),
        rounding=rounding,
        parabolas=parabola_share(ask.Y[before : before + CHORDS], max(seen, typical)),
    )


def narrowed_survey(ask: Recorder, survey: Survey, basis: Floats, radius: float, rng: np.random.Generator) -> Survey:
    """Return the survey for the smaller subspace of `basis` (r, d), with f's size and noise there; no other points."""
    inner_std, noise = _inside(ask, basis, radius, survey.std, rng)
    points, values = np.empty((0, survey.points.shape[1])), np.empty((0, survey.values.shape[1]))
    if ask.X:
        points, values = np.concatenate(ask.X), np.concatenate(ask.Y)
    noise = max(survey.noise, noise)
    return replace(survey, basis=basis, inner_std=inner_std, noise=noise, points=points, values=values, uniform=0)


def _inside(ask: Recorder, basis: Floats, radius: float, std: float, rng: np.random.Generator) -> tuple[float, float]:
    """Return the standard deviation of f over the ball inside the subspace of `basis` (r, d), and its noise there.

    Answers are larger there than in the whole ball, and so is their rounding. `std` stands in for what is not known.
    """
    r = len(basis)
    if ask.oracle.remaining < INSIDE_SHARE * (INSIDE_POINTS + LINES * LINE_POINTS):
        return std, 0.0
    values = ask(in_ball(INSIDE_POINTS, r, radius, rng) @ basis)
    lines = short_lines(lambda Y: ask(Y @ basis), r, radius, rng)
    values = values[np.isfinite(values).all(axis=1)]
    typical = QUANTISATION * ask.oracle.rounding * float(np.abs(values).max(initial=0.0))
    return max(_deviation(values), std), max(noise_level(lines), typical)


def _check_sizes(largest: float) -> None:
    """Raise BadAnswer where powers of answers of this size overflow or underflow."""
    least, most = REPRESENTABLE
    if largest > 0 and not least < largest < most:
        raise BadAnswer(
            f"the largest answer is {largest:.1e}, whose fourth power is no number in double precision; divide the "
            f"function by {largest:.0e} or so"
        )


def bandwidth(
    ask: Callable[[Floats], Floats],
    dim: int,
    radius: float,
    noise: float,
    rng: np.random.Generator,
    affordable: float = float("inf"),
) -> float:
    """Return the frequency (radians per unit length) below which 99 % of the power along random chords lies.

    A finer grid is asked only if it takes at most `affordable` queries.
    """
    through = random_directions(CHORDS, dim, rng)
    for count in CHORD_POINTS:
        if count > CHORD_POINTS[0] and CHORDS * count > affordable:
            break
        t = (np.arange(count) + 0.5) * (2.0 * radius / count) - radius
        Y = np.stack([ask(t[:, None] * chord) for chord in through])
        there = np.isfinite(Y)
        Y = np.where(there, Y, Y[there].mean() if there.any() else 0.0)
        design = np.stack([np.ones(count), t], axis=1)
        Y = Y - design @ np.linalg.lstsq(design, Y.transpose(1, 0, 2).reshape(count, -1), rcond=None)[0].reshape(
            2, CHORDS, -1
        ).transpose(1, 0, 2)
        power = np.abs(np.fft.rfft(Y * np.hanning(count)[:, None], axis=1)) ** 2
        power = power.sum(axis=2)
        total = np.maximum(power.sum(axis=1, keepdims=True), 1e-300)
        above = total - np.cumsum(power, axis=1)
        floor = np.maximum(POWER_ABOVE, noise**2 * count * count / total)
        edge = int(np.max(np.argmax(above <= floor * total, axis=1)))
        if edge < count // 4:
            break
    return float(max(edge, LEAST_PERIODS) * np.pi / radius)


def parabola_share(chords: list[Floats], noise: float) -> float:
    """Return the share of windows of five neighbours in answers (m, p) along chords that are on a parabola, not a line.

    Of a piecewise quadratic function these are all that meet no kink, and of others none but by chance. (Four answers
    are on a parabola whenever they are symmetric, as around a kink at the centre.)
    """
    on_parabolas, windows = 0, 0
    for Y in chords:
        second, third = (np.linalg.norm(np.diff(Y, k, axis=0), axis=1) for k in (2, 3))
        error = PARABOLA_DEVIATIONS * noise * np.sqrt(Y.shape[1])
        fits = (third[1:] <= error) & (third[:-1] <= error)
        on_parabolas += int(np.sum(fits & (second[1:-1] > STRAIGHT_DEVIATIONS * error)))
        windows += len(fits)
    return on_parabolas / max(windows, 1)


def _are_probabilities(values: Floats) -> bool:
    """Return whether every row of `values` (m, p) is a row of probabilities."""
    if values.size == 0 or values.min() < 0 or values.max() > 1:
        return False
    return values.shape[1] > 1 and bool(np.abs(values.sum(axis=1) - 1.0).max() < PROBABILITY_ERROR)
