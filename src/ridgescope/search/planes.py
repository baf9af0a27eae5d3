"""From one point of a kink's plane to the plane itself.

A response with slope jump a at t makes f break across the plane v·x = t. Three measurements, each by values alone:

`gradients`  the gradient jumps by a vᵀ across the plane: d+1 answers on either side give v.
`confirm`    at another point y of the plane, f(y+sv) − 2f(y) + f(y−sv) = s·a + O(s²): three answers show that the plane
             goes on where it should.
`walk`       along v the kink stands at τ = −gap/jump of the two tangents through y ± s v, y ± 2s v; by symmetry the
             curvature of everything else drops out of the gap and leaves O(s³). A plane through d such points a
             lever L apart has v to within (error of τ)/L: neither the curvature of the rest nor, with noise, a
             small difference quotient limits it, as they do the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_directions, unit
from .lines import Answer, Line


@dataclass(eq=False)
class Planes:
    """The kinks known so far: slope jump a_k across v_k·x = t_k for one who crosses along v_k."""

    v: Floats
    t: Floats
    a: Floats
    sure: NDArray[np.bool_]
    """Seen at more than one place."""

    @classmethod
    def none(cls, dim: int, outputs: int) -> Planes:
        return cls(np.empty((0, dim)), np.empty(0), np.empty((0, outputs)), np.empty(0, dtype=bool))

    def __len__(self) -> int:
        return len(self.t)

    def add(self, v: Floats, t: float, a: Floats, sure: bool) -> None:
        self.v = np.vstack([self.v, v])
        self.t = np.append(self.t, t)
        self.a = np.vstack([self.a, a])
        self.sure = np.append(self.sure, sure)

    def value(self, x: Floats) -> Floats:
        """Σ_k a_k max(v_k·x − t_k, 0) over the sure ones: what is left of f has those kinks no more."""
        k = self.sure
        return np.asarray(np.maximum(x @ self.v[k].T - self.t[k], 0.0) @ self.a[k])

    def crossed_by(self, line: Line) -> NDArray[np.bool_]:
        low = self.v @ line.at(line.low) - self.t
        high = self.v @ line.at(line.high) - self.t
        return np.asarray(low * high < 0)


def gradients(answer: Answer, x: Floats, steps: Floats) -> Floats:
    """(k, d, p) forward differences at k points, each coordinate stepped towards zero: never out of the ball."""
    k, d = x.shape
    signed = np.where(x > 0, -1.0, 1.0) * steps[:, None]
    moved = np.repeat(x[:, None], d + 1, axis=1)
    moved[:, np.arange(d) + 1, np.arange(d)] += signed
    values = answer(moved.reshape(-1, d)).reshape(k, d + 1, -1)
    return np.asarray((values[:, 1:] - values[:, :1]) / signed[:, :, None])


def rank_one(jump: Floats, along: Floats, seen: Floats) -> tuple[Floats, Floats] | None:
    """v and a of a gradient jump J = v aᵀ (d, p) met going `along`.

    None unless J has rank one and Jᵀ·along is the slope jump seen on the line: a step that crossed another plane, or
    a bend that was two, fails here.
    """
    if not np.isfinite(jump).all():
        return None
    left, size, right = np.linalg.svd(jump, full_matrices=False)
    if size[0] == 0.0 or (len(size) > 1 and size[1] > 0.05 * size[0]):
        return None
    if np.linalg.norm(jump.T @ along - seen) > 0.2 * np.linalg.norm(seen) + 1e-3 * size[0]:
        return None
    sign = 1.0 if left[:, 0] @ along > 0 else -1.0  # so that a is the jump for one who crosses along v
    return sign * left[:, 0], sign * size[0] * right[0]


def confirm(
    answer: Answer, v: Floats, t: float, a: Floats, radius: float, step: float, rng: np.random.Generator
) -> bool:
    """Whether two of three other points of the plane, within `radius`, show the same jump."""
    y = _on_plane(v, t, radius - 2.0 * step, 3, rng)
    x = np.stack([y - step * v, y, y + step * v], axis=1)
    values = answer(x.reshape(-1, len(v))).reshape(3, 3, -1)
    off = np.linalg.norm(np.diff(values, 2, axis=1)[:, 0] / step - a, axis=1)
    return bool(np.sum(off < 0.3 * np.linalg.norm(a)) >= 2)


def _on_plane(v: Floats, t: float, radius: float, count: int, rng: np.random.Generator) -> Floats:
    """Random points with v·x = t in the ball."""
    w = random_directions(count, len(v), rng)
    w = w - np.multiply.outer(w @ v, v)
    room = np.sqrt(max(radius**2 - t**2, 0.0))
    return np.asarray(t * v + w * (room * rng.random((count, 1))))


def locate(answer: Answer, y: Floats, v: Floats, size: float) -> tuple[Floats, Floats]:
    """τ (m,) and slope jump (m, p) of the kink next to each y, along v; |τ| ≤ size where it can be trusted."""
    offsets = size * np.array([-2.0, -1.0, 1.0, 2.0])
    g = answer((y[:, None] + offsets[:, None] * v).reshape(-1, len(v))).reshape(len(y), 4, -1)
    gap = (2.0 * g[:, 2] - g[:, 3]) - (2.0 * g[:, 1] - g[:, 0])
    jump = (g[:, 3] - g[:, 2] - g[:, 1] + g[:, 0]) / size
    power = np.maximum(np.einsum("mp,mp->m", jump, jump), np.finfo(float).tiny)
    return -np.einsum("mp,mp->m", gap, jump) / power, jump


@dataclass(frozen=True)
class Stride:
    """How far to walk and how wide to look there."""

    lever: float
    size: float


def walk(
    answer: Answer, x: Floats, v: Floats, a: Floats, radius: float, stride: Stride
) -> tuple[Floats, float, float] | None:
    """v and t refitted to points of the plane around its point x, and the share of places where it was met.

    None where there is no room to walk.
    """
    room = radius - 2.0 * stride.size
    base = _inwards(answer, x, v, a, room, stride)
    if base is None:
        return None
    across = np.linalg.qr(np.column_stack([v, np.eye(len(v))]))[0][:, 1 : len(v)].T
    towards = across * np.where(across @ base > 0, -1.0, 1.0)[:, None]
    levers = np.minimum(stride.lever, _room(base, towards, room))
    y = base + levers[:, None] * towards
    tau, met = _met(answer, y, v, a, stride.size)
    if not met.any():
        return v, float(v @ base), 0.0
    rows = (y + tau[:, None] * v)[met] - base
    c = np.linalg.lstsq(rows @ across.T, -(rows @ v), rcond=1e-3)[0]
    w = unit(v + c @ across)
    points = np.vstack([rows + base, base])
    return w, float(np.mean(points @ w)), float(np.mean(met))


def _met(answer: Answer, y: Floats, v: Floats, a: Floats, size: float) -> tuple[Floats, NDArray[np.bool_]]:
    tau, jump = locate(answer, y, v, size)
    same = np.linalg.norm(jump - a, axis=1) < 0.5 * np.linalg.norm(a)
    return tau, same & (np.abs(tau) <= size)


def _inwards(answer: Answer, x: Floats, v: Floats, a: Floats, room: float, stride: Stride) -> Floats | None:
    """A point of the plane with room around it: x, or one between x and the plane's point nearest the centre."""
    foot = (x @ v) * v
    for part in (1.0, 0.5, 0.25):
        y = foot + part * (x - foot)
        if np.linalg.norm(y) ** 2 + stride.lever**2 <= room**2 or part == 0.25:
            tau, met = _met(answer, y[None], v, a, stride.size)
            return np.asarray(y + tau[0] * v) if met[0] and np.linalg.norm(y) < room else None
    return None


def _room(base: Floats, towards: Floats, radius: float) -> Floats:
    """How far one may go from base along each direction inside the ball."""
    b = towards @ base
    return np.asarray(-b + np.sqrt(np.maximum(b**2 + radius**2 - base @ base, 0.0)))
