"""Hessians against analytic ones; spans whose rank-one members are known; recovery on planted targets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.geometry import Floats, angle, in_ball, random_basis, random_directions, unit
from ridgescope.search import Ask, Curvature, Proposal, Setting, run_proposer
from ridgescope.search.base import Meter
from ridgescope.search.hessians import Differences, Gradients, Smoothed
from ridgescope.search.numerical_span import numerical_rank, span_of
from ridgescope.search.rank_one import MatrixSpace, distinct, members, pack, squares, unpack
from ridgescope.search.stencil_bias import StencilBias, derivative_sizes
from ridgescope.search.tensors import filled_block
from ridgescope.targets import CASES, SMOOTH, Planted, planted


class Cosines:
    """Σ_i c_i cos(k_i v_i·x), with its derivatives."""

    def __init__(self, dim: int, count: int, outputs: int = 1, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.directions = random_directions(count, dim, rng)
        self.waves = rng.uniform(1.0, 3.0, count)
        self.weights = rng.standard_normal((count, outputs))

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(np.cos(x @ self.directions.T * self.waves) @ self.weights)

    def gradient(self, x: Floats) -> Floats:
        slope = -self.waves * np.sin(x @ self.directions.T * self.waves)
        return np.asarray(np.einsum("mi,ip,id->mpd", slope, self.weights, self.directions))

    def hessian(self, x: Floats) -> Floats:
        bend = -(self.waves**2) * np.cos(x @ self.directions.T * self.waves)
        return np.asarray(np.einsum("mi,ip,id,ie->mpde", bend, self.weights, self.directions, self.directions))


class Watched:
    """An oracle that remembers how often and how far out it was asked, and drops a share of the answers."""

    def __init__(self, target: Planted, drop: float = 0.0) -> None:
        self.target, self.drop = target, drop
        self.queries, self.farthest = 0, 0.0
        self.rng = np.random.default_rng(1)

    def __call__(self, x: Floats) -> Floats:
        self.queries += len(x)
        self.farthest = max(self.farthest, float(np.linalg.norm(x, axis=1).max(initial=0.0)))
        values = self.target(x).reshape(len(x), -1)
        values[self.rng.random(len(x)) < self.drop] = np.nan
        return values


def setting_for(target: Planted, reach: float = np.inf) -> Setting:
    values = target.clean(in_ball(1000, target.dim, 3.0, np.random.default_rng(3))).reshape(1000, -1)
    std = float(np.mean(np.std(values, axis=0)))
    return Setting(
        dim=target.dim,
        outputs=values.shape[1],
        radius=3.0,
        reach=reach,
        std=std,
        noise=max(1e-13 * std, target.noise / np.sqrt(3.0)),
        bandwidth=6.0,
    )


def run(
    target: Planted, queries: int, *, seed: int = 0, drop: float = 0.0, reach: float = np.inf
) -> tuple[Proposal, Watched]:
    ask = Watched(target, drop)
    rng = np.random.default_rng(seed)
    proposal = run_proposer(Curvature(), ask, setting_for(target, reach), queries=queries, rng=rng)
    assert proposal.queries == ask.queries
    return proposal, ask


def smooth_directions(target: Planted) -> Floats:
    return target.directions[[d.smooth for d in target.drawn]]


def stencil(ask: Ask, dim: int, step: float, *, centred: bool = False, width: int | None = None) -> Differences:
    basis = random_basis(dim, dim, np.random.default_rng(0))[: width or dim]
    return Differences(Meter(ask, 10**9), basis, step, centred, 0.0)


# --- Hessians


def test_packing_is_an_isometry() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 7, 7))
    a = a + a.swapaxes(1, 2)
    assert np.allclose(unpack(pack(a)), a)
    assert np.isclose(pack(a[0]) @ pack(a[1]), np.trace(a[0] @ a[1]))
    v = rng.standard_normal((3, 7))
    assert np.allclose(squares(v), pack(np.einsum("ki,kj->kij", v, v)))


@pytest.mark.parametrize(("centred", "order"), [(False, 1), (True, 2)])
def test_truncation_error_falls_with_the_order_of_the_stencil(centred: bool, order: int) -> None:
    f = Cosines(6, 9, outputs=2)
    x = in_ball(5, 6, 2.0, np.random.default_rng(1))
    steps = np.array([0.08, 0.04, 0.02, 0.01])
    errors = []
    for h in steps:
        d = stencil(f, 6, h, centred=centred)
        truth = pack(np.einsum("ai,mpij,bj->mpab", d.basis, f.hessian(x), d.basis))
        errors.append(np.linalg.norm(d.hessians(x, 6)[0] - truth))
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.15


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_bias_of_one_sided_stencils_is_estimated_from_what_they_show(outputs: int) -> None:
    f = Cosines(6, 9, outputs=outputs)
    x = in_ball(80, 6, 2.0, np.random.default_rng(1))
    h = 1e-3
    one, two = stencil(f, 6, h), stencil(f, 6, h, centred=True)
    hessians, unbiased = one.hessians(x, 6)[0], two.hessians(x, 6)[0]
    estimated = StencilBias.estimate(x, hessians, f.directions, one.basis)
    assert estimated is not None
    bias = hessians - unbiased
    assert np.linalg.norm(bias - estimated.of_hessians(h)) < 0.1 * np.linalg.norm(bias)
    at, rows, columns = np.array([3, 60]), np.arange(2), np.arange(3, 6)
    bias = one.mixed(x[at], rows, columns) - two.mixed(x[at], rows, columns)
    of_pairs = estimated.of_pairs(at, h, one.basis[rows], one.basis[columns])
    assert np.linalg.norm(bias - of_pairs) < 0.1 * np.linalg.norm(bias)


def test_a_curve_is_laid_through_no_handful_of_points() -> None:
    f = Cosines(4, 3)
    x = in_ball(10, 4, 2.0, np.random.default_rng(1))
    d = stencil(f, 4, 1e-3)
    assert StencilBias.estimate(x, d.hessians(x, 4)[0], f.directions, d.basis) is None


@pytest.mark.parametrize("centred", [False, True])
def test_difference_hessians_cost_what_they_say_and_agree_with_analysis(centred: bool) -> None:
    f = Cosines(7, 5)
    d = stencil(f, 7, 1e-4, centred=centred)
    x = in_ball(4, 7, 2.0, np.random.default_rng(1))
    found, _ = d.hessians(x, 7)
    assert d.ask.spent == 4 * d.cost(7)
    assert centred or d.cost(7) == 1 + 7 + 7 * 8 // 2
    truth = np.einsum("ai,mpij,bj->mpab", d.basis, f.hessian(x), d.basis)
    assert np.allclose(unpack(found), truth, atol=2e-3)
    mixed = d.mixed(x, np.arange(2), np.arange(4, 7))
    assert np.allclose(mixed, truth[:, :, :2, 4:], atol=2e-3)
    assert d.ask.spent == 4 * (d.cost(7) + d.mixed_cost(2, 3))


def test_widening_keeps_the_block_that_is_known() -> None:
    f = Cosines(8, 5, outputs=2)
    d = stencil(f, 8, 1e-4)
    x = in_ball(3, 8, 2.0, np.random.default_rng(1))
    narrow, _ = d.hessians(x, 5)
    spent = d.ask.spent
    wide, _ = d.hessians(x, 8, narrow)
    assert d.ask.spent - spent == 3 * d.cost(8, 5) < 3 * d.cost(8)
    assert np.allclose(wide, d.hessians(x, 8)[0], atol=1e-5)


def test_gradients_give_the_same_hessians_for_fewer_queries() -> None:
    f = Cosines(8, 5, outputs=3)
    basis = random_basis(8, 8, np.random.default_rng(0))
    g = Gradients(Meter(f.gradient, 10**6), basis, 1e-6, 0.0)
    x = in_ball(3, 8, 2.0, np.random.default_rng(1))
    truth = np.einsum("ai,mpij,bj->mpab", basis, f.hessian(x), basis)
    narrow, _ = g.hessians(x, 5)
    wide, _ = g.hessians(x, 8, narrow)
    assert np.allclose(unpack(wide), truth, atol=1e-4)
    assert np.allclose(g.mixed(x, np.arange(2), np.arange(4, 8)), truth[:, :, :2, 4:], atol=1e-4)
    assert g.ask.spent == 3 * (g.cost(5) + g.cost(8, 5) + g.mixed_cost(2, 4))


def test_smoothed_hessian_of_a_kink_is_that_of_the_smoothed_kink() -> None:
    # the second derivative of E|z + t + ηξ| is 2φ((z + t)/η)/η
    v = random_directions(1, 4, np.random.default_rng(0))[0]
    d = stencil(lambda x: np.abs(x @ v + 0.1)[:, None], 4, 1e-3)
    source = Smoothed(d, 0.3, 20.0, np.random.default_rng(1), oversample=100.0)
    found, error = source.hessians(np.zeros((40, 4)), 4)
    bend = 2.0 * np.exp(-0.5 * (0.1 / 0.3) ** 2) / np.sqrt(2.0 * np.pi) / 0.3
    off = found[:, 0] - bend * squares((d.basis @ v)[None])
    assert np.linalg.norm(off.mean(axis=0)) < 0.1 * bend
    assert 0.3 < np.sqrt(np.mean(off**2)) / error < 3.0


def test_smoothed_hessians_are_consistent() -> None:
    # errors fall like the square root of the number of samples
    v = random_directions(1, 4, np.random.default_rng(0))[0]
    d = stencil(lambda x: np.maximum(x @ v, 0.0)[:, None], 4, 1e-3)
    truth = squares((d.basis @ v)[None]) / np.sqrt(2.0 * np.pi) / 0.3
    errors = []
    for oversample in (20.0, 80.0, 320.0):
        runs = [Smoothed(d, 0.3, 20.0, np.random.default_rng(s), oversample=oversample) for s in range(20)]
        off = [r.hessians(np.zeros((1, 4)), 4)[0][0] - truth for r in runs]
        errors.append(np.sqrt(np.mean(np.square(off))))
    slope = np.polyfit(np.log([20.0, 80.0, 320.0]), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.15


@pytest.mark.parametrize("centred", [False, True])
def test_a_dropped_pair_is_asked_again_across(centred: bool) -> None:
    f = Cosines(5, 4)
    calls: list[int] = []

    def ask(x: Floats) -> Floats:
        values = f(x)
        if len(calls) == 1:  # the first call are the axes, the second the pairs
            values[3] = np.nan
        calls.append(len(x))
        return values

    d = stencil(ask, 5, 1e-3, centred=centred)
    found, _ = d.hessians(np.full((2, 5), 0.3), 5)
    assert calls[-1] == 1
    assert np.allclose(found[0], found[1], atol=1e-4 if centred else 1e-2)
    assert not np.array_equal(found[0], found[1])


# --- spans and their rank-one members


@pytest.mark.parametrize(("dim", "count"), [(8, 20), (12, 45), (20, 130)])
def test_rank_is_read_from_the_drop(dim: int, count: int) -> None:
    rng = np.random.default_rng(dim)
    squared = squares(random_directions(count, dim, rng))
    rows = rng.standard_normal((count + count // 10 + 3, count)) @ squared
    span = span_of(rows + 1e-7 * rng.standard_normal(rows.shape), 1e-7)
    assert span.clear
    assert span.rank == count


def test_an_exact_span_drops_to_nothing() -> None:
    rows = np.zeros((12, 6))
    rows[:, :2] = np.random.default_rng(0).standard_normal((12, 2))
    span = span_of(rows, 1e-9)
    assert span.rank == 2
    assert 1e6 < span.drop < 1e20


def test_no_drop_is_said_to_be_none() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((30, 55))
    assert not span_of(rows, 1e-6).clear
    assert numerical_rank(np.full(10, 1e-9), 1e-6, 10) == (0, True)


def test_errors_with_structure_are_no_feature() -> None:
    """Errors that fall by 2.5 and more across their own floor are no rank if all features are far above them."""
    errors = np.array([8e-7, 1e-7, 5e-8, 4e-8])
    assert numerical_rank(np.concatenate([[3.0, 1.0, 0.5], errors]), 4e-7, 20) == (3, True)
    assert numerical_rank(np.concatenate([[3e-3, 1e-3, 5e-4], errors]), 4e-7, 20) == (4, True)  # it may be a weak one


@pytest.mark.parametrize("size", [6, 400])
def test_rounding_of_a_gram_matrix_is_no_rank(size):
    """Rows whose other singular values are 1e-15 of the largest have rank one, whatever their number and size."""
    rng = np.random.default_rng(size)
    one = rng.standard_normal((3 * size, 1)) * rng.standard_normal(size)
    span = span_of(one, 1e-16)
    assert (span.rank, span.clear) == (1, True)


def test_members_far_below_the_largest_are_kept():
    """A Gram matrix has lost singular values of 1e-9 of the largest; they are found all the same."""
    rng = np.random.default_rng(5)
    basis = np.linalg.qr(rng.standard_normal((400, 20)))[0].T
    rows = (rng.standard_normal((600, 20)) * np.geomspace(1.0, 1e-9, 20)) @ basis
    span = span_of(rows, 1e-15)
    assert (span.rank, span.clear) == (20, True)
    assert np.linalg.norm(basis - basis @ span.basis.T @ span.basis) < 1e-4


@pytest.mark.parametrize(("dim", "features"), [(2, 0), (5, 3), (12, 0), (30, 0)])
def test_a_quadratic_form_has_the_axes_of_its_matrix(dim, features):
    """Its Hessian is the same everywhere: one matrix that no rank-one member explains."""
    rng = np.random.default_rng(dim)
    axes = random_basis(dim, dim, rng)
    form = (axes.T * np.linspace(-1.0, 2.0, dim)) @ axes
    others = random_directions(features, dim, rng)

    def f(X):
        return np.einsum("md,de,me->m", X, form, X) + np.tanh(2.0 * X @ others.T).sum(axis=1)

    found = rs.extract(f, dim=dim, rng=dim)
    assert found.certificate.met
    assert len(found.features) == dim + features
    assert rs.match(found.directions, others, within=1e-3).share(1e-3) == 1.0 or not features
    if not features:
        assert rs.match(found.directions, axes).angles.max() < 1e-3


@pytest.mark.parametrize(("dim", "count", "seed"), [(6, 10, 0), (10, 30, 1), (16, 80, 2)])
def test_every_rank_one_member_is_found(dim: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = random_directions(count, dim, rng)
    q, _ = np.linalg.qr(squares(truth).T)
    found = members(MatrixSpace(np.ascontiguousarray(q.T)), rng, accept=0.999)
    match = rs.match(found.vectors, truth, within=1e-5)
    assert len(match.missed) == len(match.false) == 0
    assert np.allclose(found.inside, 1.0)


def test_twins_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    truth = random_directions(12, 10, rng)
    truth[1] = truth[0] + 0.05 * random_directions(1, 10, rng)[0]
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    q, _ = np.linalg.qr(squares(truth).T)
    found = members(MatrixSpace(np.ascontiguousarray(q.T)), rng, accept=1.0 - 1e-6)
    assert len(rs.match(found.vectors, truth, within=1e-3).missed) == 0


def test_polishing_converges_where_the_power_method_crawls() -> None:
    rng = np.random.default_rng(0)
    truth = random_directions(12, 6, rng)
    q, _ = np.linalg.qr(squares(truth).T)
    start = truth + 0.02 * rng.standard_normal(truth.shape)
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    ends, inside = MatrixSpace(np.ascontiguousarray(q.T)).polish(start)
    close = angle(ends, truth) < 1e-6
    assert np.mean(close) > 0.9
    assert np.allclose(inside[close], 1.0)


def test_distinct_is_blind_to_sign_and_keeps_the_best() -> None:
    e = np.eye(4)
    rows = np.stack([e[0], -e[0], e[1], e[2]])
    kept, scores = distinct(rows, np.array([0.5, 0.9, 0.7, 0.8]), same=0.03, known=e[2:3])
    assert np.allclose(kept, [-e[0], e[1]])
    assert np.allclose(scores, [0.9, 0.7])


# --- proposals


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dense_smooth_features_are_all_found(seed: int) -> None:
    target = planted(10, 25, SMOOTH, rng=seed)
    proposal, ask = run(target, 8_000, seed=seed)
    match = rs.match(proposal.directions, target.directions, within=0.01)
    assert len(match.missed) == len(match.false) == 0
    assert ask.queries <= 8_000


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_the_number_of_features_is_read_off(seed: int) -> None:
    target = planted(9, 26, SMOOTH, rng=seed)
    proposal, _ = run(target, 40_000, seed=seed)
    assert proposal.rank == 26
    assert proposal.complete


@pytest.mark.parametrize(
    ("dim", "count", "most"), [(12, 40, 8_000), pytest.param(20, 100, 28_000, marks=pytest.mark.heavy)]
)
def test_dense_features_within_a_budget(dim: int, count: int, most: int) -> None:
    target = planted(dim, count, SMOOTH, rng=11)
    proposal, _ = run(target, 30_000)
    assert rs.match(proposal.directions, target.directions).angles.max() < 3e-4
    assert proposal.rank == count
    assert proposal.complete
    assert proposal.queries <= most


@pytest.mark.parametrize("name", ["small", "mixed", "vector"])
@pytest.mark.parametrize("seed", [21, 22])
def test_kinks_do_not_hide_smooth_features(name: str, seed: int) -> None:
    target = CASES[name].make(seed)
    proposal, _ = run(target, 20_000, seed=seed)
    match = rs.match(proposal.directions, smooth_directions(target), within=0.01)
    assert len(match.missed) == 0
    assert len(match.false) <= 1


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.heavy)])
def test_restricted_and_lifted(seed: int) -> None:
    target = planted(40, 60, SMOOTH, rng=seed)
    proposal, ask = run(target, 40_000, seed=seed)
    match = rs.match(proposal.directions, target.directions, within=0.05)
    assert len(match.missed) == len(match.false) == 0
    assert ask.queries < 60 * (1 + 40 + 40 * 41 // 2)  # fewer than n full Hessians


def test_gradients_are_used_where_offered() -> None:
    f = Cosines(30, 40, outputs=2, seed=5)
    setting = Setting(30, 2, 3.0, np.inf, 3.0, 1e-12, 3.0, gradient=f.gradient)
    proposal = run_proposer(Curvature(), f, setting, queries=3_000, rng=np.random.default_rng(0))
    assert rs.match(proposal.directions, f.directions).share(0.05) == 1.0
    values = replace(setting, gradient=None)
    assert (
        8 * proposal.queries
        < run_proposer(Curvature(), f, values, queries=30_000, rng=np.random.default_rng(0)).queries
    )


@pytest.mark.parametrize("seed", range(5, 9))
def test_twins_case(seed: int) -> None:
    """With what `extract` allows; a third of it would have to do with one-sided stencils, and lose some twins."""
    target = CASES["twins"].make(seed)
    proposal, _ = run(target, 15_600)
    assert len(rs.match(proposal.directions, target.directions, within=0.03).missed) == 0


@pytest.mark.parametrize("kind", ["uniform", "adversarial"])
def test_noise_of_a_thousandth(kind: str) -> None:
    target = planted(10, 12, SMOOTH, rng=2, noise=2e-3, noise_kind=kind)  # type: ignore[arg-type]
    proposal, _ = run(target, 40_000)
    match = rs.match(proposal.directions, target.directions)
    assert match.share(0.1) >= 0.8
    assert len(match.false) <= 5


def test_kinks_alone_are_found_through_smoothing() -> None:
    target = planted(8, 5, ("relu", "abs", "triangle"), rng=1)
    proposal, _ = run(target, 40_000)
    assert rs.match(proposal.directions, target.directions).share(0.15) >= 0.8


@pytest.mark.parametrize(("kinds", "noise"), [(SMOOTH, 0.0), (("relu",), 0.0), (SMOOTH, 0.05)])
@pytest.mark.parametrize("queries", [100, 700, 9_000])
def test_reach_and_budget_are_kept(kinds: tuple[str, ...], noise: float, queries: int) -> None:
    target = planted(9, 12, kinds, rng=1, noise=noise)
    proposal, ask = run(target, queries, reach=2.0)
    assert ask.queries <= queries
    assert ask.farthest <= 2.0
    assert np.allclose(np.linalg.norm(proposal.directions, axis=1), 1.0)
    assert proposal.note


def test_dropped_answers_are_tolerated() -> None:
    target = planted(10, 20, SMOOTH, rng=4)
    proposal, _ = run(target, 20_000, drop=0.01)
    assert rs.match(proposal.directions, target.directions).share(0.01) == 1.0
    nothing, _ = run(target, 20_000, drop=1.0)
    assert len(nothing.directions) == 0


def test_too_many_features_are_admitted() -> None:
    target = CASES["extreme"].make(0)
    proposal, ask = run(target, 100_000)
    assert len(proposal.directions) == 0
    assert not proposal.resolved
    assert proposal.rank is None
    assert not proposal.complete
    assert ask.queries < 2_000


def test_as_many_members_as_a_smaller_space_has_products_are_no_features() -> None:
    """136 = 16·17/2 squares of vectors of U fill Sym(U), whatever the error of the span; those of R²⁴ do not."""
    rng = np.random.default_rng(0)
    inside = random_directions(136, 16, rng) @ random_basis(16, 24, rng)
    for drop in (15.0, 1e4, 1e10):
        off = unit(inside + min(0.3 / drop, 1e-2) * rng.standard_normal(inside.shape) / np.sqrt(24.0))
        assert filled_block(off, 2, drop) == 16
        assert not filled_block(random_directions(136, 24, rng), 2, drop)
        assert not filled_block(inside[:100], 2, drop)  # a space of 16 dimensions has room for 120 features
    assert not filled_block(np.empty((0, 5)), 2, 10.0)


@pytest.mark.parametrize("apart", [0.02, 0.5])
def test_two_features_close_together_are_two_features(apart: float) -> None:
    close = np.array([[np.cos(apart), np.sin(apart), 0.0], [1.0, 0.0, 0.0]])
    assert not any(filled_block(close, 2, drop) for drop in (5.0, 1e3, 1e8))


def test_an_affine_function_has_no_curvature() -> None:
    setting = Setting(6, 1, 3.0, np.inf, 1.0, 1e-13, 3.0)
    affine = lambda x: x[:, :1] - 2.0 * x[:, 1:2]  # noqa: E731
    proposal = Curvature().propose(affine, setting, queries=20_000, rng=np.random.default_rng(0))
    assert len(proposal.directions) == 0


def test_same_seed_same_bits() -> None:
    target = planted(8, 10, SMOOTH, rng=4)
    first, _ = run(target, 5_000, seed=7)
    again, _ = run(target, 5_000, seed=7)
    assert np.array_equal(first.directions, again.directions)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [31, 32, 33])
def test_the_large_case(seed: int) -> None:
    target = CASES["large"].make(seed)
    proposal, ask = run(target, 200_000, seed=seed)
    match = rs.match(proposal.directions, target.directions)
    assert len(match.missed) == len(match.false) == 0
    assert ask.queries <= 200_000


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(40, 48))
@pytest.mark.parametrize(
    "name", ["first", "small", "mixed", "superposed", "dense", "vector", "twins", "waves", "lowrank"]
)
def test_standard_cases(name: str, seed: int) -> None:
    target = CASES[name].make(seed)
    proposal, _ = run(target, 60_000, seed=seed)
    assert rs.match(proposal.directions, smooth_directions(target)).share(0.1) == 1.0


@pytest.mark.parametrize("curved", [0, 3])
def test_a_quadratic_form_has_as_few_axes_as_it_can(curved):
    """Two squares have two axes, beside tanhs and without, and one if the other direction is known."""
    rng = np.random.default_rng(1)
    squared, bent = random_directions(2, 8, rng), random_directions(curved, 8, rng)

    def f(X: Floats) -> Floats:
        return np.asarray(((X @ squared.T) ** 2 @ [0.5, 0.3] + np.tanh(2.0 * X @ bent.T).sum(axis=1))[:, None])

    for known, axes in ((0, 2), (1, 1)):
        setting = Setting(8, 1, 3.0, np.inf, 1.0, 1e-15, 4.0, proposed=squared[:known])
        found = run_proposer(Curvature(), f, setting, queries=50_000, rng=np.random.default_rng(2))
        assert len(found.directions) == curved + axes


def test_responses_of_quadratic_pieces_are_found_as_well_as_smooth_ones():
    """Their second derivatives jump, so that curves fitted to these are wrong about the bias of one-sided stencils."""
    rng = np.random.default_rng(2)
    ends = rng.uniform(-1.0, 1.0, (24, 2))

    def pieces(z: Floats, t: Floats) -> Floats:
        return np.asarray(np.maximum(z - t[0], 0.0) ** 2 - 0.7 * np.maximum(z - t[1], 0.0) ** 2)

    target = planted(20, 24, [partial(pieces, t=t) for t in ends], rng=2)
    proposal, _ = run(target, 30_000)
    match = rs.match(proposal.directions, target.directions)
    assert match.angles.max() < 1e-4
    assert (match.angles <= 2.0 * proposal.angle_errors[match.partner]).all()


def test_derivatives_that_noise_hides_may_be_as_large_as_noise():
    """Taken for zero they let stencils be as long as the ball permits, whose bias fills the span of all Hessians."""
    d, noise, step, longest = 8, 6e-8, 0.11, 0.45
    rng = np.random.default_rng(0)
    V = unit(rng.standard_normal((12, d)))

    def f(X):
        return (0.1 * np.sin(X @ V.T).sum(axis=1) + noise * rng.standard_normal(len(X)))[:, None]

    setting = Setting(d, 1, 3.0, np.inf, 1.0, noise, 2.0)
    for _ in range(40):
        sizes = derivative_sizes(f, setting, in_ball(8, d, 2.0, rng), step, rng)
        h, error = sizes.centred_step(noise, longest)
        points = in_ball(200, d, 2.0, rng)
        q = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
        exact = -0.1 * (np.sin(points @ V.T) * (V @ q[0]) * (V @ q[1])).sum(axis=1)
        nodes = [f(points + h * (a * q[0] + b * q[1]))[:, 0] for a, b in ((1, 1), (-1, -1), (1, -1), (-1, 1))]
        found = (nodes[0] + nodes[1] - nodes[2] - nodes[3]) / (4.0 * h**2)
        assert np.sqrt(np.mean((found - exact) ** 2)) < 4.0 * error
