"""The normal matrix ΦᵀΦ of splines by four methods: dense columns, scipy.sparse, products by interval, and counting.

    python benchmarks/gram.py [--out gram.md]

A cubic spline of K intervals has K + 3 columns, four of which are not zero at a point. There are 2.5 points a column.
One thread of BLAS; processor time, the least of three runs for dense columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.sparse import hstack
from threadpoolctl import threadpool_limits

from ridgescope.bench import keep_table
from ridgescope.bspline import basis, design_matrix, sparse_rows
from ridgescope.fit.model import Model
from ridgescope.fit.spline_gram import add_spline_gram

SIZES = ((40, 16), (40, 32), (40, 64), (40, 128), (20, 256), (200, 16))
"""Features and intervals."""
POINTS_PER_COLUMN, DIM, RADIUS = 2.5, 10, 3.0


def dense(model: Model, X: np.ndarray) -> np.ndarray:
    phi = model.design(X)
    return np.asarray(phi.T @ phi)


def sparse(model: Model, X: np.ndarray) -> np.ndarray:
    Z, (K,) = X @ model.directions.T, set(model.intervals.tolist())
    phi = hstack([sparse_rows(*basis(z, RADIUS, K), K + 3) for z in Z.T], format="csr")
    return np.asarray((phi.T @ phi).todense())


def by_interval(model: Model, X: np.ndarray) -> np.ndarray:
    """Points sorted by the interval of one feature: four rows times all columns for each interval."""
    Z, (K,) = X @ model.directions.T, set(model.intervals.tolist())
    phi = np.concatenate([design_matrix(z, RADIUS, K) for z in Z.T], axis=1)
    gram = np.zeros((phi.shape[1], phi.shape[1]))
    for i, z in enumerate(Z.T):
        first, weights = basis(z, RADIUS, K)
        order, width = np.argsort(first, kind="stable"), (i + 1) * (K + 3)
        cuts, rows = np.searchsorted(first[order], np.arange(K + 1)), phi[order, :width]
        for k, (a, b) in enumerate(pairwise(cuts)):
            gram[i * (K + 3) + k : i * (K + 3) + k + 4, :width] += weights[:, order[a:b]] @ rows[a:b]
    return gram


def counted(model: Model, X: np.ndarray) -> np.ndarray:
    gram = np.zeros((model.columns, model.columns))
    add_spline_gram(gram, np.zeros((model.columns, 1)), model, X, np.zeros((len(X), 1)))
    return gram


METHODS: dict[str, Callable[[Model, np.ndarray], np.ndarray]] = {
    "dense columns": dense,
    "scipy.sparse": sparse,
    "by interval": by_interval,
    "counted": counted,
}


def seconds(method: Callable[[Model, np.ndarray], np.ndarray], model: Model, X: np.ndarray, repeats: int) -> float:
    least = np.inf
    for _ in range(repeats):
        begun = time.process_time()
        method(model, X)
        least = min(least, time.process_time() - begun)
    return float(least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    a = parser.parse_args()
    lines = [
        f"| features | intervals | columns | points | {' s | '.join(METHODS)} s |",
        "|---" * (4 + len(METHODS)) + "|",
    ]
    kept, rng = [], np.random.default_rng(0)
    with threadpool_limits(1):
        for n, K in SIZES:
            V = rng.standard_normal((n, DIM))
            model = Model.start(V / np.linalg.norm(V, axis=1)[:, None], RADIUS, K, 1)
            X = rng.uniform(-1.0, 1.0, (int(POINTS_PER_COLUMN * model.columns), DIM))
            spent = {
                name: seconds(method, model, X, 3 if name == "dense columns" else 1) for name, method in METHODS.items()
            }
            kept.append({"features": n, "intervals": K, "columns": model.columns, "points": len(X), **spent})
            cells = " | ".join(f"{s:.3g}" for s in spent.values())
            lines.append(f"| {n} | {K} | {model.columns:,} | {len(X):,} | {cells} |")
            print(lines[-1], flush=True)
    if a.out is not None:
        keep_table(a.out, lines, kept)


if __name__ == "__main__":
    main()
