"""Theorem weaker and Theorem main-learning as their proofs go, with no addition of ours.

Theorem weaker: subtract f(0), Lemma find-directions once (or by majority), Lemma recover-function along each direction
with t_low = ℓ₂^−0.9, and the sum. Theorem main-learning: the same for h(x) = ⟨u, ∇g(x) − ∇g(0)⟩, g = f ∗ N(0, η²I),
whose responses are integrated and to which f(0) + ∇g(0)·x comes back:

    f̃(x) = f(0) + ∇g(0)·x + Σ_i ∫₀^{u_i·x} ρ̃_i,      ρ̃_i from h with u = u_i, shifted to ρ̃_i(0) = 0.

The theorem takes u = e_1 … e_d and integrates each estimated derivative, which is possible only for the combination
Σ_k ⟨e_k, u_i⟩ρ_i^{e_k} (docs/theory.md, corrections). By linearity that is the response of ⟨u_i, ∇g⟩, so u = u_i is
asked at once. The difference over α stands for the derivative, as in the proof; nothing is divided out.

Letters: u_i found directions, ρ̃_i responses of the derivative, R radius of the ball, ℓ₁ and ℓ₂ widths of the windows, m
number of samples, α length of a difference, η smoothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats, frozen
from .learned import Learned, learned_from
from .majority import search
from .mass import CountedField, Field
from .peel import BEYOND_BALL, Model, Table, empty_model, tabulated, zero_table
from .response import Derivative, Response, difference, recover_response
from .survey import Settings

_GRADIENT_SAMPLES = 20_000
"""Points of which ∇g(0) is the average. With noise ε in f its error is √2·ε/(α·√20000), a hundredth of the error of one
difference."""
_LEAST_SAMPLES = 1000
"""Fewest samples of a response that are worth asking: their error is 3 % of the size of the response."""


@dataclass(frozen=True)
class Slope:
    """The scalar field x ↦ (f(x + αu) − f(x))/α at x shifted by a fresh ηz: ⟨u, ∇g⟩ for one unit vector u (d,)."""

    f: Field
    u: Floats
    alpha: float
    eta: float
    rng: np.random.Generator

    def __call__(self, X: Floats) -> Floats:
        """Return the (m,) differences at the rows of X (m, d)."""
        x = X + self.eta * self.rng.standard_normal(X.shape)
        values = self.f(np.concatenate([x, x + self.alpha * self.u])).reshape(2, -1)
        return np.asarray((values[1] - values[0]) / self.alpha)


def bounded(f: Field, *, dim: int, radius: float, settings: Settings, rng: np.random.Generator) -> Learned:
    """Run the proof of Theorem weaker; parameters and result are those of `learn_bounded`."""
    counted = CountedField(f)
    m = settings.samples
    # The remark after Assumption nondegen: query f(0) and subtract it.
    start = replace(empty_model(dim), bias=float(counted(np.zeros((1, dim)))[0]))
    field = start.residual(counted)
    # Section weaker-proof: Lemma find-directions with ℓ ← ℓ₁, O(log 1/δ) times, by majority …
    U = search(field, dim=dim, settings=settings, m=m, rng=rng)
    # … then Lemma recover-function with ℓ ← ℓ₂ on each of u_1 … u_s, and the sum.
    responses = [recover_response(field, settings.ell2, u, m=m, rng=rng, t_high=settings.top) for u in U]
    model = replace(tabulated(U, responses, radius=radius, settings=settings), bias=start.bias)
    return learned_from(model, np.full(len(U), np.inf), radius=radius, queries=counted.queries, rounds=1)


def unbounded(
    f: Field,
    *,
    dim: int,
    radius: float,
    settings: Settings,
    rng: np.random.Generator,
    max_queries: int | None = None,
) -> Learned:
    """Run the proof of Theorem main-learning; parameters and result are those of `learn`."""
    counted = CountedField(f)
    limit = math.inf if max_queries is None else max_queries
    m, alpha, eta = settings.samples, settings.alpha, settings.eta
    start = _affine_start(counted, dim, settings, rng)
    h = start.residual(counted)
    searching = 2 * m * max(dim - 1, 1) * (dim + 1) * settings.repeats
    if counted.queries + searching > limit:
        return learned_from(start, frozen([]), radius=radius, queries=counted.queries, rounds=0)
    # Section remove-bounded: Theorem weaker on ⟨u, ∇g − ∇g(0)⟩ for u = e_1 … e_d at once …
    field = Derivative(h, alpha, eta)
    U = search(field, dim=dim, settings=settings, m=m, rng=rng, max_candidates=settings.candidates)
    each = min(m, int((limit - counted.queries) // (2 * max(len(U), 1)))) if math.isfinite(limit) else m
    if each < _LEAST_SAMPLES:
        return learned_from(start, frozen([]), radius=radius, queries=counted.queries, rounds=1)
    tables = []
    for u in U:
        rho = recover_response(Slope(h, u, alpha, eta, rng), settings.ell2, u, m=each, rng=rng, t_high=settings.top)
        tables.append(_integral(rho, BEYOND_BALL * radius, settings.table_step))  # … and integration
    model = replace(start, directions=U, tables=tuple(tables), upper=tuple(tables))
    return learned_from(model, np.full(len(U), np.inf), radius=radius, queries=counted.queries, rounds=1)


def _affine_start(f: Field, dim: int, settings: Settings, rng: np.random.Generator) -> Model:
    """Return f(0) + ∇g(0)·x as a model: what is subtracted before the search."""
    bias = float(f(np.zeros((1, dim)))[0])
    shifts = settings.eta * rng.standard_normal((_GRADIENT_SAMPLES, dim))
    slope = difference(f, shifts, settings.alpha).mean(axis=0)
    return replace(empty_model(dim), bias=bias, slope=slope)


def _integral(rho: Response, reach: float, step: float) -> Table:
    """Return ∫₀^z ρ̃ as a table on [−reach, reach], by the trapezoidal rule."""
    blank = zero_table(reach, step)
    values = rho(blank.grid)
    rise = np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2)]) * blank.step
    return blank.plus(rise - rise[len(rise) // 2])
