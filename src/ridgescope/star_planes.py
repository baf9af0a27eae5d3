"""Slices of f asked only for the report: the planar Fourier power of f, where the search itself took no slices.

Each slice lies through two features, strongest first, so that the rays of both have their full length; its grid
resolves the highest frequency of the recovered responses. The queries are counted as the stage "picture".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .oracle.base import Oracle
from .result import Extraction
from .search.spectrum import Frame, picture, transform
from .spectra import highest_frequency, planes_through_pairs, response_spectra

_HALF = 40
"""Half the grid points along each axis: some 5,000 queries for a plane, and rays 8 degrees apart are separate."""
_EXTENT = 3.2
"""Radius of a slice over the width of its Gaussian window, as in the search: the window has fallen to 0.006 there."""


def with_planes(found: Extraction, oracle: Oracle, count: int) -> Extraction:
    """The result with up to `count` slices of f, fewer if the budget is too small for them.

    A result that has planes already, has no features, or lives in one dimension comes back as it is.
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
    frames = frames[: int(min(len(frames), oracle.remaining // each))]
    oracle.announce(each * len(frames), stage="picture")
    planes = tuple(picture(transform(oracle.counted("picture"), frame, 0.0)) for frame in frames)
    return replace(found, planes=planes, queries=oracle.queries, queries_by_stage=dict(oracle.queries_by_stage))
