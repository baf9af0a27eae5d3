"""Models behind a URL: the Open Inference Protocol v2 (KServe, Triton, MLServer) and plain JSON.

Rows are cut into requests that run side by side. What may pass, such as an overloaded server, a dropped connection
or half an answer, is asked again, after a growing pause with jitter or as long as Retry-After says, until a limit
on the total time; what will not pass, such as a wrong address or a wrong shape, ends the run at once.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer, InvalidInput, OracleFailed
from ..geometry import Floats
from .base import Oracle
from .extras import Options, need
from .headers import Headers
from .patience import Pace, seconds_to_wait
from .wire import OpenInference, Plain, parsed

_LARGEST = 2**28
"""Bytes of an answer; more is no answer."""


def http(
    url: str,
    *,
    model: str | None = None,
    input_name: str | None = None,
    output_name: str | None = None,
    datatype: str | None = None,
    request: str | None = "instances",
    response: str | None = "predictions",
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    rows: int = 256,
    concurrency: int = 4,
    timeout: float = 30.0,
    patience: float = 300.0,
    rate: float | None = None,
    ca: str | Path | None = None,
    dim: int | None = None,
    **options: Unpack[Options],
) -> Oracle:
    """A model behind `url`, as an `Oracle`.

    With `model`, or where the address has `/v2/models/NAME` in it, the Open Inference Protocol v2 is spoken; the
    server is asked for what was left out of `dim`, `input_name` and `datatype`. Otherwise rows are posted as JSON
    in the field `request` (None: the bare list), beside the fields of `extra`, and read from `response`.

    Each request carries `rows` rows and has `timeout` seconds; `concurrency` of them run side by side, no more
    than `rate` a second are started, and after `patience` seconds in all a request is given up. `headers` are
    templates: "Bearer ${MY_TOKEN}" takes the secret from the environment whenever it is needed. Certificates are
    always verified, against the authorities in the file `ca` where one is given.
    """
    need("http", "httpx", "stamina")
    door = Door(url, headers=headers, timeout=timeout, patience=patience, rate=rate, ca=ca, connections=concurrency)
    form: OpenInference | Plain
    if model is not None or "/v2/models/" in urlsplit(url).path:
        place = _model_address(url, model)
        form, dim = _describe(door, place, input_name, output_name, datatype, dim)
        address = f"{place}/infer"
    else:
        form, address = Plain(request, response, extra or {}), url
    return Oracle(HttpFunction(door, address, form, rows=rows, concurrency=concurrency), dim=dim, **options)


class HttpFunction:
    """Rows (m, d) to answers, `rows` at a time, `concurrency` requests side by side."""

    def __init__(
        self, door: Door, address: str, form: OpenInference | Plain, *, rows: int = 256, concurrency: int = 4
    ) -> None:
        if rows < 1 or concurrency < 1:
            raise InvalidInput(f"rows and concurrency must be at least 1; got {rows} and {concurrency}")
        self.door, self.address, self.form, self.rows, self.concurrency = door, address, form, rows, concurrency

    def __call__(self, X: Floats) -> NDArray[Any]:
        pieces = [X[start : start + self.rows] for start in range(0, len(X), self.rows)]
        if len(pieces) == 1:
            return self._ask(pieces[0])
        with ThreadPoolExecutor(min(self.concurrency, len(pieces))) as threads:
            answers = list(threads.map(self._ask, pieces))
        if len({answer.shape[1:] for answer in answers}) > 1:
            raise BadAnswer(f"{self!r} answers shapes {sorted({a.shape[1:] for a in answers})} in one batch")
        return np.concatenate(answers)

    def _ask(self, X: Floats) -> NDArray[Any]:
        try:
            return self.form.decode(self.door.send("POST", self.address, self.form.encode(X)), len(X))
        except BadAnswer as problem:
            raise BadAnswer(self.door.headers.hide(f"{self!r}: {problem}")) from None

    def __repr__(self) -> str:
        return _shown(self.address)


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
        import ssl

        import httpx

        self.pace = Pace(self.rate)
        self.client = httpx.Client(
            verify=ssl.create_default_context(cafile=self.ca) if self.ca is not None else True,
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
                on=self._again(end), attempts=None, timeout=self.patience, wait_initial=0.1, wait_max=20.0
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
                f"{_shown(address)} did not answer: {'; '.join(told)} (tries: {len(failures)}, "
                f"patience={self.patience:g} s, timeout={self.timeout:g} s). "
                "Look at the server, or raise timeout or patience."
            ) from None
        raise AssertionError("unreachable")  # pragma: no cover

    def _again(self, end: float) -> Callable[[Exception], bool | float]:
        def backoff(problem: Exception) -> bool | float:
            if not isinstance(problem, _Passing):
                return False
            if problem.wait is None:
                return True
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
                for piece in response.iter_bytes():
                    text += piece
                    if len(text) > _LARGEST:
                        raise BadAnswer(f"{_shown(address)} sends more than {_LARGEST:,} bytes; ask fewer rows at once")
                    if time.monotonic() > end:
                        raise _Passing(f"the answer took longer than {timeout:g} s")
        except httpx.TimeoutException:
            raise _Passing(f"no answer within {timeout:g} s") from None
        except (httpx.TransportError, httpx.DecodingError) as problem:
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
            f"{_shown(address)} answered with status {status}: {told or 'nothing'}. "
            "Check the address, the headers and the names of the fields."
        )

    def __repr__(self) -> str:
        return f"Door(headers={self.headers!r}, timeout={self.timeout:g}, patience={self.patience:g})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("client", "pace")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __del__(self) -> None:
        with suppress(Exception):
            self.client.close()


# -- addresses -----------------------------------------------------------------------------------------------


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"url must look like https://host/path, not {_shown(url)!r}")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            f"the address of {parts.hostname} has a user or password in it, which would end up in logs; "
            "pass headers={'Authorization': 'Basic ${MY_VARIABLE}'}"
        )


def _shown(url: str) -> str:
    """The address without what may be secret: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _model_address(url: str, model: str | None) -> str:
    base = url.rstrip("/").removesuffix("/infer")
    return base if model is None else f"{base.removesuffix('/v2')}/v2/models/{model}"


