"""How it fails: the share of planted directions that come back, as what makes a target hard is turned up.

    OMP_NUM_THREADS=1 python benchmarks/phases.py --quick
    OMP_NUM_THREADS=1 python benchmarks/phases.py --out phases
    OMP_NUM_THREADS=1 python benchmarks/phases.py --out phases --peer    # python benchmarks/peers.py --set-up before

Five diagrams, each over two properties of the target: angle between twins, noise, features for each d², steepness, and
how far one may ask. Ours is told the dimension and the ball. The peer, cubic splines along n directions trained by
Adam, is told n and gets as many points as ours may ask, uniform in the ball. With `--out` each diagram is kept there
as a table, every single run as JSON, and a picture, up to date after each cell; the same command goes on where it was
interrupted. A run that is cut off counts with what it knew by then, one that raised with nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ridgescope as rs
from heatmap import Cell, Panel, heat_map, table
from peers.contest import GRACE, HERE, limited
from peers.judge import RADIUS
from ridgescope.bench import keep_table, true_sup_error
from ridgescope.geometry import in_ball
from ridgescope.match import match
from ridgescope.targets import KINDS, SMOOTH, Planted, planted

OURS, PEER = "ridgescope, told nothing", "spline distillation, told n"
SPLINES = {"response": "spline", "times": 1, "intervals": 24, "lr": 3e-2}
"""The rate did best of 3e-3, 1e-2, 3e-2 and 0.1 in trials on two targets of seed 1000, by the truth: it flatters."""
LATE, SPENT, RAISED = "*", "†", "‡"
CAPTION = (
    "Share of the planted directions found within 0.01 rad, mean over seeds, rounded down; false: near none.\n"
    f"A run was {LATE} cut off by its time limit, {SPENT} out of queries, {RAISED} ended by an error. – not run."
)

Value = float | str


def noisy(level: float, seed: int, *arguments: Any, **options: Any) -> Planted:
    """`planted`, with noise whose standard deviation is `level` times that of f over the ball."""
    bare = planted(*arguments, rng=seed, **options)
    deviation = bare.clean(in_ball(4000, bare.dim, RADIUS, np.random.default_rng(seed))).std()
    return planted(*arguments, rng=seed, noise=np.sqrt(3.0) * level * float(deviation), **options)


def steep(k: float, n: int, seed: int) -> Planted:
    """n responses tanh(k(z − z₀)) in six dimensions, z₀ uniform in [−1, 1]."""
    places = np.random.default_rng([seed, n]).uniform(-1.0, 1.0, n)
    return planted(6, n, [partial(_tanh, k, z0) for z0 in places], rng=seed)


def _tanh(k: float, z0: float, z: np.ndarray) -> np.ndarray:
    return np.tanh(k * (z - z0))


@dataclass(frozen=True)
class Diagram:
    name: str
    title: str
    x: tuple[str, Sequence[Value]]
    """What changes from column to column, and its values."""
    y: tuple[str, Sequence[Value]]
    make: Callable[[Any, Any, int], Planted]
    """From column, row and seed."""
    options: Callable[[Any], Mapping[str, Any]] = lambda x: {}
    """Of `rs.extract`, from the column."""
    longer: bool = False
    """Runs take longer from column to column: none is begun past one in which time ran out and nothing was found."""
    peer: Sequence[Value] = ()
    """Columns for the peer."""


TWINS = Diagram(
    "twins",
    "Twins: four pairs of smooth features in five dimensions",
    ("angle γ between twins (rad)", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
    ("noise / std of f", (0.0, 1e-3, 1e-2, 1e-1)),
    make=lambda x, y, seed: noisy(y, seed, 5, 8, SMOOTH, twins=4, twin_angle=x),
    peer=(0.01, 0.05, 0.2, 0.5),
)
NOISE = Diagram(
    "noise",
    "Noise: features of all kinds in six dimensions",
    ("noise / std of f", (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)),
    ("n / d", (1, 2, 3)),
    make=lambda x, y, seed: noisy(x, seed, 6, 6 * y),
    peer=(1e-4, 1e-2, 1e-1, 3e-1),
)
CROWDING = Diagram(
    "crowding",
    "Crowding: smooth features, more and more of them",
    ("n / d²", (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)),
    ("d", (3, 4, 5, 6, 8)),
    make=lambda x, y, seed: planted(y, round(x * y * y), SMOOTH, rng=seed),
    longer=True,
    peer=(0.25, 1.0, 3.0),
)
STEEPNESS = Diagram(
    "steepness",
    "Steepness: tanh(k(z − z₀)) in six dimensions",
    ("k · R", (2.0, 6.0, 20.0, 60.0, 200.0)),
    ("n / d", (1, 2, 3)),
    make=lambda x, y, seed: steep(x / RADIUS, 6 * y, seed),
    peer=(2.0, 20.0, 200.0),
)
REACH = Diagram(
    "reach",
    "Reach: twelve features in six dimensions",
    ("reach / R", (1.0, 1.25, 1.5, 2.0, 4.0, np.inf)),
    ("response", ("tanh", "relu", "sine", "mixed")),
    make=lambda x, y, seed: planted(6, 12, KINDS if y == "mixed" else y, rng=seed),
    options=lambda x: {} if np.isinf(x) else {"reach": x * RADIUS},
    peer=(1.0,),
)
DIAGRAMS = (TWINS, NOISE, CROWDING, STEEPNESS, REACH)


@dataclass(frozen=True)
class Run:
    who: str
    x: str = ""
    y: str = ""
    seed: int = 0
    seconds: float = 0.0
    budget: int = 0
    """The limits: processor time and queries."""
    share: float = 0.0
    false: int = 0
    met: bool | None = None
    """Certified? None: makes no such claim."""
    error: float | None = None
    """Largest true error seen, as a fraction of f's standard deviation."""
    queries: int = 0
    took: float = 0.0
    mark: str = ""
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.who, self.x, self.y, self.seed

    def held(self, directions: np.ndarray, target: Planted, **more: Any) -> Run:
        told = match(directions.reshape(-1, target.dim), target.directions)
        return replace(self, share=told.share(1e-2), false=len(told.false), **more)


