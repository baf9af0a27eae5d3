"""The planes of the report's star, the spectra of the responses in them, and slices of f asked only for the report.

`with_planes` asks slices if the search itself took none. Each lies through two features, strongest first, so that the
rays of both have their full length; its grid resolves the highest frequency of the recovered responses. The queries
are counted as the stage "picture".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .geometry import Floats
from .oracle.base import Oracle
from .result import Extraction
from .search.spectrum import Frame, picture, transform

MAX_PLANES = 8
"""Largest number of planes that the report's slider steps through."""
_GRID = 512
"""Number of samples of a response over [−R, R], which resolve up to 256 periods."""
_PADDING = 4
"""Factor of zero padding: frequencies are π/4R apart, so that linear interpolation between them is smooth."""
_MIN_SINE = 0.1
"""If two directions are closer than this sine (6 degrees), a coordinate axis takes the place of the second."""
_ENERGY, _MARGIN = 0.95, 1.5
"""Empirical: pictures extend to 1.5 times the frequency below which 95 % of Σ|ω ŝ(ω)|² lies; a larger extent shows less
detail near the middle, a smaller one cuts rays off."""
_HALF = 40
"""Half the grid points along each axis: about 5,000 queries for a plane, and rays 8 degrees apart are separate."""
_EXTENT = 3.2
"""Radius of a slice over the width of its Gaussian window, as in the search: the window has fallen to 0.006 there."""


def with_planes(found: Extraction, oracle: Oracle, count: int) -> Extraction:
    """Return the result with up to `count` slices of f, fewer if the budget is too small for them.

    A result that already has planes, has no features, or has one input dimension is returned as it is.
    """
    if found.planes or found.dim < 2 or not found.features or count < 1:
        return found
    step = np.pi / highest_frequency(*response_spectra(found))
    extent = _HALF * step
    if oracle.reach is not None and extent > oracle.reach:
        extent = oracle.reach * (1.0 - 1e-9)  # inside by more than rounding
        step = extent / _HALF
    frames = [
        Frame(basis, np.zeros(found.dim), 2, step, _HALF, extent / _EXTENT, extent)
        for basis in planes_through_pairs(found.directions)[:count]
    ]
    each = len(frames[0].grid()[0])
    frames = frames[: int(min(len(frames), oracle.remaining / each))]
    oracle.announce(each * len(frames), stage="picture")
    planes = tuple(picture(transform(oracle.counted("picture"), frame, 0.0)) for frame in frames)
    return replace(found, planes=planes, queries=oracle.queries, queries_by_stage=dict(oracle.queries_by_stage))


def planes_through_pairs(directions: Floats, max_planes: int = MAX_PLANES) -> list[Floats]:
    """Return (2, d) orthonormal rows for each plane through the first and second direction, the third and fourth, …

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
    """Return frequencies (k,) in radians per unit length, and |ŝ_i| (n, k), the root sum of squares over outputs.

    Each response is first tapered to zero at ±R by a squared cosine. The gain of a gated feature counts with the mean
    square R²/3 of its carrier, as in its strength.
    """
    z = np.linspace(-found.radius, found.radius, _GRID + 1)[:-1]
    taper = np.cos(0.5 * np.pi * z / found.radius) ** 2
    rows = []
    for f in found.features:
        values = f.response(z).reshape(len(z), -1)
        if f.gate is not None:
            values = np.hstack([values, found.radius / np.sqrt(3.0) * f.gain(z).reshape(len(z), -1)])
        values = (values - np.average(values, axis=0, weights=taper)) * taper[:, None]
        rows.append(np.sqrt((np.abs(np.fft.rfft(values, _PADDING * len(z), axis=0)) ** 2).sum(axis=1)))
    step = np.pi / (_PADDING * found.radius)
    omega = step * np.arange(_PADDING * len(z) // 2 + 1, dtype=np.float64)
    return np.asarray(omega, dtype=np.float64), np.array(rows, dtype=np.float64)


def highest_frequency(omega: Floats, spectra: Floats) -> float:
    """Return the frequency to which a picture of the spectra extends: nearly all of Σ|ω ŝ(ω)|² lies below it."""
    energy = np.cumsum((spectra**2).sum(axis=0) * omega**2)
    if not energy[-1] > 0:
        return float(omega[-1])
    return _MARGIN * float(omega[np.searchsorted(energy, _ENERGY * energy[-1])])
