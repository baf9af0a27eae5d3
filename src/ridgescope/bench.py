"""The recovery benchmark: standard cases over fresh seeds, with the results compared with the truth.

A certificate rests on the queries of its own extraction. Here the truth is known, so each run is also evaluated
independently: by the angle to every planted direction, and by the largest error against the noiseless target at points
that the extraction has not used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from .errors import InvalidInput, RidgescopeError
from .extract import extract
from .geometry import Floats, along, in_ball
from .match import match
from .result import Extraction
from .targets import CASES, Case, Planted
from .targets.planted import parameters

RADIUS, TOLERANCE = 3.0, 1e-2
"""Radius of the ball and tolerance of every extraction: the defaults of `extract`."""
POINTS = 6000
"""Number of fresh points of the true error: half of them uniform in the ball, half along the planted directions."""
COARSE, FINE = 1e-2, 1e-3
"""Angles, in radians, within which a planted direction counts as found."""

HEADER = (
    "| case | n/d | seeds | ≤ 1e-2 rad | ≤ 1e-3 rad | false | certified | worst true error | "
    "parameters | queries per parameter: mean, max | seconds: mean, max |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
"""First two lines of the Markdown table."""


@dataclass(frozen=True)
class Trial:
    """One case with one seed. If `error` is not empty the run raised, and the fields after it have their defaults."""

    case: str
    """Name of the case."""
    seed: int
    """Seed of the target and of the extraction."""
    seconds: float
    """Wall-clock time of the extraction."""
    error: str = ""
    """Type and first line of the exception; empty if there was none."""
    within_2: float = 0.0
    """Share of the planted directions found within 1e-2 rad."""
    within_3: float = 0.0
    """Share of the planted directions found within 1e-3 rad."""
    false: int = 0
    """Number of found directions that are near none of the planted ones."""
    met: bool = False
    """Whether the certificate is met."""
    sup: float = 0.0
    """Largest error against the noiseless target, as a fraction of its standard deviation over the ball."""
    queries: int = 0
    """Number of queries."""
    stopped: str = ""
    """Why the run ended, as a sentence."""

    def __str__(self) -> str:
        """Return the line that reports the progress of a benchmark."""
        ended = self.error or f"{self.queries:,} queries. {self.stopped}"
        return f"{self.case}, seed {self.seed}: {self.seconds:.1f} s, {ended}"


def recovery(
    cases: Sequence[str] | None = None,
    *,
    seeds: int = 3,
    first_seed: int = 1000,
    method: str | Sequence[str] = "auto",
    reach: float | None = None,
    out: Path | None = None,
    write: Callable[[str], None] = print,
    progress: Callable[[str], None] | None = None,
) -> tuple[Trial, ...]:
    """Extract every case for several seeds and write a Markdown table, each row as soon as its case is finished.

    Parameters
    ----------
    cases
        Names in `targets.CASES`; by default all of them.
    seeds, first_seed
        Number of seeds of each case, and the first of them.
    method, reach
        As for `extract`.
    out
        File for the table; every run is also saved as JSON beside it. Both are rewritten after each case, so that an
        interrupted benchmark keeps the finished cases.
    write
        Receives the header and each row.
    progress
        Receives a line for each finished run.

    Returns
    -------
    tuple of Trial
        Every run, in order.

    Raises
    ------
    InvalidInput
        If a case is unknown, or the settings cannot be used.

    Examples
    --------
    >>> from ridgescope.bench import recovery
    >>> trials = recovery(["first"], seeds=1, write=lambda line: None)
    >>> trials[0].met, trials[0].within_2
    (True, 1.0)
    """
    names = list(CASES) if cases is None else list(cases)
    unknown = [name for name in names if name not in CASES]
    if unknown or not names:
        raise InvalidInput(f"there is no standard case {', '.join(unknown)!r}; choose from {', '.join(CASES)}")
    if seeds < 1:
        raise InvalidInput(f"seeds must be at least 1, not {seeds}")
    if out is not None and out.suffix == ".json":
        raise InvalidInput(f"{out} would be overwritten by the JSON beside the table; end it in .md")
    _check_settings(method, reach)
    trials: list[Trial] = []
    lines = [HEADER]
    write(HEADER)
    for name in names:
        case = CASES[name]
        finished = []
        for seed in range(first_seed, first_seed + seeds):
            finished.append(run(case, seed, method=method, reach=reach))
            if progress is not None:
                progress(str(finished[-1]))
        trials += finished
        new = rows(case, finished)
        lines += new
        for line in new:
            write(line)
        if out is not None:
            keep_table(out, lines, [asdict(t) for t in trials])
    return tuple(trials)


class _Queried(RidgescopeError):
    """Raised by the first query, which shows that the settings were accepted."""


def _raise_at_first_query(X: Floats) -> Floats:
    """Raise `_Queried` instead of answering."""
    raise _Queried


def _check_settings(method: str | Sequence[str], reach: float | None) -> None:
    """Raise InvalidInput for settings that no run can use, once before the table rather than for every seed."""
    with suppress(_Queried):
        extract(_raise_at_first_query, dim=1, radius=RADIUS, tolerance=TOLERANCE, reach=reach, method=method)


def run(case: Case, seed: int, *, method: str | Sequence[str] = "auto", reach: float | None = None) -> Trial:
    """Draw the target of this seed, extract it, and compare the result with the truth; an exception becomes a Trial."""
    start = time.perf_counter()
    try:
        return _run(case, seed, method, reach)
    except Exception as problem:  # of any kind: the other runs must continue
        return Trial(case.name, seed, time.perf_counter() - start, error=_first_line(problem))


def _run(case: Case, seed: int, method: str | Sequence[str], reach: float | None) -> Trial:
    """Return the Trial of a run; exceptions are passed on."""
    target = case.make(seed)
    start = time.perf_counter()
    found = extract(target, dim=target.dim, radius=RADIUS, tolerance=TOLERANCE, reach=reach, method=method, rng=seed)
    seconds = time.perf_counter() - start
    matched = match(found.directions, target.directions)
    return Trial(
        case.name,
        seed,
        seconds,
        within_2=matched.share(COARSE),
        within_3=matched.share(FINE),
        false=len(matched.false),
        met=found.certificate.met,
        sup=true_sup_error(found, target, np.random.default_rng([seed, POINTS])),
        queries=found.queries,
        stopped=found.stopped,
    )


def true_sup_error(found: Extraction, target: Planted, rng: np.random.Generator) -> float:
    """Return the largest |f − f̂| at fresh points, as a fraction of f's standard deviation over the ball."""
    uniform = in_ball(POINTS // 2, target.dim, RADIUS, rng)
    deviation = np.sqrt(np.mean(np.var(_columns(target.clean(uniform)), axis=0)))
    which = rng.integers(len(target.directions), size=POINTS - len(uniform))
    z = rng.uniform(-RADIUS, RADIUS, len(which))
    X = np.concatenate([uniform, along(target.directions, which, z, RADIUS, rng)])
    return float(np.abs(_columns(target.clean(X)) - _columns(found.predict(X))).max() / deviation)


def rows(case: Case, trials: Sequence[Trial]) -> list[str]:
    """Return the Markdown row of a case, and one more for each run that raised."""
    good = [t for t in trials if not t.error]
    lines = []
    if good:
        size = parameters(case.features, case.dim)
        per_parameter = [t.queries / size for t in good]
        seconds = [t.seconds for t in good]
        cells = [
            case.name,
            f"{case.features}/{case.dim}",
            str(len(good)),
            _percent(t.within_2 for t in good),
            _percent(t.within_3 for t in good),
            str(sum(t.false for t in good)),
            f"{sum(t.met for t in good)} of {len(good)}",
            f"{max(t.sup for t in good):.1e}",
            f"{size:,}",
            f"{np.mean(per_parameter):.3g}, {max(per_parameter):.3g}",
            f"{np.mean(seconds):.1f}, {max(seconds):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for t in trials:
        if t.error:
            error = t.error.replace("|", "\\|")
            lines.append(f"| {case.name} | {case.features}/{case.dim} | seed {t.seed} | {error} |" + " |" * 7)
    return lines


def _percent(shares: Iterable[float]) -> str:
    """Return the mean as a percentage, rounded down to a tenth, so that 100 % means all of them."""
    return f"{np.floor(1000.0 * np.mean(list(shares)) + 1e-6) / 10.0:g} %"


def _columns(values: Floats) -> Floats:
    """Return values (m,) as (m, 1), and (m, p) as they are."""
    return values.reshape(len(values), -1)


def _first_line(problem: Exception) -> str:
    """Return the type of an exception and the first line of its message."""
    lines = str(problem).splitlines()
    return f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__


def keep_table(out: Path, lines: Sequence[str], runs: Sequence[object]) -> None:
    """Write a table as Markdown to `out`, and the runs that it was made from as JSON beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
    out.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
