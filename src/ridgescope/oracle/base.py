"""`Oracle`: every query of the program goes through it.

It checks that a query is allowed (shape, reach, budget), counts it by stage, cuts it into blocks and checks the
answers. It maps the centred and scaled coordinates u that the rest of the program uses to the function's own
coordinates x = center + scale·u, and is independent of what the answers are used for.
"""

from __future__ import annotations

import copy
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BudgetExhausted, InvalidInput, ReachExceeded
from ..geometry import Floats
from . import answers
from .answers import Repeatability
from .batching import Route, ask_in_batches, batch_size, block_size
from .ledger import Ledger
from .workers import Function, PickledFunction, call_function

_FIRST_ROWS = 256
"""Rows of the first call if more are wanted: before it, the memory that an answer takes is not known."""
_REACH_ROUNDING = 1e-12
"""Relative excess over the reach that is attributed to the rounding of a point on the sphere itself."""
_REPLAY_ROUNDING = 1e-9
"""The same for rows of a ledger, which were mapped to x = center + scale·u and back."""


class Oracle:
    """A function that can be queried, with a counter, a budget and a limit on the distance from the centre.

    Parameters
    ----------
    function
        Maps an (m, d) float64 array to (m,) or (m, p) real numbers.
    dim
        Number of inputs d; may be omitted if the function has an attribute `dim`.
    center, scale
        d numbers each, or one for all: the function sees x = center + scale·u for a query u. 0 and 1 by default.
    reach
        Largest |u| that a query u may have. None for no limit.
    max_queries
        Largest number of rows that may be asked in total. None for no limit.
    on_bad
        For answers that are not finite: "raise" raises `BadAnswer`, "drop" returns NaN and counts them in `dropped`.
    output
        "log_odds" converts probabilities to centred log-probabilities, which turns a softmax back into its logits.
    batch
        Rows per call of the function. By default it is limited by memory, and to 2,048.
    gradient
        Maps an (m, d) array to the (m, d) or (m, p, d) derivatives with respect to x.
    executor
        Runs calls of the function in parallel: threads, processes, or Dask.

    Examples
    --------
    >>> ask = Oracle(lambda X: X[:, 0] * X[:, 1], dim=2, max_queries=100)
    >>> ask([[2.0, 3.0], [1.0, 5.0]])
    array([[6.],
           [5.]])
    >>> ask.queries, ask.remaining
    (2, 98)
    """

    natural_radius: float | None = None
    """Radius of the ball that `rs.extract` takes if none is given, where the function has such; None if not."""

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
        self.dim = answers.dimension(function, dim)
        self.function = function
        self.center = answers.vector(center, self.dim, 0.0, "center")
        self.scale = answers.vector(scale, self.dim, 1.0, "scale")
        if not (self.scale > 0).all():
            raise InvalidInput(f"scale must be positive in every coordinate; got {self.scale.min()}")
        self.on_bad = answers.choice(on_bad, "on_bad", ("raise", "drop"))
        self.output = answers.choice(output, "output", ("raw", "log_odds"))
        if gradient is not None and output == "log_odds":
            raise InvalidInput(
                'gradient and output="log_odds" do not go together: let the function return log-odds itself, '
                'with their gradient, and use output="raw"'
            )
        self.reach = answers.positive(reach, "reach")
        self.max_queries = answers.count(max_queries, "max_queries")
        self.executor = executor
        self.ledger: Ledger | None = None
        self._batch = answers.count(batch, "batch", least=1)
        self._call_function = PickledFunction(partial(call_function, function))
        self._call_gradient = PickledFunction(partial(call_function, gradient)) if gradient is not None else None
        self._lock = threading.Lock()
        self._reset_counters()

    def _reset_counters(self) -> None:
        """Set the counters, and what was learned from answers, to their initial values."""
        self.queries_by_stage: Counter[str] = Counter()
        """Number of rows asked, by the stage that asked them."""
        self.planned: dict[str, int] = {}
        """Largest number of rows that a stage will have asked when it ends, for stages that announced it."""
        self._asked = 0
        """Number of rows that the function itself was asked, outside any ledger that is open now."""
        self.dropped = 0
        """Number of answers that were not finite and were dropped."""
        self.outputs: int | None = None
        """Number of outputs p; None before the first answer."""
        self.scalar: bool | None = None
        """Whether the function answers (m,) rather than (m, p); None before the first answer."""
        self.rounding = float(np.finfo(np.float64).eps)
        """Largest machine epsilon of the types the function has answered in."""
        self.largest = 0.0
        """Largest |answer| so far."""

    # -- asking ---------------------------------------------------------------------------------------------

    def __call__(self, u: ArrayLike, *, stage: str = "other") -> Floats:
        """Ask the function at the rows of u and return its answers.

        Parameters
        ----------
        u
            (m, d) queries; the function sees x = center + scale·u.
        stage
            Name under which the rows are counted in `queries_by_stage`.

        Returns
        -------
        array
            (m, p) answers, p = 1 for a scalar function; rows of dropped answers are NaN.

        Raises
        ------
        BudgetExhausted, ReachExceeded
            Before anything is asked, if `max_queries` or `reach` does not allow it.
        BadAnswer, OracleFailed
            If the function answers with something else than finite real numbers, or raises an exception.

        Examples
        --------
        >>> Oracle(np.sin, dim=1, center=[np.pi / 2])([[0.0]])
        array([[1.]])
        """
        U = self._admit(u, stage)
        if not len(U):
            return np.empty((0, self.outputs or 1))
        if self._batch is None and self.outputs is None and len(U) > _FIRST_ROWS:
            return np.concatenate([self._values(U[:_FIRST_ROWS]), self._values(U[_FIRST_ROWS:])])
        return self._values(U)

    @property
    def has_gradient(self) -> bool:
        """Whether `gradient` can be called."""
        return self._call_gradient is not None

    def gradient(self, u: ArrayLike, *, stage: str = "other") -> Floats:
        """Return the derivatives (m, p, d) with respect to u at the rows of u (m, d). Each row counts as one query.

        Examples
        --------
        >>> Oracle(lambda X: X[:, 0] ** 2, dim=1, gradient=lambda X: 2 * X).gradient([[3.0]])
        array([[[6.]]])
        """
        if self._call_gradient is None:
            raise InvalidInput("this oracle offers no gradient; pass gradient=… to rs.oracle.Oracle")
        U = self._admit(u, stage)
        if not len(U):
            return np.empty((0, self.outputs or 1, self.dim))
        size = self._batch or block_size(len(U), batch_size(self.dim, self.dim * (self.outputs or 1)))
        X, route = self._inputs(U), Route(self.executor, self.ledger)
        return ask_in_batches(self._call_gradient, self._check_gradient, X, size, route, "gradient")

    def counted(self, stage: str) -> Callable[[Floats], Floats]:
        """Return a plain function of u that asks this oracle and counts its queries under `stage`.

        Examples
        --------
        >>> Oracle(np.sin, dim=1).counted("fit")(np.zeros((1, 1)))
        array([[0.]])
        """
        return lambda u: self(u, stage=stage)

    def announce(self, queries: int, *, stage: str) -> None:
        """Announce, for a progress display only, that `stage` will ask at most `queries` more rows.

        Examples
        --------
        >>> ask = Oracle(np.sin, dim=1)
        >>> ask.announce(500, stage="certify")
        """
        self.planned[stage] = self.queries_by_stage[stage] + queries

    def repeats(self, u: ArrayLike, *, stage: str = "other") -> Repeatability:
        """Ask the rows of u (m, d) twice and compare the answers. This costs two queries per row.

        Examples
        --------
        >>> Oracle(np.sin, dim=1).repeats(np.ones((5, 1)))
        Repeatability(deterministic=True, spread=0.0)
        """
        first, second = self(u, stage=stage), self(u, stage=stage)
        gap = (second - first)[np.isfinite(first[:, 0]) & np.isfinite(second[:, 0])]
        spread = float(np.sqrt(np.mean(gap**2) / 2.0)) if gap.size else 0.0
        same = gap.size > 0 and np.array_equal(first, second, equal_nan=True)
        return Repeatability(deterministic=same, spread=spread)

    # -- counters and limits --------------------------------------------------------------------------------

    @property
    def queries(self) -> int:
        """Number of rows asked so far, including those that a ledger answered."""
        return sum(self.queries_by_stage.values())

    @property
    def asked(self) -> int:
        """Number of rows the function itself was asked: without those a ledger answered, with those verifying it."""
        return self._asked + (self.ledger.rows_asked if self.ledger is not None else 0)

    @property
    def remaining(self) -> float:
        """Number of queries left in the budget; infinite without a budget."""
        return float("inf") if self.max_queries is None else self.max_queries - self.queries

    @property
    def batch(self) -> int:
        """Largest number of rows per call of the function."""
        return self._batch if self._batch is not None else batch_size(self.dim, self.outputs or 1)

    @property
    def resolution(self) -> float:
        """Size of the rounding errors in the answers so far, in the units of f: `rounding` × largest |answer|."""
        return self.rounding * self.largest

    def fresh(
        self,
        *,
        center: ArrayLike | None = None,
        reach: float | None = None,
        max_queries: int | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """Return a copy with all counters at zero and, where given, another centre, reach, budget or executor.

        Examples
        --------
        >>> Oracle(np.sin, dim=1).fresh(max_queries=50).remaining
        50
        """
        other = copy.copy(self)
        other.executor, other.ledger = self.executor, self.ledger  # __getstate__, which copy uses, leaves them out
        other._reset_counters()
        if center is not None:
            other.center = answers.vector(center, self.dim, 0.0, "center")
        if reach is not None:
            other.reach = answers.positive(reach, "reach")
        if max_queries is not None:
            other.max_queries = answers.count(max_queries, "max_queries")
        if executor is not None:
            other.executor = executor
        return other

    # -- the ledger -----------------------------------------------------------------------------------------

    @contextmanager
    def recording(self, path: str | os.PathLike[str] | None) -> Iterator[None]:
        """Store every answer of the `with` block in the ledger at `path`, and ask nothing that the ledger holds.

        A ledger that holds answers is first compared with the function at a few rows. With None nothing is stored.

        Examples
        --------
        >>> import tempfile
        >>> ask = Oracle(np.sin, dim=1)
        >>> with tempfile.TemporaryDirectory() as folder, ask.recording(f"{folder}/run.ledger"):
        ...     values = ask(np.zeros((100, 1)))
        """
        if path is None:
            yield
            return
        with Ledger(path, self.dim, self._batch) as ledger:
            functions = {"value": self._call_function, "gradient": self._call_gradient}
            ledger.verify_function({kind: f for kind, f in functions.items() if f is not None}, self._within_reach)
            self.ledger = ledger
            try:
                yield
            finally:
                self._asked, self.ledger = self.asked, None

    def checkpoint_ledger(self) -> None:
        """Start merging the write-ahead log of the ledger, if one is open, into its file in the background."""
        if self.ledger is not None:
            self.ledger.checkpoint()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "executor", "ledger")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self.executor, self.ledger = threading.Lock(), None, None

    # -- checks ---------------------------------------------------------------------------------------------

    def _admit(self, u: ArrayLike, stage: str) -> Floats:
        """Return the queries as an (m, d) array after checking shape, reach and budget; the rows are counted here."""
        U = np.ascontiguousarray(u, dtype=np.float64)
        if U.ndim != 2 or U.shape[1] != self.dim:
            raise InvalidInput(f"queries must form an (m, {self.dim}) array; got shape {U.shape}")
        if not np.isfinite(U).all():
            raise InvalidInput(f"a query has a coordinate that is not finite: {U[~np.isfinite(U).all(axis=1)][0]}")
        if self.reach is not None and len(U):
            far = float(np.sqrt(np.einsum("md,md->m", U, U).max()))
            if far > self.reach * (1.0 + _REACH_ROUNDING):
                raise ReachExceeded(
                    f"stage '{stage}' wanted to ask at distance {far:.17g}, beyond reach={self.reach:.17g}. "
                    "This is a fault in ridgescope; please report it with the seed."
                )
        with self._lock:
            if self.max_queries is not None and self.queries + len(U) > self.max_queries:
                raise BudgetExhausted(self.queries, len(U), self.max_queries, stage)
            self.queries_by_stage[stage] += len(U)
        return U

    def _within_reach(self, X: Floats) -> NDArray[np.bool_]:
        """Return which rows x (m, d) of a ledger lie within the reach, as flags (m,)."""
        far = np.linalg.norm((X - self.center) / self.scale, axis=1)
        return np.asarray(far <= (np.inf if self.reach is None else self.reach * (1.0 + _REPLAY_ROUNDING)))

    def _values(self, U: Floats) -> Floats:
        """Return the checked answers (m, p) to queries U (m, d) that `_admit` has accepted."""
        X, size = self._inputs(U), self._batch or block_size(len(U), self.batch)
        return ask_in_batches(self._call_function, self._check, X, size, Route(self.executor, self.ledger))

    def _inputs(self, U: Floats) -> Floats:
        """Return the rows x (m, d) that the function will see, and count them as asked unless a ledger does."""
        if self.ledger is None:
            with self._lock:
                self._asked += len(U)
        X = self.scale * U
        X += self.center
        return np.asarray(X)

    def _check(self, X: Floats, raw: Any) -> Floats:
        """Return the answers of a block as (m, p), and update outputs, rounding, largest answer and dropped rows."""
        with self._lock:
            rules = answers.AnswerRules(self.outputs, self.scalar, self.output == "log_odds", self.on_bad == "drop")
            values, seen = answers.check(X, raw, rules)
            self.outputs, self.scalar = seen.outputs, seen.scalar
            self.rounding = max(self.rounding, seen.rounding)
            self.largest = max(self.largest, seen.largest)
            self.dropped += seen.dropped
        return values

    def _check_gradient(self, X: Floats, raw: Any) -> Floats:
        """Return the derivatives of a block as (m, p, d) with respect to u; dropped rows are NaN."""
        slopes, bad = answers.check_gradient(X, raw, self.on_bad == "drop")
        with self._lock:
            self.dropped += int(bad.sum())
        slopes = slopes * self.scale
        slopes[bad] = np.nan
        return slopes


def as_oracle(function: Function | Oracle, *, dim: int | None = None) -> Oracle:
    """Return an `Oracle` for anything callable on an (m, d) array; for an `Oracle`, a copy with counters at zero.

    Examples
    --------
    >>> as_oracle(np.sin, dim=1).dim
    1
    """
    if isinstance(function, Oracle):
        if dim is not None and dim != function.dim:
            raise InvalidInput(f"dim={dim}, but the oracle takes {function.dim} coordinates")
        return function.fresh()
    return Oracle(function, dim=dim)
