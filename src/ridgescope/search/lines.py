"""Where f bends along a line.

On a line x(t) = o + t·u a sum of features is g(t) = b + (a·u)t + Σ_i s_i(v_i·o + t v_i·u). Between kinks g is
smooth: on points a step h apart its (q+1)-th differences

    Δ^{q+1} g  =  h^{q+1} g^{(q+1)}  +  amp·noise,        amp² = C(2q+2, q+1),

fall like h^{q+1}, while a kink of slope jump J inside the window leaves C(q−1, ⌊(q−1)/2⌋)·J·h, which falls
like h. So: difference on a coarse grid, halve the step where a window stands out, stop when what stands out is
one run of at most q+1 windows with quiet ones on both sides. A run of windows a … b shares the cells b … a+q,
one of which holds the kink; the polynomials of degree q through the q+1 points on either side meet in it.

With q = 1 (g piecewise linear) that is the meeting of two tangents, it is exact, and two more answers beside
the meeting point tell one kink from several. Points in a cell that a quiet window has cleared are then
interpolated, not asked: each halving costs one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import comb, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions

Answer = Callable[[Floats], Floats]
"""(m, d) points to (m, p) values."""
Check = Literal["none", "sharp", "blurred"]


@dataclass(frozen=True, eq=False)
class Line:
    """x(t) = origin + t·along for low ≤ t ≤ high; `along` has length one."""

    origin: Floats
    along: Floats
    low: float
    high: float

    def at(self, t: Floats | float) -> Floats:
        return self.origin + np.multiply.outer(np.asarray(t, dtype=np.float64), self.along)


def chord(dim: int, radius: float, rng: np.random.Generator, *, offset: float) -> Line:
    """A chord of the ball in a random direction, at a random distance up to `offset` from the centre."""
    u, w = random_directions(2, dim, rng)
    x = offset * rng.random() * w
    x = x - (x @ u) * u
    half = float(np.sqrt(max(radius**2 - x @ x, 0.0))) * (1.0 - 1e-9)
    return Line(x, u, -half, half)


@dataclass(frozen=True, eq=False)
class Bend:
    """A short stretch of a line; on either side g goes on smoothly."""

    left: float
    right: float
    at: float
    """Where the two sides, continued, meet."""
    value: Floats
    """(p,) their common value there."""
    slope: Floats
    """(p,) slope before."""
    jump: Floats
    """(p,) slope after minus slope before."""
    spacing: float
    """Step of the samples that saw it."""


@dataclass(frozen=True)
class Scan:
    """How closely to look."""

    count: int
    """Points of the first grid."""
    degree: int
    """q: what the differences annihilate."""
    noise: float
    """Size of the error of one answer (its Euclidean norm over outputs)."""
    jump: float
    """Slope jumps below this are not looked for."""
    depth: int
    """How often the step may be halved."""
    check: Check = "none"
    """How one bend is told from several: "sharp", it is a point; "blurred", it is short and on one vector."""

    def threshold(self, h: float) -> float:
        q = self.degree
        amplified = sqrt(comb(2 * q + 2, q + 1))
        return 8.0 * amplified * self.noise + self.jump * h * comb(q - 1, (q - 1) // 2)


@dataclass(frozen=True)
class _Segment:
    """Grid points first, first + stride, … on the line's finest lattice; stride 0: a stretch given up."""

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
        return _Segment(self.first, 0, self.last - self.first)


class _Grid:
    """Answers along one line, each bought once."""

    def __init__(self, line: Line, answer: Answer, scan: Scan) -> None:
        self.line, self.answer = line, answer
        self.end = (scan.count - 1) << scan.depth
        self.unit = (line.high - line.low) / self.end
        self.known: dict[int, Floats] = {}

    def t(self, key: int) -> float:
        return self.line.low + key * self.unit

    def buy(self, segments: Sequence[_Segment]) -> None:
        new = [k for k in dict.fromkeys(k for s in segments for k in s.keys) if k not in self.known]
        if new:
            values = self.answer(self.line.at(self.line.low + self.unit * np.array(new, dtype=np.float64)))
            self.known.update(zip(new, values, strict=True))

    def values(self, segment: _Segment) -> Floats:
        return np.stack([self.known[k] for k in segment.keys])


@dataclass(eq=False)
class Seen:
    """What a scan saw: bends, in order, and stretches where g bends in a way it could not make out."""

    bends: list[Bend] = field(default_factory=list)
    dark: list[tuple[float, float]] = field(default_factory=list)


