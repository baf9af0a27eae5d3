"""Fourier search: find rays in windowed transforms of slices of f and lift each ray by its phase.

By Parseval, the mass that the paper estimates at level 2, I*(v, C2(b1b1ᵀ + b2b2ᵀ)), is an average over
parallel planes z + span(b1, b2) of the power of the windowed planar transform near (v·b1, v·b2). On a regular
grid that transform has no Monte Carlo noise at all. So:

1. `spectrum`: sample a random slice, transform it and find the strong cells;
2. `lift`: from a few points of shifted slices, find how fast each cell's phase changes along the other axes;
3. `cluster`: combine the estimates of several rings and several slices.

Each slice costs about twice as much as the last, until one more would hardly show anything new or the
queries are spent. The next slice is sampled more finely if the last spectrum had not decayed at its edge, and more
coarsely if it decayed long before. If the reach allows no larger slices, slices of three or four dimensions are
used instead of larger planes.

Choices that follow from the maths
- step h = π/W with W = bandwidth·√(r/d), as √(r/d) is the length of a unit vector's projection on r random axes.
  Higher frequencies are aliased, which the lift corrects, and a wider window resolves more.
- first shift 1/bandwidth: no phase changes by more than a radian, a third of what would be ambiguous.
- longer shifts only if a certain ray oscillates inside the ball, as only then the basin of the fit is narrow
  (a radian of phase at the sphere is 1/(t·radius) radians of angle), and then up to a third of the radius.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..feature import Plane
from ..geometry import Floats, random_basis, unit
from .base import FEATURES_PER_DIM, INSIDE, Ask, Proposal, Setting, parameter_cost
from .lift import Lifted, lift, lift_design, refine_lift, unknowns
from .spectrum import Cells, Frame, Spectrum, ball_volume, picture, strong_cells, transform


@dataclass(frozen=True)
class SliceSettings:
    """Thresholds of the Fourier search; empirical where no reason is given, checked by the recovery benchmark."""

    cost_factor: int = 20  # queries over those of a search by derivatives; used if nothing cheaper has helped
    share: float = 0.6  # largest share of the allowed queries to spend; the fit needs the rest
    first: int = 24_000  # queries for the first slice if slices can grow, enough for twenty rays; then twice as many
    planned: int = 4  # number of slices if the reach does not let them grow
    least: float = 0.25  # no further slice if less than this share of its intended cost is left
    finer: float = 1.6  # factor on the sampling rate for the next slice
    finer_above: float = 0.3  # if the outer third of the frequencies holds more than this share of the power of |C||y|
    coarser: float = 0.7  # factor on the sampling rate for the next slice
    coarser_below: float = 0.02  # if the outer third holds less than this share
    outer: float = 0.67  # where that outer third begins, in Nyquist frequencies
    cut: float = 3.2  # extent T of a slice over its window ℓ: there the window has fallen to 0.006
    cut_short: float = 2.4  # the same if the reach limits T: there resolution matters more than side lobes
    inner: float = 2.6  # radius of the inner disc in 1/ℓ, in which the affine fit and other rays hide each ray
    inner_short: float = 1.8  # the same if the reach limits T
    least_half: int = 6  # fewest grid points from the centre to the edge of a slice
    most_cells: int = 400  # most strong cells of a slice
    most_spectrum: int = 1 << 20  # complex numbers in one spectrum, all outputs: 16 MB, and some ten arrays like it
    most_rank: int = 4  # most dimensions of a slice within a short reach; its cells grow as (ℓt)^r, as queries do
    offset: float = 0.3  # distance of a slice from the origin in radii: at 0, centred responses share one phase
    oversampling: float = 3.0  # fewest answers per unknown of the lift, to average errors out
    enough: float = 24.0  # answers per unknown beyond which more help little
    sampled: float = 0.3  # share of a slice's points for which queries are reserved at each shift
    shift_factor: float = 4.0  # ratio of successive shifts; each reduces the error by this factor
    short_shift: float = 0.1  # longest first shift as a share of a short reach
    longest_shift: float = 0.35  # longest shift as a share of the reach, as points near the edge cannot move
    periods: float = 2.0  # a ray that oscillates more often within the ball needs longer shifts
    certain: float = 0.05  # expected error of an estimate, radians, below which it counts as certain
    doubtful: float = 0.5  # the same above which a second estimate must confirm it, once there are three slices
    useless: float = 1.5  # the same above which it is dropped
    visible: float = 0.1  # weight below which no estimate counts as certain
    soft: float = 0.1  # expected error, radians, at which an estimate has half its weight
    unseen: float = 0.08  # stop if the chance that the next estimate is a new direction is below this (Good and Turing)


@dataclass(frozen=True)
class Slices:
    """Directions from Fourier transforms of slices: for all responses, best for oscillating ones."""

    settings: SliceSettings = SliceSettings()
    name: ClassVar[str] = "slices"

    def cost(self, setting: Setting) -> int:
        """Return twenty times the cost of two features per dimension, doubled each time: this is the last resort."""
        return self.settings.cost_factor * parameter_cost(FEATURES_PER_DIM * setting.dim, setting, setting.turns)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return candidates, those on which several slices agree first, and the spectra of all slices."""
        if setting.dim == 1:
            return Proposal(np.ones((1, 1)), np.ones(1), "one dimension: one direction", complete=True)
        return _SliceSearch(ask, setting, self.settings, rng).run(queries)


