"""The time limit of a run.

`time_limit` sets it for everything that runs inside; long computations call `check_time` once for each step, so that a
run ends within one step of its limit. The limit belongs to the running context (a `ContextVar`), so that runs in other
threads have their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import RidgescopeError

_end: ContextVar[float] = ContextVar("end of the time limit, in seconds of the monotonic clock", default=float("inf"))


class OutOfTime(RidgescopeError):
    """The time limit has passed; `extract` turns this into `StopReason.TIME`."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Let `check_time` raise OutOfTime after so many seconds; None: no limit but that of an outer run."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    token = _end.set(min(end, _end.get()))
    try:
        yield
    finally:
        _end.reset(token)


def check_time() -> None:
    """Raise OutOfTime where the time limit has passed."""
    if time.monotonic() > _end.get():
        raise OutOfTime("the time limit has passed")
