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
from functools import partial
from math import erfc
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, angle
from .base import INSIDE, SPENT, Ask, CostPerRound, Proposal, Setting
from .gradient_jumps import forward_gradients, gradient_jumps, rank_one_jump
from .kink_scans import KINKS, KinkSettings, ScanSettings, probe
from .kink_tracks import Tracks, draw_line
from .lines import Bend, Line, Scan, chord, scan_line, scan_noisy_line
from .planes import (
    CONFIRM_NOISE,
    LOCATION_NOISE,
    Baseline,
    KinkSearch,
    Stop,
    confirm,
    fit_plane,
    locate_kink,
    points_on_plane,
    proposal_of,
    refine_bends,
)
from .rounded_kinks import drop_shown, farthest, in_turns, search_in_turns

# in single precision, where errors of single rows of a gradient show
_STATION, _STEP = 0.1, 0.03  # largest distance of a gradient from its bend, and largest step, in radii
ROUNDED_COST = 3  # of a single output: each row of a gradient is asked twice, and lines to refine planes on come on top
_ALONG = 0.2  # largest error of ν·u = 1: another plane is close to the bend


@dataclass(frozen=True)
class Kinks(CostPerRound):
    """Directions of features whose response has a kink."""

    settings: KinkSettings = KINKS
    name: ClassVar[str] = "kinks"

    def cost(self, setting: Setting) -> int:
        """Return the queries for two features per dimension, or for six where rounding hides what a plane is."""
        rounded = self.settings.exact <= setting.noise / max(setting.std, np.finfo(float).tiny) < self.settings.rounded
        share = ROUNDED_COST if rounded and setting.outputs == 1 else 1
        return share * super().cost(setting)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return directions of features whose response has a kink in the ball, with the kinks' positions and jumps."""
        search = KinkSearch.start(ask, setting, queries, rng)
        same, complete, straight = self.settings.same, False, False
        stop: Stop | None = None
        tracks: Tracks | None = None
        try:
            scan = probe(search, self.settings)
            same, straight = scan.same, scan.rounded
            if scan.rounded and in_turns(setting):
                seen = _scan_of(scan, draw_line(setting, rng), setting.radius).threshold(0.0)
                stop, tracks = search_in_turns(search, partial(_follow, search, scan), scan.noise, seen)
            else:
                while (stop := _stop(search, scan)) is None:
                    _follow(search, scan, _next_line(search, scan))
            if scan.exact and not scan.linear:
                _along_own_rays(search, scan)
            before = len(search.planes)
            missed = _beyond_the_ball(search, scan) if scan.rounded else _chance_missed(search, scan.radius)
            if tracks is not None:
                drop_shown(search, tracks, before)
            certain = missed <= scan.s.missed and search.all_explained
            complete = certain and stop in (Stop.CROSSED_TWICE, Stop.NOTHING_NEW)
        except SPENT:
            stop = Stop.SPENT
        found = replace(
            proposal_of(search, same, stop, complete=complete),
            only=straight and bool(search.planes.confirmed.any()),
        )
        return replace(found, explains=_piecewise_linear_part(found)) if len(found.directions) else found


def _piecewise_linear_part(found: Proposal) -> Ask:
    """Return the function Σ (jump/2)·|v·x − t| over all kinks found; f minus it is smooth across them."""
    kinks = np.concatenate(found.kinks)
    halves = 0.5 * np.concatenate(found.jumps)
    owners = np.repeat(found.directions, [len(t) for t in found.kinks], axis=0)
    return lambda X: np.abs(X @ owners.T - kinks) @ halves


def _next_line(search: KinkSearch, scan: ScanSettings) -> Line:
    """Return the next line to scan."""
    setting = search.setting
    if scan.rounded and in_turns(setting):
        return draw_line(setting, search.rng)
    return chord(setting.dim, scan.radius, search.rng, offset=scan.s.chord_offset * setting.edge)


def _scan_of(scan: ScanSettings, line: Line, radius: float) -> Scan:
    """Return the resolution of a scan along this line: rounding grows with the distance beyond the radius."""
    far = max(1.0, farthest(line) / radius) if scan.rounded else 1.0
    return replace(scan.line, noise=far * scan.line.noise)


