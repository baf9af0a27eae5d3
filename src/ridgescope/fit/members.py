"""Nearly parallel features of one family, moved together while all others stand still.

The members Σ_i φ(ω_i·(Ux, 1)) c_i live in the subspace of U (r, d), which their common tangents show (`crowded`). All
c_i follow from ω by least squares; with P the projection onto the members' own values and onto what the other features
and an affine function can make up for, the residual's derivatives are (1 − P) φ'(ω_i·(Ux, 1)) (Ux, 1) c_iᵀ, and the
normal matrix is

    N_(ia)(jb)  =  [BᵀB]_(ia)(jb) · c_i·c_j,        B = (1 − P) [φ'_i (Ux, 1)_a]

This is dense and small, so that steps are exact. Steps by conjugate gradients creep here: what tells members apart is
the last term in `crowded`, a thousandth of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ..deadline import spend
from ..geometry import Floats
from . import threads
from .activations import ACTIVATIONS

_SPREADS = (0.03, 0.1, 0.3)  # radians about the middle that members start with
_STARTS = 3  # random ones for each of these
_FIRST_DAMPING, _FALL, _RISE, _LEAST_DAMPING = 1e-3, 0.3, 5.0, 1e-9  # of the diagonal; factors after a step
_TRIES = 8  # dampings tried before a step is given up
_LEAST_GAIN = 3e-3  # share of the cost: a step that gains less is the last
_RIDGE = 1e-14  # of the largest diagonal entry: rounding errors of the normal equations


@dataclass(frozen=True, eq=False)
class Members:
    """Members of one cluster, with the points and answers that they are to explain."""

    family: int
    Z: Floats
    """(m, r + 1) points in the members' subspace, and ones."""
    Q: Floats
    """(m, q) orthonormal columns that others make up for."""
    target: Floats
    """(m, p) what others leave, less its part in Q."""
    omega: Floats
    """(k, r + 1) weights, and bias, of each member."""

    @classmethod
    def started(cls, near: Members, middle: Floats, sizes: Floats, count: int, rng: np.random.Generator) -> Members:
        """Return the best of some random starts about the middle (r + 1,), whose spread goes as `sizes` (r − 1,).

        The middle lies along the first coordinate.
        """
        length, best = float(np.linalg.norm(middle[:-1])), near
        shape = np.sqrt(sizes / sizes[0])
        for spread in _SPREADS:
            for _ in range(_STARTS):
                away = rng.standard_normal((count, len(sizes))) * shape
                away *= spread * length / np.linalg.norm(away, axis=1)[:, None]
                omega = np.tile(middle, (count, 1))
                omega[:, 1:-1] += away - away.mean(axis=0)
                now = replace(near, omega=omega)
                best = now if best is near or now.cost < best.cost else best
        return best

    @property
    def cost(self) -> float:
        """The sum of squares that is left with the best outputs."""
        return float(np.sum(self._solved()[3] ** 2))

    def _solved(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return slopes (m, k), an orthonormal basis of the values (m, k), outputs (k, p) and what is left (m, p)."""
        value, slope = ACTIVATIONS[self.family].atom(self.Z @ self.omega.T)
        value = value - self.Q @ threads.inner(self.Q, value)
        own, R = np.linalg.qr(value)
        onto = own.T @ self.target
        outputs = np.linalg.lstsq(R, onto, rcond=1e-12)[0]
        return slope, own, outputs, self.target - own @ onto

    @threads.one_blas_thread()
    def minimised(self, steps: int) -> Members:
        """Return the members after at most so many Levenberg–Marquardt steps."""
        now, damping = self, _FIRST_DAMPING
        for _ in range(steps):
            normal, pull, cost = now._equations()
            diagonal, better = np.diag(normal).copy(), None
            for _ in range(_TRIES):
                damped = normal + np.diag(damping * diagonal + _RIDGE * diagonal.max())
                try:
                    change = cho_solve(cho_factor(damped, overwrite_a=True), pull)
                except LinAlgError:
                    damping *= _RISE
                    continue
                trial = replace(now, omega=now.omega + change.reshape(now.omega.shape))
                if (after := trial.cost) < cost:
                    better = trial
                    break
                damping *= _RISE
            if better is None:
                break
            now, damping = better, max(damping * _FALL, _LEAST_DAMPING)
            if after > (1.0 - _LEAST_GAIN) * cost:
                break
        return now

    def _equations(self) -> tuple[Floats, Floats, float]:
        """Return the normal matrix of a step, its right-hand side, and the cost."""
        slope, own, outputs, left = self._solved()
        k, width = self.omega.shape
        B = (slope[:, :, None] * self.Z[:, None, :]).reshape(len(self.Z), -1)
        spend(B.size * (B.shape[1] / 2 + 2 * self.Q.shape[1]) + B.shape[1] ** 3 / 6)
        for known in (self.Q, own):
            B -= threads.outer(known, threads.inner(known, B))
        normal = threads.gram(B).reshape(k, width, k, width) * (outputs @ outputs.T)[:, None, :, None]
        pull = np.einsum("mkr,mk->kr", B.reshape(-1, k, width), left @ outputs.T)
        return normal.reshape(k * width, -1), pull.ravel(), float(np.sum(left**2))
