"""What "a sufficiently large polynomial" costs: the smallest parameters for which every step of the proofs
holds.

Theorem weaker chooses ℓ₂, then Δ = 1/poly(ℓ₂), then ℓ₁ = poly(1/Δ), C₂ = ℓ₁²/d, C₁ = C₂^0.9, then ε =
1/poly(ℓ₁). Each inequality its proof uses is a row here, with the value of both sides, and the smallest ℓ₂,
the largest Δ, the smallest ℓ₁ and the largest ε that satisfy all rows are found by bisection. The numbers
overflow anything, so every quantity is a base-10 logarithm: `lg` in a name means log₁₀ of the letter that
follows.

Where the paper's step has a slip (docs/theory.md lists them) the row is the corrected inequality and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ridgescope.paper.directions import repetitions

LN10 = math.log(10)


def lg_sum(*logs: float) -> float:
    """log₁₀ of a sum of positive numbers given by their logarithms."""
    top = max(logs)
    return top + math.log10(sum(10 ** max(x - top, -400.0) for x in logs))


def lg_exp_minus(lg_x: float) -> float:
    """log₁₀ exp(−x), x given by its logarithm; exact until the exponent itself overflows."""
    return float(-(10 ** min(lg_x, 300.0)) / LN10)


@dataclass(frozen=True)
class Inequality:
    """left ≤ right, both as log₁₀. where: the statement of the paper that uses it."""

    name: str
    where: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left <= self.right + 1e-9 * max(1.0, abs(self.right))


@dataclass(frozen=True)
class Problem:
    """The givens: d, n, R, L, γ, ε′ (accuracy), δ (failure)."""

    d: int
    n: int
    R: float
    L: float
    gamma: float
    eps: float
    delta: float

    def lg(self, letter: str) -> float:
        return math.log10(float(getattr(self, letter)))


@dataclass(frozen=True)
class Plan:
    """The smallest parameters, as log₁₀, and every inequality they satisfy.

    lg_tau: τ = 10ε(πℓ₁²)^{d/2} of the mass oracle; lg_noise: the largest admissible |f̃ − f|; lg_m_mass,
    lg_m_value: samples per oracle call; lg_calls: oracle calls; runs: repetitions put to the vote;
    lg_queries: values of f as the proof asks them; lg_queries_batched: when all calls of a level share
    their samples; lg_eta, lg_alpha: the smoothing and difference length of "Removing boundedness" (None for
    bounded responses)."""

    problem: Problem
    lg_ell1: float
    lg_ell2: float
    lg_C1: float
    lg_C2: float
    lg_tau: float
    lg_Delta: float
    lg_eps: float
    lg_noise: float
    lg_m_mass: float
    lg_m_value: float
    lg_calls: float
    runs: int
    lg_queries: float
    lg_queries_batched: float
    lg_eta: float | None
    lg_alpha: float | None
    inequalities: tuple[Inequality, ...]

    @property
    def holds(self) -> bool:
        """All inequalities at once."""
        return all(row.holds for row in self.inequalities)

    def __str__(self) -> str:
        return "\n".join([*_parameters(self), "", *_table(self.inequalities)])


def response_rows(p: Problem, lg_ell: float, lg_D: float) -> list[Inequality]:
    """What Lemma recover-function and the last step of Theorem weaker use, at window ℓ = ℓ₂ and direction
    error Δ."""
    n, R, L, gamma = (p.lg(x) for x in ("n", "R", "L", "gamma"))
    lemma, claim = "Lemma recover-function", "Claim fourier-point-closeness"
    two = math.log10(2)
    return [
        Inequality("R ≤ ℓ", "Claim truncated-inversion", R, lg_ell),
        Inequality(
            "√2 ≤ L·ℓ (corrected: the paper's constant 2 needs it)",
            "Claim truncated-inversion",
            two / 2,
            L + lg_ell,
        ),
        Inequality("n·ℓ·Δ^0.9 ≤ Δ^0.8", claim, n + lg_ell + 0.9 * lg_D, 0.8 * lg_D),
        Inequality("ℓ^0.1 ≤ ℓ^0.2·γ²/2", claim, 0.1 * lg_ell, 0.2 * lg_ell + 2 * gamma - two),
        Inequality("n·exp(−ℓ^0.1) ≤ Δ^0.8", claim, n + lg_exp_minus(0.1 * lg_ell), 0.8 * lg_D),
        Inequality(
            "4Δ^−0.1·(Δ^0.8 + Δ^0.8)·ℓ ≤ Δ^0.6", lemma, math.log10(8) + 0.7 * lg_D + lg_ell, 0.6 * lg_D
        ),
        Inequality("2L√(2ℓ)·Δ^0.05 ≤ Δ^0.04", lemma, two + L + (two + lg_ell) / 2 + 0.05 * lg_D, 0.04 * lg_D),
        Inequality(
            "Δ^0.04 + 4Δ^0.9·ℓ² ≤ Δ^0.03",
            lemma,
            lg_sum(0.04 * lg_D, 2 * two + 0.9 * lg_D + 2 * lg_ell),
            0.03 * lg_D,
        ),
        Inequality("20nR·ℓ^−0.8 ≤ ℓ^−0.7", lemma, math.log10(20) + n + R - 0.8 * lg_ell, -0.7 * lg_ell),
        Inequality("Δ^0.6 + Δ^0.03 ≤ ℓ^−0.7", lemma, lg_sum(0.6 * lg_D, 0.03 * lg_D), -0.7 * lg_ell),
        Inequality("L·R·Δ ≤ ℓ^−0.7 (corrected: not RΔℓ²)", lemma, L + R + lg_D, -0.7 * lg_ell),
        Inequality(
            "n·5ℓ^−0.7 + n·Δ ≤ ε′",
            "Theorem weaker",
            lg_sum(n + math.log10(5) - 0.7 * lg_ell, n + lg_D),
            p.lg("eps"),
        ),
    ]


def search_rows(p: Problem, lg_ell: float, lg_D: float, lg_eps: float) -> list[Inequality]:
    """What Lemma find-directions and the claims under it use, at window ℓ = ℓ₁, nondegeneracy Δ and noise
    level ε."""
    n, d, R, gamma = (p.lg(x) for x in ("n", "d", "R", "gamma"))
    two, lemma = math.log10(2), "Lemma find-directions"
    C2 = 2 * lg_ell - d
    C1 = 0.9 * C2
    theta = gamma - 3 * math.log10(10 * p.n)
    log_term = math.log10((lg_ell + n - lg_eps) * LN10)  # lg of log(ℓn/ε)
    log_B = math.log10((lg_ell + R - lg_D) * LN10)  # lg of log(ℓR/Δ)
    lg_B = math.log10(4) + lg_ell + log_B
    root_alpha = (2 * two + C2) / 2  # √α with α = 4C₂
    heavy = 2 * lg_D - 3 - 10 * lg_ell
    r = (math.log10(4 * p.d) + log_term - C2) / 2  # √(4d log(ℓn/ε)/C₂)
    mass_left = -2 / LN10 - math.log10(math.pi) / 2 - lg_ell + 2 * lg_D
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
            "Lemma where-nonzero at α = 4ℓ²/d",
            heavy,
            mass_left - math.log10(64) - n - lg_sum(0.0, lg_B + root_alpha) - R - 2 * lg_ell,
        ),
        Inequality(
            "ℓ^0.2 ≤ γ²Δ²ℓ/(16(d+4)R)",
            "Lemma where-nonzero at α = 4ℓ²/d",
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
            -(1 + d + C1) / 2,
        ),
        Inequality(
            "1/√(10dC₁) + 1/√C₂ ≤ 1/√(5dC₁)",
            "Claim find-good-point",
            lg_sum(-(1 + d + C1) / 2, -C2 / 2),
            -(math.log10(5) + d + C1) / 2,
        ),
        Inequality(
            "2√(1/5C₁ + 1/5C₂)·C₁^0.3 ≤ C₁^−0.2",
            "Claim find-good-point",
            two + lg_sum(-C1, -C2) / 2 - math.log10(5) / 2 + 0.3 * C1,
            -0.2 * C1,
        ),
        Inequality("4d·log(ℓn/ε)/C₁ ≤ C₁^−0.8", lemma, math.log10(4 * p.d) + log_term - C1, -0.8 * C1),
        Inequality("2C₁^−0.1 ≤ Δ (corrected: factor 2 of normalising)", lemma, two - 0.1 * C1, lg_D),
        Inequality("4C₁^−0.1 ≤ γ/2", lemma + ": post-processing", 2 * two - 0.1 * C1, gamma - two),
    ]


def smallest(holds: Callable[[float], bool], start: float, digits: float = 1e-6) -> float:
    """The smallest x ≥ start with holds(x), for a predicate that stays true once it is."""
    if holds(start):
        return start
    low, high = start, max(2 * start, start + 1.0)
    while not holds(high):
        low, high = high, 2 * high
        if high > 1e12:
            raise ValueError(
                "no parameters satisfy the inequalities; is the separation or the accuracy zero?"
            )
    while high - low > digits * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def all_hold(rows: Sequence[Inequality]) -> bool:
    return all(row.holds for row in rows)


def choose_response_scale(p: Problem) -> tuple[float, float]:
    """lg ℓ₂, the smallest, and lg Δ, the largest that goes with it."""

    def accuracy_for(lg_ell: float) -> float:
        """lg Δ: the largest Δ that satisfies every row which bounds it from above."""

        def fine(minus_lg: float) -> bool:
            rows = response_rows(p, lg_ell, -minus_lg)
            return all(
                row.holds
                for row in rows
                if "exp" not in row.name and "Δ" in row.name and "ε′" not in row.name
            )

        return -smallest(fine, 1e-3)

    def works(lg_ell: float) -> bool:
        return all_hold(response_rows(p, lg_ell, accuracy_for(lg_ell)))

    lg_ell2 = smallest(works, max(p.lg("R"), 0.1))
    return lg_ell2, accuracy_for(lg_ell2)


def plan(
    dim: int,
    features: int,
    radius: float,
    lipschitz: float,
    separation: float,
    accuracy: float,
    failure: float,
    *,
    bounded: bool = True,
) -> Plan:
    """Smallest parameters for Theorem weaker (bounded=True, |σ_i| ≤ 1) or Theorem main-learning
    (bounded=False)."""
    _check(dim, features, radius, lipschitz, separation, accuracy, failure)
    given = p = Problem(dim, features, radius, lipschitz, separation, accuracy, failure)
    outer: list[Inequality] = []
    lg_eta = None
    if not bounded:
        p, lg_eta, outer = remove_boundedness(p)
    lg_ell2, lg_D = choose_response_scale(p)

    def eps_for(lg_ell: float) -> float:
        return 2 * lg_D - 6 - math.log10(2) - 10 * lg_ell

    lg_ell1 = smallest(lambda x: all_hold(search_rows(p, x, lg_D, eps_for(x))), lg_ell2)
    lg_eps = eps_for(lg_ell1)
    rows = [*response_rows(p, lg_ell2, lg_D), *search_rows(p, lg_ell1, lg_D, lg_eps)]
    rows.append(Inequality("10ε ≤ Δ^0.8", "Lemma recover-function: value oracle", 1 + lg_eps, 0.8 * lg_D))
    lg_C2 = 2 * lg_ell1 - p.lg("d")
    lg_noise = math.log10(5 / 8) + lg_eps - p.lg("n")
    lg_alpha = None
    if lg_eta is not None:
        lg_noise, lg_alpha, more = differences(p, lg_eta, lipschitz, lg_noise)
        outer += more
    return _costs(
        given, p, lg_ell1, lg_ell2, lg_C2, lg_D, lg_eps, lg_noise, lg_eta, lg_alpha, (*outer, *rows), bounded
    )


def remove_boundedness(p: Problem) -> tuple[Problem, float, list[Inequality]]:
    """The reduction of Theorem main-learning: η, and the bounded problem for (η/L)·⟨u, ∇g − ∇g(0)⟩."""
    cost = math.log10(p.R * math.sqrt(p.d) + 2 * math.sqrt(p.d) * p.n * p.L)
    lg_eta = min(p.lg("eps") - cost, math.log10(0.5))
    rows = [
        Inequality("R√d·η + 2√d·nLη ≤ ε′", "Theorem main-learning", cost + lg_eta, p.lg("eps")),
        Inequality("2L·η/L ≤ 1", "Theorem main-learning: |h| after rescaling", math.log10(2) + lg_eta, 0.0),
    ]
    inner = Problem(p.d, p.n, p.R, 1.0, p.gamma, 10 ** max(2 * lg_eta - p.lg("L"), -300.0), p.delta / p.d)
    return inner, lg_eta, rows


def differences(
    p: Problem, lg_eta: float, L: float, lg_noise: float
) -> tuple[float, float, list[Inequality]]:
    """lg ε of f itself and lg α = ½ lg ε for which differences of g serve as the bounded problem's oracle."""
    lg_L, where = math.log10(L), "Theorem main-learning: simulated derivative"

    def rows(lg_e: float) -> list[Inequality]:
        slope = lg_sum(math.log10(4) + lg_e / 2, p.lg("n") + lg_L + lg_e / 2 - lg_eta)
        return [
            Inequality("4ε/α + nLα/η ≤ ε^0.4, α = ε^0.5", where, slope, 0.4 * lg_e),
            Inequality(
                "2·(η/L)·ε^0.4 ≤ noise of Theorem weaker",
                where,
                math.log10(2) + lg_eta - lg_L + 0.4 * lg_e,
                lg_noise,
            ),
        ]

    lg_e = -smallest(lambda x: all_hold(rows(-x)), 1.0)
    return lg_e, lg_e / 2, rows(lg_e)


