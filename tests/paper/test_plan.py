"""The plan: every inequality holds, none could be had for less, and harder problems cost more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgescope.errors import InvalidInput
from ridgescope.paper.inequalities import lg_exp_minus, lg_sum, response_rows, search_rows
from ridgescope.paper.plan import plan

EASY = {
    "dim": 3,
    "features": 4,
    "radius": 3.0,
    "lipschitz": 1.5,
    "separation": 0.1,
    "accuracy": 0.05,
    "failure": 0.01,
}


@given(
    st.integers(3, 50),
    st.integers(1, 200),
    st.floats(1, 100),
    st.floats(0.1, 100),
    st.floats(1e-3, 1),
    st.floats(1e-6, 0.9),
    st.floats(1e-9, 0.5),
    st.booleans(),
)
def test_every_inequality_holds(
    d: int, n: int, R: float, L: float, gamma: float, eps: float, delta: float, bounded: bool
) -> None:
    p = plan(d, n, R, L, gamma, eps, delta, bounded=bounded)
    assert p.holds
    assert all(row.holds for row in p.inequalities)


def test_parameters_are_the_smallest() -> None:
    """A hundredth of a decade less in either window and some inequality fails."""
    p = plan(**EASY)
    assert all(r.holds for r in response_rows(p.problem, p.lg_ell2, p.lg_Delta))
    assert not all(r.holds for r in response_rows(p.problem, p.lg_ell2 - 0.01, p.lg_Delta))
    assert not all(r.holds for r in response_rows(p.problem, p.lg_ell2, p.lg_Delta * 0.999))
    assert not all(r.holds for r in search_rows(p.problem, p.lg_ell1 * 0.999, p.lg_Delta, p.lg_eps))


@pytest.mark.parametrize(
    ("name", "harder"),
    [
        ("dim", 10),
        ("features", 40),
        ("radius", 30.0),
        ("lipschitz", 15.0),
        ("separation", 1e-3),
        ("failure", 1e-12),
    ],
)
def test_harder_costs_more(name: str, harder: float) -> None:
    assert plan(**{**EASY, name: harder}).lg_queries > plan(**EASY).lg_queries


def test_batching_and_boundedness() -> None:
    bounded, unbounded = plan(**EASY), plan(**EASY, bounded=False)
    assert bounded.lg_queries_batched < bounded.lg_queries < unbounded.lg_queries
    assert bounded.lg_eta is None
    assert unbounded.lg_eta is not None
    assert unbounded.problem == bounded.problem


def test_table_shows_every_row() -> None:
    text = str(plan(**EASY))
    assert text.count("✓") == len(plan(**EASY).inequalities)
    assert "✗" not in text


def test_logarithms() -> None:
    assert lg_sum(0.0, 0.0) == pytest.approx(0.30103, rel=1e-5)
    assert lg_sum(-5000.0, 5000.0) == 5000.0
    assert lg_exp_minus(0.0) == pytest.approx(-0.4342944819)


@pytest.mark.parametrize(("name", "value"), [("dim", 2), ("separation", 0.0), ("accuracy", 1.5), ("radius", 0.5)])
def test_senseless_problems_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidInput):
        plan(**{**EASY, name: value})
