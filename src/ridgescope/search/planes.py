"""From a bend on a line to the plane of its kink.

A response with slope jump a at t makes f break across the plane v·x = t. Measurements of it, by values alone:

`refine_bends`  a kink keeps its slope jump, however closely one looks; a curve does not.
`forward_gradients`  the gradient jumps by a vᵀ across the plane. Best where f is linear next to it.
`confirm`    at another point y of the plane f(y+sv) − 2f(y) + f(y−sv) = s·a + O(s²): the plane goes on where
             it should, and the jump does not shrink with s as mere curvature would.
`fit_plane`  along any u the kink next to y stands at τ = −gap/jump of the tangents through y ± su, y ± 2su; by
             symmetry the curvature of everything else drops out of the gap and leaves O(s³). d such points
             a baseline L apart span the plane, and v comes out within (error of τ)/L: neither curvature nor,
             under noise, a small difference quotient limits it, as they would the gradients. The first
             baselines start from the line that met the kink; its v then allows longer ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, angle, random_directions, unit
from .base import Ask, Meter, Proposal, Setting
from .lines import Answer, Bend, Line, Scanned, derivative, meeting_point, through

LOCATION_NOISE = 3.2  # √10: noise of the gap (2g₂ − g₃) − (2g₁ − g₀) of two tangents over that of an answer
SAME_JUMP = 0.35  # share by which the jump elsewhere on a plane may differ. Empirical: room for curvature
# step of `confirm` over noise/|a|: the extrapolated jump has a noise of √70/step, and 2.75 deviations are that share
CONFIRM_NOISE = 66.0
_RANK_ONE = 0.05  # second over first singular value of a gradient jump; another plane crossed makes more. Empirical
_LINE_SHARE, _JUMP_SHARE = 0.2, 1e-3  # how far it may be from the slope jump on the line: of that, and of itself
_CLOSE = 1e-7  # distance, in radii, of points to average; an error that is a fixed function of x differs there


@dataclass(eq=False)
class Planes:
    """The kinks known so far: slope jump a_k across v_k·x = t_k for one who crosses along v_k."""

    v: Floats
    t: Floats
    a: Floats
    confirmed: NDArray[np.bool_]
    """Seen at more than one place."""
    error: Floats
    """Radians by which v may be off, where that was estimated."""

    @classmethod
    def none(cls, dim: int, outputs: int) -> Planes:
        return cls(np.empty((0, dim)), np.empty(0), np.empty((0, outputs)), np.empty(0, dtype=bool), np.empty(0))

    def __len__(self) -> int:
        return len(self.t)

    def add(self, v: Floats, t: float, a: Floats, confirmed: bool, error: float = 0.0) -> None:
        self.v = np.vstack([self.v, v])
        self.t = np.append(self.t, t)
        self.a = np.vstack([self.a, a])
        self.confirmed = np.append(self.confirmed, confirmed)
        self.error = np.append(self.error, error)

    def value(self, x: Floats) -> Floats:
        """Σ_k a_k max(v_k·x − t_k, 0) over the confirmed ones: what is left of f has those kinks no more."""
        k = self.confirmed
        return np.asarray(np.maximum(x @ self.v[k].T - self.t[k], 0.0) @ self.a[k])

    def crossed_by(self, line: Line) -> NDArray[np.bool_]:
        """(n,) which of them the line crosses."""
        low = self.v @ line.at(line.low) - self.t
        high = self.v @ line.at(line.high) - self.t
        return np.asarray(low * high < 0)

    def crossings(self, line: Line) -> Floats:
        """Where the confirmed ones cross the line, in order."""
        k = self.confirmed & self.crossed_by(line)
        return np.sort((self.t[k] - self.v[k] @ line.origin) / (self.v[k] @ line.along))

    def near(self, x: Floats, within: float) -> NDArray[np.bool_]:
        """(n,) which of the confirmed ones pass within that distance of x."""
        return np.asarray(self.confirmed & (np.abs(self.v @ x - self.t) <= within))

    def explains(self, x: Floats, along: Floats, jump: Floats, within: float, share: float) -> bool:
        """Whether a bend is what inexact subtraction leaves of a known kink: there, and small beside it."""
        near = self.near(x, within)
        whole = np.abs(self.v[near] @ along) * np.linalg.norm(self.a[near], axis=1)
        return bool(np.any(np.linalg.norm(jump) <= share * whole))


@dataclass(eq=False)
class KinkSearch:
    """One run: the meter, what is known, the lines scanned."""

    meter: Meter
    setting: Setting
    rng: np.random.Generator
    planes: Planes
    repeats: int = 1
    """Answers averaged for each one used."""
    lines: list[Line] = field(default_factory=list)
    bent: list[tuple[Floats, float]] = field(default_factory=list)
    """Points where a line was seen to bend, and how far off they may be."""

    @classmethod
    def start(cls, ask: Ask, setting: Setting, queries: int, rng: np.random.Generator) -> KinkSearch:
        meter = Meter(ask, queries, retry=True)
        return cls(meter, setting, rng, Planes.none(setting.dim, setting.outputs))

    def ask(self, x: Floats) -> Floats:
        """f, averaged over answers very close together."""
        if self.repeats == 1:
            return self.meter(x)
        apart = _CLOSE * self.setting.radius / self.setting.dim
        many = np.repeat(x * (1.0 - _CLOSE), self.repeats, axis=0)
        many += self.rng.uniform(-0.5 * apart, 0.5 * apart, many.shape)
        return np.asarray(np.mean(self.meter(many).reshape(len(x), self.repeats, -1), axis=1))

    def residual(self, x: Floats) -> Floats:
        """f without the kinks already known."""
        return self.ask(x) - self.planes.value(x)

    def remember_bends(self, line: Line, scanned: Scanned) -> None:
        """Remember where the line bends."""
        self.bent += [(line.at(b.at), b.right - b.left) for b in scanned.bends]
        self.bent += [(line.at(0.5 * (low + high)), 0.5 * (high - low)) for low, high in scanned.unresolved]

    def probe_straight(self, x: Floats, step: float, most: float) -> bool:
        """Ask triples x − su, x, x + su for random u: whether more than half have second differences below `most`."""
        u = random_directions(len(x), x.shape[1], self.rng)
        triples = np.stack([x - step * u, x, x + step * u], axis=1).reshape(-1, x.shape[1])
        second = np.linalg.norm(np.diff(self.meter(triples).reshape(len(x), 3, -1), 2, axis=1)[:, 0], axis=1)
        return bool(np.sum(second < most) > len(x) // 2)

    @property
    def all_explained(self) -> bool:
        """Whether a confirmed plane passes wherever a line was seen to bend."""
        return all(self.planes.near(x, within).any() for x, within in self.bent)


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
    """Planes that cut the ball (or any) grouped by direction, those met at several places first."""
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
    signs = [np.sign(planes.v[g] @ planes.v[g[0]]) for g in groups]
    note = (
        f"{len(kept)} kinks ({int(planes.confirmed[kept].sum())} confirmed) in {len(groups)} directions "
        f"on {len(search.lines)} lines, {stop.value}"
    )
    return Proposal(
        directions=planes.v[[g[0] for g in groups]].reshape(-1, s.dim),
        scores=weight[[g[0] for g in groups]],
        note=note,
        kinks=tuple(planes.t[g] * sign for g, sign in zip(groups, signs, strict=True)),
        jumps=tuple(planes.a[g] for g in groups),
        complete=complete,
    )


def forward_gradients(answer: Answer, x: Floats, steps: Floats) -> Floats:
    """(k, d, p) forward differences at k points; each coordinate steps towards zero, not out of the ball."""
    k, d = x.shape
    signed = np.where(x > 0, -1.0, 1.0) * steps[:, None]
    moved = np.repeat(x[:, None], d + 1, axis=1)
    moved[:, np.arange(d) + 1, np.arange(d)] += signed
    values = answer(moved.reshape(-1, d)).reshape(k, d + 1, -1)
    return np.asarray((values[:, 1:] - values[:, :1]) / signed[:, :, None])


def rank_one_jump(jump: Floats, along: Floats, seen: Floats) -> tuple[Floats, Floats] | None:
    """v and a of a gradient jump J = v aᵀ (d, p) met going `along`.

    None unless J has rank one and Jᵀ·along is the slope jump seen on the line: a step that crossed another
    plane, or a bend that was two, fails here.
    """
    if not np.isfinite(jump).all():
        return None
    left, size, right = np.linalg.svd(jump, full_matrices=False)
    if size[0] == 0.0 or (len(size) > 1 and size[1] > _RANK_ONE * size[0]):
        return None
    if np.linalg.norm(jump.T @ along - seen) > _LINE_SHARE * np.linalg.norm(seen) + _JUMP_SHARE * size[0]:
        return None
    sign = 1.0 if left[:, 0] @ along > 0 else -1.0  # so that a is the jump for one who crosses along v
    return sign * left[:, 0], sign * size[0] * right[0]


def confirm(
    answer: Answer,
    plane: tuple[Floats, float, Floats],
    radius: float,
    step: float,
    rng: np.random.Generator,
    *,
    curved: bool,
) -> bool:
    """Whether two of three other points of the plane (v, t, a), within `radius`, show the same jump.

    Where the rest is `curved`, D(s) = a + s·F'' is taken at two steps and extrapolated to s = 0.
    """
    v, t, a = plane
    y = points_on_plane(v, t, radius - 2.0 * step, 3, rng)
    steps = np.array([step, 0.5 * step]) if curved else np.array([step])
    x = np.concatenate([y[:, None], *(y[:, None] + np.array([[-h], [h]]) * v for h in steps)], axis=1)
    values = answer(x.reshape(-1, len(v))).reshape(3, x.shape[1], -1)
    jumps = [(values[:, 1 + 2 * i] + values[:, 2 + 2 * i] - 2.0 * values[:, 0]) / h for i, h in enumerate(steps)]
    jump = 2.0 * jumps[1] - jumps[0] if curved else jumps[0]
    return bool(np.sum(np.linalg.norm(jump - a, axis=1) < SAME_JUMP * np.linalg.norm(a)) >= 2)


def points_on_plane(v: Floats, t: float, radius: float, count: int, rng: np.random.Generator) -> Floats:
    """Random points with v·x = t in the ball."""
    w = random_directions(count, len(v), rng)
    w = w - np.multiply.outer(w @ v, v)
    room = np.sqrt(max(radius**2 - t**2, 0.0))
    return np.asarray(t * v + w * (room * rng.random((count, 1))))


@dataclass(frozen=True)
class Baseline:
    """How far away to look for the plane, how wide there, and by what share of itself the jump may seem to change."""

    length: float
    size: float
    slack: float = 0.5


def locate_kink(answer: Answer, y: Floats, u: Floats, jump: Floats, size: float) -> tuple[Floats, Floats]:
    """τ (m,) of a kink of the given slope jump (p,) next to each y along u, and the jump (m, p) seen there.

    What is seen is off by 3·size·F''; τ, which uses the jump given, is not. It can be trusted for |τ| ≤ size.
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
    """v and a point of the plane, from places around its point x, and the share of places where it was met.

    The plane is crossed along u, where its slope jump is `jump`. None where x is too near the sphere or does not
    meet the kink.
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
    c = np.linalg.lstsq(rows @ across.T, -(rows @ u), rcond=1e-3)[0]  # places too close together say nothing
    return unit(u + c @ across), base, float(np.mean(met))


def _inwards(x: Floats, u: Floats, room: float, length: float) -> Floats:
    """x, or where x is too near the sphere a point at most a baseline away, with the same u·x, further in."""
    inwards = (x @ u) * u - x
    inwards = inwards * min(1.0, length / max(float(np.linalg.norm(inwards)), np.finfo(float).tiny))
    for part in (0.0, 0.5, 0.75):
        y = x + part * inwards
        if y @ y + length**2 <= room**2:
            break
    return np.asarray(y)


def _room(base: Floats, towards: Floats, radius: float) -> Floats:
    """How far one may go from base along each direction inside the ball."""
    b = towards @ base
    return np.asarray(-b + np.sqrt(np.maximum(b**2 + radius**2 - base @ base, 0.0)))


def refine_bends(line: Line, answer: Answer, bends: list[Bend], finest: float) -> list[Bend]:
    """Look at each bend ever more closely, down to that spacing: a kink keeps its jump, a mere curve loses it."""
    scale = 0.5
    while bends:
        sizes = np.array([max(scale * b.spacing, finest) for b in bends])
        bends = _closer(line, answer, bends, sizes)
        if (sizes <= finest).all():
            break
        scale /= 10.0
    return bends


def _closer(line: Line, answer: Answer, bends: list[Bend], sizes: Floats) -> list[Bend]:
    """The bends where parabolas on either side, through points of that spacing, still show half the jump."""
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
