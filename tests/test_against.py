"""The comparison with an older commit: a commit against itself is as fast as itself, and nothing runs twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import against
import against_cases

ENDED = {"case": "first", "cpu": 2.0, "peak": 100.0, "queries": 50, "within_2": 1.0, "within_3": 0.5, "false": 0}
COLUMNS = [cell.strip() for cell in against.HEADER.splitlines()[0].strip("|").split("|")]


def made(side, seed, **changes):
    return {**ENDED, "met": True, "side": side, "seed": seed, **changes}


def shown(runs):
    return dict(zip(COLUMNS, [cell.strip() for cell in against.row("first", runs).strip("|").split("|")], strict=True))


def test_ratios_are_those_of_medians_over_the_seeds_that_both_sides_ran():
    runs = [made("old", seed, cpu=cpu) for seed, cpu in ((0, 8.0), (1, 12.0), (2, 40.0), (3, 1e6))]
    runs += [made("new", seed, cpu=cpu, peak=50.0, queries=40) for seed, cpu in ((0, 3.0), (1, 4.0), (2, 6.0))]
    row = shown(runs)
    assert (row["seeds"], row["CPU s: old, new"], row["old/new"]) == ("3", "12, 4", "3.00")
    assert row["slowest/median: old, new"] == "3.33, 1.50"
    assert (row["memory new/old"], row["queries new/old"]) == ("0.50", "0.80")
    assert (row["≤ 1e-3 rad: old, new"], row["certified: old, new"]) == ("50 %, 50 %", "3, 3")


def test_a_run_that_exceeds_its_limit_is_a_bound_and_has_found_nothing():
    runs = [made("old", seed, cpu=60.0, exceeded=True, within_2=0.0, met=False) for seed in (0, 1, 2)]
    runs += [made("new", 0, cpu=10.0), made("new", 1, cpu=20.0)]
    runs += [{"case": "first", "side": "new", "seed": 2, "cpu": 60.0, "exceeded": True}]
    row = shown(runs)
    assert (row["CPU s: old, new"], row["old/new"]) == ("> 60, 20", "> 3.00")
    assert row["slowest/median: old, new"] == "—, > 3.00"
    assert (row["≤ 1e-2 rad: old, new"], row["certified: old, new"]) == ("0 %, 66.6 %", "0, 2")
    assert not against.is_usable(runs[0], seconds=61.0)
    assert against.is_usable(runs[0], seconds=60.0)


def test_the_layers_are_the_networks_that_their_directions_belong_to(monkeypatch):
    """Along a neuron's direction the gradient of a ReLU layer jumps where that neuron's argument is zero."""
    asked = {}
    monkeypatch.setattr(against_cases, "extracted", lambda f, V, radius, seed: asked.update(f=f, V=V, radius=radius))
    against_cases.CASES["relu_64_256_64_float32"](0)
    f, V = asked["f"], asked["V"]
    assert V.shape == (256, 64)
    assert asked["radius"] == 8.0
    values = f(V)
    assert values.dtype == "float32"
    assert values.shape == (256, 64)
    middle = 0.5 * (f(100.0 * V[:1]) + f(-100.0 * V[:1])) - f(0.0 * V[:1])
    assert abs(middle).max() > 1.0, "a ReLU layer bends at the origin"


@pytest.mark.skipif(not (against.ROOT / ".git").exists(), reason="needs the repository's history")
def test_a_commit_against_itself_and_the_second_call_runs_nothing(tmp_path, monkeypatch, capsys):
    out = tmp_path / "table.md"
    command = ["against.py", "HEAD", "--cases", "first", "--seeds", "1", "--seconds", "60", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    against.main()
    printed = capsys.readouterr().out
    assert printed == out.read_text("utf-8")
    old, new = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert (old["side"], new["side"]) == ("old", "new")
    assert old["met"]
    assert old["within_3"] == 1.0
    assert old["queries"] > 0
    assert not list(Path(against.git("rev-parse", "--git-common-dir")).glob("worktrees/ridgescope-*"))
    monkeypatch.setattr(against, "run", lambda *_: pytest.fail("this run is stored"))
    against.main()
    assert capsys.readouterr().out == printed
