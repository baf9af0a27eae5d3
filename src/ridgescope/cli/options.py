"""Options that several commands take: each group is a frozen dataclass, and a command takes it as one argument.

    @grouped
    def extract(target: common.Target, search: Searching, asking: Asking) -> None: ...

is for Typer a function with all their fields as options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import typer

from . import common

_REACHING = "How the function is reached"


def _option(*names: str, help: str, metavar: str | None = None, least: float | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, min=least, rich_help_panel=_REACHING)


@dataclass(frozen=True)
class Searching:
    """What is looked for, and how long."""

    radius: Annotated[float, typer.Option(help="Reproduce the function on the ball of this radius.")] = 3.0
    tolerance: Annotated[float, typer.Option(help="Largest error, as a fraction of f's deviation.")] = 1e-2
    noise: Annotated[float | None, typer.Option(help="Bound on the error of an answer; else estimated.")] = None
    confidence: Annotated[float, typer.Option(help="Confidence of the certificate.")] = 0.99
    reach: Annotated[float | None, typer.Option(help="Never ask farther than this from the centre.")] = None
    max_features: Annotated[
        int | None, typer.Option(parser=common.whole, metavar="COUNT", help="Look for at most so many features.")
    ] = None
    max_queries: Annotated[
        int | None, typer.Option(parser=common.whole, metavar="COUNT", help="Never ask more often; 2e5 will do.")
    ] = None
    method: common.Method = "auto"

    def arguments(self) -> dict[str, Any]:
        """As `rs.extract` takes them."""
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        return told | {"method": common.methods(self.method)}


@dataclass(frozen=True)
class Asking:
    """How the function is reached, by whom, and what becomes of its answers."""

    workers: Annotated[int, _option(help="Ask so many rows at a time, in processes of their own.", least=1)] = 1
    dask: Annotated[str | None, _option(help="Ask through the Dask scheduler at this address.", metavar="ADDRESS")] = (
        None
    )
    on_bad: Annotated[Literal["raise", "drop"], _option(help="What to do with answers that are not finite.")] = "raise"
    output: Annotated[Literal["raw", "log_odds"], _option(help="log_odds: the answers are probabilities.")] = "raw"
    trust: Annotated[bool, _option("--trust", help="Open files that can run code when read (pickle, joblib, .pt).")] = (
        False
    )
    input_name: Annotated[
        str | None, _option(help="Which input of an ONNX file or of an Open Inference model.", metavar="NAME")
    ] = None
    output_name: Annotated[str | None, _option(help="Which of its outputs.", metavar="NAME")] = None
    request_field: Annotated[
        str | None,
        _option(
            help="JSON field that a server takes rows in, 'instances' unless said; '' for the bare list.",
            metavar="NAME",
        ),
    ] = None
    response_field: Annotated[
        str | None,
        _option(
            help="JSON field that it answers in, 'predictions' unless said; dots lead into objects.", metavar="NAME"
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        _option(
            help="Header for a server; 'X-Key: ${MY_KEY}', in single quotes, takes the secret from the environment. "
            "May be repeated.",
            metavar="'NAME: VALUE'",
        ),
    ] = None
    rate: Annotated[float | None, _option(help="At most so many requests a second.", metavar="REQUESTS")] = None
    timeout: Annotated[
        float | None, _option(help="Seconds for one request, or for one batch of a program.", metavar="SECONDS")
    ] = None

    def place(self) -> dict[str, Any]:
        """What was said about where the function is, as `rs.oracle.open_target` takes it."""
        told = {
            "input_name": self.input_name,
            "output_name": self.output_name,
            "request": self.request_field,
            "response": self.response_field,
            "headers": dict(_header(line) for line in self.header) if self.header else None,
            "rate": self.rate,
            "timeout": self.timeout,
        }
        return {name: value for name, value in told.items() if value is not None}


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not (colon and name.strip() and value.strip()):
        # what follows the name may be a secret, so it is not repeated
        raise typer.BadParameter(f"--header must be 'NAME: VALUE', such as 'X-Key: ${{MY_KEY}}'; got {name[:40]!r}")
    return name.strip(), value.strip()


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose arguments that are groups have become options of their own."""
    told = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in told.items() if is_dataclass(kind) and isinstance(kind, type)}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            parameters.append(parameter.replace(annotation=told[parameter.name]))
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
