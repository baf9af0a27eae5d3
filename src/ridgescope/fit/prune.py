"""Which features pay? Removal costs, duplicates, and the trial that decides.

If feature i is dropped and the other coefficients are solved anew (directions kept), the sum of squares rises by

    Σ_q c_iqᵀ [((ΦᵀΦ+μ)⁻¹)_ii]⁻¹ c_iq

so one factorisation prices every removal. A proposal to drop is only a proposal: the smaller model is refitted,
directions included, and kept when held-out points do not get worse by more than their own uncertainty allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from . import threads
from .linear import WIDE, Linear, solve_linear


@threads.one_blas_thread()
def removal_costs(linear: Linear, X: Floats, Y: Floats, smooth: float) -> Floats:
    """(n,) rise of the sum of squares if the feature were dropped and the other coefficients solved anew.

    Where the full matrix is too large to factorise, an upper bound: the others stay as they are, but
    for the affine part.
    """
    model = linear.model
    if model.columns > WIDE:
        return np.array([_bend_of(linear, i, X) for i in range(model.count)])
    factor = linear.factor if linear.factor is not None else solve_linear(model, X, Y, smooth).factor
    assert factor is not None
    inverse_half = threads.solve_lower(factor, np.eye(len(factor)))
    costs = np.empty(model.count)
    for i in range(model.count):
        half = inverse_half[:, model.offsets[i] : model.offsets[i + 1]]
        block = half.T @ half
        c = model.block(i)
        costs[i] = float(np.sum(c * np.linalg.solve(block + 1e-15 * np.trace(block) * np.eye(len(block)), c)))
    return costs


@threads.one_blas_thread()
def kink_costs(linear: Linear) -> list[Floats]:
    """For each feature, the rise of the sum of squares if one kink were dropped and all coefficients solved anew."""
    model = linear.model
    if linear.factor is None:
        return [np.full(len(t), np.inf) for t in model.kinks]
    inverse_half = threads.solve_lower(linear.factor, np.eye(len(linear.factor)))
    costs = []
    for i, t in enumerate(model.kinks):
        at = slice(model.offsets[i] + model.intervals[i] + 3, model.offsets[i + 1])
        variance = np.einsum("kj,kj->j", inverse_half[:, at], inverse_half[:, at])
        costs.append(
            np.sum(model.coefficients[at] ** 2, axis=1) / np.maximum(variance, 1e-300) if len(t) else np.empty(0)
        )
    return costs


def _bend_of(linear: Linear, i: int, X: Floats) -> float:
    """Sum of squares of feature i over the points, its best straight line taken out."""
    z = X @ linear.model.directions[i]
    values = linear.model.term(i, z)
    line = np.stack([np.ones_like(z), z], axis=1)
    return float(np.sum((values - line @ np.linalg.lstsq(line, values, rcond=None)[0]) ** 2))


def twins(directions: Floats, angle: float) -> list[tuple[int, int]]:
    """Pairs closer than `angle`, closest first."""
    closeness = np.abs(directions @ directions.T)
    i, j = np.nonzero(np.triu(closeness > np.cos(angle), 1))
    order = np.argsort(-closeness[i, j])
    return [(int(a), int(b)) for a, b in zip(i[order], j[order], strict=True)]


def cheap(costs: Floats, cost: float, share: float) -> NDArray[np.intp]:
    """The cheapest features whose removals together raise the cost by at most `share` of it."""
    order = np.argsort(costs)
    return np.asarray(order[np.cumsum(costs[order]) <= share * cost], dtype=np.intp)
