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
from safetensors.numpy import save_file
from typer.testing import CliRunner

import ridgescope as rs
from made import CERTIFICATE, extraction
from ridgescope.cli import app, exit_code, show, sparkline, summary

NOT_MET = dataclasses.replace(CERTIFICATE, verdict="not met")

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

def wave3(X):
    return wave(X)

stopped = []

def interrupted(X):
    # Ctrl-C at the fourth call, once
    stopped.append(len(X))
    if len(stopped) == 4:
        raise KeyboardInterrupt
    return wave(X)

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


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys\n"
        "from ridgescope.cli import app\n"
        "for words in ('--version', '--help', 'extract --help', 'demo --help', 'compare --help', 'bench --help'):\n"
        "    app(words.split(), standalone_mode=False)\n"
        "    heavy = {'numpy', 'scipy', 'plotly', 'finufft', 'safetensors'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_runs_as_a_module():
    printed = subprocess.run(
        [sys.executable, "-m", "ridgescope", "--version"], capture_output=True, text=True, check=True
    )
    assert rs.__version__ in printed.stdout


def test_version_is_the_packages(run):
    assert run("--version").stdout == f"ridgescope {rs.__version__}\n"


def test_help_names_every_command_and_every_option(run):
    printed = run("--help").stdout
    names = ("extract", "demo", "verify", "stability", "compare", "report", "plan", "bench")
    assert all(name in printed for name in (*names, "--install-completion", "Exit codes"))
    assert all("Example" in run(name, "--help").stdout for name in names if name != "bench")
    printed = run("extract", "--help").stdout
    options = ["dim", "radius", "tolerance", "noise", "confidence", "reach", "max-features", "max-queries"]
    options += ["data", "method", "seed", "out", "report", "json", "on-bad", "output", "trust"]
    assert all(f"--{option}" in printed for option in options)
    assert "recovery" in run("bench", "--help").stdout
    printed = run("bench", "recovery", "--help").stdout
    assert all(f"--{option}" in printed for option in ("cases", "seeds", "first-seed", "method", "reach", "out"))


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
        (["extract", "boxes_for_cli:wave", "--data", "none.csv"], "cannot read none.csv"),
        (["extract", "boxes_for_cli:oracle", "--data", "boxes_for_cli.py"], "table with commas"),
        (["extract", "case:tiny"], "there is no standard case 'tiny'; choose from first, small"),
        (["extract", "case:first", "--dim", "4"], "dim=4, but the function says that it takes 3"),
        (["demo", "--case", "tiny"], "there is no standard case 'tiny'"),
        (["demo", "--model", "letters"], "--model takes digits"),
        (["verify", "nowhere", "case:first"], "cannot read nowhere/result.json"),
        (["report", "nowhere"], "cannot read nowhere/result.json"),
        (["compare", "nowhere", "else"], "cannot read nowhere/result.json"),
        (["stability", "case:first", "--seeds", "1"], "--seeds"),
        (["dance"], "dance"),
    ],
)
def test_bad_usage_ends_with_2_and_says_why(run, arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    printed = " ".join(done.stderr.replace("│", " ").split())
    assert says in printed
    assert done.stdout == ""


# -- what a result looks like --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"certificate": NOT_MET}, 3),
        ({"certificate": NOT_MET, "stop": rs.StopReason.NO_PROGRESS}, 3),
        ({"certificate": NOT_MET, "stop": rs.StopReason.BUDGET}, 4),
        ({"certificate": NOT_MET, "stop": rs.StopReason.TIME}, 4),
        ({"certificate": NOT_MET, "stop": rs.StopReason.INTERRUPTED}, 130),
        ({"stop": rs.StopReason.BUDGET}, 0),
        ({"stop": rs.StopReason.INTERRUPTED}, 130),
    ],
)
def test_exit_codes(changes, code):
    assert exit_code(extraction(**{"stop": rs.StopReason.UNKNOWN, **changes})) == code


@pytest.mark.parametrize("outputs", [None, 2])
def test_the_summary_is_plain_json(outputs):
    certificate = dataclasses.replace(CERTIFICATE, bound=np.inf, rms=np.float64(0.25))
    values = summary(extraction(outputs, certificate=certificate))
    again = json.loads(json.dumps(values, allow_nan=False))
    assert again == values
    assert again["met"] is True
    assert again["certificate"]["bound"] is None
    assert again["certificate"]["rms"] == 0.25
    assert again["features"][0]["direction"] == [1.0, 0.0, 0.0]
    assert again["features"][0]["shape"]["name"] == "sine"
    assert again["features"][1]["shape"] is None
    assert np.shape(again["slope"]) == ((3,) if outputs is None else (3, 2))
    assert again["history"][0]["proposer"] == "slices"
    assert again["stop"] == "certified"


