"""ReGLU units: gates from kinks of a piecewise quadratic function, carriers from how the kinks vary.

A sum of units o relu(g·x + b)(w·x + c) is piecewise quadratic. It bends on the hyperplane of each gate, where its
gradient jumps by (w·x + c) g oᵀ: never by the same amount at two places, which is what plain kinks do (`kinks`).

1. Scan lines for bends between parabolas (`lines`), far outside the ball where that may be asked: there they cross
   almost every hyperplane.
2. Find the hyperplane of each new bend, and locate it all over the ball: jumps at these places are linear in x, and
   give the carrier (`gated_planes`).
3. Once a line shows no new hyperplane, solve for the rest: a quadratic polynomial, which gives the signs of the gates
   (`gated_layer`). What this leaves of f at further points says whether hyperplanes are missing, or f is no such
   layer; lines through the points at which most is left are scanned in that case, and others, up to a limit.

In single precision lines do not leave the ball, where few of them cross a hyperplane near its edge, so that nothing is
said of units that were not found.

Third differences that vanish on the chords of the survey say, before any query, whether f is piecewise quadratic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import erfc
from typing import ClassVar

import numpy as np

from ..geometry import Floats, unit
from .base import INSIDE, SPENT, Ask, CostPerRound, Meter, Proposal, Setting
from .gated_layer import Layer, layer_points, points_for, solve_layer, unknowns
from .gated_planes import Hyperplane, Steps, blur_of, change_error, fitted_plane, noise_at, planes_through
from .lines import Bend, Line, Scan, chord, scan_line

_ROUNDED = 1e-6  # noise over std above which bends are not placed well enough
_FAR = 4.0  # half the length of lines, in √d radii: they cross nine in ten hyperplanes that cross the ball, and
# rounding, which grows with the square of the distance, is 16 d times that in the ball
_OFFSET = 0.5  # largest distance of lines from the centre, in radii
_POINTS, _DEPTH = 33, 24  # of the first grid of a line, and halvings, as for plain kinks. There is no least jump, as
# jumps vanish where carriers do, and kinks that are overlooked spoil what is interpolated near them
_NOISE = 4.0  # noise of scans over that in the ball: terms are larger than answers,
_ROUNDED_NOISE = 1.5  # and that of scans in single precision, whose lines do not leave the ball
_KNOWN, _MOST_BLUR = 0.05, 1e-3  # distance of a bend from a hyperplane, in windows, that makes it its own, beside the
# error of its position, and the largest such error in radii
_FEWEST, _MOST = 3, 48  # lines
_HOPELESS = 4  # new bends of which none is on a hyperplane, after which f is something else
_TRIES = 8  # times that a layer is solved for; lines through the worst points, and as many others, are scanned between
_MISSED = 0.01  # largest chance of missing a hyperplane at the edge of the ball for a complete search
_MOST_UNKNOWNS = 4000  # of a layer: a least-squares problem of some twenty seconds


@dataclass(frozen=True)
class GatedKinks(CostPerRound):
    """Gates and carriers of ReGLU units, and plain ReLUs among them."""

    name: ClassVar[str] = "gated_kinks"

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return the units of a piecewise quadratic f whose kinks are hyperplanes; nothing if f is anything else."""
        if setting.dim < 2 or setting.noise * setting.outputs**0.5 > _ROUNDED * setting.std:
            return Proposal.empty(setting, "noise hides where gates begin")
        search = _Search.start(Meter(ask, queries, retry=True), setting, rng)
        try:
            layer = search.run()
        except SPENT:
            layer = Layer(None, f"queries or time spent after {len(search.planes)} hyperplanes")
        note = f"{layer.note} on {len(search.lines)} lines"
        found = layer.candidates
        if found is None:
            return Proposal.empty(setting, note)
        certain = search.steps.exact and search.missed <= _MISSED and search.all_explained
        return Proposal(
            found.directions,
            np.ones(len(found.directions)),
            note,
            complete=True,
            only=True,
            drop=float("inf") if certain else 1.0,
            gated=found,
        )


