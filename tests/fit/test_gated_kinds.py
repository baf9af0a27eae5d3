"""Which units of a gated fit keep their carriers, which get one, and which are dropped."""

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.fit.context import FitContext, FitGoal
from ridgescope.fit.gated_fit import _floor, _pruned
from ridgescope.fit.gated_form import GATE_INDEX, GatedForms
from ridgescope.fit.gated_kinds import with_missed_carriers, without_idle_carriers
from ridgescope.fit.gated_missing import quadratic_form, with_missed_units
from ridgescope.fit.gated_solve import GatedSolved, minimise
from ridgescope.fit.samples import Samples
from ridgescope.geometry import angle, in_ball

D, N, P, RADIUS = 5, 6, 2, 3.0


def forms(plain: int, seed: int, outputs: int = P) -> GatedForms:
    rng = np.random.default_rng(seed)
    w, c = rng.standard_normal((N, D)), rng.standard_normal(N)
    w[:plain], c[:plain] = 0.0, 1.0
    length = np.sqrt(np.sum(w**2, axis=1) + c**2)
    parts = 0.7 * rng.standard_normal((N, D)), 0.3 * rng.standard_normal(N), w / length[:, None], c / length
    return GatedForms(RADIUS, *parts, np.full(N, GATE_INDEX["silu"]), rng.standard_normal((N + 1 + D, outputs)))


def context(exact: GatedForms, noise: float, seed: int = 1) -> FitContext:
    rng, samples = np.random.default_rng(seed), Samples(D, RADIUS)

    def f(X):
        values = exact.predict(X)
        return values + noise * rng.standard_normal(values.shape)

    X = in_ball(700, D, RADIUS, rng)
    samples.add(X, f(X))
    return FitContext(f, samples, FitGoal(1e-3, noise), rng, lambda: 0.0)


def fitted(start: GatedForms, context: FitContext) -> GatedSolved:
    return minimise(GatedSolved.of(start, *context.samples.train), steps=25, min_gain=1e-2)


@pytest.mark.parametrize("noise", [1e-7, 1e-4])
def test_carriers_that_hold_noise_only_go(noise):
    exact, rng = forms(3, 0), np.random.default_rng(2)
    here = context(exact, noise)
    w = exact.w.copy()
    w[:3] = 0.1 * rng.standard_normal((3, D))
    found = fitted(replace(exact, w=w), here)
    assert found.forms.gated.all()
    better = without_idle_carriers(here, found, _floor(here, found.Y))
    assert better.forms.gated.tolist() == [False] * 3 + [True] * 3
    assert better.rms < 1.1 * noise


@pytest.mark.parametrize("seed", [0, 3])
def test_carriers_that_matter_stay(seed):
    exact = forms(3, seed)
    faint = replace(exact, w=np.where(np.arange(N)[:, None] == 3, 1e-3 * exact.w, exact.w))
    here = context(faint, 1e-6)
    found = fitted(faint, here)
    assert without_idle_carriers(here, found, _floor(here, found.Y)).forms.gated.tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_plain_units_that_miss_a_carrier_get_one(seed):
    exact = forms(2, seed)
    here = context(exact, 1e-7)
    missed = np.arange(N) == 4
    start = replace(exact, w=np.where(missed[:, None], 0.0, exact.w), c=np.where(missed, 1.0, exact.c))
    found = GatedSolved.of(start, *here.samples.train)
    assert found.rms > 1e-3
    better = with_missed_carriers(here, found, _floor(here, found.Y))
    assert better.forms.gated.tolist() == exact.gated.tolist()
    assert fitted(better.forms, here).rms < 1e-6
    right = fitted(exact, here)
    assert with_missed_carriers(here, right, _floor(here, right.Y)) is right


def test_a_unit_that_makes_up_for_the_errors_of_others_is_dropped():
    exact, rng = forms(2, 5), np.random.default_rng(6)
    here = context(exact, 1e-7)
    extra = forms(0, 7).keep(np.array([0]))
    more = GatedForms(
        RADIUS,
        *(np.concatenate([getattr(exact, name), getattr(extra, name)]) for name in ("g", "b", "w", "c", "family")),
        rng.standard_normal((N + 2 + D, P)),
    )
    found = fitted(more, here)
    assert found.forms.count == N + 1
    assert _pruned(here, found).forms.count == N
    right = fitted(exact, here)
    assert _pruned(here, right) is right


@pytest.mark.parametrize(("strength", "seed"), [(0.03, 0), (0.03, 2), (0.03, 5), (0.003, 2), (0.003, 6)])
def test_a_unit_that_the_search_has_missed_is_found_in_the_residual(seed, strength):
    exact = forms(0, seed)
    coefficients = exact.coefficients.copy()
    coefficients[2] *= strength
    exact = replace(exact, coefficients=coefficients)
    here = context(exact, 1e-7)
    found = fitted(exact.keep(np.delete(np.arange(N), 2)), here)
    assert found.rms > 1e-4
    whole = _pruned(here, with_missed_units(here, found, _floor(here, found.Y)))
    assert whole.forms.count == N
    assert whole.rms < 2e-7
    assert (
        angle(whole.forms.g[-1:] / np.linalg.norm(whole.forms.g[-1]), exact.g[2:3] / np.linalg.norm(exact.g[2])) < 1e-3
    )


def test_nothing_is_missing_where_only_noise_is_left():
    exact = forms(2, 0)
    here = context(exact, 1e-5)
    found = fitted(exact, here)
    assert with_missed_units(here, found, _floor(here, found.Y)) is found


def test_a_quadratic_form_is_read_off_values():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((D, D))
    X = in_ball(200, D, RADIUS, rng)
    values = np.einsum("md,de,me->m", X, A, X) + X @ A[0] + 3.0
    np.testing.assert_allclose(quadratic_form(X, values), 0.5 * (A + A.T), atol=1e-9)
    few = quadratic_form(X[:25], values[:25])  # fewer than coefficients: about a multiple of it
    assert np.vdot(few, A + A.T) > 0.5 * np.linalg.norm(few) * np.linalg.norm(A + A.T)


def test_units_of_a_fit_that_has_not_ended_are_not_missing():
    """They leave something of every output; a missing one stands out among the singular values."""
    exact, rng = forms(0, 1, outputs=12), np.random.default_rng(2)
    here = context(exact, 1e-7)
    off = replace(exact, g=exact.g + 1e-3 * rng.standard_normal(exact.g.shape))
    rough = GatedSolved.of(off, *here.samples.train)
    assert rough.cost > 1e4 * _floor(here, rough.Y)
    assert with_missed_units(here, rough, _floor(here, rough.Y)) is rough
    found = fitted(exact.keep(np.arange(1, N)), here)
    assert with_missed_units(here, found, _floor(here, found.Y)).forms.count > N - 1
