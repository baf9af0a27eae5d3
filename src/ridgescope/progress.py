"""What a run reports while it works: a sequence of `Step`s, shown as lines or as a live display.

A step is a line of text, so that anything that accepts lines accepts steps; it also carries the figures behind it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from .oracle.base import Oracle


class Step(str):
    """A line of progress, with the figures of the run at that point."""

    __slots__ = ("detail", "features", "max_queries", "planned", "residual", "round", "spent", "tolerance")

    detail: bool
    """Whether this is a detail of a fit, which is shown only on request."""

    round: int
    """Number of rounds completed."""
    features: int
    """Number of features in the model."""
    residual: float
    """RMS residual on held-out points, as a fraction of f's standard deviation; NaN before the first fit."""
    tolerance: float
    """Largest error allowed, as a fraction of f's standard deviation."""
    max_queries: int | None
    spent: Callable[[], Mapping[str, int]]
    """Returns the number of queries by stage at the time of the call, which grows between steps."""
    planned: Callable[[], Mapping[str, int]]
    """Returns, for stages that announced it, the largest number of queries they will have asked at their end."""

    @classmethod
    def of(
        cls,
        oracle: Oracle,
        text: str,
        *,
        round: int,
        features: int = 0,
        residual: float,
        tolerance: float,
        detail: bool = False,
    ) -> Step:
        """Return the line `text` with the figures of the run at this point."""
        step = cls(f"{oracle.queries:>9,} queries  {text}")
        step.round, step.features, step.residual, step.tolerance = round, features, residual, tolerance
        step.max_queries, step.detail = oracle.max_queries, detail
        step.spent = lambda: dict(oracle.queries_by_stage)
        step.planned = lambda: dict(oracle.planned)
        return step


Report = Callable[[Step], object]
"""A function that receives the steps of a run."""


@contextmanager
def shown(progress: bool | str | Callable[[str], object]) -> Iterator[Report]:
    """Yield the function that receives the steps of a run.

    A callable receives every step. True shows the main steps on standard error, live in a terminal; "verbose" shows
    every step, one line each. False shows nothing.
    """
    if callable(progress):
        yield progress
    elif not progress:
        yield _nothing
    elif progress == "verbose":
        yield _to_stderr
    elif sys.stderr.isatty():
        with _live() as display:
            yield display.show
    else:
        yield _main_steps_to_stderr


def _to_stderr(step: Step) -> None:
    print(step, file=sys.stderr, flush=True)


def _main_steps_to_stderr(step: Step) -> None:
    if not step.detail:
        _to_stderr(step)


def _nothing(step: Step) -> None:
    pass


@contextmanager
def _live() -> Iterator[Display]:
    """Yield a display that is redrawn five times a second on standard error, and removed at the end."""
    from rich.console import Console
    from rich.live import Live

    display = Display()
    with Live(display, console=Console(stderr=True), refresh_per_second=5, transient=True):
        yield display


class Display:
    """A live table of stage, round, queries and rate, features, residual and time, with the last lines below it."""

    LINES = 4
    """Number of lines shown below the table."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()
        self._step: Step | None = None
        self._lines: list[str] = []
        self._stage = "survey"
        self._seen: dict[str, int] = {}
        self._marks: list[tuple[float, int]] = [(self._start, 0)]

    def show(self, step: Step) -> None:
        """Show the figures of this step from now on, and its line unless it is a detail."""
        self._step = step
        if not step.detail:
            self._lines = [*self._lines, str(step).strip()][-self.LINES :]

    def figures(self) -> dict[str, str]:
        """Return what the display shows, by column name."""
        step, now = self._step, self._clock()
        if step is None:
            return {"stage": "first queries", "time": _clock_time(now - self._start)}
        spent = dict(step.spent())
        grown = [name for name, count in spent.items() if count > self._seen.get(name, 0)]
        self._stage, self._seen = (grown[-1] if grown else self._stage), spent
        total = sum(spent.values())
        self._marks = [*(m for m in self._marks if now - m[0] < 10.0), (now, total)]
        first = self._marks[0]
        rate = (total - first[1]) / (now - first[0]) if now > first[0] else 0.0
        shown = {
            "stage": self._stage,
            "round": str(step.round + 1),
            "queries": f"{total:,}" + (f" of {step.max_queries:,}" if step.max_queries is not None else ""),
            "rate": f"{rate:,.0f}/s",
            "features": str(step.features),
            "residual/tolerance": f"{step.residual:.1e}/{step.tolerance:g}" if step.residual >= 0 else "–",
            "time": _clock_time(now - self._start),
        }
        ahead = step.planned().get(self._stage, 0) - spent.get(self._stage, 0)
        if ahead > 0 and rate > 0:  # a stage that announced no queries has no remaining time to show
            shown["stage left at most"] = _clock_time(ahead / rate)
        if step.max_queries is not None and rate > 0:
            shown["left at most"] = _clock_time(max(step.max_queries - total, 0) / rate)
        return shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        grid: Any = Table.grid(padding=(0, 2))
        shown = self.figures()
        for name in shown:
            grid.add_column(name, no_wrap=True)
        grid.add_row(*(Text(name, style="dim") for name in shown))
        grid.add_row(*(Text(value, style="bold") for value in shown.values()))
        yield grid
        for line in self._lines:
            yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")


def _clock_time(seconds: float) -> str:
    """Return a duration as minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