def scan_line(line: Line, answer: Answer, scan: Scan) -> Seen:
    """The bends along `line`."""
    grid = _Grid(line, answer, scan)
    segments = [_Segment(0, 1 << scan.depth, scan.count)]
    seen = Seen()
    while segments:
        grid.buy(segments)
        level = _Level()
        for segment in segments:
            _examine(grid, segment, scan, level)
        single = _is_single(grid, [bend for bend, _ in level.bends], scan)
        seen.bends += [bend for (bend, _), yes in zip(level.bends, single, strict=True) if yes]
        level.unclear += [closer for (_, closer), yes in zip(level.bends, single, strict=True) if not yes]
        seen.dark += [(grid.t(s.first), grid.t(s.first + s.count)) for s in level.unclear if not s.stride]
        segments = _merged([s for s in level.unclear if s.stride])
    seen.bends = _distinct(seen.bends)
    return seen


@dataclass(eq=False)
class _Level:
    """What one pass over the segments found: bends, each with where to look if it proves to be several."""

    bends: list[tuple[Bend, _Segment]] = field(default_factory=list)
    unclear: list[_Segment] = field(default_factory=list)


def _examine(grid: _Grid, segment: _Segment, scan: Scan, level: _Level) -> None:
    """Sort a segment's loud runs into bends with two quiet sides and stretches to look at more closely."""
    q, h = scan.degree, segment.stride * grid.unit
    if segment.count < q + 2:
        return
    values = grid.values(segment)
    differences = np.linalg.norm(np.diff(values, q + 1, axis=0), axis=1)
    loud = np.nan_to_num(differences) > scan.threshold(h)
    ends = len(loud) - 1
    for a, b in _runs(np.flatnonzero(loud), q):
        closer = _closer(grid, segment, a, b, q)
        if q == 1:
            _interpolate(grid, segment, loud, closer)
        quiet_left = b - q - 1 >= 0 and not loud[b - q - 1]
        quiet_right = a + q + 1 <= ends and not loud[a + q + 1]
        if b - a <= q and quiet_left and quiet_right:
            before, after = _sides(values, a, b, q)
            if np.abs(after - before).max() * len(before) <= scan.threshold(h):
                continue  # g comes out as it went in: what an inexact subtraction, or a bump, leaves
            bend = _meeting(grid, segment, before, after, a, b)
            if bend is not None:
                level.bends.append((bend, closer))
                continue
        at_an_end = (a < q and segment.first == 0) or (b > ends - q and segment.last == grid.end)
        hopeless = at_an_end and segment.stride << 3 < 1 << scan.depth
        level.unclear.append(closer.given_up() if hopeless else closer)


def _runs(loud: NDArray[np.intp], gap: int) -> list[tuple[int, int]]:
    """First and last window of each run; windows at most `gap` apart can see the same kink."""
    if not len(loud):
        return []
    cuts = np.flatnonzero(np.diff(loud) > gap)
    first = loud[np.concatenate([[0], cuts + 1])]
    last = loud[np.concatenate([cuts, [len(loud) - 1]])]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def _closer(grid: _Grid, segment: _Segment, a: int, b: int, q: int) -> _Segment:
    """The cells that no quiet window clears, at half the step, with a quiet window's worth on either side.

    Its stride is 0 where the step cannot be halved.
    """
    stride = segment.stride // 2
    low, high = min(a + q, b), max(a + q, b) + 1
    first = max(segment.first + low * segment.stride - (q + 1) * stride, 0)
    last = min(segment.first + high * segment.stride + (q + 1) * stride, grid.end)
    return _Segment(first, stride, (last - first) // stride + 1 if stride else last - first)


def _interpolate(grid: _Grid, segment: _Segment, loud: NDArray[np.bool_], closer: _Segment) -> None:
    """Midpoints of cells that a quiet window of three collinear points has cleared."""
    for key in closer.keys if closer.stride else ():
        cell, inside = divmod(key - segment.first, segment.stride)
        if not inside or key in grid.known or not 0 <= cell < segment.count - 1:
            continue
        windows = [i for i in (cell - 1, cell) if 0 <= i < len(loud)]
        if any(not loud[i] for i in windows):
            low = segment.first + cell * segment.stride
            value = 0.5 * (grid.known[low] + grid.known[low + segment.stride])
            if np.isfinite(value).all():
                grid.known[key] = value


def _sides(values: Floats, a: int, b: int, q: int) -> tuple[Floats, Floats]:
    """(q+1, p) coefficients of the polynomials on the two sides of a run, in steps from the middle."""
    first, last = b, a + q + 1
    middle = 0.5 * (first + last)
    tau = np.arange(q + 1, dtype=np.float64)
    before = through(tau + (first - q - middle), values[first - q : first + 1])
    return before, through(tau + (last - middle), values[last : last + q + 1])


def _meeting(grid: _Grid, segment: _Segment, before: Floats, after: Floats, a: int, b: int) -> Bend | None:
    """The bend of a run; None where an answer is missing or the two sides do not meet."""
    h, q = segment.stride * grid.unit, len(before) - 1
    first, last = b, a + q + 1
    tau = meeting_point(after - before, 0.5 * (last - first) + 0.25)
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
    )


