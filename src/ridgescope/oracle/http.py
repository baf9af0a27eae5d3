"""Models behind a URL: the Open Inference Protocol v2 (KServe, Triton, MLServer) and plain JSON.

Rows are cut into requests that run in parallel; `http_client` says what becomes of those that fail.
"""

from __future__ import annotations

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
from .http_client import HttpClient, shown
from .specs import Options, require

DATATYPES: dict[str, Any] = {
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BOOL": np.bool_,
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
"""Types of the protocol that are real numbers."""


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
    """A model behind a URL.

    Parameters
    ----------
    url
        Address that rows are posted to. With `model`, or with `/v2/models/NAME` in it, the Open Inference Protocol v2
        is spoken, otherwise plain JSON.
    model
        Name of the model on a server of the Open Inference Protocol.
    input_name, output_name, datatype, dim
        Names of the tensors, type of the input ("FP64", "FP32" or "FP16") and number of inputs; the server is asked
        for what was left out.
    request, response, extra
        Plain JSON: the field that the rows go into (None: the bare list), the field that the answers are read from,
        and further fields to send. Dots in a name lead into nested objects.
    headers
        Templates: "Bearer ${MY_TOKEN}" takes the secret from the environment whenever it is needed.
    rows, concurrency
        Rows per request, and requests that run in parallel.
    timeout, patience
        Seconds for one request, and for all attempts at it.
    rate
        Most requests started per second.
    ca
        File of certificates; the server's must be signed by one of them. It is always verified.
    options
        Passed on to `Oracle`; `batch` is `rows` × `concurrency` unless given.

    Returns
    -------
    Oracle
        To be passed to `rs.extract`, or called with (m, d) arrays.

    Raises
    ------
    InvalidInput
        Where a setting cannot be used, or httpx or stamina is missing.
    OracleFailed
        Later, where the server refuses a request or does not answer within `patience`.

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
    options.setdefault("batch", rows * concurrency)  # so much is lost where one of its requests fails
    return Oracle(function, dim=dim, **options)


class HttpFunction:
    """Rows (m, d) to answers, `rows` of them per request, `concurrency` requests in parallel."""

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
            raise BadAnswer(f"{self!r} answers shapes {sorted({a.shape[1:] for a in answers})} in one batch")
        return np.concatenate(answers)

    def _ask(self, X: Floats) -> NDArray[Any]:
        try:
            return self.form.decode(self.client.send("POST", self.address, self.form.encode(X)), len(X))
        except BadAnswer as problem:
            raise BadAnswer(self.client.headers.hide(f"{self!r}: {problem}")) from None

    def __repr__(self) -> str:
        return shown(self.address)


@dataclass(frozen=True)
class PlainJson:
    """`{request: [[…], …], **extra}` out, `{response: […]}` back; dots in a name lead into nested objects."""

    request: str | None = "instances"
    response: str | None = "predictions"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, X: Floats) -> Any:
        """The body of a request for the rows of X."""
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
        """The answers for m rows in a parsed body."""
        for name in self.response.split(".") if self.response is not None else ():
            if not isinstance(answer, dict) or name not in answer:
                had = f"the fields {sorted(answer)}" if isinstance(answer, dict) else show(answer)
                raise BadAnswer(f"the answer has no field {self.response!r}, it has {had}; pass response=…")
            answer = answer[name]
        return as_rows(json_to_array(answer), m)


@dataclass(frozen=True)
class OpenInference:
    """One tensor out and one back, in the form of the Open Inference Protocol v2."""

    input_name: str = "input-0"
    datatype: str = "FP64"
    output_name: str | None = None
    shape: tuple[int, ...] | None = None
    """Of one input, where the server wants more than a vector."""

    def __post_init__(self) -> None:
        if not self.datatype.startswith("FP") or self.datatype not in DATATYPES:
            raise InvalidInput(f"datatype must be FP64, FP32 or FP16, not {self.datatype!r}")

    def encode(self, X: Floats) -> Any:
        """The body of a request for the rows of X."""
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
        """The answers for m rows in a parsed body."""
        tensor = self._tensor(answer)
        kind = DATATYPES.get(str(tensor.get("datatype")))
        if kind is None:
            raise BadAnswer(f"output {tensor.get('name')!r} has datatype {tensor.get('datatype')!r}, not real numbers")
        values, shape = json_to_array(tensor.get("data")), tensor.get("shape")
        sizes = shape if isinstance(shape, list) and all(type(s) is int and s >= 0 for s in shape) else None
        if sizes is None or int(np.prod([float(s) for s in sizes])) != values.size:
            raise BadAnswer(f"output {tensor.get('name')!r} says shape {show(shape)} but has {values.size} numbers")
        if not np.isfinite(values).all() and not np.issubdtype(kind, np.floating):
            kind = np.float64  # a null among whole numbers
        with np.errstate(over="ignore"):
            return as_rows(values.reshape(sizes).astype(kind), m)

    def _tensor(self, answer: Any) -> dict[str, Any]:
        """The output tensor that is wanted, from the list in the answer."""
        outputs = answer.get("outputs") if isinstance(answer, dict) else None
        if not isinstance(outputs, list) or not all(isinstance(o, dict) for o in outputs) or not outputs:
            raise BadAnswer(f"the answer has no list of outputs: {show(answer)}")
        names = [o.get("name") for o in outputs]
        if self.output_name is not None and self.output_name in names:
            return outputs[names.index(self.output_name)]  # type: ignore[no-any-return]
        if self.output_name is not None or len(outputs) > 1:
            raise BadAnswer(f"the answer has the outputs {names}; say which one with output_name=…")
        return outputs[0]  # type: ignore[no-any-return]


def _model_address(url: str, model: str | None) -> str:
    base = url.rstrip("/").removesuffix("/infer")
    if urlsplit(url).query:
        raise InvalidInput(f"the address of a model takes no query; leave out what follows {shown(url)}")
    return base if model is None else f"{base.removesuffix('/v2')}/v2/models/{quote(model, safe='')}"


def _describe(
    client: HttpClient,
    base: str,
    input_name: str | None,
    output_name: str | None,
    datatype: str | None,
    dim: int | None,
) -> tuple[OpenInference, int | None]:
    """The model's tensors and number of inputs: what the caller said, and what the server says about the rest."""
    metadata: dict[str, Any] = {}
    if input_name is None or datatype is None or dim is None:
        answer = client.send("GET", base)
        inputs = answer.get("inputs") if isinstance(answer, dict) else None
        offered = [i for i in inputs if isinstance(i, dict)] if isinstance(inputs, list) else []
        fitting = [i for i in offered if input_name in (None, i.get("name"))]
        if input_name is None and len(offered) > 1:
            raise InvalidInput(
                f"{shown(base)} takes {[i.get('name') for i in offered]}; only one input can be varied, "
                "say which with input_name=… if the others may be left out"
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
