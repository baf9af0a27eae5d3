"""Jumps and kinks of f along random chords, and whether its kinks lie on whole hyperplanes.

Where the second difference over a window of width w is largest, the window is halved again and again. The difference

    stays at a jump,        falls like w at a kink,        falls like w² where f is smooth,

so that the rate over the last halvings that noise allows tells them apart.

A kink of a response s at t is a kink of f on the whole hyperplane v·x = t, with one jump of the gradient, J vᵀ,
everywhere on it. So: v and J from gradients on both sides of one kink, then the jump of the slope along v at other
places of the hyperplane. Kinks of max, of trees and of deep networks end, or turn, or change their jump.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, in_ball, random_basis, unit
from .base import INSIDE, Meter, Setting
from .lines import chord

_CHORDS, _CELLS, _OFFSET = 12, 32, 0.8  # chords, cells of each, and their distance from the centre at most, in radii
_PEAKS = 2  # windows of each chord that are halved: the sharpest bends
_HALVINGS = 30  # down to 1e-10 radii, beyond which rounding of the points shows
_LOOK_BACK = 4  # halvings over which the rate is taken: 16 and 256 for a kink and a smooth bend, far from each other
_KINK_RATE = 1.5  # log2 of the fall per halving: half way between 2 and 1
_DEVIATIONS = 10.0 * np.sqrt(6.0)  # of noise that a second difference, of variance 6, must exceed at every halving
_LEAST_JUMP = 0.02  # standard deviations of f: smaller steps may be those of coarse arithmetic (bfloat16: 0.4 %)
_KINKS = 24  # hyperplanes that are followed,
_PLACES = 6  # places on each,
_TRIES = 40  # and points tried for them
_GRADIENT_STEPS = (1e-6, 1e-3)  # radii; √(noise/std) between them balances noise against curvature
_SIDE = 4.0  # √d steps from a kink to where gradients are taken on either side: v·u is about 1/√d
_NODES = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])  # windows from a hyperplane: two slopes on either side
_NEAR, _NEAR_PLACES = 0.1, 3  # radii from where a kink was seen, and places there: a hyperplane must be found again
_WINDOW, _WIDEST = 300.0, 3e-3  # steps, and radii at most: half the window elsewhere, as errors of v move the kink
_ONE_KINK = 0.1  # second over first singular value of the jump of gradients above which several kinks met
_STRONG = 0.1  # of the strongest jump: weaker kinks drown in the curvature of a window
_SAME = 0.3  # relative change of a jump that counts as the same
_CLEAN, _ROUGH = 1e-11, 1e-5  # noise over std up to which hyperplanes are followed where f bends, and where it does not


@dataclass(frozen=True, eq=False)
class Breaks:
    """What the chords showed."""

    jumps: int
    largest_jump: float
    """In standard deviations of f."""
    bend: float
    """Largest second difference over a cell of the chords, likewise; 0 where noise explains it."""
    kinks: Windows
    """Around every kink."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Three equidistant points on each of k lines: middle, half width and values."""

    middle: Floats
    """(k, d)"""
    along: Floats
    half: Floats
    """(k,)"""
    values: Floats
    """(k, 3, p)"""

    @property
    def bend(self) -> Floats:
        """(k,) the second difference, root mean square over outputs."""
        return _norm(self.values[:, 0] - 2.0 * self.values[:, 1] + self.values[:, 2])

    def halved(self, ask: Meter) -> Windows:
        """The half of each with the largest second difference, of the left, the middle and the right one."""
        k, d = self.middle.shape
        step = (self.half / 2.0)[:, None] * self.along
        new = ask(np.stack([self.middle - step, self.middle + step], axis=1).reshape(-1, d)).reshape(k, 2, -1)
        v = self.values
        five = np.stack([v[:, 0], new[:, 0], v[:, 1], new[:, 1], v[:, 2]], axis=1)
        bends = np.stack([_norm(five[:, i] - 2.0 * five[:, i + 1] + five[:, i + 2]) for i in range(3)], axis=1)
        best = np.argmax(np.nan_to_num(bends), axis=1)
        rows = np.arange(k)
        values = np.stack([five[rows, best + i] for i in range(3)], axis=1)
        return Windows(self.middle + (best - 1)[:, None] * step, self.along, self.half / 2.0, values)

    def only(self, rows: NDArray[np.bool_]) -> Windows:
        return Windows(self.middle[rows], self.along[rows], self.half[rows], self.values[rows])


