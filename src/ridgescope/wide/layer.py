"""A wide layer: more features than a joint fit can move, all found at once by the far-field search.

Their directions stay as the search gave them. Each response is then measured on its own, where the others are straight;
those of close pairs, which cannot be isolated, are fitted together, one function each; the affine part is fitted last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..bspline import design_matrix, interpolation_nodes
from ..fit.model import Model
from ..fit.samples import Samples, ask_along, ask_strata, held_out_error
from ..geometry import Floats, in_ball
from ..search import Proposal
from .factored import Hinges, fit_factored, output_vectors
from .isolated import Isolation, isolate, rank_one, read

WIDE_FEATURES = 400
"""Features above which a joint fit of responses and directions takes hours."""
CLOSED_FEATURES = 1000
"""Features up to which all of them are tried as closed forms, which takes a minute or two for 500."""
MAX_INTERVALS = 256
"""Most spline intervals of a response."""
_INTERVALS, _UNKNOWN_INTERVALS = (16, 32, 64, 128), 128  # numbers tried in turn, and the one if none can be tried
_TRIED = 12  # responses by which the number of intervals is chosen
_MIN_INTERVALS, _JOINT_INTERVALS = 8, 64  # of measured responses, and of those fitted together if queries are few
_COMMON_POINTS, _POINTS_PER_INPUT, _POINTS_PER_JOINT = 1000, 8, 3  # along all features, for the affine part and errors
_POINTS = 20  # for each response fitted jointly: near zero, where most of them bend, each point serves all
_FAR = 1e7  # radii beyond which rounding spoils a response
_BEND_ROOM = 1.5  # factor on the farthest hinge beyond which every response is assumed to be straight
_BENDING_POINTS, _BENDING_RADIUS = 3, 0.5  # points, within half the radius, at which output vectors are measured
_BENDS = 40.0  # over noise/step²: below that a direction is no feature. Empirical: a second difference has noise √6,
# and solving for the output vectors increases it by a factor that depends on the layer.
_RANK_ONE = 1e-6  # relative: the effect of an error of the direction on a rank-one response
_SMOOTHINGS = (1e-5, 1e-4, 1e-6)  # roughness weights tried if no hinge is known
_STRAIGHT, _STRAIGHT_POINTS = 0.03, 64  # of the error allowed, on a grid of 64 intervals: smaller bends are no feature


@dataclass(frozen=True, eq=False)
class WideLayer:
    """The features found of a wide layer, and where each response is to be measured."""

    seen: Hinges
    where: Isolation
    radius: float
    error: float
    """Largest error allowed, in f's units."""

    @classmethod
    def from_far_field(
        cls, proposal: Proposal, radius: float, reach: float, error: float, rng: np.random.Generator
    ) -> WideLayer:
        """Create the layer from the hinges of a far-field search; `reach` is the largest norm that may be asked."""
        strongest = [int(np.argmax(np.linalg.norm(jump, axis=1))) for jump in proposal.jumps]
        places = np.array([t[k] for t, k in zip(proposal.kinks, strongest, strict=True)])
        jumps = np.stack([a[k] for a, k in zip(proposal.jumps, strongest, strict=True)])
        stretch = radius + max(radius, _BEND_ROOM * float(np.abs(places).max()))
        where = isolate(proposal.directions, stretch, min(reach, _FAR * radius), rng)
        return cls(Hinges(proposal.directions, places, jumps), where, radius, error)

    @classmethod
    def from_directions(
        cls,
        ask: Callable[[Floats], Floats],
        directions: Floats,
        radius: float,
        error: float,
        step: float,
        noise: float,
        rng: np.random.Generator,
    ) -> WideLayer:
        """Create the layer from directions (n, d) alone, if distant points may not be asked.

        Output vectors come from second differences of the given step; directions along which these are noise are
        dropped.
        """
        points = in_ball(_BENDING_POINTS, directions.shape[1], _BENDING_RADIUS * radius, rng)
        jumps = output_vectors(ask, directions, points, step)
        bends = np.linalg.norm(jumps, axis=1) > _BENDS * noise * np.sqrt(jumps.shape[1]) / step**2
        bends |= not bends.any()  # if noise hides all of them, it says nothing about any
        kept = Hinges(directions[bends], None, jumps[bends])
        nowhere = Isolation(np.zeros_like(kept.directions), np.zeros(int(bends.sum()), dtype=bool))
        return cls(kept, nowhere, radius, error)

    @property
    def count(self) -> int:
        return len(self.seen.directions)

    def fit(
        self,
        ask: Callable[[Floats], Floats],
        samples: Samples,
        intervals: int,
        allowance: float,
        rng: np.random.Generator,
    ) -> Model:
        """Fit the model with that many intervals, or as many as the allowance of queries permits."""
        V = self.seen.directions
        spent = self._ask_common(ask, samples, allowance, rng)
        affordable = (allowance - spent) / (2.0 * max(1, int(self.where.possible.sum()))) - 3.0
        while intervals > affordable and intervals > _MIN_INTERVALS:
            intervals //= 2
        X, Y = samples.unclustered
        if intervals > affordable:
            return fit_factored(self.seen, X, Y, self.radius, _JOINT_INTERVALS)
        which, blocks = read(ask, V, self.where, self.radius, intervals)
        blocks = rank_one(blocks, _RANK_ONE)
        affine = np.zeros((1 + samples.dim, Y.shape[1]))
        left = Y - self._model(V[which], blocks, affine).predict(X) if len(which) else Y
        rest = np.setdiff1d(np.arange(self.count), which)
        if len(rest):
            joint = self._fit_jointly(self.seen.only(rest), samples, left, intervals)
            theirs = joint.coefficients[: joint.offsets[-1]].reshape(len(rest), intervals + 3, -1)
            blocks = np.concatenate([blocks, theirs]) if len(which) else theirs
            order = np.concatenate([V[which], V[rest]])
            return self._without_straight(self._model(order, blocks, joint.coefficients[-1 - samples.dim :]))
        flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        return self._model(V[which], blocks, np.linalg.lstsq(flat, left, rcond=None)[0])

    def _ask_common(
        self, ask: Callable[[Floats], Floats], samples: Samples, allowance: float, rng: np.random.Generator
    ) -> int:
        """Ask the points that are fitted together, and return their number."""
        joint = self.seen.directions[~self.where.possible]
        wanted = max(_COMMON_POINTS, _POINTS_PER_INPUT * (samples.dim + 1)) + _POINTS_PER_JOINT * len(joint)
        common = int(min(wanted, allowance))
        ask_along(ask, samples, self.seen.directions, common, rng)
        each = int(min(_POINTS, (allowance - common) // max(1, len(joint))))
        if len(joint) and each > 1:
            ask_strata(ask, samples, joint, each, rng)
        return common + each * len(joint)

    def _fit_jointly(self, seen: Hinges, samples: Samples, left: Floats, intervals: int) -> Model:
        """Fit jointly to the residual `left`, with the roughness weight of least held-out error.

        If hinges are known the default weight is used, as they determine responses without points.
        """
        X = samples.unclustered[0]
        if seen.places is not None:
            return fit_factored(seen, X, left, self.radius, intervals)
        best, least = None, np.inf
        for smoothing in _SMOOTHINGS:
            model = fit_factored(seen, X, left, self.radius, intervals, smoothing=smoothing)
            rms = held_out_error(model, samples)[0]
            if rms < least:
                best, least = model, rms
            if rms <= self.error:
                break
        assert best is not None
        return best

    def _without_straight(self, model: Model) -> Model:
        """Move features whose responses are straight to well within the error allowed into the affine part."""
        z = interpolation_nodes(self.radius, _STRAIGHT_POINTS)
        line = np.stack([np.ones_like(z), z], axis=1)
        fit = np.linalg.pinv(line)
        kept = np.ones(model.count, dtype=bool)
        affine = model.coefficients[-1 - model.dim :].copy()
        for i, v in enumerate(model.directions):
            values = model.term(i, z)
            c = fit @ values
            if np.abs(values - line @ c).max() <= _STRAIGHT * self.error:
                kept[i] = False
                affine[0] += c[0]
                affine[1:] += np.multiply.outer(v, c[1])
        if kept.all():
            return model
        less = model.keep(kept)
        return replace(less, coefficients=np.concatenate([less.coefficients[: less.offsets[-1]], affine]))

    def _model(self, V: Floats, blocks: Floats, affine: Floats) -> Model:
        """Return features along V (n, d) with coefficients `blocks` (n, K+3, p) and the affine part (1 + d, p)."""
        n, width, p = blocks.shape
        coefficients = np.concatenate([blocks.reshape(n * width, p), affine])
        intervals: NDArray[np.intp] = np.full(n, width - 3, dtype=np.intp)
        return Model(self.radius, V, intervals, (np.empty(0),) * n, coefficients)

    def enough_intervals(self, ask: Callable[[Floats], Floats], rng: np.random.Generator) -> int:
        """Return the fewest intervals with which the splines' errors, of random signs, add up to the error allowed.

        They are measured on a few responses.
        """
        possible = np.flatnonzero(self.where.possible)
        if not len(possible):
            return _UNKNOWN_INTERVALS
        few = rng.choice(possible, min(_TRIED, len(possible)), replace=False)
        where = Isolation(self.where.offsets[few], np.ones(len(few), dtype=bool))
        R = self.radius
        _, blocks = read(ask, self.seen.directions[few], where, R, MAX_INTERVALS)
        fine = interpolation_nodes(R, 2 * MAX_INTERVALS)
        true = design_matrix(fine, R, MAX_INTERVALS) @ blocks
        for intervals in _INTERVALS:
            z = interpolation_nodes(R, intervals)
            through = np.linalg.inv(design_matrix(z, R, intervals)) @ (design_matrix(z, R, MAX_INTERVALS) @ blocks)
            wrong = np.abs(design_matrix(fine, R, intervals) @ through - true).max(axis=(1, 2))
            if np.sqrt(self.count * np.mean(wrong**2)) <= self.error:
                return intervals
        return MAX_INTERVALS
