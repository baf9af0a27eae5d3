"""Derivatives of f at many points, whose span says how many features f has.

Hessians are centred differences of step h (`hessians.Differences`). Second differences along the axes with 2h besides
show, at every point, how far off they are, and a kink anywhere inside the stencil: its nodes h(q_i + q_j) lie between
the planes through ±2h q_i. Tensors of higher order come from `tensors.Stencil`; two steps at a few points show
their error.

A random subspace is enough: a sum of n features restricted to it is a sum of n features. So the width starts small and
grows while the derivatives fill the space of symmetric tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..geometry import Floats, random_basis, random_directions
from .base import Meter, Setting, points_in_shell
from .hessians import Differences
from .numerical_span import Span, span_of
from .rank_one import MatrixSpace, Space, unpack
from .tensors import PowerSpace, Stencil, most_apart, packed_size, powers

_WIDTHS = (12, 20, 24, 32)  # of the subspaces for Hessians, one after the other while they fill the smaller one
_FEWEST = 10  # points below which nothing is said
_SMALL, _SMALL_POINTS, _POINTS = (
    8,
    60,
    24,
)  # points of the first look up to that width, where they are cheap, and beyond
_MORE = 1.5  # points from one look to the next
_STEADY, _SPARE = 1.3, 8  # rows over the rank, and more, for a rank to be believed,
_FILLED = 1.1  # and over the dimensions for the lack of one: the least singular value of a square matrix is small
_HALVED, _STEPS = 2, 8  # steps tried: from a quarter of the one that balances noise and bias, each twice the last,
_PROBES = 12  # at so many points
_STEP_LIMITS = (1e-6, 0.1)  # radii
_NOISE = 2.0  # of an entry of a centred Hessian over σ/h²
_KINKED = 10.0  # times the median misfit of stencils, above which one lies across a kink
_SPIKE = 30.0  # times the median size of tensors of higher order, above which the same is assumed (as in `hessians`)
_ROUNDING = 1e-7  # singular values over the largest: √ε of a Gram matrix, and its size
_NEAR_ERRORS = 30.0  # times the largest singular value of errors, below which a drop must end; as in `rank_one`
_ABOVE_ERRORS = 10.0  # times the same, above which the last one must be for a space to be filled
_VANISHES = 3.0  # size of derivatives over their error below which they may be errors, which entries of one share
_ORDERS = (3, 5)  # higher orders, first and last; as in `tensors`,
_ROOM = 1.5  # dimensions for each feature that there is at least, in a restricted space
_BALANCE = 2.0  # step of higher orders over that at which bias and noise weigh the same; as in `tensors`,
_LONGEST = 0.3  # and the longest, in 1/bandwidth: beyond, noise is too strong
_TWICE = 8  # points at which it is halved to see the error


@dataclass(frozen=True, eq=False)
class Sample:
    """Derivatives of one order restricted to a subspace, without those across kinks, and their span."""

    order: int
    width: int
    points: Floats
    """(N, d)"""
    tensors: Floats
    """(N, p, D) packed."""
    error: float
    """Of an entry, by the misfit of two steps."""
    span: Span

    @property
    def dimensions(self) -> int:
        """D, that of the space of symmetric tensors."""
        return int(self.tensors.shape[2])

    @property
    def rows(self) -> Floats:
        return self.tensors.reshape(-1, self.dimensions)

    @property
    def size(self) -> float:
        """Root mean square of an entry."""
        return float(np.sqrt(np.mean(self.tensors**2)))

    @property
    def space(self) -> Space:
        """The span with ways to its members of rank one."""
        basis = self.span.basis
        return MatrixSpace(basis) if self.order == 2 else PowerSpace(basis, powers(self.width, self.order))

    @property
    def is_steady(self) -> bool:
        """The singular values drop, and more points would not change where."""
        return self.span.clear and len(self.rows) >= _STEADY * self.span.rank + _SPARE

    @property
    def is_full(self) -> bool:
        """No drop, more rows than dimensions, and all singular values well above the errors."""
        if self.span.clear or len(self.rows) < _FILLED * self.dimensions:
            return False
        return bool(self.span.singular[-1] > _ABOVE_ERRORS * _largest_error(self.rows, self.error))

    @property
    def has_room(self) -> bool:
        """Whether a sum of so many features would have no other members and no tangents."""
        return self.span.rank <= most_apart(self.width, self.order)

    @property
    def tells_members(self) -> bool:
        """Whether the drop is so sharp that members of rank one differ from the best vectors of a random span.

        A vector's r − 1 coordinates cancel as many components outside a random span of the same rank, and leave the
        rest, one at least, each 1/D of its square: what accepts that much accepts anything.
        """
        left = max(1, self.dimensions - self.span.rank - (self.width - 1))
        return 1.0 - self.span.acceptance < left / self.dimensions


def hessian_queries(dim: int, outputs: int) -> int:
    """Return the queries for as many Hessians of each width as a rank that fills it takes."""
    widths = {min(dim, w) for w in _WIDTHS}
    return sum(_most_points(packed_size(w, 2), outputs) * _point_cost(w) for w in widths)


def _point_cost(width: int) -> int:
    """Return the queries for a centred Hessian and for its misfit."""
    return 1 + 2 * width + width * (width - 1) + 2 * width + 1


def _most_points(size: int, outputs: int) -> int:
    """Return the points that show a rank of up to `size`."""
    return int((_STEADY * size + _SPARE) / outputs) + _FEWEST


def hessian_samples(ask: Meter, setting: Setting, rng: np.random.Generator) -> Iterator[Sample]:
    """Hessians in wider and wider subspaces, until their singular values drop or the queries are used up."""
    basis = random_basis(setting.dim, setting.dim, rng)
    source = Differences(ask, basis, _step(ask, setting, rng), True, 0.0)
    for width in sorted({min(setting.dim, w) for w in _WIDTHS}):
        found = _hessians(ask, setting, source, width, rng)
        if found is None:
            return
        yield found
        if found.is_steady and found.has_room and found.tells_members:
            return


def wider_space(dim: int, order: int, features: int) -> tuple[int, int] | None:
    """Order and width of the next derivatives with room for so many features, no lower than the last order."""
    for k in range(max(order, _ORDERS[0]), _ORDERS[1] + 1):
        for width in range(2, dim + 1):
            if most_apart(width, k) >= features * (1.0 if width == dim else _ROOM):
                return k, width
    return None


def sample_tensors(ask: Meter, setting: Setting, order: int, width: int, rng: np.random.Generator) -> Sample | None:
    """Derivatives of order three or more in a subspace; None where noise is too strong or queries are too few."""
    d, p, size = setting.dim, setting.outputs, packed_size(width, order)
    pairs = sum(packed_size(width, k) for k in range(order, 0, -2))
    most = min(int(_FILLED * size) // p + 1 + _FEWEST, ask.left // (2 * pairs + 1) - _TWICE)
    if most < size // (2 * p) + _FEWEST:
        return None
    stencil, basis = Stencil.of(width, order, rng), random_basis(d, d, rng)
    step = min(stencil.step(setting, _BALANCE), _STEP_LIMITS[1] * setting.edge)
    if step * setting.bandwidth > _LONGEST:
        return None
    points, tensors = np.empty((0, d)), np.empty((0, p, size))
    gap, count = np.inf, size // (2 * p) + _FEWEST
    while True:
        new = points_in_shell(setting, step, count - len(points), rng)
        points = np.concatenate([points, new])
        tensors = np.concatenate([tensors, stencil.at(ask, new, basis, step)])
        if not np.isfinite(gap):
            twice = stencil.at(ask, points[:_TWICE], basis, step / np.sqrt(2.0)) - tensors[:_TWICE]
            gap = float(np.sqrt(np.nanmean(twice**2)))
        norm = np.sqrt(np.mean(tensors**2, axis=(1, 2)))
        good = norm <= _SPIKE * np.nanmedian(norm)
        found = Sample(order, width, points[good], tensors[good], gap, _span(tensors[good].reshape(-1, size), gap))
        if found.is_steady or count >= most:
            return found
        count = min(int(_MORE * count) + 1, most)


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
    misfit = misfit[np.isfinite(misfit).all(axis=1)]
    level = np.median(misfit, axis=0) if len(misfit) else np.zeros(len(steps) - 1)
    # what noise alone makes of it keeps a lucky step from being chosen
    return float(steps[int(np.argmin(level + _NOISE * setting.noise / steps[:-1] ** 2))])


def _hessians(ask: Meter, setting: Setting, source: Differences, width: int, rng: np.random.Generator) -> Sample | None:
    h, p, size = source.step, setting.outputs, packed_size(width, 2)
    cost = _point_cost(width)
    count = _SMALL_POINTS if width <= _SMALL else -(-_POINTS // p) + _FEWEST
    most = max(_most_points(size, p), count)
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
    width = MatrixSpace(rows[:1]).width
    return Sample(2, width, points, tensors, error, span)


def _largest_error(rows: Floats, error: float) -> float:
    """The largest singular value that independent errors of the entries, and rounding, would show."""
    m, size = rows.shape
    return float(max(error * (np.sqrt(m) + np.sqrt(size)), _ROUNDING * np.linalg.norm(rows)))


def _span(rows: Floats, error: float) -> Span:
    """The span up to the largest drop that ends near the errors.

    `span_of` takes the last one, which does a proposer no harm. Here a direction too many, which may be the bias that
    all stencils share, would look like a member that is missing.
    """
    floor = _largest_error(rows, error)
    span = span_of(rows, floor / (np.sqrt(len(rows)) + np.sqrt(rows.shape[1])))
    after = span.singular[1 : span.rank + 1]
    if not span.clear or not len(after):
        return span
    drops = span.singular[: len(after)] / np.maximum(after, floor)
    drops[after > _NEAR_ERRORS * floor] = 0.0
    return replace(span, basis=span.basis[: int(np.argmax(drops)) + 1])
