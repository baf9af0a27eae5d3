"""The linear half of the fit: the best coefficients for given directions and kinks.

    C = argmin ‖Y − Φ C‖² + μ‖C‖² + roughness

by normal equations and Cholesky. The factor costs most, and it is reused: another roughness needs no new sums, a model
nearby needs only a few conjugate-gradient steps with it, and so does a model too wide to be summed over all points.
Sums are streamed in chunks, so memory does not grow with the number of points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve

from ..geometry import Floats
from . import threads
from .model import Model
from .products import Products, roughness_scale

_CHUNK = 2**26  # bytes of one streamed block of the design matrix
_NEARBY = 30  # conjugate-gradient steps after which a fresh factor is cheaper
_PACE = 6  # steps after which their pace is looked at
_SOLVED = 1e-9  # of the cost: what more steps could still gain where coefficients count as solved for
WIDE = 6000  # columns above which the factor comes from some of the points
RIDGE = 1e-11
"""μ relative to the mean square of a column: picks the smallest-norm split of what the data leave free."""
SMOOTH = 1e-9
"""Weight of the roughness penalty relative to one point's."""


@dataclass(frozen=True, eq=False)
class Linear:
    """The solved linear problem at one (v, t)."""

    model: Model
    factor: Floats | None
    """Lower Cholesky factor of ΦᵀΦ + μ, where it was formed: here or, unless `exact`, at a model nearby."""
    cost: float
    """‖Y − ΦC‖², summed over points and outputs."""
    exact: bool = True
    penalty: float = 0.0
    """μ‖C‖² + roughness."""

    @property
    def objective(self) -> float:
        """What C minimises; as it does, the gradient in v and t is that of ‖Y − ΦC‖² with C held fixed."""
        return self.cost + self.penalty


