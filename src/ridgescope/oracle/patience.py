"""When to ask again: a rate that is kept, a server that asked for a pause, a header that says how long."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


class Pace:
    """Turns that are handed out no closer together than 1/rate seconds, to any number of threads."""

    def __init__(
        self,
        rate: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.gap = 0.0 if rate is None else 1.0 / rate
        self._clock, self._sleep = clock, sleep
        self._next = -math.inf
        self._lock = threading.Lock()

    def turn(self) -> None:
        """Wait for one's turn."""
        with self._lock:
            now = self._clock()
            mine = max(now, self._next)
            self._next = mine + self.gap
        if mine > now:
            self._sleep(mine - now)

    def hold(self, seconds: float) -> None:
        """Nobody's turn comes within the next `seconds`."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)


def seconds_to_wait(header: str | None, now: datetime | None = None) -> float | None:
    """What Retry-After says, in seconds from now; None where it says nothing that can be understood."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())