@dataclass(frozen=True, eq=False)
class _Estimates:
    """Directions estimated from one slice."""

    plane: Plane
    directions: Floats
    weights: Floats
    angle_error: Floats
    queries: int
    edge_power: float = 0.0
    """Share of the power of |C||y| in the outer third of the frequencies."""
    note: str = "no ray found"


@dataclass(frozen=True, eq=False)
class _SliceSearch:
    """One call of `Slices.propose`."""

    ask: Ask
    setting: Setting
    settings: SliceSettings
    rng: np.random.Generator

    @property
    def _axes(self) -> int:
        """Queries per point of a lift: one shift along every axis, or one gradient, which says as much."""
        return 1 if self.setting.gradient is not None else self.setting.dim

    def run(self, queries: int) -> Proposal:
        """Take slices until one more would hardly show anything new or the queries are spent; return the clusters."""
        s, grows = self.settings, np.isinf(self.setting.reach)
        slices: list[_Estimates] = []
        left, finer = int(s.share * queries), 1.0
        wish = min(s.first, left // 2) if grows else left // s.planned
        while left > 0:
            found = self._slice(wish if left >= 2 * wish else left, finer)
            if found is None:
                break
            slices.append(found)
            left -= found.queries
            if grows:
                wish *= 2
                edge = found.edge_power
                finer *= s.finer if edge > s.finer_above else s.coarser if edge < s.coarser_below else 1.0
            if self._nothing_new(slices) or left < s.least * wish:
                break
        if not slices:
            return Proposal.empty(self.setting, f"{queries:,} queries are too few for one slice")
        all_ = _together(slices)
        keep = (all_.counts > 1) | (all_.angle_error < s.doubtful) if len(slices) > 2 else all_.counts > 0
        note = f"{int(keep.sum())} directions from {len(slices)} slices ({'; '.join(x.note for x in slices)})"
        return Proposal(all_.directions[keep], all_.scores[keep], note, tuple(x.plane for x in slices))

    def _slice(self, queries: int, finer: float) -> _Estimates | None:
        """Transform one slice and lift its rays within `queries`; None if they do not suffice."""
        frame = self._frame(queries, finer)
        if frame is None:
            return None
        spectrum = transform(self.ask, frame, self.setting.noise)
        left = queries - spectrum.queries
        cells = self._affordable(spectrum, left // self._axes)
        if not len(cells.peaks):
            none = np.empty(0)
            return _Estimates(picture(spectrum), np.empty((0, self.setting.dim)), none, none, spectrum.queries)
        lifted = self._lift(spectrum, cells, left)
        keep = lifted.angle_error < self.settings.useless
        # an estimate is weighted by the strength of its ray and by its expected error
        strength = np.sqrt(cells.strengths / cells.strengths.max())
        size = f"{frame.side}×{frame.side}" if frame.rank == 2 else f"{frame.side}^{frame.rank}"
        return _Estimates(
            plane=picture(spectrum),
            directions=lifted.directions(frame)[keep],
            weights=(strength / (1.0 + (lifted.angle_error / self.settings.soft) ** 2))[keep],
            angle_error=lifted.angle_error[keep],
            queries=spectrum.queries + lifted.queries,
            edge_power=_edge_power(spectrum, self.settings.outer),
            note=f"{size} grid, {len(cells.peaks)} cells",
        )

    def _affordable(self, spectrum: Spectrum, points: int) -> Cells:
        """Return the strong cells, at most as many as `points` at each shift can lift."""
        s, frame, outputs = self.settings, spectrum.frame, len(spectrum.coefficients)
        short = frame.extent < s.cut * frame.window * INSIDE
        inner = (s.inner_short if short else s.inner) / frame.window
        cells = strong_cells(spectrum, s.most_cells, inner)
        spare = int(points * outputs / s.oversampling) - unknowns(cells, outputs)
        return cells if spare >= 0 else strong_cells(spectrum, max(0, len(cells.peaks) + spare // 2), inner)

    def _lift(self, spectrum: Spectrum, cells: Cells, queries: int) -> Lifted:
        """Lift the cells, with ever longer shifts while a ray oscillates and `queries` suffice."""
        setting, frame, outputs = self.setting, spectrum.frame, len(spectrum.coefficients)
        shifts, core = self._shifts(frame)
        wanted = int(self.settings.enough * unknowns(cells, outputs) / outputs) + 8  # 8 more if there is one cell only
        design = lift_design(spectrum, cells, min(queries // self._axes, wanted), core, self.rng)
        lifted = lift(self.ask, design, float(shifts[0]), setting.gradient)
        # the slice itself gives its own axes to a fraction of a cell: enough unless its window is short
        first = 0 if frame.cell * setting.radius > 1.0 else frame.rank
        for shift in shifts[1:]:
            if not self._oscillates(lifted) or lifted.queries + (setting.dim - first) * len(design.s) > queries:
                break
            lifted = refine_lift(self.ask, design, lifted, float(shift), first)
        return lifted

    def _oscillates(self, lifted: Lifted) -> bool:
        """Return whether a ray with a small expected error oscillates several times within the ball."""
        certain = lifted.angle_error < 2 * self.settings.certain
        turned = np.linalg.norm(lifted.wavevectors[certain], axis=1) * self.setting.radius
        return bool(np.any(turned > self.settings.periods * 2.0 * np.pi))

    def _frame(self, queries: int, finer: float) -> Frame | None:
        """Return a random slice whose grid leaves enough of `queries` for the lift; None if there are too few.

        If the window can grow, the slice is a plane with as many points as possible. If the reach limits it, it has as
        many dimensions as the queries allow, as the number of cells for separate rays grows as (ℓt)^r.
        """
        setting, s, d = self.setting, self.settings, self.setting.dim
        grows = np.isinf(setting.reach)
        points = int(queries / (1.0 + (s.sampled * self._axes if grows else 1.0)))
        basis = random_basis(d, d, self.rng)
        away = unit(self.rng.standard_normal(d))
        for r in (2,) if grows else range(min(s.most_rank, d), 1, -1):
            offset = s.offset * setting.radius * (away @ basis[r:].T @ basis[r:])
            step = np.pi / (np.sqrt(r / d) * setting.bandwidth * finer)
            frame = self._sized(basis, offset, r, step, points)
            if frame is not None:
                return frame
        return None

    def _sized(self, basis: Floats, offset: Floats, r: int, step: float, points: int) -> Frame | None:
        """Return the slice with as many points as `points` and the reach allow; None if those are too few."""
        setting, s = self.setting, self.settings
        fits = 0.5 * (s.most_spectrum / setting.outputs) ** (1.0 / r)
        half = int(min((points / ball_volume(r)) ** (1.0 / r), fits))
        if half < s.least_half:
            return None
        if np.isinf(setting.reach):
            return Frame(basis, offset, r, step, half, half * step / s.cut, half * step)
        offset = offset * min(0.5, setting.reach / setting.radius)
        extent = float(np.sqrt(setting.reach**2 - offset @ offset)) * INSIDE
        if half * step < extent:
            return None if r > 2 else Frame(basis, offset, r, step, half, half * step / s.cut, half * step)
        half = max(s.least_half, int(np.ceil(extent / step)))
        return Frame(basis, offset, r, extent / half, half, extent / s.cut_short, extent)

    def _shifts(self, frame: Frame) -> tuple[Floats, float]:
        """Return the shifts, and the largest distance from the centre at which shifted points stay within reach."""
        reach, s = self.setting.reach, self.settings
        first = 1.0 / self.setting.bandwidth
        longer = np.ceil(np.log(self.setting.radius / 3.0 / first) / np.log(s.shift_factor))
        shifts = np.asarray(first * s.shift_factor ** np.arange(1 + max(0, int(longer))), dtype=np.float64)
        if np.isinf(reach):
            return shifts, frame.extent
        shifts = np.minimum(shifts, s.short_shift * reach)[:1] if first > s.short_shift * reach else shifts
        shifts = shifts[shifts <= s.longest_shift * reach]
        z, last = float(np.linalg.norm(frame.offset)), float(shifts[-1])
        across = np.sqrt(reach**2 - (z + last) ** 2)
        inside = np.sqrt(reach**2 - z**2) - last
        return shifts, min(frame.extent, float(across), float(inside)) * INSIDE

    def _nothing_new(self, slices: list[_Estimates]) -> bool:
        """Return whether another slice would hardly show a new direction, by Good and Turing's estimate.

        The chance that the next estimate is new is the share of directions that only one slice has shown so far.
        """
        if len(slices) < 2:
            return False
        s, found = self.settings, _together(slices)
        number = np.repeat(np.arange(len(slices)), [len(x.weights) for x in slices])
        certain = np.concatenate([(x.angle_error < s.certain) & (x.weights > s.visible) for x in slices])
        seen = {(c, i) for c, i in zip(found.labels[certain].tolist(), number[certain].tolist(), strict=True)}
        times = np.unique([c for c, _ in seen], return_counts=True)[1]
        if 2 * len(times) < len(found.scores):
            return False  # most directions are still doubtful, and the estimate does not cover them
        return bool(np.sum(times == 1) <= s.unseen * len(seen))


def _edge_power(spectrum: Spectrum, outer: float) -> float:
    """Return the share of the power of |C||y| beyond `outer` Nyquist frequencies."""
    radius = np.linalg.norm(spectrum.frequencies(), axis=-1)
    power = (spectrum.modulus() * radius) ** 2
    nyquist = np.pi / spectrum.frame.step
    total = float(power[radius <= nyquist].sum())
    return float(power[(radius > outer * nyquist) & (radius <= nyquist)].sum()) / total if total > 0 else 0.0


def _together(slices: list[_Estimates]) -> Clusters:
    """Group the estimates of all slices by direction."""
    return cluster(
        np.concatenate([x.directions for x in slices]),
        np.concatenate([x.weights for x in slices]),
        np.concatenate([x.angle_error for x in slices]),
    )


@dataclass(frozen=True, eq=False)
class Clusters:
    """Groups of estimates that may be one direction, best first."""

    directions: Floats
    """(n, d) unit rows."""
    scores: Floats
    """(n,) sums of the members' weights."""
    counts: NDArray[np.intp]
    """(n,) numbers of estimates."""
    angle_error: Floats
    """(n,) expected error of the most exact member, radians."""
    labels: NDArray[np.intp]
    """(k,) the cluster of each estimate."""


def cluster(
    directions: Floats, weights: Floats, angle_error: Floats, *, tolerance: float = 0.02, most: float = 0.2
) -> Clusters:
    """Group estimates (k, d) of unit vectors up to sign, given their weights and expected errors in radians.

    The heaviest estimate without a group takes every other one whose angle to it is at most tolerance + 2·(sum of their
    errors), and never more than `most`. A group is represented by the leading eigenvector of Σ w v vᵀ, which does not
    depend on signs, with w proportional to the inverse square of the error.
    """
    k, d = directions.shape
    label = np.full(k, -1, dtype=np.intp)
    centres: list[Floats] = []
    order = np.argsort(-weights, kind="stable")
    for i in order:
        if label[i] >= 0:
            continue
        free = np.flatnonzero(label < 0)
        cosines = np.minimum(np.abs(directions[free] @ directions[i]), 1.0)
        near = np.arccos(cosines) <= np.minimum(tolerance + 2.0 * (angle_error[free] + angle_error[i]), most)
        near |= free == i
        members = free[near]
        label[members] = len(centres)
        # a quarter of the tolerance keeps an estimate of very small error from outweighing all others
        weighted = directions[members] / (angle_error[members] + 0.25 * tolerance)[:, None]
        centres.append(np.asarray(np.linalg.svd(weighted, full_matrices=False)[2][0]))
    n = len(centres)
    scores = np.zeros(n)
    np.add.at(scores, label, weights)
    best = np.argsort(-scores, kind="stable")
    rank = np.empty(n, dtype=np.intp)
    rank[best] = np.arange(n)
    exact = np.full(n, np.inf)
    np.minimum.at(exact, label, angle_error)
    return Clusters(
        directions=np.reshape(centres, (n, d))[best],
        scores=scores[best],
        counts=np.bincount(label, minlength=n)[best],
        angle_error=exact[best],
        labels=rank[label] if k else label,
    )
