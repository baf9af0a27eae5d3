"""The same model fitted passively, from (X, y), without asking anything.

    f̂(x) = b + a·u + Σ_i s_i(v_i·u),   u = (x − mean)/standard deviation

Features join one after the other. Candidates are random directions and those that the residual r suggests (the
eigenvectors of Σ r·(uuᵀ − 1), principal Hessian directions); each is scored by what a quintic of v·u explains of r. The
best of them enters the fit, all directions move together, and the feature stays if points held out say so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .errors import InvalidInput
from .feature import Feature
from .fit.canonical import canonical
from .fit.errorbars import error_bars
from .fit.fitter import FINAL, Evaluation, FitGoal, Fitter
from .fit.levenberg_marquardt import levenberg_marquardt
from .fit.model import Model
from .fit.samples import Samples, held_out_error
from .geometry import Floats, random_directions, unit

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as problem:
    raise InvalidInput("RidgeSumRegressor needs scikit-learn 1.6: pip install 'ridgescope[sklearn]'") from problem

_PATIENCE = 2
"""Rounds in a row without a better fit that end it."""


class RidgeSumRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A sum of features fitted to data, in the manner of scikit-learn.

    What the passive setting cannot promise: there is no certificate, since nothing can be asked where the data do not
    lie. A feature that the data hardly excite is missed, correlated inputs leave directions undecided, and what lies
    outside the data is a straight line. The directions are those of one fit from one set of starts; another seed may
    find others that fit as well. Where the function itself can be asked, use `rs.extract`.

    Parameters
    ----------
    max_features
        Features at most.
    starts
        Random directions tried for each feature.
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
        u = (x − center_)/scale_, and the ball of u that the data fill.
    held_out_rms_
        Root mean square error on the points held out, in units of y (of the standardised outputs, if several).
    """

    def __init__(self, max_features: int = 10, starts: int = 200, random_state: Any = 0) -> None:
        self.max_features = max_features
        self.starts = starts
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to X (m, d) and y (m,) or (m, p)."""
        X, y = validate_data(self, X, y, y_numeric=True, multi_output=True, dtype=np.float64, ensure_min_samples=2)
        X, Y = np.asarray(X), np.asarray(y, dtype=np.float64)
        self.center_, self.scale_ = X.mean(axis=0), _deviation(X)
        self._scalar = Y.ndim == 1
        Y = Y.reshape(len(Y), -1)
        middle, spread = Y.mean(axis=0), _deviation(Y)
        U, Y = (X - self.center_) / self.scale_, (Y - middle) / spread
        self.radius_ = float(np.linalg.norm(U, axis=1).max() * (1.0 + 1e-9)) or 1.0
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        order = rng.permutation(len(U))
        samples = Samples(U.shape[1], self.radius_)
        samples.add(U[order], Y[order])
        judged = _grown(samples, int(self.max_features), int(self.starts), rng)
        self.held_out_rms_ = judged.rms * (float(spread[0]) if self._scalar else 1.0)
        self._keep(judged, samples, middle, spread)
        return self

    def _keep(self, judged: Evaluation, samples: Samples, middle: Floats, spread: Floats) -> None:
        """The model in units of y, as features."""
        model = judged.model
        bars = error_bars(model, *samples.train, judged.rms**2, FINAL)
        bars = replace(bars, band=tuple(band * spread for band in bars.band))
        scaled = model.coefficients * spread
        scaled[-1 - model.dim] += middle
        parts = canonical(replace(model, coefficients=scaled), bars, np.eye(model.dim), scalar=self._scalar)
        self.features_: tuple[Feature, ...] = parts[0]
        self.bias_, self.slope_ = parts[1], parts[2]

    @property
    def directions_(self) -> Floats:
        """(n, d) unit rows."""
        check_is_fitted(self, "features_")
        return np.array([f.direction for f in self.features_]).reshape(-1, len(self.center_))

    def predict(self, X: ArrayLike) -> Floats:
        """f̂ at the rows of X: (m,) or (m, p)."""
        check_is_fitted(self, "features_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        U = (np.asarray(X) - self.center_) / self.scale_
        values = self.bias_ + U @ self.slope_
        for f in self.features_:
            values = values + f.response(U @ f.direction)
        return np.asarray(values)


def _grown(samples: Samples, most: int, starts: int, rng: np.random.Generator) -> Evaluation:
    """Feature by feature, as long as held-out points get better."""
    X, Y = samples.train
    intervals = int(np.clip(len(X) // 12, 4, 16))
    judge = Fitter(_never, samples, FitGoal(error=1e-6, noise=0.0, intervals=intervals), rng, lambda: 0.0)
    best = _verdict(Model.start(np.empty((0, samples.dim)), samples.radius, intervals, Y.shape[1]), samples)
    idle = 0
    while best.model.count < most and idle < _PATIENCE and not best.done:
        room = (len(X) - best.model.columns) // (2 * (intervals + 3 + samples.dim))
        if room < 1:
            break
        candidates = _candidates(X, Y - best.model.predict(X), starts, rng)[: max(1, min(2, room))]
        now = judge.run(best.model.join(candidates, intervals, (np.empty(0),) * len(candidates)), len(candidates))
        if now.model.count <= most and now.rms < 0.98 * best.rms:
            best, idle = now, 0
        else:
            idle += 1
    return best


def _verdict(model: Model, samples: Samples) -> Evaluation:
    fitted = levenberg_marquardt(model, *samples.train)
    rms, sup = held_out_error(fitted.model, samples)
    return Evaluation(fitted, rms, sup, sup <= 1e-6)


def _candidates(X: Floats, residual: Floats, starts: int, rng: np.random.Generator) -> Floats:
    """Directions by what a quintic along them explains of the residual, the best first."""
    d = X.shape[1]
    weights = residual[:, np.argmax(np.var(residual, axis=0))]
    bend = (X * weights[:, None]).T @ X - weights.sum() * np.eye(d)
    V = np.concatenate([np.linalg.eigh(bend)[1].T, np.eye(d), random_directions(starts, d, rng)])
    scores = np.array([_explained(X @ v, residual) for v in V])
    chosen: list[Floats] = []
    for i in np.argsort(-scores, kind="stable"):
        if all(abs(V[i] @ w) < 0.9 for w in chosen):
            chosen.append(V[i])
        if len(chosen) == 2:
            break
    return unit(np.array(chosen))


def _explained(z: Floats, residual: Floats) -> float:
    """Sum of squares of the residual that a quintic of z explains."""
    top = float(np.abs(z).max())
    if not top > 0:
        return 0.0
    q = np.linalg.qr(np.polynomial.chebyshev.chebvander(z / top, min(5, len(z) - 1)))[0]
    return float(np.sum((q.T @ residual) ** 2))


def _deviation(columns: Floats) -> Floats:
    """Standard deviations, 1 where a column does not vary."""
    deviation = columns.std(axis=0)
    return np.where(deviation > 1e-12 * np.maximum(np.abs(columns).max(axis=0), 1e-300), deviation, 1.0)


def _never(X: Floats) -> Floats:
    raise AssertionError("a passive fit has nothing to ask")
