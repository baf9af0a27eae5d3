"""The subspace that the gradients of f span, which all further work is done in.

Gradients are difference quotients in an orthonormal frame, or the oracle's own. Their singular values show how many
dimensions f depends on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .geometry import Floats, in_ball, random_directions, unit
from .oracle.base import Oracle
from .span_growth import SpanGrowth, edge_distances, farthest_asked
from .span_refinement import PROBES, SpanRefinement, batched_frame, leading_rows, singular_values

STEPS = (1e-7, 0.1)
"""Least and largest step of the gradients' difference quotients, in radii; shorter ones are rounded with the inputs."""
CURVATURE_PROBES, PROBE_STEP = 12, 3e-3
"""Second differences that show how much f bends, and their step in radii."""
CURVATURE_BOUND = 30.0
"""Second derivatives of f, over the larger of their median and of f's standard deviation per radius², that a difference
quotient's bias allows for: those of a response that bends within a fifth of the radius, or of the steepest of many."""
NOISE_DEVIATIONS = 4.0
"""Deviations of the noise that the error of one slope allows for."""
CLEAR_DROP = 10.0
"""Factor by which singular values must drop after the rank, for the rank to be taken as known."""
FIRST_GRADIENTS = 8
"""Gradients that are taken first; their number then doubles until the rank is clear. Few directions show in a few."""
EXACT = 1e-9
"""Noise over the standard deviation of f up to which gradients by short steps turn the span by less than 1e-6 rad."""
REFINED_SHARE = 0.5
"""Share of the dimensions that gradients may take up for steps across them to be worth their queries."""
GROWN_SHARE = 0.25
"""Share of the dimensions that a span may grow to: a larger one saves little, and is may lack a direction."""
GRADIENT_SHARE = 0.5
"""Share of the remaining budget that one turn of gradients may take; where it pays for none, the rank stays open."""
BATCH_ROWS, BATCH_NUMBERS = 512, 2**21
"""Points of a stencil that are asked at a time, and coordinates that they differ in, so that memory stays bounded; and
the most numbers that they are, 16 MB, which an allocator gives again without fresh pages."""
SPARE_POINTS, SPARE_ROWS = 8, 8
"""Gradients beyond the dimension, and beyond twice the rank, that are needed before the rank is believed."""
MOST_DIMENSIONS = 4096
"""Dimensions up to which a search in the whole space is possible at all: its matrices have the size of the identity."""
GRADIENT_BYTES = 2**28
"""Memory for the gradients of a function of more dimensions than that."""
FAR_LINES = 48
"""Lines across the span on which f is looked at that far away, three questions each: eight lines miss a response that
bends three deviations out in 100 dimensions with a chance of 7 %."""
FAR_GRADIENTS = 8
"""Of them, how many of those with the strongest bend get a gradient."""
FAR_BEND, FAR_NOISE, FAR_ROUNDING = 1e-3, 20.0, 64.0
"""A bend counts if it exceeds these many standard deviations of f, of the noise, and rounding units, together."""


