"""What the oracles share: options that go on to `Oracle`, libraries that may be missing, batches of one size."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from importlib import import_module
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..geometry import Floats


class Options(TypedDict, total=False):
    """What every oracle hands on to `rs.oracle.Oracle`."""

    center: ArrayLike | None
    scale: ArrayLike | None
    reach: float | None
    max_queries: int | None
    on_bad: Literal["raise", "drop"]
    output: Literal["raw", "log_odds"]
    batch: int | None
    executor: Executor | None


def need(extra: str, *libraries: str) -> Any:
    """The first of `libraries`, imported with the others; a missing one is told with the pip command."""
    try:
        found = [import_module(name) for name in libraries]
    except ModuleNotFoundError as problem:
        if problem.name not in {name.partition(".")[0] for name in libraries}:
            raise  # the library is there, and something that it needs is not
        raise InvalidInput(
            f"rs.oracle.{extra} needs {problem.name}, which is not installed; "
            f"install it with: pip install 'ridgescope[{extra}]'"
        ) from None
    return found[0]


def in_batches_of(size: int, ask: Callable[[NDArray[Any]], NDArray[Any]], X: NDArray[Any]) -> NDArray[Any]:
    """`ask` of something that takes exactly `size` rows; the last batch is filled up with its last row."""
    answers = []
    for start in range(0, len(X), size):
        rows = X[start : start + size]
        asked = len(rows)
        if asked < size:
            rows = np.concatenate([rows, np.repeat(rows[-1:], size - asked, axis=0)])
        answers.append(ask(rows)[:asked])
    return np.concatenate(answers)


def flat(answer: NDArray[Any]) -> NDArray[Any]:
    """(m, a, b, …) as (m, a·b·…); (m,) and (m, p) as they are."""
    return answer if answer.ndim <= 2 else answer.reshape(len(answer), -1)


def shaped(X: Floats, shape: tuple[int, ...], name: str) -> Floats:
    """Rows (m, d) as (m, *shape)."""
    if X.shape[1] != int(np.prod(shape)):
        raise InvalidInput(f"{name} takes inputs of shape {shape}, {int(np.prod(shape))} numbers; got {X.shape[1]}")
    return X.reshape(len(X), *shape)
