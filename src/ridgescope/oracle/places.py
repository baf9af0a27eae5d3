"""Where in a PyTorch model the question is put: the layer, what it is given on a reference, its type and device."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidInput


def check_model(model: Any) -> None:
    from torch import nn
    from torch.nn.modules.batchnorm import _NormBase
    from torch.nn.modules.dropout import _DropoutNd

    if not isinstance(model, nn.Module):
        raise InvalidInput(f"rs.oracle.torch takes a torch.nn.Module or the path of a .pt2 file; got {model!r}")
    for name, part in model.named_modules():
        if part.training and isinstance(part, _DropoutNd | _NormBase):
            raise InvalidInput(
                f"{name or 'the model'} ({type(part).__name__}) is in training mode, where rows do not get the "
                "same answer twice; call model.eval() first"
            )


def find_layer(model: Any, layer: str | None) -> Any:
    if not layer:
        return model
    places = dict(model.named_modules())
    if layer not in places:
        near = difflib.get_close_matches(layer, places, n=3, cutoff=0.4) or [name for name in places if name][:3]
        raise InvalidInput(f"the model has no layer {layer!r}; did you mean {', '.join(near)}?")
    return places[layer]


@dataclass(frozen=True)
class Inputs:
    """What a layer is given on the reference: the input that moves, and the others, which do not."""

    free: Any = None
    name: str | None = None
    """Of the input that moves, where the layer takes it by name."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def inputs_at(model: Any, module: Any, reference: Any) -> Inputs:
    """What `module` is given when the model is run on the reference; its first input is the one that moves."""
    import torch

    if reference is None:
        return Inputs()
    kwargs = dict(reference) if isinstance(reference, Mapping) else {}
    args = () if kwargs else tuple(reference) if isinstance(reference, tuple | list) else (reference,)
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    if module is model:
        seen.append((args, kwargs))
    else:
        hook = module.register_forward_pre_hook(lambda _, a, k: seen.append((a, k)), with_kwargs=True)
        try:
            with torch.no_grad():
                model(*args, **kwargs)
        finally:
            hook.remove()
    if len(seen) != 1:
        raise InvalidInput(f"the layer ran {len(seen)} times on the reference; choose one that runs exactly once")
    args, kwargs = seen[0]
    name = None if args else next(iter(kwargs), None)
    free = args[0] if args else kwargs.get(name or "")
    if not isinstance(free, torch.Tensor) or not free.is_floating_point():
        told = str(free.dtype) if isinstance(free, torch.Tensor) else type(free).__name__
        raise InvalidInput(f"the first input holds {told}, which cannot move; choose a layer behind the embedding")
    if free.ndim < 2 or len(free) != 1:
        raise InvalidInput(
            f"the reference must be one example, a batch of 1; the layer's input there is shape {tuple(free.shape)}"
        )
    return Inputs(
        free.detach(),
        name,
        tuple(_detached(value) for value in args[1:]),
        {key: _detached(value) for key, value in kwargs.items() if key != name},
    )


def _detached(value: Any) -> Any:
    import torch

    return value.detach() if isinstance(value, torch.Tensor) else value


def home(module: Any, example: Any) -> tuple[Any, Any]:
    """Type and device: those of the reference, else those of the module's parameters or buffers."""
    import torch

    for tensor in (*(() if example is None else (example,)), *module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype, tensor.device
    return torch.get_default_dtype(), torch.get_default_device()


def first_of(module: Any) -> Any:
    from torch import nn

    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    return module


def position(at: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    return (at,) if isinstance(at, int) else at
