"""A wide layer: more features than a joint fit can turn, all seen at once from far away.

Their directions stand as the search gave them. Each response is then read on its own, where the others are
straight; those that cannot be isolated, near twins, are fitted together, one function each; what is left is affine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..fit.model import Model
from ..fit.samples import Samples, ask_along, ask_strata, held_out_error
from ..geometry import Floats, in_ball
from ..search import Proposal
from .factored import Hinges, fit_factored, output_vectors
from .isolated import Isolation, collocation, isolate, nodes, rank_one, read

MANY = 400
"""Features above which a joint fit of responses and directions is out of reach."""
FINEST = 256
"""Most spline intervals of a response."""
_POINTS = 20  # for each response that is fitted, not read: near zero, where most of them bend, each point serves all
_FAR = 1e7  # radii beyond which rounding spoils a response


@dataclass(frozen=True, eq=False)
class WideLayer:
    """What was seen of it, and where each response is to be read."""

    seen: Hinges
    where: Isolation
    radius: float
    error: float
    """Largest error that is asked for, in f's units."""

    @classmethod
    def of(cls, proposal: Proposal, radius: float, reach: float, error: float, rng: np.random.Generator) -> WideLayer:
        strongest = [int(np.argmax(np.linalg.norm(jump, axis=1))) for jump in proposal.jumps]
        places = np.array([t[k] for t, k in zip(proposal.kinks, strongest, strict=True)])
        jumps = np.stack([a[k] for a, k in zip(proposal.jumps, strongest, strict=True)])
        stretch = radius + max(radius, 1.5 * float(np.abs(places).max()))
        where = isolate(proposal.directions, stretch, min(reach, _FAR * radius), rng)
        return cls(Hinges(proposal.directions, places, jumps), where, radius, error)

    @classmethod
    def near(
        cls,
        ask: Callable[[Floats], Floats],
        V: Floats,
        radius: float,
        error: float,
        step: float,
        noise: float,
        rng: np.random.Generator,
    ) -> WideLayer:
        """Of directions alone, with no way to go far: output vectors from second differences of the given step."""
        points = in_ball(3, V.shape[1], 0.5 * radius, rng)
        jumps = output_vectors(ask, V, points, step)
        bends = np.linalg.norm(jumps, axis=1) > 40.0 * noise * np.sqrt(jumps.shape[1]) / step**2
        bends |= not bends.any()  # the noise hides them all, and tells nothing of any
        V, seen = V[bends], Hinges(V[bends], None, jumps[bends])  # what bends nowhere is no feature
        return cls(seen, Isolation(np.zeros_like(V), np.zeros(len(V), dtype=bool)), radius, error)

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
        """The model with that many intervals, or as many as can be paid for."""
        V, d = self.seen.directions, samples.dim
        joint = V[~self.where.possible]
        common = int(min(max(1000, 8 * (d + 1)) + 3 * len(joint), allowance))
        ask_along(ask, samples, V, common, rng)
        each = int(min(_POINTS, (allowance - common) // max(1, len(joint))))
        if len(joint) and each > 1:
            ask_strata(ask, samples, joint, each, rng)
        wanted = common + each * len(joint)
        affordable = (allowance - wanted) / (2.0 * max(1, int(self.where.possible.sum()))) - 3.0
        while intervals > affordable and intervals > 8:
            intervals //= 2
        if intervals > affordable:
            return fit_factored(self.seen, *samples.spread, self.radius, 64)
        which, blocks = read(ask, V, self.where, self.radius, intervals)
        blocks = rank_one(blocks, 1e-6)
        X, Y = samples.spread
        left = Y - self._model(V[which], blocks, Y.shape[1]).predict(X) if len(which) else Y
        rest = np.setdiff1d(np.arange(self.count), which)
        if len(rest):
            together = self._together(self.seen.only(rest), samples, X, left, intervals)
            theirs = together.coefficients[: together.offsets[-1]].reshape(len(rest), intervals + 3, -1)
            blocks = np.concatenate([blocks, theirs]) if len(which) else theirs
            whole = self._model(np.concatenate([V[which], V[rest]]), blocks, together.coefficients[-1 - d :])
            return self._worthwhile(whole)
        flat = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        return self._model(V[which], blocks, np.linalg.lstsq(flat, left, rcond=None)[0])

    def _together(self, seen: Hinges, samples: Samples, X: Floats, left: Floats, intervals: int) -> Model:
        """With the roughness weight that held-out points like best; where hinges are known, they say the rest."""
        if seen.places is not None:
            return fit_factored(seen, X, left, self.radius, intervals)
        best, least = None, np.inf
        for smooth in (1e-5, 1e-4, 1e-6):
            model = fit_factored(seen, X, left, self.radius, intervals, smooth=smooth)
            rms = held_out_error(model, samples)[0]
            if rms < least:
                best, least = model, rms
            if rms <= self.error:
                break
        assert best is not None
        return best

    def _worthwhile(self, model: Model) -> Model:
        """Without the features whose responses are straight to well within what is allowed: these are affine."""
        z = nodes(self.radius, 64)
        line = np.stack([np.ones_like(z), z], axis=1)
        fit = np.linalg.pinv(line)
        kept = np.ones(model.count, dtype=bool)
        affine = model.coefficients[-1 - model.dim :].copy()
        for i, v in enumerate(model.directions):
            values = model.term(i, z)
            c = fit @ values
            if np.abs(values - line @ c).max() <= 0.03 * self.error:
                kept[i] = False
                affine[0] += c[0]
                affine[1:] += np.multiply.outer(v, c[1])
        if kept.all():
            return model
        less = model.keep(kept)
        return replace(less, coefficients=np.concatenate([less.coefficients[: less.offsets[-1]], affine]))

    def _model(self, V: Floats, blocks: Floats, affine: Floats | int) -> Model:
        p = affine if isinstance(affine, int) else affine.shape[1]
        flat = np.zeros((1 + V.shape[1], p)) if isinstance(affine, int) else affine
        n, width = blocks.shape[:2]
        coefficients = np.concatenate([blocks.reshape(n * width, p), flat])
        return Model(self.radius, V, np.full(n, width - 3, dtype=np.intp), (np.empty(0),) * n, coefficients)

    def enough_intervals(self, ask: Callable[[Floats], Floats], rng: np.random.Generator) -> int:
        """The fewest with which the splines' errors, of random signs, add up to what is allowed, judged by a few."""
        possible = np.flatnonzero(self.where.possible)
        if not len(possible):
            return 128
        few = rng.choice(possible, min(12, len(possible)), replace=False)
        where = Isolation(self.where.offsets[few], np.ones(len(few), dtype=bool))
        _, blocks = read(ask, self.seen.directions[few], where, self.radius, FINEST)
        fine = nodes(self.radius, 2 * FINEST)
        true = collocation(fine, self.radius, FINEST) @ blocks
        for intervals in (16, 32, 64, 128):
            z = nodes(self.radius, intervals)
            through = np.linalg.inv(collocation(z, self.radius, intervals)) @ (
                collocation(z, self.radius, FINEST) @ blocks
            )
            wrong = np.abs(collocation(fine, self.radius, intervals) @ through - true).max(axis=(1, 2))
            if np.sqrt(self.count * np.mean(wrong**2)) <= self.error:
                return intervals
        return FINEST
