"""Planes of a piecewise linear f in single precision, where rounding limits every step and planes lie close together.

A line at the distance of the radius from the centre meets planes that pass near the centre as far from each other as
it can: the gaps between crossings grow with that distance, and within the ball rounding does not.

"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..deadline import check_time
from ..geometry import Floats, unit
from .base import Setting
from .gradient_jumps import rows_show_errors
from .kink_tracks import Found, Tracks, draw_line
from .left_planes import planes_left
from .lines import Line
from .planes import TELLING, KinkSearch, Planes, Stop
from .unmixing import unmix

_TURNS, _MOST_LINES = 30, 60  # of lines and refinement; and lines of each
_FEW = 0.1  # share of the planes of a turn: a line that brings no more of them is the last
_MOST_SEEN = 1000  # planes added in one turn
_TWIN, _SAME_JUMPS = 0.3, 0.95  # radians between planes, and cosine of jumps, from which on two planes are one
_TWIN_ERRORS, _TWIN_LEAST = 5.0, 1e-3  # the same with few outputs: errors of both planes, and radians
_DOUBTS = (3.0, 1.0)  # error of a plane that is not refined over that which rounding makes: planes unseen add to it,
# but the differences of a wide neighbourhood are those of many planes, so that the second is tried where less than
_ENOUGH = 0.9  # this share of the planes is found with the first
_MISFIT_ERROR = 5.0  # factor on the error of a plane that does not account for its differences
_HIDDEN = 1e-2  # standard deviations of f: planes that may bend it by more are not said to have been seen
_SHOWN = 10  # lines on which a plane shows if it is there
_FAINT = 0.3  # jump over the least that shows, below which a plane makes up for errors of others
_LEAST_ERROR = 1e-9  # radians
_QUIET_LINES = 3  # lines in a row without a new plane that end the search


def farthest(line: Line) -> float:
    """Return the distance of the ends of a line from the centre."""
    return max(float(np.linalg.norm(line.at(t))) for t in (line.low, line.high))


def in_turns(setting: Setting) -> bool:
    """Return whether planes are refined together: jumps tell them apart, or there is a single output.

    With a few outputs gradient jumps of rank one show by themselves which are right, at half of the queries.
    """
    return setting.outputs == 1 or rows_show_errors(setting)


def search_in_turns(
    search: KinkSearch, follow: Callable[[Line], object], noise: float, threshold: float
) -> tuple[Stop, Tracks | None]:
    """Follow lines until they bring little, refine all planes together, subtract them, and begin again.

    Planes that the refinement does not find are dropped: the next lines show them again, among fewer others. From the
    second turn on these are lines on which second differences above the `threshold` are left. `noise` is the norm over
    outputs of the error of an answer. Returns why it ended, and the differences.
    """
    setting, rng, planes = search.setting, search.rng, search.planes
    if not _follow_until_quiet(search, follow, lambda: draw_line(setting, rng)):
        return Stop.LIMIT, None
    if not len(planes):
        return Stop.NONE_SEEN, None
    tracks = Tracks.ask(search.ask, setting, len(planes), noise, rng)
    again = False
    for _ in range(_TURNS):
        left = _refine(search, tracks, threshold)
        search.loose = []
        above = np.sum(np.linalg.norm(left, axis=2) > threshold, axis=1)
        if not above.any():
            # a plane that shows in no difference bends f by less than that in the ball, as a norm over outputs
            hidden = 0.5 * setting.radius * tracks.least_jump(threshold) / setting.outputs**0.5
            return (Stop.NOTHING_NEW if hidden <= _HIDDEN * setting.std else Stop.LIMIT), tracks
        shown = rows_show_errors(setting)
        new = _add_seen(search, tracks, planes_left(tracks, left, threshold, _MOST_SEEN)) if shown else 0
        if new <= _FEW * len(planes):
            before = len(planes)
            _follow_until_quiet(search, follow, partial(_draw_one, tracks, above / above.sum(), rng))
            new += len(planes) - before
        if new <= _FEW * len(planes):
            loose = ~planes.subtracted
            rough = Found(planes.v[loose], planes.t[loose], planes.a[loose], planes.error[loose])
            more = tracks.with_lines_across(search.ask, setting, rough, rng)
            if not new and more is tracks:
                if again or not loose.any():
                    break
                planes.keep(planes.subtracted)  # what they make of the differences may show them better
                again = True
            tracks = more
    return Stop.LIMIT, tracks


def drop_shown(search: KinkSearch, tracks: Tracks, first: int) -> None:
    """Drop planes from the `first` on that lines of the differences cross, which would have shown there: remainders."""
    planes = search.planes
    new = Found(planes.v[first:], planes.t[first:], planes.a[first:], planes.error[first:])
    hidden = tracks.crossed(new) < _SHOWN
    planes.keep(np.concatenate([np.ones(first, dtype=np.bool_), hidden & ~_twins(planes)[first:]]))


def _add_seen(search: KinkSearch, tracks: Tracks, seen: Found) -> int:
    """Add planes and return how many; where one is that of a known plane, that one is wrong, and both go.

    The next turn shows such a plane with all that it makes of the differences.
    """
    planes, new = search.planes, len(seen.t)
    size = len(planes)
    for k in range(new):
        planes.add(seen.v[k], seen.t[k], seen.a[k], True, seen.error[k] / tracks.arm, subtracted=False)
    twins = _twins(planes)
    planes.keep(~twins)
    return new if new > int(twins[size:].sum()) else min(new, int(twins[:size].sum()))


def _twins(planes: Planes) -> NDArray[np.bool_]:
    """Return for each plane whether another one has about its direction and, in several outputs, its jump."""
    a = unit(planes.a)
    near = np.full((len(planes), len(planes)), _TWIN)
    if planes.a.shape[1] < TELLING:  # jumps of few outputs are often parallel
        near = np.minimum(near, _TWIN_ERRORS * np.add.outer(planes.error, planes.error) + _TWIN_LEAST)
    twins = (np.abs(planes.v @ planes.v.T) >= np.cos(near)) & (np.abs(a @ a.T) >= _SAME_JUMPS)
    return np.asarray(np.sum(twins, axis=1) > 1)


def _draw_one(tracks: Tracks, chances: Floats, rng: np.random.Generator) -> Line:
    return tracks.line(int(rng.choice(len(chances), p=chances)))


def _follow_until_quiet(search: KinkSearch, follow: Callable[[Line], object], draw: Callable[[], Line]) -> bool:
    """Follow lines until one brings few of the planes found; return whether that was before there were too many."""
    first, quiet = len(search.planes), 0
    for _ in range(_MOST_LINES):
        check_time()
        before = len(search.planes)
        follow(draw())
        new, so_far = len(search.planes) - before, len(search.planes) - first
        quiet = quiet + 1 if not new else 0
        if quiet >= _QUIET_LINES or (new and new <= _FEW * so_far):
            return True
    return False


def _refined(planes: Planes, tracks: Tracks) -> Found:
    """Return the planes refined from the errors that they may have: those of which more are found."""
    outcomes: list[tuple[int, Found]] = []
    tell = planes.a.shape[1] >= TELLING
    for doubt in _DOUBTS[:1] if tell else _DOUBTS:
        error = np.maximum(planes.error, _LEAST_ERROR) * np.where(planes.subtracted, 1.0, doubt) * tracks.arm
        rough = Found(planes.v, planes.t, planes.a, error)
        found = tracks.refine(unmix(tracks, rough, _ENOUGH) if tell else rough)
        outcomes.append((int(np.sum(found.error <= tracks.resolved)), found))
        if outcomes[-1][0] >= _ENOUGH * len(planes):
            break
    return max(outcomes, key=lambda outcome: outcome[0])[1]


def _refine(search: KinkSearch, tracks: Tracks, threshold: float) -> Floats:
    """Refine all planes, drop those that are not found, and have those subtracted that are known well.

    Returns the second differences (lines, points, p) that are left without those dropped.
    """
    planes = search.planes
    found = _refined(planes, tracks)
    kept = (found.error <= tracks.resolved) | (tracks.missing(found) > 0)  # where lines are missing, nothing is known
    planes.v, planes.t, planes.a, planes.error = found.v, found.t, found.a, found.error / tracks.arm
    planes.subtracted = tracks.is_sharp(found)
    check_time()  # planes whose refinement was cut short are not dropped for their errors
    kept &= ~_twins(planes) & (np.linalg.norm(found.a, axis=1) >= _FAINT * tracks.least_jump(threshold))
    planes.keep(kept)
    left, misfits = tracks.left(found.only(kept), threshold)
    planes.subtracted &= ~misfits
    planes.error *= np.where(misfits, _MISFIT_ERROR, 1.0)
    return left
