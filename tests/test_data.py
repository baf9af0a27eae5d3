"""The ball of the user's own rows, and the errors on them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import ridgescope as rs
from made import extraction
from ridgescope.data import DEFAULT_RADIUS, MOST_CHECKED, choose_domain, read_rows
from ridgescope.oracle import Oracle


def f(X):
    return np.stack([np.tanh(X[:, 0] - 4.0 + X[:, 1]), np.sin(X[:, 1] - X[:, 2])], axis=1)


def rows(count=400, seed=0):
    return np.array([4.0, 0.0, -2.0]) + np.random.default_rng(seed).standard_normal((count, 3)) * [1.0, 0.5, 0.8]


@pytest.fixture(scope="module")
def found():
    return rs.extract(f, data=rows(), rng=0)


def test_the_ball_holds_99_percent_of_the_rows(found):
    X = rows()
    np.testing.assert_allclose(found.center, X.mean(axis=0))
    assert found.scale.tolist() == [1.0, 1.0, 1.0]
    far = np.linalg.norm(X - found.center, axis=1)
    assert np.mean(far <= found.radius) >= 0.99
    assert np.mean(far <= 0.99 * found.radius) < 0.995
    assert found.radius == pytest.approx(np.sort(far)[-4])  # of 400, all but the four farthest and itself
    assert found.certificate.met
    assert rs.match(found.directions, [[1.0, 1.0, 0.0], [0.0, 1.0, -1.0]]).share(1e-6) == 1.0


def test_the_rows_are_asked_in_the_end_and_counted(found):
    check = found.data_check
    assert (check.rows, found.queries_by_stage["data"]) == (400, 400)
    assert sum(found.queries_by_stage.values()) == found.queries
    assert check.inside == np.sum(np.linalg.norm(rows() - found.center, axis=1) <= found.radius)
    X, Y = rows(), f(rows())
    gaps = Y - found.predict(X, outside="extrapolate")
    assert check.rms == pytest.approx(np.sqrt(np.mean(gaps**2)))
    assert check.sup == pytest.approx(np.abs(gaps).max())
    assert check.std == pytest.approx(np.sqrt(np.mean(Y.var(axis=0))))
    assert check.sup_inside <= check.sup
    assert found.data_check.sentence in found.summary()


def test_what_is_given_stays(found):
    given = rs.extract(f, data=rows(), center=[4.0, 0.0, -2.0], radius=1.0, rng=0)
    assert (given.center.tolist(), given.radius) == ([4.0, 0.0, -2.0], 1.0)
    assert given.data_check.inside < given.data_check.rows == 400


def test_the_scale_of_an_oracle_is_that_of_the_ball():
    scale = np.array([1.0, 0.5, 0.8])
    scaled = rs.extract(Oracle(f, dim=3, scale=scale), data=rows(), rng=0)
    far = np.linalg.norm((rows() - scaled.center) / scale, axis=1)
    assert scaled.scale.tolist() == scale.tolist()
    assert np.mean(far <= scaled.radius) >= 0.99
    assert scaled.data_check.rows == 400


def test_without_data_the_radius_is_3():
    assert choose_domain(Oracle(f, dim=3), None, None).radius == DEFAULT_RADIUS == 3.0
    assert rs.extract(f, dim=3, rng=0).data_check is None


def test_many_rows_are_sampled_and_a_budget_is_kept():
    many = rs.extract(f, data=rows(5000), rng=0)
    assert many.data_check.rows == MOST_CHECKED
    short = rs.extract(f, data=rows(), max_queries=500, rng=0)
    assert short.queries <= 500
    assert short.data_check.rows == short.queries_by_stage.get("data", 0)
    near = rs.extract(f, data=rows(), radius=1.0, reach=1.0, rng=0)
    assert near.data_check.rows == near.data_check.inside < 400


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (np.zeros((3, 3)), "at least 10 rows"),
        (np.zeros(30), "at least 10 rows"),
        (np.full((30, 3), np.nan), "NaN or an infinity"),
        (np.ones((30, 3)), "all rows of data are the same"),
        ([["a", "b", "c"]] * 30, "array of numbers"),
        (np.zeros((30, 2)), "2 columns, and f takes 3"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_before_anything_is_asked(data, says):
    def never(X):
        raise AssertionError("asked")

    with pytest.raises(rs.InvalidInput, match=says):
        rs.extract(never, dim=3, data=data)


# -- check ---------------------------------------------------------------------------------------------------


def test_check_asks_the_function_or_takes_answers(found):
    X = rows(50, seed=1)
    asked, given, by_name = found.check(X), found.check(X, f(X)), found.check(X, oracle=f)
    assert asked == given == by_name
    assert asked.rows == 50
    off = found.check(X, f(X) + np.array([0.0, 1.0]))
    assert off.sup == pytest.approx(1.0, abs=1e-2)
    assert off.rms == pytest.approx(np.sqrt(0.5), abs=1e-2)
    assert off.within == 0.0
    assert asked.within == 1.0


def test_check_sees_what_a_part_of_a_model_misses(found):
    X = rows(50, seed=1)
    assert found.without(0).check(X).sup > 100 * found.check(X).sup


def test_a_result_that_was_saved_or_pickled_wants_its_function_back(found, tmp_path):
    X = rows(50, seed=1)
    for again in (rs.load(found.save(tmp_path)), pickle.loads(pickle.dumps(found))):
        assert again.oracle is None
        assert again.data_check == found.data_check
        with pytest.raises(rs.InvalidInput, match=r"pass the answers, check\(X, Y\), or the function"):
            again.check(X)
        assert again.check(X, oracle=f) == found.check(X)


def test_check_is_not_bound_by_the_budget_of_the_run_but_by_its_reach():
    limited = rs.extract(f, dim=3, center=[4.0, 0.0, -2.0], radius=1.0, reach=2.0, max_queries=5000, rng=0)
    assert limited.check(np.tile([[4.0, 0.0, -2.0]], (6000, 1))).rows == 6000
    with pytest.raises(rs.InvalidInput, match="reach=2"):
        limited.check(np.zeros((1, 3)))


def test_check_says_what_it_takes(found):
    with pytest.raises(rs.InvalidInput, match=r"check takes an \(m, 3\) array"):
        found.check(np.zeros(3))
    with pytest.raises(rs.InvalidInput, match=r"Y must hold finite answers of shape \(5, 2\)"):
        found.check(np.zeros((5, 3)), np.zeros((5, 3)))
    with pytest.raises(rs.InvalidInput, match="1 outputs, the result 2"):
        found.check(np.zeros((5, 3)), oracle=lambda X: X[:, 0])
    assert extraction().check(np.empty((0, 3)), np.empty(0)).sentence == "no rows were compared"


def test_answers_that_are_dropped_are_left_out():
    def holes(X):
        return np.where(X[:, 0] > 0.5, np.nan, np.tanh(X[:, 0]))

    found = rs.extract(Oracle(holes, dim=2, on_bad="drop"), radius=1.0, rng=0)
    X = np.linspace(-1, 1, 21)[:, None] * [1.0, 0.0]
    assert found.check(X).rows == int(np.sum(X[:, 0] <= 0.5))


# -- files ---------------------------------------------------------------------------------------------------


def test_files_of_rows_are_read(tmp_path):
    X = rows(20)
    np.save(tmp_path / "rows.npy", X)
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",", fmt="%.17g")
    (tmp_path / "named.csv").write_text("a, b,c\n" + (tmp_path / "rows.csv").read_text())
    for name in ("rows.npy", "rows.csv", "named.csv"):
        np.testing.assert_array_equal(read_rows(tmp_path / name), X)


@pytest.mark.parametrize("content", [b"1,2\n3\n", b"x\ny,z\n", b"\xff\xfe", b""])
def test_files_that_are_no_rows_are_refused(content, tmp_path):
    for name in ("rows.csv", "rows.npy"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(rs.FileProblem, match="rows"):
            read_rows(tmp_path / name)
    with pytest.raises(rs.FileProblem, match="cannot read"):
        read_rows(tmp_path / "none.csv")
