"""PyTorch modules, places inside models, and exported programs. Skipped where torch is not installed."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

import ridgescope as rs

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = [
    pytest.mark.optional,
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning"),
]


def rows(count=9, dim=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


def network(dtype=torch.float64):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype).eval()


def exact(model, X):
    A, a, W, w = (p.detach().double().numpy() for p in model.parameters())
    return np.tanh(X @ A.T + a) @ W.T + w


class Gated(nn.Module):
    """A layer with two inputs, the second by name, and two outputs."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4).double()

    def forward(self, x, *, gate):
        return torch.tanh(self.inner(x)) * gate, gate


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4).double()
        self.blocks = nn.ModuleList([Gated(), Gated()])
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)

    def forward(self, tokens, strength):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x, gate=strength)[0]
        return self.mix(x, x, x)[0]


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
def test_a_module_answers_in_its_own_type(dtype, error):
    model = network(dtype)
    ask = rs.oracle.torch(model)
    assert ask.dim == 4
    np.testing.assert_allclose(ask(rows()), exact(model, rows()), atol=error)
    assert ask.rounding == torch.finfo(dtype).eps


@pytest.mark.parametrize("shipped", [torch.float32, torch.bfloat16, torch.float16])
def test_a_double_copy_computes_in_double(shipped):
    model = network(shipped)
    ask = rs.oracle.torch(model, dtype="float64")
    np.testing.assert_allclose(ask(rows()), exact(model, rows()), rtol=0, atol=1e-14)
    assert ask.gradient(rows()).dtype == np.float64
    assert next(model.parameters()).dtype == shipped, "the model itself stays as it is"


def test_inputs_held_fixed_are_in_double_too():
    model = Model().float().eval()
    reference = torch.randn(1, 5, 4)
    held = {"layer": "blocks.1", "reference": (reference, torch.ones(1, 1, 4)), "select": 0}
    single, double = (rs.oracle.torch(model, dtype=t, **held) for t in (None, "float64"))
    X = rows(3, 20)
    assert 0 < np.abs(single(X) - double(X)).max() < 1e-4


@pytest.mark.parametrize("dtype", ["int64", "double precision"])
def test_a_copy_of_no_floating_type_is_refused(dtype):
    with pytest.raises(rs.errors.InvalidInput, match="dtype"):
        rs.oracle.torch(network(), dtype=dtype)


def test_plain_queries_build_no_graph_and_gradients_leave_no_trace():
    model, seen = network(), []
    model[1].register_forward_hook(lambda _, x, y: seen.append((torch.is_grad_enabled(), y.requires_grad)))
    ask = rs.oracle.torch(model)
    ask(rows())
    assert seen == [(False, False)]
    ask.gradient(rows())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("scalar", [True, False])
def test_gradients_are_those_of_autograd(scalar):
    model = nn.Sequential(network(), nn.Flatten(0)) if scalar else network()
    model = nn.Sequential(nn.Linear(4, 1).double(), nn.Flatten(0)) if scalar else model
    ask = rs.oracle.torch(model, dim=4)
    slopes, h = ask.gradient(rows()), 1e-6
    assert slopes.shape == (9, 1 if scalar else 2, 4)
    for k in range(4):
        e = h * np.eye(4)[k]
        np.testing.assert_allclose(slopes[:, :, k], (ask(rows() + e) - ask(rows() - e)) / (2 * h), atol=1e-8)


def test_gradient_may_be_left_out_or_impossible():
    assert not rs.oracle.torch(network(), gradient=False).has_gradient
    assert not rs.oracle.torch(nn.Sequential(network(), nn.Softmax(1)), output="log_odds").has_gradient

    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    with pytest.raises(rs.OracleFailed, match=r"Cut cuts the derivative .* gradient=False"):
        rs.oracle.torch(Cut(), dim=2).gradient([[0.0, 0.0]])
    constant = nn.Linear(2, 1).double()
    assert np.isfinite(rs.oracle.torch(constant).gradient([[0.0, 0.0]])).all()


def test_a_place_inside_a_model_holds_its_other_inputs():
    model = Model().eval()
    reference = (torch.randn(1, 5, 4, dtype=torch.float64), torch.rand(1, 5, 4, dtype=torch.float64))
    block = model.blocks[1]
    ask = rs.oracle.torch(model, layer="blocks.1", reference=reference, at=2)
    assert ask.dim == 4
    X = torch.tensor(rows())
    with torch.no_grad():
        expected = torch.tanh(block.inner(X)) * reference[1][0, 2]
    np.testing.assert_allclose(ask(rows()), expected.numpy(), atol=1e-14)
    whole = rs.oracle.torch(model, layer="blocks.1", reference=reference)
    assert (whole.dim, whole(rows(3, 20)).shape) == (20, (3, 20))


