"""Directions from second derivatives.

    ∇²f(x) = Σ_i s_i''(v_i·x) v_i v_iᵀ

Hessians at many points span {v_i v_iᵀ}: the singular values of the stack drop after the n-th
(`rankone.span_of`), and the rank-one matrices of the span are the features (`rankone.rank_ones`). That
needs n ≤ d(d−1)/2; beyond, `tensors` goes on with higher derivatives.

*Restriction.* In a random r-dimensional subspace with orthonormal rows Q the same holds for w_i = Q v_i,
and r ≈ 2√n is enough. So the width r starts small and widens while the Hessians still fill the whole
space of symmetric matrices; what was asked at a narrower width is kept.

*Lift.* With w_i known, c_i(x) = s_i''(v_i·x)|w_i|² follows from the restricted Hessians by least squares.
A derivative along one direction q_j inside the subspace and one, e, outside it is

    ∂_j ∂_e f(x) = Σ_i c_i(x) ŵ_ij (u_i·e),         u_i = v_i/|w_i|,  ŵ_i = w_i/|w_i|,

linear in the one unknown u_i·e of every feature. About n such equations for every e fix all of v_i: n² +
nd queries in all rather than nd².

Several outputs give several Hessians at a point for the price of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from ..geometry import Floats, in_ball, random_basis, shrink_to, unit
from .base import Ask, Meter, Proposal, Setting, informative_points, parameter_cost, points_in_shell
from .hessians import Differences, Gradients, Sizes, Smoothed, Source, derivative_sizes
from .powers import most_apart
from .rank_one import Span, packed_side, polish, rank_ones, span_of, squares, unpack, without
from .stencil_bias import Curves

_NARROW = 20
"""Width to start with where d is larger than this by some."""
_HEAVY = 1500
"""Size of a packed Hessian from which on a look at the singular values takes many seconds."""


@dataclass(frozen=True)
class Curvature:
    """Directions from second derivatives."""

    name: ClassVar[str] = "curvature"

    def cost(self, setting: Setting) -> int:
        """As for two features a dimension, doubling with the rounds."""
        return parameter_cost(2 * setting.dim, setting, setting.rounds)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Directions of the features of f that bend smoothly; of all features where f must be smoothed first."""
        return _propose(ask, setting, queries, rng)


def _propose(ask: Ask, setting: Setting, queries: int, rng: np.random.Generator) -> Proposal:
    meter = Meter(ask, queries)
    basis = random_basis(setting.dim, setting.dim, rng)
    source = _source(meter, setting, basis, rng)
    sheet = _sample(source, setting, rng) if source is not None else None
    if isinstance(source, Differences) and sheet is not None and sheet.blurred:
        source = smoothed(source, Sizes.none(), setting, rng)
        sheet = _sample(source, setting, rng) or sheet
    if source is None or sheet is None:
        return Proposal.empty(setting, f"{queries:,} queries are too few for Hessians in {setting.dim} dimensions")
    source, sheet = _sharpened(source, sheet, setting)
    note = f"{source.name}: {len(sheet.rows)} of width {sheet.width}, {_gap(sheet.span)}"
    if sheet.full:
        return Proposal.empty(setting, f"{note}; too many features for this method", resolved=False)
    if sheet.span.rank == 0:
        return Proposal.empty(setting, note)
    accept = 1.0 - float(np.clip(30.0 / sheet.span.drop**2, 1e-6, 0.2))
    found = rank_ones(sheet.span.basis, rng, accept=accept)
    note += f"; {len(found.vectors)} rank-one members in {found.rounds} rounds"
    resolved, clear = not sheet.ambiguous(setting.dim), sheet.span.clear
    rank = sheet.span.rank if clear else None
    complete = resolved and len(found.vectors) == rank
    mixed = _mixed(source, sheet, found.vectors, setting.dim)
    if mixed is None:
        return Proposal.empty(setting, note + "; too few queries left to lift them")
    directions = mixed.lift(sheet, found.vectors) @ basis
    if isinstance(source, Differences) and not source.centred and len(directions):
        directions = _upright(source, sheet, mixed, directions) @ basis
    return Proposal(directions, found.inside, note, resolved=resolved, rank=rank, complete=complete)


