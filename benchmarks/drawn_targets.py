"""Random functions of many families, with their truth: sums of features, and functions that are none.

A target is drawn from its seed alone. Kind and noise go through all combinations as the seed goes up, everything else
(dimensions, features, outputs, families, scales, budget) is random:

    smooth, kinked, jumps, narrow     sums of 1 to 12 features, at least one of that kind, others smooth
    no sum                            products, norms, depth, attention, hashes, waves too fast to be seen

None of the families is one of `ridgescope.targets`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ridgescope.geometry import Floats, in_ball, random_directions

RADIUS, TOLERANCE = 3.0, 1e-2
"""Radius of the ball and tolerance of every run: the defaults of `extract`."""
KINDS = ("smooth", "kinked", "jumps", "narrow", "no sum")
NOISES = (0.0, 1e-3, 1e-2, 0.1, 1.0)
"""Standard deviation of the noise, in that of f over the ball."""
BUDGETS = (8_000, 12_000, 20_000)
MOST_DIMENSIONS, MOST_FEATURES = 8, 12
SEVERAL_OUTPUTS = 0.3
"""Share of the targets with two or three outputs."""
OF_ITS_KIND = 0.5
"""Chance that a feature after the first is of the target's kind rather than smooth."""
CLOSEST = 0.2
"""Least angle between two directions, in radians: closer ones are a question of their own."""
PLANE_FEATURES = 6
"""Most features in two dimensions, where more would come too close."""
SCALE_POINTS = 20_000
"""Uniform points from which the standard deviation of f is known to half a percent."""
SCAN = 2001
"""Places on [−R, R] at which a response is scaled."""

Curve = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Drawn:
    """A response with the places where it is sharp: kinks, jumps, and the middle of narrow bumps."""

    curve: Curve
    """(m,) places z to (m,) or (m, p) values."""
    sharp: tuple[float, ...] = ()


def _smooth(name: str, rng: np.random.Generator) -> Drawn:
    a, t = rng.uniform(0.5, 3.0), rng.uniform(-1.5, 1.5)
    curves: dict[str, Curve] = {
        "algebraic": lambda z: a * (z - t) / np.sqrt(1.0 + (a * (z - t)) ** 2),
        "arctan": lambda z: np.arctan(a * (z - t)),
        "logistic": lambda z: 1.0 / (1.0 + np.exp(-2.0 * a * (z - t))),
        "mexican_hat": lambda z: (1.0 - (a * (z - t)) ** 2) * np.exp(-0.5 * (a * (z - t)) ** 2),
        "gabor": lambda z: np.exp(-0.5 * (z - t) ** 2) * np.cos(2.0 * a * z),
        "chirp": lambda z: np.sin(a * (z - t + 2.0) + 0.3 * a * (z - t) ** 2),
        "exponential": lambda z: np.exp(0.5 * a * z),
        "log_square": lambda z: np.log1p((a * (z - t)) ** 2),
        "cubic": lambda z: (z - t) ** 3 / 9.0 - z,
        "sinc": lambda z: np.sinc(a * (z - t)),
        "rational": lambda z: (1.0 + a * z) / (1.0 + (a * (z - t)) ** 2),
    }
    return Drawn(curves[name])


def _kinked(name: str, rng: np.random.Generator) -> Drawn:
    a, t, w = rng.uniform(0.5, 2.0), rng.uniform(-1.5, 1.5), rng.uniform(0.3, 1.0)
    places = np.sort(rng.uniform(-2.5, 2.5, 3))
    bends = rng.standard_normal(3)
    period = 2.0 * w
    waves = tuple(np.arange(np.ceil((-RADIUS - t) / w), (RADIUS - t) / w) * w + t)
    curves: dict[str, tuple[Curve, tuple[float, ...]]] = {
        "cusp": (lambda z: np.sqrt(np.abs(z - t)), (t,)),
        "power_3_2": (lambda z: np.abs(z - t) ** 1.5, (t,)),
        "soft_threshold": (lambda z: np.sign(z - t) * np.maximum(np.abs(z - t) - w, 0.0), (t - w, t + w)),
        "dead_zone": (lambda z: a * np.maximum(z - t - w, 0.0) + np.maximum(t - w - z, 0.0) ** 2, (t - w, t + w)),
        "triangle_wave": (lambda z: 2.0 * np.abs((z - t) / period - np.round((z - t) / period)), waves),
        "elu": (lambda z: np.where(z > t, z - t, np.expm1(np.minimum(z - t, 0.0))), (t,)),
        "selu": (lambda z: np.where(z > t, z - t, 1.67 * np.expm1(np.minimum(z - t, 0.0))), (t,)),
        "hard_swish": (lambda z: 2 * a * (z - t) * np.clip(a * (z - t) / 3 + 0.5, 0, 1), (t - 1.5 / a, t + 1.5 / a)),
        "smoothstep": (lambda z: _smoothstep((z - t) / (2.0 * w) + 0.5), (t - w, t + w)),
        "three_kinks": (lambda z: np.abs(z[..., None] - places) @ bends, tuple(places)),
    }
    return Drawn(*curves[name])


