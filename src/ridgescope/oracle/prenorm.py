"""Pre-norm blocks: x + MLP(norm(x)) becomes a sum of features after a change of its input.

    RMSNorm:    n = x/√(|x|²/d + ε)              LayerNorm:    the same of x less its mean

With ε > 0 this maps R^d onto the open ball |n| < √d, for LayerNorm onto its mean-free part, and

    x = n·√(ε/(1 − |n|²/d))

reaches every n in it. So the function h ↦ f(x(h)) − x(h), h = weight·n, is the MLP itself at its own input h, on the
ellipsoid |h/weight| < √d, of which the oracle asks the largest ball about 0. Inputs of a LayerNorm's MLP lie in the
d − 1 dimensions that are orthogonal to 1/weight: a query is a vector of d − 1 coordinates in the rows of `basis`. The
component of a weight vector along 1/weight multiplies a constant, and cannot be known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import inf, log10, sqrt
from typing import Any, Literal, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..geometry import Floats, random_directions, unit
from .base import Oracle
from .specs import MODEL_ROWS, Options

Kind = Literal["rms", "layer"]
COMMON_EPS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-3)
"""Values of ε that models have."""
NATURAL, REACHED = 1e-3, 1e-9
"""1 − |n|²/d at the surface of the ball of `rs.extract`, and at the largest distance that may be asked. Real inputs
have ε/(|x|²/d + ε), between the two. Nothing new happens there, but x is large, and subtracting it costs digits."""
_RAYS = 8  # along which f is asked from 0 outwards where ε is not given
_SIZES = np.logspace(-9.0, 3.0, 49)  # |x|/√d there
_LIKELY = 0.45  # decades between the estimate of ε and a common value, at most
_HALF_WAY = 3.0  # ε over |x|²/d where |n| is half of √d
_NEARLY_LINEAR = 0.35  # of the odd part: what may be left of its linearity. Empirical: see the tests


class PrenormOracle(Oracle):
    """The MLP of a pre-norm block, asked through the block; see `prenorm`."""

    function: PrenormFunction

    @property
    def eps(self) -> float:
        """ε of the norm, as given or estimated."""
        return self.function.eps

    @property
    def basis(self) -> Floats:
        """(k, d) orthonormal rows: `found.directions @ oracle.basis` are in the d input coordinates of the MLP."""
        return self.function.basis

    def normalise(self, X: ArrayLike) -> Floats:
        """Return the queries (m, k) that rows x (m, d) of the residual stream amount to.

        Examples
        --------
        >>> ask = prenorm(lambda X: X, dim=2, eps=1e-5)
        >>> ask.normalise([[300.0, 400.0]]).round(3)
        array([[0.849, 1.131]])
        """
        return self.function.normalise(np.asarray(X, dtype=np.float64))


def prenorm(
    f: Any,
    dim: int | None = None,
    *,
    kind: Kind | None = None,
    eps: float | None = None,
    weight: ArrayLike | None = None,
    residual: bool = True,
    norm: Any = None,
    **options: Unpack[Options],
) -> PrenormOracle:
    """Return an oracle for the MLP inside x + MLP(norm(x)), which is a sum of features where the block is none.

    Parameters
    ----------
    f
        The block, as a function from (m, d) to (m, p), or a `torch.nn.Module`. It must be the norm and what follows it,
        with nothing before the norm.
    dim
        Number d of inputs of the block; for a norm of PyTorch it is known.
    kind
        "rms", the default, or "layer".
    eps
        The ε of the norm. If it is not given, it is estimated from some 800 values of f; it is found if it is one of
        the common values, 1e-12 to 1e-3, and the MLP does not saturate, as one of tanh does.
    weight
        Gain of the norm, d numbers or one. Then directions and weights are in the MLP's own input coordinates, and the
        ball is the largest one in the ellipsoid of its inputs. If gains differ so much that this ball is too small,
        leave them to the MLP with weight=1: directions are then those of its weights times the gains. A bias of the
        norm is part of the neurons' biases.
    residual
        Whether f adds x; it is subtracted then.
    norm
        A norm of PyTorch, or its name in f's `named_modules()`, from which kind, ε, gain and size are read, as far as
        they are not given.
    options
        Passed on to `Oracle`, but for `center` and `scale`.

    Returns
    -------
    PrenormOracle
        Takes d coordinates, or for LayerNorm d − 1, see its `basis`; `rs.extract` knows the radius of its ball, which
        is about √d for a gain of one. `oracle.normalise(X)` turns rows of the residual stream into queries, for
        `data=`.

    Raises
    ------
    InvalidInput
        If the norm is none that is known, or ε is not given and does not follow from the values.

    Examples
    --------
    >>> def block(X):
    ...     n = X / np.sqrt(np.mean(X**2, axis=1, keepdims=True) + 1e-5)
    ...     return X + np.tanh(n @ [[2.0, 0.0], [1.0, 1.0]])
    >>> ask = prenorm(block, dim=2, kind="rms", eps=1e-5)
    >>> bool(np.allclose(ask([[0.3, -0.2]]), np.tanh([[0.4, -0.2]])))
    True
    """
    for name in ("center", "scale"):
        if options.get(name) is not None:
            raise InvalidInput(f"prenorm takes no {name}: the inputs of the MLP lie in a ball about 0")
    read = _read_norm(f, norm) if norm is not None else {}
    kind = kind if kind is not None else cast(Kind, read.get("kind", "rms"))
    eps = eps if eps is not None else cast("float | None", read.get("eps"))
    weight = weight if weight is not None else cast("ArrayLike | None", read.get("weight"))
    block, slopes, known = _as_function(f, cast("int | None", read.get("dim")))
    dim = dim if dim is not None else known
    if dim is None:
        raise InvalidInput("the number of inputs of the block is not known; pass dim=…")
    if kind not in ("rms", "layer"):
        raise InvalidInput(f'kind must be "rms" or "layer", not {kind!r}')
    if eps is None:
        eps = _estimated_eps(block, dim, kind, residual)
    function = PrenormFunction(block, dim, kind, eps, weight, residual, slopes)
    options.setdefault("batch", MODEL_ROWS if hasattr(f, "named_modules") else None)
    domain = sqrt(dim) * function.least_gain
    reach = min(options.get("reach") or inf, domain * sqrt(1.0 - REACHED))
    options["reach"] = reach
    gradient = function.gradient if slopes is not None else None
    oracle = PrenormOracle(function, dim=function.dim, gradient=gradient, **options)
    oracle.natural_radius = min(domain * sqrt(1.0 - NATURAL), reach)
    return oracle


class PrenormFunction:
    """Maps queries (m, k) to the MLP's answers, by way of inputs x of the block."""

    def __init__(
        self,
        block: Callable[[Floats], Any],
        block_dim: int,
        kind: Kind,
        eps: float,
        weight: ArrayLike | None,
        residual: bool,
        slopes: Callable[[Floats], Any] | None = None,
    ) -> None:
        self.block, self.slopes, self.residual = block, slopes, residual
        self.block_dim, self.kind = block_dim, kind
        self.dim = block_dim if kind == "rms" else block_dim - 1
        if not (np.isfinite(eps) and eps > 0.0):
            raise InvalidInput(f"eps must be a positive number, not {eps!r}: without it the inputs lie on a sphere")
        if self.dim < 1:
            raise InvalidInput(f"a LayerNorm of {block_dim} inputs has no room for features")
        self.eps = float(eps)
        self.weight = np.array(np.broadcast_to(1.0 if weight is None else np.asarray(weight, np.float64), (block_dim,)))
        if not np.isfinite(self.weight).all() or not (self.weight != 0.0).all():
            raise InvalidInput(
                f"weight has an entry {self.weight[(self.weight == 0) | ~np.isfinite(self.weight)][0]}, through which "
                "nothing is seen; pass weight=1 and multiply the directions by it"
            )
        self.least_gain = float(np.abs(self.weight).min())
        # Reflection that takes 1/weight to the first axis: the other axes are then a basis of what is orthogonal to it.
        mirror = (1.0 / self.weight) / np.linalg.norm(1.0 / self.weight)
        mirror[0] += 1.0 if mirror[0] >= 0.0 else -1.0
        self._mirror = mirror / np.linalg.norm(mirror)

    def __call__(self, Q: Floats) -> NDArray[Any]:
        X = self.inputs(Q)
        answers = np.asarray(self.block(X))
        if not self.residual:
            return answers
        if answers.shape != X.shape:
            raise InvalidInput(
                f"the block answers shape {answers.shape} for inputs of shape {X.shape}, so that it does not add its "
                "input; pass residual=False"
            )
        return np.asarray(answers - X).astype(answers.dtype)  # its type says how exact it is

    def inputs(self, Q: Floats) -> Floats:
        """Return the inputs x (m, d) of the block whose norm is that of the queries (m, k)."""
        n = self._lift(Q) / self.weight
        room = 1.0 - np.einsum("md,md->m", n, n) / self.block_dim
        if not (room > 0.0).all():
            raise InvalidInput("a query lies outside the ball of inputs that a norm can have; lower radius or reach")
        return np.asarray(n * np.sqrt(self.eps / room)[:, None])

    def gradient(self, Q: Floats) -> Floats:
        """Return the derivatives (m, p, k): dx/dn = s(I + n nᵀ/(d − |n|²)), s = √(ε/(1 − |n|²/d))."""
        assert self.slopes is not None
        n = self._lift(Q) / self.weight
        room = 1.0 - np.einsum("md,md->m", n, n) / self.block_dim
        slopes = np.asarray(self.slopes(self.inputs(Q)), dtype=np.float64)
        slopes = slopes.reshape(len(Q), -1, self.block_dim)
        if self.residual:
            slopes = slopes - np.eye(self.block_dim)
        along = np.einsum("mpd,md->mp", slopes, n) / (self.block_dim * room)[:, None]
        slopes = np.sqrt(self.eps / room)[:, None, None] * (slopes + along[:, :, None] * n[:, None, :])
        return self._lower(slopes / self.weight)

    def normalise(self, X: Floats) -> Floats:
        """Return the queries (m, k) of rows x (m, d) of the residual stream."""
        if X.ndim != 2 or X.shape[1] != self.block_dim:
            raise InvalidInput(f"rows of the residual stream form an (m, {self.block_dim}) array; got shape {X.shape}")
        if self.kind == "layer":
            X = X - X.mean(axis=1, keepdims=True)
        n = X / np.sqrt(np.mean(X**2, axis=1, keepdims=True) + self.eps)
        return self._lower(self.weight * n)

    @cached_property
    def basis(self) -> Floats:
        """(k, d) rows: the MLP's inputs h that the coordinates of a query stand for."""
        return self._lift(np.eye(self.dim))

    def _lift(self, Q: Floats) -> Floats:
        """Return the MLP's inputs h (m, d) of queries (m, k)."""
        return Q if self.kind == "rms" else self._reflect(np.concatenate([np.zeros((len(Q), 1)), Q], axis=1))

    def _lower(self, H: Floats) -> Floats:
        """Return the coordinates (…, k) of rows h (…, d) along the basis."""
        return H if self.kind == "rms" else np.ascontiguousarray(self._reflect(H)[..., 1:])

    def _reflect(self, H: Floats) -> Floats:
        return np.asarray(H - 2.0 * (H @ self._mirror)[..., None] * self._mirror)

    def __repr__(self) -> str:
        return f"prenorm ({self.kind}): {self.block!r}"


