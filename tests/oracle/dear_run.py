"""A run that kills itself: `dear_run.py LEDGER BLOCKS SECONDS` dies by SIGKILL when asked block BLOCKS + 1.

Each row takes SECONDS. Before it dies it prints the number of rows that it has answered.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from ridgescope.oracle import Oracle


def main(path, blocks, seconds):
    answered = []

    def f(X):
        if len(answered) == int(blocks):
            ledger = ask.ledger
            print(sum(answered), int(ledger._synced == ledger._segments), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(seconds) * len(X))
        answered.append(len(X))
        return X[:, 0]

    ask = Oracle(f, dim=2)
    with ask.recording(path):
        ask(np.random.default_rng(0).standard_normal((544, 2)))


if __name__ == "__main__":
    main(*sys.argv[1:])
