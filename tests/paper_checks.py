"""Checks of the paper's formulas at parameters where both sides are of one size, so that a wrong formula fails them.

Each check is a function that raises AssertionError. The tests of `tests/paper` call it with the formulas as they are,
`test_mutants.py` with one of them replaced by a wrong one, where it must fail. Formulas are looked up in their module
at every call, since that is where a mutant is put.
"""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np

from ridgescope.paper import (
    Settings,
    all_pairs,
    directions,
    identifiability,
    lemmas,
    mass,
    reduction,
    response,
    weights,
)
from ridgescope.paper.inequalities import Problem, response_rows, search_rows

plan = import_module("ridgescope.paper.plan")  # `ridgescope.paper.plan` is the function of that name
ONE = np.ones_like
EVERY_SCALE = (1.0, 3.0)


def within(sides: lemmas.Sides, at_least: float = 0.0) -> None:
    """left ≤ right, and left is at least the given share of right, so that the bound says something here."""
    assert sides.holds, sides
    assert sides.left >= at_least * sides.right, sides


# Algorithm 1, Algorithm 3 and their concentration


def mass_within_its_bound() -> None:
    """Corollary concentration for f = 1 with errors ε everywhere: mass 1·ℓ^d/√det(ℓ² + A), bias 2ε + ε²."""
    d, ell, eps, delta, m = 2, 3.0, 0.05, 0.2, 100_000
    A = 0.5 * np.eye(d)
    exact = ell**d / math.sqrt(np.linalg.det(ell**2 * np.eye(d) + A))
    bound = mass.concentration_bound(m, delta, eps)
    assert bound < 0.6 * exact  # a bound that an estimate of zero breaks
    rng = np.random.default_rng(1)
    errors = [
        abs(mass.est_weight(lambda X: np.full(len(X), 1 + eps), ell, np.zeros(d), A, m, rng).scaled[0] - exact)
        for _ in range(4)
    ]
    assert max(errors) <= bound
    assert np.mean(errors) >= 0.15 * bound


def mass_fluctuates_within_its_bound() -> None:
    """The second term alone, for a wave of random phase: deviations fall like m^−½ and lie well inside."""
    omega, ell, rng = np.array([2.0, 0.0]), 3.0, np.random.default_rng(2)
    exact = lemmas.mass_of_waves(np.array([1.0]), omega[None], ell, omega, np.eye(2))
    for m, count in ((50, 200), (20_000, 40)):
        runs = [
            mass.est_weight(lambda X: np.cos(X @ omega), ell, omega, np.eye(2), m, rng).scaled[0] for _ in range(count)
        ]
        worst = float(np.quantile(np.abs(np.array(runs) - exact), 0.8))
        bound = mass.concentration_bound(m, 0.2)
        assert bound / 100 <= worst <= bound


def value_within_its_bound() -> None:
    """Claim val-concentration for f = 1 with errors ε everywhere: the value at 0 is ℓ^d, the bias ε."""
    d, ell, eps, delta, m = 2, 3.0, 0.05, 0.2, 100_000
    rng = np.random.default_rng(3)
    bound = response.value_bound(m, delta, eps)
    assert bound < 0.5
    got = response.est_value(lambda X: np.full(len(X), 1 + eps), ell, np.zeros(d), m, rng)
    error = abs(got.scaled[0] - 1)
    assert 0.15 * bound <= error <= bound
    np.testing.assert_allclose(got.value, got.scaled * ell**d)


def differences_multiply_waves_by_their_factor() -> None:
    """The α factor: Σ_k u_k·(difference along e_k) of cos(t u·x) is the wave itself times `derivative_factor`."""
    u, alpha, rng = np.array([0.6, -0.8, 0.0]), 0.7, np.random.default_rng(4)
    X = rng.standard_normal((50, 3))
    for t in (0.5, 2.0, 3.5):
        got = response.difference(lambda Y, t=t: np.cos(t * Y @ u), X, alpha) @ u
        factor = response.derivative_factor(np.array([t]), u, alpha)[0]
        np.testing.assert_allclose(got, np.real(factor * np.exp(1j * t * X @ u)), atol=1e-12)


# All pairs


WAVES = np.array([0.7, -0.4j, 0.5 + 0.2j])
OMEGA = np.array([[2.0, 0.3, -0.4], [-0.5, 1.1, 0.8], [0.2, 0.9, 0.9]])


