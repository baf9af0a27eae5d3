"""The sum of features while it is being fitted: directions, knots and kinks (nonlinear), coefficients (linear).

    f̂(x) = b + a·x + Σ_i [ Σ_k c_ik B_k(v_i·x) + Σ_j u_ij |v_i·x − t_ij| ]

For given v and t this is linear in (c, u, a, b): one design matrix Φ(x) with the columns of feature i side by side,
then 1 and x. All outputs share Φ, so coefficients form an (N, p) array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..bspline import basis, basis_slope, combine, scatter
from ..geometry import Floats
from ..response import Response
from . import threads

ROWS = 4096
"""Points that one thread takes at a time: (rows, n) products stay in the processor's cache for n up to a hundred."""
_LEAST_ROWS = 1024  # of such a portion: a loop over the features takes longer than what it does with fewer points
_SHARES = 8  # portions at the least, if there are enough points
TINY = 1e-300
"""Keeps a quotient finite if numerator and denominator are both zero; far below any sum of squares of answers."""
_RANK_ONE_OUTPUTS = 8  # empirical: from this many outputs on, testing for rank-one responses costs less than it saves
_RANK_ONE_DEFECT = 1e-24  # of a block's sum of squares: rounding errors of a product of two vectors
_SAME_KINK = 1e-3  # of the radius: two kinks closer than this are one


