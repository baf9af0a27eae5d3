"""Powers of vectors, stencils of higher derivatives, and directions from them."""

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.geometry import in_ball, random_directions
from ridgescope.match import match
from ridgescope.search import Setting, Tensors, run_proposer
from ridgescope.search.base import Meter
from ridgescope.search.nearly_full import members_and_others
from ridgescope.search.rank_one import members, pack, squares
from ridgescope.search.tensors import PowerSpace, Stencil, most_apart, packed_size, powers
from ridgescope.targets import SMOOTH, planted


def setting_of(target, **changes):
    std = float(target.clean(in_ball(2000, target.dim, 3.0, np.random.default_rng(0))).std())
    known = {"dim": target.dim, "outputs": 1, "radius": 3.0, "reach": np.inf, "std": std, "noise": 3e-16 * std}
    return Setting(**{**known, "bandwidth": 4.0, **changes})


def propose(ask, setting, *, queries, rng):
    return run_proposer(Tensors(), ask, setting, queries=queries, rng=rng)


class Counted:
    def __init__(self, target):
        self.target, self.rows, self.farthest = target, 0, 0.0

    def __call__(self, X):
        self.rows += len(X)
        self.farthest = max(self.farthest, float(np.linalg.norm(X, axis=1).max(initial=0.0)))
        return self.target(X).reshape(len(X), -1)


# -- powers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "order"), [(1, 3), (2, 5), (4, 3), (5, 4), (3, 6)])
def test_powers_multiply_as_tensors_do(width, order):
    rng = np.random.default_rng(order)
    v, w = rng.standard_normal((7, width)), rng.standard_normal((7, width))
    p = powers(width, order)
    assert p.of(v).shape == (7, packed_size(width, order))
    np.testing.assert_allclose(np.sum(p.of(v) * p.of(w), axis=1), np.sum(v * w, axis=1) ** order, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("width", "order"), [(2, 1), (3, 2), (4, 3), (3, 5)])
def test_slopes_are_those_of_the_powers(width, order):
    rng = np.random.default_rng(order)
    v, e, h = rng.standard_normal((5, width)), rng.standard_normal((5, width)), 1e-6
    p = powers(width, order)
    slope = np.einsum("mdr,mr->md", p.slope(v), e)
    np.testing.assert_allclose(slope, (p.of(v + h * e) - p.of(v - h * e)) / (2.0 * h), rtol=1e-6, atol=1e-7)
    tensors = rng.standard_normal((5, packed_size(width, order)))
    applied = np.einsum("md,mdr->mr", tensors, p.slope(v)) / order
    np.testing.assert_allclose(p.applied(tensors, v), applied, rtol=1e-10, atol=1e-12)


def test_squares_are_powers_of_order_two():
    v = np.random.default_rng(0).standard_normal((6, 5))
    np.testing.assert_allclose(powers(5, 2).of(v), squares(v), rtol=1e-12)
    np.testing.assert_allclose(powers(5, 2).of(v), pack(v[:, :, None] * v[:, None, :]), rtol=1e-12)


def test_how_many_can_be_told_apart():
    # two lines of a conic, four points of the Veronese surface; beyond, a span has members that nobody planted
    assert [most_apart(d, 2) for d in (2, 3, 4, 6)] == [2, 4, 6, 15]
    assert [most_apart(d, 3) for d in (2, 3, 4, 6, 8)] == [3, 7, 16, 50, 112]
    assert most_apart(4, 4) == 31


