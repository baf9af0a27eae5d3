"""Products of the columns by which a sum of closed forms moves with the w_i and b_i of its features.

Column (i, a) is φ_i'·x_a, x_0 = 1. All of them together take far more memory than anything else that a step or an
error bar needs. So they are made for some points at a time, and only their products are kept:

    D    the columns (m, K)        P = D − Q QᵀD − S f_S − C f_C        what the linear unknowns do not follow

with the affine functions Q, the splines S and the closed forms C of `closed_solve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..geometry import Floats
from . import threads
from .activations import Indices
from .closed_solve import Solved

_BLOCK, _MIN_ROWS = 2**19, 64  # numbers of a block of columns, four megabytes, and its least rows


@dataclass(frozen=True, eq=False)
class Tangents:
    """The columns of some features."""

    solved: Solved
    which: Indices
    """(k,) the features; there are K = k(d + 1) columns."""

    def products(self) -> Floats:
        """Return PᵀP (K, K) from inner products, which costs half of what `exact_products` does."""
        straight, onto = self._inner
        own = np.zeros((self._width, self._width))
        for rows in threads.portions(len(self.solved.data.flat), self._rows):
            threads.add_gram(own, self._columns(rows))
        return self.solved.less_followed(threads.symmetric(own), straight, onto, self.follow)

    def exact_products(self) -> Floats:
        """Return PᵀP (K, K) from P itself, with the digits that differences of inner products lose."""
        total = np.zeros((self._width, self._width))
        for rows in threads.portions(len(self.solved.data.flat), self._rows):
            threads.add_gram(total, self._projected(rows))
        return threads.symmetric(total)

    def cluster_products(self, clusters: Indices) -> Floats | None:
        """Return Σ_c (1 − 1/k) g_c g_cᵀ, g_c the sum of P over the k points of cluster c; None if none has two."""
        size = np.bincount(clusters)
        several = np.flatnonzero(size > 1)
        if not len(several):
            return None
        order = np.flatnonzero(size[clusters] > 1)
        order = order[np.argsort(clusters[order], kind="stable")]
        ends = np.concatenate([[0], np.cumsum(size[several])])
        shares = np.sqrt(1.0 - 1.0 / size[several])[:, None]
        total = np.zeros((self._width, self._width))
        for c in threads.portions(len(several), max(1, self._rows // int(size.max()))):  # whole clusters
            P = self._projected(order[ends[c.start] : ends[c.stop]])
            g = np.add.reduceat(P, ends[c] - ends[c.start], axis=0) * shares[c]
            total += g.T @ g
        return total

    @cached_property
    def follow(self) -> Floats:
        """(N, K) the combinations of the equations' columns that are closest to D."""
        return self.solved.follow(self._inner[1])

    @cached_property
    def _inner(self) -> tuple[Floats, Floats]:
        """Inner products of D with affine functions, (d + 1, K), and with the equations' columns, (N, K)."""
        solved, k, q = self.solved, len(self.solved.splines.factor), self.solved.data.flat.shape[1]
        straight, onto = np.zeros((q, self._width)), np.zeros((len(solved.factor), self._width))
        for rows in threads.portions(len(solved.data.flat), self._rows):
            D = self._columns(rows)
            straight += solved.data.Q[rows].T @ D
            onto[:k] += solved.splines.columns.bent[rows].T @ D
            onto[k:] += solved.atoms.bent[rows].T @ D
        return straight, onto

    @property
    def _width(self) -> int:
        """K."""
        return len(self.which) * (self.solved.forms.dim + 1)

    @property
    def _rows(self) -> int:
        """Number of points in a block."""
        return max(_MIN_ROWS, _BLOCK // self._width)

    def _columns(self, rows: slice | Indices) -> Floats:
        """Return D (r, K) at these points."""
        slopes, flat = self.solved.slopes[rows][:, self.which], self.solved.data.flat[rows]
        return np.asarray((slopes[:, :, None] * flat[:, None, :]).reshape(len(flat), -1))

    def _projected(self, rows: slice | Indices) -> Floats:
        """Return P (r, K) at these points."""
        solved, k = self.solved, len(self.solved.splines.factor)
        P = self._columns(rows)
        P -= solved.data.Q[rows] @ self._inner[0]
        P -= solved.splines.columns.bent[rows] @ self.follow[:k]
        P -= solved.atoms.bent[rows] @ self.follow[k:]
        return P
