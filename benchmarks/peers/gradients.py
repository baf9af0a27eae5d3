"""Directions from gradients with scikit-learn: independent components, or a sparse dictionary, told n.

∇f(x) = a + Σ_i s_i'(v_i·x) v_i, so gradients are mixtures of the directions. G holds pairs of gradients at points close
to one another, one after the other; their differences are free of a and sparser, as s_i' changes in few places.
"""

from __future__ import annotations

import warnings

import job
import numpy as np
from sklearn.decomposition import FastICA, MiniBatchDictionaryLearning


def main() -> None:
    warnings.filterwarnings("ignore")
    task = job.read()
    settings = task.settings
    G = task.G[0::2] - task.G[1::2] if settings["differences"] else task.G - task.G.mean(axis=0)
    G = G / np.sqrt(np.mean(np.sum(G * G, axis=1)) / G.shape[1])
    n, seed = task.told["features"], task.told["seed"]
    if settings["method"] == "ica":
        found = FastICA(min(n, G.shape[1]), fun=settings["fun"], max_iter=1000, random_state=seed).fit(G).mixing_.T
    else:
        learner = MiniBatchDictionaryLearning(
            n,
            alpha=settings["alpha"],
            max_iter=200,
            batch_size=256,
            random_state=seed,
            transform_algorithm="lasso_lars",
        )
        found = learner.fit(G).components_
    task.answer(found[np.linalg.norm(found, axis=1) > 0])


if __name__ == "__main__":
    main()
