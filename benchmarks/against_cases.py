"""The cases of `against.py`, and one run of one of them in this process, with whichever ridgescope is on PYTHONPATH.

    standard cases               those of `rs.targets.CASES`, by their names
    wide_fit                     the fit of `wide_fit.py`: directions 0.2 rad off, d = 64, n = 256, p = 10
    gelu_64_256_64, …_float32    layers as torch.nn.Linear initialises them, on the ball of radius √d
    fast_waves                   twenty sines, triangle waves and wave packets in 10 dimensions
    superposed_…                 d = 20, n = 40 as in *superposed*, with responses that are none of `rs.targets`

Run as a script it prints what it measured as the last line of its output, as JSON. Only what older versions have, too,
may be imported here.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

import drawn_targets
import ridgescope as rs
import wide_fit

COARSE, FINE = 1e-2, 1e-3
"""Angles, in radians, within which a planted direction counts as found."""
LAYER = (64, 256, 64)
"""Inputs, neurons and outputs of the layers."""
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda y: y * ndtr(y),
    "silu": lambda y: y * expit(y),
    "relu": lambda y: np.maximum(y, 0),
    "tanh": np.tanh,
}
WAVE_SLOPES, WAVE_FREQUENCIES = (5.0, 15.0), (6.0, 18.0)
"""a of a·z + b in triangle waves and packets; frequencies of the sines, as in the case *waves*."""
UNSEEN = {
    "sigmoids": ("algebraic", "arctan", "logistic"),
    "bells": ("mexican_hat", "rational", "sinc", "log_square"),
    "packets": ("gabor", "chirp", "sinc"),
    "rectifiers": ("elu", "selu", "hard_swish", "soft_threshold", "dead_zone"),
    "others": ("exponential", "cubic", "log_square", "algebraic", "gabor", "power_3_2", "three_kinks"),
}
"""Families of `drawn_targets` that the unseen targets take in turn."""


def standard(name: str, seed: int) -> dict[str, Any]:
    case = rs.targets.CASES[name]
    target = case.make(seed)
    return extracted(target, target.directions, case.radius, seed)


def layer(name: str, kind: type[np.floating[Any]], seed: int) -> dict[str, Any]:
    """Weights and biases are uniform in ±1/√(number of inputs), and all arithmetic is of the given precision."""
    rng, (d, n, p) = np.random.default_rng(seed), LAYER
    W_in, b_in = (rng.uniform(-1.0, 1.0, shape) / np.sqrt(d) for shape in ((d, n), (n,)))
    W_out, b_out = (rng.uniform(-1.0, 1.0, shape) / np.sqrt(n) for shape in ((n, p), (p,)))
    weights = [a.astype(kind) for a in (W_in, b_in, W_out, b_out)]

    def network(X: np.ndarray) -> np.ndarray:
        W_in, b_in, W_out, b_out = weights
        return ACTIVATIONS[name](X.astype(kind) @ W_in + b_in) @ W_out + b_out

    directions = W_in.T / np.linalg.norm(W_in, axis=0)[:, None]
    return extracted(network, directions, float(np.sqrt(d)), seed)


def fast_waves(seed: int) -> dict[str, Any]:
    rng, kinds = np.random.default_rng([seed, 1]), []
    for i in range(20):
        a, b, at = rng.uniform(*WAVE_SLOPES), rng.uniform(-np.pi, np.pi), rng.uniform(-1.0, 1.0)
        kinds.append(("sine", partial(_triangle, a, b), partial(_packet, a, b, at))[i % 3])
    target = rs.targets.planted(10, 20, kinds, rng=seed, frequencies=WAVE_FREQUENCIES)
    return extracted(target, target.directions, wide_fit.RADIUS, seed)


def _triangle(a: float, b: float, z: np.ndarray) -> np.ndarray:
    return np.asarray((2.0 / np.pi) * np.arcsin(np.sin(a * z + b)))


def _packet(a: float, b: float, at: float, z: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * (z - at) ** 2) * np.sin(a * z + b))


def unseen(name: str, seed: int) -> dict[str, Any]:
    rng, families = np.random.default_rng([seed, 2]), UNSEEN[name]
    makers = {family: make for make, names in drawn_targets.FAMILIES.values() for family in names}
    drawn = [drawn_targets.scaled(makers[family](family, rng)) for family in (families * 40)[:40]]
    target = rs.targets.planted(20, 40, [response.curve for response in drawn], rng=seed)
    return extracted(target, target.directions, drawn_targets.RADIUS, seed)


def extracted(function: Callable[..., Any], directions: np.ndarray, radius: float, seed: int) -> dict[str, Any]:
    found = rs.extract(function, dim=directions.shape[1], radius=radius, rng=seed)
    return told(found.directions, directions, found.queries, found.certificate.met)


def wide(seed: int) -> dict[str, Any]:
    """Here nothing is certified: what counts is whether the fit's own goal is met on held-out points."""
    target = rs.targets.planted(64, 256, ("tanh", "relu", "gelu"), outputs=10, rng=seed)
    start = wide_fit.turned(target.directions, 0.2, np.random.default_rng(seed + 1))
    result, queries, _ = wide_fit.fit(target, start, seed)
    return told(result.model.directions, target.directions, queries, result.meets_goal)


def told(found: np.ndarray, true: np.ndarray, queries: int, met: bool) -> dict[str, Any]:
    match = rs.match(found, true)
    within = {"within_2": match.share(COARSE), "within_3": match.share(FINE), "false": len(match.false)}
    return {"queries": int(queries), **within, "met": bool(met)}


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    **{name: partial(standard, name) for name in rs.targets.CASES},
    "wide_fit": wide,
    **{
        "_".join([name, *map(str, LAYER)]) + ending: partial(layer, name, kind)
        for name in ACTIVATIONS
        for ending, kind in (("", np.float64), ("_float32", np.float32))
    },
    "fast_waves": fast_waves,
    **{f"superposed_{name}": partial(unseen, name) for name in UNSEEN},
}


def measured(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run a case; the kernel ends this process by SIGXCPU once the run has taken so many seconds of processor time."""
    before = _processor_time()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(np.ceil(before + seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    run = CASES[name](seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return {"cpu": _processor_time() - before, "peak": peak, **run}


def _processor_time() -> float:
    """Of this process, all threads, user and system, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("seed", type=int)
    parser.add_argument("--seconds", type=float, default=600.0, help="of processor time")
    a = parser.parse_args()
    print(json.dumps(measured(a.case, a.seed, a.seconds)), flush=True)


if __name__ == "__main__":
    main()
