"""Fitted scikit-learn models answer through an `Oracle` what they answer themselves."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import ridgescope as rs

pytest.importorskip("sklearn")

from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC


def rows(count=50, dim=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim))


@pytest.fixture(scope="module")
def labelled():
    return make_classification(120, 4, n_informative=3, n_redundant=0, n_classes=3, random_state=0)


def test_a_regressor_is_asked_for_its_prediction():
    X = rows()
    model = LinearRegression().fit(X, X @ [1.0, -2.0, 0.5, 3.0])
    ask = rs.oracle.sklearn(model)
    assert ask.dim == 4
    np.testing.assert_allclose(ask(rows(seed=1))[:, 0], rows(seed=1) @ [1.0, -2.0, 0.5, 3.0], atol=1e-12)
    two = LinearRegression().fit(X, X[:, :2])
    assert rs.oracle.sklearn(two)(X).shape == (50, 2)


def test_a_classifier_is_asked_for_its_decision_function(labelled):
    X, y = labelled
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    np.testing.assert_array_equal(rs.oracle.sklearn(model)(X), model.decision_function(X))


def test_probabilities_become_the_logits_that_they_came_from(labelled):
    X, y = labelled
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    logits = model.decision_function(X)
    values = rs.oracle.sklearn(model, method="predict_proba")(X)
    np.testing.assert_allclose(values, logits - logits.mean(axis=1, keepdims=True), atol=1e-9)
    raw = rs.oracle.sklearn(model, method="predict_proba", output="raw")(X)
    np.testing.assert_array_equal(raw, model.predict_proba(X))


def test_without_a_decision_function_probabilities_are_asked(labelled):
    X, y = labelled
    ask = rs.oracle.sklearn(GaussianNB().fit(X, y))
    assert ask.output == "log_odds"
    assert repr(ask.function) == "GaussianNB.predict_proba"
    # a forest is quite sure now and then, and certainty has no log-odds
    forest = RandomForestClassifier(5, random_state=0).fit(X, y)
    with pytest.raises(rs.BadAnswer, match="exactly 0 or 1 has no finite log-odds"):
        rs.oracle.sklearn(forest)(X)


def test_a_pipeline_fitted_on_a_data_frame_gets_one(labelled):
    pandas = pytest.importorskip("pandas")
    X, y = labelled
    model = LogisticRegression().fit(pandas.DataFrame(X, columns=list("abcd")), y)
    np.testing.assert_allclose(rs.oracle.sklearn(model)(X), X @ model.coef_.T + model.intercept_, atol=1e-12)


def test_what_cannot_be_asked_is_said(labelled):
    X, y = labelled
    with pytest.raises(rs.InvalidInput, match=r"LinearRegression\(\) is not fitted yet; call its fit"):
        rs.oracle.sklearn(LinearRegression())
    with pytest.raises(rs.InvalidInput, match="takes a fitted estimator or pipeline; got 3"):
        rs.oracle.sklearn(3)
    fitted = LinearRegression().fit(X, y)
    with pytest.raises(rs.InvalidInput, match="LinearRegression has no predict_proba; it has predict"):
        rs.oracle.sklearn(fitted, method="predict_proba")
    with pytest.raises(rs.InvalidInput, match=r"method must be one of predict, .*, not 'score'"):
        rs.oracle.sklearn(fitted, method="score")
    with pytest.raises(rs.InvalidInput, match="dim=5, but the function says that it takes 4"):
        rs.oracle.sklearn(fitted, dim=5)
    with pytest.raises(rs.InvalidInput, match=r"has none of predict; it cannot be queried"):
        rs.oracle.sklearn(StandardScaler().fit(X))
    words = SVC().fit(X, np.array(["cat", "dog", "owl"])[y])
    with pytest.raises(rs.InvalidInput, match=r"labels such as \['cat', 'dog', 'owl'\], not numbers"):
        rs.oracle.sklearn(words, method="predict")
    several = MultiOutputClassifier(LogisticRegression()).fit(X, np.stack([y, y[::-1]], axis=1))
    with pytest.raises(rs.InvalidInput, match="answers for 2 classifiers at once"):
        rs.oracle.sklearn(several, method="predict_proba")(X)


def test_it_survives_pickling(labelled):
    X, y = labelled
    ask = rs.oracle.sklearn(LogisticRegression().fit(X, y))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ask))(X), ask(X))


def test_the_neurons_of_a_trained_network_come_back():
    X = rows(400, 3)
    model = MLPRegressor(hidden_layer_sizes=(3,), activation="tanh", solver="lbfgs", max_iter=300, random_state=1)
    model.fit(X, np.tanh(X @ [[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, -1.0, 1.5]]).sum(axis=1))
    found = rs.extract(rs.oracle.sklearn(model), radius=2.0, rng=0)
    assert found.certificate.met
    matched = rs.match(found.directions, model.coefs_[0].T)
    assert matched.share(1e-2) == 1.0
