"""The command line. Nothing heavy is imported before a command runs: `--help` and `--version` answer at once.

Exit codes: 0 certified, 1 the function could not be asked, 2 bad usage, 3 finished but the tolerance was not
met, 4 the budget ran out. What a program reads goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .__about__ import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from .match import Match
    from .oracle import Oracle
    from .result import Extraction
    from .targets import Planted

CERTIFIED, FAILED, USAGE, NOT_MET, NO_BUDGET = 0, 1, 2, 3, 4

app = typer.Typer(
    name="ridgescope",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which directions does a black box listen to, how does it respond to each, and how sure is that?",
)


def main() -> None:
    """Entry point of the `ridgescope` command."""
    app()


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


def _whole(text: str) -> int:
    """A count as people write it: 200000, 200_000, 2e5."""
    try:
        number = float(text)
        if not number.is_integer() or number < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a whole number; write 200000 or 2e5") from None
    return int(number)


bench = typer.Typer(no_args_is_help=True, help="Measure what comes back where the truth is known.")
app.add_typer(bench, name="bench")

Seed = Annotated[int, typer.Option(min=0, help="The same seed and function give the same bits.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, all else on stderr.")]


# -- commands ------------------------------------------------------------------------------------------------


@app.command()
def extract(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="module:function, called on (m, d) arrays; model.onnx; model.pt2; http(s)://…; cmd:…; or case:NAME.",
        ),
    ],
    dim: Annotated[int | None, typer.Option(min=1, help="Coordinates that the function takes.")] = None,
    radius: Annotated[float, typer.Option(help="Reproduce the function on the ball of this radius.")] = 3.0,
    tolerance: Annotated[float, typer.Option(help="Largest error, as a fraction of f's deviation.")] = 1e-2,
    noise: Annotated[float | None, typer.Option(help="Bound on the error of an answer; else estimated.")] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the certificate.")] = 0.99,
    reach: Annotated[float | None, typer.Option(help="Never ask farther than this from the centre.")] = None,
    max_features: Annotated[
        int | None, typer.Option(parser=_whole, metavar="COUNT", help="Look for at most so many features.")
    ] = None,
    max_queries: Annotated[
        int | None, typer.Option(parser=_whole, metavar="COUNT", help="Never ask more often; 2e5 will do.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto, paper, slices, curvature, kinks, random; several with commas.")
    ] = "auto",
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Save the result in this folder.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the HTML report here.")] = None,
    as_json: Json = False,
    on_bad: Annotated[
        Literal["raise", "drop"], typer.Option(help="What to do with answers that are not finite.")
    ] = "raise",
    output: Annotated[
        Literal["raw", "log_odds"], typer.Option(help="log_odds: the answers are probabilities.")
    ] = "raw",
    trust: Annotated[
        bool, typer.Option("--trust", help="Open files that can run code when read (pickle, joblib, .pt).")
    ] = False,
) -> None:
    """Ask a function, and get back its features.

    Examples:

      ridgescope extract case:small

      ridgescope extract mymodel:logits --dim 20 --radius 2 --out result --json

      ridgescope extract model.onnx --output log_odds
    """
    with _speaking_plainly():
        if report is not None:
            _need_report()
        with redirect_stdout(sys.stderr):  # what the function prints must not end up in the JSON
            truth, oracle = _find(target, dim, seed, on_bad, output, trust)
            found = _run(
                oracle,
                radius=radius,
                tolerance=tolerance,
                noise=noise,
                confidence=confidence,
                reach=reach,
                max_features=max_features,
                max_queries=max_queries,
                method=_methods(method),
                rng=seed,
            )
        _finish(found, truth, out, report, as_json)


@app.command()
def demo(
    case: Annotated[str | None, typer.Option(help="A standard case instead, e.g. first or mixed.")] = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Save the result here.")] = Path("ridgescope-demo"),
    as_json: Json = False,
) -> None:
    """Plant a superposition (more features than dimensions), and dig it up again from answers alone."""
    with _speaking_plainly():
        with redirect_stdout(sys.stderr):
            truth = _case(case, seed) if case else _demo_target(seed)
            n, d = truth.directions.shape
            _console(stderr=True).print(f"planted {n} features in {d} dimensions; asking …")
            found = _run(truth, rng=seed)
        _finish(found, truth, out, out / "report.html" if _can_report() else None, as_json)


@app.command()
def plan(
    dim: Annotated[int, typer.Option(min=1, help="d, coordinates of the input.")],
    features: Annotated[int, typer.Option(min=1, help="n, features in the sum.")],
    radius: Annotated[float, typer.Option(help="R, radius of the ball.")] = 3.0,
    lipschitz: Annotated[float, typer.Option(help="L, steepest slope of a response.")] = 1.0,
    separation: Annotated[float, typer.Option(help="γ, smallest sine between two directions.")] = 0.1,
    accuracy: Annotated[float, typer.Option(help="Accuracy wanted of the recovered function.")] = 0.1,
    failure: Annotated[float, typer.Option(help="δ, probability of failure.")] = 0.1,
    as_json: Json = False,
) -> None:
    """What the proofs would ask for: the smallest constants that satisfy them, and the queries they cost."""
    with _speaking_plainly():
        from . import paper

        made = paper.plan(dim, features, radius, lipschitz, separation, accuracy, failure)
        if as_json:
            typer.echo(json.dumps(_jsonable(made), indent=1))
        else:
            typer.echo(str(made))


@bench.command()
def recovery(
    cases: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Standard cases, with commas: small,mixed. Else all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Targets drawn of each case.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The seeds are this one and the next ones.")] = 1000,
    method: Annotated[
        str, typer.Option(help="auto, paper, slices, curvature, kinks, random; several with commas.")
    ] = "auto",
    reach: Annotated[float | None, typer.Option(help="Never ask farther than this; the ball has radius 3.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Keep the table here, and every run in a JSON beside it.")
    ] = None,
) -> None:
    """Recover the standard cases over several seeds, and print a Markdown row for each.

    Exit code 1 when a run raised an error, which then has a row of its own; else 0, whatever was recovered.
    """
    with _speaking_plainly():
        from .bench import recovery as measure

        trials = measure(
            cases.split(",") if cases else None,
            seeds=seeds,
            first_seed=first_seed,
            method=_methods(method),
            reach=reach,
            out=out,
            tell=lambda line: print(line, flush=True),
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        raise typer.Exit(FAILED if any(t.error for t in trials) else CERTIFIED)


def _methods(text: str) -> str | tuple[str, ...]:
    return tuple(text.split(",")) if "," in text else text


# -- targets -------------------------------------------------------------------------------------------------


def _find(
    target: str,
    dim: int | None,
    seed: int,
    on_bad: Literal["raise", "drop"],
    output: Literal["raw", "log_odds"],
    trust: bool,
) -> tuple[Planted | None, Oracle]:
    """The oracle that TARGET names and, for a standard case, the truth."""
    from .oracle import Oracle
    from .oracle.specs import open_target

    place, _, name = target.partition(":")
    if place == "case":
        truth = _case(name, seed)
        return truth, Oracle(truth, dim=dim)
    return None, open_target(target, dim=dim, trust=trust, on_bad=on_bad, output=output)


def _case(name: str, seed: int) -> Planted:
    from .targets import CASES

    if name not in CASES:
        raise typer.BadParameter(f"there is no standard case {name!r}; choose from {', '.join(CASES)}")
    return CASES[name].make(seed)


def _demo_target(seed: int) -> Planted:
    from .targets import planted

    return planted(dim=5, features=8, rng=seed)


def _run(target: Any, **options: Any) -> Extraction:
    from .extract import extract as run

    return run(target, progress=True, **options)


# -- what people and programs see ----------------------------------------------------------------------------


def _finish(found: Extraction, truth: Planted | None, out: Path | None, report: Path | None, as_json: bool) -> None:
    """Show, save and report the result; the exit code says how it ended."""
    aside = _console(stderr=True)
    if as_json:
        typer.echo(json.dumps(summary(found), indent=1))
    else:
        show(found, truth, _console(stderr=False))
    if out is not None:
        aside.print(f"saved in {found.save(out)}", highlight=False)
    if report is not None:
        aside.print(f"report: {found.report(report)}", highlight=False)
    raise typer.Exit(exit_code(found))


def exit_code(found: Extraction) -> int:
    """0 certified; 4 where the budget ended the run; 3 where anything else did."""
    if found.certificate.met:
        return CERTIFIED
    return NO_BUDGET if "max_queries" in found.stopped else NOT_MET


def summary(found: Extraction) -> dict[str, Any]:
    """The result for programs: plain JSON, null where a number is not finite."""
    told = {
        "version": found.version,
        "met": found.certificate.met,
        "dim": found.dim,
        "outputs": found.outputs,
        "radius": found.radius,
        "queries": found.queries,
        "queries_by_stage": dict(found.queries_by_stage),
        "certificate": {**_jsonable(found.certificate), "sentence": found.certificate.sentence},
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
    plain: dict[str, Any] = _jsonable(told)
    return plain


def _jsonable(value: Any) -> Any:
    from dataclasses import fields, is_dataclass

    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if hasattr(value, "tolist"):
        return _jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def show(found: Extraction, truth: Planted | None, console: Console, most: int = 40) -> None:
    """The features as a table, each response as a small picture, and the certificate below it."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from .match import match

    told = match(found.directions, truth.directions) if truth is not None else None
    n, d = len(found.features), found.dim
    table = Table(
        title=f"{n} feature{'s' * (n != 1)} in {d} dimension{'s' * (d != 1)}",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
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
    console.print(f"{found.queries:,} queries; {found.certificate.sentence}", style=verdict, highlight=False)
    for text in (found.stopped, found.diagnosis):
        if text:
            console.print(text, highlight=False, markup=False)


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


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=False)


def _can_report() -> bool:
    from . import report

    return hasattr(report, "write_report")


def _need_report() -> None:
    if not _can_report():
        raise typer.BadParameter("--report needs ridgescope.report, which this installation lacks")


@contextmanager
def _speaking_plainly() -> Iterator[None]:
    """Errors raised on purpose become one line on stderr and an exit code, not a traceback."""
    from .errors import FileProblem, InvalidInput, RidgescopeError

    try:
        yield
    except RidgescopeError as problem:
        typer.echo(f"ridgescope: {problem}", err=True)
        raise typer.Exit(USAGE if isinstance(problem, InvalidInput | FileProblem) else FAILED) from problem
