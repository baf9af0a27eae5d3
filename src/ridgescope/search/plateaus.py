"""Plateaus: far from the centre a sum of saturating responses is piecewise constant.

For sigmoids, tanh, erf and the like s(z) → c± as z → ±∞. On a line at distance D from the centre response i changes
where |v_i·x − t_i| is at most its own width w, a stretch of about w√d on a line of length about D. Where D is large
enough these stretches are apart, and f is flat between them. What f changes by across one of them,

    Δ_i = ± (c+ − c−) a_i,        a_i the output vector of response i,

is the same on every line: it tells responses apart before anything else is known of them. Within the stretch the
gradient of f has the one direction v_i, which 2d answers show, on steps that are a share of the stretch; the part of
these answers that is not along Δ_i shows where a second response interferes.

D is the least distance at which most of f is flat, as rounding inside f grows with it. Where f is flat nowhere, a few
pairs of points show that and the search ends at once. Responses with the same value on both sides are not found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..geometry import Floats, random_directions, unit
from .base import Ask, CostPerRound, Meter, OutOfQueries, Proposal, Setting
from .plateau_places import MEASURED, ClearPlaces, Responses


@dataclass(frozen=True)
class PlateauSettings:
    """Thresholds of the search; empirical where no reason is given, checked on planted and real layers."""

    distances: tuple[float, ...] = (16.0, 64.0, 256.0, 1024.0, 4096.0)  # of lines from the centre, in radii
    pairs: int = 24  # pairs of points at each distance that show whether f is flat
    apart: float = 1.0  # distance of the points of a pair, in radii
    flat: float = 0.85  # share of flat pairs from which on stretches are far enough apart
    length: float = 3.0  # half length of a line over its distance: it crosses 80 % of all planes
    points: int = 129  # points of the first grid on a line
    depth: int = 24  # how often its steps are halved at most
    noise: float = 20.0  # deviations of the noise from which on a change counts
    least: float = 1e-3  # share of the standard deviation of f from which on it counts
    steep: float = 0.15  # share of the change over a stretch that one interval of it may have
    pure: float = 0.01  # part of the changes within one stretch that may not be along the whole change
    same: float = 0.02  # relative difference of changes up to which they are of one response
    step: float = 0.1  # step of a gradient, over the length of the stretch
    longer: float = 10.0  # factor on that step across a direction that is known roughly
    tilt: float = 0.2  # radians by which it may be off, and relative difference of changes that are not pure
    sharp: float = 0.02  # the same where no other response has interfered
    beyond: float = 2.0  # distance from a plane at which a response is flat, over the length of its stretch
    aside: float = 5.0  # distance of places that confirm a plane, over that one
    places: int = 6  # such places
    met: int = 3  # of which so many must agree, as other responses may lie between
    misplaced: float = 5e-3  # radians by which directions are off at most there
    shorter: float = 4.0  # factor between the steps that are tried
    tries: int = 4  # steps that are tried, until gradient and line agree
    agree: float = 0.1  # relative difference up to which they do
    lines_without_new: int = 3  # lines in a row without a new response that end the search: one crosses 80 % of all
    unclear_lines: int = 30  # such lines where responses interfere on some of them, and known ones do not explain that


@dataclass(frozen=True)
class Plateaus(CostPerRound):
    """Directions of responses that are constant for large |z|, with different values on both sides."""

    settings: PlateauSettings = PlateauSettings()
    name: ClassVar[str] = "plateaus"

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return the directions of responses that are seen as steps from far away."""
        search = _Search(Meter(ask, queries), setting, self.settings, rng)
        if setting.dim < 2:
            return Proposal.empty(setting, "there is one dimension only")
        try:
            distance = search.flat_distance()
            if distance is None:
                note = "f is not flat far from the ball, or may not be asked there"
                return Proposal.empty(setting, note, applies=False)
            search.run(distance)
            search.place()
            ended = True
        except OutOfQueries:
            ended = False
        found = np.array(search.directions).reshape(-1, setting.dim)
        note = f"{len(found)} steps on {search.lines} lines at a distance of {search.distance / setting.radius:g} radii"
        note += "" if ended else "; the queries allowed were spent"
        seen = len(found) > 0
        kinks, complete, errors = tuple(search.bends), ended and seen, search.errors
        return Proposal(
            found,
            np.ones(len(found)),
            note,
            kinks=kinks,
            complete=complete,
            spanning=complete,
            only=seen,
            angle_error=float(errors.max(initial=0.0)) if ended else self.settings.tilt,
        )


