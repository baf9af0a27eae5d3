"""The one door to the function: shapes, budgets, reach, bad answers, batches, executors."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import re
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import ridgescope as rs
from made import sometimes_nan
from ridgescope.oracle import Oracle, as_oracle, rowwise
from ridgescope.oracle.batching import MEMORY, Route, ask_in_batches, batch_size, cuts

finite = st.floats(-1e6, 1e6, allow_nan=False)


def total(X):
    """Scalar, sum over coordinates: its bits do not depend on the batch."""
    return np.array([float(np.sum(x)) for x in X])


def pair(X):
    return np.stack([total(X), total(X) ** 2], axis=1)


def processes(count):
    """A pool that starts its workers afresh, as some systems always do."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def points(count, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim))


class Spy:
    """Remembers every row it was asked, and in which batches."""

    def __init__(self, function=total):
        self.function, self.batches, self.lock = function, [], threading.Lock()

    def __call__(self, X):
        with self.lock:
            self.batches.append(X.copy())
        return self.function(X)

    @property
    def rows(self):
        return sum(len(b) for b in self.batches)


# -- shapes --------------------------------------------------------------------------------------------------


@given(m=st.integers(0, 40), dim=st.integers(1, 6), p=st.one_of(st.none(), st.integers(1, 4)))
def test_answers_are_rows_of_float64(m, dim, p):
    def f(X):
        return X.sum(axis=1) if p is None else np.tile(X.sum(axis=1)[:, None], (1, p))

    ask = Oracle(f, dim=dim)
    ask(np.zeros((1, dim)))
    values = ask(points(m, dim))
    assert values.shape == (m, p or 1)
    assert values.dtype == np.float64
    assert ask.outputs == (p or 1)
    assert ask.scalar is (p is None)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8, np.bool_])
def test_every_real_type_is_an_answer(dtype):
    ask = Oracle(lambda X: np.ones(len(X), dtype=dtype), dim=2)
    assert (ask(points(5, 2)) == 1.0).all()


@pytest.mark.parametrize(
    ("query", "what"), [(np.zeros(3), r"shape \(3,\)"), (np.zeros((2, 4)), r"shape \(2, 4\)"), (1.0, "shape")]
)
def test_a_query_of_the_wrong_shape_is_refused(query, what):
    with pytest.raises(rs.InvalidInput, match=rf"\(m, 3\) array; got {what}"):
        Oracle(total, dim=3)(query)


def test_a_query_that_is_not_finite_is_refused():
    with pytest.raises(rs.InvalidInput, match=r"coordinate that is not finite: .*nan"):
        Oracle(total, dim=2)([[0.0, np.nan]])


# -- counting and the budget ---------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=12),
    limit=st.integers(0, 60),
)
def test_the_budget_is_never_exceeded_by_one_query(sizes, limit):
    spy = Spy()
    ask = Oracle(spy, dim=2, max_queries=limit, batch=7)
    by_stage: dict[str, int] = {}
    for stage, m in sizes:
        fits = sum(by_stage.values()) + m <= limit
        if fits:
            ask(np.zeros((m, 2)), stage=stage)
            by_stage[stage] = by_stage.get(stage, 0) + m
        else:
            before = spy.rows
            with pytest.raises(rs.BudgetExhausted):
                ask(np.zeros((m, 2)), stage=stage)
            assert spy.rows == before, "the budget error must come before anything is asked"
        assert spy.rows == ask.queries == sum(by_stage.values()) <= limit
        assert ask.remaining == limit - ask.queries
    assert {k: v for k, v in ask.queries_by_stage.items() if v} == {k: v for k, v in by_stage.items() if v}


def test_the_budget_message_names_the_stage_the_numbers_and_the_remedy():
    ask = Oracle(total, dim=2, max_queries=1500)
    ask(np.zeros((1200, 2)), stage="survey")
    with pytest.raises(rs.BudgetExhausted) as caught:
        ask(np.zeros((1000, 2)), stage="slices")
    assert str(caught.value) == (
        "stage 'slices' wanted 1,000 more queries, but 1,200 of max_queries=1,500 are spent; "
        "nothing more was asked. Raise max_queries, or loosen the tolerance."
    )
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.asked, again.wanted, again.limit, again.stage) == (1200, 1000, 1500, "slices")
    assert str(again) == str(caught.value)


