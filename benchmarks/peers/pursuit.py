"""`projection-pursuit` from PyPI, told n."""

from __future__ import annotations

import job
from skpp import ProjectionPursuitRegressor


def main() -> None:
    task = job.read()
    settings = task.settings
    rows = settings.pop("rows")
    model = ProjectionPursuitRegressor(r=task.told["features"], random_state=task.told["seed"], **settings)
    model.fit(task.X[:rows], task.Y[:rows])
    task.answer(model._alpha_.T, model.predict(task.T))


if __name__ == "__main__":
    main()
