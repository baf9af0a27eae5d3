"""The far field: a response that is affine far out on both sides is a kink when seen from far away.

For GELU, softplus, Swish, ReLU and the like s(z) → b± + c± z as z → ±∞. On a line a distance D from the
centre feature i bends while |v_i·x − t_i| is at most its own width w, a stretch of about w√d of a line as
long as D: short, and its own. Outside these stretches f is affine, so the piecewise-linear search applies, with
bends that have a width.

Let a scan have found m bends between two places of the line, with slope jumps α_i ∈ R^p. The gradient changes
between the two places by

    ∇f(right) − ∇f(left)  =  Σ_i ν_i α_iᵀ,        ν_i = v_i / (v_i·u)

and the α_i are known. With p outputs and m ≤ p/4 that is a least-squares problem for *all* ν_i at once: two
gradients, 2(d+1) answers, give m directions. What is left over must vanish, which shows that every bend
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
from .base import Ask, CostPerRound, OutOfQueries, Proposal, Setting
from .lines import Bend, Line, Scan, Scanned, scan_line
from .planes import Baseline, KinkSearch, Stop, confirm, fit_plane, forward_gradients, points_on_plane, proposal_of


@dataclass(frozen=True)
class FarFieldSettings:
    """Thresholds of the far field; empirical where no reason is given, checked on planted and real layers."""

    distance: float = 1e6  # of lines from the centre, in radii: bends are a millionth of them, digits of f remain
    least_distance: float = 1e3  # nearer, the bends of features overlap
    reach_share: float = 8.0  # reach over distance, so that lines can be long
    length: float = 10.0  # of lines over their distance: shorter ones cross fewer planes, longer ones cost digits
    longest: float = 0.9  # and at most that share of the reach
    noise: float = 2.0  # of an answer, over that in the ball times the distance in radii: sums are longer
    outputs_per_bend: int = 4  # equations over unknowns of a group of bends
    triples: int = 24  # short straight triples, of which more than half must be collinear to rounding:
    triple_step: float = 1e-5  # in distances, so that few meet a bend,
    triple_noise: float = 20.0  # and their second difference over noise; √6 of it are rounding
    points: int = 65  # of the first grid on a line
    depth: int = 20  # halvings of its step
    least_jump: float = 1e-4  # in std/radius
    lines_without_new: int = 3  # lines in a row without a new plane that end the search; one crosses 94 % of them
    same: float = 1e-3  # radians within which two planes belong to one feature
    same_plane: float = 1e-8  # 1 − |v·w| of one and the same plane, 1e-4 radians
    accurate: float = 1e-8  # radians below which a plane is subtracted from the next line: a bend's width there
    confirm_step: float = 1e-4  # in distances
    misplaced: float = 0.5  # radii by which the error of a direction may misplace its kink
    baseline: tuple[float, float, float] = (0.3, 1e-4, 0.05)  # length and size in distances, slack, to correct it
    met_places: float = 0.8  # share of places that must meet the plane for that
    gradient_noise: float = 1e7  # step of a gradient over noise/|jump|, and its limits as shares of the free stretch:
    gradient_room: tuple[float, float] = (1e-3, 0.1)  # as long as can be without crossing a plane beside the line
    tries: int = 3  # steps, each a tenth of the last, until a gradient agrees with the slope of the line
    slope_error: float = 1e-4  # to that share of the gradient
    left_over: float = 1e-5  # of the change of gradient, that a group of bends may leave, or
    left_noise: float = 4.0  # so many times its noise
    along_error: float = 1e-2  # error of ν·u = 1


@dataclass(frozen=True)
class FarField(CostPerRound):
    """Directions of features whose response is affine far out, all at once: for wide layers of networks."""

    settings: FarFieldSettings = FarFieldSettings()
    name: ClassVar[str] = "far_field"

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Directions of the features whose response is affine far out, with different slopes on its two sides."""
        s = self.settings
        distance = min(s.distance * setting.radius, setting.reach / s.reach_share)
        if distance < s.least_distance * setting.radius or setting.dim < 2:
            return Proposal.empty(setting, "the reach is too short, or there is one dimension only")
        length = min(s.length * distance, s.longest * setting.reach)
        noise = s.noise * setting.noise * setting.outputs**0.5 * (length / setting.radius)
        slope, group = setting.std / setting.radius, max(1, setting.outputs // s.outputs_per_bend)
        view = View(s, distance, length, noise, slope, group)
        search = KinkSearch.start(ask, setting, queries, rng)
        stop, rough = Stop.NOTHING_NEW, list[_Rough]()
        try:
            x = distance * random_directions(s.triples, setting.dim, rng)
            if not search.probe_straight(x, s.triple_step * distance, s.triple_noise * noise):
                return Proposal.empty(setting, "f is not affine far out")
            without_new = 0
            while without_new < s.lines_without_new:
                line = _draw(search, view)
                new = _follow(search, view, line, rough)
                search.lines.append(line)
                without_new = 0 if new else without_new + 1
            _add_rough(search, view, rough)
            _sharpen(search, view)
        except OutOfQueries:
            stop = Stop.SPENT
            search.planes.confirmed[:] = True
            _add_rough(search, view, rough)
        complete = stop is Stop.NOTHING_NEW and search.all_explained
        return proposal_of(search, s.same, stop, complete=complete, everywhere=True)


@dataclass(frozen=True)
class View:
    """The lines that look from far away."""

    s: FarFieldSettings
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


def _draw(search: KinkSearch, view: View) -> Line:
    """A line in a random direction at the distance of the view."""
    u, w = random_directions(2, search.setting.dim, search.rng)
    w = w - (w @ u) * u
    return Line(view.distance * w / np.linalg.norm(w), u, -view.length, view.length)


def _follow(search: KinkSearch, view: View, line: Line, rough: list[_Rough]) -> bool:
    """Find the planes of one line's bends; whether any of them is new.

    What it adds to the known planes is subtracted from the next line on, so it must be accurate; the rest is
    kept aside as rough, until another line shows it too.
    """
    s = view.s
    scanned = scan_line(
        line, search.residual, Scan(s.points, 1, view.noise, s.least_jump * view.slope, s.depth, "blurred")
    )
    found: list[tuple[Bend, Floats, float]] = []
    for bends, free in _runs(line, scanned):
        sites = _GradientSites(search, view, line, bends, free)
        start = 0
        while start < len(bends):
            end = _cut(free, start, min(start + view.group, len(bends)), len(bends))
            found += _solve(view, line, bends, sites, start, end)
            start = end
    search.remember_bends(line, scanned)
    return [_admit(search, view, line, rough, *one) for one in found].count(True) > 0


@dataclass(frozen=True, eq=False)
class _Rough:
    """A plane (v, t, a) and the angle by which it may be off."""

    plane: tuple[Floats, float, Floats]
    error: float


def _admit(
    search: KinkSearch, view: View, line: Line, rough: list[_Rough], bend: Bend, nu: Floats, error: float
) -> bool:
    """Take in a plane met elsewhere too: at once if accurate, else the better of two. Whether it is new."""
    size = float(np.linalg.norm(nu))
    v, a = nu / size, bend.jump * size
    plane = v, float(v @ line.at(bend.at)), a
    step = view.s.confirm_step * view.distance
    if not confirm(search.meter, plane, view.distance, step, search.rng, curved=False):
        return False
    best = _Rough(plane, error)
    before = [r for r in rough if abs(v @ r.plane[0]) > 1.0 - view.s.same_plane]
    for r in before:
        rough.remove(r)
        best = min(best, r, key=lambda r: r.error)
    if before or error < view.s.accurate:
        search.planes.add(*best.plane, True, best.error)
    else:
        rough.append(best)
    return not before


def _add_rough(search: KinkSearch, view: View, rough: list[_Rough]) -> None:
    """Rough planes that no line showed better."""
    for r in sorted(rough, key=lambda r: r.error):
        if not np.any(np.abs(search.planes.v @ r.plane[0]) > 1.0 - view.s.same_plane):
            search.planes.add(*r.plane, True, r.error)


def _sharpen(search: KinkSearch, view: View) -> None:
    """Fit again the planes whose error, times the distance they were seen from, would misplace them."""
    s, planes = view.s, search.planes
    baseline = Baseline(s.baseline[0] * view.distance, s.baseline[1] * view.distance, s.baseline[2])
    for k in np.flatnonzero(planes.error > s.misplaced * search.setting.radius / view.distance):
        planes.confirmed[k] = False  # not subtracted while it is looked at
        y = points_on_plane(planes.v[k], planes.t[k], 0.5 * view.distance, 3, search.rng)
        for start in y:
            better = fit_plane(search.residual, start, planes.v[k], planes.a[k], view.distance, baseline, search.rng)
            if better is not None and better[2] > s.met_places:
                planes.v[k], planes.t[k], planes.error[k] = better[0], float(better[0] @ better[1]), 0.0
                break
        planes.confirmed[k] = True


def _runs(line: Line, scanned: Scanned) -> list[tuple[list[Bend], Floats]]:
    """Bends with no unresolved stretch among them, and (k+1, 2) the free stretches before, between and after."""
    unresolved = [(low, high) for low, high in scanned.unresolved]
    clear = [b for b in scanned.bends if not any(b.left < high and low < b.right for low, high in unresolved)]
    edges = sorted([(b.left, b.right, i) for i, b in enumerate(clear)] + [(*d, -1) for d in unresolved])
    edges = [(-np.inf, line.low, -1), *edges, (line.high, np.inf, -1)]
    runs: list[tuple[list[Bend], Floats]] = []
    bends: list[Bend] = []
    free: list[tuple[float, float]] = []
    for (_, end, _), (start, _, which) in itertools.pairwise(edges):
        free.append((end, max(start, end)))
        if which >= 0:
            bends.append(clear[which])
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


class _GradientSites:
    """Gradients (d, p) of what is left of f in the free stretches of a run, each taken once."""

    def __init__(self, search: KinkSearch, view: View, line: Line, bends: list[Bend], free: Floats) -> None:
        self.search, self.view, self.line, self.free = search, view, line, free
        self.slopes = [bends[0].slope, *(b.slope + b.jump for b in bends)]
        typical = float(np.median([np.linalg.norm(b.jump) for b in bends])) * len(line.along) ** 0.5
        room, (least, most) = 0.5 * np.diff(free, axis=1)[:, 0], view.s.gradient_room
        self.steps = np.clip(view.s.gradient_noise * view.noise / typical, least * room, most * room)
        self._taken: dict[int, Floats | None] = {}

    def beside(self, bend: Bend) -> _GradientSites:
        """Two sites next to one bend."""
        free = np.array([[bend.left - bend.spacing, bend.left], [bend.right, bend.right + bend.spacing]])
        return _GradientSites(self.search, self.view, self.line, [bend], free)

    def __getitem__(self, k: int) -> Floats | None:
        """None where no step gives the slope that the line itself has there."""
        if k not in self._taken:
            self._taken[k] = self._take(k)
        return self._taken[k]

    def _take(self, k: int) -> Floats | None:
        """A step that crosses a plane beside the line does not add up along it; a smaller one may."""
        x = self.line.at(self.free[k].mean())
        for _ in range(self.view.s.tries):
            if self.steps[k] <= 0:
                break
            slopes: Floats = forward_gradients(self.search.residual, x[None], self.steps[k : k + 1])[0]
            off = np.linalg.norm(slopes.T @ self.line.along - self.slopes[k])
            if off <= self.view.s.slope_error * np.linalg.norm(slopes):
                return slopes
            self.steps[k] /= 10.0
        return None


def _solve(
    view: View, line: Line, bends: list[Bend], sites: _GradientSites, start: int, end: int
) -> list[tuple[Bend, Floats, float]]:
    """Bends start … end−1 with their ν and possible error (radians), from the gradients before and after.

    Halved where that fails.
    """
    found = _together(view, line, bends[start:end], sites, (start, end))
    if found or (end - start == 1 and not len(sites.search.planes)):
        return found
    if end - start == 1:
        # far from the bend, the errors of the known planes in between may have added up
        return _together(view, line, bends[start:end], sites.beside(bends[start]), (0, 1))
    middle = _halfway(sites.free, start, end)
    return _solve(view, line, bends, sites, start, middle) + _solve(view, line, bends, sites, middle, end)


def _together(
    view: View, line: Line, bends: list[Bend], sites: _GradientSites, ends: tuple[int, int]
) -> list[tuple[Bend, Floats, float]]:
    """All the bends between two sites at once; none unless they account for the whole change of gradient."""
    before, after = sites[ends[0]], sites[ends[1]]
    if before is None or after is None:
        return []
    change = after - before
    alpha = np.stack([b.jump for b in bends])
    nu = np.asarray(np.linalg.lstsq(alpha.T, change.T, rcond=None)[0], dtype=np.float64)
    blur = view.noise * len(change) ** 0.5 / float(sites.steps[list(ends)].min())
    left = float(np.linalg.norm(change.T - alpha.T @ nu))
    if left > max(view.s.left_over * float(np.linalg.norm(change)), view.s.left_noise * blur):
        return []
    if np.any(np.abs(nu @ line.along - 1.0) > view.s.along_error):
        return []
    return list(zip(bends, nu, _errors(alpha, nu, line.along, left), strict=True))


def _errors(alpha: Floats, nu: Floats, along: Floats, left: float) -> list[float]:
    """The angle by which each direction may be off, from what least squares left over and from ν·u = 1."""
    (m, p), d = alpha.shape, nu.shape[1]
    deviation = np.sqrt(np.diag(np.linalg.pinv(alpha @ alpha.T)))
    scatter = deviation * left / max(p - m, 1) ** 0.5 if p > m else np.zeros(m)
    off = scatter + d**0.5 * np.abs(nu @ along - 1.0)
    return [float(error) for error in off / np.linalg.norm(nu, axis=1)]
