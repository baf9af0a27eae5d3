"""The certificate of a run: asked for once the fit looks good, and what follows where fresh queries disagree.

Then the subspace may have missed a direction, which joins, or the responses get more points and another look; and
fresh queries are asked again, a few times at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .certify import certify
from .fit.context import is_expensive
from .geometry import Floats, random_directions
from .missed_subspace import missed_directions
from .noise import max_noise_quantile
from .result import Certificate, Checks
from .state import State

_ATTEMPTS = 4
_ANSWERS = 1000  # of a certificate, about


@dataclass(eq=False)
class Assurance:
    """The certificate, and what was asked for it."""

    state: State
    confidence: float
    certificate: Certificate | None = None
    """None where the model has changed since the last one."""
    _checks: tuple[Checks, Floats] | None = None
    """The certificate's queries, and the lines that they went along."""
    _spent: list[tuple[Floats, Floats]] = field(default_factory=list)
    """Points and answers of the last certificate."""
    _looked_closer: bool = False
    """Have responses been looked at once more for the sake of directions?"""
    _looked_outside: int = 0
    """Size of the subspace when what it might have missed was last looked for."""

    def given(self) -> bool:
        """Is the fit good enough, and do fresh queries agree with room to spare? If not: more points."""
        state = self.state
        close = state.tolerance * state.known.scale + state.loud + state.rounding
        if state.best.sup > close:
            if state.history and self._looked_outside != state.inner_dim:
                self._looked_outside = state.inner_dim
                self._widened()
            return False
        for attempt in range(_ATTEMPTS):
            certificate = self._certify(attempt)
            ample = certificate.met and certificate.sup_seen <= state.ample
            if (ample and not self._vague()) or (certificate.met and attempt == _ATTEMPTS - 1):
                break
            state.say(f"certificate attempt {attempt + 1}: {certificate.sentence}")
            if self._widened() or attempt == _ATTEMPTS - 1 or not self._firmed_up():
                break
        return self.certificate is not None and self.certificate.met

    def conclude(self, queries: int | None = None) -> None:
        """The last certificate, where none stands yet."""
        if self.certificate is None:
            self._certify(9, queries)

    def checks_along(self, directions: Floats) -> Checks | None:
        """The certificate's queries, told by the features of the result."""
        return self._checks[0].seen_from(self._checks[1], directions) if self._checks is not None else None

    def _certify(self, attempt: int, queries: int | None = None) -> Certificate:
        state = self.state
        known, model, turn = state.known, state.model, attempt + 16 * len(state.history)
        self._spent = []
        lines = np.concatenate([model.directions, self._probes(turn)]) @ known.basis
        kept: list[Checks] = []
        self.certificate = certify(
            state.oracle,
            lambda U: model.predict(U @ known.basis.T),
            lines,
            radius=state.radius,
            tolerance=state.tolerance,
            noise=state.stated_noise if state.stated_noise is not None else self._unseen() + state.rounding,
            confidence=self.confidence,
            scale=known.scale,
            rng=state.streams("certify", turn),
            queries=queries,
            keep=kept.append,
            record=self._record,
        )
        self._checks = (kept[0].thinned(), lines) if kept else None
        return self.certificate

    def _unseen(self) -> float:
        """What noise may do to one of the certificate's answers: three deviations, or more where it drowns the rest."""
        state = self.state
        drowned = state.known.noise > 0.1 * state.tolerance * state.known.scale
        return (max_noise_quantile(_ANSWERS) if drowned else 3.0) * state.known.noise

    def _probes(self, turn: int) -> Floats:
        """Random directions for the certificate to go along, since points of a ball hardly move along any."""
        r = self.state.inner_dim
        return random_directions(min(2 * r, 64), r, self.state.streams("probe", turn))

    def _record(self, U: Floats, answers: Floats) -> None:
        """The certificate's answers are set aside: a fit may have them once they no longer count as fresh."""
        self._spent.append((U @ self.state.known.basis.T, answers))

    def _vague(self) -> bool:
        """Is a direction not yet known to a tenth of the tolerance, though knots and not noise are what limits it?

        Asked once: where one more look at the responses does not help, nothing will. Where steps take long, not at all.
        """
        state = self.state
        noisy = state.best.rms <= 3.0 * state.known.noise
        if state.untouched or self._looked_closer or noisy or is_expensive(state.model):
            return False
        self._looked_closer = True
        return bool(2.0 * state.error_bars().angle.max(initial=0.0) > 0.1 * state.tolerance)

    def _widened(self) -> bool:
        """Did the subspace miss a direction? If so it joins, and the search goes on with it."""
        state, basis = self.state, self.state.known.basis
        if len(basis) == state.oracle.dim:
            return False
        rng = state.streams("widen", len(basis))
        found = missed_directions(state.oracle, state.model, state.known, state.radius, rng)
        if not len(found):
            return False
        state.extend(np.concatenate([basis, found]))
        self.certificate = None
        state.say(
            f"fresh queries show {len(found)} more dimensions that matter: {state.inner_dim} of {state.oracle.dim}"
        )
        return True

    def _firmed_up(self) -> bool:
        """Have the responses been looked at again, with the points that no longer count as fresh?"""
        if not self.state.firm(self._spent):
            return False
        self.certificate = None
        return True
