"""Known planes of a piecewise linear f refined together, from second differences on equidistant points of many lines.

On a line o + t·u with points a step h apart, f = Σ a_k max(v_k·x − t_k, 0) has second differences

    D_j  =  Σ_k a_k |v_k·u| max(h − |τ_k − t_j|, 0),        τ_k: where the line crosses plane k,

so that a plane shows in the two differences beside its crossing and nowhere else. Planes that are not known spoil some
differences, whereas they would spoil every value of f. Given all others, the differences near the crossing of plane k,
projected on a_k, have their centroid at τ_k: one linear equation v_k·x(τ_k) = t_k for (v_k, t_k) per line. Solved plane
by plane, again and again, the equations become the better the better all others are known; differences that are not
along a_k, or not of its size, count the less.

The expected error σ_k of v_k·x − t_k on the lines follows from what is left of the equations. It decides how many
differences have to be looked at, and which planes have been found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..deadline import check_time, time_left
from ..geometry import Floats, random_directions
from .base import INSIDE, Ask, Setting
from .lines import Line
from .planes import TELLING, points_on_plane

_OFFSET, _HALF = 1.0, 1.5  # distance of lines from the centre, and their half length, in radii: they meet most planes
_NEARER = 0.7  # the same distance as a share of the reach, where that is short: half of the line is then left
_LINES = 3.5  # lines per unknown of a plane, of which half cross it: 1.75 equations per unknown, and some to spare
_POINTS, _FEWEST = 0.7, 17  # points of a line per plane, so that about as many planes as points are crossed; at least
_POINTS_ALONE = 4.0  # the same with few outputs, where only the size of a difference tells of which plane it is
_MOST_NUMBERS = 5e7  # second differences in memory, all outputs counted: 400 MB
_CHUNK = 65536  # rows asked at once
_SLANTED = 0.3  # least |v·u|·√d: a line crosses others at so small an angle that its crossing is not known
_FAR_OFF, _WIDEST = 4.5, 4  # errors σ that the differences looked at must cover; and at most so many on either side
_OUTLIER = 5.0  # errors at which an equation is of another plane
_SPARE = 10  # equations needed beyond the unknowns
_ROUNDING = 3.2  # √10: error of a centroid of two differences over that of an answer, along a_k
_SPOILT = 2.0  # error of the projection on a_k over what is left across it, per output
_SWEEPS, _SLOW = 20.0, 0.97  # most sweeps over all planes; one whose error falls less rests until others have moved
_FOUND = 0.1  # σ over the step, times the typical |v·u|, up to which a plane is right: its crossings are resolved
_MISFIT = 0.3  # share of its differences that a plane must not account for to be wrong
_SHARP = 5.0  # |a|σ over the noise up to which a plane, if subtracted, leaves no bend that shows


def draw_line(setting: Setting, rng: np.random.Generator) -> Line:
    """Return a line in a random direction on which planes near the centre are crossed as far apart as possible.

    The gaps between crossings grow with the distance from the centre, and within the ball rounding does not.
    """
    reach = setting.reach * INSIDE
    offset = min(_OFFSET * setting.radius, _NEARER * reach)
    half = min(_HALF * setting.radius, float(np.sqrt(reach**2 - offset**2)))
    u, w = random_directions(2, setting.dim, rng)
    w = w - (w @ u) * u
    return Line(offset * w / np.linalg.norm(w), u, -half, half)


def _count(dim: int) -> int:
    """Return the number of lines that give each plane, which half of them cross, enough equations."""
    return int(np.ceil(_LINES * (dim + 1))) + 4 * _SPARE


@dataclass(eq=False)
class Found:
    """Planes v_k·x = t_k with slope jumps a_k, and the expected error of v_k·x − t_k on lines."""

    v: Floats
    t: Floats
    a: Floats
    error: Floats

    def only(self, rows: NDArray[np.bool_]) -> Found:
        """Return some of the planes."""
        return Found(self.v[rows], self.t[rows], self.a[rows], self.error[rows])


@dataclass(frozen=True, eq=False)
class Tracks:
    """Second differences on many lines."""

    origin: Floats
    """(L, d)"""
    along: Floats
    low: float
    step: float
    differences: Floats
    """(L, m, p); the j-th is centred at low + (j + 1)·step."""
    noise: float
    """Norm over outputs of the error of an answer."""

    @classmethod
    def ask(cls, ask: Ask, setting: Setting, planes: int, noise: float, rng: np.random.Generator) -> Tracks:
        """Ask f on so many lines that each plane gets enough equations, at as many points as planes are crossed."""
        count = _count(setting.dim)
        most = int(_MOST_NUMBERS / (count * setting.outputs))
        per_plane = _POINTS if setting.outputs >= TELLING else _POINTS_ALONE
        points = max(_FEWEST, min(int(per_plane * planes), most))
        lines = [draw_line(setting, rng) for _ in range(count)]
        return cls._along(lines, np.linspace(lines[0].low, lines[0].high, points), ask, noise)

    @classmethod
    def _along(cls, lines: list[Line], t: Floats, ask: Ask, noise: float) -> Tracks:
        together = max(1, _CHUNK // len(t))
        differences = []
        for first in range(0, len(lines), together):
            check_time()
            some = lines[first : first + together]
            values = ask(np.concatenate([line.at(t) for line in some])).reshape(len(some), len(t), -1)
            differences.append(np.diff(np.nan_to_num(values), 2, axis=1))
        origin, along = np.stack([line.origin for line in lines]), np.stack([line.along for line in lines])
        return cls(origin, along, float(t[0]), float(t[1] - t[0]), np.concatenate(differences), noise)

    def with_lines_across(self, ask: Ask, setting: Setting, planes: Found, rng: np.random.Generator) -> Tracks:
        """Return these and as many further lines again at most, which cross planes that too few lines cross."""
        d = self.origin.shape[1]
        lines = list[Line]()
        for v, t, missing in zip(planes.v, planes.t, self.missing(planes), strict=True):
            for y in points_on_plane(v, t, min(setting.radius, setting.reach) * INSIDE, int(missing), rng):
                u = random_directions(1, d, rng)[0]
                lines.append(Line(y - (y @ u) * u, u, self.low, -self.low))
        if not lines:
            return self
        t = self.low + self.step * np.arange(self.differences.shape[1] + 2)
        new = self._along(lines[: _count(d)], t, ask, self.noise)
        joined = [np.concatenate([getattr(self, n), getattr(new, n)]) for n in ("origin", "along", "differences")]
        return Tracks(joined[0], joined[1], self.low, self.step, joined[2], self.noise)

    def crossed(self, planes: Found) -> NDArray[np.intp]:
        """Return how many lines cross each plane."""
        ends = [(self.origin + s * self.along) @ planes.v.T - planes.t for s in (self.low, -self.low)]
        return np.asarray(np.sum(ends[0] * ends[1] < 0.0, axis=0), dtype=np.intp)

    def missing(self, planes: Found) -> NDArray[np.intp]:
        """Return how many lines more would have to cross each plane."""
        return np.maximum(_count(self.origin.shape[1]) // 2 - self.crossed(planes), 0)

    def line(self, i: int) -> Line:
        """Return one of the lines."""
        return Line(self.origin[i], self.along[i], self.low, -self.low)

    @property
    def arm(self) -> float:
        """The error of v·x − t on the lines that an error of one radian in a random direction makes."""
        squares = np.mean(np.sum(self.origin**2, axis=1)) + self.low**2 / 3.0
        return float(np.sqrt(squares / self.origin.shape[1]))

    @property
    def resolved(self) -> float:
        """The error σ up to which a plane is found."""
        return float(_FOUND * self.step / np.sqrt(self.origin.shape[1]))

    def least_jump(self, threshold: float) -> float:
        """Return the slope jump |a| of a plane that makes a difference of this size where a line crosses it."""
        return float(threshold * np.sqrt(self.origin.shape[1]) / (0.5 * self.step))  # half of it is beside the crossing

    def is_sharp(self, planes: Found) -> NDArray[np.bool_]:
        """Return whether each plane leaves no bend that shows where it is subtracted."""
        return np.asarray(np.linalg.norm(planes.a, axis=1) * planes.error <= _SHARP * self.noise)

    def refine(self, planes: Found) -> Found:
        """Return the planes after sweeps over all of them, until their errors no longer fall or time is up."""
        sweeps = _Sweeps(self, planes)
        every = np.ones(len(planes.t), dtype=np.bool_)
        moving, work = every, 0.0
        while work < _SWEEPS and len(every) and time_left() > 0.0:
            was_all, before = bool(moving.all()), sweeps.planes.error.copy()
            sweeps.run(np.flatnonzero(moving))
            work += float(np.mean(moving))
            moving = sweeps.planes.error < _SLOW * before
            if not moving.any():
                if was_all:
                    break
                moving = every
        return sweeps.planes

    def left(self, planes: Found, threshold: float) -> tuple[Floats, NDArray[np.bool_]]:
        """Return what the planes leave (L, m, p) of the differences, and which planes do not account for theirs.

        Those leave more than the `threshold` of many of their own differences.
        """
        sweeps = _Sweeps(self, planes)
        above = np.linalg.norm(sweeps.left, axis=2) > threshold
        misfits = np.zeros(len(planes.t), dtype=np.bool_)
        for k in range(len(planes.t)):
            lines, index, _ = sweeps.shares(k)
            misfits[k] = np.sum(above[lines, index]) > _MISFIT * len(lines)
        return sweeps.left, misfits


class _Sweeps:
    """The differences that the planes leave, and steps of one plane after the other."""

    def __init__(self, tracks: Tracks, planes: Found) -> None:
        self.tracks = tracks
        self.planes = Found(planes.v.copy(), planes.t.copy(), planes.a.copy(), planes.error.copy())
        self.left = tracks.differences.copy()
        for k in range(len(planes.t)):
            self._add(k, -1.0)

    def run(self, which: NDArray[np.intp]) -> None:
        """Take a step of some planes, those first that are known best."""
        ratio = self.planes.error / np.maximum(np.linalg.norm(self.planes.a, axis=1), np.finfo(float).tiny)
        for k in which[np.argsort(ratio[which])]:
            self._add(k, 1.0)
            self._move(k)
            self._scale(k)
            self._add(k, -1.0)

    def _crossings(self, k: int) -> tuple[Floats, Floats]:
        """Return v·u and the position of the crossing, in steps from the start, for each line."""
        tracks, v, t = self.tracks, self.planes.v[k], self.planes.t[k]
        slope = tracks.along @ v
        slope = np.where(slope == 0.0, np.finfo(float).tiny, slope)
        return slope, np.clip(((t - tracks.origin @ v) / slope - tracks.low) / tracks.step, -2.0, 1e9)

    def shares(self, k: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
        """Return line, index and size of the differences in which plane k shows."""
        slope, place = self._crossings(k)
        cell = np.floor(place).astype(np.intp)
        share = place - cell
        size = np.abs(slope) * self.tracks.step
        lines = np.concatenate([np.arange(len(cell))] * 2)
        index, sizes = np.concatenate([cell - 1, cell]), np.concatenate([size * (1.0 - share), size * share])
        inside = (index >= 0) & (index < self.left.shape[1])
        return lines[inside], index[inside], sizes[inside]

    def _add(self, k: int, sign: float) -> None:
        lines, index, size = self.shares(k)
        self.left[lines, index] += np.multiply.outer(sign * size, self.planes.a[k])

    def _move(self, k: int) -> None:
        """Solve for v and t of one plane, whose share is in the differences that are left."""
        planes, tracks, d = self.planes, self.tracks, self.tracks.origin.shape[1]
        lines, at, error = self._equations(k)
        x = tracks.origin[lines] + at[:, None] * tracks.along[lines]
        off = x @ planes.v[k] - planes.t[k]
        sigma = planes.error[k]
        used = np.abs(off) <= _OUTLIER * np.maximum(sigma, error)
        if used.sum() < d + 1 + _SPARE:
            return
        rows = np.concatenate([x[used], -np.ones((int(used.sum()), 1))], axis=1)
        off, weight = off[used], 1.0 / error[used]
        weighted = rows * weight[:, None]
        gram = weighted.T @ weighted
        scatter = float(np.mean((off * weight) ** 2))
        radius2 = float(np.mean(np.einsum("ld,ld->l", x, x)))
        gram[np.diag_indices(d)] += scatter * radius2 / sigma**2  # each component of v is known to σ over the distance,
        gram[d, d] += scatter / sigma**2  # and t to σ
        change = np.linalg.solve(gram, -(weighted.T @ (off * weight)))
        size = float(np.linalg.norm(planes.v[k] + change[:d]))
        planes.v[k] = (planes.v[k] + change[:d]) / size
        planes.t[k] = (planes.t[k] + change[d]) / size
        inflation = len(off) / (len(off) - d - 1.0)
        left = 1.4826 * float(np.median(np.abs(off + rows @ change))) * np.sqrt(inflation)
        planes.error[k] = float(np.clip(left, 1e-9 * radius2**0.5, sigma))

    def _equations(self, k: int) -> tuple[NDArray[np.intp], Floats, Floats]:
        """Return lines that cross plane k, the positions of the crossings, and their errors times |v·u|."""
        planes, tracks = self.planes, self.tracks
        slope, place = self._crossings(k)
        d, size = tracks.origin.shape[1], float(np.linalg.norm(planes.a[k]))
        typical = d**-0.5
        w = int(np.clip(np.ceil(_FAR_OFF * planes.error[k] / (typical * tracks.step) - 0.3), 0, _WIDEST))
        cell = np.floor(place).astype(np.intp)
        clear = (cell - 1 - w >= 0) & (cell + w < self.left.shape[1]) & (np.abs(slope) * d**0.5 > _SLANTED)
        lines = np.flatnonzero(clear)
        index = cell[lines, None] + np.arange(-1 - w, w + 1)
        left = self.left[lines[:, None], index]
        unit = planes.a[k] / max(size, np.finfo(float).tiny)
        along = left @ unit
        expected = np.maximum(np.abs(slope[lines]) * tracks.step * size, np.finfo(float).tiny)
        middle = tracks.low + (index.mean(axis=1) + 1.0) * tracks.step
        offsets = (np.arange(2 * w + 2) - (w + 0.5)) * tracks.step
        at = middle + along @ offsets / expected
        across = np.linalg.norm(left - along[:, :, None] * unit, axis=2).max(axis=1)
        spoilt = np.maximum(_SPOILT * across / len(unit) ** 0.5, np.abs(along.sum(axis=1) - expected))
        rounding = _ROUNDING * tracks.noise / len(unit) ** 0.5
        error = (spoilt * (w + 1.0) + rounding) / max(size, np.finfo(float).tiny)
        return lines, at, error

    def _scale(self, k: int) -> None:
        """Solve for a of one plane, by differences that are along what it was."""
        lines, index, size = self.shares(k)
        if len(lines) < _SPARE:
            return
        left, unit = self.left[lines, index], self.planes.a[k] / np.linalg.norm(self.planes.a[k])
        off = np.linalg.norm(left - np.multiply.outer(left @ unit, unit), axis=1)
        weight = size / (off**2 + self.tracks.noise**2)
        self.planes.a[k] = weight @ left / float(weight @ size)