def test_attention_sees_the_other_positions_of_the_reference():
    model = Model().eval()
    reference = (torch.randn(1, 5, 4, dtype=torch.float64), torch.rand(1, 5, 4, dtype=torch.float64))
    ask = rs.oracle.torch(model, reference=reference, at=3)
    for x, y in zip(rows(3), ask(rows(3)), strict=True):
        tokens = reference[0].clone()
        tokens[0, 3] = torch.tensor(x)
        with torch.no_grad():
            np.testing.assert_allclose(y, model(tokens, reference[1])[0, 3].numpy(), atol=1e-13)
    assert ask.gradient(rows(3)).shape == (3, 4, 4)


def test_an_input_by_name_moves_too():
    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.net = nn.Embedding(7, 4, dtype=torch.float64), network()

        def forward(self, ids):
            return self.net(input=self.embed(ids))

    model = Caller().eval()
    ids = {"ids": torch.tensor([[1, 2, 3]])}
    ask = rs.oracle.torch(model, layer="net", reference=ids, at=1)
    np.testing.assert_allclose(ask(rows()), exact(model.net, rows()), atol=1e-14)
    with pytest.raises(rs.InvalidInput, match=r"the first input holds torch\.int64.*after the embedding"):
        rs.oracle.torch(model, reference=ids)


def test_a_layer_with_one_input_needs_no_reference():
    model = nn.Sequential(network(), network()[:1])
    ask = rs.oracle.torch(model, layer="0.2")
    weight, bias = (p.detach().numpy() for p in model[0][2].parameters())
    np.testing.assert_allclose(ask(rows(9, 6)), rows(9, 6) @ weight.T + bias, atol=1e-14)


def test_outputs_in_parcels_are_unpacked():
    class Parcel(nn.Module):
        def forward(self, x):
            return {"logits": x * 2, "hidden": x}

    ask = rs.oracle.torch(Parcel(), dim=2, select="logits")
    assert ask([[1.0, 2.0]]).tolist() == [[2.0, 4.0]]
    picture = rs.oracle.torch(nn.Flatten(2), shape=(1, 2, 3), select=lambda y: y[:, 0])
    assert (picture.dim, picture([[0, 1, 2, 3, 4, 5]]).tolist()) == (6, [[0, 1, 2, 3, 4, 5]])
    with pytest.raises(rs.InvalidInput, match=r"a dictionary with 'logits', 'hidden', not rows.*select=…"):
        rs.oracle.torch(Parcel(), dim=2)([[1.0, 2.0]])
    with pytest.raises(rs.InvalidInput, match="has no 'logit'; choose another"):
        rs.oracle.torch(Parcel(), dim=2, select="logit")([[1.0, 2.0]])


def test_what_cannot_be_asked_is_said():
    with pytest.raises(rs.InvalidInput, match=r"no layer 'block\.1'; did you mean blocks\.1"):
        rs.oracle.torch(Model().eval(), layer="block.1")
    with pytest.raises(rs.InvalidInput, match=r"1 \(Dropout\) is in training mode.*model\.eval\(\)"):
        rs.oracle.torch(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    with pytest.raises(rs.InvalidInput, match=r"takes a torch\.nn\.Module or the path of a \.pt2 file; got 3"):
        rs.oracle.torch(3)
    with pytest.raises(rs.InvalidInput, match="dim is missing"):
        rs.oracle.torch(nn.Tanh())
    with pytest.raises(rs.InvalidInput, match=r"a batch of 1; the layer's input there is shape \(2, 4\)"):
        rs.oracle.torch(network(), reference=torch.zeros(2, 4).double())
    with pytest.raises(rs.InvalidInput, match=r"at=\(1,\) needs a reference"):
        rs.oracle.torch(network(), at=1)
    with pytest.raises(rs.InvalidInput, match=r"at=\(1,\) leaves nothing to vary in an input of shape \(4,\)"):
        rs.oracle.torch(network(), at=1, reference=torch.zeros(1, 4).double())


def test_it_survives_pickling():
    ask = rs.oracle.torch(network())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ask))(rows()), ask(rows()))


# -- exported programs ---------------------------------------------------------------------------------------


def export(model, path, *, batch=None, inputs=None):
    inputs = inputs or (torch.zeros(batch or 3, 4, dtype=torch.float64),)
    free = tuple({0: torch.export.Dim("batch")} for _ in inputs) if batch is None else None
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=free), path)
    return path


@pytest.mark.parametrize("batch", [None, 1, 4])
def test_an_exported_program_answers_from_its_file(tmp_path, batch):
    model = network()
    ask = rs.oracle.torch(export(model, tmp_path / "net.pt2", batch=batch))
    assert ask.dim == 4
    np.testing.assert_allclose(ask(rows()), exact(model, rows()), atol=1e-14)
    np.testing.assert_allclose(ask.gradient(rows()), rs.oracle.torch(model).gradient(rows()), atol=1e-14)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ask))(rows()), ask(rows()))


