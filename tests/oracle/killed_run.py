"""A run that can be killed: `killed_run.py LEDGER OUT LOG [STEPS]`, every question it really asks noted in LOG.

With STEPS it kills itself after so many steps of SQLite's own machine, hence inside a transaction.
"""

from __future__ import annotations

import os
import signal
import sys

import ridgescope as rs
from ridgescope.oracle.ledger import Ledger
from ridgescope.oracle.segments import digest

TARGET = rs.targets.planted(dim=4, features=4, kinds=("tanh", "abs"), separation=0.3, noise=1e-4, rng=4)


class Noted:
    """The target, which writes down what it is asked when it has answered."""

    dim = TARGET.dim

    def __init__(self, log):
        self.log = log

    def __call__(self, X):
        answers = TARGET(X)
        with open(self.log, "a") as file:
            file.write(f"{digest('value', X).hex()} {len(X)}\n")
        return answers


class Doomed(Ledger):
    """Dies inside SQLite."""

    steps = 0

    def _open_database(self):
        def die():
            os.kill(os.getpid(), signal.SIGKILL)

        database = super()._open_database()
        database.set_progress_handler(die, self.steps)
        return database


def main(ledger, out, log, steps="0"):
    if steps != "0":
        Doomed.steps = int(steps)
        rs.oracle.base.Ledger = Doomed
    print("started", flush=True)
    found = rs.extract(Noted(log), radius=2.0, tolerance=0.02, ledger=ledger or None, rng=7)
    found.save(out)
    print(found.queries, found.asked, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
