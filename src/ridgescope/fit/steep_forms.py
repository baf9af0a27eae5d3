"""Points for closed forms that are constant, or straight, nearly everywhere.

A steep response bends within |κu + b| ≤ 3, a small part of its line, and what its direction is shows nowhere else: a
joint fit with enough answers in all may have next to none for such a feature, and then turns it to fit rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..geometry import Floats, along
from .closed_form import ClosedForms
from .samples import Samples

BENDS = 3.0
"""|κu + b| up to which forms bend: a tanh is within half a percent of its ends there."""
POINTS_PER_UNKNOWN = 2.0
"""Points where a feature bends, for each unknown of its direction: as its outputs all rise together, each point is one
equation for these, whatever the number of outputs."""
INSIDE = 1.0 - 1e-9
"""Of the radius, so that rounding puts no point outside the ball."""


def ask_steep(
    ask: Callable[[Floats], Floats], samples: Samples, forms: ClosedForms, allowance: float, rng: np.random.Generator
) -> None:
    """Ask where features bend that too few points show for the unknowns of their own, if that is allowed."""
    closed, X = forms.closed, samples.unclustered[0]
    kappa, b = forms.kappa[closed], forms.b[closed]
    seen = np.sum(np.abs(X @ forms.directions[closed].T * (kappa / forms.radius) + b) <= BENDS, axis=0)
    wanted = int(np.ceil(POINTS_PER_UNKNOWN * (forms.dim + 1)))
    missing = np.where(np.abs(b) < np.abs(kappa), np.maximum(wanted - seen, 0), 0)  # those that bend inside the ball
    count = int(missing.sum())
    if not 0 < count <= allowance:
        return
    which = rng.permutation(np.repeat(np.arange(len(closed)), missing))
    u = (rng.uniform(-BENDS, BENDS, count) - b[which]) / kappa[which]
    z = forms.radius * np.clip(u, -INSIDE, INSIDE)
    points = along(forms.directions[closed], which, z, forms.radius, rng)
    samples.add(points, ask(points))