@pytest.mark.parametrize(("width", "order", "n"), [(6, 3, 18), (6, 3, 40), (4, 4, 28), (3, 5, 15), (2, 4, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_members_of_a_span_of_powers(width, order, n, seed):
    rng = np.random.default_rng(seed)
    V = random_directions(n, width, rng)
    basis = np.linalg.svd(powers(width, order).of(V), full_matrices=False)[2]
    found = members(PowerSpace(basis, powers(width, order)), rng, accept=1.0 - 1e-9)
    matched = match(found.vectors, V)
    assert matched.share(1e-5) == 1.0
    assert not len(matched.false)


def test_twins_among_the_members():
    rng = np.random.default_rng(1)
    V = random_directions(12, 5, rng)
    V[1] = V[0] + 0.05 * V[2]
    V[1] /= np.linalg.norm(V[1])
    basis = np.linalg.svd(powers(5, 3).of(V), full_matrices=False)[2]
    found = members(PowerSpace(basis, powers(5, 3)), rng, accept=1.0 - 1e-9)
    assert match(found.vectors, V).share(1e-4) == 1.0


@pytest.mark.parametrize("seed", [1, 6, 7])
def test_true_members_are_found_among_many_false_ones(seed):
    rng = np.random.default_rng(seed)
    V = random_directions(30, 4, rng)  # whose powers take up 30 of the 35 dimensions of all tensors
    rows = rng.standard_normal((40, 30)) @ powers(4, 4).of(V)
    basis = np.linalg.svd(rows + 1e-5 * rng.standard_normal(rows.shape), full_matrices=False)[2][:30]
    space = PowerSpace(basis, powers(4, 4))
    found = members_and_others(space, rng, accept=0.99)
    assert match(found.vectors, V).share(2e-2) == 1.0
    assert len(found.vectors) < 40
    assert len(members(space, rng, accept=0.99, extra=30).vectors) > 50


# -- stencils --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "order"), [(3, 2), (3, 3), (4, 4), (2, 5)])
def test_a_stencil_is_exact_for_polynomials(width, order):
    rng = np.random.default_rng(order)
    d = width + 1
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    V, c = random_directions(5, d, rng), rng.standard_normal(5)

    def f(X):  # of degree k + 1: the other parity does not matter
        z = X @ V.T
        return ((c * z**order) + z ** (order + 1) + z**2 - z).sum(axis=1, keepdims=True) + 3.0

    stencil = Stencil.of(width, order, rng)
    x = rng.standard_normal((4, d))
    meter = Meter(f, 10_000)
    found = stencil.at(meter, x, basis, 0.5)
    assert meter.spent == 4 * stencil.cost
    k = np.prod(np.arange(1, order + 1))
    bends = k * (c + (order + 1) * (x @ V.T)) + (2.0 if order == 2 else 0.0)
    wanted = bends @ powers(width, order).of(V @ basis[:width].T)
    np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_dropped_answers_are_nan():
    def f(X):
        answers = np.sin(X).sum(axis=1, keepdims=True)
        answers[0] = np.nan
        return answers

    stencil = Stencil.of(3, 3, np.random.default_rng(0))
    found = stencil.at(Meter(f, 10_000), np.ones((3, 3)), np.eye(3), 0.1)
    assert np.isnan(found[0]).any()
    assert np.isfinite(found[1:]).all()


# -- directions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "n"), [(6, 18), (5, 25), (8, 32), (4, 30)])
@pytest.mark.parametrize("seed", [20, 21])
def test_more_features_than_second_derivatives_can_tell_apart(d, n, seed):
    target = planted(d, n, SMOOTH, rng=seed)
    ask = Counted(target)
    proposal = propose(ask, setting_of(target, reach=3.0), queries=40_000, rng=np.random.default_rng(seed))
    found = match(proposal.directions, target.directions)
    assert found.share(1e-2) >= 1.0 - 1.0 / n, proposal.note
    assert len(found.false) <= 1 + n // 8  # more than features where there is hardly room for them
    assert ask.rows <= 40_000
    assert ask.farthest <= 3.0


@pytest.mark.parametrize(("seed", "extra"), [(7401, 0), (7410, 7)])
def test_members_beyond_the_rank_are_kept_where_they_fit_nearly_as_well(seed, extra):
    target = rs.targets.CASES["extreme"].make(seed)
    proposal = propose(Counted(target), setting_of(target), queries=40_000, rng=np.random.default_rng(0))
    assert match(proposal.directions, target.directions).share(2e-2) == 1.0, proposal.note
    assert len(proposal.directions) <= len(target.directions) + extra


def test_several_outputs():
    target = planted(5, 20, SMOOTH, outputs=3, rng=3)
    ask = Counted(target)
    proposal = propose(ask, setting_of(target, outputs=3), queries=40_000, rng=np.random.default_rng(0))
    assert match(proposal.directions, target.directions).share(1e-2) >= 0.95, proposal.note


def test_a_few_dropped_answers_do_no_harm():
    target, rng = planted(5, 14, SMOOTH, rng=4), np.random.default_rng(7)

    def ask(X):
        answers = target(X).reshape(-1, 1)
        answers[rng.random(len(X)) < 3e-4] = np.nan
        return answers

    proposal = propose(ask, setting_of(target), queries=40_000, rng=np.random.default_rng(0))
    assert match(proposal.directions, target.directions).share(1e-2) == 1.0, proposal.note


def test_noise_forbids_it_and_costs_nothing():
    target = planted(5, 25, SMOOTH, rng=0)
    ask = Counted(target)
    proposal = propose(ask, setting_of(target, noise=1e-3), queries=40_000, rng=np.random.default_rng(0))
    assert len(proposal.directions) == 0
    assert proposal.queries == ask.rows == 0


@pytest.mark.parametrize("queries", [0, 100, 2000])
def test_too_few_queries(queries):
    target = planted(5, 25, SMOOTH, rng=0)
    ask = Counted(target)
    proposal = propose(ask, setting_of(target), queries=queries, rng=np.random.default_rng(0))
    assert proposal.directions.shape == (0, 5)
    assert proposal.queries == ask.rows <= queries


@pytest.mark.parametrize("f", [lambda X: 0.0 * X[:, 0], lambda X: X[:, 0] ** 2, lambda X: np.full(len(X), np.nan)])
def test_nothing_there(f):
    ask = Counted(f)
    proposal = propose(ask, Setting(4, 1, 3.0, 3.0, 1.0, 1e-16, 4.0), queries=20_000, rng=np.random.default_rng(0))
    assert len(proposal.directions) == 0


def all_found(d, n, seed):
    """The extraction of a planted target, certified, with all its directions and no other."""
    target = planted(d, n, SMOOTH, rng=seed)
    found = rs.extract(target, d, radius=3.0, rng=seed)
    matched = match(found.directions, target.directions)
    assert found.certificate.met
    assert matched.share(1e-2) == 1.0
    assert not len(matched.false)
    return found


@pytest.mark.parametrize(
    ("d", "n", "seed"),
    [(2, 4, 30), (3, 9, 31), *(pytest.param(*size, marks=pytest.mark.heavy) for size in ((4, 16, 32), (6, 20, 33)))],
)
def test_extracted(d, n, seed):
    found = all_found(d, n, seed)
    assert found.queries_by_stage["tensors"] < found.queries < 50 * n * (d + 16)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(40, 45))
@pytest.mark.parametrize(("d", "n"), [(4, 30), (5, 40), (8, 64)])
def test_more_than_the_square_of_the_dimension(d, n, seed):
    all_found(d, n, seed)
