"""Blocks x + MLP(norm(x)) come back as the neurons of their MLP."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.special import erf

import ridgescope as rs
from ridgescope.oracle.prenorm import COMMON_EPS


def gelu(y):
    return y * (1.0 + erf(y / np.sqrt(2.0))) / 2.0


class Block:
    """x + MLP(gain·norm(x)) with 12 neurons, in single or double precision."""

    def __init__(self, kind, dim, *, eps=1e-5, gain=False, dtype=np.float64, activation=gelu, residual=True, seed=0):
        rng = np.random.default_rng(seed)
        self.kind, self.eps, self.dtype, self.activation, self.residual = kind, eps, dtype, activation, residual
        self.W, self.b = rng.standard_normal((12, dim)) / np.sqrt(dim), 0.3 * rng.standard_normal(12)
        self.out = rng.standard_normal((12, dim)) / np.sqrt(12)
        self.gain = rng.uniform(0.7, 1.4, dim) * rng.choice([-1, 1], dim) if gain else np.ones(dim)

    def mlp(self, h):
        W, b, out = (a.astype(self.dtype) for a in (self.W, self.b, self.out))
        return self.activation(h.astype(self.dtype) @ W.T + b).astype(self.dtype) @ out

    def normalised(self, X):
        Z = X - X.mean(axis=1, keepdims=True) if self.kind == "layer" else X
        return Z / np.sqrt(np.mean(Z**2, axis=1, keepdims=True) + self.dtype(self.eps))

    def __call__(self, X):
        X = X.astype(self.dtype)
        y = self.mlp(self.gain.astype(self.dtype) * self.normalised(X))
        return X + y if self.residual else y


CASES = [("rms", 8), ("layer", 9)]


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize(("kind", "dim"), CASES)
@pytest.mark.parametrize(("dtype", "within"), [(np.float64, 1e-6), (np.float32, 1e-2)])
def test_all_neurons_behind_a_norm_are_found(kind, dim, gain, dtype, within):
    block = Block(kind, dim, gain=gain, dtype=dtype)
    ask = rs.oracle.prenorm(block, dim, kind=kind, eps=1e-5, weight=block.gain if gain else None)
    found = rs.extract(ask, rng=0)
    assert found.certificate.met
    assert len(found.features) == 12
    true = block.W @ ask.basis.T @ ask.basis  # what of a weight vector multiplies something that moves
    assert rs.match(found.directions @ ask.basis, true).share(within) == 1.0
    assert found.radius > 0.99 * np.sqrt(dim) * np.abs(block.gain).min()


@pytest.mark.parametrize(("kind", "dim"), CASES)
def test_the_network_is_the_mlp(kind, dim):
    block = Block(kind, dim, gain=True)
    ask = rs.oracle.prenorm(block, dim, kind=kind, eps=1e-5, weight=block.gain)
    net = rs.extract(ask, rng=0).network()
    X = np.random.default_rng(1).standard_normal((50, dim))
    assert net.resolved.all()
    np.testing.assert_allclose(net(ask.normalise(X)), block(X) - X, atol=1e-9)
    order = rs.match(net.W_in, block.W @ ask.basis.T).partner
    np.testing.assert_allclose(net.W_in[order] @ ask.basis, block.W @ ask.basis.T @ ask.basis, atol=1e-8)
    if kind == "rms":
        np.testing.assert_allclose(net.W_in[order], block.W, atol=1e-8)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("kind", "dim"), CASES)
def test_a_query_is_an_input_of_the_mlp(kind, dim, residual):
    block = Block(kind, dim, gain=True, residual=residual)
    ask = rs.oracle.prenorm(block, dim, kind=kind, eps=1e-5, weight=block.gain, residual=residual)
    Q = np.random.default_rng(0).standard_normal((40, ask.dim))
    Q *= 0.99 * ask.natural_radius / np.linalg.norm(Q, axis=1, keepdims=True)
    np.testing.assert_allclose(ask(Q), block.mlp(Q @ ask.basis), atol=1e-11)
    np.testing.assert_allclose(ask.basis @ ask.basis.T, np.eye(ask.dim), atol=1e-14)
    x = ask.function.inputs(Q)
    np.testing.assert_allclose(block.gain * block.normalised(x), Q @ ask.basis, atol=1e-12)
    np.testing.assert_allclose(ask.normalise(x), Q, atol=1e-12)
    assert pickle.loads(pickle.dumps(ask.function)).eps == 1e-5


def test_a_gain_of_one_leaves_the_gain_to_the_mlp():
    block = Block("rms", 8, gain=True)
    ask = rs.oracle.prenorm(block, 8, eps=1e-5, weight=1.0)
    found = rs.extract(ask, rng=0)
    assert rs.match(found.directions, block.W * block.gain).share(1e-6) == 1.0


def test_data_are_rows_of_the_residual_stream():
    block = Block("layer", 9)
    ask = rs.oracle.prenorm(block, 9, kind="layer", eps=1e-5)
    X = 2.0 * np.random.default_rng(0).standard_normal((300, 9)) + 1.0
    found = rs.extract(ask, data=ask.normalise(X), rng=0)
    assert found.certificate.met
    assert found.center.tolist() == [0.0] * 8
    assert found.radius == pytest.approx(ask.natural_radius)
    assert found.data_check.rows == 300
    assert found.data_check.sup < 1e-3
    np.testing.assert_allclose(found.network()(ask.normalise(X)), block(X) - X, atol=1e-8)


# -- ε -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [gelu, lambda y: np.maximum(y, 0.0)], ids=["gelu", "relu"])
@pytest.mark.parametrize("eps", COMMON_EPS)
@pytest.mark.parametrize(("kind", "dim"), CASES)
def test_a_missing_eps_is_told_from_the_values(kind, dim, eps, activation):
    for seed in range(5):
        block = Block(kind, dim, eps=eps, seed=seed, activation=activation)
        assert rs.oracle.prenorm(block, dim, kind=kind).eps == eps


@pytest.mark.parametrize(
    "options", [{"eps": 1e-4}, {"activation": lambda y: np.tanh(4 * y)}, {"activation": lambda y: 0 * y}]
)
def test_eps_that_cannot_be_told_is_asked_for(options):
    with pytest.raises(rs.InvalidInput, match="pass eps="):
        rs.oracle.prenorm(Block("rms", 8, **options), 8)


# -- what cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "batch"}, 'kind must be "rms" or "layer"'),
        ({"eps": 0.0}, "eps must be a positive number"),
        ({"weight": [1.0, 0.0, 1.0, 1.0]}, "weight has an entry 0.0"),
        ({"center": np.ones(4)}, "takes no center"),
        ({"dim": None}, "pass dim"),
        ({"norm": "ln_2"}, "names a part of a torch.nn.Module"),
        ({"norm": object()}, "neither a LayerNorm nor an RMSNorm"),
    ],
)
def test_arguments_are_checked(change, says):
    with pytest.raises(rs.InvalidInput, match=says):
        rs.oracle.prenorm(Block("rms", 4), **{"dim": 4, "eps": 1e-5, **change})


def test_a_block_that_does_not_add_its_input_is_noticed():
    ask = rs.oracle.prenorm(lambda X: X[:, :2], 4, eps=1e-5)
    with pytest.raises(rs.InvalidInput, match="pass residual=False"):
        ask(np.zeros((3, 4)))


def test_the_ball_of_the_inputs_is_kept_to():
    ask = rs.oracle.prenorm(Block("rms", 4), 4, eps=1e-5)
    with pytest.raises(rs.InvalidInput, match=r"reach=1\.9+.* is smaller than radius=3"):
        rs.extract(ask, radius=3.0)
    with pytest.raises(rs.InvalidInput, match="leave center out"):
        rs.extract(ask, center=np.ones(4))
    with pytest.raises(rs.InvalidInput, match="outside the ball"):
        ask.function(np.full((1, 4), 1.1))


# -- PyTorch -------------------------------------------------------------------------------------------------


def torch_block(norm, dtype, dim=8, hidden=12):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_2 = norm
            self.mlp = torch.nn.Sequential(torch.nn.Linear(dim, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, dim))

        def forward(self, x):
            return x + self.mlp(self.ln_2(x))

    module = Module()
    if getattr(norm, "weight", None) is not None:
        torch.nn.init.uniform_(norm.weight, 0.7, 1.4)
    return module.to(dtype).eval()


@pytest.mark.optional
@pytest.mark.parametrize("kind", ["rms", "layer", "rms without eps", "layer without gain"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_norm_of_pytorch_tells_what_it_is(kind, precision):
    torch = pytest.importorskip("torch")
    norm = {
        "rms": lambda: torch.nn.RMSNorm(8, eps=1e-6),
        "layer": lambda: torch.nn.LayerNorm(8),
        "rms without eps": lambda: torch.nn.RMSNorm(8),
        "layer without gain": lambda: torch.nn.LayerNorm(8, elementwise_affine=False),
    }[kind]()
    dtype = getattr(torch, precision)
    block = torch_block(norm, dtype)
    ask = rs.oracle.prenorm(block, norm="ln_2")
    assert ask.dim == (8 if kind.startswith("rms") else 7)
    assert ask.eps == {"rms": 1e-6, "rms without eps": torch.finfo(dtype).eps}.get(kind, 1e-5)
    assert ask.function.weight.tolist() == (
        [1.0] * 8 if norm.weight is None else norm.weight.detach().double().numpy().tolist()
    )
    found = rs.extract(ask, rng=0)
    assert found.certificate.met
    true = block.mlp[0].weight.detach().double().numpy() @ ask.basis.T
    assert rs.match(found.directions, true).share(1e-6 if precision == "float64" else 1e-2) == 1.0
    with pytest.raises(rs.InvalidInput, match="did you mean"):
        rs.oracle.prenorm(block, norm="ln_3")


@pytest.mark.optional
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_derivatives_go_through_the_norm(kind):
    torch = pytest.importorskip("torch")
    norm = torch.nn.RMSNorm(8, eps=1e-6) if kind == "rms" else torch.nn.LayerNorm(8)
    ask = rs.oracle.prenorm(torch_block(norm, torch.float64), norm=norm)
    Q = np.random.default_rng(0).standard_normal((5, ask.dim))
    Q *= 0.8 * ask.natural_radius / np.linalg.norm(Q, axis=1, keepdims=True)
    step = 1e-6
    slopes = np.stack([(ask(Q + step * e) - ask(Q - step * e)) / (2 * step) for e in np.eye(ask.dim)], axis=2)
    np.testing.assert_allclose(ask.gradient(Q), slopes, atol=1e-7)


def test_the_precision_of_the_block_is_known():
    for dtype in (np.float32, np.float64):
        ask = rs.oracle.prenorm(Block("rms", 4, dtype=dtype), 4, eps=1e-5)
        ask(np.zeros((1, 4)))
        assert ask.rounding == np.finfo(dtype).eps
