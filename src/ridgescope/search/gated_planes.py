"""Hyperplanes of the kinks of a piecewise quadratic function, and how f changes across them, from bends on lines.

Let f be quadratic on either side of v·x = t, with o relu(v·x − t)(w·x + c) the difference of the two sides. Then the
gradient jumps by (w·x + c) v oᵀ at a point x of the hyperplane. This is v up to its length, but its size varies along
the hyperplane and changes sign, so that equal jumps elsewhere are no test of it. Locations are:

`planes_through`   gradients at two places before and two after a bend, extrapolated to it, which is exact; what
                   forward differences are off by is the same on either side, but for the unit's own part.
`locate`           four answers on either side of a place y, along v: both lie on parabolas, exactly, which meet where
                   the kink is, as one more answer there shows. Nothing is asked of the size of the jump, except that it
                   stands out of rounding.
`fitted_plane`     the hyperplane through many such places, weighted by the size of the jump there; they lie on one to
                   rounding only if there is one. The jumps at these places are linear in x if this is the gate of a
                   unit, and then give (w·x + c) oᵀ, but for w·v, of which second derivatives along v know less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats, random_directions, unit
from .base import Setting
from .gradient_jumps import forward_gradients, rank_one_jump
from .lines import Answer, Bend, Line
from .polynomials import meeting_point

_EXACT = 1e-9  # noise over std up to which answers count as exact, as for plain kinks
_BEND_NOISE = 30.0  # error of a bend's position over noise/|jump|, from parabolas through points up to 2.5 steps away
_PLACED = 0.03  # largest error of a bend's position, in distances of its gradients, which it hardly moves
_SMOOTH = 8.0 * 20.0**0.5  # third differences over noise that a kink makes, as for scans
_STANDS_OUT = 100.0  # times the noise that a kink must change a value by over half the window
_PLACE_NOISE = 5.0  # error of a place over noise/jump
_DEVIATIONS = 10.0  # errors by which places may be off a hyperplane
_FIRST, _MET = 3, 0.5  # places that are looked at first, and the share of all that must show the kink
_SPARE, _ROUNDS = 4, 2  # places beyond 1.5 d, and how often so many are asked if need be: d would determine a
# hyperplane and its jumps, but errors of solutions of random square systems are large
_LINEAR = 1e-9  # share of jumps that may be off a linear function, because of rounding
_FLAT = 1e-11  # least error of a place, in radii, because of the rounding of its coordinates
_DEPENDENT = 1e-12  # singular values, over the largest, below which places do not determine a hyperplane
_CORE = 0.9  # hyperplanes this far out, in radii, are followed from where they were met instead
_MARGIN = 5.0  # room for a stencil, in windows

_OFFSETS = np.array([-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0])
_PARABOLAS = tuple(np.linalg.pinv(np.vander(side, 3, increasing=True)) for side in np.split(_OFFSETS, 2))


@dataclass(frozen=True)
class Steps:
    """Lengths of stencils, in radii: the longer, the less noise matters and the more other kinks they meet."""

    station: float
    """Distance of the first gradient from its bend, or in distances from the centre."""
    room: float
    """That distance over the step of differences: few lines cross a hyperplane at such grazing angles."""
    window: float
    """Half width of the gap in which a kink is located: above errors of v, and eight seldom meet another kink."""
    exact: bool
    """Whether noise is no more than rounding in double precision; if not, differences are central ones, exact, too."""

    @classmethod
    def of(cls, setting: Setting) -> Steps:
        """Return the steps that the noise asks for; the fourth root balances noise and curvature of other units."""
        if setting.noise * setting.outputs**0.5 <= _EXACT * setting.std:
            return cls(1e-4, 50.0, 2e-4, True)
        return cls(2e-2, 10.0, 2e-3, False)


@dataclass(frozen=True, eq=False)
class Hyperplane:
    """{x : v·x = t} for a unit vector v; f on its positive side is (v·x − t)(c + W x) more than on the other."""

    v: Floats
    t: float
    change: Floats
    """(1 + d, p): c, then the transpose of W."""


def noise_at(setting: Setting, x: Floats) -> Floats:
    """Return the norm over outputs of the error of answers at x (m, d): a quadratic function grows like |x|²."""
    far = np.maximum(1.0, np.linalg.norm(x, axis=1) / setting.radius)
    return np.asarray(setting.noise * setting.outputs**0.5 * far**2)


def blur_of(setting: Setting, line: Line, bend: Bend) -> float:
    """Return the error of a bend's position."""
    return float(_BEND_NOISE * noise_at(setting, line.at(bend.at)[None])[0] / np.linalg.norm(bend.jump))


