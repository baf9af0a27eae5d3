"""The inequalities that the proofs use, as rows with both sides in base-10 logarithms.

Letters: d, n, R, L, γ, ε′, δ are given (`Problem`); ℓ₁, ℓ₂ widths of the windows; Δ direction error and nondegeneracy;
ε noise level; C₂ = ℓ₁²/d, C₁ = C₂^0.9; θ = γ/(10n)³ of Claim anticoncentration; a, B ends of the band of Corollary
nonzero-weight-region. `lg` in a name means log₁₀ of the letter that follows. Exponents and factors are the paper's.
Where its step has a slip (docs/theory.md lists them) the row is the corrected inequality and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LN10 = math.log(10)
_ROUNDING = 1e-9
"""Relative excess of the left side of an inequality that counts as rounding."""


def lg_sum(*logs: float) -> float:
    """Return log₁₀ of a sum of positive numbers that are given by their logarithms."""
    top = max(logs)
    return top + math.log10(sum(10 ** max(x - top, -400.0) for x in logs))


def lg_exp_minus(lg_x: float) -> float:
    """Return log₁₀ exp(−x) for x given by its logarithm, exact until the exponent itself overflows."""
    return float(-(10 ** min(lg_x, 300.0)) / LN10)


@dataclass(frozen=True)
class Inequality:
    """The inequality left ≤ right, both as log₁₀; `where` is the statement of the paper that uses it."""

    name: str
    where: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """True if left ≤ right up to rounding."""
        return self.left <= self.right + _ROUNDING * max(1.0, abs(self.right))


@dataclass(frozen=True)
class Problem:
    """The givens of the theorems: d, n, R, L, γ, ε′ (accuracy), δ (failure probability)."""

    d: int
    n: int
    R: float
    L: float
    gamma: float
    eps: float
    delta: float

    def lg(self, letter: str) -> float:
        """Return log₁₀ of a given, by the name of its field."""
        return math.log10(float(getattr(self, letter)))


def _lg_chord(lg_sine: float) -> float:
    """Return log₁₀ of the distance of two unit vectors whose angle has the given sine s: s·√(2/(1 + √(1 − s²)))."""
    sine2 = min(10 ** (2 * max(lg_sine, -150.0)), 1.0)
    return lg_sine + math.log10(2 / (1 + math.sqrt(1 - sine2))) / 2


def response_rows(p: Problem, lg_ell: float, lg_D: float, *, bounding_delta: bool = False) -> list[Inequality]:
    """Return what Lemma recover-function and the last step of Theorem weaker use, at window ℓ = ℓ₂ and direction error
    Δ; with `bounding_delta`, only the rows that bound Δ from above for a given ℓ."""
    n, R, L, gamma = (p.lg(x) for x in ("n", "R", "L", "gamma"))
    lemma, claim, inversion = "Lemma recover-function", "Claim fourier-point-closeness", "Claim truncated-inversion"
    two = math.log10(2)
    grid = lg_sum(0.04 * lg_D, 2 * two + 0.9 * lg_D + 2 * lg_ell)
    shifted = two + lg_sum(0.6 * lg_D, 0.03 * lg_D)
    total = lg_sum(n + math.log10(5) - 0.7 * lg_ell, n + lg_D)
    rows = [
        (False, "R ≤ ℓ", inversion, R, lg_ell),
        (True, "n·ℓ·Δ^0.9 ≤ Δ^0.8", claim, n + lg_ell + 0.9 * lg_D, 0.8 * lg_D),
        (False, "ℓ^0.1 ≤ ℓ^0.2·γ²/2", claim, 0.1 * lg_ell, 0.2 * lg_ell + 2 * gamma - two),
        (False, "n·exp(−ℓ^0.1) ≤ Δ^0.8", claim, n + lg_exp_minus(0.1 * lg_ell), 0.8 * lg_D),
        (True, "4Δ^−0.1·(Δ^0.8 + Δ^0.8)·ℓ ≤ Δ^0.6", lemma, math.log10(8) + 0.7 * lg_D + lg_ell, 0.6 * lg_D),
        (True, "2L√(2ℓ)·Δ^0.05 ≤ Δ^0.04", lemma, two + L + (two + lg_ell) / 2 + 0.05 * lg_D, 0.04 * lg_D),
        (True, "Δ^0.04 + 4Δ^0.9·ℓ² ≤ Δ^0.03", lemma, grid, 0.03 * lg_D),
        (False, "20nR·ℓ^−0.8 ≤ ℓ^−0.7", lemma, math.log10(20) + n + R - 0.8 * lg_ell, -0.7 * lg_ell),
        (True, "2(Δ^0.6 + Δ^0.03) ≤ ℓ^−0.7 (corrected: the shift C doubles it)", lemma, shifted, -0.7 * lg_ell),
        (True, "L·R·Δ ≤ ℓ^−0.7 (corrected: not RΔℓ²)", lemma, L + R + lg_D, -0.7 * lg_ell),
        (False, "n·5ℓ^−0.7 + n·Δ ≤ ε′", "Theorem weaker", total, p.lg("eps")),
    ]
    return [
        Inequality(name, where, left, right) for bounds, name, where, left, right in rows if bounds >= bounding_delta
    ]


def search_rows(p: Problem, lg_ell: float, lg_D: float, lg_eps: float) -> list[Inequality]:
    """Return what Lemma find-directions and the claims under it use, at window ℓ = ℓ₁, nondegeneracy Δ and noise level
    ε."""
    return [*_weight_rows(p, lg_ell, lg_D, lg_eps), *_recursion_rows(p, lg_ell, lg_D, lg_eps)]


def _weight_rows(p: Problem, lg_ell: float, lg_D: float, lg_eps: float) -> list[Inequality]:
    """Return the rows about where Fourier weight is, at α = 4C₂ = 4ℓ²/d."""
    n, d, R, gamma = (p.lg(x) for x in ("n", "d", "R", "gamma"))
    two, lemma, nonzero = math.log10(2), "Lemma find-directions", "Lemma where-nonzero at α = 4ℓ²/d"
    log_B = math.log10((lg_ell + R - lg_D) * LN10)  # lg of log(ℓR/Δ)
    lg_B = math.log10(4) + lg_ell + log_B
    root_alpha = (2 * two + (2 * lg_ell - d)) / 2  # √α
    heavy = 2 * lg_D - 3 - 10 * lg_ell  # Δ²/(10³ℓ¹⁰)
    mass_left = -2 / LN10 - math.log10(math.pi) / 2 - lg_ell + 2 * lg_D  # e⁻²·Δ²/(√π·ℓ)
    return [
        Inequality("20(R + L)/Δ ≤ ℓ", "Lemma nondegen-fourier", math.log10(20 * (p.R + p.L)) - lg_D, lg_ell),
        Inequality(
            "B²·exp(−B²/ℓ²) ≤ Δ²/(64Rℓ)",
            "Corollary nonzero-weight-region",
            2 * lg_B + lg_exp_minus(math.log10(16) + 2 * log_B),
            2 * lg_D - math.log10(64) - R - lg_ell,
        ),
        Inequality("B ≤ ℓ²/2", lemma, lg_B, 2 * lg_ell - two),
        Inequality(
            "Δ²/(10³ℓ¹⁰) ≤ e⁻²·Δ²/(64√π·n(1 + B√α)Rℓ³)",
            nonzero,
            heavy,
            mass_left - math.log10(64) - n - lg_sum(0.0, lg_B + root_alpha) - R - 2 * lg_ell,
        ),
        Inequality(
            "ℓ^0.2 ≤ γ²Δ²ℓ/(16(d+4)R)",
            nonzero,
            0.2 * lg_ell,
            2 * gamma + 2 * lg_D + lg_ell - math.log10(16 * (p.d + 4)) - R,
        ),
        Inequality(
            "4nℓ·exp(−ℓ^0.2) ≤ ½Δ²/(10³ℓ¹⁰)",
            lemma,
            math.log10(4) + n + lg_ell + lg_exp_minus(0.2 * lg_ell),
            heavy - two,
        ),
        Inequality("10³ε ≤ ½Δ²/(10³ℓ¹⁰)", lemma, 3 + lg_eps, heavy - two),
    ]


def _recursion_rows(p: Problem, lg_ell: float, lg_D: float, lg_eps: float) -> list[Inequality]:
    """Return the rows about the recursion of Algorithm 2 and its output."""
    n, d, R, gamma = (p.lg(x) for x in ("n", "d", "R", "gamma"))
    two, lemma, good_point = math.log10(2), "Lemma find-directions", "Claim find-good-point"
    C2 = 2 * lg_ell - d
    C1 = 0.9 * C2
    theta = gamma - 3 * math.log10(10 * p.n)
    log_term = math.log10((lg_ell + n - lg_eps) * LN10)  # lg of log(ℓn/ε)
    r = (math.log10(4 * p.d) + log_term - C2) / 2  # √(4d log(ℓn/ε)/C₂)
    spacing = -(1 + d + C1) / 2  # 1/√(10dC₁)
    return [
        Inequality(
            "2/C₁^0.6 ≤ γ²Δ²/((20n)⁶dRℓ)",
            lemma,
            two - 0.6 * C1,
            2 * gamma + 2 * lg_D - 6 * math.log10(20 * p.n) - d - R - lg_ell,
        ),
        Inequality(
            "log(n²/40ε) ≤ 4d·log(ℓn/ε)·d/(d+1)",
            "Claim bounded-recursion via Lemma where-zero",
            math.log10(max((2 * n - math.log10(40) - lg_eps) * LN10, 1e-300)),
            math.log10(4 * p.d * p.d / (p.d + 1)) + log_term,
        ),
        Inequality(
            "4r ≤ C₁^−0.3·θ²/d, r = √(4d·log(ℓn/ε)/C₂)",
            "Claim bounded-recursion: one line per cell",
            2 * two + r,
            -0.3 * C1 + 2 * theta - d,
        ),
        Inequality(
            "2r√d/θ + 2r ≤ 1/√(10dC₁) (corrected: the paper drops 2r)",
            "Claim bounded-recursion: one branch",
            lg_sum(two + r + d / 2 - theta, two + r),
            spacing,
        ),
        Inequality(
            "1/√(10dC₁) + 1/√C₂ ≤ 1/√(5dC₁)",
            good_point,
            lg_sum(spacing, -C2 / 2),
            -(math.log10(5) + d + C1) / 2,
        ),
        Inequality(
            "2√(1/5C₁ + 1/5C₂)·C₁^0.3 ≤ C₁^−0.2",
            good_point,
            two + lg_sum(-C1, -C2) / 2 - math.log10(5) / 2 + 0.3 * C1,
            -0.2 * C1,
        ),
        Inequality("4d·log(ℓn/ε)/C₁ ≤ C₁^−0.8", lemma, math.log10(4 * p.d) + log_term - C1, -0.8 * C1),
        Inequality("2·sin(½·arcsin C₁^−0.1) ≤ Δ (corrected: a chord)", lemma, _lg_chord(-0.1 * C1), lg_D),
        Inequality("2C₁^−0.1 ≤ γ/2", lemma + ": post-processing", two - 0.1 * C1, gamma - two),
    ]
