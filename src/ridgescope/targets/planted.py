"""Planted sums of features, whose truth is known, and the named standard cases.

    f(x) = b + a·x + Σ_i c_i φ_i(v_i·x) + noise(x)

Letters: d coordinates of x, n features, p outputs, m rows of a batch; v_i unit directions, φ_i responses, c_i their
coefficients, b + a·x the affine part.

Rows are evaluated in blocks of a fixed size, padded with zeros: a matrix product rounds differently for different
shapes, and a target whose last bits depend on the batch would hide the same fault in an extraction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..geometry import Floats, random_directions, unit
from .kinds import DRAW, Drawn

SMOOTH = ("tanh", "sine", "bump", "softplus", "gelu", "fourier")
KINDS = (*SMOOTH, "relu", "leaky_relu", "abs", "step", "triangle")
"""All kinds whose directions are identifiable for any n; "polynomial" must be requested by name."""
NoiseKind = Literal["uniform", "adversarial", "fresh"]

_BLOCK = 256
"""Rows evaluated at a time; see above."""
_TRIES = 10_000
"""Random directions tried for one place before `separation` counts as impossible."""
_RESPONSE_PARAMETERS = 16
"""Numbers that count as the description of one response in `Planted.parameters`."""
_LEAST_COEFFICIENT, _MOST_COEFFICIENT = 0.5, 1.5
"""Range of the sizes of coefficients: none is more than three times another."""
_SLOPE = 0.3
"""Standard deviation of the entries of the slope a, so that the affine part does not dominate."""
_ADVERSARIAL = 2.0, 8.0
"""Range of the wave numbers of the adversarial noise: its pattern is about as fine as the steepest responses."""


@dataclass(frozen=True, eq=False)
class Planted:
    """A target: call it with rows (m, d) to get values (m,), or (m, p) if it was made with `outputs=p`."""

    directions: Floats
    """(n, d) unit rows v_i."""
    drawn: tuple[Drawn, ...]
    """The n responses φ_i with the numbers they were drawn with."""
    coefficients: Floats
    """(n, p) rows c_i."""
    bias: Floats
    """(p,) the vector b."""
    slope: Floats
    """(d, p) the matrix a."""
    scalar: bool
    """True if values are (m,), False if they are (m, p)."""
    noise: float
    """Largest error of a value."""
    noise_kind: NoiseKind
    """One of "uniform", "adversarial" and "fresh"; see `planted`."""
    noise_seed: int
    """Seed of the noise."""

    @property
    def dim(self) -> int:
        """d, the number of coordinates."""
        return int(self.directions.shape[1])

    @property
    def outputs(self) -> int | None:
        """p, or None for a scalar target."""
        return None if self.scalar else int(self.coefficients.shape[1])

    @property
    def parameters(self) -> int:
        """n(d+16): a direction and sixteen numbers of a response for each feature."""
        return parameters(*self.directions.shape)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each response."""
        return tuple(d.kind for d in self.drawn)

    @property
    def responses(self) -> tuple[Callable[[ArrayLike], Floats], ...]:
        """The true c_i φ_i as functions of arrays; for p outputs the result has a last axis of length p."""
        return tuple(
            self._response(d, c[0] if self.scalar else c) for d, c in zip(self.drawn, self.coefficients, strict=True)
        )

    @staticmethod
    def _response(drawn: Drawn, c: Floats) -> Callable[[ArrayLike], Floats]:
        """Return z ↦ c·φ(z), with a last axis for the outputs if c is a row."""
        return lambda z: np.multiply.outer(drawn(np.asarray(z, dtype=np.float64)), c)

    def clean(self, X: ArrayLike) -> Floats:
        """Return the values without noise.

        Parameters
        ----------
        X
            (m, d) rows.

        Returns
        -------
        array
            (m,) values, or (m, p) for a target with p outputs.

        Examples
        --------
        >>> target = rs.targets.planted(3, 2, noise=0.1)
        >>> bool(np.abs(target([[1, 2, 3]]) - target.clean([[1, 2, 3]])) <= 0.1)
        True
        """
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
        """Return the values with their noise at the rows of X (m, d): (m,), or (m, p) for p outputs."""
        values = self.clean(X)
        if self.noise == 0:
            return values
        shape = (len(values), self.coefficients.shape[1])
        return values + self.noise * self._noise(np.asarray(X, dtype=np.float64), shape).reshape(values.shape)

    def _noise(self, X: Floats, shape: tuple[int, int]) -> Floats:
        """Return noise in [−1, 1] of the given shape (m, p)."""
        if self.noise_kind == "fresh":
            return np.random.default_rng().uniform(-1.0, 1.0, shape)
        if self.noise_kind == "uniform":
            return np.stack([2.0 * _hash_unit(X, self.noise_seed + j) - 1.0 for j in range(shape[1])], axis=1)
        rng = np.random.default_rng(self.noise_seed)  # a checkerboard in three random directions
        waves = []
        for _ in range(3):
            omega = rng.uniform(*_ADVERSARIAL) * random_directions(shape[1], self.dim, rng)
            waves.append(np.sin(X @ omega.T))
        return np.where(waves[0] * waves[1] * waves[2] >= 0, 1.0, -1.0)


