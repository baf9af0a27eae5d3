"""Fitted scikit-learn estimators and pipelines as oracles."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..geometry import Floats
from .base import Oracle
from .specs import Options, require

Method = Literal["predict", "decision_function", "predict_proba"]
METHODS = ("predict", "decision_function", "predict_proba")


def sklearn(
    estimator: Any, *, method: Method | None = None, dim: int | None = None, **options: Unpack[Options]
) -> Oracle:
    """Return an oracle for a fitted regressor, classifier or pipeline.

    Parameters
    ----------
    estimator
        Anything with scikit-learn's `fit` and `predict`, already fitted.
    method
        Method that is called. By default a classifier's `decision_function` or, if it has none, its
        `predict_proba`; `predict` for everything else.
    dim
        Number of inputs, needed if the estimator has no attribute `n_features_in_`.
    options
        Passed on to `Oracle`. For `predict_proba`, `output` defaults to "log_odds", which inverts a softmax or
        logistic link and leaves its argument.

    Returns
    -------
    Oracle
        Can be passed to `rs.extract`, or called with (m, d) arrays.

    Raises
    ------
    InvalidInput
        If the estimator is not fitted, or does not have the method.

    Examples
    --------
    >>> from sklearn.linear_model import LinearRegression
    >>> sklearn(LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0]))([[2.0]])
    array([[5.]])
    """
    require("sklearn", "sklearn")
    function = SklearnFunction(estimator, method)
    if function.method == "predict_proba":
        options.setdefault("output", "log_odds")
    return Oracle(function, dim=dim, **options)


class SklearnFunction:
    """Calls `estimator.method` on float64 rows (m, d), as a data frame if the estimator was fitted on one."""

    def __init__(self, estimator: Any, method: Method | None = None) -> None:
        _check_fitted(estimator)
        self.estimator, self.method = estimator, _chosen_method(estimator, method)
        if hasattr(estimator, "n_features_in_"):
            self.dim = int(estimator.n_features_in_)
        names = getattr(estimator, "feature_names_in_", None)
        self.names = None if names is None else [str(name) for name in names]
        if self.names is not None:
            _import_pandas()

    def __call__(self, X: Floats) -> NDArray[Any]:
        rows = X if self.names is None else _import_pandas().DataFrame(X, columns=self.names)
        answer = getattr(self.estimator, self.method)(rows)
        if isinstance(answer, list):
            raise InvalidInput(
                f"{self!r} answers for {len(answer)} classifiers at once; ask one of them, e.g. model.estimators_[0]"
            )
        return np.asarray(answer)

    def __repr__(self) -> str:
        return f"{type(self.estimator).__name__}.{self.method}"


def _check_fitted(estimator: Any) -> None:
    """Raise `InvalidInput` unless this is an estimator that has been fitted."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise InvalidInput(f"rs.oracle.sklearn takes a fitted estimator or pipeline; got {estimator!r}")
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise InvalidInput(f"{estimator!r} is not fitted yet; call its fit(X, y) first") from None


def _chosen_method(estimator: Any, method: str | None) -> str:
    """Return the name of the method to call; raise `InvalidInput` if the estimator has none that returns numbers."""
    from sklearn.base import is_classifier

    offered = [name for name in METHODS if hasattr(estimator, name)]
    if method is None:
        wanted = ("decision_function", "predict_proba") if is_classifier(estimator) else ("predict",)
        method = next((name for name in wanted if name in offered), None)
        if method is None:
            raise InvalidInput(
                f"{type(estimator).__name__} has none of {', '.join(wanted)}; "
                + (f'pass method="{offered[0]}" if that is what you mean' if offered else "it cannot be queried")
            )
    if method not in METHODS:
        raise InvalidInput(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if method not in offered:
        raise InvalidInput(f"{type(estimator).__name__} has no {method}; it has {', '.join(offered) or 'none of them'}")
    if method == "predict" and is_classifier(estimator):
        labels = np.asarray(getattr(estimator, "classes_", []))
        if labels.dtype.kind not in "fiub":
            raise InvalidInput(
                f"predict of {type(estimator).__name__} answers labels such as {labels.tolist()[:3]}, not numbers; "
                'use method="decision_function" or "predict_proba"'
            )
    return method


def _import_pandas() -> Any:
    """Return pandas; raise `InvalidInput` if it is not installed."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise InvalidInput(
            "the estimator was fitted on a data frame and expects its column names, but pandas is not installed; "
            "install it with: pip install pandas"
        ) from None
    return pandas
