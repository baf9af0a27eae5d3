"""Programs written by `torch.export.save`, looked through before PyTorch reads them.

A .pt2 file is a zip of JSON, raw weights and a few pickles. Reading one can run code in four ways: pickled
objects, compiled libraries, operator names that are looked up as Python attributes, and symbolic sizes that are
evaluated. Files made from ordinary models use none of them, so only what such files hold is let through.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
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
_TARGETS = re.compile(
    r"torch\.ops\.(aten|prims)\.(?!from_file)\w+(\.\w+)?|torch\.sym_[a-z]+|math\.[a-z]\w*"
    r"|torch\.ops\.higher_order\.(cond|while_loop|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
_EXPRESSION = (ast.Expression, ast.Call, ast.keyword, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp)
_TYPES = (None, "builtins.tuple", "builtins.list", "builtins.dict")
_WORD = re.compile(r"\w*")


@dataclass(frozen=True)
class Program:
    """An exported program, ready to be called; `shape` is that of one example of its first input."""

    module: Any
    inputs: tuple[Any, ...]
    """The inputs it was exported with, cut to one example where their number is free."""
    shape: tuple[int, ...]
    batch: int | None
    """Rows that it takes at once, None where it takes any number."""


def load_program(path: Path, trust: bool = False) -> Program:
    """Read a .pt2 file; unless `trust`, one that could run code on the way is refused."""
    import torch

    if not path.is_file():
        raise FileProblem(f"there is no file {path}")
    if not trust:
        _look_through(path)
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
    sizes = _sizes(exported)
    batch = sizes[0] if isinstance(sizes[0], int) else None
    if not all(isinstance(size, int) for size in sizes[1:]):
        raise InvalidInput(f"{path.name} leaves more than the number of rows open: {sizes}; export it with fixed sizes")
    inputs = tuple(_one(a) if k == 0 or batch is None else a for k, a in enumerate(args))
    return Program(exported.module(), inputs, tuple(sizes[1:]), batch)


def _sizes(exported: Any) -> list[Any]:
    name = exported.graph_signature.user_inputs[0]
    node = next(n for n in exported.graph.nodes if n.op == "placeholder" and n.name == name)
    return list(node.meta["val"].shape)


def _one(value: Any) -> Any:
    import torch

    return value[:1] if isinstance(value, torch.Tensor) and value.ndim > 1 else value


# -- what is let through -------------------------------------------------------------------------------------


def _look_through(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            folders = {name.partition("/")[0] if "/" in name else "" for name in names}
            if len({name.lower() for name in names}) < len(names) or len(folders) > 1:
                raise _refused(path, "two of its parts have one name, or lie in different folders")
            for name in names:
                _look_at(path, name, archive)
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise FileProblem(f"{path} is not an exported program ({problem}); write it with torch.export.save") from None


def _look_at(path: Path, member: str, archive: zipfile.ZipFile) -> None:
    import torch

    inner = member.partition("/")[2] or member
    if not _MEMBERS.fullmatch(inner):
        raise _refused(path, f"it holds {member!r}")
    if inner.endswith(".json"):
        for key, value in _walk(json.loads(archive.read(member))):
            _look_at_value(path, key, value)
    elif inner.endswith(".pt") and archive.getinfo(member).file_size:
        try:
            torch.load(io.BytesIO(archive.read(member)), weights_only=True)
        except Exception:
            raise _refused(path, f"{member!r} pickles more than tensors") from None


def _look_at_value(path: Path, key: str, value: Any) -> None:
    if key == "use_pickle" and value:
        raise _refused(path, "it holds pickled tensors of a special kind")
    if not isinstance(value, str):
        return
    if key == "target" and not _TARGETS.fullmatch(value):
        raise _refused(path, f"it calls {value!r}")
    if key in ("in_spec", "out_spec"):
        kinds = [kind for name, kind in _walk(json.loads(value)) if name == "type"]
        if not set(kinds) <= set(_TYPES):
            raise _refused(path, f"it takes or gives {next(k for k in kinds if k not in _TYPES)}")
    if key == "expr_str" and not _is_plain_expression(value):
        raise _refused(path, f"a size is {value!r}")
    if key in ("name", "path_name") and not re.fullmatch(r"[\w.]*", value):
        raise _refused(path, f"a name in it is {value!r}")


def _walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value of a JSON document, with the key that it stands under."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, key)
    else:
        yield key, value


def _is_plain_expression(text: str) -> bool:
    """Arithmetic on symbols and numbers: calls of capitalised names, words as the only strings."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return all(_is_plain(node) for node in ast.walk(tree))


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and re.fullmatch(r"[A-Z][A-Za-z]*", node.func.id) is not None
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _WORD.fullmatch(node.value) is not None and "__" not in node.value
    return isinstance(node, (*_EXPRESSION, ast.operator, ast.unaryop))


def _refused(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{path.name} is refused: {why}, which can run code of its author on this machine when it is read. If you "
        "trust whoever wrote it, pass trust=True (--trust on the command line); otherwise export the model anew."
    )
