"""Lift rays of a slice into R^d: shifted points show how fast the phase of each strong cell changes.

Near its peak a single ray is h(s) = 2 Re Σ_{y ∈ catchment} C(y) e^(iy·s), and h/w is the feature itself,
restricted to the slice: a function of u·s alone. Shifting the slice by δ b_k shifts this function: with
α_k = t (v·b_k), the k-th coordinate of the point t·v on the ray whose first r coordinates are the peak y,

    f(s + δ b_k) − f(s) = Σ_g [ (h_g/w)(s + δ α_gk/|y_g| u_g) − (h_g/w)(s) ] + low frequencies          (*)

and at the peak the phase changes by α_k δ. The vector α is the wave vector of the ray in the slice's basis.

*Decimation.* The whole shifted slice would give all of C(y) again, for N^r queries. But the strong cells are
known, and (*) has two unknowns for each, the change of its phase and of its modulus: a few points per unknown
determine them by least squares, all cells at once. On a decimated lattice, the classical method, cells N/q
apart collide; here two cells collide only if they do on the slice itself. (Measured on d=10, n=20 with
kinks: as many directions as a lattice with two to three times the queries.) The points are drawn from the
slice's own grid with density w², so that f(s) is known already; the low frequencies, where all rays overlap,
are free parameters.

*Longer shifts.* δ, 4δ, 16δ, …: each is linearised about the last, which reduces the error of α four times,
contamination by other rays included, as long as the phase stays unambiguous.

*Tests.* (i) A ray keeps its modulus under every shift. (ii) Shifts along b_1 … b_r must return the known
peak: a cell with two rays does not, and one folded back from beyond the Nyquist frequency returns the
frequency it came from. (iii) With vector outputs all transforms share one change of phase; if they do not,
tests (i) and (ii) fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from ..geometry import Floats, unit
from .base import Ask
from .spectrum import Cells, Frame, Indices, Spectrum, ask_shifted

_MOST_TURN = 1.0  # largest correction of a phase, radians, by a longer shift: a third of π, where it becomes ambiguous
_ANGLE_PER_GROWTH = 4.0  # empirical: angle error over the change of modulus of a cell with two rays
_PEAK_ERROR = 0.1  # error of a peak's position in the slice, in cells. Empirical: the error of the interpolation
_FARTHEST = 0.5  # windows that a ray may move under a shift. Empirical: 1/w grows with it and magnifies errors
_RIDGE = 1e-6  # added to the unit diagonal of the normal equations, for cells too close to separate
_ENTRIES = 1_000_000  # complex numbers of waves in memory at once, 16 MB


@dataclass(frozen=True, eq=False)
class Lifted:
    """The wave vector of each of K strong cells, with its expected error."""

    wavevectors: Floats
    """(K, d) change of phase per unit of length along b_1 … b_d: the point t·v in the slice's basis."""
    error: Floats
    """(K, d) expected error of each entry: that of the least squares, or that shown by test (ii) if larger."""
    growth: Floats
    """(K,) change of the modulus under the shifts, test (i): 0 for a single ray."""
    queries: int

    def directions(self, frame: Frame) -> Floats:
        """Return the directions as (K, d) unit rows."""
        return unit(self.wavevectors @ frame.basis)

    @property
    def angle_error(self) -> Floats:
        """(K,) expected errors of the directions, radians."""
        size = np.maximum(np.linalg.norm(self.wavevectors, axis=1), np.finfo(float).tiny)
        return np.asarray(np.hypot(np.linalg.norm(self.error, axis=1) / size, _ANGLE_PER_GROWTH * self.growth))


