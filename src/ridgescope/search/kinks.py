"""Kinks: features whose response breaks its slope.

Let s_i have a slope jump a_i (a number, or p numbers for vector outputs) at the place t_i. The gradient of f jumps
across the plane v_i·x = t_i, and nowhere else nearby:

    ∇f(x + δu) − ∇f(x − δu)  =  ± a_i v_iᵀ + 2δ (Hessian of the rest) u + O(δ²)

1. Scan chords of the ball for bends (`lines`).
2. Difference the gradient across each: d+1 answers per side. Where f is linear between kinks one gradient between
   two neighbours serves both, and any distance from the kink will do. Where it is not, δ balances the curvature of the rest, 2δ·H, against
   the error of an answer over the step.
3. J = a vᵀ must have rank one, J·u must be the slope jump seen along the line, and a second difference at another
   random point of the plane v·x = t must show the same kink: that is agreement between lines, at three answers.
4. Subtract the kink: with a known, a·max(v·x − t, 0) takes it out of every later line, so that nothing is paid for twice.

Chords are drawn until the number of planes still unseen, estimated from those that were crossed once and twice
(Chao's estimate), is small.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, angle, in_ball, random_directions
from .base import Ask, Proposal, Setting
from .lines import Bend, Line, Meter, Scan, Spent, chord, meeting_point, scan_line


@dataclass(frozen=True, eq=False)
class KinkProposal(Proposal):
    """Directions with the places and sizes of their kinks."""

    at: tuple[Floats, ...] = ()
    """For each direction v the places t where the response breaks."""
    jumps: tuple[Floats, ...] = ()
    """For each direction the slope jumps, one row of p numbers per place."""


@dataclass(eq=False)
class Planes:
    """The kinks known so far: slope jump a_k across v_k·x = t_k."""

    v: Floats
    t: Floats
    a: Floats
    sure: NDArray[np.bool_]

    @classmethod
    def none(cls, dim: int, outputs: int) -> Planes:
        return cls(np.empty((0, dim)), np.empty(0), np.empty((0, outputs)), np.empty(0, dtype=bool))

    def __len__(self) -> int:
        return len(self.t)

    def add(self, v: Floats, t: Floats, a: Floats, sure: NDArray[np.bool_]) -> None:
        self.v = np.concatenate([self.v, v])
        self.t = np.concatenate([self.t, t])
        self.a = np.concatenate([self.a, a])
        self.sure = np.concatenate([self.sure, sure])

    def value(self, x: Floats) -> Floats:
        """Σ_k a_k max(v_k·x − t_k, 0), the sure ones only."""
        k = self.sure
        return np.asarray(np.maximum(x @ self.v[k].T - self.t[k], 0.0) @ self.a[k])

    def crossed_by(self, line: Line) -> NDArray[np.bool_]:
        low = self.v @ line.at(line.low) - self.t
        high = self.v @ line.at(line.high) - self.t
        return np.asarray(low * high < 0)


@dataclass(frozen=True)
class Regime:
    """What kind of function lies between the kinks, and the steps that suit it."""

    linear: bool
    noise: float
    """Norm over outputs of the error of one answer inside the ball."""
    span: float
    """Radius of the ball whose chords are scanned."""
    scan: Scan
    repeats: int = 1
    """Answers averaged for each one used."""


@dataclass(eq=False)
class _Search:
    """One run: the meter, what is known, the lines seen."""

    meter: Meter
    setting: Setting
    rng: np.random.Generator
    planes: Planes
    lines: list[Line] = field(default_factory=list)
    repeats: int = 1

    def raw(self, x: Floats) -> Floats:
        """f, averaged over `repeats` answers a hair apart: errors that are a fixed function of x differ there."""
        if self.repeats == 1:
            return self.meter(x)
        hair = 1e-7 * self.setting.radius
        many = np.repeat(x, self.repeats, axis=0) * (1.0 - 1e-7)
        many += (hair / self.setting.dim) * self.rng.uniform(-0.5, 0.5, many.shape)
        return np.asarray(np.mean(self.meter(many).reshape(len(x), self.repeats, -1), axis=1))

    def rest(self, x: Floats) -> Floats:
        """f without the kinks already known."""
        return self.raw(x) - self.planes.value(x)


def propose(ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> KinkProposal:
    """Directions of the features whose response has a kink in the ball."""
    meter = Meter(ask, queries)
    search = _Search(meter, setting, rng, Planes.none(setting.dim, setting.outputs))
    stopped = "no kink left unseen"
    try:
        regime = _regime(search)
        search.repeats = regime.repeats
        while not _complete(search):
            line = _draw(search, regime)
            bends = scan_line(line, search.rest, regime.scan)
            search.lines.append(line)
            _measure(search, regime, line, bends)
    except Spent:
        stopped = "queries spent"
    return _proposal(search, stopped)


# ---- what to expect between kinks


def _regime(search: _Search) -> Regime:
    """Probe small straight triples all over the ball: collinear to rounding means linear between kinks."""
    s = search.setting
    d, R = s.dim, s.radius
    noise = s.noise * np.sqrt(s.outputs)
    inner = min(R, s.reach) * (1.0 - 1e-9)
    probes, step = 16, 1e-3 * R
    x = in_ball(probes, d, inner - 2 * step, search.rng)
    u = random_directions(probes, d, search.rng)
    triples = np.stack([x - step * u, x, x + step * u], axis=1).reshape(-1, d)
    second = np.linalg.norm(np.diff(search.raw(triples).reshape(probes, 3, -1), 2, axis=1)[:, 0], axis=1)
    clean = noise < 1e-9 * s.scale
    linear = bool(clean and np.median(second) < 20.0 * noise)
    slope = s.scale / R
    if linear:
        span = min(s.reach, 10.0 * np.sqrt(d) * R)
        far = max(1.0, span / R)
        scan = Scan(33, 1, 4.0 * noise * far, 1e-6 * slope, 24, sharp=True)
        return Regime(True, noise, span * (1.0 - 1e-9), scan)
    count = int(np.clip(4.0 * R * s.bandwidth, 48, 600))
    degree = 5 if clean else 3
    repeats = 1
    if not clean:  # a jump of a tenth of the typical slope, over one step, should stand out
        wanted = 0.1 * slope * (2 * R / count) * 2.0 / (8.0 * np.sqrt(70.0))
        repeats = int(np.clip((noise / wanted) ** 2, 1, 64))
    scan = Scan(count, degree, noise / np.sqrt(repeats), 0.01 * slope, 8)
    return Regime(False, noise, inner, scan, repeats)


def _draw(search: _Search, regime: Regime) -> Line:
    """Chords through the middle see most planes; chords off the middle see the planes far from it."""
    offset = 0.3 * search.setting.radius * search.rng.random() if len(search.lines) % 2 == 0 else None
    line = chord(search.setting.dim, regime.span, search.rng, offset=offset)
    if offset is None and regime.span > search.setting.radius:
        inside = chord(search.setting.dim, search.setting.radius, search.rng)
        half = float(np.sqrt(regime.span**2 - inside.origin @ inside.origin)) * (1.0 - 1e-9)
        line = Line(inside.origin, inside.along, -half, half)
    return line


def _complete(search: _Search) -> bool:
    """Chao's estimate of the planes not yet crossed, from those crossed by one and by two of the lines."""
    if len(search.lines) < 4:
        return False
    inside = np.abs(search.planes.t) < search.setting.radius
    times = np.sum([search.planes.crossed_by(line)[inside] for line in search.lines], axis=0)
    once, twice = int(np.sum(times == 1)), int(np.sum(times == 2))
    return once * (once - 1) / (2.0 * (twice + 1)) + 0.5 * once / len(search.lines) < 0.1


