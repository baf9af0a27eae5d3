"""From features to neurons: weights, lines and signs of the network that was asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import erf, expit

import ridgescope as rs
from made import extraction
from ridgescope.network import ACTIVATION_NAMES, activation_values
from ridgescope.neurons import MIRRORED, Neurons, _signs, network_of
from ridgescope.response import Response, interpolate

ACTIVATIONS = {
    "relu": lambda y: np.maximum(y, 0.0),
    "leaky_relu": lambda y: np.where(y > 0.0, y, 0.05 * y),
    "abs": np.abs,
    "gelu": lambda y: y * (1.0 + erf(y / np.sqrt(2.0))) / 2.0,
    "gelu_tanh": lambda y: 0.5 * y * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (y + 0.044715 * y**3))),
    "silu": lambda y: y * expit(y),
    "softplus": lambda y: np.logaddexp(0.0, y),
    "mish": lambda y: y * np.tanh(np.logaddexp(0.0, y)),
    "tanh": np.tanh,
    "sigmoid": expit,
    "erf": erf,
}
SIGNED = ("relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "softplus", "mish")
"""Those whose neurons are not their own mirror images, up to a constant."""


class Net:
    """A random one-hidden-layer network."""

    def __init__(self, activation, dim=6, neurons=10, outputs=4, skip=0.0, seed=0):
        rng = np.random.default_rng(seed)
        self.activation, self.scalar = ACTIVATIONS[activation], outputs is None
        p = outputs or 1
        self.W, self.b = rng.standard_normal((neurons, dim)) / np.sqrt(dim), 0.3 * rng.standard_normal(neurons)
        self.O, self.c = rng.standard_normal((p, neurons)) / np.sqrt(neurons), rng.standard_normal(p)
        self.S = skip * rng.standard_normal((p, dim))

    def __call__(self, X):
        values = self.activation(X @ self.W.T + self.b) @ self.O.T + self.c + X @ self.S.T
        return values[:, 0] if self.scalar else values


@pytest.fixture(scope="module")
def runs():
    """Extractions, each made once."""
    made = {}

    def run(activation, **options):
        key = activation, *sorted(options.items())
        if key not in made:
            net = Net(activation, **options)
            made[key] = net, rs.extract(net, dim=net.W.shape[1], rng=0)
        return made[key]

    return run


def points(dim=6, seed=1, count=200):
    return np.random.default_rng(seed).uniform(-1, 1, (count, dim))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_network_that_was_asked_comes_back(name, runs):
    net, found = runs(name)
    got = found.network(activation="sigmoid" if name == "sigmoid" else None)
    assert got.activation == name
    assert got.resolved.all()
    assert got.leak == pytest.approx(0.05 if name == "leaky_relu" else 0.0, abs=1e-10)
    assert np.linalg.norm(got.slope) < 1e-4
    order = rs.match(found.directions, net.W).partner
    W, b, W_out = got.W_in[order], got.b_in[order], got.W_out[:, order]
    length = np.linalg.norm(net.W, axis=1) if name in ("relu", "leaky_relu", "abs") else np.ones(len(net.b))
    sign = np.ones(len(b)) if name in SIGNED else np.sign(np.sum(W * net.W, axis=1))
    output_sign = 1.0 if name == "abs" else sign
    np.testing.assert_allclose((W.T * sign).T, net.W / length[:, None], atol=2e-4)
    np.testing.assert_allclose(b * sign, net.b / length, atol=2e-4)
    np.testing.assert_allclose(W_out * output_sign, net.O * length, atol=2e-3)
    if (sign == 1.0).all():
        np.testing.assert_allclose(got.b_out, net.c, atol=1e-3)
    np.testing.assert_allclose(got.predict(points()), net(points()), atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "softplus"])
def test_closed_forms_of_the_fit_give_all_digits(name, runs):
    net, found = runs(name)
    got = found.network()
    order = rs.match(found.directions, net.W).partner
    length = np.linalg.norm(net.W, axis=1)[:, None] if name == "relu" else 1.0
    np.testing.assert_allclose(got.W_in[order], net.W / length, rtol=0, atol=1e-9)
    np.testing.assert_allclose(got(points()), net(points()), rtol=0, atol=1e-10)
    assert np.abs(got.slope).max() < 1e-9


def test_scalar_functions_have_scalar_networks(runs):
    net, found = runs("relu", outputs=None, neurons=5)
    got = found.network()
    assert got.scalar
    assert got.W_out.shape == (1, 5)
    assert got.predict(points()).shape == (200,)
    np.testing.assert_allclose(got.predict(points()), net(points()), atol=1e-10)


def test_more_neurons_than_entries_of_the_slope_have_signs_where_only_one_choice_fits(runs):
    net, found = runs("relu", outputs=None, neurons=9)  # 9 signs, 6 entries
    got = found.network()
    order = rs.match(found.directions, net.W).partner
    assert got.resolved.all()
    assert (np.sum(got.W_in[order] * net.W, axis=1) > 0).all()


def test_a_large_linear_term_hides_the_signs(runs):
    net, found = runs("gelu", skip=0.3)
    got = found.network()
    assert not got.resolved.any()
    np.testing.assert_allclose(got(points()), net(points()), atol=1e-10)


def test_many_outputs_show_signs_behind_a_residual_stream():
    rng = np.random.default_rng(0)
    right = wrong = 0
    for _ in range(20):
        middle, sigma = drawn(rng, dim=16, neurons=24, outputs=16, linear=np.eye(16))
        signs = _signs(middle, 1e-9, measure_ratio=False)
        right += int(np.sum(signs.resolved & (signs.sigma == sigma)))
        wrong += int(np.sum(signs.resolved & (signs.sigma != sigma)))
    assert right > 0.9 * 20 * 24
    assert wrong == 0


@pytest.mark.parametrize(("dim", "neurons", "outputs"), [(4, 12, 5), (6, 6, 1), (5, 8, 1), (3, 20, 2)])
@pytest.mark.parametrize("linear", [0.0, 0.01, 0.1, 1.0])
def test_resolved_signs_are_right_whatever_the_linear_term(dim, neurons, outputs, linear):
    rng = np.random.default_rng(1)
    wrong = resolved = 0
    for _ in range(40):
        term = linear * rng.standard_normal((dim, outputs))
        middle, sigma = drawn(rng, dim, neurons, outputs, term)
        signs = _signs(middle, 1e-9, measure_ratio=False)
        wrong += int(np.sum(signs.resolved & (signs.sigma != sigma)))
        resolved += int(signs.resolved.sum())
    assert wrong <= 0.01 * 40 * neurons
    if linear == 0.0:
        assert resolved == 40 * neurons


def test_errors_of_the_slope_leave_signs_open():
    middle, sigma = drawn(np.random.default_rng(0), 6, 8, 3, np.zeros((6, 3)))
    assert _signs(middle, 1e-6, measure_ratio=False).resolved.all()
    assert not _signs(middle, 10.0, measure_ratio=False).resolved.any()
    assert not _signs(middle, np.inf, measure_ratio=False).resolved.any()
    assert (_signs(middle, 1e-6, measure_ratio=False).sigma == sigma).all()


def drawn(rng, dim, neurons, outputs, linear):
    """Neurons whose lines, of random signs, and a linear term make up the slope."""
    V = rng.standard_normal((neurons, dim))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    k, C = rng.uniform(0.5, 2.0, neurons), rng.standard_normal((neurons, outputs))
    sigma = rng.choice([-1.0, 1.0], neurons)
    slope = linear + 0.5 * V.T @ ((sigma * k)[:, None] * C)
    return Neurons(V, k, np.zeros(neurons), C, slope, np.zeros(outputs)), sigma


def test_center_and_scale_are_folded_into_the_weights():
    net = Net("gelu")
    center, scale = np.linspace(-1, 1, 6), np.array([0.5, 1.0, 2.0, 1.0, 0.7, 1.3])
    found = rs.extract(rs.oracle.Oracle(net, dim=6, center=center, scale=scale), rng=0)
    got = found.network()
    order = rs.match(got.W_in, net.W).partner
    np.testing.assert_allclose(got.W_in[order], net.W, atol=1e-8)
    np.testing.assert_allclose(got.b_in[order], net.b, atol=1e-8)
    np.testing.assert_allclose(got(center + points()), net(center + points()), atol=1e-8)


def test_splines_have_a_network_too(runs):
    """Without the fit's own closed forms, as in results of older versions and of wide layers."""
    net, found = runs("gelu")
    plain = replace(found, features=tuple(replace(f, form=None) for f in found.features))
    got = plain.network()
    assert got.activation == "gelu"
    assert got.resolved.all()
    order = rs.match(found.directions, net.W).partner
    np.testing.assert_allclose(got.W_in[order], net.W, atol=1e-3)
    np.testing.assert_allclose(got(points()), net(points()), atol=1e-3)


