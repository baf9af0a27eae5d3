"""How to look for kinks along lines: whether f is straight between them, and which steps its noise allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..geometry import in_ball
from .base import INSIDE, Setting
from .lines import DEVIATIONS, Scan
from .planes import KinkSearch


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
    # the same where rounding in single precision hides bends over such a step
    rounded: float = 1e-4  # noise over std up to which it is looked for
    triple_steps: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # in radii; the first that shows bends decides:
    bent: tuple[float, float] = (0.1, 0.8)  # between these shares of the triples are bent,
    stands_out: float = 3.0  # half of them this many times as much as noise may bend them,
    quiet: tuple[float, float, float] = (10.0, 0.2, 0.8)  # and the second of these shares of all triples, and of those
    # beside bent ones, by no more than so many times the noise, which grows with answers; or the third where no step
    # shows as many bends
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
    rounded_noise: float = 1.5  # noise of scans over that in the ball, where rounding matters: lines do not leave it
    rounded_room: float = 4.0  # least `gradient_room` there; steps are no longer than for
    rounded_share: float = 0.005  # this error of a gradient's jump: the longer they are, the more planes they meet
    rounded_share_alone: float = 0.001  # the same with a single output, where steps that meet planes are taken again
    rounded_confirm: float = 3e-4  # least step of `confirm` there
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


KINKS = KinkSettings()
"""The thresholds that are used unless others are asked for."""


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
    rounded: bool = False
    """True if rounding limits the steps of a piecewise linear f."""
    repeats: int = 1
    """Number of answers averaged for each value of a scan."""
    careful: int = 1
    """Number of answers averaged for each value when a bend is followed up."""

    @property
    def same(self) -> float:
        """The angle in radians below which two directions count as one."""
        return self.s.same if self.exact else self.s.same_noisy


def probe(search: KinkSearch, s: KinkSettings) -> ScanSettings:
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
    elif noise < s.rounded * setting.std and _is_straight_between(search, s, noise, radius):
        line = Scan(
            s.linear_points, 1, s.rounded_noise * noise * _deviations(setting.outputs), 0.0, s.linear_depth, "sharp"
        )
        return ScanSettings(s, True, noise, radius, line, rounded=True)
    return _curved(setting, s, noise, radius, exact)


def _deviations(outputs: int) -> float:
    """Return the deviations of a difference of so many outputs that count, over those of a single output.

    The norm of Gaussian errors over p outputs scatters by 1/√p of itself only.
    """
    return float(1.0 + (DEVIATIONS - 1.0) / outputs**0.5) / DEVIATIONS


def _is_straight_between(search: KinkSearch, s: KinkSettings, noise: float, radius: float) -> bool:
    """Return whether f is straight but for kinks, as far as noise shows.

    The longer a triple, the more it bends. A smooth function bends everywhere alike or, where it does not, alike at
    neighbouring triples. Kinks that few triples meet stand out, and the neighbours of these triples are straight to the
    last digit. The first step at which bends stand out decides.
    """
    least = s.triple_noise * noise
    quiet = 1.0
    for share in s.triple_steps:
        x = in_ball(2 * s.triples, search.setting.dim, radius * (1.0 - 3.0 * share), search.rng)
        second, beside = search.neighbouring_second_differences(x, share * radius).T
        bent = second > least
        quiet = float(np.mean(second <= s.quiet[0] * noise))
        if np.mean(bent) > s.bent[1]:
            return False
        if np.mean(bent) >= s.bent[0] and np.median(second[bent]) > s.stands_out * least:
            return bool(quiet >= s.quiet[1] and np.mean(beside[bent] <= s.quiet[0] * noise) >= s.quiet[1])
    return quiet >= s.quiet[2]


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
    return ScanSettings(s, False, noise / careful**0.5, radius, line, exact=False, repeats=repeats, careful=careful)
