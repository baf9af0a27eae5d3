"""Models behind a URL: the Open Inference Protocol v2 (KServe, Triton, MLServer) and plain JSON.

Rows are cut into requests that run in parallel; `http_client` describes which failures are retried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer, InvalidInput
from ..geometry import Floats
from .answers import as_rows, json_to_array, show
from .base import Oracle
from .http_client import HttpClient
from .http_secrets import shown
from .specs import Options, require

DATATYPES: dict[str, Any] = {
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BOOL": np.bool_,
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
"""Names of the protocol's types of real numbers, with the numpy type of each."""


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
    """Return an oracle for a model behind a URL.

    Parameters
    ----------
    url
        Address that rows are posted to. With `model`, or with `/v2/models/NAME` in it, the Open Inference Protocol v2
        is used, otherwise plain JSON.
    model
        Name of the model on a server of the Open Inference Protocol.
    input_name, output_name, datatype, dim
        Names of the tensors, type of the input ("FP64", "FP32" or "FP16") and number of inputs; the server is asked
        for what is omitted.
    request, response, extra
        For plain JSON: the field that holds the rows (None sends the bare list), the field that the answers are read
        from (None reads the bare list), and further fields to send. Dots in a name lead into nested objects.
    headers
        Templates: "Bearer ${MY_TOKEN}" takes the secret from that environment variable for each request.
    rows, concurrency
        Rows per request, and number of requests that run in parallel.
    timeout, patience
        Time limits in seconds for one attempt at a request, and for all attempts at it.
    rate
        Largest number of requests started per second. None for no limit.
    ca
        File of certificates to trust in place of the system's. The server's certificate is always verified.
    options
        Passed on to `Oracle`; `batch` defaults to `rows` × `concurrency`.

    Returns
    -------
    Oracle
        Can be passed to `rs.extract`, or called with (m, d) arrays.

    Raises
    ------
    InvalidInput
        If a setting cannot be used, or httpx or stamina is not installed.
    OracleFailed
        When the oracle is asked, if the server refuses a request or does not answer within `patience`.

    Examples
    --------
    >>> ask = http("https://models.example.org/predict", dim=20, headers={"X-Client": "me"})
    >>> ask.dim
    20
    """
    require("http", "httpx", "stamina")
    client = HttpClient(
        url, headers=headers, timeout=timeout, patience=patience, rate=rate, ca=ca, connections=concurrency
    )
    form: OpenInference | PlainJson
    if model is not None or "/v2/models/" in urlsplit(url).path:
        base = _model_address(url, model)
        form, dim = _describe(client, base, input_name, output_name, datatype, dim)
        address = f"{base}/infer"
    else:
        form, address = PlainJson(request, response, extra or {}), url
    function = HttpFunction(client, address, form, rows=rows, concurrency=concurrency)
    options.setdefault("batch", rows * concurrency)  # if one request of a batch fails, all its rows are asked again
    return Oracle(function, dim=dim, **options)


class HttpFunction:
    """Maps rows (m, d) to a server's answers, with `rows` per request and `concurrency` requests in parallel."""

    def __init__(
        self, client: HttpClient, address: str, form: OpenInference | PlainJson, *, rows: int, concurrency: int
    ) -> None:
        if rows < 1 or concurrency < 1:
            raise InvalidInput(f"rows and concurrency must be at least 1; got {rows} and {concurrency}")
        self.client, self.address, self.form, self.rows, self.concurrency = client, address, form, rows, concurrency

    def __call__(self, X: Floats) -> NDArray[Any]:
        pieces = [X[start : start + self.rows] for start in range(0, len(X), self.rows)]
        if len(pieces) == 1:
            return self._ask(pieces[0])
        with ThreadPoolExecutor(min(self.concurrency, len(pieces))) as threads:
            answers = list(threads.map(self._ask, pieces))
        if len({answer.shape[1:] for answer in answers}) > 1:
            raise BadAnswer(f"{self!r} answered different shapes: {sorted({a.shape[1:] for a in answers})}")
        return np.concatenate(answers)

    def _ask(self, X: Floats) -> NDArray[Any]:
        """Return the answers to the rows of one request."""
        try:
            return self.form.decode(self.client.send("POST", self.address, self.form.encode(X)), len(X))
        except BadAnswer as problem:
            raise BadAnswer(self.client.headers.hide(f"{self!r}: {problem}")) from None

    def __repr__(self) -> str:
        return shown(self.address)


@dataclass(frozen=True)
class PlainJson:
    """Requests `{request: [[…], …], **extra}`, answers `{response: […]}`; dots in a name lead into nested objects."""

    request: str | None = "instances"
    response: str | None = "predictions"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, X: Floats) -> Any:
        """Return the body of a request for the rows of X (m, d), ready to be written as JSON."""
        rows = X.tolist()
        if self.request is None:
            return rows
        body: dict[str, Any] = dict(self.extra)
        *path, last = self.request.split(".")
        inner = body
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = rows
        return body

    def decode(self, answer: Any, m: int) -> NDArray[Any]:
        """Return the answers (m,) or (m, p) from the parsed body of a response."""
        for name in self.response.split(".") if self.response is not None else ():
            if not isinstance(answer, dict) or name not in answer:
                had = f"the fields {sorted(answer)}" if isinstance(answer, dict) else show(answer)
                raise BadAnswer(f"the answer has no field {self.response!r}, it has {had}; pass response=…")
            answer = answer[name]
        return as_rows(json_to_array(answer), m)


