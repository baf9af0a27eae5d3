"""Find where f bends along a line.

On a line x(t) = o + t·u a sum of features is g(t) = b + (a·u)t + Σ_i s_i(v_i·o + t v_i·u). Between kinks g is
smooth: on points a step h apart its (q+1)-th differences

    Δ^{q+1} g  =  h^{q+1} g^{(q+1)}  +  amp·noise,        amp² = C(2q+2, q+1),

fall like h^{q+1}, while a kink of slope jump J inside the window contributes C(q−1, ⌊(q−1)/2⌋)·J·h, which falls
like h. So: difference on a coarse grid, halve the step in each bent window, stop when the bent ones are one
run of at most q+1 windows with smooth ones on both sides. A run of windows a … b shares the cells b … a+q,
one of which holds the kink; the polynomials of degree q through the q+1 points on either side meet in it.

With q = 1 (g piecewise linear) this is the intersection of two tangents. It is exact, and two more answers beside
the intersection distinguish one kink from several. Points in a cell that belongs to a smooth window are then
interpolated, not asked: each halving costs one answer. The same holds for q = 2 if g is piecewise quadratic.

Differences magnify noise. Under strong noise `scan_noisy_line` uses least squares instead: it fits

    g(t) ≈ Σ_{k≤4} c_k t^k + J·max(t − t*, 0)

to windows of 2m points of one grid, with t* in the middle of the window, moves the window along the line, and keeps the
peaks of |J| over its standard deviation ‖w‖·noise/h, where w are the weights that the fit gives the answers. Curvature
that the polynomial cannot follow makes false peaks; they have no plane and are dropped later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import comb, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions
from .base import INSIDE
from .polynomials import MIDPOINT_WEIGHTS, derivative, meeting_point, through

Answer = Callable[[Floats], Floats]
"""Maps (m, d) points to (m, p) values."""
Check = Literal["none", "sharp", "blurred"]

DEVIATIONS = 8.0  # at which a difference is significant. Empirical: rounding is not Gaussian, and differences are many
_NOISY_DEVIATIONS = 6.0  # the same for slope jumps from least squares: they are fewer, and false ones have no plane
_HALF, _DEGREE = 7, 4  # m and the degree of the polynomial. Empirical: wider windows contain more curvature
_PLACES = 41  # positions tried for a kink, from one point before the middle of a window to one after
_SLACK = 0.25  # cells beyond its own in which two sides may meet, as errors move them. Empirical
_EXACT = 1e-7  # share of its jump by which a kink of a piecewise linear function may seem off: rounding on long lines
_BLURRED = 0.25  # largest distance from g to where its tangents meet, in jump·step; jump·w/8 for a parabola of width w
_BESIDE = 1e-6  # distance, in steps, from the meeting point at which two sides are checked: close,
_BESIDE_NOISE = 20.0  # but far enough for the jump to make this many times the noise
_BESIDE_BLURRED = 0.125  # the same for a bend with a width
_AT_AN_END = 3  # halvings after which a bend at an end of a line, which has one side only, is given up


@dataclass(frozen=True, eq=False)
class Line:
    """The segment x(t) = origin + t·along for low ≤ t ≤ high; `along` has length one."""

    origin: Floats
    along: Floats
    low: float
    high: float

    def at(self, t: Floats | float) -> Floats:
        """Return x(t): (d,) for a number t, (m, d) for an array (m,)."""
        return self.origin + np.multiply.outer(np.asarray(t, dtype=np.float64), self.along)


def chord(dim: int, radius: float, rng: np.random.Generator, *, offset: float) -> Line:
    """Return a chord of the ball in a random direction, at a random distance up to `offset` from the centre."""
    u, w = random_directions(2, dim, rng)
    x = offset * rng.random() * w
    x = x - (x @ u) * u
    half = float(np.sqrt(max(radius**2 - x @ x, 0.0))) * INSIDE
    return Line(x, u, -half, half)


@dataclass(frozen=True, eq=False)
class Bend:
    """A short stretch of a line that contains a bend; g is smooth on either side."""

    left: float
    right: float
    at: float
    """Where the two sides, extrapolated, meet."""
    value: Floats
    """(p,) their common value there."""
    slope: Floats
    """(p,) slope before the bend."""
    jump: Floats
    """(p,) slope after minus slope before."""
    spacing: float
    """Step of the samples that showed the bend."""
    curves: tuple[Floats, Floats] | None = None
    """(p,) second derivatives before and after if q = 2."""

    def side(self, s: float) -> Floats:
        """Return (p,) the value at a distance s after the bend, or before it if s < 0."""
        straight = self.value + s * (self.slope + self.jump if s > 0 else self.slope)
        return straight if self.curves is None else straight + 0.5 * s * s * self.curves[int(s > 0)]


@dataclass(frozen=True)
class Scan:
    """The resolution of a scan along a line."""

    count: int
    """Number of points of the first grid."""
    degree: int
    """q, the degree of the polynomials that the differences annihilate."""
    noise: float
    """Size of the error of one answer (its Euclidean norm over outputs)."""
    jump: float
    """Slope jumps below this are ignored."""
    depth: int
    """How often the step may be halved."""
    check: Check = "none"
    """The test for a single bend: "sharp", it is a point; "blurred", it is short and along one vector of R^p."""

    def threshold(self, h: float) -> float:
        """Return the least (q+1)-th difference at step h that counts as bent."""
        q = self.degree
        amplified = sqrt(comb(2 * q + 2, q + 1))
        return DEVIATIONS * amplified * self.noise + self.jump * h * comb(q - 1, (q - 1) // 2)


@dataclass(frozen=True)
class _Segment:
    """Grid points first, first + stride, … in units of the line's finest step; stride 0 marks a stretch given up."""

    first: int
    stride: int
    count: int

    @property
    def keys(self) -> list[int]:
        return [self.first + k * self.stride for k in range(self.count)]

    @property
    def last(self) -> int:
        return self.first + (self.count - 1) * self.stride

    def given_up(self) -> _Segment:
        """Return the same stretch, marked as given up."""
        return _Segment(self.first, 0, self.last - self.first)


