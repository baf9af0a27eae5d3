"""Toy models of superposition: an autoencoder keeps more features than it has dimensions; find them by asking.

The toy model of Elhage et al. (2022), "Toy Models of Superposition", Transformer Circuits Thread
(https://transformer-circuits.pub/2022/toy_model/): n features x_i, each zero with probability S and otherwise
uniform in [0, 1], are squeezed through d < n hidden dimensions and read out again,

    h = W x,        x̂ = relu(Wᵀh + b),        loss = mean |x − x̂|².

For sparse x the columns w_i of W arrange themselves as a regular figure: antipodal pairs, a pentagon. Seen from the
hidden space, the read-out is a sum of n features, relu(w_i·h + b_i). The black box here answers with one number, the
sum of x̂ over all features, so that nothing but the directions in h can tell them apart. Its features are extracted from
queries; a sparse autoencoder learns its dictionary from activations h of the same model; and both are compared with the
columns of W. Everything is numpy. Run: python examples/toy_superposition.py --figure docs/superposition.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ridgescope as rs

PENALTIES = (0.1, 0.3)
CASES = (("antipodal pairs", 4, 2, 0.8), ("pentagon", 5, 2, 0.95), ("20 in 5", 20, 5, 0.97))

Parameters = dict[str, np.ndarray]
Gradient = Callable[[Parameters, int], Parameters]


def adam(w: Parameters, gradient: Gradient, *, steps: int, rate: float) -> Parameters:
    """Kingma and Ba's method, in place; the rate falls to nothing along half a cosine."""
    first, second = ({k: np.zeros_like(v) for k, v in w.items()} for _ in range(2))
    for t in range(1, steps + 1):
        g = gradient(w, t)
        now = 0.5 * rate * (1 + np.cos(np.pi * t / steps))
        for k in w:
            first[k] += 0.1 * (g[k] - first[k])
            second[k] += 0.001 * (g[k] ** 2 - second[k])
            w[k] -= now * (first[k] / (1 - 0.9**t)) / (np.sqrt(second[k] / (1 - 0.999**t)) + 1e-8)
    return w


def sparse(rows: int, n: int, zero: float, rng: np.random.Generator) -> np.ndarray:
    """(rows, n) features, each zero with probability `zero` and otherwise uniform in [0, 1]."""
    return rng.random((rows, n)) * (rng.random((rows, n)) >= zero)


def toy_model(n: int, d: int, zero: float, *, steps: int, rng: np.random.Generator) -> Parameters:
    """W (d, n) and b (n,) of the trained autoencoder."""

    def gradient(w: Parameters, t: int) -> Parameters:
        x = sparse(1024, n, zero, rng)
        h = x @ w["W"].T
        before = h @ w["W"] + w["b"]
        g = 2 * (np.maximum(before, 0) - x) * (before > 0) / len(x)
        return {"W": h.T @ g + (x.T @ (g @ w["W"].T)).T, "b": g.sum(axis=0)}

    start = {"W": rng.standard_normal((d, n)) / np.sqrt(n), "b": np.zeros(n)}
    return adam(start, gradient, steps=steps, rate=1e-2)


def sparse_autoencoder(H: np.ndarray, size: int, penalty: float, *, steps: int, rng: np.random.Generator) -> np.ndarray:
    """(size, d) unit rows: the dictionary of a sparse autoencoder of activations H (m, d).

        z = relu((h − m) Eᵀ + e),      ĥ = m + z D,      loss = mean |h − ĥ|² + penalty · mean |z|₁,      |D_k| = 1

    Rows of D are kept at unit length by dividing by it, which the gradient takes into account.
    """

    def gradient(w: Parameters, t: int) -> Parameters:
        h = H[rng.integers(len(H), size=512)]
        length = np.linalg.norm(w["D"], axis=1, keepdims=True)
        unit = w["D"] / length
        centred = h - w["m"]
        before = centred @ w["E"].T + w["e"]
        z = np.maximum(before, 0)
        g_out = 2 * (z @ unit - centred) / len(h)
        g_before = (g_out @ unit.T + penalty / len(h)) * (before > 0)
        g_unit = z.T @ g_out
        return {
            "D": (g_unit - unit * (g_unit * unit).sum(axis=1, keepdims=True)) / length,
            "E": g_before.T @ centred,
            "e": g_before.sum(axis=0),
            "m": g_out.sum(axis=0) - (g_before @ w["E"]).sum(axis=0),
        }

    D = rng.standard_normal((size, H.shape[1]))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    start = {"D": D, "E": D.copy(), "e": np.zeros(size), "m": np.zeros(H.shape[1])}
    w = adam(start, gradient, steps=steps, rate=3e-3)
    return w["D"] / np.linalg.norm(w["D"], axis=1, keepdims=True)


