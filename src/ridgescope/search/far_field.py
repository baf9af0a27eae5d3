"""Zooming out: a response that is affine far out on both sides is a kink when seen from far away.

For GELU, softplus, Swish, ReLU and the like s(z) → b± + c± z as z → ±∞. On a line a distance D from the
centre feature i bends while |v_i·x − t_i| is at most its own width w, a stretch of about w√d of a line as
long as D: short, and its own. Outside these stretches f is affine, so the piecewise-linear search applies, with
bends that have a width.

Let a scan have found m bends between two places of the line, with slope jumps α_i ∈ R^p. The gradient changes
between the two places by

    ∇f(right) − ∇f(left)  =  Σ_i ν_i α_iᵀ,        ν_i = v_i / (v_i·u)

and the α_i are known. With p outputs and m ≤ p/4 that is a least-squares problem for *all* ν_i at once: two
gradients, 2(d+1) answers, give m directions. What is left over must vanish, which tells whether every bend
was a single feature and none was missed; else the group is halved. With one output m = 1, and what replaces that
test is to meet the kink at other far points of its plane.

Responses that come back to the same slope (tanh, bumps) do not show. Where anything oscillates for ever a few
probes say so, and nothing is spent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..geometry import Floats, random_directions
from .base import Ask, OutOfQueries, Proposal, Setting, parameter_cost
from .kinks import proposal
from .lines import Bend, Line, Scan, Seen, scan_line
from .planes import Search, Stride, confirm, gradients, on_plane, walk


@dataclass(frozen=True)
class Far:
    """The view from far away."""

    distance: float
    """Of the lines from the centre."""
    length: float
    """Half of it, of the lines."""
    noise: float
    """Norm over outputs of the error of one answer out there."""
    slope: float
    """Typical slope of f."""
    group: int
    """Bends whose directions are found together."""


@dataclass(frozen=True)
class FarField:
    """Directions of features whose response is affine far out, all at once."""

    name: ClassVar[str] = "far_field"

    def cost(self, setting: Setting) -> int:
        """As for two features a dimension, doubling with the rounds."""
        return parameter_cost(2 * setting.dim, setting, setting.rounds)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Directions of the features whose response is affine far out, with different slopes on its two sides."""
        return _propose(ask, setting, queries, rng)


def _propose(ask: Ask, setting: Setting, queries: int, rng: np.random.Generator) -> Proposal:
    search = Search.start(ask, setting, queries, rng)
    far = _view(setting)
    if far is None:
        return proposal(search, 1e-3, "the reach is too short to look from far away")
    stopped = "three lines in a row brought nothing new"
    rough: list[_Rough] = []
    try:
        if not _affine_far_out(search, far):
            return proposal(search, 1e-3, "not affine far out")
        quiet = 0
        while quiet < 3:
            line = _draw(search, far)
            news = _follow(search, far, line, rough)
            search.lines.append(line)
            quiet = 0 if news else quiet + 1
        _settle(search, rough)
        _sharpen(search, far)
    except OutOfQueries:
        stopped = "queries spent"
        search.planes.sure[:] = True
        _settle(search, rough)
    return proposal(search, 1e-3, stopped, everywhere=True)


