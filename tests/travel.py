"""Functions that other processes can import."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

import ridgescope as rs
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
