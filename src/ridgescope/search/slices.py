"""Fourier search: read the star of lines off windowed transforms of slices of f, lift each ray by its phase.

By Parseval, the mass that the paper estimates at level 2, I*(v, C2(b1b1ᵀ + b2b2ᵀ)), is an average over
parallel planes z + span(b1, b2) of the power of the windowed planar transform near (v·b1, v·b2). On a regular
grid that transform has no Monte Carlo noise at all. So:

1. `spectrum`: sample a random slice, transform, find the strong cells;
2. `lift`: from a few points of shifted slices, find how fast each cell's phase turns along the other axes;
3. `cluster`: put together what several rings and several slices say.

Slices grow, each about twice as dear as the last, until one more would hardly show anything new or the
queries are spent. The next is sampled more finely when the last one's spectrum had not decayed at its edge,
more widely when it had long before. Where the reach allows no growth, slices of three or four dimensions take
the place of larger planes.

Choices and their reasons
- step h = π/W with W = bandwidth·√(r/d), the length of a unit vector's projection on r random axes. What lies
  beyond folds back and is put right by the lift, and a wider window resolves more.
- extent T from the number of points, or from the reach; window ℓ = T/3.2, where w has fallen to 0.006. Within
  a short reach T/2.4: resolution is dearer there than side lobes.
- inner disc 2.6/ℓ: the affine fit and the overlap of all rays own what is inside.
- first shift 1/bandwidth: no phase turns by more than a radian, with a factor of three in hand.
- more rungs only where a ray that passed the tests oscillates inside the ball, for there alone the fit's
  basin is narrow (a radian of phase at the rim: 1/(t·radius) radians of angle), and then up to a third of the
  radius.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..feature import Plane
from ..geometry import Floats, random_basis, unit
from .base import Ask, Proposal, Setting, parameter_cost
from .cluster import Clusters, cluster
from .lift import Lifted, choose, first_rung, next_rung, unknowns
from .spectrum import Cells, Frame, Spectrum, ball_volume, picture, strong_cells, transform

_CUT, _CUT_SHORT = 3.2, 2.4
"""T/ℓ, where T can grow and where the reach holds it short."""
_INNER, _INNER_SHORT = 2.6, 1.8
"""Radius of the inner disc, in 1/ℓ, likewise."""
_LEAST_HALF = 6
_OVERSAMPLED = 3.0
"""Answers per unknown of the lift."""
_ENOUGH = 24.0
"""Answers per unknown beyond which more bring little."""
_SAMPLED = 0.3
"""Points of the slice that the lift is to have at each shift, if the strong cells do not ask for more."""
_FIRST = 24_000
"""Queries that the first slice may cost; enough for some twenty rays."""
_SPENT = 0.6
"""Share of the queries allowed that is spent: the fit needs some, and asks where they tell it most."""
_MOST_CELLS = 400
_MOST_SPECTRUM = 1 << 20
"""Complex numbers in one spectrum, all outputs together: 16 MB, and some ten arrays of that size around it."""
_SURE, _VAGUE, _WORST = 0.05, 0.5, 1.5
"""Expected error, radians, below which a sighting counts as certain, above which it takes a second one to be
believed once there are slices enough to have one, and above which it is worth nothing."""


@dataclass(frozen=True, eq=False)
class _Look:
    """What one slice brought."""

    plane: Plane
    directions: Floats
    weights: Floats
    spread: Floats
    fastest: float
    """Highest frequency of a sure ray, in R^d."""
    queries: int
    whole: int
    """What the same lift would have cost on whole shifted slices."""
    edge: float
    """Share of the power of |C||y| in the outer third of the frequencies."""
    text: str

    @property
    def sure(self) -> NDArray[np.bool_]:
        return (self.spread < _SURE) & (self.weights > 0.1)


@dataclass(frozen=True)
class Slices:
    """Directions from Fourier transforms of slices."""

    name: ClassVar[str] = "slices"

    def cost(self, setting: Setting) -> int:
        """Twenty times as for two features a dimension, doubling with its own turns: the last resort."""
        return 20 * parameter_cost(2 * setting.dim, setting, setting.turns)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Candidate directions from planar Fourier transforms."""
        return _propose(ask, setting, queries, rng)


