"""A handful of answered blocks as bytes, and back: what one commit of the ledger holds.

    segment  = entry · entry · … · checksum
    entry    = digest (16) | occurrence (u32) | type (8) | axes (u8) | shape (3 × u32) | answers

The digest is that of the question; the questions themselves are not kept. The checksum covers the ledger's own
name and the segment's number too, so that a segment cannot stand in another's place.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Key = tuple[bytes, int]
"""Digest of a question, and how many times the run had asked it before."""
Raw = NDArray[Any]
Buffer = bytes | memoryview

_ENTRY = struct.Struct("<16sI8sB3I")
CHECKSUM = 16
_TYPE = re.compile(r"[<>|](?:f(?:2|4|8|12|16)|[iu](?:1|2|4|8)|b1)")


class Damaged(ValueError):
    """These bytes are not a segment; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where in a segment the answers of one block lie."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, body: bytes) -> Raw:
        count = math.prod(self.shape)
        return np.frombuffer(body, self.dtype, count, self.start).reshape(self.shape)


def digest(kind: str, X: Raw) -> bytes:
    """Of a question: what is wanted (values, gradients), how many rows of how many numbers, and every bit of them."""
    mark = hashlib.sha256(f"{kind} {X.shape[0]} {X.shape[1]} ".encode())
    mark.update(np.ascontiguousarray(X, dtype="<f8").data)
    return mark.digest()[:16]


def laid_out(blocks: Mapping[Key, Raw]) -> tuple[list[Buffer], dict[Key, Place]]:
    """Blocks as the entries of a segment, and where in it each will lie."""
    parts: list[Buffer] = []
    where: dict[Key, Place] = {}
    at = 0
    for key, answers in blocks.items():
        array = np.ascontiguousarray(answers)
        shape = (*array.shape, 0, 0)[:3]
        parts.append(_ENTRY.pack(key[0], key[1], array.dtype.str.encode(), array.ndim, *shape))
        parts.append(array.reshape(-1).view(np.uint8).data)
        where[key] = Place(at + _ENTRY.size, array.dtype, array.shape)
        at += _ENTRY.size + array.nbytes
    return parts, where


def seal(parts: Iterable[Buffer], name: bytes, number: int) -> bytes:
    """Entries with their checksum; the parts are copied once."""
    parts = list(parts)
    return b"".join([*parts, _checksum(parts, name, number)])


def check(body: object, name: bytes, number: int) -> bytes:
    """The body itself, or `Damaged`."""
    if not isinstance(body, bytes) or len(body) < CHECKSUM:
        raise Damaged("is too short to be one")
    if _checksum([memoryview(body)[:-CHECKSUM]], name, number) != body[-CHECKSUM:]:
        raise Damaged("does not have the checksum it was stored with")
    return body


def places(body: bytes) -> Iterator[tuple[Key, Place]]:
    """The blocks of a segment that has passed `check`."""
    at, end = 0, len(body) - CHECKSUM
    while at < end:
        if at + _ENTRY.size > end:
            raise Damaged("ends in the middle of a block")
        mark, occurrence, name, axes, *lengths = _ENTRY.unpack_from(body, at)
        if not 1 <= axes <= 3:
            raise Damaged(f"has a block with {axes} axes")
        dtype = known_type(name.rstrip(b"\0").decode("ascii", "replace"))
        place = Place(at + _ENTRY.size, dtype, tuple(lengths[:axes]))
        at = place.start + math.prod(place.shape) * place.dtype.itemsize
        if at > end:
            raise Damaged("ends in the middle of a block")
        yield (mark, occurrence), place


def known_type(text: object) -> np.dtype[Any]:
    """A type of real numbers by its name, or `Damaged`."""
    if not isinstance(text, str) or not _TYPE.fullmatch(text):
        raise Damaged(f"has a block of type {text!r}")
    try:
        return np.dtype(text)
    except TypeError as problem:
        raise Damaged(f"has a block of type {text!r}, which this machine does not know") from problem


def _checksum(parts: Iterable[Buffer], name: bytes, number: int) -> bytes:
    mark = hashlib.sha256(name + struct.pack("<q", number))
    for part in parts:
        mark.update(part)
    return mark.digest()[:CHECKSUM]
