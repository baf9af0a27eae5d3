"""PyTorch oracles: a module, a layer inside a model, or an exported program.

A layer is queried with everything but one of its inputs held fixed. The model is run once on a reference, and the
inputs that the layer received are kept: the function is x ↦ layer(x, other inputs as on the reference). With `at`,
only one position of the input (a token, a pixel) is varied, and the output is read at the same position.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer, InvalidInput, OracleFailed
from ..geometry import Floats
from .base import Oracle
from .specs import MODEL_ROWS, Options, flat, in_batches_of, require, shaped
from .torch_layers import check_model, find_layer, first_module, layer_inputs, load_program, type_and_device

Select = int | str | Callable[[Any], Any]


def torch(
    model: Any,
    *,
    layer: str | None = None,
    reference: Any = None,
    at: int | tuple[int, ...] | None = None,
    shape: tuple[int, ...] | None = None,
    select: Select | None = None,
    dim: int | None = None,
    gradient: bool = True,
    dtype: str | None = None,
    trust: bool = False,
    **options: Unpack[Options],
) -> Oracle:
    """Return an oracle for a `torch.nn.Module`, one of its layers, or a program exported to a file.

    Parameters
    ----------
    model
        A module, or the path of a .pt2 file. Rows are converted to its type and sent to its device.
    layer
        Name of a layer from `model.named_modules()`. By default the whole model is queried.
    reference
        An input of the whole model for one example: a tensor, a tuple of them, or a dictionary of keyword arguments.
        All inputs of the layer but the first are held at their values there.
    at
        Position in the input, not counting the batch axis, that is varied; the rest of the input is held fixed.
    shape
        Shape of one input if it is not a vector; each row is reshaped to it.
    select
        Index, key or function that picks a tensor from an output that is a tuple or a dictionary.
    dim
        Number of inputs, needed if neither reference nor layer gives it.
    gradient
        Whether the oracle offers derivatives, computed by autograd.
    dtype
        "float64" asks a double copy of the layer, which shows features that rounding in single or half precision hides;
        "float32" and others likewise. By default the layer is asked as it is, in its own type.
    trust
        Whether to read a file even if that could run code of its author.
    options
        Passed on to `Oracle`; `batch` defaults to 4,096.

    Returns
    -------
    Oracle
        Can be passed to `rs.extract`, or called with (m, d) arrays.

    Raises
    ------
    InvalidInput, FileProblem
        If model, layer or reference cannot be used; the message says what to pass instead.

    Examples
    --------
    >>> model = Sequential(Linear(8, 32), GELU(), Linear(32, 1)).eval()  # doctest: +SKIP
    >>> ask = torch(model, max_queries=10_000)  # doctest: +SKIP
    >>> ask.dim  # doctest: +SKIP
    8
    """
    require("torch", "torch")
    function = TorchFunction(model, layer=layer, reference=reference, at=at, shape=shape, select=select, trust=trust)
    if dtype is not None:
        function.compute_in(dtype)
    derive = function.gradient if gradient and options.get("output") != "log_odds" else None
    options.setdefault("batch", MODEL_ROWS)
    return Oracle(function, dim=dim, gradient=derive, **options)


class TorchFunction:
    """Maps rows (m, d) to a module's outputs, in its type and on its device; also offers the gradient."""

    def __init__(
        self,
        model: Any,
        *,
        layer: str | None = None,
        reference: Any = None,
        at: int | tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
        select: Select | None = None,
        trust: bool = False,
    ) -> None:
        self.fixed_rows: int | None = None
        """Number of rows that an exported program takes at once; None if it takes any number."""
        self.program: tuple[Path, bool] | None = None
        """Path of the file and whether to trust it, for an exported program."""
        if isinstance(model, str | Path):
            if layer is not None:
                raise InvalidInput(f"layer={layer!r} needs the model itself; {model} is a program without layers")
            self.program = Path(model), trust
            program = load_program(*self.program)
            model, self.fixed_rows = program.module, program.batch
            reference = program.inputs if reference is None else reference
        check_model(model)
        self.name = layer or (self.program[0].name if self.program else type(model).__name__)
        self.module = find_layer(model, layer)
        self.select, self.at = select, (at,) if isinstance(at, int) else at
        self.given = layer_inputs(model, self.module, reference)
        self.dtype, self.device = type_and_device(self.module, self.given.varied)
        self.shape = shape if shape is not None else self._input_shape()
        if self.shape is not None:
            self.dim = int(np.prod(self.shape))

    def compute_in(self, dtype: str) -> None:
        """From now on ask a copy of the module with numbers of another floating type; the module stays as it is."""
        import torch

        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise InvalidInput(
                f"dtype={dtype!r} is no floating type of PyTorch; pass 'float64', 'float32' or 'bfloat16'"
            )
        if self.program is not None:
            raise InvalidInput(f"dtype={dtype!r} needs the model itself; {self.name} is a program of fixed types")
        self.module, self.dtype = copy.deepcopy(self.module).to(kind), kind

        def converted(value: Any) -> Any:
            return value.to(kind) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        self.given = replace(
            self.given,
            varied=converted(self.given.varied),
            args=tuple(converted(value) for value in self.given.args),
            kwargs={name: converted(value) for name, value in self.given.kwargs.items()},
        )

    def __call__(self, X: Floats) -> NDArray[Any]:
        import torch

        def ask(rows: NDArray[Any]) -> NDArray[Any]:
            with torch.no_grad():
                return flat(_to_numpy(self._run(self._tensor(rows))))

        return in_batches_of(self.fixed_rows, ask, X) if self.fixed_rows else ask(X)

    def gradient(self, X: Floats) -> NDArray[Any]:
        """Return ∂f/∂x as (m, d) or (m, p, d): one backward pass per output of the sum over rows, which do not mix."""
        return in_batches_of(self.fixed_rows, self._derive, X) if self.fixed_rows else self._derive(X)

    def _derive(self, X: Floats) -> NDArray[Any]:
        """Return the derivatives (m, d) or (m, p, d) of one batch."""
        import torch

        with torch.enable_grad():
            x = self._tensor(X).requires_grad_(True)
            y = self._run(x)
            if not y.requires_grad:
                raise OracleFailed(
                    f"{self.name} cuts the derivative of its output with respect to its input "
                    "(detach, argmax, no_grad or numpy inside?); pass gradient=False"
                )
            scalar = y.ndim == 1
            columns = y.reshape(len(X), -1).sum(dim=0)
            last = len(columns) - 1
            parts = [
                torch.autograd.grad(c, x, retain_graph=k < last, allow_unused=True, materialize_grads=True)[0]
                for k, c in enumerate(columns)
            ]
        slopes = np.stack([_to_numpy(part).reshape(len(X), -1) for part in parts], axis=1)
        return slopes[:, 0] if scalar else slopes

    def _tensor(self, X: Floats) -> Any:
        """Return the rows (m, d) as a tensor of the shape, type and device that the module expects."""
        import torch

        rows = X if self.shape is None else shaped(X, self.shape, self.name)
        return torch.tensor(rows, dtype=self.dtype, device=self.device)

    def _run(self, x: Any) -> Any:
        """Return the module's output for the inputs x, with its other inputs held at the reference."""
        m = len(x)
        if self.at is not None:
            inputs = self.given.varied.expand(m, *self.given.varied.shape[1:]).clone()
            inputs[(slice(None), *self.at)] = x
            x = inputs
        args = [_expanded(value, m) for value in self.given.args]
        kwargs = {name: _expanded(value, m) for name, value in self.given.kwargs.items()}
        if self.given.name is None:
            args.insert(0, x)
        else:
            kwargs[self.given.name] = x
        answer = _pick(self.module(*args, **kwargs), self.select, self.name)
        if len(answer) != m:
            raise BadAnswer(f"{self.name} answered shape {tuple(answer.shape)} for {m} rows; expected {m} rows")
        return answer if self.at is None else answer[(slice(None), *self.at)]

    def _input_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one input from the reference or the layer's `in_features`; None if neither gives it."""
        if self.given.varied is not None:
            one = tuple(self.given.varied.shape[1:])
            if self.at is None:
                return one
            if len(self.at) >= len(one):
                raise InvalidInput(f"at={self.at} leaves nothing to vary in an input of shape {one}; name fewer axes")
            return one[len(self.at) :]
        if self.at is not None:
            raise InvalidInput(f"at={self.at} needs a reference that fixes the other positions; pass reference=…")
        width = getattr(first_module(self.module), "in_features", None)
        return (width,) if isinstance(width, int) else None

    def __repr__(self) -> str:
        return f"torch: {self.name}"

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.program is not None:
            state["module"] = None  # __setstate__ reads it from the file again
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.program is not None:
            self.module = load_program(*self.program).module


