"""Answering blocks of rows in parallel with any `concurrent.futures.Executor`.

The rows of a block are sent to a worker, and the answers come back. The function itself is sent to each worker about
once: a small one with the blocks of the first call, a large one (a network with its weights) when a worker turns out
not to have it. After that a block only names the function by its hash. A worker that does not know the hash replies
so, and is sent the block again together with the function.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from ..errors import OracleFailed, RidgescopeError
from ..geometry import Floats
from .answers import show_row

Function = Callable[[Floats], Any]
Blocks = list[Floats]

_SMALL = 2**16
"""Largest size in bytes of a function sent with every task of the first call: about the size of a block of rows."""
_TINY = 2**9
"""Largest size in bytes of a function that is sent with every task: little more than its hash would take."""
_MAX_IN_FLIGHT = 128
"""Number of tasks submitted and not yet answered. It bounds memory; more workers than that are not expected."""
_TASK_SECONDS = 0.05
"""Seconds that a task should take, so that the few milliseconds a scheduler needs for it do not matter."""
_MIN_TASKS = 4
"""Smallest number of tasks of a call: cheap blocks are joined, but a few workers still share them."""
_CACHED_FUNCTIONS = 4
"""Functions that a worker keeps: a run has two (values and gradients), and two runs may share the workers."""

_cache: OrderedDict[str, PickledFunction] = OrderedDict()
"""Functions that were sent to this process by hash, the last used at the end."""
_cache_lock = threading.Lock()
_task_numbers = itertools.count()


class PickledFunction:
    """A function that is pickled once, however often it is sent."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.seconds_per_row: float | None = None
        """Seconds per row of the last task; decides only how many blocks go into one task."""
        self.last_executor: int | None = None
        """Id of the executor whose workers were last sent the function."""

    def __call__(self, rows: Floats) -> Any:
        return self.function(rows)

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function, "seconds_per_row": None, "last_executor": None}

    @cached_property
    def name(self) -> str | None:
        """Hash by which tasks name the function; None if the function itself goes with every task."""
        pickled = self.pickled
        return None if pickled is None or len(pickled) <= _TINY else hashlib.sha256(pickled).hexdigest()

    @cached_property
    def pickled(self) -> bytes | None:
        """The function as bytes; None if it can be pickled neither by pickle nor by cloudpickle."""
        try:
            pickled = pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL)
            if b"__main__" not in pickled:  # a worker's __main__ is another module
                return pickled
        except Exception:  # an object's own __reduce__ may raise anything
            pass
        try:
            return bytes(import_module("cloudpickle").dumps(self))
        except Exception:
            return None


def call_function(function: Function, X: Floats) -> Any:
    """Return the function's answer to the rows X (m, d); an error becomes an `OracleFailed` showing the first row."""
    try:
        return function(X.copy())  # the function may change its rows
    except RidgescopeError:
        raise
    except Exception as problem:
        raise OracleFailed(
            f"the function raised {type(problem).__name__}: {problem} when asked {len(X)} rows, "
            f"the first of them {show_row(X[0])}. "
            "If it takes one row at a time, wrap it: rs.oracle.rowwise(f)."
        ) from problem


@dataclass(frozen=True)
class _FunctionMissing:
    """A worker's reply to a task that names a function which it does not have."""


@dataclass(frozen=True)
class _Done:
    """A worker's reply: the answers up to the first error, that error, and the seconds that the task took."""

    answers: list[Any]
    problem: RidgescopeError | None
    seconds: float


def answer_in_parallel(function: PickledFunction, blocks: Blocks, executor: Executor) -> Iterator[Any]:
    """Yield function(rows) for each block in order; an error is raised after the answers before it were yielded."""
    submit = _submitter(function, executor)
    is_new = function.last_executor != id(executor) and not isinstance(executor, ThreadPoolExecutor)
    send_along = is_new and len(function.pickled or b"") <= _SMALL
    waiting: deque[tuple[Blocks, Future[Any]]] = deque()
    tasks, was_sent = iter(_tasks(blocks, function.seconds_per_row)), False
    try:
        while True:
            for task in itertools.islice(tasks, _MAX_IN_FLIGHT - len(waiting)):
                waiting.append((task, submit(task, send_along)))
            if not waiting:
                return
            task, future = waiting.popleft()
            with_function = not was_sent  # otherwise its worker may have received it since this task was sent
            while not isinstance(reply := _result(future), _Done):
                future = submit(task, with_function)
                if with_function:
                    was_sent = True
                    # resubmit the other tasks whose workers lacked the function now, so that they run in parallel
                    waiting = deque((t, submit(t, False) if _lacks_function(f) else f) for t, f in waiting)
                with_function = True
            function.last_executor = id(executor)
            del future  # Dask computes a result again when its worker dies while something still refers to it
            if reply.problem is None:
                function.seconds_per_row = reply.seconds / sum(len(rows) for rows in task)
            yield from reply.answers
            if reply.problem is not None:
                raise reply.problem
    finally:
        for _, future in waiting:
            future.cancel()


