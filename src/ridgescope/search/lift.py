"""Lift rays of a slice into R^d: read from shifted points how fast the phase of each strong cell turns.

Near its peak a single ray is h(s) = 2 Re Σ_{y ∈ catchment} C(y) e^(iy·s), and h/w is the feature itself, seen in the slice:
a function of u·s alone. Moving the slice by δ b_k moves it along: with κ_k = (v·b_k)/ρ,

    f(s + δ b_k) − f(s) = Σ_g [ (h_g/w)(s + δ κ_gk u_g) − (h_g/w)(s) ] + low frequencies          (*)

so v_g ∝ Σ_{j≤r} u_gj b_j + Σ_{k>r} κ_gk b_k, and α_k = |y| κ_k is the phase turned per unit of δ.

*Decimation.* The whole shifted slice would give all of C(y) again, N^r queries for each k. But the strong cells are
known, and (*) has one unknown for each of them (two, with the modulus): a few points for every unknown fix κ
by least squares, all cells at once. No pair of cells can collide, as they may on a decimated lattice, unless they collide on
the slice itself. The points are drawn from the slice's own grid with density w², so that f(s) is known already and
all rows of (*) count alike; the low frequencies, where every ray overlaps every other, are left free.

*Ladder.* Shifts δ, 4δ, 16δ, …: each is linearised about the last, which sharpens κ four times over, contamination by other
rays included, and no step turns the phase by more than it is known to.

*Tests.* (i) A ray keeps its modulus: the coefficient of h_g itself must vanish. (ii) A shift inside the slice must return
the known heading: a cell with two rays, or one folded back from beyond the Nyquist frequency, does not. (iii) With
vector outputs all transforms turn together: they share the one κ, and what they do not share shows up in (i) and (ii).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..geometry import Floats, unit
from .base import Ask
from .spectrum import Cells, Frame, Indices, Spectrum, asked

_TURN = 1.0
"""Radians by which one rung may correct the phase; beyond, the rung before was not good enough to unwrap it."""


@dataclass(frozen=True, eq=False)
class Lifted:
    """One candidate for each strong cell."""

    directions: Floats
    """(K, d) unit rows."""
    spread: Floats
    """(K,) expected error of the direction, radians, from the tests."""
    modulus: Floats
    """(K,) change of the modulus under the shifts, relative to the turn: 0 for a single ray."""
    queries: int
    residual: float
    """Share of the shifted values' power that the cells leave unexplained at the first rung."""