# -- tensors in and out --------------------------------------------------------------------------------------


def _expanded(value: Any, m: int) -> Any:
    """Return an input of the single reference example, expanded to m rows."""
    import torch

    if isinstance(value, torch.Tensor) and value.ndim > 1 and len(value) == 1:
        return value.expand(m, *value.shape[1:])
    return value


def _pick(answer: Any, select: Select | None, name: str) -> Any:
    """Return the tensor that `select` picks from an output; without `select`, the first of several."""
    import torch

    if callable(select):
        answer = select(answer)
    elif select is not None:
        try:
            answer = answer[select]
        except (KeyError, IndexError, TypeError):
            raise InvalidInput(
                f"{name} answers {_described(answer)}, which has no {select!r}; choose another"
            ) from None
    elif isinstance(answer, tuple | list) and answer:
        answer = answer[0]
    if not isinstance(answer, torch.Tensor) or answer.ndim == 0:
        raise InvalidInput(f"{name} answers {_described(answer)}, not rows of numbers; pick from it with select=…")
    return answer


def _described(answer: Any) -> str:
    """Return a short description of an output for an error message."""
    if isinstance(answer, Mapping):
        return f"a dictionary with {', '.join(map(repr, answer))}"
    return f"a {type(answer).__name__}"


def _to_numpy(tensor: Any) -> NDArray[Any]:
    """Return the tensor as an array, in its own type if numpy has it."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        tensor = tensor.to(torch.float32)
    return tensor.numpy()  # type: ignore[no-any-return]
