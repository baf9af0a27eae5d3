"""The fit if noise is the limit: more points, and a search of the residual for features that noise hides.

From m points noise σ leaves an error of about σ√(P/m) in a model of P unknowns. If σ exceeds the error ε allowed,
m = P(σ/ε)² points are needed, and they may show features far below σ: one at a time, a single
feature is fitted to the residual from many starts, and added if held-out points confirm it.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Floats, random_directions
from .context import DUPLICATE_ANGLE, FitContext
from .levenberg_marquardt import Fitted, LMOptions, levenberg_marquardt
from .linear import MEDIUM_SMOOTHING
from .model import Model
from .pruning import prune
from .samples import held_out_squares

_LEAST = 0.05  # of the noise: a smaller error would take more than 400 points for each unknown
_GROWTH = 4.0  # factor on the number of points from one search to the next: the error halves
_WORTHWHILE = 0.1  # of the present points: fewer new ones change nothing
_SEARCHES = 4  # of the residual, with the same points
_STARTS_PER_DIM, _STARTS = 8, (32, 96)  # starts of a search, and their limits; empirical: trades time against misses
_COARSE = 8  # intervals of a response searched for in noise: fewer unknowns are significant sooner
_SEARCH = LMOptions(steps=12, min_gain=1e-5, smoothing=MEDIUM_SMOOTHING)
_SIGNIFICANT = 3.0  # standard errors by which the held-out error must fall
_MAX_STEPS, _DAMPING = 20, 1e-3
_NOISE_SHARE, _MAX_GAIN = 0.1, 1e-2  # a step must gain a tenth of what noise explains, or 1 % of the cost


def fit_below_noise(context: FitContext, fitted: Fitted, as_proposed: bool) -> Fitted:
    """Add points until noise permits the error allowed or queries run out, and add the features that they show.

    `as_proposed` is passed on to `prune`.
    """
    while True:
        fitted = prune(context, _minimised(context, fitted.model), as_proposed)
        for _ in range(_SEARCHES):
            more = _with_hidden(context, fitted, as_proposed)
            if more is None:
                break
            fitted = more
        error = max(context.goal.error, _LEAST * context.goal.noise)
        share = (context.goal.noise / error) ** 2 / context.goal.per_unknown
        there = context.samples.weight
        missing = min(context.missing_points(fitted.model, share), (_GROWTH - 1.0) * there, context.allowance())
        if missing < _WORTHWHILE * there:
            return fitted
        context.say(f"noise limits the fit of {fitted.model.count} features: asking {missing:,.0f} more points")
        context.add_samples(fitted.model, missing / there)


def _minimised(context: FitContext, model: Model) -> Fitted:
    """Minimise the cost from `model` with a small `min_gain`, as the gains of interest are far below the noise."""
    X, Y = context.samples.train
    least = _NOISE_SHARE * model.parameters / max(Y.size, 1)
    options = LMOptions(
        steps=_MAX_STEPS, damping=_DAMPING, min_gain=min(least, _MAX_GAIN), smoothing=context.memory.smoothing
    )
    return levenberg_marquardt(model, X, Y, options)


def _with_hidden(context: FitContext, fitted: Fitted, as_proposed: bool) -> Fitted | None:
    """Return the fit with the weak features found in the residual; None if held-out points do not confirm any."""
    found = hidden_directions(context, fitted.model)
    if not len(found):
        return None
    now = prune(context, _minimised(context, fitted.model.join(found, context.goal.intervals)), as_proposed)
    gain = held_out_squares(fitted.model, context.samples)[0] - held_out_squares(now.model, context.samples)[0]
    significance = _significance(gain)
    counts = f"{fitted.model.count} -> {now.model.count} features"
    context.say(f"  {len(found)} candidates: {counts}, a gain of {significance:.1f} standard errors", detail=True)
    return now if significance > _SIGNIFICANT else None


def hidden_directions(context: FitContext, model: Model) -> Floats:
    """Return (k, d) directions along which the held-out residual is significantly not noise, the clearest first."""
    X, left = context.residual_scan(model)
    held, answers = context.samples.held_out
    residual = answers - model.predict(held)
    found: list[tuple[float, Floats]] = []
    for v in random_directions(int(np.clip(_STARTS_PER_DIM * model.dim, *_STARTS)), model.dim, context.rng):
        one = levenberg_marquardt(Model.start(v[None], model.radius, _COARSE, model.outputs), X, left, _SEARCH).model
        gain = np.mean(residual**2 - (residual - one.predict(held)) ** 2, axis=1)
        found.append((_significance(gain), one.directions[0]))
    kept: list[Floats] = []
    for significance, v in sorted(found, key=lambda pair: -pair[0]):
        if significance > _SIGNIFICANT and all(abs(float(v @ w)) < np.cos(DUPLICATE_ANGLE) for w in kept):
            kept.append(v)
    return np.array(kept).reshape(-1, model.dim)


def _significance(gain: Floats) -> float:
    """Return the mean over its own standard error."""
    if not len(gain):
        return 0.0
    error = float(np.std(gain)) / np.sqrt(max(len(gain), 1))
    return float(gain.mean()) / error if error > 0 else 0.0
