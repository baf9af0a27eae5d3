"""Kinks: directions of features whose response has a jump of its slope.

Let s_i have a slope jump a_i (a number, or p numbers for vector outputs) at t_i. Then the gradient of f jumps
across the plane v_i·x = t_i, by the rank-one matrix a_i v_iᵀ.

1. Scan chords for bends (`lines`).
2. Find the plane of each bend (`planes`). If f is linear between kinks, difference the gradient across the
   bend: one gradient between two neighbours serves both, so that a kink costs d+1 answers. Otherwise locate the
   plane around the bend, over ever longer baselines: 4(d−1) answers for each, usually two.
3. Check the kink elsewhere on its plane, which takes a few answers.
4. Subtract a·max(v·x − t, 0), so that later lines do not find the same kink again.

Chords are drawn until nearly every plane within a third of the radius of the centre would have been crossed, each
known plane has been crossed twice, and the last quarter of the chords has found nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erfc
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, angle, in_ball
from .base import INSIDE, Ask, CostPerRound, OutOfQueries, Proposal, Setting
from .lines import Bend, Line, Scan, chord, scan_line, scan_noisy_line
from .planes import (
    CONFIRM_NOISE,
    LOCATION_NOISE,
    Baseline,
    KinkSearch,
    Stop,
    confirm,
    fit_plane,
    forward_gradients,
    locate_kink,
    points_on_plane,
    proposal_of,
    rank_one_jump,
    refine_bends,
)


@dataclass(frozen=True)
class KinkSettings:
    """Thresholds of the search for kinks; empirical where no reason is given, checked by the recovery benchmark."""

    exact: float = 1e-9  # noise over std below which it counts as rounding, and differences may be taken
    same: float = 0.02  # radians within which two planes belong to one feature if answers are exact
    same_noisy: float = 0.15  # the same under noise
    chord_offset: float = 0.5  # largest distance of chords from the centre, in radii
    ray_offset: float = 0.1  # the same for lines along directions already found
    # whether f is linear between kinks
    triples: int = 16  # number of short triples of points, of which more than half must be collinear up to rounding
    triple_step: float = 1e-3  # their step in radii, so that few of them meet a kink
    triple_noise: float = 20.0  # largest second difference over noise of a collinear triple; rounding makes √6
    # scans of a piecewise linear f
    far: float = 10.0  # radius of the ball scanned, in √d radii: there one line crosses almost every plane
    linear_points: int = 33
    linear_noise: float = 4.0  # noise over that in the ball: terms are larger, and subtracted kinks are rounded, too
    linear_jump: float = 1e-6  # least slope jump in std/radius: far above rounding, far below any feature
    linear_depth: int = 24  # halvings: down to 2⁻²⁴ of a cell, where rounding begins
    # scans of a curved f
    points_per_radian: float = 4.0  # points over radius·bandwidth; with fewer, curvature looks like a bend
    fewest_points: int = 48
    most_points: int = 600
    degree: int = 5  # degree of the polynomials between kinks
    depth: int = 8
    jump: float = 0.01  # least slope jump in std/radius
    noisy_jump: float = 0.1  # the same under noise
    visible_jump: float = 0.2  # under noise, answers are averaged until a jump of 0.2 std/radius makes in one step
    visible_noise: float = 8.0  # this many times the noise of the average
    placed: float = 1.2e-4  # noise of averages that locate kinks, in std: the stencil for a jump of std/(3R) is R/50
    most_repeats: int = 64  # largest number of answers averaged
    # when to stop
    met: float = 3.0  # chords are drawn until planes at radius/3 from the centre have been crossed
    crossings: float = 4.0  # this many times on average
    fewest_lines: int = 3
    most_lines: int = 60
    quick: float = 4.0  # stop at a quarter of these lines if none shows a kink, and at four times as many in any case
    missed: float = 0.01  # largest chance of missing a plane at the edge of the ball for a complete search
    # from a bend to a plane
    explained: tuple[float, float] = (1e-3, 0.05)  # a known plane's remainder: distance in radii, share of jump
    explained_noisy: tuple[float, float] = (0.1, 0.5)  # the same under noise
    station: float = 1e-2  # largest distance in radii of a gradient from its bend
    gradient_room: float = 100.0  # distance from a gradient to its bend over its step: other planes are as far away
    gradient_step: float = 1e-3  # largest such step in radii
    confirm_step: float = 1e-5  # step of `confirm` in radii if f is linear
    confirm_curved: float = 1e-4  # least such step if it is not
    accurate: float = 1e-9  # radians below which a direction is not improved further
    sharpen_size: tuple[float, float, float] = (30.0, 1e-6, 1e-2)  # stencil size over the error; limits in radii
    sharpen_slack: tuple[float, float] = (1e-4, 1e2)  # allowed relative change of the jump, and per radian of error
    met_places: float = 0.6  # share of places that must meet the plane for it to be accepted
    # baselines; the error of a location is √10·noise/|jump|
    looks: float = 16.0  # half width of a location stencil over that error
    narrowest: float = 3e-4  # least half width in radii, because of rounding
    widest: float = 0.06  # largest half width in radii, because of curvature
    first_baseline: float = 5.0  # the first baseline over that error
    first_limits: tuple[float, float] = (0.1, 0.5)  # limits of the first baseline in half widths
    longest: float = 0.5  # longest baseline in radii
    long: float = 0.3  # from this length on a fit is repeated if other kinks spoilt some places
    long_tries: int = 3  # how often that may happen
    enough: float = 0.1  # shortest last baseline of an accepted plane
    margin: float = 3.0  # over the next baseline the error may move the plane by a third of a half width
    least_error: float = 1e-4  # least error of a direction to assume, in radians, because of curvature


@dataclass(frozen=True)
class Kinks(CostPerRound):
    """Directions of features whose response has a kink."""

    settings: KinkSettings = KinkSettings()
    name: ClassVar[str] = "kinks"

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return directions of features whose response has a kink in the ball, with the kinks' positions and jumps."""
        search = KinkSearch.start(ask, setting, queries, rng)
        same, complete = self.settings.same, False
        try:
            scan = _probe(search, self.settings)
            same = scan.same
            while (stop := _stop(search, scan)) is None:
                _follow(search, scan, chord(setting.dim, scan.radius, rng, offset=scan.s.chord_offset * setting.edge))
            if scan.exact and not scan.linear:
                _along_own_rays(search, scan)
            certain = search.all_explained and _chance_missed(search, scan.radius) <= scan.s.missed
            complete = certain and stop is Stop.CROSSED_TWICE
        except OutOfQueries:
            stop = Stop.SPENT
        found = proposal_of(search, same, stop, complete=complete)
        return replace(found, explains=_piecewise_linear_part(found)) if len(found.directions) else found


