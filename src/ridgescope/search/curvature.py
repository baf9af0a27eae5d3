"""Directions from second derivatives.

    ∇²f(x) = Σ_i s_i''(v_i·x) v_i v_iᵀ

Hessians at many points span {v_i v_iᵀ}: the singular values of the stack drop after the n-th
(`numerical_span.span_of`), and the rank-one matrices of the span are the features (`rank_one.members`). This
needs n ≤ d(d−1)/2; for more features `tensors` uses higher derivatives.

*Restriction.* In a random r-dimensional subspace with orthonormal rows Q the same holds for w_i = Q v_i,
and r ≈ 2√n is enough. So the width r starts small and is enlarged while the Hessians still fill the whole
space of symmetric matrices; derivatives measured at a narrower width are reused.

*Lift.* With w_i known, c_i(x) = s_i''(v_i·x)|w_i|² follows from the restricted Hessians by least squares.
A derivative along one direction q_j inside the subspace and one, e, outside it is

    ∂_j ∂_e f(x) = Σ_i c_i(x) ŵ_ij (u_i·e),         u_i = v_i/|w_i|,  ŵ_i = w_i/|w_i|,

linear in the one unknown u_i·e of every feature. About n such equations for every e determine all of v_i, with
n² + nd queries in all rather than nd².

With several outputs each point gives several Hessians for the same queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..geometry import Floats, in_ball, random_basis, shrink_to
from .base import Ask, CostPerRound, Meter, Proposal, Setting, informative_points, points_in_shell
from .bending import bending_ball, is_rounded
from .central import CentralChoice, CentralDifferences, choose_stencil
from .curvature_lift import Mixed, Source, angle_errors, bends_of, widened, without_bias
from .gated_search import GatedSearch
from .hessians import DerivativeSample, Differences, Gradients, Smoothed
from .numerical_span import Span, describe_drop
from .quadratic_form import fewest_axes
from .rank_one import MatrixSpace, members, unpack
from .rank_two import axes_of_products
from .stencil_bias import DerivativeSizes, derivative_sizes
from .tensors import filled_block, most_apart

_MOST_WITH_GATES = 6  # times the queries for plain features: gated ones have twice the rank, with weaker members
Improved = tuple[Source, DerivativeSample]
_RESERVE = 1.5  # the same where Hessians are more exact
_SAME_EVERYWHERE = 0.01  # standard deviation over mean of what is the same at all points, but for errors


@dataclass(frozen=True)
class CurvatureSettings:
    """Thresholds of the search by Hessians; empirical where no reason is given, checked by the recovery benchmark."""

    # choice of the stencil
    probe_points: int = 10  # points at which sizes of derivatives are measured, with two stencils of 13 queries each
    least_points: int = 4  # fewest such points; with fewer there is no search
    probe_share: int = 60  # one such point per 60 queries, so that all of them take less than half
    longest_step: float = 1.2  # longest step of one-sided stencils in units of 1/bandwidth, where f begins to vary
    longest_share: float = 0.1  # and in units of the ball's radius
    centred_longer: float = 1.5  # longest centred step over the longest one-sided one: its bias is of second order
    probe_noise: float = 200.0  # the probing step is √(200·noise/std) times the longest step if noise is weak
    shortest_probe: float = 0.25  # the probing step is at least this share of the longest step
    kinked: float = 0.15  # median over root mean square of second derivatives, below which kinks make most of them
    one_sided: float = 3e-3  # largest relative error of one-sided stencils, whose bias is corrected later
    inexact: float = 1e-3  # the same of those of order 2 from which on higher orders are tried
    centred: float = 0.25  # the same for centred stencils; above it, Gaussian averages are used
    rounded: float = 1e-4  # noise of one-sided Hessians over these above which weak ones may drown in it
    cheap_share: float = 0.4  # centred stencils are used anyway if they take at most this share of the queries
    cheap: int = 20_000  # and at most this many queries; they cost twice as much as one-sided ones
    blurred: float = 1e-5  # share of errors in the Hessians' power above which a full span may be kinks and noise
    # number of Hessians
    narrow: int = 20  # initial width of the subspace
    narrow_slack: float = 1.3  # the width is d from the start if d is at most this factor times `narrow`
    lift_share: int = 5  # one query in this many is reserved for the lift if the width is less than d
    first_rows: int = 12  # Hessians, one per point and output, before the first computation of singular values
    heavy: int = 1500  # size of a packed Hessian from which on singular values take many seconds
    often: int = 12  # below that size one point in this many is added before they are computed again
    seldom: int = 4  # the same above that size
    steady_drop: float = 30.0  # a clear drop of the singular values; for it
    steady: float = 1.1  # this many rows per rank average out the errors of the weakest member
    steadier: float = 1.2  # rows per rank if the drop is smaller
    sharp_drop: float = 5.0  # a drop too large to be caused by errors
    enough: float = 1.6  # rows over columns beyond which a smaller drop no longer moves
    enough_small: int = 4  # rows over columns that suffice without a clear drop, below the size `heavy`
    enough_rows: int = 150  # and the fewest rows for that
    points_per_feature: int = 3  # divided by the number of outputs; a response may be straight at a single point
    fewest_points: int = 6
    most_points: int = 20
    missed: float = 0.75  # members over the rank below which others than plain features make up the rest
    full: float = 0.9  # rank over size from which on the span counts as full: a drop could not be seen
    width_factor: float = 2.0  # width over √n once n is known: Hessians then have 2n entries
    independent_rows: float = 0.85  # rows over columns from which on independent Hessians call for a wider subspace
    independent_rank: float = 0.8  # rank over the lesser of rows and columns of independent Hessians
    wider: float = 1.4  # factor on the width, which doubles the size of a Hessian
    # lift
    refine_share: float = 0.1  # of the queries left, for centred Hessians before a lift, which magnifies errors
    oversample: float = 6.0  # equations per unknown
    lift_points: int = 12  # number of points that are to provide them


@dataclass(frozen=True)
class Curvature(CostPerRound):
    """Directions from second derivatives: for smooth responses, up to about d²/2 of them."""

    settings: CurvatureSettings = CurvatureSettings()
    name: ClassVar[str] = "curvature"

    def cost(self, setting: Setting) -> int:
        """Return the most queries of one call, with those for Hessians that gated units may need."""
        plain = super().cost(setting)
        return plain * _MOST_WITH_GATES if is_rounded(setting) else int(_RESERVE * plain)

    def propose(self, ask: Ask, setting: Setting, *, queries: int, rng: np.random.Generator) -> Proposal:
        """Return the directions of the features that bend smoothly, or of all features if f must be smoothed first."""
        plain = super().cost(setting)
        reserve = queries - plain if queries >= int(_RESERVE * plain) else 0  # none on a smaller budget
        meter, basis = Meter(ask, queries - reserve), random_basis(setting.dim, setting.dim, rng)
        if is_rounded(setting) and setting.gradient is None:
            setting = bending_ball(meter, setting, rng)
        return _CurvatureSearch(meter, setting, self.settings, basis, rng, reserve).run()


@dataclass(frozen=True, eq=False)
class _CurvatureSearch:
    """One call of `Curvature.propose`."""

    meter: Meter
    setting: Setting
    settings: CurvatureSettings
    basis: Floats
    """(d, d) orthonormal rows; derivatives are taken along the first of them."""
    rng: np.random.Generator
    reserve: int = 0
    """Queries beyond those of the meter, for centred Hessians of gated units."""

    def run(self) -> Proposal:
        """Measure Hessians, find the rank-one members of their span, lift them to d dimensions and return them."""
        setting, queries = self.setting, self.meter.left
        source = self._source()
        sample = self._sample(source) if source is not None else None
        if isinstance(source, Differences) and sample is not None and self._is_blurred(sample):
            source = Smoothed.of(source, DerivativeSizes(), setting, self.rng)
            sample = self._sample(source) or sample
        if source is None or sample is None:
            return Proposal.empty(setting, f"{queries:,} queries are too few for Hessians in {setting.dim} dimensions")
        gated = GatedSearch(setting, self.basis, self.rng, self.reserve)
        source, sample = self._improved(gated, source, sample)
        span = sample.span
        note = f"{source.name}: {len(sample.rows)} of width {sample.width}, {describe_drop(span)}"
        if sample.full:
            return Proposal.empty(setting, f"{note}; too many features for this method", resolved=False)
        if span.rank == 0:
            return Proposal.empty(setting, note)
        units = gated.propose(source, sample, note)
        if units is not None:
            return units
        found = members(MatrixSpace(span.basis), self.rng, accept=span.acceptance)
        if len(found.vectors) < self.settings.missed * span.rank:  # the bias of one-sided stencils may hide partners
            units = gated.propose(*gated.centred(source, sample), note)
            if units is not None:
                return units
        note += f"; {len(found.vectors)} rank-one members in {found.rounds} rounds"
        mixed = self._mixed(source, sample, found.vectors)
        if mixed is None:
            return Proposal.empty(setting, note + "; too few queries left to lift them")
        lifted = mixed.lift(sample, found.vectors) if len(found.vectors) else np.empty((0, setting.dim))
        directions, exact = lifted @ self.basis, span
        if isinstance(source, Differences) and not source.centred and len(directions):
            better, exact = without_bias(source, sample, mixed, directions)
            directions = better @ self.basis
        errors = angle_errors(exact, directions @ self.basis.T) if sample.width == setting.dim else np.empty(0)
        # queries may have run out before the span was complete, or it may have rank-one members that are no features
        short = not span.clear and span.rank == len(sample.rows)
        resolved = sample.width < setting.dim or not (short or span.rank > most_apart(setting.dim, 2))
        rank = span.rank if span.clear else None
        complete = resolved and len(directions) == rank and not filled_block(found.vectors, 2, span.drop)
        axes = self._axes_of_quadratic_form(source, sample, found.vectors)
        note += f"; what is left is quadratic, with {len(axes)} axes" * (len(axes) > 0)
        directions = np.concatenate([directions, axes @ self.basis])
        scores = np.concatenate([found.inside, np.ones(len(axes))])
        errors = np.concatenate([errors, np.full(len(directions) - len(errors), np.inf)])
        return Proposal(
            directions,
            scores,
            note,
            resolved=resolved,
            angle_errors=errors,
            rank=rank,
            complete=complete,
            drop=span.drop,
        )

    def _improved(self, gated: GatedSearch, source: Source, sample: DerivativeSample) -> Improved:
        """Return source and sample, with more rows or of centred differences where that is needed and can be paid for.

        In single precision stencils of high order may spend the queries before a rank shows; the reserve follows.
        """
        if is_rounded(self.setting) and sample.span.rank == len(sample.rows):
            gated.use_reserve(source)
            sample = self._sample(source, sample) or sample
        if gated.is_biased(source, sample):
            source, sample = gated.centred(source, sample)
        return self._refined(source, sample)

    def _source(self) -> Source | None:
        """Return the cheapest source of Hessians that noise and kinks allow; None if queries are too few to choose."""
        s, setting, meter = self.settings, self.setting, self.meter
        longest = min(s.longest_step * setting.wave, s.longest_share * setting.edge)
        # under strong noise a longer stencil still measures derivatives, though blurred ones
        noisy = np.sqrt(s.probe_noise * setting.noise / max(setting.std, setting.noise))
        probe = longest * min(1.0, max(s.shortest_probe, noisy))
        count = min(s.probe_points, meter.left // s.probe_share)
        points = in_ball(count, setting.dim, setting.edge - s.centred_longer * longest, self.rng)
        if len(points) < s.least_points:
            return None
        fine = derivative_sizes(meter, setting, points, probe, self.rng)
        if setting.gradient is not None:
            step = fine.gradient_step(setting.noise, longest)
            return Gradients(Meter(setting.gradient, meter.left), self.basis, *step)
        coarse = derivative_sizes(meter, setting, points, longest, self.rng)
        kinked = fine.second < s.kinked * coarse.largest
        h, error = fine.centred_step(setting.noise, s.centred_longer * longest)
        centred = Differences(meter, self.basis, h, True, error)
        best: CentralChoice | None = None
        if is_rounded(setting) and not kinked and error > s.inexact * coarse.second:  # a higher order says more
            best = choose_stencil(meter, setting, self.rng)
        if best is not None:
            centred = replace(centred, step=best.step, error=best.error, order=2 * best.half_width)
        h, error = fine.one_sided_step(setting.noise, longest)
        one_sided = Differences(meter, self.basis, h, False, error, centred)
        if best is not None and self._is_rounded(one_sided, fine) and best.error <= s.one_sided * fine.second:
            return CentralDifferences(meter, self.basis, best.step, best.half_width, best.error)
        if error <= s.one_sided * fine.second and not kinked and not self._is_cheap():
            return one_sided
        if centred.error <= s.centred * fine.second and not kinked:
            return centred
        return Smoothed.of(centred, fine, setting, self.rng)

    def _is_rounded(self, one_sided: Differences, sizes: DerivativeSizes) -> bool:
        """Return whether noise hides weak features of a layer in many dimensions from stencils of low order."""
        s, noise = self.settings, self.setting.noise / one_sided.step**2
        return self.setting.dim > s.narrow_slack * s.narrow and noise > s.rounded * sizes.second

    def _is_cheap(self) -> bool:
        """Return whether the queries would pay for d²/2 features, the most there may be, with centred stencils."""
        d = self.setting.dim
        wanted = d**2 * d * (d + 1) / 2 / self.setting.outputs
        return wanted <= min(self.settings.cheap_share * self.meter.left, self.settings.cheap)

    def _is_blurred(self, sample: DerivativeSample) -> bool:
        """Return whether the Hessians show kinks only, or kinks and noise in every stencil."""
        noisy = sample.error**2 > self.settings.blurred * np.mean(sample.tensors**2)
        return sample.span.rank == 0 or (sample.full and bool(noisy))

    def _sample(self, source: Source, sample: DerivativeSample | None = None) -> DerivativeSample | None:
        """Return Hessians at more and more points, widened as the rank grows, until the singular values drop.

        None if no point could be measured. If queries run out, the sample so far is returned. It may be continued.
        """
        s, d, p = self.settings, self.setting.dim, self.setting.outputs
        width = d if d <= s.narrow_slack * s.narrow else s.narrow
        spare = 0 if width == d else source.ask.left // s.lift_share
        count = max(2, -(-s.first_rows // p))
        if sample is not None:
            width, count = sample.width, len(sample.points) + 1
        while True:
            have = 0 if sample is None else len(sample.points)
            room = (source.ask.left - spare) // source.cost(width)
            if room <= 0 and count > have:
                return sample
            sample = self._with_more(sample, source, width, min(count - have, room))
            if sample is None or len(sample.points) == 0:
                return None
            wanted, stable = self._wanted_width(sample), self._is_stable(sample)
            if wanted > width:
                wider = widened(sample, source, wanted, spare)
                if wider is None:
                    return sample
                sample, width, count = wider, wanted, len(wider.points)
            elif sample.span.rank > s.full * sample.size and len(sample.rows) > sample.size:
                return replace(sample, full=True)
            elif GatedSearch.is_biased(source, sample) or (
                stable and len(sample.points) >= self._fewest_points(sample)
            ):
                return sample
            elif stable:
                count = self._fewest_points(sample)
            else:
                more = max(1, -(-len(sample.points) // (s.often if sample.size < s.heavy else s.seldom)))
                if sample.span.clear:  # the rank is known: add only the rows that average out its errors
                    more = min(more, max(1, -(-self._steady_rows(sample.span) // p) - len(sample.points)))
                count = len(sample.points) + more

    def _steady_rows(self, span: Span) -> int:
        """Return the number of rows that average out the errors of the weakest member of the span."""
        s = self.settings
        return int(np.ceil((s.steady if span.drop > s.steady_drop else s.steadier) * span.rank))

    def _is_stable(self, sample: DerivativeSample) -> bool:
        """Return whether more points would hardly change the rank."""
        s, span, rows, size = self.settings, sample.span, len(sample.rows), sample.size
        if rows < self._steady_rows(span):
            return False
        enough = max(s.enough_small * size, s.enough_rows) if size < s.heavy else s.enough * size
        return (span.clear and (span.drop > s.sharp_drop or rows > s.enough * size)) or rows > enough

    def _fewest_points(self, sample: DerivativeSample) -> int:
        """Return the fewest points that a sample of that rank should have."""
        s = self.settings
        wanted = s.points_per_feature * sample.span.rank / sample.tensors.shape[1]
        return int(np.clip(wanted, s.fewest_points, s.most_points))

    def _wanted_width(self, sample: DerivativeSample) -> int:
        """Return the width to use: 2√n if the rank n is known, 1.4 times the present one if it is still full."""
        s, rank, rows, size = self.settings, sample.span.rank, len(sample.rows), sample.size
        if (sample.span.clear or rows > s.enough * size) and rank <= s.full * size:
            wanted = int(np.ceil(s.width_factor * np.sqrt(rank) - 0.1))  # 0.1: a square number is not rounded up
            return min(self.setting.dim, max(sample.width, wanted))
        if rows > s.independent_rows * size and rank > s.independent_rank * min(rows, size):
            return min(self.setting.dim, int(s.wider * sample.width))
        return sample.width

    def _with_more(
        self, sample: DerivativeSample | None, source: Source, width: int, count: int
    ) -> DerivativeSample | None:
        """Return the sample with Hessians at `count` new random points added."""
        if count <= 0:
            return sample
        points = points_in_shell(self.setting, source.pad, count, self.rng)
        hessians, error = source.hessians(points, width)
        if sample is not None:
            points, hessians = np.concatenate([sample.points, points]), np.concatenate([sample.tensors, hessians])
            error = max(error, sample.error)
        return DerivativeSample.of(points, hessians, error, floor=error)

    def _refined(self, source: Source, sample: DerivativeSample) -> tuple[Source, DerivativeSample]:
        """Return source and sample, replaced by centred differences if a lift follows and queries are plentiful."""
        if not isinstance(source, Differences) or source.finer is None or sample.width == self.setting.dim:
            return source, sample
        fine = source.finer
        dear = len(sample.points) * fine.cost(sample.width) > self.settings.refine_share * source.ask.left
        if dear or sample.full or sample.span.rank == 0:
            return source, sample
        points = shrink_to(sample.points.copy(), self.setting.edge - fine.pad)
        hessians, error = fine.hessians(points, sample.width)
        return fine, DerivativeSample.of(points, hessians, error, floor=error)

    def _mixed(self, source: Source, sample: DerivativeSample, vectors: Floats) -> Mixed | None:
        """Measure the mixed derivatives for a lift, enough for all its unknowns; None if they cannot be paid for."""
        s, (n, width) = self.settings, vectors.shape
        p, places, columns = sample.tensors.shape[1], len(sample.points), np.arange(width, self.setting.dim)
        if n == 0 or not len(columns):
            none = np.empty(0, dtype=np.intp)
            return Mixed(none, none, none, np.empty((0, p, 0, 0)))
        left, bends = bends_of(sample, vectors)
        each = min(width, -(-int(s.oversample * n) // (p * min(s.lift_points, places))))
        unknowns = n + left * each
        count = min(-(-int(s.oversample * unknowns) // (p * each)), places)
        count = min(count, source.ask.left // source.mixed_cost(each, len(columns)))
        if count * each * p < unknowns:
            return None
        chosen, rows = informative_points(bends[:, :, :n], count), np.arange(each)
        return Mixed(chosen, rows, columns, source.mixed(sample.points[chosen], rows, columns))

    def _axes_of_quadratic_form(self, source: Source, sample: DerivativeSample, vectors: Floats) -> Floats:
        """Return the axes (k, d) of the only matrix of the span that no rank-one member explains, if it is one.

        The Hessian of a quadratic form is the same everywhere. The form is known up to squares of the members, and what
        bends alike at all points along directions that are known already is part of it. If one of these matrices has
        no more than half the rank, the form is that one, at the price of squares in known responses. The eigenvectors
        are the fewest directions whose squares add up to it; any others that do are as good. Several forms without
        members, one for each output, may be made of products of two linear forms, which are differences of squares.
        """
        none, span = np.empty((0, self.setting.dim)), sample.span
        if span.clear and span.rank > 1 and not len(vectors) and sample.width == self.setting.dim:
            varied = np.std(sample.tensors, axis=0).max() > _SAME_EVERYWHERE * np.abs(sample.tensors).max()
            return none if varied else axes_of_products(span.basis, 1.0 / span.drop, self.rng)
        if not span.clear or span.rank != len(vectors) + 1:
            return none
        if sample.width == self.setting.dim:
            form = MatrixSpace(span.basis).complement(vectors).basis
        elif not len(vectors) and (wider := widened(sample, source, self.setting.dim, 0)) is not None:
            sample, form = wider, wider.span.basis
        else:
            return none
        if len(form) != 1 or np.std(amount := sample.rows @ form[0]) > _SAME_EVERYWHERE * np.abs(np.mean(amount)):
            return none
        proposed = self.setting.proposed @ self.basis[: sample.width].T
        known = np.concatenate([vectors, proposed]) if len(vectors) else proposed
        return fewest_axes(unpack(form[0]), known, error=1.0 / span.drop)
