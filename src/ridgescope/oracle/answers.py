"""Is this an answer? Shapes, types, finiteness, and probabilities turned into centred log-odds."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer
from ..geometry import Floats

Flags = NDArray[np.bool_]
_KINDS = {"c": "complex numbers", "U": "text", "S": "bytes", "O": "Python objects"}
_SHOWN = 400


@dataclass(frozen=True)
class Seen:
    """What a block of answers tells about the function."""

    outputs: int
    scalar: bool
    rounding: float
    """Relative rounding of the type the function answered in (2.2e-16 for float64, 1.2e-7 for float32)."""
    largest: float
    """Largest |answer|."""
    dropped: int


@dataclass(frozen=True)
class Rules:
    """What is asked of an answer: as many numbers as before, where that is known, and finite ones unless dropped."""

    outputs: int | None = None
    scalar: bool | None = None
    log_odds: bool = False
    drop: bool = False


def check(X: Floats, raw: object, rules: Rules) -> tuple[Floats, Seen]:
    """What the function returned for the rows of X as float64 (m, p), or a `BadAnswer` that shows the row.

    Rows of NaN stand where an answer was dropped.
    """
    answer = real(X, raw)
    answer, is_scalar = _as_rows(X, answer)
    if rules.scalar is not None and (is_scalar != rules.scalar or answer.shape[1] != rules.outputs):
        before = "one number" if rules.scalar else f"{rules.outputs} numbers"
        now = "one number" if is_scalar else f"{answer.shape[1]} numbers"
        raise BadAnswer(
            f"the function answered {before} per row before and now answers {now} ({show(answer[0])}) "
            f"at input row {show_row(X[0])}. A function must always return the same number of outputs."
        )
    rounding = float(np.finfo(answer.dtype if answer.dtype.kind == "f" else np.float64).eps)
    given = as_float64(answer)
    values = _centred_log_odds(X, given) if rules.log_odds else given
    bad = ~_finite_rows(values)
    if bad.any():
        if not rules.drop:
            raise BadAnswer(_not_finite(X, given, bad))
        values[bad] = np.nan
    largest = float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))
    return values, Seen(values.shape[1], is_scalar, rounding, largest, int(bad.sum()))


def show_row(x: Floats) -> str:
    """An input row, every digit of it: pasted into Python, it asks the same question again."""
    return "[" + ", ".join(repr(float(v)) for v in x) + "]"


def show(answer: object) -> str:
    """An answer as Python would print it, cut short where it is very long."""
    if isinstance(answer, np.ndarray | np.generic):
        answer = answer.tolist()
    try:
        text = repr(answer)
    except Exception:
        return f"of type {type(answer).__name__}, which cannot be printed,"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def real(X: Floats, raw: Any, who: str = "the function", shape: str = "(m,) or (m, p)") -> NDArray[Any]:
    """An answer as an array of real numbers, or a `BadAnswer` that says what it is instead."""
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


def as_float64(answer: NDArray[Any]) -> Floats:
    """A copy; what float64 cannot hold becomes infinite, and is met as such."""
    with np.errstate(over="ignore"):
        return answer.astype(np.float64)


def _first_not_real(X: Floats, answers: Any) -> tuple[int, Any]:
    """The first answer that is to blame, with its row; the whole answer where it does not come in rows."""
    if np.ndim(answers) == 0 or len(answers) != len(X):
        return 0, answers
    for row, answer in enumerate(answers):
        parts = answer if isinstance(answer, Iterable) and not isinstance(answer, str | bytes) else [answer]
        if not all(isinstance(part, numbers.Real) for part in np.ravel(np.asarray(parts, dtype=object))):
            return row, answer
    return 0, answers[0]


def _as_rows(X: Floats, values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
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
    outside = finite & ((values < 0) | (values > 1 + 1e-6)).any(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if values.shape[1] > 1:
            outside = outside | finite & (np.abs(values.sum(axis=1) - 1.0) > 1e-3)
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
