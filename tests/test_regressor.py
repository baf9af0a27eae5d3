"""The passive fit: an estimator like any other of scikit-learn, and as good as the data allow."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import ridgescope as rs

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks


@parametrize_with_checks([rs.RidgeSumRegressor(max_features=2, starts=5)])
def test_scikit_learn_takes_it_for_one_of_its_own(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def planted():
    target = rs.targets.CASES["first"].make(0)
    X = np.random.default_rng(0).uniform(-2, 2, (1200, 3))
    return target, X, target(X)


def test_planted_directions_come_back_from_data_alone(planted):
    target, X, y = planted
    fitted = rs.RidgeSumRegressor().fit(X, y)
    match = rs.match(fitted.directions_ / fitted.scale_, target.directions)  # v·u = (v/scale)·x
    assert match.share(1e-2) == 1.0
    assert len(match.false) == 0
    fresh = np.random.default_rng(1).uniform(-1.8, 1.8, (500, 3))
    assert np.std(fitted.predict(fresh) - target(fresh)) < 0.01 * np.std(y)
    assert fitted.held_out_rms_ < 0.01 * np.std(y)


def test_the_parts_add_up(planted):
    _, X, y = planted
    fitted = rs.RidgeSumRegressor(max_features=2).fit(X[:300], y[:300])
    assert len(fitted.features_) <= 2
    U = (X - fitted.center_) / fitted.scale_
    parts = sum(f.response(U @ f.direction) for f in fitted.features_)
    np.testing.assert_allclose(fitted.bias_ + U @ fitted.slope_ + parts, fitted.predict(X))


def test_noise_is_not_taken_for_features():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((400, 4))
    y = X @ [1.0, 2.0, 0.0, 0.0] + 0.5 * rng.standard_normal(400)
    assert cross_val_score(rs.RidgeSumRegressor(), X, y, cv=3).mean() > 0.9


def test_several_outputs_share_their_directions():
    target = rs.targets.planted(3, 2, ("tanh", "sine"), outputs=3, rng=1)
    X = np.random.default_rng(0).uniform(-2, 2, (800, 3))
    fitted = rs.RidgeSumRegressor().fit(X, target(X))
    assert fitted.predict(X).shape == (800, 3)
    assert fitted.score(X, target(X)) > 0.999
    assert rs.match(fitted.directions_ / fitted.scale_, target.directions).share(1e-2) == 1.0


def test_it_works_in_pipelines_and_comes_back_from_a_pickle(planted):
    _, X, y = planted
    pipe = make_pipeline(StandardScaler(), rs.RidgeSumRegressor(max_features=3)).fit(X[:300], y[:300])
    again = pickle.loads(pickle.dumps(pipe))
    assert np.array_equal(again.predict(X), pipe.predict(X))
    assert np.array_equal(clone(pipe).fit(X[:300], y[:300]).predict(X), pipe.predict(X)), "same seed, same bits"


def test_before_fit_there_is_nothing_to_predict():
    with pytest.raises(NotFittedError):
        rs.RidgeSumRegressor().predict(np.zeros((1, 2)))


def test_without_scikit_learn_the_rest_of_the_package_works():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import ridgescope as rs\n"
        "from ridgescope import *\n"
        "try:\n    rs.RidgeSumRegressor\n"
        "except rs.InvalidInput as problem:\n    assert 'needs scikit-learn' in str(problem)\n"
        "else:\n    raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
