"""Gated units in closed form, and the splines that stand for them.

    f(x) = bias + slope·x + Σ_i o_i φ_i(g_i·x + b_i) (w_i·x + c_i)

with p-vectors o_i: SwiGLU for φ = SiLU, GEGLU for GELU, ReGLU for ReLU, GLU for the sigmoid, which is ½ + ½ tanh(y/2)
and leaves an affine term. A plain neuron has w = 0 and c = 1. Along v = g/|g|, with w = αv + βu, u ⟂ v, |u| = 1, a
unit is

    s(z) = o φ(kz + b)(αz + c),      t(z) = o β φ(kz + b),      k = |g|.

Unlike in a plain sum the line of φ matters, since it is multiplied by w·x: for SiLU, φ(−y) = φ(y) − y, and a gate
differs from its mirror image by a quadratic form. So the sign of g is determined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..bspline import design_matrix, interpolation_nodes
from ..geometry import Floats, unit
from ..shapes.families import Family
from . import threads
from .activations import ACTIVATIONS, INDEX
from .model import ROWS, TINY, Model

GATES: tuple[Family, ...] = (
    *(ACTIVATIONS[INDEX[name]] for name in ("silu", "gelu", "gelu_tanh", "tanh", "softplus", "mish")),
    Family("relu", lambda y: (np.maximum(y, 0.0), (y > 0.0).astype(np.float64)), "hinge"),
    *(ACTIVATIONS[INDEX[name]] for name in ("erf", "bump", "sine", "arctan")),
)
"""Activations that a gate may have, from common to rare; "relu" is the function itself, not |y|/2."""
GATE_INDEX = {family.name: i for i, family in enumerate(GATES)}
_LEAST_INTERVALS, _MOST_INTERVALS = 16, 512  # of the splines that stand for closed forms
_CHECKS = 4  # points per interval at which the error of such a spline is measured


@dataclass(frozen=True, eq=False)
class GatedForms:
    """A sum of gated and plain units, all of closed form."""

    radius: float
    g: Floats
    """(n, d) gate weights."""
    b: Floats
    """(n,) gate biases."""
    w: Floats
    """(n, d) carrier weights; zero rows of plain units."""
    c: Floats
    """(n,) carrier biases; one for plain units."""
    family: NDArray[np.intp]
    """(n,) indices of `GATES`."""
    coefficients: Floats
    """(n + 1 + d, p): output vectors o, then bias and slope."""

    @property
    def count(self) -> int:
        return len(self.g)

    @property
    def dim(self) -> int:
        return int(self.g.shape[1])

    @property
    def gated(self) -> NDArray[np.bool_]:
        """(n,) whether a unit has a carrier."""
        return np.asarray(self.w.any(axis=1))

    @property
    def outputs(self) -> Floats:
        """(n, p) output vectors o."""
        return self.coefficients[: self.count]

    @property
    def unknowns(self) -> int:
        """Number of parameters."""
        return int(self.count + self.g.size + self.gated.sum() * (self.dim + 1) + self.coefficients.size)

    def gates(self, X: Floats) -> tuple[Floats, Floats]:
        """Return φ and φ' (m, n) at the rows of X (m, d)."""
        y = X @ self.g.T + self.b
        values, slopes = np.empty_like(y), np.empty_like(y)
        for index in np.unique(self.family):
            own = self.family == index
            values[:, own], slopes[:, own] = GATES[index].atom(y[:, own])
        return values, slopes

    def carried(self, X: Floats) -> Floats:
        """Return w·x + c (m, n), which is one for plain units."""
        return np.asarray(X @ self.w.T + self.c)

    def predict(self, X: Floats) -> Floats:
        """Return the values (m, p) at the rows of X (m, d)."""
        terms = self.gates(X)[0] * self.carried(X)
        bias, slope = self.coefficients[self.count], self.coefficients[self.count + 1 :]
        return np.asarray(terms @ self.outputs + bias + X @ slope)

    def keep(self, which: NDArray[np.intp]) -> GatedForms:
        """Return the forms with these units only."""
        rows = np.concatenate([which, np.arange(self.count, len(self.coefficients))])
        parts = {name: getattr(self, name)[which] for name in ("g", "b", "w", "c", "family")}
        return replace(self, **parts, coefficients=self.coefficients[rows])

    def split(self, i: int) -> tuple[float, Floats, float, float]:
        """Return k, u (d,), α and β of unit i: g = kv and w = αv + βu; u is zero for a plain unit."""
        k = float(np.linalg.norm(self.g[i]))
        v = self.g[i] / max(k, TINY)
        alpha = float(self.w[i] @ v)
        across = self.w[i] - alpha * v
        beta = float(np.linalg.norm(across))
        return k, (across / beta if beta > 0 else across), alpha, beta

    def curves(self, z: Floats) -> tuple[Floats, Floats]:
        """Return φ(kz + b)(αz + c) and β(φ(kz + b) − φ(b)) of every unit at z (M,), each (M, n): s and t without o."""
        parts = [self.split(i) for i in range(self.count)]
        k, alpha, beta = (np.array([part[j] for part in parts]) for j in (0, 2, 3))
        gate, at_zero = np.empty((len(z), self.count)), np.empty(self.count)
        for index in np.unique(self.family):
            own = self.family == index
            gate[:, own] = GATES[index].atom(np.multiply.outer(z, k[own]) + self.b[own])[0]
            at_zero[own] = GATES[index].atom(self.b[own])[0]
        return gate * (np.multiply.outer(z, alpha) + self.c), beta * (gate - at_zero)

    def folds(self) -> tuple[tuple[Floats, ...], Floats, Floats]:
        """Return the kinks t of every unit in the ball, one or none, and the weights (n,) of |z − t| in its curves.

        A relu(kz + b) has ½k|z − t|, t = −b/k, times αt + c in s, beside what has no jump of its slope, and times β.
        """
        parts = [self.split(i) for i in range(self.count)]
        k, alpha, beta = (np.array([part[j] for part in parts]) for j in (0, 2, 3))
        t = -self.b / np.maximum(k, TINY)
        there = (self.family == GATE_INDEX["relu"]) & (np.abs(t) < self.radius)
        half = np.where(there, 0.5 * k, 0.0)
        own = tuple(t[i : i + 1] if yes else np.empty(0) for i, yes in enumerate(there))
        return own, half * (alpha * np.where(there, t, 0.0) + self.c), half * beta

    def model(self, error: float) -> GatedModel:
        """Return the same function as splines on equal knots, with an error of about `error` in all if possible.

        Errors of single units add up like random signs do. t(0) = 0, and what t has there belongs to the slope.
        """
        n, R = self.count, self.radius
        carriers = np.stack([self.split(i)[1] for i in range(n)])
        size = np.abs(self.outputs).max(axis=1) * np.sqrt(n)
        intervals = _LEAST_INTERVALS
        kinks, *weights = self.folds()
        places = np.array([t[0] if len(t) else 0.0 for t in kinks])

        def smooth_curves(z: Floats) -> list[Floats]:
            fold = np.abs(z[:, None] - places)
            return [curve - w * fold for curve, w in zip(self.curves(z), weights, strict=True)]

        while True:
            inverse = np.linalg.inv(design_matrix(nodes := interpolation_nodes(R, intervals), R, intervals))
            splines = [inverse @ values for values in smooth_curves(nodes)]
            checks = np.linspace(-R, R, _CHECKS * intervals + 1)
            design = design_matrix(checks, R, intervals)
            wrong = [np.abs(design @ a - b) * size for a, b in zip(splines, smooth_curves(checks), strict=True)]
            if max(wrong[0].max(), R * wrong[1].max()) <= error or intervals >= _MOST_INTERVALS:
                break
            intervals *= 2
        affine = self.coefficients[n:].copy()
        at_zero = np.array([GATES[f].atom(b)[0] for f, b in zip(self.family, self.b, strict=True)])
        beta = np.array([self.split(i)[3] for i in range(n)])
        affine[1:] += (carriers * (beta * at_zero)[:, None]).T @ self.outputs
        s, t = (
            np.concatenate(
                [
                    np.multiply.outer(np.append(a[:, i], np.full(len(kinks[i]), w[i])), o)
                    for i, o in enumerate(self.outputs)
                ]
            )
            for a, w in zip(splines, weights, strict=True)
        )
        shape = (R, unit(self.g), np.full(n, intervals, np.intp), kinks)
        gain = Model(*shape, np.concatenate([t, np.zeros_like(affine)]))
        return GatedModel(*shape, np.concatenate([s, affine]), carriers=carriers, gain=gain)