def test_the_budget_holds_when_threads_ask_at_once():
    spy = Spy()
    ask = Oracle(spy, dim=1, max_queries=100)

    def one(_):
        try:
            ask(np.zeros((7, 1)))
        except rs.BudgetExhausted:
            return 0
        return 7

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(50))) == ask.queries == spy.rows == 98


def test_without_a_budget_the_rest_is_infinite():
    assert Oracle(total, dim=1).remaining == np.inf


def test_counted_is_a_plain_function_of_one_stage():
    ask = Oracle(total, dim=2)
    ask.counted("fit")(np.zeros((3, 2)))
    assert ask.queries_by_stage == {"fit": 3}


# -- reach ---------------------------------------------------------------------------------------------------


def test_nothing_is_asked_beyond_reach():
    spy = Spy()
    ask = Oracle(spy, dim=2, reach=2.0, center=[5.0, 5.0])
    ask([[2.0, 0.0], [0.0, -2.0]])
    with pytest.raises(rs.ReachExceeded, match=r"stage 'kinks' .* at distance 2\.1.*, beyond reach=2\. .*report"):
        ask([[0.0, 0.0], [2.1, 0.0]], stage="kinks")
    assert spy.rows == ask.queries == 2


# -- bad answers ---------------------------------------------------------------------------------------------


def row_in(message: str) -> list[float]:
    """The input row that a message shows, read back."""
    return json.loads(re.search(r"input row (\[[^\]]*\])", message).group(1))


