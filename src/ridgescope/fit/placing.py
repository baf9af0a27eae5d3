"""The members of families that are closest to given responses, for many pairs of a family and a response at once.

A pair has two unknowns, κ and b; the factor c of c·φ(κu + b) is projected out. Levenberg–Marquardt steps are taken for
all pairs together, and a pair whose misfit falls no more takes no further ones.

Responses are compared as splines, in an orthonormal basis of their space (`CoarseResponses`, here), or as mean values
in bins (`partial_responses`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import pi

import numpy as np

from ..geometry import Floats
from ..shapes.families import places_of, point_count, sample_points, spline_space
from .activations import ACTIVATIONS, MAX_KAPPA, MIN_KAPPA, ONE_SIDED, Indices, atoms

PAIRS = 128
"""Pairs of a family and a response that are fitted at a time: a quarter of a megabyte an array."""
_ROWS = 64  # atoms that are made at a time, for the same reason
_CUBES = 9  # starting shifts of a cube over [−1, 1]
_PHASES = 4  # starting phases of a sine, over half a period
_NARROW_GAIN = 1.5  # factor of the misfit by which a narrower bend must be better than a wider one to be started from
_FIT_STEPS = 12  # of the fit to coarse responses, which are not worth more digits
_DAMPING, _FALL, _RISE, _MAX_DAMPING = 1e-2, 0.2, 8.0, 1e4
_SLOW = 1e-3  # share of the misfit: a step that gains less is a pair's last
_RIDGE = 1e-12  # of the larger diagonal entry
_TINY = 1e-300  # keeps a quotient of zeros finite
_VISIBLE = 1e-5  # of an atom's norm: what is left of it without its affine part, if it bends; a hundredth does
_MAX_STEP = 0.5  # of κ or of a width, in one step
_MOVES = np.array([form.moves for form in ACTIVATIONS], dtype=np.float64)

Linearised = Callable[[Indices, Floats, Floats], tuple[Floats, Floats, Floats]]
"""Maps pairs (k,) and their κ and b to squared misfits (k,), projected Jacobians (k, 2, D) and residuals (k, D)."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the members of families are that are closest to responses."""

    kappa: Floats
    b: Floats
    misfit: Floats
    """Squared distances from the responses."""


def closest(linearised: Linearised, family: Indices, kappa: Floats, b: Floats, steps: int) -> Placed:
    """Minimise the misfits of pairs with these families (k,) from κ and b (k,) on."""
    kappa, b, damping = kappa.copy(), b.copy(), np.full(len(kappa), _DAMPING)
    left, J, rest = linearised(np.arange(len(kappa)), kappa, b)
    live = np.flatnonzero(_MOVES[family].any(axis=1))
    J, rest = J[live], rest[live]
    for _ in range(steps):
        if not len(live):
            break
        J *= _MOVES[family[live], :, None]
        normal, g = J @ J.transpose(0, 2, 1), (J @ rest[:, :, None])[:, :, 0]
        diagonal = np.einsum("naa->na", normal)
        shift = damping[live, None] * diagonal + _RIDGE * diagonal.max(axis=1, keepdims=True) + _TINY
        step = np.linalg.solve(normal + np.eye(2) * shift[:, :, None], g[:, :, None])[:, :, 0]
        most = _MAX_STEP * np.abs(kappa[live])
        new_kappa = _bounded(kappa[live], kappa[live] + np.clip(step[:, 0], -most, most))
        new_b = b[live] + np.clip(step[:, 1], -_MAX_STEP, _MAX_STEP)
        trial = linearised(live, new_kappa, new_b)
        better, clearly = trial[0] < left[live], trial[0] < (1.0 - _SLOW) * left[live]
        kappa[live], b[live] = np.where(better, new_kappa, kappa[live]), np.where(better, new_b, b[live])
        left[live], damping[live] = (
            np.where(better, trial[0], left[live]),
            damping[live] * np.where(better, _FALL, _RISE),
        )
        J = np.where(better[:, None, None], trial[1], J)
        rest = np.where(better[:, None], trial[2], rest)
        going = clearly | (~better & (damping[live] <= _MAX_DAMPING))
        live, J, rest = live[going], J[going], rest[going]
    return Placed(kappa, b, left)


def _bounded(old: Floats, kappa: Floats) -> Floats:
    """Return κ within its limits, with the sign that it had."""
    return np.asarray(np.sign(old) * np.clip(np.sign(old) * kappa, MIN_KAPPA, MAX_KAPPA))


