"""The user's own rows: the ball that holds them, and the errors of a model on them.

The ball of `data` has the mean of the rows as its centre, and as its radius the distance within which 99 % of them lie,
in the coordinates u = (x − center)/scale. The scale is the oracle's own, 1 for all coordinates unless it was given: a
ball in f's own coordinates, so that directions are those of f's own weights. Rows whose coordinates come in different
units want an `Oracle` with a scale, such as their standard deviations. The rows take no part in search and fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from .certificate import DataCheck
from .errors import FileProblem, InvalidInput
from .geometry import Floats
from .oracle.base import Oracle

if TYPE_CHECKING:
    from .result import Extraction

HELD = 0.99
"""Share of the rows that the ball holds."""
LEAST_ROWS = 10
"""Fewer rows say too little about where f is used."""
MOST_CHECKED = 1000
"""Rows of `data` on which the model is checked at the end of a run."""
DEFAULT_RADIUS = 3.0
"""Radius of the ball where neither the user, nor data, nor the oracle gives one."""
_ROUNDING = 1e-9  # relative: a row on the surface of the ball is inside


@dataclass(frozen=True, eq=False)
class Domain:
    """Where f is to be recovered, and the user's rows, if any."""

    radius: float
    center: ArrayLike | None
    """None: the oracle's own."""
    rows: Floats | None = None


