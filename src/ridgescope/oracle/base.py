"""The one door to the function: every query of the program goes through an `Oracle`.

It batches, counts by stage, keeps the budget and the reach, checks each answer, and maps the centred and
scaled coordinates u that the rest of the program works in to the function's own x = center + scale·u.
It knows nothing of what the questions are for.
"""

from __future__ import annotations

import copy
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BadAnswer, BudgetExhausted, InvalidInput, OracleFailed, ReachExceeded, RidgescopeError
from ..geometry import Floats
from ..query.batching import Kind, ask_in_batches, batch_size, block_size, cuts, grouped, reduce_in_batches
from ..query.ledger import Ledger
from ..query.recipe import Placed, Recipe, recipe_of
from ..query.workers import Portable
from . import answers
from .arguments import count, dimension, positive, vector
from .reduction import Finish, Keep, Reduced, Reduction

Function = Callable[[Floats], Any]

_FIRST = 256
"""Rows of the very first question, asked before the number of outputs is known."""


@dataclass(frozen=True)
class Repeatability:
    """Does the function answer the same input twice with the same value?"""

    deterministic: bool
    spread: float
    """Standard deviation of one answer, estimated from the pairs; 0 where deterministic."""


class Oracle:
    """A function that can be asked, with a counter, a budget and a fence.

    `function` maps an (m, d) float64 array to (m,) or (m, p) real numbers. `gradient`, if given, maps the
    same array to (m, d) or (m, p, d) derivatives with respect to x. With `on_bad="drop"` an answer that is
    not finite becomes a row of NaN and is counted in `dropped`. With `output="log_odds"` probabilities become
    centred log-probabilities, which turns a softmax back into a sum of features.
    """

    def __init__(
        self,
        function: Function,
        *,
        dim: int | None = None,
        center: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        reach: float | None = None,
        max_queries: int | None = None,
        on_bad: Literal["raise", "drop"] = "raise",
        output: Literal["raw", "log_odds"] = "raw",
        batch: int | None = None,
        gradient: Function | None = None,
        executor: Executor | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidInput(
                f"an oracle must be callable on an (m, d) array; got {type(function).__name__}: {function!r}"
            )
        self.dim = dimension(function, dim)
        self.function = function
        self.center = vector(center, self.dim, 0.0, "center")
        self.scale = vector(scale, self.dim, 1.0, "scale")
        if not (self.scale > 0).all():
            raise InvalidInput(f"scale must be positive in every coordinate; got {self.scale.min()}")
        if on_bad not in ("raise", "drop"):
            raise InvalidInput(f'on_bad must be "raise" or "drop", not {on_bad!r}')
        if output not in ("raw", "log_odds"):
            raise InvalidInput(f'output must be "raw" or "log_odds", not {output!r}')
        if gradient is not None and output == "log_odds":
            raise InvalidInput(
                'gradient and output="log_odds" do not go together: let the function return log-odds itself, '
                'with their gradient, and use output="raw"'
            )
        self.reach = positive(reach, "reach")
        self.max_queries = count(max_queries, "max_queries")
        self.on_bad, self.output = on_bad, output
        self._gradient, self.executor = gradient, executor
        self._batch = count(batch, "batch", least=1)
        self.ledger: Ledger | None = None
        self._ask_value = Portable(partial(_ask, function))
        self._ask_gradient = Portable(partial(_ask, gradient)) if gradient is not None else None
        self._lock = threading.Lock()
        self._start_counting()

    def _start_counting(self) -> None:
        self.queries_by_stage: Counter[str] = Counter()
        self.planned: dict[str, int] = {}
        """What a stage will have asked at most when it is done, where it has said so."""
        self._asked = 0
        self.dropped = 0
        self.outputs: int | None = None
        """p, known after the first answer."""
        self.scalar: bool | None = None
        self.rounding = float(np.finfo(np.float64).eps)
        self.largest = 0.0
        """Largest |answer| so far; times `rounding`, the noise that the answer's own type makes."""

    # -- asking ---------------------------------------------------------------------------------------------

    def __call__(self, u: ArrayLike, *, stage: str = "other") -> Floats:
        """Answers (m, p) at the rows of u, where x = center + scale·u is what the function sees."""
        U, recipe = self._admit(u, stage), recipe_of(u)
        if not len(U):
            return np.empty((0, self.outputs or 1))
        known = self._batch is not None or self.outputs is not None
        if known or len(U) <= _FIRST:
            return self._ask(U, recipe)
        # how much memory an answer takes is not known before the first one
        return np.concatenate([self._ask(U[:_FIRST]), self._ask(U[_FIRST:])])

    def reduced(
        self,
        u: ArrayLike,
        reduction: Reduction,
        *,
        stage: str = "other",
        keep: Keep | None = None,
        radius: float | None = None,
    ) -> Floats:
        """`reduction` of the answers at the rows of u, taken where the function is called; see `oracle.reduction`.

        The rows come in whole groups. `keep` gets a few rows within `radius` of the centre, with their answers.
        """
        if len(np.asarray(u)) % reduction.group:
            raise InvalidInput(f"a reduction of groups of {reduction.group} rows was given {len(np.asarray(u))} rows")
        U, recipe = self._admit(u, stage), recipe_of(u)
        most = self.batch if self._batch is not None or self.outputs is not None else _FIRST
        size = grouped(self._batch or block_size(len(U), most), reduction.group, most)
        if not size or not len(U):  # a group is more than the function takes at once: its answers are put together here
            return reduction(U, self._ask(U, recipe) if len(U) else np.empty((0, self.outputs or 1)))
        then = Finish(reduction, self._rules, self.center, self.scale, radius if keep is not None else None)
        X, placed = self._placed(U, recipe)
        parts = reduce_in_batches(
            self._ask_value, Portable(then), self._taken, X, size, self.executor, self.ledger, placed
        )
        for part, rows in zip(parts, cuts(len(U), size), strict=True):
            if keep is not None and len(part.which):
                keep(U[rows][part.which], part.values)
        return np.concatenate([part.numbers for part in parts])

    def expect(self, queries: int, *, stage: str) -> None:
        """Say that a stage is about to ask so many rows at most, for whoever watches; it binds nobody."""
        self.planned[stage] = self.queries_by_stage[stage] + queries

    def counted(self, stage: str) -> Callable[[Floats], Floats]:
        """The oracle as a plain function whose queries count for `stage`."""
        return lambda u: self(u, stage=stage)

    @property
    def has_gradient(self) -> bool:
        return self._gradient is not None

    def gradient(self, u: ArrayLike, *, stage: str = "other") -> Floats:
        """Derivatives (m, p, d) with respect to u. One row counts as one query."""
        if self._ask_gradient is None:
            raise InvalidInput("this oracle offers no gradient; pass gradient=… to rs.oracle.Oracle")
        U = self._admit(u, stage)
        if not len(U):
            return np.empty((0, self.outputs or 1, self.dim))
        batch = self._batch or block_size(len(U), batch_size(self.dim, self.dim * (self.outputs or 1)))
        return self._answered(self._ask_gradient, self._check_gradient, U, batch, "gradient", recipe_of(u))

    def repeats(self, u: ArrayLike, *, stage: str = "other") -> Repeatability:
        """Ask the rows of u twice and compare; costs two queries a row."""
        first, second = self(u, stage=stage), self(u, stage=stage)
        gap = (second - first)[np.isfinite(first[:, 0]) & np.isfinite(second[:, 0])]
        spread = float(np.sqrt(np.mean(gap**2) / 2.0)) if gap.size else 0.0
        same = gap.size > 0 and np.array_equal(first, second, equal_nan=True)
        return Repeatability(deterministic=same, spread=spread)

    # -- what is known --------------------------------------------------------------------------------------

    @property
    def queries(self) -> int:
        return sum(self.queries_by_stage.values())

    @property
    def asked(self) -> int:
        """Rows that the function was really asked: without those that the ledger had, with those it was known by."""
        return self._asked + (self.ledger.bought if self.ledger is not None else 0)

    @property
    def remaining(self) -> float:
        """Queries left in the budget; infinite without one."""
        return float("inf") if self.max_queries is None else self.max_queries - self.queries

    @property
    def batch(self) -> int:
        """Most rows per call of the function."""
        return self._batch if self._batch is not None else batch_size(self.dim, self.outputs or 1)

    @property
    def resolution(self) -> float:
        """Size of the rounding errors in the answers seen so far, in f's own units."""
        return self.rounding * self.largest

    def fresh(
        self,
        *,
        center: ArrayLike | None = None,
        reach: float | None = None,
        max_queries: int | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """The same function, counters at zero; where given, another centre, reach, budget or executor."""
        other = copy.copy(self)
        other.executor, other.ledger = self.executor, self.ledger  # a copy goes by way of __getstate__
        other._start_counting()
        if center is not None:
            other.center = vector(center, self.dim, 0.0, "center")
        if reach is not None:
            other.reach = positive(reach, "reach")
        if max_queries is not None:
            other.max_queries = count(max_queries, "max_queries")
        if executor is not None:
            other.executor = executor
        return other

    @contextmanager
    def recording(self, path: str | os.PathLike[str] | None) -> Iterator[None]:
        """Inside, every answer is stored in the ledger at `path` before it is used, and nothing in it is asked again.

        A ledger that has answers is first compared with the function, at a few of its questions.
        """
        if path is None:
            yield
            return
        with Ledger(path, self.dim, self._batch) as ledger:
            asks = {"value": self._ask_value, "gradient": self._ask_gradient}
            ledger.recognise({kind: ask for kind, ask in asks.items() if ask is not None}, self._within)
            self.ledger = ledger
            try:
                yield
            finally:
                self._asked, self.ledger = self.asked, None

    def settle(self) -> None:
        """Say that hardly anything will be asked any more: a ledger puts its file in order meanwhile."""
        if self.ledger is not None:
            self.ledger.settle()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "executor", "ledger")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self.executor, self.ledger = threading.Lock(), None, None

    def _within(self, X: Floats) -> NDArray[np.bool_]:
        """Which rows of X may be asked."""
        far = np.linalg.norm((X - self.center) / self.scale, axis=1)
        return np.asarray(far <= (np.inf if self.reach is None else self.reach * (1.0 + 1e-9)))

    # -- inside ---------------------------------------------------------------------------------------------

    def _admit(self, u: ArrayLike, stage: str) -> Floats:
        """Check shape, reach and budget, and count, all before anything is asked."""
        U = np.ascontiguousarray(u, dtype=np.float64)
        if U.ndim != 2 or U.shape[1] != self.dim:
            raise InvalidInput(f"queries must form an (m, {self.dim}) array; got shape {U.shape}")
        if not np.isfinite(U).all():
            raise InvalidInput(f"a query has a coordinate that is not finite: {U[~np.isfinite(U).all(axis=1)][0]}")
        if self.reach is not None and len(U):
            far = float(np.sqrt(np.einsum("md,md->m", U, U).max()))
            if far > self.reach * (1.0 + 1e-12):
                raise ReachExceeded(
                    f"stage '{stage}' wanted to ask at distance {far:.17g}, beyond reach={self.reach:.17g}. "
                    "This is a fault in ridgescope; please report it with the seed."
                )
        with self._lock:
            if self.max_queries is not None and self.queries + len(U) > self.max_queries:
                raise BudgetExhausted(self.queries, len(U), self.max_queries, stage)
            self.queries_by_stage[stage] += len(U)
        return U

    def _ask(self, U: Floats, recipe: Recipe | None = None) -> Floats:
        batch = self._batch or block_size(len(U), self.batch)
        return self._answered(self._ask_value, self._check, U, batch, "value", recipe)

    def _answered(
        self,
        ask: Portable,
        check: Callable[[Floats, Any], Floats],
        U: Floats,
        batch: int,
        kind: Kind,
        recipe: Recipe | None,
    ) -> Floats:
        X, placed = self._placed(U, recipe)
        return ask_in_batches(ask, check, X, batch, self.executor, self.ledger, kind, placed)

    def _placed(self, U: Floats, recipe: Recipe | None) -> tuple[Floats, Recipe | None]:
        """What the function will see, counted as asked unless there is a ledger that counts."""
        if self.ledger is None:
            with self._lock:
                self._asked += len(U)
        placed = Placed(recipe, self.center, self.scale) if recipe is not None else None
        return self.center + self.scale * U, placed

    @property
    def _rules(self) -> answers.Rules:
        return answers.Rules(self.outputs, self.scalar, self.output == "log_odds", self.on_bad == "drop")

    def _check(self, X: Floats, raw: Any) -> Floats:
        values, seen = answers.check(X, raw, self._rules)
        self._note(seen)
        return values

    def _taken(self, part: Reduced) -> Reduced:
        self._note(part.seen)
        return part

    def _note(self, seen: answers.Seen) -> None:
        with self._lock:
            if self.scalar is not None and (seen.scalar, seen.outputs) != (self.scalar, self.outputs):
                raise BadAnswer(
                    f"the function answered {self.outputs} numbers per row before and now answers {seen.outputs}. "
                    "A function must always return the same number of outputs."
                )
            self.outputs, self.scalar = seen.outputs, seen.scalar
            self.rounding = max(self.rounding, seen.rounding)
            self.largest = max(self.largest, seen.largest)
            self.dropped += seen.dropped

    def _check_gradient(self, X: Floats, raw: Any) -> Floats:
        values = answers.as_float64(answers.real(X, raw, "gradient", "(m, d) or (m, p, d)"))
        if values.ndim == 2:
            values = values[:, None, :]
        if values.ndim != 3 or values.shape[0] != len(X) or values.shape[2] != self.dim:
            m, d = X.shape
            raise BadAnswer(
                f"gradient answered shape {np.shape(raw)} for {m} rows; expected ({m}, {d}) or ({m}, p, {d})"
            )
        bad = ~np.isfinite(values).all(axis=(1, 2))
        if bad.any() and self.on_bad == "raise":
            row = int(np.argmax(bad))
            raise BadAnswer(
                f"gradient answered {answers.show(values[row])} at input row "
                f"{answers.show_row(X[row])}: that is not finite. Make it finite "
                'there, leave gradient out, or pass on_bad="drop".'
            )
        with self._lock:
            self.dropped += int(bad.sum())
        values = values * self.scale
        values[bad] = np.nan
        return values


def _ask(function: Function, X: Floats) -> Any:
    """One block, wherever it runs: in this thread, in another, or in another process."""
    try:
        return function(X.copy())  # the function may do with its rows what it likes
    except RidgescopeError:
        raise
    except Exception as problem:
        raise OracleFailed(
            f"the function raised {type(problem).__name__}: {problem} when asked {len(X)} rows, "
            f"the first of them {answers.show_row(X[0])}. "
            "If it takes one row at a time, wrap it: rs.oracle.rowwise(f)."
        ) from problem


class rowwise:
    """A function of a single row (d,) made into one of many rows (m, d)."""

    def __init__(self, function: Callable[[Floats], Any], *, dim: int | None = None) -> None:
        self.function = function
        if dim is not None or hasattr(function, "dim"):
            self.dim = dim if dim is not None else function.dim  # type: ignore[attr-defined]

    def __call__(self, X: Floats) -> list[Any]:
        return [self.function(x) for x in X]


def as_oracle(function: Function | Oracle, *, dim: int | None = None) -> Oracle:
    """An `Oracle` for anything callable; one that is an `Oracle` already is kept, its counters at zero."""
    if isinstance(function, Oracle):
        if dim is not None and dim != function.dim:
            raise InvalidInput(f"dim={dim}, but the oracle takes {function.dim} coordinates")
        return function.fresh()
    return Oracle(function, dim=dim)
