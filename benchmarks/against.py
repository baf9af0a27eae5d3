"""Side by side with an older commit: time, memory, queries and recovery of whole runs, in one table.

    python benchmarks/against.py OLD_COMMIT --out against.md                 all cases, five seeds; run again to resume
    python benchmarks/against.py OLD_COMMIT --cases dense,waves --seeds 20   some of them

The new code is this tree as it stands when the benchmark starts, changes that are not committed included; new files
must have been added. Both commits are checked out into temporary worktrees. For each case and seed the old and the new
code run one after the other, each in a process of its own, so that both see the same machine. Times are those of the
processor, without Python's start and imports; a run that exceeds `--seconds` is ended and counts as that many, marked
">". The cases are those of `against_cases.py`, which both sides run as it is in this tree.

Runs that are in the JSON file beside `--out` already are not repeated if they are of the same source code.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from against_cases import CASES
from ridgescope.bench import keep_table

ROOT = Path(__file__).resolve().parent.parent
SIDES = ("old", "new")
SECONDS = 600.0
"""Processor time for one run."""
HEADER = (
    "| case | seeds | CPU s: old, new | old/new | slowest/median: old, new | memory new/old | queries new/old "
    "| ≤ 1e-2 rad: old, new | ≤ 1e-3 rad: old, new | false: old, new | certified: old, new |\n" + "|---" * 11 + "|"
)
Run = dict[str, Any]


@contextmanager
def checked_out(commits: dict[str, str]) -> Iterator[dict[str, Path]]:
    """A temporary worktree for the commit of each side."""
    with tempfile.TemporaryDirectory(prefix="ridgescope-") as directory:
        trees = {side: Path(directory) / side for side in commits}
        try:
            for side, commit in commits.items():
                git("worktree", "add", "--detach", str(trees[side]), commit)
            yield trees
        finally:
            for tree in filter(Path.exists, trees.values()):
                git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def run(tree: Path, case: str, seed: int, seconds: float) -> Run:
    """One run with the code of a tree, in a process of its own."""
    script = Path(__file__).with_name("against_cases.py")
    command = [sys.executable, str(script), case, str(seed), "--seconds", str(seconds)]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    environment = {**one_thread, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGXCPU:
        return {"cpu": seconds, "exceeded": True}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def is_usable(stored: Run, seconds: float) -> bool:
    """Whether a stored run need not be repeated: it ended, or was given as much time as now."""
    return "error" not in stored and (not stored.get("exceeded") or stored["cpu"] >= seconds)


# -- the table -----------------------------------------------------------------------------------------------


def row(case: str, runs: Sequence[Run]) -> str:
    """The row of a case, from the seeds that neither side raised for."""
    sides = {side: {r["seed"]: r for r in runs if r["side"] == side and "error" not in r} for side in SIDES}
    both = sorted(set(sides["old"]) & set(sides["new"]))
    if not both:
        return f"| {case} | 0 |" + " — |" * 9
    old, new = ([sides[side][seed] for seed in both] for side in SIDES)
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if not (a.get("exceeded") or b.get("exceeded"))]
    cells = [
        case,
        str(len(both)),
        f"{_time(old)}, {_time(new)}",
        _speed(old, new),
        f"{_spread(old)}, {_spread(new)}",
        _ratio(pairs, "peak"),
        _ratio(pairs, "queries"),
        f"{_share(old, 'within_2')}, {_share(new, 'within_2')}",
        f"{_share(old, 'within_3')}, {_share(new, 'within_3')}",
        f"{_total(old, 'false')}, {_total(new, 'false')}",
        f"{_total(old, 'met')}, {_total(new, 'met')}",
    ]
    return f"| {' | '.join(cells)} |"


def _median(runs: Sequence[Run]) -> tuple[float, bool]:
    """The median time, and whether it is only a lower bound."""
    times = sorted((r["cpu"], bool(r.get("exceeded"))) for r in runs)
    middle = times[(len(times) - 1) // 2 : len(times) // 2 + 1]
    return float(np.mean([cpu for cpu, _ in middle])), any(exceeded for _, exceeded in middle)


def _time(runs: Sequence[Run]) -> str:
    median, exceeded = _median(runs)
    return f"{'> ' if exceeded else ''}{median:.3g}"


def _speed(old: Sequence[Run], new: Sequence[Run]) -> str:
    """The ratio of the medians; a bound where one of them is."""
    (a, a_exceeded), (b, b_exceeded) = _median(old), _median(new)
    if a_exceeded and b_exceeded:
        return "—"
    return f"{'> ' if a_exceeded else '< ' if b_exceeded else ''}{a / b:.2f}"


def _spread(runs: Sequence[Run]) -> str:
    (median, exceeded), slowest = _median(runs), max(runs, key=lambda r: (r["cpu"], bool(r.get("exceeded"))))
    if exceeded:
        return "—"
    return f"{'> ' if slowest.get('exceeded') else ''}{slowest['cpu'] / median:.2f}"


def _ratio(pairs: Sequence[tuple[Run, Run]], what: str) -> str:
    """The median over seeds of new over old, of those where both ended."""
    return f"{np.median([new[what] / old[what] for old, new in pairs]):.2f}" if pairs else "—"


def _share(runs: Sequence[Run], what: str) -> str:
    """The mean percentage, rounded down to a tenth, so that 100 % means all; an ended run has found nothing."""
    return f"{np.floor(1000.0 * np.mean([r.get(what, 0.0) for r in runs]) + 1e-6) / 10.0:g} %"


def _total(runs: Sequence[Run], what: str) -> str:
    return str(sum(int(r.get(what, 0)) for r in runs))


def table(runs: Sequence[Run], old: str, new: str) -> list[str]:
    """All rows, and every run that raised."""
    lines = [f"# {new} against {old}", "", HEADER]
    for case in CASES:
        some = [r for r in runs if r["case"] == case]
        lines += [row(case, some)] if some else []
    raised = [f"- {r['case']}, seed {r['seed']}, {r['side']}: `{r['error']}`" for r in runs if "error" in r]
    return [*lines, "", "Runs that raised:", "", *raised] if raised else lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD_COMMIT")
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of processor time, for one run")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    a = parser.parse_args()
    cases = a.cases.split(",")
    if unknown := set(cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    commits = {
        "old": git("rev-parse", f"{a.old}^{{commit}}"),
        "new": git("stash", "create") or git("rev-parse", "HEAD"),
    }
    code = {side: git("rev-parse", f"{commit}:src") for side, commit in commits.items()}
    names = [git("describe", "--always", commits["old"]), git("describe", "--always", "--dirty")]
    stored = a.out.with_suffix(".json") if a.out is not None else None
    runs: list[Run] = json.loads(stored.read_text("utf-8")) if stored is not None and stored.exists() else []
    runs = [r for r in runs if r["code"] == code[r["side"]] and is_usable(r, a.seconds)]
    finished = {(r["case"], r["seed"], r["side"]) for r in runs}
    every = product(cases, range(a.first_seed, a.first_seed + a.seeds), SIDES)
    with checked_out(commits) as trees:
        for case, seed, side in (key for key in every if key not in finished):
            told = run(trees[side], case, seed, a.seconds)
            runs.append({"case": case, "seed": seed, "side": side, "code": code[side], **told})
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
            if a.out is not None:
                keep_table(a.out, table(runs, *names), runs)
    print("\n".join(table(runs, *names)))


if __name__ == "__main__":
    main()
