"""How a contestant is told its task and how it answers: a folder with a few arrays. numpy is all that is needed.

task.json    dim, features (n, told), radius, seconds, seed, apart (below which two units are one, radians), target
             (arguments of `planted`), settings
task.npz     X (m, d) and Y (m,) or (m, p): the answers bought; G (k, d): gradients, where asked for; T (t, d): where
             the contestant is to say what it thinks f is
answer.npz   directions (k, d); values (t,) or (t, p), or empty where the method has no model of f
answer.json  note, and queries where the contestant asked for itself
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Task:
    folder: Path
    told: dict[str, Any]
    X: np.ndarray
    Y: np.ndarray
    G: np.ndarray
    T: np.ndarray
    start: float

    @property
    def passed(self) -> float:
        """Share of the time that is used up."""
        return float((time.process_time() - self.start) / self.told["seconds"])

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.told["settings"])

    def answer(self, directions: np.ndarray, values: np.ndarray | None = None, **more: Any) -> None:
        more["seconds"] = time.process_time() - self.start
        kept = np.empty(0) if values is None else np.asarray(values, dtype=np.float64)
        np.savez(self.folder / "answer.npz", directions=np.asarray(directions, dtype=np.float64), values=kept)
        (self.folder / "answer.json").write_text(json.dumps(more), encoding="utf-8")


def read() -> Task:
    """The task in the folder named on the command line."""
    folder = Path(sys.argv[1])
    told = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    with np.load(folder / "task.npz") as arrays:
        return Task(folder, told, **{name: arrays[name] for name in "XYGT"}, start=time.process_time())


def distinct(directions: np.ndarray, strength: np.ndarray, *, apart: float, least: float = 1e-2) -> np.ndarray:
    """Rows of some strength, none within `apart` radians of a stronger one: a kindness to wide models."""
    kept: list[np.ndarray] = []
    length = np.linalg.norm(directions, axis=1)
    for i in np.argsort(-strength):
        if strength[i] < least * strength.max() or length[i] == 0:
            continue
        v = directions[i] / length[i]
        if all(abs(float(v @ w)) < np.cos(apart) for w in kept):
            kept.append(v)
    return np.array(kept).reshape(-1, directions.shape[1])