def _propose(ask: Ask, setting: Setting, queries: int, rng: np.random.Generator) -> Proposal:
    d = setting.dim
    if d == 1:
        return Proposal(np.ones((1, 1)), np.ones(1), "one dimension: one direction")
    looks: list[_Look] = []
    left, finer = int(_SPENT * queries), 1.0
    wish = min(_FIRST, left // 2) if np.isinf(setting.reach) else left // 4
    while left > 0:
        allowed = wish if left >= 2 * wish else left
        look = _look(ask, setting, allowed, finer, rng)
        if look is None:
            break
        looks.append(look)
        left -= look.queries
        if np.isinf(setting.reach):
            wish *= 2
            finer *= 1.6 if look.edge > 0.3 else 0.7 if look.edge < 0.02 else 1.0
        if _nothing_new(looks) or 4 * left < wish:
            break
    if not looks:
        return Proposal.empty(setting, f"{queries:,} queries are too few for one slice")
    found = _together(looks)
    keep = (found.votes > 1) | (found.spread < _VAGUE) if len(looks) > 2 else found.votes > 0
    note = _note(looks, int(keep.sum()))
    return Proposal(found.directions[keep], found.scores[keep], note, tuple(x.plane for x in looks))


def _look(ask: Ask, setting: Setting, queries: int, finer: float, rng: np.random.Generator) -> _Look | None:
    """One slice, transformed and lifted within `queries`; None where they do not suffice."""
    frame = _frame(setting, queries, finer, rng)
    if frame is None:
        return None
    spectrum = transform(ask, frame, setting.noise)
    left = queries - spectrum.queries
    shifts = 1 if setting.gradient is not None else setting.dim
    cells = _affordable(spectrum, left // shifts)
    if not len(cells.peaks):
        none, empty = np.empty((0, setting.dim)), np.empty(0)
        return _Look(picture(spectrum), none, empty, empty, 0.0, spectrum.queries, 0, 0.0, "no ray")
    lifted, whole = _climb(ask, setting, spectrum, cells, left, rng)
    keep = lifted.spread < _WORST
    lengths = np.linalg.norm(lifted.turns, axis=1)
    size = f"{frame.side}×{frame.side}" if frame.rank == 2 else f"{frame.side}^{frame.rank}"
    return _Look(
        plane=picture(spectrum),
        directions=lifted.directions(frame)[keep],
        weights=_weights(cells.strengths, lifted)[keep],
        spread=lifted.spread[keep],
        fastest=float(np.max(lengths, where=lifted.spread < _SURE, initial=0.0)),
        queries=spectrum.queries + lifted.queries,
        whole=whole,
        edge=_edge(spectrum),
        text=f"{size} grid, {len(cells.peaks)} cells",
    )


def _affordable(spectrum: Spectrum, points: int) -> Cells:
    """As many strong cells as `points` at each shift can lift."""
    frame, outputs = spectrum.frame, len(spectrum.coefficients)
    short = frame.extent < _CUT * frame.window * (1.0 - 1e-9)
    inner = (_INNER_SHORT if short else _INNER) / frame.window
    cells = strong_cells(spectrum, _MOST_CELLS, inner)
    spare = int(points * outputs / _OVERSAMPLED) - unknowns(cells, outputs)
    return cells if spare >= 0 else strong_cells(spectrum, max(0, len(cells.peaks) + spare // 2), inner)


def _climb(
    ask: Ask, setting: Setting, spectrum: Spectrum, cells: Cells, queries: int, rng: np.random.Generator
) -> tuple[Lifted, int]:
    """The lift, rung by rung while it pays and `queries` last; and what whole shifted slices would cost."""
    d, frame, outputs = setting.dim, spectrum.frame, len(spectrum.coefficients)
    shifts = 1 if setting.gradient is not None else d
    ladder, core = _ladder(setting, frame)
    count = min(queries // shifts, int(_ENOUGH * unknowns(cells, outputs) / outputs) + 8)
    design = choose(spectrum, cells, count, core, rng)
    lifted = first_rung(ask, design, float(ladder[0]), setting.gradient)
    # the slice itself knows its own axes well enough, unless its window is short
    first = 0 if frame.cell * setting.radius > 1.0 else frame.rank
    for delta in ladder[1:]:
        if not _oscillates(lifted, setting.radius) or lifted.queries + (d - first) * len(design.s) > queries:
            break
        lifted = next_rung(ask, design, lifted, float(delta), first)
        shifts += d - first
    return lifted, spectrum.queries * (1 + shifts)


def _weights(strengths: Floats, lifted: Lifted) -> Floats:
    """A vote counts by how well the ray stands out, and by how well it passed the tests."""
    return np.asarray(np.sqrt(strengths / strengths.max()) / (1.0 + (lifted.spread / 0.1) ** 2))


def _oscillates(lifted: Lifted, radius: float) -> bool:
    """Whether a ray that passed the tests turns through more than two periods within the ball."""
    sure = lifted.spread < 2 * _SURE
    return bool(np.any(np.linalg.norm(lifted.turns[sure], axis=1) * radius > 4.0 * np.pi))


def _frame(setting: Setting, queries: int, finer: float, rng: np.random.Generator) -> Frame | None:
    """A random slice whose grid leaves enough of `queries` for the lift.

    Where the window can grow, planes: room is made by more points. Where the reach holds it short, as many
    dimensions as the queries allow, for the number of cells that rays can be told apart in grows as (ℓt)^r.
    """
    d = setting.dim
    shifts = 1 if setting.gradient is not None else d
    lifted = _SAMPLED * shifts if np.isinf(setting.reach) else 1.0
    share = int(queries / (1.0 + lifted))
    basis = random_basis(d, d, rng)
    away = unit(rng.standard_normal(d))
    ranks = range(min(4, d), 1, -1) if np.isfinite(setting.reach) else (2,)
    for r in ranks:
        offset = 0.3 * setting.radius * (away @ basis[r:].T @ basis[r:])
        step = np.pi / (np.sqrt(r / d) * setting.bandwidth * finer)
        frame = _sized(setting, basis, offset, r, step, share)
        if frame is not None:
            return frame
    return None


def _sized(setting: Setting, basis: Floats, offset: Floats, r: int, step: float, share: int) -> Frame | None:
    """The slice with as many points as `share` and the reach allow; None where those are too few."""
    fits = 0.5 * (_MOST_SPECTRUM / setting.outputs) ** (1.0 / r)
    half = int(min((share / ball_volume(r)) ** (1.0 / r), fits))
    if half < _LEAST_HALF:
        return None
    if np.isinf(setting.reach):
        return Frame(basis, offset, r, step, half, half * step / _CUT, half * step)
    offset = offset * min(0.5, setting.reach / setting.radius)
    extent = float(np.sqrt(setting.reach**2 - offset @ offset)) * (1.0 - 1e-9)
    if half * step < extent:
        if r > 2:
            return None
        return Frame(basis, offset, r, step, half, half * step / _CUT, half * step)
    half = max(_LEAST_HALF, int(np.ceil(extent / step)))
    return Frame(basis, offset, r, extent / half, half, extent / _CUT_SHORT, extent)


def _ladder(setting: Setting, frame: Frame) -> tuple[Floats, float]:
    """Shifts, and how far from the centre a point may lie so that all shifted points stay within reach."""
    first = 1.0 / setting.bandwidth
    rungs = 1 + max(0, int(np.ceil(np.log(setting.radius / 3.0 / first) / np.log(4.0))))
    ladder = np.asarray(first * 4.0 ** np.arange(rungs), dtype=np.float64)
    if np.isinf(setting.reach):
        return ladder, frame.extent
    ladder = np.minimum(ladder, 0.1 * setting.reach)[:1] if first > 0.1 * setting.reach else ladder
    ladder = ladder[ladder <= 0.35 * setting.reach]
    z, last = float(np.linalg.norm(frame.offset)), float(ladder[-1])
    across = np.sqrt(setting.reach**2 - (z + last) ** 2)
    inside = np.sqrt(setting.reach**2 - z**2) - last
    return ladder, min(frame.extent, float(across), float(inside)) * (1.0 - 1e-9)


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
    """Whether another slice would hardly show an unseen direction, by Good and Turing's estimate.

    The chance that the next sighting is of something new is the share of sightings that stand alone so far.
    """
    if len(looks) < 2:
        return False
    found = _together(looks)
    slices = np.repeat(np.arange(len(looks)), [len(x.weights) for x in looks])
    sure = np.concatenate([x.sure for x in looks])
    sightings = {(c, i) for c, i in zip(found.label[sure].tolist(), slices[sure].tolist(), strict=True)}
    times = np.unique([c for c, _ in sightings], return_counts=True)[1]
    if 2 * len(times) < len(found.scores):
        return False  # most of what is there is vague as yet, and the estimate does not speak of it
    return bool(np.sum(times == 1) <= 0.08 * len(sightings))


def _note(looks: list[_Look], count: int) -> str:
    used = sum(x.queries for x in looks)
    whole = sum(x.whole for x in looks)
    seen = "; ".join(x.text for x in looks)
    fastest = max(x.fastest for x in looks)
    sure = f", sure rays up to frequency {fastest:.3g}" if fastest else ""
    return (
        f"{count} directions from {len(looks)} slices ({seen}){sure}; "
        f"{used:,} queries, whole shifted slices would take {whole:,}"
    )