def _central_gradients(answer: Answer, x: Floats, steps: Floats) -> Floats:
    """Return (k, d, p) central differences at k points."""
    k, d = x.shape
    moves = steps[:, None, None] * np.eye(d)
    pairs = np.stack([x[:, None] + moves, x[:, None] - moves])
    values = answer(pairs.reshape(-1, d)).reshape(2, k, d, -1)
    return np.asarray((values[0] - values[1]) / (2.0 * steps[:, None, None]))


def planes_through(answer: Answer, setting: Setting, line: Line, bends: list[Bend], others: Floats) -> list[Floats]:
    """Return (v, x) stacked (2, d) for each bend whose gradient jump is that of a hyperplane through it at x.

    `others` are the positions of all bends of the line, these among them.
    """
    steps, at = Steps.of(setting), np.array([b.at for b in bends])
    x = line.at(at)
    size = np.maximum(setting.radius, np.linalg.norm(x, axis=1))
    ends = np.concatenate([[line.low], np.sort(others), [line.high]])
    k = np.searchsorted(ends[1:-1], at) + 1
    apart = np.minimum(steps.station * size, 0.25 * np.minimum(ends[k] - ends[k - 1], ends[k + 1] - ends[k]))
    blur = np.array([blur_of(setting, line, bend) for bend in bends])
    good = np.flatnonzero(blur <= _PLACED * apart)
    if not len(good):
        return []
    stations = line.at(np.concatenate([at[good] + k * apart[good] for k in (-2.0, -1.0, 1.0, 2.0)]))
    gradients = forward_gradients if steps.exact else _central_gradients
    slopes = gradients(answer, stations, np.tile(apart[good] / steps.room, 4)).reshape(4, len(good), setting.dim, -1)
    jumps = (2.0 * slopes[2] - slopes[3]) - (2.0 * slopes[1] - slopes[0])
    found = []
    for i, jump in zip(good, jumps, strict=True):
        pair = rank_one_jump(jump, line.along, bends[i].jump)
        if pair is not None:
            found.append(np.stack([pair[0], x[i]]))
    return found


