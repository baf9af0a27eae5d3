"""The recovered function elsewhere is the recovered function."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from made import extraction
from ridgescope.export import tables
from ridgescope.network import ACTIVATION_NAMES, activation_values


@pytest.fixture(params=[None, 2, 0, "kinks"])
def found(request):
    """Scalar, vector, without features, and a mix of kinked responses in shifted coordinates."""
    if request.param == "kinks":
        rng = np.random.default_rng(0)
        features = tuple(
            rs.Feature(
                np.eye(3)[i],
                rs.Response(3.0, rng.standard_normal(8 + 5 * i), rng.uniform(-4, 4, i), rng.standard_normal(i)),
                0.0,
                1.0,
            )
            for i in range(3)
        )
        moved = extraction(center=np.array([1.0, 2.0, 3.0]), scale=np.array([2.0, 1.0, 0.5]))
        return replace(moved, features=features)
    return extraction(features=0) if request.param == 0 else extraction(request.param)


@pytest.fixture
def points(found):
    """Inside the ball, beyond it, and on the very knots."""
    rng = np.random.default_rng(1)
    grid = np.linspace(-3, 3, 13)
    u = np.concatenate([rng.uniform(-5, 5, (300, 3)), np.stack([grid, grid, grid], axis=1)])
    return found.center + found.scale * u


def test_the_tables_are_the_responses(found):
    table = tables(found)
    for i, f in enumerate(found.features):
        values = table.cubics[table.offsets[i] : table.offsets[i] + f.response.intervals, 0].sum(axis=1)
        knots = np.linspace(-3, 3, f.response.intervals + 1)[:-1]
        smooth = rs.Response(3.0, f.response.coefficients, [], [])
        np.testing.assert_allclose(values, smooth(knots).reshape(len(knots), -1).sum(axis=1), atol=1e-12)


@pytest.mark.optional
def test_torch_predicts_the_same(found, points):
    torch = pytest.importorskip("torch")
    module = found.to_torch()
    np.testing.assert_allclose(
        module(torch.from_numpy(points)).numpy(), found.predict(points, outside="extrapolate"), atol=1e-10
    )


@pytest.mark.optional
def test_torch_knows_the_gradient():
    torch = pytest.importorskip("torch")
    found = extraction()
    x = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    found.to_torch()(x).sum().backward()
    step = 1e-6 * np.eye(3)
    slopes = (
        found.predict(x.detach().numpy() + step, outside="extrapolate")
        - found.predict(x.detach().numpy() - step, outside="extrapolate")
    ) / 2e-6
    np.testing.assert_allclose(x.grad.numpy()[0], slopes, atol=1e-6)


def test_onnx_predicts_the_same(found, points, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    found.to_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (values,) = session.run(None, {"x": points})
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, found.predict(points, outside="extrapolate"), atol=1e-10)


def test_a_frame_has_a_row_for_each_feature():
    pytest.importorskip("pandas")
    frame = extraction().to_frame()
    assert list(frame.columns) == ["strength", "angle_error", "shape", "formula", "r2", "kinks", "x0", "x1", "x2"]
    assert frame["shape"][0] == "sine"
    assert frame.loc[1, "x1"] == 1.0
    assert len(extraction(features=0).to_frame()) == 0


def test_a_frame_has_the_output_vectors_of_several_outputs():
    pytest.importorskip("pandas")
    found = extraction(2)
    frame = found.to_frame()
    assert list(frame.columns[-2:]) == ["y0", "y1"]
    np.testing.assert_array_equal(frame[["y0", "y1"]].to_numpy(), found.output_directions)


@pytest.mark.optional
@pytest.mark.parametrize("outputs", [None, 3])
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs", "gelu", "silu", "softplus", "tanh", "sine"])
def test_torch_gets_the_network_where_there_is_one(name, outputs):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    W, b, out = rng.standard_normal((5, 3)), rng.standard_normal(5), rng.standard_normal((5, outputs or 1))
    leak = 0.1 if name == "leaky_relu" else 0.0

    def f(X):
        values = activation_values(name, X @ W.T + b, leak) @ out
        return values[:, 0] if outputs is None else values

    found = rs.extract(f, dim=3, rng=0)
    module, X = found.to_torch(), rng.uniform(-1, 1, (40, 3))
    shapes = {key: tuple(value.shape) for key, value in module.named_parameters()}
    assert shapes["hidden.weight"] == (5, 3)
    assert shapes["output.weight"] == (outputs or 1, 5)
    seen = []
    module.activation.register_forward_hook(lambda layer, y, a: seen.append(a.detach().numpy()))
    values = module(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(values, f(X), atol=1e-6)
    np.testing.assert_allclose(values, found.network().predict(X), atol=1e-12)
    np.testing.assert_allclose(seen[0], found.network().activations(X), atol=1e-12)
    assert "activation" in dict(module.named_modules())


@pytest.mark.optional
def test_every_activation_has_a_layer_that_computes_it():
    torch = pytest.importorskip("torch")
    y = np.linspace(-3, 3, 61)
    for name in ACTIVATION_NAMES:
        net = rs.Network(name, [[1.0]], [0.0], [[1.0]], [0.0], [[0.0]], [True], leak=0.1)
        values = net.to_torch()(torch.from_numpy(y[:, None])).detach().numpy()[:, 0]
        np.testing.assert_allclose(values, activation_values(name, y, 0.1), atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("package", "method"), [("torch", "to_torch"), ("onnx", "to_onnx"), ("pandas", "to_frame")])
def test_what_is_missing_is_named(package, method, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(rs.InvalidInput, match=f"{method} needs {package}, which is not installed"):
        getattr(extraction(), method)()
