"""Checks of the arguments of `extract`: bad ones are refused before anything is asked."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

import numpy as np

from .errors import InvalidInput
from .search import PROPOSERS, Proposer

PAPER_METHODS = ("paper", "paper-pure")
"""The paper's own route, with and without our additions to it."""
METHODS = ("auto", *PAPER_METHODS, *PROPOSERS)
"""What `method` may name."""
LARGEST = 1e100
"""Lengths beyond this, or below its inverse, have no square."""


def check_arguments(
    radius: float,
    reach: float | None,
    tolerance: float,
    noise: float | None,
    confidence: float,
    max_features: int | None,
    method: str | Proposer | Sequence[str | Proposer],
    rng: object,
) -> tuple[str | Proposer, ...]:
    """Return the methods as a tuple; raise InvalidInput if any argument cannot be used."""
    if not 1.0 / LARGEST <= _real(radius) <= LARGEST:
        raise InvalidInput(f"radius must be a positive number, not {_shown(radius)} (and at most {LARGEST:g})")
    if reach is not None and math.isnan(_real(reach)):
        raise InvalidInput(f"reach must be a number, or None to ask anywhere; got {_shown(reach)}")
    if reach is not None and not _real(reach) >= _real(radius):
        raise InvalidInput(
            f"reach={reach} is smaller than radius={radius}: f could not be asked on its own ball; lower radius"
        )
    if not 0 < _real(tolerance) <= LARGEST:
        raise InvalidInput(f"tolerance must be a positive fraction such as 0.01, not {_shown(tolerance)}")
    if noise is not None and not 0 <= _real(noise) <= LARGEST:
        raise InvalidInput(f"noise must be a number that is not negative, or None to estimate it; got {_shown(noise)}")
    if not 0 < _real(confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1, not {_shown(confidence)}")
    if max_features is not None and not (_real(max_features) >= 0 and max_features == int(max_features)):
        raise InvalidInput(f"max_features must be a whole number that is not negative, not {_shown(max_features)}")
    whole = isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0
    if not (whole or isinstance(rng, np.random.Generator | np.random.SeedSequence)):
        raise InvalidInput(f"rng must be a seed, 0 or larger, or a numpy Generator; got {_shown(rng)}")
    return _methods(method)


def check_seconds(max_seconds: object) -> None:
    """Raise InvalidInput unless `max_seconds` is None or a number that is not negative."""
    if max_seconds is not None and not _real(max_seconds) >= 0:
        raise InvalidInput(f"max_seconds must be a number that is not negative, or None; got {_shown(max_seconds)}")


def _methods(method: str | Proposer | Sequence[str | Proposer]) -> tuple[str | Proposer, ...]:
    """Return the methods as a tuple of names and proposer objects."""
    methods = tuple(method) if isinstance(method, list | tuple) else (method,)
    for alone in (*PAPER_METHODS, "auto"):
        if alone in methods and len(methods) > 1:
            raise InvalidInput(f'"{alone}" cannot be combined with other methods; got method={_shown(method)}')
    unknown = [m for m in methods if not (m in METHODS if isinstance(m, str) else _is_proposer(m))]
    if unknown or not methods:
        raise InvalidInput(
            f"unknown method {_shown(unknown[0] if unknown else method)}; choose from {', '.join(METHODS)}, or pass an "
            "object with `name`, `cost` and `propose` (see ridgescope.search.Proposer)"
        )
    return methods


def _is_proposer(value: object) -> bool:
    """Return whether `value` is an object, not a class, with what `Proposer` asks for."""
    return isinstance(value, Proposer) and not isinstance(value, type) and isinstance(value.name, str)


def _real(value: object) -> float:
    """Return the value as a float; NaN for anything that is not a finite real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return math.nan if math.isinf(number) else number


def _shown(value: object) -> str:
    """Return the value's repr, cut to 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print numbers of many thousand digits
        return f"something of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]} …"
