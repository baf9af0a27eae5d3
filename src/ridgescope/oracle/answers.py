"""Is this an answer? Shapes, types, finiteness, and probabilities turned into centred log-odds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer
from ..geometry import Floats


@dataclass(frozen=True)
class Checked:
    """Answers as float64 (m, p); rows of NaN stand where an answer was dropped."""

    values: Floats
    scalar: bool
    rounding: float
    """Relative rounding of the type the function answered in (2.2e-16 for float64, 1.2e-7 for float32)."""
    dropped: int


def check(X: Floats, raw: object, *, outputs: int | None, scalar: bool | None, log_odds: bool, drop: bool) -> Checked:
    """Turn what the function returned for the rows of X into `Checked`, or raise a `BadAnswer` that shows the row."""
    values = _as_array(X, raw)
    values, is_scalar = _as_rows(X, values)
    if scalar is not None and (is_scalar != scalar or values.shape[1] != outputs):
        before = "one number" if scalar else f"{outputs} numbers"
        raise BadAnswer(
            f"the function answered {before} per row before and now answers shape {np.shape(raw)} for {len(X)} rows; "
            f"first input row {_show(X[0])}. A function must always return the same number of outputs."
        )
    rounding = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else float(np.finfo(np.float64).eps)
    values = values.astype(np.float64)
    bad = ~np.isfinite(values).all(axis=1)
    if log_odds:
        values, bad, is_scalar = _centred_log_odds(X, values, bad, is_scalar)
    if bad.any():
        if not drop:
            row = int(np.argmax(bad))
            raise BadAnswer(
                f"the function answered {_show(_nth(raw, row))} at input row {_show(X[row])} "
                f"({int(bad.sum())} of {len(X)} answers in this batch are not finite). Make the function finite there, "
                'choose a smaller radius or reach, or pass on_bad="drop" to leave such points out.'
            )
        values[bad] = np.nan
    return Checked(values, is_scalar, rounding, int(bad.sum()))


def _as_array(X: Floats, raw: object) -> NDArray[np.floating] | NDArray[np.integer]:
    try:
        values = np.asarray(raw)
    except (ValueError, TypeError) as problem:
        raise BadAnswer(
            f"the function's answer for {len(X)} rows cannot be read as an array ({problem}); first input row {_show(X[0])}. "
            "Return a float array of shape (m,) or (m, p)."
        ) from problem
    if values.dtype.kind not in "fiub":
        what = {"c": "complex numbers", "U": "text", "S": "bytes", "O": "Python objects"}.get(values.dtype.kind, str(values.dtype))
        remedy = "return its real part, or real and imaginary part as two outputs" if values.dtype.kind == "c" else "return a float array"
        raise BadAnswer(
            f"the function answered {what} ({_show(_nth(values, 0))}) at input row {_show(X[0])}; "
            f"answers must be real numbers: {remedy} of shape (m,) or (m, p)."
        )
    return values


def _as_rows(X: Floats, values: NDArray[np.floating] | NDArray[np.integer]) -> tuple[NDArray[np.floating] | NDArray[np.integer], bool]:
    m = len(X)
    if values.ndim == 1 and len(values) == m:
        return values[:, None], True
    if values.ndim == 2 and values.shape[0] == m and values.shape[1] > 0:
        return values, False
    raise BadAnswer(
        f"the function answered shape {values.shape} for {m} input rows; expected ({m},) or ({m}, p). "
        f"First input row {_show(X[0])}, answer {_show(values)}. "
        "If the function takes a single row, wrap it: rs.oracle.rowwise(f)."
    )


def _centred_log_odds(X: Floats, values: Floats, bad: NDArray[np.bool_], scalar: bool) -> tuple[Floats, NDArray[np.bool_], bool]:
    """log p − mean(log p) over classes; one column is the probability of the second of two classes.

    The centring removes the softmax's normaliser, which is the same for all classes, and leaves the logits.
    """
    outside = ~bad & ((values < 0) | (values > 1 + 1e-6)).any(axis=1)
    if values.shape[1] > 1:
        outside |= ~bad & (np.abs(values.sum(axis=1) - 1.0) > 1e-3)
    if outside.any():
        row = int(np.argmax(outside))
        raise BadAnswer(
            f'output="log_odds" needs probabilities (in [0, 1], each row adding up to 1), but input row {_show(X[row])} '
            f'got {_show(values[row])}. Use output="raw" for logits or regression values.'
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        if values.shape[1] == 1:
            logs = np.log(values) - np.log1p(-values)
        else:
            logs = np.log(values)
            logs -= logs.mean(axis=1, keepdims=True)
    return logs, ~np.isfinite(logs).all(axis=1), scalar


def _nth(raw: object, row: int) -> object:
    try:
        return np.asarray(raw)[row]
    except (IndexError, TypeError, ValueError):
        return raw


def _show(value: object) -> str:
    return np.array2string(np.asarray(value), precision=17, threshold=40, separator=", ").replace("\n", "")
