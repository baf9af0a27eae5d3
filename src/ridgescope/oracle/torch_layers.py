"""The part of a PyTorch model that is queried: a layer with its inputs on a reference, or a program from a .pt2 file.

A .pt2 file, written by `torch.export.save`, is a zip of JSON, raw weights and a few pickles. Reading one can run code
in four ways: pickled objects, compiled libraries, operator names that are looked up as Python attributes, and symbolic
sizes that are evaluated. Files made from ordinary models use none of them. The file is therefore inspected before
PyTorch reads it, and is refused if it holds anything that such files do not.
"""

from __future__ import annotations

import ast
import difflib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FileProblem, InvalidInput

_MEMBERS = re.compile(
    r"(data/weights/(weight_\d+|[\w.]+_config\.json)"
    r"|data/constants/(tensor_\d+|[\w.]+_config\.json)"
    r"|data/sample_inputs/[\w.]+\.pt|models/[\w.]+\.json"
    r"|serialized_exported_program\.json|serialized_(state_dict|constants|example_inputs)\.pt"  # before 2.8
    r"|archive_format|archive_version|byteorder|version|\.data/\w+|\.format_version|\.storage_alignment)"
)
"""Names of the parts of a .pt2 file that are accepted."""
_TARGETS = re.compile(
    r"torch\.ops\.(aten|prims)\.(?!from_file)\w+(\.\w+)?|torch\.sym_[a-z]+|math\.[a-z]\w*"
    r"|torch\.ops\.higher_order\.(cond|while_loop|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
"""Names of the operators that are accepted: PyTorch's own, mathematical functions and arithmetic."""
_EXPRESSION = (ast.Expression, ast.Call, ast.keyword, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp)
"""Syntax nodes that are accepted in a symbolic size."""
_TYPES = (None, "builtins.tuple", "builtins.list", "builtins.dict")
"""Containers of inputs and outputs that are accepted."""
_WORD = re.compile(r"\w*")
_SIMILARITY = 0.4
"""Smallest difflib ratio at which a layer's name is suggested for a mistyped one; below difflib's default of 0.6,
because layers are named by long paths of which users forget the beginning."""


# -- layers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerInputs:
    """What a layer receives on the reference: the input that is varied, and the others, which are held fixed."""

    varied: Any = None
    name: str | None = None
    """Name of the input that is varied if the layer takes it as a keyword argument."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def check_model(model: Any) -> None:
    """Raise `InvalidInput` for anything but a module, and for one whose answers are random or mix rows."""
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
    """Return the module of this name, or the model itself if no name is given."""
    if not layer:
        return model
    layers = dict(model.named_modules())
    if layer not in layers:
        near = difflib.get_close_matches(layer, layers, n=3, cutoff=_SIMILARITY) or [n for n in layers if n][:3]
        raise InvalidInput(f"the model has no layer {layer!r}; did you mean {', '.join(near)}?")
    return layers[layer]


def layer_inputs(model: Any, module: Any, reference: Any) -> LayerInputs:
    """Return what `module` receives when the model is run on the reference; its first input is the one to vary."""
    import torch

    if reference is None:
        return LayerInputs()
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
    varied = args[0] if args else kwargs.get(name or "")
    if not isinstance(varied, torch.Tensor) or not varied.is_floating_point():
        kind = str(varied.dtype) if isinstance(varied, torch.Tensor) else type(varied).__name__
        raise InvalidInput(f"the first input holds {kind}, which cannot be varied; choose a layer after the embedding")
    if varied.ndim < 2 or len(varied) != 1:
        raise InvalidInput(
            f"the reference must be one example, a batch of 1; the layer's input there is shape {tuple(varied.shape)}"
        )
    return LayerInputs(
        varied.detach(),
        name,
        tuple(_detached(value) for value in args[1:]),
        {key: _detached(value) for key, value in kwargs.items() if key != name},
    )


def _detached(value: Any) -> Any:
    import torch

    return value.detach() if isinstance(value, torch.Tensor) else value


def type_and_device(module: Any, example: Any) -> tuple[Any, Any]:
    """Return type and device of the example if there is one, else of the module's parameters or buffers."""
    import torch

    for tensor in (*(() if example is None else (example,)), *module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype, tensor.device
    return torch.get_default_dtype(), torch.get_default_device()


def first_module(module: Any) -> Any:
    """Return the module that receives the input first: the first of a `Sequential`, at any depth."""
    from torch import nn

    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    return module


# -- exported programs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """An exported program, ready to be called, and its example inputs."""

    module: Any
    inputs: tuple[Any, ...]
    """The inputs it was exported with, cut to one example if the number of rows is free."""
    shape: tuple[int, ...]
    """Shape of one example of its first input."""
    batch: int | None
    """Number of rows that it takes at once; None if it takes any number."""


def load_program(path: Path, trust: bool = False) -> Program:
    """Read a .pt2 file; unless `trust`, a file that could run code while it is read is refused."""
    import torch

    if not path.is_file():
        raise FileProblem(f"there is no file {path}")
    if not trust:
        _inspect_file(path)
    try:
        exported = torch.export.load(path)
        args, kwargs = exported.example_inputs
    except Exception as problem:
        raise FileProblem(
            f"{path} cannot be read as an exported program ({type(problem).__name__}: {problem}); "
            "write it with torch.export.save, with a PyTorch no newer than the one here"
        ) from problem
    if kwargs or not args or not all(isinstance(a, torch.Tensor) for a in args[:1]) or args[0].ndim < 2:
        raise InvalidInput(
            f"{path.name} must take its inputs by position, the first a tensor (rows, …); export it so, "
            f"e.g. torch.export.export(model, (torch.zeros(2, d),), …)"
        )
    sizes = _first_input_sizes(exported)
    batch = sizes[0] if isinstance(sizes[0], int) else None
    if not all(isinstance(size, int) for size in sizes[1:]):
        raise InvalidInput(f"{path.name} leaves more than the number of rows open: {sizes}; export it with fixed sizes")
    inputs = tuple(_one_example(a) if k == 0 or batch is None else a for k, a in enumerate(args))
    return Program(exported.module(), inputs, tuple(sizes[1:]), batch)


def _first_input_sizes(exported: Any) -> list[Any]:
    """Return the sizes of the program's first input; a size that is free is not an int."""
    name = exported.graph_signature.user_inputs[0]
    node = next(n for n in exported.graph.nodes if n.op == "placeholder" and n.name == name)
    return list(node.meta["val"].shape)


def _one_example(value: Any) -> Any:
    """Return the first row of a tensor with several axes; anything else is returned as it is."""
    import torch

    return value[:1] if isinstance(value, torch.Tensor) and value.ndim > 1 else value


def _inspect_file(path: Path) -> None:
    """Raise `InvalidInput` if a part of the file could run code, `FileProblem` if it is not such a file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            folders = {name.partition("/")[0] if "/" in name else "" for name in names}
            if len({name.lower() for name in names}) < len(names) or len(folders) > 1:
                raise _refused(path, "two of its parts have one name, or lie in different folders")
            for name in names:
                _inspect_member(path, name, archive)
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise FileProblem(f"{path} is not an exported program ({problem}); write it with torch.export.save") from None


def _inspect_member(path: Path, member: str, archive: zipfile.ZipFile) -> None:
    """Raise `InvalidInput` if this part of the file could run code."""
    import torch

    inner = member.partition("/")[2] or member
    if not _MEMBERS.fullmatch(inner):
        raise _refused(path, f"it holds {member!r}")
    if inner.endswith(".json"):
        for key, value in _json_leaves(json.loads(archive.read(member))):
            _inspect_value(path, key, value)
    elif inner.endswith(".pt") and archive.getinfo(member).file_size:
        try:
            torch.load(io.BytesIO(archive.read(member)), weights_only=True)
        except Exception:
            raise _refused(path, f"{member!r} pickles more than tensors") from None


def _inspect_value(path: Path, key: str, value: Any) -> None:
    """Raise `InvalidInput` if this value of a JSON part could run code."""
    if key == "use_pickle" and value:
        raise _refused(path, "it holds pickled tensors of a special kind")
    if not isinstance(value, str):
        return
    if key == "target" and not _TARGETS.fullmatch(value):
        raise _refused(path, f"it calls {value!r}")
    if key in ("in_spec", "out_spec"):
        kinds = [kind for name, kind in _json_leaves(json.loads(value)) if name == "type"]
        if not set(kinds) <= set(_TYPES):
            raise _refused(path, f"its inputs or outputs hold {next(k for k in kinds if k not in _TYPES)}")
    if key == "expr_str" and not _is_arithmetic(value):
        raise _refused(path, f"a size is {value!r}")
    if key in ("name", "path_name") and not re.fullmatch(r"[\w.]*", value):
        raise _refused(path, f"a name in it is {value!r}")


def _json_leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value of a JSON document together with its key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _json_leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _json_leaves(inner, key)
    else:
        yield key, value


def _is_arithmetic(text: str) -> bool:
    """Return whether the text is arithmetic on names, numbers, plain words and calls of capitalised names."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return all(_is_arithmetic_node(node) for node in ast.walk(tree))


def _is_arithmetic_node(node: ast.AST) -> bool:
    """Return whether one syntax node may occur in such arithmetic."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and re.fullmatch(r"[A-Z][A-Za-z]*", node.func.id) is not None
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _WORD.fullmatch(node.value) is not None and "__" not in node.value
    return isinstance(node, (*_EXPRESSION, ast.operator, ast.unaryop))


def _refused(path: Path, why: str) -> InvalidInput:
    """Return the error for a file that could run code; `why` names the part."""
    return InvalidInput(
        f"{path.name} is refused: {why}, which can run code of its author on this machine when it is read. If you "
        "trust whoever wrote it, pass trust=True (--trust on the command line); otherwise export the model anew."
    )