@dataclass(frozen=True, eq=False, kw_only=True)
class GatedModel(Model):
    """A model some of whose features have a second term t_i(v_i·x)(u_i·x).

    The fields of `Model` describe s; those of `gain`, a model with the same directions and no affine part, describe t.
    """

    carriers: Floats
    """(n, d) unit rows u ⟂ v; zero rows of plain features."""
    gain: Model

    @property
    def gated(self) -> NDArray[np.bool_]:
        """(n,) whether a feature has a carrier."""
        return np.asarray(self.carriers.any(axis=1))

    def predict(self, X: Floats) -> Floats:
        """Return f̂ (m, p) at the rows of X (m, d)."""
        values = super().predict(X)
        factors = self.gain._rank_one

        def portion(rows: slice) -> None:
            Z, carried = X[rows] @ self.directions.T, X[rows] @ self.carriers.T
            if factors is None:
                for i in np.flatnonzero(self.gated):
                    values[rows] += self.gain.term(int(i), Z[:, i]) * carried[:, i, None]
                return
            scalar, w = factors
            for i in np.flatnonzero(self.gated):
                carried[:, i] *= scalar.term(int(i), Z[:, i])[:, 0]
            values[rows] += carried @ w

        if self.gated.any():
            threads.parallel_map(portion, threads.portions(len(X), ROWS))
        return values

    def keep(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> GatedModel:
        """Return the model with the features at these indices only."""
        smaller, index = super().keep(which), np.arange(self.count)[which]
        assert isinstance(smaller, GatedModel)
        return replace(smaller, carriers=self.carriers[index], gain=self.gain.keep(index))

    def join(self, directions: Floats, intervals: int, kinks: tuple[Floats, ...] = ()) -> Model:
        """Return the features without their second terms, and more of them: fits of plain features know no gates."""
        plain = Model(self.radius, self.directions, self.intervals, self.kinks, self.coefficients)
        return plain.join(directions, intervals, kinks)

    def in_larger_space(self, extra: int) -> GatedModel:
        """Return the same function of the first d of d + `extra` coordinates."""
        larger = super().in_larger_space(extra)
        assert isinstance(larger, GatedModel)
        carriers = np.pad(self.carriers, ((0, 0), (0, extra)))
        return replace(larger, carriers=carriers, gain=self.gain.in_larger_space(extra))

    def in_gauge(self) -> GatedModel:
        """Return the same function with t(0) = 0; what t had there belongs to the slope."""
        t, coefficients = self.gain.coefficients.copy(), self.coefficients.copy()
        for i in np.flatnonzero(self.gated):
            at_zero = self.gain.term(int(i), np.zeros(1))[0]
            t[self.gain.offsets[i] : self.gain.offsets[i] + self.gain.intervals[i] + 3] -= at_zero
            coefficients[-self.dim :] += np.multiply.outer(self.carriers[i], at_zero)
        return replace(self, coefficients=coefficients, gain=replace(self.gain, coefficients=t))
