"""What a function is, from derivatives, kinks and rays: a sum of features or something else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

import ridgescope as rs
from ridgescope.geometry import in_ball, random_directions
from ridgescope.search import Setting
from ridgescope.search.spans import hessian_queries
from ridgescope.structure import Evidence, Kind, assess, classify, examine
from ridgescope.survey import bandwidth
from ridgescope.targets.planted import SMOOTH

RADIUS = 3.0


def look(function, dim, *, seed=0, noise=None, queries=40_000, reach=np.inf):
    """The evidence of one examination, in all coordinates; every point is checked against the reach."""
    rng = np.random.default_rng(seed)

    def ask(X):
        assert np.linalg.norm(X, axis=1).max() <= min(reach, RADIUS) * (1.0 + 1e-12)
        return np.asarray(function(X), dtype=np.float64).reshape(len(X), -1)

    values = ask(in_ball(256, dim, min(reach, RADIUS), rng))
    std = float(np.sqrt(np.mean(np.nanvar(values, axis=0))))
    noise = noise or 3e-16 * float(np.nanmax(np.abs(values)))
    wave = bandwidth(ask, dim, min(reach, RADIUS) * 0.999, noise, rng)
    return examine(ask, Setting(dim, values.shape[1], RADIUS, reach, std, noise, wave), queries=queries, rng=rng)


def swiglu(d, n, seed):
    rng = np.random.default_rng(seed)
    g, u, o = 2.0 * random_directions(n, d, rng), random_directions(n, d, rng), rng.standard_normal(n)
    return lambda X: (X @ g.T * expit(X @ g.T) * (X @ u.T)) @ o


# -- sums ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "n"), [(3, 4), (6, 10), (8, 12)])
def test_a_smooth_sum_has_the_rank_and_the_members_of_its_features(d, n):
    found = look(rs.targets.planted(d, n, SMOOTH, rng=5), d)
    assert (found.rank, found.members, found.partners, found.block_dim) == (n, n, 0, 0)
    assert found.drop > 1e3
    assert classify(found) is Kind.SUM


def test_sixty_kinks_leave_no_curvature():
    found = look(rs.targets.CASES["relu"].make(1000), 20, noise=1e-17)  # too little: rounding shows in all of a stencil
    assert (found.rank, classify(found)) == (0, Kind.SUM)


def test_the_bias_of_stencils_is_no_second_feature():
    assert [look(rs.targets.planted(5, 1, ("tanh",), rng=seed), 5).rank for seed in range(1000, 1005)] == [1] * 5


@pytest.mark.parametrize("seed", [5, 6, 1000, 1001])
def test_kinks_of_a_sum_go_on_along_their_hyperplanes(seed):
    found = look(rs.targets.planted(6, 10, ("relu",), rng=seed), 6)
    assert found.rank == 0
    assert found.kinks >= 10
    assert found.followed >= 30
    assert found.continued > 0.95
    assert classify(found) is Kind.SUM


@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_smooth_features_are_counted_beside_kinks(precision):
    target = rs.targets.planted(6, 8, ("tanh", "relu"), rng=5)
    found = look(lambda X: target(X).astype(precision), 6, noise=1e-7 if precision is np.float32 else None)
    assert (found.rank, found.members) == (4, 4)
    assert found.kinks > 0
    assert classify(found) is Kind.SUM


def test_polynomials_are_sums_in_many_ways():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 5))
    quadratic = look(lambda X: np.einsum("md,de,me->m", X, A, X), 5)
    assert (quadratic.rank, quadratic.members, quadratic.degree) == (1, 0, 2)
    cubics = look(rs.targets.planted(6, 8, ("polynomial",), rng=5), 6)
    assert (cubics.rank, cubics.degree) == (7, 3)  # Hessians affine in x span d + 1 dimensions
    assert classify(quadratic) is classify(cubics) is Kind.SUM


def test_in_one_dimension_everything_is_one_feature():
    assert classify(look(lambda X: np.sin(3.0 * X[:, 0]), 1)) is Kind.SUM


@pytest.mark.parametrize(("d", "n", "order"), [(2, 5, 5), (4, 14, 3), (6, 30, 3)])
def test_higher_orders_tell_what_hessians_cannot(d, n, order):
    found = look(rs.targets.planted(d, n, SMOOTH, rng=5), d)
    assert (found.order, found.rank, found.members) == (order, n, n)
    assert classify(found) is Kind.SUM


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("precision", [np.float64, np.float32])
@pytest.mark.parametrize(
    "case", ["first", "small", "mixed", "superposed", "extreme", "waves", "twins", "vector", "relu"]
)
def test_no_sum_is_taken_for_something_else(case, precision, seed):
    target = rs.targets.CASES[case].make(1000 + seed)
    noise = 1e-7 if precision is np.float32 else None
    found = look(lambda X: target(X).astype(precision), target.dim, seed=seed, noise=noise)
    assert not classify(found).excludes_sum
    assert classify(found) not in (Kind.DEPTH, Kind.JUMPS)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(10))
def test_wide_gated_sums_of_any_seed(seed):
    found = look(swiglu(12, 20, 1000 + seed), 12, seed=seed)
    assert (found.rank, found.members, found.partners) == (40, 20, 20)


# -- other functions ----------------------------------------------------------------------------------------


def test_every_gated_unit_has_its_partner():
    found = look(swiglu(6, 4, 5), 6)
    assert (found.rank, found.members, found.partners) == (8, 4, 4)
    assert classify(found) is Kind.GATED


def test_gated_units_without_room_for_hessians_show_in_third_derivatives():
    found = look(swiglu(5, 6, 5), 5)
    assert (found.order, found.rank, found.members, found.partners) == (3, 12, 6, 6)
    assert classify(found) is Kind.GATED


def test_depth_fills_every_space_that_is_tried():
    rng = np.random.default_rng(5)
    first, second = rng.standard_normal((16, 8)) / np.sqrt(8.0), rng.standard_normal((16, 16)) / 4.0
    found = look(lambda X: np.tanh(2.0 * np.tanh(X @ first.T + 0.5) @ second.T).sum(axis=1), 8)
    assert found.filled
    assert (found.order, found.least_features) == (3, 84)
    assert classify(found) is Kind.DEPTH


def test_what_rays_show_is_asked_before_wider_hessians():
    """In 24 dimensions derivatives that fill everything would take half a million queries."""
    inner = rs.targets.planted(24, 40, ("tanh",), rng=5)
    normalised = look(lambda X: inner(X / np.sqrt(np.mean(X**2, axis=1, keepdims=True) + 1e-5)), 24, queries=10**6)
    radial = look(lambda X: np.exp(-0.1 * np.sum((X - 0.1) ** 2, axis=1)), 24, queries=10**6)
    assert (classify(normalised), classify(radial)) == (Kind.NORMALISED, Kind.RADIAL)
    assert max(normalised.queries, radial.queries) < 40_000


def test_the_queries_for_hessians_show_depth_in_many_dimensions():
    """A block of 16 of 24 directions has a rank of 136, and forty hidden units fill whatever is tried."""
    rng = np.random.default_rng(5)
    for hidden, kind in ((16, Kind.BLOCK), (40, Kind.DEPTH)):
        first, second = rng.standard_normal((hidden, 24)) / 5.0, rng.standard_normal((hidden, hidden)) / 4.0
        deep = lambda X, a=first, b=second: np.tanh(2.0 * np.tanh(X @ a.T + 0.5) @ b.T).sum(axis=1)  # noqa: E731
        found = look(deep, 24, queries=hessian_queries(24, 1))
        assert classify(found) is kind
        assert found.block_dim == (16 if kind is Kind.BLOCK else 0)


def test_a_product_is_a_block_of_two_directions():
    found = look(lambda X: np.sin(X[:, 0] * X[:, 1]) + np.tanh(2.0 * X[:, 2]), 6)
    assert (found.rank, found.block_dim) == (4, 2)
    assert classify(found) is Kind.BLOCK


@pytest.mark.parametrize(("d", "seed"), [(48, 5), (48, 7), (64, 0)])
def test_members_that_fill_a_block_are_no_features(d, seed):
    """Where singular values hardly drop, almost anything in the span of a product of four passes for a member."""
    found = look(lambda X: np.sin(np.prod(X[:, :4], axis=1)), d, seed=seed)
    assert found.drop < 30.0
    assert found.block_dim == 4
    assert classify(found) is not Kind.SUM


def test_attention_is_a_block_of_the_differences_of_its_keys():
    rng = np.random.default_rng(3)
    keys, values = rng.standard_normal((4, 6)), rng.standard_normal(4)

    def head(X):
        score = np.exp(X @ keys.T / np.sqrt(6.0))
        return score @ values / score.sum(axis=1)

    found = look(head, 6)
    assert (found.rank, found.block_dim) == (6, 3)  # four keys have three differences, and 3·4/2 products
    assert classify(found) is Kind.BLOCK


def test_behind_a_norm_f_does_not_vary_along_rays():
    inner = rs.targets.planted(6, 9, ("tanh",), rng=5)
    slope = np.arange(6.0)
    found = look(lambda X: X @ slope + inner(X / np.sqrt(np.mean(X**2, axis=1, keepdims=True) + 1e-5)), 6)
    assert found.ray_power < 1e-3
    assert classify(found) is Kind.NORMALISED


@pytest.mark.parametrize("centre", [0.0, 0.5])
def test_a_function_of_a_distance_has_all_but_one_eigenvalues_equal(centre):
    found = look(lambda X: np.exp(-0.3 * np.sum((X - centre) ** 2, axis=1)), 4)
    assert found.equal < 1e-4
    assert (found.ray_power > 0.999) == (centre == 0.0)
    assert classify(found) is Kind.RADIAL


def test_kinks_of_a_maximum_end():
    found = look(lambda X: X.max(axis=1), 6)
    assert found.rank == 0
    assert found.continued < 0.6
    assert classify(found) is Kind.KINKS


def test_a_step_stays_however_close_the_points_are():
    found = look(lambda X: np.floor(X[:, 0] + 0.5 * X[:, 1]), 3)
    height = 1.0 / np.std(np.floor(in_ball(4000, 3, RADIUS, np.random.default_rng(0)) @ [1.0, 0.5, 0.0]))
    assert found.jumps == pytest.approx(height, rel=0.1)
    assert classify(found) is Kind.JUMPS


@pytest.mark.parametrize(("steepness", "noise"), [(1e4, 0.0), (300.0, 3e-3)])
def test_a_steep_slope_is_no_jump(steepness, noise):
    fresh = np.random.default_rng(0)
    found = look(
        lambda X: np.tanh(steepness * (X[:, 0] + 0.5 * X[:, 1])) + noise * fresh.standard_normal(len(X)), 3, noise=noise
    )
    assert found.jump_count == 0


def test_noise_is_no_structure():
    fresh = np.random.default_rng(0)
    target = rs.targets.planted(5, 6, SMOOTH, rng=5)
    found = look(lambda X: target(X) + 0.02 * fresh.standard_normal(len(X)), 5, noise=0.02)
    assert found.noise_ratio > 0.1
    assert classify(found) is Kind.NOISE


# -- the contract -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [0, 100, 2_000, 3_000, 5_000, 40_000])
def test_no_more_queries_than_allowed_and_all_are_counted(queries):
    target, asked = rs.targets.planted(6, 10, ("tanh", "relu"), rng=5), []

    def counted(X):
        asked.append(len(X))
        return target(X)[:, None]

    setting = Setting(6, 1, RADIUS, 2.0, 1.0, 1e-15, 3.0)
    found = examine(counted, setting, queries=queries, rng=np.random.default_rng(0))
    assert found.queries == sum(asked) <= queries


def test_dropped_answers_are_borne():
    target = rs.targets.planted(5, 6, SMOOTH, rng=5)
    fresh = np.random.default_rng(1)
    for queries in (3_000, 4_000, 40_000):
        found = look(lambda X: np.where(fresh.random(len(X)) < 0.01, np.nan, target(X)), 5, queries=queries)
    assert (found.rank, found.members) == (6, 6)


def test_nothing_is_asked_beyond_the_reach():
    found = look(rs.targets.planted(6, 10, ("tanh", "relu"), rng=5), 6, reach=2.0)  # `look` checks every point
    assert found.members == 5
    assert found.followed > 0


def test_the_same_generator_gives_the_same_evidence():
    target = rs.targets.planted(4, 5, SMOOTH, rng=5)
    assert look(target, 4, seed=3) == look(target, 4, seed=3) != look(target, 4, seed=4)


def test_too_few_queries_determine_nothing():
    assert classify(look(rs.targets.planted(6, 10, SMOOTH, rng=5), 6, queries=200)) is Kind.UNDETERMINED


# -- what follows for a fit ---------------------------------------------------------------------------------

SUM = Evidence(6, 6, 21, 60, rank=10, room=True, drop=1e4, members=10)
KINKED = Evidence(6, 6, 21, 60, rank=0, room=True, bend=0.1, kinks=20, followed=60)


def test_bends_that_nothing_explains_determine_nothing():
    assert classify(KINKED) is Kind.SUM
    assert classify(replace(KINKED, followed=0)) is Kind.UNDETERMINED
    assert classify(replace(KINKED, followed=0, kinks=0, bend=0.0)) is Kind.SUM  # an affine function


def test_tangents_that_chance_explains_determine_nothing():
    gated = replace(SUM, members=5, partners=5, chance=1e-20)
    assert classify(gated) is Kind.GATED
    assert classify(replace(gated, chance=1e-4)) is Kind.UNDETERMINED


def test_rays_say_nothing_where_hessians_do_not_fill_the_space():
    full = Evidence(6, 6, 21, 60, filled=True, ray_power=1e-5)
    assert classify(full) is Kind.NORMALISED
    assert classify(replace(full, filled=False)) is Kind.UNDETERMINED


@pytest.mark.parametrize(
    ("evidence", "features", "certified", "verdict"),
    [
        (SUM, 10, True, "exact"),
        (SUM, 10, False, "unknown"),
        (SUM, 9, True, "approximate"),
        (SUM, 12, True, "unknown"),
        (KINKED, 12, True, "exact"),
        (replace(KINKED, continued=0.3), 12, True, "approximate"),
        (replace(KINKED, followed=0), 12, True, "unknown"),
        (replace(SUM, members=5, partners=5), 12, True, "approximate"),
        (replace(SUM, room=False, members=0), 10, True, "exact"),
        (replace(SUM, room=False, members=0), 9, True, "approximate"),
        (Evidence(6, 6, 21, 60, filled=True), 17, True, "approximate"),
        (Evidence(6, 6, 21, 60, filled=True), 30, True, "unknown"),
        (Evidence(6, 6, 21, 60, noise_ratio=0.5), 10, True, "unknown"),
        (Evidence(6, jump_count=3, jumps=0.2), 10, True, "unknown"),
    ],
)
def test_verdicts(evidence, features, certified, verdict):
    told = assess(evidence, features=features, certified=certified)
    assert told.verdict == verdict
    assert told.kind is classify(evidence)
    assert told.evidence["dim"] == evidence.dim
    assert np.isnan(told.evidence["rank"]) == (evidence.rank is None)
    assert told.sentence.endswith(".")


def test_kinks_that_end_are_no_noise():
    """A sort in single precision: kinks are steeper than any stencil, and the Hessians look like noise."""
    evidence = Evidence(6, noise_ratio=0.6, followed=70, continued=0.25, kinks=20)
    assert classify(evidence) is Kind.KINKS
    assert classify(replace(evidence, continued=1.0)) is Kind.NOISE
