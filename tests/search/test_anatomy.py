"""Parts of a span of Hessians: features, gated units, and what errors of the span make of both."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.geometry import random_directions
from ridgescope.search.anatomy import anatomy
from ridgescope.search.numerical_span import span_of
from ridgescope.search.rank_one import pack
from ridgescope.search.spans import Sample


def sample_of(parts: np.ndarray, error: float, rng: np.random.Generator) -> Sample:
    """Random combinations of packed matrices (k, D), with errors in every entry."""
    k, size = parts.shape
    rows = rng.standard_normal((2 * size, k)) @ parts + error * rng.standard_normal((2 * size, size))
    width = int((np.sqrt(8 * size + 1) - 1) / 2 + 0.5)
    points = rng.standard_normal((len(rows), width))
    return Sample(2, width, points, rows[:, None, :], error, span_of(rows, error))


@pytest.mark.parametrize("error", [1e-4, 3e-5])
def test_gated_units_are_counted_once_however_rough_the_span_is(error: float) -> None:
    """A rough span also holds v ± εu for every unit, as many vectors as it has dimensions."""
    rng = np.random.default_rng(0)
    v, u = random_directions(30, 12, rng), random_directions(30, 12, rng)
    squares, products = v[:, :, None] * v[:, None, :], v[:, :, None] * u[:, None, :]
    parts = pack(np.concatenate([squares, products + products.swapaxes(1, 2)]))
    found = anatomy(sample_of(np.exp(rng.uniform(-3, 0, (60, 1))) * parts, error, rng), rng)
    assert (found.members, found.partners, found.block_dim) == (30, 30, 0)


def test_a_pair_of_close_features_is_no_gated_unit() -> None:
    rng = np.random.default_rng(1)
    v = random_directions(20, 12, rng)
    v[1] = v[0] + 0.06 * random_directions(1, 12, rng)[0]
    v[1] /= np.linalg.norm(v[1])
    found = anatomy(sample_of(pack(v[:, :, None] * v[:, None, :]), 1e-5, rng), rng)
    assert (found.members, found.partners, found.block_dim) == (20, 0, 0)
