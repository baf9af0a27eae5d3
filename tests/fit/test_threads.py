"""The solver's answer does not depend on how many threads there are, and what the threads compute is right."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from ridgescope.fit import threads

FIT = """
import sys
import numpy as np
import ridgescope as rs
from ridgescope.fit import levenberg_marquardt
from ridgescope.fit.samples import Samples, ask_along
from ridgescope.fit.model import Model
from ridgescope.geometry import unit

if sys.argv[1] == "matrix free":
    levenberg_marquardt.fits_dense_step = lambda model: False
target = rs.targets.planted(8, 12, ("tanh", "sine", "bump"), outputs=2, rng=0)
rng, samples = np.random.default_rng(1), Samples(8, 3.0)
ask_along(target, samples, target.directions, 3000, rng)
start = unit(target.directions + 0.02 * rng.standard_normal(target.directions.shape))
model = Model.start(start, 3.0, 16, 2)
options = levenberg_marquardt.LMOptions(steps=12, smoothing=1e-8)
fitted = levenberg_marquardt.levenberg_marquardt(model, *samples.train, options)
np.save(sys.argv[2], np.concatenate([fitted.model.directions.ravel(), fitted.model.predict(samples.train[0]).ravel()]))
"""


CLOSED_FIT = """
import sys
import numpy as np
import ridgescope as rs
from ridgescope.fit import threads
from ridgescope.fit.activations import INDEX, SPLINE
from ridgescope.fit.closed_bars import closed_error_bars
from ridgescope.fit.closed_form import ClosedForms
from ridgescope.fit.closed_solve import Data, Solved
from ridgescope.fit.closed_steps import minimise
from ridgescope.geometry import in_ball, unit

rng, target = np.random.default_rng(1), rs.targets.planted(32, 40, "tanh", outputs=3, rng=0)
X = in_ball(3840, 32, 3.0, rng)
with threads.one_blas_thread():
    Y = target(X)
start = unit(target.directions + 0.02 * rng.standard_normal(target.directions.shape))
family = np.where(np.arange(40) < 36, INDEX["tanh"], SPLINE)
blank = np.zeros((36 + 4 * 11 + 33, 3))
forms = ClosedForms(3.0, start, family, 2.0 * np.ones(40), np.zeros(40), 8, blank)
solved = minimise(Solved.of(forms, Data(X, Y)), steps=2, min_gain=0.0)
forms = minimise(solved, steps=2, min_gain=0.0, free=True).forms
bars = closed_error_bars(forms, X, Y, 1e-6)
np.save(sys.argv[2], np.concatenate([forms.directions.ravel(), forms.coefficients.ravel(), bars.angle]))
"""


def fitted(way, count, path):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(count))}
    subprocess.run(
        [sys.executable, "-c", CLOSED_FIT if way == "closed forms" else FIT, way, str(path)],
        check=True,
        env=environment,
    )
    return np.load(path)


@pytest.mark.parametrize("way", ["dense", "matrix free", "closed forms"])
def test_one_thread_and_two_end_with_the_same_bits(way, tmp_path):
    one, two = (fitted(way, count, tmp_path / "fit.npy") for count in (1, 2))
    assert one.tobytes() == two.tobytes()


SIZES = [1, 3, 511, 512, 513, 1100]


def positive(size):
    rng = np.random.default_rng(size)
    A = rng.standard_normal((2 * size + 5, size))
    return A, rng


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_products_are_those_of_numpy(size):
    A, rng = positive(size)
    B = rng.standard_normal((len(A), 7))
    gram, cross = np.zeros((size, size), order="F"), np.ones((size, 7))
    threads.add_gram(gram, A)
    threads.add_product(cross, A, B)
    np.testing.assert_allclose(np.tril(gram), np.tril(A.T @ A), atol=1e-10)
    np.testing.assert_allclose(cross, 1.0 + A.T @ B, atol=1e-10)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("size", SIZES)
def test_the_factor_times_its_transpose_is_the_matrix_and_it_can_be_solved_with(size, order):
    A, rng = positive(size)
    G = A.T @ A
    L = threads.cholesky(np.array(np.tril(G), order=order))  # the upper triangle is not looked at
    assert not np.triu(L, 1).any()
    np.testing.assert_allclose(L @ L.T, G, rtol=0, atol=1e-11 * size * np.abs(G).max())
    B = rng.standard_normal((size, 600))
    np.testing.assert_allclose(L @ threads.solve_lower(L, B), B, atol=1e-9)


def test_a_matrix_that_is_not_positive_is_refused():
    G = np.eye(600)
    G[550, 550] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        threads.cholesky(G)


def test_blas_has_one_thread_inside_and_what_it_had_outside():
    def blas():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before = blas()
    with threads.one_blas_thread():
        assert set(blas()) == {1}
    assert blas() == before


def test_work_within_work_goes_on():
    inner = threads.parallel_map(lambda a: threads.parallel_map(lambda b: 10 * a + b, range(3)), range(4))
    assert inner == [[10 * a + b for b in range(3)] for a in range(4)]


def test_an_error_in_one_portion_is_the_caller_s():
    def work(item):
        if item == 3:
            raise ValueError("third")

    with pytest.raises(ValueError, match="third"):
        threads.parallel_map(work, range(6))


def _in_child(queue):
    queue.put(threads.parallel_map(lambda a: a * a, range(5)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that a process with threads forks: just what is tried
def test_a_forked_process_has_threads_of_its_own():
    threads.parallel_map(lambda a: None, range(5))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == [0, 1, 4, 9, 16]
    child.join()
