"""A response drawn from a family gets that family's name and numbers; one drawn from none gets none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy.special import erf, expit

from ridgescope.fit.activations import ACTIVATIONS, INDEX
from ridgescope.geometry import Floats
from ridgescope.response import Response, interpolate
from ridgescope.shapes import naming
from ridgescope.shapes.families import FAMILIES, Placement
from ridgescope.shapes.naming import fit_as, format_formula, name_shape, name_shapes
from ridgescope.targets.kinds import DRAW, Drawn

RADIUS = 3.0
SEEDS = range(20)
NAME = {"leaky_relu": "relu", "abs": "relu"}
"""But for an affine part these are one."""


def response_of(drawn: Drawn, amplitude: float = 1.0, intervals: int = 48, radius: float = RADIUS) -> Response:
    """The exact response in the gauge of a fit, kinks as atoms of their own."""
    t, w = kinks_of(drawn, radius)
    smooth = interpolate(lambda z: amplitude * (drawn(z) - np.abs(np.subtract.outer(z, t)) @ w), radius, intervals)
    return Response(radius, smooth.coefficients, t, amplitude * w).without_affine()[0]


def kinks_of(drawn: Drawn, radius: float) -> tuple[Floats, Floats]:
    """Places and half the jumps in slope."""
    p = drawn.parameters
    if drawn.kind == "triangle":
        j = np.arange(-20, 20)
        t = (np.pi * (j + 0.5) - p["phase"]) / p["frequency"]
        w = -(2.0 * p["frequency"] / np.pi) * (-1.0) ** j
        return t[np.abs(t) < radius], w[np.abs(t) < radius]
    jump = {"relu": 1.0, "leaky_relu": 1.0 - p.get("leak", 0.0), "abs": 2.0}.get(drawn.kind)
    return (np.empty(0), np.empty(0)) if jump is None else (np.array([p["at"]]), np.array([jump / 2]))


def expected(drawn: Drawn, amplitude: float) -> Mapping[str, float]:
    """The numbers of the named shape, from those the response was drawn with."""
    p, c = drawn.parameters, amplitude
    match drawn.kind:
        case "relu" | "leaky_relu" | "abs":
            return {"at": p["at"], "jump": 2.0 * c * float(kinks_of(drawn, RADIUS)[1][0])}
        case "softplus" | "gelu":
            return {"amplitude": c / p["steepness"], **p}
        case "bump":
            return {"amplitude": c, "at": p["at"], "width": 1.0 / p["steepness"]}
        case "step":
            return {"height": c, "at": p["at"], "steepness": p["steepness"]}
        case "sine" | "triangle":
            phase = (p["phase"] + np.pi * (c < 0) + np.pi) % (2 * np.pi) - np.pi
            return {"amplitude": abs(c), "frequency": p["frequency"], "phase": phase}
        case "polynomial":
            return {"c2": c * p["c2"], "c3": c * p["c3"]}
        case _:
            return {"amplitude": c, **p}


def drawn_and_amplitude(kind: str, seed: int) -> tuple[Drawn, float]:
    rng = np.random.default_rng(seed)
    return DRAW[kind](rng), float(rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.5))


@pytest.mark.parametrize("kind", sorted(set(DRAW) - {"fourier"}))
def test_every_kind_is_named_with_its_numbers(kind: str):
    for seed in SEEDS:
        drawn, c = drawn_and_amplitude(kind, seed)
        shape = name_shape(response_of(drawn, c))
        assert shape is not None
        assert shape.name == NAME.get(kind, kind)
        assert shape.r2 > 1 - 1e-8
        assert shape.parameters == pytest.approx(expected(drawn, c), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("intervals", [16, 100])
@pytest.mark.parametrize("kind", sorted(set(DRAW) - {"fourier"}))
def test_the_name_does_not_depend_on_the_knots(kind: str, intervals: int):
    for seed in range(6):
        drawn, c = drawn_and_amplitude(kind, seed)
        shape = name_shape(response_of(drawn, c, intervals))
        assert shape is not None
        assert shape.name == NAME.get(kind, kind)


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "abs", "triangle"])
@pytest.mark.parametrize("intervals", [16, 48])
def test_kinks_blurred_by_the_spline_are_recognised(kind: str, intervals: int):
    """Without atoms the spline rounds a kink off; a steep softplus must not take the name."""
    for seed in SEEDS:
        drawn, c = drawn_and_amplitude(kind, seed)
        shape = name_shape(interpolate(lambda z, d=drawn, c=c: c * d(z), RADIUS, intervals))
        assert shape is not None
        assert shape.name == NAME.get(kind, kind)


def test_a_kink_is_placed_exactly_where_there_is_an_atom_for_it():
    for seed in SEEDS:
        drawn, c = drawn_and_amplitude("relu", seed)
        shape = name_shape(response_of(drawn, c))
        assert shape is not None
        assert shape.parameters["at"] == pytest.approx(drawn.parameters["at"], abs=1e-9)


def test_a_random_fourier_series_has_no_name():
    assert all(name_shape(response_of(*drawn_and_amplitude("fourier", seed))) is None for seed in range(60))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("silu", lambda y: y * expit(y)),
        ("erf", erf),
        ("arctan", np.arctan),
        ("clip", lambda y: np.clip(y, -1.0, 1.0)),
    ],
)
def test_other_forms(name: str, function: Callable[[Floats], Floats]):
    rng = np.random.default_rng(1)
    for _ in SEEDS:
        k, b, c = rng.uniform(1.0, 3.0), rng.uniform(-1.0, 1.0), rng.uniform(0.5, 1.5)
        shape = name_shape(interpolate(lambda z, k=k, b=b, c=c: c * function(k * z + b), RADIUS, 48))
        assert shape is not None
        assert shape.name == name
        assert shape.parameters == pytest.approx({"amplitude": c, "steepness": k, "bias": b}, rel=0.02, abs=0.01)


@pytest.mark.parametrize("rate", [1.2, -0.7])
def test_exponential_of_either_direction(rate: float):
    shape = name_shape(interpolate(lambda z: 0.5 * np.exp(rate * z), RADIUS, 32))
    assert shape is not None
    assert shape.name == "exponential"
    assert shape.parameters == pytest.approx({"amplitude": 0.5, "rate": rate}, rel=1e-5)


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_powers(degree: int):
    shape = name_shape(interpolate(lambda z: z**degree, RADIUS, 32))
    assert shape is not None
    assert shape.name == "polynomial"
    assert shape.parameters[f"c{degree}"] == pytest.approx(1.0, rel=1e-6)
    assert shape.formula == f"z{'⁰¹²³⁴'[degree]}"


def test_a_jump_is_a_step():
    shape = name_shape(interpolate(lambda z: np.where(z > 0.3, 2.0, 0.0), RADIUS, 48))
    assert shape is not None
    assert shape.name == "step"
    assert shape.parameters["at"] == pytest.approx(0.3, abs=RADIUS / 48)
    assert shape.parameters["height"] == pytest.approx(2.0, rel=0.02)


def test_fast_sines():
    rng = np.random.default_rng(0)
    for _ in SEEDS:
        k, b = rng.uniform(6.0, 18.0), rng.uniform(-np.pi, np.pi)
        shape = name_shape(interpolate(lambda z, k=k, b=b: np.sin(k * z + b), RADIUS, 100))
        assert shape is not None
        assert shape.name == "sine"
        assert shape.parameters["frequency"] == pytest.approx(k, rel=1e-4)


# -- what has no name ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [np.zeros_like, np.ones_like, lambda z: 3.0 - 2.0 * z])
def test_nothing_is_left_of_an_affine_response(function: Callable[[Floats], Floats]):
    assert name_shape(interpolate(function, RADIUS, 32)) is None
    assert name_shape(interpolate(function, RADIUS, 32).without_affine()[0]) is None


def test_a_zero_vector_response_has_no_name():
    assert name_shape(Response(RADIUS, np.zeros((35, 4)), np.empty(0), np.empty((0, 4)))) is None


def test_a_response_below_its_noise_has_no_name():
    drawn, c = drawn_and_amplitude("tanh", 0)
    response = response_of(drawn, c)
    assert name_shape(response, noise=response.rms()) is None
    assert name_shape(response, noise=0.01 * response.rms()) is not None


@pytest.mark.parametrize(
    "function", [lambda z: np.sin(z**2), lambda z: np.sign(np.sin(3.0 * z)), lambda z: np.exp(-np.abs(z))]
)
def test_no_name_is_forced(function: Callable[[Floats], Floats]):
    assert name_shape(interpolate(function, RADIUS, 48)) is None


# -- noise, cells, units ------------------------------------------------------------------------------------


def noisy(response: Response, level: float, seed: int) -> tuple[Response, float]:
    """White noise on the coefficients, and the standard error it gives the values (Σ B² is about 0.48)."""
    sigma = level * response.rms()
    noise = sigma * np.random.default_rng([seed, 9]).standard_normal(response.coefficients.shape)
    return Response(response.radius, response.coefficients + noise, response.kinks, response.kink_weights), 0.7 * sigma


@pytest.mark.parametrize("kind", ["tanh", "sine", "bump", "relu", "triangle", "step", "polynomial"])
def test_names_survive_noise_of_two_percent(kind: str):
    right = 0
    for seed in SEEDS:
        response, sigma = noisy(response_of(*drawn_and_amplitude(kind, seed)), 0.02, seed)
        shape = name_shape(response, noise=sigma)
        right += shape is not None and shape.name == kind
    assert right >= len(SEEDS) - 3


def test_noise_that_is_not_stated_is_structure():
    """The same response: 5 % of ripple is explained as noise, and unexplained without."""
    response, sigma = noisy(response_of(*drawn_and_amplitude("bump", 0)), 0.05, 0)
    stated = name_shape(response, noise=sigma)
    assert stated is not None
    assert stated.name == "bump"
    assert name_shape(response) is None


@pytest.mark.parametrize("intervals", [1, 2, 3])
def test_a_few_cells_cannot_name_what_has_as_many_parameters(intervals: int):
    shape = name_shape(interpolate(lambda z: np.sin(2.0 * z) + 0.3 * np.cos(5.0 * z), RADIUS, intervals))
    assert shape is None or len(shape.parameters) < intervals + 1


@pytest.mark.parametrize("radius", [0.01, 40.0])
def test_units_do_not_matter(radius: float):
    ratio = RADIUS / radius
    for kind in sorted(set(DRAW) - {"fourier"}):
        drawn, c = drawn_and_amplitude(kind, 3)
        shape = name_shape(interpolate(lambda z, d=drawn, c=c: 1e4 * c * d(ratio * z), radius, 48))
        assert shape is not None
        assert shape.name == NAME.get(kind, kind)


def test_the_sign_of_the_direction_does_not_matter():
    for kind in sorted(set(DRAW) - {"fourier"}):
        drawn, c = drawn_and_amplitude(kind, 5)
        response = response_of(drawn, c)
        there, back = name_shape(response), name_shape(response.flipped())
        assert there is not None
        assert back is not None
        assert there.name == back.name


# -- vector-valued responses --------------------------------------------------------------------------------


def test_a_vector_response_is_named_by_what_its_outputs_share():
    outputs = np.array([0.6, 0.0, -0.8])
    for kind in sorted(set(DRAW) - {"fourier"}):
        drawn, _ = drawn_and_amplitude(kind, 2)
        scalar = response_of(drawn)
        response = Response(
            RADIUS,
            np.multiply.outer(scalar.coefficients, outputs),
            scalar.kinks,
            np.multiply.outer(scalar.kink_weights, outputs),
        )
        shape, alone = name_shape(response), name_shape(scalar)
        assert shape is not None
        assert alone is not None
        assert shape.name == alone.name == NAME.get(kind, kind)
        assert shape.r2 == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize(("size", "name"), [(0.3, None), (1e-4, "tanh")])
def test_an_output_that_responds_differently_counts_as_far_as_it_is_seen(size: float, name: str | None):
    response = interpolate(lambda z: np.stack([np.tanh(2.0 * z), size * np.sin(3.0 * z)], axis=1), RADIUS, 48)
    shape = name_shape(response)
    assert (None if shape is None else shape.name) == name


def test_outputs_that_respond_differently_share_no_name():
    response = interpolate(lambda z: np.stack([np.tanh(z), np.sin(3.0 * z)], axis=1), RADIUS, 48)
    assert name_shape(response) is None


# -- formulas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "formula"),
    [
        (lambda z: 1.2 * np.maximum(z - 0.31, 0.0), "1.2·relu(z − 0.31)"),
        (lambda z: -0.8 * np.tanh(2.1 * z + 0.3), "−0.8·tanh(2.1z + 0.3)"),
        (lambda z: np.tanh(2.0 * z), "tanh(2z)"),
        (lambda z: 0.7 * np.sin(3.1 * z + 0.2), "0.7·sin(3.1z + 0.2)"),
        (lambda z: 1.1 * np.exp(-((z - 0.2) ** 2) / (2 * 0.4**2)), "1.1·exp(−(z − 0.2)²/(2·0.4²))"),
        (lambda z: 2.0 * expit(8.0 * (z + 0.5)), "2·sigmoid(8(z + 0.5))"),
        (lambda z: expit(8.0 * z), "sigmoid(8z)"),
        (lambda z: 0.5 * z**2 - z**3, "0.5z² − z³"),
        (lambda z: -np.logaddexp(0.0, 2.0 * z - 1.0), "−softplus(2z − 1)"),
        (lambda z: 3.0 * np.clip(1.5 * z + 0.2, -1.0, 1.0), "3·clip(1.5z + 0.2, −1, 1)"),
    ],
)
def test_formulas_read_as_a_person_writes_them(function: Callable[[Floats], Floats], formula: str):
    """Kinks have no atom here: 200 knots keep their blur out of the third digit."""
    shape = name_shape(interpolate(function, RADIUS, 200))
    assert shape is not None
    assert str(shape) == shape.formula == formula


@pytest.mark.parametrize(
    ("name", "parameters", "formula"),
    [
        ("relu", {"at": 1e-4, "jump": -1.0}, "−relu(z)"),
        ("exponential", {"amplitude": 2.0, "rate": -0.5}, "2·exp(−0.5z)"),
        ("step", {"height": 2.5, "at": -0.5}, "2.5·step(z + 0.5)"),
        ("step", {"height": 1.0, "at": 0.0, "steepness": 12.0}, "sigmoid(12z)"),
        ("triangle", {"amplitude": 1.0, "frequency": 1.0, "phase": -0.25}, "triangle(z − 0.25)"),
        ("polynomial", {"c2": 1.0, "c3": -2.0, "c4": 1e-6}, "z² − 2z³"),
        ("polynomial", {"c2": 0.0, "c3": 0.0, "c4": 3.0}, "3z⁴"),
        ("silu", {"amplitude": 1234.5, "steepness": 1.0, "bias": 0.0}, "1.23e+03·silu(z)"),
    ],
)
def test_formulas_are_made_of_names_and_numbers(name: str, parameters: Mapping[str, float], formula: str):
    assert format_formula(name, parameters, RADIUS) == formula


BY_NAME = {family.name: family for family in FAMILIES}


def test_a_known_form_is_named_without_a_search_among_those_of_as_many_parameters(monkeypatch):
    drawn = DRAW["tanh"](np.random.default_rng(3))
    k, b = drawn.parameters["steepness"], drawn.parameters["bias"]
    response = response_of(drawn)
    found, searched, grid_of = name_shape(response), [], naming.grid_of
    monkeypatch.setattr(naming, "grid_of", lambda group, count: searched.append(group) or grid_of(group, count))
    named = name_shape(response, known=(BY_NAME["tanh"], Placement(k * RADIUS, -b / (k * RADIUS))))
    assert named is not None
    assert named.formula == found.formula
    assert set(searched) == {"hinge", "exponential"}, "ReLU and the exponential have fewer parameters"


def test_what_is_wrongly_taken_for_known_does_not_mislead():
    response = response_of(DRAW["tanh"](np.random.default_rng(3)))
    assert name_shape(response, known=(BY_NAME["sine"], Placement(9.0, 0.2))) == name_shape(response)


def gelu_response(k: float, b: float) -> Response:
    atom = ACTIVATIONS[INDEX["gelu"]].atom
    return interpolate(lambda z: atom(k * z + b)[0], RADIUS, 32).without_affine()[0]


def test_a_layer_has_one_family():
    """Alone, the last of these is called a softplus; among GELUs it is one of them, with its own numbers."""
    places = [(1.2, 0.3), (0.9, -1.0), (1.5, 0.0), (0.5823, -0.1772)]
    responses = [gelu_response(k, b) for k, b in places]
    alone = name_shape(responses[-1])
    assert alone is not None
    assert alone.name != "gelu"
    named = name_shapes(responses, [0.0] * 4, [None] * 4)
    assert [shape.name for shape in named if shape is not None] == ["gelu"] * 4
    for shape, (k, b) in zip(named, places, strict=True):
        assert shape is not None
        assert abs(shape.parameters["steepness"]) == pytest.approx(k, rel=1e-3)
        assert abs(shape.parameters["bias"]) == pytest.approx(abs(b), abs=1e-3)


def test_a_family_that_does_not_explain_a_response_does_not_name_it():
    sine = interpolate(lambda z: np.sin(4 * z), RADIUS, 48).without_affine()[0]
    named = name_shapes([gelu_response(1.2, 0.3), gelu_response(0.9, -1.0), sine], [0.0] * 3, [None] * 3)
    assert [shape.name for shape in named if shape is not None] == ["gelu", "gelu", "sine"]
    assert fit_as(sine, 0.0, ACTIVATIONS[INDEX["gelu"]]) is None


def test_what_the_joint_fit_knows_is_not_overruled():
    families = {family.name: family for family in FAMILIES}
    softplus = interpolate(lambda z: np.logaddexp(0.0, 1.48 * z - 0.477), RADIUS, 32).without_affine()[0]
    known = (families["softplus"], Placement(1.48 * RADIUS, 0.477 / 1.48 / RADIUS))
    responses = [gelu_response(1.2, 0.3), gelu_response(0.9, -1.0), softplus]
    named = name_shapes(responses, [0.0, 0.0, 0.01], [None, None, known])
    assert named[2] is not None
    assert named[2].name == "softplus"


@pytest.mark.parametrize("name", ["softplus", "gelu", "silu", "gelu_tanh", "mish", "tanh", "erf", "arctan", "bump"])
def test_the_member_of_a_family_is_found_wherever_it_is(name: str):
    rng = np.random.default_rng(0)
    family = ACTIVATIONS[INDEX[name]]
    for _ in range(10):
        k, b = rng.uniform(0.4, 3.0) * rng.choice([-1.0, 1.0]), rng.uniform(-1.2, 1.2)
        response = interpolate(lambda z, k=k, b=b: family.atom(k * z + b)[0], RADIUS, 48).without_affine()[0]
        fit = fit_as(response, 0.0, family)
        assert fit is not None
        assert fit.place.kappa / RADIUS == pytest.approx(abs(k), rel=1e-3)
        assert -fit.place.kappa * fit.place.t * np.sign(k) == pytest.approx(b, abs=2e-3)
