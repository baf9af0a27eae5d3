"""The own blocks of gated units in JᵀPJ, as a preconditioner of conjugate gradients (see `gated_step`).

Let v = g/|g|, and u the unit vector of w across v, z = v·x and y = u·x. A unit's columns depend on x by φ' and φ,
functions of z, times (w·x + c) and one, functions of z and y. Points look the same in all directions across v and u. So
the own block is nearly one 6 × 6 matrix for

    (δb, δg·v, δg·u, δc, δw·v, δw·u),        columns  s (1, z, y) and φ (1, z, y),   s = φ'·(w·x + c),

from which the linear columns 1, z, y and φ·(w·x + c) of the same unit are eliminated, and one 2 × 2 matrix for
(δg·e, δw·e) with any e across v and u, from which x·e is eliminated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats
from . import threads
from .gated_form import GatedForms
from .model import TINY

_BLOCK = 512  # points whose products are computed together: some megabytes
_RIDGE = 1e-3  # of a block's diagonal: sums are those of points that look the same in all directions only on average


@dataclass(frozen=True, eq=False)
class GatedBlocks:
    """Own blocks of JᵀPJ in coordinates along v and u and across both."""

    v: Floats
    """(n, d) unit rows."""
    u: Floats
    """(n, d) unit rows; zero rows of plain units."""
    along: Floats
    """(n, 6, 6)."""
    across: Floats
    """(n, 2, 2)."""

    @classmethod
    def of(cls, forms: GatedForms, X: Floats, gate: Floats, slopes: Floats, fixed: Floats) -> GatedBlocks:
        """Sum the blocks over points X (m, d) with φ and φ'·(w·x + c) (m, n); `fixed` (n, 2, 2(d + 1)) are gauges."""
        v, u = axes_of(forms)
        square = np.einsum("md,md->m", X, X)

        def sums(at: slice) -> tuple[Floats, Floats]:
            z, y, s, phi = X[at] @ v.T, X[at] @ u.T, slopes[at], gate[at]
            carried = X[at] @ forms.w.T + forms.c
            columns = np.stack([np.ones_like(z), z, y, phi * carried, s, s * z, s * y, phi, phi * z, phi * y], axis=1)
            columns = np.ascontiguousarray(columns.transpose(2, 1, 0))  # (n, 10, points)
            rest = np.maximum(square[at, None] - z * z - y * y, 0.0)
            three = np.stack([rest, rest * s, rest * phi], axis=0), np.stack([np.ones_like(z), s, phi], axis=0)
            return columns @ columns.transpose(0, 2, 1), np.einsum("amn,bmn->nab", *three, optimize=True)

        parts = threads.parallel_map(sums, threads.portions(len(X), _BLOCK))
        gram, moments = (np.sum([part[k] for part in parts], axis=0) for k in (0, 1))
        size = np.sum(forms.outputs**2, axis=1)[:, None, None]
        along = _without(gram, 4)
        across = _without(moments, 1) / np.maximum(forms.dim - 1 - forms.gated, 1)[:, None, None]
        plain = ~forms.gated
        along[plain, 2, 2] = along[plain, 0, 0]  # unknowns that do not move
        along[plain, 3:, :] = along[plain, :, 3:] = 0.0
        along[plain, 3:, 3:] = np.eye(3) * along[plain, :1, :1]
        across[plain, 0, 1] = across[plain, 1, 0] = 0.0
        blocks = cls(v, u, size * along, size * across)
        gauges = np.stack([blocks.split(fixed[:, k])[0] for k in (0, 1)], axis=1)
        typical = np.einsum("naa->n", blocks.along)[:, None, None] / 6.0
        return replace(blocks, along=blocks.along + typical * (gauges.swapaxes(1, 2) @ gauges))

    def split(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the parts (n, 6) of changes (n, 2(d + 1)) along v and u, and those (n, 2, d) across both."""
        n, q = len(rows), rows.shape[1] // 2
        halves = rows.reshape(n, 2, q)
        w = halves[:, :, 1:]
        on_v, on_u = (np.einsum("nkd,nd->nk", w, e) for e in (self.v, self.u))
        across = w - on_v[:, :, None] * self.v[:, None, :] - on_u[:, :, None] * self.u[:, None, :]
        return np.stack([halves[:, :, 0], on_v, on_u], axis=2).reshape(n, 6), across

    def joined(self, along: Floats, across: Floats) -> Floats:
        """Return changes (n, 2(d + 1)), the inverse of `split`."""
        three = along.reshape(len(along), 2, 3)
        w = across + three[:, :, 1:2] * self.v[:, None, :] + three[:, :, 2:] * self.u[:, None, :]
        return np.concatenate([three[:, :, :1], w], axis=2).reshape(len(along), -1)

    def weighted(self, rows: Floats, damping: float) -> Floats:
        """Return λD δ, D being the diagonals of the blocks."""
        along, across = self.split(rows)
        along *= np.einsum("naa->na", self.along)
        across *= np.einsum("naa->na", self.across)[:, :, None]
        return damping * self.joined(along, across)

    def inverses(self, damping: float) -> tuple[Floats, Floats]:
        """Return the inverses of the blocks, damped."""
        return _inverse(self.along, damping), _inverse(self.across, damping)

    def solved(self, rows: Floats, inverses: tuple[Floats, Floats]) -> Floats:
        """Return changes divided by the blocks, whose inverses are given."""
        along, across = self.split(rows)
        return self.joined(np.einsum("nab,nb->na", inverses[0], along), inverses[1] @ across)


def axes_of(forms: GatedForms) -> tuple[Floats, Floats]:
    """Return the unit rows (n, d) v along g and u along w across v; u is zero for plain units."""
    v = forms.g / np.maximum(np.linalg.norm(forms.g, axis=1, keepdims=True), TINY)
    u = forms.w - np.einsum("nd,nd->n", forms.w, v)[:, None] * v
    return v, u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), TINY)


def _without(gram: Floats, count: int) -> Floats:
    """Return what the first `count` columns leave of the others, given the Gram matrices (n, k, k) of all."""
    diagonal = np.maximum(np.einsum("naa->na", gram), TINY)
    scale = 1.0 / np.sqrt(diagonal[:, :count])
    first = gram[:, :count, :count] * scale[:, :, None] * scale[:, None, :] + _RIDGE * np.eye(count)
    cross = gram[:, :count, count:] * scale[:, :, None]
    left = gram[:, count:, count:] - cross.swapaxes(1, 2) @ np.linalg.solve(first, cross)
    return np.asarray(left + _RIDGE * diagonal[:, count:, None] * np.eye(left.shape[1]))


def _inverse(matrix: Floats, damping: float) -> Floats:
    diagonal = np.einsum("naa->na", matrix)
    shift = damping * diagonal + TINY + 1e-12 * diagonal.max(axis=1, keepdims=True)
    return np.asarray(np.linalg.inv(matrix + shift[:, :, None] * np.eye(matrix.shape[1])))
