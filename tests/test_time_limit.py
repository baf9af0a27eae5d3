"""Runs whose time ends before their search or fit does: what was found by then is fitted and returned.

Time is counted in queries or in steps here, so that the tests do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import ridgescope as rs
from loop import make_state, two_features
from ridgescope import deadline
from ridgescope.deadline import OutOfTime, time_limit
from ridgescope.fit.activations import INDEX
from ridgescope.fit.context import FitGoal
from ridgescope.fit.fitter import Fitter
from ridgescope.fit.gated_form import GatedForms
from ridgescope.fit.samples import Samples
from ridgescope.geometry import in_ball, unit
from ridgescope.schedule import FIT_TIME, propose
from ridgescope.search import Proposal, numerical_span
from ridgescope.search.kinks import Kinks
from ridgescope.wide.closed_layer import ClosedLayer

D, UNITS, OUTPUTS = 8, 12, 16


class Clock:
    """Stands in for the module `time`; a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(deadline, "time", clock)
    return clock


@dataclass(frozen=True)
class TimedKinks(Kinks):
    """The search for kinks, in which each query takes a second."""

    clock: Clock | None = None

    def propose(self, ask, setting, *, queries, rng):
        def timed(Y):
            self.clock.now += len(Y)
            return ask(Y)

        return super().propose(timed, setting, queries=queries, rng=rng)


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_planes_of_a_search_that_is_cut_short_are_fitted(clock, kind):
    rng = np.random.default_rng(3)
    W, b = rng.standard_normal((UNITS, D)) / np.sqrt(D), 0.3 * rng.standard_normal(UNITS)
    C = rng.standard_normal((UNITS, OUTPUTS))

    def f(X):
        return (np.maximum(X.astype(kind) @ W.T.astype(kind) + b.astype(kind), 0) @ C.astype(kind)).astype(float)

    options = {"dim": D, "radius": 3.0, "tolerance": 1e-2, "method": TimedKinks(clock=clock), "rng": 0}
    whole = rs.extract(f, **options)
    assert whole.certificate.met
    wanted = whole.queries_by_stage["kinks"]

    def end(step):
        clock.now += 1e9 * (step.round > 0)  # one round shows it

    found = rs.extract(f, max_seconds=0.8 * wanted / (1.0 - FIT_TIME), progress=end, **options)
    assert found.stop is rs.StopReason.TIME
    assert found.queries_by_stage["kinks"] < 0.9 * wanted
    assert found.history[0].candidates < UNITS
    assert len(found.features) - len(rs.match(found.directions, W).false) >= UNITS // 3


@dataclass(frozen=True)
class Slow:
    """A proposer that never comes to an end of itself."""

    clock: Clock
    catches: bool
    name: str = "slow"

    def cost(self, setting):
        return 10**6

    def propose(self, ask, setting, *, queries, rng):
        try:
            while True:
                ask(np.zeros((1, setting.dim)))
                self.clock.now += 1.0
        except OutOfTime:
            if not self.catches:
                raise
        return Proposal(np.eye(setting.dim), np.ones(setting.dim))


@pytest.mark.parametrize(("catches", "count"), [(True, 2), (False, 0)])
def test_a_search_leaves_its_share_of_the_time_to_the_fit(clock, catches, count):
    state = make_state(two_features, 2)
    state.run_survey()
    state.fit_without_search()
    with time_limit(100.0):
        candidates = propose(state, (Slow(clock, catches), Slow(clock, catches, "never called")))
        assert clock.now == pytest.approx((1.0 - FIT_TIME) * 100.0, abs=1.5)
        deadline.check_time()  # does not raise: what is left is for the fit
    assert candidates.cut_short
    assert len(candidates.directions) == count
    assert "never called" not in state.oracle.planned


def test_a_search_without_a_limit_is_not_cut_short():
    state = make_state(two_features, 2)
    state.run_survey()
    state.fit_without_search()
    assert not propose(state, (rs.search.PROPOSERS["random"],)).cut_short


@pytest.mark.parametrize(("seconds", "enough"), [(70.0, False), (100.0, True)])
def test_eigenvectors_are_not_begun_where_they_would_end_too_late(clock, monkeypatch, seconds, enough):
    begun = []
    eigh = numerical_span.eigh

    class Slowly(np.ndarray):
        """Rows whose products take ten seconds."""

        def __matmul__(self, other):
            clock.now += 10.0
            return np.asarray(self) @ np.asarray(other)

    monkeypatch.setattr(numerical_span, "time", clock)
    monkeypatch.setattr(numerical_span, "eigh", lambda *a, **k: (begun.append(1), eigh(*a, **k))[1])
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((400, 5)) @ rng.standard_normal((5, 400))).view(Slowly)
    with time_limit(10.0 + seconds):
        if enough:
            assert numerical_span.span_of(rows, 1e-9).rank == 5
        else:
            with pytest.raises(OutOfTime):
                numerical_span.span_of(rows, 1e-9)
    assert bool(begun) is enough


def test_a_layer_whose_fit_is_cut_short_keeps_its_best_forms(clock, monkeypatch):
    rng = np.random.default_rng(5)
    W, C = rng.standard_normal((40, 20)) / np.sqrt(20), rng.standard_normal((40, 20))

    def f(X):
        return np.tanh(X @ W.T) @ C

    samples = Samples(20, 4.0)
    X = in_ball(60, 20, 4.0, rng)
    samples.add(X, f(X))
    fitter = Fitter(f, samples, FitGoal(1e-3, 1e-15), rng)
    near = unit(unit(W) + 0.05 * rng.standard_normal(W.shape) / np.sqrt(20))
    polished = []

    def cut(text, detail=False):
        polished.append("polished" in text)
        clock.now += 1.0 * ("polished" in text)

    object.__setattr__(fitter, "say", cut)
    with time_limit(1.5), pytest.raises(OutOfTime):
        ClosedLayer.of(fitter).extend(None, near, ())
    best = fitter.best
    assert sum(polished) == 2
    assert best is not None
    assert best.forms is not None
    assert set(best.forms.family) == {INDEX["tanh"]}
    assert best.rms < 1e-3 * np.std(f(X))


def test_gated_units_whose_fit_is_cut_short_are_kept(clock):
    rng, d, n = np.random.default_rng(6), 6, 4
    w, c = rng.standard_normal((n, d)), rng.standard_normal(n)
    length = np.sqrt(np.sum(w**2, axis=1) + c**2)
    parts = rng.standard_normal((n, d)), 0.3 * rng.standard_normal(n), w / length[:, None], c / length
    exact = GatedForms(3.0, *parts, np.zeros(n, np.intp), rng.standard_normal((n + 1 + d, 2)))
    samples, X = Samples(d, 3.0), in_ball(500, d, 3.0, rng)
    samples.add(X, exact.predict(X))
    fitter = Fitter(exact.predict, samples, FitGoal(1e-3, 1e-15), rng)
    rough = replace(exact, g=exact.g + 0.02 * rng.standard_normal((n, d)))
    steps = []

    def cut(text, detail=False):
        steps.append("step: RMS" in text)
        clock.now += 1.0 * steps[-1]

    object.__setattr__(fitter, "say", cut)
    with time_limit(1.5), pytest.raises(OutOfTime):
        fitter.refit_gated(rough)
    assert sum(steps) == 2
    best = fitter.best
    assert best is not None
    assert best.gates is not None
    before = np.sqrt(np.mean((rough.predict(X) - exact.predict(X)) ** 2))
    assert best.rms < 0.1 * before