# -- the block -----------------------------------------------------------------------------------------------


def _as_function(f: Any, dim: int | None) -> tuple[Callable[[Floats], Any], Callable[[Floats], Any] | None, int | None]:
    """Return a block as a function of rows, its derivatives if it offers them, and the number of its inputs."""
    if hasattr(f, "named_modules"):
        from .torch import TorchFunction

        module = TorchFunction(f)
        return module, module.gradient, dim if dim is not None else getattr(module, "dim", None)
    if isinstance(f, Oracle):
        plain = not f.center.any() and (f.scale == 1.0).all() and f.output == "raw"
        if not plain:
            raise InvalidInput("prenorm takes the block's own function, not an Oracle with center, scale or log_odds")
        return f.function, None, f.dim
    if not callable(f):
        raise InvalidInput(f"prenorm takes a function, an Oracle or a torch.nn.Module; got {f!r}")
    return f, None, dim if dim is not None else getattr(f, "dim", None)


def _read_norm(f: Any, norm: Any) -> dict[str, Any]:
    """Return kind, ε, gain and size of a norm of PyTorch, given itself or by its name in the block."""
    if isinstance(norm, str):
        if not hasattr(f, "named_modules"):
            raise InvalidInput(f"norm={norm!r} names a part of a torch.nn.Module, and f is none; pass kind and eps")
        from .torch_layers import find_layer

        norm = find_layer(f, norm)
    name = type(norm).__name__
    eps = next((getattr(norm, key) for key in ("eps", "variance_epsilon", "epsilon") if hasattr(norm, key)), None)
    gain = getattr(norm, "weight", None)
    if not ("LayerNorm" in name or "RMSNorm" in name) or "Gemma" in name:
        raise InvalidInput(f"{name} is neither a LayerNorm nor an RMSNorm that is known; pass kind, eps and weight")
    read: dict[str, Any] = {"kind": "rms" if "RMSNorm" in name else "layer"}
    if gain is not None:
        gain = gain.detach().cpu().double().numpy().reshape(-1)
        read |= {"weight": gain, "dim": len(gain)}
    elif getattr(norm, "normalized_shape", None):
        read["dim"] = int(np.prod(norm.normalized_shape))
    if eps is None and "RMSNorm" in name:  # torch.nn.RMSNorm then takes the rounding unit of its input's type
        import torch

        from .torch_layers import type_and_device

        eps = torch.finfo(type_and_device(f if hasattr(f, "named_modules") else norm, None)[0]).eps
    return read | ({} if eps is None else {"eps": float(eps)})


