"""Kinks: features whose response breaks its slope.

Let s_i have a slope jump a_i (a number, or p numbers for vector outputs) at t_i. The gradient of f then jumps
across the plane v_i·x = t_i:

    ∇f(x + δu) − ∇f(x − δu)  =  ± a_i v_iᵀ + 2δ (Hessian of the rest) u + O(δ²)

1. Scan chords for bends (`lines`).
2. Difference the gradient across each, d+1 answers a side. Where f is linear between kinks, one gradient between
   two neighbours serves both, and any distance from the kink will do. Where it is not, δ is small and
   the direction is then sharpened by walking along the plane (`planes`).
3. The jump must have rank one, agree with the slope jump along the line, and be met again elsewhere on its plane:
   that is agreement between lines, for a few answers.
4. Subtract a·max(v·x − t, 0): later lines no longer see what is known, and nothing is paid for twice.

Chords are drawn until the number of planes still unseen, estimated from those crossed once and twice (Chao), is
small, and at least until a plane a third of the radius away from the centre would hardly have been missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import erfc

import numpy as np

from ..geometry import Floats, angle, in_ball, random_directions
from .base import Ask, Proposal, Setting
from .lines import Bend, Line, Meter, Scan, Spent, chord, derivative, meeting_point, scan_line, through
from .planes import Planes, Stride, confirm, gradients, rank_one, walk


@dataclass(frozen=True, eq=False)
class KinkProposal(Proposal):
    """Directions with the places and sizes of their kinks."""

    at: tuple[Floats, ...] = ()
    """For each direction v the places t where the response breaks."""
    jumps: tuple[Floats, ...] = ()
    """For each direction the slope jumps there, one row of p numbers per place."""


@dataclass(frozen=True)
class Regime:
    """What f is like between kinks, and the steps that suit it."""

    linear: bool
    clean: bool
    """Noise is rounding."""
    noise: float
    """Norm over outputs of the error of one answer, after averaging."""
    span: float
    """Radius of the ball whose chords are scanned."""
    scan: Scan
    delta: float
    """Gradients are taken this far from a kink,"""
    step: float
    """with this step."""
    strides: tuple[Stride, ...]
    repeats: int = 1
    """Answers averaged for each one used."""
    same: float = 0.02
    """Directions closer than this (radians) are one."""


@dataclass(eq=False)
class _Search:
    """One run: the meter, what is known, the lines seen."""

    meter: Meter
    setting: Setting
    rng: np.random.Generator
    planes: Planes
    repeats: int = 1
    lines: list[Line] = field(default_factory=list)

    def raw(self, x: Floats) -> Floats:
        """f, averaged over answers a hair apart: there an error that is a fixed function of x differs too."""
        if self.repeats == 1:
            return self.meter(x)
        hair = 1e-7 * self.setting.radius / self.setting.dim
        many = np.repeat(x * (1.0 - 1e-7), self.repeats, axis=0)
        many += self.rng.uniform(-0.5 * hair, 0.5 * hair, many.shape)
        return np.asarray(np.mean(self.meter(many).reshape(len(x), self.repeats, -1), axis=1))

    def rest(self, x: Floats) -> Floats:
        """f without the kinks already known."""
        return self.raw(x) - self.planes.value(x)


def propose(ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> KinkProposal:
    """Directions of the features whose response has a kink in the ball."""
    search = _Search(Meter(ask, queries), setting, rng, Planes.none(setting.dim, setting.outputs))
    same, stopped = 0.02, "no kink left unseen"
    try:
        regime = _regime(search)
        search.repeats, same = regime.repeats, regime.same
        while not _complete(search, regime):
            line = chord(setting.dim, regime.span, rng, offset=0.5 * min(setting.radius, setting.reach))
            bends = scan_line(line, search.rest, regime.scan)
            search.lines.append(line)
            _measure(search, regime, line, bends)
    except Spent:
        stopped = "queries spent"
    return _proposal(search, same, stopped)


# ---- what to expect between kinks


def _regime(search: _Search) -> Regime:
    s = search.setting
    noise = s.noise * s.outputs**0.5
    inner = min(s.radius, s.reach) * (1.0 - 1e-9)
    clean = noise < 1e-9 * s.scale
    if clean and _linear(search, inner, noise):
        return _piecewise_linear(s, noise)
    return _curved(s, noise, inner, clean)


def _linear(search: _Search, inner: float, noise: float) -> bool:
    """Small straight triples all over the ball are collinear to rounding, but for the few that meet a kink."""
    d, probes, step = search.setting.dim, 16, 1e-3 * inner
    x = in_ball(probes, d, inner - step, search.rng)
    u = random_directions(probes, d, search.rng)
    triples = np.stack([x - step * u, x, x + step * u], axis=1).reshape(-1, d)
    second = np.diff(search.raw(triples).reshape(probes, 3, -1), 2, axis=1)[:, 0]
    return bool(np.nanmedian(np.linalg.norm(second, axis=1)) < 20.0 * noise)


def _piecewise_linear(s: Setting, noise: float) -> Regime:
    """Far out costs nothing, as the grid adapts, and there one line crosses almost every plane."""
    span = min(s.reach, 10.0 * s.dim**0.5 * s.radius) * (1.0 - 1e-9)
    scan = Scan(33, 1, 4.0 * noise * max(1.0, span / s.radius), 1e-6 * s.scale / s.radius, 24, sharp=True)
    return Regime(True, True, noise, span, scan, 0.0, 1e-3 * s.radius, ())


def _curved(s: Setting, noise: float, span: float, clean: bool) -> Regime:
    """Differences of degree 5 resolve a step of half a radian of the bandwidth; noise asks for a lower degree."""
    count = int(np.clip(4.0 * span * s.bandwidth, 48, 600))
    slope = s.scale / s.radius
    if clean:
        scan = Scan(count, 5, noise, 0.01 * slope, 8)
        strides = (Stride(0.5 * span, 3e-4 * span), Stride(0.02 * span, 3e-4 * span))
        return Regime(False, True, noise, span, scan, 1e-5 * span, 3e-7 * span, strides)
    visible = (
        0.2 * slope * (2.0 * span / count) / (4.0 * 70.0**0.5)
    )  # a fifth of the typical slope, over one step
    repeats = int(np.clip((noise / visible) ** 2, 1, 64))
    noise = noise / repeats**0.5
    scan = Scan(count, 3, 0.6 * noise, 0.01 * slope, 2)
    strides = (Stride(0.1 * span, 0.04 * span), Stride(0.4 * span, 0.04 * span))
    return Regime(False, False, noise, span, scan, 0.04 * span, 0.03 * span, strides, repeats, 0.15)


def _complete(search: _Search, regime: Regime) -> bool:
    s, count = search.setting, len(search.lines)
    chance = erfc(s.radius / 3.0 * (s.dim / 2.0) ** 0.5 / regime.span)  # that a chord crosses v·x = radius/3
    enough = float(np.clip(3.0 / max(chance, 1e-3), 3, 40))
    if count < enough:
        return count >= max(3.0, enough / 3.0) and not len(search.planes)
    inside = np.abs(search.planes.t) < s.radius
    times = np.sum([search.planes.crossed_by(line)[inside] for line in search.lines], axis=0)
    once, twice = int(np.sum(times == 1)), int(np.sum(times == 2))
    return bool(once * (once - 1) / (2.0 * (twice + 1)) + 0.5 * once / count < 0.1)


# ---- from a bend to a plane


def _measure(search: _Search, regime: Regime, line: Line, bends: list[Bend]) -> None:
    """Gradient jumps across the bends of one line; what holds up becomes a plane."""
    if not regime.linear:
        bends = _polished(search, regime, line, bends)
    if not bends:
        return
    jumps = (
        _shared_jumps(search, regime, line, bends)
        if regime.linear
        else _own_jumps(search, regime, line, bends)
    )
    for bend, jump in zip(bends, jumps, strict=True):
        pair = rank_one(jump, line.along, bend.jump)
        if pair is not None:
            _establish(search, regime, line.at(bend.at), *pair)


def _establish(search: _Search, regime: Regime, x: Floats, v: Floats, a: Floats) -> None:
    """Meet the plane again elsewhere, and sharpen it where gradients were limited by curvature or noise."""
    s, t = search.setting, float(v @ x)
    radius = min(s.radius, s.reach) * (1.0 - 1e-9)
    if regime.linear:
        sure = abs(t) >= radius or confirm(search.raw, v, t, a, radius, 1e-5 * radius, search.rng)
        search.planes.add(v, t, a, sure)
        return
    sure = False
    for stride in regime.strides if not regime.clean else (*regime.strides, regime.strides[0]):
        better = walk(search.rest, x, v, a, radius, stride)
        met = 0.0 if better is None else better[2]
        if better is not None and met > 0.6:
            v, t, sure = better[0], better[1], True
            x = x + (t - v @ x) * v
            if regime.clean and stride == regime.strides[0]:
                break
    search.planes.add(v, t, a, sure)


def _shared_jumps(search: _Search, regime: Regime, line: Line, bends: list[Bend]) -> Floats:
    """(k, d, p) gradient jumps where f is linear in between: k+1 gradients serve k bends."""
    t = np.array([b.at for b in bends])
    edge = 10.0 * regime.step
    places = np.concatenate([[t[0] - edge], 0.5 * (t[:-1] + t[1:]), [t[-1] + edge]])
    room = np.concatenate([[edge], 0.5 * np.diff(t), [edge]])
    steps = np.minimum(room / 100.0, regime.step)
    return np.diff(gradients(search.rest, line.at(np.clip(places, line.low, line.high)), steps), axis=0)


def _own_jumps(search: _Search, regime: Regime, line: Line, bends: list[Bend]) -> Floats:
    """(k, d, p) gradient jumps taken a distance δ to either side of each bend."""
    t = np.array([b.at for b in bends])
    steps = np.full(len(t), regime.step)
    before = gradients(search.rest, line.at(np.clip(t - regime.delta, line.low, line.high)), steps)
    return gradients(search.rest, line.at(np.clip(t + regime.delta, line.low, line.high)), steps) - before


# ---- a bend on a curved background


def _polished(search: _Search, regime: Regime, line: Line, bends: list[Bend]) -> list[Bend]:
    """Zoom in on each bend, parabolas on either side: a kink keeps its jump, a mere curve loses it."""
    scale, finest = 0.5, 2.0 * regime.delta
    while bends:
        sizes = np.array([max(scale * b.spacing, finest) for b in bends])
        bends = _zoom(search, line, bends, sizes)
        if (sizes <= finest).all():
            break
        scale /= 10.0
    return bends


def _zoom(search: _Search, line: Line, bends: list[Bend], sizes: Floats) -> list[Bend]:
    offsets = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    t = np.clip([b.at for b in bends], line.low + 3.0 * sizes, line.high - 3.0 * sizes)
    places = t[:, None] + sizes[:, None] * offsets
    values = search.rest(line.at(places.ravel())).reshape(len(bends), 6, -1)
    out = []
    for bend, centre, size, g in zip(bends, t, sizes, values, strict=True):
        before, after = through(offsets[:3], g[:3]), through(offsets[3:], g[3:])
        tau = meeting_point(after - before, 1.5)
        if tau is None:
            continue
        slope = derivative(before, tau) / size
        jump = derivative(after, tau) / size - slope
        if np.linalg.norm(jump - bend.jump) < 0.5 * np.linalg.norm(bend.jump):
            value = tau ** np.arange(3) @ before
            out.append(
                Bend(centre - size, centre + size, centre + tau * size, value, slope, jump, bend.spacing)
            )
    return out


# ---- what was found


def _proposal(search: _Search, same: float, stopped: str) -> KinkProposal:
    """Planes grouped by direction, those met at several places first."""
    s, planes = search.setting, search.planes
    weight = np.linalg.norm(planes.a, axis=1) * np.where(planes.sure, 1.0, 0.01)
    kept = [int(k) for k in np.argsort(-weight) if abs(planes.t[k]) < s.radius]
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
        f"{len(kept)} kinks ({int(planes.sure[kept].sum())} confirmed) in {len(groups)} directions "
        f"on {len(search.lines)} lines, {search.meter.asked:,} queries, {stopped}"
    )
    return KinkProposal(
        directions=planes.v[[g[0] for g in groups]].reshape(-1, s.dim),
        scores=weight[[g[0] for g in groups]],
        note=note,
        at=tuple(planes.t[g] * sign for g, sign in zip(groups, signs, strict=True)),
        jumps=tuple(planes.a[g] for g in groups),
    )
