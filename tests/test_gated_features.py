"""Gated features from queries to weights: SwiGLU, GEGLU and mixtures with plain neurons."""

import io

import numpy as np
import pytest
from rich.console import Console
from scipy.special import expit, ndtr

import ridgescope as rs
from ridgescope.cli.output import show, summary
from ridgescope.feature import leading_coordinates
from ridgescope.structure import Kind

ACTIVATIONS = {"silu": lambda y: y * expit(y), "gelu": lambda y: y * ndtr(y), "relu": lambda y: np.maximum(y, 0.0)}


class Layer:
    """W_down [φ(W_gate x + b) ∘ (W_up x)], the first `plain` units without their W_up."""

    def __init__(self, d, n, p, name, seed, *, plain=0, dtype=np.float64):
        rng = np.random.default_rng(seed)
        self.W_gate, self.b = 1.5 * rng.standard_normal((n, d)) / np.sqrt(d), 0.3 * rng.standard_normal(n)
        self.W_up, self.W_down = rng.standard_normal((n, d)) / np.sqrt(d), rng.standard_normal((p, n)) / np.sqrt(n)
        self.W_up[:plain] = 0.0
        self.plain, self.activation, self.dtype = plain, ACTIVATIONS[name], dtype

    def __call__(self, X):
        X = X.astype(self.dtype)
        W_gate, b, W_up, W_down = (a.astype(self.dtype) for a in (self.W_gate, self.b, self.W_up, self.W_down))
        carried = X @ W_up.T
        carried[:, : self.plain] = 1.0
        values = (self.activation(X @ W_gate.T + b) * carried) @ W_down.T
        return values if len(W_down) > 1 else values[:, 0]


def compared(found, layer):
    carriers = np.stack([np.zeros(found.dim) if f.carrier is None else f.carrier for f in found.features])
    return rs.match_gated((found.directions, carriers), (layer.W_gate, layer.W_up))


@pytest.fixture(scope="module")
def swiglu():
    layer = Layer(6, 4, 2, "silu", 11)
    return layer, rs.extract(layer, dim=6, rng=11)


def test_a_gated_layer_comes_back(swiglu):
    layer, found = swiglu
    assert found.certificate.met
    assert (found.structure.verdict, found.structure.kind) == ("exact", Kind.GATED)
    match = compared(found, layer)
    assert match.share(1e-6) == 1.0
    assert len(match.gates.false) == 0
    X = np.random.default_rng(4).uniform(-1, 1, (50, 6))
    assert found.predict(X) == pytest.approx(layer(X), abs=1e-5)
    for f in found.features:
        assert f.gated
        assert abs(f.carrier @ f.direction) < 1e-12
        assert np.abs(f.gain(0.0)).max() < 1e-9
        assert 0 < f.angle_error < 1e-3
        assert 0 < f.gate.carrier_error < 1e-3


def test_weights_of_a_gated_layer_come_back(swiglu):
    layer, found = swiglu
    net = found.network()
    assert net.activation == "silu"
    partner = rs.match(net.W_gate, layer.W_gate).partner
    assert net.W_gate[partner] == pytest.approx(layer.W_gate, abs=1e-6)
    assert net.b_gate[partner] == pytest.approx(layer.b, abs=1e-6)
    ours = net.W_up[partner][:, :, None] * net.W_down.T[partner][:, None, :]
    assert ours == pytest.approx(layer.W_up[:, :, None] * layer.W_down.T[:, None, :], abs=1e-6)
    assert np.abs(net.slope).max() < 1e-6
    X = np.random.default_rng(0).uniform(-1, 1, (50, 6))
    assert net.predict(X) == pytest.approx(layer(X), abs=1e-6)


def test_what_is_told_of_a_gated_layer_says_so_and_has_the_carriers(swiglu):
    _, found = swiglu
    unit = found.features[0]
    largest = f"x{np.argmax(np.abs(unit.carrier))}"
    assert "4 features, all gated, in 6 dimensions" in found.summary()
    told = (repr(unit), found.summary().splitlines()[3], found._repr_html_())
    assert all("gated" in text.lower() for text in told)
    assert all(f"u = {leading_coordinates(unit.carrier)}" in text for text in told)
    assert largest in leading_coordinates(unit.carrier, 1)
    console = Console(width=160, file=io.StringIO())
    show(found, None, console)
    printed = console.file.getvalue()
    assert printed.count("gain") == 4
    assert leading_coordinates(unit.carrier, 1).removesuffix(" …") in printed
    assert summary(found)["features"][0]["carrier"] == pytest.approx(unit.carrier)


