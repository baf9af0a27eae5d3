"""Families of responses, each drawn with random steepness, place and phase. All are nonlinear on [−3, 3]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from ..geometry import Floats

Scalar = Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class Drawn:
    """One response φ with the numbers it was drawn with."""

    kind: str
    parameters: Mapping[str, float]
    function: Scalar
    smooth: bool = True

    def __call__(self, z: Floats) -> Floats:
        return self.function(z)


def tanh(rng: np.random.Generator) -> Drawn:
    k, b = rng.uniform(1.0, 3.0), rng.uniform(-1.0, 1.0)
    return Drawn("tanh", {"steepness": k, "bias": b}, lambda z: np.tanh(k * z + b))


def sine(rng: np.random.Generator, low: float = 1.5, high: float = 4.0) -> Drawn:
    k, b = rng.uniform(low, high), rng.uniform(-np.pi, np.pi)
    return Drawn("sine", {"frequency": k, "phase": b}, lambda z: np.sin(k * z + b))


def bump(rng: np.random.Generator) -> Drawn:
    k, t = rng.uniform(1.0, 3.0), rng.uniform(-1.0, 1.0)
    return Drawn("bump", {"steepness": k, "at": t}, lambda z: np.exp(-0.5 * (k * (z - t)) ** 2))


def relu(rng: np.random.Generator) -> Drawn:
    t = rng.uniform(-1.0, 1.0)
    return Drawn("relu", {"at": t}, lambda z: np.maximum(z - t, 0.0), smooth=False)


def leaky_relu(rng: np.random.Generator) -> Drawn:
    t, leak = rng.uniform(-1.0, 1.0), rng.uniform(0.05, 0.3)
    return Drawn(
        "leaky_relu", {"at": t, "leak": leak}, lambda z: np.where(z > t, z - t, leak * (z - t)), smooth=False
    )


def absolute(rng: np.random.Generator) -> Drawn:
    t = rng.uniform(-1.0, 1.0)
    return Drawn("abs", {"at": t}, lambda z: np.abs(z - t), smooth=False)


def softplus(rng: np.random.Generator) -> Drawn:
    k, b = rng.uniform(1.5, 5.0), rng.uniform(-1.0, 1.0)
    return Drawn("softplus", {"steepness": k, "bias": b}, lambda z: np.logaddexp(0.0, k * z + b) / k)


def gelu(rng: np.random.Generator) -> Drawn:
    k, b = rng.uniform(1.0, 3.0), rng.uniform(-1.0, 1.0)

    def function(z: Floats) -> Floats:
        y = k * z + b
        return y * ndtr(y) / k

    return Drawn("gelu", {"steepness": k, "bias": b}, function)


def step(rng: np.random.Generator) -> Drawn:
    k, t = rng.uniform(6.0, 12.0), rng.uniform(-1.0, 1.0)
    return Drawn("step", {"steepness": k, "at": t}, lambda z: expit(k * (z - t)))


def triangle(rng: np.random.Generator) -> Drawn:
    k, b = rng.uniform(1.5, 3.0), rng.uniform(-np.pi, np.pi)
    return Drawn(
        "triangle",
        {"frequency": k, "phase": b},
        lambda z: (2.0 / np.pi) * np.arcsin(np.clip(np.sin(k * z + b), -1.0, 1.0)),
        smooth=False,
    )


def fourier(rng: np.random.Generator) -> Drawn:
    """Four harmonics of a base frequency, amplitudes falling like 1/j."""
    k = rng.uniform(0.7, 1.2)
    j = np.arange(1, 5)
    a, b = rng.standard_normal(4) / j, rng.uniform(-np.pi, np.pi, 4)
    a /= np.sqrt(np.sum(a**2))
    return Drawn("fourier", {"frequency": k}, lambda z: np.sin(np.multiply.outer(z, k * j) + b) @ a)


def polynomial(rng: np.random.Generator) -> Drawn:
    """A cubic whose quadratic and cubic parts are of size one at |z| = 1.5."""
    c = rng.choice([-1.0, 1.0], 2) * rng.uniform(0.5, 1.0, 2)
    c2, c3 = c[0] / 1.5**2, c[1] / 1.5**3
    return Drawn("polynomial", {"c2": float(c2), "c3": float(c3)}, lambda z: z * z * (c2 + c3 * z))


DRAW: Mapping[str, Callable[..., Drawn]] = {
    "tanh": tanh,
    "sine": sine,
    "bump": bump,
    "relu": relu,
    "leaky_relu": leaky_relu,
    "abs": absolute,
    "softplus": softplus,
    "gelu": gelu,
    "step": step,
    "triangle": triangle,
    "fourier": fourier,
    "polynomial": polynomial,
}