def test_responses_of_several_kinds_are_named_and_have_no_network():
    def mixed(X):
        return np.stack([np.tanh(2 * X[:, 0]) + np.sin(4 * X[:, 1]), np.tanh(2 * X[:, 2])], axis=1)

    found = rs.extract(mixed, dim=3, rng=0)
    with pytest.raises(rs.InvalidInput, match=r"2 tanh, 1 sine.*found\.only"):
        found.network()
    tanh = [i for i, f in enumerate(found.features) if f.form.family == "tanh"]
    assert found.only(tanh).network().activation == "tanh"
    with pytest.raises(rs.InvalidInput, match="has no features"):
        found.only([]).network()
    with pytest.raises(rs.InvalidInput, match="unknown activation 'swish'"):
        found.network(activation="swish")
    with pytest.raises(rs.InvalidInput, match="relu leaves"):
        found.network(activation="relu")


def test_lines_of_another_activation_are_refused(runs):
    _, found = runs("abs")
    with pytest.raises(rs.InvalidInput, match="those of abs, not of leaky_relu"):
        found.network(activation="leaky_relu")


@pytest.mark.parametrize("name", [n for n in ACTIVATION_NAMES if n in MIRRORED])
def test_mirrored_activations_differ_from_their_mirror_image_by_a_line(name):
    y = np.linspace(-4, 4, 33)
    np.testing.assert_allclose(activation_values(name, y) - activation_values(name, -y), y, atol=1e-12)


