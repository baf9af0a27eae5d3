"""Find the plane of a kink from a bend on a line.

A response with slope jump a at t makes the gradient of f jump across the plane v·x = t. Measurements from values alone:

`refine_bends`  a kink keeps its slope jump at every smaller step; a curve does not.
`forward_gradients`  the gradient jumps by a vᵀ across the plane. Best if f is linear next to it.
`confirm`    at another point y of the plane f(y+sv) − 2f(y) + f(y−sv) = s·a + O(s²): the plane passes through y,
             and the jump does not shrink with s as mere curvature would.
`fit_plane`  along any u the kink next to y is at τ = −gap/jump of the tangents through y ± su, y ± 2su; by
             symmetry all other curvature cancels in the gap up to O(s³). d such points a baseline L apart
             span the plane and give v within (error of τ)/L, which neither curvature nor, under noise, a small
             step limits, as they limit gradients. The first baselines start from the line that crossed the
             kink; the v found allows longer ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, angle, random_directions, unit
from .base import Ask, Meter, Proposal, Setting
from .lines import Answer, Bend, Line, Scanned
from .polynomials import derivative, meeting_point, through

LOCATION_NOISE = 3.2  # √10: noise of the gap (2g₂ − g₃) − (2g₁ − g₀) of two tangents over that of an answer
SAME_JUMP = 0.35  # share by which the jump elsewhere on a plane may differ. Empirical: room for curvature
# step of `confirm` over noise/|a|: the extrapolated jump has a noise of √70/step, and 2.75 deviations are that share
CONFIRM_NOISE = 66.0
_RANK_ONE = 0.05  # second over first singular value of a gradient jump; another plane crossed makes more. Empirical
_LINE_SHARE, _JUMP_SHARE = 0.2, 1e-3  # allowed error of Jᵀ·along: of the jump seen on the line, plus of |J|
_ERRORS, _LEAST_ERROR = 4.0, 1e-3  # errors of a direction, and the least one to assume, by which a plane may be off
_PARALLEL = 0.95  # cosine between jumps in several outputs from which on they are those of one plane. Empirical
_TELLING, _PARALLEL_SIZE = 16, 0.1  # outputs from which on jumps tell planes; share by which sizes may differ below
_TOGETHER = 3  # most planes that one bend may be of, and
_SPAN_SHARE = 0.25  # planes over outputs up to which another plane's jump is not in the span of theirs by chance
_CLOSE = 1e-7  # distance, in radii, of points to average, so that an error that is a fixed function of x differs


@dataclass(eq=False)
class Planes:
    """The known kinks: crossing v_k·x = t_k in the direction v_k, the slope jumps by a_k."""

    v: Floats
    t: Floats
    a: Floats
    confirmed: NDArray[np.bool_]
    """True for planes found at more than one place."""
    error: Floats
    """Expected angular error of v in radians; 0 if it was not estimated."""
    subtracted: NDArray[np.bool_]
    """True for planes that are known well enough to be subtracted from answers."""

    @classmethod
    def none(cls, dim: int, outputs: int) -> Planes:
        """Return an empty collection."""
        nothing, none = np.empty(0), np.empty(0, dtype=np.bool_)
        return cls(np.empty((0, dim)), nothing, np.empty((0, outputs)), none, nothing, none)

    def __len__(self) -> int:
        return len(self.t)

    def add(self, v: Floats, t: float, a: Floats, known: bool, error: float = 0.0, *, subtracted: bool = True) -> None:
        """Append one plane."""
        self.v = np.vstack([self.v, v])
        self.t = np.append(self.t, t)
        self.a = np.vstack([self.a, a])
        self.confirmed = np.append(self.confirmed, known)
        self.error = np.append(self.error, error)
        self.subtracted = np.append(self.subtracted, subtracted)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Drop all planes but some."""
        self.v, self.t, self.a, self.error = self.v[rows], self.t[rows], self.a[rows], self.error[rows]
        self.confirmed, self.subtracted = self.confirmed[rows], self.subtracted[rows]

    def value(self, x: Floats) -> Floats:
        """Return Σ a_k max(v_k·x − t_k, 0) over the confirmed planes to subtract: f less it has their kinks no more."""
        k = self.confirmed & self.subtracted
        return np.asarray(np.maximum(x @ self.v[k].T - self.t[k], 0.0) @ self.a[k])

    def crossed_by(self, line: Line) -> NDArray[np.bool_]:
        """Return for each of n planes whether the line crosses it."""
        low = self.v @ line.at(line.low) - self.t
        high = self.v @ line.at(line.high) - self.t
        return np.asarray(low * high < 0)

    def crossings(self, line: Line) -> Floats:
        """Return the positions t at which the line crosses the confirmed planes, in order."""
        k = self.confirmed & self.crossed_by(line)
        return np.sort((self.t[k] - self.v[k] @ line.origin) / (self.v[k] @ line.along))

    def near(self, x: Floats, within: float) -> NDArray[np.bool_]:
        """Return for each of n planes whether it is confirmed and passes within that distance of x."""
        return np.asarray(self.confirmed & (np.abs(self.v @ x - self.t) <= within))

    def explains(self, x: Floats, along: Floats, jump: Floats, within: float, share: float) -> bool:
        """Return whether a bend is the remainder of an inexactly subtracted kink: near it and a small part of it."""
        near = self.near(x, within)
        whole = np.abs(self.v[near] @ along) * np.linalg.norm(self.a[near], axis=1)
        return bool(np.any(np.linalg.norm(jump) <= share * whole))

    def holds(self, x: Floats, along: Floats, jump: Floats, radius: float) -> bool:
        """Return whether a bend is that of known planes: near them, and in the span of their jumps in several outputs.

        Several planes are one bend where a line crosses them so close together that rounding hides the gap.
        They were measured at points in a ball of this `radius`, about which they may be turned.
        """
        off = _ERRORS * np.maximum(self.error, _LEAST_ERROR) * (float(np.linalg.norm(x)) + radius)
        close = self.confirmed & (np.abs(self.v @ x - self.t) <= off)
        if len(jump) < _TELLING:  # jumps of few outputs are often parallel, so that their size has to agree
            sizes = self.a[close] * np.abs(self.v[close] @ along)[:, None]
            return bool(np.any(np.linalg.norm(sizes - jump, axis=1) <= _PARALLEL_SIZE * np.linalg.norm(jump)))
        near = unit(self.a[close])
        left, size, chosen = jump, float(np.linalg.norm(jump)), list[int]()
        for _ in range(min(len(near), max(1, int(_SPAN_SHARE * len(jump))), _TOGETHER)):
            chosen.append(int(np.argmax(np.abs(near @ left))))
            a = near[chosen].T
            left = jump - a @ np.linalg.lstsq(a, jump, rcond=None)[0]
            if np.linalg.norm(left) <= np.sqrt(1.0 - _PARALLEL**2) * size:
                return True
        return False


