"""The far field: a response that is affine for large |z| looks like a kink from far away.

For GELU, softplus, Swish, ReLU and the like s(z) → b± + c± z as z → ±∞. On a line at distance D from the
centre feature i bends where |v_i·x − t_i| is at most its own width w. That is a stretch of about w√d on a line
of length about D, so that the stretches of different features rarely overlap. Outside of them f is affine, and the
search for kinks of a piecewise linear f applies, with bends that have a width.

Let a scan have found m bends between two positions on the line, with slope jumps α_i ∈ R^p. The gradient changes
between the two positions by

    ∇f(right) − ∇f(left)  =  Σ_i ν_i α_iᵀ,        ν_i = v_i / (v_i·u)

and the α_i are known. With p outputs and m ≤ p/4 this is a least-squares problem for *all* ν_i at once: two
gradients, 2(d+1) answers, give m directions. A zero residual shows that every bend was a single feature and none
was missed; otherwise the group is halved. With one output m = 1, and instead of that test the kink is checked at
other far points of its plane.

Responses with the same slope on both sides (tanh, bumps) are not found. If f still oscillates far away, a few
probes detect that and the search ends at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..geometry import Floats, random_directions
from .base import SPENT, Ask, CostPerRound, Proposal, Setting
from .gradient_jumps import forward_gradients
from .lines import Bend, Line, Scan, Scanned, scan_line
from .planes import Baseline, KinkSearch, Stop, confirm, fit_plane, points_on_plane, proposal_of


@dataclass(frozen=True)
class FarFieldSettings:
    """Thresholds of the far field; empirical where no reason is given, checked on planted and real layers."""

    distance: float = 1e6  # of lines from the centre, in radii: bends are a millionth as wide, digits of f remain
    least_distance: float = 1e3  # least such distance: nearer, the bends of features overlap
    reach_share: float = 8.0  # reach over distance, so that lines can be long
    length: float = 10.0  # half length over distance: shorter lines cross fewer planes, longer ones lose digits
    longest: float = 0.9  # upper limit of that half length as a share of the reach
    noise: float = 2.0  # noise over (that in the ball · half length in radii), as terms are larger there
    outputs_per_bend: int = 4  # equations per unknown of a group of bends
    triples: int = 24  # number of short triples of points, of which more than half must be collinear up to rounding
    triple_step: float = 1e-5  # their step in distances, so that few of them meet a bend
    triple_noise: float = 20.0  # largest second difference over noise of a collinear triple; rounding makes √6
    growth: float = 1.5  # power of the distance with which f grows: one is that of affine responses, two of gated units
    points: int = 65  # points of the first grid on a line
    depth: int = 20  # how often its step may be halved
    least_jump: float = 1e-4  # least slope jump to look for in std/radius
    lines_without_new: int = 3  # lines in a row without a new plane that end the search; one crosses 94 % of all
    same: float = 1e-3  # radians within which two planes belong to one feature
    same_plane: float = 1e-8  # 1 − |v·w| within which two planes are the same: 1e-4 radians
    accurate: float = 1e-8  # radians below which a plane is subtracted from the next line: the width of a bend there
    confirm_steps: tuple[float, ...] = (1e-4, 1e-5)  # of `confirm` in distances: the second is crossed by fewer planes
    misplaced: float = 0.5  # radii by which the error of a direction may misplace its kink; beyond, it is fitted again
    baseline: tuple[float, float, float] = (0.3, 1e-4, 0.05)  # that fit's length and size in distances, and slack
    met_places: float = 0.8  # share of places that must meet the plane in that fit
    gradient_noise: float = 1e7  # step of a gradient over noise/|jump|: long, but shorter than to the next plane
    gradient_room: tuple[float, float] = (1e-3, 0.1)  # limits of that step as shares of half the free stretch
    tries: int = 3  # steps, each a tenth of the last, until a gradient agrees with the slope of the line
    slope_error: float = 1e-4  # largest difference between the two, as a share of the gradient
    left_over: float = 1e-5  # largest residual of a group of bends, as a share of the change of gradient
    left_noise: float = 4.0  # or as a multiple of its noise
    along_error: float = 1e-2  # largest error of ν·u = 1


@dataclass(frozen=True)
class FarField(CostPerRound):
    """Directions of features whose response is affine for large |z|, all at once: for wide layers of networks."""

    settings: FarFieldSettings = FarFieldSettings()
    name: ClassVar[str] = "far_field"

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return directions of features whose response is affine for large |z| with different slopes on both sides."""
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
            size, bends = _triples(search, x, s.triple_step * distance)
            if np.sum(bends < s.triple_noise * noise) <= len(x) // 2:
                fast = (distance / setting.radius) ** s.growth * setting.std * setting.outputs**0.5
                how = "grows faster than an affine function" if (grows := np.median(size) > fast) else "is not affine"
                return Proposal.empty(setting, f"f {how} far from the ball", applies=not grows)
            without_new = 0
            while without_new < s.lines_without_new:
                line = _draw(search, view)
                new = _follow(search, view, line, rough)
                search.lines.append(line)
                without_new = 0 if new else without_new + 1
            _add_rough(search, view, rough)
            _sharpen(search, view)
        except SPENT:
            stop = Stop.SPENT
            search.planes.confirmed[:] = True
            _add_rough(search, view, rough)
        complete = stop is Stop.NOTHING_NEW and search.all_explained
        return proposal_of(search, s.same, stop, complete=complete, everywhere=True)


