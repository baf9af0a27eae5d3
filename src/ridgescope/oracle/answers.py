"""Checks of what goes into an oracle and of what comes out: arguments, shapes, types, finiteness, probabilities.

What passes comes back in one fixed form (float64 arrays, Python numbers). What does not pass raises an error that shows
the offending value, the input row it belongs to, and a remedy.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BadAnswer, InvalidInput
from ..geometry import Floats

Flags = NDArray[np.bool_]
_KINDS = {"c": "complex numbers", "U": "text", "S": "bytes", "O": "Python objects"}
_MAX_SHOWN = 400
"""Characters of an answer that an error message shows."""
_MAX_INPUTS = 10**7
"""Inputs that a function may have: one block of 2,048 such rows would already exceed any memory."""
_ABOVE_ONE = 1e-6
"""How far a probability may exceed 1: a few roundings of single precision."""
_SUM_OFF = 1e-3
"""How far a row of probabilities may add up to something else than 1: half precision, or three printed digits."""


# -- answers of the function ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerRules:
    """What an answer must satisfy: the same number of outputs as before, where known, and finite unless `drop`."""

    outputs: int | None = None
    scalar: bool | None = None
    log_odds: bool = False
    drop: bool = False


@dataclass(frozen=True)
class AnswerSummary:
    """What a block of answers says about the function."""

    outputs: int
    scalar: bool
    """True if the function answered shape (m,) rather than (m, p)."""
    rounding: float
    """Relative rounding of the type the function answered in (2.2e-16 for float64, 1.2e-7 for float32)."""
    largest: float
    """Largest |answer|."""
    dropped: int


def check(X: Floats, raw: object, rules: AnswerRules) -> tuple[Floats, AnswerSummary]:
    """What the function returned for the rows of X as float64 (m, p); rows of NaN stand for dropped answers.

    Raises `BadAnswer`, which shows the input row, where the answer does not satisfy the rules.
    """
    answer = real(X, raw)
    answer, is_scalar = _as_matrix(X, answer)
    if rules.scalar is not None and (is_scalar != rules.scalar or answer.shape[1] != rules.outputs):
        before = "one number" if rules.scalar else f"{rules.outputs} numbers"
        now = "one number" if is_scalar else f"{answer.shape[1]} numbers"
        raise BadAnswer(
            f"the function answered {before} per row before and now answers {now} ({show(answer[0])}) "
            f"at input row {show_row(X[0])}. A function must always return the same number of outputs."
        )
    rounding = float(np.finfo(answer.dtype if answer.dtype.kind == "f" else np.float64).eps)
    given = _as_float64(answer)
    values = _centred_log_odds(X, given) if rules.log_odds else given
    bad = ~_finite_rows(values)
    if bad.any():
        if not rules.drop:
            raise BadAnswer(_not_finite(X, given, bad))
        values[bad] = np.nan
    largest = float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))
    return values, AnswerSummary(values.shape[1], is_scalar, rounding, largest, int(bad.sum()))


def check_gradient(X: Floats, raw: Any, drop: bool) -> tuple[Floats, Flags]:
    """Derivatives as float64 (m, p, d), and which rows (m,) are not finite; raises `BadAnswer` unless `drop`."""
    values = _as_float64(real(X, raw, "gradient", "(m, d) or (m, p, d)"))
    if values.ndim == 2:
        values = values[:, None, :]
    m, d = X.shape
    if values.ndim != 3 or values.shape[0] != m or values.shape[2] != d:
        raise BadAnswer(f"gradient answered shape {np.shape(raw)} for {m} rows; expected ({m}, {d}) or ({m}, p, {d})")
    bad = np.asarray(~np.isfinite(values).all(axis=(1, 2)))
    if bad.any() and not drop:
        row = int(np.argmax(bad))
        raise BadAnswer(
            f"gradient answered {show(values[row])} at input row {show_row(X[row])}: that is not finite. "
            'Make it finite there, leave gradient out, or pass on_bad="drop".'
        )
    return values, bad


def show_row(x: Floats) -> str:
    """An input row with all its digits: pasted into Python, it is the same row."""
    return "[" + ", ".join(repr(float(v)) for v in x) + "]"


def show(answer: object) -> str:
    """An answer as Python would print it, cut short where it is very long."""
    if isinstance(answer, np.ndarray | np.generic):
        answer = answer.tolist()
    try:
        text = repr(answer)
    except Exception:
        return f"of type {type(answer).__name__}, which cannot be printed,"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"


def real(X: Floats, raw: Any, who: str = "the function", shape: str = "(m,) or (m, p)") -> NDArray[Any]:
    """An answer as an array of real numbers; raises a `BadAnswer` that says what it is instead."""
    try:
        values = np.asarray(raw)
    except Exception as problem:  # whatever the answer's own conversion raises
        raise BadAnswer(
            f"{who}'s answer {show(raw)} for {len(X)} rows cannot be read as an array ({problem}); "
            f"first input row {show_row(X[0])}. Return a float array of shape {shape}."
        ) from problem
    kind = values.dtype.kind
    if kind in "fiub":
        return values
    row, answer = _first_not_real(X, raw if kind in "UO" and isinstance(raw, list | tuple) else values)
    remedy = (
        "return its real part, or real and imaginary part as two outputs, as a float array"
        if kind == "c"
        else "return a float array"
    )
    raise BadAnswer(
        f"{who} answered {_KINDS.get(kind, str(values.dtype))} ({show(answer)}) "
        f"at input row {show_row(X[row])}; answers must be real numbers: {remedy} of shape {shape}."
    )


def _as_float64(answer: NDArray[Any]) -> Floats:
    """A copy; what float64 cannot hold becomes infinite, and is treated as such."""
    with np.errstate(over="ignore"):
        return answer.astype(np.float64)


def _first_not_real(X: Floats, answers: Any) -> tuple[int, Any]:
    """The first answer that holds no real number, with its row; the whole answer where it does not come in rows."""
    if np.ndim(answers) == 0 or len(answers) != len(X):
        return 0, answers
    for row, answer in enumerate(answers):
        parts = answer if isinstance(answer, Iterable) and not isinstance(answer, str | bytes) else [answer]
        if not all(isinstance(part, numbers.Real) for part in np.ravel(np.asarray(parts, dtype=object))):
            return row, answer
    return 0, answers[0]


def _as_matrix(X: Floats, values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """The answers as (m, p), and whether they came as (m,)."""
    m = len(X)
    if values.ndim == 1 and len(values) == m:
        return values[:, None], True
    if values.ndim == 2 and values.shape[0] == m and values.shape[1] > 0:
        return values, False
    raise BadAnswer(
        f"the function answered shape {values.shape} for {m} input rows; expected ({m},) or ({m}, p). "
        f"First input row {show_row(X[0])}, answer {show(values)}. "
        "If the function takes a single row, wrap it: rs.oracle.rowwise(f)."
    )


def _not_finite(X: Floats, given: Floats, bad: Flags) -> str:
    row = int(np.argmax(bad))
    why = (
        "a probability of exactly 0 or 1 has no finite log-odds"
        if np.isfinite(given[row]).all()
        else "that is not finite"
    )
    answer = given[row, 0] if given.shape[1] == 1 else given[row]
    return (
        f"the function answered {show(answer)} at input row {show_row(X[row])}: {why} "
        f"({int(bad.sum())} of {len(X)} answers in this batch). Make the function finite there, "
        'choose a smaller radius or reach, or pass on_bad="drop" to leave such points out.'
    )


def _centred_log_odds(X: Floats, values: Floats) -> Floats:
    """log p − mean(log p) over classes; one column is the probability of the second of two classes.

    The centring removes the softmax's normaliser, which is the same for all classes, and leaves the logits.
    """
    finite = _finite_rows(values)
    outside = finite & ((values < 0) | (values > 1 + _ABOVE_ONE)).any(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if values.shape[1] > 1:
            outside = outside | finite & (np.abs(values.sum(axis=1) - 1.0) > _SUM_OFF)
        if outside.any():
            row = int(np.argmax(outside))
            raise BadAnswer(
                'output="log_odds" needs probabilities (in [0, 1], each row adding up to 1), but input row '
                f"{show_row(X[row])} got {show(values[row])}. "
                'Use output="raw" for logits or regression values.'
            )
        logs: Floats = np.log(values)
        if values.shape[1] == 1:
            logs -= np.log1p(-np.minimum(values, 1.0))
        else:
            logs -= logs.mean(axis=1, keepdims=True)
    return logs


def _finite_rows(values: Floats) -> Flags:
    return np.asarray(np.isfinite(values).all(axis=1))


# -- answers as JSON -----------------------------------------------------------------------------------------


def parse_json(text: bytes | str) -> Any:
    """The parsed text; raises a `BadAnswer` that shows what came instead of JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadAnswer(f"the answer is not JSON ({problem}): {show(text[:200])}") from None


