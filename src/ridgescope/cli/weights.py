"""Directions from a weight matrix on disk, for `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ..errors import FileProblem, InvalidInput
from ..geometry import Floats


def read_weights(path: Path, key: str | None, dim: int) -> Floats:
    """Directions (n, dim) from a file; columns are turned into rows where only that fits."""
    try:
        matrix = _read(path, key)
    except (OSError, ValueError, EOFError) as problem:
        raise FileProblem(f"{path} cannot be read as a weight matrix: {problem}") from problem
    if matrix.ndim == 2 and matrix.shape[1] != dim and matrix.shape[0] == dim:
        matrix = matrix.T
    if matrix.ndim != 2 or matrix.shape[1] != dim:
        raise InvalidInput(f"{path} has shape {matrix.shape}; directions of {dim} coordinates are needed in its rows")
    return np.asarray(matrix, dtype=np.float64)


def _read(path: Path, key: str | None) -> Any:
    if path.suffix != ".safetensors":
        return np.load(path, allow_pickle=False)
    try:
        tensors = load_file(path)
    except SafetensorError as problem:
        raise ValueError(str(problem)) from problem
    names = [name for name, tensor in tensors.items() if tensor.ndim == 2] if key is None else [key]
    if len(names) != 1 or names[0] not in tensors:
        raise InvalidInput(f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}; choose a matrix with --key")
    return tensors[names[0]]
