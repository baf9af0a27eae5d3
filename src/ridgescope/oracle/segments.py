"""The content of a ledger file: the fingerprint of the function, and answered blocks packed into segments.

A segment is what one commit of the ledger stores:

    segment  = entry · entry · … · checksum
    entry    = digest (16) | occurrence (u32) | type (8) | axes (u8) | shape (3 × u32) | answers

Numbers in parentheses are bytes. The digest is that of the block of rows that was asked; the rows themselves are not
kept. The checksum also covers the ledger's own name and the segment's number, so that no segment can take the place
of another. Segment 0 holds the fingerprint as JSON in place of entries.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..geometry import Floats

Key = tuple[bytes, int]
"""Digest of a block of rows, and how many times the run had asked the same block before."""
Raw = NDArray[Any]
"""Answers in the type in which the function gave them."""
Buffer = bytes | memoryview

FORMAT = 1
"""Version of the file format; a file of another version is refused."""
CHECKSUM = 16
"""Bytes of a digest and of a checksum: 128 bits of SHA-256, at which chance collisions play no role."""
_ENTRY = struct.Struct("<16sI8sB3I")
_REAL_TYPE = re.compile(r"[<>|](?:f(?:2|4|8|12|16)|[iu](?:1|2|4|8)|b1)")
_KINDS = ("value", "gradient")
_FINGERPRINT_ROWS = 6
"""Rows in a fingerprint. Resuming costs twice as many queries. Even one generic row distinguishes two functions; with
six, some still lie inside the ball when a run is resumed with a smaller reach."""
NOISE_ALLOWANCE = 10.0
"""Empirical: how many times the largest difference between two new answers a stored answer may be off. Larger values
accept more functions that are merely similar; smaller ones refuse the same noisy function by chance."""


class Damaged(ValueError):
    """The bytes are not a valid segment; the message says why."""


class FingerprintMismatch(ValueError):
    """The ledger belongs to another function, or to a run with other settings; the message says which."""


# -- segments ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockLocation:
    """Position of one block's answers in a segment (`start`, in bytes), and their type and shape."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, body: bytes) -> Raw:
        """Return the answers as a read-only view of the segment's bytes."""
        count = math.prod(self.shape)
        return np.frombuffer(body, self.dtype, count, self.start).reshape(self.shape)


def digest(kind: str, X: Raw) -> bytes:
    """Return 16 bytes that identify a block: its kind (values or gradients), its shape, and every bit of its rows."""
    hashed = hashlib.sha256(f"{kind} {X.shape[0]} {X.shape[1]} ".encode())
    hashed.update(np.ascontiguousarray(X, dtype="<f8").data)
    return hashed.digest()[:CHECKSUM]


def pack_blocks(blocks: Mapping[Key, Raw]) -> tuple[list[Buffer], dict[Key, BlockLocation]]:
    """Return the entries of a segment for these answers, and the location of each block in the segment."""
    parts: list[Buffer] = []
    where: dict[Key, BlockLocation] = {}
    at = 0
    for key, answers in blocks.items():
        array = np.ascontiguousarray(answers)
        shape = (*array.shape, 0, 0)[:3]
        parts.append(_ENTRY.pack(key[0], key[1], array.dtype.str.encode(), array.ndim, *shape))
        parts.append(array.reshape(-1).view(np.uint8).data)
        where[key] = BlockLocation(at + _ENTRY.size, array.dtype, array.shape)
        at += _ENTRY.size + array.nbytes
    return parts, where


def seal(parts: Iterable[Buffer], name: bytes, number: int) -> bytes:
    """Return the parts joined and followed by their checksum, copying them only once."""
    parts = list(parts)
    return b"".join([*parts, _checksum(parts, name, number)])


def check(body: object, name: bytes, number: int) -> bytes:
    """Return the body; raise `Damaged` if its checksum is not that of this ledger and segment number."""
    if not isinstance(body, bytes) or len(body) < CHECKSUM:
        raise Damaged("is too short")
    if _checksum([memoryview(body)[:-CHECKSUM]], name, number) != body[-CHECKSUM:]:
        raise Damaged("does not have the checksum it was stored with")
    return body


def block_locations(body: bytes) -> Iterator[tuple[Key, BlockLocation]]:
    """Yield the key and location of each block in a segment that has passed `check`."""
    at, end = 0, len(body) - CHECKSUM
    while at < end:
        if at + _ENTRY.size > end:
            raise Damaged("ends in the middle of a block")
        mark, occurrence, name, axes, *lengths = _ENTRY.unpack_from(body, at)
        if not 1 <= axes <= 3:
            raise Damaged(f"has a block with {axes} axes")
        dtype = _real_type(name.rstrip(b"\0").decode("ascii", "replace"))
        block = BlockLocation(at + _ENTRY.size, dtype, tuple(lengths[:axes]))
        at = block.start + math.prod(block.shape) * block.dtype.itemsize
        if at > end:
            raise Damaged("ends in the middle of a block")
        yield (mark, occurrence), block


def _real_type(text: str) -> np.dtype[Any]:
    """Return the real type that `text` names; raise `Damaged` for anything else, such as Python objects."""
    if not _REAL_TYPE.fullmatch(text):
        raise Damaged(f"has a block of type {text!r}")
    try:
        return np.dtype(text)
    except TypeError as problem:
        raise Damaged(f"has a block of type {text!r}, which this machine does not know") from problem


def _checksum(parts: Iterable[Buffer], name: bytes, number: int) -> bytes:
    """Return the checksum of the parts, of the ledger's name and of the segment's number."""
    hashed = hashlib.sha256(name + struct.pack("<q", number))
    for part in parts:
        hashed.update(part)
    return hashed.digest()[:CHECKSUM]


