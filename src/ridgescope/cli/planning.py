"""`plan` and `bench`: the cost of the paper's proofs, and measurements on functions with known features."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .output import CERTIFIED, FAILED, exit_on_error, print_json

bench = typer.Typer(no_args_is_help=True, help="Measure the recovery of functions whose features are known.")


def plan(
    dim: Annotated[int, typer.Option(min=1, help="d, number of input coordinates.")],
    features: Annotated[int, typer.Option(min=1, help="n, number of features.")],
    radius: Annotated[float, typer.Option(help="R, radius of the ball.")] = 3.0,
    lipschitz: Annotated[float, typer.Option(help="L, largest slope of a response.")] = 1.0,
    separation: Annotated[float, typer.Option(help="γ, smallest sine of the angle between two directions.")] = 0.1,
    accuracy: Annotated[float, typer.Option(help="Required accuracy of the recovered function.")] = 0.1,
    failure: Annotated[float, typer.Option(help="δ, probability of failure.")] = 0.1,
    as_json: options.Json = False,
) -> None:
    """Compute the smallest constants that satisfy the paper's proofs, and how many queries they would take.

    Example:

      ridgescope plan --dim 3 --features 4
    """
    with exit_on_error():
        from .. import paper

        made = paper.plan(dim, features, radius, lipschitz, separation, accuracy, failure)
        if as_json:
            print_json(made)
        else:
            typer.echo(str(made))


@bench.command()
def recovery(
    cases: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Standard cases, separated by commas; by default all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of targets drawn for each case.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow it.")] = 1000,
    method: options.Method = "auto",
    reach: options.Reach = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="Write the table to this file, and every run to a JSON file beside it."),
    ] = None,
) -> None:
    """Recover the standard cases with several seeds, and print a row of a Markdown table for each.

    The exit code is 1 if a run raised an error, which then has a row of its own; else 0, whatever was recovered.

    Example:

      ridgescope bench recovery --cases first,small --seeds 5
    """
    with exit_on_error():
        from ..bench import recovery as measure

        trials = measure(
            cases.split(",") if cases else None,
            seeds=seeds,
            first_seed=first_seed,
            method=options.methods(method),
            reach=reach,
            out=out,
            write=lambda line: print(line, flush=True),
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        raise typer.Exit(FAILED if any(t.error for t in trials) else CERTIFIED)
