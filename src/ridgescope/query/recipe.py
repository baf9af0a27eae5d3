"""Rows told by how they are made.

Where points follow from a few numbers (the grid of a slice, a seed), those go to a worker in their stead, and the
worker makes the rows again: what travels is the function, the recipe and a range. A worker whose rows differ by a
bit, because its processor adds in another order, says so and is sent the rows.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from ..geometry import Floats

_REMEMBERED = 2
"""Draws that a worker keeps."""
_drawn: OrderedDict[int, Floats] = OrderedDict()
_lock = threading.RLock()


class Recipe(Protocol):
    """A set of rows in few words."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Recipe:
        """The rows [start, stop), with no more words than they need."""

    def rows(self) -> Floats:
        """(m, d), the same bits whatever whole they are a part of."""


class Made(np.ndarray[Any, np.dtype[np.float64]]):
    """Rows that know their recipe. What is computed from them, or cut out of them, are plain arrays."""

    recipe: Recipe | None = None

    def __array_ufunc__(self, ufunc: np.ufunc, method: Any, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(x) if isinstance(x, Made) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]


def made(recipe: Recipe) -> Floats:
    """The rows of a recipe, which go on knowing it; they cannot be changed."""
    return known_as(recipe.rows(), recipe)


def known_as(rows: Floats, recipe: Recipe | None) -> Floats:
    """The same rows, with the recipe that makes them."""
    if recipe is None:
        return rows
    told = np.ascontiguousarray(rows, dtype=np.float64).view(Made)
    told.recipe = recipe
    told.setflags(write=False)
    return told


def recipe_of(rows: object) -> Recipe | None:
    """The recipe of rows that have one."""
    return rows.recipe if isinstance(rows, Made) else None


@dataclass(frozen=True, eq=False)
class Joined:
    """Recipes one after the other."""

    parts: tuple[Recipe, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def part(self, start: int, stop: int) -> Recipe:
        kept, at = [], 0
        for one in self.parts:
            low, high = max(start - at, 0), min(stop - at, len(one))
            kept += [one.part(low, high)] if low < high else []
            at += len(one)
        return kept[0] if len(kept) == 1 else Joined(tuple(kept))

    def rows(self) -> Floats:
        return np.concatenate([one.rows() for one in self.parts])


@dataclass(frozen=True, eq=False)
class Placed:
    """center + scale·u for the rows u of another recipe."""

    inner: Recipe
    center: Floats
    scale: Floats

    def __len__(self) -> int:
        return len(self.inner)

    def part(self, start: int, stop: int) -> Recipe:
        return Placed(self.inner.part(start, stop), self.center, self.scale)

    def rows(self) -> Floats:
        return np.asarray(self.center + self.scale * self.inner.rows())


@dataclass(frozen=True, eq=False)
class Turned:
    """y·basis for the rows y (m, r) of another recipe and a basis (r, d)."""

    inner: Recipe
    basis: Floats

    def __len__(self) -> int:
        return len(self.inner)

    def part(self, start: int, stop: int) -> Recipe:
        return Turned(self.inner.part(start, stop), self.basis)

    def rows(self) -> Floats:
        return _times(self.inner.rows(), self.basis)


@dataclass(frozen=True, eq=False)
class Around:
    """u + shift for the shifts (k, d), all of them for one row u of another recipe, then for the next."""

    inner: Recipe
    shifts: Floats
    span: range
    """Which of these rows."""

    def __len__(self) -> int:
        return len(self.span)

    def part(self, start: int, stop: int) -> Recipe:
        span, k = self.span[start:stop], len(self.shifts)
        first, last = span.start // k, -(-span.stop // k)
        return Around(self.inner.part(first, last), self.shifts, range(span.start - first * k, span.stop - first * k))

    def rows(self) -> Floats:
        return around_each(self.inner.rows(), self.shifts)[self.span.start : self.span.stop]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Random rows: a function, its arguments, and the state of the generator that it then draws from."""

    name: int
    """Tells draws of one process apart, so that a worker makes each but once for all of its parts."""
    make: Callable[..., Floats]
    arguments: tuple[Any, ...]
    state: Mapping[str, Any]
    span: range

    def __len__(self) -> int:
        return len(self.span)

    def part(self, start: int, stop: int) -> Recipe:
        return replace(self, span=self.span[start:stop])

    def rows(self) -> Floats:
        with _lock:
            whole = _drawn.pop(self.name, None)
            _drawn[self.name] = whole = self._whole() if whole is None else whole
            while len(_drawn) > _REMEMBERED:
                _drawn.popitem(last=False)
        return np.asarray(whole[self.span.start : self.span.stop])

    def _whole(self) -> Floats:
        bits = getattr(np.random, self.state["bit_generator"])()
        bits.state = self.state
        return self.make(*self.arguments, np.random.Generator(bits))


def drawn(rows: Floats, make: Callable[..., Floats], *arguments: Any, state: Mapping[str, Any]) -> Floats:
    """Rows that `make(*arguments, rng)` gave when the generator was in this state. Arguments that are rows with a
    recipe of their own go on as that recipe."""
    told = tuple(recipe_of(a) or a for a in arguments)
    return known_as(rows, Drawn(uuid4().int, make, told, state, range(len(rows))))


def turned(Y: Floats, basis: Floats) -> Floats:
    """(m, d): Y·basis; rows with a recipe go on having one."""
    whole = recipe_of(Y)
    return Y @ basis if whole is None else known_as(_times(np.asarray(Y), basis), Turned(whole, basis))


def _times(y: Floats, basis: Floats) -> Floats:
    """Row by row, not by BLAS, whose rounding depends on how many rows there are."""
    return np.asarray(np.einsum("mr,rd->md", y, basis))


def around(X: Floats, shifts: Floats, start: int, stop: int) -> Floats:
    """(m·k, d): each of the rows [start, stop) of X moved by the shifts (k, d) in turn, and then the next."""
    whole, stop = recipe_of(X), min(stop, len(X))
    rows = around_each(np.asarray(X)[start:stop], shifts)
    return known_as(rows, Around(whole.part(start, stop), shifts, range(len(rows))) if whole is not None else None)


def around_each(rows: Floats, shifts: Floats) -> Floats:
    """(m·k, d)"""
    return np.asarray((rows[:, None, :] + shifts).reshape(-1, rows.shape[1]))


@dataclass(frozen=True)
class Told:
    """What a worker is sent in place of rows: how to make them, and what they must come to."""

    recipe: Recipe
    mark: int

    @classmethod
    def of(cls, recipe: Recipe, rows: Floats) -> Told:
        return cls(recipe, _mark(rows))

    def rows(self) -> Floats | None:
        """The rows; None where this machine makes others."""
        rows = np.ascontiguousarray(self.recipe.rows())
        return rows if _mark(rows) == self.mark else None


def _mark(rows: Floats) -> int:
    return zlib.crc32(np.ascontiguousarray(rows).data)
