"""One MLP block of a small transformer, trained on the spot and opened up by questions alone.

The model has one layer and no biases but those of the neurons: tokens a, b, = are embedded in d dimensions, one head of
attention with a residual connection mixes them, a block of n GELU neurons reads the normalised sum, and the last
position is read out as (a + b) mod P:

    x = E[token] + pos        r = x₂ + Σ_t softmax_t(x₂ᵀ M x_t / √d) x_t V        u = r / rms(r)
    block(u) = gelu(u Aᵀ + c) B                logits = (r + block(u)) U

Then the block is a black box u ↦ block(u) with d inputs and d outputs, a sum of n features: each neuron is one, its
direction a row of A. The normalised inputs all have length √d, which is the radius of the ball. Everything is numpy,
gradients included. Run: python examples/transformer_block.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import erf

import ridgescope as rs

Parameters = dict[str, np.ndarray]
Mlp = Callable[[Parameters, np.ndarray], np.ndarray]
Loss = Callable[[Parameters, np.ndarray, np.ndarray], tuple[float, Parameters]]


def gelu(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """z·Φ(z) and its derivative."""
    phi = 0.5 * (1.0 + erf(z / np.sqrt(2.0)))
    return z * phi, phi + z * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)


def initial(d: int, n: int, modulus: int, rng: np.random.Generator) -> Parameters:
    def normal(*shape: int, scale: float) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    return {
        "E": normal(modulus + 1, d, scale=1.0),
        "pos": normal(3, d, scale=0.3),
        "M": normal(d, d, scale=d**-0.5),
        "V": normal(d, d, scale=d**-0.5),
        "A": normal(n, d, scale=d**-0.5),
        "c": normal(n, scale=0.3),
        "B": normal(n, d, scale=n**-0.5),
        "U": normal(d, modulus, scale=d**-0.5),
    }


def stream(w: Parameters, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The residual stream (m, d) at the last position; what attention reads (m, 3, d), and its weights (m, 3)."""
    x = w["E"][tokens] + w["pos"]
    scores = np.einsum("md,mtd->mt", x[:, 2] @ w["M"], x) / np.sqrt(x.shape[2])
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return x[:, 2] + np.einsum("mt,mtd->md", p, x) @ w["V"], x, p


def rms(r: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(r * r, axis=1, keepdims=True))


def block(w: Parameters, u: np.ndarray) -> np.ndarray:
    """The MLP block: (m, d) to (m, d)."""
    return gelu(u @ w["A"].T + w["c"])[0] @ w["B"]


def loss_and_gradient(w: Parameters, tokens: np.ndarray, answer: np.ndarray) -> tuple[float, Parameters]:
    """Cross-entropy of the answers, and its derivatives."""
    m = len(tokens)
    r, x, p = stream(w, tokens)
    u = r / rms(r)
    hidden, slope = gelu(u @ w["A"].T + w["c"])
    after = r + hidden @ w["B"]
    logits = after @ w["U"]
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(m)
    g: Parameters = {}

    g_logits = np.exp(log_p)
    g_logits[rows, answer] -= 1.0
    g_logits /= m
    g["U"] = after.T @ g_logits
    g_after = g_logits @ w["U"].T
    g["B"] = hidden.T @ g_after
    g_z = (g_after @ w["B"].T) * slope
    g["A"], g["c"] = g_z.T @ u, g_z.sum(axis=0)
    g_u = g_z @ w["A"]
    g_r = g_after + (g_u - u * np.mean(u * g_u, axis=1, keepdims=True)) / rms(r)

    g |= stream_gradient(w, tokens, x, p, g_r)
    return -float(log_p[rows, answer].mean()), g


def stream_gradient(w: Parameters, tokens: np.ndarray, x: np.ndarray, p: np.ndarray, g_r: np.ndarray) -> Parameters:
    """Derivatives by embeddings and attention, given those by the residual stream (m, d), and x and p of `stream`."""
    g: Parameters = {}
    mixed = np.einsum("mt,mtd->md", p, x)
    g["V"] = mixed.T @ g_r
    g_mixed = g_r @ w["V"].T
    g_p = np.einsum("md,mtd->mt", g_mixed, x)
    g_scores = p * (g_p - (p * g_p).sum(axis=1, keepdims=True)) / np.sqrt(x.shape[2])
    weighed = np.einsum("mt,mtd->md", g_scores, x)
    g["M"] = x[:, 2].T @ weighed
    g_x = p[:, :, None] * g_mixed[:, None] + g_scores[:, :, None] * (x[:, 2] @ w["M"])[:, None]
    g_x[:, 2] += g_r + weighed @ w["M"].T
    g["pos"] = g_x.sum(axis=0)
    g["E"] = np.zeros_like(w["E"])
    np.add.at(g["E"], tokens, g_x)
    return g


def sums(modulus: int) -> tuple[np.ndarray, np.ndarray]:
    """All questions a, b, = and their answers."""
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(modulus), np.arange(modulus), indexing="ij"))
    return np.stack([a, b, np.full_like(a, modulus)], axis=1), (a + b) % modulus


