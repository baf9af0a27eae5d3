"""Second derivatives in single precision: the ball on which responses bend.

Hessians Σ s_i''(v_i·x) v_i v_iᵀ tell features apart only as far as the s_i'' vary from point to point. On a small ball
they are nearly constant: each output has one Hessian there, and what varies drowns in the rounding of single precision.
Features are the same everywhere, so that derivatives may be taken farther out, wherever points may be asked. (Stencils
of higher order, which take long steps there, are those of `central`.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..geometry import Floats, random_directions
from .base import Ask, Setting
from .kink_scans import KINKS

POINTS, FARTHEST = 12, 16.0
"""Points at each distance at which second differences are compared, and the largest distance in radii."""
FACTOR = 2.0**0.5
"""From one distance to the next."""
VARIED = 0.4
"""Deviation of second differences between points over their root mean square, at which they count as varied: 1 is that
of responses that bend at some points only."""
STEP = 0.1
"""Step of these differences in radii, no longer than the one that follows from the bandwidth."""
SEEN = 10.0
"""Deviations of the noise that these differences must exceed, to say anything."""


def is_rounded(setting: Setting) -> bool:
    """Return whether answers have the errors of single precision."""
    return KINKS.exact < setting.noise / max(setting.std, setting.noise) <= KINKS.rounded


def bending_ball(ask: Ask, setting: Setting, rng: np.random.Generator) -> Setting:
    """Return the setting with the smallest radius on which second derivatives vary, from 36 queries for each radius.

    It is the given one where that suffices already, or where no radius within `reach` does.
    """
    along, here = random_directions(1, setting.dim, rng), setting.radius
    factors = FACTOR ** np.arange(1 + int(np.log(FARTHEST) / np.log(FACTOR) + 1e-9))
    for factor in factors[factors * here * (1.0 + STEP) < setting.reach]:
        f = _nodes(ask, setting.dim, factor * here, STEP * here * along, rng)
        second = f[1] + f[2] - 2.0 * f[0]
        seen = float(np.sqrt(np.mean(second**2)))
        if not np.isfinite(seen) or seen < SEEN * setting.noise:
            return setting
        if float(np.sqrt(np.mean(np.var(second, axis=0)))) > VARIED * seen:
            return setting if factor == 1.0 else _on(setting, float(factor), f[0])
    return setting


def _nodes(ask: Ask, dim: int, distance: float, step: Floats, rng: np.random.Generator) -> Floats:
    """Return answers (3, points, p) at points of this distance from the centre, and one step to both sides of them."""
    at = distance * random_directions(POINTS, dim, rng)
    return ask(np.concatenate([at, at + step, at - step])).reshape(3, POINTS, -1)


def _on(setting: Setting, factor: float, answers: Floats) -> Setting:
    """Return the setting for a ball so many times as large, on whose sphere f has these answers (m, p).

    Rounding grows with the answers. The bandwidth falls with the radius, as it cannot be below a period of the ball.
    """
    std = max(setting.std, float(np.sqrt(np.mean(np.var(answers, axis=0)))))
    return replace(
        setting,
        radius=factor * setting.radius,
        std=std,
        noise=setting.noise * std / setting.std,
        bandwidth=setting.bandwidth / factor,
    )
