"""What an extraction returns: features, certificate, history. All of it is frozen, and all arrays are read-only."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .__about__ import __version__
from .errors import InvalidInput
from .feature import Checks, Feature, Plane
from .forecast import Forecast
from .geometry import Floats, frozen
from .stop import StopReason
from .structure import Structure

if TYPE_CHECKING:
    from .report import Plots

_BALL_ROUNDING = 1e-9
"""Relative excess over the radius that is attributed to rounding."""


@dataclass(frozen=True)
class Certificate:
    """What fresh queries, which were used for nothing else, show about the model on the ball.

    All errors are in f's own units; `std` is the standard deviation of f over the ball, so that `sup_seen / std` is the
    relative error that `tolerance` limits.
    """

    verdict: str
    """"met", "not met", or "undecided" where noise hides whether the tolerance is met."""
    tolerance: float
    """Largest error allowed, as a fraction of `std`."""
    std: float
    """Standard deviation of f over the ball."""
    noise: float
    """Bound on the error of one answer, which the verdict allows for and `bound` includes."""
    rms: float
    """Root mean square error over the ball."""
    rms_low: float
    """Lower end of the approximate confidence interval of `rms`."""
    rms_high: float
    """Upper end of the approximate confidence interval of `rms`."""
    sup_seen: float
    """Largest error of any certificate query: in the ball, along the features, or found by local search."""
    bound: float
    """With the stated confidence, |f − f̂| ≤ bound on all but a fraction 1 − coverage of the ball's volume."""
    coverage: float
    """Share of the ball's volume for which `bound` holds."""
    confidence: float
    """Probability with which the statement about `bound` holds."""
    samples: int
    """Fresh queries that were answered."""
    sigma: float = 0.0
    """Standard deviation of the random noise of one answer; 0 for a deterministic function, which has none."""
    rms_bound: float = float("inf")
    """With the stated confidence, the RMS of f − f̂ over the ball, beyond the noise, is at most this."""
    queries_to_decide: int = 0
    """For an undecided verdict: fresh queries that would decide it, about."""

    @property
    def met(self) -> bool:
        """Whether the verdict is "met"."""
        return self.verdict == "met"

    @property
    def limited_by_noise(self) -> bool:
        """Whether single answers cannot show the tolerance: then the verdict is on the RMS error beyond the noise."""
        return self.noise > self.tolerance * self.std

    @property
    def sentence(self) -> str:
        """The certificate in words."""
        verdict = {"met": "met", "not met": "NOT met"}.get(self.verdict, self.verdict)
        if not self.samples:
            return f"tolerance {self.tolerance:g} {verdict}: no fresh queries were asked, so the error is not known"
        unit = self.std if self.std > 0 else 1.0
        if self.sigma > 0:
            beyond = (
                f"tolerance {self.tolerance:g} {verdict}: the RMS error beyond the noise (deviation {self.sigma:.2g}) "
                f"is at most {self.rms_bound / unit:.2g} of f's standard deviation with confidence "
                f"{self.confidence:g}, from {self.samples:,} fresh queries"
            )
            more = f"; some {self.queries_to_decide:,} queries would decide it" if self.queries_to_decide else ""
            return beyond + more
        return (
            f"tolerance {self.tolerance:g} {verdict}: largest error seen {self.sup_seen / unit:.2g} of f's standard "
            f"deviation over {self.samples:,} fresh queries; with confidence {self.confidence:g}, "
            f"|f − f̂| ≤ {self.bound:.3g} on all but {100 * (1 - self.coverage):.2g} % of the ball"
        )


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
class Extraction:
    """The recovered function f(x) ≈ bias + slope·u + Σ_i s_i(v_i·u) with u = (x − center)/scale, for |u| ≤ radius."""

    features: tuple[Feature, ...]
    """The terms of the sum, strongest first."""
    bias: Floats
    """() or (p,) constant term."""
    slope: Floats
    """(d,) or (d, p) linear term."""
    radius: float
    """Radius of the ball on which f is reproduced, in the coordinates u."""
    center: Floats
    """(d,) centre of the ball, in the coordinates x."""
    scale: Floats
    """(d,) unit of each coordinate of x."""
    certificate: Certificate
    """The test of the model against fresh queries."""
    queries: int
    """Number of rows asked, including those of the certificate."""
    queries_by_stage: Mapping[str, int]
    """Number of rows that each stage asked."""
    history: tuple[Round, ...] = ()
    """One line for each round of the search."""
    diagnosis: str = ""
    """Why the tolerance was not met, or a warning about the directions; empty if there is nothing to report."""
    stop: StopReason = StopReason.UNKNOWN
    """Why the run ended."""
    stopped: str = ""
    """Why the run ended, as a full sentence."""
    deterministic: bool = True
    """Whether f answered the same input twice with the same value."""
    dropped: int = 0
    """Number of answers dropped because they were not finite (on_bad="drop")."""
    seed: str = ""
    """The argument `rng` as text if it was a number, else "from a generator"."""
    version: str = __version__
    """Version of ridgescope that made this result."""
    planes: tuple[Plane, ...] = ()
    """Planar Fourier spectra of f that the report shows."""
    structure: Structure | None = None
    """Whether f is that sum of features ("exact"), something else of which the model is a surrogate ("approximate"), or
    "unknown"; None in results of versions that did not test it."""
    forecast: Forecast | None = None
    """Queries and features that the tolerance would take at the rate at which the error was falling; None where it is
    met, or where the error was not falling."""
    checks: Checks | None = None
    """The queries of the certificate one by one; None if they were not kept."""
    command: str = ""
    """The command line that made this result; empty if it was made from Python."""
    asked: int | None = None
    """Number of rows that the function itself was asked in this run, while `queries` also counts the answers of a
    ledger; not saved."""

    def __post_init__(self) -> None:
        for name in ("bias", "slope", "center", "scale"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def dim(self) -> int:
        """Number of inputs d."""
        return len(self.center)

    @property
    def outputs(self) -> int | None:
        """Number of outputs p, or None for a scalar f."""
        return self.slope.shape[1] if self.slope.ndim == 2 else None

    @cached_property
    def directions(self) -> Floats:
        """(n, d) unit rows, strongest feature first."""
        if not self.features:
            return frozen(np.empty((0, self.dim)))
        return frozen(np.stack([f.direction for f in self.features]))

    def predict(self, X: ArrayLike, *, outside: Literal["warn", "raise", "nan", "extrapolate"] = "warn") -> Floats:
        """Evaluate the recovered function.

        Parameters
        ----------
        X
            (m, d) points in the coordinates x of f itself.
        outside
            For points outside the ball, |u| > radius, of which nothing is known: "extrapolate" returns what the
            responses' continuations give; "warn", the default, does so with a warning, once for each result; "nan"
            returns NaN there; "raise" raises `InvalidInput`.

        Returns
        -------
        ndarray
            (m,) values, or (m, p) if f has p outputs.

        Examples
        --------
        >>> found = rs.extract(lambda X: np.tanh(2 * X[:, 0]), dim=2, rng=0)
        >>> found.predict(np.zeros((1, 2))).round(3)
        array([0.])
        """
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise InvalidInput(f"predict takes an (m, {self.dim}) array; this one has shape {X.shape}")
        if not np.isfinite(X).all():
            raise InvalidInput("predict takes finite numbers; this array holds a NaN or an infinity")
        if outside not in ("warn", "raise", "nan", "extrapolate"):
            raise InvalidInput(f'outside must be "warn", "raise", "nan" or "extrapolate", not {outside!r}')
        u = (X - self.center) / self.scale
        far = np.linalg.norm(u, axis=1)
        beyond = far > self.radius * (1.0 + _BALL_ROUNDING)
        if outside in ("warn", "raise") and beyond.any():
            self._report_outside(int(beyond.sum()), float(far.max()), outside)
        values = self.bias + u @ self.slope
        for f in self.features:
            values += f.response(u @ f.direction)
        if outside == "nan":
            values[beyond] = np.nan
        return values

    def _report_outside(self, rows: int, farthest: float, outside: str) -> None:
        """Raise, or warn once for this result, that points lie outside the ball."""
        message = (
            f"{rows:,} rows lie outside the ball |u| ≤ {self.radius:g} on which the function was recovered, up to "
            f"|u| = {farthest:.3g}; what is predicted there is extrapolated. Extract with a larger radius, or pass "
            'outside="extrapolate" or "nan" to predict'
        )
        if outside == "raise":
            raise InvalidInput(message)
        if "_has_warned" not in self.__dict__:
            self.__dict__["_has_warned"] = True  # no part of the result, which stays as it is
            warnings.warn(message, stacklevel=3)

    def save(self, folder: str | Path) -> Path:
        """Write result.json and arrays.safetensors into `folder`, which is created if missing, and return its path.

        Examples
        --------
        >>> folder = found.save("out")
        >>> again = rs.load(folder)
        """
        from .storage import save

        return save(self, Path(folder))

    def report(self, path: str | Path) -> Path:
        """Write the report, a single HTML file that needs no network connection, and return its path.

        Examples
        --------
        >>> page = found.report("report.html")
        """
        from .report import write_report

        return write_report(self, Path(path))

    def to_torch(self) -> Any:
        """Return the recovered function as a `torch.nn.Module` in double precision.

        Examples
        --------
        >>> module = found.to_torch()
        """
        from .export import to_torch

        return to_torch(self)

    def to_onnx(self, path: str | Path | None = None) -> Any:
        """Return the recovered function as an ONNX model in double precision; also write it to `path` if given.

        Examples
        --------
        >>> model = found.to_onnx("found.onnx")
        """
        from .export import to_onnx

        return to_onnx(self, path)

    def to_frame(self) -> Any:
        """Return the features as a pandas DataFrame, one row each.

        Examples
        --------
        >>> table = found.to_frame()
        """
        from .export import to_frame

        return to_frame(self)

    @property
    def plot(self) -> Plots:
        """The figures of the report: `plot.star()`, `.responses()`, `.geometry()`, `.errors()`.

        Examples
        --------
        >>> figure = found.plot.responses()
        """
        from .report import Plots

        return Plots(self)

    def summary(self, most: int = 12) -> str:
        """Return the result as text: counts, certificate, at most `most` features, and why the run ended.

        Examples
        --------
        >>> print(found.summary(most=3))
        """
        n, d = len(self.features), self.dim
        kind = "scalar" if self.outputs is None else f"{self.outputs} outputs"
        lines = [
            f"{n} feature{'s' * (n != 1)} in {d} dimension{'s' * (d != 1)} ({kind}), "
            f"{self.queries:,} quer{'ies' if self.queries != 1 else 'y'}",
            self.certificate.sentence,
        ]
        if n:
            lines.append(f"{'#':>4} {'strength':>9} {'angle error':>12}  shape")
        for i, f in enumerate(self.features[:most]):
            lines.append(f"{i:>4} {f.strength:>9.3g} {f.angle_error:>12.1e}  {f.shape or '-'}")
        if n > most:
            lines.append(f"     … {n - most} more")
        lines += [text for text in (self.stopped, self.diagnosis) if text]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ridgescope.Extraction: {self.summary(6)}>"

    def _repr_html_(self) -> str:
        head, *_ = self.summary(0).splitlines()
        rows = "".join(
            f"<tr><td>{i}</td><td>{f.strength:.3g}</td><td>{f.angle_error:.1e}</td>"
            f"<td>{escape(str(f.shape or '–'))}</td></tr>"
            for i, f in enumerate(self.features[:20])
        )
        more = f"<p>… {len(self.features) - 20} more</p>" if len(self.features) > 20 else ""
        notes = "".join(f"<p>{escape(t)}</p>" for t in (self.stopped, self.diagnosis) if t)
        return (
            f"<p><b>{escape(head)}</b><br>{escape(self.certificate.sentence)}</p>"
            "<table><tr><th>#</th><th>strength</th><th>angle error (rad)</th><th>shape</th></tr>"
            f"{rows}</table>{more}{notes}"
        )


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during an extraction; `found` is the result so far, without a certificate."""

    def __init__(self, found: Extraction) -> None:
        self.found = found
        super().__init__(found.stopped)

    def __reduce__(self) -> tuple[type[Interrupted], tuple[Extraction]]:
        return type(self), (self.found,)
