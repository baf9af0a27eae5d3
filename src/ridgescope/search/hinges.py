"""Where f bends along a line, under noise.

Differences magnify noise. Instead, least squares: on a window of 2m points of one grid fit

    g(t) ≈ Σ_{k≤4} c_k t^k + J·max(t − t*, 0)

with t* in the middle of the window, slide it along the line, and keep the peaks of |J| over its standard deviation
‖w‖·noise/h, where w are the weights that the fit gives the answers. Curvature that the polynomial misses makes
false ones; they do not survive a walk along the plane they would have.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Floats
from .lines import Answer, Bend, Line, Scan

HALF, DEGREE = 7, 4
"""m and the degree of the polynomial."""


def hinges(line: Line, answer: Answer, scan: Scan) -> list[Bend]:
    """Bends of slope jump at least `scan.jump` that stand out by six standard deviations."""
    t = np.linspace(line.low, line.high, scan.count)
    h, g = float(t[1] - t[0]), answer(line.at(t))
    tau = np.arange(2 * HALF, dtype=np.float64) - (HALF - 0.5)
    weights = np.asarray(np.linalg.pinv(_basis(tau, 0.0))[-1], dtype=np.float64)
    jump = np.stack([np.correlate(column, weights) for column in g.T], axis=1)
    score = np.nan_to_num(np.linalg.norm(jump, axis=1)) / (np.linalg.norm(weights) * scan.noise)
    out = []
    for j in np.flatnonzero(score > 6.0):
        if score[j] < score[max(j - HALF // 2, 0) : j + HALF // 2 + 1].max():
            continue
        window = g[j : j + 2 * HALF]
        shift, a = _best(tau, window)
        at = float(t[j]) + (HALF - 0.5 + shift) * h
        if np.linalg.norm(a) / h > scan.jump:
            before = (window[HALF - 1] - window[HALF - 2]) / h
            out.append(Bend(at - h, at + h, at, window[HALF], before, a / h, h))
    return out


def _basis(tau: Floats, at: float) -> Floats:
    return np.column_stack([np.vander(tau, DEGREE + 1, increasing=True), np.maximum(tau - at, 0.0)])


def _best(tau: Floats, values: Floats) -> tuple[float, Floats]:
    """Place (in steps from the middle) and slope jump (p,) per step of the hinge that leaves least."""
    tries: list[tuple[float, float, Floats]] = []
    for at in np.linspace(-1.0, 1.0, 41).tolist():
        basis = _basis(tau, at)
        c = np.linalg.lstsq(basis, values, rcond=None)[0]
        tries.append((float(np.sum((values - basis @ c) ** 2)), at, c[-1]))
    _, at, jump = min(tries, key=lambda one: one[0])
    return at, jump