class TimeUp(KeyboardInterrupt):
    """As if someone had pressed Ctrl-C; `rs.extract` then ends with what it knows."""


def _time_up(*_: object) -> None:
    raise TimeUp


def ours(blank: Run, target: Planted, options: Mapping[str, Any]) -> Run:
    """One extraction, interrupted after its seconds of processor time."""
    start = time.process_time()
    signal.signal(signal.SIGPROF, _time_up)
    signal.setitimer(signal.ITIMER_PROF, blank.seconds, GRACE)
    try:
        found = rs.extract(target, target.dim, radius=RADIUS, rng=blank.seed, max_queries=blank.budget, **options)
        mark, note = (SPENT if found.stopped.startswith("Budget") else ""), found.stopped
    except rs.Interrupted as stop:
        if not isinstance(stop.__cause__, TimeUp):
            raise
        found, mark, note = stop.found, LATE, "cut off"
    except (Exception, TimeUp) as problem:  # whatever it is, the other runs should still have their turn
        return replace(blank, met=False, mark=RAISED, note=f"{type(problem).__name__}: {problem}"[:200])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    took = time.process_time() - start
    error = true_sup_error(found, target, np.random.default_rng(blank.seed))
    more = {"met": found.certificate.met, "error": error, "queries": found.queries, "took": took}
    return blank.held(found.directions, target, mark=mark, note=note, **more)