def waves(X: np.ndarray) -> np.ndarray:
    """A sum of waves, whose masses have a closed form."""
    return np.real(np.exp(1j * X @ OMEGA.T) @ WAVES)


def bump(X: np.ndarray) -> np.ndarray:
    """A Gaussian of width 2 in all directions."""
    return np.exp(-np.sum(X**2, axis=1) / 8)


def all_pairs_are_unbiased() -> None:
    """Masses of waves in closed form: at points for A of any rank, in the plane, and along lines."""
    rng, ell, step = np.random.default_rng(5), 4.0, 0.25
    v = np.concatenate([OMEGA, OMEGA + 0.2, [[1.5, -1.5, 0.5]]])
    for A in (np.diag([3.0, 3.0, 2.0]), np.diag([4.0, 4.0, 0.0]), np.array([[2, 1, 0], [1, 2, 0], [0, 0, 1.0]])):
        exact = np.array([lemmas.mass_of_waves(WAVES, OMEGA, ell, p, A) for p in v])
        runs = [mass.est_weight(waves, ell, v, A, 1500, rng, "all_pairs").scaled for _ in range(25)]
        error = np.std(runs, axis=0) / math.sqrt(len(runs))
        assert np.all(np.abs(np.mean(runs, axis=0) - exact) <= 4.5 * error + 1e-3 * exact.max())
        assert error.max() <= 0.1 * exact.max()
    basis, K, grid = np.eye(3), np.array([5.0, 4.0, 6.0]), mass.Grid(step, 10)
    plane = all_pairs.plane_of_all_pairs(waves, ell, basis, K[:2], grid, m=60_000, rng=rng)
    A = np.diag([5.0, 4.0, 0.0])
    points = [np.array([step * i, step * j, 0.0]) for i in grid.multiples for j in grid.multiples]
    exact = np.array([lemmas.mass_of_waves(WAVES, OMEGA, ell, p, A) for p in points]).reshape(21, 21)
    assert np.all(np.abs(plane.scaled - exact) <= 5 * plane.stderr)
    assert np.median(plane.stderr) <= 0.002 * exact.max()
    alpha = np.array([[2.0, 0.25], [-0.5, 1.0]])
    lines = all_pairs.lines_of_all_pairs(waves, ell, basis, K, alpha, grid, m=60_000, rng=rng)
    points = [np.array([*a, step * j]) for a in alpha for j in grid.multiples]
    exact = np.array([lemmas.mass_of_waves(WAVES, OMEGA, ell, p, np.diag(K)) for p in points]).reshape(2, 21)
    assert np.all(np.abs(lines.scaled - exact) <= 5 * lines.stderr)
    assert np.median(lines.stderr) <= 0.005 * exact.max()
    # a Gaussian of width 2 has another mass on every slice: f̂⁽ˡ⁾ = p^{−d/2} e^{−|y|²/2p}, p = 1/4 + 1/ℓ²
    p = 1 / 4 + 1 / ell**2
    exact = p**-3 * math.sqrt(math.pi / (1 / p + 4)) * math.pi * p / (math.pi * ell**2) ** 1.5
    bump_metric = np.diag([4.0, 0.0, 0.0])
    runs = [mass.est_weight(bump, ell, np.zeros(3), bump_metric, 1500, rng, "all_pairs").scaled[0] for _ in range(40)]
    assert abs(np.mean(runs) - exact) <= 4.5 * np.std(runs) / math.sqrt(len(runs)) <= 0.25 * exact


