"""Networks that nobody planted: scikit-learn's one-hidden-layer networks, opened by their logits or values alone.

    python benchmarks/trained.py                      all nine
    python benchmarks/trained.py digits:tanh          one

A hidden unit matters if its nonlinear part, somewhere on the ball, moves f by more than the tolerance. The ball's
centre is the mean of the training data, its radius the median distance from it.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import ridgescope as rs
from peers.networks import ACTIVATION, DATA, Network

TOLERANCE = 1e-2


def row(name: str, activation: str) -> str:
    f = Network.trained(name, activation)
    d, n, p = f.size
    start = time.process_time()
    found = rs.extract(f, dim=d, radius=f.radius, center=f.center, tolerance=TOLERANCE, rng=0)
    spent = time.process_time() - start
    scale = found.certificate.scale
    matters = f.matters(TOLERANCE * scale)
    match = rs.match(found.directions, f.units[matters])
    false = len(rs.match(found.directions, f.units).false)
    worst = float(np.abs(found.predict(f.points) - f(f.points)).max()) / scale
    return (
        f"| {name} {d}–{n}–{p} | {activation} | {matters.sum()} | {match.share(1e-2):.0%} | "
        f"{match.angles.max():.1e} | {false} | {'yes' if found.certificate.met else 'no'} | {worst:.1e} | "
        f"{found.queries:,} | {found.queries / (n * (d + 16)):.1f} | {spent:.0f} |"
    )


if __name__ == "__main__":
    every = [f"{name}:{kind}" for name in DATA for kind in ACTIVATION]
    print(
        "| network | activation | units that matter | ≤ 1e-2 rad | worst angle | false | certified | "
        "worst true error | queries | per parameter | CPU seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, _, activation in (spec.partition(":") for spec in sys.argv[1:] or every):
        print(row(name, activation), flush=True)
