"""Responses that saturate, measured again where no other one is near.

Once nearly all planes v_j·x = t_j are known, there is no need to take a place as a line happens to show it: of many
points of the plane of response i the one is chosen that lies farthest from all other planes. All but response i are
constant around it, so that

    where           f is halfway between its two values        shows t_i,
    the slope along v_i there                                  shows the half width,
    differences over ±L across v_i, over 2L and that slope,    show by what v_i is off.

Rounding makes errors of the size σ|x|/L in the last of these: |x| is the distance from the centre. Hence the place and
the length L are the ones of greatest L/|x| for which the others are clear. Planes themselves are known first from where
lines have crossed them, to an error that grows with the way from there; so a direction that is rough is measured near
that place before it is followed towards the centre.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..geometry import Floats, random_directions, unit
from .base import Ask

SAMPLES = 256
"""Points of a plane at each distance, from which the clearest is chosen."""
FACTOR = 2.0
"""From one distance to the next."""
NEAREST = 2.0
"""The least of these distances, in radii."""
CLEAR = 8.0
"""Half widths from its plane at which a tanh is constant to 2e-7; half the logarithm of its strength adds to it."""
SPREAD = 4.0
"""Deviations of the steps that a direction is off by, or has along another one."""
REACHED = 0.25
"""Half widths by which steps across may move response i, as far as its direction is known."""
STRAIGHT, CURVED = 0.05, 0.3
"""Share of the change that such a step may show in the end, and share from which on a shorter one is needed: a tanh
departs from its tangent by 1e-3 and 3e-2 of that."""
SHORTER, PASSES = 8.0, 8
"""Factor between the lengths of steps, and lengths that are tried at one place."""
MEASURED = 1e-4
"""Radians by which measured directions are off at most. Empirical: 5e-5 in single precision."""
LONGEST = 1e3
"""Half widths that steps across have at most."""
WAYS = (4.0, 16.0, 64.0, 256.0, 1024.0)
"""Half widths, times √d, from the place on a line to points of the plane that are looked at first."""
SLOPE_STEP = 0.1
"""Half widths of the step along v_i, which biases the slope of a tanh by 3e-3."""
BEYOND = 6.0
"""Half widths from its plane at which response i is taken for constant, when it is crossed."""
HALVINGS, MIDDLE = 40, 2e-3
"""Times a crossing is halved at most, and the share of the change by which it may miss the middle."""
AGREE, PURE = 0.1, 0.02
"""Relative difference of the change from the one that is known; share of the differences that may not be along it."""
ROUNDS, ROUGHER, ROUGHEST = 4, 4.0, 0.3
"""Of measurements; what is not seen in the last is left to the fit. Factor by which a direction that was not seen where
it should be may be further off than was thought, in the next round, and radians up to which."""
TRIES = 4
"""Places that are tried for each response and round."""
SETTLED = 3e-3
"""Radians below which the errors of directions are taken for the usual ones."""


@dataclass(eq=False)
class Responses:
    """What is known of n responses, one row each."""

    directions: Floats
    """(n, d) unit rows."""
    changes: Floats
    """(n, p) of f across each plane, along the direction."""
    places: Floats
    """(n, d) a point of each plane."""
    halves: Floats
    """(n,) half widths: half the change over the slope."""
    errors: Floats
    """(n,) radians, about, by which directions are off."""

    @property
    def offsets(self) -> Floats:
        """(n,) t of the planes v·x = t."""
        return np.asarray(np.einsum("nd,nd->n", self.directions, self.places))

    def is_explained(self, i: int) -> bool:
        """Return whether one or two of the responses that were measured rise where response i was seen, by as much."""
        away = np.abs(self.directions @ self.places[i] - self.offsets)
        there = np.flatnonzero((away <= CLEAR * self.halves) & (self.errors <= MEASURED))
        rises = np.sign(self.directions[there] @ self.directions[i])[:, None] * self.changes[there]
        sums = np.concatenate([rises, (rises[:, None] + rises)[np.triu_indices(len(rises), 1)]])
        off = np.linalg.norm(sums - self.changes[i], axis=1)
        return bool(np.any(off <= AGREE * np.linalg.norm(self.changes[i])))

    def may_be(self, i: int) -> Floats:
        """Return (n,) whether responses are response i itself seen twice, as far as directions are known."""
        sign = np.sign(self.directions @ self.directions[i])[:, None]
        off = np.linalg.norm(self.directions - sign * self.directions[i], axis=1)
        change = np.linalg.norm(self.changes - sign * self.changes[i], axis=1)
        rough = (self.errors > SETTLED) & (self.errors[i] > SETTLED)
        alike = change <= AGREE * np.linalg.norm(self.changes[i])
        return np.asarray(rough & alike & (off <= self.errors + self.errors[i]))


@dataclass(frozen=True, eq=False)
class _Place:
    """A point near the plane of a response around which all others are constant."""

    at: Floats
    room: float
    """By how much the plane may be elsewhere, along the direction."""
    length: float
    """Of steps across, for which the others still are constant."""


@dataclass(eq=False)
class ClearPlaces:
    """Measures responses again; see the module."""

    ask: Ask
    known: Responses
    radius: float
    farthest: float
    """Distance from the centre at which places are looked for at most."""
    rng: np.random.Generator

    def measure(self) -> None:
        """Measure all directions, first those that are rough near the places where lines have shown them.

        What was not seen is looked at once more when the planes of the others are known well.
        """
        known, left = self.known, np.arange(len(self.known.directions))
        for _ in range(ROUNDS):
            for i in left[known.errors[left] > SETTLED]:
                self._first_of(int(i), self._near(int(i)))
            points = self._everywhere()
            left = np.array([i for i in left if not self._first_of(int(i), self._on_plane(int(i), points))], np.intp)
            known.errors[left] = np.clip(ROUGHER * known.errors[left], 0.0, ROUGHEST)

    def _near(self, i: int) -> Floats:
        """Return points of the plane of response i around where a line has crossed it."""
        d = self.known.directions.shape[1]
        ways = np.sqrt(d) * np.repeat(WAYS, SAMPLES // len(WAYS))[:, None] * self.known.halves[i]
        return self._on_plane(i, self.known.places[i] + ways * self._directions(len(ways)))

    def _everywhere(self) -> Floats:
        """Return points at all distances from the centre."""
        count = 1 + int(np.log(max(self.farthest / (NEAREST * self.radius), 1.0)) / np.log(FACTOR))
        distances = NEAREST * self.radius * FACTOR ** np.repeat(np.arange(count), SAMPLES)
        return np.asarray(distances[:, None] * self._directions(len(distances)))

    def _directions(self, count: int) -> Floats:
        return random_directions(count, self.known.directions.shape[1], self.rng)

    def _on_plane(self, i: int, points: Floats) -> Floats:
        """Return points (m, d) shifted along direction i onto its plane."""
        v, t = self.known.directions[i], float(self.known.directions[i] @ self.known.places[i])
        return np.asarray(points - (points @ v - t)[:, None] * v)

    def _first_of(self, i: int, points: Floats) -> bool:
        """Measure response i at the best of points (m, d) at which it is seen alone; return whether there is one."""
        return any(self._measured(i, place) for place in self._clearest(i, points))

    def _clearest(self, i: int, points: Floats) -> list[_Place]:
        """Return the places with the longest steps across over their distances, the best first."""
        known, d = self.known, points.shape[1]
        v, half = known.directions[i], known.halves[i]
        way = np.linalg.norm(points - known.places[i], axis=1)
        room = SPREAD * known.errors[i] * way / np.sqrt(d) + BEYOND * half
        along = np.abs(known.directions @ v)
        strength = np.linalg.norm(known.changes, axis=1)
        flat = CLEAR + 0.5 * np.log(np.maximum(strength / strength[i], 1.0))
        away = np.abs(points @ known.directions.T - known.offsets) - flat * known.halves - room[:, None] * along
        away[:, known.may_be(i)] = np.inf
        away[:, i] = np.inf
        length = np.sqrt(d) / SPREAD * away.min(axis=1)
        length = np.minimum(length, half * min(LONGEST, REACHED * np.sqrt(d) / (SPREAD * known.errors[i])))
        order = np.argsort(-length / (self.radius + np.linalg.norm(points, axis=1)))[:TRIES]
        return [_Place(points[k], float(room[k]), float(length[k])) for k in order if length[k] > 0.5 * half]

    def _measured(self, i: int, place: _Place) -> bool:
        """Measure response i there; return whether it was seen, and no other one."""
        known, v, half = self.known, self.known.directions[i], float(self.known.halves[i])
        found = self._middle(place, v, known.changes[i], half)
        if found is None:
            return False
        (at, change), length = found, place.length
        size = float(np.linalg.norm(change))
        for _ in range(PASSES):
            slope = self._slope(at, v, change, SLOPE_STEP * half)
            if not slope > 0.0:
                return False
            frame = np.linalg.qr(np.column_stack([v, self.rng.standard_normal((len(v), len(v) - 1))]))[0].T[1:]
            up, down = np.split(self.ask(np.concatenate([at + length * frame, at - length * frame])), 2)
            moved = (up - down) @ change / size**2
            rest = float(np.linalg.norm(up - down - moved[:, None] * change))
            if not rest <= PURE * size * max(float(np.linalg.norm(moved)), 1.0):
                return False
            most = float(np.abs(moved).max())
            if most > CURVED:
                length /= SHORTER
                continue
            v = unit(v + (0.5 * size / (length * slope) * moved) @ frame)
            if most <= STRAIGHT and length == place.length:
                known.directions[i], known.changes[i], known.places[i] = v, change, at
                known.halves[i], known.errors[i] = 0.5 * size / slope, MEASURED
                return True
            length = min(length * SHORTER / 2.0, place.length) if most <= STRAIGHT else length
        return False

    def _slope(self, at: Floats, v: Floats, change: Floats, step: float) -> float:
        """Return the slope of f along v there, along its change."""
        up, down = self.ask(np.stack([at + step * v, at - step * v]))
        return float((up - down) @ change) / (2.0 * step * float(np.linalg.norm(change)))

    def _middle(self, place: _Place, v: Floats, change: Floats, half: float) -> tuple[Floats, Floats] | None:
        """Return where f is halfway between its values to both sides, and their difference (p,); None if it is not."""
        low, high = -place.room, place.room
        ends = self.ask(place.at + np.array([[low], [high]]) * v)
        seen = ends[1] - ends[0]
        size = float(np.linalg.norm(change))
        if not float(np.linalg.norm(seen - change)) <= AGREE * size:
            return None
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            part = float((self.ask((place.at + middle * v)[None])[0] - ends[0]) @ seen) / float(seen @ seen)
            if abs(part - 0.5) <= MIDDLE:
                break
            low, high = (middle, high) if part < 0.5 else (low, middle)
        return place.at + middle * v, seen