def all_pairs_have_their_variance() -> None:
    """For answers ±1 at random, f has no mass: deviations and the stated floor are τ₀, by its formula."""
    rng, ell, m = np.random.default_rng(6), 3.0, 2048
    S, N = 64, 64

    def noise(X: np.ndarray) -> np.ndarray:
        return rng.choice([-1.0, 1.0], len(X))

    basis, K, grid = np.eye(3), np.array([3.0, 3.0, 2.0]), mass.Grid(0.3, 12)
    damped = np.sqrt(1 / np.sqrt(1 + 2 * ell**2 / K))
    one_slice = 1 / math.sqrt(S * N * (N - 1))
    planes = [all_pairs.plane_of_all_pairs(noise, ell, basis, K[:2], grid, m=m, rng=rng) for _ in range(8)]
    expected = one_slice * ell**2 / math.sqrt(K[0] * K[1]) * damped[0] * damped[1]
    away = grid.multiples[:, None] ** 2 + grid.multiples**2 >= 25  # near the origin ±y are not independent
    assert math.isclose(np.std([p.scaled[away] for p in planes]), expected, rel_tol=0.06)
    assert math.isclose(min(p.stderr.min() for p in planes), expected, rel_tol=1e-3)
    alpha = np.array([[2.0, 2.0], [-3.0, 1.5], [1.0, -4.0]])
    draws = math.sqrt(1 / 8 + 7 / 8 * damped[0] ** 2 * damped[1] ** 2)
    expected = one_slice * ell**3 / math.sqrt(np.prod(K)) * damped[2] * draws
    rows = [all_pairs.lines_of_all_pairs(noise, ell, basis, K, alpha, grid, m=m, rng=rng) for _ in range(25)]
    assert math.isclose(np.std([p.scaled for p in rows]), expected, rel_tol=0.1)
    assert math.isclose(min(p.stderr.min() for p in rows), expected, rel_tol=1e-3)


def all_pairs_state_their_error() -> None:
    """Where f has mass the stated error is the standard deviation over repetitions, and not the noise floor."""
    rng, ell = np.random.default_rng(7), 4.0
    runs = [mass.est_weight(waves, ell, OMEGA[0], np.eye(3), 8000, rng, "all_pairs") for _ in range(100)]
    deviation = float(np.std([r.scaled[0] for r in runs]))
    assert math.isclose(float(np.mean([r.stderr[0] for r in runs])), deviation, rel_tol=0.15)
    assert runs[0].queries == 16_000


# Section basic-properties


def truncation_error_is_bounded() -> None:
    """Claim truncated-inversion at ℓ = R = 1 for waves near the cutoff, where a fifth of the bound is reached."""
    shares = []
    for B, omega in ((1.0, 1.5), (1.5, 2.0), (4.0, 5.0)):
        sides = lemmas.truncation_error(lambda z, w=omega: np.cos(w * z), omega, 1.0, B, 1.0)
        within(sides)
        shares.append(sides.left / sides.right)
    assert max(shares) >= 0.15


def ramp(z: np.ndarray) -> np.ndarray:
    """From −½ to ½ on [−1, 1]: the least slope that makes a response (1, 1)-nondegenerate."""
    return np.clip(z / 2, -0.5, 0.5)


def hat(z: np.ndarray) -> np.ndarray:
    """The ramp that returns to zero, of little power: it has none at low frequencies."""
    return np.sign(z) * np.clip(np.minimum(np.abs(z) / 2, 1 - np.abs(z) / 2), 0, None)


def nondegenerate_responses_have_power() -> None:
    """Lemma nondegen-fourier, a quarter of whose right side the ramp has, and Corollary nonzero-weight-region.

    The corollary divides by the largest weight, that of |y| = ℓ, while a response of slope L has its power where
    |y| ≤ L/ε ≤ ℓ/20; so its bound is below the power by 8R²ℓ² or more, which is 3000 here.
    """
    R, eps, L = 1.0, 0.99, 0.5
    ell = 20 * (R + L) / eps
    for sigma in (ramp, hat):
        assert lemmas.nondegenerate(sigma, R, eps)
        assert not lemmas.nondegenerate(sigma, R, 1.01)
        assert not lemmas.nondegenerate(sigma, 0.9 * R, eps)
    sides = lemmas.nondegen_fourier(ramp, R, eps, ell)
    within(sides, at_least=0.2)
    sides = lemmas.nonzero_weight_region(hat, R, eps, ell)
    within(sides, at_least=2e-4)
    assert sides.left <= 1e-3 * sides.right
    a, B = lemmas.band(R, eps, ell)
    assert a == eps / (8 * math.sqrt(R * ell))
    assert math.exp(B / (4 * ell)) == math.exp(math.log(ell * R / eps))


def transforms_have_their_slope() -> None:
    """Claims lipschitz-fourier and fourier-lipchitz-2 for σ = sign, whose slope at 0 is √(2/π)·ℓ²."""
    for ell in EVERY_SCALE:
        y = np.linspace(-0.2, 0.2, 201) / ell
        within(lemmas.lipschitz_fourier(np.sign, ell, y), at_least=0.75)
        path = y[:, None] * np.array([1.0, 0.0])
        within(lemmas.lipschitz_fourier_many([np.sign], np.eye(2)[:1], ell, path), at_least=0.75)


