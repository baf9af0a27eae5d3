"""A gated MLP block of a small transformer, as in Llama, trained on the spot and opened up through its norm.

The model is that of transformer_block.py with another block, n SwiGLU units without biases that read the normalised
stream:

    norm(r) = r/√(mean(r²) + ε)        mlp(u) = [silu(u Gᵀ) ∘ (u Hᵀ)] B        block(r) = r + mlp(norm(r))

Only the whole block is asked, r ↦ block(r), with d inputs and d outputs. It is no sum of features, as its norm mixes
everything; `rs.oracle.prenorm` undoes that, and what it asks is a sum of n gated features. Everything is numpy,
gradients included. Run: python examples/gated_block.py [--picture docs/gated_block.svg]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit

import ridgescope as rs

sys.path.append(str(Path(__file__).parent))
from transformer_block import Parameters, initial, rms, stream, stream_gradient, sums, train

EPS = 1e-5
MATTERS = 1e-3
"""Share of the block's variation over the ball below which a unit does not matter: a tenth of the tolerance."""


def silu(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """z·σ(z) and its derivative."""
    s = expit(z)
    return z * s, s * (1.0 + z * (1.0 - s))


def weights(d: int, n: int, modulus: int, rng: np.random.Generator) -> Parameters:
    w = initial(d, n, modulus, rng)
    w["G"], w["H"] = w.pop("A"), rng.standard_normal((n, d)) / np.sqrt(d)
    del w["c"]
    return w


def mlp(w: Parameters, u: np.ndarray) -> np.ndarray:
    """The gated units at the normalised stream: (m, d) to (m, d)."""
    return (silu(u @ w["G"].T)[0] * (u @ w["H"].T)) @ w["B"]


def block(w: Parameters, r: np.ndarray) -> np.ndarray:
    """The whole block, norm and residual connection included: (m, d) to (m, d)."""
    return r + mlp(w, r / np.sqrt(rms(r) ** 2 + EPS))


def loss_and_gradient(w: Parameters, tokens: np.ndarray, answer: np.ndarray) -> tuple[float, Parameters]:
    """Cross-entropy of the answers, and its derivatives."""
    r, x, p = stream(w, tokens)
    size = np.sqrt(rms(r) ** 2 + EPS)
    u = r / size
    (gate, slope), carried = silu(u @ w["G"].T), u @ w["H"].T
    hidden = gate * carried
    after = r + hidden @ w["B"]
    logits = after @ w["U"]
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(tokens))

    g_logits = np.exp(log_p)
    g_logits[rows, answer] -= 1.0
    g_logits /= len(tokens)
    g_after = g_logits @ w["U"].T
    g_hidden = g_after @ w["B"].T
    g_gate, g_carried = g_hidden * carried * slope, g_hidden * gate
    g_u = g_gate @ w["G"] + g_carried @ w["H"]
    g_r = g_after + (g_u - u * np.mean(u * g_u, axis=1, keepdims=True)) / size
    g: Parameters = {"U": after.T @ g_logits, "B": hidden.T @ g_after, "G": g_gate.T @ u, "H": g_carried.T @ u}
    return -float(log_p[rows, answer].mean()), g | stream_gradient(w, tokens, x, p, g_r)


@dataclass(frozen=True)
class Opened:
    """A trained block and what was recovered from queries."""

    accuracy: float
    w: Parameters
    found: rs.Extraction
    match: rs.GatedMatch
    strength: np.ndarray
    """(n,) how much each unit bends the output on the ball, as a fraction of f's standard deviation."""
    seconds: float

    @property
    def matter(self) -> np.ndarray:
        """(n,) whether a unit matters."""
        return self.strength > MATTERS


def bend(w: Parameters, radius: float, rng: np.random.Generator) -> np.ndarray:
    """(n,) the RMS that remains of each unit's part over the ball when an affine function is taken out of it."""
    d = w["G"].shape[1]
    u = rng.standard_normal((4000, d))
    u *= radius * (rng.random((4000, 1)) ** (1 / d)) / np.linalg.norm(u, axis=1, keepdims=True)
    hidden = silu(u @ w["G"].T)[0] * (u @ w["H"].T)
    affine = np.column_stack([np.ones(len(u)), u])
    left = hidden - affine @ np.linalg.lstsq(affine, hidden, rcond=None)[0]
    return np.sqrt(np.mean(left**2, axis=0)) * np.linalg.norm(w["B"], axis=1)


def run(
    *, d: int = 32, n: int = 96, modulus: int = 23, steps: int = 600, tolerance: float = 1e-2, seed: int = 0
) -> Opened:
    """Train, ask the block through its norm, and compare with the weights."""
    rng = np.random.default_rng(seed)
    w = weights(d, n, modulus, rng)
    accuracy = train(w, modulus, steps=steps, rng=rng, loss=loss_and_gradient, mlp=mlp)
    started = time.perf_counter()
    oracle = rs.oracle.prenorm(lambda r: block(w, r), d, kind="rms", eps=EPS, residual=True)
    found = rs.extract(oracle, tolerance=tolerance, rng=seed)
    seconds = time.perf_counter() - started
    strength = bend(w, found.radius, rng) / (found.certificate.std * np.sqrt(d))
    carriers = [np.zeros(d) if f.carrier is None else f.carrier for f in found.features]
    match = rs.match_gated((found.directions, carriers), (w["G"], w["H"]))
    return Opened(accuracy, w, found, match, strength, seconds)