def test_the_table_has_a_line_for_each_feature_and_the_truth_beside_it():
    truth = rs.targets.planted(3, 2, kinds=("sine", "leaky_relu"))
    found = extraction(certificate=NOT_MET, diagnosis="Something [odd] is left.")
    features = (dataclasses.replace(found.features[0], direction=-truth.directions[1]), found.features[1])
    console = Console(width=120, file=io.StringIO())
    show(dataclasses.replace(found, features=features), truth, console)
    printed = console.file.getvalue()
    assert "2 features in 3 dimensions" in printed
    assert truth.kinds[1].replace("_", " ") in printed
    assert "nothing" in printed
    assert "against the truth: 1 of 2 found within 0.1 rad" in printed
    assert "12,345 queries; tolerance 0.01 NOT met" in printed.replace("\n", " ")
    assert "Something [odd] is left." in printed


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
    printed = json.loads(done.stdout)
    assert printed["met"]
    assert rs.match([f["direction"] for f in printed["features"]], np.eye(2)).angles.max() < 1e-2
    assert "noise on stdout while asked" in done.stderr
    saved = rs.load(tmp_path / "result")
    assert saved.queries == printed["queries"] == sum(printed["queries_by_stage"].values())
    assert run(*arguments).stdout == done.stdout, "same seed, same function, same bits"


@pytest.mark.parametrize("name", ["rows.npy", "rows.csv"])
def test_the_ball_of_a_file_of_rows_and_the_errors_on_them(run, tmp_path, name):
    X = 5.0 + 0.5 * np.random.default_rng(0).standard_normal((60, 2))
    np.save(tmp_path / "rows.npy", X)
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",", header="a,b", comments="", fmt="%.17g")
    done = run("extract", "boxes_for_cli:wave", "--data", name, "--json")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    np.testing.assert_allclose(values["center"], X.mean(axis=0))
    assert values["radius"] == pytest.approx(np.linalg.norm(X - X.mean(axis=0), axis=1).max())
    assert values["data_check"]["rows"] == values["queries_by_stage"]["data"] == 60
    assert values["features"][0]["output"] == [1.0]


@pytest.mark.parametrize("budget", [0, 150])
def test_running_out_of_queries_ends_with_4_and_what_is_known(run, budget):
    done = run("extract", "case:first", "--max-queries", budget, "--json")
    assert done.exit_code == 4, done.stderr
    printed = json.loads(done.stdout)
    assert printed["queries"] <= budget
    assert f"max_queries={budget}" in printed["stopped"]
    assert not printed["met"]


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


# -- results held against something --------------------------------------------------------------------------


@pytest.fixture
def saved(run, tmp_path):
    """The planted directions of the first standard case, which is extracted and saved."""
    truth = rs.targets.CASES["first"].make(0)
    found = rs.extract(truth, rng=0)
    found.save(tmp_path / "result")
    return truth.directions


def test_verify_asks_fresh_questions(run, saved):
    done = run("verify", "result", "case:first", "--json", "--out", "again")
    assert done.exit_code == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["queries_by_stage"] == {"certify": printed["queries"]}
    assert rs.load("again").certificate.samples == printed["queries"]
    done = run("verify", "result", "case:first", "--tolerance", "1e-9", "--queries", 200)
    assert done.exit_code == 3
    assert "NOT met" in done.stdout


def test_verify_notices_another_function(run, saved):
    done = run("verify", "result", "boxes_for_cli:wave3")
    assert done.exit_code == 3
    assert "noise on stdout" not in done.stdout


def test_stability_tells_what_every_seed_finds(run):
    done = run("stability", "case:first", "--seeds", 2)
    assert done.exit_code == 0, done.stderr
    assert "4 of 4 features are found by all 2 runs" in done.stdout
    assert "seed 1: 4 features" in done.stderr
    done = run("stability", "boxes_for_cli:wave", "--dim", 2, "--seeds", 2, "--json")
    printed = json.loads(done.stdout)
    assert printed["shared"] == 2
    assert [f["runs"] for f in printed["features"]] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("form", ["result", "rows.npy", "columns.npy", "one.safetensors", "two.safetensors"])
