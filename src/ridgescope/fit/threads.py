"""Large sums on all cores, with the same bits on any number of them.

A threaded BLAS splits a product differently for every number of threads, which changes the last bits, and a fit that
iterates to the last digits then ends elsewhere. So BLAS gets one thread here, and the work is split by a rule that
depends on sizes only: tiles of a matrix or strips of points, each computed by one thread, whose partial sums are added
in their order. The number of threads changes only the time.

    C += AᵀB         tile by tile
    AᵀB              tile by tile or, if the product is small, strip by strip of the rows that are summed over
    A = L Lᵀ         column by column of tiles:  L_jj = chol(A_jj),  L_ij = A_ij L_jj⁻ᵀ,  A_ik −= L_ij L_kjᵀ
    L Y = B          by columns of B, down the tiles of L
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count as counter
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from threadpoolctl import ThreadpoolController

from ..geometry import Floats

TILE = 512
"""Rows and columns of a tile: large enough for BLAS to run at full speed, small enough to share among cores."""
_LEAST_TILE = 128  # of a product that would otherwise have too few tiles to share
_LEAST_PANEL = 192  # columns of a factor that are factored at once: as quick as larger ones, with more to share
_SHARES = 8  # tiles or strips that a sum is split into if it is large enough: several for each core, to even out
_STRIP = 2**14  # least numbers that a strip handles: some ten microseconds, as long as it takes to wake a thread
_CACHED = 2**18  # numbers, 2 MB, that stay in a processor's cache
_MIN_ROWS = 64  # least rows of such a portion, however wide
_NAME = "ridgescope-fit"
_within = threading.local()  # whether this thread is computing an item of `parallel_map`
Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count(), thread_name_prefix=_NAME)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # no thread survives a fork


@cache
def count() -> int:
    """Return the number of threads to use: OMP_NUM_THREADS if it is set, else the cores that this process may use."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(stated)) if stated.isdigit() else available


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread within this block; also works as a decorator."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


