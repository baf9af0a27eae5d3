"""The paper as written: every algorithm, lemma and reduction, in its letters.

docs/theory.md maps each statement to its function here and to its test.
"""

from ridgescope.paper.directions import Directions, Vote, find_directions, repetitions, separating, vote
from ridgescope.paper.learn import Identified, Learned, identify, learn, learn_bounded, solve
from ridgescope.paper.mass import MassEstimate, est_weight
from ridgescope.paper.plan import Plan, plan
from ridgescope.paper.reduce import Subspace, find_subspace
from ridgescope.paper.response import FourierResponse, recover_response
from ridgescope.paper.survey import Settings, survey
from ridgescope.paper.value import ValueEstimate, est_value

__all__ = [
    "Directions",
    "FourierResponse",
    "Identified",
    "Learned",
    "MassEstimate",
    "Plan",
    "Settings",
    "Subspace",
    "ValueEstimate",
    "Vote",
    "est_value",
    "est_weight",
    "find_directions",
    "find_subspace",
    "identify",
    "learn",
    "learn_bounded",
    "plan",
    "recover_response",
    "repetitions",
    "separating",
    "solve",
    "survey",
    "vote",
]