def parameters(features: int, dim: int) -> int:
    """Return n(d+16), the number of parameters of a sum of n features in d dimensions."""
    return int(features * (dim + _RESPONSE_PARAMETERS))


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
    """Draw a random sum of features.

    Parameters
    ----------
    dim, features
        Number d of coordinates and n of features.
    kinds
        Kinds of responses, used in turn: names such as those in `KINDS`, or functions of one array.
    separation
        Least sine between two directions.
    noise
        Largest error of a value, in f's own units.
    rng
        Seed or generator; the same seed draws the same target.
    outputs
        p for values (m, p); None for values (m,).
    twins, twin_angle
        So many pairs of directions are this angle (in radians) apart; `separation` does not apply within a pair.
    noise_kind
        "uniform" and "adversarial" are fixed functions of x, the first without any pattern, the second of constant size
        with a sign that makes a checkerboard; "fresh" differs at every call.
    frequencies
        Range of the frequencies of sines, in place of that of the kind.
    affine
        False leaves b + a·x out.

    Returns
    -------
    Planted
        The target with its directions, responses and coefficients.

    Raises
    ------
    InvalidInput
        If no such target exists.

    Examples
    --------
    >>> target = rs.targets.planted(3, 2, kinds=("tanh", "sine"), rng=0)
    >>> target.directions.shape, sorted(target.kinds), target(np.zeros((5, 3))).shape
    ((2, 3), ['sine', 'tanh'], (5,))
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
    p, sizes = outputs or 1, (_LEAST_COEFFICIENT, _MOST_COEFFICIENT)
    if outputs is None:
        coefficients = (rng.choice([-1.0, 1.0], features) * rng.uniform(*sizes, features))[:, None]
    else:
        coefficients = (
            unit(rng.standard_normal((features, p))) * rng.uniform(*sizes, (features, 1))
            if features
            else np.empty((0, p))
        )
    bias = rng.standard_normal(p) * affine
    slope = rng.standard_normal((dim, p)) * (_SLOPE * affine)
    order = rng.permutation(features)
    drawn = tuple(drawn[i] for i in order)
    for array in (directions, coefficients, bias, slope):
        array.flags.writeable = False
    seed = int(rng.integers(2**31))
    return Planted(directions, drawn, coefficients, bias, slope, outputs is None, float(noise), noise_kind, seed)


def _draw(
    kind: str | Callable[[Floats], Floats], frequencies: tuple[float, float] | None, rng: np.random.Generator
) -> Drawn:
    """Draw a response of the kind; a function is taken as it is."""
    if callable(kind):
        return Drawn(getattr(kind, "__name__", "custom"), {}, kind)
    if kind not in DRAW:
        raise InvalidInput(f"unknown kind {kind!r}; choose from {', '.join(DRAW)} or pass a callable")
    if kind == "sine" and frequencies is not None:
        return DRAW[kind](rng, frequency=frequencies)
    return DRAW[kind](rng)


def _separated(
    dim: int, count: int, separation: float, twins: int, twin_angle: float, rng: np.random.Generator
) -> Floats:
    """Draw unit rows (count, dim) with pairwise sines ≥ separation; for the first `twins` pairs row 2i+1 is the twin of
    row 2i."""
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
    """Return a unit vector at the given angle from the unit vector v, in a random direction."""
    w = rng.standard_normal(len(v))
    w -= (w @ v) * v
    return np.asarray(np.cos(angle) * v + np.sin(angle) * w / np.linalg.norm(w))


def _hash_unit(X: Floats, seed: int) -> Floats:
    """Return a number in [0, 1) for each row of X: a fixed, patternless function of its bits (splitmix64 mixing)."""
    bits: NDArray[np.uint64] = np.ascontiguousarray(X + 0.0).view(np.uint64)
    state = np.full(len(X), seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in bits.T:
            state = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Case:
    """A standard case: the settings of `planted` for random targets of one sort."""

    name: str
    """Its name in `CASES`."""
    dim: int
    """d."""
    features: int
    """n."""
    kinds: tuple[str, ...]
    """Kinds of responses, used in turn."""
    responses: str
    """The responses in words."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `planted`."""
    radius: float = 3.0
    """Radius of the ball."""

    def make(self, rng: int | np.random.Generator = 0, **changes: Any) -> Planted:
        """Draw a target of this case.

        Parameters
        ----------
        rng
            Seed or generator; the same seed draws the same target.
        **changes
            Arguments of `planted` that replace those of the case.

        Returns
        -------
        Planted
            The target.

        Examples
        --------
        >>> rs.targets.CASES["first"].make(0).directions.shape
        (4, 3)
        """
        return planted(self.dim, self.features, self.kinds, rng=rng, **{**self.options, **changes})


CASES: Mapping[str, Case] = MappingProxyType(
    {
        case.name: case
        for case in (
            Case("first", 3, 4, ("sine", "tanh", "bump"), "sine, tanh, bump"),
            Case("small", 5, 8, KINDS, "all kinds"),
            Case("mixed", 10, 20, KINDS, "all kinds"),
            Case("superposed", 20, 40, KINDS, "all kinds"),
            Case("dense", 20, 100, SMOOTH, "smooth kinds"),
            Case("extreme", 4, 30, SMOOTH, "smooth kinds, n > d²"),
            Case("waves", 10, 20, ("sine",), "sines with frequencies 6 to 18", {"frequencies": (6.0, 18.0)}),
            Case("noisy", 10, 20, KINDS, "all kinds, noise 0.02", {"noise": 0.02, "noise_kind": "fresh"}),
            Case("twins", 10, 16, SMOOTH, "smooth, four pairs 0.06 rad apart", {"twins": 4, "twin_angle": 0.06}),
            Case("lowrank", 100, 8, KINDS, "all kinds"),
            Case("vector", 16, 40, KINDS, "all kinds, 6 outputs", {"outputs": 6}),
            Case("relu", 20, 60, ("relu",), "relu, random biases"),
            Case("large", 50, 200, SMOOTH, "smooth kinds"),
        )
    }
)
"""The standard cases by name, all on the ball of radius 3."""
