"""The space that a stack of packed tensors spans, and its dimension.

Derivatives of f at many points lie in the span of the powers of all directions. The right singular vectors of the stack
are an orthonormal basis of it, and its dimension is where the singular values drop to the error of the derivatives.
Large stacks are taken apart by the eigenvectors of their Gram matrix, several times as fast.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh, svd

from ..deadline import check_time
from ..geometry import Floats

# least ratio of a singular value to the next that counts as a drop
_DROP = 2.5  # if it crosses the floor. Empirical: singular values of errors alone fall by less
_DROP_ABOVE_FLOOR = 6.0  # if it ends above the floor, but at most
_NEAR_FLOOR = 30.0  # this many floors up. Empirical: errors shared by many outputs reach that, features are larger
_SHARP = 1e4  # ratio of a drop after which all that is near the floor are errors, with structure or without
_SPARE_ROWS, _SPARE_SHARE = 4, 20  # rows needed beyond the rank: 4 or 1 in 20; a square matrix has a small last one
_ROUNDING = 1e-14  # singular values below this share of the largest are rounding
_GRAM, _LARGE = 300, 1500  # size from which on a Gram matrix, several times as fast as the SVD, is tried, and is final
_GRAM_ROUNDING, _GRAM_CLEAR = 1.5e-8, 100.0  # its errors over the rows' norm, √ε; singular values over them if exact
_EIGH = 8.0  # time of eigenvectors of an n × n matrix over that of the Gram matrix of n rows: 5.6 to 7.1 with OpenBLAS
_TALL = 1.5  # rows over size from which on QR comes before the SVD
_ACCEPT, _ACCEPT_LIMITS = 30.0, (1e-6, 0.2)
"""Accepted 1 − F of a member over 1/drop², the squared error of the basis; and limits of it. Empirical."""


@dataclass(frozen=True, eq=False)
class Span:
    """The space that the rows of a stack of packed tensors span, up to their error."""

    basis: Floats
    """(rank, D) orthonormal rows."""
    singular: Floats
    """All singular values, in descending order."""
    clear: bool
    """True if the singular values clearly drop to the floor at `rank`, with enough rows beyond it."""

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def drop(self) -> float:
        """The last singular value of the span over the next one."""
        k = self.rank
        if k == 0 or k >= len(self.singular):
            return 1.0
        return float(self.singular[k - 1] / max(self.singular[k], 1e-16 * self.singular[0]))  # no infinite drop

    @property
    def acceptance(self) -> float:
        """The least F of a vector that counts as a member, given the error of the basis."""
        return 1.0 - float(np.clip(_ACCEPT / self.drop**2, *_ACCEPT_LIMITS))


def span_of(rows: Floats, floor: float) -> Span:
    """Return the span of packed tensors (m, D) whose entries have errors of about `floor`."""
    m, size = rows.shape
    if m == 0:
        return Span(np.empty((0, size)), np.empty(0), False)
    # the largest singular value of an m × D matrix of independent errors
    largest_error = floor * (np.sqrt(m) + np.sqrt(size))
    if size > _GRAM:
        span, error = _span_by_gram(rows, largest_error)
        if size > _LARGE or (span.clear and span.rank > 0 and span.singular[span.rank - 1] > _GRAM_CLEAR * error):
            return span
    whole = np.asarray(np.linalg.qr(rows, mode="r"), np.float64) if m > _TALL * size else rows
    _, singular, right = svd(whole, full_matrices=False, check_finite=False)
    rank, clear = numerical_rank(singular, largest_error, m)
    return Span(np.ascontiguousarray(right[:rank]), singular, clear)


def _span_by_gram(rows: Floats, largest_error: float) -> tuple[Span, float]:
    """Return the span by the eigenvectors of a Gram matrix, and the error of its singular values.

    Nothing can interrupt these, so that they are only begun where the time limit leaves time for them.
    """
    m, size = rows.shape
    start = time.perf_counter()
    gram = rows.T @ rows if m >= size else rows @ rows.T
    check_time(_EIGH * (time.perf_counter() - start) * len(gram) / max(m, size))
    power, left = eigh(gram, overwrite_a=True, check_finite=False)
    singular, left = np.sqrt(np.maximum(power[::-1], 0.0)), left[:, ::-1]
    error = _GRAM_ROUNDING * float(np.linalg.norm(rows))
    rank, clear = numerical_rank(singular, max(largest_error, error), m)
    basis = left[:, :rank].T if m >= size else (left[:, :rank].T @ rows) / singular[:rank, None]
    return Span(np.ascontiguousarray(basis), singular, clear), error


def numerical_rank(singular: Floats, floor: float, rows: int) -> tuple[int, bool]:
    """Return the number of singular values before their drop, and whether there is a clear drop.

    `floor` is the largest singular value that errors alone would produce. A drop must cross the floor or end not far
    above it, and there must be a few rows more than the rank. Of several drops the first sharp one counts, else the
    last: below a sharp one are errors, and those of difference quotients may drop again.
    """
    count = len(singular)
    if count == 0 or singular[0] <= floor:
        return 0, True
    most = min(rows - max(_SPARE_ROWS, rows // _SPARE_SHARE), count - 1)
    ratio = singular[:-1] / np.maximum(singular[1:], _ROUNDING * singular[0])
    ratio[singular[:-1] < floor] = 0.0
    ratio[max(most, 0) :] = 0.0
    across, near = singular[1:] <= floor, singular[1:] <= _NEAR_FLOOR * floor
    drops = np.flatnonzero(((ratio >= _DROP) & across) | ((ratio >= _DROP_ABOVE_FLOOR) & near))
    if len(drops):  # the last: one direction too many does no harm, one too few loses a feature
        sharp = drops[ratio[drops] >= _SHARP]
        return int(sharp[0] if len(sharp) else drops[-1]) + 1, True
    return int(np.sum(singular > floor)), False


def describe_drop(span: Span) -> str:
    """Describe where the singular values drop, for the note."""
    s, k = span.singular, span.rank
    if k == 0:
        return f"no curvature: the largest singular value, {s[0]:.1e}, is within the error"
    if k >= len(s):
        return f"no drop in {len(s)} singular values"
    return f"singular values {'drop' if span.clear else 'hardly drop'} after {k} ({s[k - 1]:.1e} to {s[k]:.1e})"
