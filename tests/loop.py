"""A `State` for the tests of the loop's parts."""

from __future__ import annotations

import numpy as np

import ridgescope as rs
from ridgescope.randomness import Streams
from ridgescope.state import State


def make_state(function, dim, *, radius=3.0, tolerance=1e-2, seed=0, max_features=None, **options) -> State:
    """A state that has asked nothing yet; `options` go to the oracle."""
    return State(
        oracle=rs.oracle.Oracle(function, dim=dim, **options),
        radius=radius,
        tolerance=tolerance,
        stated_noise=None,
        max_features=max_features,
        streams=Streams.of(seed),
        report=lambda step: None,
    )


def two_features(X):
    """tanh along the first axis, a bump along the second."""
    return np.tanh(2.0 * X[:, 0]) + np.exp(-(X[:, 1] ** 2))