def _upright(source: Differences, sheet: Sheet, mixed: Mixed, directions: Floats) -> Floats:
    """(n, d) the directions again, in the coordinates of the basis, from stencils that no longer lean."""
    curves = Curves.of(sheet.points, sheet.hessians, directions, source.basis[: sheet.width])
    if curves is None:
        return directions @ source.basis.T
    hessians = sheet.hessians - curves.lean_of_hessians(source.step)
    straight = replace(sheet, hessians=hessians, span=span_of(hessians.reshape(-1, sheet.size), sheet.error))
    vectors, _ = polish(unpack(straight.span.basis), unit(directions @ source.basis[: sheet.width].T))
    values = mixed.values - curves.lean_of_pairs(
        mixed.chosen, source.step, source.basis[mixed.rows], source.basis[mixed.columns]
    )
    return replace(mixed, values=values).lift(straight, vectors)


def _gap(span: Span) -> str:
    s, k = span.singular, span.rank
    if k == 0:
        return f"no curvature: the largest singular value, {s[0]:.1e}, may be error"
    if k >= len(s):
        return f"no drop in {len(s)} singular values"
    word = "drop" if span.clear else "hardly drop"
    return f"singular values {word} after {k} ({s[k - 1]:.1e} to {s[k]:.1e})"