def breaks(ask: Meter, setting: Setting, rng: np.random.Generator) -> Breaks:
    """Jumps and kinks on random chords, from some 1,800 queries at most; none where they cannot be paid for."""
    if ask.left < _CHORDS * (_CELLS + 1) + 2 * _CHORDS * _PEAKS * _HALVINGS:
        none = np.empty((0, setting.dim))
        return Breaks(0, 0.0, 0.0, Windows(none, none, np.empty(0), np.empty((0, 3, setting.outputs))))
    windows = _sharpest(ask, setting, rng)
    history = [windows.bend]
    ended = np.full(len(windows.middle), -1)
    threshold = _DEVIATIONS * setting.noise
    last = windows
    for level in range(1, _HALVINGS + 1):
        active = ended < 0
        if not active.any():
            break
        after = last.only(active).halved(ask)
        bend = np.zeros(len(ended))
        bend[active] = np.nan_to_num(after.bend)
        history.append(bend)
        last = _replaced(last, active, after)
        ended[active & (bend <= threshold)] = level - 1
    ended[ended < 0] = len(history) - 1
    bends = np.array(history)
    known = ended >= _LOOK_BACK
    rows = np.flatnonzero(known)
    rate = np.full(len(ended), np.inf)
    rate[rows] = np.log2(bends[ended[rows] - _LOOK_BACK, rows] / np.maximum(bends[ended[rows], rows], 1e-300))
    rate /= _LOOK_BACK
    size = bends[ended, np.arange(len(ended))]
    # what is left after the last halving is a jump: a kink would have fallen to 1e-9, and noise would have ended it
    jump = known & (ended == _HALVINGS) & (size > _LEAST_JUMP * setting.std)
    kink = known & ~jump & (rate < _KINK_RATE)
    largest = float(size[jump].max(initial=0.0) / max(setting.std, 1e-300))
    sharpest = float(np.nan_to_num(windows.bend).max(initial=0.0))
    sharpest = sharpest / max(setting.std, 1e-300) if sharpest > threshold else 0.0
    return Breaks(int(jump.sum()), largest, sharpest, last.only(kink))


def _sharpest(ask: Meter, setting: Setting, rng: np.random.Generator) -> Windows:
    """The windows of each chord with the largest second differences, no two of them side by side."""
    lines = [chord(setting.dim, setting.edge, rng, offset=_OFFSET * setting.edge) for _ in range(_CHORDS)]
    t = np.stack([np.linspace(line.low, line.high, _CELLS + 1) for line in lines])
    points = np.stack([line.at(s) for line, s in zip(lines, t, strict=True)])
    values = ask(points.reshape(-1, setting.dim)).reshape(_CHORDS, _CELLS + 1, -1)
    bends = np.nan_to_num(_norm(values[:, :-2] - 2.0 * values[:, 1:-1] + values[:, 2:]))
    picked: list[tuple[int, int]] = []
    for i, row in enumerate(bends):
        left = row.copy()
        for _ in range(_PEAKS):
            j = int(np.argmax(left))
            left[max(0, j - 2) : j + 3] = 0.0
            picked.append((i, j + 1))
    c, j = np.array(picked).T
    three = np.stack([values[c, j - 1], values[c, j], values[c, j + 1]], axis=1)
    return Windows(points[c, j], np.stack([lines[i].along for i in c]), t[c, 1] - t[c, 0], three)


def _replaced(old: Windows, rows: NDArray[np.bool_], new: Windows) -> Windows:
    middle, half, values = old.middle.copy(), old.half.copy(), old.values.copy()
    middle[rows], half[rows], values[rows] = new.middle, new.half, new.values
    return Windows(middle, old.along, half, values)