def _view(s: Setting) -> Far | None:
    distance = min(1e6 * s.radius, s.reach / 8.0)
    if distance < 1e3 * s.radius or s.dim < 2:
        return None
    length = min(10.0 * distance, 0.9 * s.reach)
    zoom = length / s.radius
    return Far(distance, length, 2.0 * s.noise * s.outputs**0.5 * zoom, s.std / s.radius, max(1, s.outputs // 4))


def _affine_far_out(search: Search, far: Far) -> bool:
    """Short straight triples far out are collinear, but for the few that meet a bend."""
    d, probes, step = search.setting.dim, 24, 1e-5 * far.distance
    x = far.distance * random_directions(probes, d, search.rng)
    u = random_directions(probes, d, search.rng)
    triples = np.stack([x - step * u, x, x + step * u], axis=1).reshape(-1, d)
    second = np.linalg.norm(np.diff(search.meter(triples).reshape(probes, 3, -1), 2, axis=1)[:, 0], axis=1)
    return bool(np.sum(second < 20.0 * far.noise) > probes // 2)


def _draw(search: Search, far: Far) -> Line:
    u, w = random_directions(2, search.setting.dim, search.rng)
    w = w - (w @ u) * u
    return Line(far.distance * w / np.linalg.norm(w), u, -far.length, far.length)


def _follow(search: Search, far: Far, line: Line, rough: list[_Rough]) -> bool:
    """All that one line shows; whether that was anything new.

    What it adds to the known planes is subtracted from the next line on, so it must be accurate; the rest is
    kept aside as rough, until another line shows it too.
    """
    seen = scan_line(line, search.rest, Scan(65, 1, far.noise, 1e-4 * far.slope, 20, "blurred"))
    found: list[tuple[Bend, Floats, float]] = []
    for bends, free in _runs(line, seen):
        stations = _Stations(search, far, line, bends, free)
        start = 0
        while start < len(bends):
            end = _cut(free, start, min(start + far.group, len(bends)), len(bends))
            found += _solve(far, line, bends, stations, start, end)
            start = end
    return [_admit(search, far, line, rough, *one) for one in found].count(True) > 0


def _admit(search: Search, far: Far, line: Line, rough: list[_Rough], bend: Bend, nu: Floats, error: float) -> bool:
    """Take in a plane met elsewhere too: at once if accurate, else the better of two. Whether it is new."""
    size = float(np.linalg.norm(nu))
    v, a = nu / size, bend.jump * size
    plane = v, float(v @ line.at(bend.at)), a
    if not confirm(search.meter, plane, far.distance, 1e-4 * far.distance, search.rng, curved=False):
        return False
    best = _Rough(plane, error)
    before = [r for r in rough if abs(v @ r.plane[0]) > 1.0 - 1e-8]
    for r in before:
        rough.remove(r)
        best = min(best, r, key=lambda r: r.error)
    if before or error < 1e-8:
        search.planes.add(*best.plane, True, best.error)
    else:
        rough.append(best)
    return not before


@dataclass(frozen=True, eq=False)
class _Rough:
    plane: tuple[Floats, float, Floats]
    error: float


def _settle(search: Search, rough: list[_Rough]) -> None:
    """Rough planes that no line showed better."""
    for r in sorted(rough, key=lambda r: r.error):
        if not np.any(np.abs(search.planes.v @ r.plane[0]) > 1.0 - 1e-8):
            search.planes.add(*r.plane, True, r.error)


def _sharpen(search: Search, far: Far) -> None:
    """Walk along the planes whose error, times the distance they were seen from, would misplace them."""
    planes = search.planes
    stride = Stride(0.3 * far.distance, 1e-4 * far.distance, 0.05)
    for k in np.flatnonzero(planes.error > 0.5 * search.setting.radius / far.distance):
        planes.sure[k] = False  # not subtracted while it is looked at
        y = on_plane(planes.v[k], planes.t[k], 0.5 * far.distance, 3, search.rng)
        for start in y:
            better = walk(search.rest, start, planes.v[k], planes.a[k], far.distance, stride, search.rng)
            if better is not None and better[2] > 0.8:
                planes.v[k], planes.t[k], planes.error[k] = better[0], float(better[0] @ better[1]), 0.0
                break
        planes.sure[k] = True


def _runs(line: Line, seen: Seen) -> list[tuple[list[Bend], Floats]]:
    """Bends with no dark stretch among them, and (k+1, 2) the free stretches before, between and after."""
    dark = [(low, high) for low, high in seen.dark]
    lit = [b for b in seen.bends if not any(b.left < high and low < b.right for low, high in dark)]
    edges = sorted([(b.left, b.right, i) for i, b in enumerate(lit)] + [(*d, -1) for d in dark])
    edges = [(-np.inf, line.low, -1), *edges, (line.high, np.inf, -1)]
    runs: list[tuple[list[Bend], Floats]] = []
    bends: list[Bend] = []
    free: list[tuple[float, float]] = []
    for (_, end, _), (start, _, which) in itertools.pairwise(edges):
        free.append((end, max(start, end)))
        if which >= 0:
            bends.append(lit[which])
        else:
            if bends:
                runs.append((bends, np.array(free)))
            bends, free = [], []
    return runs


def _cut(free: Floats, start: int, end: int, last: int) -> int:
    """Where to end a group: at the widest free stretch of its second half, or with the run."""
    if end == last or end - start == 1:
        return end
    first = start + (end - start + 1) // 2
    return first + int(np.argmax(np.diff(free[first : end + 1], axis=1)))


def _halfway(free: Floats, start: int, end: int) -> int:
    """The widest free stretch in the middle third of a group."""
    third = (end - start) // 3
    first = start + max(third, 1)
    return first + int(np.argmax(np.diff(free[first : max(end - third, first + 1)], axis=1)))


class _Stations:
    """Gradients (d, p) of what is left of f in the free stretches of a run, each taken once."""

    def __init__(self, search: Search, far: Far, line: Line, bends: list[Bend], free: Floats) -> None:
        self.search, self.far, self.line, self.free = search, far, line, free
        self.slopes = [bends[0].slope, *(b.slope + b.jump for b in bends)]
        typical = float(np.median([np.linalg.norm(b.jump) for b in bends])) * len(line.along) ** 0.5
        room = 0.5 * np.diff(free, axis=1)[:, 0]
        self.steps = np.clip(1e7 * far.noise / typical, 1e-3 * room, 0.1 * room)
        self._taken: dict[int, Floats | None] = {}

    def beside(self, bend: Bend) -> _Stations:
        """Two stations next to one bend."""
        free = np.array([[bend.left - bend.spacing, bend.left], [bend.right, bend.right + bend.spacing]])
        return _Stations(self.search, self.far, self.line, [bend], free)

    def __getitem__(self, k: int) -> Floats | None:
        """None where no step gives the slope that the line itself has there."""
        if k not in self._taken:
            self._taken[k] = self._take(k)
        return self._taken[k]

    def _take(self, k: int) -> Floats | None:
        """A step that crosses a plane beside the line does not add up along it; a smaller one may."""
        x = self.line.at(self.free[k].mean())
        for _ in range(3):
            if self.steps[k] <= 0:
                break
            slopes: Floats = gradients(self.search.rest, x[None], self.steps[k : k + 1])[0]
            off = np.linalg.norm(slopes.T @ self.line.along - self.slopes[k])
            if off <= 1e-4 * np.linalg.norm(slopes):
                return slopes
            self.steps[k] /= 10.0
        return None


def _solve(
    far: Far, line: Line, bends: list[Bend], stations: _Stations, start: int, end: int
) -> list[tuple[Bend, Floats, float]]:
    """Bends start … end−1 with their ν and possible error (radians), from the gradients before and after.

    Halved where that fails.
    """
    found = _together(far, line, bends[start:end], stations, (start, end))
    if found or (end - start == 1 and not len(stations.search.planes)):
        return found
    if end - start == 1:
        # far from the bend, the errors of the known planes in between may have added up
        return _together(far, line, bends[start:end], stations.beside(bends[start]), (0, 1))
    middle = _halfway(stations.free, start, end)
    return _solve(far, line, bends, stations, start, middle) + _solve(far, line, bends, stations, middle, end)


def _together(
    far: Far, line: Line, bends: list[Bend], stations: _Stations, places: tuple[int, int]
) -> list[tuple[Bend, Floats, float]]:
    """All the bends between two stations at once; none unless they account for the whole change of gradient."""
    before, after = stations[places[0]], stations[places[1]]
    if before is None or after is None:
        return []
    change = after - before
    alpha = np.stack([b.jump for b in bends])
    nu = np.asarray(np.linalg.lstsq(alpha.T, change.T, rcond=None)[0], dtype=np.float64)
    blur = far.noise * len(change) ** 0.5 / float(stations.steps[list(places)].min())
    left = float(np.linalg.norm(change.T - alpha.T @ nu))
    if left > max(1e-5 * float(np.linalg.norm(change)), 4.0 * blur):
        return []
    if np.any(np.abs(nu @ line.along - 1.0) > 1e-2):
        return []
    return list(zip(bends, nu, _errors(alpha, nu, line.along, left), strict=True))


def _errors(alpha: Floats, nu: Floats, along: Floats, left: float) -> list[float]:
    """The angle by which each direction may be off, from what least squares left over and from ν·u = 1."""
    (m, p), d = alpha.shape, nu.shape[1]
    spread = np.sqrt(np.diag(np.linalg.pinv(alpha @ alpha.T)))
    scatter = spread * left / max(p - m, 1) ** 0.5 if p > m else np.zeros(m)
    off = scatter + d**0.5 * np.abs(nu @ along - 1.0)
    return [float(error) for error in off / np.linalg.norm(nu, axis=1)]
