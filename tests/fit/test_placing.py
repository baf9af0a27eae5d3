"""Members of families closest to responses: pairs are independent of each other, whatever the order of their steps."""

from __future__ import annotations

import numpy as np

from ridgescope.fit.activations import ACTIVATIONS, INDEX, atoms
from ridgescope.fit.placing import CoarseResponses
from ridgescope.shapes.families import point_count, sample_points

NAMES = ("tanh", "gelu", "sine", "bump")


def responses():
    u = sample_points(point_count(16)).u
    curves = [ACTIVATIONS[INDEX[name]].atom((3.0 + i) * u + 0.3 * i - 0.5)[0] for i, name in enumerate(NAMES)]
    return CoarseResponses.of(np.stack(curves)[:, :, None], 16)


def test_families_placed_together_are_where_each_is_alone():
    families = [INDEX[name] for name in NAMES]
    together = responses().start(families)
    for j, family in enumerate(families):
        alone = responses().start([family])
        np.testing.assert_allclose(together.kappa[j], alone.kappa[0], rtol=1e-9)
        np.testing.assert_allclose(together.b[j], alone.b[0], rtol=1e-9, atol=1e-9)


def test_the_own_family_leaves_least():
    """The misfit of the own family is that of coarse splines; others leave a hundred times as much."""
    misfit = responses().start([INDEX[name] for name in NAMES]).misfit
    others = np.where(np.eye(len(NAMES), dtype=bool), np.inf, misfit)
    assert (np.diagonal(misfit) < 1e-2 * others.min(axis=0)).all()


def test_atoms_are_those_of_each_row():
    family = np.array([INDEX["tanh"], INDEX["tanh"], INDEX["sine"]])
    y = np.linspace(-1.0, 1.0, 15).reshape(3, 5)
    value, slope = atoms(family, y)
    np.testing.assert_array_equal(value, np.stack([np.tanh(y[0]), np.tanh(y[1]), np.sin(y[2])]))
    np.testing.assert_allclose(slope[2], np.cos(y[2]))
