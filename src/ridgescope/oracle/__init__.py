"""What can be asked. Everything here turns something callable into rows of checked numbers.

`torch`, `sklearn`, `onnx`, `http` and `process` are imported when first used, and the libraries they need
with them: none of these is needed to ask a plain Python function.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from .base import Oracle, Repeatability, as_oracle, rowwise

if TYPE_CHECKING:
    from .http import http
    from .onnx import onnx
    from .process import process
    from .sklearn import sklearn
    from .specs import open_target
    from .torch import torch

_HOME = {
    "http": "http",
    "onnx": "onnx",
    "open_target": "specs",
    "process": "process",
    "sklearn": "sklearn",
    "torch": "torch",
}

__all__ = [
    "Oracle",
    "Repeatability",
    "as_oracle",
    "http",
    "onnx",
    "open_target",
    "process",
    "rowwise",
    "sklearn",
    "torch",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing the module `torch` of this package sets its attribute `torch`; here it is the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
