"""Rows that a worker makes itself are the rows that were meant, to the bit, and little travels for them."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from ridgescope.geometry import random_basis
from ridgescope.oracle import Oracle
from ridgescope.paper.derivative import Derivative
from ridgescope.paper.mass import est_weight
from ridgescope.query import recipe as recipes
from ridgescope.query.recipe import (
    Around,
    Joined,
    Made,
    Placed,
    Told,
    Turned,
    around,
    known_as,
    made,
    recipe_of,
    turned,
)
from ridgescope.search.spectrum import Frame, ask_shifted, transform
from test_storage import same
from travel import TARGET, Posted, Tag


def frame(seed=0, dim=5, rank=2):
    rng = np.random.default_rng(seed)
    basis = random_basis(dim, dim, rng)
    return Frame(basis, 0.3 * basis[-1], rank, 0.21, 12, 0.8, 12 * 0.21)


def travelled(recipe):
    """As another process would get it."""
    recipes._drawn.clear()
    return pickle.loads(pickle.dumps(recipe))


@st.composite
def told(draw):
    """A recipe and what its rows should be."""
    f = frame(draw(st.integers(0, 3)), rank=draw(st.sampled_from([2, 3])))
    flat, _ = f.grid()
    shift = f.basis[1] * draw(st.floats(-2, 2))
    match draw(st.integers(0, 5)):
        case 0:
            return f.rows(shift, range(len(flat)))
        case 1:
            return f.rows(shift, flat[:: draw(st.integers(1, 40))])
        case 2:
            return Joined((f.rows(shift, flat[:50]), f.rows(0 * shift, flat[7:90])))
        case 3:
            return Around(f.rows(shift, flat[:50]), f.basis[:3], range(150))
        case 4:
            return Turned(f.rows(shift, flat[:300]), f.basis)
        case _:
            return Placed(f.rows(shift, flat[:300]), shift, np.full(5, draw(st.floats(0.1, 9))))


@given(told(), st.data())
def test_a_part_has_the_bits_of_the_whole(recipe, data):
    whole = recipe.rows()
    assert len(whole) == len(recipe)
    start = data.draw(st.integers(0, len(recipe) - 1))
    stop = data.draw(st.integers(start + 1, len(recipe)))
    part = travelled(recipe.part(start, stop))
    assert part.rows().tobytes() == whole[start:stop].tobytes()


def test_the_grid_is_where_it_should_be():
    f = frame()
    flat, s = f.grid()
    points = f.offset + s @ f.basis[:2]
    assert np.allclose(f.rows(np.zeros(5), range(len(s))).rows(), points, atol=1e-14)
    assert np.array_equal(f.flat(s), flat)
    both = ask_shifted(lambda X: X, f, s[3:50], np.stack([f.basis[2], f.basis[3]]))
    assert np.allclose(both, points[3:50] + f.basis[2:4][:, None], atol=1e-14)


def test_a_slice_of_a_subspace_is_where_it_should_be():
    rows, basis = made(frame().rows(np.zeros(5), range(40))), random_basis(5, 7, np.random.default_rng(1))
    there = turned(rows, basis)
    assert isinstance(recipe_of(there), Turned)
    assert np.allclose(there, np.asarray(rows) @ basis, atol=1e-14)


def test_made_rows_know_their_recipe_and_nothing_else_does():
    rows = made(frame().rows(np.zeros(5), range(40)))
    assert recipe_of(rows) is not None
    assert not rows.flags.writeable
    for other in (rows + 1, rows[3:], rows @ np.eye(5), np.asarray(rows), np.sqrt(rows**2), rows.sum(axis=0)):
        assert not isinstance(other, Made)
        assert recipe_of(other) is None


def test_known_rows_without_a_recipe_stay_as_they_are():
    rows = np.ones((3, 2))
    assert known_as(rows, None) is rows
    assert np.array_equal(turned(rows, np.eye(2)), rows)
    assert np.array_equal(around(rows, np.eye(2), 1, 9), [[2, 1], [1, 2], [2, 1], [1, 2]])


# -- what travels --------------------------------------------------------------------------------------------


class Weighed(Posted):
    """Notes what comes back too."""

    def __init__(self):
        super().__init__()
        self.back = []

    def submit(self, fn, /, *args, **kwargs):
        recipes._drawn.clear()
        future = super().submit(fn, *args, **kwargs)
        self.back.append(len(pickle.dumps(future.result())))
        return future


def test_a_slice_travels_as_its_frame():
    post = Weighed()
    ask = Oracle(TARGET, executor=post)
    ask(np.zeros((1, 4)))
    wide = frame(dim=4)
    wide = replace(wide, half=60, step=0.05, extent=3.0)
    plain = Oracle(TARGET)
    there, here = transform(ask, wide, 1e-9), transform(plain, wide, 1e-9)
    assert there.values.tobytes() == here.values.tobytes()
    function = len(ask._ask_value.packed)
    assert max(post.sent) < function + 1000, "a block of hundreds of rows in less than a kilobyte"
    assert sum(post.back) < 8.2 * len(here.s) + 400 * len(post.back), "an answer comes back as a number"


def test_the_papers_samples_travel_as_the_state_of_a_generator():
    post, m = Weighed(), 5000
    ask, plain = Oracle(TARGET, executor=post), Oracle(TARGET)
    ask(np.zeros((1, 4)))

    def weight(oracle):
        rng = np.random.default_rng(2)
        field = Derivative(lambda X: oracle(X)[:, 0], 0.1, 0.05)
        return est_weight(field, 2.0, np.ones(4), np.eye(4), m, rng).scaled.tobytes()

    assert weight(ask) == weight(plain)
    function = len(ask._ask_value.packed)
    rows = 2 * 5 * m
    assert sum(post.sent) - function * len(post.sent) < 0.2 * 8 * 4 * rows


def test_a_machine_that_makes_other_rows_is_sent_them(monkeypatch):
    recipe = frame().rows(np.zeros(5), range(400))
    right = Oracle(Tag(2.0), dim=5)(made(recipe))
    post = Posted()
    monkeypatch.setattr(Told, "rows", lambda self: None)
    assert Oracle(Tag(2.0), dim=5, executor=post, batch=50)(made(recipe)).tobytes() == right.tobytes()
    assert len(post.sent) == 16


def test_other_rows_are_noticed():
    rows = made(frame().rows(np.zeros(5), range(40)))
    good = Told.of(recipe_of(rows), rows)
    assert good.rows().tobytes() == rows.tobytes()
    assert Told(good.recipe, good.mark ^ 1).rows() is None


def test_threads_are_given_the_rows_themselves(monkeypatch):
    monkeypatch.setattr(Told, "of", None)
    with ThreadPoolExecutor(2) as pool:
        Oracle(Tag(2.0), dim=5, executor=pool, batch=50)(made(frame().rows(np.zeros(5), range(400))))


@pytest.mark.parametrize("options", [{"method": "slices", "max_queries": 30_000}])
@pytest.mark.parametrize("ledger", [False, True])
def test_a_run_has_the_same_bits_when_its_points_travel_as_recipes(tmp_path, options, ledger):
    options |= {"radius": 2.0, "rng": 3}
    there = rs.extract(TARGET, executor=Weighed(), ledger=tmp_path / "l" if ledger else None, **options)
    assert same(replace(there, asked=None), replace(rs.extract(TARGET, **options), asked=None))