@dataclass(eq=False)
class _Stretch:
    """A stretch of a line over which f changes between two plateaus."""

    change: Floats
    """(p,) of f across it."""
    at: Floats
    """(d,) the point of it where f changes fastest."""
    slope: float
    """Of f along the line at this point, along the change."""
    pure: bool
    """Whether f changes along one vector only."""
    ends: Floats
    """(2, d) the points of the line between which it lies."""

    @property
    def length(self) -> float:
        """Of a stretch with the same change and this slope throughout."""
        return float(np.linalg.norm(self.change)) / self.slope


@dataclass(eq=False)
class _Search:
    """What is known so far."""

    meter: Meter
    setting: Setting
    s: PlateauSettings
    rng: np.random.Generator
    distance: float = 0.0
    lines: int = 0

    def __post_init__(self) -> None:
        self.directions, self.changes, self.rough = list[Floats](), list[Floats](), list[int]()
        self.places, self.halves, self.bends = list[Floats](), list[float](), list[Floats]()
        self.errors = np.empty(0)

    def flat_distance(self) -> float | None:
        """Return the least distance at which most of f is flat; None if there is none within the reach."""
        distances = [a * self.setting.radius for a in self.s.distances]
        reached = [a for a in distances if a * np.hypot(1.0, self.s.length) < self.setting.reach]
        if not reached or not self._is_flat(reached[-1]):
            return None
        self.distance = next((a for a in reached[:-1] if self._is_flat(a)), reached[-1])
        return self.distance

    def _is_flat(self, distance: float) -> bool:
        """Return whether most of f is flat there."""
        s, setting = self.s, self.setting
        x = distance * random_directions(s.pairs, setting.dim, self.rng)
        y = x + s.apart * setting.radius * random_directions(s.pairs, setting.dim, self.rng)
        f = self.meter(np.concatenate([x, y])).reshape(2, s.pairs, -1)
        return float(np.mean(np.linalg.norm(f[1] - f[0], axis=1) <= self._floor(f))) >= s.flat

    def _floor(self, f: Floats) -> float:
        """Return the size from which on a change of answers like these counts."""
        growth = max(1.0, float(np.nanmax(np.abs(f), initial=0.0)) / max(self.setting.std, 1e-300))
        noise = self.s.noise * self.setting.noise * growth * np.sqrt(f.shape[-1])
        return float(noise + self.s.least * self.setting.std)

    def run(self, distance: float) -> None:
        """Scan lines until some in a row show nothing new: three that are explained altogether, or ten."""
        s, without, clear = self.s, 0, 0
        while without < s.unclear_lines and clear < s.lines_without_new:
            u, w = random_directions(2, self.setting.dim, self.rng)
            x = distance * unit(w - (w @ u) * u)
            self.lines += 1
            before, unclear = len(self.directions), 0
            for stretch in self._stretches(x, u, s.length * distance):
                known = self._which(stretch, u)
                if known is not None:
                    self._again(known, stretch, u)
                elif not (stretch.pure and self._follow(stretch, u)):
                    unclear += not (self._is_sum(stretch) or self._are_two(stretch.change))
            without = without + 1 if len(self.directions) == before else 0
            clear = clear + 1 if without and not unclear else 0

    def place(self) -> None:
        """Measure all responses again where the others are constant, and note between which places each of them rises.

        What is not seen there, and was another response before, or two others that happened to rise at once, goes.
        """
        n = len(self.directions)
        if not n:
            return
        errors = np.where(np.array(self.rough) > 0, self.s.tilt, self.s.misplaced)
        directions, changes, places = (np.array(rows) for rows in (self.directions, self.changes, self.places))
        known = Responses(directions, changes, places, np.array(self.halves), errors.copy())
        ClearPlaces(self.meter, known, self.setting.radius, self.distance, self.rng).measure()
        keep = [i for i in range(n) if known.errors[i] <= MEASURED or not known.is_explained(i)]
        self.directions, self.errors = [known.directions[i] for i in keep], known.errors[keep]
        for i in keep:
            t, half = known.offsets[i], known.halves[i]
            inside = known.errors[i] <= MEASURED and abs(t) < self.setting.radius
            self.bends.append(np.array([t - half, t + half]) if inside else np.empty(0))

    def _which(self, stretch: _Stretch, u: Floats) -> int | None:
        """Return the known response that changes f by as much along u, and whose plane goes through this place."""
        if not self.changes:
            return None
        v, size = np.array(self.directions), float(np.linalg.norm(stretch.change))
        off = np.linalg.norm(stretch.change - np.sign(v @ u)[:, None] * np.array(self.changes), axis=1)
        away = stretch.at - np.array(self.places)
        tilt = np.where(np.array(self.rough) > 0, self.s.tilt, self.s.sharp)
        off[np.abs(np.einsum("kd,kd->k", away, v)) > tilt * np.linalg.norm(away, axis=1)] = np.inf
        k = int(np.argmin(off))
        return k if off[k] <= self.s.same * size else None

    def _is_sum(self, stretch: _Stretch) -> bool:
        """Return whether the known responses whose planes lie between the ends together change f by as much."""
        if not self.directions:
            return False
        v, changes = np.array(self.directions), np.array(self.changes)
        sides = np.sign(stretch.ends @ v.T - np.einsum("nd,nd->n", v, np.array(self.places)))
        crossed = 0.5 * (sides[1] - sides[0])
        most = self.s.same * float(np.abs(crossed) @ np.linalg.norm(changes, axis=1))
        return bool(np.linalg.norm(stretch.change - crossed @ changes) <= most)

    def _are_two(self, change: Floats) -> bool:
        """Return whether two known responses together change f by as much."""
        off = self.s.same * np.linalg.norm(change)
        return any(np.any(np.linalg.norm(self._left(rest), axis=1) <= off) for rest in self._left(change))

    def _left(self, change: Floats) -> Floats:
        """Return (2n, p) what is left of a change without that of each known response in either direction."""
        known = np.reshape(self.changes, (-1, len(change)))
        return np.asarray(change - np.concatenate([known, -known]))

    def _stretches(self, x: Floats, u: Floats, half: float) -> list[_Stretch]:
        """Return the stretches of the line x + tu, |t| ≤ half, over which f changes."""
        s = self.s
        t = np.linspace(-half, half, s.points)
        f = self.meter(x + t[:, None] * u)
        floor = self._floor(f)
        for _ in range(s.depth):
            split = [k for low, high in self._groups(f, floor) for k in self._too_steep(f, low, high)]
            if not split:
                break
            middle = 0.5 * (t[split] + t[np.array(split) + 1])
            f = np.insert(f, np.array(split) + 1, self.meter(x + middle[:, None] * u), axis=0)
            t = np.insert(t, np.array(split) + 1, middle)
        found = []
        for low, high in self._groups(f, floor):
            steps, change = np.diff(f[low : high + 1], axis=0), f[high] - f[low]
            size = float(np.linalg.norm(change))
            if low == 0 or high == len(t) - 1 or size <= floor or not np.isfinite(f[low : high + 1]).all():
                continue
            share = steps @ change / size
            apart = float(np.linalg.norm(steps - share[:, None] * change / size))
            slopes = share / np.diff(t[low : high + 1])
            k = int(np.argmax(slopes))
            at = x + 0.5 * (t[low + k] + t[low + k + 1]) * u
            found.append(
                _Stretch(
                    change,
                    at,
                    float(slopes[k]),
                    apart <= s.pure * size and share.min() > -s.pure * size,
                    x + np.array([[t[low]], [t[high]]]) * u,
                )
            )
        return found

    def _groups(self, f: Floats, floor: float) -> list[tuple[int, int]]:
        """Return first and last points of the runs of intervals over which answers change."""
        changes = np.linalg.norm(np.diff(f, axis=0), axis=1) > 0.1 * floor
        edges = np.flatnonzero(np.diff(np.concatenate([[0], changes.astype(int), [0]])))
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]

    def _too_steep(self, f: Floats, low: int, high: int) -> list[int]:
        """Return the intervals of a run that have too large a part of its change."""
        sizes = np.linalg.norm(np.diff(f[low : high + 1], axis=0), axis=1)
        return [low + int(k) for k in np.flatnonzero(sizes > self.s.steep * sizes.sum())]

    def _follow(self, stretch: _Stretch, u: Floats) -> bool:
        """Add the response of a stretch, if its gradient agrees with the line and it is not known already."""
        found = self._direction(stretch, u)
        if found is None or not self._is_confirmed(stretch, u, found[0]):
            return False
        if not self._is_near(found[0], stretch.change):
            self.directions.append(found[0])
            self.changes.append(stretch.change)
            self.places.append(stretch.at)
            self.halves.append(found[2])
            self.rough.append(0 if found[1] else self.s.tries)
        return True

    def _is_confirmed(self, stretch: _Stretch, u: Floats, v: Floats) -> bool:
        """Return whether f changes by as much across the plane at other places; two responses at once have no plane."""
        s, across = self.s, self.s.beyond * stretch.length * float(u @ v)
        e = random_directions(s.places, len(v), self.rng)
        y = stretch.at + s.aside * across * unit(e - (e @ v)[:, None] * v)
        up, down = np.split(self.meter(np.concatenate([y + across * v, y - across * v])), 2)
        off = np.linalg.norm(up - down - stretch.change, axis=1)
        return bool(np.sum(off <= s.agree * np.linalg.norm(stretch.change)) >= s.met)

    def _again(self, k: int, stretch: _Stretch, u: Floats) -> None:
        """Measure a known direction again, where others interfered."""
        if self.rough[k] and stretch.pure:
            self.rough[k] -= 1
            found = self._direction(stretch, u)
            if found is not None and found[1]:
                self.directions[k], self.changes[k], self.rough[k] = found[0], stretch.change, 0
                self.places[k], self.halves[k] = stretch.at, found[2]

    def _direction(self, stretch: _Stretch, u: Floats) -> tuple[Floats, bool, float] | None:
        """Return direction and half width of the response of a stretch, and whether no other interfered with it."""
        s, along = self.s, stretch.change / np.linalg.norm(stretch.change)
        frame = np.linalg.qr(self.rng.standard_normal((len(u), len(u))))[0]
        step = s.step * stretch.length
        for _ in range(s.tries):
            slopes, rest = self._slopes(stretch.at, step * frame, along)
            slopes, rest = slopes / step, rest / step
            g = frame.T @ slopes
            size = float(np.linalg.norm(g))
            if abs(float(g @ u) - stretch.slope) <= s.agree * stretch.slope and rest <= s.agree * size:
                break
            step /= s.shorter
        else:
            return None
        v, half = g / size, 0.5 * float(np.linalg.norm(stretch.change)) / size
        frame = np.linalg.qr(np.column_stack([v, self.rng.standard_normal((len(v), len(v) - 1))]))[0].T[1:]
        tilt, rest = self._slopes(stretch.at, s.longer * step * frame, along)
        tilt, rest = tilt / (s.longer * step * size), rest / (s.longer * step * size)
        if np.linalg.norm(tilt) > s.tilt or rest > s.agree:
            return v, False, half
        return unit(v + tilt @ frame), rest <= s.pure, half

    def _slopes(self, at: Floats, steps: Floats, along: Floats) -> tuple[Floats, float]:
        """Return half the differences of f over steps (k, d) to both sides, along a unit vector; size of the rest."""
        up, down = np.split(self.meter(np.concatenate([at + steps, at - steps])), 2)
        half = 0.5 * (up - down)
        return half @ along, float(np.linalg.norm(half - np.outer(half @ along, along)))

    def _is_near(self, v: Floats, change: Floats) -> bool:
        """Return whether a known response has this direction and about this change."""
        if not self.directions:
            return False
        turned = np.sign(np.array(self.directions) @ v)[:, None] * np.array(self.changes)
        near = np.abs(np.array(self.directions) @ v) >= np.cos(self.s.tilt)
        size = np.linalg.norm(turned, axis=1)
        return bool(np.any(near & (np.linalg.norm(np.abs(turned) - np.abs(change), axis=1) <= self.s.tilt * size)))