def rows_of(data: ArrayLike, dim: int | None = None) -> Floats:
    """Return data as an (m, d) array; raise `InvalidInput` if it is none of finite numbers."""
    try:
        X = np.asarray(data, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput("data must be an (m, d) array of numbers, one row for each input of f") from None
    if X.ndim != 2 or len(X) < LEAST_ROWS or not X.shape[1]:
        raise InvalidInput(f"data must be an (m, d) array of at least {LEAST_ROWS} rows; got shape {X.shape}")
    if dim is not None and X.shape[1] != dim:
        raise InvalidInput(f"data has {X.shape[1]} columns, and f takes {dim} inputs; pass rows of f's own inputs")
    if not np.isfinite(X).all():
        raise InvalidInput("data holds a NaN or an infinity; leave such rows out")
    return X


def choose_domain(
    oracle: Oracle, radius: float | None, center: ArrayLike | None, data: ArrayLike | None = None
) -> Domain:
    """Return the ball: as given, else as the rows of `data` want it, else as the oracle does, else of radius 3.

    An oracle that has a natural radius, beyond which there is no f, keeps its centre, and the ball stays within it.
    """
    natural = oracle.natural_radius
    if natural is not None and center is not None:
        raise InvalidInput(f"this oracle has its ball about its own centre, of radius {natural:.3g}; leave center out")
    if data is None:
        chosen = natural if natural is not None else DEFAULT_RADIUS
        return Domain(chosen if radius is None else radius, center)
    rows = rows_of(data, oracle.dim)
    if center is None and natural is None:
        center = rows.mean(axis=0)
    if radius is None:
        about = oracle.center if center is None else np.broadcast_to(np.asarray(center, np.float64), (oracle.dim,))
        far = np.linalg.norm((rows - about) / oracle.scale, axis=1)
        radius = float(np.quantile(far, HELD, method="higher")) * (1.0 + _ROUNDING)
        if not radius > 0.0:
            raise InvalidInput("all rows of data are the same, so that they span no ball; pass radius=…")
        radius = min(radius, natural) if natural is not None else radius
    return Domain(radius, center, rows)


def held_out_rows(rows: Floats, oracle: Oracle, rng: np.random.Generator) -> Floats:
    """Return rows to check a model on: at most 1,000, within the oracle's reach, and no more than its budget allows."""
    if oracle.reach is not None:
        rows = rows[np.linalg.norm((rows - oracle.center) / oracle.scale, axis=1) <= oracle.reach]
    count = int(min(len(rows), MOST_CHECKED, oracle.remaining))
    return rows[np.sort(rng.permutation(len(rows))[:count])]


def unlimited(oracle: Oracle) -> Oracle:
    """Return a copy that a result keeps for `check`: without a budget, and without workers, which may be gone."""
    kept = oracle.fresh()
    kept.max_queries, kept.executor, kept.ledger = None, None, None
    return kept


def check_rows(
    found: Extraction, X: Floats, Y: ArrayLike | None = None, oracle: Callable[[Any], Any] | Oracle | None = None
) -> DataCheck:
    """Return the errors of a result on rows X (m, d) with answers Y, or else with those of the function."""
    p = found.outputs or 1
    if Y is not None:
        answers = np.asarray(Y, dtype=np.float64)
        if answers.size != len(X) * p or answers.shape[:1] != X.shape[:1] or not np.isfinite(answers).all():
            raise InvalidInput(f"Y must hold finite answers of shape ({len(X)}, {p}); got shape {answers.shape}")
        answers = answers.reshape(len(X), p)
    else:
        answers = ask_rows(oracle if oracle is not None else found.oracle, X, found)
    there = np.isfinite(answers).all(axis=1)
    X, answers = X[there], answers[there]
    model = found.predict(X, outside="extrapolate").reshape(answers.shape)
    gaps = answers - model
    errors = np.abs(gaps).max(axis=1, initial=0.0)
    inside = np.linalg.norm((X - found.center) / found.scale, axis=1) <= found.radius * (1.0 + _ROUNDING)
    allowed = found.certificate.tolerance * found.certificate.std + found.certificate.noise
    return DataCheck(
        rows=len(X),
        inside=int(inside.sum()),
        rms=float(np.sqrt(np.mean(gaps**2))) if len(X) else 0.0,
        sup=float(errors.max(initial=0.0)),
        sup_inside=float(errors[inside].max(initial=0.0)),
        std=float(np.sqrt(np.mean(np.var(answers, axis=0)))) if len(X) else 0.0,
        tolerance=allowed,
        within=float(np.mean(errors <= allowed)) if len(X) else 0.0,
    )


def ask_rows(oracle: Callable[[Any], Any] | Oracle | None, X: Floats, found: Extraction) -> Floats:
    """Return the function's answers (m, p) at rows X (m, d) in its own coordinates."""
    if oracle is None:
        raise InvalidInput(
            "this result does not know its function any more, as results that were loaded do not; pass the answers, "
            "check(X, Y), or the function, check(X, oracle=f)"
        )
    asked = oracle if isinstance(oracle, Oracle) else Oracle(oracle, dim=found.dim)
    U = (X - asked.center) / asked.scale
    far = float(np.linalg.norm(U, axis=1).max(initial=0.0))
    if asked.reach is not None and far > asked.reach:
        raise InvalidInput(
            f"a row lies at distance {far:.3g} from the centre, and the function may be asked up to "
            f"reach={asked.reach:g}; leave such rows out"
        )
    answers = asked(U, stage="data")
    if answers.shape[1] != (found.outputs or 1):
        raise InvalidInput(f"the function has {answers.shape[1]} outputs, the result {found.outputs or 1}")
    return answers


def read_rows(path: Path) -> Floats:
    """Return the rows of a .npy file, or of a text file with commas, whose first line may hold names."""
    try:
        if path.suffix.lower() == ".npy":
            return rows_of(np.load(path, allow_pickle=False))
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
        skip = 1 if rows and not all(_is_number(cell) for cell in rows[0]) else 0
        return rows_of([[float(cell) for cell in row] for row in rows[skip:]])
    except OSError as problem:
        raise FileProblem(f"cannot read {path}: {problem.strerror or problem}") from problem
    except InvalidInput as problem:
        raise FileProblem(f"{path}: {problem}") from problem
    except (ValueError, EOFError) as problem:
        raise FileProblem(f"{path} is neither a .npy file of numbers nor a table with commas ({problem})") from problem


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
