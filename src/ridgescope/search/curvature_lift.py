"""From directions in a subspace to directions in all d dimensions, by mixed derivatives (see `curvature`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from ..geometry import Floats, unit
from .central import CentralDifferences
from .hessians import DerivativeSample, Differences, lifted, unless_many
from .hessians import Source as SourceOfLowOrder
from .numerical_span import Span, span_of
from .rank_one import MEMBERS, MatrixSpace, squares
from .stencil_bias import StencilBias

Source = SourceOfLowOrder | CentralDifferences
ROUNDING = 1e-15
"""Of 1 − F, and of what it rises by: a sum of products of unit rows."""


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


def without_bias(
    source: Differences, sample: DerivativeSample, mixed: Mixed, directions: Floats
) -> tuple[Floats, Span]:
    """Return (n, d) directions in the coordinates of the basis, computed again without the one-sided bias.

    Also return the span of the Hessians in which they are.

    The bias follows from third derivatives, which are curves fitted to the second ones. Where these jump, as those of
    a quadratic piece do at its end, such curves are wrong: the directions stay as they are if the squares of most are
    farther from the span without the estimated bias than from the one with it.
    """
    width = sample.width
    bias = StencilBias.estimate(sample.points, sample.tensors, directions, source.basis[:width])
    if bias is None:
        return directions @ source.basis.T, sample.span
    hessians = sample.tensors - bias.of_hessians(source.step)
    better = replace(sample, tensors=hessians, span=span_of(hessians.reshape(-1, sample.size), sample.error))
    before = unit(directions @ source.basis[:width].T)
    vectors, inside = MatrixSpace(better.span.basis).polish(before)
    if np.median(inside) < np.median(np.sum((squares(before) @ sample.span.basis.T) ** 2, axis=1)):
        return directions @ source.basis.T, sample.span
    rows, columns = source.basis[mixed.rows], source.basis[mixed.columns]
    values = mixed.values - bias.of_pairs(mixed.chosen, source.step, rows, columns)
    return replace(mixed, values=values).lift(better, vectors), better.span


def angle_errors(span: Span, vectors: Floats) -> Floats:
    """Return (n,) radians that the errors of members v (n, r) of the span of Hessians stay below.

    With T the rows A_k v, 1 − F rises by δᵀ(2I − 4TᵀT)δ when v turns by δ. So an error of the span that leaves 1 − F of
    a member may have turned it by √((1 − F)/λ), with λ the least eigenvalue across v: 2 for a member alone, and little
    for one of a close pair. A single F may be good by chance, but not better known than most.
    """
    if not len(vectors):
        return np.empty(0)
    matrices, outside = MatrixSpace(span.basis).matrices, np.empty(len(vectors))
    stiffness = np.empty(len(vectors))
    for i, v in enumerate(vectors):
        t = matrices @ v
        outside[i] = 1.0 - float(np.sum((t @ v) ** 2))
        across = 2.0 * np.eye(len(v)) + MEMBERS.radial * np.outer(v, v) - 4.0 * t.T @ t
        stiffness[i] = np.linalg.eigvalsh(across)[0]
    typical = max(float(np.median(outside)), ROUNDING)
    return np.sqrt(np.maximum(outside, typical) / np.maximum(stiffness, ROUNDING))


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


def widened(sample: DerivativeSample, source: Source, width: int, spare: int) -> DerivativeSample | None:
    """Return the Hessians in a wider subspace, at as many points as can be paid for; None if fewer than two can."""
    room = (source.ask.left - spare) // source.cost(width, sample.width)
    if room < min(len(sample.points), 2):
        return None
    points, old = sample.points[:room], sample.tensors[:room]
    hessians, error = source.hessians(points, width, old)
    error = max(error, sample.error)
    return DerivativeSample.of(points, hessians, error, floor=error)
