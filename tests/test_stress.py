"""Every run returns: random targets of many families, scales, offsets, dimensions and numbers of outputs.

Failures inside a run are raised here, as they are in all tests, so that no target may need the net of `failures`.
"""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from drawn_targets import FAMILIES, OTHERS, other_function, scaled
from ridgescope.geometry import in_ball, random_directions
from ridgescope.stop import StopReason

DIMENSIONS = (1, 2, 3, 5, 8, 13, 30, 80, 200)
OUTPUTS = (1, 1, 1, 2, 7, 40, 500)
BUDGETS = (30, 300, 1500, 4000)
SECONDS = 20.0


def drawn(seed):
    """A function with its dimension: a sum of features, or something else, of any size and offset."""
    rng = np.random.default_rng([seed, 20])
    d, p = int(rng.choice(DIMENSIONS)), int(rng.choice(OUTPUTS))
    size, offset = 10.0 ** rng.uniform(-12, 12), float(rng.choice([0.0, 0.0, 1.0, 1e3, -1e6]))
    kind = str(rng.choice([*FAMILIES, "no sum", "constant", "affine", "rounded"]))
    out = rng.standard_normal((1, p))
    if kind == "no sum":
        inner = other_function(str(rng.choice(OTHERS)), max(d, 2), rng)
        clean = lambda X: inner(X if d > 1 else np.repeat(X, 2, axis=1))[:, None] * out  # noqa: E731
    elif kind in ("constant", "affine"):
        slope = rng.standard_normal((d, p)) * (kind == "affine")
        clean = lambda X: X @ slope + 1.0  # noqa: E731
    else:
        n = int(rng.integers(1, 7))
        V, outs = random_directions(n, d, rng), rng.standard_normal((n, p))
        maker, names = FAMILIES["smooth" if kind == "rounded" else kind]
        curves = [scaled(maker(str(rng.choice(names)), rng)).curve for _ in range(n)]
        clean = lambda X: sum(np.multiply.outer(s(X @ v), o) for s, v, o in zip(curves, V, outs, strict=True))  # noqa: E731
    noise = float(rng.choice([0.0, 0.0, 0.0, 1e-3, 0.3]))
    kinds = [np.float64, np.float64, np.float32] if kind != "rounded" else [np.float32, np.float16]
    answered = kinds[int(rng.integers(len(kinds)))]

    def f(X):
        values = clean(X) + noise * rng.standard_normal((len(X), p))
        if answered is np.float16:  # whose range ends at 65,504
            return values.astype(np.float16)
        values = (size * (values + offset)).astype(answered)
        return values[:, 0] if p == 1 else values

    return f, d, int(rng.choice(BUDGETS))


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(8), id="some"),
        *(pytest.param(range(k, k + 20), id=f"from {k}", marks=pytest.mark.heavy) for k in range(0, 200, 20)),
    ],
)
def test_every_run_returns(seeds):
    for seed in seeds:
        f, d, budget = drawn(seed)
        found = rs.extract(f, dim=d, max_queries=budget, max_seconds=SECONDS, rng=seed)
        assert found.stop in set(StopReason) - {StopReason.FAILED, StopReason.UNKNOWN}, seed
        assert found.queries <= budget, seed
        assert not [line.failure for line in found.history if line.failure], seed
        X = in_ball(50, d, 3.0, np.random.default_rng(seed))
        assert np.isfinite(found.predict(X)).all(), seed
        assert np.isfinite(found.directions).all(), seed
        assert str(found), seed
