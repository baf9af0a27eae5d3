"""The command line: quick to answer, honest exit codes, JSON that is JSON."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import ridgescope as rs
from made import CERTIFICATE, extraction
from ridgescope.cli import app, exit_code, show, sparkline, summary

NOT_MET = dataclasses.replace(CERTIFICATE, met=False)

MODEL = """
import numpy as np
from ridgescope.oracle import Oracle

print("noise on stdout while importing")
number = 3

def wave(X):
    print("noise on stdout while asked")
    return np.sin(2 * X[:, 0]) + np.tanh(X[:, 1])

def broken(X):
    return np.full(len(X), np.nan)

class deep:
    wave = staticmethod(wave)

oracle = Oracle(wave, dim=2)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in an empty folder that holds a module `boxes_for_cli`."""
    (tmp_path / "boxes_for_cli.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")

    def command(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments])

    yield command
    sys.modules.pop("boxes_for_cli", None)


# -- quick answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["extract", "--help"], ["demo", "--help"], ["bench", "--help"]]
)
def test_help_and_version_import_nothing_heavy(arguments):
    code = (
        "import sys\n"
        "from ridgescope.cli import app\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        "heavy = {'numpy', 'scipy', 'plotly', 'finufft', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_is_the_packages(run):
    assert run("--version").stdout == f"ridgescope {rs.__version__}\n"


def test_help_names_every_command_and_every_option(run):
    told = run("--help").stdout
    assert all(name in told for name in ("extract", "demo", "plan", "bench"))
    told = run("extract", "--help").stdout
    options = ["dim", "radius", "tolerance", "noise", "confidence", "reach", "max-features", "max-queries"]
    options += ["method", "seed", "out", "report", "json", "on-bad", "output", "trust"]
    assert all(f"--{option}" in told for option in options)
    assert "recovery" in run("bench", "--help").stdout
    told = run("bench", "recovery", "--help").stdout
    assert all(f"--{option}" in told for option in ("cases", "seeds", "first-seed", "method", "reach", "out"))


# -- bad usage: exit code 2 and a sentence on stderr ---------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["extract"], "TARGET"),
        (["extract", "nothing"], "or case:NAME, not 'nothing'"),
        (["extract", "no_such_module_here:f"], "there is no module 'no_such_module_here'"),
        (["extract", "boxes_for_cli:f"], "module 'boxes_for_cli' has no 'f'"),
        (["extract", "boxes_for_cli:number"], "boxes_for_cli:number is a int, which cannot be called"),
        (["extract", "boxes_for_cli:wave"], "dim is missing"),
        (["extract", "boxes_for_cli:wave", "--dim", "0"], "--dim"),
        (["extract", "boxes_for_cli:wave", "--max-queries", "many"], "'many' is not a whole number"),
        (["extract", "boxes_for_cli:wave", "--max-queries", "1.5"], "'1.5' is not a whole number"),
        (["extract", "boxes_for_cli:wave", "--on-bad", "ignore"], "'raise', 'drop'"),
        (["extract", "boxes_for_cli:oracle", "--on-bad", "drop"], "has its own on_bad and output"),
        (["extract", "boxes_for_cli:oracle", "--dim", "3"], "dim=3, but the oracle takes 2 coordinates"),
        (["extract", "case:tiny"], "there is no standard case 'tiny'; choose from first, small"),
        (["extract", "case:first", "--dim", "4"], "dim=4, but the function says that it takes 3"),
        (["demo", "--case", "tiny"], "there is no standard case 'tiny'"),
        (["dance"], "dance"),
    ],
)
def test_bad_usage_ends_with_2_and_says_why(run, arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    told = " ".join(done.stderr.replace("│", " ").split())
    assert says in told
    assert done.stdout == ""


# -- what a result looks like --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"certificate": NOT_MET}, 3),
        ({"certificate": NOT_MET, "stopped": str(rs.BudgetExhausted(90, 20, 100, "fit"))}, 4),
        ({"stopped": str(rs.BudgetExhausted(90, 20, 100, "fit"))}, 0),
    ],
)
def test_exit_codes(changes, code):
    assert exit_code(extraction(**changes)) == code


@pytest.mark.parametrize("outputs", [None, 2])
def test_the_summary_is_plain_json(outputs):
    certificate = dataclasses.replace(CERTIFICATE, bound=np.inf, rms=np.float64(0.25))
    told = summary(extraction(outputs, certificate=certificate))
    again = json.loads(json.dumps(told, allow_nan=False))
    assert again == told
    assert again["met"] is True
    assert again["certificate"]["bound"] is None
    assert again["certificate"]["rms"] == 0.25
    assert again["features"][0]["direction"] == [1.0, 0.0, 0.0]
    assert again["features"][0]["shape"]["name"] == "sine"
    assert again["features"][1]["shape"] is None
    assert np.shape(again["slope"]) == ((3,) if outputs is None else (3, 2))
    assert again["history"][0]["proposer"] == "slices"


def test_the_table_has_a_line_for_each_feature_and_the_truth_beside_it():
    truth = rs.targets.planted(3, 2, kinds=("sine", "leaky_relu"))
    found = extraction(certificate=NOT_MET, diagnosis="Something [odd] is left.")
    features = (dataclasses.replace(found.features[0], direction=-truth.directions[1]), found.features[1])
    console = Console(width=120, file=io.StringIO())
    show(dataclasses.replace(found, features=features), truth, console)
    told = console.file.getvalue()
    assert "2 features in 3 dimensions" in told
    assert truth.kinds[1].replace("_", " ") in told
    assert "nothing" in told
    assert "against the truth: 1 of 2 found within 0.1 rad" in told
    assert "12,345 queries; tolerance 0.01 NOT met" in told.replace("\n", " ")
    assert "Something [odd] is left." in told


def test_a_long_table_is_cut_short():
    console = Console(width=120, file=io.StringIO())
    show(extraction(features=50, dim=20), None, console)
    assert "… 10 more" in console.file.getvalue()


def test_sparklines_rise_and_fall_with_the_response():
    from ridgescope.response import interpolate

    rising = sparkline(interpolate(lambda z: z, 3.0, 8), 8)
    assert rising == "▁▂▃▄▅▆▇█"
    assert sparkline(interpolate(np.zeros_like, 3.0, 8), 5) == "▄▄▄▄▄"
    both = interpolate(lambda z: np.stack([0.1 * z, -z], axis=1), 3.0, 8)
    assert sparkline(both, 8) == rising[::-1]


# -- plan ----------------------------------------------------------------------------------------------------


def test_plan_prints_what_the_proofs_would_cost(run):
    done = run("plan", "--dim", 3, "--features", 4)
    assert done.exit_code == 0, done.stderr
    assert "quer" in done.stdout
    done = run("plan", "--dim", 3, "--features", 4, "--json")
    assert isinstance(json.loads(done.stdout), dict)


# -- extract and demo ----------------------------------------------------------------------------------------


def test_extract_prints_json_on_stdout_and_everything_else_on_stderr(run, tmp_path):
    arguments = ["extract", "boxes_for_cli:deep.wave", "--dim", 2, "--radius", 2, "--seed", 1, "--json"]
    done = run(*arguments, "--out", "result")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["met"]
    assert rs.match([f["direction"] for f in told["features"]], np.eye(2)).angles.max() < 1e-2
    assert "noise on stdout while asked" in done.stderr
    saved = rs.load(tmp_path / "result")
    assert saved.queries == told["queries"] == sum(told["queries_by_stage"].values())
    assert run(*arguments).stdout == done.stdout, "same seed, same function, same bits"


@pytest.mark.parametrize("budget", [0, 150])
def test_running_out_of_queries_ends_with_4_and_what_is_known(run, budget):
    done = run("extract", "case:first", "--max-queries", budget, "--json")
    assert done.exit_code == 4, done.stderr
    told = json.loads(done.stdout)
    assert told["queries"] <= budget
    assert f"max_queries={budget}" in told["stopped"]
    assert not told["met"]


def test_extract_of_a_function_that_cannot_be_asked_ends_with_1(run):
    done = run("extract", "boxes_for_cli:broken", "--dim", 2)
    assert done.exit_code == 1
    assert "nan at input row" in done.stderr
    assert done.stdout == ""


def test_the_demo_digs_up_what_it_planted(run, tmp_path):
    done = run("demo", "--case", "first")
    assert done.exit_code == 0, done.stderr
    assert "against the truth: 4 of 4 found" in done.stdout
    assert "tolerance 0.01 met" in " ".join(done.stdout.split())
    assert "planted 4 features in 3 dimensions" in done.stderr
    assert len(rs.load(tmp_path / "ridgescope-demo").features) == 4
