"""What a run says while it works, and what Ctrl-C leaves."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from rich.console import Console

import ridgescope as rs
from ridgescope.progress import Display, Step


def box(X):
    return np.sin(2 * X[:, 0]) + np.tanh(X[:, 1])


def test_the_library_is_silent_unless_asked(capsys):
    rs.extract(box, dim=2)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_progress_is_lines_on_stderr(capsys):
    rs.extract(box, dim=2, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "survey: standard deviation" in err
    assert "round 1" in err
    assert "\x1b" not in err


def test_a_callable_gets_lines_that_carry_their_figures():
    steps = []
    found = rs.extract(box, dim=2, progress=steps.append)
    assert all(isinstance(step, str) and "queries" in step for step in steps)
    last = steps[-1]
    assert (last.features, last.round, last.tolerance, last.max_queries) == (2, len(found.history), 0.01, None)
    assert np.isnan(steps[0].residual)
    assert last.residual < 0.01
    assert last.spent() == found.queries_by_stage


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def step(spent, max_queries=None, planned=None):
    made = Step("    5,000 queries  something happened")
    made.round, made.features, made.residual, made.tolerance, made.max_queries = 1, 7, 0.03, 0.01, max_queries
    made.spent, made.planned, made.detail = lambda: spent, lambda: planned or {}, False
    return made


def test_a_stage_that_knows_how_much_it_will_ask_shows_the_time_left():
    clock, spent = Clock(), {"survey": 100}
    display = Display(clock)
    display.show(step(spent, planned={"certify": 1100}))
    clock.now = 1.0
    assert "stage left at most" not in display.figures(), "the survey does not know"
    spent["certify"] = 100
    clock.now = 2.0
    assert display.figures()["stage left at most"] == "0:10", "1,000 ahead, 100 a second"
    spent["certify"] = 1100
    clock.now = 3.0
    assert "stage left at most" not in display.figures(), "nothing is ahead"


def test_a_run_says_what_its_stages_will_ask_at_most():
    steps = []
    found = rs.extract(box, dim=2, progress=steps.append)
    planned = steps[-1].planned()
    assert planned["certify"] >= found.queries_by_stage["certify"]
    assert set(planned) - {"certify"} == set(found.queries_by_stage) - {"survey", "fit", "certify"}
    assert all(planned[stage] >= found.queries_by_stage[stage] for stage in planned)


def test_the_display_shows_stage_rate_and_residual():
    clock = Clock()
    display, spent = Display(clock), {"survey": 100}
    assert display.figures()["stage"] == "first queries"
    display.show(step(spent, max_queries=3000))
    clock.now = 1.0
    assert display.figures()["rate"] == "100/s"
    spent["kinks"] = 900
    clock.now = 2.0
    assert display.figures() == {
        "stage": "kinks",
        "round": "2",
        "queries": "1,000 of 3,000",
        "rate": "500/s",
        "features": "7",
        "residual/tolerance": "3.0e-02/0.01",
        "time": "0:02",
        "left at most": "0:04",
    }
    clock.now = 95.0
    assert display.figures()["time"] == "1:35"


def test_the_display_can_be_drawn():
    display = Display()
    console = Console(width=100, file=io.StringIO())
    console.print(display)
    display.show(step({"fit": 5000}))
    console.print(display)
    told = console.file.getvalue()
    assert "something happened" in told
    assert "5,000" in told
    assert max(map(len, told.splitlines())) <= 100


@pytest.mark.parametrize("after", [0, 1, 300, 1500])
def test_ctrl_c_leaves_what_is_known(after):
    asked = 0

    def stopped(X):
        nonlocal asked
        if asked >= after:
            raise KeyboardInterrupt
        asked += len(X)
        return box(X)

    with pytest.raises(KeyboardInterrupt) as caught:
        rs.extract(stopped, dim=2)
    found = caught.value.found
    assert isinstance(caught.value, rs.Interrupted)
    assert found.stop is rs.StopReason.INTERRUPTED
    assert not found.certificate.met
    assert found.certificate.samples == 0
    assert np.isfinite(found.predict(np.zeros((1, 2)))).all()
    assert pickle.loads(pickle.dumps(caught.value)).found.stopped == found.stopped