@given(row=arrays(np.float64, 3, elements=st.floats(-1e9, 1e9)), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_an_answer_that_is_not_finite_shows_the_exact_row(row, bad):
    X = np.vstack([np.full((4, 3), -2e9), row, np.full((2, 3), -2e9)])
    ask = Oracle(lambda X: np.where(X[:, 0] > -1.5e9, bad, 1.0), dim=3)
    with pytest.raises(rs.BadAnswer) as caught:
        ask(X)
    message = str(caught.value)
    assert row_in(message) == row.tolist()
    assert f"answered {float(bad)!r} at" in message
    assert "1 of 7 answers" in message
    assert 'on_bad="drop"' in message


def test_the_row_shown_is_what_the_function_saw():
    ask = Oracle(sometimes_nan, dim=2, center=[1.0, 2.0], scale=[10.0, 0.1])
    with pytest.raises(rs.BadAnswer) as caught:
        ask([[0.5, 0.5]])
    assert row_in(str(caught.value)) == [6.0, 2.05]


@pytest.mark.parametrize(
    ("answers", "row", "says"),
    [
        (lambda X: X[:, 0] + 1j, 0, ["complex numbers", "(1+1j)", "real part"]),
        (lambda X: ["yes"] * len(X), 0, ["text", "'yes'", "float array"]),
        (lambda X: [1.0, "no", 2.0], 1, ["text", "'no'", "float array"]),
        (lambda X: [b"1"] * len(X), 0, ["bytes", "b'1'"]),
        (lambda X: [1.0, 2.0, None], 2, ["Python objects", "None", "float array"]),
        (lambda X: np.array([[1.0, 2.0], [1.0, {}], [0.0, 0.0]], dtype=object), 1, ["objects", "[1.0, {}]"]),
        (lambda X: np.array([0.5, 1.0, 1.5], dtype=object), 0, ["Python objects", "0.5", "float array"]),
        (lambda X: None, 0, ["Python objects", "None"]),
        (lambda X: {"y": 1.0}, 0, ["Python objects", "{'y': 1.0}"]),
        (lambda X: np.zeros(len(X), dtype="datetime64[s]"), 0, ["datetime64", "real numbers"]),
    ],
)
def test_an_answer_of_the_wrong_type_shows_row_answer_and_remedy(answers, row, says):
    X = np.array([[1.0, 0.1], [2.0, 0.2], [3.0, 0.30000000000000004]])
    with pytest.raises(rs.BadAnswer) as caught:
        Oracle(answers, dim=2)(X)
    message = str(caught.value)
    assert row_in(message) == X[row].tolist()
    assert all(part in message for part in [*says, "(m,) or (m, p)"]), message


@pytest.mark.parametrize(
    ("answers", "shape"),
    [
        (lambda X: 7.0, "()"),
        (lambda X: np.zeros(2), "(2,)"),
        (lambda X: np.zeros((3, 0)), "(3, 0)"),
        (lambda X: np.zeros((1, 3)), "(1, 3)"),
        (lambda X: np.zeros((3, 1, 1)), "(3, 1, 1)"),
    ],
)
def test_an_answer_of_the_wrong_shape_says_what_was_expected(answers, shape):
    with pytest.raises(rs.BadAnswer) as caught:
        Oracle(answers, dim=2)([[0.1, 0.2], [1.0, 1.0], [2.0, 2.0]])
    message = str(caught.value)
    assert f"answered shape {shape} for 3 input rows; expected (3,) or (3, p)" in message
    assert "First input row [0.1, 0.2], answer" in message
    assert "rs.oracle.rowwise(f)" in message


def test_ragged_answers_are_shown():
    with pytest.raises(rs.BadAnswer, match=r"\[\[1\.0\], \[1\.0, 2\.0\]\].*first input row \[0\.5\].*float array"):
        Oracle(rowwise(lambda x: [1.0] if x[0] < 1 else [1.0, 2.0]), dim=1)([[0.5], [1.5]])


def test_the_number_of_outputs_may_not_change():
    ask = Oracle(lambda X: np.zeros((len(X), 2 + (X[0, 0] > 0))), dim=1)
    ask([[-1.0]])
    with pytest.raises(
        rs.BadAnswer,
        match=r"2 numbers per row before and now answers 3 numbers .* row \[0\.25\].*same number",
    ):
        ask([[0.25]])


def test_a_function_that_raises_is_named_with_its_row():
    def f(X):
        raise KeyError("no such neuron")

    with pytest.raises(rs.OracleFailed, match=r"KeyError: 'no such neuron' .* 2 rows, .*\[0\.1, 0\.2\].*rowwise") as c:
        Oracle(f, dim=2)([[0.1, 0.2], [0.0, 0.0]])
    assert isinstance(c.value.__cause__, KeyError)


def test_an_error_of_ours_from_inside_the_function_is_passed_on():
    inner = Oracle(total, dim=2, max_queries=3)
    with pytest.raises(rs.BudgetExhausted, match="stage 'other' wanted 4 more"):
        Oracle(inner, dim=2)(np.zeros((4, 2)))


def test_an_interrupt_is_not_swallowed():
    def f(X):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Oracle(f, dim=1)([[0.0]])


@given(X=arrays(np.float64, (25, 2), elements=finite), batch=st.integers(1, 30))
def test_dropped_answers_become_nan_rows_and_are_counted(X, batch):
    ask = Oracle(sometimes_nan, dim=2, on_bad="drop", batch=batch)
    values = ask(X)
    bad = X[:, 0] > 0
    assert np.array_equal(np.isnan(values[:, 0]), bad)
    assert np.array_equal(values[~bad, 0], X[~bad, 0])
    assert ask.dropped == bad.sum()
    assert ask.queries == 25, "a dropped answer was paid for"


def test_one_bad_output_drops_the_whole_row():
    ask = Oracle(lambda X: np.stack([X[:, 0], np.full(len(X), np.inf)], axis=1), dim=1, on_bad="drop")
    assert np.isnan(ask([[1.0]])).all()
    assert ask.largest == 0.0


def test_dropping_does_not_excuse_a_wrong_type():
    with pytest.raises(rs.BadAnswer, match="text"):
        Oracle(lambda X: ["?"] * len(X), dim=1, on_bad="drop")([[0.0]])


# -- batches and executors -----------------------------------------------------------------------------------


@given(m=st.integers(1, 70), batch=st.integers(1, 80))
def test_batches_cover_every_row_once_and_in_order(m, batch):
    X = points(m, 3)
    spy = Spy(pair)
    ask = Oracle(spy, dim=3, batch=batch)
    assert ask(X).tobytes() == pair(X).tobytes()
    assert np.array_equal(np.concatenate(spy.batches), X)
    assert max(map(len, spy.batches)) <= batch


@given(count=st.integers(0, 100), batch=st.integers(1, 120))
def test_cuts_partition_the_rows(count, batch):
    pieces = [range(count)[c] for c in cuts(count, batch)]
    assert [i for piece in pieces for i in piece] == list(range(count))
    assert all(len(piece) == batch for piece in pieces[:-1])


@pytest.mark.parametrize("case", ["small", "noisy", "vector"])
@pytest.mark.parametrize("batch", [1, 7, 256, 1000])
def test_a_planted_target_gives_the_same_bits_in_any_batch(case, batch):
    target = rs.targets.CASES[case].make(3, noise_kind="uniform")
    X = points(900, target.dim)
    assert Oracle(target, batch=batch)(X).tobytes() == Oracle(target)(X).tobytes()


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, processes])
def test_the_executor_changes_nothing(pool):
    target = rs.targets.planted(4, 6, noise=0.1, rng=1)
    X = points(500, 4)
    alone = Oracle(target, batch=64)
    expected = alone(X, stage="fit")
    with pool(2) as executor:
        ask = Oracle(target, batch=64, executor=executor)
        assert ask(X, stage="fit").tobytes() == expected.tobytes()
        assert ask.fresh().executor is executor
    for name in ("queries_by_stage", "outputs", "scalar", "rounding", "largest", "dropped"):
        assert getattr(ask, name) == getattr(alone, name)


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, processes])
def test_what_workers_see_is_counted_here(pool):
    X = points(100, 2)
    with pool(2) as executor:
        ask = Oracle(sometimes_nan, dim=2, batch=9, executor=executor, on_bad="drop")
        ask(X)
        assert ask.dropped == (X[:, 0] > 0).sum()
        with pytest.raises(rs.BadAnswer) as caught:
            Oracle(sometimes_nan, dim=2, batch=9, executor=executor)(X)
    assert row_in(str(caught.value)) == X[np.argmax(X[:, 0] > 0)].tolist()