class _Grid:
    """Answers along one line by their position on its finest grid, each asked once."""

    def __init__(self, line: Line, answer: Answer, scan: Scan) -> None:
        self.line, self.answer = line, answer
        self.end = (scan.count - 1) << scan.depth
        self.unit = (line.high - line.low) / self.end
        self.known: dict[int, Floats] = {}

    def t(self, key: int) -> float:
        """Return the position t on the line of a grid index."""
        return self.line.low + key * self.unit

    def ask_for(self, segments: Sequence[_Segment]) -> None:
        """Ask for all grid points of the segments that are not known yet."""
        new = [k for k in dict.fromkeys(k for s in segments for k in s.keys) if k not in self.known]
        if new:
            values = self.answer(self.line.at(self.line.low + self.unit * np.array(new, dtype=np.float64)))
            self.known.update(zip(new, values, strict=True))

    def values(self, segment: _Segment) -> Floats:
        """Return the (count, p) answers at the grid points of a segment."""
        return np.stack([self.known[k] for k in segment.keys])


@dataclass(eq=False)
class Scanned:
    """The result of a scan: bends in order, and stretches where g bends but no single kink could be resolved."""

    bends: list[Bend] = field(default_factory=list)
    unresolved: list[tuple[float, float]] = field(default_factory=list)


def scan_line(line: Line, answer: Answer, scan: Scan) -> Scanned:
    """Return the bends along `line`."""
    grid = _Grid(line, answer, scan)
    segments = [_Segment(0, 1 << scan.depth, scan.count)]
    seen = Scanned()
    while segments:
        grid.ask_for(segments)
        found: list[tuple[Bend, _Segment]] = []
        unclear = [s for segment in segments for s in _examine(grid, segment, scan, found)]
        single = _check_single(grid, [bend for bend, _ in found], scan)
        seen.bends += [bend for (bend, _), yes in zip(found, single, strict=True) if yes]
        unclear += [closer for (_, closer), yes in zip(found, single, strict=True) if not yes]
        seen.unresolved += [(grid.t(s.first), grid.t(s.first + s.count)) for s in unclear if not s.stride]
        segments = _merged([s for s in unclear if s.stride])
    seen.bends = _distinct(seen.bends)
    return seen


def _examine(grid: _Grid, segment: _Segment, scan: Scan, found: list[tuple[Bend, _Segment]]) -> Iterator[_Segment]:
    """Yield the stretches of a segment to scan with a smaller step.

    Runs of bent windows with two smooth sides are added to `found`, each with the stretch to scan if it is not single.
    """
    q, h = scan.degree, segment.stride * grid.unit
    if segment.count < q + 2:
        return
    values = grid.values(segment)
    differences = np.linalg.norm(np.diff(values, q + 1, axis=0), axis=1)
    bent = np.nan_to_num(differences) > scan.threshold(h)
    ends = len(bent) - 1
    for a, b in _runs(np.flatnonzero(bent), q):
        closer = _closer(grid, segment, a, b, q)
        if q <= 2:
            _interpolate(grid, segment, bent, closer, q)
        smooth_left = b - q - 1 >= 0 and not bent[b - q - 1]
        smooth_right = a + q + 1 <= ends and not bent[a + q + 1]
        if b - a <= q and smooth_left and smooth_right:
            before, after = _sides(values, a, b, q)
            if np.abs(after - before).max() * len(before) <= scan.threshold(h):
                continue  # g is the same on both sides: the remainder of an inexact subtraction, or a bump
            bend = _meeting(grid, segment, before, after, a, b)
            if bend is not None:
                found.append((bend, closer))
                continue
        at_an_end = (a < q and segment.first == 0) or (b > ends - q and segment.last == grid.end)
        given_up = at_an_end and segment.stride << _AT_AN_END < 1 << scan.depth
        yield closer.given_up() if given_up else closer