def test_a_network_can_be_taken_apart(runs):
    net, found = runs("gelu")
    got, X = found.network(), points()
    few, rest = got.only([0, 2]), got.without([0, 2])
    assert (few.W_in.shape, rest.W_in.shape) == ((2, 6), (8, 6))
    np.testing.assert_allclose(few(X) + rest(X) - got.b_out - X @ got.slope.T, got(X), atol=1e-12)
    np.testing.assert_allclose(got.activations(X) @ got.W_out.T + got.b_out + X @ got.slope.T, got(X), atol=1e-12)
    order = rs.match(found.directions, net.W).partner
    neuron = int(order[3])  # removing it removes the neuron, line and all
    without = net(X) - np.multiply.outer(net.activation(X @ net.W[3] + net.b[3]), net.O[:, 3])
    np.testing.assert_allclose(got.without(neuron)(X), without, atol=1e-9)
    with pytest.raises(rs.InvalidInput, match="there is no neuron 10: there are 10, counted from 0"):
        got.without(10)
    with pytest.raises(rs.InvalidInput, match=r"\(m, 6\) array"):
        got(np.zeros(6))
    assert repr(got).startswith("<Network 6–10–4 gelu: 10 of 10 signs resolved")


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(rs.InvalidInput, match="do not fit W_in"):
        rs.Network("relu", np.eye(2), np.zeros(3), np.eye(2), np.zeros(2), np.eye(2), [True, True])
    with pytest.raises(rs.InvalidInput, match="unknown activation"):
        rs.Network("selu", np.eye(2), np.zeros(2), np.eye(2), np.zeros(2), np.eye(2), [True, True])


# -- features ------------------------------------------------------------------------------------------------


def test_output_directions_are_those_that_neurons_write_to(runs):
    net, found = runs("gelu")
    order = rs.match(found.directions, net.W).partner
    true = net.O / np.linalg.norm(net.O, axis=0)
    got = found.output_directions[order]
    np.testing.assert_allclose(np.abs(np.sum(got * true.T, axis=1)), 1.0, atol=1e-12)
    assert (np.take_along_axis(got, np.abs(got).argmax(axis=1)[:, None], axis=1) > 0).all()
    assert all(f.output_share == pytest.approx(1.0, abs=1e-9) for f in found.features)
    assert runs("relu", outputs=None, neurons=5)[1].output_directions.tolist() == [[1.0]] * 5
    assert extraction(2, features=0).output_directions.shape == (0, 2)


def test_a_response_with_two_output_vectors_says_how_much_of_it_the_first_has():
    values = interpolate(lambda z: np.stack([3 * np.sin(2 * z), np.cos(2 * z)], axis=1), 3.0, 48)
    feature = rs.Feature(np.eye(2)[0], values, 0.0, 1.0)
    assert abs(feature.output[0]) > 0.99
    assert feature.output_share == pytest.approx(0.9, abs=0.02)
    nothing = rs.Feature(np.eye(2)[0], Response(1.0, np.zeros((7, 2)), [], []), 0.0, 0.0)
    assert np.linalg.norm(nothing.output) == pytest.approx(1.0)


def test_activations_and_the_affine_part_are_the_prediction(runs):
    for name, options in (("gelu", {}), ("relu", {"outputs": None, "neurons": 5})):
        _, found = runs(name, **options)
        X = points()
        values = found.activations(X) @ found.output_directions
        affine = (X - found.center) @ found.slope.reshape(6, -1) + found.bias
        np.testing.assert_allclose((values + affine).reshape(found.predict(X).shape), found.predict(X), atol=1e-12)


def test_without_and_only_are_parts_of_the_model(runs):
    _, found = runs("gelu")
    X = points()
    few, rest = found.only([1, 3]), found.without([1, 3])
    assert [len(few.features), len(rest.features)] == [2, 8]
    affine = found.only([])
    np.testing.assert_allclose(few.predict(X) + rest.predict(X) - affine.predict(X), found.predict(X), atol=1e-12)
    assert found.only(-1).features == found.features[-1:]
    assert not few.certificate.met
    assert few.certificate.samples == 0
    assert (few.stop, few.checks, few.structure) == (rs.StopReason.UNKNOWN, None, None)
    with pytest.raises(rs.InvalidInput, match="there is no feature 99"):
        found.without([0, 99])
    with pytest.raises(rs.InvalidInput, match="there is no feature 'a'"):
        found.only("a")


def test_the_sign_of_a_part_is_not_known(runs):
    """A part has no certificate, so that nothing is known of the errors of its slope."""
    _, found = runs("gelu")
    assert not network_of(found.only([0, 1])).resolved.any()