def test_compare_takes_results_and_weight_matrices(run, saved, form):
    directions = saved
    np.save("rows.npy", 3.0 * directions)
    np.save("columns.npy", directions.T)
    save_file({"weight": directions, "bias": np.zeros(4)}, "one.safetensors")
    save_file({"a": directions, "b": directions[:2]}, "two.safetensors")
    done = run("compare", "result", form, *(["--key", "a"] if form == "two.safetensors" else []))
    assert done.exit_code == 0, done.stderr
    assert "missed: none; new: none" in done.stdout
    assert "4 of 4 found within 0.1 rad" in done.stdout


def test_compare_tells_what_is_missed_and_what_is_new(run, saved):
    directions = saved
    other = np.cross(directions[0], directions[1])[None]
    np.save("w.npy", np.concatenate([directions[:3], other]))
    done = run("compare", "result", "w.npy", "--json")
    assert done.exit_code == 3
    printed = json.loads(done.stdout)
    assert printed["missed"] == [3]
    assert len(printed["new"]) == 1
    assert sorted(pair["second"] for pair in printed["matched"]) == [0, 1, 2]


def test_compare_refuses_what_is_no_matrix_of_directions(run, saved, tmp_path):
    np.save("flat.npy", np.zeros(5))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    save_file({"a": np.eye(3), "b": np.eye(3)}, "two.safetensors")
    for name, says in [
        ("flat.npy", "has shape (5,)"),
        ("objects.npy", "cannot be read"),
        ("torn.safetensors", "cannot be read"),
        ("two.safetensors", "choose a matrix with --key"),
        ("none.npy", "cannot be read"),
    ]:
        done = run("compare", "result", name)
        assert done.exit_code == 2, name
        assert says in " ".join(done.stderr.split())


def test_a_report_of_a_saved_result(run, saved, tmp_path):
    done = run("report", "result")
    assert done.exit_code == 0, done.stderr
    assert "4 features in 3 dimensions" in (tmp_path / "result" / "report.html").read_text(encoding="utf-8")


# -- the command itself --------------------------------------------------------------------------------------


def test_a_result_knows_the_command_that_made_it(run, tmp_path):
    done = run("extract", "case:first", "--max-queries", "1e3", "--out", "my result")
    assert done.exit_code == 4
    assert rs.load("my result").command == "ridgescope extract case:first --max-queries 1e3 --out 'my result'"


def test_ctrl_c_saves_what_is_known_and_says_how_to_go_on(run, tmp_path):
    arguments = ["extract", "boxes_for_cli:interrupted", "--dim", 2, "--ledger", "answers.ledger", "--out", "part"]
    done = run(*arguments, "--json")
    assert done.exit_code == 130, done.stderr
    printed = json.loads(done.stdout)
    assert printed["stop"] == "interrupted"
    assert rs.load("part").queries == printed["queries"]
    assert f"to resume:\n  ridgescope {' '.join(map(str, arguments))} --json" in done.stderr
    done = run(*arguments)
    assert done.exit_code == 0, "the second time nobody presses Ctrl-C, and the ledger has the answers"
    assert len(rs.load("part").features) == 2


def test_workers_give_the_same_bits(run):
    one, two = (run("extract", "case:first", "--json", *more) for more in ([], ["--workers", 2]))
    assert two.exit_code == 0, two.stderr
    assert json.loads(one.stdout) == json.loads(two.stdout)


def test_the_shell_can_complete_the_names_of_the_cases():
    from ridgescope.cli.options import complete_case, complete_target

    assert complete_case("") == list(rs.targets.CASES)
    assert complete_target("case:la") == ["case:large"]


def test_a_network_trained_on_digits_is_opened_up(run):
    pytest.importorskip("sklearn")
    done = run("demo", "--model", "digits", "--out", "digits")
    assert done.exit_code == 0, done.stderr
    assert "against the truth: 16 of 16 found" in done.stdout
    assert "trained a network with 16 hidden units on 64 pixels" in done.stderr


def test_compare_reads_npz_files(run, saved, tmp_path):
    found = rs.load("result")
    np.savez("one.npz", w=found.directions)
    np.savez("two.npz", w=found.directions, v=found.directions[:1])
    assert run("compare", "result", "one.npz").exit_code == 0
    assert run("compare", "result", "two.npz", "--key", "w").exit_code == 0
    several = run("compare", "result", "two.npz")
    assert (several.exit_code, "choose a matrix with --key" in several.output) == (2, True)
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nonsense")
    assert "cannot be read as a weight matrix" in run("compare", "result", "bad.npz").output
