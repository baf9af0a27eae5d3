"""The parts of a result: features, their shapes, rounds, planar Fourier spectra, and the queries of a certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidInput
from .geometry import Floats, frozen, leading_sign
from .response import Response

_OUTPUT_POINTS = 4  # per interval, at which the components of a response are compared
_TOLD = 3  # coordinates of a carrier in one line of text


@dataclass(frozen=True)
class Shape:
    """A closed form that explains a response."""

    name: str
    """Name of the form: relu, leaky relu, abs, tanh, sine, bump, …"""
    parameters: Mapping[str, float]
    """Numbers of the closed form by name."""
    formula: str
    """The closed form with its numbers, as a person would write it."""
    r2: float
    """Share of the response's variance that the closed form explains."""

    def __str__(self) -> str:
        return self.formula


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """The form c·φ(k·z + b) that the fit itself gave a response, which has it up to an affine part."""

    family: str
    """Name of φ, as in `ridgescope.fit.activations`; there "relu" is |y|/2, which is ReLU without its line."""
    steepness: float
    """k; its sign matters only for families without symmetry."""
    bias: float
    """b."""
    output: Floats
    """() or (p,) factor c."""
    constant: Floats
    """() or (p,) constant that the response is less: s(z) = c·φ(k·z + b) − constant − line·z."""
    line: Floats
    """() or (p,) slope that it is less."""

    def __post_init__(self) -> None:
        for name in ("output", "constant", "line"):
            object.__setattr__(self, name, frozen(getattr(self, name)))


@dataclass(frozen=True)
class GateForm:
    """The form o·φ(k·z + b)·(α·z + β·(c·u) + γ) that the fit itself gave a gated feature, up to an affine part."""

    family: str
    """Name of φ; "relu" is the function itself."""
    steepness: float
    """k."""
    bias: float
    """b."""
    along: float
    """α, the part of the carrier along the feature's direction."""
    across: float
    """β."""
    constant: float
    """γ."""


@dataclass(frozen=True, eq=False)
class Gate:
    """The second term t(v·u)(c·u) of a gated feature."""

    carrier: Floats
    """(d,) unit vector c ⟂ v; its largest coordinate is positive."""
    gain: Response
    """The function t, with t(0) = 0."""
    carrier_error: float
    """Standard error of the carrier in radians."""
    band: Floats = field(default_factory=lambda: np.zeros(0))
    """(G,) or (G, p) standard error of the gain on a uniform grid of [−R, R]; empty if not computed."""
    form: GateForm | None = None
    """The closed form that the fit gave the feature; None if its response and gain are splines."""
    output: Floats = field(default_factory=lambda: np.zeros(0))
    """() or (p,) factor o of the closed form; empty without one."""

    def __post_init__(self) -> None:
        for name in ("carrier", "band", "output"):
            object.__setattr__(self, name, frozen(getattr(self, name)))