@pytest.mark.parametrize("outputs", [1, 2])
def test_formulas_of_gated_features_have_the_signs_of_their_curves(outputs):
    """The bracket holds +u·x, so that the sign of the factor is that of the gain, along the output vector."""
    signs = set()
    for seed in range(3):
        found = rs.extract(Layer(6, 4, outputs, "silu", seed), dim=6, rng=seed)
        for f in found.features:
            p = f.shape.parameters
            z = np.linspace(-3, 3, 9)
            inside = p["steepness"] * z + p["bias"]
            gain = p["scale"] * p["across"] * (inside * expit(inside) - p["bias"] * expit(p["bias"]))
            assert f.gain(z).reshape(9, -1) @ f.output == pytest.approx(gain, abs=1e-4 * np.abs(gain).max())
            assert f.shape.formula.startswith("−") == (p["scale"] < 0)
            assert p["across"] > 0
            assert "e-" not in f.shape.formula
            signs.add(p["scale"] > 0)
    assert signs == {True, False}


def test_formulas_of_plain_neurons_have_the_signs_of_their_curves():
    found = rs.extract(Layer(8, 8, 3, "gelu", 5, plain=4), dim=8, rng=5)
    for f in found.features:
        if not f.gated:
            ends = f.response(np.array([-3.0, 3.0])) @ f.output
            assert np.all(np.sign(ends) == np.sign(f.shape.parameters["amplitude"]))


def test_activations_and_ablations_know_gates(swiglu):
    _, found = swiglu
    X = np.random.default_rng(1).uniform(-1, 1, (40, 6))
    whole = found.bias + X @ found.slope + found.activations(X) @ found.output_directions
    assert whole == pytest.approx(found.predict(X), abs=1e-9)
    part = found.predict(X) - found.without(0).predict(X)
    assert part == pytest.approx(found.features[0].values(X), abs=1e-9)
    assert np.abs(part).max() > 1e-3


def test_gated_results_are_saved_and_loaded(swiglu, tmp_path):
    _, found = swiglu
    again = rs.load(found.save(tmp_path / "out"))
    X = np.random.default_rng(2).uniform(-1, 1, (40, 6))
    assert np.array_equal(again.predict(X), found.predict(X))
    assert again.features[0].gate.form == found.features[0].gate.form
    assert again.network().W_up == pytest.approx(found.network().W_up)
    assert '"format_version": 3' in (tmp_path / "out" / "result.json").read_text()


def test_gated_results_are_exported_to_onnx(swiglu):
    onnxruntime = pytest.importorskip("onnxruntime")
    _, found = swiglu
    X = np.random.default_rng(3).uniform(-1, 1, (40, 6))
    session = onnxruntime.InferenceSession(found.to_onnx().SerializeToString())
    assert session.run(None, {"x": X})[0] == pytest.approx(found.predict(X), abs=1e-12)
    table = found.to_frame()
    assert table["gated"].all()
    assert table[[f"c{k}" for k in range(6)]].to_numpy() == pytest.approx(np.stack([f.carrier for f in found.features]))


@pytest.mark.optional
def test_gated_results_are_exported_to_torch(swiglu):
    torch = pytest.importorskip("torch")
    _, found = swiglu
    X = np.random.default_rng(3).uniform(-1, 1, (40, 6))
    module = found.to_torch()
    assert module(torch.from_numpy(X)).detach().numpy() == pytest.approx(found.predict(X), abs=1e-6)
    assert module.gate.weight.shape == (4, 6)


def test_plain_neurons_among_gated_ones_are_told_apart():
    layer = Layer(8, 8, 3, "gelu", 5, plain=4)
    found = rs.extract(layer, dim=8, rng=5)
    assert found.certificate.met
    match = compared(found, layer)
    assert match.share(1e-4) == 1.0
    assert sum(f.gated for f in found.features) == 4
    with pytest.raises(rs.errors.InvalidInput):
        found.network()


def test_a_sum_of_plain_features_has_no_carriers():
    target = rs.targets.CASES["small"].make(17)
    found = rs.extract(target, rng=17)
    assert found.certificate.met
    assert not any(f.gated for f in found.features)
    assert all(f.carrier is None and np.all(f.gain(1.0) == 0.0) for f in found.features)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["silu", "gelu"])
@pytest.mark.parametrize(("d", "n", "p"), [(6, 4, 1), (12, 20, 1), (16, 30, 1), (32, 64, 32)])
def test_gated_layers_of_all_sizes(d, n, p, name, seed):
    layer = Layer(d, n, p, name, 1000 + seed)
    found = rs.extract(layer, dim=d, rng=seed)
    match = compared(found, layer)
    assert found.certificate.met
    assert found.structure.verdict == "exact"
    assert match.share(1e-3) == 1.0
    assert len(match.gates.false) == 0
    assert found.queries <= (20 if p > 1 else 40) * n * (2 * d + 32)


