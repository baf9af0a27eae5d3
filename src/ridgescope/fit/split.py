"""Split a feature into two if the residual shows that it stands for a nearly parallel pair.

If one spline at v is fitted to responses g and h at v cos ε ± w sin ε, the residual is to leading orders

    r(x) ≈ ε (g' − h')(z) · w·x + ε²/2 (g'' + h'')(z) · (w·x)²,        z = v·x

so in every strip of z the sums Σ r x⊥ and Σ r x⊥x⊥ᵀ (x⊥ the part of x across v) are multiples of w and of wwᵀ. Side by
side, each divided by its own standard deviation under noise, they form a matrix whose first left singular vector is w.
The share of the residual that the two terms explain with that w decides which feature to split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, unit
from . import threads
from .context import CLEAR_GAIN, DUPLICATE_ANGLE, Evaluation, FitContext, improves
from .knots import bending_outputs, refine
from .model import TINY, Model

_STRIPS = 8  # of z: g' − h' changes sign only a few times, and each strip needs tens of points
_MIN_SHARE = 0.05  # of the residual that both terms must explain at points they were not fitted to; empirical
_HALF_ANGLE = 0.5 * DUPLICATE_ANGLE  # to either side: closer features would be merged again


def split_features(context: FitContext, best: Evaluation) -> Evaluation:
    """Split features as long as directions are nearly right and the held-out error falls."""
    while not context.is_good_enough(best) and context.are_directions_nearly_right(best.rms):
        found = splits(best.model, *context.residual_scan(best.model))
        if not found:
            break
        first = found[0]
        context.say(f"  splitting feature {first.feature} in two ({first.share:.0%} of the residual)", detail=True)
        two = context.refit_directions(first.apply(best.model, _HALF_ANGLE))
        now = refine(context, context.evaluate(two))
        if not improves(now.rms, best.rms, CLEAR_GAIN):
            break
        best = now
    return best


@dataclass(frozen=True, eq=False)
class Split:
    """A possible split of a feature in the plane of its direction and `across`."""

    feature: int
    across: Floats
    share: float
    """Share of the residual that the split explains at points that were not used to find the plane."""

    def apply(self, model: Model, angle: float) -> Model:
        """Return the model with two features, `angle` to either side of the one, and zero coefficients."""
        i, v = self.feature, model.directions[self.feature]
        pair = unit(np.cos(angle) * v + np.sin(angle) * np.multiply.outer([1.0, -1.0], self.across))
        others = np.delete(np.arange(model.count), i)
        joined = model.keep(others).join(pair, int(model.intervals[i]), (model.kinks[i],) * 2)
        intervals = np.append(model.intervals[others], [model.intervals[i]] * 2)
        return joined.reshaped(intervals, joined.kinks)


@threads.one_blas_thread()
def splits(model: Model, X: Floats, residual: Floats) -> list[Split]:
    """Return the features that may be two, the clearest first."""
    if model.dim < 2:
        return []
    found = [_split_of(model, i, X, residual) for i in range(model.count)]
    return sorted((s for s in found if s.share > _MIN_SHARE), key=lambda s: -s.share)


def _split_of(model: Model, i: int, X: Floats, residual: Floats) -> Split:
    """Return the best split of feature i, with the share that a fit to half of the points explains of the other half.

    Fitted to all points it would also explain a few large residuals, such as those of a kink that the spline lacks.
    """
    v = model.directions[i]
    z = X @ v
    across = X - np.multiply.outer(z, v)
    r = residual @ bending_outputs(model, i)[0]
    strip = np.clip((_STRIPS * (z / model.radius + 1.0) / 2.0).astype(np.intp), 0, _STRIPS - 1)
    gained = 0.0
    even, odd = slice(0, None, 2), slice(1, None, 2)
    for fitted, checked in ((even, odd), (odd, even)):
        w = _plane(across[fitted], strip[fitted], r[fitted])
        design, test = _columns(across[fitted] @ w, strip[fitted]), _columns(across[checked] @ w, strip[checked])
        for columns, sign in ((_STRIPS, 1.0), (3 * _STRIPS, -1.0)):  # beyond what depends on z alone
            c = np.linalg.lstsq(design[:, :columns], r[fitted], rcond=None)[0]
            gained += sign * float(np.sum((r[checked] - test[:, :columns] @ c) ** 2))
    return Split(i, _plane(across, strip, r), gained / max(float(r @ r), TINY))


def _plane(across: Floats, strip: NDArray[np.intp], r: Floats) -> Floats:
    """Return the direction w (d,) across v on which residuals r (m,) depend."""
    parts = []
    for b in range(_STRIPS):
        x, rb = across[strip == b], r[strip == b, None]
        size = np.einsum("md,md->m", x, x) / across.shape[1]
        for sums, square in ((x.T @ rb, size), ((x * rb).T @ x, size**2)):
            parts.append(sums / max(float(np.sqrt(np.sum(rb[:, 0] ** 2 * square))), TINY))
    return np.asarray(np.linalg.svd(np.concatenate(parts, axis=1))[0][:, 0])


def _columns(side: Floats, strip: NDArray[np.intp]) -> Floats:
    """Return the columns 1, w·x and (w·x)² for each strip of z."""
    strips = np.equal.outer(strip, np.arange(_STRIPS)).astype(np.float64)
    return np.concatenate([strips, strips * side[:, None], strips * (side**2)[:, None]], axis=1)
