"""Requests to one server: connections, pacing, and retries.

A failure that may be temporary, such as an overloaded server, a dropped connection or a truncated answer, is retried
after a growing pause with jitter, or after the time in the server's Retry-After header, until a limit on the total
time. Any other failure ends the run.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..__about__ import __version__
from ..errors import BadAnswer, InvalidInput, OracleFailed
from .answers import check_nesting, parse_json
from .http_secrets import Headers, hide_in_logs, shown

_MAX_ANSWER_BYTES = 2**28
"""A longer answer is refused, which bounds memory; 256 rows of 10⁴ numbers as text take a fifth of it."""
_FIRST_CONTACT_SECONDS = 10.0
"""Seconds for which an address that has never answered is retried: it may be mistyped."""
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 20.0
"""Seconds before the first retry, and the longest pause; pauses grow in between, to at most a tenth of `patience`."""
_SHORTEST_TIMEOUT = 0.01
"""Seconds allowed for a last attempt that starts when hardly any time is left."""
_JITTER = 0.1
"""Share of a requested pause, at most one second, that is added at random so that clients do not return all at once."""
_RETRIED = (408, 429)
"""Status codes below 500 that are retried, too: request timeout, too many requests."""
_SHOWN_BYTES, _SHOWN_FAILURES = 300, 3
"""Length of a server's own message, and number of different failures, in an error message."""
_HEADERS = {
    "User-Agent": f"ridgescope/{__version__}",
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
}
"""Headers of every request; those of the user are added, and take their place where they have the same name."""