def chunks(count: int, columns: int) -> list[slice]:
    size = max(256, _CHUNK // (8 * max(columns, 1)))
    return [slice(a, min(a + size, count)) for a in range(0, count, size)]


class Gram:
    """ΦᵀΦ and ΦᵀY of one model, from which coefficients for any roughness weight are solved.

    A wide model's ΦᵀΦ is summed over three points a column; its factor then preconditions the solve over all.
    """

    @threads.one_blas_thread()
    def __init__(self, model: Model, X: Floats, Y: Floats) -> None:
        self.model, self.X, self.Y = model, X, Y
        N = model.columns
        stride = max(1, len(X) // (3 * N)) if N > WIDE else 1
        self.lift = stride
        X, Y = X[::stride], Y[::stride]
        self.middle = self.Y.mean(axis=0)  # taken out first, so that no regularisation pulls on it
        self.gram, self.right = np.zeros((N, N), order="F"), np.zeros((N, Y.shape[1]))
        for c in chunks(len(X), N):
            phi = model.design(X[c])
            threads.add_gram(self.gram, phi)
            self.right += phi.T @ (Y[c] - self.middle)

    @threads.one_blas_thread()
    def solve(self, smooth: float) -> Linear:
        model, X, Y = self.model, self.X, self.Y
        gram = self.gram * float(self.lift)
        _add_roughness(gram, model, smooth * len(X))
        factor = _regularised_factor(gram, len(X))
        coefficients = cho_solve((factor, True), self.right * float(self.lift))
        penalty = _penalty(model, coefficients, smooth, len(X))
        coefficients[-1 - model.dim] += self.middle
        solved = replace(model, coefficients=coefficients)
        if self.lift > 1:
            near = solve_nearby(solved, X, Y, smooth, factor, most=4 * _NEARBY, anyhow=True)
            assert near is not None
            return near
        return Linear(solved, factor, cost_of(solved, X, Y), penalty=penalty)


def cost_of(model: Model, X: Floats, Y: Floats) -> float:
    return sum(float(np.sum((Y[c] - model.predict(X[c])) ** 2)) for c in chunks(len(X), 4 * model.count))


def solve_linear(model: Model, X: Floats, Y: Floats, smooth: float = SMOOTH) -> Linear:
    """Best coefficients for the model's directions and kinks."""
    return Gram(model, X, Y).solve(smooth)


@threads.one_blas_thread()
def solve_nearby(
    model: Model, X: Floats, Y: Floats, smooth: float, factor: Floats, *, most: int = _NEARBY, anyhow: bool = False
) -> Linear | None:
    """As `solve_linear`, by conjugate gradients from the model's own coefficients.

    The preconditioner is the factor of a model nearby, so ρ = gᵀ(LLᵀ)⁻¹g is what the cost could still fall by: the
    iteration ends where that is a billionth of the cost. Where `most` steps do not get there, or at the pace of the
    first few would not, the factor is too far away: None, or, `anyhow`, what was reached.
    """
    products = Products(model, X, smooth, np.ones((model.count, Y.shape[1])))
    middle = Y.mean(axis=0)
    c = model.coefficients.copy()
    c[-1 - model.dim] -= middle
    residual = Y - middle - products.values(c)
    g = products.adjoint(residual) - products.penalty(c)
    y = cho_solve((factor, True), g)
    p, rho = y, float(np.vdot(g, y))
    first = max(rho, 1e-300)
    for step in range(most):
        enough = _SOLVED * float(np.vdot(residual, residual))
        if rho <= enough:
            break
        if step >= _PACE and not anyhow and step * np.log(first / enough) > most * np.log(first / rho):
            return None
        moved = products.values(p)
        Ap = products.adjoint(moved) + products.penalty(p)
        alpha = rho / max(float(np.vdot(p, Ap)), 1e-300)
        c, residual, g = c + alpha * p, residual - alpha * moved, g - alpha * Ap
        y = cho_solve((factor, True), g)
        rho, before = float(np.vdot(g, y)), rho
        p = y + (rho / before) * p
    else:
        if not anyhow:
            return None
    penalty = float(np.vdot(c, products.penalty(c)))
    c[-1 - model.dim] += middle
    cost = float(np.vdot(residual, residual))
    return Linear(replace(model, coefficients=c), factor, cost, exact=False, penalty=penalty)


@threads.one_blas_thread()
def keep_features(linear: Linear, keep: NDArray[np.intp], X: Floats, Y: Floats, smooth: float) -> Linear:
    """Best coefficients of the features that stay, directions as they are: no sums over points are made anew.

    With A = LLᵀ the columns that stay have A' = L'L'ᵀ, where L' are their rows of L.
    """
    model, factor = linear.model, linear.factor
    smaller = model.keep(keep)
    if factor is None:
        return solve_linear(smaller, X, Y, smooth)
    blocks = [np.arange(model.offsets[i], model.offsets[i + 1]) for i in keep]
    rows = np.concatenate([*blocks, np.arange(model.offsets[-1], model.columns)])
    gram = np.zeros((len(rows), len(rows)), order="F")
    threads.add_gram(gram, factor[rows].T)
    own = _regularised_factor(gram, len(X))
    near = solve_nearby(smaller, X, Y, smooth, own, anyhow=True)
    assert near is not None
    return replace(near, exact=linear.exact)


def _penalty(model: Model, c: Floats, smooth: float, count: int) -> float:
    """μ‖C‖² + roughness."""
    total = RIDGE * count * float(np.vdot(c, c))
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        second = np.diff(c[start : start + K + 3], n=2, axis=0)
        total += smooth * count * roughness_scale(int(K)) * float(np.vdot(second, second))
    return total


def _add_roughness(gram: Floats, model: Model, weight: float) -> None:
    """weight·∫s''² of every spline, up to a constant, added to the lower triangle in place.

    Where data are, this is far below them; where none are, it carries the response on along a straight line.
    """
    for start, K in zip(model.offsets[:-1], model.intervals, strict=True):
        k = start + np.arange(K + 1)
        per_interval = weight * roughness_scale(int(K))
        for a, wa in enumerate((1.0, -2.0, 1.0)):
            for b, wb in enumerate((1.0, -2.0, 1.0)):
                if a >= b:
                    gram[k + a, k + b] += per_interval * wa * wb


def _regularised_factor(gram: Floats, count: int) -> Floats:
    ridge = RIDGE * count
    diagonal = np.arange(len(gram))
    scale = np.maximum(gram[diagonal, diagonal], 1e-3 * count / len(gram))
    for _ in range(8):
        trial = gram.copy(order="F")
        trial[diagonal, diagonal] += ridge + 1e-13 * scale
        try:
            return threads.cholesky(trial)
        except LinAlgError:
            ridge *= 30.0
    raise LinAlgError("the normal equations stay singular; the fit points must be degenerate")
