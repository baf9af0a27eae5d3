"""Functions that other processes can import, and an executor through which everything goes as bytes."""

from __future__ import annotations

import os
import pickle
import signal
import time
from concurrent.futures import Executor, Future

import numpy as np

import ridgescope as rs
from ridgescope.oracle import workers
from ridgescope.oracle.segments import digest

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
        kept = dict(workers._cache)
        workers._cache.clear()
        workers._cache.update(memory)
        future = Future()
        try:
            fn, args, kwargs = pickle.loads(packed)
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:
            future.set_exception(problem)
        memory.clear()
        memory.update(workers._cache)
        workers._cache.clear()
        workers._cache.update(kept)
        return future
