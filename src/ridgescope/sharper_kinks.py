"""Kinks fitted to all answers so far, before they are said to leave something of f.

A search measures each plane v·x = t from few answers, which rounding puts off by 1e-3 rad in single precision. Kinks
with such planes then leave a residual that bends beside every true one, and whatever looks at it next proposes
directions that are none. All answers of the run together show planes to the last digits: with one kink a direction, f
is to be Σ c_i |v_i·x − t_i| and an affine function, and Gauss–Newton steps for v, t and c need no query.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .fit.activations import INDEX
from .fit.closed_form import ClosedForms
from .fit.closed_solve import Data, Solved
from .fit.closed_steps import minimise
from .geometry import Floats
from .search import Ask, Proposal

MOST_UNKNOWNS = 2000
"""Entries of planes up to which a step takes a fraction of a second. Wider layers have a refinement of their own."""
ANSWERS_PER_UNKNOWN = 2.0
"""Answers for each unknown, without which planes would fit errors."""
STEPS, LEAST_GAIN = 12, 1e-2
"""Steps at most, and the share of the cost that one must gain for another: near the solution each gains most of it."""


def sharper_kinks(proposal: Proposal, X: Floats, Y: Floats, radius: float, most: float) -> Proposal:
    """Return the proposal with its planes fitted to the answers Y at X, if these leave at most the error `most` of f.

    As it was, where a direction has not exactly one kink, or answers are too few.
    """
    n, d = proposal.directions.shape
    unknowns = n * (d + 1 + Y.shape[1]) + (d + 1) * Y.shape[1]
    single = proposal.explains is not None and [len(t) for t in proposal.kinks] == [1] * n
    if not (n and single) or n * (d + 1) > MOST_UNKNOWNS or Y.size < ANSWERS_PER_UNKNOWN * unknowns:
        return proposal
    blank = ClosedForms.blank(proposal.directions, radius, 1, Y.shape[1])
    planes = replace(blank, family=np.full(n, INDEX["relu"], np.intp), b=-np.concatenate(list(proposal.kinks)) / radius)
    found = minimise(Solved.of(planes, Data(X, Y)), steps=STEPS, min_gain=LEAST_GAIN, free=True)
    if float(np.abs(found.residual).max()) > most:
        return proposal
    forms = found.forms
    return replace(
        proposal,
        directions=forms.directions,
        kinks=tuple(np.array([t]) for t in -forms.b / forms.kappa * radius),
        explains=_bends(forms),
    )


def _bends(forms: ClosedForms) -> Ask:
    return lambda X: forms.atoms(X)[0] @ forms.outputs
