"""What "a sufficiently large polynomial" costs: the smallest parameters for which every step of the proofs holds.

Theorem weaker chooses ℓ₂, then Δ = 1/poly(ℓ₂), then ℓ₁ = poly(1/Δ), C₂ = ℓ₁²/d, C₁ = C₂^0.9, then ε = 1/poly(ℓ₁). Each
inequality its proof uses is a row of `inequalities`, and the smallest ℓ₂, the largest Δ, the smallest ℓ₁ and the
largest ε that satisfy all rows are found by bisection. The numbers overflow anything, so every quantity is a base-10
logarithm.

Letters are those of `inequalities`; also τ accuracy of the mass oracle, m number of samples, η and α smoothing and
difference length of "Removing boundedness". `lg` in a name means log₁₀ of the letter that follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InvalidInput
from . import arguments
from .inequalities import LN10, Inequality, Problem, lg_sum, response_rows, search_rows

_DIGITS = 1e-6
"""Relative accuracy of the bisections: beyond what the printed plan shows."""
_HOPELESS = 1e12
"""Logarithm beyond which no parameter is searched; sensible problems stay below 1e6."""


@dataclass(frozen=True)
class Plan:
    """The smallest parameters, as log₁₀, and every inequality they satisfy.

    lg_tau: τ = 10ε(πℓ₁²)^{d/2} of the mass oracle; lg_noise: the largest admissible |f̃ − f|; lg_m_mass, lg_m_value:
    samples of each call of the mass and the value oracle; lg_calls: number of calls; runs: repetitions put to the vote;
    lg_queries: values of f as the proof uses them; lg_queries_batched: the same when all calls of a level share their
    samples; lg_eta, lg_alpha, lg_m_average: smoothing, difference length, and values of f averaged for each value of g,
    None for bounded responses.
    """

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
    lg_m_average: float | None
    inequalities: tuple[Inequality, ...]

    @property
    def holds(self) -> bool:
        """True if all inequalities hold."""
        return _all_hold(self.inequalities)

    def __str__(self) -> str:
        """Return the parameters, the costs and the table of all inequalities as text."""
        p, rows = self.problem, self.inequalities
        pairs = [
            ("window of the search ℓ₁", self.lg_ell1),
            ("window of the responses ℓ₂", self.lg_ell2),
            ("widths C₁", self.lg_C1),
            ("       C₂", self.lg_C2),
            ("direction error Δ", self.lg_Delta),
            ("mass accuracy τ", self.lg_tau),
            ("noise allowed in f", self.lg_noise),
            ("samples per mass m", self.lg_m_mass),
            ("samples per value m", self.lg_m_value),
            ("oracle calls", self.lg_calls),
            ("queries, call by call", self.lg_queries),
            ("queries, one batch per level", self.lg_queries_batched),
        ]
        extra = {"smoothing η": self.lg_eta, "difference α": self.lg_alpha, "values per average": self.lg_m_average}
        pairs += [(label, lg) for label, lg in extra.items() if lg is not None]
        givens = f"d={p.d} n={p.n} R={p.R:g} L={p.L:g} γ={p.gamma:g} ε′={p.eps:g} δ={p.delta:g}"
        name = max(len(r.name) for r in rows)
        left, right = (max(len(_power(getattr(r, side))) for r in rows) for side in ("left", "right"))
        return "\n".join(
            [
                f"{givens}; {self.runs} runs put to the vote",
                *(f"  {label:<30} {_power(lg)}" for label, lg in pairs),
                "",
                *(
                    f"{'✓' if r.holds else '✗'} {r.name:<{name}}  "
                    f"{_power(r.left):>{left}} ≤ {_power(r.right):<{right}}  {r.where}"
                    for r in rows
                ),
            ]
        )


def _power(lg: float) -> str:
    """Return 10^lg as text: 3.2e+05 while that is readable, else 10^1234.5."""
    return f"{10**lg:.3g}" if abs(lg) < 6 else f"10^{lg:.6g}"


def plan(
    dim: int,
    features: int,
    radius: float = 3.0,
    lipschitz: float = 1.0,
    separation: float = 0.1,
    accuracy: float = 0.1,
    failure: float = 0.01,
    *,
    bounded: bool = True,
) -> Plan:
    """Find the smallest parameters for Theorem weaker or Theorem main-learning, and what they cost.

    Parameters
    ----------
    dim, features, radius, lipschitz, separation, accuracy, failure
        The paper's d ≥ 3, n, R ≥ 1, L, γ ≤ 1, ε′ < 1 and δ < 1.
    bounded
        True for Theorem weaker (all |σ_i| ≤ 1), False for Theorem main-learning.

    Returns
    -------
    Plan
        Parameters and costs as logarithms, and every inequality; `print` shows a table.

    Raises
    ------
    InvalidInput
        If the lemmas do not apply to these givens.

    Examples
    --------
    >>> p = rs.paper.plan(3, 4, radius=3.0, lipschitz=1.5, separation=0.1, accuracy=0.05, failure=0.01)
    >>> p.holds, round(p.lg_ell2), p.lg_queries > 1e6  # more than a million digits
    (True, 35, True)
    """
    _check(dim, features, radius, lipschitz, separation, accuracy, failure)
    given = p = Problem(dim, features, radius, lipschitz, separation, accuracy, failure)
    outer: list[Inequality] = []
    lg_eta = lg_alpha = None
    if not bounded:
        p, lg_eta, outer = _remove_boundedness(p)
    lg_ell2, lg_D = _choose_response_scale(p)

    def eps_for(lg_ell: float) -> float:
        """Return lg ε of the largest ε that Lemma find-directions allows: 10³ε = ½Δ²/(10³ℓ¹⁰)."""
        return 2 * lg_D - 6 - math.log10(2) - 10 * lg_ell

    lg_ell1 = _smallest(lambda x: _all_hold(search_rows(p, x, lg_D, eps_for(x))), lg_ell2)
    lg_eps = eps_for(lg_ell1)
    rows = [*response_rows(p, lg_ell2, lg_D), *search_rows(p, lg_ell1, lg_D, lg_eps)]
    rows.append(Inequality("10ε ≤ Δ^0.8", "Lemma recover-function: value oracle", 1 + lg_eps, 0.8 * lg_D))
    lg_C2 = 2 * lg_ell1 - p.lg("d")
    lg_noise = math.log10(5 / 8) + lg_eps - p.lg("n")
    if lg_eta is not None:
        lg_noise, lg_alpha, more = _differences(p, lg_eta, lipschitz, lg_noise)
        outer += [*more, *_identifiability(given, lg_eta, lg_D)]
    lg_mass_calls, lg_value_calls, lg_m_mass, lg_m_value = _samples(p, lg_ell1, lg_C2, lg_D, lg_eps)
    runs = repetitions(0.1 * p.delta)
    mass = math.log10(2 * runs) + lg_m_mass
    values = lg_sum(mass + lg_mass_calls, lg_m_value + lg_value_calls)
    lg_m_average = None if lg_eta is None else _averages(given, lg_eta, lg_noise, values)
    # A value of the derivative is a difference of two values of g, each an average of values of f, for d directions.
    per_value = 0.0 if lg_m_average is None else math.log10(2 * p.d) + lg_m_average
    return Plan(
        problem=given,
        lg_ell1=lg_ell1,
        lg_ell2=lg_ell2,
        lg_C1=0.9 * lg_C2,
        lg_C2=lg_C2,
        lg_tau=1 + lg_eps + p.d / 2 * (math.log10(math.pi) + 2 * lg_ell1),
        lg_Delta=lg_D,
        lg_eps=lg_eps,
        lg_noise=lg_noise,
        lg_m_mass=lg_m_mass,
        lg_m_value=lg_m_value,
        lg_calls=lg_sum(lg_mass_calls, lg_value_calls),
        runs=runs,
        lg_queries=per_value + values,
        lg_queries_batched=per_value + lg_sum(mass + math.log10(max(p.d - 1, 1)), lg_m_value),
        lg_eta=lg_eta,
        lg_alpha=lg_alpha,
        lg_m_average=lg_m_average,
        inequalities=(*outer, *rows),
    )


def repetitions(delta: float = 0.01, success: float = 0.9) -> int:
    """Return how many runs make their majority right with probability ≥ 1−δ, by Hoeffding: exp(−2k(p−½)²) ≤ δ.

    Parameters
    ----------
    delta
        Failure probability δ of the vote.
    success
        Success probability p of one run; 0.9 in Lemma find-directions.

    Returns
    -------
    int
        Number of runs k, at least 1.

    Examples
    --------
    >>> rs.paper.repetitions(0.01)
    15
    """
    delta, success = arguments.share("delta", delta), arguments.share("success", success)
    if success <= 0.5:
        raise InvalidInput(f"success must exceed ½, or no majority is right; got {success}")
    return max(1, math.ceil(math.log(1 / delta) / (2 * (success - 0.5) ** 2)))


def _check(dim: int, features: int, *positive: float) -> None:
    """Raise InvalidInput unless the lemmas apply to these givens."""
    arguments.count("features", features)
    if arguments.count("dim", dim) < 3:
        raise InvalidInput(f"Lemma find-directions needs dim ≥ 3; got {dim}")
    names = ("radius", "lipschitz", "separation", "accuracy", "failure")
    radius, _, separation, accuracy, failure = (
        arguments.positive(name, value) for name, value in zip(names, positive, strict=True)
    )
    if radius < 1 or separation > 1 or accuracy >= 1 or failure >= 1:
        raise InvalidInput(
            "the lemmas ask for radius ≥ 1, separation ≤ 1, accuracy < 1 and failure < 1; got "
            + ", ".join(f"{name}={value}" for name, value in zip(names, positive, strict=True))
        )


def _all_hold(rows: Sequence[Inequality]) -> bool:
    """Return True if every row holds."""
    return all(row.holds for row in rows)


def _smallest(holds: Callable[[float], bool], start: float) -> float:
    """Return the smallest x ≥ start with holds(x), for a predicate that stays true once it is."""
    if holds(start):
        return start
    low, high = start, max(2 * start, start + 1.0)
    while not holds(high):
        low, high = high, 2 * high
        if high > _HOPELESS:
            raise InvalidInput("no parameters satisfy the inequalities; is the separation or the accuracy zero?")
    while high - low > _DIGITS * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _choose_response_scale(p: Problem) -> tuple[float, float]:
    """Return lg ℓ₂, the smallest, and lg Δ, the largest that goes with it."""

    def accuracy_for(lg_ell: float) -> float:
        """Return lg Δ of the largest Δ that satisfies every row which bounds it from above."""
        return -_smallest(lambda minus_lg: _all_hold(response_rows(p, lg_ell, -minus_lg, bounding_delta=True)), 1e-3)

    def works(lg_ell: float) -> bool:
        """Return True if every row holds at the best Δ for this ℓ₂."""
        return _all_hold(response_rows(p, lg_ell, accuracy_for(lg_ell)))

    lg_ell2 = _smallest(works, max(p.lg("R"), 0.1))
    return lg_ell2, accuracy_for(lg_ell2)


def _remove_boundedness(p: Problem) -> tuple[Problem, float, list[Inequality]]:
    """Return the bounded problem for (η/L)·⟨u, ∇g − ∇g(0)⟩, lg η and the rows: the reduction of Theorem
    main-learning."""
    cost = math.log10(p.R * math.sqrt(p.d) + 2 * math.sqrt(p.d) * p.n * p.L)
    lg_eta = min(p.lg("eps") - cost, math.log10(0.5))
    rows = [
        Inequality("R√d·η + 2√d·nLη ≤ ε′", "Theorem main-learning", cost + lg_eta, p.lg("eps")),
        Inequality("2L·η/L ≤ 1", "Theorem main-learning: |h| after rescaling", math.log10(2) + lg_eta, 0.0),
    ]
    inner = Problem(p.d, p.n, p.R, 1.0, p.gamma, 10 ** max(2 * lg_eta - p.lg("L"), -300.0), p.delta / p.d)
    return inner, lg_eta, rows


def _differences(p: Problem, lg_eta: float, L: float, lg_noise: float) -> tuple[float, float, list[Inequality]]:
    """Return lg ε of f itself, lg α = ½ lg ε and the rows for which differences of g serve as the bounded problem's
    oracle."""
    lg_L, where = math.log10(L), "Theorem main-learning: simulated derivative"

    def rows(lg_e: float) -> list[Inequality]:
        """Return the two rows for a given ε."""
        slope = lg_sum(math.log10(4) + lg_e / 2, p.lg("n") + lg_L + lg_e / 2 - lg_eta)
        left = math.log10(2) + lg_eta - lg_L + 0.4 * lg_e
        return [
            Inequality("4ε/α + nLα/η ≤ ε^0.4, α = ε^0.5", where, slope, 0.4 * lg_e),
            Inequality("2·(η/L)·ε^0.4 ≤ noise of Theorem weaker", where, left, lg_noise),
        ]

    lg_e = -_smallest(lambda x: _all_hold(rows(-x)), 1.0)
    return lg_e, lg_e / 2, rows(lg_e)


def _identifiability(p: Problem, lg_eta: float, lg_D: float) -> list[Inequality]:
    """Return the rows of Corollary identifiability, for the givens p of f itself.

    If σ is ε′ or more from affine on [−R, R], its smoothing by η is ε′ − Lη or more from affine, so its slope varies by
    2(ε′ − Lη)/R or more: a slope within w/2 of c keeps σ within wR/2 of a line of slope c. One of e_1 … e_d has
    |⟨e_k, v_i⟩| ≥ 1/√d, and ρ_i times η/L is (R, Δ)-nondegenerate if that is at least Δ.
    """
    bend = p.eps - p.L * 10**lg_eta
    varies = lg_eta - p.lg("L") + math.log10(2 * max(bend, 1e-300)) - p.lg("R") - p.lg("d") / 2
    where = "Corollary identifiability"
    return [
        Inequality("Δ ≤ ε′", where, lg_D, p.lg("eps")),
        Inequality("Δ ≤ (η/L)·2(ε′ − Lη)/(R√d)", where, lg_D, varies),
    ]


def _averages(p: Problem, lg_eta: float, lg_noise: float, lg_values: float) -> float:
    """Return lg of the values of f averaged for one value of g, so that each is within ε with probability 1 − δ′.

    f is nL-Lipschitz, so f(x + ηz) is sub-Gaussian with parameter nLη (Hoeffding would need a bounded f), and
    k = 2(nLη)² log(2/δ′)/ε² values suffice, δ′ = 0.1δ² shared among the d differences of two values of g each.
    """
    log_fail = math.log(2) + (math.log10(2 * p.d) + lg_values - (math.log10(0.1) + 2 * p.lg("delta"))) * LN10
    return max(0.0, math.log10(2 * log_fail) + 2 * (p.lg("n") + p.lg("L") + lg_eta - lg_noise))


def _samples(p: Problem, lg_ell1: float, lg_C2: float, lg_D: float, lg_eps: float) -> tuple[float, float, float, float]:
    """Return the logarithms of the calls of the mass and of the value oracle, from the grids, and of the samples of
    each call, from Corollary concentration and Claim val-concentration."""
    n, root = p.lg("n"), lg_C2 / 2
    plane = math.log10(math.pi) + 2 * (1 + 2 * lg_ell1 + root)
    lines = math.log10(2) + 2 * lg_ell1 + 0.5 + root
    lg_mass_calls = plane + math.log10(max(p.d - 2, 1)) + lines
    lg_value_calls = n + math.log10(2) - 1.1 * lg_D
    lg_fail = math.log10(0.1) + 2 * p.lg("delta")
    log_mass = math.log(8) + (lg_mass_calls - lg_fail) * LN10
    log_value = math.log(8) + (lg_value_calls - lg_fail) * LN10
    # |f| ≤ n asks for 8n²·√(2 log(8/δ′)/m) ≤ 5ε of masses and 4n·√(2 log(8/δ′)/m) ≤ Δ^0.8/2 of values.
    lg_m_mass = math.log10(2 * log_mass) + 2 * (math.log10(8 / 5) + 2 * n - lg_eps)
    lg_m_value = math.log10(2 * log_value) + 2 * (math.log10(8) + n - 0.8 * lg_D)
    return lg_mass_calls, lg_value_calls, lg_m_mass, lg_m_value
