"""A small network trained on the spot, for `demo --model digits`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from ..geometry import Floats, unit
from ..oracle import Oracle

HIDDEN = 16


@dataclass(frozen=True, eq=False)
class Trained:
    """What is known of a network with one hidden layer: the truth to compare with."""

    directions: Floats
    """(hidden, pixels) unit rows."""
    kinds: tuple[str, ...]


def trained(seed: int) -> tuple[Any, Oracle, dict[str, Any]]:
    """The truth, an oracle that tells nothing but class probabilities, and the options for `extract`."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
    except ModuleNotFoundError:
        raise typer.BadParameter("--model digits needs scikit-learn: pip install 'ridgescope[sklearn]'") from None
    import warnings

    X, labels = load_digits(return_X_y=True)
    X = X / 16.0
    network = MLPClassifier((HIDDEN,), activation="tanh", alpha=1e-2, max_iter=60, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # sixty passes are enough for a demonstration
        network.fit(X, labels)
    truth = Trained(unit(network.coefs_[0].T), ("tanh",) * HIDDEN)
    oracle = Oracle(network.predict_proba, dim=X.shape[1], center=X.mean(axis=0), output="log_odds")
    return truth, oracle, {"radius": 1.0}
