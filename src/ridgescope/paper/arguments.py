"""Checks of what the functions of `ridgescope.paper` are called with, and of what f answers.

Each check returns its value in the type that the code works with, or raises an error that names the value and says
what to pass instead.
"""

from __future__ import annotations

import math
import numbers

import numpy as np
from numpy.typing import ArrayLike

from ..errors import BadAnswer, InvalidInput
from ..geometry import Floats

ESTIMATORS = ("disjoint_pairs", "all_pairs")
"""Estimators of a mass: that of Algorithm 1, and that of `all_pairs`."""
_UNIT = 1e-6
"""Deviation from length one that rounding in single precision explains."""


def positive(name: str, value: object) -> float:
    """Return a positive finite number."""
    number = _real(value)
    if not (number > 0 and math.isfinite(number)):
        raise InvalidInput(f"{name} must be a positive number, such as 3.0; got {value!r}")
    return number


def not_negative(name: str, value: object) -> float:
    """Return a finite number that is not negative."""
    number = _real(value)
    if not (number >= 0 and math.isfinite(number)):
        raise InvalidInput(f"{name} must be a number that is not negative; got {value!r}")
    return number


def share(name: str, value: object) -> float:
    """Return a number strictly between 0 and 1."""
    number = _real(value)
    if not 0 < number < 1:
        raise InvalidInput(f"{name} must lie strictly between 0 and 1, such as 0.1; got {value!r}")
    return number


def count(name: str, value: object) -> int:
    """Return a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1, of type int, such as 20_000; got {value!r}")
    return int(value)


def estimator(value: object) -> str:
    """Return the name of an estimator of masses."""
    if value not in ESTIMATORS:
        raise InvalidInput(f"estimator must be one of {', '.join(ESTIMATORS)}; got {value!r}")
    return str(value)


def generator(rng: object) -> np.random.Generator:
    """Return the generator, or that of seed 0 for None."""
    if rng is None:
        return np.random.default_rng(0)
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput(f"rng must be a numpy Generator, such as np.random.default_rng(0), or None; got {rng!r}")
    return rng


def points(name: str, value: ArrayLike) -> Floats:
    """Return one point (d,) or several (k, d) as rows (k, d) of finite numbers."""
    rows = np.atleast_2d(np.asarray(value, dtype=np.float64))
    if rows.ndim != 2 or 0 in rows.shape or not np.isfinite(rows).all():
        raise InvalidInput(f"{name} must be finite numbers of shape (d,) or (k, d); got shape {np.shape(value)}")
    return rows


def unit_rows(name: str, value: ArrayLike) -> Floats:
    """Return one unit vector (d,) or several (k, d) as rows (k, d)."""
    rows = points(name, value)
    lengths = np.linalg.norm(rows, axis=1)
    worst = float(lengths[np.argmax(np.abs(lengths - 1))])
    if abs(worst - 1) > _UNIT:
        raise InvalidInput(f"{name} must have length 1, but a length is {worst:.6g}; divide by np.linalg.norm")
    return rows


def answers(value: object, asked: int) -> Floats:
    """Return what f answered for `asked` points as float64, (m,) or (m, q)."""
    try:
        values = np.asarray(value)
    except ValueError as ragged:
        raise BadAnswer(f"f must return an array of numbers for (m, d) points; {ragged}") from None
    if values.dtype.kind not in "fiub" or values.ndim not in (1, 2) or len(values) != asked:
        raise BadAnswer(
            f"f must return real numbers of shape (m,) or (m, q) for points (m, d); for m = {asked} it returned "
            f"{values.dtype} of shape {values.shape}. Is it vectorised over rows?"
        )
    values = values.astype(np.float64, copy=False)
    if not np.isfinite(values).all():
        raise BadAnswer("f returned NaN or infinity; it must be finite at every point that is asked")
    return values


def scalar_answers(value: object, asked: int) -> Floats:
    """Return what f answered for `asked` points as float64 (m,)."""
    values = answers(value, asked)
    if values.ndim == 2:
        raise BadAnswer(
            f"f must return one number a point, shape (m,); it returned shape {values.shape}. Pass one output at a "
            "time, such as lambda X: f(X)[:, 0]"
        )
    return values


def _real(value: object) -> float:
    """Return a real number as float; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    return float(value)
