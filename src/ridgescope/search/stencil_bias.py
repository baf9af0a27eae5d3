"""One-sided stencils lean to one side; by how much follows from the features that they show.

The mixed difference of a one-sided stencil along q_i and q_j is, for f = Σ_k s_k(v_k·x) and w_k = Q v_k,

    Σ_k [ s_k''(z_k) w_ki w_kj + (h/2) s_k'''(z_k) (w_ki² w_kj + w_ki w_kj²) ] + O(h²),        z_k = v_k·x

The second term is what limits the directions. Once they are known roughly, the curvatures s_k''(z_k) at all points
follow by least squares, and as functions of z_k alone they are smooth curves: their slopes are s_k'''. Taken off, they
leave an error of second order, and not one more query is spent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_smoothing_spline

from ..geometry import Floats
from .rank_one import pack, squares

_FEWEST = 24  # points through which a curve can be laid


@dataclass(frozen=True, eq=False)
class Curves:
    """s_k'' of every feature as a curve over z_k, times a p-vector."""

    directions: Floats
    basis: Floats
    """(w, d) rows q_i along which the Hessians were taken."""
    slopes: Floats
    """(N, p, n) s_k''' at the points."""

    @classmethod
    def of(cls, points: Floats, hessians: Floats, directions: Floats, basis: Floats) -> Curves | None:
        """From packed Hessians (N, p, D); None where there are too few to lay a curve through."""
        N, p, size = hessians.shape
        if N < _FEWEST or size < len(directions):
            return None
        w = directions @ basis.T
        bends = np.asarray(np.linalg.lstsq(squares(w).T, hessians.reshape(N * p, size).T, rcond=None)[0].T, np.float64)
        bends = bends.reshape(N, p, -1)
        slopes = np.stack([_slopes(points @ v, bends[:, :, k]) for k, v in enumerate(directions)], axis=2)
        return cls(directions, basis, slopes)

    def lean_of_hessians(self, step: float) -> Floats:
        """(N, p, D); nothing on the diagonal, where differences are centred."""
        w = self.directions @ self.basis.T
        shapes = w[:, :, None] ** 2 * w[:, None, :]
        shapes = shapes + shapes.swapaxes(1, 2)
        shapes[:, np.arange(w.shape[1]), np.arange(w.shape[1])] = 0.0
        return np.asarray(0.5 * step * (self.slopes @ pack(shapes)))

    def lean_of_pairs(self, at: NDArray[np.intp], step: float, rows: Floats, columns: Floats) -> Floats:
        """(x, p, rows, columns) at some of the points, for one direction among the rows and one among the columns."""
        a, b = self.directions @ rows.T, self.directions @ columns.T
        shapes = a[:, :, None] ** 2 * b[:, None, :] + a[:, :, None] * b[:, None, :] ** 2
        return np.asarray(0.5 * step * np.einsum("xok,kij->xoij", self.slopes[at], shapes, optimize=True))


def _slopes(z: Floats, bends: Floats) -> Floats:
    """(N, p) slope at z of the curve through (z, bends)."""
    left, size, w = np.linalg.svd(bends, full_matrices=False)
    order = np.argsort(z)
    apart = order[np.concatenate([[True], np.diff(z[order]) > 1e-9 * max(float(np.ptp(z)), 1e-300)])]
    if len(apart) < _FEWEST:
        return np.zeros_like(bends)
    curve = make_smoothing_spline(z[apart], left[apart, 0] * size[0])
    return np.asarray(np.multiply.outer(curve.derivative()(z), w[0]))