def _runs(bent: NDArray[np.intp], gap: int) -> list[tuple[int, int]]:
    """Return first and last window of each run; windows at most `gap` apart can contain the same kink."""
    if not len(bent):
        return []
    cuts = np.flatnonzero(np.diff(bent) > gap)
    first = bent[np.concatenate([[0], cuts + 1])]
    last = bent[np.concatenate([cuts, [len(bent) - 1]])]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def _closer(grid: _Grid, segment: _Segment, a: int, b: int, q: int) -> _Segment:
    """Return the cells that belong to no smooth window, at half the step, with one window more on either side.

    The stride is 0 if the step cannot be halved.
    """
    stride = segment.stride // 2
    low, high = min(a + q, b), max(a + q, b) + 1
    first = max(segment.first + low * segment.stride - (q + 1) * stride, 0)
    last = min(segment.first + high * segment.stride + (q + 1) * stride, grid.end)
    return _Segment(first, stride, (last - first) // stride + 1 if stride else last - first)


def _interpolate(grid: _Grid, segment: _Segment, bent: NDArray[np.bool_], closer: _Segment, q: int) -> None:
    """Fill in midpoints of cells that belong to a smooth window, on a line or, if q = 2, on a parabola."""
    for key in closer.keys if closer.stride else ():
        cell, inside = divmod(key - segment.first, segment.stride)
        if not inside or key in grid.known or not 0 <= cell < segment.count - 1:
            continue
        if not (smooth := [i for i in range(cell - q, cell + 1) if 0 <= i < len(bent) and not bent[i]]):
            continue
        i = cell if q == 1 else min(smooth, key=lambda i: abs(cell - i - 1))  # best: the middle cell of a window
        known = [grid.known[segment.first + k * segment.stride] for k in range(i, i + 2 * q)]
        value = 0.5 * (known[0] + known[1]) if q == 1 else MIDPOINT_WEIGHTS[cell - i] @ np.stack(known)
        if np.isfinite(value).all():
            grid.known[key] = value


def _sides(values: Floats, a: int, b: int, q: int) -> tuple[Floats, Floats]:
    """Return (q+1, p) coefficients of the polynomials on the two sides of a run, in steps from its middle."""
    first, last = b, a + q + 1
    middle = 0.5 * (first + last)
    tau = np.arange(q + 1, dtype=np.float64)
    before = through(tau + (first - q - middle), values[first - q : first + 1])
    return before, through(tau + (last - middle), values[last : last + q + 1])


def _meeting(grid: _Grid, segment: _Segment, before: Floats, after: Floats, a: int, b: int) -> Bend | None:
    """Return the bend of a run; None if an answer is missing or the two sides do not meet."""
    h, q = segment.stride * grid.unit, len(before) - 1
    first, last = b, a + q + 1
    tau = meeting_point(after - before, 0.5 * (last - first) + _SLACK)
    if tau is None:
        return None
    slope = derivative(before, tau) / h
    return Bend(
        left=grid.t(segment.first + first * segment.stride),
        right=grid.t(segment.first + last * segment.stride),
        at=grid.t(segment.first) + (0.5 * (first + last) + tau) * h,
        value=tau ** np.arange(q + 1) @ before,
        slope=slope,
        jump=derivative(after, tau) / h - slope,
        spacing=h,
        curves=(2.0 * before[2] / h**2, 2.0 * after[2] / h**2) if q == 2 else None,
    )


def _check_single(grid: _Grid, bends: list[Bend], scan: Scan) -> NDArray[np.bool_]:
    """Ask a few points and return whether each bend is a single one, by the test `scan.check`.

    "sharp": both sides must continue up to the meeting point. Two kinks of opposite sign meet outside their interval,
    where one side agrees by chance; so both sides are checked, far enough from the meeting point to differ.
    "blurred": the same at an eighth of the step. With several outputs there is a sharper test: near its bend a single
    feature departs from its tangent along its own vector only.
    """
    if scan.check == "none" or not bends:
        return np.ones(len(bends), dtype=bool)
    t, h = np.array([b.at for b in bends]), np.array([b.spacing for b in bends])
    value, jump = np.stack([b.value for b in bends]), np.stack([b.jump for b in bends])
    size = np.linalg.norm(jump, axis=1)
    slack = scan.threshold(0.0) + np.minimum(scan.jump, _EXACT * size) * h
    if scan.check == "blurred" and value.shape[1] > 1:
        off = grid.answer(grid.line.at(t)) - value
        along = np.einsum("mp,mp->m", off, jump) / size
        across = np.linalg.norm(off - (along / size)[:, None] * jump, axis=1)
        return np.asarray((across <= slack) & (np.abs(along) <= _BLURRED * size * h), dtype=np.bool_)
    blurred = scan.check == "blurred"
    s = _BESIDE_BLURRED * h if blurred else np.minimum(_BESIDE * h + _BESIDE_NOISE * slack / size, 0.5 * h)
    before = grid.answer(grid.line.at(t - s)) - np.stack([b.side(-r) for b, r in zip(bends, s, strict=True)])
    after = grid.answer(grid.line.at(t + s)) - np.stack([b.side(r) for b, r in zip(bends, s, strict=True)])
    off_side = np.maximum(np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1))
    return np.asarray(off_side <= slack, dtype=np.bool_)


