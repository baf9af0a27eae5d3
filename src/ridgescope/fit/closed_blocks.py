"""Preconditioners for steps of closed forms with free directions: blocks of JᵀPJ, one per feature or per group.

Feature i has the columns φ_i'(y_i)(1, x) ⊗ c_i. What couples two features, once affine functions are projected out, is
about the correlation of their slopes φ' over the points, times the cosine of their output vectors. In a layer of many
outputs that is small, except among features that listen to and write to nearly the same: with one block for each of
these, conjugate gradients move them only together, and take thousands of steps to turn one against the others. Such
features share a block, which is factored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_solve

from ..deadline import spend
from ..geometry import Floats
from . import threads
from .activations import Indices
from .closed_solve import Solved
from .closed_tangents import Tangents
from .model import TINY

_BLOCK_POINTS = 8  # points per unknown of a feature's own block: its eigenvalues are then right to a factor of two
_BLOCK_FLOOR = 1e-3  # of its diagonal, at most, for what the points that are not drawn add
_TOGETHER = 8  # features whose own blocks one thread makes at a time
_COUPLED = 0.5  # coupling from which on two features share a block; two alike of less slow convergence by at most √3
_MAX_UNKNOWNS = 4000  # of a group: 128 MB and some two seconds for its factor
_RIDGE = 1e-10  # of the diagonal of a group's matrix: rounding errors of its sums


def single_blocks(solved: Solved) -> Floats:
    """Return (n, d+1, d+1) JᵀPJ of each feature alone, P taking off affine functions.

    With σ = φ' less its mean over the points, the block for b_i and |w_i| is summed over all of them. Across v_i points
    look the same on all sides, so that P hardly changes Σ σ² x xᵀ. That sum is over points drawn in proportion to σ²: a
    bend that few points lie beyond shows in these only.
    """
    flat, Q, c, v = solved.data.flat, solved.data.Q, solved.forms.outputs, solved.forms.directions
    q, size = flat.shape[1], np.sum(c**2, axis=1)
    drawn = _BLOCK_POINTS * q
    blocks = np.empty((len(c), q, q))

    def some(which: slice) -> None:
        sigma = solved.slopes[:, which]
        sigma = sigma - sigma.mean(axis=0)
        z = flat[:, 1:] @ v[which].T
        pair = np.stack([sigma, sigma * z])
        straight = Q.T @ pair
        along = np.einsum("amk,bmk->kab", pair, pair) - np.einsum("aqk,bqk->kab", straight, straight)
        energy = np.cumsum(sigma**2, axis=0)
        for i, k in enumerate(range(which.start, which.start + sigma.shape[1])):
            total = energy[-1, i]
            rows = np.searchsorted(energy[:, i], (np.arange(drawn) + 0.5) * (total / drawn))
            few = flat[np.minimum(rows, len(flat) - 1)]
            others = min(_BLOCK_FLOOR, float(np.median(sigma[:, i] ** 2)) * len(flat) / (total + TINY))
            own = (total / drawn) * (few.T @ few)
            own[np.diag_indices(q)] *= 1.0 + others
            blocks[k] = size[k] * _with_block(own, v[k], along[i])

    threads.parallel_map(some, threads.portions(len(c), _TOGETHER))
    return blocks


def _with_block(whole: Floats, v: Floats, block: Floats) -> Floats:
    """Return `whole` (d+1, d+1) with another 2 × 2 block for b and |w|, none between these and what is across."""
    axes = np.zeros((len(whole), 2))
    axes[0, 0], axes[1:, 1] = 1.0, v
    image = whole @ axes
    inside = axes.T @ image
    return np.asarray(whole - axes @ image.T - image @ axes.T + axes @ (inside + block) @ axes.T)


@dataclass(frozen=True, eq=False)
class Group:
    """Coupled features, with the factor of their joint block."""

    which: Indices
    factor: Floats
    """Lower Cholesky factor of JᵀPJ (k(d+1), k(d+1)) of these features."""

    @classmethod
    def of(cls, solved: Solved, which: Indices) -> Group | None:
        """Factor the block of these features; None if it is singular in spite of a small ridge."""
        flat, c = solved.data.flat, solved.forms.outputs[which]
        m, q = flat.shape
        unknowns = len(which) * q
        spend(m * unknowns * (unknowns / 2 + 2.0 * len(solved.factor)) + unknowns**3 / 3)
        matrix = Tangents(solved, which).exact_products()
        matrix *= np.repeat(np.repeat(c @ c.T, q, axis=0), q, axis=1)
        matrix[np.diag_indices(unknowns)] *= 1.0 + _RIDGE
        matrix[np.diag_indices(unknowns)] += TINY
        try:
            return cls(which, threads.cholesky(np.asfortranarray(matrix)))
        except LinAlgError:
            return None

    def solve(self, w: Floats) -> Floats:
        """Return (k, d+1) the solution for a right-hand side of these features."""
        return np.asarray(cho_solve((self.factor, True), w.ravel(), check_finite=False)).reshape(w.shape)


def coupled_groups(solved: Solved) -> tuple[Group, ...]:
    """Return the groups of features that are better moved together, each of at most `_MAX_UNKNOWNS` unknowns."""
    most = _MAX_UNKNOWNS // solved.data.flat.shape[1]
    groups = [Group.of(solved, which) for which in _groups(couplings(solved), most)]
    return tuple(group for group in groups if group is not None)


def couplings(solved: Solved) -> Floats:
    """Return (n, n) how much each pair of features is coupled, from 0 to 1; 0 on the diagonal."""
    slopes, c = solved.data.bend(solved.slopes), solved.forms.outputs
    slopes = slopes / (np.linalg.norm(slopes, axis=0) + TINY)
    c = c / (np.linalg.norm(c, axis=1) + TINY)[:, None]
    coupling = np.abs((slopes.T @ slopes) * (c @ c.T))
    np.fill_diagonal(coupling, 0.0)
    return np.asarray(coupling)


def _groups(coupling: Floats, most: int) -> list[Indices]:
    """Join the features of the strongest couplings first, up to `most` in a group; single ones are left out."""
    first, second = np.nonzero(np.triu(coupling > _COUPLED))
    label = np.arange(len(coupling))
    for k in np.argsort(-coupling[first, second], kind="stable"):
        a, b = label[first[k]], label[second[k]]
        both = (label == a) | (label == b)
        if a != b and both.sum() <= most:
            label[both] = a
    members = [np.flatnonzero(label == k) for k in np.unique(label)]
    return [which for which in members if len(which) > 1]
