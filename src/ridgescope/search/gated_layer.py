"""Carriers, outputs and signs of ReGLU units whose gates are known up to sign, with how f changes across them.

With y_k = v_k·x − t_k and relu(σy) = (|y| + σy)/2 a layer of units is

    f(x) = a + A x + Σ_k relu(σ_k y_k)(w_k·x + c_k) o_k = ½ Σ_k |y_k|(w_k·x + c_k) o_k + Q(x),

with a quadratic polynomial Q. The changes (c_k, w_k) o_kᵀ are known (`gated_planes`), but for w_k·v_k, of which errors
of v have spoilt most. So the unknowns on the right are n vectors, beside ½|y_k|y_k, and the coefficients of Q, all of
them linear, and independent, so that the solution is unique. Changes must have rank one. A unit without a part of w
across v is a plain one. The terms of Q of degree two are then

    Q₂ = ½ Σ_k σ_k sym(v_k w_kᵀ) o_k,

linear in the signs: where n ≤ p·d(d + 1)/2 in general position, least squares gives them, and σ = ±1 is a test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..geometry import Floats, in_ball, random_directions
from .base import INSIDE, GatedCandidates
from .gated import in_gauge
from .gated_planes import Hyperplane

_EXPLAINED = 1e-7  # RMS of what a layer leaves at points that it was not solved for, in standard deviations of f
_SHARE = 0.1  # of the largest error of changes, which the mean over points does not reach
_RANK_ONE = 1e-5  # second over first singular value of (c, w) oᵀ, where two units would have one gate
_NOTHING = 1e-7  # share of the largest unit below which a hyperplane has none
_PLAIN = 1e-6  # share of (c, w) that a part of w must have, for a unit to be gated, or to be more than a plain ReLU
_SIGN = 0.1  # largest deviation of a sign from ±1
_LEFT = 1e-5  # share of Q₂ that signs may leave
_WORST = 4  # points at which a layer is most wrong
_CHECKS, _SPARE = 0.15, 30  # points that test the solution, per unknown, and more
_DEPENDENT = 1e-11  # singular values of columns of length one below which they are dependent


@dataclass(frozen=True, eq=False)
class Layer:
    """What the linear unknowns show."""

    candidates: GatedCandidates | None
    """The units, gates with their signs; None where f is no such layer as far as the hyperplanes are known."""
    note: str
    """Why there are none, or what was found."""
    explained: bool = False
    """Whether hyperplanes and quadratic terms explain f, so that further hyperplanes would not help."""
    worst: Floats | None = None
    """Points at which the layer is most wrong, where it does not explain f: they lie beyond missing hyperplanes."""


def unknowns(count: int, dim: int) -> int:
    """Return the number of linear unknowns for so many hyperplanes."""
    return count + (dim + 1) * (dim + 2) // 2


def points_for(count: int, dim: int) -> int:
    """Return the number of points that determine and test a layer of so many hyperplanes."""
    return int((1.0 + _CHECKS) * unknowns(count, dim)) + _SPARE


def layer_points(planes: list[Hyperplane], radius: float, dim: int, count: int, rng: np.random.Generator) -> Floats:
    """Return (count, d) points of the ball, half of them spread evenly along the normals of the hyperplanes in turn."""
    along = -(-count // 2)
    v = np.stack([planes[i % len(planes)].v for i in range(along)])
    z = radius * rng.uniform(-1.0, 1.0, along)[:, None]
    w = random_directions(along, dim, rng)
    w = w - np.einsum("kd,kd->k", w, v)[:, None] * v
    w /= np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-300)
    inner = w * np.sqrt(radius**2 - z**2) * rng.random((along, 1)) ** (1.0 / max(dim - 1, 1))
    return np.asarray(
        rng.permutation(np.concatenate([z * v + inner, in_ball(count - along, dim, radius, rng)])) * INSIDE
    )


def solve_layer(planes: list[Hyperplane], radius: float, X: Floats, Y: Floats, std: float, error: float = 0.0) -> Layer:
    """Return the units on these hyperplanes, from Y (m, p) at X (m, d); changes may be off by the share `error`."""
    good = np.isfinite(Y).all(axis=1)
    X, Y = X[good], Y[good]
    d, n = X.shape[1], len(planes)
    v, t = np.stack([plane.v for plane in planes]), np.array([plane.t for plane in planes])
    rows, columns = np.triu_indices(d)
    flat = np.concatenate([np.ones((len(X), 1)), X / radius], axis=1)
    y = X @ v.T - t
    known = np.stack([plane.change for plane in planes])
    left_over = Y - 0.5 * np.einsum("mn,nmp->mp", np.abs(y), known[:, :1] + X @ known[:, 1:])
    design = np.concatenate([0.5 * np.abs(y) * y, flat, X[:, rows] * X[:, columns] / radius**2], axis=1)
    train = len(X) - int(_CHECKS * unknowns(n, d)) - _SPARE // 2
    if train < design.shape[1]:
        return Layer(None, "too few answers to solve for carriers")
    size = np.linalg.norm(design[:train], axis=0)
    solution, _, rank, _ = np.linalg.lstsq(design[:train] / size, left_over[:train], rcond=_DEPENDENT)
    solution = solution / size[:, None]
    wrong = np.linalg.norm(left_over - design @ solution, axis=1)
    left = float(np.sqrt(np.mean(wrong[train:] ** 2) / Y.shape[1]))
    if not left <= max(_EXPLAINED, _SHARE * error) * std:
        worst = X[np.argsort(-wrong, kind="stable")[:_WORST]]
        return Layer(None, f"{n} hyperplanes leave {left / std:.0e} of f", worst=worst)
    if rank < design.shape[1]:
        return Layer(None, f"carriers on {n} hyperplanes are not determined", explained=True)
    blocks = known.copy()
    blocks[:, 1:] += v[:, :, None] * solution[:n, None, :]
    blocks[:, 0] -= t[:, None] * solution[:n]
    return _units(v, t, radius, blocks, solution[n + d + 1 :] / radius**2, error)


def _units(v: Floats, t: Floats, radius: float, blocks: Floats, quadratic: Floats, error: float) -> Layer:
    """Return the layer of blocks (c, w) oᵀ (n, d+1, p), given the quadratic terms (D, p) of f beside ½|y|(w·x + c)."""
    weight = np.concatenate([[1.0], np.full(v.shape[1], radius)])
    left, size, right = np.linalg.svd(blocks * weight[:, None], full_matrices=False)
    there = size[:, 0] > max(_NOTHING, error) * size[:, 0].max()
    if size.shape[1] > 1 and (size[there, 1] > max(_RANK_ONE, error) * size[there, 0]).any():
        return Layer(None, "several units have one gate", explained=True)
    v, t, size = v[there], t[there], size[there, 0]
    carrier, o = left[there, :, 0] / weight, size[:, None] * right[there, 0]
    w = carrier[:, 1:].copy()
    along = np.einsum("kd,kd->k", w, v)[:, None] * v
    gated = np.linalg.norm(w - along, axis=1) * radius > max(_PLAIN, error)
    if (np.linalg.norm(along, axis=1)[~gated] * radius > max(_PLAIN, error)).any():
        return Layer(None, "some responses are quadratic beyond their kink", explained=True)
    w[~gated] = 0.0
    signs = _signs(v, w, o, quadratic, gated, max(_LEFT, error))
    if signs is None:
        return Layer(None, f"{len(v)} gates, whose signs quadratic terms do not show", explained=True)
    v, t = v * signs[:, None], t * signs
    units = in_gauge(v, w)
    none = np.zeros((0, o.shape[1], len(v)))
    candidates = GatedCandidates(units.directions, units.carriers, np.zeros((0, v.shape[1])), none, kinks=t)
    plain = len(v) - int(gated.sum())
    return Layer(candidates, f"{int(gated.sum())} ReLU gates and {plain} plain kinks", explained=True)


def _signs(v: Floats, w: Floats, o: Floats, quadratic: Floats, gated: np.ndarray, least: float) -> Floats | None:
    """Return the signs ±1 of all gates, that of plain kinks being a convention; None if they are not determined."""
    signs = np.ones(len(v))
    rows, columns = np.triu_indices(v.shape[1])
    g = np.flatnonzero(gated)
    product = v[g, :, None] * w[g, None, :]
    forms = 0.5 * (product + product.transpose(0, 2, 1))[:, rows, columns] * np.where(rows == columns, 1.0, 2.0)
    design = 0.5 * (forms[:, :, None] * o[g, None, :]).reshape(len(g), -1).T
    target = quadratic.reshape(-1)
    whole = float(np.linalg.norm(design, axis=0).sum())
    if len(g):
        size = np.linalg.norm(design, axis=0)
        solution, _, rank, _ = np.linalg.lstsq(design / size, target, rcond=least)
        solution = solution / size
        if rank < len(g) or np.abs(np.abs(solution) - 1.0).max() > _SIGN:
            return None
        signs[g] = np.sign(solution)
        target = target - design @ signs[g]
    whole = max(whole, float(np.linalg.norm(o)))
    return signs if np.linalg.norm(target) <= least * whole else None