@pytest.fixture(scope="module")
def reglu():
    layer = Layer(6, 4, 2, "relu", 11)
    return layer, rs.extract(layer, dim=6, rng=11)


def test_a_reglu_layer_comes_back_by_its_kinks(reglu):
    layer, found = reglu
    assert found.certificate.met
    assert (found.structure.verdict, found.structure.kind) == ("exact", Kind.GATED)
    match = compared(found, layer)
    assert match.share(1e-9) == 1.0
    assert len(match.gates.false) == 0
    assert set(found.queries_by_stage) <= {"survey", "gated_kinks", "fit", "certify"}
    X = np.random.default_rng(4).uniform(-1, 1, (200, 6))
    assert found.predict(X) == pytest.approx(layer(X), abs=1e-5)
    net = found.network()
    assert net.activation == "relu"
    assert net.predict(X) == pytest.approx(layer(X), abs=1e-8)
    assert np.abs(net.slope).max() < 1e-8
    partner = rs.match(net.W_gate, layer.W_gate).partner
    assert np.einsum("nd,nd->n", net.W_gate[partner], layer.W_gate) == pytest.approx(
        np.linalg.norm(net.W_gate[partner], axis=1) * np.linalg.norm(layer.W_gate, axis=1)
    )


def test_a_reglu_result_is_saved_and_exported_with_its_kinks(reglu, tmp_path):
    _, found = reglu
    X = np.random.default_rng(2).uniform(-1, 1, (40, 6))
    again = rs.load(found.save(tmp_path / "out"))
    assert np.array_equal(again.predict(X), found.predict(X))
    assert all(len(f.response.kinks) == len(f.gate.gain.kinks) == 1 for f in again.features)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(found.to_onnx().SerializeToString())
    assert session.run(None, {"x": X})[0] == pytest.approx(found.predict(X), abs=1e-12)


def test_plain_relu_neurons_among_reglu_units_are_told_apart():
    layer = Layer(8, 8, 3, "relu", 5, plain=4)
    found = rs.extract(layer, dim=8, rng=5)
    assert found.certificate.met
    match = compared(found, layer)
    assert match.share(1e-8) == 1.0
    assert len(match.gates.false) == 0
    assert sum(f.gated for f in found.features) == 4


def test_within_the_ball_a_reglu_layer_is_found_but_not_said_to_be_all():
    """Lines that may not leave the ball seldom cross a hyperplane near its edge."""
    layer = Layer(6, 4, 2, "relu", 11)
    found = rs.extract(layer, dim=6, rng=11, reach=3.0)
    assert found.certificate.met
    assert compared(found, layer).share(1e-9) == 1.0
    assert found.structure.verdict == "unknown"


@pytest.mark.parametrize("kind", ["product", "maximum", "relu of a quadratic", "noisy"])
def test_other_piecewise_quadratic_functions_are_no_exact_layers(kind):
    rng = np.random.default_rng(3)
    A, B, W = rng.standard_normal((5, 5)), rng.standard_normal((5, 5)), rng.standard_normal((2, 5))
    layer = Layer(5, 3, 1, "relu", 7)
    f = {
        "product": lambda X: np.maximum(X @ W[0] + 0.2, 0.0) * np.maximum(X @ W[1], 0.0),
        "maximum": lambda X: np.maximum(np.sum(X @ A * X, axis=1), np.sum(X @ B * X, axis=1) + 1.0),
        "relu of a quadratic": lambda X: np.maximum(np.sum(X @ A * X, axis=1) - 1.0, 0.0),
        "noisy": lambda X: layer(X) + 1e-3 * rng.standard_normal(len(X)),
    }[kind]
    found = rs.extract(f, dim=5, rng=3, max_queries=20_000)
    assert found.structure.verdict != "exact"
    assert not any(f.gated for f in found.features)


def test_in_single_precision_a_small_reglu_layer_comes_back():
    """Lines do not leave the ball then, and seldom cross hyperplanes near its edge."""
    layer = Layer(6, 4, 1, "relu", 1000, dtype=np.float32)
    found = rs.extract(layer, dim=6, rng=0)
    assert found.certificate.met
    assert found.structure.verdict == "unknown"
    match = compared(found, layer)
    assert match.share(1e-4) == 1.0
    assert len(match.gates.false) == 0


def test_in_single_precision_a_gated_layer_with_one_output_comes_back():
    """Errors hide its weak members, so that the singular values hardly drop."""
    layer = Layer(12, 20, 1, "silu", 1000, dtype=np.float32)
    found = rs.extract(layer, dim=12, rng=0)
    assert found.certificate.met
    match = compared(found, layer)
    assert match.share(1e-3) == 1.0
    assert len(match.gates.false) == 0


