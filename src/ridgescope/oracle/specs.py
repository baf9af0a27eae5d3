"""A target in one line of text, as people write it on a command line, opened as an `Oracle`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from ..errors import InvalidInput
from .base import Oracle, as_oracle

FORMS = "module:function"


def open_target(
    spec: str,
    *,
    dim: int | None = None,
    trust: bool = False,
    on_bad: Literal["raise", "drop"] = "raise",
    output: Literal["raw", "log_odds"] = "raw",
) -> Oracle:
    """The oracle that `spec` names: `module:function`, looked for in the current folder first."""
    found = import_function(spec)
    if isinstance(found, Oracle):
        if (on_bad, output) != ("raise", "raw"):
            raise InvalidInput(f"{spec} is an Oracle, which has its own on_bad and output; set them there")
        return as_oracle(found, dim=dim)
    return Oracle(found, dim=dim, on_bad=on_bad, output=output)


def import_function(spec: str) -> Callable[..., Any]:
    """What `module:function` names; the module may lie in the current folder."""
    place, colon, name = spec.partition(":")
    if not (place and colon and name):
        raise InvalidInput(f"TARGET must be {FORMS} or case:NAME, not {spec!r}")
    here = os.getcwd()
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        value: Any = import_module(place)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{place}.".startswith(f"{problem.name}."):
            raise
        raise InvalidInput(f"there is no module {place!r} in {here} or among the installed packages") from None
    for part in name.split("."):
        if not hasattr(value, part):
            raise InvalidInput(f"module {place!r} has no {name!r}")
        value = getattr(value, part)
    if not callable(value):
        raise InvalidInput(f"{spec} is a {type(value).__name__}, which cannot be called")
    return value  # type: ignore[no-any-return]
