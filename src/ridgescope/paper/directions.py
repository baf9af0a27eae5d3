"""Algorithm 2 (FindDirections), its geometry (Definition 2d-separated) and its post-processing (Lemma
find-directions).

The spectrum of f⁽ˡ⁾ is a star of tubes of width about 1/ℓ around the lines {t v_i}. The search fixes one
coordinate at a time: given α_1 … α_k it weighs, for every c on a grid, the slab of points whose first k+1
coordinates are close to (α_1, …, α_k, c), and goes on only where the mass stands out:

    v = α_1 b_1 + … + α_k b_k + c b_{k+1},   A = Σ_j K_j b_j b_jᵀ,
    (K_1, …, K_{k+1}) = (C₂, C₂, C₁, …, C₁, C₂).

Letters: ℓ window, C₁ < C₂ widths (C₂ = ℓ²/d, C₁ = C₂^0.9 by eq. hyperparams), b_j orthonormal basis, α
coordinates, τ accuracy of the mass oracle, 𝒯 grid of c, 𝒯′ the heavy ones, 𝒮 a separated subset of 𝒯′, B
the largest frequency.

Where code must choose what the paper leaves open:

- τ is the standard error measured on the very samples used, and "|W_c| ≥ 5τ" keeps its factor.
- The first two coordinates are a full grid in the paper; here the grid is pruned at level 2 by the same
  threshold, and by I*(v) = I*(−v) only half of it is looked at.
- 𝒮 may be *any* maximal separated subset: ours is taken heaviest first. At affordable ℓ a blob is wider
  than the paper's spacing 1/√(10dC₁), so points on the flank of a heavier one count as the same blob: the
  spacing is at least `blob`/√C₂ and a member of 𝒮 must be a local maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgescope.errors import InvalidInput
from ridgescope.paper.mass import Field, FloatArray, PairField, frozen, mass_lines, mass_plane


@dataclass(frozen=True)
class Level:
    """What one level of the recursion did.

    coordinates: how many were fixed after it; candidates: how many were examined; branches: (candidates,)
    children of each (Claim bounded-recursion: at most one where b₁, b₂ separate); accuracy: the measured τ;
    samples: m."""

    coordinates: int
    candidates: int
    branches: FloatArray
    accuracy: float
    samples: int


@dataclass(frozen=True)
class Directions:
    """directions: (s, d) unit rows, γ/2-separated; weights: (s,) scaled masses; points: (r, d) every heavy
    point found in Fourier space; point_weights: (r,); basis: (d, d) rows b_j; levels: the recursion;
    queries: values asked."""

    directions: FloatArray
    weights: FloatArray
    points: FloatArray
    point_weights: FloatArray
    basis: FloatArray
    levels: tuple[Level, ...]
    queries: int


@dataclass(frozen=True)
class Widths:
    """C₁, C₂ of eq. hyperparams, and what follows from them."""

    dim: int
    ell: float
    C1: float = field(default=0.0)
    C2: float = field(default=0.0)

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

    def spacing(self, blob: float) -> float:
        """Separation asked of 𝒮: the paper's 1/√(10 d C₁), or `blob` blob widths where that is larger."""
        return max(1 / math.sqrt(10 * self.dim * self.C1), blob / math.sqrt(self.C2))

    def modes(self, frequency: float) -> int:
        """How many steps of 𝒯 lie between 0 and the largest frequency."""
        return max(1, math.floor(frequency / self.step))

    def reach(self, blob: float) -> int:
        """The separation asked of 𝒮 in steps of 𝒯."""
        return max(1, round(self.spacing(blob) / self.step))

    def radius2(self, modes: int) -> FloatArray:
        """(2N+1, 2N+1) squared distances α₁² + α₂² of the grid of the plane, N = modes."""
        k = np.arange(-modes, modes + 1)
        return np.asarray(self.step**2 * (k[:, None] ** 2 + k[None, :] ** 2))

    def diagonal(self, k: int) -> FloatArray:
        """(K_1, …, K_k) = (C₂, C₂, C₁, …, C₁, C₂)."""
        K = np.full(k, self.C1)
        K[:2] = self.C2
        K[-1] = self.C2
        return K


def random_basis(dim: int, rng: np.random.Generator) -> FloatArray:
    """(d, d) rows: an orthonormal basis drawn uniformly."""
    q, r = np.linalg.qr(rng.standard_normal((dim, dim)))
    return frozen((q * np.sign(np.diag(r))).T)


