"""A planted sum of features that knows its truth.

    f(x) = b + a·x + Σ_i c_i φ_i(v_i·x) + noise(x)

Rows are evaluated in blocks of a fixed size, padded with zeros: a matrix product rounds differently for
different shapes, and a target whose last bits depend on the batch would hide a fault of ours that does the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..geometry import Floats, random_directions, unit
from .kinds import DRAW, Drawn, sine

SMOOTH = ("tanh", "sine", "bump", "softplus", "gelu", "fourier")
KINDS = (*SMOOTH, "relu", "leaky_relu", "abs", "step", "triangle")
"""All kinds whose directions are identifiable for any n; "polynomial" must be asked for by name."""

_BLOCK = 256
_TRIES = 10_000
NoiseKind = Literal["uniform", "adversarial", "fresh"]


@dataclass(frozen=True, eq=False)
class Planted:
    """Callable on (m, d); with `outputs=p` the coefficients are rows of p numbers."""

    directions: Floats
    drawn: tuple[Drawn, ...]
    coefficients: Floats
    """(n, p)"""
    bias: Floats
    """(p,)"""
    slope: Floats
    """(d, p)"""
    scalar: bool
    noise: float
    noise_kind: NoiseKind
    noise_seed: int

    @property
    def dim(self) -> int:
        return int(self.directions.shape[1])

    @property
    def outputs(self) -> int | None:
        return None if self.scalar else int(self.coefficients.shape[1])

    @property
    def parameters(self) -> int:
        """n(d+16): a direction and sixteen numbers of a response for each feature."""
        n, d = self.directions.shape
        return int(n * (d + 16))

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(d.kind for d in self.drawn)

    @property
    def responses(self) -> tuple[Callable[[ArrayLike], Floats], ...]:
        """The true s_i, coefficient included: scalar-valued, or (…, p)."""
        return tuple(
            self._response(d, c[0] if self.scalar else c) for d, c in zip(self.drawn, self.coefficients, strict=True)
        )

    @staticmethod
    def _response(drawn: Drawn, c: Floats) -> Callable[[ArrayLike], Floats]:
        return lambda z: np.multiply.outer(drawn(np.asarray(z, dtype=np.float64)), c)

    def clean(self, X: ArrayLike) -> Floats:
        """Values without noise: (m,) or (m, p)."""
        X = np.asarray(X, dtype=np.float64)
        values = np.empty((len(X), self.coefficients.shape[1]))
        for start in range(0, len(X), _BLOCK):
            rows = X[start : start + _BLOCK]
            block = np.zeros((_BLOCK, self.dim))
            block[: len(rows)] = rows
            z = block @ self.directions.T
            phi = np.empty_like(z)
            for i, drawn in enumerate(self.drawn):
                phi[:, i] = drawn(z[:, i])
            values[start : start + _BLOCK] = (self.bias + block @ self.slope + phi @ self.coefficients)[: len(rows)]
        return values[:, 0] if self.scalar else values

    def __call__(self, X: ArrayLike) -> Floats:
        values = self.clean(X)
        if self.noise == 0:
            return values
        shape = (len(values), self.coefficients.shape[1])
        return values + self.noise * self._noise(np.asarray(X, dtype=np.float64), shape).reshape(values.shape)

    def _noise(self, X: Floats, shape: tuple[int, int]) -> Floats:
        """In [−1, 1]. "uniform" and "adversarial" are fixed functions of x; "fresh" differs at every call."""
        if self.noise_kind == "fresh":
            return np.random.default_rng().uniform(-1.0, 1.0, shape)
        if self.noise_kind == "uniform":
            return np.stack([2.0 * _hash_unit(X, self.noise_seed + j) - 1.0 for j in range(shape[1])], axis=1)
        rng = np.random.default_rng(self.noise_seed)  # a checkerboard in three random directions
        waves = [np.sin(X @ (rng.uniform(2.0, 8.0) * random_directions(shape[1], self.dim, rng)).T) for _ in range(3)]
        return np.where(waves[0] * waves[1] * waves[2] >= 0, 1.0, -1.0)


def planted(
    dim: int,
    features: int,
    kinds: str | Callable[[Floats], Floats] | Sequence[str | Callable[[Floats], Floats]] = KINDS,
    separation: float = 0.1,
    noise: float = 0.0,
    rng: int | np.random.Generator = 0,
    *,
    outputs: int | None = None,
    twins: int = 0,
    twin_angle: float = 0.06,
    noise_kind: NoiseKind = "uniform",
    frequencies: tuple[float, float] | None = None,
    affine: bool = True,
) -> Planted:
    """Draw a target: directions with pairwise sines at least `separation`, responses from `kinds` in turn.

    A kind is a name from `DRAW` or a callable of one array. `twins` pairs of directions are `twin_angle`
    apart (and exempt from `separation` between themselves). `frequencies` replaces the range of the sines.
    `noise` bounds |f̃ − f| in f's own units; its kind is "uniform" or "adversarial" (both fixed functions of
    x), or "fresh" (another value at every call). `outputs=p` makes f vector-valued; `affine=False` leaves
    b + a·x out.
    """
    kinds = (kinds,) if isinstance(kinds, str) or callable(kinds) else tuple(kinds)
    if dim < 1 or features < 0:
        raise InvalidInput(f"a target needs dim ≥ 1 and features ≥ 0; got dim={dim}, features={features}")
    if 2 * twins > features:
        raise InvalidInput(f"{twins} pairs of twins need {2 * twins} features, not {features}")
    if not 0 <= noise < np.inf:
        raise InvalidInput(f"noise must be finite and not negative; got {noise}")
    if noise_kind not in get_args(NoiseKind):
        raise InvalidInput(f"noise_kind must be one of {', '.join(get_args(NoiseKind))}; got {noise_kind!r}")
    if not 0 <= separation < 1:
        raise InvalidInput(f"separation is a sine, at least 0 and below 1; got {separation}")
    if not kinds:
        raise InvalidInput(f"kinds is empty; choose from {', '.join(DRAW)} or pass a callable")
    if outputs is not None and outputs < 1:
        raise InvalidInput(f"outputs must be at least 1, or None for a scalar target; got {outputs}")
    rng = np.random.default_rng(rng)
    directions = _separated(dim, features, separation, twins, twin_angle, rng)
    drawn = tuple(_draw(kinds[i % len(kinds)], frequencies, rng) for i in range(features))
    p = outputs or 1
    if outputs is None:
        coefficients = (rng.choice([-1.0, 1.0], features) * rng.uniform(0.5, 1.5, features))[:, None]
    else:
        coefficients = (
            unit(rng.standard_normal((features, p))) * rng.uniform(0.5, 1.5, (features, 1))
            if features
            else np.empty((0, p))
        )
    bias = rng.standard_normal(p) * affine
    slope = rng.standard_normal((dim, p)) * (0.3 * affine)
    order = rng.permutation(features)
    drawn = tuple(drawn[i] for i in order)
    for array in (directions, coefficients, bias, slope):
        array.flags.writeable = False
    seed = int(rng.integers(2**31))
    return Planted(directions, drawn, coefficients, bias, slope, outputs is None, float(noise), noise_kind, seed)


def _draw(
    kind: str | Callable[[Floats], Floats], frequencies: tuple[float, float] | None, rng: np.random.Generator
) -> Drawn:
    if callable(kind):
        return Drawn(getattr(kind, "__name__", "custom"), {}, kind)
    if kind not in DRAW:
        raise InvalidInput(f"unknown kind {kind!r}; choose from {', '.join(DRAW)} or pass a callable")
    if kind == "sine" and frequencies is not None:
        return sine(rng, *frequencies)
    return DRAW[kind](rng)


def _separated(
    dim: int, count: int, separation: float, twins: int, twin_angle: float, rng: np.random.Generator
) -> Floats:
    """Unit rows, pairwise |sin| ≥ separation; row 2i+1 is the twin of row 2i for the first `twins` pairs."""
    if dim == 1 and count > 1:
        raise InvalidInput(f"{count} features in one dimension would all share a direction; use features=1")
    rows: list[Floats] = []
    tries = 0
    while len(rows) < count:
        twin_of = len(rows) - 1 if len(rows) % 2 == 1 and len(rows) < 2 * twins else None
        v = _tilted(rows[twin_of], twin_angle, rng) if twin_of is not None else random_directions(1, dim, rng)[0]
        others = np.array([r for j, r in enumerate(rows) if j != twin_of]).reshape(-1, dim)
        tries += 1
        if np.all(np.abs(others @ v) <= np.sqrt(1.0 - separation**2)):
            rows.append(v)
            tries = 0
        elif tries == _TRIES:
            raise InvalidInput(
                f"could not place {count} directions in {dim} dimensions with sines at least {separation}; "
                "lower separation or features"
            )
    return np.array(rows).reshape(count, dim)


def _tilted(v: Floats, angle: float, rng: np.random.Generator) -> Floats:
    w = rng.standard_normal(len(v))
    w -= (w @ v) * v
    return np.asarray(np.cos(angle) * v + np.sin(angle) * w / np.linalg.norm(w))


def _hash_unit(X: Floats, seed: int) -> Floats:
    """A number in [0, 1) for each row: a fixed, patternless function of its bits (splitmix64 mixing)."""
    bits: NDArray[np.uint64] = np.ascontiguousarray(X + 0.0).view(np.uint64)
    state = np.full(len(X), seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in bits.T:
            state = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
