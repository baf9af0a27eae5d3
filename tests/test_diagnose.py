"""Whoever reads a result that is not certified is told why, with numbers, and what to try."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from made import CERTIFICATE, extraction
from ridgescope.diagnose import diagnose
from ridgescope.fit.context import Evaluation
from ridgescope.survey import Survey

FEATURES = extraction(features=3).features
NOT_MET = replace(CERTIFICATE, met=False)
STUCK = "Stopped: three rounds in a row brought no better fit."
SPENT = "Budget exhausted: 10 of max_queries=10 are spent."


def said(rms, *, scale=2.0, noise=1e-9, probabilities=False, certificate=NOT_MET, features=FEATURES, stopped=STUCK):
    known = Survey(scale, noise, 1.0, True, np.eye(3), np.empty((0, 3)), np.empty((0, 1)), probabilities=probabilities)
    return diagnose(known, Evaluation(None, rms, 3 * rms, False), certificate, features, stopped)


def test_a_met_tolerance_needs_no_words():
    assert said(0.001, certificate=CERTIFICATE) == ""


def test_polynomial_responses_are_one_choice_among_many():
    cubic = rs.Shape("polynomial", {}, "z³", 1.0)
    features = (replace(FEATURES[0], shape=cubic), *FEATURES[1:])
    words = said(0.001, certificate=CERTIFICATE, features=features)
    assert "1 of 3 responses" in words
    assert "many" in words


@pytest.mark.parametrize(("rms", "percent", "left"), [(0.2, "99.0 %", "0.1"), (1.0, "75.0 %", "0.5")])
def test_the_numbers_are_the_explained_variance_and_the_rest(rms, percent, left):
    words = said(rms)
    assert percent in words
    assert f"RMS of {left} of" in words
    assert "3 rays" in words


def test_the_explained_share_is_never_negative():
    assert "-" not in re.findall(r"(\S+) %", said(10.0))[0]
    assert "0.0 %" in said(10.0)


def test_each_cause_has_its_remedy():
    assert "log_odds" in said(1.0, probabilities=True)
    assert "noise" in said(0.1, noise=0.1)
    assert "does not look like a sum" in said(1.5)
    assert "max_queries" in said(0.1)
    assert "raise max_queries" in said(1.5, stopped=SPENT)
    assert "log_odds" in said(1.0, probabilities=True, stopped=SPENT)


def test_nothing_known_still_makes_a_sentence():
    words = said(float("inf"), scale=0.0, features=())
    assert "nan" not in words
    assert words.endswith(".")


def test_no_budget_at_all_makes_a_sentence_without_nan():
    words = said(float("inf"))
    assert "nan" not in words
    assert words.endswith(".")