# -- the fingerprint -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fingerprint:
    """Identifies the function of a ledger: its dimension, the run's batch, and a few rows with their answers."""

    name: str
    """Name of the ledger: 32 hexadecimal digits, drawn at random once."""
    dim: int
    batch: int | None
    kind: str
    """Kind of the answers: "value" or "gradient"."""
    questions: list[Any]
    """(k, d) rows, with k at most six."""
    answers: list[Any]
    """(k, …) answers of the function at these rows."""

    @classmethod
    def of(cls, dim: int, batch: int | None, kind: str, X: Floats, answers: Raw) -> Fingerprint:
        """Return a fingerprint of the first rows of X (m, d) and their answers, under a new random name."""
        few = answers[:_FINGERPRINT_ROWS].astype(np.float64)
        return cls(os.urandom(16).hex(), dim, batch, kind, X[:_FINGERPRINT_ROWS].tolist(), few.tolist())

    def pack(self) -> bytes:
        """Return the fingerprint as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def unpack(cls, content: bytes) -> Fingerprint:
        """Return the fingerprint in this JSON; raise `Damaged`, or `FingerprintMismatch` for another format version."""
        try:
            fields = json.loads(content)
            version = fields.pop("format")
            if version == FORMAT:
                found = cls(**fields)
                found._validate()
                return found
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as problem:
            raise Damaged(f"does not identify the function ({problem})") from problem
        raise FingerprintMismatch(f"has ledger format {version!r:.40}, and this ridgescope reads {FORMAT}")

    def _validate(self) -> None:
        """Raise `ValueError` if a field has a wrong type or shape."""
        X, answers = np.array(self.questions, dtype=np.float64), np.array(self.answers, dtype=np.float64)
        plain = isinstance(self.name, str) and type(self.dim) is int and type(self.batch) in (int, type(None))
        if not plain or self.kind not in _KINDS or len(bytes.fromhex(self.name)) != 16 or len(self.name) != 32:
            raise ValueError("a field has a wrong type or an unknown value")
        if not (1 <= len(X) <= _FINGERPRINT_ROWS and X.shape == (len(answers), self.dim) and np.isfinite(X).all()):
            raise ValueError("its rows and answers have shapes or values that do not fit")

    def verify(
        self,
        dim: int,
        batch: int | None,
        functions: Mapping[str, Callable[[Floats], Any]],
        within_reach: Callable[[Floats], NDArray[np.bool_]],
    ) -> int:
        """Ask the function again at the stored rows; return the number of rows asked.

        Each row is asked twice, so that a noisy function is not mistaken for another one. `functions` maps "value" and
        "gradient" to the functions that answer them, and only rows for which `within_reach` is True are asked. Raises
        `FingerprintMismatch` if settings or answers differ.
        """
        if self.batch != batch:
            raise FingerprintMismatch(
                f"was written with batch={self.batch} and this run has batch={batch}: its queries would be cut into "
                "other blocks and asked again"
            )
        if self.dim != dim:
            raise FingerprintMismatch(
                f"holds the answers of another function: it has dim={self.dim}, this one dim={dim}"
            )
        if self.kind not in functions:
            raise FingerprintMismatch(
                f"holds the answers of another function: it holds {self.kind}s, this function has none"
            )
        X, before = np.array(self.questions), np.array(self.answers, dtype=np.float64)
        inside = within_reach(X)
        if not inside.any():
            raise FingerprintMismatch("has a fingerprint none of whose rows lies within this run's reach")
        X, before = X[inside], before[inside]
        now, again = real_answer(functions[self.kind], X), real_answer(functions[self.kind], X)
        if now.shape != before.shape or again.shape != before.shape:
            raise FingerprintMismatch(
                "holds the answers of another function: "
                f"it answers with shape {before.shape[1:]}, this one with {now.shape[1:]}"
            )
        eps = float(np.finfo(now.dtype if now.dtype.kind == "f" else np.float64).eps)
        row = _first_difference(before, now.astype(np.float64), again.astype(np.float64), np.sqrt(eps))
        if row is not None:
            raise FingerprintMismatch(
                f"holds the answers of another function: at {X[row].tolist()} it has {before[row].tolist()}, "
                f"this one answers {now[row].tolist()}"
            )
        return 2 * len(X)


def real_answer(function: Callable[[Floats], Any], X: Floats) -> Raw:
    """Return the function's answer as an array of real numbers; an empty one if it holds anything else."""
    try:
        answer = np.asarray(function(X))
    except (ValueError, TypeError) as problem:
        raise FingerprintMismatch(
            f"holds numbers, and the function's answer cannot be read as an array ({problem})"
        ) from problem
    return answer if answer.dtype.kind in "fiub" else np.empty(0)


def _first_difference(before: Floats, now: Floats, again: Floats, rounding: float) -> int | None:
    """Return the first row where rounding and noise cannot explain the change from the stored answer, or None.

    `now` and `again` are two new answers, from which the noise is estimated. `rounding` is relative to the largest
    stored answer: half the digits of the type, which leaves room for another processor or version of a library.
    """
    size = np.abs(before).max(initial=0.0, where=np.isfinite(before))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(now - again)
        allowance = NOISE_ALLOWANCE * gap.max(initial=0.0, where=np.isfinite(gap)) + rounding * size
        same = (np.abs(now - before) <= allowance) | ~(np.isfinite(now) | np.isfinite(before))
    rows = np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))
    return int(rows[0]) if len(rows) else None
