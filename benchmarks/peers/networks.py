"""Networks that nobody planted: scikit-learn's, one hidden layer each, with what is true of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from ridgescope.geometry import along, in_ball, unit

ACTIVATION = {"relu": lambda z: np.maximum(z, 0.0), "tanh": np.tanh, "logistic": expit}
DATA = ("diabetes", "cancer", "digits")


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
    warnings.simplefilter("ignore", ConvergenceWarning)  # for good: contests train in several threads
    return X, net.fit(X, y)


@dataclass(frozen=True, eq=False)
class Network:
    """f(x) = c + Σ_j out_j φ(W_j·x + b_j): logits, or values. The ball's centre is the mean of the training data, its
    radius the median distance from it.
    """

    name: str
    activation: str
    W: np.ndarray
    out: np.ndarray
    b: np.ndarray
    c: np.ndarray
    center: np.ndarray
    radius: float

    @classmethod
    def trained(cls, name: str, activation: str) -> Network:
        X, net = train(name, activation)
        center = X.mean(axis=0)
        radius = float(np.median(np.linalg.norm(X - center, axis=1)))
        return cls(name, activation, *net.coefs_, *net.intercepts_, center, radius)

    @property
    def size(self) -> tuple[int, int, int]:
        return (*self.W.shape, self.out.shape[1])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        values = ACTIVATION[self.activation](x @ self.W + self.b) @ self.out + self.c
        return values if values.shape[1] > 1 else values[:, 0]

    @cached_property
    def units(self) -> np.ndarray:
        return unit(self.W.T)

    @cached_property
    def points(self) -> np.ndarray:
        """Uniform in the ball, and along every unit's direction."""
        d, n, _ = self.size
        rng = np.random.default_rng(1)
        which, where = rng.integers(0, n, 4000), rng.uniform(-self.radius, self.radius, 4000)
        on_rays = along(self.units, which, where, self.radius, rng)
        return self.center + np.concatenate([in_ball(2000, d, self.radius, rng), on_rays])

    def matters(self, error: float) -> np.ndarray:
        """Units whose nonlinear part, somewhere on the ball, moves f by more than `error`."""
        z, phi = self.points @ self.W + self.b, ACTIVATION[self.activation]
        weights = np.abs(self.out).max(axis=1)
        return np.array([_bend(z[:, j], phi) * weights[j] for j in range(len(weights))]) > error


class Scaled:
    """A network as the contest wants it: about the origin, on a ball of a given radius."""

    noise = 0.0

    def __init__(self, net: Network, radius: float, tolerance: float = 1e-2) -> None:
        self.net, self._unit, self.dim, self.units = net, net.radius / radius, net.size[0], net.units
        scale = float(np.sqrt(np.mean(np.var(net(net.points[:2000]), axis=0))))
        self.directions = net.units[net.matters(tolerance * scale)]
        """Those that matter; the others are not asked for, and not false either."""

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return self.net(self.net.center + self._unit * X)

    clean = __call__


def _bend(z: np.ndarray, phi) -> float:
    """Largest distance of φ from its best straight line."""
    line = np.stack([np.ones_like(z), z], axis=1)
    a = phi(z)
    return float(np.abs(a - line @ np.linalg.lstsq(line, a, rcond=None)[0]).max())
