"""Where in a PyTorch model the question is put: the layer, what it is given on a reference, its type and device."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
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


def inputs_at(model: Any, module: Any, reference: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `module` is given when the model is run on the reference."""
    import torch

    if reference is None:
        return (), {}
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
    if not args and kwargs:  # the first named input is the one that moves
        first = next(iter(kwargs))
        raise InvalidInput(
            f"the layer is given its input by name ({first!r}); wrap the model so that it comes first, by position"
        )
    if not isinstance(args[0], torch.Tensor) or args[0].ndim < 2 or len(args[0]) != 1:
        told = f"shape {tuple(args[0].shape)}" if isinstance(args[0], torch.Tensor) else type(args[0]).__name__
        raise InvalidInput(f"the reference must be one example, a batch of 1; the layer's input there is {told}")
    return tuple(_detached(a) for a in args), {k: _detached(v) for k, v in kwargs.items()}


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
