"""Corollary identifiability: the directions of all features that are farther from affine than a given accuracy.

The corollary's second item is a statement about what is *not* missed, which no bounded number of samples can show. So
fresh values of f are compared with everything that was found, and the result says what they leave.

Letters: R radius of the ball, ε′ accuracy, σ̃_i found responses, f̃ the sum of all that was found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats, frozen, random_directions
from . import arguments
from .learn import learn
from .mass import CountedField, Field
from .response import bend_of
from .survey import Settings, in_ball, survey

_FRESH_POINTS = 4000
"""Points of each kind, in the ball and on lines through its centre, at which `identify` compares its result with f."""


@dataclass(frozen=True)
class Identified:
    """The nonlinear directions of f, and whether what is left of f shows that one is missing.

    directions: (s, d) those of the features that are farther from affine than the accuracy; bend: (s,) their distance
    from affine, min over a, b of max |σ̃_i(z) − (az + b)| on [−R, R]; angle_errors: (s,) standard errors of the
    directions in radians; slope: (d,) the affine part, to which every affine feature belongs; residual: largest
    |f − f̃| at fresh points of the ball, f̃ with all features that were found; accuracy: the one asked for; queries:
    number of values of f used.
    """

    directions: Floats
    bend: Floats
    angle_errors: Floats
    slope: Floats
    residual: float
    accuracy: float
    queries: int

    @property
    def complete(self) -> bool:
        """True if nothing speaks against Corollary identifiability at this accuracy.

        The residual is below it, so that no feature that bends by as much can have been seen at the fresh points, and
        so are two standard errors of every direction.
        """
        return bool(self.residual < self.accuracy and np.all(2 * self.angle_errors <= self.accuracy))


def identify(
    f: Field,
    *,
    dim: int,
    radius: float = 3.0,
    accuracy: float = 0.1,
    settings: Settings | None = None,
    rng: np.random.Generator | None = None,
    additions: bool = True,
) -> Identified:
    """Find the directions of all nonlinear features: Corollary identifiability.

    A search with a bounded number of samples may miss a feature; `Identified.complete` says whether fresh values of f
    leave room for one that bends by `accuracy` or more.

    Parameters
    ----------
    f, dim, radius, settings, rng
        As for `learn_bounded`.
    accuracy
        ε′: features that are affine to within this on [−R, R] are reported only through the slope.
    additions
        As for `learn`; without them angles are not measured, and `complete` is False where a direction was found.

    Returns
    -------
    Identified
        Directions, their distance from affine, the slope, and what is left of f.

    Raises
    ------
    InvalidInput
        If the accuracy is not a positive number.

    Examples
    --------
    >>> settings = rs.paper.Settings(
    ...     ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.1, eta=0.01,
    ...     samples=20_000, most=20_000, refine=20_000)
    >>> found = rs.paper.identify(
    ...     lambda X: np.sin(2 * X[:, 0]) + X[:, 1],
    ...     dim=2, radius=3.0, accuracy=0.1, settings=settings, rng=np.random.default_rng(0))
    >>> np.abs(found.directions).round(1), found.slope[1:].round(1), found.complete
    (array([[1., 0.]]), array([1.]), True)
    """
    dim, radius, rng = arguments.count("dim", dim), arguments.positive("radius", radius), arguments.generator(rng)
    accuracy = arguments.positive("accuracy", accuracy)
    counted = CountedField(f)
    settings = survey(counted, dim=dim, radius=radius, rng=rng) if settings is None else settings
    exact = replace(settings, negligible=0.0)  # the accuracy alone decides which features are affine
    learned = learn(counted, dim=dim, radius=radius, settings=exact, rng=rng, additions=additions)
    z = np.linspace(-radius, radius, 801)
    bend = np.array([bend_of(r(z), z) for r in learned.responses])
    keep = [i for i, b in enumerate(bend) if b >= accuracy]  # Corollary identifiability, second item
    slope = learned.slope + sum(
        (np.polyfit(z, learned.responses[i](z), 1)[0] * learned.directions[i] for i in range(len(bend))),
        np.zeros(dim),
    )
    X = in_ball(_FRESH_POINTS, dim, radius, rng)
    lines = random_directions(_FRESH_POINTS, dim, rng) * rng.uniform(0, radius, (_FRESH_POINTS, 1))
    X = np.concatenate([X, lines])  # in high dimensions hardly a uniform point is near the centre
    return Identified(
        directions=frozen(learned.directions[keep]),
        bend=frozen(bend[keep]),
        angle_errors=frozen(learned.angle_errors[keep]),
        slope=frozen(slope),
        residual=float(np.abs(counted(X) - learned.predict(X)).max()),
        accuracy=accuracy,
        queries=counted.queries,
    )
