"""Speed-up with workers for an oracle that costs 100 µs a row, and how many bytes are sent and received.

    python benchmarks/workers.py [--busy] [--dask] [--workers 1,2,4] [--out workers.md]
    python benchmarks/workers.py --bytes

The oracle sleeps, so that the figure does not depend on what else the machine does; with --busy it computes instead,
which needs an idle core for each worker. "asking" is the time spent waiting for answers, "large" the same for questions
of more than 512 rows, "run" the whole extraction, fit included; all are ratios to the first number of workers. Workers
have imported the package before the clock starts. "bytes out" and "bytes back" are per thousand rows, the function
included; "rows" is the size of the points alone.

With --bytes nothing is timed: what is sent to two processes and back, the paper's route included.
"""

from __future__ import annotations

import argparse
import pickle
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path

import numpy as np

import ridgescope as rs
from ridgescope.bench import keep_table
from ridgescope.oracle.base import Oracle

SECONDS_PER_ROW = 1e-4
PAPER = {
    "paper, 3 features in 3 dimensions": (
        {"dim": 3, "features": 3, "kinds": ("sine",)},
        {"method": "paper", "max_queries": 8_000_000, "tolerance": 0.2},
    ),
    "paper, 4 features in 6 dimensions": (
        {"dim": 6, "features": 4, "kinds": ("sine",)},
        {"method": "paper", "max_queries": 12_000_000, "tolerance": 0.2},
    ),
}
RUNS = {
    "auto, 8 features in 6 dimensions": ({"dim": 6, "features": 8, "kinds": ("tanh", "sine")}, {}),
    "slices, 10 features in 6 dimensions": (
        {"dim": 6, "features": 10, "kinds": ("sine",)},
        {"method": "slices", "max_queries": 400_000},
    ),
}


class Slow:
    """A planted target that takes `SECONDS_PER_ROW`, asleep or computing."""

    def __init__(self, target: rs.targets.Planted, busy: bool) -> None:
        self.target, self.dim, self.busy = target, target.dim, busy

    def __call__(self, X: np.ndarray) -> np.ndarray:
        end = time.perf_counter() + SECONDS_PER_ROW * len(X)
        answers = self.target(X)
        while self.busy and time.perf_counter() < end:
            pass
        time.sleep(max(0.0, end - time.perf_counter()))
        return answers


class CountingExecutor(Executor):
    """Passes tasks on and counts the bytes of each task and of its answers."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.out, self.back, self.rows = inner, list[int](), list[int](), list[int]()

    def submit(self, fn, /, *args, **kwargs) -> Future:  # type: ignore[no-untyped-def, type-arg]
        self.out.append(len(pickle.dumps((fn, args, kwargs))))
        self.rows.append(sum(len(rows) for rows in args[2]))
        future = self.inner.submit(fn, *args, **kwargs)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future) -> None:  # type: ignore[type-arg]
        self.back.append(len(pickle.dumps(future.result())))

    def figures(self, dim: int) -> str:
        """Tasks, and bytes per thousand rows: of the points, sent, received."""
        thousand = sum(self.rows) / 1000
        out, back = sum(self.out) / thousand, sum(self.back) / thousand
        return f"{len(self.out):,} | {8000 * dim:,} | {out:,.0f} | {back:,.0f}"


class CallTimer:
    """Seconds spent inside `Oracle.__call__`."""

    def __init__(self) -> None:
        call = Oracle.__call__
        self.start()

        def timed(oracle, u, **options):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            try:
                return call(oracle, u, **options)
            finally:
                took = time.perf_counter() - start
                self.seconds += took
                self.large += took if len(u) > 512 else 0.0

        Oracle.__call__ = timed  # type: ignore[method-assign]

    def start(self) -> None:
        self.seconds = self.large = 0.0


def measured(
    target: Slow, options: dict[str, object], executor: Executor | None, asking: CallTimer
) -> tuple[float, ...]:
    asking.start()
    start = time.perf_counter()
    found = rs.extract(target, radius=2.0, executor=executor, **options)
    return asking.seconds, asking.large or np.nan, time.perf_counter() - start, found.queries


def report(make, busy: bool, counts: list[int], out: Path | None) -> None:  # type: ignore[no-untyped-def]
    asking, runs = CallTimer(), list[object]()
    lines = ["| run | queries | workers | asking | large | run | tasks | rows | bytes out | bytes back |"]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    for name, (target, options) in RUNS.items():
        slow = Slow(rs.targets.planted(separation=0.2, rng=1, **target), busy)
        first: tuple[float, ...] | None = None
        for count in counts:
            with make(count) as pool:
                for _ in range(2):  # the workers are up
                    Oracle(slow, executor=pool)(np.zeros((1024, slow.dim)))
                counting = CountingExecutor(pool)
                *times, queries = measured(slow, options, counting, asking)
            first = first or tuple(times)
            ratios = " | ".join(f"{a / b:.2f}" for a, b in zip(first, times, strict=True))
            lines.append(f"| {name} | {queries:,} | {count} | {ratios} | {counting.figures(slow.dim)} |")
            print(lines[-1], flush=True)
            seconds = dict(zip(("asking", "large", "run"), times, strict=True))
            runs.append({"run": name, "queries": queries, "workers": count, **seconds})
            if out is not None:
                keep_table(out, lines, runs)


def count_bytes() -> None:
    print("| run | queries | tasks | rows | bytes out | bytes back |")
    print("|---|---|---|---|---|---|")
    for name, (made, options) in {**RUNS, **PAPER}.items():
        target = rs.targets.planted(separation=0.2, rng=1, **made)
        with ProcessPoolExecutor(2) as pool:
            counting = CountingExecutor(pool)
            found = rs.extract(target, radius=2.0, executor=counting, **options)
        print(f"| {name} | {found.queries:,} | {counting.figures(target.dim)} |", flush=True)


class _Cluster:
    """Dask over TCP, each worker a process."""

    def __init__(self, count: int) -> None:
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(
            n_workers=count, threads_per_worker=1, processes=True, protocol="tcp://", dashboard_address=None
        )
        self.client = Client(self.cluster)

    def __enter__(self) -> Executor:
        return self.client.get_executor()  # type: ignore[no-any-return]

    def __exit__(self, *problem: object) -> None:
        self.client.close()
        self.cluster.close()


def scheduler_cost(tasks: int = 2000) -> None:
    """Seconds of Dask's scheduler for each task: where it saturates."""
    with _Cluster(2) as pool:
        list(pool.map(abs, range(50)))
        start = time.perf_counter()
        for future in [pool.submit(abs, i, pure=False) for i in range(tasks)]:
            future.result()
        each = (time.perf_counter() - start) / tasks
    print(
        f"\nan empty task takes Dask {1e3 * each:.2f} ms: a block of 2,048 rows at 100 µs a row lasts 205 ms, so some "
        f"{0.2048 / each:,.0f} workers keep one scheduler busy."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--dask", action="store_true")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, comma-separated")
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    arguments = parser.parse_args()
    if arguments.bytes:
        count_bytes()
        return
    report(
        _Cluster if arguments.dask else ProcessPoolExecutor,
        arguments.busy,
        [int(count) for count in arguments.workers.split(",")],
        arguments.out,
    )
    if arguments.dask:
        scheduler_cost()


if __name__ == "__main__":
    main()