# Section freq-finding


def where_weight_is_negligible() -> None:
    """Lemma where-zero for σ = 1, where it holds up to ℓ/√(ℓ² + ‖A‖), and for two features in nearly one direction."""
    V = np.array([[1.0, 0.0]])
    for a, c in ((1.0, 2.0), (4.0, 1.5), (0.2, 5.0)):
        sides = weights.where_zero([ONE], V, 1.0, np.array([0.0, c]), np.diag([0.0, a]), reach=7.0)
        within(sides, at_least=0.9 / math.sqrt(1 + a))
    close = np.array([[1.0, 0.0], [math.cos(0.05), math.sin(0.05)]])
    within(
        weights.where_zero([ONE, ONE], close, 1.0, np.zeros(2), np.diag([0.0, 0.3]), reach=7.0),
        at_least=0.7,
    )


def where_weight_is_not_negligible() -> None:
    """Lemma where-nonzero, step by step: the identity, the average over the band, the leakage, and their sum."""
    d, ell, alpha, beta = 2, 2.0, 3.0, 1.0
    A, v = alpha * np.eye(d), np.array([beta, 0.0])
    line = weights.mass_along_line(np.tanh, d, ell, alpha, beta, reach=7.0)
    grid = lemmas.mass_by_grid([np.tanh], np.eye(2)[:1], ell, v, A, reach=7.0)
    assert math.isclose(line, grid, rel_tol=1e-3)
    for alpha in (1.0, 1000.0):  # power spread evenly over the band is the worst case
        within(weights.best_in_band(np.ones_like, alpha, 0.1, 8.0), at_least=0.1)
    for alpha in (1.0, 4.0):
        across = np.array([0.0, 1.2])
        within(weights.leakage(ONE, across, np.array([1.0, 0.0]), 1.0, alpha, reach=7.0), at_least=0.4)
    n, d, ell, alpha, gamma, R, eps = 3, 4, 50.0, 7.0, 0.5, 2.0, 0.4
    a, B = eps / 8 / math.sqrt(R * ell), 4 * ell * math.log(ell * R / eps)
    outside = math.pi**1.5 * ell**6 / (ell**2 + alpha) ** 1.5
    kept = eps**2 / (64 * n * (1 + B * math.sqrt(alpha)) * R * ell**2)
    leaked = 4 * n * ell * math.exp(-alpha * ell**2 * gamma**2 * a**2 / (ell**2 + alpha))
    got = weights.where_nonzero_bound(n, d, ell, alpha, gamma, R, eps)
    assert math.isclose(got, outside * (kept - leaked), rel_tol=1e-9)
    # at α = 4ℓ²/d and ℓ = 10⁴ what leaks is negligible, and the bound is e⁻²Δ²/… as Lemma find-directions uses it
    got = weights.where_nonzero_bound(2, 2, 1e4, 2e8, 1.0, 1.0, 0.99)
    _, B = lemmas.band(1.0, 0.99, 1e4)
    alone = 0.99**2 / (64 * 2 * (1 + B * math.sqrt(2e8)) * 1e8)
    assert math.isclose(got, math.sqrt(math.pi / 3) * 1e4 * alone, rel_tol=1e-6)


def bases_are_as_separating_as_defined() -> None:
    """Definition 2d-separated: θ by hand, once set by the first condition and once by the second."""
    basis = np.eye(4)
    one = np.array([[0.6, 0.8, 0.0, 0.0]])
    assert math.isclose(lemmas.separating(one, basis), 0.6 * 2)
    two = np.array([[0.6, 0.8, 0.0, 0.0], [0.6, 0.5, math.sqrt(0.39), 0.0]])
    cross = 0.6 * 0.8 - 0.6 * 0.5
    assert math.isclose(lemmas.separating(two, basis), math.sqrt(4 * cross))