class _Temporary(Exception):
    """A failure that may be temporary; `wait` is the pause in seconds that the server asked for, or None."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class HttpClient:
    """The connections to one server, with its headers, its pacing and its retries.

    `timeout` limits one attempt and `patience` all attempts at a request, in seconds; `rate` limits the number of
    requests started per second; `ca` is a file of certificates to trust in place of the system's.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        patience: float = 300.0,
        rate: float | None = None,
        ca: str | Path | None = None,
        connections: int = 4,
    ) -> None:
        _check_address(url)
        for name, value in (("timeout", timeout), ("patience", patience), ("rate", rate)):
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} must be a positive number, not {value!r}")
        if ca is not None and not Path(ca).is_file():
            raise InvalidInput(f"ca must be a file of certificates; there is none at {ca}")
        self.url, self.headers, self.ca, self.connections = url, Headers(headers, url), ca, connections
        self.timeout, self.patience, self.rate = timeout, patience, rate
        self._open()

    def _open(self) -> None:
        """Create the connection pool; also called in another process after unpickling."""
        from .http_network import Deadline, open_pool

        hide_in_logs(self.headers)
        self.pacing, self.has_answered, self.deadline = Pacing(self.rate), False, Deadline()
        try:
            ca = None if self.ca is None else str(self.ca)
            self.pool = open_pool(self.url, ca, self.connections, self.deadline)
        except ssl.SSLError as problem:
            raise InvalidInput(f"ca={self.ca} holds no certificates: {problem}") from None

    def send(self, method: str, address: str, body: Any = None) -> Any:
        """Return the parsed JSON of the server's answer; temporary failures are retried within `patience`."""
        import stamina

        end = time.monotonic() + self.patience
        failures: list[_Temporary] = []
        try:
            for attempt in stamina.retry_context(
                on=self._backoff(end),
                attempts=None,
                timeout=self.patience,
                wait_initial=_FIRST_PAUSE,
                wait_max=self._longest_pause,
            ):
                with attempt:
                    left = max(_SHORTEST_TIMEOUT, end - time.monotonic())
                    try:
                        return self._request(method, address, body, min(self.timeout, left))
                    except _Temporary as problem:
                        failures.append(problem)
                        raise
        except _Temporary:
            reasons = list(dict.fromkeys(str(failure) for failure in failures))[:_SHOWN_FAILURES]
            raise OracleFailed(
                f"{shown(address)} did not answer: {'; '.join(reasons)} (tries: {len(failures)}, "
                f"patience={self.patience:g} s, timeout={self.timeout:g} s). "
                "Check the server, or raise timeout or patience."
            ) from None
        raise AssertionError("unreachable")  # pragma: no cover

    @property
    def _longest_pause(self) -> float:
        """Seconds that a pause between two attempts may have grown to."""
        return min(_MAX_PAUSE, self.patience / 10)

    def _backoff(self, end: float) -> Callable[[Exception], bool | float]:
        """Return a function from an error to whether, or in how many seconds, to retry it before the time `end`."""
        first_contact_end = time.monotonic() + _FIRST_CONTACT_SECONDS
        longest = self._longest_pause
        pauses = (min(longest, _FIRST_PAUSE * 2**n) for n in itertools.count())

        def backoff(problem: Exception) -> bool | float:
            if not isinstance(problem, _Temporary):
                return False
            own_pause = next(pauses)
            if problem.wait is None or problem.wait < own_pause:  # a server that asks for none gets one all the same
                return self.has_answered or time.monotonic() < first_contact_end
            if time.monotonic() + problem.wait > end:
                return False
            self.pacing.pause(problem.wait)
            return problem.wait + random.uniform(0.0, min(1.0, _JITTER * problem.wait))

        return backoff

    def _request(self, method: str, address: str, body: Any, timeout: float) -> Any:
        """Make one attempt within `timeout` seconds in total, and return the parsed JSON."""
        import httpcore

        from .http_network import read_body, stream

        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {**_HEADERS, **self.headers.filled()}
        self.pacing.wait()
        self.deadline.end = time.monotonic() + timeout
        try:
            with stream(self.pool, method, address, headers, content, timeout) as response:
                self.has_answered = True
                text = read_body(response, _MAX_ANSWER_BYTES)
        except httpcore.TimeoutException:
            raise _Temporary(f"no answer within {timeout:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, zlib.error) as problem:
            if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(problem)):
                raise OracleFailed(
                    f"{shown(address)} has a certificate that cannot be verified ({problem}); nothing was sent. "
                    "If your own authority has signed it, pass that authority's certificate with ca=…"
                ) from None
            raise _Temporary(self.headers.hide(f"{type(problem).__name__}: {problem}")) from None
        return self._read(address, response, text)

    def _read(self, address: str, response: Any, text: bytes) -> Any:
        """Return the parsed body of an answer with status 200; raise for any other status."""
        from .http_network import header

        status: int = response.status
        if status == 200:
            check_nesting(text)
            try:
                return parse_json(text)
            except BadAnswer as problem:  # probably truncated on its way
                raise _Temporary(self.headers.hide(str(problem))) from None
        words = self.headers.hide(text[:_SHOWN_BYTES].decode(errors="replace")).strip()
        if status in _RETRIED or status >= 500:
            wait = seconds_to_wait(header(response, "Retry-After"))
            request = f", asking for a pause of {wait:g} s" if wait is not None else ""
            raise _Temporary(f"status {status}{request}: {words}", wait)
        raise OracleFailed(
            f"{shown(address)} answered with status {status}: {words or 'nothing'}. "
            "Check the address, the headers and the names of the fields."
        )

    def __repr__(self) -> str:
        return f"HttpClient(headers={self.headers!r}, timeout={self.timeout:g}, patience={self.patience:g})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("pool", "pacing", "deadline", "has_answered")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __del__(self) -> None:
        with suppress(Exception):
            self.pool.close()


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, the error it was raised from, and so on."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _check_address(url: str) -> None:
    """Raise `InvalidInput` unless the URL is http or https, names a host, and has no user or password in it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"url must look like https://host/path, not {shown(url)!r}")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            f"the address of {parts.hostname} has a user or password in it, which would end up in logs; "
            "pass headers={'Authorization': 'Basic ${MY_VARIABLE}'}"
        )


# -- pacing --------------------------------------------------------------------------------------------------


class Pacing:
    """Spaces requests at least 1/rate seconds apart, across threads; there is no limit if `rate` is None."""

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

    def wait(self) -> None:
        """Sleep until the next request may start, and reserve that moment for the caller."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self.gap
        if start > now:
            self._sleep(start - now)

    def pause(self, seconds: float) -> None:
        """Prevent requests from starting within the next `seconds`."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)


def seconds_to_wait(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds from now that a Retry-After header asks for; None if it is missing or malformed."""
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
