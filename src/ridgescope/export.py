"""The recovered function as a PyTorch module, an ONNX model, and a table.

A response is a cubic on each of its K intervals, straight lines beyond ±R, and kinks. With z clipped to [−R, R],
u = (z + R)·K/2R, k = ⌊u⌋ and t = u − k,

    s(z) = a₀ₖ + a₁ₖ t + a₂ₖ t² + a₃ₖ t³ + left·min(z + R, 0) + right·max(z − R, 0) + Σ_j w_j |z − t_j|

All of it in double precision, so that `predict` and its copies agree to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput
from .geometry import Floats

if TYPE_CHECKING:
    from .result import Extraction


@dataclass(frozen=True, eq=False)
class Tables:
    """All responses as arrays: n features, p outputs (1 for a scalar f), at most J kinks each."""

    directions: Floats
    """(n, d)."""
    intervals: Floats
    """(n,) K."""
    offsets: NDArray[np.int64]
    """(n,) row of each feature's first interval in `cubics`."""
    cubics: Floats
    """(ΣK, 4, p)."""
    ends: Floats
    """(2, n, p) slopes to the left and to the right."""
    kinks: Floats
    """(J, n), 0 where there is none."""
    weights: Floats
    """(J, n, p), 0 where there is none."""


def tables(found: Extraction) -> Tables:
    """The responses of a result, interval by interval."""
    p, n = found.outputs or 1, len(found.features)
    most = max((len(f.response.kinks) for f in found.features), default=0)
    cubics, ends = [np.zeros((0, 4, p))], np.zeros((2, n, p))
    kinks, weights = np.zeros((most, n)), np.zeros((most, n, p))
    for i, f in enumerate(found.features):
        c = f.response.coefficients.reshape(-1, p)
        c0, c1, c2, c3 = (c[j : j + f.response.intervals] for j in range(4))
        rows = [c0 + 4 * c1 + c2, 3 * (c2 - c0), 3 * (c0 - 2 * c1 + c2), c3 - c0 + 3 * (c1 - c2)]
        cubics.append(np.stack(rows, axis=1) / 6.0)
        each = f.response.intervals / (2.0 * found.radius)
        ends[:, i] = each * cubics[-1][0, 1], each * (np.array([0, 1, 2, 3]) @ cubics[-1][-1])
        count = len(f.response.kinks)
        kinks[:count, i], weights[:count, i] = f.response.kinks, f.response.kink_weights.reshape(count, p)
    intervals = np.array([f.response.intervals for f in found.features], dtype=np.int64)
    return Tables(
        found.directions,
        intervals.astype(np.float64),
        np.cumsum(intervals) - intervals,
        np.concatenate(cubics),
        ends,
        kinks,
        weights,
    )


def to_torch(found: Extraction) -> Any:
    """A `torch.nn.Module` from (m, d) to (m,) or (m, p), with gradients with respect to its input."""
    torch = _need("torch", "to_torch")
    table, scalar, radius = tables(found), found.outputs is None, float(found.radius)
    arrays = {name: getattr(table, name) for name in ("directions", "intervals", "offsets", "cubics", "ends")}
    arrays |= {"kinks": table.kinks, "weights": table.weights, "center": found.center, "scale": found.scale}
    arrays |= {"bias": found.bias.reshape(-1), "slope": found.slope.reshape(found.dim, -1)}

    class RidgeSum(torch.nn.Module):  # type: ignore[misc, name-defined]
        """bias + slope·u + Σ_i s_i(v_i·u), u = (x − center)/scale."""

        def __init__(self) -> None:
            super().__init__()
            for name, array in arrays.items():
                self.register_buffer(name, torch.from_numpy(np.array(array)))

        def forward(self, x: Any) -> Any:
            u = (x.to(self.slope.dtype) - self.center) / self.scale
            y = self.bias + u @ self.slope
            z = u @ self.directions.T
            inside = (z.clamp(-radius, radius) + radius) * (self.intervals / (2.0 * radius))
            k = torch.minimum(inside.detach().floor(), self.intervals - 1.0)
            t = (inside - k)[..., None]
            a = self.cubics[(self.offsets + k.long())]
            s = ((a[..., 3, :] * t + a[..., 2, :]) * t + a[..., 1, :]) * t + a[..., 0, :]
            s = s + (z + radius).clamp(max=0.0)[..., None] * self.ends[0]
            s = s + (z - radius).clamp(min=0.0)[..., None] * self.ends[1]
            for places, sizes in zip(self.kinks, self.weights, strict=True):
                s = s + (z - places).abs()[..., None] * sizes
            y = y + s.sum(dim=-2)
            return y[..., 0] if scalar else y

    return RidgeSum()


