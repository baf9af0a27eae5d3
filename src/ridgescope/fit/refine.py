"""Where does the residual still have structure along a feature, and what would explain it: finer knots or kinks?

With the other features held fixed, what is left of f along feature i is a cloud of points (z_i, r). Two extensions of
the response are tried on it by plain one-dimensional least squares and compared by the Bayesian information criterion

    m·log(RSS) + (parameters)·log m

twice the knots, or the present knots with up to a few atoms |z − t| placed one after the other where they explain most
(only where they explain more than knots four times as fine would: else the response is smooth and merely steep).
Nothing is done where neither beats the response as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ..geometry import Floats
from ..response import basis
from .model import Model

MOST_INTERVALS = 512


@dataclass(frozen=True, eq=False)
class Extension:
    """A better shape for one feature."""

    feature: int
    intervals: int
    kinks: Floats
    gain: float
    """Share of the residual sum of squares that it explains."""


def extensions(model: Model, X: Floats, residual: Floats, *, most_kinks: int = 6) -> list[Extension]:
    """The best extension of each feature that has one, largest gain first."""
    found = []
    Z = X @ model.directions.T
    total = float(np.sum(residual**2))
    for i in range(model.count):
        better = _best(model, i, Z[:, i], residual, total, most_kinks)
        if better is not None:
            found.append(better)
    return sorted(found, key=lambda e: -e.gain)


def apply(model: Model, chosen: list[Extension]) -> Model:
    """The model with these extensions; its coefficients must be solved anew."""
    intervals, kinks = model.intervals.copy(), list(model.kinks)
    for e in chosen:
        intervals[e.feature], kinks[e.feature] = e.intervals, e.kinks
    return model.reshaped(intervals, tuple(kinks))


def _best(model: Model, i: int, z: Floats, r: Floats, total: float, most_kinks: int) -> Extension | None:
    K, kinks, p, m = int(model.intervals[i]), model.kinks[i], r.shape[1], r.size

    def score(gain: float, parameters: int) -> float:
        return float(m * np.log(max(total - gain, 1e-300) / max(total, 1e-300)) + parameters * np.log(m))

    here = score(_gain(_columns(z, model.radius, K, kinks), r), 0)
    places, kinked = _place_kinks(model.radius, z, r, K, kinks, total, most_kinks)
    finer = [(f * K, _gain(_columns(z, model.radius, f * K, kinks), r)) for f in (2, 4)]

    def earned(gain: float, parameters: int) -> float:  # what so many columns would explain by chance is taken off
        return gain - parameters * (total - gain) / len(z)

    best_finer = max((earned(gain, p * (f - K)) for f, gain in finer), default=0.0)
    # A true kink beats even knots four times as fine; on a smooth response it does not come near them.
    if (
        len(places)
        and earned(kinked, (p + 1) * len(places)) >= best_finer
        and score(kinked, (p + 1) * len(places)) < here
    ):
        return Extension(i, K, np.sort(np.concatenate([kinks, places])), kinked / total)
    if 2 * K <= MOST_INTERVALS and score(finer[0][1], K * p) < here:
        return Extension(i, 2 * K, kinks, finer[0][1] / total)
    return None


def _columns(z: Floats, radius: float, intervals: int, kinks: Floats) -> Floats:
    k, weights = basis(z, radius, intervals)
    design = np.zeros((len(z), intervals + 3 + len(kinks)))
    rows = np.arange(len(z))
    for j in range(4):
        design[rows, k + j] = weights[j]
    if len(kinks):
        design[:, intervals + 3 :] = np.abs(z[:, None] - kinks)
    return design


def _factor(design: Floats) -> Floats:
    gram = design.T @ design
    gram[np.diag_indices_from(gram)] += 1e-10 * len(design) / len(gram)
    return np.asarray(cho_factor(gram, lower=True)[0])


def _gain(design: Floats, r: Floats) -> float:
    """Sum of squares of r explained by the columns of the design."""
    right = design.T @ r
    return float(np.sum(right * cho_solve((_factor(design), True), right)))


def _place_kinks(
    radius: float, z: Floats, r: Floats, K: int, kinks: Floats, total: float, most: int
) -> tuple[Floats, float]:
    """Atoms chosen greedily, each against the response as extended so far; (places, gain).

    A place is looked for on a grid and then again on one sixteen times finer: a kink put slightly wrong leaves a
    residual that asks for more kinks.
    """
    cell = radius / (4.0 * K)  # an eighth of an interval
    grid = np.arange(-radius + 4 * cell, radius - 3.5 * cell, cell)
    chosen: list[float] = []
    explained = 0.0
    for _ in range(most):
        design = _columns(z, radius, K, np.concatenate([kinks, chosen]))
        factor = np.tril(_factor(design))
        half_r = solve_triangular(factor, design.T @ r, lower=True)
        own = float(np.sum(half_r**2))
        taken = np.array([*kinks, *chosen])
        best, _ = _best_place(grid, z, r, design, factor, half_r, taken, 2 * cell)
        fine = best + cell * np.linspace(-1.0, 1.0, 33)
        best, gain = _best_place(fine, z, r, design, factor, half_r, taken, 2 * cell)
        before = total - max(explained, own)
        now = own + gain
        if r.size * np.log(max(total - now, 1e-300) / max(before, 1e-300)) + (r.shape[1] + 1) * np.log(r.size) >= 0:
            break
        chosen.append(best)
        explained = now
    return np.array(chosen), explained


def _best_place(
    grid: Floats, z: Floats, r: Floats, design: Floats, factor: Floats, half_r: Floats, taken: Floats, apart: float
) -> tuple[float, float]:
    """The place on the grid whose atom explains most of r beyond the design, and how much."""
    atoms = np.abs(z[:, None] - grid)
    half_a = solve_triangular(factor, design.T @ atoms, lower=True)
    left = np.maximum(np.einsum("mg,mg->g", atoms, atoms) - np.einsum("kg,kg->g", half_a, half_a), 1e-12 * len(z))
    gains = np.sum((atoms.T @ r - half_a.T @ half_r) ** 2, axis=1) / left
    for t in taken:  # closer ones would be one kink in two columns
        gains[np.abs(grid - t) < apart] = 0.0
    best = int(np.argmax(gains))
    return float(grid[best]), float(gains[best])
