"""A gated layer with its weights, as `found.network()` returns it for SwiGLU, GEGLU, ReGLU and the like.

    f(x) = b_out + slope·x + W_down [ φ(W_gate x + b_gate) ∘ (W_up x + b_up) ]

A gated feature is o φ(kz + b)(αz + βy + γ) with z = v·u, y = c·u, less an affine part: what its response has lost to
bias and slope, γφ(b) + c₁z, and what its gain has, βφ(b)y. That part is added back here. Signs of gates are
determined, as φ and its mirror image differ by a line that is multiplied by the carrier; of carriers and outputs only
the product is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .errors import InvalidInput
from .feature import Feature
from .fit.gated_form import GATE_INDEX, GATES
from .geometry import Floats, frozen
from .network import need

if TYPE_CHECKING:
    from typing import Any

    from .result import Extraction

_NODES = (
    200  # of Gauss–Legendre quadrature on either side of 0, or of a kink, for the least-squares slope of a response
)


@dataclass(frozen=True, eq=False, repr=False)
class GatedNetwork:
    """The function b_out + slope·x + W_down [φ(W_gate x + b_gate) ∘ (W_up x + b_up)] of n units, d inputs, p outputs.

    Unit i is feature i of the result. A unit's up and down weights are determined up to a factor, which is chosen so
    that rows of (W_up, b_up) have length one and their largest entry is positive; gates are determined, sign included.

    Examples
    --------
    >>> net = GatedNetwork("relu", [[1.0, 0.0]], [0.0], [[0.0, 1.0]], [0.0], [[2.0]], [0.0], [[0.0, 0.0]])
    >>> net.predict([[3.0, 1.0], [-3.0, 1.0]]).tolist()
    [[6.0], [0.0]]
    """

    activation: str
    """Name of φ."""
    W_gate: Floats
    """(n, d)."""
    b_gate: Floats
    """(n,)."""
    W_up: Floats
    """(n, d)."""
    b_up: Floats
    """(n,)."""
    W_down: Floats
    """(p, n)."""
    b_out: Floats
    """(p,)."""
    slope: Floats
    """(p, d) the part of f's linear term that no unit explains: 0 but for errors where f is the layer alone."""
    scalar: bool = False
    """Whether f answers numbers rather than rows, so that `predict` does."""

    def __post_init__(self) -> None:
        for name in ("W_gate", "b_gate", "W_up", "b_up", "W_down", "b_out", "slope"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        if self.activation not in GATE_INDEX:
            raise InvalidInput(f"unknown activation {self.activation!r}; choose from {', '.join(GATE_INDEX)}")
        (n, d), p = self.W_gate.shape, len(self.b_out)
        shapes = tuple(getattr(self, name).shape for name in ("b_gate", "W_up", "b_up", "W_down", "slope"))
        if shapes != ((n,), (n, d), (n,), (p, n), (p, d)):
            raise InvalidInput(f"b_gate, W_up, b_up, W_down and slope have shapes {shapes}, which do not fit W_gate")

    @property
    def dim(self) -> int:
        """Number of inputs d."""
        return int(self.W_gate.shape[1])

    def activations(self, X: ArrayLike) -> Floats:
        """Return φ(W_gate x + b_gate) ∘ (W_up x + b_up), (m, n), at the rows of X (m, d).

        Examples
        --------
        >>> found.network().activations(X)
        """
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise InvalidInput(f"a network of {self.dim} inputs takes an (m, {self.dim}) array; this one is {X.shape}")
        gate = GATES[GATE_INDEX[self.activation]].atom(X @ self.W_gate.T + self.b_gate)[0]
        return np.asarray(gate * (X @ self.W_up.T + self.b_up))

    def predict(self, X: ArrayLike) -> Floats:
        """Return the values (m, p), or (m,) if f is scalar, at the rows of X (m, d), in f's own coordinates.

        Examples
        --------
        >>> found.network().predict(X)
        """
        X = np.asarray(X, dtype=np.float64)
        values = self.activations(X) @ self.W_down.T + self.b_out + X @ self.slope.T
        return values[:, 0] if self.scalar else values

    def to_torch(self) -> Any:
        """Return the layer as a `torch.nn.Module` in double precision with `gate`, `up`, `down` and `straight`.

        Examples
        --------
        >>> module = found.network().to_torch()
        """
        torch = need("torch", "to_torch")
        functions = {
            "silu": torch.nn.SiLU,
            "gelu": torch.nn.GELU,
            "gelu_tanh": lambda: torch.nn.GELU(approximate="tanh"),
            "tanh": torch.nn.Tanh,
            "softplus": torch.nn.Softplus,
            "mish": torch.nn.Mish,
            "relu": torch.nn.ReLU,
        }
        if self.activation not in functions:
            raise InvalidInput(f"torch has no module for the activation {self.activation!r}; use predict instead")
        weights, scalar = self, self.scalar

        class GatedLayer(torch.nn.Module):  # type: ignore[misc, name-defined]
            """down(activation(gate(x)) * up(x)) + straight(x)."""

            def __init__(self) -> None:
                super().__init__()
                self.gate = linear(torch, weights.W_gate, weights.b_gate)
                self.up = linear(torch, weights.W_up, weights.b_up)
                self.down = linear(torch, weights.W_down, weights.b_out)
                self.straight = linear(torch, weights.slope, None)
                self.activation = functions[weights.activation]()

            def forward(self, x: Any) -> Any:
                x = x.to(self.gate.weight.dtype)
                y = self.down(self.activation(self.gate(x)) * self.up(x)) + self.straight(x)
                return y[..., 0] if scalar else y

        return GatedLayer()

    def __repr__(self) -> str:
        n, d = self.W_gate.shape
        return f"<GatedNetwork: {d} inputs, {n} units gated by {self.activation}, {len(self.b_out)} outputs>"


def linear(torch: Any, weight: Floats, bias: Floats | None) -> Any:
    """Return a linear layer with these weights in double precision."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(weight)))
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(np.array(bias)))
    return layer


def gated_network_of(found: Extraction, activation: str | None = None) -> GatedNetwork:
    """Return the gated layer whose units are the features; raise `InvalidInput` if they are of several kinds."""
    kinds = Counter(_kind(f) for f in found.features)
    if len(kinds) > 1 or "spline" in kinds:
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        raise InvalidInput(f"the features are no layer of one kind of unit: {counted}; use found.features instead")
    (name,) = {f.gate.form.family for f in found.features if f.gate is not None and f.gate.form is not None}
    if activation is not None and activation != name:
        raise InvalidInput(f"the gates are those of {name}, not of {activation}; leave activation out")
    n, d, p = len(found.features), found.dim, found.outputs or 1
    bias, slope = found.bias.reshape(p).copy(), found.slope.reshape(d, p).copy()
    gates, ups = np.empty((n, d + 1)), np.empty((n, d + 1))
    down = np.empty((n, p))
    for i, f in enumerate(found.features):
        gates[i], ups[i], down[i], c0, line = _unit(f, found.radius)
        bias -= c0
        slope -= line
    size = np.linalg.norm(ups, axis=1)
    size *= np.sign(ups[np.arange(n), np.argmax(np.abs(ups), axis=1)])
    ups, down = ups / size[:, None], down * size[:, None]
    (W_gate, b_gate), (W_up, b_up) = (_in_own_coordinates(found, rows) for rows in (gates, ups))
    slope = slope / found.scale[:, None]
    return GatedNetwork(
        name, W_gate, b_gate, W_up, b_up, down.T, bias - found.center @ slope, slope.T, found.outputs is None
    )


def _kind(feature: Feature) -> str:
    if feature.gate is None:
        return "plain"
    return "spline" if feature.gate.form is None else f"gated by {feature.gate.form.family}"


def _unit(f: Feature, radius: float) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return (b, g), (γ, w) and o of a feature, and the constant (p,) and slope (d, p) that it is less."""
    assert f.gate is not None
    assert f.gate.form is not None
    form, o = f.gate.form, np.atleast_1d(f.gate.output)
    atom = GATES[GATE_INDEX[form.family]].atom
    kink = -form.bias / form.steepness if form.family == "relu" else 0.0  # a parabola on either side
    ends = np.array([-radius, np.clip(kink, -radius, radius), radius])
    middle, half = 0.5 * (ends[1:] + ends[:-1]), 0.5 * np.diff(ends)
    nodes, shares = np.polynomial.legendre.leggauss(_NODES)
    z, weight = (middle[:, None] + np.multiply.outer(half, nodes)).ravel(), np.multiply.outer(half, shares).ravel()
    curve = atom(form.steepness * z + form.bias)[0] * (form.along * z + form.constant)
    at_zero = float(atom(np.array([form.bias]))[0][0])
    c1 = float(np.sum(weight * z * curve)) * 1.5 / radius**3
    line = c1 * f.direction + form.across * at_zero * f.gate.carrier
    gate = np.concatenate([[form.bias], form.steepness * f.direction])
    up = np.concatenate([[form.constant], form.along * f.direction + form.across * f.gate.carrier])
    return gate, up, o, at_zero * form.constant * o, np.multiply.outer(line, o)


def _in_own_coordinates(found: Extraction, rows: Floats) -> tuple[Floats, Floats]:
    """Return weights and biases in x of rows (bias, weights) in u = (x − center)/scale."""
    weights = rows[:, 1:] / found.scale
    return weights, rows[:, 0] - weights @ found.center
