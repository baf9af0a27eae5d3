"""Models in ONNX files, run by onnxruntime. Reading such a file runs no Python code of its author."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import FileProblem, InvalidInput
from ..geometry import Floats
from .base import Oracle
from .specs import MODEL_ROWS, Options, flat, in_batches_of, require, shaped

_FLOATS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
_OTHERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def onnx(
    path: str | Path,
    *,
    input_name: str | None = None,
    output_name: str | None = None,
    reference: Mapping[str, ArrayLike] | None = None,
    dim: int | None = None,
    threads: int | None = None,
    **options: Unpack[Options],
) -> Oracle:
    """Return an oracle for a model in an ONNX file.

    Parameters
    ----------
    path
        The file. Rows are converted to the type and shape of its input. If the file fixes the number of rows, that
        many are asked at a time.
    input_name, output_name
        Names of tensors; may be omitted if only one input and one output hold floating-point numbers.
    reference
        Values of all other inputs by name, for one example each; they are held fixed.
    dim
        Number of inputs, needed if the file does not fix it.
    threads
        Number of threads that onnxruntime uses within one call.
    options
        Passed on to `Oracle`; `batch` defaults to 4,096.

    Returns
    -------
    Oracle
        Can be passed to `rs.extract`, or called with (m, d) arrays.

    Raises
    ------
    InvalidInput, FileProblem
        If the file cannot be read, or an input or output is missing or ambiguous; the message lists what there is.

    Examples
    --------
    >>> ask = onnx("model.onnx", output_name="logits")  # doctest: +SKIP
    """
    require("onnx", "onnxruntime")
    function = OnnxFunction(path, input_name, output_name, reference, threads)
    options.setdefault("batch", MODEL_ROWS)
    return Oracle(function, dim=dim, **options)


class OnnxFunction:
    """Maps rows (m, d) to the named output of an ONNX file; after unpickling, the file is opened again."""

    def __init__(
        self,
        path: str | Path,
        input_name: str | None = None,
        output_name: str | None = None,
        reference: Mapping[str, ArrayLike] | None = None,
        threads: int | None = None,
    ) -> None:
        self.path, self.threads = Path(path), threads
        self.session = _open(self.path, threads)
        inputs = {i.name: i for i in self.session.get_inputs()}
        varied = _choose(self.path, "input", input_name, inputs)
        self.input_name, self.type = varied.name, _FLOATS[varied.type]
        self.output_name = _choose(
            self.path, "output", output_name, {o.name: o for o in self.session.get_outputs()}
        ).name
        self.held = {n: _held(self.path, i, reference or {}) for n, i in inputs.items() if n != varied.name}
        """Values of all other inputs by name, for one example each."""
        unknown = set(reference or {}) - set(self.held)
        if unknown:
            raise InvalidInput(
                f"reference has {sorted(unknown)[0]!r}, but {self.path.name} also takes {sorted(self.held)}"
            )
        sizes = list(varied.shape)
        if len(sizes) < 2:
            raise InvalidInput(f"input {varied.name!r} of {self.path.name} has shape {sizes}; (rows, …) is needed")
        self.batch = sizes[0] if isinstance(sizes[0], int) else None
        """Number of rows that the file takes at once; None if it takes any number."""
        self.shape = tuple(sizes[1:]) if all(isinstance(s, int) for s in sizes[1:]) else None
        if self.shape is not None:
            self.dim = int(np.prod(self.shape))
        elif len(sizes) > 2:
            raise InvalidInput(
                f"input {varied.name!r} of {self.path.name} leaves sizes open: {sizes}; export it with fixed ones"
            )

    def __call__(self, X: Floats) -> NDArray[Any]:
        rows = X if self.shape is None else shaped(X, self.shape, f"input {self.input_name!r}")
        rows = rows.astype(self.type)
        return in_batches_of(self.batch, self._ask, rows) if self.batch else self._ask(rows)

    def _ask(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Run the model on rows of its own type and shape, and return its answers (m,) or (m, p)."""
        held = {
            name: np.repeat(value, len(rows), axis=0) if value.ndim > 1 and len(value) == 1 else value
            for name, value in self.held.items()
        }
        (answer,) = self.session.run([self.output_name], {self.input_name: rows, **held})
        return flat(np.asarray(answer))

    def __repr__(self) -> str:
        return f"onnx: {self.path.name}, {self.input_name} to {self.output_name}"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.session = _open(self.path, self.threads)


def _open(path: Path, threads: int | None) -> Any:
    """Open the file in onnxruntime; raise `FileProblem` if that fails."""
    import onnxruntime

    if not path.is_file():
        raise FileProblem(f"there is no file {path}")
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    if threads is not None:
        settings.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), settings, providers=onnxruntime.get_available_providers())
    except Exception as problem:  # its errors share no base class
        raise FileProblem(f"{path} cannot be read as an ONNX model: {problem}") from None


def _choose(path: Path, kind: str, name: str | None, tensors: Mapping[str, Any]) -> Any:
    """Return the input or output tensor of this name; without a name, the only one of floating-point numbers."""
    listed = ", ".join(f"{n} {p.type}{list(p.shape)}" for n, p in tensors.items())
    if name is None:
        fitting = [p for p in tensors.values() if p.type in _FLOATS]
        if len(fitting) != 1:
            raise InvalidInput(
                f"{path.name} has {len(fitting)} {kind}s of floating-point numbers ({listed}); {_hint(kind)}"
            )
        return fitting[0]
    if name not in tensors:
        raise InvalidInput(f"{path.name} has no {kind} {name!r}; it has {listed}")
    if kind == "input" and tensors[name].type not in _FLOATS:
        raise InvalidInput(f"{kind} {name!r} of {path.name} is a {tensors[name].type}, not floating-point numbers")
    if not tensors[name].type.startswith("tensor("):
        raise InvalidInput(f"{kind} {name!r} of {path.name} is a {tensors[name].type}, not a tensor; {_hint(kind)}")
    return tensors[name]


def _hint(kind: str) -> str:
    """Return the advice that ends an error message about a tensor that was not chosen."""
    if kind == "input":
        return "choose the one to vary with input_name=…"
    return "choose one with output_name=… (classifiers from scikit-learn: convert them with zipmap=False)"


def _held(path: Path, tensor: Any, reference: Mapping[str, ArrayLike]) -> NDArray[Any]:
    """Return the value at which an input is held fixed, in the type that the file expects."""
    if tensor.name not in reference:
        raise InvalidInput(
            f"{path.name} also takes {tensor.name!r} ({tensor.type}{list(tensor.shape)}); hold it fixed with "
            f"reference={{{tensor.name!r}: …}}"
        )
    kind = _FLOATS.get(tensor.type) or _OTHERS.get(tensor.type)
    value = np.asarray(reference[tensor.name])
    return value if kind is None else value.astype(kind)
