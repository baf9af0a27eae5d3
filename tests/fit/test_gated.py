"""Gated units: derivatives, projections, splines that stand for closed forms, and error bars."""

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.fit.gated_bars import gated_error_bars
from ridgescope.fit.gated_form import GATE_INDEX, GATES, GatedForms
from ridgescope.fit.gated_solve import Change, GatedSolved, GatedStep, minimise
from ridgescope.fit.model import Model
from ridgescope.geometry import angle, in_ball

RADIUS = 3.0


def forms(d: int = 4, n: int = 3, p: int = 2, family: str = "silu", seed: int = 0, plain: int = 0) -> GatedForms:
    rng = np.random.default_rng(seed)
    w, c = rng.standard_normal((n, d)), rng.standard_normal(n)
    w[:plain], c[:plain] = 0.0, 1.0
    length = np.sqrt(np.sum(w**2, axis=1) + c**2)
    parts = rng.standard_normal((n, d)), 0.3 * rng.standard_normal(n), w / length[:, None], c / length
    return GatedForms(RADIUS, *parts, np.full(n, GATE_INDEX[family]), rng.standard_normal((n + 1 + d, p)))


@pytest.mark.parametrize("name", [family.name for family in GATES])
def test_slopes_of_gates_are_their_derivatives(name):
    atom, y = GATES[GATE_INDEX[name]].atom, np.array([-3.1, -0.7, 0.2, 1.9])
    assert atom(y)[1] == pytest.approx((atom(y + 1e-6)[0] - atom(y - 1e-6)[0]) / 2e-6, abs=1e-8)


@pytest.mark.parametrize(("family", "kinks"), [("silu", 0), ("relu", 3)])
def test_splines_that_stand_for_closed_forms_have_their_values(family, kinks):
    """The slope of a ReLU unit jumps; a spline of 512 intervals without a kink would be off by some 1e-3."""
    exact, X = forms(plain=1, family=family), in_ball(500, 4, RADIUS, np.random.default_rng(1))
    model = exact.model(1e-7)
    assert np.abs(model.predict(X) - exact.predict(X)).max() < (5e-5 if kinks else 1e-5)
    assert sum(len(t) for t in model.kinks) == kinks
    assert list(model.gated) == [False, True, True]
    assert np.abs(np.einsum("nd,nd->n", model.carriers, model.directions)).max() < 1e-12
    for i in (1, 2):
        assert np.abs(model.gain.term(i, np.zeros(1))).max() < 1e-12


def test_more_plain_features_join_the_plain_part_of_a_gated_model():
    """Fits of plain features know no second terms: some counted gates that were not there."""
    model = forms(plain=1).model(1e-7)
    joined = model.join(np.eye(4)[:2], 16)
    assert type(joined) is Model
    assert joined.count == model.count + 2
    np.testing.assert_array_equal(joined.coefficients[: model.offsets[-1]], model.coefficients[: model.offsets[-1]])
    assert joined.keep(np.array([0, 4])).count == 2


