"""The way to one server: connections, secrets, pace, and what is asked again.

What may pass, such as an overloaded server, a dropped connection or half an answer, is asked again, after a growing
pause with jitter or as long as Retry-After says, until a limit on the total time. What will not pass ends the run.
"""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import BadAnswer, InvalidInput, OracleFailed
from .headers import Headers
from .patience import Pace, seconds_to_wait
from .wire import parsed

_LARGEST = 2**28
"""Bytes of an answer; more is no answer."""
_UNSEEN = 10.0
"""Seconds of patience with an address where nobody has ever answered: it may be mistyped."""


class _Passing(Exception):
    """A failure that may pass; `wait` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class Door:
    """The way to one server: its connections, secrets, pace and patience."""

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
        self.headers, self.ca, self.connections = Headers(headers), ca, connections
        self.timeout, self.patience, self.rate = timeout, patience, rate
        self._open()

    def _open(self) -> None:
        import httpx

        self.pace, self.reached = Pace(self.rate), False
        try:
            verify = ssl.create_default_context(cafile=self.ca) if self.ca is not None else True
        except ssl.SSLError as problem:
            raise InvalidInput(f"ca={self.ca} holds no certificates: {problem}") from None
        self.client = httpx.Client(
            verify=verify,
            limits=httpx.Limits(max_connections=self.connections),
            follow_redirects=False,  # the headers are for this server only
        )

    def send(self, method: str, address: str, body: Any = None) -> Any:
        """The parsed JSON of a good answer; what may pass is tried again within `patience`."""
        import stamina

        end = time.monotonic() + self.patience
        failures: list[_Passing] = []
        try:
            for attempt in stamina.retry_context(
                on=self._again(end),
                attempts=None,
                timeout=self.patience,
                wait_initial=0.1,
                wait_max=min(20.0, self.patience / 10),
            ):
                with attempt:
                    left = max(0.01, end - time.monotonic())
                    try:
                        return self._once(method, address, body, min(self.timeout, left))
                    except _Passing as problem:
                        failures.append(problem)
                        raise
        except _Passing:
            told = list(dict.fromkeys(str(failure) for failure in failures))[:3]
            raise OracleFailed(
                f"{shown(address)} did not answer: {'; '.join(told)} (tries: {len(failures)}, "
                f"patience={self.patience:g} s, timeout={self.timeout:g} s). "
                "Look at the server, or raise timeout or patience."
            ) from None
        raise AssertionError("unreachable")  # pragma: no cover

    def _again(self, end: float) -> Callable[[Exception], bool | float]:
        """Whether, and after how many seconds; a server that never was there is not waited for as long as others."""
        soon = time.monotonic() + _UNSEEN

        def backoff(problem: Exception) -> bool | float:
            if not isinstance(problem, _Passing):
                return False
            if problem.wait is None:
                return self.reached or time.monotonic() < soon
            if time.monotonic() + problem.wait > end:
                return False
            self.pace.hold(problem.wait)
            return problem.wait + random.uniform(0.0, min(1.0, 0.1 * problem.wait))

        return backoff

    def _once(self, method: str, address: str, body: Any, timeout: float) -> Any:
        import httpx

        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self.headers.filled()}
        self.pace.turn()
        end = time.monotonic() + timeout
        text = bytearray()
        try:
            with self.client.stream(method, address, content=content, headers=headers, timeout=timeout) as response:
                self.reached = True
                for piece in response.iter_bytes():
                    text += piece
                    if len(text) > _LARGEST:
                        raise BadAnswer(f"{shown(address)} sends more than {_LARGEST:,} bytes; ask fewer rows at once")
                    if time.monotonic() > end:
                        raise _Passing(f"the answer took longer than {timeout:g} s")
        except httpx.TimeoutException:
            raise _Passing(f"no answer within {timeout:g} s") from None
        except (httpx.TransportError, httpx.DecodingError) as problem:
            if "CERTIFICATE_VERIFY_FAILED" in str(problem):
                raise OracleFailed(
                    f"{shown(address)} cannot prove who it is ({problem}); nothing was sent. "
                    "Where its authority is your own, name its certificate with ca=…"
                ) from None
            raise _Passing(self.headers.hide(f"{type(problem).__name__}: {problem}")) from None
        return self._judge(address, response, bytes(text))

    def _judge(self, address: str, response: Any, text: bytes) -> Any:
        status: int = response.status_code
        if status == 200:
            try:
                return parsed(text)
            except BadAnswer as problem:  # cut short on its way
                raise _Passing(self.headers.hide(str(problem))) from None
        told = self.headers.hide(text.decode(errors="replace"))[:300].strip()
        if status in (408, 429) or status >= 500:
            wait = seconds_to_wait(response.headers.get("Retry-After"))
            asks = f", asking for a pause of {wait:g} s" if wait is not None else ""
            raise _Passing(f"status {status}{asks}: {told}", wait)
        raise OracleFailed(
            f"{shown(address)} answered with status {status}: {told or 'nothing'}. "
            "Check the address, the headers and the names of the fields."
        )

    def __repr__(self) -> str:
        return f"Door(headers={self.headers!r}, timeout={self.timeout:g}, patience={self.patience:g})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("client", "pace", "reached")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __del__(self) -> None:
        with suppress(Exception):
            self.client.close()


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"url must look like https://host/path, not {shown(url)!r}")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            f"the address of {parts.hostname} has a user or password in it, which would end up in logs; "
            "pass headers={'Authorization': 'Basic ${MY_VARIABLE}'}"
        )


def shown(url: str) -> str:
    """The address without what may be secret: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
