"""What rs.paper refuses, with an error that shows the value and its remedy, and what it does when told little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ridgescope import paper
from ridgescope.errors import BadAnswer, InvalidInput

U = np.array([1.0, 0.0])
RNG = np.random.default_rng(0)
SETTINGS = paper.Settings(
    ell=10.0, ell2=10.0, frequency=5.0, lowest=0.5, alpha=0.1, eta=0.01, samples=2000, most=2000, refine=2000
)


def f(X: np.ndarray) -> np.ndarray:
    return np.sin(2 * X[:, 0])


CALLS: dict[str, Callable[..., object]] = {
    "est_weight": partial(paper.est_weight, f=f, ell=5.0, v=U),
    "est_value": partial(paper.est_value, f=f, ell=5.0, y=U),
    "recover_response": partial(paper.recover_response, f=f, ell=5.0, u=U),
    "find_directions": partial(paper.find_directions, f=f, ell=10.0, dim=2),
    "find_subspace": partial(paper.find_subspace, f=f, dim=2),
    "survey": partial(paper.survey, f=f, dim=2),
    "learn": partial(paper.learn, f=f, dim=2),
    "learn_bounded": partial(paper.learn_bounded, f=f, dim=2),
    "identify": partial(paper.identify, f=f, dim=2),
    "solve": partial(paper.solve, f=f, dim=2),
    "separating": partial(paper.separating, directions=np.eye(2), basis=np.eye(2)),
    "vote": partial(paper.vote, runs=[np.eye(2)]),
    "repetitions": paper.repetitions,
    "plan": partial(paper.plan, dim=3, features=4),
}
"""Every function, called with what has no default."""


def test_every_function_is_here() -> None:
    assert set(CALLS) == {name for name in paper.__all__ if not isinstance(getattr(paper, name), type)}


@pytest.mark.parametrize("name", CALLS)
def test_defaults_suffice_and_repeat(name: str) -> None:
    options = {"additions": False} if name in ("learn", "learn_bounded", "identify", "solve") else {}  # which is faster
    one, two = (CALLS[name](**options) for _ in "ab")
    for field in ("directions", "scaled", "transform", "spectrum"):
        if hasattr(one, field):
            assert len(getattr(one, field)) > 0
            np.testing.assert_array_equal(getattr(one, field), getattr(two, field))


def taking(argument: str) -> list[str]:
    names = {
        "ell": ["est_weight", "est_value", "recover_response", "find_directions"],
        "m": ["est_weight", "est_value", "recover_response", "find_directions"],
        "radius": ["find_subspace", "survey", "learn", "learn_bounded", "identify", "solve", "plan"],
        "dim": ["find_directions", "find_subspace", "survey", "learn", "learn_bounded", "identify", "solve", "plan"],
    }
    return names.get(argument, [n for n in CALLS if n not in ("separating", "vote", "repetitions", "plan")])


BAD = [
    (name, argument, value, match)
    for argument, values, match in (
        ("ell", (-1.0, 0.0, float("nan"), "5"), "ell must be a positive number"),
        ("m", (0, -3, 1000.0, True), "m must be a whole number of at least 1"),
        ("radius", (-1.0, 0.0, float("inf"), None), "radius must be a positive number"),
        ("dim", (0, 2.0), "dim must be a whole number"),
        ("rng", (0, 7, np.random.RandomState(0)), "rng must be a numpy Generator"),
    )
    for value in values
    for name in taking(argument)
] + [
    ("recover_response", "u", [2.0, 0.0], "length is 2"),
    ("recover_response", "u", np.eye(2), "one unit vector"),
    ("recover_response", "t_high", -1.0, "t_high must be a positive number"),
    ("separating", "directions", [[1.0, 1.0]], "length is 1.414"),
    ("separating", "basis", np.eye(3), "as many numbers as directions"),
    ("vote", "runs", [np.eye(2), np.array([[3.0, 0.0]])], "length is 3"),
    ("vote", "runs", [np.eye(2), np.eye(3)], "one dimension"),
    ("vote", "angle", 0.0, "angle must lie strictly between 0 and 1"),
    ("vote", "quorum", 1.0, "quorum must be a share"),
    ("repetitions", "delta", 0.0, "delta must lie strictly between"),
    ("repetitions", "success", 0.4, "success must exceed"),
    ("est_weight", "A", np.eye(3), "so A must be finite and 2×2"),
    ("est_weight", "v", [np.nan, 0.0], "v must be finite"),
    ("est_value", "y", np.zeros((1, 2, 2)), "y must be finite numbers of shape"),
    ("find_directions", "frequency", -2.0, "frequency must be a positive"),
    ("find_directions", "basis", np.ones((2, 2)), "orthonormal"),
    ("find_directions", "separation", 0.0, "separation must be a positive"),
    ("survey", "noise", -1.0, "noise must be a number that is not negative"),
    ("survey", "share", 1.0, "share must lie"),
    ("survey", "lines", 0, "lines must be a whole number"),
    ("find_subspace", "points", 1.5, "points must be a whole number"),
    ("solve", "noise", -1.0, "noise must be a number"),
    ("solve", "separation", 2.0, "separation must lie"),
    ("identify", "accuracy", -0.1, "accuracy must be a positive"),
    ("plan", "features", 1.5, "features must be a whole number"),
    ("plan", "separation", 0.0, "separation must be a positive"),
    ("plan", "failure", 1.5, "failure=1.5"),
]


@pytest.mark.parametrize(("name", "argument", "value", "match"), BAD)
def test_a_senseless_argument_is_named(name: str, argument: str, value: object, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        CALLS[name](**{argument: value})


ASKING = [name for name in CALLS if name not in ("separating", "vote", "repetitions", "plan")]


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda X: np.sin(X[0, 0]), "shape \\(\\)"),
        (lambda X: np.sin(X[:-1, 0]), "Is it vectorised"),
        (lambda X: np.zeros((len(X), 2, 2)), "2, 2"),
        (lambda X: 1j * X[:, 0], "complex128"),
        (lambda X: X[:, 0] * np.nan, "NaN or infinity"),
    ],
    ids=["one number", "a row short", "matrices", "complex", "NaN"],
)
def test_an_answer_of_the_wrong_kind_is_shown(name: str, answer: object, match: str) -> None:
    with pytest.raises(BadAnswer, match=match):
        CALLS[name](f=answer)


@pytest.mark.parametrize("name", [n for n in ASKING if n not in ("est_weight", "find_directions")])
def test_several_outputs_are_refused_where_one_is_needed(name: str) -> None:
    with pytest.raises(BadAnswer, match="one number a point"):
        CALLS[name](f=lambda X: np.sin(X))


def test_several_outputs_have_the_sum_of_their_masses() -> None:
    both = paper.est_weight(lambda X: np.sin(2 * X), 5.0, [[2.0, 0.0], [0.0, 2.0]])
    one = paper.est_weight(f, 5.0, [[2.0, 0.0], [0.0, 2.0]])
    assert abs(both.scaled[0] - one.scaled[0]) <= 5 * both.stderr[0]
    assert both.scaled[1] > 5 * both.stderr[1] > one.scaled[1]


def test_a_derivative_checks_what_it_differences() -> None:
    with pytest.raises(BadAnswer, match="one number a point"):
        paper.find_directions(paper.Derivative(lambda X: X, 0.1, 0.0), 5.0, dim=2)


@pytest.mark.parametrize(
    ("name", "value"), [("ell", -1.0), ("eta", -0.1), ("samples", 1e5), ("repeats", 0), ("candidates", 2.5)]
)
def test_settings_are_checked(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"{name} must be"):
        replace(SETTINGS, **{name: value})


def test_queries_of_the_survey_are_counted() -> None:
    asked = []

    def counting(X: np.ndarray) -> np.ndarray:
        asked.append(len(X))
        return f(X)

    for run in (paper.learn, paper.learn_bounded, paper.identify):
        asked.clear()
        got = run(counting, dim=2, additions=False)  # type: ignore[operator]
        assert got.queries == sum(asked)
