"""Test a saved result against its function again, with fresh queries and a new certificate."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np

from .certify import Requirement, certify
from .errors import InvalidInput
from .geometry import random_directions
from .oracle.base import Oracle, as_oracle
from .randomness import Streams
from .result import Extraction
from .stop import StopReason

_MAX_PROBES = 64
"""Largest number of random directions, 2d otherwise, along which the certificate queries beside the features, as in a
run."""


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
    """Test a result against its function again, with fresh queries.

    Parameters
    ----------
    found
        The result, for instance from `rs.load`.
    oracle
        The function, as `rs.extract` takes it; an `Oracle` must have the scale of the result.
    tolerance, confidence
        Tolerance and confidence of the new certificate; by default those of the old one.
    queries
        Number of queries; by default as many as the certificate of a run takes.
    executor
        Any `concurrent.futures.Executor` to call the function with.
    rng
        Seed or Generator of the queries, which differ from those of an extraction with the same seed.

    Returns
    -------
    Extraction
        `found` with a new certificate; `queries`, `queries_by_stage`, `stop` and `stopped` are those of this test.

    Raises
    ------
    InvalidInput
        If the dimension or scale of the oracle is not that of the result, or its reach is less than the radius.

    Examples
    --------
    >>> again = rs.verify(rs.load("out"), f, tolerance=1e-3)
    >>> again.certificate.met
    True
    """
    wrapped = oracle if isinstance(oracle, Oracle) else Oracle(oracle, dim=found.dim, scale=found.scale)
    asked = as_oracle(wrapped, dim=found.dim).fresh(center=found.center, max_queries=queries, executor=executor)
    if not np.array_equal(asked.scale, found.scale):
        raise InvalidInput(
            f"the result has scale {found.scale}, the oracle {asked.scale}: they must agree. Pass the function itself, "
            "or an Oracle with the scale of the result."
        )
    if asked.reach is not None and found.radius > asked.reach:
        raise InvalidInput(
            f"the result has radius {found.radius:g} and the oracle reach={asked.reach:g}: the ball cannot be tested "
            "without asking beyond its reach. Pass an Oracle with a reach of at least the radius, or none."
        )
    old, streams = found.certificate, Streams.of(rng)
    probes = random_directions(min(2 * found.dim, _MAX_PROBES), found.dim, streams("verify", 0))
    lines = np.concatenate([found.directions, probes])
    requirement = Requirement(
        radius=found.radius,
        tolerance=old.tolerance if tolerance is None else tolerance,
        noise=old.noise,
        sigma=old.sigma,
        confidence=old.confidence if confidence is None else confidence,
        std=old.std if np.isfinite(old.std) and old.std > 0 else None,
    )
    test = certify(
        asked,
        lambda U: found.predict(found.center + found.scale * U, outside="extrapolate"),
        lines,
        requirement,
        rng=streams("verify", 1),
        queries=queries,
    )
    certificate = test.certificate
    agree = "agree" if certificate.met else "do not agree"
    return replace(
        found,
        certificate=certificate,
        checks=test.checks.seen_from(lines, found.directions).thinned() if test.checks is not None else None,
        queries=asked.queries,
        queries_by_stage=dict(asked.queries_by_stage),
        stop=StopReason.CERTIFIED if certificate.met else StopReason.TOLERANCE_NOT_MET,
        stopped=f"Verified: {asked.queries:,} fresh queries {agree} with the saved result to the tolerance.",
        diagnosis="" if certificate.met else found.diagnosis,
    )