@dataclass(frozen=True, eq=False)
class Feature:
    """One term s(v·u) of the sum, with u = (x − center)/scale; t(v·u)(c·u) is added to it if it is gated."""

    direction: Floats
    """(d,) unit vector v, in the coordinates u = (x − center)/scale; its largest coordinate is positive."""
    response: Response
    """The function s, without its affine part, which belongs to `bias` and `slope` of the result."""
    angle_error: float
    """Standard error of the direction in radians."""
    strength: float
    """Root mean square of the response over [−R, R]; of a gated feature, with v·u and c·u both uniform in [−R, R]."""
    shape: Shape | None = None
    """Closed form of the response; None if none explains it."""
    band: Floats = field(default_factory=lambda: np.zeros(0))
    """(G,) or (G, p) standard error of the response on a uniform grid of [−R, R]; empty if not computed."""
    form: ClosedForm | None = None
    """The closed form that the fit gave the response, with all its digits; None if it is a spline of its own."""
    gate: Gate | None = None
    """The second term t(v·u)(c·u) of a gated feature; None for a plain one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", frozen(self.direction))
        object.__setattr__(self, "band", frozen(self.band))

    @property
    def gated(self) -> bool:
        """Whether the feature has a second term, its gain times its carrier."""
        return self.gate is not None

    @property
    def carrier(self) -> Floats | None:
        """(d,) unit vector c across the direction, whose product with u is multiplied by the gain; None if plain."""
        return None if self.gate is None else self.gate.carrier

    def gain(self, z: ArrayLike) -> Floats:
        """Return t at z, an array of any shape, by which c·u is multiplied; zero for a plain feature.

        Examples
        --------
        >>> found.features[0].gain(np.linspace(-3, 3, 7))
        """
        if self.gate is None:
            return np.zeros_like(self.response(z))
        return self.gate.gain(z)

    def values(self, U: Floats) -> Floats:
        """Return s(v·u) + t(v·u)(c·u), (m,) or (m, p), at the rows u of U (m, d)."""
        z = U @ self.direction
        values = self.response(z)
        if self.gate is not None:
            values = values + (self.gate.gain(z).T * (U @ self.gate.carrier)).T
        return values

    @cached_property
    def _leading(self) -> tuple[Floats, float]:
        """The output vector, and the share of the response's mean square that lies along it."""
        if self.response.outputs is None:
            return frozen(np.ones(1)), 1.0
        radius, intervals = self.response.radius, self.response.intervals
        z = np.linspace(-radius, radius, _OUTPUT_POINTS * intervals + 1)
        values = self.response(z)
        if self.gate is not None:
            values = np.concatenate([values, radius * self.gate.gain(z)])
        if not np.isfinite(values).all():
            return frozen(np.eye(values.shape[1])[0]), 0.0
        _, sizes, rows = np.linalg.svd(values, full_matrices=False)
        row = rows[0] * leading_sign(rows[0])
        largest = float(sizes[0])
        return frozen(row), float(1.0 / np.sum((sizes / largest) ** 2)) if largest > 0 else 1.0

    @property
    def output(self) -> Floats:
        """(p,) unit vector that the feature writes to; its largest coordinate is positive, and it is 1 for a scalar f.

        Where the p components of the response are not proportional, it is the leading one: see `output_share`.
        """
        return self._leading[0]

    @property
    def output_share(self) -> float:
        """Share of the response's mean square that lies along `output`: 1 for a neuron, which writes to one vector."""
        return self._leading[1]

    def __repr__(self) -> str:
        shape = f", {self.shape}" if self.shape else ""
        kind = "Gated feature" if self.gated else "Feature"
        carrier = f", u = {leading_coordinates(self.gate.carrier)}" if self.gate is not None else ""
        return f"<{kind} strength {self.strength:.3g}, angle error {self.angle_error:.1e} rad{shape}{carrier}>"


@dataclass(frozen=True)
class Round:
    """One line of the history: what was tried, what it cost, and the fit after it."""

    number: int
    """Number of the round, from 1."""
    proposer: str
    """Names of the proposers that suggested directions."""
    queries: int
    """Number of queries spent so far, including this round."""
    candidates: int
    """Number of directions proposed."""
    features: int
    """Number of features in the model after the fit."""
    residual: float
    """RMS residual on held-out points, as a fraction of f's standard deviation."""
    note: str = ""
    """Further remarks on the round, with figures."""
    failure: str = ""
    """Why a step of this round failed, where one did and the run went on without it; empty otherwise."""

    def __str__(self) -> str:
        note = f"  ({self.note})" if self.note else ""
        if self.failure:
            return f"round {self.number}: {self.proposer:<10} failed, and the run goes on without it: {self.failure}"
        return (
            f"round {self.number}: {self.proposer:<10} {self.candidates:>4} proposed, "
            f"{self.features:>4} features, residual {self.residual:.1e}, {self.queries:,} queries{note}"
        )


