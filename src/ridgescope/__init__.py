"""ridgescope: which directions does a black box listen to, and how does it respond to each?

Names are imported when first used, so that `import ridgescope` and the command line start at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .__about__ import __version__
from .lazy import load_late

if TYPE_CHECKING:
    from . import oracle, paper, targets
    from .bilinear import BilinearNetwork
    from .certificate import Certificate, DataCheck
    from .errors import (
        BadAnswer,
        BudgetExhausted,
        FileProblem,
        InvalidInput,
        LedgerProblem,
        OracleFailed,
        ReachExceeded,
        RidgescopeError,
    )
    from .extract import extract
    from .feature import ClosedForm, Feature, Round, Shape
    from .gated_network import GatedNetwork
    from .match import GatedMatch, Match, match, match_gated
    from .network import Network
    from .regressor import RidgeSumRegressor as RidgeSumRegressor
    from .response import Response
    from .result import Extraction
    from .stability import Stability, stability
    from .stop import Interrupted, StopReason
    from .storage import load
    from .verify import verify

_HOME = {
    "extract": "extract",
    "load": "storage",
    "match": "match",
    "match_gated": "match",
    "GatedMatch": "match",
    "BilinearNetwork": "bilinear",
    "GatedNetwork": "gated_network",
    "stability": "stability",
    "Stability": "stability",
    "verify": "verify",
    "Match": "match",
    "Response": "response",
    "RidgeSumRegressor": "regressor",  # not in __all__: it needs scikit-learn
    "Certificate": "certificate",
    "ClosedForm": "feature",
    "DataCheck": "certificate",
    "Network": "network",
    "Extraction": "result",
    "Feature": "feature",
    "Interrupted": "stop",
    "Round": "feature",
    "Shape": "feature",
    "StopReason": "stop",
    "BadAnswer": "errors",
    "BudgetExhausted": "errors",
    "FileProblem": "errors",
    "InvalidInput": "errors",
    "LedgerProblem": "errors",
    "OracleFailed": "errors",
    "ReachExceeded": "errors",
    "RidgescopeError": "errors",
}
_SUBPACKAGES = ("oracle", "paper", "targets")

__all__ = [
    "BadAnswer",
    "BilinearNetwork",
    "BudgetExhausted",
    "Certificate",
    "ClosedForm",
    "DataCheck",
    "Extraction",
    "Feature",
    "FileProblem",
    "GatedMatch",
    "GatedNetwork",
    "Interrupted",
    "InvalidInput",
    "LedgerProblem",
    "Match",
    "Network",
    "OracleFailed",
    "ReachExceeded",
    "Response",
    "RidgescopeError",
    "Round",
    "Shape",
    "Stability",
    "StopReason",
    "__version__",
    "extract",
    "load",
    "match",
    "match_gated",
    "oracle",
    "paper",
    "stability",
    "targets",
    "verify",
]

load_late(__name__, _HOME, _SUBPACKAGES)
