"""Families of responses, each drawn with random steepness, place and phase. All are nonlinear on [−3, 3].

The ranges of the parameters make a response vary visibly on [−3, 3] and put its centre or kink into [−1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import expit, ndtr

from ..geometry import Floats


@dataclass(frozen=True, eq=False)
class Drawn:
    """One response φ, a function of an array of any shape, with the numbers it was drawn with."""

    kind: str
    """Name of its family."""
    parameters: Mapping[str, float]
    """The drawn numbers by name."""
    function: Callable[[Floats], Floats]
    """φ itself."""
    smooth: bool = True
    """False if φ has kinks."""

    def __call__(self, z: Floats) -> Floats:
        """Return φ(z) in the shape of z."""
        return self.function(z)


@dataclass(frozen=True)
class Family:
    """A family of responses: a function of z and of parameters that are drawn uniformly from their ranges."""

    kind: str
    function: Callable[..., Floats]
    ranges: Mapping[str, tuple[float, float]]
    smooth: bool = True

    def __call__(self, rng: np.random.Generator, **changes: tuple[float, float]) -> Drawn:
        """Draw a response; `changes` replace ranges."""
        parameters = {name: rng.uniform(*limits) for name, limits in {**self.ranges, **changes}.items()}
        # a partial of a module's function, unlike a lambda, can be sent to another process
        return Drawn(self.kind, parameters, partial(self.function, **parameters), self.smooth)


def _tanh(z: Floats, steepness: float, bias: float) -> Floats:
    """Return tanh(steepness·z + bias)."""
    return np.tanh(steepness * z + bias)


def _sine(z: Floats, frequency: float, phase: float) -> Floats:
    """Return sin(frequency·z + phase)."""
    return np.sin(frequency * z + phase)


def _bump(z: Floats, steepness: float, at: float) -> Floats:
    """Return a Gaussian bump around `at`."""
    return np.exp(-0.5 * (steepness * (z - at)) ** 2)


def _relu(z: Floats, at: float) -> Floats:
    """Return max(z − at, 0)."""
    return np.maximum(z - at, 0.0)


def _leaky_relu(z: Floats, at: float, leak: float) -> Floats:
    """Return z − at, times `leak` where that is negative."""
    return np.where(z > at, z - at, leak * (z - at))


def _absolute(z: Floats, at: float) -> Floats:
    """Return |z − at|."""
    return np.abs(z - at)


def _softplus(z: Floats, steepness: float, bias: float) -> Floats:
    """Return log(1 + exp(y))/steepness, y = steepness·z + bias."""
    return np.asarray(np.logaddexp(0.0, steepness * z + bias) / steepness)


def _gelu(z: Floats, steepness: float, bias: float) -> Floats:
    """Return y·Φ(y)/steepness, y = steepness·z + bias, Φ the normal distribution function."""
    y = steepness * z + bias
    return np.asarray(y * ndtr(y) / steepness)


def _step(z: Floats, steepness: float, at: float) -> Floats:
    """Return a logistic step at `at`."""
    return np.asarray(expit(steepness * (z - at)))


def _triangle(z: Floats, frequency: float, phase: float) -> Floats:
    """Return a triangle wave with values in [−1, 1]."""
    return np.asarray((2.0 / np.pi) * np.arcsin(np.clip(np.sin(frequency * z + phase), -1.0, 1.0)))


def _harmonics(frequencies: Floats, amplitudes: Floats, phases: Floats, z: Floats) -> Floats:
    """Return Σ_j amplitude_j·sin(frequency_j·z + phase_j)."""
    return np.asarray(np.sin(np.multiply.outer(z, frequencies) + phases) @ amplitudes)


def _fourier(rng: np.random.Generator) -> Drawn:
    """Draw four harmonics of a base frequency, with amplitudes that fall like 1/j."""
    frequency = rng.uniform(0.7, 1.2)
    j = np.arange(1.0, 5.0)
    a, b = rng.standard_normal(4) / j, rng.uniform(-np.pi, np.pi, 4)
    a /= np.sqrt(np.sum(a**2))
    return Drawn("fourier", {"frequency": frequency}, partial(_harmonics, frequency * j, a, b))


def _polynomial(z: Floats, c2: float, c3: float) -> Floats:
    """Return c2·z² + c3·z³."""
    return z * z * (c2 + c3 * z)


def _cubic(rng: np.random.Generator) -> Drawn:
    """Draw a cubic whose quadratic and cubic parts are of size one at |z| = 1.5."""
    c = rng.choice([-1.0, 1.0], 2) * rng.uniform(0.5, 1.0, 2)
    c2, c3 = float(c[0] / 1.5**2), float(c[1] / 1.5**3)
    return Drawn("polynomial", {"c2": c2, "c3": c3}, partial(_polynomial, c2=c2, c3=c3))


_NEAR, _ANY_PHASE = (-1.0, 1.0), (-np.pi, np.pi)

DRAW: Mapping[str, Callable[..., Drawn]] = {
    "tanh": Family("tanh", _tanh, {"steepness": (1.0, 3.0), "bias": _NEAR}),
    "sine": Family("sine", _sine, {"frequency": (1.5, 4.0), "phase": _ANY_PHASE}),
    "bump": Family("bump", _bump, {"steepness": (1.0, 3.0), "at": _NEAR}),
    "relu": Family("relu", _relu, {"at": _NEAR}, smooth=False),
    "leaky_relu": Family("leaky_relu", _leaky_relu, {"at": _NEAR, "leak": (0.05, 0.3)}, smooth=False),
    "abs": Family("abs", _absolute, {"at": _NEAR}, smooth=False),
    "softplus": Family("softplus", _softplus, {"steepness": (1.5, 5.0), "bias": _NEAR}),
    "gelu": Family("gelu", _gelu, {"steepness": (1.0, 3.0), "bias": _NEAR}),
    "step": Family("step", _step, {"steepness": (6.0, 12.0), "at": _NEAR}),
    "triangle": Family("triangle", _triangle, {"frequency": (1.5, 3.0), "phase": _ANY_PHASE}, smooth=False),
    "fourier": _fourier,
    "polynomial": _cubic,
}
"""What draws a response from a generator, by the name of its kind."""
