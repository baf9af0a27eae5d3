"""Zooming out: a response that is affine far out on both sides is a kink when seen from far away.

For GELU, softplus, Swish, ReLU and the like s(z) → b± + c± z as z → ±∞. On a line a distance D from the centre feature
i bends while |v_i·x − t_i| is at most its own width w, a stretch of about w√d of a line as long as D: short, and its
own. Outside these stretches f is affine, so the piecewise-linear search applies with bends that have a width.

Let a scan have found m bends between two places of the line, with slope jumps α_i ∈ R^p. The gradient changes
between the two places by

    ∇f(right) − ∇f(left)  =  Σ_i ν_i α_iᵀ,        ν_i = v_i / (v_i·u)

and the α_i are known. With p outputs and m ≤ p/4 that is a least-squares problem for *all* ν_i at once: two gradients,
2(d+1) answers, give m directions. What is left over must vanish, which tells whether every bend was a single feature
and none was missed; else the group is halved. With one output m = 1, and what replaces that test is to
meet the kink at other far points of its plane.

Responses that come back to the same slope (tanh, bumps) do not show; nor does anything that oscillates for ever, and
then a few probes say so and nothing is spent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..geometry import Floats, random_directions
from .base import Ask, Setting
from .kinks import KinkProposal, proposal
from .lines import Bend, Line, Scan, Seen, Spent, scan_line
from .planes import Search, confirm, gradients


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


def propose_zoomed(ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> KinkProposal:
    """Directions of the features whose response is affine far out, with different slopes on its two sides."""
    search = Search.start(ask, setting, queries, rng)
    far = _view(setting)
    if far is None:
        return proposal(search, 1e-3, "no room to zoom out")
    stopped = "no bend left unseen"
    try:
        if not _affine_far_out(search, far):
            return proposal(search, 1e-3, "not affine far out")
        quiet = 0
        while quiet < 2:
            line = _draw(search, far)
            before = len(search.planes)
            _follow(search, far, line)
            search.lines.append(line)
            quiet = quiet + 1 if len(search.planes) == before else 0
    except Spent:
        stopped = "queries spent"
    return proposal(search, 1e-3, stopped)


def _view(s: Setting) -> Far | None:
    distance = min(1e6 * s.radius, s.reach / 8.0)
    if distance < 1e3 * s.radius:
        return None
    length = min(10.0 * distance, 0.9 * s.reach)
    zoom = length / s.radius
    return Far(distance, length, 2.0 * s.noise * s.outputs**0.5 * zoom, s.scale / s.radius, max(1, s.outputs // 4))


def _affine_far_out(search: Search, far: Far) -> bool:
    """Short straight triples far out are collinear, but for the few that meet a bend."""
    d, probes, step = search.setting.dim, 24, 1e-5 * far.distance
    x = far.distance * random_directions(probes, d, search.rng)
    u = random_directions(probes, d, search.rng)
    triples = np.stack([x - step * u, x, x + step * u], axis=1).reshape(-1, d)
    second = np.diff(search.meter(triples).reshape(probes, 3, -1), 2, axis=1)[:, 0]
    return bool(np.nanmedian(np.linalg.norm(second, axis=1)) < 20.0 * far.noise)


def _draw(search: Search, far: Far) -> Line:
    u, w = random_directions(2, search.setting.dim, search.rng)
    w = w - (w @ u) * u
    return Line(far.distance * w / np.linalg.norm(w), u, -far.length, far.length)


def _follow(search: Search, far: Far, line: Line) -> None:
    """All that one line shows."""
    seen = scan_line(line, search.rest, Scan(65, 1, far.noise, 1e-6 * far.slope, 20, "blurred"))
    for bends, free in _runs(line, seen):
        stations = _Stations(search, far, line, free)
        start = 0
        while start < len(bends):
            end = _cut(free, start, min(start + far.group, len(bends)), len(bends))
            _solve(search, far, line, bends, stations, start, end)
            start = end


def _runs(line: Line, seen: Seen) -> list[tuple[list[Bend], Floats]]:
    """Bends with no dark stretch among them, and (k+1, 2) the free stretches before, between and after each k."""
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


class _Stations:
    """Gradients (d, p) of what is left of f in the free stretches of a run, each taken once."""

    def __init__(self, search: Search, far: Far, line: Line, free: Floats) -> None:
        self.search, self.line, self.free = search, line, free
        self.steps = np.minimum(0.5 * np.diff(free, axis=1)[:, 0] / 30.0, 1e-3 * far.distance)
        self._taken: dict[int, Floats] = {}

    def __getitem__(self, k: int) -> Floats:
        if k not in self._taken:
            x = self.line.at(self.free[k].mean())
            self._taken[k] = gradients(self.search.rest, x[None], self.steps[k : k + 1])[0]
        return self._taken[k]


def _solve(
    search: Search, far: Far, line: Line, bends: list[Bend], stations: _Stations, start: int, end: int
) -> None:
    """The directions of bends start … end−1 from the gradients before and after them; halved where that fails."""
    if (stations.steps[[start, end]] <= 0).any():
        return
    change = stations[end] - stations[start]
    alpha = np.stack([b.jump for b in bends[start:end]])
    nu = np.linalg.lstsq(alpha.T, change.T, rcond=None)[0]
    blur = far.noise * (change.size / (far.group * 4)) ** 0.5 / float(stations.steps[[start, end]].min())
    left = float(np.linalg.norm(change.T - alpha.T @ nu))
    whole = left <= max(1e-5 * float(np.linalg.norm(change)), 4.0 * blur)
    if whole and np.all(np.abs(nu @ line.along - 1.0) < 1e-2):
        _keep(search, far, line, bends[start:end], nu, alpha)
    elif end - start > 1:
        middle = _cut(stations.free, start, end - 1, end)
        _solve(search, far, line, bends, stations, start, middle)
        _solve(search, far, line, bends, stations, middle, end)


def _keep(search: Search, far: Far, line: Line, bends: list[Bend], nu: Floats, alpha: Floats) -> None:
    for bend, n, jump in zip(bends, nu, alpha, strict=True):
        size = float(np.linalg.norm(n))
        v, a = n / size, jump * size
        plane = v, float(v @ line.at(bend.at)), a
        sure = confirm(search.meter, plane, far.distance, 1e-4 * far.distance, search.rng, curved=False)
        if sure:
            search.planes.add(*plane, sure)
