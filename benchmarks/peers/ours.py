"""rs.extract, told nothing but the dimension and the ball; it asks for itself.

After `seconds` of processor time the run is interrupted, as by Ctrl-C, and what it knows by then is its answer.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import ridgescope as rs

from . import job
from .judge import drawn


def main() -> None:
    task = job.read()
    told = task.told
    target = drawn(told["target"])
    task = replace(task, start=time.process_time())  # training a network is not the extraction's work
    signal.signal(signal.SIGPROF, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_PROF, told["seconds"])
    late = ""
    try:
        found = rs.extract(target, dim=target.dim, radius=told["radius"], rng=told["seed"], **task.settings)
    except rs.Interrupted as stop:
        found, late = stop.found, "stopped at the time limit"
    signal.setitimer(signal.ITIMER_PROF, 0)
    note = late or ("certified" if found.certificate.met else "not certified")
    task.answer(found.directions, found.predict(task.T, outside="extrapolate"), queries=found.queries, note=note)


if __name__ == "__main__":
    main()
