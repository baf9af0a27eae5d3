"""`open_target`: an `Oracle` from a line of text, as on a command line; and helpers that several oracles share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import FileProblem, InvalidInput
from ..geometry import Floats
from .base import Oracle, as_oracle

FORMS = "module:function, model.onnx, model.pt2, http(s)://…, cmd:…"
AUTHORIZATION = "RIDGESCOPE_AUTHORIZATION"
"""If this environment variable is set, its value is sent as the header Authorization."""
MODEL_ROWS = 4096
"""Default number of rows per call of a neural network. Empirical: enough to keep a processor busy, while a model's
inner layers, which are wider than its answers, still fit into memory."""
_RUNS_CODE = {".pkl", ".pickle", ".joblib", ".pt", ".pth"}
"""Endings of pickled files, which can run code of their author when they are read."""


class Options(TypedDict, total=False):
    """Keyword arguments that every kind of oracle passes on to `rs.oracle.Oracle`."""

    center: ArrayLike | None
    scale: ArrayLike | None
    reach: float | None
    max_queries: int | None
    on_bad: Literal["raise", "drop"]
    output: Literal["raw", "log_odds"]
    batch: int | None
    executor: Executor | None


class TargetSettings(TypedDict, total=False):
    """Keyword arguments of `open_target` that a file, a server or a program may need beside its name."""

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
    output: Literal["raw", "log_odds"] | None = None,
    **settings: Unpack[TargetSettings],
) -> Oracle:
    """Return the oracle that a line of text names.

    | | |
    |---|---|
    | `module:function` | a callable; the module may lie in the current folder |
    | `model.onnx`, `model.pt2` | a file, through onnxruntime or PyTorch |
    | `http://…`, `https://…` | a server; with `/v2/models/NAME`, the Open Inference Protocol |
    | `cmd:PROGRAM ARGUMENTS` | a program that reads and writes JSON lines; `cmd+binary:…` the binary form |
    | `model.pkl`, `.joblib`, `.pt` | an estimator, a module or anything callable, with `trust` only |

    Parameters
    ----------
    spec
        One of the forms above.
    dim
        Number of inputs, needed if the target does not define it.
    trust
        Whether to read files that can run code of their author when they are read.
    on_bad, output
        As for `Oracle`. If `output` is None, an estimator's `predict_proba` is read as log-odds, all else as it is.
    settings
        Passed on to `rs.oracle.onnx`, `http` or `process`: `input_name` and `output_name`; `request` and `response`,
        where an empty name means the bare list; `headers`, `rate`, `timeout`.

    Returns
    -------
    Oracle
        Can be passed to `rs.extract`, or called with (m, d) arrays.

    Raises
    ------
    InvalidInput, FileProblem
        If the text names nothing that can be opened.

    Examples
    --------
    >>> open_target("numpy:sin", dim=1)([[0.0]])
    array([[0.]])
    """
    options: Options = {"on_bad": on_bad}
    if output is not None:
        options["output"] = output
    scheme, _, rest = spec.partition(":")
    ending = Path(spec).suffix.lower()
    if spec.startswith(("http://", "https://")):
        return _open_server(spec, dim, options, settings)
    if scheme in ("cmd", "cmd+binary"):
        from .process import process

        given: Any = _only(spec, settings, "timeout")
        return process(rest, dim=dim, form="binary" if scheme == "cmd+binary" else "json", **given, **options)
    if ending == ".onnx":
        from .onnx import onnx

        given = _only(spec, settings, "input_name", "output_name")
        return onnx(spec, dim=dim, **given, **options)
    _only(spec, settings)
    if ending == ".pt2":
        from .torch import torch

        return torch(spec, dim=dim, trust=trust, **options)
    if ending in _RUNS_CODE:
        return _wrap(spec, _unpickle(Path(spec), trust), dim, options)
    return _wrap(spec, import_function(spec), dim, options)


def _only(spec: str, settings: TargetSettings, *allowed: str) -> dict[str, Any]:
    """Return the settings as a dictionary; raise `InvalidInput` for one that does not apply to this target."""
    for name in settings:
        if name not in allowed:
            takes = f"takes only {' and '.join(allowed)}" if allowed else "takes no such setting"
            raise InvalidInput(f"{name} does not apply to {spec}, which {takes}; leave it out")
    return {**settings}


def _open_server(url: str, dim: int | None, options: Options, settings: TargetSettings) -> Oracle:
    """Return the oracle for a URL; empty field names mean the bare list."""
    from .http import http

    given: Any = {**settings, "headers": dict(settings.get("headers") or {})}
    given |= {name: given[name] or None for name in ("request", "response") if name in given}
    if AUTHORIZATION in os.environ and "authorization" not in {name.lower() for name in given["headers"]}:
        given["headers"]["Authorization"] = f"${{{AUTHORIZATION}}}"
    return http(url, dim=dim, **given, **options)


def import_function(spec: str) -> Callable[..., Any]:
    """Return the callable that `module:function` names; the module may lie in the current folder."""
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise InvalidInput(f"TARGET must be {FORMS} or case:NAME, not {spec!r}")
    here = os.getcwd()
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        value: Any = import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module}.".startswith(f"{problem.name}."):
            raise
        raise InvalidInput(f"there is no module {module!r} in {here} or among the installed packages") from None
    for part in name.split("."):
        if not hasattr(value, part):
            raise InvalidInput(f"module {module!r} has no {name!r}")
        value = getattr(value, part)
    if not callable(value):
        raise InvalidInput(f"{spec} is a {type(value).__name__}, which cannot be called")
    return value  # type: ignore[no-any-return]


def _unpickle(path: Path, trust: bool) -> Any:
    """Return the object in a pickled file; raise `InvalidInput` unless the user trusts it."""
    if not trust:
        raise InvalidInput(
            f"{path} is refused: a {path.suffix} file is a pickle, and reading one runs whatever code its author put "
            "in it. If you trust whoever wrote it, pass --trust (trust=True); otherwise ask for a .onnx or .pt2 file."
        )
    if not path.is_file():
        raise FileProblem(f"there is no file {path}")
    try:
        if path.suffix.lower() in (".pt", ".pth"):
            return require("torch", "torch").load(path, weights_only=False)
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
    """Return an `Oracle` for an object, using the adapter for the library that it comes from."""
    if isinstance(found, Oracle):
        if (options["on_bad"], options.get("output", "raw")) != ("raise", "raw"):
            raise InvalidInput(f"{spec} is an Oracle, which has its own on_bad and output; set them there")
        return as_oracle(found, dim=dim)
    if hasattr(found, "fit") and hasattr(found, "predict"):
        from .sklearn import sklearn

        return sklearn(found, dim=dim, **options)
    if "torch" in sys.modules and isinstance(found, sys.modules["torch"].nn.Module):
        from .torch import torch

        return torch(found, dim=dim, **options)
    if not callable(found):
        raise InvalidInput(f"{spec} holds a {type(found).__name__}, which cannot be called; save a whole model")
    return Oracle(found, dim=dim, **options)


class rowwise:
    """Turns a function of a single row (d,) into a function of many rows (m, d).

    Parameters
    ----------
    function
        Maps one (d,) array to a number or to p numbers.
    dim
        Number of inputs d; stored in the attribute `dim`, which `Oracle` reads.

    Examples
    --------
    >>> f = rowwise(lambda x: x[0] * x[1], dim=2)
    >>> Oracle(f)([[2.0, 3.0]])
    array([[6.]])
    """

    def __init__(self, function: Callable[[Floats], Any], *, dim: int | None = None) -> None:
        self.function = function
        if dim is not None or hasattr(function, "dim"):
            self.dim = dim if dim is not None else function.dim  # type: ignore[attr-defined]

    def __call__(self, X: Floats) -> list[Any]:
        return [self.function(x) for x in X]


# -- helpers for several oracles -----------------------------------------------------------------------------


def require(extra: str, *libraries: str) -> Any:
    """Import the libraries and return the first; if one is missing, raise `InvalidInput` with the pip command."""
    try:
        found = [import_module(name) for name in libraries]
    except ModuleNotFoundError as problem:
        if problem.name not in {name.partition(".")[0] for name in libraries}:
            raise  # the library is installed, but one of its own dependencies is not
        raise InvalidInput(
            f"rs.oracle.{extra} needs {problem.name}, which is not installed; "
            f"install it with: pip install 'ridgescope[{extra}]'"
        ) from None
    return found[0]


def in_batches_of(size: int, ask: Callable[[NDArray[Any]], NDArray[Any]], X: NDArray[Any]) -> NDArray[Any]:
    """Return the answers of a model that takes exactly `size` rows; the last batch is padded with its last row."""
    answers = []
    for start in range(0, len(X), size):
        rows = X[start : start + size]
        count = len(rows)
        if count < size:
            rows = np.concatenate([rows, np.repeat(rows[-1:], size - count, axis=0)])
        answers.append(ask(rows)[:count])
    return np.concatenate(answers)


def flat(answer: NDArray[Any]) -> NDArray[Any]:
    """Return (m, a, b, …) reshaped to (m, a·b·…); (m,) and (m, p) are returned as they are."""
    return answer if answer.ndim <= 2 else answer.reshape(len(answer), -1)


def shaped(X: Floats, shape: tuple[int, ...], name: str) -> Floats:
    """Return the rows (m, d) reshaped to (m, *shape); raise `InvalidInput` if d does not fit."""
    if X.shape[1] != int(np.prod(shape)):
        raise InvalidInput(f"{name} takes inputs of shape {shape}, {int(np.prod(shape))} numbers; got {X.shape[1]}")
    return X.reshape(len(X), *shape)
