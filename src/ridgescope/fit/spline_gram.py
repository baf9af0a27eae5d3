"""ΦᵀΦ of a spline model, summed from the four entries that each feature has at a point.

At a point with z_i in interval k and z_j in interval l the block Φ_iᵀΦ_j gets a 4 × 4 matrix at (k, l). All of them are
added up by `np.bincount`: sixteen additions for each point and pair of features, whatever the number of knots, where a
product of dense columns takes (K + 3)² multiplications. Those are forty times as fast, so that `pays` compares the two.
Columns of kinks and of the affine part are dense; with these Φ_i is multiplied as a sparse matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..bspline import basis, sparse_rows
from ..geometry import Floats
from . import threads
from .model import Model

_BREAK_EVEN = 29.0
"""Columns of a spline from which on counting is faster than a product of dense columns: `benchmarks/gram.py`."""
_COUNTS = 16.0  # additions for each point and pair of features

Entries = tuple[NDArray[np.intp], Floats]
"""First columns (m,) and weights (4, m) of a feature's splines at some points."""


def pays(model: Model) -> bool:
    """Return whether counting takes less time than a product of dense columns."""
    return model.count > 0 and float(np.mean((model.intervals + 3.0) ** 2)) >= _BREAK_EVEN**2


def work(model: Model, count: int) -> float:
    """Return the additions for `count` points."""
    return _COUNTS * count * model.count * (model.count + 1) / 2


def add_spline_gram(gram: Floats, right: Floats, model: Model, X: Floats, Y: Floats) -> None:
    """Add ΦᵀΦ to `gram` (N, N), on and below the diagonal at least, and ΦᵀY to `right` (N, p)."""
    Z = X @ model.directions.T
    entries = threads.parallel_map(lambda i: basis(Z[:, i], model.radius, int(model.intervals[i])), range(model.count))
    columns = [model.offsets[i] + np.arange(model.intervals[i] + 3) for i in range(model.count)]
    rest = np.setdiff1d(np.arange(model.columns), np.concatenate(columns))
    dense = _dense_columns(model, X, Z)
    gram[np.ix_(rest, rest)] += threads.gram(dense)
    right[rest] += threads.inner(dense, Y)
    beside = np.concatenate([dense, Y], axis=1)

    def row(i: int) -> None:
        product = sparse_rows(*entries[i], len(columns[i])).T @ beside
        gram[np.ix_(columns[i], rest)] += product[:, : len(rest)]
        gram[np.ix_(rest, columns[i])] += product[:, : len(rest)].T
        right[columns[i]] += product[:, len(rest) :]
        for j in range(i + 1):
            block = _counted(entries[i], entries[j], len(columns[i]), len(columns[j]))
            gram[columns[i][0] : columns[i][-1] + 1, columns[j][0] : columns[j][-1] + 1] += block

    threads.parallel_map(row, range(model.count))


def _counted(first: Entries, second: Entries, rows: int, columns: int) -> Floats:
    """Return Φ_iᵀΦ_j (rows, columns) of two features."""
    (k, w), (other, v) = first, second
    at = k * columns + other + (np.arange(4)[:, None, None] * columns + np.arange(4)[None, :, None])
    counted = np.bincount(at.ravel(), (w[:, None] * v[None]).ravel(), rows * columns)
    return np.asarray(counted, dtype=np.float64).reshape(rows, columns)


def _dense_columns(model: Model, X: Floats, Z: Floats) -> Floats:
    """Return the columns of kinks, then 1 and x, in the order that they have in Φ."""
    kinks = [np.abs(Z[:, i, None] - model.kinks[i]) for i in range(model.count) if len(model.kinks[i])]
    return np.concatenate([*kinks, np.ones((len(X), 1)), X], axis=1)