def mean_max_cosine(truth: np.ndarray, found: np.ndarray) -> float:
    """The mean over true directions of the largest cosine with any that was found; rows point, signs count."""
    unit = truth / np.linalg.norm(truth, axis=1, keepdims=True)
    return float((unit @ found.T).max(axis=1).mean()) if len(found) else 0.0


def pointed(found: rs.Extraction) -> np.ndarray:
    """The features as arrows: one for each kink, towards the side on which it lies.

    A sum of relus tells lines apart, not arrows: relu(z) and relu(−z) differ by a straight line. But where b < 0 a
    feature is off until w·h exceeds −b, so its kink lies on its own side of the origin. An antipodal pair is one line
    with a kink on either side, whatever the sign of b: two arrows.
    """
    return np.array([np.sign(t) * f.direction for f in found.features for t in f.response.kinks]).reshape(-1, found.dim)


@dataclass(frozen=True)
class ToyRun:
    """One toy model, what was recovered from queries, and what the dictionary learned."""

    figure: str
    W: np.ndarray
    """(n, d) rows: where the autoencoder puts its features."""
    found: rs.Extraction
    arrows: np.ndarray
    """(k, d) recovered features, with their signs."""
    dictionaries: dict[int, np.ndarray]
    """(size, d) of the sparse autoencoders with n and 2n units that agree best with W."""

    @property
    def angle(self) -> float:
        """Largest angle, in radians, between a feature of the model and the arrow nearest to it."""
        unit = self.W / np.linalg.norm(self.W, axis=1, keepdims=True)
        nearest = self.arrows[(unit @ self.arrows.T).argmax(axis=1)]
        return float((2 * np.arcsin(np.minimum(np.linalg.norm(unit - nearest, axis=1) / 2, 1))).max())


def corners(arrows: np.ndarray) -> np.ndarray:
    """The angles in degrees from each arrow of the plane to the next, anticlockwise."""
    around = np.sort(np.degrees(np.arctan2(arrows[:, 1], arrows[:, 0])))
    return np.diff(around, append=around[0] + 360)


def run(figure: str, n: int, d: int, zero: float, *, seed: int = 0, steps: int = 4000, sae_steps: int = 4000) -> ToyRun:
    """Train the toy model, ask it, train a dictionary on its activations."""
    rng = np.random.default_rng(seed)
    w = toy_model(n, d, zero, steps=steps, rng=rng)
    W, b = w["W"], w["b"]
    found = rs.extract(lambda h: np.maximum(h @ W + b, 0).sum(axis=1), dim=d, radius=1.5, tolerance=1e-3, rng=seed)
    x = sparse(50_000, n, zero, rng)
    H = x[x.any(axis=1)] @ W.T
    dictionaries = {}
    for size in (n, 2 * n):
        tried = [sparse_autoencoder(H, size, p, steps=sae_steps, rng=rng) for p in PENALTIES]
        dictionaries[size] = max(tried, key=lambda D: mean_max_cosine(W.T, D))
    return ToyRun(figure, W.T, found, pointed(found), dictionaries)