def _costs(
    given: Problem,
    p: Problem,
    lg_ell1: float,
    lg_ell2: float,
    lg_C2: float,
    lg_D: float,
    lg_eps: float,
    lg_noise: float,
    lg_eta: float | None,
    lg_alpha: float | None,
    rows: tuple[Inequality, ...],
    bounded: bool,
) -> Plan:
    """Samples per call from Corollary concentration and Claim val-concentration, calls from the grids,
    queries."""
    n, d = p.lg("n"), p.d
    root = lg_C2 / 2
    plane = math.log10(math.pi) + 2 * (1 + 2 * lg_ell1 + root)
    lines = math.log10(2) + 2 * lg_ell1 + 0.5 + root
    lg_mass_calls = plane + math.log10(max(d - 2, 1)) + lines
    lg_value_calls = n + math.log10(2) - 1.1 * lg_D
    lg_fail = math.log10(0.1) + 2 * p.lg("delta")
    log_mass = math.log(8) + (lg_mass_calls - lg_fail) * LN10
    log_value = math.log(8) + (lg_value_calls - lg_fail) * LN10
    # |f| ≤ n: 8n²·√(2 log(8/δ′)/m) ≤ 5ε for masses, 4n·√(2 log(8/δ′)/m) ≤ 5Δ^0.8/10 for values.
    lg_m_mass = math.log10(2 * log_mass) + 2 * (math.log10(8 / 5) + 2 * n - lg_eps)
    lg_m_value = math.log10(2 * log_value) + 2 * (math.log10(8) + n - 0.8 * lg_D)
    runs = repetitions(0.1 * p.delta)
    asked = 0.0
    if not bounded:
        # Each value of the derivative is a difference of two values of g, each an average of 1/ε² values of f.
        asked = math.log10(2 * d) - 2 * lg_noise
    mass = math.log10(2 * runs) + lg_m_mass
    return Plan(
        problem=given,
        lg_ell1=lg_ell1,
        lg_ell2=lg_ell2,
        lg_C1=0.9 * lg_C2,
        lg_C2=lg_C2,
        lg_tau=1 + lg_eps + d / 2 * (math.log10(math.pi) + 2 * lg_ell1),
        lg_Delta=lg_D,
        lg_eps=lg_eps,
        lg_noise=lg_noise,
        lg_m_mass=lg_m_mass,
        lg_m_value=lg_m_value,
        lg_calls=lg_sum(lg_mass_calls, lg_value_calls),
        runs=runs,
        lg_queries=asked + lg_sum(mass + lg_mass_calls, lg_m_value + lg_value_calls),
        lg_queries_batched=asked + lg_sum(mass + math.log10(max(d - 1, 1)), lg_m_value),
        lg_eta=lg_eta,
        lg_alpha=lg_alpha,
        inequalities=rows,
    )