def test_a_changing_shape_is_noticed_across_workers():
    with ThreadPoolExecutor(2) as executor:
        ask = Oracle(lambda X: np.zeros((len(X), 1 + int(X[0, 0]))), dim=1, batch=1, executor=executor)
        with pytest.raises(rs.BadAnswer, match="1 numbers per row before and now answers 2 numbers"):
            ask([[0.0], [1.0]])


def test_the_default_batch_stays_within_memory():
    for dim in (1, 20, 1000, 10**6):
        for outputs in (1, 50, 10**5):
            rows = batch_size(dim, outputs)
            assert rows >= 1
            assert rows == 1 or rows * (dim + outputs) * 8 <= MEMORY / 6


def test_a_wide_answer_is_met_with_a_short_first_question():
    spy = Spy(lambda X: np.zeros((len(X), 5000)))
    Oracle(spy, dim=2)(np.zeros((2000, 2)))
    assert spy.rows == 2000
    assert max(map(len, spy.batches)) * 5002 * 8 * 6 <= MEMORY


def test_ask_in_batches_checks_in_order():
    seen: list[int] = []

    def check(rows, answer):
        seen.append(int(rows[0, 0]))
        return answer

    X = np.arange(10.0)[:, None]
    with ThreadPoolExecutor(4) as executor:
        assert np.array_equal(ask_in_batches(lambda rows: rows, check, X, 1, Route(executor)), X)
    assert seen == list(range(10))


# -- coordinates, rounding, log-odds, gradients --------------------------------------------------------------