def json_to_array(value: Any) -> NDArray[Any]:
    """Nested lists of numbers as an array; null, which is how some servers write NaN, becomes NaN."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            if not all(v is None or isinstance(v, int | float) for v in array.ravel()):
                raise ValueError("not all of it is numbers")
            array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise BadAnswer(f"the answer {show(value)} is not an array of numbers ({problem})") from None
    if array.dtype.kind not in "fiub":
        raise BadAnswer(f"the answer {show(value)} is not an array of numbers")
    return array


def as_rows(array: NDArray[Any], m: int) -> NDArray[Any]:
    """The answer as (m,) or (m, p); one for another number of rows is refused."""
    if array.ndim == 0 or len(array) != m:
        raise BadAnswer(f"the answer has shape {array.shape} for {m} rows; expected ({m},) or ({m}, p)")
    return array if array.ndim <= 2 else array.reshape(m, -1)


# -- arguments -----------------------------------------------------------------------------------------------


def dimension(function: object, dim: int | None) -> int:
    """Number of inputs of a callable: `dim`, or its own attribute `dim`; they must agree where both are given."""
    if not callable(function):
        raise InvalidInput(
            f"an oracle must be callable on an (m, d) array; got {type(function).__name__}: {function!r}"
        )
    known = getattr(function, "dim", None)
    if dim is None and isinstance(known, int | np.integer):
        dim = int(known)
    if dim is None:
        raise InvalidInput("dim is missing: say how many coordinates the function takes, e.g. dim=20")
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
        raise InvalidInput(f"dim must be a positive whole number, not {dim!r}")
    if dim > _MAX_INPUTS:
        raise InvalidInput(f"dim must be at most {_MAX_INPUTS:,}, not a number of {int(dim).bit_length()} bits")
    if isinstance(known, int | np.integer) and known != dim:
        raise InvalidInput(f"dim={dim}, but the function says that it takes {known} coordinates")
    return int(dim)


def vector(value: ArrayLike | None, dim: int, default: float, name: str) -> Floats:
    """`value` as a new array (dim,) of finite numbers; a single number stands for `dim` equal ones."""
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
    """`value` as a positive finite float, or None."""
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
    """`value` as a whole number that is at least `least`, or None."""
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if isinstance(value, bool) or number != value or number < least:
        raise InvalidInput(f"{name} must be a whole number, at least {least}; got {value!r}")
    return number


def choice(value: str, name: str, allowed: tuple[str, ...]) -> str:
    """`value`, which must be one of the allowed words."""
    if value not in allowed:
        words = " or ".join(f'"{word}"' for word in allowed)
        raise InvalidInput(f"{name} must be {words}, not {value!r}")
    return value
