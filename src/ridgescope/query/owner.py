"""Whose answers a ledger holds: dimension, batch, and a few questions with their answers to know the function by."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats
from .segment import Damaged, Raw

FORMAT = 1
_SAMPLE = 6
_KINDS = ("value", "gradient")


class Stranger(ValueError):
    """The answers are another function's, or of a run that asks otherwise; the message says why."""


@dataclass(frozen=True)
class Owner:
    """The function, by some of what it said."""

    name: str
    """32 hexadecimal digits, drawn once: that of the ledger."""
    dim: int
    batch: int | None
    kind: str
    questions: list[Any]
    answers: list[Any]

    @classmethod
    def of(cls, dim: int, batch: int | None, kind: str, X: Floats, answers: Raw) -> Owner:
        few = answers[:_SAMPLE].astype(np.float64)
        return cls(os.urandom(16).hex(), dim, batch, kind, X[:_SAMPLE].tolist(), few.tolist())

    def pack(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def unpack(cls, content: bytes) -> Owner:
        """What `pack` made; anything else is `Damaged`, another format a `Stranger`."""
        try:
            words = json.loads(content)
            version = words.pop("format")
            if version == FORMAT:
                owner = cls(**words)
                owner._validate()
                return owner
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as problem:
            raise Damaged(f"does not say whose answers these are ({problem})") from problem
        raise Stranger(f"has ledger format {version!r:.40}, and this ridgescope reads {FORMAT}")

    def _validate(self) -> None:
        X, answers = np.array(self.questions, dtype=np.float64), np.array(self.answers, dtype=np.float64)
        plain = isinstance(self.name, str) and type(self.dim) is int and type(self.batch) in (int, type(None))
        if not plain or self.kind not in _KINDS or len(bytes.fromhex(self.name)) != 16 or len(self.name) != 32:
            raise ValueError("a name, a number or a kind is not one")
        if not (1 <= len(X) <= _SAMPLE and X.shape == (len(answers), self.dim) and np.isfinite(X).all()):
            raise ValueError("its questions and answers do not fit")

    def recognise(
        self,
        dim: int,
        batch: int | None,
        asks: Mapping[str, Callable[[Floats], Any]],
        allowed: Callable[[Floats], NDArray[np.bool_]],
    ) -> int:
        """Rows it took to see that these are the answers of the function that `asks` calls; or a `Stranger`.

        The function is asked twice, so that noise is not taken for another function.
        """
        if self.batch != batch:
            raise Stranger(
                f"was written with batch={self.batch} and this run has batch={batch}: its questions would be cut "
                "differently and asked again"
            )
        if self.dim != dim:
            raise Stranger(f"holds the answers of another function: it has dim={self.dim}, this one dim={dim}")
        if self.kind not in asks:
            raise Stranger(f"holds the answers of another function: it has a {self.kind}, this one has none")
        X, before = np.array(self.questions), np.array(self.answers, dtype=np.float64)
        inside = allowed(X)
        if not inside.any():
            raise Stranger("is known by questions none of which lies within this run's reach")
        X, before = X[inside], before[inside]
        now, again = _heard(asks[self.kind], X), _heard(asks[self.kind], X)
        if now.shape != before.shape or again.shape != before.shape:
            raise Stranger(
                "holds the answers of another function: "
                f"it answers with shape {before.shape[1:]}, this one with {now.shape[1:]}"
            )
        eps = float(np.finfo(now.dtype if now.dtype.kind == "f" else np.float64).eps)
        first = _differing(before, now.astype(np.float64), again.astype(np.float64), np.sqrt(eps))
        if first is not None:
            raise Stranger(
                f"holds the answers of another function: at {X[first].tolist()} it has {before[first].tolist()}, "
                f"this one answers {now[first].tolist()}"
            )
        return 2 * len(X)


def _heard(ask: Callable[[Floats], Any], X: Floats) -> Raw:
    try:
        answer = np.asarray(ask(X))
    except (ValueError, TypeError) as problem:
        raise Stranger(f"holds numbers, and the function's answer cannot be read as an array ({problem})") from problem
    return answer if answer.dtype.kind in "fiub" else np.empty(0)


def _differing(before: Floats, now: Floats, again: Floats, rounding: float) -> int | None:
    """The first row that neither rounding nor noise explains."""
    size = np.abs(before).max(initial=0.0, where=np.isfinite(before))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(now - again)
        allowance = 10.0 * gap.max(initial=0.0, where=np.isfinite(gap)) + rounding * size
        same = (np.abs(now - before) <= allowance) | ~(np.isfinite(now) | np.isfinite(before))
    rows = np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))
    return int(rows[0]) if len(rows) else None
