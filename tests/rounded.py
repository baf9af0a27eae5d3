"""Functions that round, beside the exact ones that they round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ridgescope.geometry import random_directions


def bfloat16(X):
    bits = np.ascontiguousarray(X, dtype=np.float32).view(np.uint32)
    nearest = bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return (nearest & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def float16(X):
    return np.asarray(X).astype(np.float16).astype(np.float64)


def float32(X):
    return np.asarray(X).astype(np.float32).astype(np.float64)


FORMATS: dict[str, Callable] = {"bfloat16": bfloat16, "float16": float16, "float32": float32}


def gelu(z):
    return 0.5 * z * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (z + 0.044715 * z**3)))


def relu(z):
    return np.maximum(z, 0.0)


ACTIVATIONS: dict[str, Callable] = {"tanh": np.tanh, "gelu": gelu, "relu": relu}


def layer(rounded, activation, dim, features, seed):
    """(rounded, exact): a layer whose inputs, sums, activations and answers are rounded, and the same without.

    Its weights are numbers of the format in both.
    """
    rng = np.random.default_rng(seed)
    norms = 1.5 * rng.uniform(0.7, 1.3, (features, 1))
    W = rounded(norms * random_directions(features, dim, rng))
    b = rounded(rng.uniform(-1.5, 1.5, features))
    c = rounded(rng.choice([-1.0, 1.0], features) * rng.uniform(0.5, 1.5, features))
    s = ACTIVATIONS[activation]

    def exact(X):
        return s(X @ W.T + b) @ c

    def of_few_digits(X):
        return rounded(rounded(s(rounded(rounded(rounded(X) @ W.T) + b))) @ c).astype(np.float32)

    return of_few_digits, exact
