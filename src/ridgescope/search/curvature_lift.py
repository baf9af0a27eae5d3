"""From directions in a subspace to directions in all d dimensions, by mixed derivatives (see `curvature`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from ..geometry import Floats, unit
from .hessians import DerivativeSample, Differences, lifted, unless_many
from .rank_one import MatrixSpace, span_of, squares
from .stencil_bias import StencilBias


@dataclass(frozen=True, eq=False)
class Mixed:
    """Derivatives along one direction inside the subspace and one outside it, from which directions are lifted."""

    chosen: NDArray[np.intp]
    """(x,) indices of the sample's points."""
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: Floats
    """(x, p, rows, columns) derivatives along pairs of basis rows."""

    def lift(self, sample: DerivativeSample, vectors: Floats) -> Floats:
        """Return (n, d) directions in the coordinates of the basis, given their first coordinates (n, width)."""
        if not len(self.columns) or not len(vectors):
            return vectors
        whole = np.isfinite(self.values).all(axis=(1, 2, 3))
        bends = bends_of(sample, vectors)[1][self.chosen][whole]
        return lifted(vectors, bends, vectors[:, : len(self.rows)], self.values[whole], least_squares)


def without_bias(source: Differences, sample: DerivativeSample, mixed: Mixed, directions: Floats) -> Floats:
    """Return (n, d) directions in the coordinates of the basis, computed again without the one-sided bias."""
    width = sample.width
    bias = StencilBias.estimate(sample.points, sample.tensors, directions, source.basis[:width])
    if bias is None:
        return directions @ source.basis.T
    hessians = sample.tensors - bias.of_hessians(source.step)
    better = replace(sample, tensors=hessians, span=span_of(hessians.reshape(-1, sample.size), sample.error))
    vectors, _ = MatrixSpace(better.span.basis).polish(unit(directions @ source.basis[:width].T))
    rows, columns = source.basis[mixed.rows], source.basis[mixed.columns]
    values = mixed.values - bias.of_pairs(mixed.chosen, source.step, rows, columns)
    return replace(mixed, values=values).lift(better, vectors)


def bends_of(sample: DerivativeSample, vectors: Floats) -> tuple[int, Floats]:
    """Return the number k of members of the span that no vector explains, and the (N, p, n + k) curvatures."""
    left = unless_many(MatrixSpace(sample.span.basis).complement(vectors).basis, len(vectors))
    bends = least_squares(np.concatenate([squares(vectors), left]).T, sample.rows.T).T
    return len(left), bends.reshape(*sample.tensors.shape[:2], -1)


def least_squares(design: Floats, target: Floats) -> Floats:
    """Solve tall, well conditioned least-squares problems by the normal equations, scaled to a unit diagonal."""
    scale = 1.0 / np.maximum(np.linalg.norm(design, axis=0), 1e-300)
    gram = (design.T @ design) * np.outer(scale, scale)
    gram[np.diag_indices_from(gram)] += 1e-13 * len(gram)  # above the rounding of the products
    factor = cho_factor(gram, overwrite_a=True, check_finite=False)
    return np.asarray(cho_solve(factor, scale[:, None] * (design.T @ target)) * scale[:, None])
