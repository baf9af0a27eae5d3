"""A trained scikit-learn model behind a real MLServer, asked over the Open Inference Protocol.

MLServer lives in an environment of its own, since it wants other versions of many things. Building that takes a
minute or two; RIDGESCOPE_MLSERVER may name the folder of one that is there already.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

import numpy as np
import pytest

import ridgescope as rs

httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.heavy

TRAIN = """
import joblib, numpy as np
from sklearn.neural_network import MLPRegressor
X = np.random.default_rng(0).standard_normal((400, 3))
model = MLPRegressor(hidden_layer_sizes=(3,), activation="tanh", solver="lbfgs", max_iter=300, random_state=1)
model.fit(X, np.tanh(X @ [[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, -1.0, 1.5]]).sum(axis=1))
joblib.dump(model, "model.joblib")
np.savez("truth.npz", directions=model.coefs_[0].T, X=X, y=model.predict(X))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of an environment with MLServer in it."""
    if "RIDGESCOPE_MLSERVER" in os.environ:
        return Path(os.environ["RIDGESCOPE_MLSERVER"])
    folder = tmp_path_factory.mktemp("mlserver") / "venv"
    venv.create(folder, with_pip=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "-q", "mlserver", "mlserver-sklearn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mlserver and mlserver-sklearn cannot be installed here: {done.stderr.strip()[-300:]}")
    return folder


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


@pytest.fixture(scope="module")
def served(environment, tmp_path_factory):
    """(address, truth) of a model that is trained and served in that environment."""
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([environment / "bin" / "python", "-c", TRAIN], cwd=folder, check=True)
    http, grpc, metrics = free_ports(3)
    settings = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (folder / "settings.json").write_text(json.dumps({**settings, "parallel_workers": 0, "debug": False}))
    model = {
        "name": "net",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./model.joblib"},
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}],
    }
    (folder / "model-settings.json").write_text(json.dumps(model))
    log = (folder / "log.txt").open("w+")
    server = subprocess.Popen([environment / "bin" / "mlserver", "start", "."], cwd=folder, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{http}"
        wait_until_ready(f"{address}/v2/models/net/ready", server, log)
        yield address, np.load(folder / "truth.npz")
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def wait_until_ready(address, server, log, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(address).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    log.seek(0)
    pytest.fail(f"MLServer did not get ready: {log.read()[-2000:]}")


def test_it_answers_as_the_model_does(served):
    address, truth = served
    ask = rs.oracle.http(address, model="net", rows=100, concurrency=2)
    assert ask.dim == 3
    np.testing.assert_allclose(ask(truth["X"])[:, 0], truth["y"], atol=1e-12)


def test_a_model_that_is_not_there_is_said(served):
    with pytest.raises(rs.OracleFailed, match=r"status 404: .*nothing.* not found"):
        rs.oracle.http(served[0], model="nothing")


def test_its_neurons_come_back(served):
    address, truth = served
    found = rs.extract(rs.oracle.http(address, model="net", rows=2048), radius=2.0, rng=0)
    assert found.certificate.met
    assert rs.match(found.directions, truth["directions"]).share(1e-2) == 1.0


def test_the_command_line_asks_it(served):
    start = [sys.executable, "-c", "from ridgescope.cli import main; main()"]
    command = [*start, "extract", f"{served[0]}/v2/models/net", "--radius", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["met"]