# ---- from a bend to a plane


def _measure(search: _Search, regime: Regime, line: Line, bends: list[Bend]) -> None:
    """Gradient jumps across the bends of one line; what holds up becomes a plane."""
    if not regime.linear:
        bends = _polished(search, regime, line, bends)
    if not bends:
        return
    if regime.linear:
        jumps = _shared_jumps(search, line, bends)
    else:
        jumps = _own_jumps(search, regime, line, bends)
    for bend, jump in zip(bends, jumps, strict=True):
        plane = _plane(line, bend, jump)
        if plane is None:
            continue
        v, t, a = plane
        if abs(t) >= search.setting.radius:
            search.planes.add(v[None], np.array([t]), a[None], np.array([True]))
            continue
        sure = _holds_elsewhere(search, regime, v, t, a)
        search.planes.add(v[None], np.array([t]), a[None], np.array([sure]))


def _shared_jumps(search: _Search, line: Line, bends: list[Bend]) -> Floats:
    """(k, d, p) gradient jumps where f is linear in between: k+1 gradients serve k bends."""
    t = np.array([b.at for b in bends])
    gaps = np.diff(t)
    edge = 1e-2 * search.setting.radius
    places = np.concatenate([[t[0] - edge], 0.5 * (t[:-1] + t[1:]), [t[-1] + edge]])
    places = np.clip(places, line.low, line.high)
    room = np.concatenate([[edge], 0.5 * gaps, [edge]])
    steps = np.minimum(room / 100.0, 1e-3 * search.setting.radius)
    return np.diff(_gradients(search, line.at(places), steps), axis=0)


