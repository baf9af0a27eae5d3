"""The products that EstWeight averages, of differences of f and of what a model leaves of f."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import ridgescope as rs
from ridgescope.geometry import random_basis
from ridgescope.paper.mass import sample_pairs
from ridgescope.paper.peel import empty_model
from ridgescope.paper.response import Derivative, difference
from ridgescope.paper.survey import Subspace

TARGET = rs.targets.planted(dim=4, features=4, kinds=("relu", "tanh"), separation=0.3, rng=4)


def test_the_products_are_those_of_the_differences():
    ends = np.random.default_rng(1).standard_normal((40, TARGET.dim))
    slopes = difference(TARGET, ends, 0.1)
    products = Derivative(TARGET, 0.1, 0.0).products(ends)
    assert np.allclose(products, np.sum(slopes[::2] * slopes[1::2], axis=1), rtol=1e-12)


def test_inside_a_subspace_the_products_are_those_of_the_function_there():
    basis = random_basis(2, TARGET.dim, np.random.default_rng(2))
    model = replace(empty_model(2), slope=np.array([1.0, -2.0]))

    def there(Y):
        return TARGET(Y @ basis)

    fields = Subspace(basis, np.ones(2), 0).inside(TARGET), there
    (_, got), (_, plain) = (
        next(sample_pairs(Derivative(model.residual(f), 0.1, 0.0), 2.0, np.eye(2), 200, np.random.default_rng(3)))
        for f in fields
    )
    assert np.allclose(got, plain, rtol=1e-9, atol=1e-10)
    assert np.abs(plain).max() > 0.1