@dataclass(frozen=True, eq=False)
class _Design:
    """The right-hand side of (*) at chosen points, for any shift along the rays."""

    frame: Frame
    cells: Cells
    s: Floats

    def columns(self, along: Floats) -> tuple[Floats, Floats]:
        """h_g/w and its derivative along u_g, at s + along_g u_g: each (p·m, K)."""
        c = self.cells
        reach = np.sum(c.frequencies * c.headings[c.owner], axis=1)
        turned = c.coefficients * np.exp(1j * reach * along[c.owner])
        p, m, k = len(turned), len(self.s), len(c.peaks)
        h, dh = np.empty((p, m, k)), np.empty((p, m, k))
        rows = max(1, 2_000_000 // max(1, len(c.owner)))
        for start in range(0, m, rows):
            part = slice(start, start + rows)
            wave = np.exp(1j * (self.s[part] @ c.frequencies.T))
            for o in range(p):
                term = wave * turned[o]
                h[o, part] = 2.0 * np.add.reduceat(term.real, c.starts, axis=1)
                dh[o, part] = -2.0 * np.add.reduceat(term.imag * reach, c.starts, axis=1)
        place = self.s @ c.headings.T  # u·s
        square = np.sum(self.s**2, axis=1)[:, None] + 2.0 * along * place + along**2
        grow = np.exp(square / (2.0 * self.frame.window**2))
        h *= grow
        dh = dh * grow + h * ((place + along) / self.frame.window**2)
        return h.reshape(p * m, k), dh.reshape(p * m, k)

    def low(self, outputs: int) -> Floats:
        """Free low frequencies, for each output its own: (p·m, p·q)."""
        turn = self.s @ self.cells.disc.T
        q = np.concatenate([np.cos(turn), np.sin(turn[:, 1:])], axis=1) / self.frame.weight(self.s)[:, None]
        return np.kron(np.eye(outputs), q)


def unknowns(cells: Cells) -> int:
    """Real unknowns of (*) for one shift and one output."""
    return 2 * len(cells.peaks) + 2 * len(cells.disc) - 1


def lift(
    ask: Ask,
    spectrum: Spectrum,
    cells: Cells,
    *,
    count: int,
    ladder: Floats,
    core: float,
    rng: np.random.Generator,
    gradient: Ask | None = None,
) -> Lifted:
    """Directions of all cells from `count` points of each shifted slice; the points keep within `core` of the centre."""
    frame = spectrum.frame
    d, r = len(frame.basis), frame.rank
    design, here = _choose(spectrum, cells, count, core, rng)
    p = here.shape[1]
    low = design.low(p)
    h, dh = design.columns(np.zeros(len(cells.peaks)))
    if gradient is None:
        first = [asked(ask, frame, design.s, ladder[0] * b) - here for b in frame.basis]
        used = d * len(design.s)
    else:
        slopes = np.asarray(gradient(frame.points(design.s)))
        first = [ladder[0] * (slopes @ b) for b in frame.basis]
        used = len(design.s)
    solution, residual = _solve([dh, h, low], np.stack([np.ravel(x.T) for x in first], axis=1))
    k = len(cells.peaks)
    y = np.linalg.norm(cells.peaks, axis=1)
    turn, growth = solution[:k] * y[:, None], solution[k : 2 * k]
    # e^(iαδ) − 1 = growth + i·turn; a gradient is the limit δ → 0 and has no cosine to account for
    alpha = (np.arctan2(turn, 1.0 + growth) if gradient is None else turn) / ladder[0]
    modulus = np.hypot(turn, 1.0 + growth) if gradient is None else 1.0 + growth
    change = np.sqrt(np.mean((modulus - 1.0) ** 2, axis=1))
    peaks = _unfolded(cells.peaks, alpha[:, :r], frame.step)
    size = np.linalg.norm(alpha, axis=1)
    spread = np.linalg.norm(alpha[:, :r] - peaks, axis=1) * np.sqrt(d / r) / size
    kappa = alpha[:, r:] / y[:, None]
    for delta in ladder[1:] if d > r else ():
        kappa, moved = _rung(ask, design, here, low, kappa, float(delta), spread)
        used += (d - r) * len(design.s)
        spread = np.where(moved, spread * (ladder[0] / delta), spread)
    directions = unit(peaks @ frame.basis[:r] + (kappa * y[:, None]) @ frame.basis[r:])
    return Lifted(directions, spread, change, used, residual)


def _unfolded(peaks: Floats, alpha: Floats, step: float) -> Floats:
    """Peaks put back where they came from: frequencies 2π/h apart look the same on the grid, but turn differently."""
    period = 2.0 * np.pi / step
    return np.asarray(peaks + period * np.round((alpha - peaks) / period))


def _choose(
    spectrum: Spectrum, cells: Cells, count: int, core: float, rng: np.random.Generator
) -> tuple[_Design, Floats]:
    """Points of the slice, drawn with density w², and what was answered there."""
    inside = np.flatnonzero(
        (np.sum(spectrum.s**2, axis=1) <= core**2) & np.isfinite(spectrum.values).all(axis=1)
    )
    chance = spectrum.frame.weight(spectrum.s[inside]) ** 2
    count = min(count, len(inside))
    chosen: Indices = np.sort(rng.choice(inside, count, replace=False, p=chance / chance.sum()))
    return _Design(spectrum.frame, cells, spectrum.s[chosen]), spectrum.values[chosen]


def _solve(blocks: list[Floats], answers: Floats) -> tuple[Floats, float]:
    """Least squares with columns scaled to length one; rows with a dropped answer are left out."""
    good = np.isfinite(answers).all(axis=1)
    matrix = np.concatenate(blocks, axis=1)[good]
    scale = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    solution = np.linalg.lstsq(matrix / scale, answers[good], rcond=1e-9)[0]
    left = answers[good] - (matrix / scale) @ solution
    share = float(np.sum(left**2) / max(float(np.sum(answers[good] ** 2)), np.finfo(float).tiny))
    return solution / scale[:, None], share


def _rung(
    ask: Ask, design: _Design, here: Floats, low: Floats, kappa: Floats, delta: float, spread: Floats
) -> tuple[Floats, Floats]:
    """κ corrected by shifts of δ along every b_k, and which cells took the correction on all of them."""
    frame, cells = design.frame, design.cells
    out = kappa.copy()
    moved = spread < 0.5
    far = np.max(np.abs(kappa), axis=1) * delta > 0.7 * frame.window
    moved &= ~far
    kappa = np.where(moved[:, None], kappa, 0.0)
    y = np.linalg.norm(cells.peaks, axis=1)
    h0 = design.columns(np.zeros(len(kappa)))[0]
    for k, b in enumerate(frame.basis[frame.rank :]):
        change = np.ravel((asked(ask, frame, design.s, delta * b) - here).T)
        h, dh = design.columns(delta * kappa[:, k])
        predicted = (h - h0).sum(axis=1)
        solution, _ = _solve([dh, h, low], (change - predicted)[:, None])
        step = solution[: len(kappa), 0] / delta
        small = moved & (np.abs(step) * y * delta <= _TURN)
        out[small, k] += step[small]
        moved &= small
    return out, moved


