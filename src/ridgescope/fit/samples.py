"""The points of a fit with their answers: one in eight is held out, and search points are thinned out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, along, in_ball
from .model import Model

HELD_OUT_EVERY = 8
"""One point in this many is held out: never fitted, only used to estimate the error. Empirical: a smaller share makes
decisions noisy, a larger one costs queries that the fit does not use.
"""
MAX_CLUSTERED = 6000
"""Most search points kept: a search of millions of queries must not outweigh the fit's own points."""
_ALONG_SHARE = 0.75  # of new points that go along the features; the others show structure that no feature explains
_INSIDE = 1.0 - 1e-9  # of the radius, so that rounding puts no end point outside the ball
_END_PLACES = np.array([-1.0, -0.97, 0.97, 1.0])  # in radii: a spline's last coefficients depend on these
_END_WEIGHT = 0.5  # of such a point: it informs about one response only
_RISE = 3.0  # half widths around the middle of a rise in which it shows: a tanh is there within 0.5 % of its ends
_ON_THE_SPHERE = 1e-12  # relative excess of |x|² that is due to rounding
_PREDICT_ROWS = 8192  # held-out points predicted at a time
_FITTED, _HELD_OUT, _CLUSTERED = 0, 1, 2


@dataclass
class Samples:
    """Points (m, d) of the ball with their answers (m, p), and the role of each."""

    dim: int
    radius: float
    _X: list[Floats] = field(default_factory=list)
    _Y: list[Floats] = field(default_factory=list)
    _role: list[NDArray[np.int8]] = field(default_factory=list)
    count: int = 0
    weight: float = 0.0
    """Sum of the weights of all points added; see `add`."""
    _clustered: int = 0
    _stride: int = 1

    def add(self, X: Floats, Y: Floats, *, thin: int = 1, weight: float = 1.0, keep_all: bool = False) -> None:
        """Add every `thin`-th of the points X (m, d) with answers Y (m, p).

        Points outside the ball and rows without a finite answer are ignored. The points of a stencil or a line are
        close together and inform a fit less than as many points along the features: they get a `weight` below one, so
        that the fit asks for more of its own, and none of them is held out, since its neighbours would be fitted.
        With `keep_all` none is held out or thinned out later, whatever the weight.
        """
        clustered = weight < 1.0 and not keep_all
        thin = thin * self._stride if clustered else thin
        X, Y = X[::thin], Y[::thin]
        inside = np.einsum("md,md->m", X, X) <= self.radius**2 * (1 + _ON_THE_SPHERE)
        good = np.isfinite(Y).all(axis=1) & inside
        if good.any():
            self._X.append(X[good])
            self._Y.append(Y[good])
            turn = (self.count + np.arange(good.sum())) % HELD_OUT_EVERY
            role = np.where((turn == HELD_OUT_EVERY - 1) & (not keep_all), _HELD_OUT, _FITTED)
            role = np.full(len(turn), _CLUSTERED) if clustered else role
            self._role.append(role.astype(np.int8))
            self.count += int(good.sum())
            self.weight += weight * int(good.sum())
            if clustered:
                self._clustered += int(good.sum())
                self._thin_out()

    def transformed(self, matrix: Floats) -> Samples:
        """Return the same answers at the points `matrix` x, for a matrix (d, d) close to an isometry.

        Search points, which need not lie in the subspace whose coordinates these are, are left out.
        """
        X, Y, role = self._gather()
        own = role != _CLUSTERED
        kept = int(own.sum())
        return Samples(self.dim, self.radius, [X[own] @ matrix.T], [Y[own]], [role[own]], kept, float(kept))

    def _thin_out(self) -> None:
        """Drop every other clustered point while there are more than `MAX_CLUSTERED`."""
        while self._clustered > MAX_CLUSTERED:
            X, Y, role = self._gather()
            clustered = np.flatnonzero(role == _CLUSTERED)
            keep = np.setdiff1d(np.arange(len(role)), clustered[1::2])
            self._X, self._Y, self._role = [X[keep]], [Y[keep]], [role[keep]]
            self.count, self._clustered, self._stride = len(keep), len(clustered[::2]), 2 * self._stride

    def _gather(self) -> tuple[Floats, Floats, NDArray[np.int8]]:
        """Return all points, answers and roles as one array each."""
        if not self._X:
            return np.empty((0, self.dim)), np.empty((0, 1)), np.empty(0, dtype=np.int8)
        if len(self._X) > 1:
            self._X, self._Y = [np.concatenate(self._X)], [np.concatenate(self._Y)]
            self._role = [np.concatenate(self._role)]
        return self._X[0], self._Y[0], self._role[0]

    def _of(self, *roles: int) -> tuple[Floats, Floats]:
        """Return the points and answers of these roles."""
        X, Y, role = self._gather()
        chosen = np.isin(role, roles)
        return X[chosen], Y[chosen]

    @property
    def train(self) -> tuple[Floats, Floats]:
        """Points and answers that are fitted."""
        return self._of(_FITTED, _CLUSTERED)

    @property
    def unclustered(self) -> tuple[Floats, Floats]:
        """The points of `train` that are not clustered search points."""
        X, Y = self._of(_FITTED)
        return (X, Y) if len(X) else self.train  # a search may have spent all that was allowed

    @property
    def fitted(self) -> int:
        """The number of points of `train` that are not clustered search points."""
        return int(np.sum(self._gather()[2] == _FITTED))

    @property
    def held_out(self) -> tuple[Floats, Floats]:
        """Points and answers that are never fitted."""
        return self._of(_HELD_OUT)


