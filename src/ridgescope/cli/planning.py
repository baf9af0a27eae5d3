"""`report`, `plan` and `bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import common
from .common import CERTIFIED, FAILED, aside, load_result, speaking_plainly
from .telling import print_json

bench = typer.Typer(no_args_is_help=True, help="Measure what comes back where the truth is known.")


def report(
    result: common.Saved,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page here; else report.html in the folder.")
    ] = None,
) -> None:
    """Write the HTML report of a saved result: one file that opens without a network.

    Examples:

      ridgescope report result

      ridgescope report result --out report.html
    """
    with speaking_plainly():
        path = load_result(result).report(out if out is not None else result / "report.html")
        aside(f"report: {path}")


def plan(
    dim: Annotated[int, typer.Option(min=1, help="d, coordinates of the input.")],
    features: Annotated[int, typer.Option(min=1, help="n, features in the sum.")],
    radius: Annotated[float, typer.Option(help="R, radius of the ball.")] = 3.0,
    lipschitz: Annotated[float, typer.Option(help="L, steepest slope of a response.")] = 1.0,
    separation: Annotated[float, typer.Option(help="γ, smallest sine between two directions.")] = 0.1,
    accuracy: Annotated[float, typer.Option(help="Accuracy wanted of the recovered function.")] = 0.1,
    failure: Annotated[float, typer.Option(help="δ, probability of failure.")] = 0.1,
    as_json: common.Json = False,
) -> None:
    """What the proofs would ask for: the smallest constants that satisfy them, and the queries they cost.

    Example:

      ridgescope plan --dim 3 --features 4
    """
    with speaking_plainly():
        from .. import paper

        made = paper.plan(dim, features, radius, lipschitz, separation, accuracy, failure)
        if as_json:
            print_json(made)
        else:
            typer.echo(str(made))


@bench.command()
def recovery(
    cases: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Standard cases, with commas: small,mixed. Else all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Targets drawn of each case.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The seeds are this one and the next ones.")] = 1000,
    method: common.Method = "auto",
    reach: Annotated[float | None, typer.Option(help="Never ask farther than this; the ball has radius 3.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Keep the table here, and every run in a JSON beside it.")
    ] = None,
) -> None:
    """Recover the standard cases over several seeds, and print a Markdown row for each.

    Exit code 1 when a run raised an error, which then has a row of its own; else 0, whatever was recovered.

    Example:

      ridgescope bench recovery --cases first,small --seeds 5
    """
    with speaking_plainly():
        from ..bench import recovery as measure

        trials = measure(
            cases.split(",") if cases else None,
            seeds=seeds,
            first_seed=first_seed,
            method=common.methods(method),
            reach=reach,
            out=out,
            write=lambda line: print(line, flush=True),
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        raise typer.Exit(FAILED if any(t.error for t in trials) else CERTIFIED)