def test_in_single_precision_a_missed_gated_unit_is_not_called_exact():
    layer = Layer(12, 20, 1, "silu", 1002, dtype=np.float32)
    found = rs.extract(layer, dim=12, rng=2)
    assert found.structure.verdict != "exact" or compared(found, layer).share(1e-2) == 1.0


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["silu", "gelu"])
@pytest.mark.parametrize(("d", "n", "p"), [(12, 20, 1), (16, 30, 1), (32, 64, 32), (64, 256, 64)])
def test_gated_layers_of_all_sizes_in_single_precision(d, n, p, name, seed):
    layer = Layer(d, n, p, name, 1000 + seed, dtype=np.float32)
    found = rs.extract(layer, dim=d, rng=seed)
    match = compared(found, layer)
    assert found.certificate.met
    assert match.share(1e-2) == 1.0
    assert len(match.gates.false) == 0


@pytest.mark.heavy
def test_a_wide_gated_layer_comes_back():
    """More inputs and outputs than a joint fit is for: the far field, which is quadratic, hands over to curvature."""
    layer = Layer(128, 512, 128, "silu", 1000)
    found = rs.extract(layer, dim=128, rng=0)
    assert found.certificate.met
    assert found.structure.verdict == "exact"
    match = compared(found, layer)
    assert match.share(1e-6) == 1.0
    assert len(match.gates.false) == 0


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("d", "n", "p", "plain"), [(6, 4, 1, 0), (12, 20, 1, 0), (16, 30, 4, 0), (16, 30, 4, 15)])
def test_reglu_layers_of_all_sizes(d, n, p, plain, seed):
    layer = Layer(d, n, p, "relu", 2000 + seed, plain=plain)
    found = rs.extract(layer, dim=d, rng=seed)
    match = compared(found, layer)
    assert found.certificate.met
    assert found.structure.verdict == "exact"
    assert match.share(1e-3) == 1.0
    assert len(match.gates.false) == 0
    assert found.queries <= 40 * n * (2 * d + 32)


def test_max_features_holds_for_gated_features():
    found = rs.extract(Layer(5, 3, 2, "silu", 6), dim=5, rng=6, max_features=2, max_queries=20_000)
    assert len(found.features) <= 2
    assert not found.certificate.met


def test_a_gated_block_behind_its_norm_comes_back():
    layer, eps = Layer(8, 10, 8, "silu", 3), 1e-5

    def block(X):
        return X + layer(X / np.sqrt(np.mean(X**2, axis=1, keepdims=True) + eps))

    found = rs.extract(rs.oracle.prenorm(block, 8, kind="rms", eps=eps, residual=True), rng=3)
    assert found.certificate.met
    match = compared(found, layer)
    assert match.share(1e-6) == 1.0
    assert len(match.gates.false) == 0


@pytest.mark.parametrize(("d", "n", "name"), [(8, 10, "silu"), (6, 6, "silu"), (6, 6, "gelu")])
def test_the_family_of_weakly_bent_gates_is_found(d, n, name):
    """On the grid of starts their derivatives differ from those of all families by more than these do."""
    layer = Layer(d, n, d, name, 0)
    rng = np.random.default_rng(0)
    layer.W_gate, layer.W_up = rng.standard_normal((2, n, d)) / np.sqrt(d)
    layer.W_down, layer.b = rng.standard_normal((n, d)).T / np.sqrt(n), np.zeros(n)

    def block(X):
        return X + layer(X / np.sqrt(np.mean(X**2, axis=1, keepdims=True) + 1e-5))

    found = rs.extract(rs.oracle.prenorm(block, d, kind="rms", eps=1e-5), rng=0)
    assert found.certificate.met
    assert found.structure.verdict == "exact"
    assert compared(found, layer).share(1e-9) == 1.0
    net = found.network()
    assert net.activation == name
    assert net.W_gate[rs.match(net.W_gate, layer.W_gate).partner] == pytest.approx(layer.W_gate, abs=1e-9)


@pytest.mark.parametrize("outputs", [1, 3])
def test_products_without_an_activation_are_called_one_choice_of_many(outputs):
    rng = np.random.default_rng(4)
    U, V, W = (rng.standard_normal(shape) for shape in ((3, 5), (3, 5), (outputs, 3)))
    found = rs.extract(lambda X: ((X @ U.T) * (X @ V.T)) @ W.T, dim=5, rng=4)
    assert found.certificate.met
    assert found.structure.evidence["degree"] == 2
    assert not any(f.gated for f in found.features)
