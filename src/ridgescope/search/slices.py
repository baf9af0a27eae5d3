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
  Ladder up to a third of the radius: the error left is then a small part of what the fit's basin allows, whatever the frequency.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats, random_basis
from ..result import Plane
from .base import Ask, Proposal, Setting
from .cluster import Clusters, cluster
from .lift import Lifted, lift, unknowns
from .spectrum import Frame, Spectrum, picture, strong_cells, transform

_CUT = 3.2
"""T/ℓ"""
_INNER = 2.6
"""Radius of the inner disc, in 1/ℓ."""
_OVERSAMPLED = float(__import__("os").environ.get("OV","3"))
"""Answers per unknown of the lift."""
_FIRST = 24_000
"""Queries that the first slice may cost; enough for some twenty rays."""
_MOST_CELLS = 400
_MOST_SPECTRUM = 1 << 22
"""Complex numbers in one spectrum, all outputs together: 64 MB."""


@dataclass(frozen=True, eq=False)
class _Look:
    """What one slice brought."""

    plane: Plane
    lifted: Lifted
    weights: Floats
    queries: int
    full: int
    """What the same lift would have cost on whole shifted slices."""
    edge: float
    """Share of |C||y| power in the outer third of the frequencies."""
    text: str


def propose(ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
    """Candidate directions from planar Fourier transforms; at most `queries` rows are asked."""
    d = setting.dim
    if d == 1:
        return Proposal(np.ones((1, 1)), np.ones(1), "one dimension: one direction")
    looks: list[_Look] = []
    left, wish, stretch = queries, min(_FIRST, queries // 2), 1.0
    while left > 0:
        allowed = min(left, wish) if left >= 1.5 * wish else left
        look = _look(ask, setting, allowed, stretch, rng)
        if look is None:
            break
        looks.append(look)
        left -= look.queries
        wish *= 2
        stretch *= 1.6 if look.edge > 0.3 else 0.7 if look.edge < 0.02 else 1.0
        if len(looks) > 1 and _nothing_new(looks):
            break
    if not looks:
        return Proposal(np.empty((0, d)), np.empty(0), f"{queries:,} queries are too few for one slice")
    found = _together(looks)
    return Proposal(found.directions, found.scores, _note(looks, found), tuple(x.plane for x in looks))


def _look(ask: Ask, setting: Setting, queries: int, stretch: float, rng: np.random.Generator) -> _Look | None:
    """One slice, transformed and lifted within `queries`; None where they do not suffice."""
    frame = _frame(setting, queries, stretch, rng)
    if frame is None:
        return None
    spectrum = transform(ask, frame, setting.noise)
    ladder, core = _ladder(setting, frame)
    shifts = setting.dim + (len(ladder) - 1) * (setting.dim - frame.rank)
    if setting.gradient is not None:
        shifts += 1 - setting.dim
    inner = _INNER / frame.window
    cells = strong_cells(spectrum, _MOST_CELLS, inner)
    points = (queries - spectrum.queries) // shifts
    outputs = len(spectrum.coefficients)
    most = int(points * outputs / _OVERSAMPLED - (unknowns(cells) - 2 * len(cells.peaks)) * outputs) // 2
    if most < 1:
        return None
    if most < len(cells.peaks):
        cells = strong_cells(spectrum, most, inner)
    if not len(cells.peaks):
        nothing = Lifted(np.empty((0, setting.dim)), np.empty(0), np.empty(0), 0, 0.0)
        return _Look(picture(spectrum), nothing, np.empty(0), spectrum.queries, 0, 0.0, "no ray")
    need = int(np.ceil(_OVERSAMPLED * unknowns(cells) / outputs)) + 8
    lifted = lift(
        ask,
        spectrum,
        cells,
        count=min(points, need),
        ladder=ladder,
        core=core,
        rng=rng,
        gradient=setting.gradient,
    )
    # a vote counts by how well the ray stands out, and by how well it passed the tests
    weights = np.sqrt(cells.strengths / cells.strengths[0]) / (1.0 + (lifted.spread / 0.1) ** 2 + lifted.modulus**2)
    text = f"{frame.side}{'×' + str(frame.side) if frame.rank == 2 else '^' + str(frame.rank)} grid, {len(cells.peaks)} cells"
    used = spectrum.queries + lifted.queries
    return _Look(picture(spectrum), lifted, weights, used, spectrum.queries * (1 + shifts), _edge(spectrum), text)


def _frame(setting: Setting, queries: int, stretch: float, rng: np.random.Generator) -> Frame | None:
    """A random slice whose grid costs about half of `queries`."""
    d = setting.dim
    share = min(queries // 2, _MOST_SPECTRUM // max(1, setting.outputs))
    basis = random_basis(d, d, rng)
    options = [f for r in _ranks(setting) if (f := _sized(setting, basis, r, share, stretch, rng)) is not None]
    return options[-1] if options else None


def _ranks(setting: Setting) -> tuple[int, ...]:
    """Planes where the window can grow; where it cannot, as many dimensions as the queries allow."""
    r=__import__("os").environ.get("RANK")
    if r: return (min(int(r),setting.dim),)
    most = 2 if np.isinf(setting.reach) else 4
    return tuple(range(2, min(most, setting.dim) + 1))


def _sized(
    setting: Setting, basis: Floats, r: int, share: int, stretch: float, rng: np.random.Generator
) -> Frame | None:
    d = setting.dim
    wide = min(1.0, 1.5 * np.sqrt(r / d)) * setting.bandwidth * stretch
    step = np.pi / wide
    ball = {2: np.pi, 3: 4.0 * np.pi / 3.0, 4: np.pi**2 / 2.0}[r]
    half = int((share / ball) ** (1.0 / r))
    away = rng.standard_normal(d - r)
    offset = away @ basis[r:] * (0.3 * setting.radius / max(1.0, np.linalg.norm(away)))
    room = np.inf
    if np.isfinite(setting.reach):
        offset *= 0.5 * min(1.0, setting.reach / setting.radius)
        room = float(np.sqrt(setting.reach**2 - offset @ offset)) * (1.0 - 1e-9)
    extent = min(half * step, room)
    if extent < half * step:
        half = int(np.ceil(extent / step))
        if r < min(4, d) and half < 3:
            return None
    if half < 6:
        return None
    return Frame(basis, offset, r, step, half, extent / _CUT, extent)


def _ladder(setting: Setting, frame: Frame) -> tuple[Floats, float]:
    """Shifts, and how far from the centre a point may lie so that all shifted points stay within reach."""
    first = 1.0 / setting.bandwidth
    rungs = int(__import__("os").environ.get("RUNGS","0")) or (1 + max(0, int(np.ceil(np.log(setting.radius / 3.0 / first) / np.log(4.0)))))
    ladder = first * 4.0 ** np.arange(rungs)
    if np.isinf(setting.reach):
        return ladder, frame.extent
    z = float(np.linalg.norm(frame.offset))
    ladder = ladder[ladder <= 0.3 * setting.reach]
    if not len(ladder):
        ladder = np.array([0.1 * setting.reach])
    core = np.sqrt(setting.reach**2 - (z + ladder[-1]) ** 2) - ladder[0]
    return ladder, float(min(frame.extent, core)) * (1.0 - 1e-9)


def _edge(spectrum: Spectrum) -> float:
    """Share of the power of |C||y| in the outer third of the frequencies."""
    radius = np.linalg.norm(spectrum.frequencies(), axis=-1)
    power = (spectrum.modulus() * radius) ** 2
    nyquist = np.pi / spectrum.frame.step
    total = float(power[radius <= nyquist].sum())
    return float(power[(radius > 0.67 * nyquist) & (radius <= nyquist)].sum()) / total if total > 0 else 0.0


def _together(looks: list[_Look]) -> Clusters:
    return cluster(
        np.concatenate([x.lifted.directions for x in looks]),
        np.concatenate([x.weights for x in looks]),
        np.concatenate([x.lifted.spread for x in looks]),
    )


def _nothing_new(looks: list[_Look]) -> bool:
    """Whether the last slice saw only directions that an earlier one had seen, and all of them: each judged by its sure ones."""
    found = _together(looks)
    which = np.repeat(np.arange(len(looks)), [len(x.weights) for x in looks])
    sure = np.concatenate([x.lifted.spread for x in looks]) < 0.05
    last = set(found.label[sure & (which == len(looks) - 1)].tolist())
    before = set(found.label[sure & (which < len(looks) - 1)].tolist())
    return bool(last) and len(last ^ before) <= 0.05 * len(last | before)


def _note(looks: list[_Look], found: Clusters) -> str:
    used = sum(x.queries for x in looks)
    full = sum(x.full for x in looks)
    seen = "; ".join(x.text for x in looks)
    return f"{len(found.scores)} directions from {len(looks)} slices ({seen}); {used:,} queries, whole shifted slices would take {full:,}"