@dataclass(frozen=True)
class OpenInference:
    """Requests and answers of one tensor each, in the form of the Open Inference Protocol v2."""

    input_name: str = "input-0"
    datatype: str = "FP64"
    output_name: str | None = None
    shape: tuple[int, ...] | None = None
    """Shape of one input if the server expects more than a vector."""

    def __post_init__(self) -> None:
        if not self.datatype.startswith("FP") or self.datatype not in DATATYPES:
            raise InvalidInput(f"datatype must be FP64, FP32 or FP16, not {self.datatype!r}")

    def encode(self, X: Floats) -> Any:
        """Return the body of a request for the rows of X (m, d), ready to be written as JSON."""
        rows = X.astype(DATATYPES[self.datatype])
        tensor = {
            "name": self.input_name,
            "shape": [len(X), *(self.shape or X.shape[1:])],
            "datatype": self.datatype,
            "data": rows.ravel().tolist(),
        }
        body: dict[str, Any] = {"inputs": [tensor]}
        if self.output_name is not None:
            body["outputs"] = [{"name": self.output_name}]
        return body

    def decode(self, answer: Any, m: int) -> NDArray[Any]:
        """Return the answers (m,) or (m, p) from the parsed body of a response."""
        tensor = self._tensor(answer)
        kind = DATATYPES.get(str(tensor.get("datatype")))
        if kind is None:
            raise BadAnswer(f"output {tensor.get('name')!r} has datatype {tensor.get('datatype')!r}, not real numbers")
        values, shape = json_to_array(tensor.get("data")), tensor.get("shape")
        sizes = shape if isinstance(shape, list) and all(type(s) is int and s >= 0 for s in shape) else None
        if sizes is None or int(np.prod([float(s) for s in sizes])) != values.size:
            raise BadAnswer(f"output {tensor.get('name')!r} declares shape {show(shape)} but has {values.size} numbers")
        if not np.issubdtype(kind, np.floating):
            exact = np.array(tensor["data"], dtype=object)  # as an array of floats, 2⁶⁴ − 1 would become 2⁶⁴
            _check_whole(exact, np.dtype(kind), f"output {tensor.get('name')!r} of type {tensor['datatype']}")
            if np.isfinite(values).all():
                values = exact
            else:
                kind = np.float64  # a null, now NaN, among whole numbers
        with np.errstate(over="ignore"):
            return as_rows(values.reshape(sizes).astype(kind), m)

    def _tensor(self, answer: Any) -> dict[str, Any]:
        """Return the output tensor called `output_name`, or the only one, from a parsed answer."""
        outputs = answer.get("outputs") if isinstance(answer, dict) else None
        if not isinstance(outputs, list) or not all(isinstance(o, dict) for o in outputs) or not outputs:
            raise BadAnswer(f"the answer has no list of outputs: {show(answer)}")
        names = [o.get("name") for o in outputs]
        if self.output_name is not None and self.output_name in names:
            return outputs[names.index(self.output_name)]  # type: ignore[no-any-return]
        if self.output_name is not None or len(outputs) > 1:
            raise BadAnswer(f"the answer has the outputs {names}; choose one with output_name=…")
        return outputs[0]  # type: ignore[no-any-return]


def _check_whole(values: NDArray[Any], kind: np.dtype[Any], what: str) -> None:
    """Raise `BadAnswer` for a finite number that is a fraction or does not fit into this type of whole numbers."""
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    for value in values.ravel():
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        if not (value == int(value) and low <= value <= high):
            raise BadAnswer(f"{what} holds {value!r}, which that type cannot hold; declare another datatype")


def _model_address(url: str, model: str | None) -> str:
    """Return the address of the model itself, without /infer, on a server of the Open Inference Protocol."""
    base = url.rstrip("/").removesuffix("/infer")
    if urlsplit(url).query:
        raise InvalidInput(f"the address of a model must have no query string; remove what follows {shown(url)}")
    return base if model is None else f"{base.removesuffix('/v2')}/v2/models/{quote(model, safe='')}"


def _describe(
    client: HttpClient,
    base: str,
    input_name: str | None,
    output_name: str | None,
    datatype: str | None,
    dim: int | None,
) -> tuple[OpenInference, int | None]:
    """Return the form of requests and the number of inputs; the server is asked for what the caller left out."""
    metadata: dict[str, Any] = {}
    if input_name is None or datatype is None or dim is None:
        answer = client.send("GET", base)
        inputs = answer.get("inputs") if isinstance(answer, dict) else None
        offered = [i for i in inputs if isinstance(i, dict)] if isinstance(inputs, list) else []
        fitting = [i for i in offered if input_name in (None, i.get("name"))]
        if input_name is None and len(offered) > 1:
            raise InvalidInput(
                f"{shown(base)} takes {[i.get('name') for i in offered]}; only one input can be varied: "
                "choose it with input_name=… if the others are optional"
            )
        metadata = fitting[0] if fitting else {}
    sizes = metadata.get("shape")
    shape: tuple[int, ...] | None = None
    if isinstance(sizes, list) and len(sizes) > 1 and all(type(s) is int and s > 0 for s in sizes[1:]):
        shape = tuple(sizes[1:])
        dim = dim if dim is not None else int(np.prod(shape))
    if dim is None:
        raise InvalidInput(f"{shown(base)} does not say how many coordinates it takes; pass dim=…")
    form = OpenInference(
        input_name or str(metadata.get("name") or "input-0"),
        datatype or str(metadata.get("datatype") or "FP64"),
        output_name,
        shape if shape is not None and int(np.prod(shape)) == dim else None,
    )
    return form, dim