def table(runs: list[ToyRun]) -> str:
    """What came of it, as a Markdown table; MMCS is the mean max cosine similarity."""
    lines = [
        "| model | n/d | features found | queries | largest angle to W, rad | MMCS | SAE of n: MMCS | of 2n |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for t in runs:
        n, d = t.W.shape
        lines.append(
            f"| {t.figure} | {n}/{d} | {len(t.arrows)} | {t.found.queries:,} | {t.angle:.1e} "
            f"| {mean_max_cosine(t.W, t.arrows):.4f} "
            f"| {mean_max_cosine(t.W, t.dictionaries[n]):.4f} | {mean_max_cosine(t.W, t.dictionaries[2 * n]):.4f} |"
        )
    return "\n".join(lines)


SIZE = 340
GREY, RED, BLUE = "#9aa5b1", "#c0392b", "#1f4e79"


def picture(planar: list[ToyRun]) -> str:
    """One panel for each model with two hidden dimensions: its features, the recovered ones, the dictionary's."""
    width, height = SIZE * len(planar), SIZE + 50
    keys = ((GREY, "the autoencoder's features"), (RED, "recovered by asking"), (BLUE, "a sparse autoencoder of n"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *(line for i, toy in enumerate(planar) for line in _panel(toy, SIZE * (i + 0.5), SIZE / 2 + 20)),
            *(
                f'<text x="{12 + i * width / 3:.0f}" y="{height - 10}" fill="{ink}">&#9644; {text}</text>'
                for i, (ink, text) in enumerate(keys)
            ),
            "</svg>",
            "",
        ]
    )


def _panel(toy: ToyRun, x: float, y: float) -> list[str]:
    """Spokes around (x, y): thick for W, thin for what was found, dots at the rim for the dictionary."""
    rim = 0.36 * SIZE
    unit = toy.W / np.linalg.norm(toy.W, axis=1, keepdims=True)

    def spoke(v: np.ndarray, reach: float, ink: str, thick: float) -> str:
        return (
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + reach * v[0]:.1f}" y2="{y - reach * v[1]:.1f}" '
            f'stroke="{ink}" stroke-width="{thick}" stroke-linecap="round"/>'
        )

    def label(v: np.ndarray, gap: float) -> str:
        turn = np.radians(gap / 2)
        at = np.array([v[0] * np.cos(turn) - v[1] * np.sin(turn), v[0] * np.sin(turn) + v[1] * np.cos(turn)])
        place = f'x="{x + 0.55 * rim * at[0]:.1f}" y="{y - 0.55 * rim * at[1] + 4:.1f}"'
        return f'<text {place} text-anchor="middle" fill="#444">{gap:.1f}°</text>'

    around = toy.arrows[np.argsort(np.arctan2(toy.arrows[:, 1], toy.arrows[:, 0]))]
    return [
        f'<text x="{x:.1f}" y="22" text-anchor="middle" font-size="15">{toy.figure}: {len(unit)} features, '
        "2 dimensions</text>",
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{rim:.1f}" fill="none" stroke="#ddd"/>',
        *(spoke(v, rim, GREY, 9) for v in unit),
        *(spoke(v, rim, RED, 2) for v in toy.arrows),
        *(
            f'<circle cx="{x + 1.1 * rim * v[0]:.1f}" cy="{y - 1.1 * rim * v[1]:.1f}" r="5" fill="{BLUE}"/>'
            for v in toy.dictionaries[len(unit)]
        ),
        *(label(v, gap) for v, gap in zip(around, corners(toy.arrows), strict=True)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="where to draw the models with two hidden dimensions")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    runs = [run(*case, seed=args.seed) for case in CASES]
    print(table(runs))
    planar = [toy for toy in runs if toy.W.shape[1] == 2]
    for toy in planar:
        print(f"\n{toy.figure}, angles from one feature to the next, degrees:")
        print("  in the model", np.round(corners(toy.W), 3))
        print("  recovered   ", np.round(corners(toy.arrows), 3))
        print("  ideal       ", np.round(360 / len(toy.W), 3))
    for toy in runs:
        print(f"\n{toy.figure}: {toy.found.certificate.sentence}")
    if args.figure:
        args.figure.write_text(picture(planar), encoding="utf-8")


if __name__ == "__main__":
    main()
