"""Targets named in one line of text; libraries that are imported late, or missing; files that could run code."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import ridgescope as rs
from ridgescope.cli import app

PROGRAM = """
import json, math, sys
for line in sys.stdin:
    x = json.loads(line)
    print(math.tanh(x[0] - 2 * x[1]), flush=True)
"""


class Boom:
    def __reduce__(self):
        return print, ("code ran",)


class Wave:
    dim = 2

    def __call__(self, X):
        return np.sin(X[:, 0])


def test_oracles_are_imported_when_they_are_asked_for():
    code = (
        "import sys, ridgescope as rs\n"
        "rs.oracle.Oracle(len, dim=2)\n"
        "heavy = {'torch', 'sklearn', 'onnxruntime', 'httpx', 'stamina'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert {'torch', 'sklearn', 'onnx', 'http', 'process', 'open_target'} <= set(dir(rs.oracle))\n"
        "import ridgescope.oracle.http, ridgescope.oracle.process\n"
        "assert callable(rs.oracle.http) and callable(rs.oracle.process)\n"
        "heavy = {'torch', 'sklearn', 'onnxruntime', 'httpx', 'stamina'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "library", "argument"),
    [
        ("torch", "torch", None),
        ("sklearn", "sklearn", None),
        ("onnx", "onnxruntime", "model.onnx"),
        ("http", "httpx", "http://host"),
        ("http", "stamina", "http://host"),
    ],
)
def test_a_missing_library_is_told_with_the_command_that_installs_it(monkeypatch, extra, library, argument):
    if extra == "http":
        pytest.importorskip("httpx")
    monkeypatch.setitem(sys.modules, library, None)
    message = rf"rs\.oracle\.{extra} needs {library}, .* pip install 'ridgescope\[{extra}\]'"
    with pytest.raises(rs.InvalidInput, match=message):
        getattr(rs.oracle, extra)(argument)


def test_there_is_nothing_else_to_be_had():
    with pytest.raises(AttributeError, match="has no attribute 'tensorflow'"):
        rs.oracle.tensorflow  # noqa: B018


def test_a_function_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "boxes_for_specs.py").write_text("class Box:\n    @staticmethod\n    def f(X): return X[:, 0]\n")
    ask = rs.oracle.open_target("boxes_for_specs:Box.f", dim=2, on_bad="drop")
    assert ask([[1.0, 2.0]]).tolist() == [[1.0]]
    assert ask.on_bad == "drop"
    del sys.modules["boxes_for_specs"]


def test_a_program_by_name(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ask = rs.oracle.open_target(f"cmd:{sys.executable} {tmp_path / 'program.py'}", dim=2)
    np.testing.assert_allclose(ask([[0.5, 1.0]]), [[np.tanh(-1.5)]])
    assert rs.oracle.open_target("cmd+binary:true", dim=2).function.form == "binary"


def test_a_server_by_name(monkeypatch):
    pytest.importorskip("httpx")
    monkeypatch.setenv("RIDGESCOPE_AUTHORIZATION", "Bearer hush")
    ask = rs.oracle.open_target("https://host.invalid/predict", dim=2)
    assert repr(ask.function) == "https://host.invalid/predict"
    assert ask.function.door.headers.filled() == {"Authorization": "Bearer hush"}
    monkeypatch.delenv("RIDGESCOPE_AUTHORIZATION")
    assert not rs.oracle.open_target("https://host.invalid/predict", dim=2).function.door.headers.templates


@pytest.mark.parametrize("spec", ["model.onnx", "model.pt2"])
def test_a_file_by_name(spec):
    pytest.importorskip("onnxruntime" if spec.endswith("onnx") else "torch")
    with pytest.raises(rs.FileProblem, match=f"there is no file {spec}"):
        rs.oracle.open_target(spec)


@pytest.mark.parametrize("ending", ["pkl", "pickle", "joblib", "pt", "pth", "PKL"])
def test_a_file_that_runs_code_is_refused_without_trust(tmp_path, capsys, ending):
    path = tmp_path / f"model.{ending}"
    path.write_bytes(pickle.dumps(Boom()))
    with pytest.raises(rs.InvalidInput, match=r"refused: .* reading one runs whatever code .*--trust .*\.onnx"):
        rs.oracle.open_target(str(path), dim=2)
    assert "code ran" not in capsys.readouterr().out


def test_with_trust_it_is_read(tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Wave()))
    assert rs.oracle.open_target(str(path), trust=True)([[0.5, 0.0]])[0, 0] == np.sin(0.5)
    path.write_bytes(pickle.dumps({"weights": 1}))
    with pytest.raises(rs.InvalidInput, match="holds a dict, which cannot be asked; save a whole model"):
        rs.oracle.open_target(str(path), trust=True, dim=2)
    path.write_bytes(b"no pickle")
    with pytest.raises(rs.FileProblem, match=r"model\.pkl cannot be read: UnpicklingError"):
        rs.oracle.open_target(str(path), trust=True, dim=2)
    with pytest.raises(rs.FileProblem, match=r"there is no file none\.pkl"):
        rs.oracle.open_target("none.pkl", trust=True)


def test_a_trusted_estimator_knows_its_dimension(tmp_path):
    joblib = pytest.importorskip("joblib")
    linear = pytest.importorskip("sklearn.linear_model")
    X = np.random.default_rng(0).standard_normal((40, 3))
    joblib.dump(linear.LogisticRegression().fit(X, X[:, 0] > 0), tmp_path / "model.joblib")
    ask = rs.oracle.open_target(str(tmp_path / "model.joblib"), trust=True)
    assert (ask.dim, repr(ask.function)) == (3, "LogisticRegression.decision_function")


def test_a_trusted_module_is_asked_through_torch(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(3, 1).double(), tmp_path / "model.pt")
    ask = rs.oracle.open_target(str(tmp_path / "model.pt"), trust=True)
    assert (ask.dim, ask.has_gradient) == (3, True)


# -- the command line ----------------------------------------------------------------------------------------


def test_the_command_line_refuses_and_says_why(tmp_path):
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Boom()))
    done = CliRunner().invoke(app, ["extract", str(tmp_path / "model.pkl"), "--dim", "2"])
    assert done.exit_code == 2
    assert "runs whatever code its author put in it" in done.stderr
    assert "--trust" in done.stderr
    assert "code ran" not in done.output


def test_the_command_line_extracts_a_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    target = f"cmd:{sys.executable} {tmp_path / 'program.py'}"
    done = CliRunner().invoke(app, ["extract", target, "--dim", "2", "--radius", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert '"met": true' in done.stdout