@dataclass(frozen=True, eq=False)
class Located:
    """Places on the kink of one unit."""

    x: Floats
    """(m, d) places."""
    error: Floats
    """(m,) how far each may be off along v."""
    jump: Floats
    """(m, p) jumps of the slope along v."""
    jump_error: Floats
    """(m,) the error of their norms."""
    curve: Floats
    """(m, p) half the jumps of the second derivative along v."""

    def and_more(self, other: Located) -> Located:
        """Return these places and others."""
        return Located(
            *(np.concatenate([a, b]) for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def locate(answer: Answer, setting: Setting, y: Floats, v: Floats) -> Located:
    """Return where f has a kink along v beside the places y (m, d), if it has a single one there."""
    width = Steps.of(setting).window * setting.radius
    values = answer((y[:, None] + width * _OFFSETS[:, None] * v).reshape(-1, len(v))).reshape(len(y), 8, -1)
    noise, at, rows = noise_at(setting, y), list[int](), list[Floats]()
    for i, (before, after) in enumerate(zip(values[:, :4], values[:, 4:], strict=True)):
        third = [float(np.linalg.norm(np.diff(side, 3, axis=0))) for side in (before, after)]
        if not max(third) <= _SMOOTH * noise[i]:
            continue
        sides = [fit @ side for fit, side in zip(_PARABOLAS, (before, after), strict=True)]
        gap = sides[1] - sides[0]
        root = meeting_point(gap, 1.0)
        if root is None:
            continue
        jump = gap[1] + 2.0 * root * gap[2]
        if 0.5 * np.linalg.norm(jump) > _STANDS_OUT * noise[i]:
            at.append(i)
            rows.append(np.stack([root ** np.arange(3) @ sides[0], jump / width, gap[2] / width**2, root + 0.0 * jump]))
    if not at:
        none = np.empty((0, setting.outputs))
        return Located(np.empty((0, len(v))), np.empty(0), none, np.empty(0), none)
    value, jump, curve, roots = np.stack(rows, axis=1)
    x = y[at] + width * roots[:, :1] * v
    single = np.linalg.norm(answer(x) - value, axis=1) <= _SMOOTH * noise[at]
    jump_error = _PLACE_NOISE * noise[at] / width
    found = Located(x, jump_error / np.linalg.norm(jump, axis=1) * width, jump, jump_error, curve)
    return Located(*(part[single] for part in vars(found).values()))


def fitted_plane(answer: Answer, setting: Setting, v: Floats, x: Floats, rng: np.random.Generator) -> Hyperplane | None:
    """Return the hyperplane near that through x across v, from places all over it; None if it is no unit's."""
    places, asked, d = None, 0, setting.dim
    for count in (_FIRST, *(3 * d // 2 + _SPARE - _FIRST,) * _ROUNDS):
        y = _places(setting, v, x, count, rng)
        if np.linalg.norm(y, axis=1).max() + _MARGIN * Steps.of(setting).window * setting.radius > setting.reach:
            return None
        found = locate(answer, setting, y, v)
        places = found if places is None else places.and_more(found)
        asked += count
        if len(places.x) < _MET * asked:
            return None
        if len(places.x) > d + 1:
            break
    if places is None or len(places.x) <= d + 1:
        return None
    across = np.linalg.qr(np.column_stack([v, rng.standard_normal((d, d - 1))]))[0][:, 1:]
    error = np.maximum(places.error, _FLAT * np.maximum(setting.radius, np.linalg.norm(places.x, axis=1)))
    design = np.column_stack([places.x @ across, -np.ones(len(places.x))])
    off = float(v @ x) - places.x @ v
    turn = np.linalg.lstsq(design / error[:, None], off / error, rcond=_DEPENDENT)[0]
    length = float(np.linalg.norm(v + across @ turn[:-1]))
    better, t = (v + across @ turn[:-1]) / length, (float(v @ x) + float(turn[-1])) / length
    if (np.abs(places.x @ better - t) > _DEVIATIONS * error).any():
        return None
    turned = float(v @ better)
    change = _change(replace(places, jump=places.jump / turned, curve=places.curve / turned), better, t, rng)
    return None if change is None else Hyperplane(better, t, change)


def _change(places: Located, v: Floats, t: float, rng: np.random.Generator) -> Floats | None:
    """Return c and Wᵀ (1 + d, p) from jumps c + W x at places of v·x = t; None if these are not linear in x."""
    d = len(v)
    across = np.linalg.qr(np.column_stack([v, rng.standard_normal((d, d - 1))]))[0][:, 1:]
    design = np.column_stack([np.ones(len(places.x)), places.x @ across])
    solution = np.linalg.lstsq(design, places.jump, rcond=_DEPENDENT)[0]
    off = np.linalg.norm(places.jump - design @ solution, axis=1)
    size = float(np.linalg.norm(places.jump, axis=1).max())
    if (off > _DEVIATIONS * places.jump_error + _LINEAR * size).any():
        return None
    along = places.curve.mean(axis=0)
    return np.concatenate([solution[:1] - t * along, across @ solution[1:] + np.multiply.outer(v, along)])


def change_error(setting: Setting) -> float:
    """Return the share of changes by which these may be off because of noise."""
    share = setting.noise * setting.outputs**0.5 / setting.std
    return float(_DEVIATIONS * _PLACE_NOISE * share / Steps.of(setting).window)


def _places(setting: Setting, v: Floats, x: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return (count, d) places of the hyperplane through x across v, in the ball, or around x if it hardly meets it."""
    margin = _MARGIN * Steps.of(setting).window * setting.edge
    t, core = float(v @ x), _CORE * setting.edge - margin
    w = random_directions(count, len(v), rng)
    w = unit(w - np.multiply.outer(w @ v, v)) if len(v) > 1 else np.zeros_like(w)
    far = rng.random((count, 1)) ** (1.0 / max(len(v) - 1, 1))
    if abs(t) < core:
        return np.asarray(t * v + w * far * np.sqrt(setting.edge**2 * _CORE**2 - t**2))
    base = t * v + _CORE * (x - t * v)  # away from the edge of what may be asked
    room = max(min(setting.edge, setting.reach - float(np.linalg.norm(base))) - margin, 0.0)
    return np.asarray(base + w * far * room)