@given(
    U=arrays(np.float64, (6, 3), elements=st.floats(-10, 10)),
    center=arrays(np.float64, 3, elements=st.floats(-10, 10)),
    scale=arrays(np.float64, 3, elements=st.floats(0.01, 100)),
)
def test_the_function_sees_center_plus_scale_times_u(U, center, scale):
    spy = Spy()
    Oracle(spy, dim=3, center=center, scale=scale)(U)
    assert np.array_equal(spy.batches[0], center + scale * U)


def test_center_and_scale_are_copies_and_a_single_number_will_do():
    center = np.ones(2)
    ask = Oracle(total, dim=2, center=center, scale=2.0)
    center[:] = 99.0
    assert ask([[1.0, 1.0]])[0, 0] == 6.0


def test_the_rounding_of_float32_answers_is_known():
    ask = Oracle(lambda X: X[:, 0].astype(np.float32), dim=1)
    u = np.linspace(-100, 100, 999)[:, None]
    error = np.abs(ask(u)[:, 0] - u[:, 0])
    assert ask.rounding == np.finfo(np.float32).eps
    assert ask.resolution == np.finfo(np.float32).eps * 100
    assert 0 < error.max() <= ask.resolution
    assert Oracle(total, dim=1).rounding == np.finfo(np.float64).eps


@given(logits=arrays(np.float64, (8, 4), elements=st.floats(-8, 8)))
def test_log_odds_of_a_softmax_are_its_centred_logits(logits):
    odds = np.exp(logits)
    ask = Oracle(lambda X: odds / odds.sum(axis=1, keepdims=True), dim=1, output="log_odds")
    centred = logits - logits.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(ask(np.zeros((8, 1))), centred, atol=1e-12)


def test_log_odds_of_one_probability_are_its_logit():
    z = np.linspace(-5, 5, 21)
    for shape in ((21,), (21, 1)):
        ask = Oracle(lambda X, shape=shape: (1 / (1 + np.exp(-z))).reshape(shape), dim=1, output="log_odds")
        np.testing.assert_allclose(ask(np.zeros((21, 1)))[:, 0], z, atol=1e-12)
        assert ask.scalar is (shape == (21,))


@pytest.mark.parametrize("answer", [[0.5, 0.6], [-0.1, 1.1], [3.0, -2.0]])
def test_log_odds_of_something_else_is_refused(answer):
    ask = Oracle(lambda X: np.tile(answer, (len(X), 1)), dim=1, output="log_odds")
    with pytest.raises(rs.BadAnswer) as caught:
        ask([[0.125]])
    assert "needs probabilities" in str(caught.value)
    assert f"input row [0.125] got {answer}" in str(caught.value)
    assert 'output="raw"' in str(caught.value)


def test_a_certain_probability_has_no_log_odds():
    def f(X):
        return np.tile([1.0, 0.0], (len(X), 1))

    with pytest.raises(rs.BadAnswer, match=r"answered \[1\.0, 0\.0\] .* exactly 0 or 1 has no finite log-odds"):
        Oracle(f, dim=1, output="log_odds")([[0.0]])
    ask = Oracle(f, dim=1, output="log_odds", on_bad="drop")
    assert np.isnan(ask([[0.0]])).all()
    assert ask.dropped == 1


@pytest.mark.parametrize("vector", [False, True])
def test_gradients_are_with_respect_to_u(vector):
    W = points(3 if vector else 1, 2, seed=4)

    def f(X):
        y = np.sin(X @ W.T)
        return y if vector else y[:, 0]

    def df(X):
        g = np.cos(X @ W.T)[:, :, None] * W
        return g if vector else g[:, 0]

    ask = Oracle(f, dim=2, gradient=df, center=[1.0, -1.0], scale=[2.0, 0.5], batch=3)
    u, h = points(8, 2), 1e-6
    exact = ask.gradient(u, stage="curvature")
    assert exact.shape == (8, len(W), 2)
    assert ask.queries_by_stage == {"curvature": 8}
    for k in range(2):
        e = h * np.eye(2)[k]
        np.testing.assert_allclose(exact[:, :, k], (ask(u + e) - ask(u - e)) / (2 * h), atol=1e-8)