def _source(meter: Meter, setting: Setting, basis: Floats, rng: np.random.Generator) -> Source | None:
    """The cheapest way to Hessians that noise and kinks allow."""
    wave = 1.0 / max(setting.bandwidth, 1e-9)
    edge = min(setting.radius, setting.reach)
    widest = min(1.2 * wave, 0.1 * edge)
    # where noise is strong a wider stencil still sees derivatives, if blurred ones
    probe = widest * min(1.0, max(0.25, np.sqrt(200.0 * setting.noise / max(setting.std, setting.noise))))
    points = in_ball(min(10, meter.left // 60), setting.dim, edge - 1.5 * widest, rng)
    if len(points) < 4:
        return None
    fine = derivative_sizes(meter, setting, points, probe, rng)
    if setting.gradient is not None:
        return Gradients(Meter(setting.gradient, meter.left), basis, *fine.gradient(setting.noise, widest))
    kinked = fine.second < 0.15 * derivative_sizes(meter, setting, points, widest, rng).largest
    h, error = fine.centred(setting.noise, 1.5 * widest)
    centred = Differences(meter, basis, h, True, error)
    h, error = fine.forward(setting.noise, widest)
    if error <= 3e-3 * fine.second and not kinked and not _cheap(setting, meter.left):
        return Differences(meter, basis, h, False, error, centred)
    if centred.error <= 0.25 * fine.second and not kinked:
        return centred
    return smoothed(centred, fine, setting, rng)


def _cheap(setting: Setting, queries: int) -> bool:
    """Small enough that centred stencils, twice the queries, may as well be afforded."""
    d = setting.dim
    return d**2 * d * (d + 1) / 2 / setting.outputs <= min(0.4 * queries, 20_000)


def smoothed(differences: Differences, sizes: Sizes, setting: Setting, rng: np.random.Generator) -> Smoothed:
    """With a width at which the misfit of a quadratic, about 0.3(kη)² for sin kz, equals the noise."""
    d, wave = setting.dim, 1.0 / max(setting.bandwidth, 1e-9)
    longest = float(np.sqrt(d) + 2.0)
    k = np.sqrt(d * sizes.fourth / (3.0 * sizes.second)) if sizes.second > 0 else np.inf
    k = np.clip(k, 0.5 / wave, 1.0 / wave)
    noise = 1.4 * setting.noise / max(d * sizes.second, 1e-300)
    eta = np.clip((noise / (0.3 * k**2)) ** 0.25, 0.4 / k, wave) if sizes.second > 0 else wave
    edge = min(setting.radius, setting.reach)
    return Smoothed(differences, float(min(eta, 0.5 * edge / longest)), longest, rng, setting.noise)


@dataclass(frozen=True, eq=False)
class Sheet:
    """Hessians at some points, and their span."""

    points: Floats
    hessians: Floats
    """(N, p, D) packed."""
    error: float
    span: Span
    full: bool = False
    """They fill the whole space of symmetric matrices as far as one can see."""

    @property
    def width(self) -> int:
        return packed_side(self.size)

    @property
    def size(self) -> int:
        return int(self.hessians.shape[2])

    @property
    def blurred(self) -> bool:
        """Kinks only, or kinks and noise in every stencil."""
        noisy = self.error**2 > 1e-5 * np.mean(self.hessians**2)
        return self.span.rank == 0 or (self.full and bool(noisy))

    def ambiguous(self, dim: int) -> bool:
        """Their span may have rank-one members besides the features, or queries ran out before it was whole."""
        short = not self.span.clear and self.span.rank == len(self.rows)
        return self.width == dim and (short or self.span.rank > most_apart(dim, 2))

    @property
    def steady(self) -> int:
        """Rows that steady the weakest: a tenth more than the rank where it is plain, a fifth more where it is not."""
        return int(np.ceil((1.1 if self.span.drop > 30.0 else 1.2) * self.span.rank))

    @property
    def settled(self) -> bool:
        """More points would not change the rank, or hardly."""
        rows, sharp = len(self.rows), self.span.drop > 5.0
        if rows < self.steady:
            return False
        enough = max(4 * self.size, 150) if self.size < _HEAVY else 1.6 * self.size
        return (self.span.clear and (sharp or rows > 1.6 * self.size)) or rows > enough

    @property
    def fewest(self) -> int:
        """A response may be straight at any one point, however many outputs there are."""
        return int(np.clip(3 * self.span.rank / self.hessians.shape[1], 6, 20))

    @property
    def rows(self) -> Floats:
        return self.hessians.reshape(-1, self.size)


def _sample(source: Source, setting: Setting, rng: np.random.Generator) -> Sheet | None:
    """Hessians at more and more points, at widths that grow with the rank, until the singular values drop."""
    d, p = setting.dim, setting.outputs
    width = d if d <= 1.3 * _NARROW else _NARROW
    spare = 0 if width == d else source.ask.left // 5  # for the lift
    count = max(2, -(-12 // p))
    sheet: Sheet | None = None
    while True:
        have = 0 if sheet is None else len(sheet.points)
        room = (source.ask.left - spare) // source.cost(width)
        if room <= 0 and count > have:
            return sheet
        sheet = _with_more(sheet, source, setting, width, min(count - have, room), rng)
        if sheet is None or len(sheet.points) == 0:
            return None
        wanted = _wanted_width(sheet, d)
        if wanted > width:
            wider = _widened(sheet, source, wanted, spare)
            if wider is None:
                return sheet
            sheet, width, count = wider, wanted, len(wider.points)
        elif sheet.span.rank > 0.9 * sheet.size and len(sheet.rows) > sheet.size:
            return replace(sheet, full=True)
        elif sheet.settled and len(sheet.points) >= sheet.fewest:
            return sheet
        elif sheet.settled:
            count = sheet.fewest
        else:
            more = max(1, -(-len(sheet.points) // (12 if sheet.size < _HEAVY else 4)))
            if sheet.span.clear:  # the rank is known: no more than steadies it
                more = min(more, max(1, -(-sheet.steady // p) - len(sheet.points)))
            count = len(sheet.points) + more


def _wanted_width(sheet: Sheet, most: int) -> int:
    """Twice √n where n is known, somewhat more where the Hessians so far are all independent."""
    rank, rows, width = sheet.span.rank, len(sheet.rows), sheet.width
    if (sheet.span.clear or rows > 1.6 * sheet.size) and rank <= 0.9 * sheet.size:
        return min(most, max(width, int(np.ceil(2.0 * np.sqrt(rank) - 0.1))))
    if rows > 0.85 * sheet.size and rank > 0.8 * min(rows, sheet.size):
        return min(most, int(1.4 * width))
    return width


def _with_more(
    sheet: Sheet | None, source: Source, setting: Setting, width: int, count: int, rng: np.random.Generator
) -> Sheet | None:
    if count <= 0:
        return sheet
    points = points_in_shell(setting, source.pad, count, rng)
    hessians, error = source.hessians(points, width)
    if sheet is not None:
        points, hessians = np.concatenate([sheet.points, points]), np.concatenate([sheet.hessians, hessians])
        error = max(error, sheet.error)
    return _sheet(points, hessians, error)


def _sheet(points: Floats, hessians: Floats, error: float) -> Sheet:
    """Without dropped answers and without spikes.

    A stencil across a kink shows 1/h where curvature should be; such a Hessian helps nobody.
    """
    whole = np.isfinite(hessians).all(axis=(1, 2))
    points, hessians = points[whole], hessians[whole]
    norm = np.sqrt(np.mean(hessians**2, axis=(1, 2)))
    curved = norm[norm > error]
    if len(curved):
        tame = norm <= 30.0 * np.median(curved)
        points, hessians = points[tame], hessians[tame]
    return Sheet(points, hessians, error, span_of(hessians.reshape(-1, hessians.shape[2]), error))


def _widened(sheet: Sheet, source: Source, width: int, spare: int) -> Sheet | None:
    room = (source.ask.left - spare) // source.cost(width, sheet.width)
    if room < min(len(sheet.points), 2):
        return None
    points, old = sheet.points[:room], sheet.hessians[:room]
    hessians, error = source.hessians(points, width, old)
    return _sheet(points, hessians, max(error, sheet.error))


def _sharpened(source: Source, sheet: Sheet, setting: Setting) -> tuple[Source, Sheet]:
    """The same Hessians from centred differences, where a lift will magnify errors and queries abound."""
    if not isinstance(source, Differences) or source.finer is None or sheet.width == setting.dim:
        return source, sheet
    fine = source.finer
    if len(sheet.points) * fine.cost(sheet.width) > 0.1 * source.ask.left or sheet.full or sheet.span.rank == 0:
        return source, sheet
    edge = min(setting.radius, setting.reach)
    points = shrink_to(sheet.points.copy(), edge - fine.pad)
    hessians, error = fine.hessians(points, sheet.width)
    return fine, _sheet(points, hessians, error)


@dataclass(frozen=True, eq=False)
class Mixed:
    """Derivatives along one direction inside the subspace and one outside it, from which directions are lifted."""

    chosen: NDArray[np.intp]
    """(x,) which points of the sheet."""
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: Floats
    """(x, p, rows, columns)"""

    def lift(self, sheet: Sheet, vectors: Floats) -> Floats:
        """(n, d) directions in the coordinates of the basis from their first coordinates.

        Features of the span that are not among the vectors bend too. What is left of the span, B_1, B_2, … takes
        up what they do to the Hessians, b_k(x), and an unknown for every k and j what they do to ∂_j∂_e f.
        """
        if not len(self.columns) or not len(vectors):
            return vectors
        n, each = len(vectors), len(self.rows)
        left, bends = _bends(sheet, vectors)
        whole = np.isfinite(self.values).all(axis=(1, 2, 3))
        known = np.einsum("xoi,ij->xoji", bends[self.chosen][whole, :, :n], vectors[:, :each])
        other = np.einsum("xok,jl->xojkl", bends[self.chosen][whole, :, n:], np.eye(each))
        unknowns = n + len(left) * each
        design = np.concatenate([known, other.reshape(*known.shape[:3], -1)], axis=3).reshape(-1, unknowns)
        rest = least_squares(design, self.values[whole].reshape(-1, len(self.columns)))[:n]
        return unit(np.concatenate([vectors, rest], axis=1))


def _bends(sheet: Sheet, vectors: Floats) -> tuple[Floats, Floats]:
    """What of the span is no vector's, and the bends (N, p, n + left) of both at every point."""
    left = without(sheet.span.basis, vectors)
    left = left if len(left) <= 0.1 * len(vectors) + 2 else left[:0]
    bends = least_squares(np.concatenate([squares(vectors), left]).T, sheet.rows.T).T
    return left, bends.reshape(*sheet.hessians.shape[:2], -1)


def _mixed(source: Source, sheet: Sheet, vectors: Floats, dim: int, oversample: float = 6.0) -> Mixed | None:
    """About six equations for every unknown of a lift; None where they cannot be paid for."""
    n, width = vectors.shape
    p, places, columns = sheet.hessians.shape[1], len(sheet.points), np.arange(width, dim)
    if n == 0 or width == dim:
        none = np.empty(0, dtype=np.intp)
        return Mixed(none, none, none, np.empty((0, p, 0, 0)))
    left, bends = _bends(sheet, vectors)
    each = min(width, -(-int(oversample * n) // (p * min(12, places))))
    unknowns = n + len(left) * each
    count = min(-(-int(oversample * unknowns) // (p * each)), places)
    count = min(count, source.ask.left // source.mixed_cost(each, len(columns)))
    if count * each * p < unknowns:
        return None
    chosen, rows = informative_points(bends[:, :, :n], count), np.arange(each)
    return Mixed(chosen, rows, columns, source.mixed(sheet.points[chosen], rows, columns))


def least_squares(design: Floats, target: Floats) -> Floats:
    """Through the normal equations, scaled to a unit diagonal: the designs here are tall and tame."""
    scale = 1.0 / np.maximum(np.linalg.norm(design, axis=0), 1e-300)
    gram = (design.T @ design) * np.outer(scale, scale)
    gram[np.diag_indices_from(gram)] += 1e-13 * len(gram)
    factor = cho_factor(gram, overwrite_a=True, check_finite=False)
    return np.asarray(cho_solve(factor, scale[:, None] * (design.T @ target)) * scale[:, None])
