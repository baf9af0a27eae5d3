"""Families of responses, each drawn with random steepness, place and phase. All are nonlinear on [−3, 3]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

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


def _drawn(kind: str, function: Callable[..., Floats], smooth: bool = True, **parameters: float) -> Drawn:
    # a partial of a module's function, unlike a lambda, can be sent to another process
    return Drawn(kind, parameters, partial(function, **parameters), smooth)


def tanh(rng: np.random.Generator) -> Drawn:
    return _drawn("tanh", _tanh, steepness=rng.uniform(1.0, 3.0), bias=rng.uniform(-1.0, 1.0))


def _tanh(z: Floats, steepness: float, bias: float) -> Floats:
    return np.tanh(steepness * z + bias)


def sine(rng: np.random.Generator, low: float = 1.5, high: float = 4.0) -> Drawn:
    return _drawn("sine", _sine, frequency=rng.uniform(low, high), phase=rng.uniform(-np.pi, np.pi))


def _sine(z: Floats, frequency: float, phase: float) -> Floats:
    return np.sin(frequency * z + phase)


def bump(rng: np.random.Generator) -> Drawn:
    return _drawn("bump", _bump, steepness=rng.uniform(1.0, 3.0), at=rng.uniform(-1.0, 1.0))


def _bump(z: Floats, steepness: float, at: float) -> Floats:
    return np.exp(-0.5 * (steepness * (z - at)) ** 2)


def relu(rng: np.random.Generator) -> Drawn:
    return _drawn("relu", _relu, smooth=False, at=rng.uniform(-1.0, 1.0))


def _relu(z: Floats, at: float) -> Floats:
    return np.maximum(z - at, 0.0)


def leaky_relu(rng: np.random.Generator) -> Drawn:
    return _drawn("leaky_relu", _leaky_relu, smooth=False, at=rng.uniform(-1.0, 1.0), leak=rng.uniform(0.05, 0.3))


def _leaky_relu(z: Floats, at: float, leak: float) -> Floats:
    return np.where(z > at, z - at, leak * (z - at))


def absolute(rng: np.random.Generator) -> Drawn:
    return _drawn("abs", _absolute, smooth=False, at=rng.uniform(-1.0, 1.0))


def _absolute(z: Floats, at: float) -> Floats:
    return np.abs(z - at)


def softplus(rng: np.random.Generator) -> Drawn:
    return _drawn("softplus", _softplus, steepness=rng.uniform(1.5, 5.0), bias=rng.uniform(-1.0, 1.0))


def _softplus(z: Floats, steepness: float, bias: float) -> Floats:
    return np.asarray(np.logaddexp(0.0, steepness * z + bias) / steepness)


def gelu(rng: np.random.Generator) -> Drawn:
    return _drawn("gelu", _gelu, steepness=rng.uniform(1.0, 3.0), bias=rng.uniform(-1.0, 1.0))


def _gelu(z: Floats, steepness: float, bias: float) -> Floats:
    y = steepness * z + bias
    return np.asarray(y * ndtr(y) / steepness)


def step(rng: np.random.Generator) -> Drawn:
    return _drawn("step", _step, steepness=rng.uniform(6.0, 12.0), at=rng.uniform(-1.0, 1.0))


def _step(z: Floats, steepness: float, at: float) -> Floats:
    return np.asarray(expit(steepness * (z - at)))


def triangle(rng: np.random.Generator) -> Drawn:
    frequency, phase = rng.uniform(1.5, 3.0), rng.uniform(-np.pi, np.pi)
    return _drawn("triangle", _triangle, smooth=False, frequency=frequency, phase=phase)


def _triangle(z: Floats, frequency: float, phase: float) -> Floats:
    return np.asarray((2.0 / np.pi) * np.arcsin(np.clip(np.sin(frequency * z + phase), -1.0, 1.0)))


def fourier(rng: np.random.Generator) -> Drawn:
    """Four harmonics of a base frequency, amplitudes falling like 1/j."""
    frequency = rng.uniform(0.7, 1.2)
    j = np.arange(1.0, 5.0)
    a, b = rng.standard_normal(4) / j, rng.uniform(-np.pi, np.pi, 4)
    a /= np.sqrt(np.sum(a**2))
    return Drawn("fourier", {"frequency": frequency}, partial(_harmonics, frequency * j, a, b))


def _harmonics(frequencies: Floats, amplitudes: Floats, phases: Floats, z: Floats) -> Floats:
    return np.asarray(np.sin(np.multiply.outer(z, frequencies) + phases) @ amplitudes)


def polynomial(rng: np.random.Generator) -> Drawn:
    """A cubic whose quadratic and cubic parts are of size one at |z| = 1.5."""
    c = rng.choice([-1.0, 1.0], 2) * rng.uniform(0.5, 1.0, 2)
    return _drawn("polynomial", _polynomial, c2=float(c[0] / 1.5**2), c3=float(c[1] / 1.5**3))


def _polynomial(z: Floats, c2: float, c3: float) -> Floats:
    return z * z * (c2 + c3 * z)


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
