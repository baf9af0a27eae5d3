"""`extract` and `demo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import common
from .common import INTERRUPTED, aside, command_line, speaking_plainly, stdout_kept_clean
from .options import Asking, Searching, grouped
from .telling import finish, print_json, show, summary

if TYPE_CHECKING:
    from ..result import Extraction


_PLANES = 2
"""Slices of f in the demo's report."""


@grouped
def extract(
    context: typer.Context,
    target: common.Target,
    search: Searching,
    asking: Asking,
    dim: common.Dim = None,
    seed: common.Seed = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Save the result in this folder.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the HTML report here.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep every answer here; the same command then goes on.")
    ] = None,
    planes: Annotated[
        int, typer.Option(min=0, max=8, help="Slices of f to ask for the report's star, some 5,000 queries each.")
    ] = 0,
    as_json: common.Json = False,
) -> None:
    """Ask a function, and get back its features.

    Examples:

      ridgescope extract case:small --report report.html

      ridgescope extract mymodel:logits --dim 20 --radius 2 --out result --json

      ridgescope extract model.onnx --output log_odds --ledger answers.ledger --workers 4

      ridgescope extract https://host/score --dim 8 --header 'X-Key: ${MY_KEY}' --rate 20 --ledger answers.ledger
    """
    with speaking_plainly():
        with stdout_kept_clean(), common.executor(target, asking) as executor:
            truth, oracle = common.open_oracle(target, dim, seed, asking)
            found, cut_short = _run(
                command_line(context), oracle, ledger, rng=seed, executor=executor, planes=planes, **search.arguments()
            )
        if cut_short:
            _leave(found, ledger, out, as_json)
        finish(found, truth, out, report, as_json)


def demo(
    context: typer.Context,
    case: Annotated[
        str | None,
        typer.Option(help="A standard case instead, e.g. first or mixed.", autocompletion=common.complete_case),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="digits: train a small network on handwritten digits, and open it up.")
    ] = None,
    seed: common.Seed = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Save the result here.")] = Path("ridgescope-demo"),
    as_json: common.Json = False,
) -> None:
    """Plant a superposition (more features than dimensions), and dig it up again from answers alone.

    Examples:

      ridgescope demo

      ridgescope demo --case mixed --seed 3

      ridgescope demo --model digits
    """
    with speaking_plainly():
        with stdout_kept_clean():
            oracle: Any
            if model is not None:
                if case is not None or model != "digits":
                    raise typer.BadParameter(f"--model takes digits, and no --case with it; got {model!r}")
                from .digits import trained

                truth, oracle, options = trained(seed)
                n, d = truth.directions.shape
                aside(f"trained a network with {n} hidden units on {d} pixels; asking for its probabilities …")
            else:
                truth = common.case(case, seed) if case else _planted(seed)
                oracle, options = truth, {}
                n, d = truth.directions.shape
                aside(f"planted {n} features in {d} dimensions; asking …")
            found, cut_short = _run(command_line(context), oracle, None, rng=seed, planes=_PLANES, **options)
        if cut_short:
            _leave(found, None, out, as_json)
        finish(found, truth, out, out / "report.html", as_json)


def _planted(seed: int) -> Any:
    from ..targets import planted

    return planted(dim=5, features=8, rng=seed)


def _run(command: str, target: Any, ledger: Path | None, **options: Any) -> tuple[Extraction, bool]:
    """The result, with progress on stderr meanwhile, and whether Ctrl-C cut it short."""
    from ..extract import extract as run
    from ..result import Interrupted

    try:
        return replace(run(target, progress=True, ledger=ledger, **options), command=command), False
    except Interrupted as stop:
        return replace(stop.found, command=command), True


def _leave(found: Extraction, ledger: Path | None, out: Path | None, as_json: bool) -> None:
    """After Ctrl-C: show and save what is known, and say how to go on."""
    folder = found.save(out if out is not None else Path("ridgescope-interrupted"))
    if as_json:
        print_json(summary(found))
    else:
        show(found, None, common.console(stderr=False))
    aside(f"what is known is saved in {folder}")
    if ledger is not None:
        aside(f"to go on from here:\n  {found.command}")
    else:
        aside(f"the answers were not kept; to start anew, so that it can go on:\n  {found.command} --ledger FILE")
    raise typer.Exit(INTERRUPTED)
