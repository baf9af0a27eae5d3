"""Every check of the paper's formulas fails when its formula is replaced by a wrong one.

A mutant is a piece of the source of one function and what to put in its place. The function is compiled again with it
and put wherever `ridgescope.paper` uses it; then the check must fail. So no check can pass for code that is wrong in
the ways listed here, and a mutant whose piece is no longer in the source is an error.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from importlib import import_module

import pytest

import paper_checks

MUTANTS = [
    # Algorithms 1 and 3
    ("mass", "est_weight", "frozen(mean)", "frozen(0 * mean)", "mass_within_its_bound"),
    ("mass", "window_factor", "4 * ell**2", "2 * ell**2", "mass_within_its_bound"),
    ("mass", "draw_pairs", "math.sqrt(2) * g", "2 * g", "mass_within_its_bound"),
    ("mass", "concentration_bound", "8 * (eps", "0.8 * (eps", "mass_within_its_bound"),
    ("mass", "concentration_bound", "eps + ", "0 * eps + ", "mass_within_its_bound"),
    ("mass", "concentration_bound", "/ m)", "/ m**2)", "mass_fluctuates_within_its_bound"),
    ("mass", "concentration_bound", "/ m)", ")", "mass_fluctuates_within_its_bound"),
    ("response", "est_value", "mean = total / m", "mean = 0 * total / m", "value_within_its_bound"),
    ("response", "est_value", "d * math.log(ell)", "math.log(ell)", "value_within_its_bound"),
    ("response", "value_bound", "4 * (eps", "0.4 * (eps", "value_within_its_bound"),
    ("response", "value_bound", "eps + ", "0 * eps + ", "value_within_its_bound"),
    ("response", "derivative_factor", ") / alpha", ")", "differences_multiply_waves_by_their_factor"),
    (
        "response",
        "derivative_factor",
        "(np.exp(1j * alpha * np.outer(t, u)) - 1) / alpha",
        "1j * np.outer(t, u)",
        "differences_multiply_waves_by_their_factor",
    ),
    # All pairs
    ("all_pairs", "Slice.less_diagonal", "- self.power", "", "all_pairs_are_unbiased"),
    ("all_pairs", "Slice.less_diagonal", "- self.power", "- 2 * self.power", "all_pairs_are_unbiased"),
    ("all_pairs", "Slice.pairs", "(len(self.x) - 1)", "len(self.x)", "all_pairs_have_their_variance"),
    ("all_pairs", "scale_of", "math.sqrt(float(np.prod(K)))", "float(np.prod(K))", "all_pairs_are_unbiased"),
    ("all_pairs", "scale_of", "** len(K)", "", "all_pairs_are_unbiased"),
    ("all_pairs", "slices", "ell / math.sqrt(2) *", "ell *", "all_pairs_are_unbiased"),
    ("all_pairs", "slices", "x = ell *", "x = 0.9 * ell *", "all_pairs_are_unbiased"),
    ("all_pairs", "_kernel", "-K *", "-2 * K *", "all_pairs_are_unbiased"),
    ("all_pairs", "_average_over_draws", "np.sqrt(2 * K)", "np.sqrt(K)", "all_pairs_are_unbiased"),
    ("all_pairs", "noise_of", "** -0.5))\n    random", "** -0.25))\n    random", "all_pairs_have_their_variance"),
    ("all_pairs", "noise_of", "(1 - 1 / draws) * random", "random", "all_pairs_have_their_variance"),
    ("all_pairs", "noise_of", "/ len(piece.x)", "", "all_pairs_have_their_variance"),
    ("all_pairs", "Spread.mass", "/ (self.count - 1)", "/ self.count**2", "all_pairs_state_their_error"),
    ("all_pairs", "Spread.mass", "/ self.count**2", "/ self.count", "all_pairs_have_their_variance"),
    # Section basic-properties
    ("lemmas", "truncation_error", "2 * L * math", "0.2 * L * math", "truncation_error_is_bounded"),
    ("lemmas", "truncation_error", "math.sqrt(B)", "B**2", "truncation_error_is_bounded"),
    ("lemmas", "nondegen_fourier", "(8 * R)", "(0.8 * R)", "nondegenerate_responses_have_power"),
    ("lemmas", "nonzero_weight_region", "(8 * R", "(8e-4 * R", "nondegenerate_responses_have_power"),
    ("lemmas", "nonzero_weight_region", "R * ell**2", "R * ell", "nondegenerate_responses_have_power"),
    ("lemmas", "band", "eps / 8", "eps / 4", "nondegenerate_responses_have_power"),
    ("lemmas", "band", "4 * ell", "2 * ell", "nondegenerate_responses_have_power"),
    ("lemmas", "nondegenerate", ">= eps", ">= eps / 2", "nondegenerate_responses_have_power"),
    ("lemmas", "nondegenerate", "np.linspace(-R, R", "np.linspace(-1, 1", "nondegenerate_responses_have_power"),
    ("lemmas", "lipschitz_fourier", "ell**2", "ell", "transforms_have_their_slope"),
    ("lemmas", "lipschitz_fourier", "ell**2", "0.7 * ell**2", "transforms_have_their_slope"),
    ("lemmas", "lipschitz_fourier_many", "(d + 1)", "d", "transforms_have_their_slope"),
    # Section freq-finding
    ("weights", "where_zero", "-(ell**2) * D2 / (ell**2 + norm)", "-D2", "where_weight_is_negligible"),
    ("weights", "where_zero", "n**2", "n", "where_weight_is_negligible"),
    ("weights", "where_zero", "D2 / (ell", "1.5 * D2 / (ell", "where_weight_is_negligible"),
    ("weights", "where_zero", "ell**d * math", "ell**d * 1e2 * math", "where_weight_is_negligible"),
    ("weights", "_outside", "(d - 1) / 2))", "d / 2))", "where_weight_is_not_negligible"),
    ("weights", "_outside", "(2 * d - 2)", "(2 * d)", "where_weight_is_not_negligible"),
    ("weights", "mass_along_line", "-alpha", "-2 * alpha", "where_weight_is_not_negligible"),
    ("weights", "best_in_band", "(4 * (1", "(0.4 * (1", "where_weight_is_not_negligible"),
    ("weights", "best_in_band", "B * math.sqrt(alpha)", "B", "where_weight_is_not_negligible"),
    ("weights", "leakage", "/ (ell**2 + alpha)", "", "where_weight_is_not_negligible"),
    ("weights", "leakage", "math.sqrt(math.pi)", "0.3", "where_weight_is_not_negligible"),
    ("weights", "where_nonzero_bound", "(64 * n", "(64e-6 * n", "where_weight_is_not_negligible"),
    ("weights", "where_nonzero_bound", "gamma**2", "gamma", "where_weight_is_not_negligible"),
    ("weights", "where_nonzero_bound", "kept - leaked", "kept", "where_weight_is_not_negligible"),
    ("lemmas", "separating", ".min()) * math.sqrt(d)", ".min())", "bases_are_as_separating_as_defined"),
    ("lemmas", "separating", "d * float(cross", "float(cross", "bases_are_as_separating_as_defined"),
    ("lemmas", "separating", "np.abs(p[i, 0]", "(p[i, 0]", "bases_are_as_separating_as_defined"),
    ("lemmas", "separation_of_bases", "** 3", "** 2", "random_bases_separate"),
    ("lemmas", "union_bound", "10 * theta", "0.1 * theta", "random_bases_separate"),
    ("lemmas", "not_separating", "/ trials", "", "random_bases_separate"),
    ("lemmas", "anticoncentration", "1 / (10 * n)", "-1 / (10 * n)", "random_bases_separate"),
    ("weights", "good_point_weight", "0.3 *", "0.6 *", "weight_is_kept_at_a_grid_point"),
    ("weights", "good_point_weight", "-4 * C2", "-C2", "weight_is_kept_at_a_grid_point"),
    ("weights", "good_point_direction", "C1**-0.2", "C1**-0.3", "found_points_are_close"),
    ("weights", "good_point_direction", "C1**-0.2", "C1**-0.1", "found_points_are_close"),
    ("directions", "Widths.cut", "-0.3", "-0.6", "found_points_are_close"),
    ("directions", "Widths.reach", "10 * self.dim", "10", "widths_are_those_of_the_paper"),
    ("directions", "Widths.step", "10 * self", "20 * self", "widths_are_those_of_the_paper"),
    ("directions", "Widths.cut", "-0.3", "-0.6", "widths_are_those_of_the_paper"),
    ("directions", "Widths.diagonal", "K[-1] = self.C2", "K[-1] = self.C1", "widths_are_those_of_the_paper"),
    # Section function-recovery and Section remove-bounded
    ("lemmas", "fourier_point_closeness", "np.abs(t) *", "1.0 *", "one_line_at_a_time"),
    ("lemmas", "fourier_point_closeness", "n * ell ** (d + 1)", "0.1 * ell ** (d + 1)", "one_line_at_a_time"),
    ("lemmas", "fourier_point_closeness", "gamma2 / 2", "gamma2", "one_line_at_a_time"),
    ("lemmas", "_sine2", "** 2", "", "one_line_at_a_time"),
    ("reduction", "rho_size", "c * smoothed", "2 * c * smoothed", "derivatives_are_bounded_and_smooth"),
    ("reduction", "rho_size", "c * smoothed", "0 * smoothed", "derivatives_are_bounded_and_smooth"),
    ("reduction", "rho_slope", "L / eta", "L", "derivatives_are_bounded_and_smooth"),
    ("reduction", "rho_slope", "_NODES) / eta", "_NODES)", "derivatives_are_bounded_and_smooth"),
    ("reduction", "smoothing_error", "math.sqrt(d) * n * L * eta", "n * L", "derivatives_are_bounded_and_smooth"),
    ("reduction", "smoothing_error", "2 * math", "0.2 * math", "derivatives_are_bounded_and_smooth"),
    ("reduction", "difference_error", "* alpha / eta)", "* alpha)", "derivatives_are_bounded_and_smooth"),
    ("reduction", "difference_error", "* alpha / eta)", "/ eta)", "derivatives_are_bounded_and_smooth"),
    ("reduction", "difference_error", "* alpha / eta)", "* 0.1 * alpha / eta)", "derivatives_are_bounded_and_smooth"),
    (
        "identifiability",
        "identify",
        "if b >= accuracy",
        "if b >= 0 * accuracy",
        "features_within_the_accuracy_are_affine",
    ),
    # plan
    ("plan", "_remove_boundedness", "2 * lg_eta - ", "lg_eta - ", "rows_of_the_reduction"),
    ("plan", "_remove_boundedness", "p.delta / p.d", "p.delta", "rows_of_the_reduction"),
    ("plan", "_differences", "lg_e, lg_e / 2, rows", "lg_e, lg_e / 4, rows", "rows_of_the_reduction"),
    ("plan", "_identifiability", '- p.lg("d") / 2', '- p.lg("d")', "rows_of_the_reduction"),
    ("plan", "_averages", '2 * (p.lg("n")', '(p.lg("n")', "rows_of_the_reduction"),
    ("plan", "_averages", "math.log10(2 * log_fail)", "math.log10(2)", "rows_of_the_reduction"),
    ("plan", "_samples", "2 * n - lg_eps", "n - lg_eps", "samples_of_the_oracles"),
    ("plan", "_samples", "0.8 * lg_D", "0.4 * lg_D", "samples_of_the_oracles"),
    ("plan", "repetitions", "(2 * (success", "(4 * (success", "samples_of_the_oracles"),
]
"""Module, function, what its source has, what takes its place, and the check that then fails."""


def put_mutant(monkeypatch: pytest.MonkeyPatch, module_name: str, path: str, old: str, new: str) -> None:
    """Compile a function again with `old` replaced by `new`, and put it wherever the package or the checks have it."""
    module = import_module(f"ridgescope.paper.{module_name}")
    *outer, name = path.split(".")
    owner = getattr(module, outer[0]) if outer else module
    original = vars(owner)[name]
    source = textwrap.dedent(inspect.getsource(getattr(original, "fget", original)))
    assert old in source, f"{path} no longer has {old!r}"
    code = compile(source.replace(old, new), module.__file__, "exec", __future__.annotations.compiler_flag)
    made: dict[str, object] = {}
    exec(code, vars(module), made)
    monkeypatch.setattr(owner, name, made[name])
    for other in [m for key, m in sys.modules.items() if key.startswith("ridgescope.paper")]:
        for key, value in list(vars(other).items()):
            if value is original:
                monkeypatch.setattr(other, key, made[name])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m[0]}.{m[1]}: {m[2]} → {m[3]}")
def test_a_wrong_formula_fails_its_check(mutant: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    put_mutant(monkeypatch, *mutant[:4])
    with pytest.raises((AssertionError, ValueError)):  # the root of a negative number fails, too
        getattr(paper_checks, mutant[4])()


ROWS = [
    ("response_rows", "rows_of_the_responses", old, new)
    for old, new in [
        ("lg_sum(0.04 * lg_D", "lg_sum(0.08 * lg_D"),
        ("2 * two + 0.9 * lg_D", "2 * two + 0.8 * lg_D"),
        ("math.log10(5) - 0.7", "math.log10(5) - 0.8"),
        ("0.9 * lg_D, 0.8 * lg_D", "0.8 * lg_D, 0.8 * lg_D"),
        ("2 * gamma - two", "gamma - two"),
        ("lg_exp_minus(0.1 * lg_ell)", "lg_exp_minus(0.05 * lg_ell)"),
        ("math.log10(8) + 0.7", "math.log10(4) + 0.7"),
        ("(two + lg_ell) / 2", "(two + lg_ell)"),
        ('0.03 * lg_D),\n        (False, "20', '0.02 * lg_D),\n        (False, "20'),
        ("math.log10(20) + n + R", "math.log10(20) + n"),
        ("two + lg_sum(0.6", "lg_sum(0.6"),
        ("L + R + lg_D", "L + lg_D"),
    ]
] + [
    (function, "rows_of_the_search", old, new)
    for function, old, new in [
        ("_weight_rows", "20 * (p.R + p.L)", "10 * (p.R + p.L)"),
        ("_weight_rows", "math.log10(16) + 2 * log_B", "math.log10(16) + log_B"),
        ("_weight_rows", "math.log10(4) + lg_ell + log_B", "lg_ell + log_B"),
        ("_weight_rows", "lg_B, 2 * lg_ell - two", "lg_B, 2 * lg_ell"),
        ("_weight_rows", "2 * lg_D - 3 - 10", "2 * lg_D - 3 - 5"),
        ("_weight_rows", "-2 / LN10", "-1 / LN10"),
        ("_weight_rows", "2 * two + (2 * lg_ell - d)", "two + (2 * lg_ell - d)"),
        ("_weight_rows", "16 * (p.d + 4)", "16 * (p.d + 1)"),
        ("_weight_rows", "lg_exp_minus(0.2 * lg_ell)", "lg_exp_minus(0.1 * lg_ell)"),
        ("_weight_rows", "3 + lg_eps", "lg_eps"),
        ("_recursion_rows", "0.9 * C2", "0.8 * C2"),
        ("_recursion_rows", "two - 0.6 * C1", "two - 0.3 * C1"),
        ("_recursion_rows", "6 * math.log10(20", "3 * math.log10(20"),
        ("_recursion_rows", "gamma - 3 * math", "gamma - 2 * math"),
        ("_recursion_rows", "4 * p.d * p.d / (p.d + 1)", "4 * p.d"),
        ("_recursion_rows", "2 * n - math.log10(40)", "n - math.log10(40)"),
        ("_recursion_rows", "-0.3 * C1 + 2 * theta", "-0.3 * C1 + theta"),
        ("_recursion_rows", "+ d / 2 - theta, two + r", "- theta, two + r"),
        ("_recursion_rows", "spacing = -(1 + d + C1) / 2", "spacing = -(1 + C1) / 2"),
        ("_recursion_rows", "-(math.log10(5) + d + C1) / 2", "-(math.log10(10) + d + C1) / 2"),
        ("_recursion_rows", "0.3 * C1,\n            -0.2 * C1", "0.3 * C1,\n            -0.4 * C1"),
        ("_recursion_rows", "log_term - C1, -0.8 * C1", "log_term - C1, -0.4 * C1"),
        ("_lg_chord", "math.sqrt(1 - sine2)", "(1 - sine2)"),
        ("_recursion_rows", "_lg_chord(-0.1", "_lg_chord(-0.2"),
        ("_recursion_rows", "two - 0.1 * C1", "two - 0.2 * C1"),
    ]
]
"""Function of `inequalities`, the check that fails, what the source has, and what takes its place."""


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r[0]}: {r[2]} → {r[3]}".replace("\n", " "))
def test_a_wrong_row_of_the_plan_fails_its_check(row: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    function, check, old, new = row
    put_mutant(monkeypatch, "inequalities", function, old, new)
    monkeypatch.setattr(paper_checks, "response_rows", import_module("ridgescope.paper.inequalities").response_rows)
    with pytest.raises(AssertionError):
        getattr(paper_checks, check)()


def test_every_check_has_a_mutant() -> None:
    used = {mutant[4] for mutant in MUTANTS} | {row[1] for row in ROWS}
    assert used == {check.__name__ for check in paper_checks.CHECKS}
