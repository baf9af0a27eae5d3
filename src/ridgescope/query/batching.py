"""Rows cut into blocks, answered by the ledger, by workers, or here; the cut depends on the question alone.

However many workers there are, the function sees the same blocks, and the answers are checked here, in order:
the same bits come out, and a ledger written with two workers serves a run with none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from .ledger import Ledger
from .recipe import Recipe
from .workers import Piece, Portable, side_by_side

Kind = Literal["value", "gradient"]
Part = TypeVar("Part")
MEMORY = 256 * 2**20
"""Bytes that one block may take, its copies inside the function included."""
_MOST = 2**11
_LEAST = 64
_PARTS = 16
"""A question of up to `_MOST` rows is cut into up to so many blocks, none much smaller than `_LEAST`, so that
several workers have something to do."""
_PATIENCE = 1.0
"""Seconds after which answers are stored though the question is not answered completely."""


def batch_size(dim: int, outputs: int = 1) -> int:
    """Most rows per block, such that rows, answers and a few temporaries of either stay within `MEMORY`."""
    return max(1, min(_MOST, MEMORY // (8 * 6 * (dim + outputs))))


def block_size(count: int, most: int) -> int:
    """Rows per block for a question of `count` rows: a number of equal blocks that is a power of two."""
    parts = 1
    while count > _LEAST * parts and parts < _PARTS:
        parts *= 2
    return min(most, -(-count // parts))


def grouped(size: int, group: int, most: int) -> int:
    """`size` rows per block made whole groups; 0 where not even one is within `most`."""
    return min(-(-size // group), most // group) * group


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
    ledger: Ledger | None = None,
    kind: Kind = "value",
    recipe: Recipe | None = None,
) -> Floats:
    """`check(rows, ask(rows))` for the blocks of X, stacked in order; `recipe`, where there is one, makes X.

    With an executor, the calls of `ask` run side by side; `check` always runs here and in order, so that
    what it remembers is the same with any number of workers, in this process or in others. Where the ledger has
    the answer `ask` is not called; where it has not, the answer is stored once `check` has let it pass.
    """
    pieces = _pieces(X, batch, executor, recipe)
    if ledger is None:
        got = zip(pieces, _answers(ask, pieces, executor), strict=True)
        checked = [check(piece.rows, answer) for piece, answer in got]
    else:
        checked = _recorded(partial(_answers, ask, executor=executor), check, pieces, ledger, kind)
    return checked[0] if len(checked) == 1 else np.concatenate(checked)


def reduce_in_batches(
    ask: Callable[[Floats], Any],
    then: Portable,
    note: Callable[[Any], Part],
    X: Floats,
    batch: int,
    executor: Executor | None = None,
    ledger: Ledger | None = None,
    recipe: Recipe | None = None,
) -> list[Part]:
    """`note(then(rows, ask(rows)))` for the blocks of X: as `ask_in_batches`, with `then` run where the answers are.

    A ledger must have the answers themselves: with one they come here whole, and `then` sees the same blocks here.
    """
    pieces = _pieces(X, batch, executor, recipe)
    if ledger is None:
        return [note(part) for part in _answers(ask, pieces, executor, then)]
    answers = partial(_answers, ask, executor=executor)
    return _recorded(answers, lambda rows, answer: note(then(rows, answer)), pieces, ledger, "value")


def _pieces(X: Floats, batch: int, executor: Executor | None, recipe: Recipe | None) -> list[Piece]:
    told = recipe if executor is not None else None  # nothing travels within a process
    return [Piece(X[c], told.part(c.start, c.stop) if told is not None else None) for c in cuts(len(X), batch)]


def _answers(
    ask: Callable[[Floats], Any], pieces: list[Piece], executor: Executor | None, then: Portable | None = None
) -> Iterator[Any]:
    if executor is None or len(pieces) < 2:
        answers = ((piece.rows, ask(piece.rows)) for piece in pieces)
        return (answer if then is None else then(rows, answer) for rows, answer in answers)
    return side_by_side(ask if isinstance(ask, Portable) else Portable(ask), pieces, executor, then)


def _recorded(
    answers: Callable[[list[Piece]], Iterator[Any]],
    check: Callable[[Floats, Any], Part],
    pieces: list[Piece],
    ledger: Ledger,
    kind: Kind,
) -> list[Part]:
    keys = [ledger.key(kind, piece.rows) for piece in pieces]
    stored = [key in ledger for key in keys]
    bought = answers([piece for piece, there in zip(pieces, stored, strict=True) if not there])
    checked, since = [], time.monotonic()
    try:
        for piece, key, there in zip(pieces, keys, stored, strict=True):
            answer = ledger.get(key) if there else next(bought)
            checked.append(check(piece.rows, answer))
            if not there:
                ledger.put(key, kind, piece.rows, _numbers(answer))
            if time.monotonic() - since > _PATIENCE:
                ledger.commit()
                since = time.monotonic()
    finally:
        ledger.commit()
    return checked


def _numbers(answer: Any) -> NDArray[Any]:
    """An answer that was let pass, as the numbers it is made of."""
    array = np.asarray(answer)
    return array if array.dtype.kind in "fiub" else array.astype(np.float64)