def theirs(blank: Run, target: Planted, python: str) -> Run:
    """The peer in a process and an environment of its own, as peers/job.py tells it its task."""
    X = in_ball(blank.budget, target.dim, RADIUS, np.random.default_rng([blank.seed, blank.budget]))
    task = {"dim": target.dim, "features": len(target.directions), "radius": RADIUS, "seed": blank.seed, "apart": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        told = json.dumps({**task, "seconds": blank.seconds, "settings": SPLINES})
        (Path(folder) / "task.json").write_text(told, encoding="utf-8")
        np.savez(Path(folder) / "task.npz", X=X, Y=target(X), G=X[:0], T=X[:1])
        command = limited([python, str(HERE / "distil.py"), folder], int(blank.seconds) + GRACE)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
            return replace(blank, mark=RAISED, note=last[:200])
        with np.load(Path(folder) / "answer.npz") as arrays:
            return blank.held(arrays["directions"], target, queries=len(X), took=blank.seconds)


@dataclass
class Chart:
    """All runs of a diagram so far, and what is written about them."""

    diagram: Diagram
    out: Path | None
    runs: dict[tuple[str, str, str, int], Run] = field(default_factory=dict)

    @classmethod
    def kept(cls, diagram: Diagram, out: Path | None) -> Chart:
        path = None if out is None else out / f"{diagram.name}.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else []
        return cls(diagram, out, {run.key: run for run in (Run(**told) for told in old)})

    def has(self, blank: Run) -> bool:
        old = self.runs.get(blank.key)
        return old is not None and (old.seconds, old.budget) == (blank.seconds, blank.budget)

    def cell(self, who: str, y: str, x: str) -> Cell | None:
        runs = [run for run in self.runs.values() if (run.who, run.y, run.x) == (who, y, x)]
        if not runs:
            return None
        certified = [run.met for run in runs if run.met is not None]
        notes = [f"{sum(certified)}/{len(certified)} certified"] if certified else []
        notes += [f"{false} false"] if (false := sum(run.false for run in runs)) else []
        return Cell(float(np.mean([run.share for run in runs])), "".join(sorted({run.mark for run in runs})), notes)

    def keep(self) -> list[str]:
        """The table; with `out`, written to disk together with runs and picture."""
        d, runs = self.diagram, self.runs.values()
        columns = [v for v in map(said, d.x[1]) if any(run.x == v for run in runs)]
        rows = [v for v in map(said, d.y[1]) if any(run.y == v for run in runs)]
        panels = []
        for who in dict.fromkeys(run.who for run in runs):
            cells = {(y, x): cell for y in rows for x in columns if (cell := self.cell(who, y, x)) is not None}
            seeds, limits = ({getattr(run, name) for run in runs if run.who == who} for name in ("seed", "seconds"))
            limit = " or ".join(f"{seconds:g}" for seconds in sorted(limits))
            panels.append(Panel(who, f"{len(seeds)} seed{'s'[: len(seeds) > 1]}, at most {limit} s a run", cells))
        lines = table(d.x[0], d.y[0], columns, rows, panels)
        if self.out is not None:
            keep_table(self.out / f"{d.name}.md", lines, [asdict(run) for run in runs])
            picture = heat_map(d.title, d.x[0], d.y[0], columns, rows, panels, CAPTION)
            (self.out / f"phase_{d.name}.svg").write_text(picture, encoding="utf-8")
        return lines


def said(value: Value) -> str:
    return value if isinstance(value, str) else "∞" if np.isinf(value) else f"{value:g}"


def fill(chart: Chart, blank: Run, seeds: int, columns: Sequence[Value], rows: Sequence[Value], python: str) -> None:
    """Run what is missing of one method, cell by cell; `blank` has its name and limits."""
    d = chart.diagram
    for y in rows:
        for x in columns:
            here = replace(blank, x=said(x), y=said(y))
            for run in (replace(here, seed=seed) for seed in range(1000, 1000 + seeds)):
                if not chart.has(run):
                    target = d.make(x, y, run.seed)
                    done = ours(run, target, d.options(x)) if run.who == OURS else theirs(run, target, python)
                    chart.runs[run.key] = done
            chart.keep()
            cell = chart.cell(here.who, here.y, here.x)
            print(f"{here.who}; {d.y[0]}: {here.y}; {d.x[0]}: {here.x}; {cell}", flush=True)
            if d.longer and here.who == OURS and cell is not None and cell.share == 0 and cell.mark == LATE:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the corners of each diagram, one seed, a few seconds")
    parser.add_argument("--only", default="1,2,3,4,5", help="numbers of diagrams, comma-separated")
    parser.add_argument("--seeds", type=int, default=None, help="for ours; 3 unless quick")
    parser.add_argument("--seconds", type=float, default=None, help="processor time of a run of ours; 60 unless quick")
    parser.add_argument("--queries", type=int, default=200_000, help="the most that a run may ask")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=False, help="the peer, too")
    parser.add_argument("--peer-seeds", type=int, default=1)
    parser.add_argument("--peer-seconds", type=float, default=None, help="of a run of the peer; 20 unless quick")
    parser.add_argument("--python", default=str(HERE.parents[1] / "out" / "peers" / "bin" / "python"))
    parser.add_argument("--out", type=Path, default=None, help="folder for tables, runs and pictures")
    a = parser.parse_args()
    if a.peer and not Path(a.python).exists():
        parser.error(f"there is no {a.python}; python benchmarks/peers.py --set-up puts the peers there")
    mine = Run(OURS, seconds=a.seconds or (5.0 if a.quick else 60.0), budget=a.queries)
    other = Run(PEER, seconds=a.peer_seconds or (3.0 if a.quick else 20.0), budget=a.queries)
    for number in map(int, a.only.split(",")):
        chart = Chart.kept(DIAGRAMS[number - 1], a.out)
        d = chart.diagram
        columns, rows = ([*v[:1], *v[-1:]] if a.quick else v for v in (d.x[1], d.y[1]))
        fill(chart, mine, a.seeds or (1 if a.quick else 3), columns, rows, a.python)
        if a.peer:
            fill(chart, other, a.peer_seeds, d.peer[:1] if a.quick else d.peer, rows, a.python)
        print("\n".join(["", d.title, "", *chart.keep(), ""]), flush=True)


if __name__ == "__main__":
    main()
