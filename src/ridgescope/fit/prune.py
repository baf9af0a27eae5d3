"""Which features pay? Removal costs, duplicates, and the trial that decides.

If feature i is dropped and the other coefficients are solved anew (directions kept), the sum of squares rises by

    Σ_q c_iqᵀ [((ΦᵀΦ+μ)⁻¹)_ii]⁻¹ c_iq

so one factorisation prices every removal. A proposal to drop is only a proposal: the smaller model is refitted,
directions included, and kept when held-out points do not get worse by more than their own uncertainty allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ..geometry import Floats
from .solve import Linear


def removal_costs(linear: Linear) -> Floats:
    """(n,) rise of the sum of squares if the feature were dropped and the other coefficients solved anew."""
    model = linear.model
    offsets = model.offsets
    if linear.factor is None:
        raise ValueError("removal costs need the factor")
    inverse_half = solve_triangular(linear.factor, np.eye(len(linear.factor)), lower=True)
    costs = np.empty(model.count)
    for i in range(model.count):
        half = inverse_half[:, offsets[i] : offsets[i + 1]]
        block = half.T @ half
        c = model.block(i)
        costs[i] = float(np.sum(c * np.linalg.solve(block + 1e-15 * np.trace(block) * np.eye(len(block)), c)))
    return costs


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
