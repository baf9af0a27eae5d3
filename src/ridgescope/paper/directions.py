"""Algorithm 2 (FindDirections) and the post-processing of Lemma find-directions.

The spectrum of f⁽ˡ⁾ is a star of tubes of width about 1/ℓ around the lines {t v_i}. The search fixes one coordinate at
a time: given α_1 … α_k it weighs, for every c on a grid, the slab of points whose first k+1 coordinates are close to
(α_1, …, α_k, c), and continues only where the mass exceeds the noise:

    v = α_1 b_1 + … + α_k b_k + c b_{k+1},   A = Σ_j K_j b_j b_jᵀ,
    (K_1, …, K_{k+1}) = (C₂, C₂, C₁, …, C₁, C₂).

Letters: ℓ width of the window, C₁ < C₂ widths of the slabs (C₂ = ℓ²/d, C₁ = C₂^0.9 by eq. hyperparams), b_j orthonormal
basis, α coordinates, τ accuracy of the mass oracle, 𝒯 grid of c, 𝒯′ the heavy ones, 𝒮 a separated subset of 𝒯′, γ least
sine between two directions, m number of samples of each level.

Where code must choose what the paper leaves open:

- τ is the standard error measured on the very samples used, and "|W_c| ≥ 5τ" keeps its factor.
- The first two coordinates are a full grid in the paper; here the grid is pruned at level 2 by the same threshold, and
  by I*(v) = I*(−v) only half of it is searched.
- 𝒮 may be *any* maximal separated subset: ours is taken heaviest first. At affordable ℓ a blob of mass is wider than
  the paper's spacing 1/√(10dC₁), so points on the flank of a heavier one count as the same blob: the spacing is at
  least `blob`/√C₂ and a member of 𝒮 must be a local maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidInput
from ..geometry import Floats, frozen, random_basis
from . import arguments
from .all_pairs import lines_of_all_pairs, plane_of_all_pairs
from .mass import DEFAULT_SAMPLES, CheckedField, Field, Grid, PairField, mass_lines, mass_plane

_TOP = 60.0
"""Default of the largest coordinate searched, in units of 1/ℓ, as the survey has at least."""


@dataclass(frozen=True)
class Level:
    """One level of the recursion.

    coordinates: number of coordinates fixed after it, k; candidates: number examined; branches: (candidates,) children
    of each (Claim bounded-recursion: at most one where b₁, b₂ separate); accuracy: the measured τ, its median where
    each mass has its own; samples: m; cells: (r, k) the coordinates of the cells kept; masses: (r,) their scaled
    masses.
    """

    coordinates: int
    candidates: int
    branches: Floats
    accuracy: float
    samples: int
    cells: Floats
    masses: Floats


@dataclass(frozen=True)
class Directions:
    """The directions that Algorithm 2 found, and how.

    directions: (s, d) unit rows with pairwise sines of at least γ/2; weights: (s,) their scaled masses; points: (r, d)
    every heavy point found in Fourier space; point_weights: (r,) its scaled mass; basis: (d, d) the rows b_j; levels:
    one `Level` for each level of the recursion; queries: number of values of f used.
    """

    directions: Floats
    weights: Floats
    points: Floats
    point_weights: Floats
    basis: Floats
    levels: tuple[Level, ...]
    queries: int


@dataclass(frozen=True)
class Widths:
    """C₁ and C₂, those of eq. hyperparams where they are 0, and what follows from them."""

    dim: int
    ell: float
    C1: float = 0.0
    C2: float = 0.0

    def __post_init__(self) -> None:
        if self.C2 <= 0:
            object.__setattr__(self, "C2", self.ell**2 / self.dim)
        if self.C1 <= 0:
            object.__setattr__(self, "C1", self.C2**0.9)

    @property
    def step(self) -> float:
        """Spacing of the grid 𝒯: 1/√(10 C₂)."""
        return 1 / math.sqrt(10 * self.C2)

    @property
    def cut(self) -> float:
        """Radius of the disc left out around the origin of the (b₁, b₂) plane: C₁^−0.3."""
        return float(self.C1**-0.3)

    def grid(self, frequency: float) -> Grid:
        """Return the grid 𝒯 of one coordinate up to ±frequency."""
        return Grid(self.step, max(1, math.floor(frequency / self.step)))

    def reach(self, blob: float) -> int:
        """Return the separation of 𝒮 in steps of 𝒯: the paper's 1/√(10 d C₁), or blob/√C₂ where that is larger."""
        spacing = max(1 / math.sqrt(10 * self.dim * self.C1), blob / math.sqrt(self.C2))
        return max(1, round(spacing / self.step))

    def radius2(self, grid: Grid) -> Floats:
        """Return the (2N+1, 2N+1) squared distances α₁² + α₂² of the cells of the (b₁, b₂) plane, N = grid.modes."""
        k = grid.multiples
        return np.asarray(self.step**2 * (k[:, None] ** 2 + k[None, :] ** 2))

    def diagonal(self, k: int) -> Floats:
        """Return (K_1, …, K_k) = (C₂, C₂, C₁, …, C₁, C₂)."""
        K = np.full(k, self.C1)
        K[:2] = self.C2
        K[-1] = self.C2
        return K


