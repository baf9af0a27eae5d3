"""`extract`, `demo` and `stability`: the commands that run extractions."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..stop import Interrupted, StopReason
from . import options, output
from .options import CallOptions, SearchOptions, expand_groups
from .targets import open_executor, open_oracle, standard_case

if TYPE_CHECKING:
    from ..geometry import Floats
    from ..oracle import Oracle
    from ..result import Extraction

_PLANES = 2
"""Number of planar slices of f for the demo's report."""
_HIDDEN, _EPOCHS = 16, 60
"""Number of hidden units and of training passes of the demo's network: it trains in about a second."""


@expand_groups
def extract(
    context: typer.Context,
    target: options.Target,
    search: SearchOptions,
    calling: CallOptions,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    out: options.Out = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the HTML report to this file.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Store every answer; the same command resumes from this file.")
    ] = None,
    planes: Annotated[
        int, typer.Option(min=0, max=8, help="Number of planar slices of f in the report, about 5,000 queries each.")
    ] = 0,
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    """Query a function and recover its features.

    Examples:

      ridgescope extract case:small --report report.html

      ridgescope extract mymodel:logits --dim 20 --radius 2 --out result --json

      ridgescope extract model.onnx --data activations.npy --out result

      ridgescope extract model.onnx --output log_odds --ledger answers.ledger --workers 4

      ridgescope extract https://host/score --dim 8 --header 'X-Key: ${MY_KEY}' --rate 20 --ledger answers.ledger
    """
    with output.exit_on_error():
        with output.stdout_to_stderr(), open_executor(target, calling) as executor:
            settings = {"rng": seed, "executor": executor, "planes": planes, **search.arguments()}
            truth, oracle = open_oracle(target, _dim(dim, settings), seed, calling)
            found = _run(context, oracle, ledger, verbose, **settings)
        _finish(found, truth, out, report, ledger, as_json)


def _dim(dim: int | None, settings: dict[str, Any]) -> int | None:
    """Return the number of inputs as given, else that of the columns of --data."""
    return settings["data"].shape[1] if dim is None and settings["data"] is not None else dim


def demo(
    context: typer.Context,
    case: Annotated[
        str | None,
        typer.Option(help="Recover a standard case, e.g. first or mixed.", autocompletion=options.complete_case),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="digits: train a small network on handwritten digits and recover it.")
    ] = None,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Save the result and the report in this folder.")] = Path(
        "ridgescope-demo"
    ),
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    """Draw a random sum of features (8 in 5 dimensions) and recover it from queries alone.

    Examples:

      ridgescope demo

      ridgescope demo --case mixed --seed 3

      ridgescope demo --model digits
    """
    with output.exit_on_error():
        with output.stdout_to_stderr():
            truth: Any
            oracle: Any
            if model is None:
                truth = oracle = standard_case(case, seed) if case else _planted(seed)
                radius, made = {}, "planted {} features in {} dimensions"
            elif case is not None or model != "digits":
                raise typer.BadParameter(f"--model takes digits and cannot be combined with --case; got {model!r}")
            else:
                truth, oracle = _train_on_digits(seed)
                radius, made = {"radius": 1.0}, "trained a network with {} hidden units on {} pixels"
            output.print_stderr(made.format(*truth.directions.shape) + "; querying …")
            found = _run(context, oracle, None, verbose, rng=seed, planes=_PLANES, **radius)
        _finish(found, truth, out, out / "report.html", None, as_json)


def _planted(seed: int) -> Any:
    """Return the demo's random target: 8 features in 5 dimensions."""
    from ..targets import planted

    return planted(dim=5, features=8, rng=seed)


@dataclass(frozen=True, eq=False)
class _Network:
    """The true directions of a trained network with one hidden layer."""

    directions: Floats
    """(hidden, pixels) array whose rows are unit vectors."""
    kinds: tuple[str, ...]
    """Activation of each hidden unit."""