def _own_jumps(search: _Search, regime: Regime, line: Line, bends: list[Bend]) -> Floats:
    """(k, d, p) gradient jumps taken a balanced distance δ to either side of each bend."""
    delta, step = _steps(search, regime)
    t = np.array([b.at for b in bends])
    before = _gradients(search, line.at(t - delta), np.full(len(t), step))
    after = _gradients(search, line.at(t + delta), np.full(len(t), step))
    return after - before


def _steps(search: _Search, regime: Regime) -> tuple[float, float]:
    """δ and the step: curvature 2δ·H of the rest against noise/step, with step = δ/ratio."""
    s = search.setting
    ratio = 30.0 if regime.noise < 1e-9 * s.scale else 3.0
    curvature = s.scale * s.bandwidth**2 / 10.0
    delta = np.sqrt(2.0 * ratio * regime.scan.noise / curvature)
    delta = float(np.clip(delta, 1e-8 * s.radius, 0.1 * s.radius))
    return delta, delta / ratio


def _gradients(search: _Search, x: Floats, steps: Floats) -> Floats:
    """(k, d, p) forward differences of the rest at k points, towards the centre so as to stay within reach."""
    k, d = x.shape
    signed = np.where(x > 0, -1.0, 1.0) * steps[:, None]
    moved = np.repeat(x[:, None], d + 1, axis=1)
    moved[:, np.arange(d) + 1, np.arange(d)] += signed
    values = search.rest(moved.reshape(-1, d)).reshape(k, d + 1, -1)
    return np.asarray((values[:, 1:] - values[:, :1]) / signed[:, :, None])


def _plane(line: Line, bend: Bend, jump: Floats) -> tuple[Floats, float, Floats] | None:
    """v, t, a from J = v aᵀ (d, p); None unless J has rank one and its part along the line is the bend's."""
    if not np.isfinite(jump).all():
        return None
    left, size, right = np.linalg.svd(jump, full_matrices=False)
    if size[0] == 0.0 or (len(size) > 1 and size[1] > 0.05 * size[0]):
        return None
    v, a = left[:, 0], size[0] * right[0]
    if v @ line.along < 0:  # so that a is the jump for one who crosses along +v
        v, a = -v, -a
    if np.linalg.norm(jump.T @ line.along - bend.jump) > 0.1 * np.linalg.norm(bend.jump) + 1e-3 * size[0]:
        return None
    return v, float(v @ line.at(bend.at)), a