def weight_errors(opened: Opened) -> tuple[float, float]:
    """Largest relative error of a row of W_gate, and of W_up and W_down, of which only products are determined."""
    net, w = opened.found.network(), opened.w
    ours = opened.match.gates.partner
    gate = np.linalg.norm(net.W_gate[ours] - w["G"], axis=1) / np.linalg.norm(w["G"], axis=1)
    products = net.W_up[ours][:, :, None] * net.W_down.T[ours][:, None, :] - w["H"][:, :, None] * w["B"][:, None, :]
    size = np.linalg.norm(w["H"], axis=1) * np.linalg.norm(w["B"], axis=1)
    return float(gate.max()), float((np.linalg.norm(products, axis=(1, 2)) / size).max())


def table(opened: Opened) -> str:
    """What came of it, as a Markdown table."""
    found, matched = opened.found, opened.match
    worst = np.maximum(matched.gates.angles, matched.carrier_angles)[opened.matter]
    gate, products = weight_errors(opened)
    rows = [
        ("sums answered right after training", f"{opened.accuracy:.1%}"),
        ("units, input dimensions, outputs", f"{len(opened.w['G'])}, {found.dim}, {found.outputs}"),
        (f"units that matter, above {MATTERS:g} of the variation", f"{opened.matter.sum()}"),
        ("weakest and strongest unit", f"{opened.strength.min():.1e}, {opened.strength.max():.1e}"),
        ("features found, gated ones", f"{len(found.features)}, {sum(f.gated for f in found.features)}"),
        ("units that matter within 1e-3 rad, gate and carrier", f"{np.mean(worst <= 1e-3):.1%}"),
        ("median and worst angle of those", f"{np.median(worst):.1e}, {worst.max():.1e} rad"),
        ("false directions", f"{len(matched.gates.false)}"),
        ("worst row of W_gate, worst product of W_up and W_down", f"{gate:.1e}, {products:.1e}"),
        ("queries", f"{found.queries:,}"),
        ("tolerance met", f"{'yes' if found.certificate.met else 'no'}, {found.certificate.tolerance:g}"),
        ("structure", found.structure.verdict if found.structure is not None else "not tested"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def picture(opened: Opened, units: int = 2, cell: int = 7) -> str:
    """What the strongest units found listen to, let through and add, for all sums a + b, as SVG."""
    net, w = opened.found.network(), opened.w
    modulus = w["U"].shape[1]
    r = stream(w, sums(modulus)[0])[0]
    u = r / np.sqrt(rms(r) ** 2 + EPS)
    side, gap, top = cell * modulus, 26, 40
    titles = ("listens to: gate · u", "lets through: silu", "of this: up · u", "and writes the product")
    width, height = 4 * (side + gap) + gap, units * (side + gap + top) + gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for k in range(units):
        gate, up = u @ net.W_gate[k], u @ net.W_up[k]
        y = top + k * (side + gap + top)
        for column, values in enumerate((gate, None, up, silu(gate)[0] * up)):
            x = gap + column * (side + gap)
            inside = _curve(gate, side) if values is None else _heat(values.reshape(modulus, modulus), cell)
            label = f"unit {k}, {titles[column]}" if column == 0 else titles[column]
            parts.append(f'<g transform="translate({x},{y})"><text y="-8">{label}</text>{inside}')
            below = "a to the right, b down" if values is not None else "gate · u; dots: the sums"
            parts.append(f'<text y="{side + 14}" font-size="10" fill="#555">{below}</text></g>')
    return "\n".join([*parts, "</svg>\n"])


def _heat(values: np.ndarray, cell: int) -> str:
    """Cells (a, b) in nine colours from blue, negative, to red."""
    levels = np.rint(4 * values / np.abs(values).max()).astype(int)
    paths = []
    for level in range(-4, 5):
        cells = "".join(f"M{cell * a} {cell * b}h{cell}v{cell}h-{cell}z" for a, b in np.argwhere(levels == level))
        fade = round(255 * (1 - abs(level) / 4))
        colour = f"rgb(255,{fade},{fade})" if level > 0 else f"rgb({fade},{fade},255)"
        paths.append(f'<path fill="{colour}" d="{cells}"/>' if cells else "")
    return "".join(paths)


def _curve(gate: np.ndarray, side: int) -> str:
    """silu over the gate's values, and a dot on it for each of them."""
    most = float(np.abs(gate).max())
    z = np.linspace(-most, most, 61)

    def place(z: np.ndarray) -> list[tuple[float, float]]:
        return [
            (side * (a + most) / (2 * most), side * (1 - (b + 0.3) / (most + 0.3)))
            for a, b in zip(z, silu(z)[0], strict=True)
        ]

    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in place(z))
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in place(np.unique(gate.round(1))))
    zero = place(np.zeros(1))[0]
    return (
        f'<path stroke="#ccc" d="M0 {zero[1]:.1f}H{side}M{zero[0]:.1f} 0V{side}"/>'
        f'<path fill="none" stroke="#d55e00" stroke-width="1.5" d="{line}"/>'
        f'<path stroke="#0072b2" stroke-width="4" stroke-linecap="round" d="{dots}"/>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--units", type=int, default=96)
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="file for the picture of the strongest units")
    args = parser.parse_args()
    opened = run(d=args.dim, n=args.units, tolerance=args.tolerance, seed=args.seed)
    print(table(opened))
    print()
    print(opened.found.certificate.sentence)
    print(opened.found.stopped)
    if args.picture:
        Path(args.picture).write_text(picture(opened), encoding="utf-8")
    print(f"{opened.seconds:.0f} s")


if __name__ == "__main__":
    main()
