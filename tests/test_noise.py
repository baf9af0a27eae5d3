"""The error of one answer, and the largest of many."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope.noise import exact_noise, max_noise_quantile, noise_level, short_lines

RADIUS = 3.0


def plain(function):
    return lambda X: np.asarray(function(X)).reshape(len(X), -1)


@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 0.3])
def test_noise_is_estimated_within_a_factor_of_two(sigma):
    noise = np.random.default_rng(1)

    def f(X):
        return np.sin(2.0 * X[:, 0]) + np.tanh(X[:, 1]) + sigma * noise.standard_normal(len(X))

    found = noise_level(short_lines(plain(f), 3, RADIUS, np.random.default_rng(0)))
    assert 0.5 * sigma < found < 2.0 * sigma


def test_exact_answers_have_only_rounding():
    found = noise_level(short_lines(plain(lambda X: np.sin(2.0 * X[:, 0])), 3, RADIUS, np.random.default_rng(0)))
    assert found < 1e-14


def test_a_line_that_meets_a_kink_is_outvoted():
    found = noise_level(short_lines(plain(lambda X: np.abs(X[:, 0])), 2, RADIUS, np.random.default_rng(0)))
    assert found < 1e-14


def test_a_line_with_a_jump_is_left_aside():
    lines = 0.01 * np.random.default_rng(0).standard_normal((8, 7, 1))
    quiet = noise_level(lines[1:])
    lines[0, 3:] += 5.0
    assert noise_level(lines) == pytest.approx(quiet, rel=1e-12)


@pytest.mark.parametrize("sigma", [1e-4, 0.3])
@pytest.mark.parametrize("outputs", [1, 3])
def test_with_more_lines_it_is_known_to_a_tenth(sigma, outputs):
    noise = np.random.default_rng(1)

    def f(X):
        return np.sin(2.0 * X[:, :1]) + np.abs(X[:, 1:2]) + sigma * noise.standard_normal((len(X), outputs))

    found = [exact_noise(plain(f), 3, RADIUS, np.random.default_rng(seed)) for seed in range(10)]
    assert np.max(np.abs(np.divide(found, sigma) - 1.0)) < 0.1


def test_lines_that_meet_a_step_are_left_aside():
    noise = np.random.default_rng(1)

    def f(X):
        return 1e3 * (X[:, 0] * 1e6 % 97 < 1) + 0.01 * noise.standard_normal(len(X))

    assert exact_noise(plain(f), 3, RADIUS, np.random.default_rng(0)) == pytest.approx(0.01, rel=0.15)


def test_no_answers_tell_nothing():
    assert exact_noise(plain(lambda X: np.full(len(X), np.nan)), 3, RADIUS, np.random.default_rng(0)) is None


@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_the_loudest_of_many_is_seldom_louder(count):
    rng = np.random.default_rng(0)
    louder = [np.abs(rng.standard_normal(count)).max() > max_noise_quantile(count) for _ in range(1000)]
    assert np.sum(louder) <= 25  # 10 expected
    assert max_noise_quantile(0) == max_noise_quantile(1)
