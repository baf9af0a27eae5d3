"""Slices of f asked for their own sake: the planar Fourier power for a report, where the search took none.

Each lies through two features, strongest first, so that the rays of both are at full length; its grid reaches to the
highest frequency of the recovered responses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .geometry import Floats
from .oracle.base import Oracle
from .result import Extraction
from .search.spectrum import Frame, picture, transform

_HALF = 40
"""Half the points along each axis: some 5,000 queries for a plane."""
_CUT = 3.2
"""Extent of a slice over the width of its window, as in the search."""
_GRID = 512


def with_planes(found: Extraction, oracle: Oracle, count: int) -> Extraction:
    """The result with up to `count` slices of f, as many as the budget allows; their queries count as "picture"."""
    if found.planes or found.dim < 2 or not found.features or count < 1:
        return found
    step = np.pi / highest_frequency(*spectra(found))
    extent = _HALF * step
    if oracle.reach is not None and extent > oracle.reach:
        extent = oracle.reach * (1.0 - 1e-9)
        step = extent / _HALF
    frames = [
        Frame(basis, np.zeros(found.dim), 2, step, _HALF, extent / _CUT, extent)
        for basis in through_pairs(found.directions)[:count]
    ]
    each = len(frames[0].grid()[0])
    frames = frames[: int(min(len(frames), oracle.remaining // each))]
    oracle.announce(each * len(frames), stage="picture")
    planes = tuple(picture(transform(oracle.counted("picture"), frame, 0.0)) for frame in frames)
    return replace(found, planes=planes, queries=oracle.queries, queries_by_stage=dict(oracle.queries_by_stage))


def through_pairs(directions: Floats, most: int = 8) -> list[Floats]:
    """(2, d) orthonormal rows for each of the planes through the first and second direction, third and fourth, …"""
    d = directions.shape[1]
    if d == 2:
        return [np.eye(2)]
    spare = np.eye(d)
    bases = []
    for k in range(0, min(len(directions), 2 * most), 2):
        rows = np.concatenate([directions[k : k + 2], spare[np.argsort(np.abs(directions[k]))]])
        first = rows[0] / np.linalg.norm(rows[0])
        for row in rows[1:]:
            second = row - (row @ first) * first
            if np.linalg.norm(second) > 0.1:
                bases.append(np.stack([first, second / np.linalg.norm(second)]))
                break
    return bases


def spectra(found: Extraction) -> tuple[Floats, Floats]:
    """Frequencies (k,) and |ŝ_i| (n, k), over all outputs, of the responses tapered to zero at ±R."""
    z = np.linspace(-found.radius, found.radius, _GRID + 1)[:-1]
    taper = np.cos(0.5 * np.pi * z / found.radius) ** 2
    rows = []
    for f in found.features:
        values = f.response(z).reshape(len(z), -1)
        values = (values - np.average(values, axis=0, weights=taper)) * taper[:, None]
        rows.append(np.sqrt((np.abs(np.fft.rfft(values, 4 * len(z), axis=0)) ** 2).sum(axis=1)))
    omega = 0.25 * np.pi / found.radius * np.arange(2 * len(z) + 1, dtype=np.float64)
    return np.asarray(omega, dtype=np.float64), np.array(rows, dtype=np.float64)


def highest_frequency(omega: Floats, spectra: Floats) -> float:
    """The frequency below which nearly all of Σ|ω ŝ(ω)|² lies."""
    energy = np.cumsum((spectra**2).sum(axis=0) * omega**2)
    if not energy[-1] > 0:
        return float(omega[-1])
    return 1.5 * float(omega[np.searchsorted(energy, 0.95 * energy[-1])])
