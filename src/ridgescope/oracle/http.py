"""Models behind a URL: the Open Inference Protocol v2 (KServe, Triton, MLServer) and plain JSON.

Rows are cut into requests that run side by side; `door` says what becomes of those that fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer, InvalidInput
from ..geometry import Floats
from .base import Oracle
from .door import Door, shown
from .extras import Options, need
from .wire import OpenInference, Plain


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
    function = HttpFunction(door, address, form, rows=rows, concurrency=concurrency)
    options.setdefault("batch", rows * concurrency)  # so much is lost where one of its requests fails
    return Oracle(function, dim=dim, **options)


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
        return shown(self.address)


def _model_address(url: str, model: str | None) -> str:
    base = url.rstrip("/").removesuffix("/infer")
    if urlsplit(url).query:
        raise InvalidInput(f"the address of a model takes no query; leave out what follows {shown(url)}")
    return base if model is None else f"{base.removesuffix('/v2')}/v2/models/{quote(model, safe='')}"


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
                f"{shown(place)} takes {[i.get('name') for i in offered]}; only one input can be asked so, "
                "say which with input_name=… if the others may be left out"
            )
        told = fitting[0] if fitting else {}
    sizes = told.get("shape")
    shape: tuple[int, ...] | None = None
    if isinstance(sizes, list) and len(sizes) > 1 and all(type(s) is int and s > 0 for s in sizes[1:]):
        shape = tuple(sizes[1:])
        dim = dim if dim is not None else int(np.prod(shape))
    if dim is None:
        raise InvalidInput(f"{shown(place)} does not say how many coordinates it takes; pass dim=…")
    form = OpenInference(
        input_name or str(told.get("name") or "input-0"),
        datatype or str(told.get("datatype") or "FP64"),
        output_name,
        shape if shape is not None and int(np.prod(shape)) == dim else None,
    )
    return form, dim