def _smoothstep(z: Floats) -> Floats:
    z = np.clip(z, 0.0, 1.0)
    return z * z * (3.0 - 2.0 * z)


def _jump(name: str, rng: np.random.Generator) -> Drawn:
    t, w = rng.uniform(-1.5, 1.5), rng.uniform(0.5, 1.5)
    grid = tuple(np.arange(np.ceil((-RADIUS - t) / w), (RADIUS - t) / w) * w + t)
    curves: dict[str, tuple[Curve, tuple[float, ...]]] = {
        "step": (lambda z: np.where(z > t, 1.0, 0.0), (t,)),
        "stair": (lambda z: np.floor((z - t) / w), grid),
        "saw": (lambda z: (z - t) / w - np.floor((z - t) / w), grid),
        "hard_threshold": (lambda z: np.where(np.abs(z - t) > w, z - t, 0.0), (t - w, t + w)),
        "box": (lambda z: np.where(np.abs(z - t) < 0.5 * w, 1.0, 0.0), (t - 0.5 * w, t + 0.5 * w)),
    }
    return Drawn(*curves[name])


def _narrow(name: str, rng: np.random.Generator) -> Drawn:
    t, w = rng.uniform(-1.5, 1.5), RADIUS / 40.0
    curves: dict[str, Curve] = {
        "narrow_bump": lambda z: np.exp(-0.5 * ((z - t) / w) ** 2),
        "narrow_rational": lambda z: 1.0 / (1.0 + ((z - t) / w) ** 2),
        "narrow_hat": lambda z: np.maximum(1.0 - np.abs(z - t) / (2.0 * w), 0.0),
        "narrow_wave": lambda z: np.exp(-0.5 * ((z - t) / (2.0 * w)) ** 2) * np.sin((z - t) / w),
        "steep": lambda z: np.tanh((z - t) / w),
    }
    return Drawn(curves[name], (t,))


FAMILIES: dict[str, tuple[Callable[[str, np.random.Generator], Drawn], tuple[str, ...]]] = {
    "smooth": (
        _smooth,
        (
            *("algebraic", "arctan", "logistic", "mexican_hat", "gabor", "chirp"),
            *("exponential", "log_square", "cubic", "sinc", "rational"),
        ),
    ),
    "kinked": (
        _kinked,
        (
            *("cusp", "power_3_2", "soft_threshold", "dead_zone", "triangle_wave"),
            *("elu", "selu", "hard_swish", "smoothstep", "three_kinks"),
        ),
    ),
    "jumps": (_jump, ("step", "stair", "saw", "hard_threshold", "box")),
    "narrow": (_narrow, ("narrow_bump", "narrow_rational", "narrow_hat", "narrow_wave", "steep")),
}


@dataclass(eq=False)
class Target:
    """A function with its truth. Called, it answers with fresh noise; `clean` has none."""

    seed: int
    kind: str
    families: tuple[str, ...]
    dim: int
    clean: Callable[[Floats], Floats]
    """(m, d) points to (m,) or (m, p) values."""
    directions: Floats
    """(n, d) unit rows; none where f is no sum."""
    responses: tuple[Drawn, ...]
    """One for each direction, in f's units."""
    noise_level: float
    budget: int
    std: float = field(init=False)
    """Standard deviation of `clean` over the ball, root mean square over outputs."""

    def __post_init__(self) -> None:
        self._noise = np.random.default_rng([self.seed, 1])
        points = in_ball(SCALE_POINTS, self.dim, RADIUS, np.random.default_rng([self.seed, 2]))
        values = self.clean(points)
        self.outputs = 1 if values.ndim == 1 else values.shape[1]
        self.std = float(np.sqrt(np.mean(np.var(values, axis=0))))

    def __call__(self, X: Floats) -> Floats:
        values = self.clean(X)
        return values + self.noise_level * self.std * self._noise.standard_normal(values.shape)

    @property
    def label(self) -> str:
        """What it is, in a line that `--only` looks into."""
        n = len(self.directions)
        what = "+".join(dict.fromkeys(self.families))
        return f"{self.kind}, d={self.dim}, n={n}, p={self.outputs}, noise={self.noise_level:g}, {what}"


