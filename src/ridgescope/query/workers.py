"""Blocks of rows answered side by side by any `concurrent.futures.Executor`.

What travels: the rows of a block out, or their recipe where they have one; their answers back, or what a second
function, a reduction, makes of them; and the functions. A function goes to a worker about once: a small one with the
blocks of the first question, a large one (a network with its weights) and a reduction when they are missed. After that
a block names it, and a worker that does not know the name says so and gets the block again together with the function.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import pickle
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from ..errors import OracleFailed, RidgescopeError
from ..geometry import Floats
from .recipe import Recipe, Told

Ask = Callable[[Floats], Any]
Then = Callable[[Floats, Any], Any]
"""What is done with rows and their answers, where they are."""

SMALL = 2**16
"""Bytes up to which a function goes with every task of the first question."""
_TINY = 2**9
"""Bytes up to which it goes with every task there is."""
_AHEAD = 128
"""Tasks that are on their way at the same time."""
_WORTH, _TASKS = 0.05, 4
"""Seconds that a task should take, so that a scheduler's few milliseconds do not count; and the least number of
tasks that a question is cut into."""
_REMEMBERED = 4
"""Functions that a worker keeps."""
_known: OrderedDict[str, Portable] = OrderedDict()
_lock = threading.Lock()
_numbers = itertools.count()


class Portable:
    """A function that turns itself into bytes once, however often it is sent."""

    def __init__(self, function: Ask | Then) -> None:
        self.function: Callable[..., Any] = function
        self.seconds_per_row: float | None = None
        """What the last task took; decides how much goes into one, and nothing else."""
        self.introduced: int | None = None
        """Which executor's workers it was sent to last."""

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function, "seconds_per_row": None, "introduced": None}

    @cached_property
    def name(self) -> str | None:
        """What a task calls it by; None where it goes with every task."""
        packed = self.packed
        return None if packed is None or len(packed) <= _TINY else hashlib.sha256(packed).hexdigest()

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


@dataclass(frozen=True, eq=False)
class Piece:
    """A block of rows and, where there is one, the recipe that makes them."""

    rows: Floats
    recipe: Recipe | None = None

    def told(self) -> Floats | Told:
        """In as few bytes as can be."""
        return self.rows if self.recipe is None else Told.of(self.recipe, self.rows)


Task = list[Floats | Told]


@dataclass(frozen=True)
class _Otherwise:
    """A worker's answer to recipes that make other rows there."""


@dataclass(frozen=True)
class _NeverSeen:
    """A worker's answer to blocks with functions that it does not know."""

    names: frozenset[str]


@dataclass(frozen=True)
class _Done:
    """A worker's answers, as many as there are before a problem, and the time they took."""

    answers: list[Any]
    problem: RidgescopeError | None
    seconds: float


def side_by_side(ask: Portable, pieces: list[Piece], executor: Executor, then: Portable | None = None) -> Iterator[Any]:
    """ask(rows) for each piece, in order; where there is a `then`, then(rows, ask(rows))."""
    functions = (ask,) if then is None else (ask, then)
    send = _sender(functions, executor)
    waiting: deque[tuple[list[Piece], Future[Any]]] = deque()
    threads = isinstance(executor, ThreadPoolExecutor)
    along = not threads and ask.introduced != id(executor) and len(ask.packed or b"") <= SMALL
    first = frozenset([ask.name] if along and ask.name is not None else [])
    rest, told = iter(_tasks(pieces, ask.seconds_per_row)), frozenset[str]()
    try:
        while True:
            waiting.extend((task, send(task, first, True)) for task in itertools.islice(rest, _AHEAD - len(waiting)))
            if not waiting:
                return
            task, future = waiting.popleft()
            unseen, recipes, knows = first, True, told
            while not isinstance(done := _result(future), _Done):
                if isinstance(done, _Otherwise):
                    recipes = False
                elif knows & done.names:  # by now its worker, or another, may know
                    knows -= done.names
                else:
                    unseen, told = unseen | done.names, told | done.names
                future = send(task, unseen, recipes)
                if unseen:  # others that came too early go again side by side, not one after the other
                    waiting = deque((t, send(t, frozenset(), True) if _missed(f) else f) for t, f in waiting)
            ask.introduced = id(executor)
            yield from done.answers
            if done.problem is not None:
                raise done.problem
            ask.seconds_per_row = done.seconds / sum(len(piece.rows) for piece in task)
    finally:
        for _, future in waiting:
            future.cancel()


def _missed(future: Future[Any]) -> bool:
    """Has its worker already said that it does not know the function?"""
    answered = future.done() and not future.cancelled() and future.exception() is None
    return answered and isinstance(future.result(), _NeverSeen)


def _tasks(pieces: list[Piece], seconds_per_row: float | None) -> list[list[Piece]]:
    """Neighbouring blocks put together, so that a task is worth sending; each is still asked on its own."""
    if seconds_per_row is None:
        return [[piece] for piece in pieces]
    whole = seconds_per_row * sum(len(piece.rows) for piece in pieces)
    count = min(len(pieces), max(_TASKS, math.ceil(whole / _WORTH)))
    ends = [len(pieces) * (i + 1) // count for i in range(count)]
    return [pieces[a:b] for a, b in itertools.pairwise([0, *ends])]


def _sender(
    functions: tuple[Portable, ...], executor: Executor
) -> Callable[[list[Piece], frozenset[str], bool], Future[Any]]:
    """Submit one task; a worker may have to be sent functions, and may be told recipes for rows."""
    here = isinstance(executor, ThreadPoolExecutor)
    called = tuple(function if here else function.name or function for function in functions)
    packed = {} if here else {function.name: function.packed for function in functions}

    def send(task: list[Piece], unseen: frozenset[str], recipes: bool) -> Future[Any]:
        blocks = [piece.told() if recipes and not here else piece.rows for piece in task]
        # the number makes equal blocks different tasks: a scheduler may answer equal tasks once, noise or not
        return _submitted(executor, _worked, called, {name: packed[name] for name in unseen}, blocks, next(_numbers))

    return send


def _worked(
    called: tuple[str | Portable, ...], packed: dict[str, bytes], task: Task, number: int
) -> _Done | _NeverSeen | _Otherwise:
    """One task, at the worker."""
    functions = {one: _recalled(one, packed) if isinstance(one, str) else one for one in called}
    missing = frozenset(name for name, there in functions.items() if isinstance(name, str) and there is None)
    if missing:
        return _NeverSeen(missing)
    blocks = [rows for told in task if (rows := told.rows() if isinstance(told, Told) else told) is not None]
    if len(blocks) < len(task):
        return _Otherwise()  # before anything is asked
    return _answered(blocks, *(there for there in functions.values() if there is not None))


def _answered(blocks: list[Floats], ask: Ask, then: Then | None = None) -> _Done:
    answers: list[Any] = []
    start = time.perf_counter()
    try:
        for rows in blocks:
            answer = ask(rows)
            answers.append(answer if then is None else then(rows, answer))
    except RidgescopeError as problem:
        return _Done(answers, problem, 0.0)  # what was answered before a problem counts
    return _Done(answers, None, time.perf_counter() - start)


def _recalled(name: str, packed: dict[str, bytes]) -> Portable | None:
    with _lock:
        function = _known.pop(name, None)
        if function is None and name in packed:
            function = pickle.loads(packed[name])
        if function is not None:
            _known[name] = function
        while len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    return function


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