def _follow(search: KinkSearch, scan: ScanSettings, line: Line) -> None:
    """Scan one line and find the planes of its bends."""
    search.repeats = scan.repeats
    along = _scan_of(scan, line, search.setting.radius)
    scanned = (scan_line if scan.exact else scan_noisy_line)(line, search.residual, along)
    search.lines.append(line)
    search.repeats = scan.careful
    _measure(search, scan, line, scanned.bends)
    if scan.rounded:
        search.loose += [(line.at(b.at), line.along, b.jump) for b in scanned.bends]
    else:
        search.remember_bends(line, scanned)


def _beyond_the_ball(search: KinkSearch, scan: ScanSettings) -> float:
    """Scan the parts outside the ball of lines as long as those in exact answers; return the chance to miss a plane.

    Rounding grows with the distance, but kinks are farther apart there. They show planes that chords seldom cross.
    """
    setting, s = search.setting, scan.s
    far = float(min(setting.reach, s.far * setting.dim**0.5 * setting.radius)) * INSIDE
    if far < 2.0 * setting.radius:
        return _chance_missed(search, scan.radius)
    outer = replace(scan, radius=far)
    chords, search.lines = search.lines, []
    while _chance_missed(search, far) > s.missed and len(search.lines) < s.most_lines:
        whole = chord(setting.dim, far, search.rng, offset=s.chord_offset * setting.edge)
        for low, high in ((setting.radius, whole.high), (whole.low, -setting.radius)):
            _follow(search, outer, replace(whole, low=low, high=high))
        search.lines = [*search.lines[:-2], whole]
    missed = _chance_missed(search, far)
    search.lines = chords + search.lines
    return missed


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
    if scan.rounded:
        new = [b for b in bends if not search.planes.holds(line.at(b.at), line.along, b.jump, search.setting.radius)]
        _by_gradients(search, scan, line, new, np.array([b.at for b in bends]))
    elif scan.linear:
        _by_gradients(search, scan, line, bends, None)
    else:
        if bends and scan.careful == 1:  # the stencils of planes are shorter than a scan's steps
            bends = refine_bends(line, search.residual, bends, _finest(scan, bends))
        for bend in bends:
            _by_baselines(search, scan, line, bend)


def _finest(scan: ScanSettings, bends: list[Bend]) -> float:
    """Return the step down to which bends are placed: that of the stencils which then locate their planes."""
    faintest = min(float(np.linalg.norm(b.jump)) for b in bends)
    blur = 0.0 if scan.exact else LOCATION_NOISE * scan.noise / faintest
    return max(scan.s.narrowest * scan.radius, scan.s.looks * blur)


def _by_gradients(search: KinkSearch, scan: ScanSettings, line: Line, bends: list[Bend], known: Floats | None) -> None:
    """Find the planes of bends of a piecewise linear f from gradients between and beside the bends.

    `known` are the positions of all bends of the line, those of planes already found among them, if these are not
    subtracted.
    """
    if not bends:
        return
    s, setting = scan.s, search.setting
    at = np.array([b.at for b in bends])
    places = _stations(search, scan, line, at) if known is None else _stations_among(scan, line, at, known)
    t, room, before, after = places
    x = line.at(t)
    inside = np.sqrt(np.maximum(scan.radius**2 - np.einsum("kd,kd->k", x, x), 0.0))
    if scan.rounded:
        inside = setting.reach * INSIDE - np.linalg.norm(x, axis=1)
    each = s.rounded_room if scan.rounded else s.gradient_room
    longest = _STEP if scan.rounded and in_turns(setting) else s.gradient_step
    steps = np.minimum(room / each, np.minimum(longest * setting.edge, 0.5 * inside))
    if scan.rounded:
        steps = np.minimum(steps, _steps_above_rounding(search, scan, bends, before, after))
    if scan.rounded and in_turns(setting):
        pairs, noise = np.stack([before, after], axis=1), scan.noise * max(1.0, farthest(line) / setting.radius)
        found = gradient_jumps(search, x, steps, pairs, np.array([b.jump for b in bends]), noise)
        for bend, one in zip(bends, found, strict=True):
            if one is not None and abs(one[0] @ line.along - 1.0) <= _ALONG:
                size = float(np.linalg.norm(one[0]))
                _establish(search, scan, line.at(bend.at), one[0] / size, size * bend.jump, one[1] / size)
        return
    slopes = forward_gradients(search.residual, x, steps)
    errors = scan.noise * np.maximum(1.0, np.linalg.norm(x, axis=1) / setting.radius) / steps
    for bend, i, j in zip(bends, before, after, strict=True):
        pair = rank_one_jump(slopes[j] - slopes[i], line.along, bend.jump)
        if pair is not None:
            error = max(errors[i], errors[j]) / float(np.linalg.norm(pair[1]))
            _establish(search, scan, line.at(bend.at), *pair, error)