def ask_along(
    ask: Callable[[Floats], Floats], samples: Samples, directions: Floats, count: int, rng: np.random.Generator
) -> None:
    """Ask for `count` new points: three in four along the directions in turn, the others uniform in the ball."""
    if count <= 0:
        return
    own = int(_ALONG_SHARE * count) if len(directions) else 0
    which = rng.permutation(np.arange(own) % max(len(directions), 1))
    u = rng.uniform(-1.0, 1.0, own)
    u[::2] = np.sin(0.5 * np.pi * u[::2])  # every other one by Chebyshev's density, as errors are largest at the ends
    z = samples.radius * u
    points = [in_ball(count - own, samples.dim, samples.radius, rng)]
    if own:
        points.append(along(directions, which, z, samples.radius, rng))
    X = rng.permutation(np.concatenate(points))
    samples.add(X, ask(X))


def ask_strata(
    ask: Callable[[Floats], Floats], samples: Samples, directions: Floats, each: int, rng: np.random.Generator
) -> None:
    """Ask for `each` new points along every direction, one in each stratum of [−radius, radius].

    With few points for each feature, random ones leave some response without a point in its last quarter, where the
    model would then have its largest error.
    """
    n = len(directions)
    u = np.clip(np.linspace(-1.0, 1.0, each) + rng.uniform(-1.0, 1.0, (n, each)) / (each - 1), -1.0, 1.0)
    z = samples.radius * _INSIDE * 0.5 * (u + np.sin(0.5 * np.pi * u))
    X = rng.permutation(along(directions, np.repeat(np.arange(n), each), z.ravel(), samples.radius, rng))
    samples.add(X, ask(X))


def ask_bends(
    ask: Callable[[Floats], Floats],
    samples: Samples,
    directions: Floats,
    bends: Sequence[Floats],
    each: int,
    rng: np.random.Generator,
) -> None:
    """Ask for `each` new points where the response along a direction rises, if it is known between which two places.

    A steep response is constant nearly everywhere, and few other points show how it rises.
    """
    known = [i for i, t in enumerate(bends) if len(t) == 2]
    if not known:
        return
    which, ends = np.repeat(known, each).astype(np.intp), np.repeat([bends[i] for i in known], each, axis=0)
    half = 0.5 * (ends[:, 1] - ends[:, 0])
    z = ends.mean(axis=1) + rng.uniform(-_RISE, _RISE, len(which)) * half
    inside = _INSIDE * samples.radius
    X = rng.permutation(along(directions, which, np.clip(z, -inside, inside), samples.radius, rng))
    samples.add(X, ask(X))


def ask_ends(ask: Callable[[Floats], Floats], samples: Samples, directions: Floats) -> None:
    """Ask four points for each direction, at both ends of its line and shortly before: few other points lie there."""
    X = np.multiply.outer(samples.radius * _INSIDE * _END_PLACES, directions).reshape(-1, samples.dim)
    samples.add(X, ask(X), weight=_END_WEIGHT, keep_all=True)


def held_out_squares(model: Model, samples: Samples) -> tuple[Floats, float]:
    """Return the (k,) squared errors of the held-out points, averaged over outputs, and the largest error.

    All points are used while none is held out.
    """
    X, Y = samples.held_out
    X, Y = (X, Y) if len(X) else samples.train
    if not len(X):
        return np.empty(0), float("inf")
    parts = [slice(c, c + _PREDICT_ROWS) for c in range(0, len(X), _PREDICT_ROWS)]
    error = np.concatenate([Y[c] - model.predict(X[c]) for c in parts])
    return np.mean(error**2, axis=1), float(np.abs(error).max())


def held_out_error(model: Model, samples: Samples) -> tuple[float, float]:
    """Return RMS over points and outputs and largest error on held-out points; both infinite without points."""
    squares, largest = held_out_squares(model, samples)
    return (float(np.sqrt(squares.mean())) if len(squares) else float("inf")), largest