def portions_of_points(count: int) -> list[slice]:
    """Return slices of `count` points, of which one thread takes one at a time."""
    return threads.portions(count, min(ROWS, max(_LEAST_ROWS, -(-count // _SHARES))))


@dataclass(frozen=True, eq=False)
class Model:
    """A sum of n features in d dimensions with p outputs; derived models are new objects."""

    radius: float
    directions: Floats
    """(n, d) unit rows."""
    intervals: NDArray[np.intp]
    """(n,) numbers K_i of spline intervals."""
    kinks: tuple[Floats, ...]
    """Kink positions t_ij, one array per feature."""
    coefficients: Floats
    """(N, p) coefficients, N = Σ(K_i + 3 + J_i) + 1 + d for J_i kinks."""

    @classmethod
    def start(cls, directions: Floats, radius: float, intervals: int, outputs: int) -> Model:
        """Return features along `directions` (n, d) with equal knots, no kinks and zero coefficients."""
        n = len(directions)
        bare = cls(radius, directions, np.full(n, intervals, dtype=np.intp), (np.empty(0),) * n, np.empty((0, outputs)))
        return replace(bare, coefficients=np.zeros((bare.columns, outputs)))

    @property
    def count(self) -> int:
        return len(self.directions)

    @property
    def dim(self) -> int:
        return int(self.directions.shape[1])

    @property
    def outputs(self) -> int:
        return int(self.coefficients.shape[1])

    @cached_property
    def widths(self) -> NDArray[np.intp]:
        """(n,) number of columns of each feature."""
        return self.intervals + 3 + np.array([len(t) for t in self.kinks], dtype=np.intp)

    @cached_property
    def offsets(self) -> NDArray[np.intp]:
        """(n+1,) first column of each feature; the last entry is the first affine column."""
        return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(self.widths)])

    @property
    def columns(self) -> int:
        return int(self.widths.sum()) + 1 + self.dim

    @property
    def parameters(self) -> int:
        """Number of free parameters: directions, kink positions, and linear coefficients for every output."""
        return self.count * (self.dim - 1) + sum(map(len, self.kinks)) + self.columns * self.outputs

    def design(self, X: Floats) -> Floats:
        """Return Φ (m, N) at the rows of X (m, d)."""
        phi = np.zeros((len(X), self.columns))

        def portion(rows: slice) -> None:
            Z = X[rows] @ self.directions.T
            for i in range(self.count):
                self._fill(i, Z[:, i], phi[rows, self.offsets[i] : self.offsets[i + 1]])

        threads.parallel_map(portion, portions_of_points(len(X)))
        phi[:, -1 - self.dim] = 1.0
        phi[:, -self.dim :] = X
        return phi

    def columns_of(self, i: int, z: Floats) -> Floats:
        """Return the columns (m, K_i + 3 + J_i) of feature i at z (m,)."""
        return self._fill(i, z, np.zeros((len(z), int(self.widths[i]))))

    def _fill(self, i: int, z: Floats, out: Floats) -> Floats:
        """Write the columns of feature i at z into `out`, which holds zeros, and return it."""
        K, t = int(self.intervals[i]), self.kinks[i]
        scatter(out, *basis(z, self.radius, K))
        if len(t):
            out[:, K + 3 :] = np.abs(z[:, None] - t)
        return out

    def predict(self, X: Floats) -> Floats:
        """Return f̂ (m, p) at the rows of X (m, d)."""
        values = np.empty((len(X), self.outputs))
        factors = self._rank_one

        def portion(rows: slice) -> None:
            out = self.coefficients[-1 - self.dim] + X[rows] @ self.coefficients[-self.dim :]
            Z = X[rows] @ self.directions.T
            if factors is None:
                for i in range(self.count):
                    out += self.term(i, Z[:, i])
            else:
                scalar, w = factors
                for i in range(self.count):
                    Z[:, i] = scalar.term(i, Z[:, i])[:, 0]
                out += Z @ w
            values[rows] = out

        threads.parallel_map(portion, portions_of_points(len(X)))
        return values

    @cached_property
    def _rank_one(self) -> tuple[Model, Floats] | None:
        """A scalar model and vectors (n, p) if every response is one function times one p-vector; else None."""
        if self.outputs < _RANK_ONE_OUTPUTS or not self.count:
            return None
        w = np.empty((self.count, self.outputs))
        c = np.zeros((len(self.coefficients), 1))
        for i in range(self.count):
            block = self.block(i)
            size = np.einsum("kp,kp->k", block, block)
            row = block[np.argmax(size)]
            w[i] = row / max(np.linalg.norm(row), TINY)
            own = block @ w[i]
            if np.sum((block - np.multiply.outer(own, w[i])) ** 2) > _RANK_ONE_DEFECT * size.sum():
                return None
            c[self.offsets[i] : self.offsets[i + 1], 0] = own
        return replace(self, coefficients=c), w

    def block(self, i: int) -> Floats:
        """Return the coefficients (K_i + 3 + J_i, p) of feature i."""
        return self.coefficients[self.offsets[i] : self.offsets[i + 1]]

    def term(self, i: int, z: Floats) -> Floats:
        """Return s_i (m, p) at z (m,)."""
        c = self.block(i)
        values = combine(*basis(z, self.radius, int(self.intervals[i])), c)
        if len(self.kinks[i]):
            values += np.abs(z[:, None] - self.kinks[i]) @ c[self.intervals[i] + 3 :]
        return values

    def term_slope(self, i: int, z: Floats, along: Floats | None = None) -> Floats:
        """Return s_i' at z: (m, p), or (m,) for its component along a p-vector."""
        c = self.block(i)
        c = c if along is None else (c @ along)[:, None]
        values = combine(*basis_slope(z, self.radius, int(self.intervals[i])), c)
        if len(self.kinks[i]):
            values += np.sign(z[:, None] - self.kinks[i]) @ c[self.intervals[i] + 3 :]
        return values if along is None else values[:, 0]

    def along(self, w: Floats) -> Model:
        """Return the scalar model whose response i is w_i·s_i, without an affine part."""
        c = np.zeros((len(self.coefficients), 1))
        for i in range(self.count):
            c[self.offsets[i] : self.offsets[i + 1], 0] = self.block(i) @ w[i]
        return replace(self, coefficients=c)

    def response(self, i: int, scalar: bool) -> Response:
        """Return feature i as the public `Response`."""
        c = self.block(i)
        c = c[:, 0] if scalar else c
        K = int(self.intervals[i])
        return Response(self.radius, c[: K + 3], self.kinks[i], c[K + 3 :])

    def keep(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Model:
        """Return the model with the features at these indices only and the same coefficients."""
        index = np.arange(self.count)[which]
        blocks = [self.block(int(i)) for i in index]
        return replace(
            self,
            directions=self.directions[index],
            intervals=self.intervals[index],
            kinks=tuple(self.kinks[int(i)] for i in index),
            coefficients=np.concatenate([*blocks, self.coefficients[-1 - self.dim :]]),
        )

    def merged(self, i: int, j: int) -> Model:
        """Merge feature j into feature i: the direction of i, the finer knots, all kinks, zero coefficients."""
        sign = 1.0 if self.directions[i] @ self.directions[j] >= 0 else -1.0
        new = [t for t in sign * self.kinks[j] if np.all(np.abs(self.kinks[i] - t) > _SAME_KINK * self.radius)]
        intervals, kinks = self.intervals.copy(), list(self.kinks)
        intervals[i] = max(intervals[i], intervals[j])
        kinks[i] = np.sort(np.concatenate([self.kinks[i], new]))
        keep = np.delete(np.arange(self.count), j)
        smaller = replace(self, directions=self.directions[keep])
        return smaller.reshaped(intervals[keep], tuple(kinks[k] for k in keep))

    def in_larger_space(self, extra: int) -> Model:
        """Return the same function of the first d of d + `extra` coordinates."""
        return replace(
            self,
            directions=np.pad(self.directions, ((0, 0), (0, extra))),
            coefficients=np.pad(self.coefficients, ((0, extra), (0, 0))),
        )

    def with_affine_part(self, X: Floats, Y: Floats) -> Model:
        """Return the model with the affine function of least squares that it leaves; responses stay as they are."""
        flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        coefficients = self.coefficients.copy()
        coefficients[-1 - self.dim :] += np.linalg.lstsq(flat, Y - self.predict(X), rcond=None)[0]
        return replace(self, coefficients=coefficients)

    def join(self, directions: Floats, intervals: int, kinks: tuple[Floats, ...] = ()) -> Model:
        """Return the model with more features along `directions` (k, d), with zero responses and the given kinks."""
        new = Model.start(directions, self.radius, intervals, self.outputs)
        if kinks:
            new = new.reshaped(new.intervals, kinks)
        own, affine = self.coefficients[: self.offsets[-1]], self.coefficients[self.offsets[-1] :]
        return replace(
            self,
            directions=np.concatenate([self.directions, directions]),
            intervals=np.concatenate([self.intervals, new.intervals]),
            kinks=self.kinks + new.kinks,
            coefficients=np.concatenate([own, new.coefficients[: new.offsets[-1]], affine]),
        )

    def reshaped(self, intervals: NDArray[np.intp], kinks: tuple[Floats, ...]) -> Model:
        """Return the same directions with other knots and kinks and zero coefficients."""
        bare = replace(self, intervals=intervals, kinks=kinks)
        return replace(bare, coefficients=np.zeros((bare.columns, self.outputs)))
