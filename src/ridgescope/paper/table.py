"""A response kept as values on a uniform grid: quick to evaluate on many samples, linear between and
beyond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ridgescope.paper.mass import FloatArray, frozen


@dataclass(frozen=True)
class Table:
    """σ on [−reach, reach]: values (k,) at equal steps. Outside, the end slopes go on."""

    reach: float
    values: FloatArray

    @property
    def step(self) -> float:
        return 2 * self.reach / (len(self.values) - 1)

    @property
    def grid(self) -> FloatArray:
        return np.linspace(-self.reach, self.reach, len(self.values))

    def __call__(self, z: ArrayLike) -> FloatArray:
        at = (np.asarray(z, dtype=np.float64) + self.reach) / self.step
        low = np.minimum(np.maximum(at.astype(np.intp), 0), len(self.values) - 2)
        start = self.values[low]
        return np.asarray(start + (at - low) * (self.values[low + 1] - start))

    def plus(self, values: FloatArray) -> Table:
        """The table with `values` (k,) added."""
        return Table(self.reach, frozen(self.values + values))


def zero_table(reach: float, step: float) -> Table:
    return Table(reach, frozen(np.zeros(2 * int(np.ceil(reach / step)) + 1)))