@dataclass(frozen=True, eq=False)
class LiftDesign:
    """The right-hand side of (*) at chosen points of a slice, for any shift along the rays."""

    frame: Frame
    cells: Cells
    s: Floats
    """(m, r) coordinates of the points."""
    here: Floats
    """(m, p) answers at these points."""
    weight: Floats
    """(m,) weights of the rows."""

    def columns(self, along: Floats) -> tuple[Floats, Floats]:
        """Return h_g/w and its derivative along u_g at s + along_g u_g, each (p·m, K)."""
        c = self.cells
        speed = np.sum(c.frequencies * c.rays[c.owner], axis=1)
        turned = c.coefficients * np.exp(1j * speed * along[c.owner])
        p, m, k = len(turned), len(self.s), len(c.peaks)
        h, dh = np.empty((p, m, k)), np.empty((p, m, k))
        rows = max(1, _ENTRIES // len(c.owner))
        for start in range(0, m, rows):
            part = slice(start, start + rows)
            wave = np.exp(1j * (self.s[part] @ c.frequencies.T))
            for o in range(p):
                term = wave * turned[o]
                h[o, part] = 2.0 * np.add.reduceat(term.real, c.starts, axis=1)
                dh[o, part] = -2.0 * np.add.reduceat(term.imag * speed, c.starts, axis=1)
        position = self.s @ c.rays.T
        square = np.sum(self.s**2, axis=1)[:, None] + 2.0 * along * position + along**2
        grow = np.exp(square / (2.0 * self.frame.window**2))  # 1/w at the shifted position
        h *= grow
        dh = dh * grow + h * ((position + along) / self.frame.window**2)
        return h.reshape(p * m, k), dh.reshape(p * m, k)

    def low(self) -> Floats:
        """Return the columns (p·m, p·(2q−1)) of the free low frequencies, separate for each output."""
        turn = self.s @ self.cells.disc.T
        waves = np.concatenate([np.cos(turn), np.sin(turn[:, 1:])], axis=1)
        return np.asarray(np.kron(np.eye(self.here.shape[1]), waves / self.frame.weight(self.s)[:, None]))


def unknowns(cells: Cells, outputs: int) -> int:
    """Return the number of real unknowns of (*) for one shift."""
    return 2 * len(cells.peaks) + outputs * (2 * len(cells.disc) - 1)


def lift_design(spectrum: Spectrum, cells: Cells, count: int, core: float, rng: np.random.Generator) -> LiftDesign:
    """Choose at most `count` points of the slice within `core` of its centre, with density proportional to w².

    A point is chosen with probability π = min(1, c w²) and its rows are weighted by w/√π, so that sums over the chosen
    points estimate sums over the slice.
    """
    answered = np.isfinite(spectrum.values).all(axis=1)
    inside = np.flatnonzero((np.sum(spectrum.s**2, axis=1) <= core**2) & answered)
    square = spectrum.frame.weight(spectrum.s[inside]) ** 2
    chance = _chances(square, min(count, len(inside)))
    # systematic sampling: exactly the expected number; 1e-9 keeps rounding of the sum from adding one
    ticks = np.floor(np.cumsum(chance) + rng.random() - 1e-9)
    taken = np.diff(ticks, prepend=0.0) > 0
    chosen: Indices = inside[taken][:count]
    weight = np.sqrt(square / chance)[taken][:count]
    return LiftDesign(spectrum.frame, cells, spectrum.s[chosen], spectrum.values[chosen], weight)


def _chances(square: Floats, count: int) -> Floats:
    """Return the probabilities min(1, c·square), with c such that they sum to `count`."""
    chance = np.zeros(len(square))
    full = np.zeros(len(square), dtype=bool)
    while True:
        rest = float(square[~full].sum())
        c = (count - full.sum()) / rest if rest > 0 else 0.0
        chance = np.where(full, 1.0, c * square)
        if not (chance > 1.0 + 1e-12).any():  # up to rounding
            return np.maximum(chance, 1e-300)
        full |= chance >= 1.0


def lift(ask: Ask, design: LiftDesign, shift: float, gradient: Ask | None = None) -> Lifted:
    """Return all wave vectors, from one small shift along every axis or from gradients if they are given."""
    frame, cells = design.frame, design.cells
    r, k = frame.rank, len(cells.peaks)
    if gradient is None:
        change = list(ask_shifted(ask, frame, design.s, shift * frame.basis) - design.here)
        used = len(frame.basis) * len(design.s)
    else:
        slopes = ask_shifted(gradient, frame, design.s, np.zeros((1, len(frame.basis))))[0]
        change = [shift * (slopes @ b) for b in frame.basis]
        used = len(design.s)
    h, dh = design.columns(np.zeros(k))
    rows = np.tile(design.weight, design.here.shape[1])
    solution, fit_error = _solve([dh, h, design.low()], np.stack([np.ravel(c.T) for c in change], axis=1), rows)
    y = np.linalg.norm(cells.peaks, axis=1)
    sine, cosine = solution[:k] * y[:, None], 1.0 + solution[k : 2 * k]
    # e^(iαδ) = cosine + i·sine; a gradient is the limit δ → 0, where the sine is the angle itself
    alpha = (sine if gradient is not None else np.arctan2(sine, cosine)) / shift
    modulus = cosine if gradient is not None else np.hypot(sine, cosine)
    peaks = _unfolded(cells.peaks, alpha[:, :r], frame.step)
    miss = np.sqrt(np.mean((alpha[:, :r] - peaks) ** 2, axis=1))
    error = np.maximum(fit_error[:k] * (y / shift)[:, None], miss[:, None])
    alpha[:, :r] = peaks
    error[:, :r] = _PEAK_ERROR * frame.cell
    return Lifted(alpha, error, np.sqrt(np.mean((modulus - 1.0) ** 2, axis=1)), used)


def refine_lift(ask: Ask, design: LiftDesign, lifted: Lifted, shift: float, first: int) -> Lifted:
    """Return the wave vectors with their components along axes `first` … d−1 improved by a longer shift."""
    frame, cells = design.frame, design.cells
    if first == len(frame.basis):  # the slice is the whole space
        return lifted
    k = len(cells.peaks)
    y = np.linalg.norm(cells.peaks, axis=1)
    wavevectors, error = lifted.wavevectors.copy(), lifted.error.copy()
    still = design.columns(np.zeros(k))[0]
    low, rows = design.low(), np.tile(design.weight, design.here.shape[1])
    changes = ask_shifted(ask, frame, design.s, shift * frame.basis[first:]) - design.here
    for j, moved in enumerate(changes, start=first):
        change = np.ravel(moved.T)
        along = wavevectors[:, j] * shift / y
        along[np.abs(along) > _FARTHEST * frame.window] = 0.0
        h, dh = design.columns(along)
        solution, fit_error = _solve([dh, h, low], (change - (h - still).sum(axis=1))[:, None], rows)
        turn = np.arctan2(solution[:k, 0] * y, 1.0 + solution[k : 2 * k, 0])
        sharper = fit_error[:k, 0] * y / shift
        unwrapped = (np.abs(turn) <= _MOST_TURN) & (error[:, j] * shift <= _MOST_TURN)
        taken = (along != 0.0) & unwrapped & (sharper < error[:, j])
        wavevectors[taken, j] += turn[taken] / shift
        error[taken, j] = sharper[taken]
    used = lifted.queries + (len(frame.basis) - first) * len(design.s)
    return replace(lifted, wavevectors=wavevectors, error=error, queries=used)


def _unfolded(peaks: Floats, alpha: Floats, step: float) -> Floats:
    """Move aliased peaks to their true frequency: those 2π/h apart coincide on the grid but turn differently."""
    period = 2.0 * np.pi / step
    return np.asarray(peaks + period * np.round((alpha - peaks) / period))


def _solve(blocks: list[Floats], answers: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Solve a weighted least-squares problem with columns scaled to length one; return solution and standard errors.

    The residual counts as noise. Rows with a dropped answer are left out.
    """
    good = np.isfinite(answers).all(axis=1)
    w = weight[good, None]
    matrix, right = np.concatenate(blocks, axis=1)[good] * w, answers[good] * w
    scale = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    matrix /= scale
    gram = matrix.T @ matrix
    gram[np.diag_indices_from(gram)] += _RIDGE
    inverse = scipy.linalg.inv(gram)
    solution = inverse @ (matrix.T @ right)
    left = np.sum((right - matrix @ solution) ** 2, axis=0)
    noise = np.sqrt(left / max(1, len(right) - len(gram)))
    error = np.sqrt(np.maximum(np.diag(inverse), 0.0))[:, None] * noise
    return solution / scale[:, None], error / scale[:, None]
