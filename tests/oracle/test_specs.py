"""Targets named in one line of text; libraries that are imported late, or missing; files that could run code."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

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
def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch, extra, library, argument):
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
    assert ask.function.client.headers.filled() == {"Authorization": "Bearer hush"}
    monkeypatch.delenv("RIDGESCOPE_AUTHORIZATION")
    assert not rs.oracle.open_target("https://host.invalid/predict", dim=2).function.client.headers.templates


@pytest.mark.optional
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
    with pytest.raises(rs.InvalidInput, match="holds a dict, which cannot be called; save a whole model"):
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


@pytest.mark.optional
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


# -- settings of a target ------------------------------------------------------------------------------------


def test_settings_go_on_to_the_server(monkeypatch):
    pytest.importorskip("httpx")
    monkeypatch.setenv("MY_KEY", "hush")
    monkeypatch.setenv("RIDGESCOPE_AUTHORIZATION", "Bearer hush")
    settings = {"request": "", "response": "out.y", "headers": {"X-Key": "${MY_KEY}"}, "rate": 5.0, "timeout": 2.0}
    f = rs.oracle.open_target("https://host.invalid/predict", dim=2, **settings).function
    assert (f.form.request, f.form.response) == (None, "out.y")
    assert (f.client.rate, f.client.timeout) == (5.0, 2.0)
    assert f.client.headers.filled() == {"X-Key": "hush", "Authorization": "Bearer hush"}
    settings["headers"] = {"authorization": "${MY_KEY}"}
    f = rs.oracle.open_target("https://host.invalid/predict", dim=2, **settings).function
    assert f.client.headers.filled() == {"authorization": "hush"}


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ("model.onnx", {"rate": 2.0}),
        ("cmd:true", {"headers": {"X-A": "b"}}),
        ("math:sin", {"timeout": 2.0}),
        ("model.pt2", {"input_name": "x"}),
    ],
)
def test_a_setting_without_a_meaning_is_refused(spec, place):
    with pytest.raises(rs.InvalidInput, match=f"{next(iter(place))} does not apply to {spec}"):
        rs.oracle.open_target(spec, dim=2, **place)


def command(*words):
    return CliRunner().invoke(app, ["extract", *words])


class Tanh(BaseHTTPRequestHandler):
    """A server with names of its own, which wants a key."""

    seen: ClassVar[list[dict[str, str]]] = []

    def do_POST(self):
        self.seen.append(dict(self.headers))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"out": {"y": [float(np.tanh(x[0] - 2 * x[1])) for x in body["rows"]]}}
        data = json.dumps(answer).encode()
        self.send_response(200 if self.headers["X-Key"] == "hush" else 403)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def test_the_command_line_tells_a_server_what_it_wants(monkeypatch, tmp_path):
    pytest.importorskip("httpx")
    monkeypatch.setenv("MY_KEY", "hush")
    with ThreadingHTTPServer(("127.0.0.1", 0), Tanh) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = command(
            *(f"http://127.0.0.1:{server.server_port}/score", "--dim", "2", "--radius", "2", "--json"),
            *("--request-field", "rows", "--response-field", "out.y", "--header", "X-Key: ${MY_KEY}"),
            *("--header", "X-Team: ours", "--rate", "1e4", "--timeout", "9", "--out", str(tmp_path / "r")),
        )
        server.shutdown()
    assert done.exit_code == 0, done.output
    assert Tanh.seen[0]["X-Team"] == "ours"
    saved = (tmp_path / "r" / "result.json").read_text()
    assert "hush" not in done.output + saved
    assert "${MY_KEY}" in saved, "the command as it was typed"


def test_the_command_line_chooses_inputs_and_outputs_of_a_file(tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    kind, helper = onnx.TensorProto.DOUBLE, onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["y"]), helper.make_node("Sin", ["x"], ["z"])],
        "net",
        [helper.make_tensor_value_info("x", kind, ["rows", 2])],
        [helper.make_tensor_value_info(name, kind, ["rows", 2]) for name in "yz"],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    ambiguous = command(str(path))
    assert ambiguous.exit_code == 2
    done = command(str(path), "--input-name", "x", "--output-name", "y", "--radius", "2", "--json")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("http://host.invalid/f", "--header", "X-Key"), "must be 'NAME: VALUE'"),
        (("http://host.invalid/f", "--header", "X-Key: plain"), "looks like a secret"),
        (("http://host.invalid/f", "--header", "X-Key: ${NOT_SET_ANYWHERE}"), "which is not set"),
        (("http://host.invalid/f", "--rate", "0"), "rate"),
        (("http://host.invalid/f", "--timeout", "-1"), "timeout"),
        (("cmd:true", "--timeout", "0"), "timeout"),
        (("cmd:true", "--rate", "3"), "rate does not apply to cmd:true"),
        (("case:first", "--rate", "3"), "a standard case takes no"),
    ],
)
def test_bad_settings_are_bad_usage(words, message):
    if words[0].startswith("http"):
        pytest.importorskip("httpx")
    done = command(*words, "--dim", "2")
    assert done.exit_code == 2
    assert message in done.stderr
    assert "plain" not in done.stderr


@pytest.mark.parametrize("output", [None, "raw", "log_odds"])
def test_raw_probabilities_are_given_to_who_asks_for_them(tmp_path, output):
    """This classifier has no decision function, so that its probabilities are asked."""
    sklearn_naive_bayes = pytest.importorskip("sklearn.naive_bayes")
    X = np.random.default_rng(0).standard_normal((60, 2))
    model = sklearn_naive_bayes.GaussianNB().fit(X, (X[:, 0] > 0).astype(int))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    ask = rs.oracle.open_target(str(tmp_path / "model.pkl"), trust=True, output=output)
    assert ask.output == (output or "log_odds")
    if output == "raw":
        np.testing.assert_array_equal(ask(X), model.predict_proba(X))