def through(tau: Floats, values: Floats) -> Floats:
    """(q+1, p) coefficients, lowest first, of the polynomials through q+1 points."""
    return np.asarray(np.linalg.solve(np.vander(tau, increasing=True), values), dtype=np.float64)


def derivative(coefficients: Floats, tau: float) -> Floats:
    """(p,) slope at tau of polynomials (q+1, p)."""
    k = np.arange(1, len(coefficients))
    return np.asarray((k * tau ** (k - 1)) @ coefficients[1:])


def meeting_point(gap: Floats, within: float) -> float | None:
    """The root nearest zero of a vector polynomial (q+1, p); None if there is none in [−within, within].

    The two sides of a kink differ along one vector of R^p, that of the slope jump.
    """
    if not np.isfinite(gap).all() or not gap[1].any():
        return None
    scalar = gap @ (gap[1] / np.linalg.norm(gap[1]))
    roots = np.roots(np.trim_zeros(scalar[::-1], "f"))
    real = roots[np.abs(roots.imag) < 1e-9 * (1.0 + np.abs(roots.real))].real
    real = real[np.abs(real) <= within]
    return float(real[np.argmin(np.abs(real))]) if len(real) else None


def _is_single(grid: _Grid, bends: list[Bend], scan: Scan) -> NDArray[np.bool_]:
    """Whether each bend is one, by `scan.check`.

    "sharp": both sides go on up to the meeting point. Two kinks of opposite sign meet outside their interval,
    where one side is right by itself; so both sides are asked, far enough from the meeting point to differ.
    "blurred": the same at an eighth of the step; with several outputs a sharper test is open, as one feature
    leaves its tangent along its own vector only, wherever it bends.
    """
    if scan.check == "none" or not bends:
        return np.ones(len(bends), dtype=bool)
    t, h = np.array([b.at for b in bends]), np.array([b.spacing for b in bends])
    value, slope, jump = (np.stack([getattr(b, name) for b in bends]) for name in ("value", "slope", "jump"))
    size = np.linalg.norm(jump, axis=1)
    slack = scan.threshold(0.0) + np.minimum(scan.jump, 1e-7 * size) * h
    if scan.check == "blurred" and value.shape[1] > 1:
        off = grid.answer(grid.line.at(t)) - value
        along = np.einsum("mp,mp->m", off, jump) / size
        across = np.linalg.norm(off - (along / size)[:, None] * jump, axis=1)
        return np.asarray((across <= slack) & (np.abs(along) <= 0.25 * size * h), dtype=np.bool_)
    s = 0.125 * h if scan.check == "blurred" else np.minimum(1e-6 * h + 20.0 * slack / size, 0.5 * h)
    before = grid.answer(grid.line.at(t - s)) - (value - s[:, None] * slope)
    after = grid.answer(grid.line.at(t + s)) - (value + s[:, None] * (slope + jump))
    off_side = np.maximum(np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1))
    return np.asarray(off_side <= slack, dtype=np.bool_)


def _merged(segments: list[_Segment]) -> list[_Segment]:
    """Overlapping stretches joined; all have the same stride."""
    out: list[_Segment] = []
    for s in sorted(segments, key=lambda s: s.first):
        if out and s.first <= out[-1].last:
            last = max(out[-1].last, s.last)
            out[-1] = _Segment(out[-1].first, s.stride, (last - out[-1].first) // s.stride + 1)
        else:
            out.append(s)
    return out


def _distinct(bends: list[Bend]) -> list[Bend]:
    """In order along the line; of two that overlap, the one seen more closely."""
    out: list[Bend] = []
    for b in sorted(bends, key=lambda b: b.at):
        if out and b.left < out[-1].right and b.at - out[-1].at < max(b.spacing, out[-1].spacing):
            if b.spacing < out[-1].spacing:
                out[-1] = b
        else:
            out.append(b)
    return out
