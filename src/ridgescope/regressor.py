"""The same model fitted passively, from (X, y), without queries.

    f̂(x) = b + a·u + Σ_i s_i(v_i·u),   u = (x − mean)/standard deviation

Features are added in rounds. Candidates are random directions, the axes, and the eigenvectors of Σ r·(uuᵀ − 1) for the
residual r (principal Hessian directions); each is scored by the part of r that a quintic of v·u explains. The best one
or two enter the fit, all directions move together, and they stay if the held-out error falls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .errors import InvalidInput
from .feature import Feature
from .fit.canonical import canonical_features
from .fit.context import Evaluation, FitGoal, evaluate, improves
from .fit.errorbars import error_bars
from .fit.fitter import Fitter
from .fit.levenberg_marquardt import levenberg_marquardt
from .fit.model import TINY, Model
from .fit.samples import Samples
from .geometry import Floats, random_directions, unit

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as problem:
    raise InvalidInput("RidgeSumRegressor needs scikit-learn 1.6: pip install 'ridgescope[sklearn]'") from problem

_FAILURES = 2  # consecutive rounds without a better fit that end the search
_MIN_GAIN = 0.02  # by which a feature must lower the held-out error; empirical: separates weak features from chance
_ERROR = 1e-6  # of y's deviation: no fit has to do better
_INTERVALS, _POINTS_PER_INTERVAL = (4, 16), 12  # limits of the spline intervals, and points for each
_CANDIDATES, _POINTS_PER_UNKNOWN = 2, 2  # most new features of one round, and points for each unknown they add
_APART = 0.9  # largest |cos| between the candidates of a round
_DEGREE = 5  # of the polynomial by which candidates are scored: it follows one bump or two bends
_CONSTANT = 1e-12  # of a column's size: a deviation below it is rounding
_ROOM = 1.0 + 1e-9  # factor on the largest norm, so that rounding puts no point outside the ball


class RidgeSumRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A sum of features fitted to data, as a scikit-learn regressor.

    A passive fit has no certificate, since nothing can be asked where there are no data. A feature along which the
    data hardly vary is missed, correlated inputs leave directions undetermined, and outside the data the
    responses continue along straight lines. Another seed may find other directions that fit as well. If the function
    itself can be queried, use `rs.extract`.

    Parameters
    ----------
    max_features
        Largest number of features.
    starts
        Number of random directions tried in each round.
    random_state
        Seed of the random directions and of the split into points fitted and held out.

    Attributes
    ----------
    features_
        `rs.Feature`s, strongest first, in units of y along directions of the scaled inputs u.
    directions_
        (n, d) unit rows.
    bias_, slope_
        The affine part.
    center_, scale_, radius_
        u = (x − center_)/scale_, and the radius of the ball of u that contains the data.
    held_out_rms_
        Root mean square error on the points held out, in units of y (of the standardised outputs, if several).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(-2, 2, (400, 3))
    >>> y = np.tanh(2 * X[:, 0] + X[:, 1])
    >>> model = RidgeSumRegressor().fit(X, y)
    >>> len(model.features_), model.features_[0].shape.name
    (1, 'tanh')
    """

    def __init__(self, max_features: int = 10, starts: int = 200, random_state: Any = 0) -> None:
        self.max_features = max_features
        self.starts = starts
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the model.

        Parameters
        ----------
        X
            (m, d) inputs.
        y
            (m,) or (m, p) outputs.

        Returns
        -------
        Self
            The regressor itself.
        """
        X, y = validate_data(self, X, y, y_numeric=True, multi_output=True, dtype=np.float64, ensure_min_samples=2)
        X, Y = np.asarray(X), np.asarray(y, dtype=np.float64)
        self.center_, self.scale_ = X.mean(axis=0), _deviation(X)
        self._scalar = Y.ndim == 1
        Y = Y.reshape(len(Y), -1)
        mean, deviation = Y.mean(axis=0), _deviation(Y)
        U, Y = (X - self.center_) / self.scale_, (Y - mean) / deviation
        self.radius_ = float(np.linalg.norm(U, axis=1).max() * _ROOM) or 1.0
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        order = rng.permutation(len(U))
        samples = Samples(U.shape[1], self.radius_)
        samples.add(U[order], Y[order])
        best = _add_features(samples, int(self.max_features), int(self.starts), rng)
        self.held_out_rms_ = best.rms * (float(deviation[0]) if self._scalar else 1.0)
        bars = error_bars(best.model, *samples.train, best.rms**2)
        bars = replace(bars, band=tuple(band * deviation for band in bars.band))
        coefficients = best.model.coefficients * deviation  # in units of y
        coefficients[-1 - best.model.dim] += mean
        model = replace(best.model, coefficients=coefficients)
        parts = canonical_features(model, bars, np.eye(model.dim), scalar=self._scalar)
        self.features_: tuple[Feature, ...] = parts[0]
        self.bias_, self.slope_ = parts[1], parts[2]
        return self

    @property
    def directions_(self) -> Floats:
        """(n, d) unit rows."""
        check_is_fitted(self, "features_")
        return np.array([f.direction for f in self.features_]).reshape(-1, len(self.center_))

    def predict(self, X: ArrayLike) -> Floats:
        """Evaluate the model.

        Parameters
        ----------
        X
            (m, d) inputs.

        Returns
        -------
        Floats
            (m,) or (m, p) values f̂.
        """
        check_is_fitted(self, "features_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        U = (np.asarray(X) - self.center_) / self.scale_
        values = self.bias_ + U @ self.slope_
        for f in self.features_:
            values = values + f.response(U @ f.direction)
        return np.asarray(values)


def _add_features(samples: Samples, most: int, starts: int, rng: np.random.Generator) -> Evaluation:
    """Add features as long as the held-out error falls, and return the best fit."""
    X, Y = samples.train
    intervals = int(np.clip(len(X) // _POINTS_PER_INTERVAL, *_INTERVALS))
    goal = FitGoal(error=_ERROR, noise=0.0, intervals=intervals)
    fitter = Fitter(_never, samples, goal, rng, lambda: 0.0)
    affine = Model.start(np.empty((0, samples.dim)), samples.radius, intervals, Y.shape[1])
    best = evaluate(levenberg_marquardt(affine, X, Y), samples, goal)
    failures = 0
    while best.model.count < most and failures < _FAILURES and not best.meets_goal:
        room = (len(X) - best.model.columns) // (_POINTS_PER_UNKNOWN * (intervals + 3 + samples.dim))
        if room < 1:
            break
        candidates = _candidates(X, Y - best.model.predict(X), starts, rng)[:room]
        now = fitter.fit(best.model.join(candidates, intervals), len(candidates))
        if now.model.count <= most and improves(now.rms, best.rms, _MIN_GAIN):
            best, failures = now, 0
        else:
            failures += 1
    return best


def _candidates(X: Floats, residual: Floats, starts: int, rng: np.random.Generator) -> Floats:
    """Return at most two directions (k, d) along which a quintic explains most of the residual, the best first."""
    d = X.shape[1]
    weights = residual[:, np.argmax(np.var(residual, axis=0))]
    bend = (X * weights[:, None]).T @ X - weights.sum() * np.eye(d)
    V = np.concatenate([np.linalg.eigh(bend)[1].T, np.eye(d), random_directions(starts, d, rng)])
    scores = np.array([_explained(X @ v, residual) for v in V])
    chosen: list[Floats] = []
    for i in np.argsort(-scores, kind="stable"):
        if all(abs(V[i] @ w) < _APART for w in chosen):
            chosen.append(V[i])
        if len(chosen) == _CANDIDATES:
            break
    return unit(np.array(chosen))


def _explained(z: Floats, residual: Floats) -> float:
    """Return the sum of squares of the residual that a quintic of z explains."""
    top = float(np.abs(z).max())
    if not top > 0:
        return 0.0
    q = np.linalg.qr(np.polynomial.chebyshev.chebvander(z / top, min(_DEGREE, len(z) - 1)))[0]
    return float(np.sum((q.T @ residual) ** 2))


def _deviation(columns: Floats) -> Floats:
    """Return the standard deviations of the columns, 1 for a column that does not vary."""
    deviation = columns.std(axis=0)
    return np.where(deviation > _CONSTANT * np.maximum(np.abs(columns).max(axis=0), TINY), deviation, 1.0)


def _never(X: Floats) -> Floats:
    """Raise, as a passive fit never asks."""
    raise AssertionError("a passive fit has nothing to ask")