def separating(directions: FloatArray, basis: FloatArray) -> float:
    """The largest θ for which b₁, b₂ are θ-separating (Definition 2d-separated, with the absolute value it
    needs)."""
    d = basis.shape[0]
    p = directions @ basis[:2].T
    theta = float(np.abs(p).min()) * math.sqrt(d)
    i, j = np.triu_indices(len(p), k=1)
    if len(i):
        cross = np.abs(p[i, 0] * p[j, 1] - p[j, 0] * p[i, 1])
        theta = min(theta, math.sqrt(d * float(cross.min())))
    return theta


def sines(a: FloatArray, b: FloatArray) -> FloatArray:
    """(p, q) sines of the angles between the unit rows of a and b."""
    cosines = np.clip(np.abs(a @ b.T), 0.0, 1.0)
    return np.asarray(np.sqrt(1 - cosines**2))


def separate(directions: FloatArray, scores: FloatArray, least_sine: float) -> list[int]:
    """Indices of a maximal subset with pairwise sines ≥ least_sine, best score first (end of Lemma
    find-directions)."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if not kept or sines(directions[[i]], directions[kept]).min() >= least_sine:
            kept.append(int(i))
    return kept


def heavy_on_line(masses: FloatArray, threshold: float, reach: int) -> list[int]:
    """𝒮 for one candidate (Algorithm 2, lines 9-10): indices whose mass passes the threshold and is the
    largest within `reach` grid steps."""
    return [
        int(i)
        for i in np.flatnonzero((masses >= threshold) & (masses > 0))
        if masses[i] >= masses[max(0, i - reach) : i + reach + 1].max()
    ]


def heavy_in_plane(masses: FloatArray, allowed: FloatArray, threshold: float, reach: int) -> FloatArray:
    """(r, 2) index pairs, relative to the centre, that pass the threshold and stand out within a disc of
    `reach`.

    "Stand out" is judged on mass × radius²: mass falls along a ray, and without the factor every cell of a
    ray would yield to its neighbour nearer the origin."""
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


def first_two(
    f: Field | PairField,
    widths: Widths,
    basis: FloatArray,
    *,
    frequency: float,
    cut: float,
    sigmas: float,
    blob: float,
    m: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray, Level]:
    """Grid over α₁, α₂ with the disc cut out (proof of Lemma find-directions), half the plane, pruned by
    5τ."""
    modes = widths.modes(frequency)
    grid = mass_plane(f, widths.ell, basis, widths.diagonal(2), step=widths.step, modes=modes, m=m, rng=rng)
    k = np.arange(-modes, modes + 1)
    radius2 = widths.radius2(modes)
    half = (k[:, None] > 0) | ((k[:, None] == 0) & (k[None, :] > 0))
    allowed = (half & (radius2 >= cut**2) & (radius2 <= frequency**2)).astype(np.float64)
    cells = heavy_in_plane(grid.scaled, allowed, sigmas * grid.stderr, widths.reach(blob))
    at = (cells + modes).astype(np.intp)
    weights = grid.scaled[at[:, 0], at[:, 1]]
    return cells * widths.step, weights, Level(2, int(allowed.sum()), frozen([len(cells)]), grid.stderr, m)


def next_coordinate(
    f: Field | PairField,
    widths: Widths,
    basis: FloatArray,
    alpha: FloatArray,
    *,
    frequency: float,
    sigmas: float,
    blob: float,
    m: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray, Level]:
    """Algorithm 2, lines 3-12, for every candidate at once: (a, k) coordinates in, (a′, k+1) out, with
    masses."""
    a, k = alpha.shape
    step, reach, modes = widths.step, widths.reach(blob), widths.modes(frequency)  # line 3: 𝒯
    # lines 4-8: all W_c of all candidates from one batch
    grid = mass_lines(f, widths.ell, basis, widths.diagonal(k + 1), alpha, step=step, modes=modes, m=m, rng=rng)
    children, weights, branches = [], [], []
    for i in range(a):
        chosen = heavy_on_line(grid.scaled[i], sigmas * grid.stderr, reach)  # lines 9-10: 𝒯′ and 𝒮 ⊂ 𝒯′
        branches.append(len(chosen))  # lines 11-12: one call for each member of 𝒮
        children += [[*alpha[i], (c - modes) * step] for c in chosen]
        weights += [grid.scaled[i, c] for c in chosen]
    out = np.array(children, dtype=np.float64).reshape(-1, k + 1)
    return out, np.array(weights), Level(k + 1, a, frozen(branches), grid.stderr, m)


def find_directions(
    f: Field | PairField,
    ell: float,
    *,
    dim: int,
    m: int,
    rng: np.random.Generator,
    frequency: float,
    separation: float = 0.1,
    cut: float | None = None,
    C1: float = 0.0,
    C2: float = 0.0,
    sigmas: float = 5.0,
    blob: float = 1.5,
    basis: FloatArray | None = None,
    max_candidates: int | None = None,
    asked_per_point: int = 1,
) -> Directions:
    """Algorithm 2 from an empty prefix, then the greedy γ/2-separated subset of Lemma find-directions.

    f: (n, d) → (n,) or (n, q); frequency: the largest |coordinate| searched (the paper's ℓ², in practice
    the bandwidth of f); separation: γ; cut: radius left out around the origin (the paper's C₁^−0.3);
    sigmas: the 5 of "|W_c| ≥ 5τ", τ the measured standard error; max_candidates: heaviest candidates
    followed (None: all of them); asked_per_point: how many values of the black box one evaluation of f
    costs."""
    widths = Widths(dim, ell, C1, C2)
    basis = random_basis(dim, rng) if basis is None else frozen(basis)
    if dim == 1:
        return Directions(frozen([[1.0]]), frozen([1.0]), frozen([[1.0]]), frozen([1.0]), basis, (), 0)
    alpha, weights, level = first_two(
        f,
        widths,
        basis,
        frequency=frequency,
        cut=widths.cut if cut is None else cut,
        sigmas=sigmas,
        blob=blob,
        m=m,
        rng=rng,
    )
    levels = [level]
    while alpha.shape[1] < dim and len(alpha):  # line 1
        if max_candidates is not None and len(alpha) > max_candidates:
            best = np.argsort(-weights * (alpha**2).sum(axis=1), kind="stable")[:max_candidates]
            alpha = alpha[best]
        alpha, weights, level = next_coordinate(
            f, widths, basis, alpha, frequency=frequency, sigmas=sigmas, blob=blob, m=m, rng=rng
        )
        levels.append(level)
    queries = sum(2 * level.samples for level in levels) * asked_per_point
    if not len(alpha):
        empty = np.zeros((0, dim))
        return Directions(frozen(empty), frozen([]), frozen(empty), frozen([]), basis, tuple(levels), queries)
    points = alpha @ basis
    lengths = np.linalg.norm(points, axis=1)
    units = points / lengths[:, None]  # line 2
    kept = separate(units, weights * lengths**2, separation / 2)
    return Directions(
        frozen(units[kept]),
        frozen(weights[kept]),
        frozen(points),
        frozen(weights),
        basis,
        tuple(levels),
        queries,
    )


@dataclass(frozen=True)
class Vote:
    """directions: (s, d) those that more than `quorum` of the runs found; share: (s,) of the runs that
    found each."""

    directions: FloatArray
    share: FloatArray
    runs: int


def vote(runs: Sequence[FloatArray], *, angle: float, quorum: float = 0.5) -> Vote:
    """Majority vote over independent runs (proof of Theorem weaker), which turns probability 0.9 into 1−δ.

    Two directions are the same when the sine of their angle is at most `angle`. A kept direction is the
    principal axis of the votes cast for it, at most one per run."""
    if not runs:
        raise InvalidInput("a vote needs at least one run")
    pooled = np.concatenate([np.atleast_2d(r) for r in runs])
    owner = np.concatenate([np.full(len(np.atleast_2d(r)), i) for i, r in enumerate(runs)])
    kept: list[FloatArray] = []
    share: list[float] = []
    free = np.ones(len(pooled), dtype=bool)
    near = sines(pooled, pooled) <= angle
    while free.any():
        counts = np.array([len(np.unique(owner[row & free])) if ok else 0 for row, ok in zip(near, free, strict=True)])
        centre = int(np.argmax(counts))
        if counts[centre] <= quorum * len(runs):
            break
        members = near[centre] & free
        axis = np.linalg.svd(pooled[members], full_matrices=False)[2][0]
        kept.append(axis)
        share.append(counts[centre] / len(runs))
        free &= ~(sines(pooled, axis[None])[:, 0] <= 2 * angle)
        free[members] = False
    out = np.array(kept).reshape(-1, pooled.shape[1])
    return Vote(frozen(out), frozen(share), len(runs))


def repetitions(delta: float, success: float = 0.9) -> int:
    """Runs for which a majority is right with probability ≥ 1−δ, by Hoeffding: exp(−2k(p−½)²) ≤ δ."""
    return max(1, math.ceil(math.log(1 / delta) / (2 * (success - 0.5) ** 2)))
