"""Functions that other processes can import, and an executor that everything travels through."""

from __future__ import annotations

import os
import pickle
import signal
import time
from concurrent.futures import Executor, Future
from dataclasses import replace

import numpy as np

import ridgescope as rs
from ridgescope.oracle import Oracle
from ridgescope.paper.mass import sample_pairs
from ridgescope.paper.peel import empty_model, sharpen
from ridgescope.paper.response import Derivative
from ridgescope.paper.survey import Settings
from ridgescope.paper_route import OracleField
from ridgescope.query import workers
from ridgescope.query.segment import digest

TARGET = rs.targets.planted(dim=4, features=4, kinds=("relu", "tanh"), separation=0.3, rng=4)


class Tag:
    """x·tag; a tag of 0 raises, a negative one kills the process."""

    def __init__(self, tag):
        self.tag = tag

    def __call__(self, X):
        if self.tag == 0.0:
            raise ValueError("no")
        if self.tag < 0.0:
            os.kill(os.getpid(), signal.SIGKILL)
        return X[:, 0] * self.tag


class Heavy:
    """A function with many bytes to it."""

    def __init__(self, size, seed=0):
        self.weights = np.random.default_rng(seed).bytes(size)

    def __call__(self, X):
        return X[:, 0] + self.weights[0]


class Noted:
    """The target, which takes its time and notes what it is asked, when it begins and when it has answered."""

    dim = TARGET.dim

    def __init__(self, log, seconds_per_row=0.0):
        self.log, self.seconds = str(log), seconds_per_row

    def note(self, word, X):
        with open(self.log, "a") as file:
            file.write(f"{word} {digest('value', X).hex()} {len(X)}\n")

    def __call__(self, X):
        self.note("asked", X)
        time.sleep(self.seconds * len(X))
        return TARGET(X)


class Posted(Executor):
    """Runs in place, but everything goes by way of bytes, to one of two workers that share nothing."""

    def __init__(self):
        self.sent, self.memories, self.rng = [], [{}, {}], np.random.default_rng(0)

    def submit(self, fn, /, *args, **kwargs):
        packed = pickle.dumps((fn, args, kwargs))
        self.sent.append(len(packed))
        memory = self.memories[self.rng.integers(2)]
        kept = dict(workers._known)
        workers._known.clear()
        workers._known.update(memory)
        future = Future()
        try:
            fn, args, kwargs = pickle.loads(packed)
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:
            future.set_exception(problem)
        memory.clear()
        memory.update(workers._known)
        workers._known.clear()
        workers._known.update(kept)
        return future


def masses(executor, ledger=None):
    """Bits of what the paper's search multiplies and sharpens on a residual, and of what is learnt on the way."""
    rng, dim = np.random.default_rng(5), TARGET.dim
    kept = []
    oracle = Oracle(TARGET, executor=executor, center=np.full(dim, 0.1), scale=np.full(dim, 1.5))
    oracle(np.zeros((1, dim)))
    f = OracleField(oracle, 3.0, lambda X, Y: kept.append(np.column_stack([X, Y]).tobytes()))
    model = empty_model(dim).with_directions(np.eye(dim)[:2], 4.0, 0.01)
    waves = tuple(t.plus(np.sin(t.grid)) for t in model.tables)
    model = replace(model, tables=waves, upper=waves, slope=np.arange(1.0, dim + 1))
    settings = Settings(ell=2.0, ell2=2.0, frequency=3.0, lowest=0.5, alpha=0.1, eta=0.02)
    with oracle.recording(ledger):
        pairs = sample_pairs(Derivative(model.residual(f), 0.1, 0.02), 2.0, np.eye(dim)[:, :2], 3000, rng)
        got = [c.tobytes() for _, c in pairs]
        sharper = sharpen(f, model, settings=settings, m=1000, rng=rng)
    seen = oracle.queries, oracle.largest, oracle.outputs, oracle.scalar, oracle.rounding
    return got, kept, sharper.directions.tobytes(), sharper.errors.tobytes(), seen
