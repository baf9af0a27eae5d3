"""Kinks: features whose response breaks its slope.

Let s_i have a slope jump a_i (a number, or p numbers for vector outputs) at t_i. Then f breaks across the
plane v_i·x = t_i, and what breaks is rank one: the gradient jumps by a_i v_iᵀ.

1. Scan chords for bends (`lines`).
2. At each find the plane (`planes`). Where f is linear between kinks, difference the gradient across the
   bend: one gradient between two neighbours serves both, so a kink costs d+1 answers. Where it is not, walk
   along the plane from the bend, with ever longer levers: 4(d−1) answers for each, usually two.
3. Meet the kink again elsewhere on its plane: that is agreement between lines, for a few answers.
4. Subtract a·max(v·x − t, 0): later lines no longer see what is known, and nothing is paid for twice.

Chords are drawn until nearly any plane a third of the radius away from the centre would have been met, each
known plane has been met twice, and the last chords brought nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erfc
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, angle, in_ball, random_directions
from .base import Ask, OutOfQueries, Proposal, Setting, parameter_cost
from .hinges import hinges
from .lines import Bend, Line, Scan, chord, derivative, meeting_point, scan_line, through
from .planes import Search, Stride, confirm, gradients, locate, on_plane, rank_one, walk


@dataclass(frozen=True)
class Regime:
    """What f is like between kinks, and the steps that suit it."""

    linear: bool
    noise: float
    """Norm over outputs of the error of one answer, after careful averaging."""
    span: float
    """Radius of the ball whose chords are scanned."""
    scan: Scan
    clean: bool = True
    """The noise is no more than rounding."""
    repeats: int = 1
    """Answers averaged for each one used in a scan,"""
    careful: int = 1
    """and in what follows a bend up."""

    @property
    def same(self) -> float:
        """Directions closer than this (radians) are one."""
        return 0.02 if self.clean else 0.15


@dataclass(frozen=True)
class Kinks:
    """Directions of features whose response has a kink."""

    name: ClassVar[str] = "kinks"

    def cost(self, setting: Setting) -> int:
        """As for two features a dimension, doubling with the rounds."""
        return parameter_cost(2 * setting.dim, setting, setting.rounds)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Directions of the features whose response has a kink in the ball, and the kinks."""
        found = _propose(ask, setting, queries, rng)
        return replace(found, explains=_piecewise_linear_part(found)) if len(found.directions) else found


def _piecewise_linear_part(found: Proposal) -> Ask:
    """Σ (jump/2)·|v·x − t| over all kinks found: what is left of f is smooth where they were."""
    kinks = np.concatenate(found.kinks)
    halves = 0.5 * np.concatenate(found.jumps)
    owners = np.repeat(found.directions, [len(t) for t in found.kinks], axis=0)
    return lambda X: np.abs(X @ owners.T - kinks) @ halves


def _propose(ask: Ask, setting: Setting, queries: int, rng: np.random.Generator) -> Proposal:
    search = Search.start(ask, setting, queries, rng)
    same, stopped = 0.02, "every plane found was crossed twice"
    try:
        regime = _regime(search)
        same = regime.same
        while not _complete(search, regime):
            _follow(
                search, regime, chord(setting.dim, regime.span, rng, offset=0.5 * min(setting.radius, setting.reach))
            )
        if regime.clean and not regime.linear:
            _along_own_rays(search, regime)
    except OutOfQueries:
        stopped = "queries spent"
    return proposal(search, same, stopped)


def _follow(search: Search, regime: Regime, line: Line) -> None:
    """All that one line shows."""
    search.repeats = regime.repeats
    bends = scan_line(line, search.rest, regime.scan).bends if regime.clean else hinges(line, search.rest, regime.scan)
    search.lines.append(line)
    search.repeats = regime.careful
    _measure(search, regime, line, bends)