@dataclass(frozen=True, eq=False)
class Plane:
    """The Fourier power of a planar slice of f, in which every feature appears as a line through zero."""

    basis: Floats
    """(2, d) orthonormal rows that span the plane."""
    power: NDArray[np.float32]
    """(N, N) modulus |F| with frequency zero in the middle, combined over outputs."""
    step: float
    """Frequency step between cells, in radians per unit length."""
    round: int = 0
    """Number of the search round that measured it; 0 for a plane made only for the report."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", frozen(self.basis))
        power = np.array(self.power, dtype=np.float32)
        power.flags.writeable = False
        object.__setattr__(self, "power", power)


@dataclass(frozen=True, eq=False)
class Checks:
    """The certificate's queries one by one, in f's own units; of several outputs, the one with the largest error."""

    UNIFORM: ClassVar = -1
    """Value of `feature` for queries drawn uniformly from the ball."""
    OTHER: ClassVar = -2
    """Value of `feature` for queries along no feature of the result, and for those of the local search."""

    radius: Floats
    """(m,) distance from the centre."""
    asked: Floats
    """(m,) answer of the function."""
    predicted: Floats
    """(m,) prediction of the model."""
    position: Floats
    """(m,) position z = v·u along the feature that the query was placed on; NaN if there is none."""
    feature: NDArray[np.intp]
    """(m,) index of that feature, or UNIFORM, or OTHER."""

    def __post_init__(self) -> None:
        for name in ("radius", "asked", "predicted", "position"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        feature = np.array(self.feature, dtype=np.intp)
        feature.flags.writeable = False
        object.__setattr__(self, "feature", feature)

    def __len__(self) -> int:
        return len(self.radius)

    @property
    def error(self) -> Floats:
        """(m,) absolute error |asked − predicted|."""
        return np.abs(self.asked - self.predicted)

    def thinned(self, most: int = 5000) -> Checks:
        """Return at most `most` rows: a tenth of them the largest errors, the rest spaced evenly over the others."""
        if len(self) <= most:
            return self
        order = np.argsort(-self.error, kind="stable")
        worst, rest = order[: most // 10], np.sort(order[most // 10 :])
        even = rest[np.linspace(0, len(rest) - 1, most - len(worst)).astype(np.intp)]
        return self._take(np.sort(np.concatenate([worst, even])))

    def _take(self, rows: NDArray[np.intp]) -> Checks:
        return Checks(*(getattr(self, f.name)[rows] for f in fields(self)))

    def seen_from(self, asked_along: Floats, directions: Floats) -> Checks:
        """Return the same queries with `feature` as an index of the rows of `directions` (n, d).

        So far it is an index of the rows of `asked_along` (k, d); the signs of the two may differ.
        """
        if not len(directions) or not len(self):
            return replace(self, feature=np.where(self.feature >= 0, self.OTHER, self.feature))
        cosines = asked_along @ directions.T
        best = np.argmax(np.abs(cosines), axis=1)
        sign = np.sign(cosines[np.arange(len(best)), best])
        same = np.abs(cosines).max(axis=1) > 1.0 - 1e-9
        on, row = self.feature >= 0, np.maximum(self.feature, 0)
        return replace(
            self,
            feature=np.where(on, np.where(same[row], best[row], self.OTHER), self.feature),
            position=np.where(on & same[row], sign[row] * self.position, np.nan),
        )


def shape_text(feature: Feature, none: str) -> str:
    """Return the closed form of a feature, or `none`; of a gated one, that it is gated, and its carrier u, too."""
    shape = str(feature.shape) if feature.shape is not None else none
    if feature.gate is None:
        return shape
    return f"gated: {shape}, u = {leading_coordinates(feature.gate.carrier)}"


def gated_text(features: Sequence[Feature]) -> str:
    """Return how many of the features are gated, to follow their number; nothing if none is."""
    count = sum(f.gated for f in features)
    if not count:
        return ""
    return f", {'all' if count > 1 else 'it is'} gated," if count == len(features) else f", {count} of them gated,"


def leading_coordinates(vector: Floats, most: int = _TOLD, letter: str = "x") -> str:
    """Return a vector by its largest coordinates, as in "0.81 x0 − 0.5 x3 …"."""
    order = np.argsort(-np.abs(vector), kind="stable")[:most]
    terms = [f"{vector[k]:.2g} {letter}{k}" for k in order if vector[k] != 0]
    text = " + ".join(terms).replace("-", "−").replace("+ −", "− ")
    return text + (" …" if np.count_nonzero(vector) > most else "")


def chosen(which: int | Iterable[int], count: int, what: str) -> NDArray[np.intp]:
    """Return indices as an array, each once and in order; raise `InvalidInput` for one that does not exist."""
    listed = [which] if isinstance(which, int | np.integer) else list(which)
    wrong = [i for i in listed if not isinstance(i, int | np.integer) or isinstance(i, bool) or not -count <= i < count]
    if wrong:
        raise InvalidInput(f"there is no {what} {wrong[0]!r}: there are {count}, counted from 0")
    return np.unique(np.array([int(i) % count for i in listed], dtype=np.intp))