def _check(dim: int, features: int, *positive: float) -> None:
    if dim < 3:
        raise ValueError(f"Lemma find-directions needs dim ≥ 3; got {dim}")
    if features < 1 or any(not (x > 0 and math.isfinite(x)) for x in positive):
        raise ValueError(
            "features ≥ 1 and positive radius, lipschitz, separation, accuracy and failure are needed"
        )
    radius, _, separation, accuracy, failure = positive
    if radius < 1 or separation > 1 or accuracy >= 1 or failure >= 1:
        raise ValueError("the lemmas ask for radius ≥ 1, separation ≤ 1, accuracy < 1 and failure < 1")


def power(lg: float) -> str:
    """10^lg for people: 3.2e+05 while that is readable, else 10^1234.5."""
    return f"{10**lg:.3g}" if abs(lg) < 6 else f"10^{lg:.6g}"


def _parameters(plan: Plan) -> list[str]:
    p = plan.problem
    pairs = [
        ("window of the search ℓ₁", plan.lg_ell1),
        ("window of the responses ℓ₂", plan.lg_ell2),
        ("widths C₁", plan.lg_C1),
        ("       C₂", plan.lg_C2),
        ("direction error Δ", plan.lg_Delta),
        ("mass accuracy τ", plan.lg_tau),
        ("noise allowed in f", plan.lg_noise),
        ("samples per mass m", plan.lg_m_mass),
        ("samples per value m", plan.lg_m_value),
        ("oracle calls", plan.lg_calls),
        ("queries, call by call", plan.lg_queries),
        ("queries, one batch per level", plan.lg_queries_batched),
    ]
    if plan.lg_eta is not None and plan.lg_alpha is not None:
        pairs += [("smoothing η", plan.lg_eta), ("difference α", plan.lg_alpha)]
    head = f"d={p.d} n={p.n} R={p.R:g} L={p.L:g} γ={p.gamma:g} ε′={p.eps:g} δ={p.delta:g}; {plan.runs} runs put to the vote"
    return [head, *(f"  {name:<30} {power(lg)}" for name, lg in pairs)]


def _table(rows: Sequence[Inequality]) -> list[str]:
    name = max(len(r.name) for r in rows)
    left = max(len(power(r.left)) for r in rows)
    right = max(len(power(r.right)) for r in rows)
    return [
        f"{'✓' if r.holds else '✗'} {r.name:<{name}}  {power(r.left):>{left}} ≤ {power(r.right):<{right}}  {r.where}"
        for r in rows
    ]
