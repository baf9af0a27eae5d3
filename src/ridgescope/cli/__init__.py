"""The command line. Nothing heavy is imported before a command runs: `--help` and `--version` answer at once.

Exit codes: 0 certified, 1 the function could not be asked, 2 bad usage, 3 finished but the tolerance was not
met, 4 the budget ran out, 130 interrupted. What a program reads goes to stdout, everything else to stderr.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from ..__about__ import __version__
from . import comparing, extracting, planning
from .telling import exit_code, show, sparkline, summary

__all__ = ["app", "exit_code", "main", "show", "sparkline", "summary"]


class _Root(TyperGroup):
    """Keeps the words of the command line, for the report to say how it was made."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        ctx.obj = tuple(args)
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="ridgescope",
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which directions does a black box listen to, how does it respond to each, and how sure is that?",
    epilog="Exit codes: 0 certified, 1 cannot be asked, 2 bad usage, 3 tolerance not met, 4 budget exhausted.",
)
for command in (
    extracting.extract,
    extracting.demo,
    comparing.verify,
    comparing.stability,
    comparing.compare,
    planning.report,
    planning.plan,
):
    app.command()(command)
app.add_typer(planning.bench, name="bench")


def main() -> None:
    """Entry point of the `ridgescope` command."""
    app(prog_name="ridgescope")


def _version(asked: bool) -> None:
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
