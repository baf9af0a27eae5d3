"""Networks that nobody planted: scikit-learn's one-hidden-layer networks, opened by their logits or values alone.

    python benchmarks/trained.py --out trained.md     all nine
    python benchmarks/trained.py digits:tanh          one

A hidden unit matters if its nonlinear part, somewhere on the ball, moves f by more than the tolerance. The ball's
centre is the mean of the training data, its radius the median distance from it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import ridgescope as rs
from peers.networks import ACTIVATION, DATA, Network
from ridgescope.bench import keep_table

TOLERANCE = 1e-2
HEADER = (
    "| network | activation | units that matter | ≤ 1e-2 rad | worst angle | false | certified | "
    "worst true error | queries | per parameter | CPU seconds |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def opened(name: str, activation: str) -> dict[str, Any]:
    """What came back of one network."""
    f = Network.trained(name, activation)
    d, n, p = f.size
    start = time.process_time()
    found = rs.extract(f, dim=d, radius=f.radius, center=f.center, tolerance=TOLERANCE, rng=0)
    spent = time.process_time() - start
    std = found.certificate.std
    matters = f.matters(TOLERANCE * std)
    match = rs.match(found.directions, f.units[matters])
    false = len(rs.match(found.directions, f.units).false)
    worst = float(np.abs(found.predict(f.points, outside="extrapolate") - f(f.points)).max()) / std
    return {
        "network": f"{name} {d}–{n}–{p}",
        "activation": activation,
        "matter": int(matters.sum()),
        "within": match.share(1e-2),
        "worst_angle": float(match.angles.max()),
        "false": false,
        "certified": found.certificate.met,
        "worst_error": worst,
        "queries": found.queries,
        "per_parameter": found.queries / (n * (d + 16)),
        "seconds": spent,
    }


def row(told: dict[str, Any]) -> str:
    return (
        "| {network} | {activation} | {matter} | {within:.0%} | {worst_angle:.1e} | {false} | {certificate} "
        "| {worst_error:.1e} | {queries:,} | {per_parameter:.1f} | {seconds:.0f} |"
    ).format(certificate="yes" if told["certified"] else "no", **told)


def main() -> None:
    every = [f"{name}:{kind}" for name in DATA for kind in ACTIVATION]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NAME", help=f"of {', '.join(every)}; else all")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    arguments = parser.parse_args()
    lines, runs = [HEADER], []
    print(HEADER)
    for name, _, activation in (spec.partition(":") for spec in arguments.networks or every):
        runs.append(opened(name, activation))
        lines.append(row(runs[-1]))
        print(lines[-1], flush=True)
        if arguments.out is not None:
            keep_table(arguments.out, lines, runs)


if __name__ == "__main__":
    main()
