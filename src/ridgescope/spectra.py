"""Spectra of the recovered responses, and the planes in which to look at them: what the report's star is made of.

Nothing here asks a query.
"""

from __future__ import annotations

import numpy as np

from .geometry import Floats
from .result import Extraction

MAX_PLANES = 8
"""Planes that the report's slider steps through."""
_GRID = 512
"""Samples of a response over [−R, R], which resolve up to 256 periods."""
_PADDING = 4
"""Zero padding: frequencies are π/4R apart, so that linear interpolation between them is smooth."""
_MIN_SINE = 0.1
"""If two directions are closer than this sine (6 degrees), a coordinate axis takes the place of the second."""
_ENERGY, _MARGIN = 0.95, 1.5
"""Empirical: pictures reach to 1.5 times the frequency below which 95 % of Σ|ω ŝ(ω)|² lies; more shows less detail near
the middle, less cuts rays off."""


def planes_through_pairs(directions: Floats, max_planes: int = MAX_PLANES) -> list[Floats]:
    """(2, d) orthonormal rows for each plane through the first and second direction, the third and fourth, …

    In two dimensions there is one plane, with the coordinate axes as its basis.
    """
    d = directions.shape[1]
    if d == 2:
        return [np.eye(2)]
    axes = np.eye(d)
    bases = []
    for k in range(0, min(len(directions), 2 * max_planes), 2):
        rows = np.concatenate([directions[k : k + 2], axes[np.argsort(np.abs(directions[k]))]])
        first = rows[0] / np.linalg.norm(rows[0])
        for row in rows[1:]:
            second = row - (row @ first) * first
            if np.linalg.norm(second) > _MIN_SINE:
                bases.append(np.stack([first, second / np.linalg.norm(second)]))
                break
    return bases


def response_spectra(found: Extraction) -> tuple[Floats, Floats]:
    """Frequencies (k,) in radians per unit length, and |ŝ_i| (n, k): root sum of squares over outputs.

    Each response is first tapered to zero at ±R by a squared cosine.
    """
    z = np.linspace(-found.radius, found.radius, _GRID + 1)[:-1]
    taper = np.cos(0.5 * np.pi * z / found.radius) ** 2
    rows = []
    for f in found.features:
        values = f.response(z).reshape(len(z), -1)
        values = (values - np.average(values, axis=0, weights=taper)) * taper[:, None]
        rows.append(np.sqrt((np.abs(np.fft.rfft(values, _PADDING * len(z), axis=0)) ** 2).sum(axis=1)))
    step = np.pi / (_PADDING * found.radius)
    omega = step * np.arange(_PADDING * len(z) // 2 + 1, dtype=np.float64)
    return np.asarray(omega, dtype=np.float64), np.array(rows, dtype=np.float64)


def highest_frequency(omega: Floats, spectra: Floats) -> float:
    """A frequency below which nearly all of Σ|ω ŝ(ω)|² lies: how far a picture of the spectra has to reach."""
    energy = np.cumsum((spectra**2).sum(axis=0) * omega**2)
    if not energy[-1] > 0:
        return float(omega[-1])
    return _MARGIN * float(omega[np.searchsorted(energy, _ENERGY * energy[-1])])
