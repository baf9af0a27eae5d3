"""What the tolerance would take is read off the run: powers come back exactly, and no fall means no forecast."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.forecast import MOST, Stage, forecast


def stages(power=1.0, features=2.0, start=1000, count=4):
    """Stages whose error is queries^(−power) and whose features are error^(−features), up to factors."""
    queries = start * 2 ** np.arange(count)
    errors = (queries / start) ** -power
    return [Stage(int(q), round(10 * e**-features), float(e)) for q, e in zip(queries, errors, strict=True)]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_powers_come_back(power):
    run = stages(power, features=1.0)
    ahead = forecast(run, 0.1 * run[-1].error)
    assert ahead.queries == pytest.approx(run[-1].queries * 10 ** (1 / power), rel=0.05)
    assert ahead.features == pytest.approx(10 * run[-1].features, rel=0.1)
    assert ahead.growth == pytest.approx(10 ** (1 / power), rel=0.05)
    assert ahead.is_within_reach == (power >= 1.0)


def test_an_error_that_does_not_fall_has_no_forecast():
    flat = [Stage(1000, 0, 1.0), Stage(2000, 3, 0.5), Stage(4000, 5, 0.49)]
    assert forecast(flat, 0.01) is None
    assert forecast([Stage(1000, 0, 1.0)], 0.01) is None, "one stage has no rate"
    assert forecast([*flat, Stage(4100, 6, 0.3)], 0.01).queries > 4100, "the rate is that since 2,000 queries"
    assert forecast([], 0.01) is None
    assert forecast(stages(), 2.0) is None, "the target is reached"
    assert forecast([Stage(1000, 0, float("inf")), Stage(4000, 1, 0.1)], 0.01) is None


def test_absurd_numbers_are_cut():
    ahead = forecast([Stage(1000, 1, 1.0), Stage(10_000, 2, 0.85)], 1e-9)
    assert ahead.queries == MOST
    assert not ahead.is_within_reach


def test_features_that_do_not_grow_are_not_forecast():
    assert forecast([Stage(1000, 8, 1.0), Stage(4000, 8, 0.1)], 0.01).features == 0


def deep(X):
    rng = np.random.default_rng(3)
    first, second = rng.standard_normal((3, 8)), rng.standard_normal(8)
    return np.tanh(2.0 * np.tanh(X @ first) @ second)


def test_a_surrogate_has_a_forecast_and_a_certified_sum_has_none(tmp_path):
    found = rs.extract(deep, dim=3, approximate=True, max_queries=4000, rng=0)
    assert not found.certificate.met
    assert found.forecast.queries > found.queries
    assert found.forecast.sentence in found.diagnosis
    found.save(tmp_path / "run")
    assert rs.load(tmp_path / "run").forecast == found.forecast
    plain = rs.extract(lambda X: np.tanh(X[:, 0]) + np.abs(X[:, 1]), dim=2, rng=0)
    assert plain.certificate.met
    assert plain.forecast is None