def _piecewise_linear_part(found: Proposal) -> Ask:
    """Return the function Σ (jump/2)·|v·x − t| over all kinks found; f minus it is smooth across them."""
    kinks = np.concatenate(found.kinks)
    halves = 0.5 * np.concatenate(found.jumps)
    owners = np.repeat(found.directions, [len(t) for t in found.kinks], axis=0)
    return lambda X: np.abs(X @ owners.T - kinks) @ halves


@dataclass(frozen=True)
class ScanSettings:
    """Properties of f between kinks, and the steps chosen for them."""

    s: KinkSettings
    linear: bool
    """True if f is linear between kinks."""
    noise: float
    """Norm over outputs of the error of an average of `careful` answers."""
    radius: float
    """Radius of the ball whose chords are scanned."""
    line: Scan
    exact: bool = True
    """True if the noise is no more than rounding."""
    repeats: int = 1
    """Number of answers averaged for each value of a scan."""
    careful: int = 1
    """Number of answers averaged for each value when a bend is followed up."""

    @property
    def same(self) -> float:
        """The angle in radians below which two directions count as one."""
        return self.s.same if self.exact else self.s.same_noisy


def _follow(search: KinkSearch, scan: ScanSettings, line: Line) -> None:
    """Scan one line and find the planes of its bends."""
    search.repeats = scan.repeats
    scanned = (scan_line if scan.exact else scan_noisy_line)(line, search.residual, scan.line)
    search.lines.append(line)
    search.repeats = scan.careful
    _measure(search, scan, line, scanned.bends)
    search.remember_bends(line, scanned)


