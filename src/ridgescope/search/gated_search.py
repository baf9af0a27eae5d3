"""The search for gated units among Hessians that were measured for a sum of plain features.

The singular values of the stacked Hessians drop after the rank of all members and partners (`gated`). Where one-sided
stencils were used, their bias blurs that drop, and centred ones are measured anew at the same points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..geometry import Floats, shrink_to
from .base import GatedCandidates, Proposal, Setting, informative_points, points_in_shell
from .bending import is_rounded
from .central import choose_stencil
from .gated import Units, amounts_of, find_units, in_gauge, is_rough, lift_units, may_show_gates
from .hessians import DerivativeSample, Differences

_SHARP_DROP = 5.0  # a drop too large to be caused by errors
_BLURRED_ROWS, _MORE_ROWS = 1.5, 3.0  # rows per rank after which a drop that is not sharp is limited by bias,
_CROWDED = 0.4  # where the rank is more than this share of the dimensions, and elsewhere
_ROWS_PER_RANK, _SPARE_ROWS = 1.3, 12  # of centred Hessians that are measured anew
_ROUGH_ROWS = 1.6  # rows per rank where errors of single precision hide weak members
_HALF_WIDTHS, _CHOICE = (1, 2, 3), 1200  # of the stencils that are then compared, and queries for that
_EQUATIONS, _LIFT_POINTS = 6.0, 12  # equations per unknown of a lift, and points that are to provide them


@dataclass(eq=False)
class GatedSearch:
    """Looks for gated units in one sample of Hessians; a source is one of those of `curvature`."""

    setting: Setting
    basis: Floats
    """(d, d) orthonormal rows; derivatives are taken along the first of them."""
    rng: np.random.Generator
    reserve: int = 0
    """Queries that centred Hessians may take beyond the limit of the source; 0 once they were allowed."""

    def use_reserve(self, source: Any) -> None:
        """Add the reserve to what the source may ask."""
        source.ask.allow(self.reserve)
        self.reserve = 0

    @staticmethod
    def is_biased(source: Any, sample: DerivativeSample) -> bool:
        """Return whether the bias of one-sided stencils, which more rows do not average out, blurs the drop."""
        span, rows = sample.span, len(sample.rows)
        one_sided = isinstance(source, Differences) and source.finer is not None
        needed = _BLURRED_ROWS if span.rank >= _CROWDED * sample.size else _MORE_ROWS  # a rank may still be too large
        return one_sided and span.clear and span.drop <= _SHARP_DROP and rows >= needed * span.rank > 0

    def centred(self, source: Any, sample: DerivativeSample) -> tuple[Any, DerivativeSample]:
        """Return source and sample, of centred differences at the same points if these can be paid for."""
        if not isinstance(source, Differences) or source.finer is None:
            return source, sample
        self.use_reserve(source)
        fine, rank, p = source.finer, sample.span.rank, sample.tensors.shape[1]
        count = min(len(sample.points), -(-int(_ROWS_PER_RANK * rank + _SPARE_ROWS) // p))
        if count * fine.cost(sample.width) > source.ask.left:
            return source, sample
        points = shrink_to(sample.points[:count].copy(), self.setting.edge - fine.pad)
        hessians, error = fine.hessians(points, sample.width)
        better = DerivativeSample.of(points, hessians, error, floor=error)
        return (fine, better) if better.span.clear else (source, sample)

    def _enlarged(self, source: Any, sample: DerivativeSample) -> tuple[Any, DerivativeSample]:
        """Return source and sample, of the best stencil and at more points, where errors hide weak gated units."""
        self.use_reserve(source)
        if not isinstance(source, Differences) or (source.order == 2 and source.ask.left < _CHOICE):
            return source, sample
        rng, drawn = self.rng.spawn(2)
        fine, have = source, len(sample.points)
        if source.order == 2:
            best = choose_stencil(source.ask, self.setting, rng, _HALF_WIDTHS)
            order = 2 * best.half_width
            fine, have = replace(source, step=best.step, error=best.error, order=order, centred=True, finer=None), 0
        p, rank = sample.tensors.shape[1], sample.span.rank
        count = min(-(-int(_ROUGH_ROWS * rank) // p) - have, fine.ask.left // fine.cost(sample.width))
        if count <= 0 or (have + count) * p <= rank:
            return source, sample
        points = points_in_shell(self.setting, fine.pad, count, drawn)
        hessians, error = fine.hessians(points, sample.width)
        if have:
            points, hessians = np.concatenate([sample.points, points]), np.concatenate([sample.tensors, hessians])
        return fine, DerivativeSample.of(points, hessians, error, floor=error)

    def propose(self, source: Any, sample: DerivativeSample, note: str) -> Proposal | None:
        """Return the gated and plain features that make up the span; None if it holds no gated ones."""
        (rng,), rounded = self.rng.spawn(1), is_rounded(self.setting)
        units = find_units(sample.span, rng, single_precision=rounded)
        if units is None and rounded and not sample.span.clear and may_show_gates(sample.span, rng):
            source, sample = self._enlarged(source, sample)
            units = find_units(sample.span, rng, single_precision=True)
        if units is None:
            return None
        fine, finer = self.centred(source, sample)
        fine, finer = self._enlarged(fine, finer) if rounded and is_rough(finer.span) else (fine, finer)
        if finer is not sample:
            better = find_units(finer.span, rng, units, single_precision=rounded)
            if better is None and not rounded:
                return None
            if better is not None:
                source, sample, units = fine, finer, better
        amounts, count = amounts_of(sample, units), len(units.directions)
        lifted = self._lifted_units(source, sample, units, amounts)
        if lifted is None:
            return Proposal.empty(self.setting, note + "; too few queries left to lift gated units")
        units = in_gauge(lifted.directions @ self.basis, lifted.carriers @ self.basis)
        own = amounts[:, :, :count].copy()
        own[:, :, units.gated] = amounts[:, :, count:]
        note += f"; {int(units.gated.sum())} gated units and {count - int(units.gated.sum())} plain features"
        return Proposal(
            units.directions,
            np.ones(count),
            note,
            rank=units.rank,
            complete=True,
            drop=sample.span.drop,
            gated=GatedCandidates(units.directions, units.carriers, sample.points, own),
        )

    def _lifted_units(self, source: Any, sample: DerivativeSample, units: Units, amounts: Floats) -> Units | None:
        """Return the units in all d coordinates of the basis; None if the derivatives for that cannot be paid for."""
        width, p = sample.width, sample.tensors.shape[1]
        columns = np.arange(width, self.setting.dim)
        if not len(columns):
            return units
        each = min(width, -(-int(_EQUATIONS * units.rank) // (p * min(_LIFT_POINTS, len(sample.points)))))
        count = min(-(-int(_EQUATIONS * units.rank) // (p * each)), len(sample.points))
        count = min(count, source.ask.left // source.mixed_cost(each, len(columns)))
        if count * each * p < units.rank:
            return None
        chosen = informative_points(amounts, count)
        values = source.mixed(sample.points[chosen], np.arange(each), columns)
        whole = np.isfinite(values).all(axis=(1, 2, 3))
        return lift_units(units, amounts[chosen][whole], each, values[whole])
