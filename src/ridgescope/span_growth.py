"""The span of the gradients, grown where f is seen to change across it.

A saturated response has no slope: at most points of the ball a steep sigmoid is flat, and so is one whose bend lies far
out. The singular values of gradients at random points then fall without a gap from those of active responses to those
of saturated ones, however exact the gradients are. But f changes where such a response is crossed, and a line finds the
place: halving it where f changes more ends where f has a slope, on the scale ℓ of that response.

The gradient there is asked by steps that are a share of ℓ, at right angles to the span known so far. Nothing else moves
f along them. In d dimensions a random direction changes v·x by |v|/√d or so, on the line as on each step, so that the
bias is that of the share of ℓ, and the noise of a slope over its size is about σ/(share · Δf), Δf being the change on
the line: some 1e-5 rad in single precision. Each gradient adds a dimension at least, for 2(d − r) queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .geometry import Floats, in_ball, random_directions, unit
from .oracle.base import Oracle
from .span_refinement import batched_frame, leading_rows

LINES, NODES = 32, 9
"""Lines across the span in each round, and points on each of them at first."""
NEAR = 0.7
"""Radii that points in the span have at most, and that lines in the ball extend to both sides of them."""
SEEN, NOISES = 1e-3, 20.0
"""A change of f counts if it exceeds this share of its standard deviation, and so many deviations of the noise."""
HALVINGS, EVEN = 14, 0.25
"""Times that a line is halved at most, and the share of the change in its lesser half at which f is about straight."""
STEPS = (1e-4, 0.02)
"""Least and largest step of the gradients over the length on which f is straight: between them bias balances noise."""
BIAS, TILT = 0.01, 2e-3
"""Singular values of a gradient's part across the span, over the largest of them and over the part inside, up to which
they may be the bias of the steps, or the error of the span known so far."""
NOISE_DEVIATIONS = 4.0
"""Deviations of the noise that the error of one slope allows for."""
QUIET = 4
"""Rounds in a row that must show nothing new."""
FAR_RADII = 16.0
"""Radii to which f is looked at beyond the ball, for directions that matter only there."""
INSIDE = 0.9
"""Share of the reach within which points stay, and of the distance allowed within which lines do: steps go farther."""


@dataclass(frozen=True, eq=False)
class SpanGrowth:
    """What is needed to ask f on lines across a span; see the module."""

    ask: Callable[[Floats], Floats]
    radius: float
    farthest: float
    """Distance from the centre at which f may be asked at most."""
    std: float
    noise: float
    rng: np.random.Generator

    def grown(self, span: Floats, most: int, affordable: float, each: int) -> Floats | None:
        """Return orthonormal rows that hold `span` (k, d), which may be empty, across which f no longer changes.

        None if these would be more than `most`, or take more than `affordable` queries. At most `each` points of a
        gradient are asked at a time.
        """
        d, quiet = span.shape[1], 0
        while quiet < QUIET and len(span) < d:
            affordable -= LINES * (NODES + HALVINGS) + 2 * (d + len(span))
            if len(span) > most or affordable < 0:
                return None
            site = self._site(span)
            new = np.empty((0, d)) if site is None else self._new(*site, span, each)
            quiet = 0 if len(new) else quiet + 1
            span = np.concatenate([span, new])
        return span

    def _site(self, span: Floats) -> tuple[Floats, float] | None:
        """Return a point (d,) where f changes across the span, and the length on which it does; None if nowhere."""
        d = span.shape[1]
        farthest = max(self.farthest, self.radius)
        x = in_ball(LINES, max(1, len(span)), NEAR * self.radius, self.rng)[:, : len(span)]
        x[1::2] = self.radius * random_directions(LINES // 2, max(1, len(span)), self.rng)[:, : len(span)]
        x[1::2] *= edge_distances(np.ones(LINES // 2), len(span), farthest / self.radius)[:, None]
        x = x @ span
        e = random_directions(LINES, d, self.rng)
        e = unit(e - (e @ span.T) @ span)
        reach = np.geomspace(NEAR * self.radius, farthest, LINES)
        reach = np.minimum(reach, np.sqrt((INSIDE * farthest) ** 2 - np.sum(x**2, axis=1)))
        t = reach[:, None] * np.linspace(-1.0, 1.0, NODES)
        f = self._along(x, e, t)
        size = np.abs(f).max(axis=(1, 2), initial=0.0)
        change = np.linalg.norm(np.diff(f, axis=1), axis=2)
        floor = SEEN * self.std + NOISES * self.noise * np.maximum(1.0, size / self.std) * np.sqrt(f.shape[2])
        seen = np.flatnonzero((change.max(axis=1) > floor) & np.isfinite(f).all(axis=(1, 2)))
        if not len(seen):
            return None
        k = self.rng.choice(seen)
        at = int(np.argmax(change[k]))
        low, high = t[k, at], t[k, at + 1]
        ends = f[k, at], f[k, at + 1]
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            half = self._along(x[k : k + 1], e[k : k + 1], np.array([[middle]]))[0, 0]
            left, right = (float(np.linalg.norm(half - end)) for end in ends)
            if not min(left, right) < EVEN * (left + right):
                break
            if left > right:
                high, ends = middle, (ends[0], half)
            else:
                low, ends = middle, (half, ends[1])
        return x[k] + 0.5 * (low + high) * e[k], float(high - low)

    def _along(self, x: Floats, e: Floats, t: Floats) -> Floats:
        """Return answers (m, n, p) at the points x + t e for rows of x, e (m, d) and t (m, n)."""
        nodes = x[:, None, :] + t[:, :, None] * e[:, None, :]
        return self.ask(nodes.reshape(-1, x.shape[1])).reshape(*t.shape, -1)

    def _new(self, x: Floats, length: float, span: Floats, each: int) -> Floats:
        """Return orthonormal rows across the span for the gradient at x, from steps that fit the length."""
        share = np.cbrt(self.noise / (SEEN * self.std))  # the bias grows with its square, the noise falls with it
        step = length * float(np.clip(share, *STEPS))
        frames = batched_frame(len(x), each, self.rng.choice([-1.0, 1.0], size=len(x)))
        blocks = []
        for at, frame in frames:
            steps = -(frame @ span[:, at].T) @ span
            steps[:, at] += frame
            up, down = np.split(self.ask(np.concatenate([x + step * steps, x - step * steps])), 2)
            blocks.append(((up - down) / (2.0 * step)).T @ frame)
        across = np.concatenate(blocks, axis=1)
        across = across - (across @ span.T) @ span
        if not np.isfinite(across).all():
            return np.empty((0, len(x)))
        inside = np.split(self.ask(np.concatenate([x + step * span, x - step * span])), 2)
        largest = float(np.linalg.norm((inside[0] - inside[1]) / (2.0 * step))) if len(span) else 0.0
        size = float(np.abs(inside[0]).max(initial=0.0))
        noise = self.noise * max(1.0, size / self.std) * np.sqrt(len(x)) / (np.sqrt(2.0) * step)
        sizes = np.linalg.svd(across, compute_uv=False)
        floor = max(BIAS * sizes[0], TILT * largest, NOISE_DEVIATIONS * noise)
        rows = leading_rows(across, int(np.sum(sizes > floor)))
        return np.linalg.qr((rows - (rows @ span.T) @ span).T)[0].T


def edge_distances(shares: Floats, k: int, most: Floats | float) -> Floats:
    """Return distances (m,) in radii, up to those at which points in k dimensions are at the edge of the ball.

    That far, √k radii from the centre, v·x is a radius or so for each direction v. The distances are `shares` (m,) of
    that, or of `NEAR` times `most` where this is less.
    """
    return np.asarray(shares * np.minimum(np.sqrt(k), NEAR * np.asarray(most)))


def farthest_asked(oracle: Oracle, radius: float) -> float:
    """Return the distance from the centre at which f may be asked for its span at most."""
    most = FAR_RADII * radius
    return most if oracle.reach is None else min(most, INSIDE * oracle.reach)