def _holds_elsewhere(search: _Search, regime: Regime, v: Floats, t: float, a: Floats) -> bool:
    """Second differences across two other points of the plane must show the same jump."""
    s = search.setting
    step = (1e-5 if regime.linear else 1e-4) * s.radius
    if regime.noise >= 1e-9 * s.scale:
        step = 0.1 * s.radius
    inner = min(s.radius, s.reach) * (1.0 - 1e-6) - step
    w = random_directions(3, s.dim, search.rng)
    w -= np.multiply.outer(w @ v, v)
    y = t * v + w * (np.sqrt(max(inner**2 - t**2, 0.0)) * search.rng.random((3, 1)))
    values = search.raw(np.stack([y - step * v, y, y + step * v], axis=1).reshape(-1, s.dim)).reshape(
        3, 3, -1
    )
    jumps = np.diff(values, 2, axis=1)[:, 0] / step
    off = np.linalg.norm(jumps - a, axis=1) / np.linalg.norm(a)
    return bool(np.sum(off < 0.3) >= 2)


# ---- a bend on a curved background


def _polished(search: _Search, regime: Regime, line: Line, bends: list[Bend]) -> list[Bend]:
    """Zoom in on each bend by parabolas on either side; a kink keeps its jump, a mere curve loses it."""
    delta, _ = _steps(search, regime)
    alive = bends
    scale = 0.5
    while alive:
        sizes = np.array([max(scale * b.spacing, 2.0 * delta) for b in alive])
        alive = _zoom(search, line, alive, sizes)
        scale /= 10.0
        if (sizes <= 2.0 * delta).all():
            break
    return alive


def _zoom(search: _Search, line: Line, bends: list[Bend], sizes: Floats) -> list[Bend]:
    offsets = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    t = np.array([b.at for b in bends])
    t = np.clip(t, line.low + 3.0 * sizes, line.high - 3.0 * sizes)
    places = t[:, None] + sizes[:, None] * offsets
    values = search.rest(line.at(places.ravel())).reshape(len(bends), 6, -1)
    out = []
    for bend, centre, size, g in zip(bends, t, sizes, values, strict=True):
        before = np.linalg.solve(np.vander(offsets[:3], increasing=True), g[:3])
        after = np.linalg.solve(np.vander(offsets[3:], increasing=True), g[3:])
        met = meeting_point(after - before, 1.5)
        if met is None:
            continue
        tau, slope = met
        jump = slope / size
        if np.linalg.norm(jump - bend.jump) < 0.5 * np.linalg.norm(bend.jump):
            out.append(Bend(centre - size, centre + size, float(centre + tau * size), jump, bend.spacing))
    return out


# ---- what was found


def _proposal(search: _Search, stopped: str) -> KinkProposal:
    """Planes grouped by direction, those confirmed at other points of the plane first."""
    s, planes = search.setting, search.planes
    kept = np.flatnonzero(np.abs(planes.t) < s.radius)
    size = np.linalg.norm(planes.a[kept], axis=1)
    kept = kept[np.argsort(-(size + planes.sure[kept] * (1.0 + size.sum())))]
    groups: list[list[int]] = []
    for k in kept:
        for group in groups:
            if angle(planes.v[k][None], planes.v[group[0]][None])[0] < 0.02:
                group.append(int(k))
                break
        else:
            groups.append([int(k)])
    signs = [np.sign(planes.v[g] @ planes.v[g[0]]) for g in groups]
    note = (
        f"{len(kept)} kinks ({int(planes.sure[kept].sum())} confirmed) in {len(groups)} directions "
        f"on {len(search.lines)} lines, {search.meter.asked:,} queries, {stopped}"
    )
    return KinkProposal(
        directions=planes.v[[g[0] for g in groups]].reshape(-1, s.dim),
        scores=np.array([_score(planes, g) for g in groups]),
        note=note,
        at=tuple(planes.t[g] * sign for g, sign in zip(groups, signs, strict=True)),
        jumps=tuple(planes.a[g] for g in groups),
    )


def _score(planes: Planes, group: list[int]) -> float:
    """The largest jump; a tenth of it where no other point of the plane agreed."""
    return float(np.max(np.linalg.norm(planes.a[group], axis=1) * np.where(planes.sure[group], 1.0, 0.1)))