def random_bases_separate() -> None:
    """Claim anticoncentration: its θ makes the sum of its proof 1/(10n) at most, and that sum bounds what is observed.

    The claim itself holds with room: at its θ hardly a basis fails. So failures are counted at a larger θ, too.
    """
    rng = np.random.default_rng(3)
    for n in (1, 4, 40):
        assert lemmas.union_bound(n, lemmas.separation_of_bases(n, 1.0)) <= 1 / (10 * n)
    assert lemmas.separation_of_bases(2, 0.5) == 0.5 / 8000
    for d, n, theta in ((3, 1, 0.03), (8, 1, 0.03), (3, 4, 0.005)):
        V = rng.standard_normal((n, d))
        V /= np.linalg.norm(V, axis=1, keepdims=True)
        share = lemmas.not_separating(V, theta, trials=1500, rng=rng)
        assert share <= lemmas.union_bound(n, theta)
        assert share >= 0.02 * lemmas.union_bound(n, theta)
        gamma = min((math.sqrt(1 - (V[i] @ V[j]) ** 2) for i in range(n) for j in range(i)), default=1.0)
        within(lemmas.anticoncentration(V, gamma, trials=100, rng=rng))


def weight_is_kept_at_a_grid_point() -> None:
    """The pointwise step of Claim find-good-point at its worst: the largest offsets, and y on the far side."""
    shares = []
    for d in (3, 5, 40):
        w = directions.Widths(d, 1e9)
        K = w.diagonal(d)
        off = np.full(d, 1 / math.sqrt(5 * d * w.C1))
        off[[0, 1, d - 1]] = 1 / math.sqrt(10 * w.C2)
        far = -off * np.divide(K, 4 * w.C2 - K)  # where the exponents differ most
        for times in (1.0, 3.0, 9.0):
            sides = weights.good_point_weight(np.zeros(d), off, K, w.C2, times * far[None])
            within(sides)
            shares.append(sides.left / sides.right)
    assert max(shares) >= 0.52


def found_points_are_close() -> None:
    """The conclusion of Claim find-good-point, C₁^−0.2, for the largest offset, across, from the smallest point."""
    for ell in (1e2, 1e6):
        w = directions.Widths(5, ell)
        v = np.zeros(5)
        v[0] = w.cut + 1 / math.sqrt(10 * w.C2)
        alpha = v.copy()
        alpha[0] -= 1 / math.sqrt(10 * w.C2)
        alpha[2:] += math.sqrt((5 - 2) / (5 * 5 * w.C1) / 3)
        within(weights.good_point_direction(alpha, v, w.C1), at_least=0.3)


def widths_are_those_of_the_paper() -> None:
    """C₁, C₂, the grid, the disc, and the spacing 1/√(10dC₁) of 𝒮, which `blob` hides at affordable ℓ."""
    w = directions.Widths(4, 20.0)
    assert math.isclose(w.C2, 100.0)
    assert math.isclose(w.C1, 100.0**0.9)
    assert math.isclose(w.step, 1 / math.sqrt(1000))
    assert math.isclose(w.cut, w.C1**-0.3)
    np.testing.assert_allclose(w.diagonal(4), [w.C2, w.C2, w.C1, w.C2])
    for d, ell in ((4, 1e30), (9, 1e40)):
        w = directions.Widths(d, ell)
        assert math.isclose(w.reach(0.0) * w.step, 1 / math.sqrt(10 * d * w.C1), rel_tol=0.02)
    assert directions.Widths(4, 20.0).reach(1.5) == round(1.5 * math.sqrt(10))


# Section function-recovery and Section remove-bounded


def one_line_at_a_time() -> None:
    """Claim fourier-point-closeness: a wave off by the width of its tube, and features that leak into a silent line."""
    ell, t = 3.0, 12.0
    off = 1.6 / (ell * t)
    u = np.array([math.cos(off), math.sin(off)])
    wave = [lambda z: np.cos(t * z)]
    within(lemmas.fourier_point_closeness(wave, np.eye(2)[:1], 0, u, ell, np.array([t])), at_least=0.2)
    for at in (1.0, 1.5, 2.0):
        sides = lemmas.fourier_point_closeness(
            [np.zeros_like, ONE], np.eye(2), 0, np.eye(2)[0], ell, np.array([at / ell])
        )
        within(sides, at_least=0.45)
    aside = np.array([[1.0, 0.0], [math.cos(1.0), math.sin(1.0)]])
    t = 2.0 / ell
    leaking = [np.zeros_like, lambda z: np.cos(t * math.cos(1.0) * z)]
    within(lemmas.fourier_point_closeness(leaking, aside, 0, aside[0], ell, np.array([t])), at_least=0.24)


