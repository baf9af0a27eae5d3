"""Forms whose axes are known, plus squares of known directions."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.geometry import random_directions
from ridgescope.search.quadratic_form import fewest_axes


@pytest.mark.parametrize(("dim", "known", "axes"), [(4, 0, 2), (12, 20, 2), (12, 5, 4), (20, 50, 2), (20, 50, 0)])
def test_few_axes_are_found_among_squares_of_known_directions(dim, known, axes):
    rng = np.random.default_rng(dim + known)
    directions, own = random_directions(known, dim, rng), random_directions(axes, dim, rng)
    form = np.einsum("n,nd,ne->de", rng.standard_normal(known), directions, directions)
    form += np.einsum("n,nd,ne->de", rng.choice([-1.0, 1.0], axes), own, own)
    found = fewest_axes(form / np.linalg.norm(form), directions, error=1e-9)
    assert len(found) == axes
    assert np.linalg.norm(own - own @ found.T @ found) < 1e-5


def test_a_form_of_full_rank_keeps_its_axes():
    rng = np.random.default_rng(0)
    form = rng.standard_normal((8, 8))
    form = form + form.T
    assert len(fewest_axes(form / np.linalg.norm(form), random_directions(3, 8, rng), error=1e-9)) == 8
