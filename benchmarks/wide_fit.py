"""How long a fit takes from directions that are 0.2 rad off, and where the time goes: 256 features, 10 outputs.

    python benchmarks/wide_fit.py [--dim 64 --features 256 --outputs 10] [--off 0.2] [--seed 0] [--profile] [--out F.md]

The features are tanh, ReLU and GELU in equal parts. Nothing is told but the turned directions. The last line of the
table says how far each direction still is from the planted one, and how much memory the process had at its peak.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import resource
import time
from pathlib import Path

import numpy as np

import ridgescope as rs
from ridgescope.bench import keep_table
from ridgescope.fit.context import Evaluation, FitGoal
from ridgescope.fit.fitter import Fitter
from ridgescope.fit.model import Model
from ridgescope.fit.samples import Samples
from ridgescope.geometry import in_ball, unit

RADIUS = 3.0


def turned(V: np.ndarray, by: float, rng: np.random.Generator) -> np.ndarray:
    """Each row of V turned by `by` radians, towards anywhere."""
    w = rng.standard_normal(V.shape)
    w = unit(w - np.einsum("nd,nd->n", w, V)[:, None] * V)
    return np.cos(by) * V + np.sin(by) * w


def fit(target: rs.targets.Planted, start: np.ndarray, seed: int) -> tuple[Evaluation, int, float]:
    """(outcome, queries, f's standard deviation in the ball)."""
    rng, asked, begun = np.random.default_rng(seed), [0], time.perf_counter()
    scale = float(np.std(target.clean(in_ball(2000, target.dim, RADIUS, rng)), axis=0).mean())

    def ask(X: np.ndarray) -> np.ndarray:
        asked[0] += len(X)
        return np.asarray(target(X)).reshape(len(X), -1)

    def say(text: str, detail: bool = False) -> None:
        print(f"{time.perf_counter() - begun:7.1f} s  {asked[0]:8,} queries  {text}", flush=True)

    fitter = Fitter(ask, Samples(target.dim, RADIUS), FitGoal(1e-2 * scale, 1e-13), rng, say=say)
    result = fitter.fit(Model.start(start, RADIUS, 16, target.outputs or 1), new=len(start))
    return result, asked[0], scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--outputs", type=int, default=10)
    parser.add_argument("--off", type=float, default=0.2, help="radians that each direction is turned by")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, by function")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    a = parser.parse_args()
    target = rs.targets.planted(a.dim, a.features, ("tanh", "relu", "gelu"), outputs=a.outputs, rng=a.seed)
    start = turned(target.directions, a.off, np.random.default_rng(a.seed + 1))
    profiler = cProfile.Profile()
    begun, cpu = time.perf_counter(), time.process_time()
    result, queries, scale = profiler.runcall(fit, target, start, a.seed) if a.profile else fit(target, start, a.seed)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    if a.profile:
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(22)
        print(text.getvalue())
    match = rs.match(result.model.directions, target.directions)
    kept = {
        "d": a.dim,
        "n": a.features,
        "p": a.outputs,
        "off": a.off,
        "seed": a.seed,
        "found": int(a.features - len(match.missed)),
        "false": len(match.false),
        "worst angle": float(match.angles.max()),
        "sup": result.sup / scale,
        "queries per parameter": queries / target.parameters,
        "wall s": seconds,
        "CPU s": cpu,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    cells = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in kept.values()]
    lines = ["| " + " | ".join(kept) + " |", "|" + "---|" * len(kept), "| " + " | ".join(cells) + " |"]
    print("\n".join(lines))
    if a.out is not None:
        keep_table(a.out, lines, kept)


if __name__ == "__main__":
    main()