def test_the_other_inputs_of_a_program_stay_as_exported(tmp_path):
    class Sum(nn.Module):
        def forward(self, x, shift):
            return torch.sin(x) + shift

    shift = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 3).double()
    path = export(Sum(), tmp_path / "sum.pt2", inputs=(torch.zeros(3, 4).double(), shift))
    np.testing.assert_allclose(rs.oracle.torch(path)(rows()), np.sin(rows()) + np.arange(1, 5), atol=1e-14)


def tampered(path, change):
    """The same archive, with `change(name, bytes) -> bytes` applied to each of its parts."""
    out = path.with_name("tampered.pt2")
    with zipfile.ZipFile(path) as archive:
        before = {name: archive.read(name) for name in archive.namelist()}
    after = {name: change(name, data) for name, data in before.items()}
    if after == before:
        pytest.skip("programs exported by this version of PyTorch have no such part")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in after.items():
            archive.writestr(name, data)
    return out


class Boom:
    def __reduce__(self):
        return print, ("code ran",)


def swap(old, new, ending=("model.json", "program.json")):
    return lambda name, data: data.replace(old, new) if name.endswith(ending) else data


def pickled(name, data):
    buffer = io.BytesIO()
    torch.save(Boom(), buffer)
    return buffer.getvalue() if name.endswith(("sample_inputs/model.pt", "example_inputs.pt")) else data


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (pickled, "pickles more than tensors"),
        (swap(b"torch.ops.aten.tanh.default", b"torch.os.system"), "it calls 'torch.os.system'"),
        (swap(b"torch.ops.aten.tanh.default", b"_operator.call"), "it calls '_operator.call'"),
        (swap(b"torch.ops.aten.tanh.default", b"torch.ops.load_library"), "it calls 'torch.ops.load_library'"),
        (swap(b"builtins.dict", b"collections.defaultdict"), "its inputs or outputs hold collections.defaultdict"),
        (swap(b"Symbol('", b"__import__('"), 'a size is "__import__'),
        (swap(b'"use_pickle": false', b'"use_pickle": true', "weights_config.json"), "pickled tensors"),
        (swap(b'"weight_0"', b'"../../weight_0"', "weights_config.json"), "a name in it is '../../weight_0'"),
    ],
)
def test_a_program_that_could_run_code_is_refused(tmp_path, capsys, change, why):
    path = tampered(export(network(), tmp_path / "net.pt2"), change)
    with pytest.raises(rs.InvalidInput, match=r"tampered\.pt2 is refused: .*can run code") as caught:
        rs.oracle.torch(path)
    assert why in str(caught.value)
    assert "trust=True" in str(caught.value)
    assert "code ran" not in capsys.readouterr().out


def test_files_that_are_no_programs(tmp_path):
    with pytest.raises(rs.InvalidInput, match="layer='0' needs the model itself"):
        rs.oracle.torch("net.pt2", layer="0")
    with pytest.raises(rs.FileProblem, match="there is no file"):
        rs.oracle.torch(tmp_path / "none.pt2")
    (tmp_path / "bad.pt2").write_bytes(b"no zip")
    with pytest.raises(rs.FileProblem, match="is not an exported program"):
        rs.oracle.torch(tmp_path / "bad.pt2")
    with zipfile.ZipFile(tmp_path / "empty.pt2", "w") as archive:
        archive.writestr("net/models/model.json", json.dumps({}))
    with pytest.raises(rs.FileProblem, match="cannot be read as an exported program"):
        rs.oracle.torch(tmp_path / "empty.pt2")
    with zipfile.ZipFile(tmp_path / "library.pt2", "w") as archive:
        archive.writestr("net/data/aotinductor/model/code.so", b"")
    with pytest.raises(rs.InvalidInput, match=r"it holds 'net/data/aotinductor/model/code\.so'"):
        rs.oracle.torch(tmp_path / "library.pt2")


def test_a_second_part_of_the_same_name_is_refused(tmp_path):
    path = export(network(), tmp_path / "net.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/models/MODEL.json", b"{}")
    with pytest.raises(rs.InvalidInput, match="two of its parts have one name"):
        rs.oracle.torch(path)


# -- all the way ---------------------------------------------------------------------------------------------


def test_the_features_of_a_layer_come_back():
    model = nn.ModuleDict({"mlp": network()})
    found = rs.extract(rs.oracle.torch(model, layer="mlp"), radius=2.0, rng=0)
    assert found.certificate.met
    assert rs.match(found.directions, model["mlp"][0].weight.detach().numpy()).share(1e-2) == 1.0
