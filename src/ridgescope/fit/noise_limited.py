"""Where noise is what limits a fit: more points, and a look at what is left for features that noise hides.

From m points noise σ leaves an error of about σ√(P/m) in a model of P unknowns. Where σ is above the ε that is asked
for, that takes m = P(σ/ε)² points, and features far below σ are still to be found among them: one by one, a single
feature is fitted to what is left from many starts, and joins where held-out points say that it is there.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Floats, random_directions
from .context import STANDING, TWINS, FitContext
from .levenberg_marquardt import Fitted, levenberg_marquardt
from .model import Model
from .samples import held_out_squares
from .tidy import tidy

_LEAST = 0.05  # of the noise: a smaller error would take more than 400 points for each unknown
_GROWTH = 4.0  # times as many points from one look to the next
_LOOKS = 4  # at what is left, with the same points
_STARTS = (32, 96)  # eight for each dimension, within these limits
_COARSE = 8  # intervals of a response that is looked for in noise
_SURE = 3.0  # standard errors by which held-out points must gain


def sharpened(context: FitContext, fitted: Fitted) -> Fitted:
    """Points until noise leaves no more than is asked for, or may be paid for; and the features that show then."""
    while True:
        fitted = tidy(context, _settled(context, fitted.model))
        for _ in range(_LOOKS):
            more = _with_hidden(context, fitted)
            if more is None:
                break
            fitted = more
        error = max(context.aim.error, _LEAST * context.aim.noise)
        share = (context.aim.noise / error) ** 2 / context.aim.per_unknown
        there = context.samples.worth
        missing = min(context.missing(fitted.model, share), (_GROWTH - 1.0) * there, context.allowance())
        if missing < 0.1 * there:
            return fitted
        context.add_samples(fitted.model, missing / there)


def _settled(context: FitContext, model: Model) -> Fitted:
    """The least cost nearby; what is left to gain is far below the noise, so that small gains count."""
    X, Y = context.samples.train
    worth = 0.1 * model.parameters / max(Y.size, 1)  # of the cost: a tenth of what noise itself takes up
    return levenberg_marquardt(model, X, Y, steps=20, damping=1e-3, progress=min(worth, 1e-2), smooth=context.smooth)


def _with_hidden(context: FitContext, fitted: Fitted) -> Fitted | None:
    """With the features that stand out of the noise, or None where there are none."""
    found = hidden(context, fitted.model)
    if not len(found):
        return None
    joined = _settled(context, fitted.model.join(found, context.aim.intervals))
    now = tidy(context, joined)
    gain = held_out_squares(fitted.model, context.samples)[0] - held_out_squares(now.model, context.samples)[0]
    sure = _stands_out(gain)
    context.say(
        f"{len(found)} seen in the noise: {fitted.model.count} -> {now.model.count} features, {sure:.1f} errors"
    )
    return now if sure > _SURE else None


def hidden(context: FitContext, model: Model) -> Floats:
    """(k, d) directions along which what is left, at points not fitted, is plainly not noise; the plainest first."""
    X, left = context.left_over(model)
    held, answers = context.samples.held_out
    fresh = answers - model.predict(held)
    found: list[tuple[float, Floats]] = []
    for v in random_directions(int(np.clip(8 * model.dim, *_STARTS)), model.dim, context.rng):
        one = Model.start(v[None], model.radius, _COARSE, model.outputs)
        seen = levenberg_marquardt(one, X, left, steps=12, progress=1e-5, smooth=STANDING).model
        gain = np.mean(fresh**2 - (fresh - seen.predict(held)) ** 2, axis=1)
        found.append((_stands_out(gain), seen.directions[0]))
    kept: list[Floats] = []
    for sure, v in sorted(found, key=lambda pair: -pair[0]):
        if sure > _SURE and all(abs(float(v @ w)) < np.cos(TWINS) for w in kept):
            kept.append(v)
    return np.array(kept).reshape(-1, model.dim)


def _stands_out(gain: Floats) -> float:
    """Mean over its own standard error."""
    error = float(np.std(gain)) / np.sqrt(max(len(gain), 1))
    return float(gain.mean()) / error if error > 0 else 0.0