def _estimated_eps(block: Callable[[Floats], Any], dim: int, kind: Kind, residual: bool) -> float:
    """Return the common value of ε that is closest to what f shows from 0 outwards; raise where none is close.

    Along a ray, |n| is half its largest value where |x|²/d = ε/3. Where the odd part of the MLP is nearly linear, as
    that of ReLU and GELU is, it is half its largest value there, too. Whether it is linear shows far out, whatever ε
    is: n is then √d e for a ray e, and the odd part at e₁ + e₂ is to be the sum of those at e₁ and e₂.
    """

    def odd(X: Floats) -> Floats:
        answers = [np.asarray(block(x), np.float64).reshape(len(X), -1) - (x if residual else 0.0) for x in (X, -X)]
        return np.asarray(0.5 * (answers[0] - answers[1]))

    rays = random_directions(_RAYS, dim, np.random.default_rng(0))
    if kind == "layer":
        rays = unit(rays - rays.mean(axis=1, keepdims=True))
    sums = rays + np.roll(rays, 1, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    values = odd((sqrt(dim) * _SIZES[:, None, None] * rays).reshape(-1, dim)).reshape(len(_SIZES), _RAYS, -1)
    far = values[-1]
    bent = lengths * odd(sqrt(dim) * _SIZES[-1] * sums / lengths) - far - np.roll(far, 1, axis=0)
    size = np.linalg.norm(values, axis=(1, 2))
    half = 0.5 * float(np.median(size[_SIZES >= 1.0]))
    after = int(np.argmax(size >= half))
    ask = f"eps is not given and does not follow from f's values; pass eps={COMMON_EPS[3]:g} or whatever the norm has"
    linear = float(np.linalg.norm(bent)) <= _NEARLY_LINEAR * float(size[-1])
    if not (np.isfinite(values).all() and half > 0.0 and linear and 0 < after < np.argmax(_SIZES >= 1.0)):
        raise InvalidInput(ask)
    share = (half - size[after - 1]) / (size[after] - size[after - 1])
    estimate = _HALF_WAY * float(_SIZES[after - 1] * (_SIZES[after] / _SIZES[after - 1]) ** share) ** 2
    nearest = min(COMMON_EPS, key=lambda value: abs(log10(value / estimate)))
    if abs(log10(nearest / estimate)) > _LIKELY:
        raise InvalidInput(f"{ask}: they suggest about {estimate:.1e}, which is no common value")
    return nearest
