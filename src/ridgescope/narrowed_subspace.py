"""The subspace where the directions of all features are known before any of them is fitted.

The survey finds the subspace by gradients, in which saturated responses do not show: it may be far too large, or all of
R^d. A search that has found every direction, of a function that is flat across them, shows it too. Any subspace will do
for the fit as long as nothing outside of it is asked: inside, f is a sum of ridge functions along the projected
directions, whatever the errors of the subspace are. `subspace_refinement` finds these once the responses are known.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .fit.samples import Samples
from .geometry import Floats, unit
from .search.base import Candidates
from .state import SEARCH_POINT_WEIGHT, State
from .survey import Recorder, narrowed_survey

DEPENDENT = 1e-3
"""Singular value of the unit rows, in radians, below which a dimension only holds errors of their directions."""


def narrow_subspace(state: State, candidates: Candidates) -> Candidates:
    """Go on in the span of candidates that span all that f depends on, if that is smaller; return them there.

    A dimension too many is more than a loss of time: nothing shows how it lies, so that the subspace cannot be refined.
    """
    found = candidates.directions
    if not candidates.spanning or state.model.count or not len(found):
        return candidates
    rows = _span(found)
    if len(rows) == state.inner_dim:
        return candidates
    recorder, rng = Recorder(state.oracle), state.streams("narrow", len(rows))
    state.survey = survey = narrowed_survey(recorder, state.survey, rows @ state.survey.basis, state.radius, rng)
    state.samples = Samples(state.inner_dim, state.radius)
    state.samples.add(survey.inside(survey.points), survey.values, weight=SEARCH_POINT_WEIGHT)
    state.fit_affine()
    state.say(f"all features are along {len(rows)} of {state.oracle.dim} dimensions")
    return replace(candidates, directions=unit(found @ rows.T))


def _span(directions: Floats) -> Floats:
    """Return orthonormal rows (k, d) that span the directions (n, d)."""
    sizes, rows = np.linalg.svd(directions, full_matrices=False)[1:]
    return np.asarray(rows[sizes > DEPENDENT])
