"""Why not, and what to try: a sentence with numbers for whoever reads a result that is not certified."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .feature import Feature
from .fit.context import Evaluation
from .result import Certificate
from .survey import Survey


def diagnose(
    known: Survey, judged: Evaluation, certificate: Certificate, features: Sequence[Feature], stopped: str
) -> str:
    """Empty when the tolerance is met and the directions are the only ones."""
    if certificate.met:
        return _many_choices(features)
    if not np.isfinite(judged.rms):
        return "Too few answers to say anything about f: raise max_queries."
    left = judged.rms / known.scale if known.scale > 0 else 0.0
    explained = max(0.0, 1.0 - left**2)
    rays = f"{len(features)} ray{'s' * (len(features) != 1)}"
    sentences = [
        f"An affine part and {rays} explain {100 * explained:.1f} % of f's variance; "
        f"what is left has an RMS of {left:.2g} of f's standard deviation."
    ]
    if known.probabilities:
        sentences.append(
            "Every answer is a row of probabilities: a softmax is not a sum of features, its log-odds are. "
            'Try rs.oracle.Oracle(f, output="log_odds").'
        )
    elif "max_queries" in stopped:
        sentences.append(
            "The budget ended the search before it was done: raise max_queries. Should that not help, f may be no sum "
            "of features on this ball; try a smaller radius."
        )
    elif known.noise > 0.3 * judged.rms:
        sentences.append("That is the noise of the answers: ask for a looser tolerance, or average repeated queries.")
    elif explained < 0.9:
        sentences.append(
            "f does not look like a sum of one-dimensional responses on this ball. Try a smaller radius, an inner "
            "layer of the model, or its logits."
        )
    else:
        sentences.append(
            "f is close to a sum of features. Try a larger max_queries, a smaller radius, or a looser tolerance."
        )
    return " ".join(sentences)


def _many_choices(features: Sequence[Feature]) -> str:
    polynomial = sum(1 for f in features if f.shape is not None and f.shape.name == "polynomial")
    if not polynomial:
        return ""
    return (
        f"{polynomial} of {len(features)} responses are polynomials: their directions are one choice among many that "
        "give the same function."
    )