@dataclass(frozen=True)
class View:
    """Position, length and accuracy of the far lines."""

    s: FarFieldSettings
    distance: float
    """Distance of the lines from the centre."""
    length: float
    """Half length of the lines."""
    noise: float
    """Norm over outputs of the error of one answer on these lines."""
    slope: float
    """Typical slope of f in the ball."""
    group: int
    """Largest number of bends whose directions are found together."""


def _draw(search: KinkSearch, view: View) -> Line:
    """Return a line in a random direction at the view's distance from the centre."""
    u, w = random_directions(2, search.setting.dim, search.rng)
    w = w - (w @ u) * u
    return Line(view.distance * w / np.linalg.norm(w), u, -view.length, view.length)


def _follow(search: KinkSearch, view: View, line: Line, rough: list[_Rough]) -> bool:
    """Find the planes of one line's bends and return whether any of them is new.

    Accurate planes join the known ones, which are subtracted from later lines; the others wait in `rough` until another
    line shows them too.
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
    """A plane (v, t, a) and its expected angular error in radians."""

    plane: tuple[Floats, float, Floats]
    error: float


def _admit(
    search: KinkSearch, view: View, line: Line, rough: list[_Rough], bend: Bend, nu: Floats, error: float
) -> bool:
    """Check a plane elsewhere; add it if accurate or seen before, else keep it in `rough`. Return whether it is new."""
    size = float(np.linalg.norm(nu))
    v, a = nu / size, bend.jump * size
    plane = v, float(v @ line.at(bend.at)), a
    steps = [share * view.distance for share in view.s.confirm_steps]
    if not any(confirm(search.meter, plane, view.distance, step, search.rng, curved=False) for step in steps):
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
    """Add the rough planes that no other line showed."""
    for r in sorted(rough, key=lambda r: r.error):
        if not np.any(np.abs(search.planes.v @ r.plane[0]) > 1.0 - view.s.same_plane):
            search.planes.add(*r.plane, True, r.error)


def _sharpen(search: KinkSearch, view: View) -> None:
    """Fit again each plane that the error of its direction, times the lines' distance, may misplace."""
    s, planes = view.s, search.planes
    baseline = Baseline(s.baseline[0] * view.distance, s.baseline[1] * view.distance, s.baseline[2])
    for k in np.flatnonzero(planes.error > s.misplaced * search.setting.radius / view.distance):
        planes.confirmed[k] = False  # so that it is not subtracted while it is measured
        y = points_on_plane(planes.v[k], planes.t[k], 0.5 * view.distance, 3, search.rng)
        for start in y:
            better = fit_plane(search.residual, start, planes.v[k], planes.a[k], view.distance, baseline, search.rng)
            if better is not None and better[2] > s.met_places:
                planes.v[k], planes.t[k], planes.error[k] = better[0], float(better[0] @ better[1]), 0.0
                break
        planes.confirmed[k] = True