def _train_on_digits(seed: int) -> tuple[_Network, Oracle]:
    """Train a small network on handwritten digits; return its truth, and an oracle of its class log-odds."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
    except ModuleNotFoundError:
        raise typer.BadParameter("--model digits needs scikit-learn: pip install 'ridgescope[sklearn]'") from None
    import warnings

    from ..geometry import unit
    from ..oracle import Oracle

    X, labels = load_digits(return_X_y=True)
    X = X / 16.0  # pixels are 0 … 16
    network = MLPClassifier((_HIDDEN,), activation="tanh", alpha=1e-2, max_iter=_EPOCHS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a demonstration needs no converged network
        network.fit(X, labels)
    truth = _Network(unit(network.coefs_[0].T), ("tanh",) * _HIDDEN)
    return truth, Oracle(network.predict_proba, dim=X.shape[1], center=X.mean(axis=0), output="log_odds")


def _run(context: typer.Context, target: Any, ledger: Path | None, verbose: bool, **settings: Any) -> Extraction:
    """Return the result, or the partial result after Ctrl-C; progress is shown on stderr."""
    from ..extract import extract as run
    from ..oracle.http_secrets import without_query

    words = context.find_root().obj
    command = shlex.join(["ridgescope", *map(without_query, words)]) if isinstance(words, tuple) else ""
    try:
        progress = "verbose" if verbose else True
        return replace(run(target, progress=progress, ledger=ledger, **settings), command=command)
    except Interrupted as interrupt:
        return replace(interrupt.found, command=command)


def _finish(
    found: Extraction, truth: Any, out: Path | None, report: Path | None, ledger: Path | None, as_json: bool
) -> None:
    """Print, save and report the result, show how to resume an interrupted run, and exit."""
    interrupted = found.stop is StopReason.INTERRUPTED
    if as_json:
        output.print_json(output.summary(found))
    else:
        output.show(found, None if interrupted else truth, output.console(stderr=False))
    if out is not None or interrupted:
        output.print_stderr(f"saved in {found.save(out if out is not None else Path('ridgescope-interrupted'))}")
    if interrupted and ledger is not None:
        output.print_stderr(f"to resume:\n  {found.command}")
    elif interrupted:
        output.print_stderr("the answers were not stored; `ridgescope extract` with --ledger FILE can be resumed")
    elif report is not None:
        output.print_stderr(f"report: {found.report(report)}")
    raise typer.Exit(output.exit_code(found))


@expand_groups
def stability(
    target: options.Target,
    search: SearchOptions,
    calling: CallOptions,
    dim: options.Dim = None,
    seeds: Annotated[int, typer.Option(min=2, help="Number of runs; their seeds are 0, 1, 2, …")] = 3,
    within: options.Within = 0.1,
    case_seed: Annotated[int, typer.Option(min=0, help="Seed with which a standard case is drawn.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Extract a function with several seeds, and compare which features the runs find and by what angle they differ.

    The exit code is 0 if every run finds every feature and all runs are certified, else 3.

    Examples:

      ridgescope stability case:small --seeds 5

      ridgescope stability mymodel:logits --dim 20 --radius 2 --json
    """
    with output.exit_on_error():
        with output.stdout_to_stderr(), open_executor(target, calling) as executor:
            from ..stability import stability as compare_runs

            settings = search.arguments()
            _, oracle = open_oracle(target, _dim(dim, settings), case_seed, calling)
            found = compare_runs(
                oracle,
                seeds=range(seeds),
                within=within,
                after_each=lambda seed, run: output.print_stderr(
                    f"seed {seed}: {len(run.features)} features, {run.queries:,} queries; {run.stopped}"
                ),
                executor=executor,
                **settings,
            )
        groups = [
            {
                "runs": g.runs,
                "spread": g.spread,
                "strength": g.strength,
                "shape": str(g.members[0].shape or "") or None,
                "direction": g.direction,
            }
            for g in found.groups
        ]
        if as_json:
            certified = [r.certificate.met for r in found.runs]
            output.print_json({"seeds": seeds, "certified": certified, "shared": len(found.shared), "features": groups})
        else:
            _show_groups(groups, seeds)
            output.console(stderr=False).print(str(found), highlight=False)
        all_same = len(found.shared) == len(found.groups) and all(r.certificate.met for r in found.runs)
        raise typer.Exit(output.CERTIFIED if all_same else output.NOT_MET)


def _show_groups(groups: list[dict[str, Any]], seeds: int) -> None:
    """Print a table of the groups of features that the runs found."""
    from rich.markup import escape

    table = output.new_table(f"features of {seeds} runs")
    for name in ("found by", "angle between", "strength", "shape"):
        table.add_column(name, justify="left" if name == "shape" else "right", no_wrap=name != "shape")
    for g in groups:
        spread = f"{g['spread']:.1e}" if len(g["runs"]) > 1 else "–"
        table.add_row(f"{len(g['runs'])} of {seeds}", spread, f"{g['strength']:.3g}", escape(g["shape"] or "–"))
    output.console(stderr=False).print(table)
