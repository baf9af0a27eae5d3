"""Blocks of rows answered side by side by any `concurrent.futures.Executor`.

What travels: the rows of a block out, their answers back, and the function. A small function goes with every
block. A large one (a network with its weights) goes to a worker once: a block names it, and a worker that does
not know the name says so and gets the block again together with the function.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from ..errors import OracleFailed, RidgescopeError
from ..geometry import Floats

Ask = Callable[[Floats], Any]

SMALL = 2**16
"""Bytes up to which a function goes with every block."""
_AHEAD = 128
"""Blocks that are on their way at the same time."""
_REMEMBERED = 4
"""Functions that a worker keeps."""
_known: OrderedDict[str, Ask] = OrderedDict()
_lock = threading.Lock()
_numbers = itertools.count()


class Portable:
    """A function that turns itself into bytes once, however often it is sent."""

    def __init__(self, function: Ask) -> None:
        self.function = function

    def __call__(self, rows: Floats) -> Any:
        return self.function(rows)

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function}

    @cached_property
    def packed(self) -> bytes | None:
        """None where only the executor itself may know how to send it."""
        try:
            packed = pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL)
            if b"__main__" not in packed:
                return packed
        except Exception:  # whatever an object's own __reduce__ raises
            pass
        try:
            return bytes(import_module("cloudpickle").dumps(self))
        except Exception:
            return None


@dataclass(frozen=True)
class _NeverSeen:
    """A worker's answer to a block whose function it does not know."""

    name: str


def side_by_side(ask: Portable, pieces: list[Floats], executor: Executor) -> Iterator[Any]:
    """ask(rows) for each piece, in order."""
    send = _sender(ask, executor)
    waiting: deque[tuple[Floats, Future[Any]]] = deque()
    rest, told = iter(pieces), False
    try:
        while True:
            waiting.extend((rows, send(rows, False)) for rows in itertools.islice(rest, _AHEAD - len(waiting)))
            if not waiting:
                return
            rows, future = waiting.popleft()
            answer = _result(future)
            if isinstance(answer, _NeverSeen) and told:  # by now its worker, or another, may know
                answer = _result(send(rows, False))
            if isinstance(answer, _NeverSeen):
                answer, told = _result(send(rows, True)), True
            yield answer
    finally:
        for _, future in waiting:
            future.cancel()


def _sender(ask: Portable, executor: Executor) -> Callable[[Floats, bool], Future[Any]]:
    """Submit one block; the second argument says that the worker has never seen the function."""
    packed = None if isinstance(executor, ThreadPoolExecutor) else ask.packed
    if packed is None or len(packed) <= SMALL:
        # the number makes equal blocks different tasks: a scheduler may answer equal tasks once, noise or not
        return lambda rows, _: _submitted(executor, _here, ask, rows, next(_numbers))
    name = hashlib.sha256(packed).hexdigest()
    return lambda rows, unseen: _submitted(executor, _there, name, packed if unseen else None, rows, next(_numbers))


def _here(ask: Ask, rows: Floats, number: int) -> Any:
    return ask(rows)


def _there(name: str, packed: bytes | None, rows: Floats, number: int) -> Any:
    with _lock:
        ask = _known.pop(name, None)
        if ask is None and packed is not None:
            ask = pickle.loads(packed)
        if ask is not None:
            _known[name] = ask
        while len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    return _NeverSeen(name) if ask is None else ask(rows)


def _submitted(executor: Executor, *task: Any) -> Future[Any]:
    try:
        return executor.submit(*task)
    except RidgescopeError:
        raise
    except Exception as problem:
        raise _lost(problem) from problem


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except RidgescopeError:
        raise
    except Exception as problem:
        raise _lost(problem) from problem


def _lost(problem: Exception) -> OracleFailed:
    return OracleFailed(
        f"the workers did not answer ({type(problem).__name__}: {problem}). If one was killed, start the run again, "
        "with ledger=… so that nothing is asked twice; if the function cannot be sent to another process, define it "
        "at the top of a module that the workers can import, or use threads."
    )
