"""The recovered function elsewhere is the recovered function."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import ridgescope as rs
from made import extraction
from ridgescope.export import tables


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


def test_torch_predicts_the_same(found, points):
    torch = pytest.importorskip("torch")
    module = found.to_torch()
    np.testing.assert_allclose(
        module(torch.from_numpy(points)).numpy(), found.predict(points, outside="extrapolate"), atol=1e-10
    )


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


@pytest.mark.parametrize(("package", "method"), [("torch", "to_torch"), ("onnx", "to_onnx"), ("pandas", "to_frame")])
def test_what_is_missing_is_named(package, method, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(rs.InvalidInput, match=f"{method} needs {package}, which is not installed"):
        getattr(extraction(), method)()
