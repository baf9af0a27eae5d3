"""What the fit itself says about structure: rounding is all that an exact sum leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.fit_evidence import FitEvidence, assess_fit
from ridgescope.structure import Kind, Structure

SUM = FitEvidence(left=1e-6, rounding=1e-6, largest=2e-5, weakest=1e-2)
UNKNOWN = Structure("unknown", Kind.UNDETERMINED, {"rank": 3.0}, "Not known.")


@pytest.mark.parametrize(
    ("change", "shows"),
    [
        ({}, True),
        ({"left": 1e-5}, False),  # more than rounding: a feature is missing, or this is an approximation
        ({"weakest": 2.5e-5}, False),  # as weak as the last feature of an approximation, or a false one
        ({"largest": 2e-2}, False),  # fresh queries find more than the points of the fit
    ],
)
def test_only_features_far_above_what_rounding_leaves_show_a_sum(change, shows):
    fit = replace(SUM, **change)
    assert fit.shows_sum is shows
    assert assess_fit(UNKNOWN, fit, features=3).verdict == ("exact" if shows else "unknown")


def test_what_derivatives_or_jumps_say_stands():
    for told in (replace(UNKNOWN, verdict="approximate"), replace(UNKNOWN, kind=Kind.JUMPS)):
        assert assess_fit(told, SUM, features=3) is told
    assert assess_fit(UNKNOWN, None, features=3) is UNKNOWN
    told = assess_fit(UNKNOWN, SUM, features=3)
    assert (told.kind, told.evidence["rank"], told.evidence["weakest"]) == (Kind.SUM, 3.0, 1e-2)


def test_kinks_in_single_precision_are_an_exact_sum_of_no_more_features():
    """Two ReLUs among 64 inputs: planes that rounding puts off would leave something for a third direction."""
    rng = np.random.default_rng(1)
    W, b = rng.standard_normal((2, 64)), np.array([0.02, -0.05])

    def f(X):
        hidden = np.maximum(X.astype(np.float32) @ W.T.astype(np.float32) + b.astype(np.float32), 0.0)
        return (hidden @ np.array([1.0, -0.7], dtype=np.float32)).astype(np.float32)

    found = rs.extract(f, dim=64, rng=4)
    assert len(found.features) == 2
    assert rs.match(found.directions, W).angles.max() < 1e-5
    assert found.structure.verdict == "exact"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_approximation_in_closed_forms_is_no_sum(dtype):
    found = rs.extract(
        lambda X: np.sin(X[:, 0] * X[:, 1] / 9.0).astype(dtype), dim=2, approximate=True, rng=0, max_seconds=30
    )
    assert found.structure.verdict != "exact"
