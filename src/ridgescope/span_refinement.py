"""The span of the gradients, measured as exactly as the noise of the answers permits.

A slope from a step h has an error of σ√2/h, so that a gradient of d slopes turns by σ√(2d)/(h|∇f|). Along directions of
the span, h is limited by the bends of f. Across the span f is constant: for a span that is off by an angle θ, a step h
at right angles to it moves v·x by no more than θh/√d or so, whatever the responses are. Such steps may therefore be
nearly as long as the radius R, and what they show is the error of the span. The slopes inside the span come from short
steps; their errors lie in the span and turn it by no more than θ times their size. A few passes of this lead from a
rough span to an error of σ√(2d)/(R|∇f|): that is 1e-7 to 1e-5 rad for functions in single precision, where short steps
leave 1e-3 rad, or find no rank at all since one kink beside a point spoils some of its slopes.

Slopes inside a span of few dimensions are cheap. Once its rank is known they are asked at several times the points that
are needed, and slopes across it only at those whose gradients determine the span best: where all ReLUs are inactive, or
the same ones active as elsewhere, d answers say nothing new.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.fft import idct

from .geometry import Floats, random_directions, unit

LONG = 0.7
"""Steps across the span, and distances of their points from the centre at most, in radii: both stay in the ball."""
MARGIN = 10.0
"""The least distance of the first points, over that of the projections of random points: a rough span is off by some
hundredths, and points this far from kinks do not meet them within a step across it."""
PROBES = 16
"""Points from which random steps across a span are taken, to see whether f depends on it only."""
CAPTURED, MOSTLY = 0.1, 0.75
"""Change of f over such a step, as a share of that over any step as long, which is about the sine of the angle by which
the span is off; and the share of steps that must be below it: others may meet a kink."""
NOISE_DEVIATIONS = 4.0
"""Deviations of the noise that the error of one slope allows for."""
CLEAR_DROP = 10.0
"""Factor by which singular values must drop after the rank."""
FIRST_POINTS, SPARE_POINTS, CHOSEN_SPARE = 8, 4, 2
"""Gradients of the first pass at least, beyond the rank of later ones, and of those at chosen points."""
CHOICE_SHARE, MOST_CHOICE = 0.1, 8
"""Share of the queries for slopes across a span of known rank that those inside it may take, at points from which the
most informative are chosen; and how many there are for each."""
UNSEEN = 1e-8
"""Of the mean square of gradients: the information about a direction before any is chosen, for weak ones to count."""
ROUGH = 1e-2
"""Radians by which each row of a span of known rank is off, before it is corrected."""
CORRECTIONS = 3
"""Passes for that, and estimates of the errors of slopes in each: weak directions settle in the third."""
PASSES, UNCLEAR_PASSES = 5, 2
"""Two suffice unless a step meets a kink, which the next pass corrects; and passes after which a rank that is not clear
is given up."""


def batched_frame(dim: int, each: int, signs: Floats) -> list[tuple[slice, Floats]]:
    """Return blocks of coordinates with orthonormal frames (k, k) of theirs; no coordinate axis is special.

    The frames are the rows of the cosine transform, their columns times `signs`; block by block of at most `each`
    coordinates, since in thousands of dimensions whole rows would take most of the time.
    """
    blocks = [slice(k, min(k + each, dim)) for k in range(0, dim, each)]
    return [(at, idct(np.eye(at.stop - at.start), norm="ortho", overwrite_x=True) * signs[at]) for at in blocks]


class SpanRefinement:
    """Gradients by long steps across a span; see the module."""

    def __init__(
        self, ask: Callable[[Floats], Floats], radius: float, std: float, noise: float, rng: np.random.Generator
    ) -> None:
        self.ask, self.radius, self.std, self.noise, self.rng = ask, radius, std, noise, rng
        self.step = LONG * radius
        self.size = std
        """Typical size of answers in the ball."""

    def captures(self, span: Floats) -> bool:
        """Return whether f hardly changes over long steps across the span (k, d)."""
        d = span.shape[1]
        x = self._points(PROBES, span, 1.0)
        e = random_directions(PROBES, d, self.rng)
        f = self.ask(np.concatenate([x, x + self.step * unit(e - (e @ span.T) @ span)]))
        here, there = np.split(f, 2)
        change = np.sqrt(np.mean((there - here) ** 2, axis=1))
        return float(np.mean(change <= CAPTURED * LONG * self.std)) >= MOSTLY

    def refined(self, gradients: Floats, inner: float, affordable: float, each: int) -> Floats | None:
        """Return the span (r, d) as exactly as noise permits, from rough gradients (k, d); None if no rank is clear.

        `inner` is the step inside the span, `affordable` the number of queries that may be asked, and `each` the
        number of points asked at a time.
        """
        (d, rank), span = (gradients.shape[1], 0), leading_rows(gradients, len(gradients))
        known = span[: _first_gap(singular_values(gradients))]
        middle = self.ask(np.zeros((1, d)))
        self.size = max(self.std, float(np.abs(np.nan_to_num(middle)).max()))
        for turn in range(PASSES):
            needed = -(-len(span) // middle.shape[1])
            times = int(np.clip(CHOICE_SHARE * (d + 1) / (2 * len(span) + 1), 1, MOST_CHOICE)) if turn else 1
            spare = CHOSEN_SPARE if times > 1 else SPARE_POINTS
            count = needed + spare if turn else max(needed, FIRST_POINTS)
            affordable -= count * (d + times * (1 + 2 * len(span)))
            if affordable < 0:
                return None
            points = self._points(count * times, span, 1.0 if turn else MARGIN)
            rows = self._gradients(*self._informative(points, count, span, inner, each), span, each)
            if not len(rows):
                return None
            sizes = singular_values(rows)
            many = np.sqrt(len(rows))
            across = NOISE_DEVIATIONS * many * self.noise * np.sqrt(2.0 * d) / self.step
            inside = NOISE_DEVIATIONS * many * self.noise * np.sqrt(len(span)) / inner
            before, rank = rank, clear_rank(sizes, across + inside)
            found = leading_rows(rows, rank or len(rows))
            if rank and rank == before and (sizes[rank] <= across or turn == PASSES - 1):
                return found
            if not rank and turn == UNCLEAR_PASSES:
                return None
            # where the rank is not clear, f bends within some of the steps: they still point to what the span lacks
            known = span = found if rank in (0, before) else np.concatenate([found, _outside(known, found)])
        return None

    def corrected(self, span: Floats, inner: float, each: int) -> Floats:
        """Return a span (r, d) of known rank more exactly; directions that f hardly follows there stay as they are.

        A gradient ∇f = c (Q + Θ) has the part cQ inside the rows Q given, and cΘ across them: Θ follows by least
        squares, damped where the errors of slopes exceed what rows that are off by `ROUGH` would show.
        """
        (r, d), outputs = span.shape, self.ask(np.zeros((1, span.shape[1]))).shape[1]
        count = -(-r // outputs) + SPARE_POINTS
        for _ in range(CORRECTIONS):
            points = self._points(count, span, 1.0)
            rows = self._gradients(points, *self._inside(points, span, inner, each), span, each)
            inside = rows @ span.T
            across, error = rows - inside @ span, np.sqrt(2.0) * self.noise / self.step
            for _ in range(CORRECTIONS):  # bends within the steps are errors too, which the residual shows
                damping = d * (error / ROUGH) ** 2
                theta = np.linalg.solve(inside.T @ inside + damping * np.eye(r), inside.T @ across)
                error = max(error, float(np.sqrt(np.mean((across - inside @ theta) ** 2))))
            span = np.linalg.qr((span + theta).T)[0].T
        return np.asarray(span)

    def _points(self, count: int, span: Floats, times: float) -> Floats:
        """Return points (count, d) of the span, from `times` the distance of projected random points to `LONG` radii.

        They are pairs x, −x, as a response that is straight on one side is seldom so on the other.
        """
        k, d = span.shape
        nearest = min(LONG, times * np.sqrt(k / d))
        pairs = -(-count // 2)
        half = self.radius * np.geomspace(nearest, LONG, pairs)[:, None] * random_directions(pairs, k, self.rng)
        return np.asarray(np.stack([half, -half], axis=1).reshape(-1, k)[:count] @ span)

    def _informative(
        self, points: Floats, count: int, span: Floats, inner: float, each: int
    ) -> tuple[Floats, Floats, Floats]:
        """Return (count, d) of the points, answers and slopes inside the span there, which together determine it best.

        Points at which some response is flat say nothing of its direction, and only slopes across the span are dear.
        Rounding grows with the terms of f, which may cancel in it.
        """
        here, slopes = self._inside(points, span, inner, each)
        if len(points) == count:
            return points, here, slopes
        terms = np.linalg.norm(slopes, axis=(1, 2)) * np.linalg.norm(points, axis=1)
        weights = np.minimum(self._weights(here), 1.0 / np.maximum(1.0, np.nan_to_num(terms) / self.size))
        chosen = most_informative(np.nan_to_num(slopes) * weights[:, None, None], count)
        return points[chosen], here[chosen], slopes[chosen]

    def _inside(self, at: Floats, span: Floats, inner: float, each: int) -> tuple[Floats, Floats]:
        """Return answers (m, p), and slopes (m, p, k) along the rows of the span from steps `inner`.

        Where f is straight over these steps, the answer at a point is the mean of them all: its error is in all slopes
        across the span.
        """
        k, steps = len(span), inner * np.concatenate([np.zeros((1, span.shape[1])), span, -span])
        together = max(1, each // len(steps))
        blocks = (at[i : i + together, None, :] + steps for i in range(0, len(at), together))
        asked = [self.ask(block.reshape(-1, at.shape[1])) for block in blocks]
        answers = np.concatenate(asked).reshape(len(at), len(steps), -1)
        here, up, down = answers[:, 0], answers[:, 1 : k + 1], answers[:, k + 1 :]
        bend = np.linalg.norm(0.5 * (up + down) - here[:, None], axis=2).max(axis=1, initial=0.0)
        straight = bend * self._weights(here) <= NOISE_DEVIATIONS * self.noise * np.sqrt(here.shape[1])
        middle = np.where(straight[:, None], answers.mean(axis=1), here)
        return middle, ((up - down) / (2.0 * inner)).transpose(0, 2, 1)

    def _weights(self, here: Floats) -> Floats:
        """Return the noise in the ball over that of each of the answers (m, p), (m,): rounding grows with them."""
        return np.asarray(1.0 / np.maximum(1.0, np.abs(np.nan_to_num(here)).max(axis=1) / self.size))

    def _gradients(self, at: Floats, here: Floats, slopes: Floats, span: Floats, each: int) -> Floats:
        """Return a gradient (d,) for each point of `at` and each output, in units of its noise over that in the ball.

        f is `here` (m, p) there, with `slopes` (m, p, k) inside the span. Rows with dropped answers are left out.
        """
        d = at.shape[1]
        frames = batched_frame(d, each, self.rng.choice([-1.0, 1.0], size=d))
        rows = np.stack([self._across(x, y, span, frames) for x, y in zip(at, here, strict=True)]) + slopes @ span
        rows = (rows * self._weights(here)[:, None, None]).reshape(-1, d)
        return np.asarray(rows[np.isfinite(rows).all(axis=1)])

    def _across(self, x: Floats, here: Floats, span: Floats, frames: list[tuple[slice, Floats]]) -> Floats:
        """Return the part across the span of the gradient (p, d) at x, where f is `here` (p,)."""
        blocks = []
        for at, frame in frames:
            points = (-self.step * (frame @ span[:, at].T)) @ span
            points += x  # in place: in thousands of dimensions the time goes into memory
            points[:, at] += self.step * frame
            blocks.append(((self.ask(points) - here) / self.step).T @ frame)
        across = np.concatenate(blocks, axis=1)
        return np.asarray(across - (across @ span.T) @ span)


def most_informative(gradients: Floats, count: int) -> list[int]:
    """Return which of the gradients (m, p, r) of m points, `count` of them, determine their span best together."""
    chosen, r = list[int](), gradients.shape[2]
    inverse = np.eye(r) / max(UNSEEN * float(np.mean(gradients**2)), np.finfo(float).tiny)
    identity = np.eye(gradients.shape[1])
    for _ in range(count):  # each point in turn is the one that raises det(Σ ∇gᵀ∇g) most
        spread = gradients @ inverse
        gains = np.linalg.slogdet(identity + spread @ gradients.transpose(0, 2, 1))[1]
        gains[chosen] = -np.inf
        best = int(np.argmax(gains))
        A = spread[best]
        inverse = inverse - A.T @ np.linalg.solve(identity + A @ gradients[best].T, A)
        chosen.append(best)
    return chosen


def clear_rank(sizes: Floats, floor: float) -> int:
    """Return how many singular values are above `floor`; 0 where they do not drop clearly after them."""
    rank = int(np.sum(sizes > floor))
    if rank == 0 or rank == len(sizes):
        return 0
    return rank if sizes[rank - 1] > CLEAR_DROP * sizes[rank] else 0


def _first_gap(sizes: Floats) -> int:
    """Return after how many of the singular values they first drop clearly; 0 where they do not."""
    gaps = np.flatnonzero(sizes[:-1] > CLEAR_DROP * sizes[1:])
    return int(gaps[0]) + 1 if len(gaps) else 0


def _outside(span: Floats, found: Floats) -> Floats:
    """Return orthonormal rows for the part of a span (k, d) that fewer found rows (r, d) do not hold.

    The gradients of one pass may happen not to show a direction.
    """
    left = span - (span @ found.T) @ found
    return leading_rows(left, max(0, len(span) - len(found)))


def leading_rows(rows: Floats, count: int) -> Floats:
    """Return the first right singular vectors (k, d) of `rows`, at most `count`."""
    return np.linalg.svd(rows, full_matrices=False)[2][:count]


def singular_values(rows: Floats) -> Floats:
    """Return the singular values of rows (m, d), of a square matrix where the rows are few."""
    few = len(rows) < rows.shape[1] // 8
    return np.asarray(np.linalg.svd(np.linalg.qr(rows.T, mode="r") if few else rows, compute_uv=False))