def _merged(segments: list[_Segment]) -> list[_Segment]:
    """Return the segments, all of the same stride, with overlapping ones joined."""
    out: list[_Segment] = []
    for s in sorted(segments, key=lambda s: s.first):
        if out and s.first <= out[-1].last:
            last = max(out[-1].last, s.last)
            out[-1] = _Segment(out[-1].first, s.stride, (last - out[-1].first) // s.stride + 1)
        else:
            out.append(s)
    return out


def _distinct(bends: list[Bend]) -> list[Bend]:
    """Return the bends in order along the line; of two that overlap, the one with the smaller spacing."""
    out: list[Bend] = []
    for b in sorted(bends, key=lambda b: b.at):
        if out and b.left < out[-1].right and b.at - out[-1].at < max(b.spacing, out[-1].spacing):
            if b.spacing < out[-1].spacing:
                out[-1] = b
        else:
            out.append(b)
    return out


def scan_noisy_line(line: Line, answer: Answer, scan: Scan) -> Scanned:
    """Return the bends with a slope jump of at least `scan.jump` that is significant against the noise."""
    t = np.linspace(line.low, line.high, scan.count)
    h, g = float(t[1] - t[0]), answer(line.at(t))
    tau = np.arange(2 * _HALF, dtype=np.float64) - (_HALF - 0.5)
    weights = np.asarray(np.linalg.pinv(_kinked_basis(tau, 0.0))[-1], dtype=np.float64)
    jump = np.stack([np.correlate(column, weights) for column in g.T], axis=1)
    score = np.nan_to_num(np.linalg.norm(jump, axis=1)) / (np.linalg.norm(weights) * scan.noise)
    out = []
    for j in np.flatnonzero(score > _NOISY_DEVIATIONS):
        if score[j] < score[max(j - _HALF // 2, 0) : j + _HALF // 2 + 1].max():
            continue
        window = g[j : j + 2 * _HALF]
        shift, a = _best_kink(tau, window)
        at = float(t[j]) + (_HALF - 0.5 + shift) * h
        if np.linalg.norm(a) / h > scan.jump:
            before = (window[_HALF - 1] - window[_HALF - 2]) / h
            out.append(Bend(at - h, at + h, at, window[_HALF], before, a / h, h))
    return Scanned(out)


def _kinked_basis(tau: Floats, at: float) -> Floats:
    """Return the columns 1, tau, …, tau⁴ and max(tau − at, 0)."""
    return np.column_stack([np.vander(tau, _DEGREE + 1, increasing=True), np.maximum(tau - at, 0.0)])


def _best_kink(tau: Floats, values: Floats) -> tuple[float, Floats]:
    """Return position (in steps from the middle) and slope jump (p,) per step of the kink with the least residual."""
    tries: list[tuple[float, float, Floats]] = []
    for at in np.linspace(-1.0, 1.0, _PLACES).tolist():
        basis = _kinked_basis(tau, at)
        c = np.linalg.lstsq(basis, values, rcond=None)[0]
        tries.append((float(np.sum((values - basis @ c) ** 2)), at, c[-1]))
    _, at, jump = min(tries, key=lambda one: one[0])
    return at, jump
