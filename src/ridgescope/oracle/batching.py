"""Cutting rows into blocks, and answering each block from the ledger, by workers, or in this process.

How rows are cut depends on the rows and the function alone. Whatever the number of workers, the function sees the
same blocks, and answers are checked in this process and in order. Results therefore have the same bits with any
executor, and a ledger written with two workers serves a run with none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from .ledger import Ledger
from .workers import PickledFunction, answer_in_parallel

Kind = Literal["value", "gradient"]
Check = Callable[[Floats, Any], Floats]
"""Takes rows (m, d) and what the function returned for them; returns the answers as float64, or raises."""

MEMORY = 256 * 2**20
"""Bytes that one block may take, including its copies inside the function: small beside any machine's memory."""
_COPIES = 6
"""Number of arrays of a block's size that may exist at a time: rows, answers, and two temporaries of each."""
_MAX_ROWS = 2**11
"""Largest number of rows of a block: enough for numpy to run at full speed, and few enough to divide the work among
workers and to lose little if one dies."""
_MIN_ROWS = 64
"""A call with at most this many rows is not cut: sending parts of it to workers would cost more than it saves."""
_MAX_BLOCKS = 16
"""Largest number of blocks for a call of up to 16 × `_MAX_ROWS` rows: work for sixteen workers."""
_COMMIT_SECONDS = 0.1
"""Answers of a cheap function are stored at least this often during a long call: a killed run loses no more."""
_DEAR_SECONDS = 1e-3
"""Seconds per row from which an answer is dear: it is stored and synced before the next block is asked, since a sync
of a few milliseconds costs less than the few rows it protects."""


def batch_size(dim: int, outputs: int = 1) -> int:
    """Return the largest number of rows per block for which rows, answers and temporaries fit into `MEMORY`."""
    return max(1, min(_MAX_ROWS, MEMORY // (8 * _COPIES * (dim + outputs))))


def block_size(count: int, most: int) -> int:
    """Return the rows per block for `count` rows: `count` divided by a power of two, but at most `most`."""
    blocks = 1
    while count > _MIN_ROWS * blocks and blocks < _MAX_BLOCKS:
        blocks *= 2
    return min(most, -(-count // blocks))


def cuts(count: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` rows that cover [0, count) in order; the last may be shorter."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


@dataclass(frozen=True)
class Route:
    """Where answers come from: the ledger if it holds them, otherwise the executor's workers or this process."""

    executor: Executor | None = None
    ledger: Ledger | None = None


def ask_in_batches(
    function: Callable[[Floats], Any], check: Check, X: Floats, size: int, route: Route, kind: Kind = "value"
) -> Floats:
    """Return `check(rows, function(rows))` for the blocks of `size` rows of X (m, d), concatenated in order.

    With an executor the calls of `function` run in parallel. `check` always runs here and in order, so that the state
    it updates does not depend on the number of workers. `function` is not called for a block that the ledger holds;
    any other answer is stored once `check` has accepted it.
    """
    blocks = [X[cut] for cut in cuts(len(X), size)]
    if route.ledger is None:
        answers = _answers(function, blocks, route.executor)
        checked = [check(rows, answer) for rows, answer in zip(blocks, answers, strict=True)]
    else:
        checked = _recorded(function, check, blocks, route.executor, route.ledger, kind)
    return checked[0] if len(checked) == 1 else np.concatenate(checked)


def _answers(function: Callable[[Floats], Any], blocks: list[Floats], executor: Executor | None) -> Iterator[Any]:
    """Yield the function's unchecked answers to the blocks in order, computed in parallel if there is an executor."""
    if executor is None or len(blocks) < 2:
        return (function(rows) for rows in blocks)
    sent = function if isinstance(function, PickledFunction) else PickledFunction(function)
    return answer_in_parallel(sent, blocks, executor)


def _recorded(
    function: Callable[[Floats], Any],
    check: Check,
    blocks: list[Floats],
    executor: Executor | None,
    ledger: Ledger,
    kind: Kind,
) -> list[Floats]:
    """Return the checked answers of the blocks; those that the ledger does not hold are asked and stored."""
    keys = [ledger.key(kind, rows) for rows in blocks]
    stored = [key in ledger for key in keys]
    asked = _answers(function, [rows for rows, known in zip(blocks, stored, strict=True) if not known], executor)
    checked, last_commit, is_dear = [], time.monotonic(), False
    try:
        for rows, key, known in zip(blocks, keys, stored, strict=True):
            begun = time.monotonic()
            answer: Any = ledger.get(key) if known else next(asked)
            now = time.monotonic()
            checked.append(check(rows, answer))
            if known and kind == "value":
                ledger.verify_block(key, rows, answer, function)
            if not known:
                ledger.put(key, kind, rows, _as_numbers(answer))
                is_dear = max(now - begun, _worker_seconds(function, executor) * len(rows)) >= _DEAR_SECONDS * len(rows)
            if is_dear or now - last_commit > _COMMIT_SECONDS:
                ledger.commit(durable=is_dear)
                last_commit = now
    finally:
        ledger.commit(durable=is_dear)
    return checked


def _worker_seconds(function: Callable[[Floats], Any], executor: Executor | None) -> float:
    """Return the seconds per row that workers took for the last task; 0 without workers or before the first."""
    known = function.seconds_per_row if executor is not None and isinstance(function, PickledFunction) else None
    return known or 0.0


def _as_numbers(answer: Any) -> NDArray[Any]:
    """Return an accepted answer as an array of real numbers; anything else than a real type becomes float64."""
    array = np.asarray(answer)
    return array if array.dtype.kind in "fiub" else array.astype(np.float64)
