"""The recovery benchmark: standard cases over fresh seeds, and what came back measured against the truth.

The certificate speaks of what an extraction can know from its own queries. Here the truth is known, so each run is
also judged from outside: the angle to every planted direction, and the largest error against the noiseless target
at points that the extraction has never seen.
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

RADIUS, TOLERANCE = 3.0, 1e-2
POINTS = 6000
"""Fresh points of the true error: half of them uniform in the ball, half along the planted directions."""

HEADER = (
    "| case | n/d | seeds | ≤ 1e-2 rad | ≤ 1e-3 rad | false | certified | worst true error | "
    "parameters | queries per parameter: mean, max | seconds: mean, max |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Trial:
    """One case, one seed. Where `error` says something the run raised, and the figures after it are zero."""

    case: str
    seed: int
    seconds: float
    error: str = ""
    """Type and first line of what was raised."""
    within_2: float = 0.0
    """Share of the planted directions found within 1e-2 rad."""
    within_3: float = 0.0
    """The same for 1e-3 rad."""
    false: int = 0
    """Directions found that are near none of the planted ones."""
    met: bool = False
    sup: float = 0.0
    """Largest error against the noiseless target, as a fraction of its standard deviation over the ball."""
    queries: int = 0
    stopped: str = ""

    def __str__(self) -> str:
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
    tell: Callable[[str], None] = print,
    progress: Callable[[str], None] | None = None,
) -> tuple[Trial, ...]:
    """Run every case for `seeds` seeds and `tell` the table, each row as soon as its case is done.

    With `out` the table is kept there as Markdown, and every single run as JSON beside it; both are up to date after
    each case, so that an interrupted benchmark is not lost. `progress` gets a line for each run that ends.
    """
    names = list(CASES) if cases is None else list(cases)
    unknown = [name for name in names if name not in CASES]
    if unknown or not names:
        raise InvalidInput(f"there is no standard case {', '.join(unknown)!r}; choose from {', '.join(CASES)}")
    if seeds < 1:
        raise InvalidInput(f"seeds must be at least 1, not {seeds}")
    if out is not None and out.suffix == ".json":
        raise InvalidInput(f"{out} would be overwritten by the JSON beside the table; end it in .md")
    _refuse_what_no_run_can_use(method, reach)
    trials: list[Trial] = []
    lines = [HEADER]
    tell(HEADER)
    for name in names:
        case = CASES[name]
        done = []
        for seed in range(first_seed, first_seed + seeds):
            done.append(run(case, seed, method=method, reach=reach))
            if progress is not None:
                progress(str(done[-1]))
        trials += done
        new = rows(case, done)
        lines += new
        for line in new:
            tell(line)
        if out is not None:
            keep_table(out, lines, [asdict(t) for t in trials])
    return tuple(trials)


class _Asked(RidgescopeError):
    """The settings were good enough for a first question."""


def _ask_nothing(X: Floats) -> Floats:
    raise _Asked


def _refuse_what_no_run_can_use(method: str | Sequence[str], reach: float | None) -> None:
    """Bad settings are one error before the table begins, not a row for every seed."""
    with suppress(_Asked):
        extract(_ask_nothing, dim=1, radius=RADIUS, tolerance=TOLERANCE, reach=reach, method=method)


def run(case: Case, seed: int, *, method: str | Sequence[str] = "auto", reach: float | None = None) -> Trial:
    """Draw the target of this seed, extract it, and hold the result against the truth."""
    start = time.perf_counter()
    try:
        return _run(case, seed, method, reach)
    except Exception as problem:  # whatever it is, the other runs should still have their turn
        return Trial(case.name, seed, time.perf_counter() - start, error=_first_line(problem))


def _run(case: Case, seed: int, method: str | Sequence[str], reach: float | None) -> Trial:
    target = case.make(seed)
    start = time.perf_counter()
    found = extract(target, dim=target.dim, radius=RADIUS, tolerance=TOLERANCE, reach=reach, method=method, rng=seed)
    seconds = time.perf_counter() - start
    told = match(found.directions, target.directions)
    return Trial(
        case.name,
        seed,
        seconds,
        within_2=told.share(1e-2),
        within_3=told.share(1e-3),
        false=len(told.false),
        met=found.certificate.met,
        sup=true_sup_error(found, target, np.random.default_rng([seed, POINTS])),
        queries=found.queries,
        stopped=found.stopped,
    )


def true_sup_error(found: Extraction, target: Planted, rng: np.random.Generator) -> float:
    """Largest |f − f̂| at fresh points, as a fraction of f's standard deviation over the ball."""
    uniform = in_ball(POINTS // 2, target.dim, RADIUS, rng)
    deviation = np.sqrt(np.mean(np.var(_columns(target.clean(uniform)), axis=0)))
    which = rng.integers(len(target.directions), size=POINTS - len(uniform))
    z = rng.uniform(-RADIUS, RADIUS, len(which))
    X = np.concatenate([uniform, along(target.directions, which, z, RADIUS, rng)])
    return float(np.abs(_columns(target.clean(X)) - _columns(found.predict(X))).max() / deviation)


def rows(case: Case, trials: Sequence[Trial]) -> list[str]:
    """The Markdown row of a case, and one more for each run that raised."""
    good = [t for t in trials if not t.error]
    lines = []
    if good:
        parameters = case.features * (case.dim + 16)
        spent = [t.queries / parameters for t in good]
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
            f"{parameters:,}",
            f"{np.mean(spent):.3g}, {max(spent):.3g}",
            f"{np.mean(seconds):.1f}, {max(seconds):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for t in trials:
        if t.error:
            told = t.error.replace("|", "\\|")
            lines.append(f"| {case.name} | {case.features}/{case.dim} | seed {t.seed} | {told} |" + " |" * 7)
    return lines


def _percent(shares: Iterable[float]) -> str:
    """Rounded down, so that 100 % means all of them."""
    return f"{np.floor(1000.0 * np.mean(list(shares)) + 1e-6) / 10.0:g} %"


def _columns(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def _first_line(problem: Exception) -> str:
    lines = str(problem).splitlines()
    return f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__


def keep_table(out: Path, lines: Sequence[str], runs: Sequence[object]) -> None:
    """The table as Markdown, and what it was made of as JSON beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
    out.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
