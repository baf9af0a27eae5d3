"""Fit of many features with many outputs: every response is one vector times one function, s_i(z) = w_i φ_i(z).

A search that has measured the slope jump of every feature knows w_i, so only the φ_i, one spline each, are unknown:

    minimise ‖Y − b − X a − B(c) W‖² + roughness,        B_mi = Σ_k c_ik B_k(v_i·x_m),   W = (w_1 … w_n)ᵀ

m points give m·p equations for n(K+3) unknowns, so a few points for each feature suffice. If a far-field search found
that a response is a hinge max(z − t_i, 0), c is the hinge plus a change; roughness and size of the change are
penalised, so that a response without points nearby follows its hinge. One product is a sparse product, a GEMM with W
and one with X; conjugate gradients with one (K+3)×(K+3) block for each feature need some tens of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from ..bspline import basis, sparse_rows
from ..fit.jacobian import roughness_scale
from ..fit.linear import ConjugateGradient
from ..fit.model import Model
from ..geometry import Floats
from ..response import interpolate

SMOOTHING = 1e-7
"""Roughness weight, relative to one point's, if hinges are known; empirical, between the two tests that it must
pass: a layer of GELUs is reproduced, and a response without points follows its hinge.
"""
_PULL = 1e-5  # weight, relative to one point's, that draws a response to its hinge if no point is near
_PULL_UNKNOWN = 1e-4 * _PULL  # the same towards zero if no hinge is known: only keeps the matrix regular
_AFFINE_RIDGE = 1e-9  # for each point: keeps the affine block regular if points lie in a subspace
_MIXING_RIDGE = 1e-12  # of a unit diagonal: for two features at the same place


_WITH_HINGE, _WITHOUT_HINGE = (80, 1e-10), (160, 1e-11)
"""Most steps of conjugate gradients, and the share of ‖r‖² below which their possible gain ends them. A known hinge
changes little, and stopping early keeps it so.
"""


@dataclass(frozen=True, eq=False)
class Hinges:
    """Facts about each feature that are known before its response is."""

    directions: Floats
    """(n, d) unit rows."""
    places: Floats | None
    """(n,) positions t_i, if a far-field search found them."""
    jumps: Floats
    """(n, p) slope after minus slope before; without positions, any multiple of it."""

    def only(self, which: NDArray[np.intp]) -> Hinges:
        """Return the features at these indices."""
        return Hinges(self.directions[which], None if self.places is None else self.places[which], self.jumps[which])


def fit_factored(
    seen: Hinges, X: Floats, Y: Floats, radius: float, intervals: int, *, smoothing: float = SMOOTHING
) -> Model:
    """Fit X (m, d), Y (m, p) by responses that are functions c_i(z) times the unit vectors of the jumps."""
    n, p = seen.jumps.shape
    size = np.linalg.norm(seen.jumps, axis=1)
    products = _Products(replace(seen, jumps=seen.jumps / size[:, None]), X, radius, intervals, smoothing)
    start = np.zeros((n, intervals + 3))
    if seen.places is not None:
        hinges = [interpolate(partial(_hinge, at=t), radius, intervals).coefficients for t in seen.places]
        start = size[:, None] * np.stack(hinges)
    r = Y - products.values(_Coefficients(start, np.zeros((1 + X.shape[1], p))))
    change = products.solve(r, *(_WITHOUT_HINGE if seen.places is None else _WITH_HINGE))
    blocks = ((start[i] + change.c[i])[:, None] * products.w[i] for i in range(n))
    coefficients = np.concatenate([*blocks, change.a])
    return Model(radius, seen.directions, np.full(n, intervals, dtype=np.intp), (np.empty(0),) * n, coefficients)


def _hinge(z: Floats, at: float) -> Floats:
    """Return max(z − at, 0)."""
    return np.maximum(z - at, 0.0)


def output_vectors(ask: Callable[[Floats], Floats], V: Floats, points: Floats, step: float) -> Floats:
    """Return (n, p) multiples of the w_i, from second differences along every v_j at some points x.

        f(x + h v_j) − 2 f(x) + f(x − h v_j)  =  h² Σ_i (v_i·v_j)² s_i''(v_i·x) w_i + O(h⁴)

    The matrix (v_i·v_j)² contains the inner products of the v_i v_iᵀ, and is regular if these are independent. Of
    several points the one at which a response bends most determines its vector.
    """
    mixing = cho_factor((V @ V.T) ** 2 + _MIXING_RIDGE * np.eye(len(V)))
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


class _Coefficients(NamedTuple):
    """Coefficients of the splines, c (n, K+3), and of the affine part, a (1 + d, p)."""

    c: Floats
    a: Floats

    def plus(self, factor: float, other: _Coefficients) -> _Coefficients:
        return _Coefficients(self.c + factor * other.c, self.a + factor * other.a)

    def dot(self, other: _Coefficients) -> float:
        return float(np.vdot(self.c, other.c) + np.vdot(self.a, other.a))


class _Products:
    """The design at given points as an operator on coefficients; the jumps of `seen` are unit vectors.

    It uses double precision, as in single the iteration stalls on features whose output vectors are nearly parallel. If
    no hinge is known, second differences are penalised less near many points: points decide there, and elsewhere the
    response continues along a line.
    """

    def __init__(self, seen: Hinges, X: Floats, radius: float, intervals: int, smoothing: float) -> None:
        self.w, self.width = seen.jumps, intervals + 3
        n = len(self.w)
        self.shape = len(X), n
        first, weights = basis((X @ seen.directions.T).ravel(), radius, intervals)
        at = first + np.tile(np.arange(n) * self.width, len(X))
        self.grams = self._grams(at, weights)
        self.phi = sparse_rows(at, weights, n * self.width)
        self.affine = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        unknown = seen.places is None
        density = np.diagonal(self.grams, axis1=1, axis2=2)[:, 1:-1] if unknown else np.zeros((n, intervals + 1))
        self.stiff = smoothing * len(X) * roughness_scale(intervals) / (1.0 + density)
        """(n, K+1) weight of each second difference."""
        self.pull = (_PULL_UNKNOWN if unknown else _PULL) * len(X)

    def values(self, q: _Coefficients) -> Floats:
        """Return the (m, p) values of the model with coefficients q at the points."""
        spline = (self.phi @ q.c.ravel()).reshape(self.shape)
        return np.asarray(self.affine @ q.a + spline @ self.w)

    def adjoint(self, r: Floats) -> _Coefficients:
        """Apply the transpose of `values` to r (m, p)."""
        c = self.phi.T @ (r @ self.w.T).ravel()
        return _Coefficients(np.asarray(c).reshape(self.shape[1], self.width), self.affine.T @ r)

    def penalty(self, c: Floats) -> Floats:
        """Return the gradient at c of half the roughness and the pull."""
        second = self.stiff * np.diff(c, 2, axis=1)
        out = self.pull * c
        out[:, :-2] += second
        out[:, 1:-1] -= 2.0 * second
        out[:, 2:] += second
        return out

    def solve(self, r: Floats, steps: int, gain: float) -> _Coefficients:
        """Fit coefficients to r (m, p) by preconditioned conjugate gradients from zero."""
        second = np.diff(np.eye(self.width), 2, axis=0)
        rough = second.T @ (self.stiff[:, :, None] * second) + self.pull * np.eye(self.width)
        blocks = np.linalg.inv(self.grams + rough)
        line = np.linalg.inv(self.affine.T @ self.affine + _AFFINE_RIDGE * len(r) * np.eye(self.affine.shape[1]))

        def normal(p: _Coefficients) -> _Coefficients:
            image = self.adjoint(self.values(p))
            return image._replace(c=image.c + self.penalty(p.c))

        def precondition(g: _Coefficients) -> _Coefficients:
            return _Coefficients(np.einsum("nkl,nl->nk", blocks, g.c), line @ g.a)

        right = self.adjoint(r)
        zero = _Coefficients(np.zeros_like(right.c), np.zeros_like(right.a))
        iteration = ConjugateGradient(normal, precondition, zero, right)
        enough = gain * float(np.vdot(r, r))
        for _ in range(steps):
            if iteration.rho <= enough or not iteration.step():
                break
        return iteration.x

    def _grams(self, at: NDArray[np.intp], weights: Floats) -> Floats:
        """Return each feature's own matrix ΦᵢᵀΦᵢ, (n, K+3, K+3); |w_i| = 1 leaves it unchanged."""
        n, N = self.shape[1], self.width
        grams = np.zeros((n, N, N))
        for apart in range(4):
            band = np.zeros(n * N)
            for j in range(4 - apart):
                band += np.bincount(at + j, weights[j] * weights[j + apart], minlength=n * N)
            i = np.arange(N - apart)
            grams[:, i, i + apart] = grams[:, i + apart, i] = band.reshape(n, N)[:, : N - apart]
        return grams
