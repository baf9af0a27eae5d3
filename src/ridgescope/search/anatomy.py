"""What the span of the Hessians of f is made of: isolated rank-one members, partners of gated units, blocks.

With 𝒜 the span of Hessians and v vᵀ a member of it, the *tangents* of v are {u : v uᵀ + u vᵀ ∈ 𝒜}, v among them:

    a feature        the line of v
    a gated unit     a plane of v and u, while u uᵀ ∉ 𝒜
    a block Sym(U)   U; every unit vector of U is a member

They are the right singular vectors of u ↦ (I − P)(v uᵀ + u vᵀ)/√2 with singular values at the level of errors. The
maximum of F is flat along the partner u of a gated member, so that v is found only up to a multiple ε of u; as then

    (I − P)(v uᵀ + u vᵀ)/√2 = √2 ε (I − P) u uᵀ,

ε follows by least squares, and a few such steps finish.

Hessians are centred differences of step h. Second differences along the axes with 2h besides show, at every point, how
far off they are, and a kink anywhere inside the stencil: its nodes h(q_i + q_j) lie between the planes through ±2h q_i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats, random_basis, random_directions
from .base import Meter, Setting, points_in_shell
from .hessians import Differences
from .rank_one import MatrixSpace, Span, members, pack, packed_side, span_of, squares, unpack

_WIDTHS = (12, 20, 32)  # of the subspaces for Hessians, one after the other while they fill the smaller one
_FEWEST = 10  # Hessians below which nothing is said
_SMALL, _SMALL_POINTS, _POINTS = (
    8,
    60,
    24,
)  # points of the first look up to that width, where they are cheap, and beyond
_MORE = 1.5  # points from one look to the next
_STEADY, _SPARE = 1.3, 8  # rows over the rank, and more, for a rank to be believed
_HALVED, _STEPS = 2, 8  # steps tried: from a quarter of the one that balances noise and bias, each twice the last,
_PROBES = 12  # at so many points
_STEP_LIMITS = (1e-6, 0.1)  # radii
_NOISE = 2.0  # of an entry of a centred Hessian over σ/h²
_ROUNDING = 1e-7  # singular values over the largest: √ε of a Gram matrix, and its size
_NEAR_ERRORS = 30.0  # times the largest singular value of errors, below which a drop must end; as in `rank_one`
_VANISHES = 3.0  # size of Hessians over their error below which they may be errors, which entries of one share
_POLYNOMIAL = 3.0  # misfit of a polynomial over that error up to which Hessians are constant or affine in x,
_PER_UNKNOWN = 1.5  # points for each of its coefficients, below which it would fit anything
_KINKED = 10.0  # times the median misfit of stencils, above which one lies across a kink
_IN_SPAN = 10.0  # distance of a matrix in the span over 1/drop, the error of its basis,
_IN_SPAN_LIMITS = (1e-6, 0.02)  # between rounding and what twins 0.06 rad apart leave
_MAY_BE_GATED = 0.3  # singular value of a tangent from which steps towards a gated member start
_STEPS_TO_GATED = 6  # each of which squares the error
_REST = 1e-3  # singular values, over the largest, of the directions that the rest of a span lives in


@dataclass(frozen=True, eq=False)
class Sample:
    """Hessians restricted to a subspace, without those across kinks, and their span."""

    points: Floats
    """(N, d)"""
    tensors: Floats
    """(N, p, D) packed."""
    error: float
    """Of an entry, by the misfit of second differences of steps h and 2h."""
    span: Span
    kinked: float
    """Share of the points that were left out."""

    @property
    def width(self) -> int:
        return packed_side(self.tensors.shape[2])

    @property
    def rows(self) -> Floats:
        return self.tensors.reshape(-1, self.tensors.shape[2])

    @property
    def size(self) -> float:
        """Root mean square of an entry."""
        return float(np.sqrt(np.mean(self.tensors**2)))

    @property
    def is_steady(self) -> bool:
        return self.span.clear and len(self.rows) >= _STEADY * self.span.rank + _SPARE

    @property
    def is_full(self) -> bool:
        """No drop, with more rows than there are dimensions and all singular values above the errors."""
        size = self.tensors.shape[2]
        return not self.span.clear and self.span.rank == size and len(self.rows) >= _STEADY * size

    @property
    def has_room(self) -> bool:
        """Whether a sum of so many features would have no other members and no tangents."""
        return bool(self.span.rank + self.width <= self.tensors.shape[2] + (self.width <= 3))


@dataclass(frozen=True)
class Anatomy:
    """The parts of a span."""

    members: int
    """Isolated rank-one members, gated ones included."""
    partners: int
    """Gated ones."""
    block_dim: int
    """Dimension of the subspace in which the rest lives; 0 without a rest."""
    degree: int
    """2 or 3 where the rest is that of a polynomial of this degree, which is a sum of features in many ways; or 0."""


def sample_hessians(ask: Meter, setting: Setting, rng: np.random.Generator) -> Sample | None:
    """Hessians at more and more points, and in wider subspaces, until their singular values drop; None if too dear."""
    basis = random_basis(setting.dim, setting.dim, rng)
    step = _step(ask, setting, rng)
    found: Sample | None = None
    for width in sorted({min(setting.dim, w) for w in _WIDTHS}):
        wider = _sample(ask, setting, Differences(ask, basis, step, True, 0.0), width, rng)
        if wider is None:
            break
        found = wider
        if found.is_steady and found.has_room:
            break
    return found


def _step(ask: Meter, setting: Setting, rng: np.random.Generator) -> float:
    """The step at which second differences of steps h and 2h agree best, in the median over points."""
    edge, d = setting.edge, setting.dim
    balanced = setting.wave * (setting.noise / max(setting.std, setting.noise)) ** 0.25
    steps = balanced * 2.0 ** np.arange(-_HALVED, _STEPS - _HALVED)
    steps = np.unique(np.clip(steps, _STEP_LIMITS[0] * edge, _STEP_LIMITS[1] * edge))
    if ask.left < 4 * _PROBES * (1 + 2 * len(steps)) or len(steps) < 3:
        return float(steps[0])
    points = points_in_shell(setting, steps[-1], _PROBES, rng)
    along = random_directions(_PROBES, d, rng)
    offsets = np.concatenate([[0.0], steps, -steps])
    nodes = points[:, None, :] + offsets[:, None] * along[:, None, :]
    f = ask(nodes.reshape(-1, d)).reshape(_PROBES, len(offsets), -1)
    second = (f[:, 1 : 1 + len(steps)] + f[:, 1 + len(steps) :] - 2.0 * f[:, :1]) / steps[:, None] ** 2
    misfit = np.sqrt(np.mean(np.diff(second, axis=1) ** 2, axis=2))
    # what noise alone makes of it keeps a lucky step from being chosen
    level = np.nan_to_num(np.nanmedian(misfit, axis=0), nan=np.inf) + _NOISE * setting.noise / steps[:-1] ** 2
    return float(steps[int(np.argmin(level))])


def _sample(ask: Meter, setting: Setting, source: Differences, width: int, rng: np.random.Generator) -> Sample | None:
    h, p, size = source.step, setting.outputs, width * (width + 1) // 2
    cost = source.cost(width) + 2 * width + 1
    count = _SMALL_POINTS if width <= _SMALL else -(-_POINTS // p) + _FEWEST
    most = max(int((_STEADY * size + _SPARE) / p) + _FEWEST, count)
    points, tensors, misfits = np.empty((0, setting.dim)), np.empty((0, p, size)), np.empty(0)
    found: Sample | None = None
    while True:
        more = min(count - len(misfits), ask.left // cost)
        if more <= 0 or len(misfits) + more < _FEWEST:
            return found
        new = points_in_shell(setting, 2.0 * h, more, rng)
        hessians, _ = source.hessians(new, width)
        if ask.left < more * (2 * width + 1):  # dropped answers were asked for again
            return found
        points, tensors = np.concatenate([points, new]), np.concatenate([tensors, hessians])
        misfits = np.concatenate([misfits, _misfit(ask, source, new, hessians, width)])
        found = _cleaned(points, tensors, misfits, _NOISE * setting.noise / h**2)
        if len(misfits) >= most or (found is not None and found.is_steady):
            return found
        count = min(int(_MORE * count) + 1, most)


def _misfit(ask: Meter, source: Differences, points: Floats, hessians: Floats, width: int) -> Floats:
    """(N,) root mean square difference between second derivatives along the axes from steps h and 2h."""
    n, d = points.shape
    axes = 2.0 * source.step * source.basis[:width]
    offsets = np.concatenate([axes, -axes, np.zeros((1, d))])
    f = ask((points[:, None, :] + offsets).reshape(-1, d)).reshape(n, 2 * width + 1, -1)
    second = (f[:, :width] + f[:, width:-1] - 2.0 * f[:, -1:]) / (2.0 * source.step) ** 2
    diagonal = np.diagonal(unpack(hessians), axis1=2, axis2=3)
    return np.asarray(np.sqrt(np.mean((second.swapaxes(1, 2) - diagonal) ** 2, axis=(1, 2))))


def _cleaned(points: Floats, tensors: Floats, misfits: Floats, noise: float) -> Sample | None:
    """Without dropped answers and kinks; Hessians that may be errors alone have rank 0."""
    whole = np.isfinite(misfits) & np.isfinite(tensors).all(axis=(1, 2))
    if whole.sum() < _FEWEST:
        return None
    good = whole & (misfits <= _KINKED * max(float(np.median(misfits[whole])), noise))
    points, tensors = points[good], tensors[good]
    error = max(float(np.sqrt(np.mean(misfits[good] ** 2))), noise)
    rows = tensors.reshape(-1, tensors.shape[2])
    span = _span(rows, error)
    if np.sqrt(np.mean(rows**2)) <= _VANISHES * error:
        span = replace(span, basis=span.basis[:0], clear=True)
    return Sample(points, tensors, error, span, 1.0 - float(good.sum() / whole.sum()))


def _span(rows: Floats, error: float) -> Span:
    """The span up to the largest drop that ends near the errors.

    `span_of` takes the last one, which does a proposer no harm. Here a direction too many, which may be the bias that
    all stencils share, would look like a member that is missing.
    """
    unit_error = np.sqrt(len(rows)) + np.sqrt(rows.shape[1])
    floor = max(error * unit_error, _ROUNDING * float(np.linalg.norm(rows)))
    span = span_of(rows, floor / unit_error)
    after = span.singular[1 : span.rank + 1]
    if not span.clear or not len(after):
        return span
    drops = span.singular[: len(after)] / np.maximum(after, floor)
    drops[after > _NEAR_ERRORS * floor] = 0.0
    rank = int(np.argmax(drops)) + 1
    return replace(span, basis=span.basis[:rank])


def equal_eigenvalues(sample: Sample) -> float:
    """Spread of all but one eigenvalues over the largest of them, median over Hessians; 1 below three dimensions.

    A function of the distance from any point has Hessians αI + β y yᵀ.
    """
    if sample.width < 3:
        return 1.0
    values = np.linalg.eigvalsh(unpack(sample.rows))
    spreads = [
        (part[:, -1] - part[:, 0]) / np.maximum(np.abs(part).max(axis=1), 1e-300)
        for part in (values[:, 1:], values[:, :-1])
    ]
    return float(np.median(np.minimum(*spreads)))


def anatomy(sample: Sample, rng: np.random.Generator) -> Anatomy:
    """Members, partners and the rest of a span with a clear drop and room for members."""
    span = sample.span
    if span.rank == 0:
        return Anatomy(0, 0, 0, 0)
    tolerance = float(np.clip(_IN_SPAN / span.drop, *_IN_SPAN_LIMITS))
    space = MatrixSpace(span.basis)
    found = members(space, rng, accept=span.acceptance).vectors
    tangents = [_tangents(space, v, tolerance) for v in found]
    in_block = np.array([len(u) > 1 and _outside(space, squares(u)).max() <= tolerance for u in tangents], dtype=bool)
    isolated = found[~in_block]
    if len(isolated) >= span.rank:
        return Anatomy(span.rank, 0, 0, 0)
    degree = polynomial_degree(sample, space.complement(isolated).basis)
    if degree or in_block.any():
        block = max((len(u) for u, inside in zip(tangents, in_block, strict=True) if inside), default=0)
        return Anatomy(len(isolated), 0, block, degree)
    partners = sum(_is_gated(space, v, tolerance) for v in found)
    rest = _rest_dim(space, found) if len(found) + partners < span.rank else 0
    return Anatomy(len(found), partners, rest, 0)


def polynomial_degree(sample: Sample, basis: Floats | None = None) -> int:
    """2 or 3 where Hessians, or their part in the span of `basis`, are constant or affine in x; 0 otherwise."""
    points, rows = sample.points, sample.tensors
    rows = rows if basis is None else rows @ basis.T
    rows = rows.reshape(len(rows), -1)
    limit = _POLYNOMIAL * sample.error * np.sqrt(rows.shape[1])
    for degree, design in ((2, np.ones((len(points), 1))), (3, np.column_stack([np.ones(len(points)), points]))):
        if len(points) < _PER_UNKNOWN * design.shape[1]:
            break
        left = rows - design @ np.linalg.lstsq(design, rows, rcond=None)[0]
        if np.sqrt(np.sum(left**2) / (len(points) - design.shape[1])) <= limit:
            return degree
    return 0


def _outside(space: MatrixSpace, rows: Floats) -> Floats:
    """(k,) distances of packed matrices from the span."""
    return np.asarray(np.linalg.norm(rows - (rows @ space.basis.T) @ space.basis, axis=1))


def _products(v: Floats, u: Floats) -> Floats:
    """(k, D) the packed (v uᵀ + u vᵀ)/√2, of length one for unit u ⟂ v."""
    outer = v[None, :, None] * u[:, None, :]
    return pack((outer + outer.swapaxes(1, 2)) / np.sqrt(2.0))


def _slants(space: MatrixSpace, v: Floats) -> tuple[Floats, Floats]:
    """Unit vectors across v (r−1, r) and the distances of their products with v from the span, least first."""
    across = np.linalg.svd(v[None, :])[2][1:]
    rows = _products(v, across)
    left, size, _ = np.linalg.svd(rows - (rows @ space.basis.T) @ space.basis)
    size = np.concatenate([size, np.zeros(len(across) - len(size))])
    return (left.T @ across)[::-1], size[::-1]


def _tangents(space: MatrixSpace, v: Floats, tolerance: float) -> Floats:
    """(k, r) orthonormal tangents of a member, v first."""
    across, size = _slants(space, v)
    return np.concatenate([v[None, :], across[size <= tolerance]])


def _is_gated(space: MatrixSpace, v: Floats, tolerance: float) -> bool:
    """Whether there is a member near v that has a partner."""
    for _ in range(_STEPS_TO_GATED):
        across, size = _slants(space, v)
        if size[0] <= tolerance:
            return bool(_outside(space, squares(v[None, :]))[0] <= tolerance)
        if size[0] > _MAY_BE_GATED:
            return False
        u = across[0]
        both = np.concatenate([_products(v, u[None, :]), squares(u[None, :])])
        product, square = both - (both @ space.basis.T) @ space.basis
        v = v - (product @ square) / (np.sqrt(2.0) * (square @ square)) * u
        v = v / np.linalg.norm(v)
    return False


def _rest_dim(space: MatrixSpace, found: Floats) -> int:
    """Dimension of the subspace across all members in which the rest lives; r where members leave none."""
    r = space.width
    if len(found) >= r:
        return r
    across = np.linalg.svd(found)[2][len(found) :] if len(found) else np.eye(r)
    rest = across @ space.matrices @ across.T
    size = np.linalg.svd(rest.reshape(-1, len(across)), compute_uv=False)
    return int(np.sum(size > _REST * size[0]))