@dataclass(eq=False)
class _Search:
    """The hyperplanes known, the lines scanned, and the answers for the linear half."""

    ask: Meter
    setting: Setting
    rng: np.random.Generator
    radius: float
    """Radius of the ball whose chords are scanned."""
    scan: Scan
    planes: list[Hyperplane]
    lines: list[Line]
    X: Floats
    Y: Floats
    strange: int = 0
    """Bends that were on no known hyperplane when they were seen."""
    bent: list[tuple[Floats, float]] = field(default_factory=list)
    """Points in the ball at which lines bend, and the uncertainty of each."""
    aims: list[Floats] = field(default_factory=list)
    """Points at which the layer was most wrong, through which lines are yet to be scanned."""

    @classmethod
    def start(cls, ask: Meter, setting: Setting, rng: np.random.Generator) -> _Search:
        """Return a search without hyperplanes."""
        exact = Steps.of(setting).exact
        radius = min(setting.reach, (_FAR * setting.dim**0.5 if exact else 1.0) * setting.radius) * INSIDE
        noise = (_NOISE if exact else _ROUNDED_NOISE) * float(noise_at(setting, np.full((1, 1), radius))[0])
        scan = Scan(_POINTS, 2, noise, 0.0, _DEPTH, "sharp")
        empty = np.empty((0, setting.dim)), np.empty((0, setting.outputs))
        return cls(ask, setting, rng, radius, scan, [], [], *empty)

    @property
    def steps(self) -> Steps:
        """Lengths of stencils."""
        return Steps.of(self.setting)

    @property
    def missed(self) -> float:
        """The chance that a hyperplane at the edge of the ball was crossed by none of the lines."""
        crossed = erfc(self.setting.radius * (self.setting.dim / 2.0) ** 0.5 / self.radius)
        return float((1.0 - crossed) ** len(self.lines))

    def run(self) -> Layer:
        """Scan lines until the hyperplanes found explain f; return what they show."""
        wanted, tries, layer = _FEWEST, 0, Layer(None, "no kinks")
        while len(self.lines) < _MOST:
            new = self._scan()
            if self.strange >= _HOPELESS and not self.planes:
                return Layer(None, "kinks, but not of gates")
            if new or self.aims or len(self.lines) < wanted:
                continue
            if not self.planes:
                break
            layer = self._solved()
            tries += 1
            if layer.explained or tries >= _TRIES:
                break
            self.aims = [] if layer.worst is None else list(layer.worst)
            wanted = len(self.lines) + 2 * len(self.aims)
        while layer.candidates is not None and self.missed > _MISSED and self._reaches_out:
            if self._scan():
                layer = self._solved()
        return layer

    @property
    def _reaches_out(self) -> bool:
        """Whether lines leave the ball and may yet cross every hyperplane."""
        return self.radius > self.setting.radius and len(self.lines) < _MOST

    def _scan(self) -> int:
        """Scan one line, and return the number of hyperplanes that it adds."""
        line = chord(self.setting.dim, self.radius, self.rng, offset=_OFFSET * self.setting.edge)
        if self.aims:  # from the centre to where the layer is wrong, a hyperplane is missing
            line = Line(np.zeros(self.setting.dim), unit(self.aims.pop()), -self.radius, self.radius)
        scanned = scan_line(line, self.ask, self.scan)
        self.lines.append(line)
        at = np.array([b.at for b in scanned.bends])
        new = [b for b in scanned.bends if not self._is_known(line, b)]
        self.strange += len(new)
        self._remember(line, [(b.left, b.right) for b in scanned.bends] + scanned.unresolved)
        before = len(self.planes)
        for v, x in planes_through(self.ask, self.setting, line, new, at) if new else []:
            plane = fitted_plane(self.ask, self.setting, v, x, self.rng)
            if plane is not None and not self._is_double(plane):
                self.planes.append(plane)
        return len(self.planes) - before

    def _remember(self, line: Line, stretches: list[tuple[float, float]]) -> None:
        """Keep the places of bends that are in the ball."""
        for low, high in stretches:
            x, half = line.at(0.5 * (low + high)), 0.5 * (high - low)
            if float(np.linalg.norm(x)) + half < self.setting.edge:
                self.bent.append((x, half))

    @property
    def all_explained(self) -> bool:
        """Whether a hyperplane passes through every place in the ball at which a line bends."""
        return all(self._passes_through(x, half) for x, half in self.bent)

    def _is_known(self, line: Line, bend: Bend) -> bool:
        """Return whether a bend is where a known hyperplane is crossed."""
        most = _MOST_BLUR * self.setting.radius
        return self._passes_through(line.at(bend.at), min(blur_of(self.setting, line, bend), most))

    def _passes_through(self, x: Floats, within: float) -> bool:
        near = within + _KNOWN * self.steps.window * max(self.setting.radius, float(np.linalg.norm(x)))
        return any(abs(plane.v @ x - plane.t) <= near for plane in self.planes)

    def _is_double(self, plane: Hyperplane) -> bool:
        """Return whether a hyperplane is known, up to its orientation."""
        signs = [np.sign(plane.v @ other.v) for other in self.planes]
        return any(
            np.abs(plane.v - s * other.v).max() + abs(plane.t - s * other.t) / self.setting.radius
            < _KNOWN * self.steps.window
            for s, other in zip(signs, self.planes, strict=True)
        )

    def _solved(self) -> Layer:
        """Return the layer on the hyperplanes that cross the ball."""
        setting, radius = self.setting, self.setting.edge
        inside = [plane for plane in self.planes if abs(plane.t) < radius]
        if not inside:
            return Layer(None, "no kinks in the ball")
        missing = points_for(len(inside), setting.dim) - len(self.X)
        if unknowns(len(inside), setting.dim) > _MOST_UNKNOWNS:
            return Layer(None, f"{len(inside)} hyperplanes, too many to solve for their carriers", explained=True)
        if missing > 0:
            X = layer_points(inside, radius, setting.dim, missing, self.rng)
            self.X, self.Y = np.concatenate([self.X, X]), np.concatenate([self.Y, self.ask(X)])
        return solve_layer(inside, radius, self.X, self.Y, setting.std, change_error(setting))
