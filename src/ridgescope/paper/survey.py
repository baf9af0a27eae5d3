"""What is measured before the search: the span of the features (footnote on n < d), and practical settings.

Span. ∇f(x) = a + Σ_i σ_i′(v_i·x) v_i. Subtracting the mean over points removes a, and what is left lies in span{v_i :
σ_i not affine}. Its singular vectors give an orthonormal Q (d, r); y ↦ f(Qy) is a sum of features in R^r with
directions Qᵀv_i, plus an affine part.

Settings, where the paper says "a sufficiently large polynomial". The slope of f is sampled along random lines, windowed
and transformed. The frequency below which nearly all of its power lies bounds the search; its size against the stated
noise sets the length α of the differences.

Letters: ℓ width of a window, R radius of the ball, t frequency along a direction, α length of a difference, η
smoothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..geometry import Floats, frozen, random_directions
from . import arguments
from .mass import CountedField, Field

# Settings of the survey. "Empirical" values were chosen on planted targets with d = 3 to 5 (`test_acceptance`).
_ELL = 5.0
"""ℓ/R. Empirical: a wider window makes tubes narrower and hence separates closer features, but spends samples, and asks
for responses, farther outside of the ball."""
_ELL2 = 1.3
"""ℓ₂/ℓ₁. Empirical: responses are recovered on one ray, where a somewhat wider window costs no separation."""
_LOWEST = 5.0
"""Lowest frequency used, in units of 1/ℓ: five tube widths from the origin, where the tubes of features more than about
0.2 rad apart no longer overlap."""
_LINE_REACH, _LINE_OFFSET, _LINE_WINDOW = 2.5, 0.5, 0.8
"""Half length of the survey's lines, standard deviation of their offset, and width of the window on them, in units of
ℓ: the part of space where EstWeight samples. At its ends the window has fallen to exp(−(2.5/0.8)²/2) < 1 %."""
_MARGIN = 1.3
"""Search this factor beyond the frequency at which the required share of the power is reached. Empirical: kinks have
power at all frequencies; more costs grid cells and with them false candidates."""
_LEAST_FREQUENCY = 60.0
"""Least frequency limit in units of 1/ℓ, twelve times the lowest one. Empirical: smooth responses need that much of the
ray to be seen."""
_NYQUIST_SHARE = 0.5
"""Largest frequency limit, as a share of the Nyquist frequency of the lines; above it power is aliased."""
_ALPHA_PER_NOISE = 14.0
"""A difference over α has noise √2·noise/α; this is a tenth of the slope at α = 14·noise/slope."""
_ALPHA_LEAST, _ALPHA_MOST = 0.5, 2.0
"""Limits of α in units of 1/frequency, so that a difference still resolves the shortest wave."""
_ETA = 0.2
"""η/α. Empirical: the smoothing must blur less than the difference does."""

_LEAST_POINTS, _POINTS_PER_DIM = 200, 4
"""Gradients of `find_subspace`: max(200, 4d), several for each dimension of any possible span."""
_COARSE, _FINE = 0.02, 0.01
"""Lengths of the two central differences of `find_subspace`, in units of R."""
_ABOVE_ERROR = 1.5
"""A singular value counts when it exceeds the norm of the disagreement of the two differences, along its direction, by
half. Independent noise alone makes that norm √(1 + ¼) of the singular value, the longer difference having half the
noise of the shorter one, so noise never counts."""
_ABOVE_ZERO, _RELATIVE_ZERO = 1e-9, 1e-7
"""Singular values below 1e-9·R, or 1e-7 of the largest one, are rounding."""
_GAP = 4.0
"""Ratio of neighbouring singular values that counts as a gap. Empirical: without one, no dimension is left out."""


@dataclass(frozen=True)
class Settings:
    """What `learn` needs beside f.

    ell, ell2: widths of the windows of the search and of the responses (the paper's ℓ₁, ℓ₂); frequency: largest |y|
    searched in Fourier space; lowest: smallest |t| at which the tubes of different features are distinguished; alpha,
    eta: difference length and smoothing of "Removing boundedness"; samples, most: m of the first and of the last
    rounds of search; refine: least m of a refinement of directions and responses; separation: γ, the least sine
    between two features; rounds: how often the search is made at most, on what is left of f;
    sigmas: the 5 of "5τ"; repeats: independent searches put to a vote; candidates: heaviest candidates followed at
    each level (None: all); negligible: features whose distance from affine on the ball is below this share of f's
    standard deviation count as affine; estimator: of the masses, see `find_directions`; queries: values of f that the
    survey itself used. The defaults are empirical: docs/theory.md shows what they find and cost.
    """

    ell: float
    ell2: float
    frequency: float
    lowest: float
    alpha: float
    eta: float
    samples: int = 60_000
    most: int = 600_000
    refine: int = 100_000
    separation: float = 0.1
    rounds: int = 24
    sigmas: float = 5.0
    repeats: int = 1
    candidates: int | None = 40
    negligible: float = 0.003
    estimator: str = "disjoint_pairs"
    queries: int = 0

    def __post_init__(self) -> None:
        for name in ("ell", "ell2", "frequency", "lowest", "alpha", "separation", "sigmas"):
            arguments.positive(name, getattr(self, name))
        for name in ("eta", "negligible"):
            arguments.not_negative(name, getattr(self, name))
        for name in ("samples", "most", "refine", "repeats"):
            arguments.count(name, getattr(self, name))
        arguments.estimator(self.estimator)
        if self.candidates is not None:
            arguments.count("candidates", self.candidates)

    @property
    def top(self) -> float:
        """Largest |t| at which responses are evaluated. Along a known ray values below the noise are left out, so going
        beyond the search's own limit costs nothing and keeps edges sharp."""
        return 2.5 * self.frequency

    @property
    def table_step(self) -> float:
        """Spacing of tabulated responses: forty points for the shortest wave."""
        return 0.15 / self.top

    @property
    def reach(self) -> float:
        """Half width of tabulated responses: about four standard deviations of v·x among the samples of EstWeight."""
        return 3.2 * self.ell


def survey(
    f: Field,
    *,
    dim: int,
    radius: float = 3.0,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
    lines: int = 32,
    points: int = 2048,
    share: float = 0.97,
) -> Settings:
    """Choose settings for a ball from values of f along random lines.

    Parameters
    ----------
    f
        Maps points (m, d) to values (m,).
    dim, radius
        Dimension d of the points and radius R of the ball.
    noise
        Largest error of a value.
    rng
        Source of the lines.
    lines, points
        Number of lines, and of points on each; their product is the number of values used.
    share
        Share of the power of the slope that must lie below `Settings.frequency`, on every line.

    Returns
    -------
    Settings
        With the defaults for everything that the survey does not measure.

    Examples
    --------
    >>> settings = rs.paper.survey(
    ...     lambda X: np.sin(2 * X[:, 0]), dim=2, radius=3.0, rng=np.random.default_rng(0))
    >>> settings.ell, settings.frequency > 2
    (15.0, True)
    """
    dim, radius, rng = arguments.count("dim", dim), arguments.positive("radius", radius), arguments.generator(rng)
    noise, share = arguments.not_negative("noise", noise), arguments.share("share", share)
    lines, points = arguments.count("lines", lines), arguments.count("points", points)
    f = CountedField(f)
    ell = _ELL * radius
    z = np.linspace(-_LINE_REACH * ell, _LINE_REACH * ell, points)
    gap = float(z[1] - z[0])
    u = random_directions(lines, dim, rng)
    offset = _LINE_OFFSET * ell * rng.standard_normal((lines, dim))
    values = np.stack([f(offset[i] + z[:, None] * u[i]) for i in range(lines)])
    slope = np.diff(values, axis=1) / gap
    window = np.exp(-((z[1:] - gap / 2) ** 2) / (2 * (_LINE_WINDOW * ell) ** 2))
    slope = slope - (slope @ window / window.sum())[:, None]
    rms_slope = math.sqrt(float(np.mean(slope**2)))
    slope *= window
    power = np.abs(np.fft.rfft(slope, axis=1)) ** 2
    t = 2 * math.pi * np.fft.rfftfreq(points - 1, gap)
    power -= np.median(power[:, -points // 8 :], axis=1, keepdims=True)  # the noise floor: the highest frequencies
    power[:, t < _LOWEST / ell] = 0.0
    power = np.maximum(power, 0.0)
    cumulative = np.cumsum(power, axis=1) / np.maximum(power.sum(axis=1, keepdims=True), 1e-300)
    edge = t[np.argmax(cumulative >= share, axis=1)]
    frequency = float(np.clip(_MARGIN * edge.max(), _LEAST_FREQUENCY / ell, _NYQUIST_SHARE * math.pi / gap))
    alpha = _ALPHA_PER_NOISE * noise / max(rms_slope, 1e-300)
    alpha = float(np.clip(alpha, _ALPHA_LEAST / frequency, _ALPHA_MOST / frequency))
    return Settings(
        ell=ell,
        ell2=_ELL2 * ell,
        frequency=frequency,
        lowest=_LOWEST / ell,
        alpha=alpha,
        eta=_ETA * alpha,
        queries=lines * points,
    )


@dataclass(frozen=True)
class Subspace:
    """The span of the nonlinear features.

    span: (r, d) orthonormal rows, Qᵀ; spectrum: (min(k, d),) singular values of the k centred gradients; queries:
    number of values of f used.
    """

    span: Floats
    spectrum: Floats
    queries: int

    def inside(self, f: Field) -> Field:
        """Return the field y ↦ f(Qy) on R^r."""
        return RestrictedField(f, self.span)


def full_space(dim: int) -> Subspace:
    """Return all of R^d, for which no query is needed."""
    return Subspace(frozen(np.eye(dim)), frozen([]), 0)


@dataclass(frozen=True)
class RestrictedField:
    """The field y ↦ f(Qy), with Qᵀ = `span` (r, d)."""

    f: Field
    span: Floats

    def __call__(self, Y: Floats) -> Floats:
        """Return f(Qy) at the rows y of Y (m, r)."""
        return self.f(Y @ self.span)


def find_subspace(
    f: Field, *, dim: int, radius: float = 3.0, rng: np.random.Generator | None = None, points: int | None = None
) -> Subspace:
    """Find the span of all nonlinear features (footnote on n < d) from central differences in the ball.

    Differences of two lengths show their own error: noise and curvature both appear in their disagreement. A singular
    value counts when it exceeds the norm of the disagreement along its own singular direction, so that a steep feature,
    whose differences disagree most, hides no other. Larger ones than the last that counts belong to the span as well.
    Without a clear gap after that one, all d dimensions are returned.

    Parameters
    ----------
    f
        Maps points (m, d) to values (m,).
    dim, radius
        Dimension d of the points and radius of the ball.
    rng
        Source of the points.
    points
        Number of gradients, each from 4d values; max(200, 4d) unless given.

    Returns
    -------
    Subspace
        Orthonormal rows, none for an affine f.

    Examples
    --------
    >>> space = rs.paper.find_subspace(
    ...     lambda X: np.tanh(X[:, 0]) + X[:, 3], dim=5, radius=3.0, rng=np.random.default_rng(0))
    >>> np.abs(space.span).round(6)
    array([[1., 0., 0., 0., 0.]])
    """
    dim, radius, rng = arguments.count("dim", dim), arguments.positive("radius", radius), arguments.generator(rng)
    k = max(_LEAST_POINTS, _POINTS_PER_DIM * dim) if points is None else arguments.count("points", points)
    f = CountedField(f)
    X = in_ball(k, dim, radius, rng)
    coarse, fine = (central(f, X, alpha) for alpha in (_COARSE * radius, _FINE * radius))
    fine -= fine.mean(axis=0)
    coarse -= coarse.mean(axis=0)
    spectrum, rows = np.linalg.svd(fine, full_matrices=False)[1:]
    floor = _ABOVE_ERROR * np.linalg.norm((coarse - fine) @ rows.T, axis=0)
    counts = np.flatnonzero(spectrum > np.maximum(floor, max(_ABOVE_ZERO * radius, _RELATIVE_ZERO * spectrum[0])))
    rank = int(counts[-1]) + 1 if len(counts) else 0
    if 0 < rank < len(spectrum) and spectrum[rank - 1] < _GAP * spectrum[rank]:
        rank = dim
    return Subspace(frozen(rows[:rank]), frozen(spectrum), 4 * k * dim)


def central(f: Field, X: Floats, alpha: float) -> Floats:
    """Return the (m, d) slopes (f(x + αe_k) − f(x − αe_k))/2α at the rows of X (m, d)."""
    m, d = X.shape
    shifts = alpha * np.eye(d)[:, None, :]
    values = f(np.concatenate([X + shifts, X - shifts]).reshape(-1, d)).reshape(2, d, m)
    return np.asarray(((values[0] - values[1]) / (2 * alpha)).T)


# The next two draw their numbers in another order than `geometry.in_ball` and `geometry.along`; with those, every run
# of `solve` with the same seed would ask other points and give another result.


def in_ball(m: int, dim: int, radius: float, rng: np.random.Generator) -> Floats:
    """Return m points (m, d) uniform in the ball."""
    x = rng.standard_normal((m, dim))
    x *= radius * rng.uniform(size=(m, 1)) ** (1 / dim) / np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x)


def along(u: Floats, m: int, radius: float, rng: np.random.Generator) -> Floats:
    """Return m points (m, d) of the ball with u·x uniform on [−R, R] and the rest uniform in the orthogonal ball."""
    z = rng.uniform(-radius, radius, (m, 1))
    if len(u) == 1:
        return np.asarray(z * u)
    rest = in_ball(m, len(u) - 1, 1.0, rng) * np.sqrt(radius**2 - z**2)
    perpendicular = np.linalg.svd(u[None], full_matrices=True)[2][1:]
    return np.asarray(z * u + rest @ perpendicular)
