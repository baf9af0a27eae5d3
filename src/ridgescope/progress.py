"""What a run says while it works: one `Step` after the other, shown as lines or as a live display.

A step is a line of text, so that anything that takes lines takes steps; it also carries the figures behind the line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from .state import State


class Step(str):
    """A line of progress."""

    __slots__ = ("features", "max_queries", "planned", "residual", "round", "spent", "tolerance")

    round: int
    """Rounds completed."""
    features: int
    residual: float
    """RMS residual on held-out points, as a fraction of f's standard deviation; NaN before the first fit."""
    tolerance: float
    max_queries: int | None
    spent: Callable[[], Mapping[str, int]]
    """Queries by stage, now: the count goes on between steps."""
    planned: Callable[[], Mapping[str, int]]
    """Where a stage knows it: what its count will be at most when it is done."""

    @classmethod
    def of(cls, state: State, text: str) -> Step:
        """What a run says at this point, with where it stands."""
        step = cls(f"{state.oracle.queries:>9,} queries  {text}")
        step.round, step.tolerance, step.max_queries = len(state.history), state.tolerance, state.oracle.max_queries
        step.features = state.judged.model.count if state.judged is not None else 0
        known = state.judged is not None and state.known.scale > 0
        step.residual = state.judged.rms / state.known.scale if state.judged is not None and known else float("nan")
        step.spent = lambda: dict(state.oracle.queries_by_stage)
        step.planned = lambda: dict(state.oracle.planned)
        return step


Tell = Callable[[Step], object]


@contextmanager
def shown(progress: bool | Callable[[str], object]) -> Iterator[Tell]:
    """Where steps go: to a callable, to nobody, or to standard error, where a terminal gets a live display."""
    if callable(progress):
        yield progress
    elif not progress:
        yield _nothing
    elif sys.stderr.isatty():
        with _live() as display:
            yield display.tell
    else:
        yield _to_stderr


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _nothing(text: str) -> None:
    pass


@contextmanager
def _live() -> Iterator[Display]:
    from rich.console import Console
    from rich.live import Live

    display = Display()
    with Live(display, console=Console(stderr=True), refresh_per_second=5, transient=True):
        yield display


class Display:
    """Stage, round, queries and their rate, features, residual against tolerance, time left; the last lines below."""

    LINES = 4

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()
        self._step: Step | None = None
        self._lines: list[str] = []
        self._stage = "survey"
        self._seen: dict[str, int] = {}
        self._marks: list[tuple[float, int]] = [(self._start, 0)]

    def tell(self, step: Step) -> None:
        """Show this step from now on."""
        self._step = step
        self._lines = [*self._lines, str(step).strip()][-self.LINES :]

    def figures(self) -> dict[str, str]:
        """What stands in the display, by name."""
        step, now = self._step, self._clock()
        if step is None:
            return {"stage": "first questions", "time": _clock_time(now - self._start)}
        spent = dict(step.spent())
        grown = [name for name, count in spent.items() if count > self._seen.get(name, 0)]
        self._stage, self._seen = (grown[-1] if grown else self._stage), spent
        total = sum(spent.values())
        self._marks = [*(m for m in self._marks if now - m[0] < 10.0), (now, total)]
        first = self._marks[0]
        rate = (total - first[1]) / (now - first[0]) if now > first[0] else 0.0
        told = {
            "stage": self._stage,
            "round": str(step.round + 1),
            "queries": f"{total:,}" + (f" of {step.max_queries:,}" if step.max_queries is not None else ""),
            "rate": f"{rate:,.0f}/s",
            "features": str(step.features),
            "residual/tolerance": f"{step.residual:.1e}/{step.tolerance:g}" if step.residual >= 0 else "–",
            "time": _clock_time(now - self._start),
        }
        ahead = step.planned().get(self._stage, 0) - spent.get(self._stage, 0)
        if ahead > 0 and rate > 0:  # a stage that does not know how much it will ask has no time left to show
            told["stage left at most"] = _clock_time(ahead / rate)
        if step.max_queries is not None and rate > 0:
            told["left at most"] = _clock_time(max(step.max_queries - total, 0) / rate)
        return told

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        grid: Any = Table.grid(padding=(0, 2))
        told = self.figures()
        for name in told:
            grid.add_column(name, no_wrap=True)
        grid.add_row(*(Text(name, style="dim") for name in told))
        grid.add_row(*(Text(value, style="bold") for value in told.values()))
        yield grid
        for line in self._lines:
            yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
