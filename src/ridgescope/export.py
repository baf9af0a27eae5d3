"""The recovered function as a PyTorch module, an ONNX model, and a table.

A response is a cubic on each of its K intervals, straight lines beyond ±R, and kinks. With z clipped to [−R, R],
u = (z + R)·K/2R, k = ⌊u⌋ and t = u − k,

    s(z) = a₀ₖ + a₁ₖ t + a₂ₖ t² + a₃ₖ t³ + left·min(z + R, 0) + right·max(z − R, 0) + Σ_j w_j |z − t_j|

Everything is in double precision, so that `predict` and its copies agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .geometry import Floats
from .network import need

if TYPE_CHECKING:
    from .result import Extraction

_OPSET, _IR_VERSION = 17, 8
"""Versions of ONNX 1.12, which every supported onnxruntime (1.18 and later) reads."""
_INT64 = 7
"""Value of `onnx.TensorProto.INT64`."""


@dataclass(frozen=True, eq=False)
class Tables:
    """All responses as arrays: n features, p outputs (1 for a scalar f), at most J kinks each."""

    directions: Floats
    """(n, d) unit rows."""
    intervals: Floats
    """(n,) number K of intervals."""
    offsets: NDArray[np.int64]
    """(n,) row in `cubics` of each feature's first interval."""
    cubics: Floats
    """(ΣK, 4, p) coefficients a₀ … a₃ of each interval."""
    ends: Floats
    """(2, n, p) slopes of the straight lines to the left and to the right of [−R, R]."""
    kinks: Floats
    """(J, n) positions t_j, 0 for the missing ones of features with fewer kinks."""
    weights: Floats
    """(J, n, p) weights w_j, 0 for the missing ones."""


