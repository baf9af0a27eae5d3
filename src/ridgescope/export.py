"""The recovered function as a PyTorch module, an ONNX model, and a table.

A response is a cubic on each of its K intervals, straight lines beyond ±R, and kinks. With z clipped to [−R, R],
u = (z + R)·K/2R, k = ⌊u⌋ and t = u − k,

    s(z) = a₀ₖ + a₁ₖ t + a₂ₖ t² + a₃ₖ t³ + left·min(z + R, 0) + right·max(z − R, 0) + Σ_j w_j |z − t_j|

Everything is in double precision, so that `predict` and its copies agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .feature import Feature
from .geometry import Floats
from .network import need
from .response import Response

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
    return _tables(found, [f.response for f in found.features], found.directions)


def gain_tables(found: Extraction) -> tuple[Tables, Floats]:
    """Return the gains of the gated features as arrays, and their carriers (k, d)."""
    gates = [(f.gate, f.direction) for f in found.features if f.gate is not None]
    directions = np.stack([v for _, v in gates])
    return _tables(found, [g.gain for g, _ in gates], directions), np.stack([g.carrier for g, _ in gates])


def _tables(found: Extraction, responses: list[Response], directions: Floats) -> Tables:
    p, n = found.outputs or 1, len(responses)
    most = max((len(s.kinks) for s in responses), default=0)
    cubics, ends = [np.zeros((0, 4, p))], np.zeros((2, n, p))
    kinks, weights = np.zeros((most, n)), np.zeros((most, n, p))
    for i, s in enumerate(responses):
        c = s.coefficients.reshape(-1, p)
        c0, c1, c2, c3 = (c[j : j + s.intervals] for j in range(4))
        rows = [c0 + 4 * c1 + c2, 3 * (c2 - c0), 3 * (c0 - 2 * c1 + c2), c3 - c0 + 3 * (c1 - c2)]
        cubics.append(np.stack(rows, axis=1) / 6.0)
        each = s.intervals / (2.0 * found.radius)
        ends[:, i] = each * cubics[-1][0, 1], each * (np.array([0, 1, 2, 3]) @ cubics[-1][-1])
        count = len(s.kinks)
        kinks[:count, i], weights[:count, i] = s.kinks, s.kink_weights.reshape(count, p)
    intervals = np.array([s.intervals for s in responses], dtype=np.int64)
    return Tables(
        directions,
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
    families = {_family(f) for f in found.features}
    if len(families) == 1 and None not in families:
        return found.network().to_torch()
    scalar, radius, gated = found.outputs is None, float(found.radius), any(f.gated for f in found.features)
    arrays = {f"response_{name}": a for name, a in vars(tables(found)).items()}
    if gated:
        table, carriers = gain_tables(found)
        arrays |= {f"gain_{name}": a for name, a in vars(table).items()} | {"carriers": carriers}
    arrays |= {"center": found.center, "scale": found.scale}
    arrays |= {"bias": found.bias.reshape(-1), "slope": found.slope.reshape(found.dim, -1)}

    class RidgeSum(torch.nn.Module):  # type: ignore[misc, name-defined]
        """bias + slope·u + Σ_i [s_i(v_i·u) + t_i(v_i·u)(c_i·u)], u = (x − center)/scale."""

        def __init__(self) -> None:
            super().__init__()
            for name, array in arrays.items():
                self.register_buffer(name, torch.from_numpy(np.array(array)))

        def forward(self, x: Any) -> Any:
            u = (x.to(self.slope.dtype) - self.center) / self.scale
            y = self.bias + u @ self.slope + self.curves("response", u).sum(dim=-2)
            if gated:
                y = y + (self.curves("gain", u) * (u @ self.carriers.T)[..., None]).sum(dim=-2)
            return y[..., 0] if scalar else y

        def curves(self, which: str, u: Any) -> Any:
            """Return the responses, or the gains, (…, n, p) at u (…, d)."""
            own = {f.name: getattr(self, f"{which}_{f.name}") for f in fields(Tables)}
            z = u @ own["directions"].T
            inside = (z.clamp(-radius, radius) + radius) * (own["intervals"] / (2.0 * radius))
            k = torch.minimum(inside.detach().floor(), own["intervals"] - 1.0)
            t = (inside - k)[..., None]
            a = own["cubics"][(own["offsets"] + k.long())]
            s = ((a[..., 3, :] * t + a[..., 2, :]) * t + a[..., 1, :]) * t + a[..., 0, :]
            s = s + (z + radius).clamp(max=0.0)[..., None] * own["ends"][0]
            s = s + (z - radius).clamp(min=0.0)[..., None] * own["ends"][1]
            for places, sizes in zip(own["kinks"], own["weights"], strict=True):
                s = s + (z - places).abs()[..., None] * sizes
            return s

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
        terms = _sum_of_curves(graph, u, tables(found), float(found.radius))
        y = graph.add("Add", "summed", y, terms)
    if any(f.gated for f in found.features):
        table, carriers = gain_tables(found)
        graph.constants["carriers"] = np.ascontiguousarray(carriers.T)
        carried = graph.add("MatMul", "carried", u, "carriers")
        y = graph.add("Add", "with_gates", y, _sum_of_curves(graph, u, table, float(found.radius), "gain_", carried))
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


def _sum_of_curves(
    graph: _OnnxGraph, u: str, table: Tables, radius: float, prefix: str = "", times: str | None = None
) -> str:
    """Add the nodes of Σ_i s_i(v_i·u), or Σ_i s_i(v_i·u)·y_i with `times` the name of y (m, n); return their output.

    Names of nodes and constants begin with `prefix`.
    """

    def add(kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        return graph.add(kind, prefix + name, *inputs, **attributes)

    constants = {
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
        **{f"place{j}": places for j, places in enumerate(table.kinks)},
        **{f"size{j}": sizes for j, sizes in enumerate(table.weights)},
    }
    graph.constants |= {prefix + name: value for name, value in constants.items()}
    c = {name: prefix + name for name in constants}
    z = add("MatMul", "z", u, c["directions"])
    from_left = add("Sub", "from_left", add("Clip", "clipped", z, c["low"], c["high"]), c["low"])
    inside = add("Mul", "inside", from_left, c["intervals_per_unit"])
    k = add("Min", "k", add("Floor", "floored", inside), c["last"])
    t = add("Unsqueeze", "t", add("Sub", "fraction", inside, k), c["third_axis"])
    rows = add("Add", "rows", add("Cast", "whole", k, to=_INT64), c["offsets"])
    s = add("Gather", "s3", c["a3"], rows)
    for j in (2, 1, 0):
        s = add("Add", f"s{j}", add("Mul", f"up{j}", s, t), add("Gather", f"row{j}", c[f"a{j}"], rows))
    below = add("Min", "below", add("Sub", "over_left", z, c["low"]), c["zero"])
    above = add("Max", "above", add("Sub", "over_right", z, c["high"]), c["zero"])
    for side, beyond in (("left", below), ("right", above)):
        tail = add("Mul", f"{side}_tail", add("Unsqueeze", f"{side}_each", beyond, c["third_axis"]), c[side])
        s = add("Add", f"with_{side}", s, tail)
    for j in range(len(table.kinks)):
        far = add("Abs", f"far{j}", add("Sub", f"off{j}", z, c[f"place{j}"]))
        bend = add("Mul", f"bend{j}", add("Unsqueeze", f"far_each{j}", far, c["third_axis"]), c[f"size{j}"])
        s = add("Add", f"with_kink{j}", s, bend)
    if times is not None:
        s = add("Mul", "multiplied", s, add("Unsqueeze", "factor", times, c["third_axis"]))
    return add("ReduceSum", "features", s, "second_axis", keepdims=0)


def _family(feature: Feature) -> str | None:
    """Return what kind of unit of a network a feature is; None if it has no closed form."""
    if feature.gate is not None:
        return f"{feature.gate.form.family} gate" if feature.gate.form is not None else None
    return feature.form.family if feature.form is not None else None


def to_frame(found: Extraction) -> Any:
    """Return the features as a table, one row each.

    Returns
    -------
    pandas.DataFrame
        A row for each feature: strength, angle_error, shape, formula, r2, kinks, the direction as x0, x1, …, for
        several outputs the output vector as y0, y1, …, and where features are gated, whether each is, the error of its
        carrier, and the carrier as c0, c1, …

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
    if any(f.gated for f in found.features):
        table["gated"] = [f.gated for f in found.features]
        table["carrier_error"] = [f.gate.carrier_error if f.gate is not None else np.nan for f in found.features]
        none = np.full(found.dim, np.nan)
        carriers = np.stack([none if f.carrier is None else f.carrier for f in found.features])
        parts.append(pandas.DataFrame(carriers, columns=[f"c{k}" for k in range(found.dim)]))
    if found.outputs is not None:
        parts.append(pandas.DataFrame(found.output_directions, columns=[f"y{k}" for k in range(found.outputs)]))
    joined = pandas.concat(parts, axis=1)
    joined.index.name = "feature"
    return joined