@dataclass(frozen=True, eq=False)
class CoarseResponses:
    """The leading component of each coarse response, in coordinates of the spline space without affine functions."""

    intervals: int
    points: int
    """Number of points of [−1, 1] at which functions are compared."""
    rows: Floats
    """(n, D)."""

    @classmethod
    def of(cls, values: Floats, intervals: int) -> CoarseResponses:
        """Take the leading component over the outputs of responses (n, M, p) at R·u, u the M `sample_points`."""
        points, space = sample_points(values.shape[1]), spline_space(intervals, values.shape[1])
        inner = np.einsum("nmp,md->ndp", values * points.weight, space)
        vectors = np.linalg.eigh(np.einsum("ndp,nep->nde", inner, inner))
        return cls(
            intervals, len(points.u), np.asarray(np.sqrt(np.maximum(vectors[0][:, -1:], 0.0)) * vectors[1][:, :, -1])
        )

    def start(self, families: Sequence[int], kinks: tuple[Floats, ...] | None = None) -> Placed:
        """Return the closest members of each family, arrays (F, n); `kinks` are positions in u known already."""
        starts = [self._on_grid(k) for k in families]
        shape = len(starts), len(self.rows)
        family, row = np.repeat(np.asarray(families, np.intp), shape[1]), np.tile(np.arange(shape[1]), shape[0])
        kappa, b = (np.concatenate(a) for a in zip(*starts, strict=True))

        def fitted(part: slice) -> Placed:
            own, rows = family[part], row[part]

            def linearised(which: Indices, kappa: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
                return self._linearised(own[which], rows[which], kappa, b)

            return closest(linearised, own, kappa[part], b[part], _FIT_STEPS)

        parts = [fitted(slice(start, start + PAIRS)) for start in range(0, len(family), PAIRS)]
        joined = (np.concatenate([getattr(p, name) for p in parts]) for name in ("kappa", "b", "misfit"))
        found = Placed(*(values.reshape(shape) for values in joined))
        if kinks is not None:
            known = [i for i, t in enumerate(kinks) if len(t)]
            for j in (j for j, k in enumerate(families) if not ACTIVATIONS[k].moves[0]):
                found.b[j, known] = [-found.kappa[j, i] * kinks[i][0] for i in known]
        return found

    def _on_grid(self, family: int) -> tuple[Floats, Floats]:
        """Return κ and b (n,) of the closest members on a grid."""
        kappa, b, grid = _atoms(family, self.intervals, self.points)
        left = np.maximum(np.sum(self.rows**2, axis=1)[:, None] - (self.rows @ grid.T) ** 2, 0.0)
        # Coarse responses do not show how narrow a bend is: start from the widest that is nearly the best.
        enough = left <= _NARROW_GAIN * left.min(axis=1, keepdims=True) + _TINY
        at = np.where(enough, -np.abs(kappa), -np.inf).argmax(axis=1)
        near = enough & (np.abs(kappa) <= np.abs(kappa[at])[:, None])
        at = np.where(near, left, np.inf).argmin(axis=1)
        return kappa[at], b[at]

    def _linearised(self, family: Indices, row: Indices, kappa: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
        points, space = sample_points(self.points), spline_space(self.intervals, self.points)
        value, slope = atoms(family, kappa[:, None] * points.u + b[:, None])
        inner = np.stack([value, slope * points.u, slope], axis=1) @ (space * points.weight)
        own, target = inner[:, 0], self.rows[row]
        size = np.maximum(np.sum(own * own, axis=1), _TINY)
        c = np.sum(own * target, axis=1) / size
        rest = target - c[:, None] * own
        J = inner[:, 1:] * c[:, None, None]
        J -= (J @ own[:, :, None]) * (own / size[:, None])[:, None, :]
        return np.sum(rest * rest, axis=1), J, rest


def starting_places(family: int, count: int) -> tuple[Floats, Floats]:
    """Return κ and b (A,) of a family's grid for responses at that many points."""
    form = ACTIVATIONS[family]
    if form.group == "power":
        b = np.linspace(-1.0, 1.0, _CUBES) if form.moves[1] else np.zeros(1)
        kappa = np.ones(len(b))
    else:
        scale, t, sign = places_of(form.group, count)
        if not form.moves[0]:  # the finest shifts will do
            t = t[scale == scale.max()]
        kappa = sign * scale * form.stretch if form.moves[0] else np.ones(len(t))
        b = -kappa * t if form.moves[1] else np.zeros(len(t))
    if form.group == "sine":
        kappa, b = np.repeat(kappa, _PHASES), np.tile(pi * np.arange(_PHASES) / _PHASES, len(kappa))
    if form.name in ONE_SIDED and form.moves[1]:
        kappa, b = np.concatenate([kappa, -kappa]), np.concatenate([b, b])
    return kappa, b


def single_precision_values(family: int, kappa: Floats, b: Floats, u: Floats) -> Floats:
    """Return φ(κu + b) (A, M) for places (A,), to six digits: faster, and enough for what is only compared."""
    y = np.multiply.outer(kappa, u) + b[:, None]
    return np.asarray(ACTIVATIONS[family].atom(y.astype(np.float32))[0], dtype=np.float64)


@lru_cache(maxsize=128)
def _atoms(family: int, intervals: int, count: int) -> tuple[Floats, Floats, Floats]:
    """Return κ (A,), b (A,) and the normalised atoms (A, D) of a family that coarse responses are compared with."""
    points, space = sample_points(count), spline_space(intervals, count)
    kappa, b = starting_places(family, point_count(intervals))
    inner, size = np.empty((len(kappa), space.shape[1])), np.empty(len(kappa))
    for start in range(0, len(kappa), _ROWS):
        part = slice(start, start + _ROWS)
        whole = single_precision_values(family, kappa[part], b[part], points.u) * points.weight
        inner[part], size[part] = whole @ space, np.linalg.norm(whole, axis=1)
    own = np.linalg.norm(inner, axis=1)
    bends = own > _VISIBLE * size
    return kappa[bends], b[bends], inner[bends] / own[bends, None]
