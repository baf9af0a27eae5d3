"""Output of the commands: tables for people, JSON for programs, one-line errors, and exit codes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import typer

from ..stop import StopReason

if TYPE_CHECKING:
    from rich.console import Console

    from ..match import Match
    from ..result import Extraction
    from ..targets import Planted

CERTIFIED, FAILED, USAGE, NOT_MET, NO_BUDGET, INTERRUPTED = 0, 1, 2, 3, 4, 130
_MAX_ROWS = 40
"""Largest number of features in a table: a screen or two."""
_WIDE_SCREEN = 100
"""Width of a terminal, in characters, from which sparklines are drawn at their full width."""
_BLOCKS = "▁▂▃▄▅▆▇█"


def exit_code(found: Extraction) -> int:
    """Return 130 after Ctrl-C; else 0 if the certificate is met, 4 if budget or time ran out, and 3 otherwise."""
    if found.stop is StopReason.INTERRUPTED:
        return INTERRUPTED
    if found.certificate.met:
        return CERTIFIED
    return NO_BUDGET if found.stop in (StopReason.BUDGET, StopReason.TIME) else NOT_MET


def console(*, stderr: bool) -> Console:
    """Return a Rich console on standard output or standard error."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=False)


def print_stderr(text: Any) -> None:
    """Print one line to stderr, unwrapped and without markup."""
    console(stderr=True).print(str(text), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn errors that ridgescope raises on purpose into one line on stderr and an exit code, without a traceback."""
    from ..errors import FileProblem, InvalidInput, RidgescopeError

    try:
        yield
    except RidgescopeError as problem:
        typer.echo(f"ridgescope: {problem}", err=True)
        raise typer.Exit(USAGE if isinstance(problem, InvalidInput | FileProblem) else FAILED) from problem


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what the function prints to stderr, so that it does not end up in the JSON on stdout."""
    with redirect_stdout(sys.stderr):
        yield


# -- for programs ---------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout, with null for numbers that are not finite."""
    typer.echo(json.dumps(jsonable(value), indent=1))


def summary(found: Extraction) -> dict[str, Any]:
    """Return the result as a dictionary of JSON values."""
    of_run = ("version", "dim", "outputs", "radius", "queries", "queries_by_stage", "stop", "stopped", "diagnosis")
    of_model = ("deterministic", "dropped", "seed", "center", "scale", "bias", "slope", "history")
    of_verdict = ("structure", "forecast", "data_check")
    of_feature = ("direction", "output", "strength", "angle_error", "shape", "gated", "carrier")
    values: dict[str, Any] = jsonable(
        {
            "met": found.certificate.met,
            "certificate": {**jsonable(found.certificate), "sentence": found.certificate.sentence},
            **{name: getattr(found, name) for name in of_run + of_model + of_verdict},
            "features": [
                {name: getattr(f, name) for name in of_feature} | {"kinks": f.response.kinks} for f in found.features
            ],
        }
    )
    return values


def jsonable(value: Any) -> Any:
    """Return dataclasses, arrays and NumPy numbers as JSON values; numbers that are not finite become None."""
    from dataclasses import fields, is_dataclass

    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# -- for people -----------------------------------------------------------------------------------------------


def show(found: Extraction, truth: Planted | None, console: Console) -> None:
    """Print the features as a table with a sparkline of each response, the certificate, and why the run ended."""
    from rich.markup import escape

    from ..feature import gated_text, shape_text
    from ..match import match

    matched = match(found.directions, truth.directions) if truth is not None else None
    n, d = len(found.features), found.dim
    table = new_table(f"{n} feature{'s' * (n != 1)}{gated_text(found.features)} in {d} dimension{'s' * (d != 1)}")
    table.add_column("#", justify="right", style="dim")
    table.add_column("response", style="cyan", no_wrap=True)
    table.add_column("shape")
    table.add_column("strength", justify="right", no_wrap=True)
    table.add_column("± angle", justify="right", no_wrap=True)
    if matched is not None:
        table.add_column("planted", no_wrap=True)
        table.add_column("off by", justify="right", no_wrap=True)
    width = 24 if console.width >= _WIDE_SCREEN else 12
    for i, f in enumerate(found.features[:_MAX_ROWS]):
        line = sparkline(f.response, width)
        if f.gate is not None:
            line += f"\n{sparkline(f.gate.gain, width)} gain"
        row = [str(i), line, escape(shape_text(f, "–")), f"{f.strength:.3g}", f"{f.angle_error:.1e}"]
        table.add_row(*row, *(_truth_of(i, matched, truth) if matched is not None and truth is not None else ()))
    console.print(table)
    if n > _MAX_ROWS:
        console.print(f"… {n - _MAX_ROWS} more; the saved result has them all")
    if matched is not None:
        console.print(f"against the truth: {matched}", highlight=False)
    for_picture = found.queries_by_stage.get("picture", 0)
    queries = f"{found.queries:,} queries" + (
        f", {for_picture:,} of them for the report's picture" if for_picture else ""
    )
    style = "green" if found.certificate.met else "yellow"
    console.print(f"{queries}; {found.certificate.sentence}", style=style, highlight=False)
    on_data = found.data_check.sentence if found.data_check is not None else ""
    for text in (on_data, found.stopped, found.diagnosis):
        if text:
            console.print(text, highlight=False, markup=False)


def new_table(title: str) -> Any:
    """Return an empty Rich table in the style of all commands."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _truth_of(index: int, matched: Match, truth: Planted) -> tuple[str, str]:
    """Return the kind of the true feature that matches the found one at `index`, and the angle between them."""
    for true, found in enumerate(matched.partner):
        if found == index and matched.angles[true] <= matched.within:
            return truth.kinds[true].replace("_", " "), f"{matched.angles[true]:.1e}"
    return "nothing", "–"


def sparkline(response: Callable[[Any], Any], width: int = 24) -> str:
    """Return the response over [−R, R] in block characters; of several outputs, the one with the largest range."""
    import numpy as np

    radius: float = getattr(response, "radius", 3.0)
    values = response(np.linspace(-radius, radius, width)).reshape(width, -1)
    values = values[:, np.argmax(np.ptp(values, axis=0))]
    low, high = float(values.min()), float(values.max())
    if not high > low:
        return _BLOCKS[3] * width
    levels = np.minimum((values - low) / (high - low) * len(_BLOCKS), len(_BLOCKS) - 1).astype(int)
    return "".join(_BLOCKS[level] for level in levels)
