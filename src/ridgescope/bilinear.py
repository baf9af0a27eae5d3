"""Quadratic functions as sums of products of two linear forms, the units of a bilinear layer.

    f(x) = b_out + slope·x + W_down [ (W_left x + b_left) ∘ (W_right x + b_right) ]

The features of a quadratic function are squares along directions that are one choice among many. Its Hessians, one for
each output, are not, and where their span is that of n products (`search.rank_two`), these are determined, up to the
order of the two forms of each, their factors, and biases, which belong to the linear part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .errors import InvalidInput
from .feature import Feature
from .gated_network import linear
from .geometry import Floats, frozen, leading_sign
from .network import need
from .search.rank_one import pack
from .search.rank_two import products_in

if TYPE_CHECKING:
    from typing import Any

    from .result import Extraction

_QUADRATIC = 1e-8
"""Share of a response that may be left beside its square: fits of squares leave rounding, others their goal."""
_POINTS = 33  # at which responses are compared with squares; a spline of few intervals bends between no more
_ERROR = 1e-9
"""Error of the Hessians of such fits over their size. Empirical: up to 1e-11 was measured."""
_LARGEST_ERROR = 1e-5
"""Error of the span of the Hessians from which on it says nothing, as where a unit is hardly written to any output."""


@dataclass(frozen=True, eq=False, repr=False)
class BilinearNetwork:
    """The function b_out + slope·x + W_down [(W_left x + b_left) ∘ (W_right x + b_right)] of n products.

    Which of its two forms is left and which right is one choice of two for each product. In the coordinates of the
    ball, rows have length one and a positive largest entry. Biases that the products themselves have are in `slope`.

    Examples
    --------
    >>> net = BilinearNetwork([[1.0, 0.0]], [0.0], [[0.0, 1.0]], [0.0], [[2.0]], [0.0], [[0.0, 0.0]])
    >>> net.predict([[3.0, 1.0]]).tolist()
    [[6.0]]
    """

    W_left: Floats
    """(n, d)."""
    b_left: Floats
    """(n,); zero but for the centre of the ball."""
    W_right: Floats
    """(n, d)."""
    b_right: Floats
    """(n,)."""
    W_down: Floats
    """(p, n)."""
    b_out: Floats
    """(p,)."""
    slope: Floats
    """(p, d)."""
    scalar: bool = False
    """Whether f answers numbers rather than rows, so that `predict` does."""

    def __post_init__(self) -> None:
        for name in ("W_left", "b_left", "W_right", "b_right", "W_down", "b_out", "slope"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def activations(self, X: ArrayLike) -> Floats:
        """Return (W_left x + b_left) ∘ (W_right x + b_right), (m, n), at the rows of X (m, d).

        Examples
        --------
        >>> found.network().activations(X)
        """
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.W_left.shape[1]:
            raise InvalidInput(f"a network of {self.W_left.shape[1]} inputs takes rows of as many; this is {X.shape}")
        return np.asarray((X @ self.W_left.T + self.b_left) * (X @ self.W_right.T + self.b_right))

    def predict(self, X: ArrayLike) -> Floats:
        """Return the values (m, p), or (m,) if f is scalar, at the rows of X (m, d), in f's own coordinates.

        Examples
        --------
        >>> found.network().predict(X)
        """
        values = self.activations(X) @ self.W_down.T + self.b_out + np.asarray(X, dtype=np.float64) @ self.slope.T
        return values[:, 0] if self.scalar else values

    def to_torch(self) -> Any:
        """Return the function as a `torch.nn.Module` in double precision with `left`, `right`, `down` and `straight`.

        Examples
        --------
        >>> module = found.network().to_torch()
        """
        torch = need("torch", "to_torch")
        weights, scalar = self, self.scalar

        class BilinearLayer(torch.nn.Module):  # type: ignore[misc, name-defined]
            """down(left(x) * right(x)) + straight(x)."""

            def __init__(self) -> None:
                super().__init__()
                self.left = linear(torch, weights.W_left, weights.b_left)
                self.right = linear(torch, weights.W_right, weights.b_right)
                self.down = linear(torch, weights.W_down, weights.b_out)
                self.straight = linear(torch, weights.slope, None)

            def forward(self, x: Any) -> Any:
                x = x.to(self.left.weight.dtype)
                y = self.down(self.left(x) * self.right(x)) + self.straight(x)
                return y[..., 0] if scalar else y

        return BilinearLayer()

    def __repr__(self) -> str:
        (n, d), p = self.W_left.shape, len(self.b_out)
        return f"<BilinearNetwork: {d} inputs, {n} products of two linear forms, {p} output{'s' * (p != 1)}>"


def hessians_of(features: Sequence[Feature]) -> Floats | None:
    """Return the constant Hessians (p, D), packed, of the sum of the features; None if one of them is no square."""
    if not features or any(f.gated for f in features):
        return None
    total: Floats | float = 0.0
    for f in features:
        z = np.linspace(-f.response.radius, f.response.radius, _POINTS)
        values = f.response(z).reshape(len(z), -1)
        powers = np.polynomial.polynomial.polyvander(z / f.response.radius, 2)
        fitted = np.linalg.lstsq(powers, values, rcond=None)[0]
        if not np.abs(values - powers @ fitted).max() <= _QUADRATIC * np.abs(values).max():
            return None
        square = 2.0 * fitted[2] / f.response.radius**2
        total = total + np.multiply.outer(square, pack(np.outer(f.direction, f.direction)))
    return np.asarray(total)


def products_of(features: Sequence[Feature]) -> tuple[Floats, Floats, Floats] | None:
    """Return g, u (n, d) and o (p, n) of the products o (g·x)(u·x) that quadratic features determine, or None."""
    hessians = hessians_of(features)
    if hessians is None or not np.isfinite(hessians).all() or not hessians.any():
        return None
    _, sizes, rows = np.linalg.svd(hessians, full_matrices=False)
    rank = int(np.sum(sizes > _ERROR * sizes[0]))
    error = _ERROR * float(sizes[0] / sizes[rank - 1])
    forms = products_in(rows[:rank], error, np.random.default_rng(0)) if error <= _LARGEST_ERROR else None
    if forms is None:
        return None
    g, u = (np.stack([leading_sign(row) * row for row in part]) for part in forms)
    members = pack(g[:, :, None] * u[:, None, :] + u[:, :, None] * g[:, None, :])
    return g, u, np.asarray(np.linalg.lstsq(members.T, hessians.T, rcond=None)[0].T)


def describe_products(features: Sequence[Feature]) -> str:
    """Return a sentence on the products that several quadratic features are made of; empty for other features."""
    if len(features) < 2 or hessians_of(features) is None:
        return ""
    outputs = features[0].response.outputs or 1
    products = products_of(features)
    if products is not None:
        n = len(products[0])
        return (
            f"As a sum of {n} product{'s' * (n != 1)} (g·x)(u·x) it is determined, up to the order of g and u: "
            "found.network() has them."
        )
    if outputs == 1:
        return "If f is a sum of products (g·x)(u·x), one output does not tell of which: others give the same function."
    return (
        f"If f is a sum of products (g·x)(u·x), the Hessians of its {outputs} outputs do not show of which, as they "
        "would in double precision if there are no more products than outputs."
    )


def bilinear_network_of(found: Extraction) -> BilinearNetwork:
    """Return the products of a result with quadratic responses; raise `InvalidInput` if they are not determined."""
    products = products_of(found.features)
    if products is None:
        raise InvalidInput(
            "f is a polynomial of degree 2, and the Hessians of its outputs do not show products of two linear "
            "forms that it is made of: units are one choice among many, or precision is low; use found.features instead"
        )
    g, u, o = products
    left, right = g / found.scale, u / found.scale
    slope = found.slope.reshape(found.dim, -1).T / found.scale
    return BilinearNetwork(
        W_left=left,
        b_left=-left @ found.center,
        W_right=right,
        b_right=-right @ found.center,
        W_down=o,
        b_out=np.atleast_1d(found.bias) - slope @ found.center,
        slope=slope,
        scalar=found.outputs is None,
    )
