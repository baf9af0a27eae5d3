"""What fresh queries, and the user's own rows, say about a model."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


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

    @classmethod
    def unknown(cls, tolerance: float, *, std: float, noise: float, confidence: float) -> Certificate:
        """Return the certificate that says that nothing is known, since nothing was asked."""
        return cls(
            verdict="not met",
            tolerance=tolerance,
            std=std,
            noise=noise,
            rms=inf,
            rms_low=0.0,
            rms_high=inf,
            sup_seen=inf,
            bound=inf,
            coverage=0.0,
            confidence=confidence,
            samples=0,
        )

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
class DataCheck:
    """Errors of the model on given rows, in f's own units; of several outputs, the largest error of a row counts."""

    rows: int
    """Rows that were compared."""
    inside: int
    """Those of them inside the ball, on which alone the model was fitted."""
    rms: float
    """Root mean square error over these rows and all outputs."""
    sup: float
    """Largest error of a row."""
    sup_inside: float
    """Largest error of a row inside the ball; 0 if there is none."""
    std: float
    """Standard deviation of f over these rows, root mean square over outputs."""
    tolerance: float
    """Largest error allowed, in f's own units: that of the certificate, noise included."""
    within: float
    """Share of the rows with an error of at most `tolerance`."""

    @property
    def sentence(self) -> str:
        """The errors in words."""
        if not self.rows:
            return "no rows were compared"
        unit = self.std if self.std > 0 else 1.0
        return (
            f"on {self.rows:,} rows of data, {self.inside:,} of them inside the ball: RMS error {self.rms / unit:.2g}, "
            f"largest error {self.sup / unit:.2g} of f's standard deviation there; {100 * self.within:.3g} % of the "
            "rows are within the certificate's tolerance"
        )