def _lacks_function(future: Future[Any]) -> bool:
    """Return whether the worker has already replied that it does not have the function."""
    answered = future.done() and not future.cancelled() and future.exception() is None
    return answered and isinstance(future.result(), _FunctionMissing)


def _tasks(blocks: Blocks, seconds_per_row: float | None) -> list[Blocks]:
    """Return neighbouring blocks joined into tasks worth sending; each block is still one call of the function."""
    if seconds_per_row is None:
        return [[rows] for rows in blocks]
    total = seconds_per_row * sum(len(rows) for rows in blocks)
    count = min(len(blocks), max(_MIN_TASKS, math.ceil(total / _TASK_SECONDS)))
    ends = [len(blocks) * (i + 1) // count for i in range(count)]
    return [blocks[a:b] for a, b in itertools.pairwise([0, *ends])]


def _submitter(function: PickledFunction, executor: Executor) -> Callable[[Blocks, bool], Future[Any]]:
    """Return a function that submits one task, with or without the pickled function in it."""
    name = None if isinstance(executor, ThreadPoolExecutor) else function.name
    pickled = None if name is None else function.pickled

    def submit(task: Blocks, with_function: bool) -> Future[Any]:
        # the number makes equal blocks different tasks: a scheduler may run equal tasks once, which would hide noise
        return _submit(
            executor, _run_task, name or function, pickled if with_function else None, task, next(_task_numbers)
        )

    return submit


def _run_task(
    name: str | PickledFunction, pickled: bytes | None, blocks: Blocks, number: int
) -> _Done | _FunctionMissing:
    """Answer the blocks of one task; runs in the worker."""
    end_with_parent()
    function = _recall(name, pickled) if isinstance(name, str) else name
    if function is None:
        return _FunctionMissing()
    answers: list[Any] = []
    start = time.perf_counter()
    try:
        for rows in blocks:
            answers.append(function(rows))  # noqa: PERF401, answers before an error are returned, too
    except RidgescopeError as problem:
        return _Done(answers, problem, 0.0)
    return _Done(answers, None, time.perf_counter() - start)


@cache
def end_with_parent() -> None:
    """Let this process, if it is a worker that `multiprocessing` started, be killed as soon as its parent has died.

    A worker of a pool waits for its next task for ever, even where nobody is left to send one.
    """
    parent = multiprocessing.parent_process()
    if parent is None or "distributed" in sys.modules:  # Dask sees to its own workers
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    threading.Thread(target=wait, name="ridgescope-parent", daemon=True).start()


def _recall(name: str, pickled: bytes | None) -> PickledFunction | None:
    """Return the function of this hash from the worker's cache, or from `pickled`; None if it is in neither."""
    with _cache_lock:
        function = _cache.pop(name, None)
        if function is None and pickled is not None:
            function = pickle.loads(pickled)
        if function is not None:
            _cache[name] = function
        while len(_cache) > _CACHED_FUNCTIONS:
            _cache.popitem(last=False)
    return function


def _submit(executor: Executor, *task: Any) -> Future[Any]:
    """Submit a task; errors of the executor become `OracleFailed`."""
    try:
        return executor.submit(*task)
    except RidgescopeError:
        raise
    except Exception as problem:
        raise _workers_failed(problem) from problem


def _result(future: Future[Any]) -> Any:
    """Wait for a worker's reply and return it; errors of the executor become `OracleFailed`."""
    try:
        return future.result()
    except RidgescopeError:
        raise
    except Exception as problem:
        raise _workers_failed(problem) from problem


def _workers_failed(problem: Exception) -> OracleFailed:
    """Return the error for an executor that failed."""
    return OracleFailed(
        f"the workers did not answer ({type(problem).__name__}: {problem}). If one was killed, start the run again, "
        "with ledger=… so that nothing is asked twice; if the function cannot be sent to another process, define it "
        "at the top of a module that the workers can import, or use threads."
    )