def test_image_is_the_derivative_and_adjoint_its_transpose():
    exact, rng = forms(plain=1), np.random.default_rng(2)
    X = in_ball(60, 4, RADIUS, rng)
    solved = GatedSolved.of(exact, X, exact.predict(X) + 0.1 * rng.standard_normal((60, 2)))
    step = GatedStep(solved)
    change = step.tangent(Change(rng.standard_normal((3, 10))))

    def moved(h: float) -> np.ndarray:
        rows, f = h * change.rows, solved.forms
        parts = f.g + rows[:, 1:5], f.b + rows[:, 0], f.w + rows[:, 6:], f.c + rows[:, 5]
        return GatedForms(RADIUS, *parts, f.family, f.coefficients).predict(X)

    assert step.image(change) == pytest.approx((moved(1e-6) - moved(-1e-6)) / 2e-6, rel=1e-6, abs=1e-6)
    values = rng.standard_normal((60, 2))
    assert np.vdot(step.image(change), values) == pytest.approx(change.dot(step.adjoint(values)), rel=1e-10)
    normal = step.matrix @ change.rows.ravel()
    assert normal == pytest.approx(step.adjoint(solved.project(step.image(change))).rows.ravel(), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("dense", [True, False])
def test_steps_reach_the_minimum(dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("ridgescope.fit.gated_solve._MAX_DENSE", 0)
    exact, rng = forms(seed=3), np.random.default_rng(3)
    X = in_ball(400, 4, RADIUS, rng)
    near = GatedForms(
        RADIUS,
        exact.g + 0.02 * rng.standard_normal(exact.g.shape),
        exact.b,
        exact.w,
        exact.c,
        exact.family,
        exact.coefficients,
    )
    done = minimise(GatedSolved.of(near, X, exact.predict(X)), steps=40)
    assert done.rms < 1e-9
    assert (
        angle(done.forms.g / np.linalg.norm(done.forms.g, axis=1, keepdims=True), rs.geometry.unit(exact.g)).max()
        < 1e-8
    )


def test_bars_of_gates_and_carriers_cover_their_errors():
    exact, worst = forms(seed=5, n=2, p=1), []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = in_ball(600, 4, RADIUS, rng)
        Y = exact.predict(X) + 1e-2 * rng.standard_normal((600, 1))
        found = minimise(GatedSolved.of(exact, X, Y), steps=10).forms
        bars = gated_error_bars(found, X, Y, 1e-2)
        u_found, u_true = (np.stack([f.split(i)[1] for i in range(2)]) for f in (found, exact))
        worst.append(angle(rs.geometry.unit(found.g), rs.geometry.unit(exact.g)) / bars.angle)
        worst.append(angle(u_found, u_true) / bars.carrier)
    share = np.mean(np.array(worst) <= 2.0)
    assert 0.85 <= share <= 0.999
    assert np.median(worst) > 0.3  # bars that are far too long would cover everything


def test_bars_by_following_errors_agree_with_those_of_the_whole_matrix(monkeypatch):
    exact, rng = forms(d=12, n=6, p=2, seed=5, plain=1), np.random.default_rng(0)
    X = in_ball(1500, 12, RADIUS, rng)
    Y = exact.predict(X) + 1e-2 * rng.standard_normal((1500, 2))
    found = minimise(GatedSolved.of(exact, X, Y), steps=10).forms
    whole = gated_error_bars(found, X, Y, 1e-2)
    monkeypatch.setattr("ridgescope.fit.gated_solve._MAX_DENSE", 0)
    followed = gated_error_bars(found, X, Y, 1e-2)
    assert np.abs(np.log(followed.angle / whole.angle)).max() < np.log(1.6)
    assert np.abs(np.log(followed.carrier[1:] / whole.carrier[1:])).max() < np.log(1.6)
    assert followed.carrier[0] == 0.0
    assert all(np.isfinite(band).all() for band in (*followed.band, *followed.gain_band))


def test_iterative_steps_are_those_of_the_whole_matrix(monkeypatch):
    exact, rng = forms(d=6, n=5, p=3, seed=2, plain=1), np.random.default_rng(1)
    X = in_ball(400, 6, RADIUS, rng)
    solved = GatedSolved.of(exact, X, exact.predict(X) + 0.1 * rng.standard_normal((400, 3)))
    dense = GatedStep(solved)
    monkeypatch.setattr("ridgescope.fit.gated_solve._MAX_DENSE", 0)
    monkeypatch.setattr("ridgescope.fit.gated_solve._CG_TOLERANCE", 1e-4)
    iterative = GatedStep(solved)
    change = dense.tangent(Change(rng.standard_normal(dense.right.rows.shape)))
    whole = (dense.matrix @ change.rows.ravel()).reshape(change.rows.shape)
    assert iterative.normal(change).rows == pytest.approx(whole, rel=1e-3, abs=1e-4 * np.abs(whole).max())
    step = iterative.solution(iterative.right, 0.0)
    assert iterative.normal(step).rows == pytest.approx(dense.right.rows, abs=2e-3 * np.abs(dense.right.rows).max())
