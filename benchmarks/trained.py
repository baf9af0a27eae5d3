"""Networks that nobody planted: scikit-learn's one-hidden-layer networks, opened by their logits or values alone.

    python benchmarks/trained.py                      all nine
    python benchmarks/trained.py digits:tanh          one

A hidden unit matters if its nonlinear part, somewhere on the ball, moves f by more than the tolerance. The ball's
centre is the mean of the training data, its radius the median distance from it.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

import ridgescope as rs
from ridgescope.geometry import along, in_ball, unit

TOLERANCE = 1e-2
ACTIVATION = {"relu": lambda z: np.maximum(z, 0.0), "tanh": np.tanh, "logistic": expit}


def train(name: str, activation: str):
    """(inputs, fitted network)."""
    options = {"activation": activation, "random_state": 0}
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        X, net = X / 16.0, MLPClassifier(hidden_layer_sizes=(128,), max_iter=60, **options)
    elif name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
        X, y = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
        net = MLPRegressor(hidden_layer_sizes=(32,), max_iter=300, **options)
    else:
        X, y = load_breast_cancer(return_X_y=True)
        X, net = StandardScaler().fit_transform(X), MLPClassifier(hidden_layer_sizes=(64,), max_iter=100, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return X, net.fit(X, y)


def row(name: str, activation: str) -> str:
    X, net = train(name, activation)
    (W, out), (b, c), phi = net.coefs_, net.intercepts_, ACTIVATION[activation]
    d, n = W.shape

    def f(points):
        values = phi(points @ W + b) @ out + c
        return values if values.shape[1] > 1 else values[:, 0]

    centre = X.mean(axis=0)
    radius = float(np.median(np.linalg.norm(X - centre, axis=1)))
    start = time.process_time()
    found = rs.extract(f, dim=d, radius=radius, center=centre, tolerance=TOLERANCE, rng=0)
    spent = time.process_time() - start

    rng, V, scale = np.random.default_rng(1), unit(W.T), found.certificate.scale
    on_rays = along(V, rng.integers(0, n, 4000), rng.uniform(-radius, radius, 4000), radius, rng)
    points = centre + np.concatenate([in_ball(2000, d, radius, rng), on_rays])
    matters = (
        np.array([bend(points @ W[:, i] + b[i], phi) * np.abs(out[i]).max() for i in range(n)]) > TOLERANCE * scale
    )
    match = rs.match(found.directions, V[matters])
    false = len(rs.match(found.directions, V).false)
    worst = float(np.abs(found.predict(points) - f(points)).max()) / scale
    return (
        f"| {name} {d}–{n}–{out.shape[1]} | {activation} | {matters.sum()} | {match.share(1e-2):.0%} | "
        f"{match.angles.max():.1e} | {false} | {'yes' if found.certificate.met else 'no'} | {worst:.1e} | "
        f"{found.queries:,} | {found.queries / (n * (d + 16)):.1f} | {spent:.0f} |"
    )


def bend(z, phi) -> float:
    """Largest distance of φ from its best straight line."""
    line = np.stack([np.ones_like(z), z], axis=1)
    a = phi(z)
    return float(np.abs(a - line @ np.linalg.lstsq(line, a, rcond=None)[0]).max())


if __name__ == "__main__":
    every = [f"{name}:{kind}" for name in ("diabetes", "cancer", "digits") for kind in ACTIVATION]
    print(
        "| network | activation | units that matter | ≤ 1e-2 rad | worst angle | false | certified | "
        "worst true error | queries | per parameter | CPU seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, _, activation in (spec.partition(":") for spec in sys.argv[1:] or every):
        print(row(name, activation), flush=True)