@dataclass(eq=False)
class KinkSearch:
    """The state of one search: the meter, the planes known, the lines scanned."""

    meter: Meter
    setting: Setting
    rng: np.random.Generator
    planes: Planes
    repeats: int = 1
    """Number of answers averaged for each value."""
    lines: list[Line] = field(default_factory=list)
    bent: list[tuple[Floats, float]] = field(default_factory=list)
    """Points at which a line bends, and the uncertainty of each."""
    loose: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)
    """Points at which a line bends, and the jumps (p,) there, where planes are known roughly."""

    @classmethod
    def start(cls, ask: Ask, setting: Setting, queries: int, rng: np.random.Generator) -> KinkSearch:
        """Return a search without planes that may ask `queries` rows."""
        meter = Meter(ask, queries, retry=True)
        return cls(meter, setting, rng, Planes.none(setting.dim, setting.outputs))

    def ask(self, x: Floats) -> Floats:
        """Return f at x (m, d), each value averaged over `repeats` answers very close together."""
        if self.repeats == 1:
            return self.meter(x)
        apart = _CLOSE * self.setting.radius / self.setting.dim
        many = np.repeat(x * (1.0 - _CLOSE), self.repeats, axis=0)
        many += self.rng.uniform(-0.5 * apart, 0.5 * apart, many.shape)
        return np.asarray(np.mean(self.meter(many).reshape(len(x), self.repeats, -1), axis=1))

    def residual(self, x: Floats) -> Floats:
        """Return f minus the kinks already known, as far as those are known well."""
        return self.ask(x) - self.planes.value(x)

    def remember_bends(self, line: Line, scanned: Scanned) -> None:
        """Record the points at which the line bends."""
        self.bent += [(line.at(b.at), b.right - b.left) for b in scanned.bends]
        self.bent += [(line.at(0.5 * (low + high)), 0.5 * (high - low)) for low, high in scanned.unresolved]

    def probe_straight(self, x: Floats, step: float, most: float) -> bool:
        """Ask triples x − su, x, x + su for random u; return whether most second differences are below `most`."""
        return bool(np.sum(self.second_differences(x, step) < most) > len(x) // 2)

    def second_differences(self, x: Floats, step: float) -> Floats:
        """Ask triples x − su, x, x + su for random u; return the norms (m,) of their second differences."""
        return self._second_differences(x, step, 1)[:, 0]

    def neighbouring_second_differences(self, x: Floats, step: float) -> Floats:
        """Return the same (m, 2) at x and at x + 2su, whose triples have one point in common."""
        return self._second_differences(x, step, 3)[:, ::2]

    def _second_differences(self, x: Floats, step: float, last: int) -> Floats:
        u = step * random_directions(len(x), x.shape[1], self.rng)
        points = x[:, None, :] + np.arange(-1, last + 1)[:, None] * u[:, None, :]
        values = self.meter(points.reshape(-1, x.shape[1])).reshape(len(x), last + 2, -1)
        return np.asarray(np.linalg.norm(np.diff(values, 2, axis=1), axis=2))

    @property
    def all_explained(self) -> bool:
        """Whether a confirmed plane passes through every point at which a line bends."""
        sharp = all(self.planes.near(x, within).any() for x, within in self.bent)
        return sharp and not self.repeated_jump()

    def repeated_jump(self) -> bool:
        """Return whether two bends that no known plane holds have the same jump, as those of a plane would have.

        A single one is that of planes that a line crosses too close together. Jumps of one output are all the same.
        """
        radius = self.setting.radius
        left = unit(np.array([jump for x, u, jump in self.loose if not self.planes.holds(x, u, jump, radius)]))
        cosines = np.abs(left @ left.T) if len(left) else np.zeros((0, 0))
        return bool(np.sum(cosines >= _PARALLEL) > len(left))


class Stop(Enum):
    """Why a search along lines ended."""

    CROSSED_TWICE = "each plane found was crossed twice"
    NONE_SEEN = "no line shows a kink"
    LIMIT = "limit of lines reached"
    NOTHING_NEW = "the last lines showed nothing new"
    SPENT = "queries spent"


def proposal_of(
    search: KinkSearch, same: float, stop: Stop, *, complete: bool = False, everywhere: bool = False
) -> Proposal:
    """Return the planes in the ball, or `everywhere`, as a proposal, grouped by direction, confirmed ones first."""
    s, planes = search.setting, search.planes
    weight = np.linalg.norm(planes.a, axis=1) * np.where(planes.confirmed, 1.0, 0.01)  # confirmed ones come first
    kept = [int(k) for k in np.argsort(-weight) if everywhere or abs(planes.t[k]) < s.radius]
    groups: list[list[int]] = []
    for k in kept:
        leaders = planes.v[[g[0] for g in groups]].reshape(-1, s.dim)
        near = angle(np.broadcast_to(planes.v[k], leaders.shape), leaders) < same
        if near.any():
            groups[int(np.argmax(near))].append(k)
        else:
            groups.append([k])
    note = (
        f"{len(kept)} kinks ({int(planes.confirmed[kept].sum())} confirmed) in {len(groups)} directions "
        f"on {len(search.lines)} lines, {stop.value}"
    )
    return Proposal(
        directions=planes.v[[g[0] for g in groups]].reshape(-1, s.dim),
        angle_errors=np.array([planes.error[g[0]] or np.inf for g in groups]),
        scores=weight[[g[0] for g in groups]],
        note=note,
        kinks=tuple(planes.t[g] * np.sign(planes.v[g] @ planes.v[g[0]]) for g in groups),
        jumps=tuple(planes.a[g] for g in groups),
        complete=complete,
    )


def forward_gradients(answer: Answer, x: Floats, steps: Floats) -> Floats:
    """Return (k, d, p) forward differences at k points; each coordinate moves towards zero, to stay in the ball."""
    k, d = x.shape
    signed = np.where(x > 0, -1.0, 1.0) * steps[:, None]
    moved = np.repeat(x[:, None], d + 1, axis=1)
    moved[:, np.arange(d) + 1, np.arange(d)] += signed
    values = answer(moved.reshape(-1, d)).reshape(k, d + 1, -1)
    return np.asarray((values[:, 1:] - values[:, :1]) / signed[:, :, None])


def rank_one_jump(jump: Floats, along: Floats, seen: Floats) -> tuple[Floats, Floats] | None:
    """Return v and a of a gradient jump J = v aᵀ (d, p) measured across a bend in the direction `along`.

    None unless J has rank one and Jᵀ·along equals the slope jump `seen` on the line: this excludes steps that crossed
    another plane, and double bends.
    """
    if not np.isfinite(jump).all():
        return None
    left, size, right = np.linalg.svd(jump, full_matrices=False)
    if size[0] == 0.0 or (len(size) > 1 and size[1] > _RANK_ONE * size[0]):
        return None
    if np.linalg.norm(jump.T @ along - seen) > _LINE_SHARE * np.linalg.norm(seen) + _JUMP_SHARE * size[0]:
        return None
    sign = 1.0 if left[:, 0] @ along > 0 else -1.0  # so that a is the jump when crossing in the direction v
    return sign * left[:, 0], sign * size[0] * right[0]


def confirm(
    answer: Answer,
    plane: tuple[Floats, float, Floats],
    radius: float,
    step: float,
    rng: np.random.Generator,
    *,
    curved: bool,
    around: tuple[Floats, float] | None = None,
) -> bool:
    """Return whether two of three other points of the plane (v, t, a), within `radius`, show the same jump.

    If f minus the kink is `curved`, D(s) = a + s·F'' is measured at two steps and extrapolated to s = 0. `around` may
    be a point of the plane and a distance from it, to which these points are pulled in.
    """
    v, t, a = plane
    y = points_on_plane(v, t, radius - 2.0 * step, 3, rng)
    if around is not None:
        away = y - around[0]
        y = around[0] + away * np.minimum(1.0, around[1] / np.linalg.norm(away, axis=1, keepdims=True))
    steps = np.array([step, 0.5 * step]) if curved else np.array([step])
    x = np.concatenate([y[:, None], *(y[:, None] + np.array([[-h], [h]]) * v for h in steps)], axis=1)
    values = answer(x.reshape(-1, len(v))).reshape(3, x.shape[1], -1)
    jumps = [(values[:, 1 + 2 * i] + values[:, 2 + 2 * i] - 2.0 * values[:, 0]) / h for i, h in enumerate(steps)]
    jump = 2.0 * jumps[1] - jumps[0] if curved else jumps[0]
    return bool(np.sum(np.linalg.norm(jump - a, axis=1) < SAME_JUMP * np.linalg.norm(a)) >= 2)


def points_on_plane(v: Floats, t: float, radius: float, count: int, rng: np.random.Generator) -> Floats:
    """Return (count, d) random points with v·x = t in the ball."""
    w = random_directions(count, len(v), rng)
    w = w - np.multiply.outer(w @ v, v)
    room = np.sqrt(max(radius**2 - t**2, 0.0))
    return np.asarray(t * v + w * (room * rng.random((count, 1))))


@dataclass(frozen=True)
class Baseline:
    """Distance `length` at which to locate the plane, stencil size there, and allowed relative change of the jump."""

    length: float
    size: float
    slack: float = 0.5


def locate_kink(answer: Answer, y: Floats, u: Floats, jump: Floats, size: float) -> tuple[Floats, Floats]:
    """Locate a kink of slope jump `jump` (p,) near each y along u: return its τ (m,) and the measured jump (m, p).

    The measured jump is off by 3·size·F''; τ, which uses the given jump, is not. It is valid for |τ| ≤ size.
    """
    offsets = size * np.array([-2.0, -1.0, 1.0, 2.0])
    g = answer((y[:, None] + offsets[:, None] * u).reshape(-1, len(u))).reshape(len(y), 4, -1)
    gap = (2.0 * g[:, 2] - g[:, 3]) - (2.0 * g[:, 1] - g[:, 0])
    return -(gap @ jump) / float(jump @ jump), (g[:, 3] - g[:, 2] - g[:, 1] + g[:, 0]) / size


def fit_plane(
    answer: Answer,
    x: Floats,
    u: Floats,
    jump: Floats,
    radius: float,
    baseline: Baseline,
    rng: np.random.Generator,
) -> tuple[Floats, Floats, float] | None:
    """Return v, a point of the plane, and the share of places at which it was found, from places around its point x.

    The slope jump along u is `jump`. None if x is too near the sphere or the kink is not found at x.
    """
    size, room = baseline.size, radius - 2.0 * baseline.size
    base = _inwards(x, u, room, baseline.length)
    if np.linalg.norm(base) >= room:
        return None
    tau, here = locate_kink(answer, base[None], u, jump, size)
    off = np.linalg.norm(here[0] - jump) / np.linalg.norm(jump)
    if not (abs(tau[0]) <= size and off < 2.0 * baseline.slack):
        return None
    base = base + tau[0] * u
    if len(u) == 1:
        return u, base, 1.0
    across = np.linalg.qr(np.column_stack([u, rng.standard_normal((len(u), len(u) - 1))]))[0][:, 1:].T
    towards = across * np.where(across @ base > 0, -1.0, 1.0)[:, None]
    y = base + np.minimum(baseline.length, _room(base, towards, room))[:, None] * towards
    tau, seen = locate_kink(answer, y, u, jump, size)
    met = (np.linalg.norm(seen - here, axis=1) < baseline.slack * np.linalg.norm(jump)) & (np.abs(tau) <= size)
    rows = (y + tau[:, None] * u)[met] - base
    c = np.linalg.lstsq(rows @ across.T, -(rows @ u), rcond=1e-3)[0]  # drops places too close together
    return unit(u + c @ across), base, float(np.mean(met))


def _inwards(x: Floats, u: Floats, room: float, length: float) -> Floats:
    """Return x or, if it is too near the sphere, a point at most a baseline away with the same u·x and smaller norm."""
    inwards = (x @ u) * u - x
    inwards = inwards * min(1.0, length / max(float(np.linalg.norm(inwards)), np.finfo(float).tiny))
    for part in (0.0, 0.5, 0.75):
        y = x + part * inwards
        if y @ y + length**2 <= room**2:
            break
    return np.asarray(y)


def _room(base: Floats, towards: Floats, radius: float) -> Floats:
    """Return the distance from base to the sphere along each direction."""
    b = towards @ base
    return np.asarray(-b + np.sqrt(np.maximum(b**2 + radius**2 - base @ base, 0.0)))


def refine_bends(line: Line, answer: Answer, bends: list[Bend], finest: float) -> list[Bend]:
    """Measure each bend with ever smaller steps, down to `finest`, and drop those that lose their jump: mere curves."""
    scale = 0.5
    while bends:
        sizes = np.array([max(scale * b.spacing, finest) for b in bends])
        bends = _closer(line, answer, bends, sizes)
        if (sizes <= finest).all():
            break
        scale /= 10.0
    return bends


def _closer(line: Line, answer: Answer, bends: list[Bend], sizes: Floats) -> list[Bend]:
    """Return the bends at which parabolas through three points on either side still show at least half the jump."""
    offsets = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    t = np.clip([b.at for b in bends], line.low + 3.0 * sizes, line.high - 3.0 * sizes)
    places = t[:, None] + sizes[:, None] * offsets
    values = answer(line.at(places.ravel())).reshape(len(bends), 6, -1)
    out = []
    for bend, centre, size, g in zip(bends, t, sizes, values, strict=True):
        before, after = through(offsets[:3], g[:3]), through(offsets[3:], g[3:])
        tau = meeting_point(after - before, 1.5)  # in the gap, from −1 to 1, or not far from it
        if tau is None:
            continue
        slope = derivative(before, tau) / size
        jump = derivative(after, tau) / size - slope
        if np.linalg.norm(jump - bend.jump) < 0.5 * np.linalg.norm(bend.jump):
            value = tau ** np.arange(3) @ before
            out.append(Bend(centre - size, centre + size, centre + tau * size, value, slope, jump, bend.spacing))
    return out
