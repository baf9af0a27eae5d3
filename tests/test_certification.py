"""When a run is certified, and what an attempt that fails brings."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ridgescope as rs
from loop import make_state, two_features
from ridgescope.certification import ATTEMPTS, Certifier
from ridgescope.geometry import random_directions
from ridgescope.result import Round
from ridgescope.search import Candidates
from ridgescope.state import State


def fitted(function=two_features, dim=2, directions=None, **options):
    state = make_state(function, dim, **options)
    state.run_survey()
    state.fit_without_search()
    if directions is not None:
        state.fit(Candidates(directions @ state.survey.basis.T, "test"))
    return state, Certifier(state, 0.99)


def test_a_good_model_is_certified():
    state, certifier = fitted(directions=np.eye(2))
    outcome = certifier.try_certify()
    assert outcome.certified
    assert outcome.certificate is certifier.certificate
    assert outcome.certificate.met
    assert outcome.certificate.samples == len(certifier.checks_along(np.eye(2)))
    assert state.oracle.queries_by_stage["certify"] >= outcome.certificate.samples


def test_a_bad_fit_costs_no_certificate():
    state, certifier = fitted()
    outcome = certifier.try_certify()
    assert not outcome.certified
    assert outcome.certificate is None
    assert "certify" not in state.oracle.queries_by_stage


def test_a_missing_dimension_joins_the_subspace():
    v = np.eye(12)

    def function(X):
        return np.tanh(2.0 * (X @ v[0])) + np.exp(-((X @ v[1]) ** 2))

    state, _ = fitted(function, 12)
    assert state.inner_dim == 2
    state.history.append(Round(1, "test", 0, 0, 0, 1.0))  # directions are looked for only after a search has failed
    state._work_in(replace(state.survey, basis=v[:1]))
    state.fit_affine()
    outcome = Certifier(state, 0.99).try_certify()
    assert not outcome.certified
    assert outcome.new_dimensions == 1
    assert state.inner_dim == 2
    assert abs(state.survey.basis[1] @ v[1]) > 1 - 1e-6


def test_a_round_discards_the_certificate():
    _, certifier = fitted(directions=np.eye(2))
    certifier.try_certify()
    certifier.discard()
    assert certifier.certificate is None
    certifier.conclude()
    assert certifier.certificate is not None
    assert certifier.certificate.met


def test_a_certificate_that_stands_is_not_asked_again():
    state, certifier = fitted(directions=np.eye(2))
    certifier.try_certify()
    before = state.oracle.queries
    certifier.conclude()
    assert state.oracle.queries == before


def test_concluding_without_queries_says_that_nothing_is_known():
    state, certifier = fitted(directions=np.eye(2))
    before = state.oracle.queries
    certifier.conclude(queries=0)
    assert state.oracle.queries == before
    assert certifier.certificate.samples == 0
    assert not certifier.certificate.met


def test_closed_forms_with_long_error_bars_are_refitted_once(monkeypatch):
    state, certifier = fitted(directions=np.eye(2))
    assert state.best.forms is not None
    state.evaluation = replace(state.best, directions_as_proposed=True)
    monkeypatch.setattr(State, "error_bars", lambda self: SimpleNamespace(angle=np.array([1.0, 1e-9])))
    assert certifier._refit_for_directions()
    assert not certifier._refit_for_directions()
    state.evaluation = replace(state.best, forms=None)  # splines along directions as proposed
    assert not Certifier(state, 0.99)._refit_for_directions()


def test_attempts_are_bounded():
    """An answer that depends on when it was asked can never be certified."""
    calls = 0

    def drifting(X):
        nonlocal calls
        calls += 1
        return two_features(X) + (0.05 * (calls % 7) if started else 0.0)

    started = False
    state, certifier = fitted(drifting, directions=np.eye(2))
    started = True
    outcome = certifier.try_certify()
    assert not outcome.certified
    assert state.oracle.queries_by_stage["certify"] <= ATTEMPTS * 1500


@pytest.mark.parametrize("seed", [1, 2, 18])
def test_noise_leaves_queries_for_the_search(seed):
    """An affine model is refuted once: neither more points nor another certificate would change that."""
    v, w = random_directions(2, 4, np.random.default_rng([seed, 9]))
    noise = np.random.default_rng([seed, 10])

    def noisy(X):
        return np.tanh(2.0 * X @ v) + 0.7 * np.abs(X @ w - 0.5) + noise.standard_normal(len(X))

    found = rs.extract(noisy, dim=4, max_queries=8000, rng=seed)
    assert found.queries_by_stage["certify"] < 0.4 * found.queries
    assert found.queries > 0.9 * 8000
    assert not found.certificate.met
