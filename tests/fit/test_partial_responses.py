"""Partial responses: a family is found from one response at a time, whatever the bins and the polynomials that leak."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.fit.activations import ACTIVATIONS, INDEX
from ridgescope.fit.closed_choice import leaking_degree
from ridgescope.fit.partial_responses import PartialResponses

KAPPA, SHIFT = np.array([3.0, 6.0, 12.0]), np.array([0.4, -1.0, 2.0])


def responses(family, *, degree=1, noise=0.0, leak=0.0, points=4000):
    """Partial responses of three members of a family; the residual is noise, and a square leaks into the curves."""
    rng = np.random.default_rng(1)
    U = rng.uniform(-1.0, 1.0, (points, 3))

    def curves(u):
        return ACTIVATIONS[INDEX[family]].atom(KAPPA[:, None] * u + SHIFT[:, None])[0] + leak * u**2

    return PartialResponses.of(U, noise * rng.standard_normal(U.shape), curves, degree)


def fitted(partial, family, start=1.2):
    return partial.fit(np.full(3, INDEX[family]), np.arange(3), start * KAPPA, start * SHIFT)


@pytest.mark.parametrize("family", ["tanh", "gelu", "softplus", "bump", "sine"])
def test_a_right_response_is_exact_however_wide_the_bins(family):
    start = 1.02 if family == "sine" else 1.2
    found = fitted(responses(family), family, start)
    np.testing.assert_allclose(found.kappa, KAPPA, rtol=1e-5)
    np.testing.assert_allclose(found.b, SHIFT, atol=1e-4)
    assert found.misfit.max() < 1e-10


@pytest.mark.parametrize(("true", "other"), [("gelu", "silu"), ("tanh", "erf"), ("softplus", "gelu")])
def test_families_that_look_alike_are_told_apart(true, other):
    partial = responses(true, noise=1e-4)
    right, wrong = fitted(partial, true), fitted(partial, other)
    assert (right.misfit[:2] < 0.1 * wrong.misfit[:2]).all()
    np.testing.assert_allclose(right.misfit, 1e-8, rtol=0.5)  # the noise of one point


@pytest.mark.parametrize("family", ["tanh", "gelu", "softplus", "bump", "sine", "mish", "erf"])
def test_the_least_misfit_is_found_without_a_start(family):
    partial = responses(family)
    own = np.array([partial.least_misfit(INDEX[family], i) for i in range(3)])
    other = np.array([partial.least_misfit(INDEX["sine" if family != "sine" else "tanh"], i) for i in range(3)])
    assert (own < 1e-8 * partial.size).all()
    assert (other > 1e-5 * partial.size).all()


def test_the_noise_is_that_of_single_points_and_a_spline_leaves_no_more():
    partial = responses("tanh", noise=1e-3)
    np.testing.assert_allclose(partial.noise, 1e-6, rtol=0.1)
    np.testing.assert_allclose(partial.spline_misfits(64), 1e-6, rtol=0.5)


def test_a_square_that_leaks_is_taken_off_with_degree_two_only():
    right = fitted(responses("tanh", degree=2, leak=0.3), "tanh")
    np.testing.assert_allclose(right.kappa[:2], KAPPA[:2], rtol=1e-4)
    assert right.misfit.max() < 1e-10
    assert fitted(responses("tanh", degree=1, leak=0.3), "tanh").misfit.min() > 1e-4


def test_powers_leak_between_as_many_splines_as_make_them_dependent():
    assert leaking_degree(10, 20) == 1
    assert leaking_degree(100, 20) == 2  # of 210 squares
    assert leaking_degree(30, 4) == 3  # more than the 20 cubes
    assert leaking_degree(0, 1) == 1
