"""What workers reduce has the bits of what is reduced here, with any pool, with and without a ledger."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from ridgescope.geometry import random_basis
from ridgescope.oracle import Oracle
from ridgescope.paper.mass import sample_pairs
from ridgescope.paper.peel import empty_model
from ridgescope.paper.response import Derivative, difference
from ridgescope.paper.survey import Subspace
from ridgescope.paper_route import OracleField
from ridgescope.query.batching import grouped
from test_storage import same
from travel import TARGET, Heavy, Posted, Tag, masses

DIM = TARGET.dim


@dataclass(frozen=True)
class Sums:
    """The sum of each group's answers."""

    group: int = 3

    def __call__(self, rows, values):
        assert len(rows) == len(values)
        return values.reshape(-1, self.group, values.shape[1]).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Weighted(Sums):
    """A reduction with many bytes to it."""

    weights: bytes = b""


class Weighing(Posted):
    """Notes what comes back, too."""

    def __init__(self):
        super().__init__()
        self.back = []

    def submit(self, fn, /, *args, **kwargs):
        future = super().submit(fn, *args, **kwargs)
        self.back.append(len(pickle.dumps(future.result())))
        return future


def pools():
    spawn = multiprocessing.get_context("spawn")
    yield nullcontext(None)
    yield ThreadPoolExecutor(3)
    yield ProcessPoolExecutor(2, mp_context=spawn)
    yield nullcontext(Weighing())


def test_reduced_where_they_are_made_answers_give_the_same_bits(tmp_path):
    right = masses(None)
    assert right[1], "some answers come back as they are"
    for number, pool in enumerate(pools()):
        with pool as executor:
            assert masses(executor) == right
            assert masses(executor, tmp_path / str(number)) == right
            assert masses(None, tmp_path / str(number)) == right, "the ledger serves whoever comes next"


def test_the_products_are_those_of_the_differences():
    rng = np.random.default_rng(1)
    ends = rng.standard_normal((40, DIM))
    slopes = difference(TARGET, ends, 0.1)
    plain = Derivative(TARGET, 0.1, 0.0).products(ends)
    assert np.allclose(plain, np.sum(slopes[::2] * slopes[1::2], axis=1), rtol=1e-12)
    asked = OracleField(Oracle(TARGET), 2.0, lambda X, Y: None)
    assert np.array_equal(Derivative(asked, 0.1, 0.0).products(ends), plain)


def test_inside_a_subspace_the_model_is_taken_off_too():
    rng = np.random.default_rng(2)
    space = Subspace(random_basis(2, DIM, rng), np.ones(2), 0)
    model = replace(empty_model(2), slope=np.array([1.0, -2.0]))
    asked = OracleField(Oracle(TARGET), 2.0, lambda X, Y: None)
    there, here = (Derivative(model.residual(space.inside(f)), 0.1, 0.0) for f in (asked, TARGET))
    (_, got), (_, plain) = (next(sample_pairs(f, 2.0, np.eye(2), 200, np.random.default_rng(3))) for f in (there, here))
    assert np.allclose(got, plain, rtol=1e-9, atol=1e-10)


def test_half_a_group_is_refused():
    with pytest.raises(rs.InvalidInput, match="groups of 3 rows was given 4"):
        Oracle(TARGET).reduced(np.zeros((4, DIM)), Sums())


def test_of_many_answers_few_numbers_come_back():
    post = Weighing()
    masses(post)
    answers = 8 * 2 * (DIM + 1) * 3000
    assert sum(post.back) < answers / 4
    assert sum(size > 10_000 for size in post.sent) <= 4, "the model goes to a worker about once"
    assert np.median(post.sent) < 2500, "the points go as the state of a generator"


def test_a_large_reduction_goes_to_a_worker_about_once():
    post, X = Posted(), np.random.default_rng(0).standard_normal((600, 3))
    function, reduction = Heavy(300_000), Weighted(3, np.random.default_rng(1).bytes(200_000))
    ask = Oracle(function, dim=3, executor=post, batch=30)
    ask(X[:1])
    right = function(X).reshape(-1, 3).sum(axis=1)
    for _ in range(3):
        assert np.array_equal(ask.reduced(X, reduction)[:, 0], right)
    assert sum(size > 300_000 for size in post.sent) <= 4
    assert sum(size > 150_000 for size in post.sent) <= 8
    assert all(size < 20_000 for size in post.sent[-4:])


@given(size=st.integers(1, 3000), group=st.integers(1, 300), most=st.integers(1, 3000))
def test_blocks_are_whole_groups(size, group, most):
    rows = grouped(size, group, most)
    assert rows % group == 0
    assert rows <= most
    assert rows or group > most


@pytest.mark.parametrize("batch", [None, 1, 2, 3, 7, 1000])
def test_any_batch_will_do(batch):
    X = np.random.default_rng(0).standard_normal((300, 2))
    ask = Oracle(Tag(2.0), dim=2, batch=batch)
    assert np.array_equal(ask.reduced(X, Sums()), ask(X).reshape(-1, 3, 1).sum(axis=1))
    assert ask.reduced(X[:0], Sums()).shape == (0, 1)
    assert ask.queries == ask.asked == 600


def test_bad_answers_are_told_from_any_pool():
    X = np.ones((300, 2))
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool, Posted()):
            with pytest.raises(rs.BadAnswer, match="not finite"):
                Oracle(Tag(np.inf), dim=2, executor=executor).reduced(X, Sums())
            dropping = Oracle(Tag(np.inf), dim=2, executor=executor, on_bad="drop")
            assert np.isnan(dropping.reduced(X, Sums())).all()
            assert dropping.dropped == 300


def test_a_change_of_shape_is_noticed_across_blocks():
    def fickle(X):
        return X[:, 0] if X[0, 0] == 0 else X

    X = np.repeat(np.arange(100.0), 3)[:, None] * np.ones(2)
    with pytest.raises(rs.BadAnswer, match="same number of outputs"):
        Oracle(fickle, dim=2, batch=3).reduced(X, Sums())


@pytest.mark.heavy
def test_the_papers_route_has_the_same_bits_with_workers(tmp_path):
    target = rs.targets.planted(dim=2, features=2, kinds=("sine",), separation=0.5, rng=1)
    options = {"radius": 2.0, "method": "paper", "max_queries": 2_000_000, "rng": 1}
    right = replace(rs.extract(target, **options), asked=None)
    for executor in (ThreadPoolExecutor(2), ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))):
        with executor:
            assert same(replace(rs.extract(target, executor=executor, **options), asked=None), right)
    assert same(replace(rs.extract(target, ledger=tmp_path / "l", **options), asked=None), right)
