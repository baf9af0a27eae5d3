"""What an extraction returns: features, certificate, history. All of it is frozen, and all arrays are read-only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .__about__ import __version__
from .certificate import Certificate, DataCheck
from .errors import InvalidInput
from .feature import Checks, Feature, Plane, Round, chosen, gated_text, shape_text
from .forecast import Forecast
from .geometry import Floats, frozen
from .oracle.base import Oracle
from .stop import StopReason
from .structure import Structure

if TYPE_CHECKING:
    from .bilinear import BilinearNetwork
    from .gated_network import GatedNetwork
    from .network import Network
    from .report import Plots

_BALL_ROUNDING = 1e-9
"""Relative excess over the radius that is attributed to rounding."""


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
    data_check: DataCheck | None = None
    """Errors on the rows of `data` that were held out; None if there were none."""

    def __post_init__(self) -> None:
        for name in ("bias", "slope", "center", "scale"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_oracle"}

    @property
    def oracle(self) -> Oracle | None:
        """The function that was asked, for `check`; it is no part of the result, and neither saved nor pickled."""
        return self.__dict__.get("_oracle")

    def _knowing(self, oracle: Oracle | None) -> Extraction:
        """Return this result, which from now on knows the function."""
        self.__dict__["_oracle"] = oracle
        return self

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

    @cached_property
    def output_directions(self) -> Floats:
        """(n, p) unit rows: the vector that each feature writes to; 1 for a scalar f."""
        if not self.features:
            return frozen(np.empty((0, self.outputs or 1)))
        return frozen(np.stack([f.output for f in self.features]))

    def activations(self, X: ArrayLike) -> Floats:
        """Return (m, n) what each feature contributes along its output vector, at the rows of X (m, d).

        Responses are without their lines, which are in `slope`. Those of neurons, lines and all, are the activations
        of `found.network()`.

        Examples
        --------
        >>> found.activations(X) @ found.output_directions  # with bias and slope, this is predict
        """
        u = (self._rows(X, "activations") - self.center) / self.scale
        columns = [f.values(u).reshape(len(u), -1) @ f.output for f in self.features]
        return np.stack(columns, axis=1) if columns else np.empty((len(u), 0))

    def without(self, features: int | Iterable[int]) -> Extraction:
        """Return the model less these features; bias and slope stay. It has no certificate, as it is another function.

        Examples
        --------
        >>> ablated = found.without([0, 3]).predict(X)
        """
        count = len(self.features)
        return self._part(np.setdiff1d(np.arange(count), chosen(features, count, "feature")))

    def only(self, features: int | Iterable[int]) -> Extraction:
        """Return the model of these features alone, with bias and slope; without a certificate, as in `without`.

        Examples
        --------
        >>> single = found.only(1).predict(X)
        """
        return self._part(chosen(features, len(self.features), "feature"))

    def _part(self, which: NDArray[np.intp]) -> Extraction:
        old = self.certificate
        nothing = Certificate.unknown(old.tolerance, std=old.std, noise=old.noise, confidence=old.confidence)
        part = f"This is a part of a model: {len(which)} of its {len(self.features)} features."
        kept = tuple(self.features[i] for i in which)
        blank: dict[str, Any] = {"structure": None, "forecast": None, "checks": None, "data_check": None}
        blank |= {"stop": StopReason.UNKNOWN, "stopped": part, "diagnosis": ""}
        return replace(self, features=kept, certificate=nothing, **blank)._knowing(self.oracle)

    def network(self, activation: str | None = None) -> Network | GatedNetwork | BilinearNetwork:
        """Return the network whose neurons are the features, a `GatedNetwork` of gated, `BilinearNetwork` of products.

        Parameters
        ----------
        activation
            Name of the activation, such as "sigmoid" for one whose response is also that of tanh. By default it is the
            one that explains all responses to their errors.

        Returns
        -------
        Network | GatedNetwork | BilinearNetwork
            In f's own coordinates. `resolved` says which signs the linear part of f determines.

        Raises
        ------
        InvalidInput
            If no activation explains all responses; the message counts those found.

        Examples
        --------
        >>> net = found.network()
        >>> net.activation, net.W_in, net.resolved.all()
        """
        from .neurons import network_of

        return network_of(self, activation)

    def check(
        self, X: ArrayLike, Y: ArrayLike | None = None, *, oracle: Callable[[Any], Any] | Oracle | None = None
    ) -> DataCheck:
        """Return the errors of the model on rows of your own.

        Parameters
        ----------
        X
            (m, d) rows in the coordinates of f.
        Y
            f's answers there, (m,) or (m, p). Without them the function is asked, once for each row.
        oracle
            The function, for results that were loaded; one that `rs.extract` has returned still knows its own.

        Returns
        -------
        DataCheck
            Errors over all rows, and the number of rows inside the ball, on which alone something is promised.

        Examples
        --------
        >>> found.check(X).rms
        """
        from .data import check_rows

        return check_rows(self, self._rows(X, "check"), Y, oracle)

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
        X = self._rows(X, "predict")
        if outside not in ("warn", "raise", "nan", "extrapolate"):
            raise InvalidInput(f'outside must be "warn", "raise", "nan" or "extrapolate", not {outside!r}')
        u = (X - self.center) / self.scale
        far = np.linalg.norm(u, axis=1)
        beyond = far > self.radius * (1.0 + _BALL_ROUNDING)
        if outside in ("warn", "raise") and beyond.any():
            self._report_outside(int(beyond.sum()), float(far.max()), outside)
        values = self.bias + u @ self.slope
        for f in self.features:
            values += f.values(u)
        if outside == "nan":
            values[beyond] = np.nan
        return values

    def _rows(self, X: ArrayLike, user: str) -> Floats:
        """Return rows as an (m, d) array of finite numbers; raise `InvalidInput` otherwise."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise InvalidInput(f"{user} takes an (m, {self.dim}) array; this one has shape {X.shape}")
        if not np.isfinite(X).all():
            raise InvalidInput(f"{user} takes finite numbers; this array holds a NaN or an infinity")
        return X

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

        It is that of `network()`, with weights and one activation layer, where the fit gave all features closed forms
        of one activation.

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
            f"{n} feature{'s' * (n != 1)}{gated_text(self.features)} in {d} dimension{'s' * (d != 1)} ({kind}), "
            f"{self.queries:,} quer{'ies' if self.queries != 1 else 'y'}",
            self.certificate.sentence,
        ]
        if self.data_check is not None:
            lines.append(self.data_check.sentence)
        if n:
            lines.append(f"{'#':>4} {'strength':>9} {'angle error':>12}  shape")
        for i, f in enumerate(self.features[:most]):
            lines.append(f"{i:>4} {f.strength:>9.3g} {f.angle_error:>12.1e}  {shape_text(f, '-')}")
        if n > most:
            lines.append(f"     … {n - most} more")
        lines += [text for text in (self.stopped, self.diagnosis) if text]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ridgescope.Extraction: {self.summary(6)}>"

    def _repr_html_(self) -> str:
        head, *_ = self.summary(0).splitlines()
        shown = ((f.strength, f.angle_error, escape(shape_text(f, "–"))) for f in self.features[:20])
        rows = "".join(f"<tr><td>{i}<td>{s:.3g}<td>{e:.1e}<td>{text}</tr>" for i, (s, e, text) in enumerate(shown))
        more = f"<p>… {len(self.features) - 20} more</p>" if len(self.features) > 20 else ""
        notes = "".join(f"<p>{escape(t)}</p>" for t in (self.stopped, self.diagnosis) if t)
        return (
            f"<p><b>{escape(head)}</b><br>{escape(self.certificate.sentence)}</p>"
            "<table><tr><th>#</th><th>strength</th><th>angle error (rad)</th><th>shape</th></tr>"
            f"{rows}</table>{more}{notes}"
        )
