"""From a TARGET on the command line to an oracle, and to the executor that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..oracle import Oracle
    from ..targets import Planted
    from .options import CallOptions


def open_oracle(target: str, dim: int | None, seed: int, calling: CallOptions) -> tuple[Planted | None, Oracle]:
    """Return the true function if TARGET is a standard case, else None, and the oracle of TARGET."""
    from ..oracle import Oracle
    from ..oracle.specs import open_target

    kind, _, name = target.partition(":")
    location = calling.location()
    if kind == "case":
        if location:
            raise typer.BadParameter("a standard case takes no names, fields, headers, rate or timeout")
        truth = standard_case(name, seed)
        return truth, Oracle(truth, dim=dim)
    oracle = open_target(target, dim=dim, trust=calling.trust, on_bad=calling.on_bad, output=calling.output, **location)
    return None, oracle


def standard_case(name: str, seed: int) -> Planted:
    """Return the standard case of this name, drawn with this seed."""
    from ..targets import CASES

    if name not in CASES:
        raise typer.BadParameter(f"there is no standard case {name!r}; choose from {', '.join(CASES)}")
    return CASES[name].make(seed)


@contextmanager
def open_executor(target: str, calling: CallOptions) -> Iterator[Executor | None]:
    """Yield the executor that calls the function, or None to call it in this process.

    With `--workers` it is a pool of processes, or of threads for servers and programs; with `--dask`, of Dask workers.
    """
    dask, workers = calling.dask, calling.workers
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

        from ..oracle.workers import end_with_parent

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_with_parent) as processes:
            yield processes
