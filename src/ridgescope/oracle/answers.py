"""Checks of an oracle's arguments and of the function's answers: shapes, types, finiteness, probabilities.

Each check returns its input in one fixed form (float64 arrays, Python numbers), or raises an error that shows the
offending value, the input row it belongs to where there is one, and a remedy.
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
"""Number of characters of an answer that an error message shows."""
_MAX_INPUTS = 10**7
"""Largest number of inputs that is accepted: one block of 2,048 such rows would already exceed any memory."""
_LIST_BYTES, _FREE_BYTES = 90, 2**25
"""Bytes of memory that a parsed list takes, and how many all of them may take whatever the length of the text."""
LARGEST = 1e150
"""Largest size of an answer that is accepted: sums of squares of larger ones exceed the range of float64."""
_ABOVE_ONE = 1e-6
"""Largest excess of a probability over 1 that is accepted: a few roundings of single precision."""
_SUM_OFF = 1e-3
"""Largest deviation from 1 of the sum of a row of probabilities: half precision, or three printed digits."""


# -- answers of the function ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repeatability:
    """Whether the function answers the same input twice with the same value, and the noise if not."""

    deterministic: bool
    """Whether every row got the same answer twice."""
    spread: float
    """Standard deviation of one answer, estimated from the pairs of answers; 0 if deterministic."""


@dataclass(frozen=True)
class AnswerRules:
    """Requirements on a block of answers."""

    outputs: int | None = None
    """Number of outputs p of earlier answers; None before the first."""
    scalar: bool | None = None
    """Whether earlier answers had shape (m,) rather than (m, p); None before the first."""
    log_odds: bool = False
    """Whether answers are probabilities that are converted to centred log-odds."""
    drop: bool = False
    """Whether rows that are not finite, or beyond `LARGEST`, become NaN; otherwise they raise `BadAnswer`."""


@dataclass(frozen=True)
class AnswerSummary:
    """What a block of answers shows about the function: `outputs` columns, `dropped` rows replaced by NaN."""

    outputs: int
    scalar: bool
    """Whether the function answered shape (m,) rather than (m, p)."""
    rounding: float
    """Machine epsilon of the type the function answered in (2.2e-16 for float64, 1.2e-7 for float32)."""
    largest: float
    """Largest finite |answer|."""
    dropped: int


def check(X: Floats, raw: object, rules: AnswerRules) -> tuple[Floats, AnswerSummary]:
    """Return what the function answered at the rows of X (m, d) as float64 (m, p), and a summary.

    Dropped answers become rows of NaN. Raises `BadAnswer`, which shows the input row, if the answer violates the rules.
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
    bad = ~_finite_rows(values) | (np.abs(values) > LARGEST).any(axis=1)
    if bad.any():
        if not rules.drop:
            raise BadAnswer(_not_finite(X, given, bad))
        values[bad] = np.nan
    largest = float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))
    return values, AnswerSummary(values.shape[1], is_scalar, rounding, largest, int(bad.sum()))


def check_gradient(X: Floats, raw: Any, drop: bool) -> tuple[Floats, Flags]:
    """Return derivatives as float64 (m, p, d), and which rows (m,) are not finite; these raise unless `drop`."""
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
    """Return an input row as text with all its digits: pasted into Python, it is the same row."""
    return "[" + ", ".join(repr(float(v)) for v in x) + "]"


def show(answer: object) -> str:
    """Return an answer as Python would print it, shortened if it is very long."""
    if isinstance(answer, np.ndarray | np.generic):
        answer = answer.tolist()
    try:
        text = repr(answer)
    except Exception:
        return f"of type {type(answer).__name__}, which cannot be printed,"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"


def real(X: Floats, raw: Any, who: str = "the function", shape: str = "(m,) or (m, p)") -> NDArray[Any]:
    """Return an answer as an array of real numbers; raise a `BadAnswer` that shows what it is instead."""
    try:
        values = np.asarray(raw)
    except Exception as problem:  # the answer's own conversion may raise anything
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
    """Return a float64 copy, in which values beyond its range are infinite."""
    with np.errstate(over="ignore"):
        return answer.astype(np.float64)


