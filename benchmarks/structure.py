"""What the tests of structure say about sums of features and about other functions.

    OMP_NUM_THREADS=1 python benchmarks/structure.py [--seeds 10] [--only text] [--out structure.md]

One row a target; numbers are those of the first seed, and kinds are counted over all seeds.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.special import erf, expit

import ridgescope as rs
from ridgescope.geometry import random_directions
from ridgescope.search import Setting
from ridgescope.structure import Evidence, Kind, classify, examine
from ridgescope.survey import run_survey
from ridgescope.targets.planted import SMOOTH

RADIUS = 3.0
QUERIES = 60_000
Function = Callable[[np.ndarray], np.ndarray]
SUMS = ((2, 5), (3, 4), (6, 10), (8, 12), (10, 20), (20, 40))


def gelu(z):
    return z * 0.5 * (1.0 + erf(z / np.sqrt(2.0)))


def layer(d, n, p, rng, act=gelu):
    w, b, o = rng.standard_normal((n, d)) / np.sqrt(d), rng.uniform(-1, 1, n) / np.sqrt(d), rng.standard_normal((p, n))
    return lambda X: act(X @ w.T + b) @ o.T / np.sqrt(n)


def swiglu(d, n, rng):
    g, u, o = random_directions(n, d, rng) * 2.0, random_directions(n, d, rng), rng.standard_normal(n)
    return lambda X: (X @ g.T * expit(X @ g.T) * (X @ u.T)) @ o


def deep(d, rng, act=np.tanh):
    w, v = rng.standard_normal((16, d)) / np.sqrt(d), rng.standard_normal((16, 16)) / 4.0
    b, c, o = rng.uniform(-1, 1, 16), rng.uniform(-1, 1, 16), rng.standard_normal(16)
    return lambda X: act(2.0 * act(X @ w.T + b) @ v.T + c) @ o


def attention(d, rng):
    k, v = rng.standard_normal((6, d)), rng.standard_normal(6)

    def f(X):
        s = np.exp(X @ k.T / np.sqrt(d))
        return (s @ v) / s.sum(axis=1)

    return f


def layernorm(inner, centre):
    def f(X):
        X = X - centre * X.mean(axis=1, keepdims=True)
        return inner(X / np.sqrt(np.mean(X**2, axis=1, keepdims=True) + 1e-5))

    return f


def tree(d, rng, depth=4):
    feature, at, leaf = rng.integers(0, d, 2**depth), rng.uniform(-1, 1, 2**depth), rng.standard_normal(2**depth)

    def f(X):
        node = np.zeros(len(X), dtype=int)
        for _ in range(depth):
            node = 2 * node + (X[np.arange(len(X)), feature[node]] > at[node])
        return leaf[node % 2**depth]

    return f


def noisy(f, std, seed):
    fresh = np.random.default_rng(seed)
    size = std * np.std(f(rs.geometry.in_ball(2000, f.dim, RADIUS, fresh)))
    return lambda X: f(X) + size * fresh.standard_normal(len(X))


def single(f):
    return lambda X: f(X).astype(np.float32)


def targets(seed: int) -> Iterator[tuple[str, int, bool, Function]]:
    """(name, dimension, is a sum, function); not all depend on the seed, but the points of the examination do."""
    P, C = rs.targets.planted, rs.targets.CASES
    made = lambda: np.random.default_rng(1000 + seed)  # noqa: E731
    s = 1000 + seed
    for d, n in SUMS:
        yield f"sum {d}/{n}", d, True, P(d, n, SMOOTH, rng=s)
    yield "GELU layer 64/256, 64 outputs", 64, True, layer(64, 256, 64, made())
    yield "GELU layer 64/256, float32", 64, True, single(layer(64, 256, 64, made()))
    yield "sum 4/30", 4, True, C["extreme"].make(s)
    yield "sum 8/64 tanh", 8, True, P(8, 64, ("tanh",), rng=s)
    yield "twins 10/16", 10, True, C["twins"].make(s)
    yield "twins 10/16, float32", 10, True, single(C["twins"].make(s))
    yield "waves 10/20", 10, True, C["waves"].make(s)
    yield "cubics 6/8", 6, True, P(6, 8, ("polynomial",), rng=s)
    yield "steep tanh(50z), 6/5", 6, True, P(6, 5, (lambda z: np.tanh(50.0 * z),), rng=s, affine=False)
    yield "ReLU 6/10", 6, True, P(6, 10, ("relu",), rng=s)
    yield "ReLU without bias 5/8", 5, True, layer(5, 8, 1, made(), lambda z: np.abs(z))
    for name in ("first", "small", "mixed", "relu", "vector", "superposed"):
        yield f"case {name}", C[name].dim, True, C[name].make(s)
    yield "sum 6/10, noise 1e-3", 6, True, noisy(P(6, 10, SMOOTH, rng=s), 1e-3, s)
    yield "sum 6/10, noise 1e-2", 6, True, noisy(P(6, 10, SMOOTH, rng=s), 1e-2, s)
    yield "sum 6/10, float32", 6, True, single(P(6, 10, SMOOTH, rng=s))
    yield "case mixed, float32", 10, True, single(C["mixed"].make(s))
    yield "max of coordinates, float32", 6, False, single(lambda X: X.max(axis=1))
    yield "case relu, float32", 20, True, single(C["relu"].make(s))
    yield "one feature, d=5", 5, True, P(5, 1, ("tanh",), rng=s)
    yield "affine, d=4", 4, True, P(4, 0, rng=s)
    a = made().standard_normal((5, 5))
    yield "quadratic form, d=5", 5, True, lambda X: np.einsum("md,de,me->m", X, a, X)
    yield "two tanh layers, d=8", 8, False, deep(8, made())
    yield "two ReLU layers, d=8", 8, False, deep(8, made(), lambda z: np.maximum(z, 0.0))
    for d in (3, 6):
        yield f"exp(-|x|²), d={d}", d, False, lambda X: np.exp(-np.sum(X**2, axis=1))
    yield "exp(-|x-c|²/4), d=3", 3, False, lambda X: np.exp(-np.sum((X - 0.5) ** 2, axis=1) / 4)
    yield "|x|, d=6", 6, False, lambda X: np.linalg.norm(X, axis=1)
    yield "max of coordinates, d=6", 6, False, lambda X: X.max(axis=1)
    yield "sin(x1 x2), d=2", 2, False, lambda X: np.sin(X[:, 0] * X[:, 1])
    yield "sin(x1 x2) + tanh(2 x3), d=6", 6, False, lambda X: np.sin(X[:, 0] * X[:, 1]) + np.tanh(2 * X[:, 2])
    yield "x1 x2 x3, d=6", 6, False, lambda X: X[:, 0] * X[:, 1] * X[:, 2]
    yield "floor(x1 + x2/2), d=3", 3, False, lambda X: np.floor(X[:, 0] + X[:, 1] / 2)
    yield "saw, d=3", 3, False, lambda X: np.mod(X[:, 0] + X[:, 1] / 2, 1.0)
    yield "decision tree, d=5", 5, False, tree(5, made())
    for d, n in ((6, 4), (8, 16), (12, 20)):
        yield f"SwiGLU {d}/{n}", d, False, swiglu(d, n, made())
    yield "softmax head, d=8", 8, False, attention(8, made())
    yield "LayerNorm, 12 tanh, d=8", 8, False, layernorm(P(8, 12, ("tanh",), rng=s, affine=False), 1.0)
    yield "RMSNorm, 12 GELU, d=8", 8, False, layernorm(layer(8, 12, 1, made()), 0.0)
    inner, mix = layernorm(layer(8, 12, 8, made()), 0.0), 1.0
    yield "x + MLP(RMSNorm(x)), d=8", 8, False, lambda X: mix * X + inner(X)
    yield "sin(1e5 x1), d=2", 2, False, lambda X: np.sin(1e5 * X[:, 0])


def look(function: Function, dim: int, seed: int, queries: int) -> Evidence:
    """Survey and examination as a run does them: in the subspace of the gradients."""
    oracle = rs.oracle.Oracle(function, dim=dim)
    rng = np.random.default_rng(seed)
    survey = run_survey(oracle, RADIUS, None, rng)
    d = len(survey.basis)
    setting = Setting(d, oracle.outputs or 1, RADIUS, np.inf, survey.std, survey.noise, survey.bandwidth)
    return examine(lambda Y: oracle(Y @ survey.basis, stage="structure"), setting, queries=queries, rng=rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file")
    parser.add_argument("--verbose", action="store_true", help="all evidence of every seed")
    args = parser.parse_args()
    lines = [
        "| target | kinds found | rank | members | partners | block | drop | queries | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    wrong = 0
    for name, *_ in targets(0):
        if args.only not in name:
            continue
        kinds, first, spent = Counter[Kind](), None, 0.0
        for seed in range(args.seeds):
            dim, is_sum, function = next(t[1:] for t in targets(seed) if t[0] == name)
            start = time.process_time()
            evidence = look(function, dim, seed, args.queries)
            spent = max(spent, time.process_time() - start)
            kinds[classify(evidence)] += 1
            wrong += is_sum and classify(evidence).excludes_sum
            first = first or evidence
            if args.verbose:
                print(classify(evidence), evidence)
        assert first is not None
        told = ", ".join(f"{kind} {count}" if len(kinds) > 1 else str(kind) for kind, count in kinds.most_common())
        rank = f"{first.rank if first.rank is not None else '—'} of {first.full_rank}"
        lines.append(
            f"| {name} | {told} | {rank} | {first.members} | {first.partners} | {first.block_dim} "
            f"| {first.drop:.0e} | {first.queries:,} | {spent:.1f} |"
        )
        print(lines[-1], flush=True)
    lines.append(f"\nSums called no sum: {wrong} (seeds 0 to {args.seeds - 1}).")
    print(lines[-1])
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
