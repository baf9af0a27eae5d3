"""The command line. Nothing heavy is imported before a command runs, so that `--help` and `--version` are fast.

Exit codes: 0 certified, 1 the function failed, 2 bad usage, 3 finished without meeting the tolerance, 4 out of queries
or time, 130 interrupted. Output meant for programs goes to stdout, everything else to stderr.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from ..__about__ import __version__
from . import extracting, planning, results
from .output import exit_code, show, sparkline, summary

__all__ = ["app", "exit_code", "main", "show", "sparkline", "summary"]


class _Root(TyperGroup):
    """Command group that keeps the arguments in the context, so that results and reports can name the command."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        ctx.obj = tuple(args)
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="ridgescope",
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Recover a black-box function from queries: the directions it depends on, its response along each of them, "
    "and a certificate of the error.",
    epilog="Exit codes: 0 certified, 1 the function failed, 2 bad usage, 3 tolerance not met, 4 budget exhausted, "
    "130 interrupted.",
)
for command in (
    extracting.extract,
    extracting.demo,
    results.verify,
    extracting.stability,
    results.compare,
    results.report,
    planning.plan,
):
    app.command()(command)
app.add_typer(planning.bench, name="bench")


def main() -> None:
    """Run the `ridgescope` command."""
    app(prog_name="ridgescope")


def _version(asked: bool) -> None:
    """Print the version and exit if `--version` was given."""
    if asked:
        typer.echo(f"ridgescope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
