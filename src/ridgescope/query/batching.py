"""Rows cut into batches, asked in order or by an executor; the cut never depends on the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np

from ..geometry import Floats

MEMORY = 256 * 2**20
"""Bytes that one batch may take, its copies inside the function included."""


def batch_size(dim: int, outputs: int = 1) -> int:
    """Rows per batch such that rows, answers and a few temporaries of either stay within `MEMORY`."""
    return max(1, min(2**16, MEMORY // (8 * 6 * (dim + outputs))))


def cuts(count: int, batch: int) -> Iterator[slice]:
    """[0, count) in pieces of `batch`."""
    for start in range(0, count, batch):
        yield slice(start, min(start + batch, count))


def ask_in_batches(
    ask: Callable[[Floats], Any],
    check: Callable[[Floats, Any], Floats],
    X: Floats,
    batch: int,
    executor: Executor | None = None,
) -> Floats:
    """`check(rows, ask(rows))` for the batches of X, stacked in order.

    With an executor, the calls of `ask` run side by side; `check` always runs here and in order, so that
    what it remembers is the same with any number of workers, in this process or in others.
    """
    pieces = [X[c] for c in cuts(len(X), batch)]
    several = len(pieces) > 1
    answers = executor.map(ask, pieces) if executor is not None and several else map(ask, pieces)
    checked = [check(rows, answer) for rows, answer in zip(pieces, answers, strict=True)]
    return checked[0] if len(checked) == 1 else np.concatenate(checked)
