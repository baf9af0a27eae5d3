"""Features of known form: f̂(x) = a₀ + a·x + Σ_i φ_i(w_i·x + b_i) c_i.

A feature without a closed form keeps a spline, K + 3 linear columns with p-vectors of their own, along its direction.
In a step of its direction it counts as a form of κ = 1 and b = 0 whose φ is its leading component over the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..bspline import basis_slope, combine, design_matrix
from ..geometry import Floats
from . import threads
from .activations import ACTIVATIONS, SPLINE, Indices, as_spline
from .model import TINY, Model


@dataclass(frozen=True, eq=False)
class ClosedForms:
    """n features in d dimensions with p outputs, each of a known family or a spline."""

    radius: float
    directions: Floats
    """(n, d) unit rows; w_i = κ_i v_i / R."""
    family: Indices
    """(n,) index into `ACTIVATIONS`, or `SPLINE`."""
    kappa: Floats
    """(n,) steepness per radius; its sign matters for families of no symmetry only."""
    b: Floats
    """(n,)."""
    intervals: int
    """Of the features that are splines."""
    coefficients: Floats
    """(N, p): one row per closed form, K + 3 per spline, in the order of the features, then 1 and x."""

    @classmethod
    def blank(cls, directions: Floats, radius: float, intervals: int, outputs: int) -> ClosedForms:
        """Return features along these directions, all of the first family, without coefficients yet."""
        n, d = directions.shape
        family, empty = np.zeros(n, dtype=np.intp), np.zeros((n + 1 + d, outputs))
        return cls(radius, directions, family, np.ones(n), np.zeros(n), intervals, empty)

    @property
    def count(self) -> int:
        return len(self.directions)

    @property
    def dim(self) -> int:
        return int(self.directions.shape[1])

    @property
    def unknowns(self) -> int:
        """Number of all unknowns: w_i and b_i of every feature, and the coefficients."""
        return self.count * (self.dim + 1) + int(self.coefficients.size)

    @cached_property
    def offsets(self) -> Indices:
        """(n+1,) first row of each feature in `coefficients`."""
        widths = np.where(self.family == SPLINE, self.intervals + 3, 1)
        return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(widths)])

    def block(self, i: int) -> Floats:
        """Return the coefficients of feature i: (1, p) or, for a spline, (K + 3, p)."""
        return self.coefficients[self.offsets[i] : self.offsets[i + 1]]

    @property
    def closed(self) -> Indices:
        """Indices of the features that have a closed form."""
        return np.flatnonzero(self.family != SPLINE)

    @cached_property
    def spline_rows(self) -> Indices:
        """Rows of the splines in `coefficients`."""
        return np.flatnonzero(np.repeat(self.family == SPLINE, np.diff(self.offsets)))

    @cached_property
    def outputs(self) -> Floats:
        """(n, p) output vectors; of a spline, the unit vector of its leading component."""
        vectors = self.coefficients[self.offsets[:-1]].copy()
        for i in np.flatnonzero(self.family == SPLINE):
            vectors[i] = leading_output(self.block(int(i)))
        return vectors

    def atoms(self, X: Floats) -> tuple[Floats, Floats]:
        """Return φ and φ' (m, k) of the k features that have a closed form."""
        closed = self.closed
        values, slopes = np.empty((len(X), len(closed))), np.empty((len(X), len(closed)))
        weights = (self.directions[closed] * (self.kappa[closed] / self.radius)[:, None]).T
        family, b = self.family[closed], self.b[closed]
        members = [(ACTIVATIONS[index], np.flatnonzero(family == index)) for index in np.unique(family)]

        def strip(rows: slice) -> None:
            y = X[rows] @ weights + b
            for form, which in members:
                values[rows, which], slopes[rows, which] = form.atom(y[:, which])

        threads.parallel_map(strip, threads.strips(len(X), len(closed)))
        return values, slopes

    def spline_columns(self, X: Floats) -> Floats:
        """Return the columns of all splines (m, s(K + 3))."""
        splines = np.flatnonzero(self.family == SPLINE)
        columns = np.empty((len(X), len(splines) * (self.intervals + 3)))
        for k, i in enumerate(splines):
            at = slice(k * (self.intervals + 3), (k + 1) * (self.intervals + 3))
            columns[:, at] = design_matrix(X @ self.directions[i], self.radius, self.intervals)
        return columns

    def spline_slope(self, i: int, X: Floats) -> Floats:
        """Return (m,) the derivative by u = z/R of the leading component of spline i."""
        first, weights = basis_slope(X @ self.directions[i], self.radius, self.intervals)
        return self.radius * combine(first, weights, self.block(i) @ self.outputs[i])

    def predict(self, X: Floats) -> Floats:
        """Return f̂ (m, p) at the rows of X (m, d)."""
        own = self.offsets[-1]
        linear = self.coefficients[own] + X @ self.coefficients[own + 1 :]
        by_forms = self.atoms(X)[0] @ self.coefficients[self.offsets[self.closed]]
        return np.asarray(linear + by_forms + self.spline_columns(X) @ self.coefficients[self.spline_rows])

    def keep(self, which: Indices) -> ClosedForms:
        """Return the features at these indices; the coefficients are those of all of them."""
        rows = [np.arange(self.offsets[i], self.offsets[i + 1]) for i in which]
        rows.append(np.arange(self.offsets[-1], len(self.coefficients)))
        return replace(
            self,
            directions=self.directions[which],
            family=self.family[which],
            kappa=self.kappa[which],
            b=self.b[which],
            coefficients=self.coefficients[np.concatenate(rows)],
        )

    def model(self, error: float) -> Model:
        """Return the same function as splines and kinks, with an error of about `error` in all.

        Errors of single responses add up like random signs do.
        """
        R, p = self.radius, self.coefficients.shape[1]
        blocks, intervals, kinks = [], [], []
        for i in range(self.count):
            own = self.coefficients[self.offsets[i] : self.offsets[i + 1]]
            if self.family[i] == SPLINE:
                blocks.append(own)
                intervals.append(self.intervals)
                kinks.append(np.empty(0))
                continue
            size = float(np.abs(own).max()) * np.sqrt(self.count)
            index, kappa, b = int(self.family[i]), float(self.kappa[i]), float(self.b[i])
            spline, t, weight = as_spline(index, kappa, b, error / max(size, TINY))
            blocks.append(np.concatenate([spline, weight / R])[:, None] * own)
            intervals.append(len(spline) - 3)
            kinks.append(R * t)
        affine = self.coefficients[self.offsets[-1] :].reshape(-1, p)
        return Model(R, self.directions, np.array(intervals, np.intp), tuple(kinks), np.concatenate([*blocks, affine]))


def leading_output(block: Floats) -> Floats:
    """Return the unit p-vector of which the rows of a block (k, p) have most."""
    if block.shape[1] == 1:
        return np.ones(1)
    return np.asarray(np.linalg.svd(block, full_matrices=False)[2][0])