def test_gradients_keep_budget_reach_shape_and_finiteness():
    ask = Oracle(total, dim=2, gradient=lambda X: np.ones_like(X), max_queries=3, reach=1.0)
    assert ask.gradient(np.zeros((0, 2))).shape == (0, 1, 2)
    with pytest.raises(rs.BudgetExhausted):
        ask.gradient(np.zeros((4, 2)))
    with pytest.raises(rs.ReachExceeded):
        ask.gradient([[1.0, 1.0]])
    with pytest.raises(rs.BadAnswer, match=r"gradient answered shape \(1,\) for 1 rows; expected \(1, 2\)"):
        Oracle(total, dim=2, gradient=lambda X: np.ones(len(X))).gradient([[0.0, 0.0]])
    broken: dict[str, Any] = {"dim": 2, "gradient": lambda X: np.full_like(X, np.nan)}
    with pytest.raises(rs.BadAnswer, match=r"gradient answered \[\[nan, nan\]\] at input row \[0\.0, 0\.5\]"):
        Oracle(total, **broken).gradient([[0.0, 0.5]])
    dropping = Oracle(total, on_bad="drop", **broken)
    assert np.isnan(dropping.gradient([[0.0, 0.5]])).all()
    assert dropping.dropped == 1


def test_without_a_gradient_the_message_says_how_to_give_one():
    ask = Oracle(total, dim=2)
    assert not ask.has_gradient
    with pytest.raises(rs.InvalidInput, match="offers no gradient; pass gradient="):
        ask.gradient(np.zeros((1, 2)))


# -- does it repeat itself? ----------------------------------------------------------------------------------


def test_a_function_that_repeats_itself_is_known():
    ask = Oracle(total, dim=2)
    repeated = ask.repeats(points(20, 2), stage="survey")
    assert repeated == rs.oracle.Repeatability(deterministic=True, spread=0.0)
    assert ask.queries_by_stage == {"survey": 40}


def test_a_function_that_does_not_repeat_itself_is_known_with_its_spread():
    rng = np.random.default_rng(0)
    repeated = Oracle(lambda X: rng.normal(0.0, 0.5, len(X)), dim=1).repeats(np.zeros((4000, 1)))
    assert not repeated.deterministic
    assert repeated.spread == pytest.approx(0.5, rel=0.05)


def test_a_tiny_difference_is_a_difference():
    tick = iter([0.0, 5e-324])
    repeated = Oracle(lambda X: np.full(len(X), next(tick)), dim=1).repeats([[0.0]])
    assert not repeated.deterministic


def test_without_evidence_nothing_is_assumed():
    ask = Oracle(lambda X: np.full(len(X), np.nan), dim=1, on_bad="drop")
    assert not ask.repeats([[0.0]]).deterministic


# -- copies, pickles, wrappers -------------------------------------------------------------------------------


def test_an_oracle_survives_pickling_without_its_executor():
    with ThreadPoolExecutor(1) as executor:
        ask = Oracle(pair, dim=2, center=[1.0, 2.0], max_queries=50, executor=executor)
        ask(np.zeros((3, 2)), stage="survey")
        again = pickle.loads(pickle.dumps(ask))
    assert again.executor is None
    assert again.queries_by_stage == {"survey": 3}
    assert again([[1.0, 1.0]]).tolist() == [[5.0, 25.0]]


def test_fresh_starts_at_zero_and_leaves_the_old_one_alone():
    ask = Oracle(total, dim=2, max_queries=10)
    ask(np.zeros((10, 2)))
    with ThreadPoolExecutor(1) as executor:
        other = ask.fresh(center=[1.0, 1.0], reach=5.0, max_queries=20, executor=executor)
    assert (other.queries, other.max_queries, other.reach) == (0, 20, 5.0)
    assert (other.executor, ask.executor) == (executor, None)
    assert other([[0.0, 0.0]])[0, 0] == 2.0
    assert (ask.queries, ask.max_queries, ask.reach) == (10, 10, None)