def derivatives_are_bounded_and_smooth() -> None:
    """Theorem main-learning for |z|, L = 1: |ρ| ≤ L, |ρ′| ≤ L/η, ‖g − f‖, and the difference."""
    z = np.linspace(-4, 4, 801)
    for eta in (0.02, 0.5):
        within(reduction.rho_size(np.sign, 1.0, eta, z), at_least=0.99)
        within(reduction.rho_slope(np.sign, 1.0, eta, z), at_least=0.75)
        within(reduction.smoothing_error(np.abs, 1.0, eta, z, 1), at_least=0.35)
        within(reduction.smoothing_error(np.abs, 1.0, eta, z, 4, n=3), at_least=0.15)
        within(reduction.difference_error(np.sign, 1.0, 0.3 * eta, eta, n=2), at_least=0.3)
    assert reduction.rho_size(np.sign, 1.0, 0.5, z, c=0.3).left <= 0.3 + 1e-12


def features_within_the_accuracy_are_affine() -> None:
    """Corollary identifiability: of two features that are found, the one that bends less than ε′ is not returned."""
    settings = Settings(
        ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.1, eta=0.01, samples=20_000, most=20_000, refine=20_000
    )

    def f(X: np.ndarray) -> np.ndarray:
        return np.sin(2 * X[:, 0]) + 0.2 * np.sin(3 * X[:, 1])

    counts = [
        len(
            identifiability.identify(
                f, dim=2, radius=3.0, accuracy=accuracy, settings=settings, rng=np.random.default_rng(1)
            ).directions
        )
        for accuracy in (0.1, 0.5, 2.0)
    ]
    assert counts == [2, 1, 0]


# plan

PROBLEM = Problem(d=3, n=4, R=3.0, L=1.5, gamma=0.1, eps=0.05, delta=0.01)


def rows_of_the_responses() -> None:
    """Every row of Lemma recover-function, written out again without logarithms."""
    n, R, L, gamma = 4, 3.0, 1.5, 0.1
    ell, D = 40.0, 1e-3
    expected = [
        (R, ell),
        (n * ell * D**0.9, D**0.8),
        (ell**0.1, ell**0.2 * gamma**2 / 2),
        (n * math.exp(-(ell**0.1)), D**0.8),
        (4 * D**-0.1 * 2 * D**0.8 * ell, D**0.6),
        (2 * L * math.sqrt(2 * ell) * D**0.05, D**0.04),
        (D**0.04 + 4 * D**0.9 * ell**2, D**0.03),
        (20 * n * R * ell**-0.8, ell**-0.7),
        (2 * (D**0.6 + D**0.03), ell**-0.7),
        (L * R * D, ell**-0.7),
        (5 * n * ell**-0.7 + n * D, 0.05),
    ]
    _compare(response_rows(PROBLEM, math.log10(ell), math.log10(D)), expected)


def rows_of_the_search() -> None:
    """Every row of Lemma find-directions, written out again; the tiny ones by their exponents."""
    d, n, R, L, gamma = 3, 4, 3.0, 1.5, 0.1
    ell, D, eps = 500.0, 0.2, 1e-9
    C2 = ell**2 / d
    C1 = C2**0.9
    theta = gamma / (10 * n) ** 3
    log = math.log(ell * n / eps)
    B = 4 * ell * math.log(ell * R / D)
    alpha = 4 * ell**2 / d
    heavy = D**2 / (1e3 * ell**10)
    r = math.sqrt(4 * d * log / C2)
    mass_kept = math.exp(-2) * D**2 / (64 * math.sqrt(math.pi) * n * (1 + B * math.sqrt(alpha)) * R * ell**3)
    expected = [
        (20 * (R + L) / D, ell),
        (10 ** (2 * math.log10(B)), (B**2 / ell**2, D**2 / (64 * R * ell))),
        (B, ell**2 / 2),
        (heavy, mass_kept),
        (ell**0.2, gamma**2 * D**2 * ell / (16 * (d + 4) * R)),
        (4 * n * ell * math.exp(-(ell**0.2)), heavy / 2),
        (1e3 * eps, heavy / 2),
        (2 / C1**0.6, gamma**2 * D**2 / ((20 * n) ** 6 * d * R * ell)),
        (math.log(n**2 / (40 * eps)), 4 * d * log * d / (d + 1)),
        (4 * r, C1**-0.3 * theta**2 / d),
        (2 * r * math.sqrt(d) / theta + 2 * r, 1 / math.sqrt(10 * d * C1)),
        (1 / math.sqrt(10 * d * C1) + 1 / math.sqrt(C2), 1 / math.sqrt(5 * d * C1)),
        (2 * math.sqrt(1 / (5 * C1) + 1 / (5 * C2)) * C1**0.3, C1**-0.2),
        (4 * d * log / C1, C1**-0.8),
        (2 * math.sin(math.asin(C1**-0.1) / 2), D),
        (2 * C1**-0.1, gamma / 2),
    ]
    _compare(search_rows(PROBLEM, math.log10(ell), math.log10(D), math.log10(eps)), expected)


