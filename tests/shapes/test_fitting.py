"""One closed form fitted to one response: its parameters come back, and what the cells hide is known."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.response import interpolate
from ridgescope.shapes.families import FAMILIES, Placement, sample_points, spline_space
from ridgescope.shapes.fitting import ShapeFit, ShapeProblem, fit_family, fit_polynomials

FAMILY = {family.name: family for family in FAMILIES}
SMOOTH = ["softplus", "gelu", "silu", "tanh", "erf", "arctan", "bump", "sine"]


def problem(function, intervals=32, sigma=1e-3, kinks=()):
    """The spline of `function` on [−1, 1] as a problem."""
    points, space = sample_points(256), spline_space(intervals, 256)
    values = points.project(interpolate(function, 1.0, intervals)(points.u))
    return ShapeProblem(points, space, values @ space, intervals, np.array(kinks, dtype=float), sigma)


@pytest.mark.parametrize("name", SMOOTH)
def test_parameters_come_back_from_a_start_nearby(name):
    family = FAMILY[name]

    def f(u):
        return 0.7 * family.atom(4.0 * (u - 0.2))[0] + 3.0 - u

    fit = fit_family(problem(f, sigma=1e-12), family, [Placement(3.2 / family.stretch, 0.1)])
    assert fit.seen < 1e-4
    assert fit.place.kappa == pytest.approx(4.0, rel=1e-3)
    if name != "sine":  # whose start knows no t
        assert fit.place.t == pytest.approx(0.2, abs=1e-3)
    assert abs(fit.amplitude) == pytest.approx(0.7, rel=1e-3)
    assert not fit.blurred
    assert fit.is_acceptable(1e-3)


def test_an_exponential_has_no_place_and_either_sign():
    for sign in (1.0, -1.0):
        fit = fit_family(
            problem(lambda u, s=sign: np.exp(2.0 * s * u)), FAMILY["exponential"], [Placement(1.5, sign, sign)]
        )
        assert fit.parameters == 2
        assert fit.place.kappa == pytest.approx(2.0, rel=1e-3)


def test_of_several_starts_the_best_is_kept():
    f = lambda u: np.sin(9.0 * u + 0.5)  # noqa: E731
    far, near = Placement(3.0, 0.0), Placement(8.6, 0.0)
    only, both = (fit_family(problem(f), FAMILY["sine"], starts) for starts in ([far], [far, near]))
    assert only.seen > 0.1
    assert both.seen < 1e-3
    assert both.place.kappa == pytest.approx(9.0, rel=1e-3)


def test_a_relu_starts_from_the_strongest_kink():
    fit = fit_family(problem(lambda u: np.maximum(u - 0.37, 0.0), kinks=[0.37, -0.5]), FAMILY["relu"], [])
    assert fit.place.t == pytest.approx(0.37, abs=1e-2)


def test_what_the_cells_cannot_show_of_a_kink_is_known_as_hidden():
    """A kink in the middle of a cell of eight: the spline misses it by as much as the form says."""
    eight, many = (problem(lambda u: np.abs(u - 0.125), intervals) for intervals in (8, 128))
    fits = [fit_family(p, FAMILY["relu"], [Placement(1.0, 0.1)]) for p in (eight, many)]
    assert fits[0].hidden > 10.0 * fits[1].hidden
    assert fits[0].seen < fits[0].hidden
    truth = np.abs(eight.points.u - 0.125)
    shown = interpolate(lambda u: np.abs(u - 0.125), 1.0, 8)(eight.points.u)
    assert fits[0].hidden == pytest.approx(np.sqrt(np.mean((truth - shown) ** 2)), rel=0.2)


def test_a_profile_steeper_than_the_cells_is_blurred():
    steep = fit_family(problem(lambda u: np.tanh(200.0 * u), 16), FAMILY["tanh"], [Placement(20.0, 0.05)])
    gentle = fit_family(problem(lambda u: np.tanh(4.0 * u), 16), FAMILY["tanh"], [Placement(3.0, 0.05)])
    assert steep.blurred
    assert not gentle.blurred


def test_polynomials_of_two_three_and_four_degrees_are_tried():
    fits = fit_polynomials(problem(lambda u: 2.0 * u**3 - u**2 + 5.0 * u))
    assert [fit.parameters for fit in fits] == [1, 2, 3]
    np.testing.assert_allclose(fits[1].powers, [-1.0, 2.0], atol=1e-9)
    assert fits[0].seen > 0.1
    assert fits[1].seen < 1e-10
    assert len(fit_polynomials(problem(lambda u: u**2, intervals=2))) == 2  # three coordinates: three would explain all


def test_a_fit_is_acceptable_within_three_errors_and_what_is_hidden():
    def fit(seen, hidden=0.0, family="bump", at=0.0, blurred=False):
        return ShapeFit(family, 3, seen, hidden, 1.0, Placement(2.0, at), blurred)

    assert fit(0.29).is_acceptable(0.1)
    assert not fit(0.31).is_acceptable(0.1)
    assert fit(0.31, hidden=0.1).is_acceptable(0.1)
    assert not fit(0.0, family="gelu", blurred=True).is_acceptable(0.1)
    assert fit(0.0, family="clip").is_acceptable(0.1)
    assert not fit(0.0, family="clip", at=0.6).is_acceptable(0.1)


def test_a_parameter_more_must_explain_more_than_chance():
    worse = ShapeFit("relu", 2, 0.11, 0.0, 1.0, Placement(1.0, 0.0))
    better = ShapeFit("tanh", 3, 0.10, 0.0, 1.0, Placement(1.0, 0.0))
    assert worse.score(0.1, 20) > better.score(0.1, 20)
    assert worse.score(0.1, 10) < better.score(0.1, 10)
