"""What a ledger adds to a run whose oracle costs one microsecond per query.

    python benchmarks/ledger_overhead.py [--repeats 3]

Three figures for each run, all ratios within one process: the time spent inside the ledger as a share of the rest of
the run, the same in processor time, and the wall-clock time with a ledger over that without, runs taking turns. The
first also sees the waiting for the disk, the last what happens in the background and all the noise of a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import ridgescope as rs
from ridgescope.oracle.ledger import Ledger

RUNS = {
    "small (auto)": ({"dim": 6, "features": 8, "kinds": ("tanh", "sine"), "separation": 0.2}, {}),
    "kinks (auto)": ({"dim": 4, "features": 5, "kinds": ("relu", "abs"), "separation": 0.2}, {}),
    "slices": (
        {"dim": 6, "features": 10, "kinds": ("sine",), "separation": 0.2},
        {"method": "slices", "max_queries": 400_000},
    ),
    "paper": (
        {"dim": 2, "features": 3, "kinds": ("sine",), "separation": 0.5},
        {"method": "paper", "tolerance": 0.2},
    ),
}
TIMED = ("key", "get", "put", "commit", "checkpoint", "close", "__init__", "__contains__")


class Microsecond:
    """A target that takes a microsecond for a row, or its own time if that is more."""

    def __init__(self, target: rs.targets.Planted) -> None:
        self.target, self.dim = target, target.dim

    def __call__(self, X):  # type: ignore[no-untyped-def]
        end = time.perf_counter() + 1e-6 * len(X)
        answers = self.target(X)
        while time.perf_counter() < end:
            pass
        return answers


class Stopwatch:
    """Seconds spent in the ledger's methods, those that call each other counted once."""

    def __init__(self) -> None:
        self.inside = False
        self.start()
        for name in TIMED:
            setattr(Ledger, name, self.timed(getattr(Ledger, name)))

    def start(self) -> None:
        self.seconds = self.processor = 0.0

    def timed(self, method):  # type: ignore[no-untyped-def]
        def wrapped(*arguments):  # type: ignore[no-untyped-def]
            if self.inside:
                return method(*arguments)
            self.inside, start, processor = True, time.perf_counter(), time.process_time()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.perf_counter() - start
                self.processor += time.process_time() - processor
                self.inside = False

        return wrapped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=RUNS, default=None)
    arguments = parser.parse_args()
    watch = Stopwatch()
    print("| run | queries | in the ledger | processor | with / without | bytes per answer | resumed / without |")
    print("|---|---|---|---|---|---|---|")
    for name, (target, options) in RUNS.items():
        if arguments.only in (None, name):
            print(line(name, Microsecond(rs.targets.planted(rng=1, **target)), options, arguments.repeats, watch))


def line(name: str, oracle: Microsecond, options: dict[str, object], repeats: int, watch: Stopwatch) -> str:
    figures: list[tuple[float, ...]] = []
    rs.extract(oracle, radius=2.0, **options)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            path = Path(folder) / "run.ledger"
            plain = seconds(oracle, options, None)[0]
            watch.start()
            processor = time.process_time()
            ledgered, queries = seconds(oracle, options, path)
            processor = time.process_time() - processor
            shares = watch.seconds / (ledgered - watch.seconds), watch.processor / (processor - watch.processor)
            size = path.stat().st_size / queries
            figures.append((*shares, ledgered / plain, size, seconds(oracle, options, path)[0] / plain))
    share, processor, ratio, size, resumed = (statistics.median(x) for x in zip(*figures, strict=True))
    return (
        f"| {name} | {queries:,} | {100 * share:.1f} % | {100 * processor:.1f} % | {ratio:.3f} | {size:.1f} "
        f"| {resumed:.3f} |"
    )


def seconds(oracle: Microsecond, options: dict[str, object], ledger: Path | None) -> tuple[float, int]:
    start = time.perf_counter()
    found = rs.extract(oracle, radius=2.0, ledger=ledger, **options)
    return time.perf_counter() - start, found.queries


if __name__ == "__main__":
    main()