def _compare(rows: list, expected: list) -> None:
    """Each row against its two sides; a pair on the right means left·exp(−first) ≤ second."""
    assert len(rows) == len(expected)
    for row, (left, right) in zip(rows, expected, strict=True):
        lg_left = math.log10(left)
        if isinstance(right, tuple):
            lg_left, right = lg_left - right[0] / math.log(10), right[1]
        assert math.isclose(row.left, lg_left, rel_tol=1e-9, abs_tol=1e-9), row.name
        assert math.isclose(row.right, math.log10(right), rel_tol=1e-9, abs_tol=1e-9), row.name


def rows_of_the_reduction() -> None:
    """The rows that only Theorem main-learning and Corollary identifiability have."""
    d, n, R, L, eps = 3, 4, 3.0, 1.5, 0.05
    inner, lg_eta, outer = plan._remove_boundedness(PROBLEM)
    eta = eps / (R * math.sqrt(d) + 2 * math.sqrt(d) * n * L)
    assert math.isclose(10**lg_eta, eta, rel_tol=1e-9)
    assert math.isclose(inner.eps, eta**2 / L, rel_tol=1e-9)
    assert (inner.L, inner.delta) == (1.0, PROBLEM.delta / d)
    _compare(outer, [(R * math.sqrt(d) * eta + 2 * math.sqrt(d) * n * L * eta, eps), (2 * eta, 1.0)])
    lg_noise = -12.0
    lg_e, lg_alpha, rows = plan._differences(inner, lg_eta, L, lg_noise)
    e, alpha = 10**lg_e, 10**lg_alpha
    assert math.isclose(alpha, e**0.5, rel_tol=1e-9)
    sides = [(4 * e / alpha + n * L * alpha / eta, e**0.4), (2 * eta / L * e**0.4, 10**lg_noise)]
    _compare(rows, sides)
    D = 1e-6
    rows = plan._identifiability(PROBLEM, lg_eta, math.log10(D))
    _compare(rows, [(D, eps), (D, eta / L * 2 * (eps - L * eta) / (R * math.sqrt(d)))])
    values = 1e20
    failure = 0.1 * PROBLEM.delta**2 / (2 * d * values)
    average = 2 * (n * L * eta) ** 2 * math.log(2 / failure) / (1e-9) ** 2
    assert math.isclose(plan._averages(PROBLEM, lg_eta, -9.0, 20.0), math.log10(average), rel_tol=1e-9)


def samples_of_the_oracles() -> None:
    """Calls and samples of both oracles, written out again: 8n²√(2 log(8/δ′)/m) = 5ε and 4n√(…) = Δ^0.8/2."""
    d, n = 3, 4
    ell, D, eps = 500.0, 0.2, 1e-9
    C2 = ell**2 / d
    got = plan._samples(PROBLEM, math.log10(ell), math.log10(C2), math.log10(D), math.log10(eps))
    mass_calls = math.pi * (10 * math.sqrt(C2) * ell**2) ** 2 * (d - 2) * 2 * ell**2 * math.sqrt(10 * C2)
    value_calls = n * 2 * D**-1.1
    fail = 0.1 * PROBLEM.delta**2
    m_mass = 2 * math.log(8 * mass_calls / fail) * (8 * n**2 / (5 * eps)) ** 2
    m_value = 2 * math.log(8 * value_calls / fail) * (8 * n / D**0.8) ** 2
    np.testing.assert_allclose(got, np.log10([mass_calls, value_calls, m_mass, m_value]), rtol=1e-9)
    assert plan.repetitions(0.01) == math.ceil(math.log(100) / (2 * 0.4**2))


CHECKS = [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and value.__code__.co_argcount == 0
    and not name.startswith("_")
]
"""All checks, in the order above."""
