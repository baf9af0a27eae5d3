"""The result of Theorem weaker and Theorem main-learning: a sum of features that can be evaluated.

Letters: u_i found directions, σ̃_i their responses, R radius of the ball.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..geometry import Floats, frozen
from .peel import Model
from .response import Response


@dataclass(frozen=True)
class Learned:
    """The sum of features f̃(x) = bias + slope·x + Σ_i σ̃_i(u_i·x), an approximation for |x| ≤ radius.

    directions: (n, d) unit rows u_i; responses: the σ̃_i, vectorised, with σ̃_i(0) = 0; bias, slope (d,): the affine
    part; radius: of the ball; angle_errors: (n,) standard errors of the directions in radians (inf where not
    measured), which know nothing of a feature that was missed and may pull its neighbours; queries: number of values of
    f used; rounds: number of searches made.
    """

    directions: Floats
    responses: tuple[Response, ...]
    bias: float
    slope: Floats
    radius: float
    angle_errors: Floats
    queries: int
    rounds: int

    def predict(self, X: ArrayLike) -> Floats:
        """Return the (m,) values f̃(x) at the rows of X (m, d)."""
        x = np.atleast_2d(np.asarray(X, dtype=np.float64))
        out = self.bias + x @ self.slope
        for u, response in zip(self.directions, self.responses, strict=True):
            out += response(x @ u)
        return np.asarray(out)


def learned_from(model: Model, errors: Floats, *, radius: float, queries: int, rounds: int) -> Learned:
    """Return the result with every response shifted to σ̃(0) = 0 (Assumption nondegen) and the constants in the bias."""
    starts = [float(t(0.0)) for t in model.tables]
    return Learned(
        directions=frozen(model.directions),
        responses=tuple(t.plus(np.full(len(t.values), -c)) for t, c in zip(model.tables, starts, strict=True)),
        bias=model.bias + sum(starts),
        slope=frozen(model.slope),
        radius=radius,
        angle_errors=frozen(errors),
        queries=queries,
        rounds=rounds,
    )
