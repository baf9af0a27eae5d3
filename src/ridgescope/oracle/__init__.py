"""Oracles: everything that can be queried, turned into functions from float64 rows to checked real numbers.

`torch`, `sklearn`, `onnx`, `http`, `process` and `prenorm` are imported when first used, together with the libraries
that they need. A plain Python function needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import load_late
from .answers import Repeatability
from .base import Oracle, as_oracle
from .specs import open_target, rowwise

if TYPE_CHECKING:
    from .http import http
    from .onnx import onnx
    from .prenorm import PrenormOracle, prenorm
    from .process import process
    from .sklearn import sklearn
    from .torch import torch

_HOME = {name: name for name in ("http", "onnx", "prenorm", "process", "sklearn", "torch")}
_HOME["PrenormOracle"] = "prenorm"

__all__ = [
    "Oracle",
    "PrenormOracle",
    "Repeatability",
    "as_oracle",
    "http",
    "onnx",
    "open_target",
    "prenorm",
    "process",
    "rowwise",
    "sklearn",
    "torch",
]

load_late(__name__, _HOME)
