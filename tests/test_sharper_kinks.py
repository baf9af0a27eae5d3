"""Kinks fitted to all answers so far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgescope.geometry import in_ball, random_directions, unit
from ridgescope.search import Proposal
from ridgescope.sharper_kinks import sharper_kinks

RADIUS = 3.0


def proposed(off, places=1):
    """Kinks of a function, `off` by so many radians, with points and answers."""
    rng = np.random.default_rng(0)
    V, t, c = random_directions(4, 6, rng), np.array([0.5, -1.0, 0.0, 1.5]), rng.standard_normal((4, 2))
    X = in_ball(600, 6, RADIUS, rng)
    rough = unit(V + off * rng.standard_normal(V.shape))
    kinks = tuple(np.repeat(place, places) for place in t)
    proposal = Proposal(rough, np.ones(4), kinks=kinks, explains=lambda X: np.abs(X @ rough.T - t) @ c)
    return V, X, np.abs(X @ V.T - t) @ c + X[:, :2], proposal


def test_all_answers_together_show_planes_to_the_last_digits():
    V, X, Y, proposal = proposed(3e-3)
    better = sharper_kinks(proposal, X, Y, RADIUS, 1e-3)
    assert np.abs(proposal.directions - V).max() > 1e-3
    assert np.abs(better.directions - V).max() < 1e-9
    assert np.concatenate(better.kinks) == pytest.approx([0.5, -1.0, 0.0, 1.5], abs=1e-9)
    left = Y - better.explains(X)
    flat = np.column_stack([np.ones(len(X)), X])
    assert np.abs(left - flat @ np.linalg.lstsq(flat, left, rcond=None)[0]).max() < 1e-8


def test_a_proposal_that_does_not_explain_f_stays_as_it_is():
    _, X, Y, proposal = proposed(3e-3)
    assert sharper_kinks(proposal, X, Y + np.cos(X[:, :1]), RADIUS, 1e-3) is proposal
    assert sharper_kinks(proposal, X[:20], Y[:20], RADIUS, 1e-3) is proposal  # too few answers
    assert sharper_kinks(proposed(3e-3, places=2)[3], X, Y, RADIUS, 1e-3).directions is not None
    twice = proposed(3e-3, places=2)[3]
    assert sharper_kinks(twice, X, Y, RADIUS, 1e-3) is twice
    unplaced = replace(proposal, kinks=())
    assert sharper_kinks(unplaced, X, Y, RADIUS, 1e-3) is unplaced
