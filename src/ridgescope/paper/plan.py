"""What "a sufficiently large polynomial" costs: the smallest parameters for which every step of the proofs
holds.

Theorem weaker chooses ℓ₂, then Δ = 1/poly(ℓ₂), then ℓ₁ = poly(1/Δ), C₂ = ℓ₁²/d, C₁ = C₂^0.9, then ε =
1/poly(ℓ₁). Each inequality its proof uses is a row here, with the value of both sides, and the smallest ℓ₂,
the largest Δ, the smallest ℓ₁ and the largest ε that satisfy all rows are found by bisection. The numbers
overflow anything, so every quantity is a base-10 logarithm: `lg` in a name means log₁₀ of the letter that
follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ridgescope.errors import InvalidInput
from ridgescope.paper.directions import repetitions
from ridgescope.paper.inequalities import LN10, Inequality, Problem, lg_sum, response_rows, search_rows


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


def smallest(holds: Callable[[float], bool], start: float, digits: float = 1e-6) -> float:
    """The smallest x ≥ start with holds(x), for a predicate that stays true once it is."""
    if holds(start):
        return start
    low, high = start, max(2 * start, start + 1.0)
    while not holds(high):
        low, high = high, 2 * high
        if high > 1e12:
            raise InvalidInput("no parameters satisfy the inequalities; is the separation or the accuracy zero?")
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
            return all(row.holds for row in rows if "exp" not in row.name and "Δ" in row.name and "ε′" not in row.name)

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
    return _costs(given, p, lg_ell1, lg_ell2, lg_C2, lg_D, lg_eps, lg_noise, lg_eta, lg_alpha, (*outer, *rows), bounded)


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


def differences(p: Problem, lg_eta: float, L: float, lg_noise: float) -> tuple[float, float, list[Inequality]]:
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
    # |f| ≤ n asks for 8n²·√(2 log(8/δ′)/m) ≤ 5ε of masses and 4n·√(2 log(8/δ′)/m) ≤ Δ^0.8/2 of values.
    lg_m_mass = math.log10(2 * log_mass) + 2 * (math.log10(8 / 5) + 2 * n - lg_eps)
    lg_m_value = math.log10(2 * log_value) + 2 * (math.log10(8) + n - 0.8 * lg_D)
    runs = repetitions(0.1 * p.delta)
    asked = 0.0
    if not bounded:
        # A value of the derivative is a difference of two values of g, each an average of 1/ε² values of f.
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
        raise InvalidInput(f"Lemma find-directions needs dim ≥ 3; got {dim}")
    if features < 1 or any(not (x > 0 and math.isfinite(x)) for x in positive):
        raise InvalidInput("features ≥ 1 and positive radius, lipschitz, separation, accuracy and failure are needed")
    radius, _, separation, accuracy, failure = positive
    if radius < 1 or separation > 1 or accuracy >= 1 or failure >= 1:
        raise InvalidInput("the lemmas ask for radius ≥ 1, separation ≤ 1, accuracy < 1 and failure < 1")


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
    givens = f"d={p.d} n={p.n} R={p.R:g} L={p.L:g} γ={p.gamma:g} ε′={p.eps:g} δ={p.delta:g}"
    return [
        f"{givens}; {plan.runs} runs put to the vote",
        *(f"  {name:<30} {power(lg)}" for name, lg in pairs),
    ]


def _table(rows: Sequence[Inequality]) -> list[str]:
    name = max(len(r.name) for r in rows)
    left = max(len(power(r.left)) for r in rows)
    right = max(len(power(r.right)) for r in rows)
    return [
        f"{'✓' if r.holds else '✗'} {r.name:<{name}}  {power(r.left):>{left}} ≤ {power(r.right):<{right}}  {r.where}"
        for r in rows
    ]