def train(
    w: Parameters,
    modulus: int,
    *,
    steps: int,
    rng: np.random.Generator,
    rate: float = 3e-3,
    decay: float = 0.3,
    loss: Loss = loss_and_gradient,
    mlp: Mlp = block,
) -> float:
    """Adam with decoupled weight decay on random halves of all sums, in place; returns the share answered right."""
    tokens, answer = sums(modulus)
    first, second = ({k: np.zeros_like(v) for k, v in w.items()} for _ in range(2))
    for t in range(1, steps + 1):
        batch = rng.choice(len(tokens), len(tokens) // 2, replace=False)
        _, g = loss(w, tokens[batch], answer[batch])
        for k in w:
            first[k] += 0.1 * (g[k] - first[k])
            second[k] += 0.02 * (g[k] ** 2 - second[k])
            step = (first[k] / (1 - 0.9**t)) / (np.sqrt(second[k] / (1 - 0.98**t)) + 1e-8)
            w[k] -= rate * (step + decay * w[k])
    r, _, _ = stream(w, tokens)
    return float(np.mean(((r + mlp(w, r / rms(r))) @ w["U"]).argmax(axis=1) == answer))


@dataclass(frozen=True)
class Opened:
    """A trained block and what was recovered from queries."""

    accuracy: float
    radius: float
    found: rs.Extraction
    match: rs.Match
    strength: np.ndarray
    """(n,) how much each neuron bends the output on the ball, as a fraction of f's standard deviation."""
    seconds: float


def bend(w: Parameters, radius: float) -> np.ndarray:
    """(n,) the RMS that remains of each neuron's part over the ball when a straight line is taken out of it."""
    size = np.linalg.norm(w["A"], axis=1)
    z = np.linspace(-radius, radius, 201)
    out = np.empty(len(size))
    weight = (1 - (z / radius) ** 2) ** ((w["A"].shape[1] - 1) / 2)  # of v·x for x uniform in the ball
    for i, offset in enumerate(w["c"]):
        value = gelu(size[i] * z + offset)[0]
        line = np.polynomial.Polynomial.fit(z, value, 1, w=np.sqrt(weight))(z)
        out[i] = np.sqrt(np.average((value - line) ** 2, weights=weight)) * np.linalg.norm(w["B"][i])
    return out


def run(
    *,
    d: int = 32,
    n: int = 128,
    modulus: int = 23,
    steps: int = 600,
    tolerance: float = 1e-2,
    seed: int = 0,
    progress: bool = False,
) -> Opened:
    """Train, ask on the ball that the activations fill, and compare with the weights."""
    rng = np.random.default_rng(seed)
    w = initial(d, n, modulus, rng)
    accuracy = train(w, modulus, steps=steps, rng=rng)
    radius = float(np.sqrt(d))
    started = time.perf_counter()
    found = rs.extract(lambda u: block(w, u), dim=d, radius=radius, tolerance=tolerance, rng=seed, progress=progress)
    seconds = time.perf_counter() - started
    strength = bend(w, radius) / (found.certificate.std * np.sqrt(d))
    return Opened(accuracy, radius, found, rs.match(found.directions, w["A"]), strength, seconds)


def table(opened: Opened) -> str:
    """What came of it, as a Markdown table."""
    found, matched = opened.found, opened.match
    rows = [
        ("sums answered right after training", f"{opened.accuracy:.1%}"),
        ("radius √d, the length of every activation", f"{opened.radius:.2f}"),
        ("neurons, input dimensions, outputs", f"{len(matched.angles)}, {found.dim}, {found.outputs}"),
        ("directions found", f"{len(found.features)}"),
        ("neurons within 1e-2 rad", f"{matched.share(1e-2):.1%}"),
        ("neurons within 1e-3 rad", f"{matched.share(1e-3):.1%}"),
        ("neurons missed, false directions", f"{len(matched.missed)}, {len(matched.false)}"),
        ("median and worst angle of those found", _angles(matched)),
        ("queries, per parameter n(d + 16)", _queries(opened)),
        ("tolerance met", f"{'yes' if found.certificate.met else 'no'}, {found.certificate.tolerance:g}"),
        ("largest error seen", f"{found.certificate.sup_seen / found.certificate.std:.1e} of the standard deviation"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _angles(matched: rs.Match) -> str:
    hit = matched.angles[matched.angles <= matched.within]
    return f"{np.median(hit):.1e}, {hit.max():.1e} rad" if len(hit) else "none"


def _queries(opened: Opened) -> str:
    count = opened.found.queries
    return f"{count:,}, {count / (len(opened.match.angles) * (opened.found.dim + 16)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--neurons", type=int, default=128)
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    opened = run(d=args.dim, n=args.neurons, tolerance=args.tolerance, seed=args.seed, progress=True)
    print(table(opened))
    print()
    print(opened.found.certificate.sentence)
    print(opened.found.stopped)
    if len(opened.match.missed):
        weakest = np.sort(opened.strength)
        missed = np.sort(opened.strength[opened.match.missed])
        print(f"missed: {missed}; all neurons from {weakest[0]:.1e} to {weakest[-1]:.1e}")
    print(f"{opened.seconds:.0f} s")


if __name__ == "__main__":
    main()