def sines(a: Floats, b: Floats) -> Floats:
    """Return the (p, q) sines of the angles between the unit rows of a (p, d) and b (q, d)."""
    cosines = np.clip(np.abs(a @ b.T), 0.0, 1.0)
    return np.asarray(np.sqrt(1 - cosines**2))


def separate(directions: Floats, scores: Floats, least_sine: float) -> list[int]:
    """Return indices of a maximal subset with pairwise sines ≥ least_sine, best score first (Lemma find-directions)."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if not kept or sines(directions[[i]], directions[kept]).min() >= least_sine:
            kept.append(int(i))
    return kept


def heavy_on_line(masses: Floats, threshold: Floats | float, reach: int) -> list[int]:
    """Return 𝒮 for one candidate (Algorithm 2, lines 9-10): the indices whose mass passes the threshold and is the
    largest within `reach` grid steps."""
    return [
        int(i)
        for i in np.flatnonzero((masses >= threshold) & (masses > 0))
        if masses[i] >= masses[max(0, i - reach) : i + reach + 1].max()
    ]


def heavy_in_plane(masses: Floats, allowed: Floats, threshold: Floats | float, reach: int) -> Floats:
    """Return the (r, 2) index pairs, relative to the centre, that pass the threshold and are maxima in a disc of
    `reach`.

    The maxima are those of mass × radius²: mass falls along a ray, and without the factor every cell of a ray would
    lose against its neighbour nearer the origin.
    """
    centre = masses.shape[0] // 2
    k = np.arange(-centre, centre + 1)
    score = np.where(allowed > 0, masses * (k[:, None] ** 2 + k[None, :] ** 2), -np.inf)
    padded = np.pad(score, reach, constant_values=-np.inf)
    best = np.ones(masses.shape, dtype=bool)
    for di in range(-reach, reach + 1):
        for dj in range(-reach, reach + 1):
            if 0 < di**2 + dj**2 <= reach**2:
                rows = slice(reach + di, reach + di + masses.shape[0])
                cols = slice(reach + dj, reach + dj + masses.shape[1])
                best &= score >= padded[rows, cols]
    cells = np.argwhere(best & (masses >= threshold) & (masses > 0) & (allowed > 0))
    return np.asarray(cells - centre, dtype=np.float64)


@dataclass(frozen=True)
class _Search:
    """What all levels of Algorithm 2 share; the fields are the parameters of `find_directions`."""

    f: Field | PairField
    widths: Widths
    basis: Floats
    frequency: float
    sigmas: float
    blob: float
    m: int
    rng: np.random.Generator
    estimator: str

    def first_two(self, cut: float) -> Level:
        """Return the level of the heavy (α₁, α₂): a grid over half the plane without the disc of radius `cut` (proof of
        Lemma find-directions), pruned by 5τ."""
        widths, grid = self.widths, self.widths.grid(self.frequency)
        plane = plane_of_all_pairs if self.estimator == "all_pairs" else mass_plane
        mass = plane(self.f, widths.ell, self.basis, widths.diagonal(2), grid, m=self.m, rng=self.rng)
        k = grid.multiples
        radius2 = widths.radius2(grid)
        half = (k[:, None] > 0) | ((k[:, None] == 0) & (k[None, :] > 0))
        allowed = (half & (radius2 >= cut**2) & (radius2 <= self.frequency**2)).astype(np.float64)
        cells = heavy_in_plane(mass.scaled, allowed, self.sigmas * mass.stderr, widths.reach(self.blob))
        at = (cells + grid.modes).astype(np.intp)
        weights = mass.scaled[at[:, 0], at[:, 1]]
        kept = frozen(cells * widths.step), frozen(weights)
        return Level(2, int(allowed.sum()), frozen([len(cells)]), float(np.median(mass.stderr)), self.m, *kept)

    def next_coordinate(self, alpha: Floats) -> Level:
        """Run Algorithm 2, lines 3-12, for all candidates (a, k) at once: return the level of their children, with k+1
        coordinates."""
        a, k = alpha.shape
        widths, grid = self.widths, self.widths.grid(self.frequency)  # line 3: 𝒯
        # lines 4-8: all W_c of all candidates from one batch
        lines = lines_of_all_pairs if self.estimator == "all_pairs" else mass_lines
        mass = lines(self.f, widths.ell, self.basis, widths.diagonal(k + 1), alpha, grid, m=self.m, rng=self.rng)
        children, weights, branches = [], [], []
        for i in range(a):
            chosen = heavy_on_line(mass.scaled[i], self.sigmas * mass.stderr[i], widths.reach(self.blob))  # lines 9-10
            branches.append(len(chosen))  # lines 11-12: one call for each member of 𝒮
            children += [[*alpha[i], (c - grid.modes) * widths.step] for c in chosen]
            weights += [mass.scaled[i, c] for c in chosen]
        kept = frozen(np.array(children, dtype=np.float64).reshape(-1, k + 1)), frozen(weights)
        return Level(k + 1, a, frozen(branches), float(np.median(mass.stderr)), self.m, *kept)


def find_directions(
    f: Field | PairField,
    ell: float,
    *,
    dim: int,
    m: int = DEFAULT_SAMPLES,
    rng: np.random.Generator | None = None,
    frequency: float | None = None,
    separation: float = 0.1,
    cut: float | None = None,
    C1: float = 0.0,
    C2: float = 0.0,
    sigmas: float = 5.0,
    blob: float = 1.5,
    basis: Floats | None = None,
    max_candidates: int | None = None,
    asked_per_point: int = 1,
    estimator: str = "disjoint_pairs",
) -> Directions:
    """Find the feature directions of f: Algorithm 2 from an empty prefix, then the subset of Lemma find-directions.

    Parameters
    ----------
    f
        Maps points (m, d) to values (m,) or (m, q).
    ell
        Width ℓ of the window.
    dim
        Dimension d of the points.
    m
        Samples of each level of the recursion; each takes two values of f.
    rng
        Source of the basis and the samples.
    frequency
        Largest |coordinate| searched: ℓ² in the paper, in practice the bandwidth of f, 60/ℓ unless given.
    separation
        γ, the least sine between two features; found directions are γ/2 apart.
    cut
        Radius of the disc left out around the origin; C₁^−0.3 as in the paper unless given.
    C1, C2
        Widths of the slabs; 0 means those of eq. hyperparams.
    sigmas
        The 5 of "|W_c| ≥ 5τ", with the measured standard error as τ.
    blob
        Least distance of two candidates in units of 1/√C₂. 1.5 is empirical: less splits one blob of mass into several
        candidates, more merges neighbouring features.
    basis
        (d, d) orthonormal rows; random unless given.
    max_candidates
        Number of candidates followed at each level, heaviest first; None follows all.
    asked_per_point
        Values of the black box that one evaluation of f costs, for `Directions.queries`.
    estimator
        Of the masses: "disjoint_pairs" as in the paper, or "all_pairs", with less noise from as many values
        (`all_pairs`), where each mass has its own τ.

    Returns
    -------
    Directions
        Unit directions, γ/2-separated, with masses and the levels of the recursion.

    Examples
    --------
    >>> found = rs.paper.find_directions(
    ...     lambda X: np.sin(2 * X[:, 0]) + np.sin(3 * X[:, 1]),
    ...     10.0, dim=2, m=20_000, rng=np.random.default_rng(0), frequency=5.0)
    >>> np.abs(found.directions).round(1) + 0
    array([[0., 1.],
           [1., 0.]])
    """
    dim, ell, m = arguments.count("dim", dim), arguments.positive("ell", ell), arguments.count("m", m)
    rng, separation = arguments.generator(rng), arguments.positive("separation", separation)
    frequency = _TOP / ell if frequency is None else arguments.positive("frequency", frequency)
    f = f if isinstance(f, PairField) else CheckedField(f)
    widths = Widths(dim, ell, C1, C2)
    if basis is None:  # in Fortran order: BLAS rounds products according to the memory layout of their factors
        basis = np.asfortranarray(random_basis(dim, dim, rng))
    if np.shape(basis) != (dim, dim) or not np.allclose(basis @ basis.T, np.eye(dim), atol=1e-6):
        raise InvalidInput(f"basis must be {dim} orthonormal rows of {dim} numbers; got shape {np.shape(basis)}")
    basis = frozen(basis)
    if dim == 1:
        return Directions(frozen([[1.0]]), frozen([1.0]), frozen([[1.0]]), frozen([1.0]), basis, (), 0)
    search = _Search(f, widths, basis, frequency, sigmas, blob, m, rng, arguments.estimator(estimator))
    levels = [search.first_two(widths.cut if cut is None else cut)]
    while levels[-1].coordinates < dim and len(levels[-1].cells):  # line 1
        alpha = levels[-1].cells
        if max_candidates is not None and len(alpha) > max_candidates:
            best = np.argsort(-levels[-1].masses * (alpha**2).sum(axis=1), kind="stable")[:max_candidates]
            alpha = alpha[best]
        levels.append(search.next_coordinate(alpha))
    alpha, weights = levels[-1].cells, levels[-1].masses
    points = alpha @ basis if len(alpha) else np.zeros((0, dim))
    lengths = np.linalg.norm(points, axis=1)
    units = points / lengths[:, None]  # line 2
    kept = separate(units, weights * lengths**2, separation / 2)
    return Directions(
        directions=frozen(units[kept]),
        weights=frozen(weights[kept]),
        points=frozen(points),
        point_weights=frozen(weights),
        basis=basis,
        levels=tuple(levels),
        queries=sum(2 * level.samples for level in levels) * asked_per_point,
    )
