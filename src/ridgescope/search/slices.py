"""Fourier search: read the star of lines off windowed transforms of slices of f, and lift each ray by its phase.

By Parseval, the mass that the paper estimates at level 2, I*(v, C2(b1b1ᵀ + b2b2ᵀ)), is an average over parallel planes
z + span(b1, b2) of the power of the windowed planar transform near (v·b1, v·b2). On a regular grid that transform has
no Monte Carlo noise at all. So:

1. `spectrum`: sample a random slice, transform, find the strong cells;
2. `lift`: from a few points of shifted slices, find how fast each cell's phase turns along the other axes;
3. `cluster`: put together what several rings and several slices say.

Slices grow, each about twice as dear as the last, until one brings nothing new or the queries are spent. The next
slice is sampled more finely when the last one's spectrum had not decayed at its edge, more widely when it had long before.

Choices and their reasons
- step h = π/W with W = bandwidth·√(r/d)·1.5: a unit vector's projection on r random axes has length √(r/d),
  seldom 1.5 times that. What lies beyond folds back and is put right by the lift.
- extent T from the number of points, or from the reach; window ℓ = T/3.2, where w has fallen to 0.006.
- inner disc 2.6/ℓ: the affine fit and the overlap of all rays own what is inside.
- first shift 1/bandwidth: no phase turns by more than a radian, with a factor of three in hand for a wrong bandwidth.
- more rungs only where a ray that passed the tests oscillates inside the ball, for there alone the fit's basin is narrow
  (a radian of phase at the rim: 1/(t·radius) radians of angle), and then up to a third of the radius.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats, random_basis
from ..result import Plane
from .base import Ask, Proposal, Setting
from .cluster import Clusters, cluster
from .lift import Lifted, choose, first_rung, next_rung, unknowns
from .spectrum import Frame, Spectrum, picture, strong_cells, transform

_CUT = 3.2
"""T/ℓ"""
_INNER = 2.6
"""Radius of the inner disc, in 1/ℓ."""
_OVERSAMPLED = 3.0
"""Answers per unknown of the lift."""
_FIRST = 24_000
"""Queries that the first slice may cost; enough for some twenty rays."""
_MOST_CELLS = 400
_MOST_SPECTRUM = 1 << 22
"""Complex numbers in one spectrum, all outputs together: 64 MB."""
_SURE = 0.05
"""Expected error, radians, below which a sighting counts as certain."""


@dataclass(frozen=True, eq=False)
class _Look:
    """What one slice brought."""

    plane: Plane
    directions: Floats
    weights: Floats
    spread: Floats
    queries: int
    whole: int
    """What the same lift would have cost on whole shifted slices."""
    edge: float
    """Share of the power of |C||y| in the outer third of the frequencies."""
    text: str

    @property
    def sure(self) -> NDArray[np.bool_]:
        return (self.spread < _SURE) & (self.weights > 0.1)


def propose(ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
    """Candidate directions from planar Fourier transforms; at most `queries` rows are asked."""
    d = setting.dim
    if d == 1:
        return Proposal(np.ones((1, 1)), np.ones(1), "one dimension: one direction")
    looks: list[_Look] = []
    left, wish, finer = queries, min(_FIRST, queries // 2), 1.0
    while left > 0:
        allowed = wish if left >= 2 * wish else left
        look = _look(ask, setting, allowed, finer, rng)
        if look is None:
            break
        looks.append(look)
        left -= look.queries
        wish *= 2
        finer *= 1.6 if look.edge > 0.3 else 0.7 if look.edge < 0.02 else 1.0
        if _nothing_new(looks) or left < queries // 8:
            break
    if not looks:
        return Proposal(np.empty((0, d)), np.empty(0), f"{queries:,} queries are too few for one slice")
    found = _together(looks)
    return Proposal(found.directions, found.scores, _note(looks, found), tuple(x.plane for x in looks))


def _look(ask: Ask, setting: Setting, queries: int, finer: float, rng: np.random.Generator) -> _Look | None:
    """One slice, transformed and lifted within `queries`; None where they do not suffice."""
    frame = _frame(setting, queries, finer, rng)
    if frame is None:
        return None
    spectrum = transform(ask, frame, setting.noise)
    outputs = len(spectrum.coefficients)
    inner = _INNER / frame.window
    shifts = 1 if setting.gradient is not None else setting.dim
    points = (queries - spectrum.queries) // shifts
    cells = strong_cells(spectrum, _MOST_CELLS, inner)
    spare = int(points * outputs / _OVERSAMPLED) - unknowns(cells, outputs)
    if spare < 0:
        cells = strong_cells(spectrum, max(0, len(cells.peaks) + spare // 2), inner)
    if not len(cells.peaks):
        empty = np.empty(0)
        return _Look(
            picture(spectrum), np.empty((0, setting.dim)), empty, empty, spectrum.queries, 0, 0.0, "no ray"
        )
    ladder, core = _ladder(setting, frame)
    count = min(points, int(_OVERSAMPLED * unknowns(cells, outputs) / outputs) + 8)
    design = choose(spectrum, cells, count, core, rng)
    lifted = first_rung(ask, design, float(ladder[0]), setting.gradient)
    shifts = setting.dim
    for delta in ladder[1:]:
        dear = (setting.dim - frame.rank) * len(design.s)
        if not _oscillates(lifted, setting.radius) or spectrum.queries + lifted.queries + dear > queries:
            break
        lifted = next_rung(ask, design, lifted, float(delta))
        shifts += setting.dim - frame.rank
    return _Look(
        plane=picture(spectrum),
        directions=lifted.directions(frame),
        weights=_weights(cells.strengths, lifted),
        spread=lifted.spread,
        queries=spectrum.queries + lifted.queries,
        whole=spectrum.queries * (1 + shifts),
        edge=_edge(spectrum),
        text=f"{frame.side}{'×' if frame.rank == 2 else '^'}{frame.side if frame.rank == 2 else frame.rank} grid, "
        f"{len(cells.peaks)} cells",
    )


def _weights(strengths: Floats, lifted: Lifted) -> Floats:
    """A vote counts by how well the ray stands out, and by how well it passed the tests."""
    return np.sqrt(strengths / strengths.max()) / (
        1.0 + (lifted.spread / 0.1) ** 2 + (lifted.growth / 0.1) ** 2
    )


def _oscillates(lifted: Lifted, radius: float) -> bool:
    """Whether a ray that passed the tests turns through more than two periods within the ball."""
    sure = lifted.spread < 2 * _SURE
    return bool(np.any(np.linalg.norm(lifted.turns[sure], axis=1) * radius > 4.0 * np.pi))


def _frame(setting: Setting, queries: int, finer: float, rng: np.random.Generator) -> Frame | None:
    """A random slice whose grid costs about half of `queries`."""
    d = setting.dim
    share = min(queries // 2, _MOST_SPECTRUM // max(1, setting.outputs))
    basis = random_basis(d, d, rng)
    options = [f for r in _ranks(setting) if (f := _sized(setting, basis, r, share, finer, rng)) is not None]
    return options[-1] if options else None


def _ranks(setting: Setting) -> tuple[int, ...]:
    """Planes where the window can grow; where it cannot, as many dimensions as the queries allow."""
    most = 2 if np.isinf(setting.reach) else 4
    return tuple(range(2, min(most, setting.dim) + 1))


def _sized(
    setting: Setting, basis: Floats, r: int, share: int, finer: float, rng: np.random.Generator
) -> Frame | None:
    d = setting.dim
    wide = min(1.0, 1.5 * np.sqrt(r / d)) * setting.bandwidth * finer
    step = np.pi / wide
    ball = {2: np.pi, 3: 4.0 * np.pi / 3.0, 4: np.pi**2 / 2.0}[r]
    half = int((share / ball) ** (1.0 / r))
    away = rng.standard_normal(d - r)
    offset = away @ basis[r:] * (0.3 * setting.radius / max(1.0, float(np.linalg.norm(away))))
    room = np.inf
    if np.isfinite(setting.reach):
        offset *= 0.5 * min(1.0, setting.reach / setting.radius)
        room = float(np.sqrt(setting.reach**2 - offset @ offset)) * (1.0 - 1e-9)
    if half * step > room:
        half = int(np.ceil(room / step))
    elif r > 2:
        return None
    if half < 6:
        return None
    extent = min(half * step, room)
    return Frame(basis, offset, r, step, half, extent / _CUT, extent)


def _ladder(setting: Setting, frame: Frame) -> tuple[Floats, float]:
    """Shifts, and how far from the centre a point may lie so that all shifted points stay within reach."""
    first = 1.0 / setting.bandwidth
    rungs = 1 + max(0, int(np.ceil(np.log(setting.radius / 3.0 / first) / np.log(4.0))))
    ladder = first * 4.0 ** np.arange(rungs)
    if np.isinf(setting.reach):
        return ladder, frame.extent
    ladder = ladder[ladder <= 0.3 * setting.reach]
    if not len(ladder):
        ladder = np.array([0.1 * setting.reach])
    z = float(np.linalg.norm(frame.offset))
    core = np.sqrt(setting.reach**2 - (z + ladder[-1]) ** 2) - ladder[0]
    return ladder, min(frame.extent, float(core)) * (1.0 - 1e-9)


def _edge(spectrum: Spectrum) -> float:
    """Share of the power of |C||y| in the outer third of the frequencies."""
    radius = np.linalg.norm(spectrum.frequencies(), axis=-1)
    power = (spectrum.modulus() * radius) ** 2
    nyquist = np.pi / spectrum.frame.step
    total = float(power[radius <= nyquist].sum())
    return float(power[(radius > 0.67 * nyquist) & (radius <= nyquist)].sum()) / total if total > 0 else 0.0


def _together(looks: list[_Look]) -> Clusters:
    return cluster(
        np.concatenate([x.directions for x in looks]),
        np.concatenate([x.weights for x in looks]),
        np.concatenate([x.spread for x in looks]),
    )


def _nothing_new(looks: list[_Look]) -> bool:
    """Whether the last slice is sure of nothing that those before had not seen, but for one in twenty."""
    found = _together(looks)
    sure = np.concatenate([x.sure for x in looks])
    last = np.repeat(np.arange(len(looks)), [len(x.weights) for x in looks]) == len(looks) - 1
    now, before = set(found.label[sure & last].tolist()), set(found.label[sure & ~last].tolist())
    return bool(now) and len(now - before) <= 0.05 * len(now)


def _note(looks: list[_Look], found: Clusters) -> str:
    used = sum(x.queries for x in looks)
    whole = sum(x.whole for x in looks)
    seen = "; ".join(x.text for x in looks)
    return (
        f"{len(found.scores)} directions from {len(looks)} slices ({seen}); "
        f"{used:,} queries, whole shifted slices would take {whole:,}"
    )
