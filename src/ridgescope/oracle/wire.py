"""Rows and answers as JSON: the Open Inference Protocol v2, and plain JSON with names of one's own choice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer, InvalidInput
from ..geometry import Floats
from .answers import show

DATATYPES: dict[str, Any] = {
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BOOL": np.bool_,
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
"""Types of the protocol that are real numbers."""


def parsed(text: bytes | str) -> Any:
    """JSON, or a `BadAnswer` that shows what came instead."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadAnswer(f"the answer is not JSON ({problem}): {show(text[:200])}") from None


def as_numbers(value: Any) -> NDArray[Any]:
    """Nested lists of numbers as an array; null, which is how some servers write NaN, is NaN."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            if not all(v is None or isinstance(v, int | float) for v in array.ravel()):
                raise ValueError("not all of it is numbers")
            array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise BadAnswer(f"the answer {show(value)} is not an array of numbers ({problem})") from None
    if array.dtype.kind not in "fiub":
        raise BadAnswer(f"the answer {show(value)} is not an array of numbers")
    return array


def as_rows(array: NDArray[Any], m: int) -> NDArray[Any]:
    """(m,) or (m, p); an answer for another number of rows is refused."""
    if array.ndim == 0 or len(array) != m:
        raise BadAnswer(f"the answer has shape {array.shape} for {m} rows; expected ({m},) or ({m}, p)")
    return array if array.ndim <= 2 else array.reshape(m, -1)


@dataclass(frozen=True)
class Plain:
    """`{request: [[…], …], **extra}` out, `{response: […]}` back; dots in a name lead into nested objects."""

    request: str | None = "instances"
    response: str | None = "predictions"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, X: Floats) -> Any:
        rows = X.tolist()
        if self.request is None:
            return rows
        body: dict[str, Any] = dict(self.extra)
        *path, last = self.request.split(".")
        place = body
        for name in path:
            place = place.setdefault(name, {})
        place[last] = rows
        return body

    def decode(self, answer: Any, m: int) -> NDArray[Any]:
        for name in self.response.split(".") if self.response is not None else ():
            if not isinstance(answer, dict) or name not in answer:
                had = f"the fields {sorted(answer)}" if isinstance(answer, dict) else show(answer)
                raise BadAnswer(f"the answer has no field {self.response!r}, it has {had}; pass response=…")
            answer = answer[name]
        return as_rows(as_numbers(answer), m)


@dataclass(frozen=True)
class OpenInference:
    """One tensor out, one back, as the Open Inference Protocol v2 has them."""

    input_name: str = "input-0"
    datatype: str = "FP64"
    output_name: str | None = None
    shape: tuple[int, ...] | None = None
    """Of one input, where the server wants more than a vector."""

    def __post_init__(self) -> None:
        if not self.datatype.startswith("FP") or self.datatype not in DATATYPES:
            raise InvalidInput(f"datatype must be FP64, FP32 or FP16, not {self.datatype!r}")

    def encode(self, X: Floats) -> Any:
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
        tensor = self._tensor(answer)
        kind = DATATYPES.get(str(tensor.get("datatype")))
        if kind is None:
            raise BadAnswer(f"output {tensor.get('name')!r} has datatype {tensor.get('datatype')!r}, not real numbers")
        values, shape = as_numbers(tensor.get("data")), tensor.get("shape")
        sizes = shape if isinstance(shape, list) and all(type(s) is int and s >= 0 for s in shape) else None
        if sizes is None or int(np.prod([float(s) for s in sizes])) != values.size:
            raise BadAnswer(f"output {tensor.get('name')!r} says shape {show(shape)} but has {values.size} numbers")
        if not np.isfinite(values).all() and not np.issubdtype(kind, np.floating):
            kind = np.float64  # a null among whole numbers
        with np.errstate(over="ignore"):
            return as_rows(values.reshape(sizes).astype(kind), m)

    def _tensor(self, answer: Any) -> dict[str, Any]:
        outputs = answer.get("outputs") if isinstance(answer, dict) else None
        if not isinstance(outputs, list) or not all(isinstance(o, dict) for o in outputs) or not outputs:
            raise BadAnswer(f"the answer has no list of outputs: {show(answer)}")
        names = [o.get("name") for o in outputs]
        if self.output_name is not None and self.output_name in names:
            return outputs[names.index(self.output_name)]  # type: ignore[no-any-return]
        if self.output_name is not None or len(outputs) > 1:
            raise BadAnswer(f"the answer has the outputs {names}; say which one with output_name=…")
        return outputs[0]  # type: ignore[no-any-return]
