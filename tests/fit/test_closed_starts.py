"""What held-out points say of closed forms."""

from types import SimpleNamespace

import numpy as np

from ridgescope.fit.closed_starts import Trial

POINTS = 200


def fit_with(errors):
    """Return a stand-in for a fit that leaves these errors on the held-out points."""
    return SimpleNamespace(forms=SimpleNamespace(predict=lambda X: -errors[:, None]))


def test_a_fit_is_clearly_better_if_most_points_say_so():
    rng = np.random.default_rng(0)
    held_out = np.zeros((POINTS, 2)), np.zeros((POINTS, 1))
    trial = Trial(SimpleNamespace(samples=SimpleNamespace(held_out=held_out)), None)
    errors = rng.standard_normal(POINTS)
    assert trial.is_clearly_better(fit_with(0.8 * errors), fit_with(errors))
    assert not trial.is_clearly_better(fit_with(errors), fit_with(0.8 * errors))
    assert not trial.is_clearly_better(fit_with(rng.standard_normal(POINTS)), fit_with(errors))
    one = errors.copy()
    one[0] = 20.0  # all of the gain is at a single point
    assert not trial.is_clearly_better(fit_with(errors), fit_with(one))
