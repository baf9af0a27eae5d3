"""The benchmark of published layers: what matters, what came back, and which runs are repeated."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import real
import real_layers
import ridgescope as rs
from real_layers import Layer

COLUMNS = [cell.strip() for cell in real.HEADER.splitlines()[0].strip("|").split("|")]


def made(activation="silu", d=4, n=6, p=3):
    rng = np.random.default_rng(0)
    W_in, b_in, W_out, b_out = (rng.standard_normal(shape) for shape in ((n, d), (n,), (p, n), (p,)))
    return Layer(W_in, b_in, W_out, b_out, activation, 2.0)


def result(layer, **changes):
    """What an extraction gives back, with the network that `changes` make of the layer."""
    parts = {"W_in": layer.W_in, "b_in": layer.b_in, "W_out": layer.W_out, "resolved": np.ones(len(layer.W_in), bool)}
    parts |= {"slope": np.zeros((len(layer.W_out), layer.W_in.shape[1])), **changes}
    network = SimpleNamespace(activation=layer.activation, **parts)
    return SimpleNamespace(network=lambda **_: network)


def shown(run):
    return dict(zip(COLUMNS, [cell.strip() for cell in real.row(run).strip("|").split("|")], strict=True))


def test_a_layer_comes_back_whole():
    layer = made(d=8, n=24, p=8)
    run = real.measured(layer, "float64", 120.0)
    assert (run["matter"], run["found"], run["false"]) == (24, 24, 0)
    assert run["certified"]
    assert run["within"]["0.0001"] == 1.0
    assert 0.0 < run["worst_angle"] < 1e-4
    assert run["network"] == "silu"
    assert 0.0 < run["weights_median"] <= run["weights_worst"] < 1e-2
    assert (run["compared"], run["resolved"], run["signs_wrong"]) == (24, 24, 0)
    assert run["per_parameter"] == run["queries"] / (24 * (8 + 8 + 2))
    assert json.loads(json.dumps(run)) == run


def test_a_neuron_matters_if_it_bends_by_more_than_the_tolerance():
    """Four ReLUs: one with its kink in the ball, one on and one off all over it, and a faint one."""
    W_in, W_out = np.eye(4), np.array([[1.0, 1.0, 1.0, 1e-3]])
    layer = Layer(W_in, np.array([0.5, 2.1, -2.1, 0.5]), W_out, np.zeros(1), "relu", 2.0)
    assert real.matters(layer).tolist() == [True, False, False, False]
    assert real.matters(replace(layer, W_out=np.ones((1, 4)))).tolist() == [True, False, False, True]
    assert real.matters(replace(layer, radius=2.5)).tolist() == [True, True, True, False]


def test_errors_of_weights_are_those_of_the_worst_part_of_each_neuron():
    layer, every = made(), np.ones(6, bool)
    order = np.array([3, 1, 0, 2, 5, 4])
    W_in, b_in, W_out = layer.W_in[order], layer.b_in[order], layer.W_out[:, order].copy()
    assert (
        real.recovered_weights(result(layer, W_in=W_in, b_in=b_in, W_out=W_out), layer, every)["weights_worst"] == 0.0
    )
    W_out[:, 0] *= 1.25
    told = real.recovered_weights(result(layer, W_in=W_in, b_in=b_in, W_out=W_out), layer, every)
    assert told["weights_worst"] == pytest.approx(0.25)
    assert told["weights_median"] == 0.0
    told = real.recovered_weights(result(layer, W_in=W_in, b_in=b_in, W_out=W_out), layer, np.arange(6) != 3)
    assert (told["weights_worst"], told["compared"]) == (0.0, 5)
    far = real.recovered_weights(result(layer, b_in=layer.b_in + (np.arange(6) == 5)), layer, every)
    assert far["weights_worst"] == pytest.approx(1.0 / np.linalg.norm([*layer.W_in[5], layer.b_in[5]]))


def test_neurons_without_a_partner_are_not_compared():
    layer, turned = made(), made().W_in.copy()
    turned[2] = [*-turned[2, 1::-1], *turned[2, 2:]]
    assert rs.match(turned[2:3], layer.W_in).angles.max() > 0.1
    told = real.recovered_weights(result(layer, W_in=turned), layer, np.ones(6, bool))
    assert (told["compared"], told["weights_worst"]) == (5, 0.0)


def test_a_mirrored_neuron_is_a_wrong_sign_only_where_it_differs_and_is_called_resolved():
    sign = np.array([1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    resolved = np.array([True, True, False, True, True, True])
    for activation, wrong in (("silu", 1), ("relu", 1), ("sigmoid", 0)):
        layer = made(activation)
        W_out = layer.W_out * sign if activation == "sigmoid" else layer.W_out
        mirrored = result(
            layer, W_in=sign[:, None] * layer.W_in, b_in=sign * layer.b_in, W_out=W_out, resolved=resolved
        )
        told = real.recovered_weights(mirrored, layer, np.ones(6, bool))
        assert (told["signs_wrong"], told["resolved"], told["weights_worst"]) == (wrong, 5, 0.0)


def test_the_scale_of_a_relu_is_a_convention_and_that_of_a_silu_is_not():
    errors = {}
    for activation in ("relu", "silu"):
        layer = made(activation)
        scaled = result(layer, W_in=2.0 * layer.W_in, b_in=2.0 * layer.b_in, W_out=0.5 * layer.W_out)
        errors[activation] = real.recovered_weights(scaled, layer, np.ones(6, bool))["weights_worst"]
    assert errors["relu"] < 1e-15
    assert errors["silu"] == pytest.approx(1.0)


def test_the_reason_is_told_where_there_is_no_network():
    def network(**_):
        raise rs.InvalidInput("several kinds")

    told = real.recovered_weights(SimpleNamespace(network=network), made(), np.ones(6, bool))
    assert told["no_network"] == "several kinds"
    run = {"row": "x", "dtype": "float32", "max_seconds": 1.0}
    assert "pip install onnx" in real.row({**run, "unavailable": "pip install onnx"})
    assert real.row({**run, "exceeded": True}).count("|") == len(COLUMNS) + 1


def test_what_is_stored_is_not_run_again(tmp_path, monkeypatch, capsys):
    """Victims are read from their folder, each in a process of its own; the second call runs nothing."""
    layer = made("relu", d=5, n=3, p=1)
    np.savez(tmp_path / "small.npz", W_in=layer.W_in, b_in=layer.b_in, W_out=layer.W_out, b_out=layer.b_out)
    out = tmp_path / "real.json"
    command = ["real.py", "--victims", str(tmp_path), "--rows", "victims", "--dtype", "float64", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--max-seconds", "60"])
    real.main()
    printed = capsys.readouterr().out
    assert printed == out.with_suffix(".md").read_text("utf-8")
    (run,) = json.loads(out.read_text("utf-8"))
    assert run["certified"]
    row = shown(run)
    assert (row["layer"], row["size"], row["neurons that matter"]) == ("victims:small", "5–3–1 relu", "3 of 3")
    assert row["≤ 1e-2, 1e-3, 1e-4, 1e-6 rad"] == "100 %, 100 %, 100 %, 100 %"
    monkeypatch.setattr(real, "apart", lambda *_: pytest.fail("this run is stored"))
    real.main()
    assert capsys.readouterr().out == printed
    late = {**run, "stop": "TIME", "certified": False}
    assert (row["certified"], shown(late)["certified"]) == ("yes", "no (time, 60 s)")
    assert real.is_usable(run, run["code"], 1e4)
    assert not real.is_usable(run, "another", 1.0)
    assert not real.is_usable(late, run["code"], 61.0)
    assert real.is_usable(late, run["code"], 60.0)


def test_single_precision_is_single_throughout():
    layer = made(d=7, n=5)
    X = np.random.default_rng(1).standard_normal((20, 7))
    single, double = (layer.function(dtype)(X) for dtype in ("float32", "float64"))
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert 0.0 < abs(single - double).max() < 1e-5


def test_a_block_is_cut_out_of_a_graph():
    """Before and behind the block stand other nodes, which are not part of it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    layer, helper = made("silu", d=4, n=6, p=4), onnx.helper
    parts = {"up": layer.W_in.T, "b": layer.b_in, "down": layer.W_out.T, "c": layer.b_out, "two": np.array(2.0)}
    tensors = [onnx.numpy_helper.from_array(a.astype(np.float32), name) for name, a in parts.items()]
    steps = "Mul x two x2, MatMul x2 up h, Add b h y, Sigmoid y s, Mul y s a, MatMul a down o, Add o c z, Mul z two end"
    nodes = [helper.make_node(op, names[:-1], names[-1:]) for op, *names in map(str.split, steps.split(", "))]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 4]) for name in ("x", "end")]
    model = helper.make_model(helper.make_graph(nodes, "model", ends[:1], ends[1:], tensors))
    cut = real_layers._in_graph(model.SerializeToString(), (4, 6), 0)
    assert np.allclose(cut.W_in, layer.W_in, atol=1e-6)
    assert np.allclose(cut.b_out, layer.b_out, atol=1e-6)
    X = np.random.default_rng(1).standard_normal((10, 4))
    assert cut.function("float32") is cut.shipped
    np.testing.assert_allclose(cut.function("float32")(X), layer.function("float64")(X), atol=1e-5)


def test_a_pickle_with_anything_but_tensors_is_refused():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("model/data.pkl", b"cos\nsystem\n.")
    with pytest.raises(real_layers.Unavailable, match=r"os\.system"):
        real_layers.torch_tensors(content.getvalue())
