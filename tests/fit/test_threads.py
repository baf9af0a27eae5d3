"""The solver's answer does not depend on how many threads the linear algebra uses."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

FIT = """
import sys
import numpy as np
import ridgescope as rs
from ridgescope.fit import solve
from ridgescope.fit.data import Samples, ask_along
from ridgescope.fit.model import Model
from ridgescope.geometry import unit

if sys.argv[1] == "matrix free":
    solve.is_small = lambda model: False
target = rs.targets.planted(8, 12, ("tanh", "sine", "bump"), outputs=2, rng=0)
rng, samples = np.random.default_rng(1), Samples(8, 3.0)
ask_along(target, samples, target.directions, 3000, rng)
start = unit(target.directions + 0.02 * rng.standard_normal(target.directions.shape))
model = Model.start(start, 3.0, 16, 2)
fitted = solve.levenberg_marquardt(model, *samples.train, steps=12, smooth=1e-8)
np.save(sys.argv[2], np.concatenate([fitted.model.directions.ravel(), fitted.model.predict(samples.train[0]).ravel()]))
"""


def fitted(way, threads, path):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    subprocess.run([sys.executable, "-c", FIT, way, str(path)], check=True, env=environment)
    return np.load(path)


@pytest.mark.parametrize("way", ["dense", "matrix free"])
def test_one_thread_and_two_agree(way, tmp_path):
    one, again, two = (fitted(way, threads, tmp_path / "fit.npy") for threads in (1, 1, 2))
    assert one.tobytes() == again.tobytes()
    np.testing.assert_allclose(two, one, rtol=0.0, atol=1e-10)