def _steps_above_rounding(
    search: KinkSearch, scan: ScanSettings, bends: list[Bend], before: NDArray[np.intp], after: NDArray[np.intp]
) -> Floats:
    """Return the step of each gradient at which rounding makes a small part of the jump of the bends beside it.

    A random line meets a plane at an angle whose sine is about 1/√d, so that its slope jumps by as much less than the
    gradient. The largest singular value of rounding in d·p slopes is that in one times √d + √p.
    """
    d, p = search.setting.dim, search.setting.outputs
    share = scan.s.rounded_share_alone if p == 1 else scan.s.rounded_share
    error = np.sqrt(2.0 / p) * scan.noise * (np.sqrt(d) + np.sqrt(p))
    wanted = error / (share * np.sqrt(d) * np.array([np.linalg.norm(b.jump) for b in bends]))
    steps = np.zeros(int(after[-1]) + 1)
    np.maximum.at(steps, before, wanted)
    np.maximum.at(steps, after, wanted)
    return steps


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


def _stations_among(
    scan: ScanSettings, line: Line, t: Floats, bends: Floats
) -> tuple[Floats, Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return the same as `_stations` where lines bend at `bends`, too, of which `t` are some."""
    edge = (_STATION if scan.rounded else scan.s.station) * scan.radius
    ends = np.concatenate([[line.low], np.sort(bends), [line.high]])
    k = np.searchsorted(ends[1:-1], t) + 1
    left = t - np.minimum(0.5 * (ends[k] - ends[k - 1]), edge)
    right = t + np.minimum(0.5 * (ends[k + 1] - ends[k]), edge)
    places, owners = np.unique(np.concatenate([left, right]), return_inverse=True)
    room = np.full(len(places), np.inf)
    np.minimum.at(room, owners, np.abs(np.concatenate([t - left, right - t])))
    return places, room, owners[: len(t)], owners[len(t) :]


def _establish(search: KinkSearch, scan: ScanSettings, x: Floats, v: Floats, a: Floats, error: float) -> None:
    """Add a plane if it is confirmed elsewhere; fit it again if its expected error (radians) is large."""
    t, radius = float(v @ x), search.setting.edge * INSIDE
    if abs(t) >= radius:  # outside the ball, but other lines cross it
        search.planes.add(v, t, a, True, error * scan.rounded, subtracted=not scan.rounded)
        return
    if scan.rounded:
        step = max(scan.s.rounded_confirm * radius, CONFIRM_NOISE * scan.noise / float(np.linalg.norm(a)))
        around = x, step / (scan.s.margin * max(error, scan.s.explained[0]))
        if confirm(search.residual, (v, t, a), radius, step, search.rng, curved=False, around=around):
            search.planes.add(v, t, a, True, error, subtracted=False)
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
    x, v, a, tries, turned = line.at(bend.at), line.along, bend.jump, 0, 0.0
    if not scan.exact:
        x = _recentred(search, scan, x, v, a, size, radius)
    while tries < s.long_tries:
        better = fit_plane(search.residual, x, v, a, radius, Baseline(length, size), search.rng)
        if better is None or better[2] < s.met_places:
            break
        turned = float(angle(better[0], v))  # what was left of the error before, over a shorter baseline
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
            search.planes.add(v, t, a, confirmed, turned)


def _recentred(
    search: KinkSearch, scan: ScanSettings, x: Floats, u: Floats, jump: Floats, size: float, radius: float
) -> Floats:
    """Return the position of a roughly placed kink, located again with a wider stencil."""
    wide = min(4.0 * size, scan.s.widest * radius)
    if np.linalg.norm(x) + 2.0 * wide >= radius:
        return x
    tau, _ = locate_kink(search.residual, x[None], u, jump, wide)
    return x + float(np.clip(tau[0], -wide, wide)) * u
