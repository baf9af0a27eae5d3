"""How much faster fits are on two threads than on one, and whether they end at the same bits.

    python benchmarks/threads.py [--threads 1 2] [--repeats 3] [--features 96] [--out threads.md]

Two fits of more than 2,000 unknowns each: splines (a linear solve and three Levenberg–Marquardt steps by dense normal
equations) and closed forms (three steps with free directions). Each run is a process of its own with OMP_NUM_THREADS
set, since the number of threads is read once; runs with different numbers of threads take turns. The least wall time
of the repeats counts, as other jobs on the machine only ever add to it; processor time is that of the same run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ridgescope as rs
from ridgescope.bench import keep_table
from ridgescope.fit import threads
from ridgescope.fit.activations import ACTIVATIONS
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_steps import minimise
from ridgescope.fit.levenberg_marquardt import LMOptions, levenberg_marquardt
from ridgescope.fit.model import Model
from ridgescope.geometry import Floats, in_ball, unit

DIM, OUTPUTS, RADIUS, STEPS, OFF = 32, 8, 3.0, 3, 0.05
POINTS = 40
"""Points per feature; two or more answers per unknown."""


def splines(V: Floats, X: Floats, Y: Floats) -> tuple[Floats, int]:
    """Return what a fit of splines ends with, and its number of unknowns."""
    model = Model.start(V, RADIUS, 16, OUTPUTS)
    done = levenberg_marquardt(model, X, Y, LMOptions(steps=STEPS, min_gain=0.0)).model
    return np.concatenate([done.directions.ravel(), done.coefficients.ravel()]), model.columns + V.size


def closed(V: Floats, X: Floats, Y: Floats) -> tuple[Floats, int]:
    """Return what a fit of closed forms ends with, and its number of unknowns."""
    blank = ClosedForms.blank(V, RADIUS, 8, OUTPUTS)
    family = next(k for k, form in enumerate(ACTIVATIONS) if form.name == "tanh")
    start = ClosedForms(RADIUS, V, np.full(len(V), family), 3.0 * np.ones(len(V)), blank.b, 8, blank.coefficients)
    done = minimise(Solved.of(start, Data(X, Y)), steps=STEPS, min_gain=0.0, free=True).forms
    return np.concatenate([done.directions.ravel(), done.kappa, done.b]), V.size + len(V) * (1 + OUTPUTS)


FITS = {"splines": splines, "closed forms": closed}


def run(fit: str, features: int) -> dict[str, Any]:
    """One fit in this process."""
    rng = np.random.default_rng(0)
    target = rs.targets.planted(DIM, features, "tanh", outputs=OUTPUTS, rng=0)
    X = in_ball(POINTS * features, DIM, RADIUS, rng)
    with threads.one_blas_thread():  # or those of BLAS still wait for more work when the fit begins, and take its cores
        V, Y = unit(target.directions + OFF * rng.standard_normal(target.directions.shape)), target(X)
    wall, cpu = time.perf_counter(), time.process_time()
    end, unknowns = FITS[fit](V, X, Y)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    bits = hashlib.sha256(end.tobytes()).hexdigest()[:16]
    return {"fit": fit, "unknowns": unknowns, "wall": wall, "cpu": cpu, "bits": bits}


def measured(fit: str, features: int, counts: list[int], repeats: int) -> list[dict[str, Any]]:
    """Runs on each number of threads in turn."""
    runs = []
    for _ in range(repeats):
        for count in counts:
            command = [sys.executable, __file__, "--one", fit, "--features", str(features)]
            environment = {**os.environ, "OMP_NUM_THREADS": str(count)}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            runs.append({"threads": count, **json.loads(done.stdout)})
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--features", type=int, default=96)
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one is not None:
        return print(json.dumps(run(a.one, a.features)))
    lines = [
        "| fit | unknowns | threads | wall s | CPU s | times faster | same bits |",
        "|---|---|---|---|---|---|---|",
    ]
    kept = []
    print("\n".join(lines), flush=True)
    for fit in FITS:
        runs = measured(fit, a.features, a.threads, a.repeats)
        kept += runs
        least = {n: min((r for r in runs if r["threads"] == n), key=lambda r: r["wall"]) for n in a.threads}
        first, same = least[a.threads[0]], len({r["bits"] for r in runs}) == 1
        for n, r in least.items():
            faster = first["wall"] / r["wall"]
            cells = f"{r['wall']:.2f} | {r['cpu']:.2f} | {faster:.2f} | {'yes' if same else 'no'}"
            lines.append(f"| {fit} | {r['unknowns']:,} | {n} | {cells} |")
            print(lines[-1], flush=True)
    if a.out is not None:
        keep_table(a.out, lines, kept)
    return None


if __name__ == "__main__":
    main()