def _along_own_rays(search: KinkSearch, scan: ScanSettings) -> None:
    """Scan a line along each direction found, as a random chord hardly moves along it and misses its outer kinks."""
    seen, k = np.empty((0, search.setting.dim)), 0
    while k < len(search.planes):
        v, known = search.planes.v[k], search.planes.confirmed[k]
        if known and not (angle(np.broadcast_to(v, seen.shape), seen) < scan.same).any():
            seen = np.concatenate([seen, v[None]])
            beside = chord(search.setting.dim, scan.radius, search.rng, offset=scan.s.ray_offset * scan.radius).origin
            origin = beside - (beside @ v) * v
            half = float(np.sqrt(scan.radius**2 - origin @ origin)) * INSIDE
            _follow(search, scan, Line(origin, v, -half, half))
        k += 1


# ---- properties of f between kinks


def _probe(search: KinkSearch, s: KinkSettings) -> ScanSettings:
    """Find out whether f is linear between kinks and return the settings for it.

    If it is, most short triples of points all over the ball are collinear; few of them meet a kink.
    """
    setting, radius = search.setting, search.setting.edge * INSIDE
    noise, step = setting.noise * setting.outputs**0.5, s.triple_step * radius
    exact = noise < s.exact * setting.std
    if exact:
        x = in_ball(s.triples, setting.dim, radius - step, search.rng)
        if search.probe_straight(x, step, s.triple_noise * noise):
            return _piecewise_linear(setting, s, noise)
    return _curved(setting, s, noise, radius, exact)


def _piecewise_linear(setting: Setting, s: KinkSettings, noise: float) -> ScanSettings:
    """Return the settings for a piecewise linear f: long lines, which cross almost every plane at the same cost."""
    radius = min(setting.reach, s.far * setting.dim**0.5 * setting.radius) * INSIDE
    far_noise = s.linear_noise * noise * max(1.0, radius / setting.radius)
    jump = s.linear_jump * setting.std / setting.radius
    return ScanSettings(s, True, noise, radius, Scan(s.linear_points, 1, far_noise, jump, s.linear_depth, "sharp"))


def _curved(setting: Setting, s: KinkSettings, noise: float, radius: float, exact: bool) -> ScanSettings:
    """Return the settings for a curved f: steps of half a radian of the bandwidth and, under noise, averages."""
    count = int(np.clip(s.points_per_radian * radius * setting.bandwidth, s.fewest_points, s.most_points))
    slope = setting.std / setting.radius
    line = Scan(count, s.degree, noise, s.jump * slope, s.depth)
    if exact:
        return ScanSettings(s, False, noise, radius, line)
    visible = s.visible_jump * slope * 2.0 * radius / count / s.visible_noise
    repeats = int(np.clip((noise / visible) ** 2, 1, s.most_repeats))
    careful = int(np.clip((noise / (s.placed * radius * slope)) ** 2, repeats, s.most_repeats))
    line = replace(line, noise=noise / repeats**0.5, jump=s.noisy_jump * slope)
    return ScanSettings(s, False, noise / careful**0.5, radius, line, False, repeats, careful)


def _crossing(setting: Setting, radius: float, out: float) -> float:
    """Return the chance that a random chord crosses a plane at distance `out`; its slope across it is Gaussian."""
    return erfc(out * (setting.dim / 2.0) ** 0.5 / radius)


def _chance_missed(search: KinkSearch, radius: float) -> float:
    """Return the chance that a plane at the edge of the ball was crossed by none of the lines."""
    return (1.0 - _crossing(search.setting, radius, search.setting.radius)) ** len(search.lines)


