"""What the commands share: options, exit codes, targets, workers, and plain words for errors."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console

    from ..oracle import Oracle
    from ..result import Extraction
    from ..targets import Planted
    from .options import Asking

CERTIFIED, FAILED, USAGE, NOT_MET, NO_BUDGET, INTERRUPTED = 0, 1, 2, 3, 4, 130
_CASES = [
    "first",
    "small",
    "mixed",
    "superposed",
    "dense",
    "extreme",
    "waves",
    "noisy",
    "twins",
    "lowrank",
    "vector",
    "relu",
    "large",
]
"""Names for the shell to complete; a test holds them against `targets.CASES`, which is slow to import."""


def whole(text: str) -> int:
    """A count as people write it: 200000, 200_000, 2e5."""
    try:
        number = float(text)
        if not number.is_integer() or number < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a whole number; write 200000 or 2e5") from None
    return int(number)


def complete_case(incomplete: str) -> list[str]:
    return [name for name in _CASES if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    return [f"case:{name}" for name in _CASES if f"case:{name}".startswith(incomplete)]


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:function, called on (m, d) arrays; model.onnx; model.pt2; http(s)://…; cmd:…; or case:NAME.",
        autocompletion=complete_target,
    ),
]
Saved = Annotated[Path, typer.Argument(metavar="RESULT", help="A folder that --out wrote.")]
Dim = Annotated[int | None, typer.Option(min=1, help="Coordinates that the function takes.")]
Method = Annotated[
    str,
    typer.Option(help="auto, paper, slices, curvature, tensors, kinks, far_field, random; several with commas."),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed and function give the same bits.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, all else on stderr.")]
Within = Annotated[float, typer.Option(help="Radians up to which two directions count as the same.")]


def methods(text: str) -> str | tuple[str, ...]:
    return tuple(text.split(",")) if "," in text else text


def open_oracle(target: str, dim: int | None, seed: int, asking: Asking) -> tuple[Planted | None, Oracle]:
    """The oracle that TARGET names and, for a standard case, the truth."""
    from ..oracle import Oracle
    from ..oracle.specs import open_target

    kind, _, name = target.partition(":")
    place = asking.place()
    if kind == "case":
        if place:
            raise typer.BadParameter("a standard case is reached without names, headers, rate or timeout")
        truth = case(name, seed)
        return truth, Oracle(truth, dim=dim)
    return None, open_target(target, dim=dim, trust=asking.trust, on_bad=asking.on_bad, output=asking.output, **place)


def case(name: str, seed: int) -> Planted:
    """A standard case."""
    from ..targets import CASES

    if name not in CASES:
        raise typer.BadParameter(f"there is no standard case {name!r}; choose from {', '.join(CASES)}")
    return CASES[name].make(seed)


@contextmanager
def executor(target: str, asking: Asking) -> Iterator[Executor | None]:
    """Who calls the function: this process, some of its own, threads for what waits elsewhere, or Dask."""
    dask, workers = asking.dask, asking.workers
    if dask is not None:
        try:
            distributed: Any = import_module("distributed")
        except ModuleNotFoundError:
            raise typer.BadParameter("--dask needs distributed: pip install 'ridgescope[dask]'") from None
        with distributed.Client(dask) as client:
            yield client.get_executor()
    elif workers == 1:
        yield None
    elif target.startswith(("http://", "https://", "cmd:", "cmd+binary:")):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers) as pool:
            yield pool
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
            yield processes


def command_line(context: typer.Context) -> str:
    """The command as it was typed."""
    words = context.find_root().obj
    return shlex.join(["ridgescope", *words]) if isinstance(words, tuple) else ""


def load_result(folder: Path) -> Extraction:
    from ..storage import load

    return load(folder)


def console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=False)


def aside(text: Any) -> None:
    """A line for the person at the terminal."""
    console(stderr=True).print(str(text), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def speaking_plainly() -> Iterator[None]:
    """Errors raised on purpose become one line on stderr and an exit code, not a traceback."""
    from ..errors import FileProblem, InvalidInput, RidgescopeError

    try:
        yield
    except RidgescopeError as problem:
        typer.echo(f"ridgescope: {problem}", err=True)
        raise typer.Exit(USAGE if isinstance(problem, InvalidInput | FileProblem) else FAILED) from problem


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """What the function prints must not end up in the JSON."""
    with redirect_stdout(sys.stderr):
        yield
