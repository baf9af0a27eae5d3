"""The benchmark: figures against the truth, and an error that takes nothing else down with it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import ridgescope as rs
from ridgescope import bench
from ridgescope.bench import HEADER, Trial, recovery, rows, true_sup_error
from ridgescope.cli import app
from ridgescope.targets import CASES


@pytest.fixture
def first():
    return CASES["first"].make(1000)


def cells(row):
    return [cell.strip() for cell in row.replace("\\|", "").strip("|").split("|")]


def test_one_case_and_one_seed_from_the_command_line(tmp_path):
    out = tmp_path / "new" / "table.md"
    done = CliRunner().invoke(app, ["bench", "recovery", "--cases", "first", "--seeds", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout == out.read_text(encoding="utf-8")
    assert done.stderr.startswith("first, seed 1000: ")
    head, _, row = done.stdout.splitlines()
    assert len(cells(row)) == len(cells(head))
    shown = dict(zip(cells(head), cells(row), strict=True))
    assert (shown["case"], shown["n/d"], shown["seeds"], shown["parameters"]) == ("first", "4/3", "1", "76")
    assert (shown["≤ 1e-2 rad"], shown["false"], shown["certified"]) == ("100 %", "0", "1 of 1")
    (trial,) = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert (trial["case"], trial["seed"], trial["error"]) == ("first", 1000, "")
    assert trial["met"]
    assert 0 < trial["sup"] < 1e-2


def test_the_true_error_is_zero_for_the_truth_itself(first):
    truth = SimpleNamespace(predict=first.clean)
    assert true_sup_error(truth, first, np.random.default_rng(0)) == 0


def test_the_true_error_is_a_fraction_of_the_standard_deviation(first):
    off_by_three = SimpleNamespace(predict=lambda X: first.clean(X) + 3.0)
    error = true_sup_error(off_by_three, first, np.random.default_rng(0))
    X = np.random.default_rng(1).standard_normal((40_000, 3))
    X *= 3.0 * np.random.default_rng(2).random((len(X), 1)) ** (1 / 3) / np.linalg.norm(X, axis=1, keepdims=True)
    assert error == pytest.approx(3.0 / first.clean(X).std(), rel=0.05)


def test_the_true_error_looks_far_out_along_the_planted_directions():
    target = CASES["mixed"].make(0)
    v = target.directions[3]
    wrong_far_out = SimpleNamespace(predict=lambda X: target.clean(X) + (np.abs(X @ v) > 2.8))
    assert true_sup_error(wrong_far_out, target, np.random.default_rng(0)) > 0


def test_a_run_that_raises_is_a_row_and_the_others_go_on(monkeypatch, tmp_path):
    def fails_once(target, *, rng=0, **settings):
        if rng == 7:
            raise RuntimeError("no | way\nand a second line")
        return rs.extract(target, rng=rng, max_queries=1500, **settings)

    monkeypatch.setattr(bench, "extract", fails_once)
    lines = []
    trials = recovery(["first"], seeds=2, first_seed=7, out=tmp_path / "t.md", write=lines.append)
    assert [t.error for t in trials] == ["RuntimeError: no | way", ""]
    assert lines[0] == HEADER
    assert cells(lines[1])[:3] == ["first", "4/3", "1"]
    assert cells(lines[2])[2] == "seed 7"
    assert "RuntimeError: no" in lines[2]
    assert len(cells(lines[2])) == len(cells(lines[1]))
    assert trials[1].queries <= 1500


def test_shares_are_never_rounded_up_to_all():
    trials = [Trial("dense", s, 1.0, within_2=0.9999, within_3=1.0) for s in range(3)]
    (row,) = rows(CASES["dense"], trials)
    assert cells(row)[3:5] == ["99.9 %", "100 %"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cases": ["first", "tiny"]}, "no standard case 'tiny'"),
        ({"cases": ["first"], "seeds": 0}, "seeds must be at least 1"),
        ({"cases": ["first"], "reach": 2.0}, "reach=2.0 is smaller than radius"),
        ({"cases": ["first"], "method": "magic"}, "unknown method"),
    ],
)
def test_settings_that_no_run_can_use_are_refused_at_once(settings, says):
    lines = []
    with pytest.raises(rs.InvalidInput, match=says):
        recovery(write=lines.append, **settings)
    assert not lines
