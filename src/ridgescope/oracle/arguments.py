"""The numbers that an oracle is made with, checked: each comes back as what it should be, or with a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidInput
from ..geometry import Floats

_MOST_INPUTS = 10**7


def dimension(function: Callable[[Floats], Any], dim: int | None) -> int:
    known = getattr(function, "dim", None)
    if dim is None and isinstance(known, int | np.integer):
        dim = int(known)
    if dim is None:
        raise InvalidInput("dim is missing: say how many coordinates the function takes, e.g. dim=20")
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
        raise InvalidInput(f"dim must be a positive whole number, not {dim!r}")
    if dim > _MOST_INPUTS:
        raise InvalidInput(f"dim must be at most {_MOST_INPUTS:,}, not a number of {int(dim).bit_length()} bits")
    if isinstance(known, int | np.integer) and known != dim:
        raise InvalidInput(f"dim={dim}, but the function says that it takes {known} coordinates")
    return int(dim)


def vector(value: ArrayLike | None, dim: int, default: float, name: str) -> Floats:
    if value is None:
        return np.full(dim, default)
    try:
        array = np.array(value)
        array = np.array(value, dtype=np.float64) if array.dtype.kind in "fiubO" else np.full(dim, np.nan)
    except (TypeError, ValueError, OverflowError):
        array = np.full(1, np.nan)
    if array.ndim == 0:
        array = np.full(dim, float(array))
    if array.shape != (dim,) or not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be {dim} finite numbers; got {value!r}")
    return array


def positive(value: float | None, name: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InvalidInput(f"{name} must be a positive number, not {value!r}")
    return number


def count(value: int | None, name: str, least: int = 0) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if isinstance(value, bool) or number != value or number < least:
        raise InvalidInput(f"{name} must be a whole number, at least {least}; got {value!r}")
    return number