def follow(
    ask: Meter, setting: Setting, kinks: Windows, rng: np.random.Generator, *, straight: bool
) -> tuple[int, float]:
    """Places looked at on the hyperplanes of kinks, and the share at which they go on; 1 where none was looked at.

    `straight` says that f does not bend between kinks. Where it does, curvature blurs the jumps
    unless answers are exact.
    """
    d, ratio = setting.dim, setting.noise / max(setting.std, 1e-300)
    if d == 1 or ratio > (_ROUGH if straight else _CLEAN):
        return 0, 1.0
    step = setting.edge * float(np.clip(np.sqrt(ratio), *_GRADIENT_STEPS))
    room = ask.left // (2 * (d + 1) + len(_NODES) * (_PLACES + _NEAR_PLACES))
    sharp = np.flatnonzero(kinks.half <= step)[: min(_KINKS, room)]
    planes = [p for i in sharp if (p := _plane(ask, setting, kinks.middle[i], kinks.along[i], step, rng)) is not None]
    strongest = max((float(np.linalg.norm(J)) for _, _, J in planes), default=0.0)
    shares: list[float] = []
    window = min(_WINDOW * step, _WIDEST * setting.edge)
    for x, v, J in planes:
        if np.linalg.norm(J) < _STRONG * strongest or np.linalg.norm(x) > (1.0 - _NEAR) * setting.edge - 4.0 * window:
            continue
        y = in_ball(_TRIES, d, 0.9 * setting.edge, rng)
        y = y - ((y - x) @ v)[:, None] * v
        # errors of v show as much in a window so much smaller, so close to x
        near = x + _NEAR * setting.edge * unit(y[:_NEAR_PLACES] - x)
        if not (np.abs(_jumps(ask, near, v, J, 0.5 * _NEAR * window) - 1.0) < _SAME).all():
            continue
        y = y[np.linalg.norm(y, axis=1) < setting.edge - 4.0 * window][:_PLACES]
        shares += list(_jumps(ask, y, v, J, window))
    found = np.array(shares)
    found = found[np.isfinite(found)]
    return len(found), float(np.mean(np.abs(found - 1.0) < _SAME)) if len(found) else 1.0


def _jumps(ask: Meter, places: Floats, v: Floats, J: Floats, window: float) -> Floats:
    """(k,) jumps of the slope along v across the hyperplane at some places, over J; NaN where another kink is near."""
    nodes = places[:, None, :] + window * _NODES[:, None] * v
    f = ask(nodes.reshape(-1, len(v))).reshape(len(places), len(_NODES), -1)
    slope = np.diff(f, axis=1) / window @ J / (J @ J)  # (k, 5): two before, one across, two after
    bent = np.maximum(np.abs(slope[:, 1] - slope[:, 0]), np.abs(slope[:, 4] - slope[:, 3]))
    return np.where(bent < _SAME / 2.0, slope[:, 3] - slope[:, 1], np.nan)


def _plane(
    ask: Meter, setting: Setting, x: Floats, along: Floats, step: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats] | None:
    """A point, the normal v and the jump J (p,) of the slope along v; None where it is not one kink."""
    d = setting.dim
    axes = random_basis(d, d, rng)
    nodes = np.concatenate([np.zeros((1, d)), step * axes])
    sides = []
    for sign in (-1.0, 1.0):
        centre = x + sign * _SIDE * np.sqrt(d) * step * along
        if np.linalg.norm(centre) + step > INSIDE * setting.edge:
            return None
        f = ask(centre + nodes)
        sides.append((f[1:] - f[:1]).T @ axes / step)
    jump = sides[1] - sides[0]
    if not np.isfinite(jump).all():
        return None
    left, size, right = np.linalg.svd(jump)
    if len(size) > 1 and size[1] > _ONE_KINK * size[0]:
        return None
    v, J = right[0], left[:, 0] * size[0]
    return (x, v, J) if v @ along >= 0 else (x, -v, -J)


def _norm(values: Floats) -> Floats:
    """Root mean square over the last axis, that of outputs."""
    return np.asarray(np.sqrt(np.mean(values**2, axis=-1)))