def to_onnx(found: Extraction, path: str | Path | None = None) -> Any:
    """An ONNX model from `x` (m, d) to `y` (m,) or (m, p), both in double precision; written to `path` if given."""
    onnx = _need("onnx", "to_onnx")
    make, numpy_helper = onnx.helper, import_module("onnx.numpy_helper")
    table, radius = tables(found), float(found.radius)
    p = found.outputs or 1
    fixed: dict[str, Any] = {
        "center": found.center,
        "scale": found.scale,
        "slope": found.slope.reshape(found.dim, p),
        "bias": found.bias.reshape(p),
        "directions": np.ascontiguousarray(table.directions.T),
        "low": np.float64(-radius),
        "high": np.float64(radius),
        "zero": np.float64(0.0),
        "each": table.intervals / (2.0 * radius),
        "last": table.intervals - 1.0,
        "offsets": table.offsets.astype(np.int64),
        **{f"a{j}": np.ascontiguousarray(table.cubics[:, j]) for j in range(4)},
        "left": table.ends[0],
        "right": table.ends[1],
        "third": np.array([2], dtype=np.int64),
        "second": np.array([1], dtype=np.int64),
    }
    nodes = []

    def add(kind: str, name: str, *inputs: str, **options: Any) -> str:
        nodes.append(make.make_node(kind, list(inputs), [name], **options))
        return name

    u = add("Div", "u", add("Sub", "moved", "x", "center"), "scale")
    y = add("Add", "affine", add("MatMul", "sloped", u, "slope"), "bias")
    if found.features:
        z = add("MatMul", "z", u, "directions")
        inside = add("Mul", "inside", add("Sub", "from_left", add("Clip", "clipped", z, "low", "high"), "low"), "each")
        k = add("Min", "k", add("Floor", "floored", inside), "last")
        t = add("Unsqueeze", "t", add("Sub", "fraction", inside, k), "third")
        rows = add("Add", "rows", add("Cast", "whole", k, to=onnx.TensorProto.INT64), "offsets")
        s = add("Gather", "s3", "a3", rows)
        for j in (2, 1, 0):
            s = add("Add", f"s{j}", add("Mul", f"up{j}", s, t), add("Gather", f"row{j}", f"a{j}", rows))
        below = add("Min", "below", add("Sub", "over_left", z, "low"), "zero")
        above = add("Max", "above", add("Sub", "over_right", z, "high"), "zero")
        for side, beyond in (("left", below), ("right", above)):
            tail = add("Mul", f"{side}_tail", add("Unsqueeze", f"{side}_each", beyond, "third"), side)
            s = add("Add", f"with_{side}", s, tail)
        for j in range(len(table.kinks)):
            fixed |= {f"place{j}": table.kinks[j], f"size{j}": table.weights[j]}
            far = add("Abs", f"far{j}", add("Sub", f"off{j}", z, f"place{j}"))
            bend = add("Mul", f"bend{j}", add("Unsqueeze", f"far_each{j}", far, "third"), f"size{j}")
            s = add("Add", f"with_kink{j}", s, bend)
        y = add("Add", "summed", y, add("ReduceSum", "features", s, "second", keepdims=0))
    add("Squeeze", "y", y, "second") if found.outputs is None else add("Identity", "y", y)
    double = onnx.TensorProto.DOUBLE
    graph = make.make_graph(
        nodes,
        "ridge_sum",
        [make.make_tensor_value_info("x", double, ["m", found.dim])],
        [make.make_tensor_value_info("y", double, ["m"] if found.outputs is None else ["m", p])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in fixed.items()],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    if path is not None:
        Path(path).write_bytes(model.SerializeToString())
    return model


def to_frame(found: Extraction) -> Any:
    """A pandas DataFrame with a row for each feature: what it is, and its direction."""
    pandas = _need("pandas", "to_frame")
    table = pandas.DataFrame(
        {
            "strength": [f.strength for f in found.features],
            "angle_error": [f.angle_error for f in found.features],
            "shape": [f.shape.name if f.shape else None for f in found.features],
            "formula": [f.shape.formula if f.shape else None for f in found.features],
            "r2": [f.shape.r2 if f.shape else np.nan for f in found.features],
            "kinks": [tuple(map(float, f.response.kinks)) for f in found.features],
        }
    )
    directions = pandas.DataFrame(found.directions, columns=[f"x{k}" for k in range(found.dim)])
    joined = pandas.concat([table, directions], axis=1)
    joined.index.name = "feature"
    return joined


def _need(package: str, user: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as problem:
        if problem.name != package:
            raise
        raise InvalidInput(f"{user} needs {package}, which is not installed: pip install {package}") from None
