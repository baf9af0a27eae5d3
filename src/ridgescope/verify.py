"""A saved result against its function again: fresh queries, a fresh certificate."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np

from .certify import certify
from .errors import InvalidInput
from .geometry import random_directions
from .oracle.base import Oracle, as_oracle
from .randomness import Streams
from .result import Checks, Extraction
from .stop import StopReason


def verify(
    found: Extraction,
    oracle: Callable[[Any], Any] | Oracle,
    *,
    tolerance: float | None = None,
    confidence: float | None = None,
    queries: int | None = None,
    executor: Executor | None = None,
    rng: int | np.random.Generator = 1,
) -> Extraction:
    """`found` with a new certificate, from queries that no run of the same seed has asked.

    `tolerance` and `confidence` are those of the old certificate unless given, `queries` the default of a
    certificate. `queries` and `queries_by_stage` of what comes back count the new questions only.
    """
    given = oracle if isinstance(oracle, Oracle) else Oracle(oracle, dim=found.dim, scale=found.scale)
    asked = as_oracle(given, dim=found.dim).fresh(
        center=found.center, reach=None, max_queries=queries, executor=executor
    )
    if not np.array_equal(asked.scale, found.scale):
        raise InvalidInput(f"the result has scale {found.scale}, the oracle {asked.scale}: they must agree")
    old, streams = found.certificate, Streams.of(rng)
    probes = random_directions(min(2 * found.dim, 64), found.dim, streams("verify", 0))
    lines = np.concatenate([found.directions, probes])
    kept: list[Checks] = []
    certificate = certify(
        asked,
        lambda U: found.predict(found.center + found.scale * U),
        lines,
        radius=found.radius,
        tolerance=old.tolerance if tolerance is None else tolerance,
        noise=old.noise,
        confidence=old.confidence if confidence is None else confidence,
        scale=old.std if np.isfinite(old.std) and old.std > 0 else None,
        rng=streams("verify", 1),
        queries=queries,
        keep=kept.append,
    )
    verdict = "agree" if certificate.met else "do not agree"
    return replace(
        found,
        certificate=certificate,
        checks=kept[0].seen_from(lines, found.directions).thinned() if kept else None,
        queries=asked.queries,
        queries_by_stage=dict(asked.queries_by_stage),
        stop=StopReason.CERTIFIED if certificate.met else StopReason.TOLERANCE_NOT_MET,
        stopped=f"Verified: {asked.queries:,} fresh queries {verdict} with the saved result to the tolerance.",
        diagnosis="" if certificate.met else found.diagnosis,
    )
