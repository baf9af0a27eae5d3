"""Gated layers with random weights: what comes back of each from its answers alone, over unseen seeds.

    OMP_NUM_THREADS=1 python benchmarks/gated.py --out gated.json                      every row, both precisions
    OMP_NUM_THREADS=1 python benchmarks/gated.py --rows swiglu:12-20-1 --dtype float32 --seeds 5 --first-seed 100

A row is a kind of unit and the size d–n–p: `swiglu`, `geglu` and `reglu` have n gated units φ(g·x + b)(u·x), `mixed`
are half plain GELU and half SwiGLU. Weights are Gaussian, with gates of length 1.5 and biases of 0.3 or so. The run is
given the number of inputs and nothing else. A unit is found within an angle if its gate and its carrier are; parameters
are n(2d + 32). Every run has a process of its own, for processor time and memory; runs that are in the JSON file
already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

import ridgescope as rs
from real import version
from ridgescope.bench import keep_table

ACTIVATIONS = {
    "swiglu": lambda y: y * expit(y),
    "geglu": lambda y: y * ndtr(y),
    "reglu": lambda y: np.maximum(y, 0.0),
}
SIZES = ("6-4-1", "12-20-1", "16-30-1", "32-64-32", "64-256-64")
ROWS = (*(f"{kind}:{size}" for kind in ("swiglu", "geglu") for size in SIZES), "reglu:12-20-1", "mixed:16-30-4")
ANGLES = (1e-2, 1e-3, 1e-6)
LIMIT, SECONDS = 12.0, 1800.0
"""GB of address space and seconds on the clock, for one run."""
COLUMNS = (
    "layer, precision, runs, units ≤ 1e-2; 1e-3; 1e-6 rad, worst angle, false, certified, exact, weights returned, "
    "queries per parameter: mean; max, CPU s: mean; max, GB"
)
HEADER = "\n".join(f"| {' | '.join(cells)} |" for cells in (COLUMNS.split(", "), 12 * ["---"]))
Run = dict[str, Any]


class Layer:
    """W_down [φ(W_gate x + b) ∘ (W_up x)]; the first `plain` units are W_down φ(W_gate x + b)."""

    def __init__(self, row: str, seed: int, dtype: str) -> None:
        kind, _, size = row.partition(":")
        (d, n, p), rng = map(int, size.split("-")), np.random.default_rng([seed, 23])
        self.size, self.dtype, self.plain = (d, n, p), np.dtype(dtype), n // 2 if kind == "mixed" else 0
        self.gate = ACTIVATIONS["swiglu" if kind == "mixed" else kind]
        self.W_gate, self.b = 1.5 * rng.standard_normal((n, d)) / np.sqrt(d), 0.3 * rng.standard_normal(n)
        self.W_up, self.W_down = rng.standard_normal((n, d)) / np.sqrt(d), rng.standard_normal((p, n)) / np.sqrt(n)
        self.W_up[: self.plain] = 0.0

    def __call__(self, X: np.ndarray) -> np.ndarray:
        parts = (X, self.W_gate, self.b, self.W_up, self.W_down)
        X, W_gate, b, W_up, W_down = (a.astype(self.dtype) for a in parts)
        y, k = X @ W_gate.T + b, self.plain
        values = np.concatenate([ACTIVATIONS["geglu"](y[:, :k]), self.gate(y[:, k:]) * (X @ W_up[k:].T)], axis=1)
        values = values.astype(self.dtype) @ W_down.T
        return values if self.size[2] > 1 else values[:, 0]


def measured(row: str, seed: int, dtype: str, seconds: float) -> Run:
    """Extract one layer, and compare what was found with its weights."""
    layer, wall, cpu = Layer(row, seed, dtype), time.perf_counter(), time.process_time()
    d, n, _ = layer.size
    found = rs.extract(layer, dim=d, rng=seed, max_seconds=seconds)
    spent = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    carriers = np.stack([np.zeros(d), *(np.zeros(d) if f.carrier is None else f.carrier for f in found.features)])[1:]
    match = rs.match_gated((found.directions, carriers), (layer.W_gate, layer.W_up))
    gated = int(sum(f.gated for f in found.features))
    return {
        "within": {f"{angle:g}": match.share(angle) for angle in ANGLES},
        "worst": float(max(match.gates.angles.max(), match.carrier_angles.max())),
        "false": len(match.gates.false),
        "gated": gated,
        "found": len(found.features),
        "certified": bool(found.certificate.met),
        "structure": found.structure.verdict,
        "stop": found.stop.name,
        "network": has_network(found, layer),
        "queries": found.queries,
        "per_parameter": found.queries / (n * (2 * d + 32)),
        **spent,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def has_network(found: rs.Extraction, layer: Layer) -> bool | None:
    """Return whether `found.network()` has weights that reproduce f within 1e-2; None for mixtures, which have none."""
    if layer.plain:
        return None
    try:
        network = found.network()
    except rs.errors.InvalidInput:
        return False
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (200, layer.size[0]))
    error = network.predict(X).reshape(len(X), -1) - layer(X).reshape(len(X), -1)
    return bool(np.sqrt(np.mean(error**2)) <= 1e-2 * found.certificate.std)


def apart(row: str, seed: int, dtype: str, seconds: float) -> Run:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--here", "--rows", row, "--first-seed", str(seed), "--dtype", dtype]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    command += ["--max-seconds", str(seconds)]
    done = subprocess.run(command, env=one_thread, stdout=subprocess.PIPE, text=True, check=False)
    return {"error": f"ended with {done.returncode}"} if done.returncode else json.loads(done.stdout.splitlines()[-1])


def line(row: str, dtype: str, runs: list[Run]) -> str:
    """A line of the table."""
    good = [run for run in runs if "error" not in run]
    if not good:
        return f"| {row} | {dtype} | {len(runs)} | {runs[0]['error']} |" + " — |" * 8
    shares = ", ".join(f"{np.floor(1000 * np.mean([r['within'][f'{a:g}'] for r in good])) / 10:g} %" for a in ANGLES)

    def count(key: str, value: object = True) -> str:
        return f"{sum(run[key] == value for run in good)} of {len(runs)}"

    def both(key: str, digits: int) -> str:
        return f"{np.mean([r[key] for r in good]):.{digits}f}, {max(r[key] for r in good):.{digits}f}"

    cells = [row.replace(":", " "), dtype, str(len(runs)), shares, f"{max(r['worst'] for r in good):.1e}"]
    cells += [str(sum(r["false"] for r in good)), count("certified"), count("structure", "exact")]
    cells += ["—" if good[0]["network"] is None else count("network"), both("per_parameter", 1), both("cpu", 1)]
    return f"| {' | '.join([*cells, f'''{max(r['peak'] for r in good):.1f}'''])} |"


def table(runs: list[Run]) -> list[str]:
    """The lines of the table, in the order of the rows."""
    lines = [HEADER]
    names = [*ROWS, *sorted({run["row"] for run in runs} - set(ROWS))]
    for dtype in ("float64", "float32"):
        for row in names:
            mine = [run for run in runs if (run["row"], run["dtype"]) == (row, dtype)]
            lines += [line(row, dtype, mine)] if mine else []
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="separated by commas; any size may be given")
    parser.add_argument("--dtype", choices=("float32", "float64", "both"), default="both")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=3000)
    parser.add_argument("--max-seconds", type=float, default=SECONDS, help="for one run")
    parser.add_argument("--out", type=Path, default=None, help="JSON file; the table goes beside it as Markdown")
    parser.add_argument("--here", action="store_true", help="one run in this process, printed as JSON")
    a = parser.parse_args()
    rows, dtypes = a.rows.split(","), ("float64", "float32") if a.dtype == "both" else (a.dtype,)
    if a.here:
        resource.setrlimit(resource.RLIMIT_AS, (int(LIMIT * 2**30),) * 2)
        print(json.dumps(measured(rows[0], a.first_seed, dtypes[0], a.max_seconds)), flush=True)
        return
    stored = a.out.with_suffix(".json") if a.out is not None else None
    runs: list[Run] = json.loads(stored.read_text("utf-8")) if stored is not None and stored.exists() else []
    for dtype in dtypes:
        for row in rows:
            for seed in range(a.first_seed, a.first_seed + a.seeds):
                key = {"row": row, "dtype": dtype, "seed": seed}
                if any(all(run[k] == v for k, v in key.items()) for run in runs):
                    continue
                runs.append({**key, "code": version(), **apart(row, seed, dtype, a.max_seconds)})
                print(runs[-1], file=sys.stderr, flush=True)
                if a.out is not None:
                    keep_table(a.out.with_suffix(".md"), table(runs), runs)
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