def _stop(search: KinkSearch, scan: ScanSettings) -> Stop | None:
    """Return why the search may stop, or None if it should go on.

    It stops when nearly every plane at a third of the radius would have been crossed and each known plane was crossed
    twice. A plane crossed only once suggests others like it that were missed.
    """
    s, radius, count, planes = scan.s, search.setting.radius, len(search.lines), search.planes
    chance = _crossing(search.setting, scan.radius, radius / s.met)
    enough = float(np.clip(s.crossings / max(chance, 1e-3), s.fewest_lines, s.most_lines))
    if count < enough:
        quick = count >= max(float(s.fewest_lines), enough / s.quick) and not len(planes)
        return Stop.NONE_SEEN if quick else None
    inside = planes.confirmed & (np.abs(planes.t) < radius)
    times = np.sum([planes.crossed_by(line)[inside] for line in search.lines], axis=0)
    lately = np.sum([planes.crossed_by(line)[inside] for line in search.lines[: -count // 4]], axis=0)
    if np.min(times, initial=2) >= 2 and np.min(lately, initial=1) >= 1:
        return Stop.CROSSED_TWICE
    return Stop.LIMIT if count > s.quick * enough else None


# ---- from a bend to a plane


def _measure(search: KinkSearch, scan: ScanSettings, line: Line, bends: list[Bend]) -> None:
    """Find the planes of one line's bends and add them to the known ones."""
    within, share = scan.s.explained if scan.exact else scan.s.explained_noisy
    bends = [
        b for b in bends if not search.planes.explains(line.at(b.at), line.along, b.jump, within * scan.radius, share)
    ]
    if scan.linear:
        _by_gradients(search, scan, line, bends)
    else:
        if scan.exact:
            bends = refine_bends(line, search.residual, bends, scan.s.narrowest * scan.radius)
        for bend in bends:
            _by_baselines(search, scan, line, bend)


def _by_gradients(search: KinkSearch, scan: ScanSettings, line: Line, bends: list[Bend]) -> None:
    """Find the planes of bends of a piecewise linear f from gradients between and beside the bends."""
    if not bends:
        return
    s, setting = scan.s, search.setting
    t, room, before, after = _stations(search, scan, line, np.array([b.at for b in bends]))
    x = line.at(t)
    inside = np.sqrt(np.maximum(scan.radius**2 - np.einsum("kd,kd->k", x, x), 0.0))
    steps = np.minimum(room / s.gradient_room, np.minimum(s.gradient_step * setting.edge, 0.5 * inside))
    slopes = forward_gradients(search.residual, x, steps)
    errors = scan.noise * np.maximum(1.0, np.linalg.norm(x, axis=1) / setting.radius) / steps
    for bend, i, j in zip(bends, before, after, strict=True):
        pair = rank_one_jump(slopes[j] - slopes[i], line.along, bend.jump)
        if pair is not None:
            error = max(errors[i], errors[j]) / float(np.linalg.norm(pair[1]))
            _establish(search, scan, line.at(bend.at), *pair, error)


def _stations(
    search: KinkSearch, scan: ScanSettings, line: Line, t: Floats
) -> tuple[Floats, Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return positions for gradients, their distances to the bends, and which one is before and after each bend.

    A position halfway between two bends serves both, unless a known plane between them would add its error.
    """
    edge = scan.s.station * search.setting.edge
    gaps = np.diff(t, prepend=t[0] - 2.0 * edge, append=t[-1] + 2.0 * edge)
    near = np.minimum(0.5 * gaps, edge)
    near[0], near[-1] = min(near[0], 0.5 * (t[0] - line.low)), min(near[-1], 0.5 * (line.high - t[-1]))
    known = search.planes.crossings(line)
    between = np.diff(np.searchsorted(known, t)) > 0
    shared = np.concatenate([[False], ~between, [False]])
    left = np.where(shared[:-1], t - 0.5 * gaps[:-1], t - near[:-1])
    right = np.where(shared[1:], t + 0.5 * gaps[1:], t + near[1:])
    own = ~shared[:-1]  # where the position before a bend is not also the one after its predecessor
    after = np.cumsum(own) + np.arange(len(t))
    before = after - 1
    places, room = np.empty(after[-1] + 1), np.empty(after[-1] + 1)
    places[before], places[after] = left, right
    room[before], room[after] = np.abs(left - t), np.abs(right - t)
    return places, room, before, after


def _establish(search: KinkSearch, scan: ScanSettings, x: Floats, v: Floats, a: Floats, error: float) -> None:
    """Add a plane if it is confirmed elsewhere; fit it again if its expected error (radians) is large."""
    t, radius = float(v @ x), search.setting.edge * INSIDE
    if abs(t) >= radius:  # outside the ball, but other lines cross it
        search.planes.add(v, t, a, True)
        return
    if not confirm(search.ask, (v, t, a), radius, scan.s.confirm_step * radius, search.rng, curved=False):
        return
    if error > scan.s.accurate:
        v, t = _sharpened(search, scan, (v, t, a), radius, error)
    search.planes.add(v, t, a, True)


def _sharpened(
    search: KinkSearch, scan: ScanSettings, plane: tuple[Floats, float, Floats], radius: float, error: float
) -> tuple[Floats, float]:
    """Return v and t fitted again around one of three places without other kinks, or as given if there is none."""
    (v, t, a), half = plane, scan.s.longest * radius
    (factor, least, most), (slack, per_error) = scan.s.sharpen_size, scan.s.sharpen_slack
    baseline = Baseline(half, float(np.clip(factor * error, least, most)) * radius, slack + per_error * error)
    for y in points_on_plane(v, t, half, 3, search.rng) if abs(t) < half else ():
        better = fit_plane(search.residual, y, v, a, radius, baseline, search.rng)
        if better is not None and better[2] > scan.s.met_places:
            return better[0], float(better[0] @ better[1])
    return v, t


def _by_baselines(search: KinkSearch, scan: ScanSettings, line: Line, bend: Bend) -> None:
    """Find the plane of a bend of a curved f, over baselines as long as the error of its direction allows."""
    s, d = scan.s, search.setting.dim
    radius = search.setting.edge * INSIDE
    blur = LOCATION_NOISE * scan.noise / float(np.linalg.norm(bend.jump))  # the error of τ along the line
    size = float(np.clip(s.looks * blur, s.narrowest * radius, s.widest * radius))
    length = float(np.clip(s.first_baseline * blur, s.first_limits[0] * size, s.first_limits[1] * size))
    x, v, a, tries = line.at(bend.at), line.along, bend.jump, 0
    if not scan.exact:
        x = _recentred(search, scan, x, v, a, size, radius)
    while tries < s.long_tries:
        better = fit_plane(search.residual, x, v, a, radius, Baseline(length, size), search.rng)
        if better is None or better[2] < s.met_places:
            break
        v, x, met = better
        a = bend.jump / float(v @ line.along)
        if length >= s.long * radius:  # repeat the fit if other kinks spoilt some places
            tries = s.long_tries if met == 1.0 else tries + 1
        error = max(LOCATION_NOISE * scan.noise * d**0.5 / (float(np.linalg.norm(a)) * length), s.least_error)
        length = min(s.longest * radius, max(size / (s.margin * error), 2.0 * length))
    t = float(v @ x)
    step = float(np.clip(CONFIRM_NOISE * scan.noise / np.linalg.norm(a), s.confirm_curved * radius, s.widest * radius))
    if length >= s.enough * radius and abs(t) < radius - 2.0 * step:
        confirmed = confirm(search.ask, (v, t, a), radius, step, search.rng, curved=True)
        if confirmed or scan.careful > 1:
            search.planes.add(v, t, a, confirmed)


def _recentred(
    search: KinkSearch, scan: ScanSettings, x: Floats, u: Floats, jump: Floats, size: float, radius: float
) -> Floats:
    """Return the position of a roughly placed kink, located again with a wider stencil."""
    wide = min(4.0 * size, scan.s.widest * radius)
    if np.linalg.norm(x) + 2.0 * wide >= radius:
        return x
    tau, _ = locate_kink(search.residual, x[None], u, jump, wide)
    return x + float(np.clip(tau[0], -wide, wide)) * u