def _runs(line: Line, scanned: Scanned) -> list[tuple[list[Bend], Floats]]:
    """Return groups of bends without an unresolved stretch among them, each with its (k+1, 2) free stretches.

    The free stretches are those before, between and after the k bends of the group.
    """
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
    """Return the end of a group: the widest free stretch of its second half, or the end of the run."""
    if end == last or end - start == 1:
        return end
    first = start + (end - start + 1) // 2
    return first + int(np.argmax(np.diff(free[first : end + 1], axis=1)))


def _halfway(free: Floats, start: int, end: int) -> int:
    """Return the index of the widest free stretch in the middle third of a group."""
    third = (end - start) // 3
    first = start + max(third, 1)
    return first + int(np.argmax(np.diff(free[first : max(end - third, first + 1)], axis=1)))


class _GradientSites:
    """Gradients (d, p) of f less the known planes in the free stretches of a run, each measured once."""

    def __init__(self, search: KinkSearch, view: View, line: Line, bends: list[Bend], free: Floats) -> None:
        self.search, self.view, self.line, self.free = search, view, line, free
        self.slopes = [bends[0].slope, *(b.slope + b.jump for b in bends)]
        typical = float(np.median([np.linalg.norm(b.jump) for b in bends])) * len(line.along) ** 0.5
        room, (least, most) = 0.5 * np.diff(free, axis=1)[:, 0], view.s.gradient_room
        self.steps = np.clip(view.s.gradient_noise * view.noise / typical, least * room, most * room)
        self._taken: dict[int, Floats | None] = {}

    def beside(self, bend: Bend) -> _GradientSites:
        """Return two gradient sites directly before and after one bend."""
        free = np.array([[bend.left - bend.spacing, bend.left], [bend.right, bend.right + bend.spacing]])
        return _GradientSites(self.search, self.view, self.line, [bend], free)

    def __getitem__(self, k: int) -> Floats | None:
        """Return the gradient in free stretch k; None if it disagrees with the line's slope at every step tried."""
        if k not in self._taken:
            self._taken[k] = self._take(k)
        return self._taken[k]

    def _take(self, k: int) -> Floats | None:
        """Measure the gradient in free stretch k with ever smaller steps until it agrees with the slope of the line.

        A step that crosses a plane beside the line gives a gradient that disagrees.
        """
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
    """Return bends start … end−1 with their ν and expected error (radians), from the gradients before and after.

    If they do not account for the change of gradient, the group is halved and each half solved by itself.
    """
    found = _together(view, line, bends[start:end], sites, (start, end))
    if found or (end - start == 1 and not len(sites.search.planes)):
        return found
    if end - start == 1:
        # far from the bend the errors of the known planes in between may have added up
        return _together(view, line, bends[start:end], sites.beside(bends[start]), (0, 1))
    middle = _halfway(sites.free, start, end)
    return _solve(view, line, bends, sites, start, middle) + _solve(view, line, bends, sites, middle, end)


def _together(
    view: View, line: Line, bends: list[Bend], sites: _GradientSites, ends: tuple[int, int]
) -> list[tuple[Bend, Floats, float]]:
    """Solve for all bends between two sites at once; empty unless they account for the whole change of gradient."""
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
    """Return each direction's expected angular error, from the residual norm `left` and the error of ν·u = 1."""
    (m, p), d = alpha.shape, nu.shape[1]
    deviation = np.sqrt(np.diag(np.linalg.pinv(alpha @ alpha.T)))
    scatter = deviation * left / max(p - m, 1) ** 0.5 if p > m else np.zeros(m)
    off = scatter + d**0.5 * np.abs(nu @ along - 1.0)
    return [float(error) for error in off / np.linalg.norm(nu, axis=1)]


def _triples(search: KinkSearch, x: Floats, step: float) -> tuple[Floats, Floats]:
    """Ask triples x − su, x, x + su for random u; return the norms (m,) of f(x) and of second differences."""
    u = step * random_directions(len(x), x.shape[1], search.rng)
    points = x[:, None, :] + np.arange(-1, 2)[:, None] * u[:, None, :]
    values = search.meter(points.reshape(-1, x.shape[1])).reshape(len(x), 3, -1)
    return np.linalg.norm(values[:, 1], axis=1), np.linalg.norm(np.diff(values, 2, axis=1)[:, 0], axis=1)
