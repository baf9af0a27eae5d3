"""The paper as written: every algorithm, lemma and reduction, in its letters.

docs/theory.md maps each statement to its function here and to its test.
"""

from .directions import Directions, find_directions
from .end_to_end import solve
from .identifiability import Identified, identify
from .learn import learn, learn_bounded
from .learned import Learned
from .lemmas import separating
from .majority import Vote, vote
from .mass import MassEstimate, est_weight
from .plan import Plan, plan, repetitions
from .response import Derivative, FourierResponse, ValueEstimate, est_value, recover_response
from .survey import Settings, Subspace, find_subspace, survey

__all__ = [
    "Derivative",
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