def _describe(
    door: Door,
    place: str,
    input_name: str | None,
    output_name: str | None,
    datatype: str | None,
    dim: int | None,
) -> tuple[OpenInference, int | None]:
    """What the caller said about the model, and the server about the rest."""
    told: dict[str, Any] = {}
    if input_name is None or datatype is None or dim is None:
        answer = door.send("GET", place)
        inputs = answer.get("inputs") if isinstance(answer, dict) else None
        offered = [i for i in inputs if isinstance(i, dict)] if isinstance(inputs, list) else []
        fitting = [i for i in offered if input_name in (None, i.get("name"))]
        if input_name is None and len(offered) > 1:
            raise InvalidInput(
                f"{_shown(place)} takes {[i.get('name') for i in offered]}; only one input can be asked so, "
                "say which with input_name=… if the others may be left out"
            )
        told = fitting[0] if fitting else {}
    sizes = told.get("shape")
    shape: tuple[int, ...] | None = None
    if isinstance(sizes, list) and len(sizes) > 1 and all(type(s) is int and s > 0 for s in sizes[1:]):
        shape = tuple(sizes[1:])
        dim = dim if dim is not None else int(np.prod(shape))
    if dim is None:
        raise InvalidInput(f"{_shown(place)} does not say how many coordinates it takes; pass dim=…")
    form = OpenInference(
        input_name or str(told.get("name") or "input-0"),
        datatype or str(told.get("datatype") or "FP64"),
        output_name,
        shape if shape is not None and int(np.prod(shape)) == dim else None,
    )
    return form, dim
