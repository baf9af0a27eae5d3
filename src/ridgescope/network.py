"""A one-hidden-layer network with its weights, as `found.network()` returns it.

    f(x) = b_out + slope·x + W_out φ(W_in x + b_in)

Matrices are as `torch.nn.Linear` has them: one row for each output of the map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from .errors import InvalidInput
from .feature import chosen
from .fit.activations import ACTIVATIONS
from .geometry import Floats, frozen

Flags = NDArray[np.bool_]
_SOFTPLUS_THRESHOLD = 40.0  # beyond it PyTorch's softplus is a line; e^−40 is below the rounding of double precision
_OWN_ATOM = {family.name: family.atom for family in ACTIVATIONS if family.name != "relu"}
ACTIVATION_NAMES = ("relu", "leaky_relu", "abs", "sigmoid", *_OWN_ATOM)
"""What the activation of a network may be."""


def activation_values(name: str, y: Floats, leak: float = 0.0) -> Floats:
    """Return φ(y) for the activation of this name; `leak` is the slope of a leaky ReLU below zero."""
    if name == "relu":
        return np.maximum(y, 0.0)
    if name == "leaky_relu":
        return np.where(y > 0.0, y, leak * y)
    if name == "abs":
        return np.abs(y)
    if name == "sigmoid":
        return np.asarray(expit(y))
    return np.asarray(_OWN_ATOM[name](y)[0])


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """The function b_out + slope·x + W_out φ(W_in x + b_in) with n neurons, d inputs and p outputs.

    Neuron i is feature i of the result. What the data do not determine is a convention: rows of `W_in` have length one
    where φ is homogeneous (ReLU, leaky ReLU, absolute value), and point along the result's directions where φ is even
    or odd. For ReLU, GELU, SiLU and softplus a neuron and its mirror image differ by a line, so that signs come from
    the linear part of f: they are chosen so that `slope` is as small as possible, and `resolved` says where that
    decides.

    Examples
    --------
    >>> net = Network("relu", [[1.0, 0.0]], [0.5], [[2.0]], [0.0], [[0.0, 0.0]], [True])
    >>> net.predict([[1.0, 7.0], [-1.0, 7.0]]).tolist()
    [[3.0], [0.0]]
    """

    activation: str
    """Name of φ: relu, leaky_relu, abs, gelu, gelu_tanh, silu, softplus, mish, tanh, sigmoid, erf, sine and others."""
    W_in: Floats
    """(n, d) input weights."""
    b_in: Floats
    """(n,) input biases."""
    W_out: Floats
    """(p, n) output weights."""
    b_out: Floats
    """(p,) output bias."""
    slope: Floats
    """(p, d) the part of f's linear term that no neuron explains: 0 but for errors where f is the network alone."""
    resolved: Flags
    """(n,) whether the sign of each neuron is determined, or a convention that changes nothing."""
    leak: float = 0.0
    """Slope of a leaky ReLU below zero."""
    scalar: bool = False
    """Whether f answers numbers rather than rows, so that `predict` does."""

    def __post_init__(self) -> None:
        for name in ("W_in", "b_in", "W_out", "b_out", "slope"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        resolved = np.array(self.resolved, dtype=bool)
        resolved.flags.writeable = False
        object.__setattr__(self, "resolved", resolved)
        if self.activation not in ACTIVATION_NAMES:
            raise InvalidInput(f"unknown activation {self.activation!r}; choose from {', '.join(ACTIVATION_NAMES)}")
        (n, d), p = self.W_in.shape, len(self.b_out)
        shapes = (self.b_in.shape, self.W_out.shape, self.b_out.shape, self.slope.shape, resolved.shape)
        if shapes != ((n,), (p, n), (p,), (p, d), (n,)):
            raise InvalidInput(f"b_in, W_out, b_out, slope and resolved have shapes {shapes}, which do not fit W_in")

    @property
    def dim(self) -> int:
        """Number of inputs d."""
        return int(self.W_in.shape[1])

    def activations(self, X: ArrayLike) -> Floats:
        """Return φ(W_in x + b_in), (m, n), at the rows of X (m, d).

        Examples
        --------
        >>> net = Network("relu", [[1.0, 0.0]], [0.5], [[2.0]], [0.0], [[0.0, 0.0]], [True])
        >>> net.activations([[1.0, 7.0]]).tolist()
        [[1.5]]
        """
        X = self._rows(X)
        return activation_values(self.activation, X @ self.W_in.T + self.b_in, self.leak)

    def predict(self, X: ArrayLike) -> Floats:
        """Return the values (m, p), or (m,) if f is scalar, at the rows of X (m, d), in f's own coordinates.

        Examples
        --------
        >>> found.network().predict(X)
        """
        X = self._rows(X)
        values = self.b_out + X @ self.slope.T + self.activations(X) @ self.W_out.T
        return values[:, 0] if self.scalar else values

    def __call__(self, X: ArrayLike) -> Floats:
        """Return `predict(X)`."""
        return self.predict(X)

    def without(self, neurons: int | Iterable[int]) -> Network:
        """Return the network less these neurons, lines and all; the others are as they were.

        Examples
        --------
        >>> ablated = found.network().without([0, 3])
        """
        return self._keep(np.setdiff1d(np.arange(len(self.b_in)), chosen(neurons, len(self.b_in), "neuron")))

    def only(self, neurons: int | Iterable[int]) -> Network:
        """Return the network of these neurons alone, with `b_out` and `slope`.

        Examples
        --------
        >>> single = found.network().only(2)
        """
        return self._keep(chosen(neurons, len(self.b_in), "neuron"))

    def to_torch(self) -> Any:
        """Return a `torch.nn.Module` in double precision whose weights are parameters.

        Its layers are `hidden` (`W_in`, `b_in`), `activation`, which can be hooked, `output` (`W_out`, `b_out`) and
        `skip` (`slope`).

        Examples
        --------
        >>> module = found.network().to_torch()
        >>> handle = module.activation.register_forward_hook(lambda layer, y, a: print(a.shape))
        """
        return _module(self)

    def _keep(self, which: NDArray[np.intp]) -> Network:
        W_out, resolved = self.W_out[:, which], self.resolved[which]
        return replace(self, W_in=self.W_in[which], b_in=self.b_in[which], W_out=W_out, resolved=resolved)

    def _rows(self, X: ArrayLike) -> Floats:
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise InvalidInput(f"a network of {self.dim} inputs takes an (m, {self.dim}) array; got shape {X.shape}")
        return X

    def __repr__(self) -> str:
        (n, d), p = self.W_in.shape, len(self.b_out)
        name = f"{self.activation}({self.leak:.3g})" if self.activation == "leaky_relu" else self.activation
        left = float(np.linalg.norm(self.slope))
        return (
            f"<Network {d}–{n}–{p} {name}: {int(self.resolved.sum())} of {n} signs resolved, slope left of norm "
            f"{left:.2g}>"
        )


# -- PyTorch -------------------------------------------------------------------------------------------------


def need(package: str, user: str) -> Any:
    """Return an optional package; if it is not installed, raise `InvalidInput` with the pip command."""
    try:
        return import_module(package)
    except ModuleNotFoundError as problem:
        if problem.name != package:
            raise
        raise InvalidInput(f"{user} needs {package}, which is not installed: pip install {package}") from None


def _module(network: Network) -> Any:
    """Return the network as a module."""
    torch = need("torch", "to_torch")
    (n, d), p, scalar = network.W_in.shape, len(network.b_out), network.scalar
    double = {"dtype": torch.float64}

    class NeuronSum(torch.nn.Module):  # type: ignore[misc, name-defined]
        """b_out + slope·x + W_out φ(W_in x + b_in)."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.nn.Linear(d, n, **double)
            self.activation = _activation_layer(torch, network.activation, network.leak)
            self.output = torch.nn.Linear(n, p, **double)
            self.skip = torch.nn.Linear(d, p, bias=False, **double)

        def forward(self, x: Any) -> Any:
            x = x.to(self.hidden.weight.dtype)
            y = self.output(self.activation(self.hidden(x))) + self.skip(x)
            return y[..., 0] if scalar else y

    module = NeuronSum()
    names = {"hidden.weight": "W_in", "hidden.bias": "b_in", "output.weight": "W_out", "output.bias": "b_out"}
    names["skip.weight"] = "slope"
    module.load_state_dict({key: torch.from_numpy(np.array(getattr(network, name))) for key, name in names.items()})
    return module


def _activation_layer(torch: Any, name: str, leak: float) -> Any:
    """Return the activation as a layer of PyTorch's own where there is one."""
    nn = torch.nn
    own: dict[str, Callable[[], Any]] = {
        "relu": nn.ReLU,
        "leaky_relu": lambda: nn.LeakyReLU(leak),
        "gelu": nn.GELU,
        "gelu_tanh": lambda: nn.GELU("tanh"),
        "silu": nn.SiLU,
        "softplus": lambda: nn.Softplus(threshold=_SOFTPLUS_THRESHOLD),
        "mish": nn.Mish,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "clip": nn.Hardtanh,
    }
    if name in own:
        return own[name]()
    formulas: dict[str, Callable[[Any], Any]] = {
        "abs": torch.abs,
        "erf": torch.erf,
        "arctan": torch.atan,
        "bump": lambda y: torch.exp(-0.5 * y * y),
        "sine": torch.sin,
        "triangle": lambda y: (2.0 / np.pi) * torch.asin(torch.sin(y)),
        "exponential": torch.exp,
        "square": lambda y: y * y,
        "cube": lambda y: y**3,
    }

    class Activation(nn.Module):  # type: ignore[misc, name-defined]
        """An activation that PyTorch has no layer for."""

        def forward(self, y: Any) -> Any:
            return formulas[name](y)

        def extra_repr(self) -> str:
            return name

    return Activation()