def _along_own_rays(search: Search, regime: Regime) -> None:
    """A line along each direction found: a random chord hardly moves along it and misses the kinks far out."""
    seen, k = np.empty((0, search.setting.dim)), 0
    while k < len(search.planes):
        v, known = search.planes.v[k], search.planes.sure[k]
        if known and not (angle(np.broadcast_to(v, seen.shape), seen) < regime.same).any():
            seen = np.concatenate([seen, v[None]])
            beside = chord(search.setting.dim, regime.span, search.rng, offset=0.1 * regime.span).origin
            origin = beside - (beside @ v) * v
            half = float(np.sqrt(regime.span**2 - origin @ origin)) * (1.0 - 1e-9)
            _follow(search, regime, Line(origin, v, -half, half))
        k += 1


# ---- what to expect between kinks


def _regime(search: Search) -> Regime:
    s = search.setting
    noise = s.noise * s.outputs**0.5
    inner = min(s.radius, s.reach) * (1.0 - 1e-9)
    clean = noise < 1e-9 * s.std
    if clean and _linear(search, inner, noise):
        return _piecewise_linear(s, noise)
    return _curved(s, noise, inner, clean)


def _linear(search: Search, inner: float, noise: float) -> bool:
    """Small straight triples all over the ball are collinear to rounding, but for few that meet a kink."""
    d, probes, step = search.setting.dim, 16, 1e-3 * inner
    x = in_ball(probes, d, inner - step, search.rng)
    u = random_directions(probes, d, search.rng)
    triples = np.stack([x - step * u, x, x + step * u], axis=1).reshape(-1, d)
    second = np.linalg.norm(np.diff(search.raw(triples).reshape(probes, 3, -1), 2, axis=1)[:, 0], axis=1)
    return bool(np.sum(second < 20.0 * noise) > probes // 2)


def _piecewise_linear(s: Setting, noise: float) -> Regime:
    """Far out costs nothing, as the grid adapts, and there one line crosses almost every plane."""
    span = min(s.reach, 10.0 * s.dim**0.5 * s.radius) * (1.0 - 1e-9)
    scan = Scan(33, 1, 4.0 * noise * max(1.0, span / s.radius), 1e-6 * s.std / s.radius, 24, "sharp")
    return Regime(True, noise, span, scan)


def _curved(s: Setting, noise: float, span: float, clean: bool) -> Regime:
    """Steps of half a radian of the bandwidth; under noise, averages of many answers."""
    count = int(np.clip(4.0 * span * s.bandwidth, 48, 600))
    slope = s.std / s.radius
    scan = Scan(count, 5, noise, 0.01 * slope, 8)
    if clean:
        return Regime(False, noise, span, scan)
    visible = 0.2 * slope * 2.0 * span / count / 8.0  # hinges of a fifth of the typical slope
    repeats = int(np.clip((noise / visible) ** 2, 1, 64))
    sharp = 1.2e-4 * span * slope  # a kink of a third of it placed within a fiftieth of the radius
    careful = int(np.clip((noise / sharp) ** 2, repeats, 64))
    scan = replace(scan, noise=noise / repeats**0.5, jump=0.1 * slope)
    return Regime(False, noise / careful**0.5, span, scan, False, repeats, careful)


def _complete(search: Search, regime: Regime) -> bool:
    """Enough lines to have met nearly any plane a third of the radius out, and each known one twice.

    A plane that few chords cross is known to exist from others like it that were crossed just once.
    """
    s, count = search.setting, len(search.lines)
    chance = erfc(s.radius / 3.0 * (s.dim / 2.0) ** 0.5 / regime.span)  # that a chord crosses v·x = radius/3
    enough = float(np.clip(4.0 / max(chance, 1e-3), 3, 60))
    if count < enough:
        return count >= max(3.0, enough / 4.0) and not len(search.planes)
    inside = search.planes.sure & (np.abs(search.planes.t) < s.radius)
    times = np.sum([search.planes.crossed_by(line)[inside] for line in search.lines], axis=0)
    lately = np.sum([search.planes.crossed_by(line)[inside] for line in search.lines[: -count // 4]], axis=0)
    return bool(np.min(times, initial=2) >= 2 and np.min(lately, initial=1) >= 1) or count > 4.0 * enough


# ---- from a bend to a plane


def _measure(search: Search, regime: Regime, line: Line, bends: list[Bend]) -> None:
    """The planes behind the bends of one line."""
    within, share = (1e-3, 0.05) if regime.clean else (0.1, 0.5)
    bends = [
        b for b in bends if not search.planes.explain(line.at(b.at), line.along, b.jump, within * regime.span, share)
    ]
    if regime.linear:
        _by_gradients(search, regime, line, bends)
    else:
        for bend in _polished(search, regime, line, bends) if regime.clean else bends:
            _by_walking(search, regime, line, bend)


def _by_gradients(search: Search, regime: Regime, line: Line, bends: list[Bend]) -> None:
    """Gradients between and beside the bends; f is linear in between."""
    if not bends:
        return
    s = search.setting
    t, room, before, after = _stations(search, line, np.array([b.at for b in bends]))
    x = line.at(t)
    inside = np.sqrt(np.maximum(regime.span**2 - np.einsum("kd,kd->k", x, x), 0.0))
    steps = np.minimum(room / 100.0, np.minimum(1e-3 * min(s.radius, s.reach), 0.5 * inside))
    slopes = gradients(search.rest, x, steps)
    errors = regime.noise * np.maximum(1.0, np.linalg.norm(x, axis=1) / s.radius) / steps
    for bend, i, j in zip(bends, before, after, strict=True):
        pair = rank_one(slopes[j] - slopes[i], line.along, bend.jump)
        if pair is not None:
            error = max(errors[i], errors[j]) / float(np.linalg.norm(pair[1]))
            _establish(search, line.at(bend.at), *pair, error)


def _stations(search: Search, line: Line, t: Floats) -> tuple[Floats, Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Where to take gradients: places, the room around each, and those before and after each bend.

    One halfway between two bends serves both, unless a known plane lies in between, whose error would add up.
    """
    edge = 1e-2 * min(search.setting.radius, search.setting.reach)
    gaps = np.diff(t, prepend=t[0] - 2.0 * edge, append=t[-1] + 2.0 * edge)
    near = np.minimum(0.5 * gaps, edge)
    near[0], near[-1] = min(near[0], 0.5 * (t[0] - line.low)), min(near[-1], 0.5 * (line.high - t[-1]))
    known = search.planes.crossings(line)
    crowded = np.diff(np.searchsorted(known, t)) > 0
    shared = np.concatenate([[False], ~crowded, [False]])
    left = np.where(shared[:-1], t - 0.5 * gaps[:-1], t - near[:-1])
    right = np.where(shared[1:], t + 0.5 * gaps[1:], t + near[1:])
    own = ~shared[:-1]  # where the place before a bend is not the one after its predecessor
    after = np.cumsum(own) + np.arange(len(t))
    before = after - 1
    places, room = np.empty(after[-1] + 1), np.empty(after[-1] + 1)
    places[before], places[after] = left, right
    room[before], room[after] = np.abs(left - t), np.abs(right - t)
    return places, room, before, after


def _establish(search: Search, x: Floats, v: Floats, a: Floats, error: float) -> None:
    """Meet the plane again elsewhere; sharpen it where its expected error (radians) is large."""
    s, t = search.setting, float(v @ x)
    radius = min(s.radius, s.reach) * (1.0 - 1e-9)
    if abs(t) >= radius:  # of no account in the ball, but in the way of the lines
        search.planes.add(v, t, a, True)
        return
    sure = confirm(search.raw, (v, t, a), radius, 1e-5 * radius, search.rng, curved=False)
    if not sure:
        return
    if error > 1e-9:
        v, t = _sharpened(search, v, t, a, radius, error)
    search.planes.add(v, t, a, True)


def _sharpened(search: Search, v: Floats, t: float, a: Floats, radius: float, error: float) -> tuple[Floats, float]:
    """Walk from one of three places that has no other kink near: there, f being linear, jumps are the same."""
    size = float(np.clip(30.0 * error, 1e-6, 1e-2)) * radius
    stride = Stride(0.5 * radius, size, 1e-4 + 1e2 * error)
    for y in on_plane(v, t, 0.5 * radius, 3, search.rng) if abs(t) < 0.5 * radius else ():
        better = walk(search.rest, y, v, a, radius, stride, search.rng)
        if better is not None and better[2] > 0.6:
            return better[0], float(better[0] @ better[1])
    return v, t


def _by_walking(search: Search, regime: Regime, line: Line, bend: Bend) -> None:
    """Levers as long as the error of the direction so far allows, starting with the direction of the line."""
    s, d = search.setting, search.setting.dim
    radius = min(s.radius, s.reach) * (1.0 - 1e-9)
    blur = 3.2 * regime.noise / float(np.linalg.norm(bend.jump))  # the error of τ along the line
    size = float(np.clip(16.0 * blur, 3e-4 * radius, 0.06 * radius))
    lever = float(np.clip(5.0 * blur, 0.1 * size, 0.5 * size))
    x, v, a, far = line.at(bend.at), line.along, bend.jump, 0
    if not regime.clean:
        x = _recentred(search, x, v, a, size, radius)
    while far < 3:
        better = walk(search.rest, x, v, a, radius, Stride(lever, size), search.rng)
        if better is None or better[2] < 0.6:
            break
        v, x, met = better
        a = bend.jump / float(v @ line.along)
        if lever >= 0.3 * radius:  # once more where some places were spoilt by other kinks
            far = 3 if met == 1.0 else far + 1
        error = max(3.2 * regime.noise * d**0.5 / (float(np.linalg.norm(a)) * lever), 1e-4)
        lever = min(0.5 * radius, max(size / (3.0 * error), 2.0 * lever))
    t = float(v @ x)
    step = float(np.clip(66.0 * regime.noise / np.linalg.norm(a), 1e-4 * radius, 0.06 * radius))
    if lever >= 0.1 * radius and abs(t) < radius - 2.0 * step:
        sure = confirm(search.raw, (v, t, a), radius, step, search.rng, curved=True)
        if sure or regime.careful > 1:
            search.planes.add(v, t, a, sure)


def _recentred(search: Search, x: Floats, u: Floats, jump: Floats, size: float, radius: float) -> Floats:
    """A kink placed roughly, under noise, looked at more widely first."""
    wide = min(4.0 * size, 0.06 * radius)
    if np.linalg.norm(x) + 2.0 * wide >= radius:
        return x
    tau, _ = locate(search.rest, x[None], u, jump, wide)
    return x + float(np.clip(tau[0], -wide, wide)) * u


# ---- a bend on a curved background


def _polished(search: Search, regime: Regime, line: Line, bends: list[Bend]) -> list[Bend]:
    """Zoom in on each bend, parabolas on either side: a kink keeps its jump, a mere curve loses it."""
    scale, finest = 0.5, 3e-4 * regime.span
    while bends:
        sizes = np.array([max(scale * b.spacing, finest) for b in bends])
        bends = _zoom(search, line, bends, sizes)
        if (sizes <= finest).all():
            break
        scale /= 10.0
    return bends


def _zoom(search: Search, line: Line, bends: list[Bend], sizes: Floats) -> list[Bend]:
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
            out.append(Bend(centre - size, centre + size, centre + tau * size, value, slope, jump, bend.spacing))
    return out


# ---- what was found


def proposal(search: Search, same: float, stopped: str, *, everywhere: bool = False) -> Proposal:
    """Planes that cut the ball (or any) grouped by direction, those met at several places first."""
    s, planes = search.setting, search.planes
    weight = np.linalg.norm(planes.a, axis=1) * np.where(planes.sure, 1.0, 0.01)
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
        f"{len(kept)} kinks ({int(planes.sure[kept].sum())} confirmed) in {len(groups)} directions "
        f"on {len(search.lines)} lines, {search.meter.spent:,} queries, {stopped}"
    )
    return Proposal(
        directions=planes.v[[g[0] for g in groups]].reshape(-1, s.dim),
        scores=weight[[g[0] for g in groups]],
        note=note,
        kinks=tuple(planes.t[g] * sign for g, sign in zip(groups, signs, strict=True)),
        jumps=tuple(planes.a[g] for g in groups),
    )