def batch_rows(dim: int) -> int:
    """Return how many points of a stencil in `dim` dimensions are asked at a time."""
    return max(1, min(BATCH_ROWS, BATCH_NUMBERS // dim))


class GradientSpan:
    """Gradients of f at chosen points, and the subspace that they span."""

    def __init__(
        self,
        oracle: Oracle,
        ask: Callable[[Floats], Floats],
        radius: float,
        std: float,
        noise: float,
        rng: np.random.Generator,
    ) -> None:
        self.oracle, self.ask, self.radius, self.std, self.noise, self.rng = oracle, ask, radius, std, noise, rng
        self.curvature = std / radius**2
        """Typical second derivative of f; `subspace` measures it."""

    @property
    def step(self) -> float:
        """The step at which noise and bias of a difference quotient are about equal."""
        balanced = np.sqrt(self.noise / self.curvature) / self.radius if self.curvature > 0 else 0.0
        return self.radius * float(np.clip(balanced, *STEPS))

    def subspace(self) -> Floats:
        """Return (r, d) orthonormal rows; the identity where gradients span everything or their rank is not clear.

        In more than `MOST_DIMENSIONS` they are, where the rank is not clear, the span of the gradients that were taken.
        """
        d = self.oracle.dim
        if d <= 2 or self.std <= 0:
            return np.eye(d)
        self.curvature = max(self.curvature, self._median_curvature())
        inner, step = self.radius - self.step, self.step
        row_error = NOISE_DEVIATIONS * self.noise / step + CURVATURE_BOUND * step * self.curvature
        gradients, points, span = np.empty((0, d)), 0, np.empty((0, d))
        most = d + SPARE_POINTS if d <= MOST_DIMENSIONS else GRADIENT_BYTES // (8 * d)
        while points < most:
            # A ball in many dimensions hardly moves v·x. Inside the span found so far it does, and a response that
            # looked straight (its direction hidden in the constant part of the gradient) shows its bend there.
            inside = len(span) > 0  # else nothing is known of it yet
            count = min(max(FIRST_GRADIENTS, len(span) if inside else points), d + SPARE_POINTS)
            if not self.oracle.has_gradient:
                count = int(min(count, GRADIENT_SHARE * self.oracle.remaining / (d + 1)))
            if count < 1:
                break
            at = in_ball(count, len(span), inner, self.rng) @ span if inside else in_ball(count, d, inner, self.rng)
            if inside:
                at[::2] *= (inner / np.linalg.norm(at[::2], axis=1))[:, None]
            gradients = np.concatenate([gradients, self._at(at)])
            points += count
            rank = _rank(gradients, d, np.sqrt(max(len(gradients), d)) * row_error)
            if rank == d:
                break
            if (refined := self._refined(gradients)) is not None:
                return refined
            if rank is not None and len(gradients) >= 2 * rank + SPARE_ROWS:
                if inside and rank == len(span):
                    far = self._far(span)
                    if not len(far):
                        return span
                    if leave := _leave_span(far, span, np.sqrt(len(far)) * row_error):
                        gradients = np.concatenate([gradients, far])
                        rank = _rank(gradients, d, np.sqrt(max(len(gradients), d)) * row_error) or rank
                        span = leading_rows(gradients, rank)
                    if (grown := self._grown(span, d)) is not None or not leave:
                        return span if grown is None else grown
                else:
                    span = leading_rows(gradients, rank)
        if d <= MOST_DIMENSIONS:
            return np.eye(d)
        return leading_rows(gradients, len(gradients)) if len(gradients) else np.eye(1, d)

    def _refined(self, gradients: Floats) -> Floats | None:
        """Return the span by long steps across the given gradients; None where that is not needed or shows no rank."""
        d = self.oracle.dim
        if self.oracle.has_gradient or self.noise <= EXACT * self.std or not 0 < len(gradients) <= REFINED_SHARE * d:
            return None
        refinement = SpanRefinement(self.ask, self.radius, self.std, self.noise, self.rng)
        if self.oracle.remaining < 4 * PROBES or not refinement.captures(leading_rows(gradients, len(gradients))):
            return None
        affordable = GRADIENT_SHARE * self.oracle.remaining
        span = refinement.refined(gradients, self.step, affordable, batch_rows(d))
        if span is None and (span := self._grown(np.empty((0, d)), int(GROWN_SHARE * d))) is not None:
            return refinement.corrected(span, self.step, batch_rows(d))
        if span is None:
            return None
        far = self._far(span)
        row_error = NOISE_DEVIATIONS * self.noise / self.step + CURVATURE_BOUND * self.step * self.curvature
        return None if _leave_span(far, span, np.sqrt(max(len(far), 1)) * row_error) else span

    def _grown(self, span: Floats, most: int) -> Floats | None:
        """Return the span grown to where f changes across it, if that is cheaper than gradients of a full rank.

        None if more than `most` dimensions are needed.
        """
        d = self.oracle.dim
        growth = SpanGrowth(
            self.ask, self.radius, farthest_asked(self.oracle, self.radius), self.std, self.noise, self.rng
        )
        affordable = min(GRADIENT_SHARE * self.oracle.remaining, d * (d + 1))
        return growth.grown(span, most, affordable, batch_rows(d))

    def _median_curvature(self) -> float:
        """Return the median of second differences at random points; kinks, which few of them meet, do not matter."""
        d, step = self.oracle.dim, PROBE_STEP * self.radius
        if self.oracle.has_gradient or GRADIENT_SHARE * self.oracle.remaining < 3 * CURVATURE_PROBES:
            return 0.0
        at = in_ball(CURVATURE_PROBES, d, self.radius - step, self.rng)
        along = step * random_directions(CURVATURE_PROBES, d, self.rng)
        f = self.ask(np.concatenate([at, at + along, at - along])).reshape(3, CURVATURE_PROBES, -1)
        second = np.sqrt(np.mean((f[1] + f[2] - 2.0 * f[0]) ** 2, axis=1))
        second = second[np.isfinite(second)]
        return max(0.0, float(np.median(second)) - NOISE_DEVIATIONS * self.noise) / step**2 if len(second) else 0.0

    def _at(self, at: Floats) -> Floats:
        """Return one row for each point of `at` (m, d) and each output; rows with dropped answers are left out."""
        d = at.shape[1]
        if self.oracle.has_gradient:
            rows = self.oracle.gradient(at, stage="survey").reshape(-1, d)
            return rows[np.isfinite(rows).all(axis=1)]
        signs = self.rng.choice([-1.0, 1.0], size=d)
        rows = np.concatenate([self._gradient(x, signs) for x in at])
        return np.asarray(rows[np.isfinite(rows).all(axis=1)])

    def _gradient(self, x: Floats, signs: Floats) -> Floats:
        """Return the gradient (p, d) of f at the point x, from slopes along an orthonormal frame."""
        here, blocks = self.ask(x[None]), []
        for at, frame in batched_frame(len(x), batch_rows(len(x)), signs):
            points = np.repeat(x[None], len(frame), axis=0)
            points[:, at] += self.step * frame
            blocks.append(((self.ask(points) - here) / self.step).T @ frame)
        return np.concatenate(blocks, axis=1)

    def _far(self, span: Floats) -> Floats:
        """Return gradients at points well outside the ball where f bends across the span, if those may be asked.

        There v·x takes values that no random point of a ball in many dimensions has, and a response that bends only
        far out shows. The lines start at points of the span, since the span may hold nearly all of a direction: then
        it is only within the span that v·x comes to the bend. Rows are divided by the distance in radii, since answers
        and their rounding grow with it.
        """
        oracle, radius = self.oracle, self.radius
        farthest = farthest_asked(oracle, radius) / radius
        if farthest < 2.0:
            return np.empty((0, oracle.dim))
        radii = np.geomspace(2.0, farthest, FAR_LINES)
        starts = edge_distances(self.rng.random(FAR_LINES), len(span), radii)
        x = radius * starts[:, None] * random_directions(FAR_LINES, len(span), self.rng) @ span
        across = random_directions(FAR_LINES, oracle.dim, self.rng)
        across = unit(across - (across @ span.T) @ span)
        half = 0.5 * radius * np.sqrt(radii**2 - starts**2)[:, None] * across
        y = x + 2.0 * half
        f = np.nan_to_num(oracle(np.concatenate([x, x + half, y]), stage="survey")).reshape(3, FAR_LINES, -1)
        bend = np.abs(2.0 * f[1] - f[2] - f[0]).max(axis=1)  # 0 where f is affine
        rounding = FAR_ROUNDING * oracle.rounding * np.abs(f).max(axis=(0, 2))
        floor = FAR_BEND * self.std + FAR_NOISE * self.noise + rounding
        worst = np.argsort(-bend)[: min(FAR_GRADIENTS, int(np.sum(bend > floor)))]
        rows = [self._at(y[None, k]) / radii[k] for k in worst]
        return np.concatenate([np.empty((0, oracle.dim)), *rows])


def _leave_span(gradients: Floats, span: Floats, floor: float) -> bool:
    """Return whether the gradients have a part outside the span that is larger than `floor`."""
    outside = gradients - (gradients @ span.T) @ span
    return bool(len(outside)) and float(np.linalg.norm(outside, 2)) > floor


def _rank(gradients: Floats, d: int, floor: float) -> int | None:
    """Return the numerical rank of the gradients above `floor`; None where it is not clear."""
    if not len(gradients):
        return None
    sizes = singular_values(gradients)
    rank = int(np.sum(sizes > floor))
    if rank == 0:  # noise hides all of them, and says nothing about their span
        return None
    if rank >= min(len(gradients), d):
        return d if rank == d else None
    return rank if sizes[rank - 1] > CLEAR_DROP * sizes[rank] else None