def parallel_map(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return `work` of every item, in their order, computed on all threads; calls must not depend on each other.

    The calling thread takes its share, so that it need not be woken again, and the others take what it has not begun.
    """
    items = list(items)
    helpers = min(count(), len(items)) - 1
    if helpers < 1 or getattr(_within, "item", False):
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    following = counter()  # its `next` is atomic

    def share() -> None:
        _within.item = True
        try:
            while (k := next(following)) < len(items):
                results[k] = work(items[k])
        except BaseException:
            while next(following) < len(items):
                pass  # nobody will read what the others have not begun
            raise
        finally:
            _within.item = False

    others = [_pool().submit(share) for _ in range(helpers)]
    try:
        share()
    finally:
        begun = [other for other in others if not other.cancel()]
        failures = [other.exception() for other in begun]
    for failure in failures:
        if failure is not None:
            raise failure
    return [results[k] for k in range(len(items))]


def portions(count: int, size: int) -> list[slice]:
    """Return slices of 0 … count, each of `size` but the last."""
    return [slice(a, min(a + size, count)) for a in range(0, count, size)]


def strips(count: int, width: int) -> list[slice]:
    """Return slices of `count` rows of `width` numbers each, for a few shares of work that is large enough to share."""
    return portions(count, max(1, -(-count // _SHARES), _STRIP // max(width, 1)))


def cached(rows: slice, width: int) -> list[slice]:
    """Split rows of `width` numbers each into portions that stay in a processor's cache."""
    cuts = portions(rows.stop - rows.start, max(_MIN_ROWS, _CACHED // max(width, 1)))
    return [slice(rows.start + c.start, rows.start + c.stop) for c in cuts]


def summed(work: Callable[[slice], Any], rows: list[slice]) -> Any:
    """Return the sum over strips of what `work` returns for them, added in their order."""
    first, *others = parallel_map(work, rows)
    for other in others:
        first += other
    return first


def inner(A: Floats, B: Floats) -> Floats:
    """Return AᵀB (N, q) for A (m, N) and B (m, q)."""
    N, q = A.shape[1], B.shape[1]
    size = TILE
    while -(-N // size) * -(-q // size) < _SHARES and size > _LEAST_TILE:
        size //= 2
    if max(N, q) <= size or not len(A):
        rows = strips(len(A), N + q) or [slice(0, 0)]
        return np.asarray(summed(lambda r: A[r].T @ B[r], rows))
    out = np.empty((N, q))

    def tile(at: tuple[slice, slice]) -> None:
        i, j = at
        np.matmul(A[:, i].T, B[:, j], out=out[i, j])

    parallel_map(tile, product(portions(N, size), portions(q, size)))
    return out


def outer(A: Floats, B: Floats) -> Floats:
    """Return AB (m, q) for A (m, N) and B (N, q)."""
    out = np.empty((len(A), B.shape[1]))

    def strip(rows: slice) -> None:
        np.matmul(A[rows], B, out=out[rows])

    parallel_map(strip, strips(len(A), A.shape[1] + B.shape[1]))
    return out


def gram(A: Floats) -> Floats:
    """Return AᵀA (N, N)."""
    if A.shape[1] <= TILE:
        return np.asarray(summed(lambda r: A[r].T @ A[r], strips(len(A), A.shape[1]) or [slice(0, 0)]))
    out = np.zeros((A.shape[1], A.shape[1]))
    add_gram(out, A)
    return symmetric(out)


def symmetric(C: Floats) -> Floats:
    """Copy the tiles below the diagonal, those of `add_gram`, to above it; return C."""
    for i, j in lower_tiles(len(C)):
        if i != j:
            C[j, i] = C[i, j].T
    return C


def lower_tiles(size: int) -> list[tuple[slice, slice]]:
    """Return the tiles (rows, columns) on and below the diagonal of a square matrix, several for each core."""
    tile = TILE
    while (cuts := -(-size // tile)) * (cuts + 1) // 2 < _SHARES and tile > _LEAST_TILE:
        tile //= 2
    sides = portions(size, tile)
    return [(i, j) for a, i in enumerate(sides) for j in sides[: a + 1]]


def add_gram(C: NDArray[Any], A: NDArray[Any]) -> None:
    """Add AᵀA to C, in the tiles on and below the diagonal."""
    _add_tiles(C, A, A, lower_tiles(len(C)))


def add_product(C: NDArray[Any], A: NDArray[Any], B: NDArray[Any]) -> None:
    """Add AᵀB to C."""
    _add_tiles(C, A, B, product(_cuts(C.shape[0]), _cuts(C.shape[1])))


def _add_tiles(C: NDArray[Any], A: NDArray[Any], B: NDArray[Any], tiles: Iterable[tuple[slice, slice]]) -> None:
    """Add AᵀB to the given tiles of C."""

    def tile(at: tuple[slice, slice]) -> None:
        i, j = at
        C[i, j] += A[:, i].T @ B[:, j]

    parallel_map(tile, tiles)


def cholesky(A: Floats) -> Floats:
    """Return L with LLᵀ = A, of which only the lower triangle is read; A is overwritten. Raises LinAlgError."""
    cuts = portions(len(A), min(TILE, max(_LEAST_PANEL, len(A) // _SHARES)))
    for j in cuts[:1]:
        A[j, j] = np.linalg.cholesky(A[j, j])
    for a, j in enumerate(cuts):
        below = cuts[a + 1 :]
        own = A[j, j].copy()

        def divide(i: slice, j: slice = j, own: Floats = own) -> None:
            A[i, j] = solve_triangular(own, A[i, j].T, lower=True, check_finite=False).T

        def subtract(at: tuple[slice, slice], j: slice = j, following: list[slice] = below[:1]) -> None:
            i, k = at
            A[i, k] -= A[i, j] @ A[k, j].T
            if [i, k] == 2 * following:  # the next panel's own block, factored while the others are subtracted
                A[i, i] = np.linalg.cholesky(A[i, i])

        parallel_map(divide, below)
        parallel_map(subtract, [(i, k) for b, i in enumerate(below) for k in below[: b + 1]])
        A[j, j.stop :] = 0.0
    return A


def solve_lower(L: Floats, B: Floats) -> Floats:
    """Return Y (N, q) with LY = B."""
    Y = np.array(B, dtype=np.float64, order="C")
    rows = _cuts(len(L))

    def panel(columns: slice) -> None:
        for i in rows:
            right = Y[i, columns] - L[i, : i.start] @ Y[: i.start, columns]
            Y[i, columns] = solve_triangular(L[i, i], right, lower=True, check_finite=False)

    parallel_map(panel, _cuts(Y.shape[1]))
    return Y


def _cuts(size: int) -> list[slice]:
    """Return the slices of the tiles along one axis."""
    return portions(size, TILE)
