"""The time limit of a run, and the limit on its arithmetic.

`time_limit` sets the first for everything that runs inside; long computations call `check_time` once for each step, so
that a run ends within one step of its limit. The limits belong to the running context (a `ContextVar`), so that runs in
other threads have their own.

A limit on time makes a result depend on the machine. Where a run bounds its own effort it therefore counts arithmetic:
the large sums over points call `spend` with their multiplications, and end the run, at the same step on any machine,
once the limit that `limit_work` has set is used up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import RidgescopeError

_end: ContextVar[float] = ContextVar("end of the time limit, in seconds of the monotonic clock", default=float("inf"))


_work: ContextVar[list[float] | None] = ContextVar("multiplications that are left, in a list of one", default=None)


class OutOfTime(RidgescopeError):
    """The time limit has passed; `extract` turns this into `StopReason.TIME`."""


class OutOfWork(RidgescopeError):
    """The limit on arithmetic is used up; `extract` turns this into `StopReason.TOLERANCE_NOT_MET`."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Let `check_time` raise OutOfTime after so many seconds; None: no limit but that of an outer run."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    token = _end.set(min(end, _end.get()))
    try:
        yield
    finally:
        _end.reset(token)


def time_left() -> float:
    """Return the seconds until the time limit passes; infinite without one, negative afterwards."""
    return _end.get() - time.monotonic()


def check_time(ahead: float = 0.0) -> None:
    """Raise OutOfTime where the time limit has passed, or will have passed in so many seconds.

    A step that nothing can interrupt says what it takes before it begins.
    """
    if time_left() < ahead:
        raise OutOfTime("the time limit has passed" if ahead <= 0.0 else "the time limit ends before the next step")


@contextmanager
def counted_work() -> Iterator[None]:
    """Count arithmetic inside, without a limit until `limit_work` sets one."""
    token = _work.set([float("inf")])
    try:
        yield
    finally:
        _work.reset(token)


def limit_work(multiplications: float) -> None:
    """Let `spend` raise OutOfWork after so many more multiplications; without effect outside `counted_work`."""
    left = _work.get()
    if left is not None:
        left[0] = multiplications


def spend(multiplications: float) -> None:
    """Count so many multiplications; raise OutOfWork where the limit is used up, OutOfTime where the time limit is."""
    check_time()
    left = _work.get()
    if left is not None:
        left[0] -= multiplications
        if left[0] < 0.0:
            raise OutOfWork("the limit on arithmetic is used up")
