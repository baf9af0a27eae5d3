"""A result for people (a table with small pictures) and for programs (JSON)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..stop import StopReason
from .common import CERTIFIED, INTERRUPTED, NO_BUDGET, NOT_MET, aside, console

if TYPE_CHECKING:
    from rich.console import Console

    from ..match import Match
    from ..result import Extraction
    from ..targets import Planted


def finish(found: Extraction, truth: Planted | None, out: Path | None, report: Path | None, as_json: bool) -> None:
    """Show, save and report the result; the exit code says how it ended."""
    if as_json:
        print_json(summary(found))
    else:
        show(found, truth, console(stderr=False))
    if out is not None:
        aside(f"saved in {found.save(out)}")
    if report is not None:
        aside(f"report: {found.report(report)}")
    raise typer.Exit(exit_code(found))


def exit_code(found: Extraction) -> int:
    """0 if the certificate is met; else 4 after the last query or second, 130 after Ctrl-C, and 3 otherwise."""
    if found.certificate.met:
        return CERTIFIED
    stop = found.stop
    # TO REMOVE once the loop sets `Extraction.stop`; old files get theirs in `storage.load`.
    if stop is StopReason.UNKNOWN and "max_queries" in found.stopped:
        stop = StopReason.BUDGET
    codes = {StopReason.BUDGET: NO_BUDGET, StopReason.TIME: NO_BUDGET, StopReason.INTERRUPTED: INTERRUPTED}
    return codes.get(stop, NOT_MET)


def print_json(value: Any) -> None:
    """Plain JSON on stdout, null where a number is not finite."""
    typer.echo(json.dumps(jsonable(value), indent=1))


def summary(found: Extraction) -> dict[str, Any]:
    """The result for programs."""
    told = {
        "version": found.version,
        "met": found.certificate.met,
        "dim": found.dim,
        "outputs": found.outputs,
        "radius": found.radius,
        "queries": found.queries,
        "queries_by_stage": dict(found.queries_by_stage),
        "certificate": {**jsonable(found.certificate), "sentence": found.certificate.sentence},
        "stop": found.stop,
        "stopped": found.stopped,
        "diagnosis": found.diagnosis,
        "deterministic": found.deterministic,
        "dropped": found.dropped,
        "seed": found.seed,
        "center": found.center,
        "scale": found.scale,
        "bias": found.bias,
        "slope": found.slope,
        "features": [
            {
                "direction": f.direction,
                "strength": f.strength,
                "angle_error": f.angle_error,
                "shape": f.shape,
                "kinks": f.response.kinks,
            }
            for f in found.features
        ],
        "history": found.history,
    }
    plain: dict[str, Any] = jsonable(told)
    return plain


def jsonable(value: Any) -> Any:
    """Dataclasses, arrays and numbers as what JSON knows."""
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


def show(found: Extraction, truth: Planted | None, console: Console, most: int = 40) -> None:
    """The features as a table, each response as a small picture, and the certificate below it."""
    from rich.markup import escape

    from ..match import match

    told = match(found.directions, truth.directions) if truth is not None else None
    n, d = len(found.features), found.dim
    table = plain_table(f"{n} feature{'s' * (n != 1)} in {d} dimension{'s' * (d != 1)}")
    table.add_column("#", justify="right", style="dim")
    table.add_column("response", style="cyan", no_wrap=True)
    table.add_column("shape")
    table.add_column("strength", justify="right", no_wrap=True)
    table.add_column("± angle", justify="right", no_wrap=True)
    if told is not None:
        table.add_column("planted", no_wrap=True)
        table.add_column("off by", justify="right", no_wrap=True)
    width = 24 if console.width >= 100 else 12
    for i, f in enumerate(found.features[:most]):
        picture = sparkline(f.response, width)
        row = [str(i), picture, escape(str(f.shape or "–")), f"{f.strength:.3g}", f"{f.angle_error:.1e}"]
        table.add_row(*row, *(_truth_of(i, told, truth) if told is not None and truth is not None else ()))
    console.print(table)
    if n > most:
        console.print(f"… {n - most} more; the saved result has them all")
    if told is not None:
        console.print(f"against the truth: {told}", highlight=False)
    verdict = "green" if found.certificate.met else "yellow"
    drawn = found.queries_by_stage.get("picture", 0)
    spent = f"{found.queries:,} queries" + (f", {drawn:,} of them for the picture in the report" if drawn else "")
    console.print(f"{spent}; {found.certificate.sentence}", style=verdict, highlight=False)
    for text in (found.stopped, found.diagnosis):
        if text:
            console.print(text, highlight=False, markup=False)


def plain_table(title: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _truth_of(index: int, told: Match, truth: Planted) -> tuple[str, str]:
    for true, found in enumerate(told.partner):
        if found == index and told.angles[true] <= told.within:
            return truth.kinds[true].replace("_", " "), f"{told.angles[true]:.1e}"
    return "nothing", "–"


def sparkline(response: Callable[[Any], Any], width: int = 24) -> str:
    """The response over [−R, R] in block characters; of several outputs, the one that moves most."""
    import numpy as np

    radius: float = getattr(response, "radius", 3.0)
    values = response(np.linspace(-radius, radius, width)).reshape(width, -1)
    values = values[:, np.argmax(np.ptp(values, axis=0))]
    low, high = float(values.min()), float(values.max())
    blocks = "▁▂▃▄▅▆▇█"
    if not high > low:
        return blocks[3] * width
    levels = np.minimum((values - low) / (high - low) * len(blocks), len(blocks) - 1).astype(int)
    return "".join(blocks[level] for level in levels)