def _first_not_real(X: Floats, answers: Any) -> tuple[int, Any]:
    """Return the first row whose answer is not real, with that answer; row 0 and all answers if they are not m rows."""
    if np.ndim(answers) == 0 or len(answers) != len(X):
        return 0, answers
    for row, answer in enumerate(answers):
        parts = answer if isinstance(answer, Iterable) and not isinstance(answer, str | bytes) else [answer]
        if not all(isinstance(part, numbers.Real) for part in np.ravel(np.asarray(parts, dtype=object))):
            return row, answer
    return 0, answers[0]


def _as_matrix(X: Floats, values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """Return the answers as (m, p), and whether they came as (m,); raise `BadAnswer` for any other shape."""
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
    """Return the error message for answers `given` (m, p) of which the rows `bad` (m,) are not finite."""
    row = int(np.argmax(bad))
    if np.isfinite(given[row]).all() and np.abs(given[row]).max() > LARGEST:
        largest = given[row, int(np.abs(given[row]).argmax())]
        return (
            f"the function answered {show(largest)} at input row {show_row(X[row])}: squares of numbers beyond "
            f"{LARGEST:g} overflow. Divide f by {abs(largest):.0e}, "
            'or pass on_bad="drop" to leave such points out.'
        )
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
    """Return log p − mean(log p) over the classes; a single column is the probability of the second of two classes.

    Centring removes the softmax's normaliser, which is the same for all classes, and leaves the logits.
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
    """Return which rows (m,) of the values (m, p) are finite."""
    return np.asarray(np.isfinite(values).all(axis=1))


# -- answers as JSON -----------------------------------------------------------------------------------------


def check_nesting(text: bytes) -> None:
    """Raise `BadAnswer` if JSON has so many lists and objects that parsing it would take far more memory than its text.

    A Python list takes some ninety bytes, and in JSON two.
    """
    lists = text.count(b"[") + text.count(b"{")
    if _LIST_BYTES * lists > 8 * len(text) + _FREE_BYTES:
        raise BadAnswer(
            f"the answer has {lists:,} lists and objects in {len(text):,} bytes, beginning with {show(text[:60])}; "
            "rows of numbers have far fewer. Ask fewer rows at once if they are meant"
        )


def parse_json(text: bytes | str) -> Any:
    """Return the parsed JSON; raise a `BadAnswer` that shows the text if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadAnswer(f"the answer is not JSON ({problem}): {show(text[:200])}") from None


def json_to_array(value: Any) -> NDArray[Any]:
    """Return nested lists of numbers as an array; null, which is how some servers write NaN, becomes NaN."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            if not all(v is None or isinstance(v, int | float) for v in array.ravel()):
                raise ValueError("it holds something else than numbers")
            array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise BadAnswer(f"the answer {show(value)} is not an array of numbers ({problem})") from None
    if array.dtype.kind not in "fiub":
        raise BadAnswer(f"the answer {show(value)} is not an array of numbers")
    return array


def as_rows(array: NDArray[Any], m: int) -> NDArray[Any]:
    """Return the answer as (m,) or (m, p); raise `BadAnswer` if it has another number of rows than m."""
    if array.ndim == 0 or len(array) != m:
        raise BadAnswer(f"the answer has shape {array.shape} for {m} rows; expected ({m},) or ({m}, p)")
    return array if array.ndim <= 2 else array.reshape(m, -1)


# -- arguments -----------------------------------------------------------------------------------------------


def dimension(function: object, dim: int | None) -> int:
    """Return the number of inputs of a callable: `dim`, or its own attribute `dim`; raise if the two disagree."""
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
    """Return `value` as a new array (dim,) of finite numbers; a single number is repeated, None means `default`."""
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
    """Return `value` as a positive finite float, or None for None; raise `InvalidInput` for anything else."""
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
    """Return `value` as a whole number of at least `least`, or None for None; raise `InvalidInput` otherwise."""
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
    """Return `value` if it is one of the allowed words; raise `InvalidInput` otherwise."""
    if value not in allowed:
        words = " or ".join(f'"{word}"' for word in allowed)
        raise InvalidInput(f"{name} must be {words}, not {value!r}")
    return value