def draw(seed: int) -> Target:
    """Return the target of this seed."""
    rng = np.random.default_rng([seed, 0])
    kind, level = KINDS[seed % len(KINDS)], NOISES[seed // len(KINDS) % len(NOISES)]
    budget = int(rng.choice(BUDGETS))
    if kind == "no sum":
        name = OTHERS[seed // (len(KINDS) * len(NOISES)) % len(OTHERS)]
        dim = int(rng.integers(2, MOST_DIMENSIONS + 1))
        return Target(seed, kind, (name,), dim, other_function(name, dim, rng), np.empty((0, dim)), (), level, budget)
    dim = int(rng.integers(1, MOST_DIMENSIONS + 1))
    most = {1: 1, 2: PLANE_FEATURES}.get(dim, MOST_FEATURES)
    directions = _apart(int(rng.integers(1, most + 1)), dim, rng)
    families, responses = [], []
    for i in range(len(directions)):
        maker, names = FAMILIES[kind if i == 0 or rng.random() < OF_ITS_KIND else "smooth"]
        families.append(str(rng.choice(names)))
        responses.append(scaled(maker(families[-1], rng)))
    p = int(rng.integers(2, 4)) if rng.random() < SEVERAL_OUTPUTS else 0
    shape = (len(directions), p) if p else (len(directions),)
    weights = rng.uniform(0.5, 2.0, shape) * rng.choice([-1.0, 1.0], shape)
    size = 10.0 ** rng.uniform(-3.0, 3.0)
    slope = size * rng.standard_normal((dim, p) if p else dim) * rng.choice([0.0, 0.3])
    bias = size * (rng.standard_normal(p) if p else rng.standard_normal())
    responses = [_times(s, size * c) for s, c in zip(responses, weights, strict=True)]

    def clean(X: Floats) -> Floats:
        values = bias + X @ slope
        for v, s in zip(directions, responses, strict=True):
            values = values + s.curve(X @ v)
        return np.asarray(values)

    return Target(seed, kind, tuple(families), dim, clean, directions, tuple(responses), level, budget)


def _apart(count: int, dim: int, rng: np.random.Generator) -> Floats:
    """Random directions of which no two are closer than `CLOSEST`."""
    kept = random_directions(1, dim, rng)
    while len(kept) < count:
        v = random_directions(1, dim, rng)
        if np.abs(kept @ v[0]).max() < np.cos(CLOSEST):
            kept = np.concatenate([kept, v])
    return kept


def scaled(drawn: Drawn) -> Drawn:
    """The response with standard deviation 1 over [−R, R]; a narrow bump then stands high."""
    z = np.linspace(-RADIUS, RADIUS, SCAN)
    deviation = float(np.std(drawn.curve(z)))
    return Drawn(lambda z: drawn.curve(z) / deviation, tuple(t for t in drawn.sharp if abs(t) <= RADIUS))


def _times(drawn: Drawn, weight: Floats) -> Drawn:
    """The response times a number, or times a vector of one number for each output."""
    return Drawn(lambda z: np.multiply.outer(drawn.curve(z), weight), drawn.sharp)


OTHERS = (
    "product",
    "radial",
    "two_layers",
    "maximum",
    "norm",
    "attention",
    "fast_sine",
    "hash",
    "tanh_and_fast_sine",
    "floor_of_product",
    "checkerboard",
    "small_ball",
)


def other_function(name: str, d: int, rng: np.random.Generator) -> Callable[[Floats], Floats]:
    """A function that is not a sum of features, or whose features no query can follow."""
    W, w, v = rng.standard_normal((8, d)) / np.sqrt(d), random_directions(1, d, rng)[0], random_directions(1, d, rng)[0]
    V, u = rng.standard_normal((8, 8)) / np.sqrt(8.0), rng.standard_normal(8)
    spot = in_ball(1, d, 0.7 * RADIUS, rng)[0]
    functions: dict[str, Callable[[Floats], Floats]] = {
        "product": lambda X: np.prod(X[:, : min(d, 4)], axis=1),
        "radial": lambda X: np.exp(-0.25 * np.sum(X**2, axis=1)),
        "two_layers": lambda X: np.tanh(2.0 * np.tanh(2.0 * X @ W.T) @ V.T) @ u,
        "maximum": lambda X: X.max(axis=1),
        "norm": lambda X: np.linalg.norm(X, axis=1),
        "attention": lambda X: _softmax(2.0 * X @ W.T) @ u,
        "fast_sine": lambda X: np.sin(1e5 * X[:, 0]),
        "hash": _md5,
        "tanh_and_fast_sine": lambda X: np.tanh(2.0 * X @ v) + 0.5 * np.sin(1e6 * X @ w),
        "floor_of_product": lambda X: np.floor(X[:, 0] * X[:, 1]),
        "checkerboard": lambda X: np.sign(X[:, 0] * X[:, 1]) + np.tanh(X @ w),
        "small_ball": lambda X: np.tanh(2.0 * X @ w) + 3.0 * np.exp(-0.5 * np.sum((X - spot) ** 2, axis=1) / 0.15**2),
    }
    return functions[name]


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _md5(X: Floats) -> Floats:
    """A number in [0, 1) from the bits of each row, with no more structure than a hash leaves."""
    digests = (hashlib.md5(row.tobytes(), usedforsecurity=False).digest()[:8] for row in np.ascontiguousarray(X))
    return np.array([int.from_bytes(digest) / 2.0**64 for digest in digests])
