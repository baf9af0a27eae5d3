"""ONNX files that a converter or the onnx package wrote, run by onnxruntime."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import ridgescope as rs

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper

A = np.random.default_rng(1).standard_normal((4, 3))
W = np.random.default_rng(2).standard_normal((3, 2))


def rows(count=11, dim=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim))


@pytest.fixture
def network(tmp_path):
    """Write tanh(x A) W + shift, with a `batch` that is a name, a number, and a type."""

    def write(batch="rows", kind=TensorProto.DOUBLE, shift=False, hidden=False):
        numpy_kind = helper.tensor_dtype_to_np_dtype(kind)
        nodes = [
            helper.make_node("MatMul", ["x", "A"], ["z"]),
            helper.make_node("Tanh", ["z"], ["h"]),
            helper.make_node("MatMul", ["h", "W"], ["y0" if shift else "y"]),
        ]
        inputs = [helper.make_tensor_value_info("x", kind, [batch, 4])]
        outputs = [helper.make_tensor_value_info("y", kind, [batch, 2])]
        if shift:
            nodes.append(helper.make_node("Add", ["y0", "shift"], ["y"]))
            inputs.append(helper.make_tensor_value_info("shift", kind, [batch, 2]))
        if hidden:
            outputs.append(helper.make_tensor_value_info("h", kind, [batch, 3]))
        weights = [numpy_helper.from_array(v.astype(numpy_kind), n) for n, v in (("A", A), ("W", W))]
        graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        path = tmp_path / "net.onnx"
        onnx.save(model, path)
        return path

    return write


def exact(X):
    return np.tanh(X @ A) @ W


@pytest.mark.parametrize("batch", ["rows", 1, 4, 16])
@pytest.mark.parametrize(("kind", "error"), [(TensorProto.DOUBLE, 1e-14), (TensorProto.FLOAT, 1e-5)])
def test_any_batch_and_either_precision(network, batch, kind, error):
    ask = rs.oracle.onnx(network(batch, kind))
    assert ask.dim == 4
    np.testing.assert_allclose(ask(rows()), exact(rows()), atol=error)
    assert ask.rounding == (np.finfo(np.float32).eps if kind == TensorProto.FLOAT else np.finfo(np.float64).eps)


def test_inputs_and_outputs_by_name(network):
    path = network(shift=True, hidden=True)
    with pytest.raises(rs.InvalidInput, match=r"2 inputs of floating-point numbers \(x .*shift .*input_name="):
        rs.oracle.onnx(path)
    with pytest.raises(rs.InvalidInput, match=r"2 outputs of floating-point numbers \(y .*output_name="):
        rs.oracle.onnx(path, input_name="x")
    with pytest.raises(rs.InvalidInput, match=r"also takes 'shift' .* reference=\{'shift': …\}"):
        rs.oracle.onnx(path, input_name="x", output_name="y")
    with pytest.raises(rs.InvalidInput, match="has no output 'z'; it has y"):
        rs.oracle.onnx(path, input_name="x", output_name="z")
    with pytest.raises(rs.InvalidInput, match="reference has 'mask'"):
        rs.oracle.onnx(path, input_name="x", output_name="y", reference={"shift": [[0.0, 0.0]], "mask": 1})
    ask = rs.oracle.onnx(path, input_name="x", output_name="y", reference={"shift": [[1.0, -2.0]]})
    np.testing.assert_allclose(ask(rows()), exact(rows()) + np.array([1.0, -2.0]), atol=1e-14)
    held = {"x": rows(1)}
    np.testing.assert_allclose(
        rs.oracle.onnx(path, input_name="shift", output_name="y", reference=held)([[1.0, 2.0], [0.0, 0.0]]),
        exact(rows(1)) + np.array([[1.0, 2.0], [0.0, 0.0]]),
        atol=1e-14,
    )


def test_a_picture_is_laid_out_in_its_shape(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["m", 2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["m", 3, 2])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "t.onnx")
    ask = rs.oracle.onnx(tmp_path / "t.onnx")
    assert (ask.dim, ask([[0, 1, 2, 3, 4, 5]]).tolist()) == (6, [[0, 3, 1, 4, 2, 5]])


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(rs.FileProblem, match=r"there is no file .*none\.onnx"):
        rs.oracle.onnx(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(rs.FileProblem, match=r"bad\.onnx cannot be read as an ONNX model"):
        rs.oracle.onnx(tmp_path / "bad.onnx")


def test_it_survives_pickling(network):
    ask = rs.oracle.onnx(network())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ask))(rows()), ask(rows()))


def test_a_converted_classifier_gives_its_logits_back(tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression

    X, y = make_classification(200, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    model = LogisticRegression().fit(X, y)
    kind = [("x", skl2onnx.common.data_types.FloatTensorType([None, 4]))]
    made = skl2onnx.to_onnx(model, initial_types=kind, options={"zipmap": False}, target_opset=17)
    (tmp_path / "c.onnx").write_bytes(made.SerializeToString())
    logits = model.decision_function(X[:20])
    values = rs.oracle.onnx(tmp_path / "c.onnx", output="log_odds")(X[:20])
    np.testing.assert_allclose(values, logits - logits.mean(axis=1, keepdims=True), atol=1e-3)
