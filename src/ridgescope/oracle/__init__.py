"""Everything that can be queried: callables of many kinds, turned into rows of checked numbers.

`torch`, `sklearn`, `onnx`, `http` and `process` are imported when first used, and the libraries they need with them:
none of these is needed to query a plain Python function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import load_late
from .base import Oracle, Repeatability, as_oracle
from .specs import open_target, rowwise

if TYPE_CHECKING:
    from .http import http
    from .onnx import onnx
    from .process import process
    from .sklearn import sklearn
    from .torch import torch

_HOME = {name: name for name in ("http", "onnx", "process", "sklearn", "torch")}

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

load_late(__name__, _HOME)