def tables(found: Extraction) -> Tables:
    """Return the responses of a result as arrays."""
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
    """Return the recovered function as a `torch.nn.Module` in double precision.

    Where the fit has given all features closed forms of one activation, the module is that of `found.network()`, whose
    weights are parameters and whose `activation` layer can be hooked. Otherwise it evaluates the splines.

    Returns
    -------
    torch.nn.Module
        A module from (m, d) to (m,) or (m, p) that can be differentiated with respect to its input.

    Raises
    ------
    InvalidInput
        If torch is not installed.

    Examples
    --------
    >>> found.to_torch()(torch.zeros(1, found.dim))
    """
    torch = need("torch", "to_torch")
    families = {f.form.family if f.form is not None else None for f in found.features}
    if len(families) == 1 and None not in families:
        return found.network().to_torch()
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
    """Return the recovered function as an ONNX model in double precision.

    Parameters
    ----------
    found
        The result.
    path
        File that the model is also written to, if given.

    Returns
    -------
    onnx.ModelProto
        A model with input `x` (m, d) and output `y` (m,) or (m, p), both float64.

    Raises
    ------
    InvalidInput
        If the package onnx is not installed.

    Examples
    --------
    >>> found.to_onnx("model.onnx")
    """
    onnx = need("onnx", "to_onnx")
    make, numpy_helper = onnx.helper, import_module("onnx.numpy_helper")
    p = found.outputs or 1
    graph = _OnnxGraph(
        make.make_node,
        {
            "center": found.center,
            "scale": found.scale,
            "slope": found.slope.reshape(found.dim, p),
            "bias": found.bias.reshape(p),
            "second_axis": np.array([1], dtype=np.int64),
        },
    )
    u = graph.add("Div", "u", graph.add("Sub", "moved", "x", "center"), "scale")
    y = graph.add("Add", "affine", graph.add("MatMul", "sloped", u, "slope"), "bias")
    if found.features:
        y = graph.add("Add", "summed", y, _sum_of_features(graph, u, tables(found), float(found.radius)))
    graph.add("Squeeze", "y", y, "second_axis") if found.outputs is None else graph.add("Identity", "y", y)
    double = onnx.TensorProto.DOUBLE
    proto = make.make_graph(
        graph.nodes,
        "ridge_sum",
        [make.make_tensor_value_info("x", double, ["m", found.dim])],
        [make.make_tensor_value_info("y", double, ["m"] if found.outputs is None else ["m", p])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in graph.constants.items()],
    )
    model = make.make_model(proto, opset_imports=[make.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    if path is not None:
        Path(path).write_bytes(model.SerializeToString())
    return model


@dataclass(eq=False)
class _OnnxGraph:
    """Nodes and constants of an ONNX graph under construction."""

    make_node: Callable[..., Any]
    constants: dict[str, Any]
    nodes: list[Any] = field(default_factory=list)

    def add(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node whose output is called `name`, and return that name."""
        self.nodes.append(self.make_node(kind, list(inputs), [name], **attributes))
        return name


def _sum_of_features(graph: _OnnxGraph, u: str, table: Tables, radius: float) -> str:
    """Add the nodes of Σ_i s_i(v_i·u) and return the name of their output (m, p)."""
    add = graph.add
    graph.constants |= {
        "directions": np.ascontiguousarray(table.directions.T),
        "low": np.float64(-radius),
        "high": np.float64(radius),
        "zero": np.float64(0.0),
        "intervals_per_unit": table.intervals / (2.0 * radius),
        "last": table.intervals - 1.0,
        "offsets": table.offsets.astype(np.int64),
        **{f"a{j}": np.ascontiguousarray(table.cubics[:, j]) for j in range(4)},
        "left": table.ends[0],
        "right": table.ends[1],
        "third_axis": np.array([2], dtype=np.int64),
    }
    z = add("MatMul", "z", u, "directions")
    from_left = add("Sub", "from_left", add("Clip", "clipped", z, "low", "high"), "low")
    inside = add("Mul", "inside", from_left, "intervals_per_unit")
    k = add("Min", "k", add("Floor", "floored", inside), "last")
    t = add("Unsqueeze", "t", add("Sub", "fraction", inside, k), "third_axis")
    rows = add("Add", "rows", add("Cast", "whole", k, to=_INT64), "offsets")
    s = add("Gather", "s3", "a3", rows)
    for j in (2, 1, 0):
        s = add("Add", f"s{j}", add("Mul", f"up{j}", s, t), add("Gather", f"row{j}", f"a{j}", rows))
    below = add("Min", "below", add("Sub", "over_left", z, "low"), "zero")
    above = add("Max", "above", add("Sub", "over_right", z, "high"), "zero")
    for side, beyond in (("left", below), ("right", above)):
        tail = add("Mul", f"{side}_tail", add("Unsqueeze", f"{side}_each", beyond, "third_axis"), side)
        s = add("Add", f"with_{side}", s, tail)
    for j in range(len(table.kinks)):
        graph.constants |= {f"place{j}": table.kinks[j], f"size{j}": table.weights[j]}
        far = add("Abs", f"far{j}", add("Sub", f"off{j}", z, f"place{j}"))
        bend = add("Mul", f"bend{j}", add("Unsqueeze", f"far_each{j}", far, "third_axis"), f"size{j}")
        s = add("Add", f"with_kink{j}", s, bend)
    return add("ReduceSum", "features", s, "second_axis", keepdims=0)


def to_frame(found: Extraction) -> Any:
    """Return the features as a table, one row each.

    Returns
    -------
    pandas.DataFrame
        A row for each feature: strength, angle_error, shape, formula, r2, kinks, the direction as x0, x1, …, and for
        several outputs the output vector as y0, y1, …

    Raises
    ------
    InvalidInput
        If pandas is not installed.

    Examples
    --------
    >>> found.to_frame().sort_values("angle_error").head()
    """
    pandas = need("pandas", "to_frame")
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
    parts = [table, directions]
    if found.outputs is not None:
        parts.append(pandas.DataFrame(found.output_directions, columns=[f"y{k}" for k in range(found.outputs)]))
    joined = pandas.concat(parts, axis=1)
    joined.index.name = "feature"
    return joined
