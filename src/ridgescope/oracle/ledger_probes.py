"""Re-asking a few rows of stored blocks: a function that differs from the ledger's in part of the space is noticed.

The ledger has digests of what was asked, not the rows. But when a resumed run asks for a stored block its rows are at
hand. Some blocks are chosen when a ledger is opened, and when one of them is first served, two of its rows are asked
again. Blocks and rows are drawn afresh each time, so that what one run overlooks the next may find: if a share q of
the stored rows has changed, n rows overlook it with probability (1 − q)ⁿ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from ..geometry import Floats
from .segments import NOISE_ALLOWANCE, FingerprintMismatch, Key, Raw, real_answer

_BLOCKS, _ROWS = 16, 2
"""Blocks that are probed, and rows of each: 32 rows overlook a change of a tenth of them with probability 0.034."""
_REPEATS = 8
"""How often suspicious rows are asked again for an estimate of the noise: ten times the range of eight answers is
exceeded by chance with no probability to speak of."""


class Probes:
    """The blocks, of those in `keys`, some of whose rows are to be asked again."""

    def __init__(self, keys: Collection[Key]) -> None:
        self._rng = np.random.default_rng()  # not the run's: its questions must not depend on the ledger
        known = sorted(keys)
        picked = self._rng.choice(len(known), size=min(_BLOCKS, len(known)), replace=False)
        self._waiting = {known[i] for i in picked}
        self._noise = 0.0
        """Largest difference between answers to the same row that was seen so far."""

    def check(self, key: Key, X: Floats, stored: Raw, function: Callable[[Floats], Any]) -> int:
        """Compare a block's stored answers with the function, if it was chosen; return the number of rows asked.

        Raises `FingerprintMismatch` where neither rounding nor noise explains the difference.
        """
        if key not in self._waiting:
            return 0
        self._waiting.discard(key)
        some = self._rng.choice(len(X), size=min(_ROWS, len(X)), replace=False)
        rows, before = X[some], stored[some].astype(np.float64)
        now = self._ask(function, rows, before.shape)
        size = float(np.abs(stored).max(initial=0.0, where=np.isfinite(stored)))
        eps = float(np.finfo(stored.dtype if stored.dtype.kind == "f" else np.float64).eps)
        if _agree(before, now, NOISE_ALLOWANCE * self._noise + np.sqrt(eps) * size):
            return len(rows)
        more = np.stack([now, *(self._ask(function, rows, before.shape) for _ in range(_REPEATS))])
        with np.errstate(invalid="ignore", over="ignore"):
            spread = more.max(axis=0) - more.min(axis=0)
        self._noise = max(self._noise, float(spread.max(initial=0.0, where=np.isfinite(spread))))
        if not _agree(before, now, NOISE_ALLOWANCE * self._noise + np.sqrt(eps) * size):
            raise FingerprintMismatch(
                "holds the answers of another function, which agrees with this one in places only: of "
                f"{rows.tolist()} it has {before.tolist()}, this one answers {now.tolist()}"
            )
        return len(rows) * (1 + _REPEATS)

    def _ask(self, function: Callable[[Floats], Any], rows: Floats, shape: tuple[int, ...]) -> Floats:
        """Return the function's answers, which must have the stored ones' shape."""
        answer = real_answer(function, rows)
        if answer.shape != shape:
            raise FingerprintMismatch(
                f"holds the answers of another function: it answers with shape {shape}, this one with {answer.shape}"
            )
        return answer.astype(np.float64)


def _agree(before: Floats, now: Floats, allowance: float) -> bool:
    """Return whether answers differ by at most `allowance`, or are not finite in the same places."""
    with np.errstate(invalid="ignore", over="ignore"):
        same = (np.abs(now - before) <= allowance) | ~(np.isfinite(now) | np.isfinite(before))
    return bool(same.all())