def test_rowwise_takes_functions_of_one_row():
    f = rowwise(lambda x: x[0] * x[1], dim=2)
    X = points(10, 2)
    assert np.array_equal(Oracle(f)(X)[:, 0], X[:, 0] * X[:, 1])
    assert Oracle(rowwise(lambda x: x), dim=2)(X).shape == (10, 2)


def test_as_oracle_takes_anything_callable():
    target = rs.targets.planted(3, 2)
    assert as_oracle(target).dim == 3
    ask = as_oracle(total, dim=4)
    ask(np.zeros((5, 4)))
    again = as_oracle(ask)
    assert again.queries == 0
    assert again is not ask
    with pytest.raises(rs.InvalidInput, match="dim=5, but the oracle takes 4 coordinates"):
        as_oracle(ask, dim=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "dim is missing: say how many coordinates"),
        ({"dim": 0}, "dim must be a positive whole number, not 0"),
        ({"dim": 2.5}, r"dim must be a positive whole number, not 2\.5"),
        ({"dim": True}, "dim must be a positive whole number, not True"),
        ({"dim": 2, "center": [1.0]}, r"center must be 2 finite numbers; got \[1\.0\]"),
        ({"dim": 2, "center": "here"}, "center must be 2 finite numbers; got 'here'"),
        ({"dim": 2, "center": [0.0, np.inf]}, "center must be 2 finite numbers"),
        ({"dim": 2, "scale": [1.0, 0.0]}, r"scale must be positive in every coordinate; got 0\.0"),
        ({"dim": 2, "reach": -1.0}, r"reach must be a positive number, not -1\.0"),
        ({"dim": 2, "reach": "far"}, "reach must be a positive number, not 'far'"),
        ({"dim": 2, "max_queries": -1}, "max_queries must be a whole number, at least 0; got -1"),
        ({"dim": 2, "max_queries": 1.5}, r"max_queries must be a whole number, at least 0; got 1\.5"),
        ({"dim": 2, "max_queries": np.inf}, "max_queries must be a whole number, at least 0; got inf"),
        ({"dim": 2, "batch": 0}, "batch must be a whole number, at least 1; got 0"),
        ({"dim": 2, "on_bad": "ignore"}, 'on_bad must be "raise" or "drop", not \'ignore\''),
        ({"dim": 2, "output": "logits"}, 'output must be "raw" or "log_odds", not \'logits\''),
        ({"dim": 2, "output": "log_odds", "gradient": total}, "do not go together: let the function return"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, message):
    with pytest.raises(rs.InvalidInput, match=message):
        Oracle(total, **options)


def test_something_that_cannot_be_called_is_no_oracle():
    with pytest.raises(rs.InvalidInput, match=r"callable on an \(m, d\) array; got int: 3"):
        Oracle(3, dim=2)


def test_the_dimension_may_come_from_the_function_but_not_contradict_it():
    target = rs.targets.planted(3, 2)
    assert Oracle(target).dim == 3
    with pytest.raises(rs.InvalidInput, match="dim=4, but the function says that it takes 3 coordinates"):
        Oracle(target, dim=4)


def test_every_error_is_a_ridgescope_error():
    from ridgescope import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) == 8
    assert all(issubclass(kind, rs.RidgescopeError) and getattr(rs, kind.__name__) is kind for kind in kinds)


@pytest.mark.parametrize("value", [1e151, -1e200, 1.7e308])
def test_answers_whose_squares_overflow_are_bad_answers(value):
    X = np.ones((3, 2))

    def f(X):
        return np.array([[1.0, 2.0], [1.0, value], [3.0, 1e149]])

    with pytest.raises(rs.BadAnswer, match=r"answered .*e\+\d+ at input row .*Divide f by \d+e\+"):
        rs.oracle.Oracle(f, dim=2)(X)
    ask = rs.oracle.Oracle(f, dim=2, on_bad="drop")
    assert np.isnan(ask(X)).all(axis=1).tolist() == [False, True, False]
    assert (ask.dropped, ask.largest) == (1, 1e149)
