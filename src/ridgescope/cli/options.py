"""Arguments and options that several commands take.

A group of options is a frozen dataclass, which a command takes as one argument:

    @expand_groups
    def extract(target: Target, search: SearchOptions, calling: CallOptions) -> None: ...

Typer sees a function in which every field of a group is an option of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

CASES = (
    "first", "small", "mixed", "superposed", "dense", "extreme", "waves", "noisy", "twins", "lowrank", "vector", "relu",
    "large",
)  # fmt: skip
"""Names for shell completion; a test compares them with `targets.CASES`, which is slow to import."""


def whole_number(text: str) -> int:
    """Return a count written as 200000, 200_000 or 2e5 as an int."""
    try:
        number = float(text)
        if not number.is_integer() or number < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a whole number; write 200000 or 2e5") from None
    return int(number)


def methods(text: str) -> str | tuple[str, ...]:
    """Return `--method` as `rs.extract` takes it: one name, or a tuple if there are commas."""
    return tuple(text.split(",")) if "," in text else text


def complete_case(incomplete: str) -> list[str]:
    """Return the names of standard cases that begin with `incomplete`, for shell completion."""
    return [name for name in CASES if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Return the targets `case:NAME` that begin with `incomplete`, for shell completion."""
    return [f"case:{name}" for name in CASES if f"case:{name}".startswith(incomplete)]


def _count(help: str) -> Any:
    """Return an option that takes a whole number, also in the notation 2e5."""
    return typer.Option(parser=whole_number, metavar="COUNT", help=help)


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:function, called on (m, d) arrays; model.onnx; model.pt2; http(s)://…; cmd:…; or case:NAME.",
        autocompletion=complete_target,
    ),
]
Saved = Annotated[Path, typer.Argument(metavar="RESULT", help="A folder written by --out.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Save the result in this folder.")]
Queries = Annotated[int | None, _count("Number of fresh queries; by default as many as a run's certificate takes.")]
Dim = Annotated[int | None, typer.Option(min=1, help="Number of input coordinates of the function.")]
Method = Annotated[
    str,
    typer.Option(
        help="auto, paper, paper-pure, or proposers with commas between: slices, curvature, tensors, kinks, random, …"
    ),
]
Reach = Annotated[float | None, typer.Option(help="Query no point farther than this from the centre.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed; the same seed and function give the same bits.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, everything else on stderr.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the details of each fit, one line per step.")]
Within = Annotated[float, typer.Option(help="Largest angle in radians between directions that count as the same.")]


@dataclass(frozen=True)
class SearchOptions:
    """Options for what to recover, to which accuracy, and at which cost."""

    radius: Annotated[
        float | None, typer.Option(help="Radius of the ball on which the function is recovered; by default 3.")
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows (.csv or .npy) that the ball is to hold, and to test the result on."),
    ] = None
    tolerance: Annotated[float, typer.Option(help="Largest error, as a fraction of f's standard deviation.")] = 1e-2
    noise: Annotated[float | None, typer.Option(help="Bound on the error of one answer; estimated if not given.")] = (
        None
    )
    confidence: Annotated[float, typer.Option(help="Confidence of the certificate.")] = 0.99
    reach: Reach = None
    max_features: Annotated[int | None, _count("Largest number of features.")] = None
    max_queries: Annotated[int | None, _count("Hard limit on queries; 2e5 notation is accepted.")] = None
    max_seconds: Annotated[float | None, typer.Option(min=0.0, help="Time limit, kept to within one step.")] = None
    approximate: Annotated[bool, typer.Option(help="Go on for a surrogate where f is no sum of features.")] = False
    method: Method = "auto"

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `rs.extract`."""
        given = {f.name: getattr(self, f.name) for f in fields(self)} | {"method": methods(self.method)}
        if self.data is not None:
            from ..data import read_rows

            given["data"] = read_rows(self.data)
        return given


def _call(*names: str, help: str, metavar: str | None = None, least: float | None = None) -> Any:
    """Return an option that is listed under "How the function is called"."""
    return typer.Option(*names, help=help, metavar=metavar, min=least, rich_help_panel="How the function is called")


@dataclass(frozen=True)
class CallOptions:
    """Options for where the function is, which workers call it, and how its answers are read."""

    workers: Annotated[
        int, _call(help="Processes that call the function (threads for a server or a program).", least=1)
    ] = 1
    dask: Annotated[
        str | None, _call(help="Address of a Dask scheduler whose workers call the function.", metavar="ADDRESS")
    ] = None
    on_bad: Annotated[
        Literal["raise", "drop"],
        _call(help="What to do with answers that are not finite: raise an error, or drop them."),
    ] = "raise"
    output: Annotated[
        Literal["raw", "log_odds"] | None,
        _call(help="log_odds: convert probabilities to log-odds, the default for predict_proba; raw: take them as is."),
    ] = None
    trust: Annotated[bool, _call("--trust", help="Open files that can run code when read (pickle, joblib, .pt).")] = (
        False
    )
    input_name: Annotated[
        str | None, _call(help="Name of the input of an ONNX file or of an Open Inference model.", metavar="NAME")
    ] = None
    output_name: Annotated[
        str | None, _call(help="Name of the output of an ONNX file or of an Open Inference model.", metavar="NAME")
    ] = None
    request_field: Annotated[
        str | None,
        _call(help="JSON field of the rows in a request; default 'instances', '' for a bare list.", metavar="NAME"),
    ] = None
    response_field: Annotated[
        str | None,
        _call(help="JSON field of the answers; default 'predictions', a dot leads into an object.", metavar="NAME"),
    ] = None
    header: Annotated[
        list[str] | None,
        _call(
            help="HTTP header; 'X-Key: ${MY_KEY}', in single quotes, takes the secret from the environment. "
            "May be repeated.",
            metavar="'NAME: VALUE'",
        ),
    ] = None
    rate: Annotated[float | None, _call(help="Largest number of requests per second.", metavar="REQUESTS")] = None
    timeout: Annotated[
        float | None, _call(help="Time limit for one request, or for one batch of a program.", metavar="SECONDS")
    ] = None

    def location(self) -> dict[str, Any]:
        """Return the keyword arguments of `rs.oracle.open_target` for reaching the function that were given."""
        given = {
            "input_name": self.input_name,
            "output_name": self.output_name,
            "request": self.request_field,
            "response": self.response_field,
            "headers": dict(_header(line) for line in self.header) if self.header else None,
            "rate": self.rate,
            "timeout": self.timeout,
        }
        return {name: value for name, value in given.items() if value is not None}


def _header(line: str) -> tuple[str, str]:
    """Return name and value of a header written as 'NAME: VALUE'."""
    name, colon, value = line.partition(":")
    if not (colon and name.strip() and value.strip()):
        # the value may be a secret, so the message does not show it
        raise typer.BadParameter(f"--header must be 'NAME: VALUE', such as 'X-Key: ${{MY_KEY}}'; got {name[:40]!r}")
    return name.strip(), value.strip()


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with every field of its dataclass arguments as a parameter of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        kinds = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default, kind = field.default, inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=kinds[field.name]))

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
