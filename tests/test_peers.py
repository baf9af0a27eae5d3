"""The contest against peers: what a contestant is told, how it is judged, and which of its runs is shown."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peers.contest import OURS, Contestant, Entry, Terms, contest, gradient_pairs, limited
from peers.job import distinct
from peers.judge import INSIDE, RADIUS, drawn, judged, places
from ridgescope.targets import CASES

FIRST = {"dim": 3, "features": 4, "kinds": CASES["first"].kinds, "rng": 1000}
SETTINGS = tuple({"method": "ica", "fun": fun, "differences": False} for fun in ("logcosh", "cube"))


class Bowl:
    """|x|²/2, whose gradient is x; and the slope a·x as a second output."""

    dim, noise, a = 3, 0.0, np.array([1.0, -2.0, 0.5])

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs

    def __call__(self, X):
        both = np.stack([0.5 * np.sum(X * X, axis=1), X @ self.a], axis=1)
        return both[:, 0] if self.outputs == 1 else both


@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_come_in_pairs_of_one_output(outputs):
    G = gradient_pairs(Bowl(outputs), 1200, np.random.default_rng(0))
    assert G.shape == (200 * outputs, 3)
    of_bowl, of_slope = G[:200], G[200:]
    np.testing.assert_allclose(np.linalg.norm(of_bowl[0::2] - of_bowl[1::2], axis=1), 0.1 * RADIUS, rtol=1e-6)
    np.testing.assert_allclose(of_slope, np.broadcast_to(Bowl.a, of_slope.shape), rtol=1e-6)


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_truth_is_judged_as_all_found_and_an_offset_as_its_share_of_the_deviation(outputs):
    truth = drawn({"dim": 4, "features": 5, "kinds": ("tanh", "sine"), "rng": 3, "outputs": outputs})
    T = places(truth, 0)
    values = truth.clean(T)
    told = judged(truth, T, -truth.directions, values)
    assert (told.within_3, told.false, told.sup, told.rays) == (1.0, 0, 0.0, 0.0)
    deviation = np.sqrt(np.mean(np.var(values[:INSIDE], axis=0)))
    off = values.reshape(len(T), -1).copy()
    off[:, -1] += 0.25
    told = judged(truth, T, truth.directions[:2], off.reshape(values.shape))
    assert told.within_1 == pytest.approx(0.4)
    assert told.sup == pytest.approx(0.25 / deviation)


def test_directions_alone_have_no_error():
    truth = drawn(FIRST)
    told = judged(truth, places(truth, 0), np.zeros((2, 3)), np.empty(0))
    assert (told.within_1, told.false, told.sup, told.rms, told.rays) == (0.0, 0, None, None, None)


def test_a_trained_network_is_brought_to_the_ball_of_the_contest():
    net = drawn({"network": "diabetes:tanh"})
    inner = net.net
    edge = np.zeros((1, net.dim))
    edge[0, 0] = RADIUS
    there = inner.center.copy()
    there[0] += inner.radius
    np.testing.assert_allclose(net(edge), inner(there[None]))
    assert len(net.directions) <= len(net.units) == 32


def test_units_that_are_one_weak_or_dead_are_not_counted():
    near = np.array([np.cos(0.05), np.sin(0.05), 0.0])
    directions = np.array([[2.0, 0.0, 0.0], near, [0.0, 0.0, 1.0], [0.0, 3.0, 0.0], np.zeros(3)])
    strength = np.array([1.0, 0.9, 1e-3, 0.5, 0.8])
    assert len(distinct(directions, strength, apart=0.1)) == 2
    assert len(distinct(directions, strength, apart=0.02)) == 3


def test_a_process_ends_with_its_processor_time():
    done = subprocess.run(limited([sys.executable, "-c", "while True: pass"], 1), check=False)
    assert done.returncode < 0


@pytest.fixture(scope="module")
def ours():
    """Our own run of the first case."""
    (told,) = contest(OURS[0], "first", FIRST, Terms(60.0))
    return told


def test_ours_is_certified_and_kept_word_for_word(ours):
    told = ours
    assert (told.note, told.shown, told.tried) == ("certified", True, 1)
    assert told.score is not None
    assert told.score.within_2 == 1.0
    assert Entry.read(json.loads(json.dumps(told.kept()))) == told


def test_a_pilot_chooses_the_setting_that_is_run_in_full():
    who = Contestant("ICA", "ICA", "gradients.py", SETTINGS, gradients=True)
    *pilots, full = contest(who, "first", FIRST, Terms(20.0, queries=12_000, pilot=5.0))
    assert [run.settings for run in pilots] == list(SETTINGS)
    assert full.settings in SETTINGS
    assert {run.queries for run in pilots} == {1200}
    assert (full.queries, full.tried) == (12_000, 2)
    (best,) = [run for run in (*pilots, full) if run.shown]
    assert best.score.rank == max(run.score.rank for run in (*pilots, full))


def test_what_is_not_installed_or_fails_is_a_row_too(ours):
    missing = contest(
        Contestant("x", "x", "gradients.py", SETTINGS[:1]), "first", FIRST, Terms(5.0, 200, "no-such-python")
    )
    assert [run.note for run in missing] == ["not installed"]
    (broken,) = contest(Contestant("y", "y", "gradients.py", ({"method": "ica"},)), "first", FIRST, Terms(5.0, 200))
    assert broken.note.startswith("failed: KeyError")
    script = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "peers.py"))
    head = script["HEADER"].splitlines()[0]
    for run in (broken, ours):
        line = script["row"]([run], [ours])
        assert line.count("|") == head.count("|")
    assert script["row"]([ours], [ours]).count("100 %") == 3
    assert script["best_row"]("first", [ours]).count("—") == 8  # no peer is installed
    peer = replace(ours, contestant="R `ppr`", queries=30 * ours.queries)
    assert "| R `ppr` | 100 %, 100 % | 0 | 30 | 1 | 1 | 1 |" in script["best_row"]("first", [ours, peer])
