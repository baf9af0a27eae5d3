"""Many features, many outputs: every response is one vector times one function, s_i(z) = w_i φ_i(z).

A search that has seen the slope jump of every feature knows w_i, so only the φ_i, one spline each, are left:

    minimise ‖Y − b − X a − B(c) W‖² + roughness,        B_mi = Σ_k c_ik B_k(v_i·x_m),   W = (w_1 … w_n)ᵀ

m points give m·p equations for n(K+3) unknowns, so a few points a feature do. Where the search saw from far away that
a response is a hinge max(z − t_i, 0), c is looked for as a change of that; roughness and size of the change are
penalised, so where no point lies the response follows its hinge. One product is a gather, a GEMM with W and one with
X; conjugate gradients with one (K+3)×(K+3) block a feature need some tens of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from ..fit.model import Model
from ..geometry import Floats
from ..response import basis, interpolate

_PULL = 1e-5  # weight, relative to one point's, that draws a response to its hinge where no point says otherwise

_HASTY, _PATIENT = (80, 1e-10), (160, 1e-11)
"""Steps, and the share of ‖r‖² that ends them sooner: a known hinge changes little, and an early end keeps it so."""


@dataclass(frozen=True, eq=False)
class Hinges:
    """What is known of each feature before its response is."""

    directions: Floats
    """(n, d)"""
    places: Floats | None
    """(n,) t_i, where they were seen from far away."""
    jumps: Floats
    """(n, p) slope after minus slope before; without places, any multiple of it."""

    def only(self, which: NDArray[np.intp]) -> Hinges:
        return Hinges(self.directions[which], None if self.places is None else self.places[which], self.jumps[which])


def fit_factored(seen: Hinges, X: Floats, Y: Floats, radius: float, intervals: int, *, smooth: float = 1e-7) -> Model:
    """The model whose responses are c_i(z) times the unit vectors of the jumps."""
    n, p = seen.jumps.shape
    size = np.linalg.norm(seen.jumps, axis=1)
    bare = seen.places is None  # no hinge to follow where points are few
    pull = 1e-4 * _PULL if bare else _PULL
    products = _Products(seen.directions, seen.jumps / size[:, None], X, radius, intervals, smooth, pull, bare)
    start = np.zeros((n, intervals + 3))
    if seen.places is not None:
        hinges = [interpolate(partial(_hinge, at=t), radius, intervals).coefficients for t in seen.places]
        start = size[:, None] * np.stack(hinges)
    flat = np.zeros((1 + X.shape[1], p))
    r = Y - products.values(start, flat)
    c, a = products.solve(r, *(_PATIENT if bare else _HASTY))
    blocks = ((start[i] + c[i])[:, None] * products.w[i] for i in range(n))
    coefficients = np.concatenate([*blocks, a])
    return Model(radius, seen.directions, np.full(n, intervals, dtype=np.intp), (np.empty(0),) * n, coefficients)


def _hinge(z: Floats, at: float) -> Floats:
    return np.maximum(z - at, 0.0)


def output_vectors(ask: Callable[[Floats], Floats], V: Floats, points: Floats, step: float) -> Floats:
    """(n, p) multiples of the w_i, from second differences along every v_j at some points x.

        f(x + h v_j) − 2 f(x) + f(x − h v_j)  =  h² Σ_i (v_i·v_j)² s_i''(v_i·x) w_i + O(h⁴)

    The matrix (v_i·v_j)² is that of the inner products of the v_i v_iᵀ, regular wherever these are independent. Of
    several points the one where a response bends most tells its vector.
    """
    mixing = cho_factor((V @ V.T) ** 2 + 1e-12 * np.eye(len(V)))
    best = None
    for x in points:
        Y = ask(np.concatenate([x[None, :], x + step * V, x - step * V]))
        seen = cho_solve(mixing, Y[1 : 1 + len(V)] + Y[1 + len(V) :] - 2.0 * Y[0]) / step**2
        if best is None:
            best = seen
        else:
            stronger = np.linalg.norm(seen, axis=1) > np.linalg.norm(best, axis=1)
            best = np.where(stronger[:, None], seen, best)
    assert best is not None
    return np.asarray(best)


class _Products:
    """The design at given points as an operator on (c, a).

    In double precision: in single the iteration stalls on features whose output vectors are nearly parallel.
    """

    def __init__(
        self,
        V: Floats,
        w: Floats,
        X: Floats,
        radius: float,
        intervals: int,
        smooth: float,
        pull: float,
        by_points: bool,
    ) -> None:
        self.w, self.width = w, intervals + 3
        n = len(V)
        self.shape = len(X), n
        first, weights = basis((X @ V.T).ravel(), radius, intervals)
        at = first + np.tile(np.arange(n) * self.width, len(X))
        self.grams = self._grams(first, weights)
        columns = (at.astype(np.int32)[:, None] + np.arange(4, dtype=np.int32)).ravel()
        ends = np.arange(len(at) + 1, dtype=np.int64 if 4 * len(at) >= 2**31 else np.int32) * 4
        self.phi: Any = csr_array((weights.T.ravel(), columns, ends), (len(at), n * self.width))
        self.flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        seen = np.diagonal(self.grams, axis1=1, axis2=2)[:, 1:-1] if by_points else np.zeros((n, intervals + 1))
        self.stiff = smooth * len(X) * (intervals / 16.0) ** 3 / (1.0 + seen)
        """(n, K+1) weight of each second difference; `by_points`: where many lie they speak, else a line goes on."""
        self.pull = pull * len(X)

    def values(self, c: Floats, a: Floats) -> Floats:
        """(m, p)"""
        spline = (self.phi @ c.ravel()).reshape(self.shape)
        return np.asarray(self.flat @ a + spline @ self.w)

    def adjoint(self, r: Floats) -> tuple[Floats, Floats]:
        c = self.phi.T @ (r @ self.w.T).ravel()
        return np.asarray(c).reshape(self.shape[1], self.width), self.flat.T @ r

    def penalty(self, c: Floats) -> Floats:
        """Gradient of half the roughness and the pull at c."""
        second = self.stiff * np.diff(c, 2, axis=1)
        out = self.pull * c
        out[:, :-2] += second
        out[:, 1:-1] -= 2.0 * second
        out[:, 2:] += second
        return out

    def solve(self, r: Floats, steps: int, gain: float) -> tuple[Floats, Floats]:
        """Preconditioned conjugate gradients from zero until what can still be gained is `gain` of ‖r‖²."""
        second = np.diff(np.eye(self.width), 2, axis=0)
        rough = second.T @ (self.stiff[:, :, None] * second) + self.pull * np.eye(self.width)
        blocks = np.linalg.inv(self.grams + rough)
        line = np.linalg.inv(self.flat.T @ self.flat + 1e-9 * len(r) * np.eye(self.flat.shape[1]))

        def precondition(g: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
            return np.einsum("nkl,nl->nk", blocks, g[0]), line @ g[1]

        def dot(x: tuple[Floats, Floats], y: tuple[Floats, Floats]) -> float:
            return float(np.vdot(x[0], y[0]) + np.vdot(x[1], y[1]))

        c, a = np.zeros((self.shape[1], self.width)), np.zeros((self.flat.shape[1], r.shape[1]))
        g = self.adjoint(r)
        y = precondition(g)
        p, rho = y, dot(g, y)
        enough = gain * float(np.vdot(r, r))
        for _ in range(steps):
            if rho <= enough:
                break
            image = self.adjoint(self.values(*p))
            Ap = image[0] + self.penalty(p[0]), image[1]
            alpha = rho / dot(p, Ap)
            c, a = c + alpha * p[0], a + alpha * p[1]
            g = g[0] - alpha * Ap[0], g[1] - alpha * Ap[1]
            y = precondition(g)
            rho, before = dot(g, y), rho
            p = y[0] + rho / before * p[0], y[1] + rho / before * p[1]
        return c, a

    def _grams(self, first: NDArray[np.intp], weights: Floats) -> Floats:
        """(n, K+3, K+3) each feature's own matrix; |w_i| = 1."""
        n, N = self.shape[1], self.width
        owner = np.tile(np.arange(n) * N, self.shape[0]) + first
        grams = np.zeros((n, N, N))
        for apart in range(4):
            band = np.zeros(n * N)
            for j in range(4 - apart):
                band += np.bincount(owner + j, weights[j] * weights[j + apart], minlength=n * N)
            i = np.arange(N - apart)
            grams[:, i, i + apart] = grams[:, i + apart, i] = band.reshape(n, N)[:, : N - apart]
        return grams
