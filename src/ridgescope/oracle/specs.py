"""A target in one line of text, as people write it on a command line, opened as an `Oracle`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from ..errors import FileProblem, InvalidInput
from .base import Oracle, as_oracle
from .extras import Options

FORMS = "module:function, model.onnx, model.pt2, http(s)://…, cmd:…"
AUTHORIZATION = "RIDGESCOPE_AUTHORIZATION"
"""Where this environment variable is set, it is sent as the header Authorization."""
_RUNS_CODE = {".pkl", ".pickle", ".joblib", ".pt", ".pth"}


class Place(TypedDict, total=False):
    """What a file, a server or a program may have to be told."""

    input_name: str
    output_name: str
    request: str
    response: str
    headers: Mapping[str, str]
    rate: float
    timeout: float


def open_target(
    spec: str,
    *,
    dim: int | None = None,
    trust: bool = False,
    on_bad: Literal["raise", "drop"] = "raise",
    output: Literal["raw", "log_odds"] = "raw",
    **place: Unpack[Place],
) -> Oracle:
    """The oracle that `spec` names.

    | | |
    |---|---|
    | `module:function` | anything callable; the module may lie in the current folder |
    | `model.onnx`, `model.pt2` | a file, through onnxruntime or PyTorch |
    | `http://…`, `https://…` | a server; with `/v2/models/NAME`, the Open Inference Protocol |
    | `cmd:PROGRAM ARGUMENTS` | a program that reads and writes JSON lines; `cmd+binary:…` the binary form |
    | `model.pkl`, `.joblib`, `.pt` | an estimator, a module or anything callable, with `trust` only |

    What else a file, a server or a program must be told goes on to `rs.oracle.onnx`, `http` or `process`: `input_name`
    and `output_name`; `request` and `response`, an empty name being the bare list; `headers`, `rate`, `timeout`.
    """
    options: Options = {"on_bad": on_bad, "output": output}
    scheme, _, rest = spec.partition(":")
    ending = Path(spec).suffix.lower()
    if spec.startswith(("http://", "https://")):
        return _server(spec, dim, options, place)
    if scheme in ("cmd", "cmd+binary"):
        from .process import process

        told: Any = _only(spec, place, "timeout")
        return process(rest, dim=dim, form="binary" if scheme == "cmd+binary" else "json", **told, **options)
    if ending == ".onnx":
        from .onnx import onnx

        told = _only(spec, place, "input_name", "output_name")
        return onnx(spec, dim=dim, **told, **options)
    _only(spec, place)
    if ending == ".pt2":
        from .torch import torch

        return torch(spec, dim=dim, trust=trust, **options)
    if ending in _RUNS_CODE:
        return _wrap(spec, _unpickled(Path(spec), trust), dim, options)
    return _wrap(spec, import_function(spec), dim, options)


def _only(spec: str, place: Place, *allowed: str) -> dict[str, Any]:
    """`place`, where all of it has a meaning for this target."""
    for name in place:
        if name not in allowed:
            takes = f"takes {' and '.join(allowed)} alone" if allowed else "is reached without any such setting"
            raise InvalidInput(f"{name} says nothing about {spec}, which {takes}; leave it out")
    return {**place}


def _server(url: str, dim: int | None, options: Options, place: Place) -> Oracle:
    from .http import http

    told: Any = {**place, "headers": dict(place.get("headers") or {})}
    told |= {name: told[name] or None for name in ("request", "response") if name in told}
    if AUTHORIZATION in os.environ and "authorization" not in {name.lower() for name in told["headers"]}:
        told["headers"]["Authorization"] = f"${{{AUTHORIZATION}}}"
    return http(url, dim=dim, **told, **options)


def import_function(spec: str) -> Callable[..., Any]:
    """What `module:function` names; the module may lie in the current folder."""
    place, colon, name = spec.partition(":")
    if not (place and colon and name):
        raise InvalidInput(f"TARGET must be {FORMS} or case:NAME, not {spec!r}")
    here = os.getcwd()
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        value: Any = import_module(place)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{place}.".startswith(f"{problem.name}."):
            raise
        raise InvalidInput(f"there is no module {place!r} in {here} or among the installed packages") from None
    for part in name.split("."):
        if not hasattr(value, part):
            raise InvalidInput(f"module {place!r} has no {name!r}")
        value = getattr(value, part)
    if not callable(value):
        raise InvalidInput(f"{spec} is a {type(value).__name__}, which cannot be called")
    return value  # type: ignore[no-any-return]


def _unpickled(path: Path, trust: bool) -> Any:
    if not trust:
        raise InvalidInput(
            f"{path} is refused: a {path.suffix} file is a pickle, and reading one runs whatever code its author put "
            "in it. If you trust whoever wrote it, pass --trust (trust=True); otherwise ask for a .onnx or .pt2 file."
        )
    if not path.is_file():
        raise FileProblem(f"there is no file {path}")
    try:
        if path.suffix.lower() in (".pt", ".pth"):
            from .extras import need

            return need("torch", "torch").load(path, weights_only=False)
        if path.suffix.lower() == ".joblib":
            import joblib

            return joblib.load(path)
        import pickle

        return pickle.loads(path.read_bytes())
    except InvalidInput:
        raise
    except Exception as problem:
        raise FileProblem(f"{path} cannot be read: {type(problem).__name__}: {problem}") from problem


def _wrap(spec: str, found: Any, dim: int | None, options: Options) -> Oracle:
    """An `Oracle` for what was found, by way of the library that it is from."""
    if isinstance(found, Oracle):
        if (options["on_bad"], options["output"]) != ("raise", "raw"):
            raise InvalidInput(f"{spec} is an Oracle, which has its own on_bad and output; set them there")
        return as_oracle(found, dim=dim)
    if hasattr(found, "fit") and hasattr(found, "predict"):
        from .sklearn import sklearn

        if options["output"] == "raw":  # the estimator's own choice
            del options["output"]
        return sklearn(found, dim=dim, **options)
    if "torch" in sys.modules and isinstance(found, sys.modules["torch"].nn.Module):
        from .torch import torch

        return torch(found, dim=dim, **options)
    if not callable(found):
        raise InvalidInput(f"{spec} holds a {type(found).__name__}, which cannot be asked; save a whole model")
    return Oracle(found, dim=dim, **options)
