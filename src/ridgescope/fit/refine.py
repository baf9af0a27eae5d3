"""Where does the residual still have structure along a feature, and what would explain it: finer knots or kinks?

With the other features held fixed, what is left of f along feature i is a cloud of points (z_i, r). Extensions of the
response are tried on it by plain one-dimensional least squares and compared by the Bayesian information criterion

    m·log(RSS) + (parameters)·log m

knots up to sixteen times as fine, or the present knots with up to a few atoms |z − t| placed one after the other where
they explain most (only where they explain more than any of the finer knots would: else the response is smooth and
merely steep). Nothing is done where neither beats the response as it is. Once directions stand, `reshapings` looks at
whole responses anew by the same criterion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded
from scipy.sparse import csr_array

from ..geometry import Floats
from ..response import basis
from . import threads
from .model import Model

MOST_INTERVALS = 512
_SWEEPS = 3
_SPOKEN = 0.01  # of a response's power that may lie in other outputs than those looked at


@dataclass(frozen=True, eq=False)
class Extension:
    """A better shape for one feature."""

    feature: int
    intervals: int
    kinks: Floats
    gain: float
    """Share of the residual sum of squares that it explains."""


@threads.one_blas_thread()
def extensions(model: Model, X: Floats, residual: Floats, *, most_kinks: int = 6) -> list[Extension]:
    """The best extension of each feature that has one, largest gain first.

    What an extension explains is taken off the residual before the next feature is looked at, and all are looked at
    again: behind the error of the coarsest response the others would not be seen to be too coarse. Of several outputs
    those are looked at that the response speaks to: one function times a p-vector is seen behind a p-th of the others.
    """
    found: dict[int, Extension] = {}
    Z, left = X @ model.directions.T, residual.copy()
    first = float(np.sum(residual**2))
    spoken = [outputs_of(model, i) for i in range(model.count)]
    for _ in range(_SWEEPS):
        news = 0
        for i, w in enumerate(spoken):
            shape = found[i] if i in found else Extension(i, int(model.intervals[i]), model.kinks[i], 0.0)
            heard = left @ w.T
            better = _best(model.radius, shape, Z[:, i], heard, most_kinks)
            if better is not None:
                before = float(np.sum(left**2))
                left -= Cloud(model.radius, better.intervals, Z[:, i], heard, better.kinks).fit() @ w
                gain = shape.gain + (before - float(np.sum(left**2))) / first
                found[i] = Extension(i, better.intervals, better.kinks, gain)
                news += 1
        if not news:
            break
    return sorted(found.values(), key=lambda e: -e.gain)


def outputs_of(model: Model, i: int) -> Floats:
    """(k, p) orthonormal rows, the main one first: the output directions in which response i bends, but for 1 %."""
    if model.outputs == 1:
        return np.ones((1, 1))
    K, c = int(model.intervals[i]), model.block(i)
    bends = np.concatenate([np.diff(c[: K + 3], n=2, axis=0), (4.0 * model.radius / K) * c[K + 3 :]])
    sizes, w = np.linalg.svd(bends, full_matrices=False)[1:]
    power = np.cumsum(sizes**2)
    return np.asarray(w[: 1 + int(np.searchsorted(power, (1.0 - _SPOKEN) * power[-1]))])


@threads.one_blas_thread()
def reshapings(model: Model, X: Floats, residual: Floats, coarsest: int) -> list[Extension]:
    """Other knots with kinks, or without, for features where the criterion likes them better than what they have.

    While directions were still off, a kink was smeared out and looked merely steep: fine knots took it in, or noise
    hid it. Now that they stand, one atom may say what fifty knots say worse.
    """
    Z = X @ model.directions.T
    found = [_reshaping(model, i, Z[:, i], residual + model.term(i, Z[:, i]), coarsest) for i in range(model.count)]
    return [e for e in found if e is not None]


def _reshaping(model: Model, i: int, z: Floats, r: Floats, coarsest: int) -> Extension | None:
    """Of feature i, what is left of f without the others being r."""
    r = r - r.mean(axis=0)
    R, K, total, p = model.radius, int(model.intervals[i]), float(np.sum(r**2)), int(r.shape[1])

    def columns(cloud: Cloud) -> int:
        return p * len(cloud.half) + (p + 1) * len(cloud.kinks)

    def score(cloud: Cloud) -> float:
        return float(r.size * np.log(max(total - cloud.explained, 1e-300)) + columns(cloud) * np.log(r.size))

    def earned(cloud: Cloud, sure: float = 0.0) -> float:
        """Without what its columns would explain by chance, and so many standard deviations of that."""
        chance = columns(cloud) + sure * np.sqrt(2.0 * columns(cloud))
        return float(cloud.explained - chance * (total - cloud.explained) / max(r.size - columns(cloud), 1))

    plain = {k: Cloud(R, k, z, r, np.empty(0)) for k in (coarsest << j for j in range(5))}
    most = max(earned(cloud, 2.0) for cloud in plain.values())
    least, best = score(Cloud(R, K, z, r, model.kinks[i])), None
    for k, cloud in plain.items():
        if score(cloud) < least:
            least, best = score(cloud), Extension(i, k, np.empty(0), 0.0)
    cloud = plain[coarsest]
    _place_kinks(cloud, total, max(1, len(model.kinks[i])))
    if len(cloud.kinks) and earned(cloud) >= most and score(cloud) < least:  # where merely steep, finer knots see more
        best = Extension(i, coarsest, np.sort(cloud.kinks), 0.0)
    return best


def apply(model: Model, chosen: list[Extension]) -> Model:
    """The model with these extensions; its coefficients must be solved anew."""
    intervals, kinks = model.intervals.copy(), list(model.kinks)
    for e in chosen:
        intervals[e.feature], kinks[e.feature] = e.intervals, e.kinks
    return model.reshaped(intervals, tuple(kinks))


def _best(R: float, shape: Extension, z: Floats, r: Floats, most_kinks: int) -> Extension | None:
    i, K, kinks, p, m = shape.feature, shape.intervals, shape.kinks, r.shape[1], r.size
    total = float(np.sum(r**2))

    def score(gain: float, parameters: int) -> float:
        return float(m * np.log(max(total - gain, 1e-300) / max(total, 1e-300)) + parameters * np.log(m))

    def earned(gain: float, parameters: int) -> float:  # what so many columns would explain by chance is taken off
        return gain - parameters * (total - gain) / r.size

    cloud = Cloud(R, K, z, r, kinks)
    here = score(cloud.explained, 0)
    finer = {8 * K: Cloud(R, 8 * K, z, r, kinks).explained}
    if earned(finer[8 * K], 7 * p * K) <= earned(cloud.explained, 0):  # not even fine knots see anything
        return None
    finer |= {f * K: Cloud(R, f * K, z, r, kinks).explained for f in (2, 4, 16)}
    most = max(earned(gain, p * (k - K)) for k, gain in finer.items())
    # Twice the knots leave an eighth of what a kink leaves, and next to nothing of a smooth response.
    smooth = earned(finer[2 * K], p * K) >= 0.99 * most
    places, kinked = (np.empty(0), 0.0) if smooth else _place_kinks(cloud, total, most_kinks)
    # A true kink beats even much finer knots; on a smooth response, if steep, it does not come near them.
    if len(places) and earned(kinked, (p + 1) * len(places)) >= most and score(kinked, (p + 1) * len(places)) < here:
        return Extension(i, K, np.sort(np.concatenate([kinks, places])), 0.0)
    scores = {k: score(gain, p * (k - K)) for k, gain in finer.items() if k <= MOST_INTERVALS}
    k = min(scores, key=lambda k: scores[k], default=K)
    return Extension(i, k, kinks, 0.0) if scores.get(k, here) < here else None


class Cloud:
    """Least squares of r (m, p) on a spline in z and a few atoms |z − t|, one banded factorisation for all of it.

    With A = ΦᵀΦ, banded, ⟨a, b⟩ = aᵀb − (Φᵀa)ᵀA⁻¹(Φᵀb) is the product of what the spline leaves of a and b.
    """

    def __init__(self, radius: float, intervals: int, z: Floats, r: Floats, kinks: Floats) -> None:
        self.radius, self.spacing, self.z, self.r = radius, 2.0 * radius / intervals, z, r
        k, weights = basis(z, radius, intervals)
        m, N = len(z), intervals + 3
        columns = (k[:, None] + np.arange(4)).ravel()
        self.phi = csr_array((weights.T.ravel(), columns, np.arange(0, 4 * m + 1, 4)), shape=(m, N))
        band = np.zeros((4, N))  # lower form: band[j, c] = A[c + j, c]
        for a in range(4):
            for b in range(a, 4):
                band[b - a] += np.bincount(k + a, weights[a] * weights[b], minlength=N)[:N]
        band[0] += 1e-10 * m / N
        self._factor = cholesky_banded(band, lower=True)
        right = self.phi.T @ r
        self.half = cho_solve_banded((self._factor, True), right)
        self.by_spline = float(np.sum(right * self.half))
        self.kinks: Floats = np.empty(0)
        self.atoms = np.empty((m, 0))
        self.explained = self.by_spline
        for t in kinks:
            self.add(float(t))

    def add(self, t: float) -> None:
        """One more atom."""
        self.kinks = np.append(self.kinks, t)
        self.atoms = np.abs(self.z[:, None] - self.kinks)
        S, s = self._left(self.atoms, self.atoms), self._left(self.atoms, self.r)
        S[np.diag_indices_from(S)] += 1e-12 * len(self.z)
        self.explained = self.by_spline + float(np.sum(s * np.linalg.solve(S, s)))

    def fit(self) -> Floats:
        """(m, p) what spline and atoms make of r."""
        if not len(self.kinks):
            return np.asarray(self.phi @ self.half)
        S, s = self._left(self.atoms, self.atoms), self._left(self.atoms, self.r)
        S[np.diag_indices_from(S)] += 1e-12 * len(self.z)
        u = np.linalg.solve(S, s)
        c = self.half - cho_solve_banded((self._factor, True), self.phi.T @ (self.atoms @ u))
        return np.asarray(self.phi @ c + self.atoms @ u)

    def gains(self, places: Floats) -> Floats:
        """(g,) what one more atom at each of these places would explain."""
        T = np.abs(self.z[:, None] - places)
        below = self.phi.T @ T
        solved = cho_solve_banded((self._factor, True), below)
        size = np.einsum("mg,mg->g", T, T) - np.einsum("kg,kg->g", below, solved)
        onto = T.T @ self.r - solved.T @ (self.phi.T @ self.r)
        if len(self.kinks):
            S = self._left(self.atoms, self.atoms)
            S[np.diag_indices_from(S)] += 1e-12 * len(self.z)
            shared = T.T @ self.atoms - solved.T @ (self.phi.T @ self.atoms)
            through = np.linalg.solve(S, shared.T)
            size -= np.einsum("gj,jg->g", shared, through)
            onto -= through.T @ self._left(self.atoms, self.r)
        gains = np.sum(onto**2, axis=1) / np.maximum(size, 1e-9 * len(self.z) * self.spacing**2)
        for t in self.kinks:  # closer ones would be one kink in two columns
            gains[np.abs(places - t) < 0.25 * self.spacing] = 0.0
        return np.asarray(gains)

    def _left(self, a: Floats, b: Floats) -> Floats:
        """⟨a, b⟩"""
        return np.asarray(a.T @ b - (self.phi.T @ a).T @ cho_solve_banded((self._factor, True), self.phi.T @ b))


def _place_kinks(cloud: Cloud, total: float, most: int) -> tuple[Floats, float]:
    """Atoms chosen greedily, each against the response as extended so far; (places, explained sum of squares).

    A place is looked for on a grid and then on finer and finer ones: a kink put slightly wrong leaves a residual that
    asks for more kinks.
    """
    h, R, p, size = cloud.spacing, cloud.radius, cloud.r.shape[1], cloud.r.size
    grid = np.arange(-R + 0.5 * h, R - 0.4 * h, 0.5 * h)
    given = len(cloud.kinks)
    while len(cloud.kinks) < given + most:
        best = float(grid[np.argmax(cloud.gains(grid))])
        for cell in (h / 2, h / 12, h / 72):
            fine = np.clip(best + cell * np.linspace(-1.0, 1.0, 13), -R, R)
            gains = cloud.gains(fine)
            best = float(fine[np.argmax(gains)])
        before, now = total - cloud.explained, total - cloud.explained - float(gains.max())
        if size * np.log(max(now, 1e-300) / max(before, 1e-300)) + (p + 1) * np.log(size) >= 0:
            break
        cloud.add(best)
    return cloud.kinks[given:], cloud.explained
