"""Large sums on all cores, with the same bits on any number of them.

A threaded BLAS splits a product differently for every number of threads, which changes the last bits, and a fit that
iterates to the last digits then ends elsewhere. So BLAS gets one thread here, and the work is split by a rule that
depends on sizes only: tiles of a matrix, each computed by one thread. The number of threads changes only the time.

    C += AᵀB         tile by tile
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
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from threadpoolctl import ThreadpoolController

from ..geometry import Floats

TILE = 512
"""Rows and columns of a tile: large enough for BLAS to run at full speed, small enough to share among cores."""
_NAME = "ridgescope-fit"
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
    """Return `work` of every item, in their order, computed on all threads; calls must not depend on each other."""
    items = list(items)
    if count() == 1 or len(items) < 2 or threading.current_thread().name.startswith(_NAME):
        return [work(item) for item in items]
    return list(_pool().map(work, items))


def portions(count: int, size: int) -> list[slice]:
    """Return slices of 0 … count, each of `size` but the last."""
    return [slice(a, min(a + size, count)) for a in range(0, count, size)]


def add_gram(C: NDArray[Any], A: NDArray[Any]) -> None:
    """Add AᵀA to C, in the tiles on and below the diagonal."""
    cuts = _cuts(len(C))
    _add_tiles(C, A, A, [(i, j) for a, i in enumerate(cuts) for j in cuts[: a + 1]])


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
    cuts = _cuts(len(A))
    for a, j in enumerate(cuts):
        A[j, j] = np.linalg.cholesky(A[j, j])
        below = cuts[a + 1 :]
        own = A[j, j].copy()

        def divide(i: slice, j: slice = j, own: Floats = own) -> None:
            A[i, j] = solve_triangular(own, A[i, j].T, lower=True, check_finite=False).T

        def subtract(at: tuple[slice, slice], j: slice = j) -> None:
            i, k = at
            A[i, k] -= A[i, j] @ A[k, j].T

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
