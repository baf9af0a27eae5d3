"""Closed forms and second terms of features in saved results: to words for JSON, and back from words and arrays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from .feature import ClosedForm, Gate, GateForm
from .response import Response

FORM_ARRAYS, GATE_ARRAYS = ("output", "constant", "line"), ("carrier", "band", "output")
"""Arrays of `ClosedForm` and of `Gate`."""
RESPONSE_ARRAYS = ("coefficients", "kinks", "kink_weights")
"""Arrays of `Response`."""


def form_to_json(form: ClosedForm | None) -> dict[str, Any] | None:
    """Return name and numbers of a closed form, whose arrays are saved beside."""
    return None if form is None else {"family": form.family, "steepness": form.steepness, "bias": form.bias}


def form_of(
    words: dict[str, Any] | None, arrays: dict[str, np.ndarray[Any, Any]], i: int, p: tuple[int, ...]
) -> ClosedForm | None:
    """Return the closed form of feature i; None if it has none, as in results of versions that did not save it."""
    if words is None:
        return None
    parts = {name: arrays[f"feature.{i}.form.{name}"] for name in FORM_ARRAYS}
    if any(part.shape != p for part in parts.values()):
        raise ValueError(f"the closed form of feature {i} does not fit outputs {p}")
    return ClosedForm(str(words["family"]), float(words["steepness"]), float(words["bias"]), **parts)


def gate_to_json(gate: Gate | None) -> dict[str, Any] | None:
    """Return the numbers of a feature's second term, whose arrays are saved beside."""
    if gate is None:
        return None
    return {"carrier_error": gate.carrier_error, "form": asdict(gate.form) if gate.form is not None else None}


def gate_of(
    words: dict[str, Any] | None, arrays: dict[str, np.ndarray[Any, Any]], i: int, radius: float
) -> Gate | None:
    """Return the second term of feature i; None if it is a plain one."""
    if words is None:
        return None
    gain = Response(radius, *(arrays[f"feature.{i}.gate.gain.{name}"] for name in RESPONSE_ARRAYS))
    parts = {name: arrays[f"feature.{i}.gate.{name}"] for name in GATE_ARRAYS}
    if parts["carrier"].shape != arrays["center"].shape or gain.coefficients.shape[1:] != arrays["bias"].shape:
        raise ValueError(f"the gate of feature {i} does not fit the function")
    form = GateForm(**words["form"]) if words["form"] is not None else None
    return Gate(gain=gain, carrier_error=float(words["carrier_error"]), form=form, **parts)
